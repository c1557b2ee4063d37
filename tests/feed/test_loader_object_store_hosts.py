"""Hosts on one mixture in an object store that is far away: one request a block, as forecast,
before it is needed.

How long they wait is shown by the bench of the same name (scripts/bench/bench_object_store.py).
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.analysis import simulate
from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.errors import ReadError
from headrace.feed import DataLoader
from headrace.feed import loader as loader_module
from headrace.feed.placement import Placement
from headrace.store import CacheLayout, open_cache
from headrace.testing import FaultProxy, Faults, s3_server, web_server, write_cache
from headrace.testing.servers import use_s3

HOSTS = 8
BATCH = 64
SEQ = 32
BLOCK = 8
SHARD = 64
STEPS = 40
LAYOUT = CacheLayout("uint16", BLOCK * SEQ, SHARD)
WEIGHTS = {"a": 5, "b": 2, "c": 1}
PREFETCH = 1 << 20
LATENCY_S = 0.03


class Gate(FaultProxy):
    """Lets only ``left`` requests for data through (None: all); the others hang."""

    left = None

    def decide(self, head):
        entry, status = super().decide(head)
        if self.left is not None and kind_of(entry) == "data":
            self.left -= 1
            entry.fate = "ok" if self.left >= 0 else "hang"
        return entry, status


def kind_of(entry):
    if entry.method != "GET" or "/data/c/" not in unquote(entry.path):
        return "other"
    return "index" if entry.range.startswith("bytes=-") else "data"


class HostPlacement(Placement):
    """One device in place of all those of a host."""

    number = 0
    hosts = 1

    def local_rows(self, batch_size):
        return np.arange(
            self.number * batch_size // self.hosts, (self.number + 1) * batch_size // self.hosts
        )

    def transfer(self, local, batch_size, **_) -> Any:
        return jax.device_put


def mixture(root):
    parts = {
        name: TokenSeqDataset(open_cache(f"{root}/{name}"), SEQ, name=name).braid_shuffle(
            seed=k, strands=BATCH * weight // 2
        )
        for k, (name, weight) in enumerate(WEIGHTS.items())
    }
    return MixtureDataset(parts, WEIGHTS, BATCH, num_steps=STEPS)


def loader_of(monkeypatch, root, number, hosts=HOSTS):
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    kind = type("Host", (HostPlacement,), {"number": number, "hosts": hosts})
    monkeypatch.setattr(loader_module, "Placement", kind)
    return DataLoader(mixture(root), mesh=one, prefetch_bytes=PREFETCH)


def write(root):
    blocks = 0
    for k, (name, weight) in enumerate(WEIGHTS.items()):
        rows = STEPS * BATCH * weight // sum(WEIGHTS.values())
        tokens = np.random.default_rng(k).integers(0, 50_000, rows * SEQ).astype(np.uint16)
        write_cache(f"{root}/{name}", [[tokens]], vocab_size=1 << 16, layout=LAYOUT)
        blocks += rows // BLOCK
    return blocks


@pytest.fixture
def far(tmp_path_factory) -> Iterator[tuple[Gate, str]]:
    """A web server behind a gate of its own, where no other test's reads are still on their way,
    and the folder that it serves.
    """
    folder = tmp_path_factory.mktemp("far")
    with web_server(folder) as server:
        proxy = Gate(server)
        with proxy:
            yield proxy, str(folder)


def consume(loader, taken):
    with loader.iter_from_step(0) as batches:
        taken.extend(np.asarray(batch.tokens) for batch in batches)


def run_hosts(loaders):
    """All hosts side by side: the rows of each step in the order of the hosts."""
    taken: list[list[np.ndarray]] = [[] for _ in loaders]
    threads = [
        threading.Thread(target=consume, args=pair) for pair in zip(loaders, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [np.concatenate(parts) for parts in zip(*taken, strict=True)]


def check_hosts(monkeypatch, proxy, root, blocks, wanted):
    """Runs the hosts against a store that is far away; the requests are those of the forecast."""
    planned = mixture(root)
    forecast = simulate(planned, planned.batch_schedule, hosts=[HOSTS], cache_bytes=PREFETCH)
    assert forecast.exact
    expected = forecast.by_hosts[0].block_fetches
    loaders = [loader_of(monkeypatch, root, number) for number in range(HOSTS)]
    proxy.clear()
    proxy.faults = Faults(latency_s=LATENCY_S)
    found = run_hosts(loaders)
    proxy.faults = Faults()
    assert len(found) == len(wanted) == STEPS
    assert all(map(np.array_equal, found, wanted))
    kinds = [kind_of(r) for r in proxy.log]
    assert kinds.count("data") == pytest.approx(expected, rel=0.02)
    assert kinds.count("data") <= 1.1 * blocks
    shards = sum(
        -(-STEPS * BATCH * w // sum(WEIGHTS.values()) // BLOCK // SHARD) for w in WEIGHTS.values()
    )
    assert kinds.count("index") <= HOSTS * shards


def test_eight_hosts_ask_for_each_block_once(far, monkeypatch):
    proxy, folder = far
    blocks = write(f"{folder}/eight")
    whole = loader_of(monkeypatch, f"{folder}/eight", 0, hosts=1)
    wanted = [np.asarray(b.tokens) for b in whole]
    check_hosts(monkeypatch, proxy, f"{proxy.url}/eight", blocks, wanted)


def test_blocks_are_asked_for_before_their_batches_are(far, monkeypatch):
    """Without it this waits for ever: the trainer takes one batch, and the blocks of many others
    come.
    """
    proxy, folder = far
    whole = write(f"{folder}/ahead")
    proxy.clear()
    with loader_of(monkeypatch, f"{proxy.url}/ahead", 0, hosts=1).iter_from_step(0) as batches:
        next(batches)
        while sum(kind_of(r) == "data" for r in proxy.log) < whole // 2:
            time.sleep(0.01)


@pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="pip install 'moto[server]'")
@pytest.mark.slow
def test_eight_hosts_on_s3(monkeypatch):
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request otherwise
    with s3_server() as server, Gate(server) as proxy, use_s3(proxy.url) as bucket:
        blocks = write(f"{bucket}/eight")
        whole = [
            np.asarray(b.tokens) for b in loader_of(monkeypatch, f"{bucket}/eight", 0, hosts=1)
        ]
        check_hosts(monkeypatch, proxy, f"{bucket}/eight", blocks, whole)


def test_the_first_batch_waits_for_its_own_blocks_only(far, monkeypatch):
    """Every request for data beyond those blocks hangs, and it comes all the same; with one less it
    does not.
    """
    proxy, folder = far
    write(f"{folder}/first")
    root = f"{proxy.url}/first"
    proxy.clear()
    wanted = np.asarray(loader_of(monkeypatch, root, 3).batch_at(0).tokens)
    own = sum(kind_of(r) == "data" for r in proxy.log)
    assert 1 < own <= BATCH // HOSTS
    came: dict[int, np.ndarray] = {}

    def take(batches, let_through):
        try:
            came[let_through] = np.asarray(next(batches).tokens)
        except ReadError:
            return  # closed while it waited

    for let_through, patience_s in ((own, None), (own - 1, 0.5)):
        proxy.left = let_through
        batches = loader_of(monkeypatch, root, 3).iter_from_step(0)
        taking = threading.Thread(target=take, args=(batches, let_through))
        taking.start()
        taking.join(patience_s)
        batches.close()
        taking.join()
        proxy.left = None
        proxy.release()
        time.sleep(0.3)  # TensorStore asks again by itself
    assert list(came) == [own]
    assert np.array_equal(came[own], wanted)
