"""Ledgers that one process reads for all of a job: counted at the server, and in real processes."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from headrace.data import filter_files
from headrace.data.documents import DocumentFilter
from headrace.errors import CacheCorruptError, CacheMissingError
from headrace.feed.host_ledgers import SharedLedgers, job_reader
from headrace.store import CacheLayout, TokenCache, files, open_cache
from headrace.store.joined import open_components
from headrace.store.ledger import open_ledger
from headrace.store.snapshots import SNAPSHOTS_NAME, choose_snapshot, history_of
from headrace.testing import FaultProxy, tiny_cache, web_server, write_cache
from headrace.testing.caches import random_documents, remove
from headrace.testing.servers import free_port

PARTS = 30
PROCESSES = 4
HOST = """
import json, sys, jax, numpy as np
address, number, processes, root, url = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
jax.distributed.initialize(address, processes, number)
from headrace import load_config
settings = [f"components.{name}={{cache: {url}/{name}}}" for name in "ab"]
config = load_config(overrides=[*settings, "seq_len=16", "batch_size=32", "shuffle={kind: braid}"])
with config.loader() as loader:
    batches = [loader.batch_at(step) for step in range(3)]
    tokens = [shard.data for batch in batches for shard in batch.tokens.addressable_shards]
    np.save(f"{root}/host{number}.npy", np.stack(tokens))
    print(json.dumps({"fingerprint": config.open_caches()["a"].fingerprint}))
"""


class KeyValueStore:
    """The calls of JAX's client that share ledgers, in memory."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        if key in self.values:
            raise RuntimeError("ALREADY_EXISTS")
        self.values[key] = value

    def blocking_key_value_get(self, key, timeout_ms):
        if key not in self.values:
            raise RuntimeError("DEADLINE_EXCEEDED")
        return self.values[key]

    key_value_set_bytes = key_value_set
    blocking_key_value_get_bytes = blocking_key_value_get


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate("ab"):
        parts = [random_documents(20, seed=100 * seed + k) for k in range(PARTS)]
        write_cache(root / name, parts, layout=CacheLayout("uint8", 128, 4))
    return root


@pytest.fixture
def served(root):
    """The address of the caches, and the proxy that counts."""
    with web_server(root) as url, FaultProxy(url) as proxy:
        yield proxy.url, proxy


def opened(proxy):
    """Requests for anything but chunks."""
    return [entry.path for entry in proxy.log if "/c/" not in entry.path]


def test_one_reads_for_all(served):
    url, proxy = served
    store = KeyValueStore()
    ledgers = [SharedLedgers(store) for _ in range(16)]
    caches = [TokenCache.open_member(f"{url}/a", once=once) for once in ledgers]
    assert len(opened(proxy)) == 3  # ledger.json, ledger.bin, and the zarr.json of the first part
    assert len({cache.fingerprint for cache in caches}) == 1
    tokens = [cache.tokens(0, cache.num_tokens) for cache in caches[::5]]
    assert all(np.array_equal(tokens[0], other) for other in tokens)
    assert caches[9].ledger.parts[7] == caches[0].ledger.parts[7]  # which reads the digests
    assert len(opened(proxy)) == 3 + 2


def test_one_works_out_a_filter_for_all(served, root, monkeypatch):
    url, proxy = served
    monkeypatch.setattr(filter_files, "_WORTH_SAVING", 1)
    numbers = np.arange(0, 20 * PARTS, 3)
    DocumentFilter(numbers).of(
        open_cache(root / "b")
    )  # a cache on the web cannot have it written beside it
    cache = open_cache(f"{url}/b")
    store = KeyValueStore()
    before = len(proxy.log)
    records = []
    for _ in range(3):
        removed = DocumentFilter(numbers).of(cache, partial(SharedLedgers(store).filter, "ids.npy"))
        records.append((removed.num_documents, removed.num_tokens, removed.folder))
    assert records == [records[0]] * 3
    assert records[0][:2] == (numbers.size, int(cache.lengths()[numbers].sum()))
    assert [entry.path.rpartition("/")[2] for entry in proxy.log[before:]].count("filter.json") == 1
    # nothing is saved of another list, so that each works it out
    others = [
        DocumentFilter(numbers[1:]).of(cache, partial(SharedLedgers(store).filter, "others.npy"))
        for _ in range(3)
    ]
    assert [(one.num_documents, one.folder) for one in others] == [(numbers.size - 1, "")] * 3


def test_all_have_the_snapshots_that_the_first_has_read(served, root):
    url, proxy = served
    store = KeyValueStore()

    def newest(values):
        return history_of(f"{url}/b", once=SharedLedgers(values)).newest

    assert [newest(store) for _ in range(3)] == [1] * 3
    try:
        remove(root / "b", 3)
        assert newest(store) == 1  # for the whole job
        assert len(opened(proxy)) == 1
        later = KeyValueStore()
        assert [newest(later) for _ in range(3)] == [2] * 3
        assert len(opened(proxy)) == 2
    finally:
        (root / "b" / SNAPSHOTS_NAME).unlink(missing_ok=True)


def test_caches_are_opened_with_the_snapshots_that_the_first_has_read(served):
    url, proxy = served
    store = KeyValueStore()
    for _ in range(3):
        shared = SharedLedgers(store)
        history = history_of(f"{url}/b", once=shared)
        chosen = choose_snapshot(f"{url}/b", None, history)
        assert open_components({"b": [chosen]}, once=shared)["b"].snapshots[0].number == 1
    assert len(opened(proxy)) == 3 + 1


def test_those_of_whom_nothing_came_read_it_themselves(served, caplog):
    url, proxy = served
    store = KeyValueStore()
    # a store that takes no pieces
    store.key_value_set_bytes = store.blocking_key_value_get  # pyright: ignore
    assert TokenCache.open_member(f"{url}/a", once=SharedLedgers(store)).num_documents == 20 * PARTS
    assert TokenCache.open_member(f"{url}/a", once=SharedLedgers(store)).num_documents == 20 * PARTS
    assert len(opened(proxy)) == 6
    assert "ledgers are not shared" in caplog.text
    assert "left none" in caplog.text


def test_an_error_is_that_of_each_process(root, tmp_path):
    write_cache(tmp_path / "c", [random_documents(5)])
    (tmp_path / "c" / "ledger.bin").write_bytes((root / "a" / "ledger.bin").read_bytes())
    store = KeyValueStore()
    with web_server(tmp_path) as url:
        for _ in range(2):
            with pytest.raises(CacheCorruptError, match=r"is of another ledger\.json"):
                open_ledger(f"{url}/c", SharedLedgers(store))
        for _ in range(2):
            with pytest.raises(CacheMissingError):
                TokenCache.open_member(f"{url}/none", once=SharedLedgers(store))


def test_a_piece_that_was_changed_on_its_way_is_refused(served):
    url, _ = served
    store = KeyValueStore()
    open_ledger(f"{url}/a", SharedLedgers(store))
    (key,) = (key for key in store.values if key.endswith("/0"))
    raw = bytearray(store.values[key])
    raw[len(raw) // 2] ^= 1
    store.values[key] = bytes(raw)
    assert TokenCache.open_member(f"{url}/a", once=SharedLedgers(store)).num_documents == 20 * PARTS


def test_local_caches_are_read_by_each_process():
    store = KeyValueStore()
    assert open_ledger(tiny_cache().path, SharedLedgers(store)).finished
    assert store.values == {}
    assert job_reader() is files.read_here


@pytest.mark.slow
def test_four_processes_open_a_run_once(root, served, tmp_path):
    url, proxy = served
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, address, *map(str, (number, PROCESSES, tmp_path, url))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        said = [host.communicate() for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0] * PROCESSES, said
    # snapshots.json, ledger.json, ledger.bin, and the zarr.json of the first part, of two caches
    assert len(opened(proxy)) == 2 * 4, opened(proxy)
    chunks = [entry.path for entry in proxy.log if "/c/" in entry.path]
    assert chunks
    assert len({json.loads(out.splitlines()[-1])["fingerprint"] for out, _ in said}) == 1
    rows = np.concatenate(
        [np.load(tmp_path / f"host{number}.npy") for number in range(PROCESSES)], axis=1
    )
    assert rows.shape == (3, 32, 16)
