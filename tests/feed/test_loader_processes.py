"""Real processes: two hosts of one job, Ctrl-C, and leaving without closing."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.feed import DataLoader
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.servers import free_port

COMMON = """
import sys
import jax, numpy as np
from headrace import DataLoader, MixtureDataset, TokenSeqDataset

def mixture(root):
    a, b = (TokenSeqDataset(f"{root}/{n}", 8, split_documents=True) for n in "ab")
    sources = {"a": a.block_shuffle(window_blocks=2, seed=1), "b": b.shuffle(2)}
    return MixtureDataset(sources, {"a": 3, "b": 1}, {0: 8, 3: 12}, stop_strategy="first_exhausted")
"""

ONE_HOST_OF_TWO = (
    COMMON
    + """
root, address, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, number)
assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)
loader = DataLoader(mixture(root))
shards, weights = {}, []
total = jax.jit(lambda batch: batch.token_weights.sum())  # one program over both hosts
for step, batch in enumerate(loader):
    weights.append(float(total(batch)))
    for name in ("token_ids", "source_id", "valid"):
        for shard in getattr(batch, name).addressable_shards:
            start = shard.index[0].start or 0
            shards[f"{step}/{name}/{start}"] = np.asarray(shard.data)
np.savez(f"{root}/host{number}.npz", weights=weights, blocks=loader.stats().reads.block_fetches, **shards)
"""
)


def environment(devices):
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}",
    }


def start(program, *arguments, devices=1):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment(devices),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_two_hosts(program, root):
    """What each of two hosts of a job, with two devices each, prints."""
    address = f"127.0.0.1:{free_port()}"
    hosts = [start(program, root, address, number, devices=2) for number in (0, 1)]
    try:
        said = [host.communicate() for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], said
    return [out for out, _ in said]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two sources of different dtype; the first ends in the middle of a batch."""
    root = tmp_path_factory.mktemp("caches")
    for name, dtype, rows in (("a", "uint8", 37), ("b", "uint16", 30)):
        tokens = [np.append((np.arange(7) * 3 + 5 * r) % 255, 255) for r in range(rows)]
        write_cache(root / name, [tokens], eos_id=255, layout=CacheLayout(dtype, 32, 2))
    return root


def alone(root):
    a, b = (TokenSeqDataset(root / n, 8, split_documents=True) for n in "ab")
    sources = {"a": a.block_shuffle(window_blocks=2, seed=1), "b": b.shuffle(2)}
    mixture = MixtureDataset(
        sources, {"a": 3, "b": 1}, {0: 8, 3: 12}, stop_strategy="first_exhausted"
    )
    return DataLoader(mixture, mesh=Mesh(np.array(jax.devices()[:1]), ("data",)))


def test_two_hosts_load_together_what_one_loads_alone(root):
    run_two_hosts(ONE_HOST_OF_TWO, root)
    found = [dict(np.load(root / f"host{number}.npz")) for number in (0, 1)]
    loader = alone(root)
    assert found[0]["weights"].tolist() == found[1]["weights"].tolist()
    steps = list(loader)
    assert len(steps) == len(found[0]["weights"])
    assert not np.asarray(steps[-1].valid).all()  # the last batch is padded
    for step, batch in enumerate(steps):
        assert float(batch.token_weights.sum()) == found[0]["weights"][step]
        for name in ("token_ids", "source_id", "valid"):
            whole = np.asarray(getattr(batch, name))
            quarter = len(whole) // 4
            for k in range(4):
                part = found[k // 2][f"{step}/{name}/{k * quarter}"]
                assert part.dtype == whole.dtype
                assert np.array_equal(part, whole[k * quarter : (k + 1) * quarter])


EXCHANGE = (
    COMMON
    + """
import random
root, address, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, number)
a, b = (TokenSeqDataset(f"{root}/{n}", 8) for n in "ab")
sources = {"a": a.braid_shuffle(seed=1, strands=4), "b": b.shuffle(2)}
dataset = MixtureDataset(sources, {"a": 3, "b": 1}, 8, num_steps=700)
loader = DataLoader(dataset, row_exchange="on")
total = jax.jit(lambda batch: batch.tokens.astype("int32").sum())
chosen = random.Random(number)
sums, held = [], 0
for step, batch in enumerate(loader):
    sums.append(int(total(batch)))
    if number == 1 and step % 3 == 0:
        held += loader.hold_plans(step + chosen.randrange(400))
        loader.go_on()  # the other host has refused
stats = loader.stats().reads
assert stats.exchanged_examples > 0
assert not number or held > 20, held
print(sum(sums), flush=True)
"""
)


def test_a_change_that_one_of_two_hosts_refuses_is_forgotten_by_both(root):
    # they exchange rows, so both must plan the same windows to the end
    said = run_two_hosts(EXCHANGE, root)
    a, b = (TokenSeqDataset(root / n, 8) for n in "ab")
    sources = {"a": a.braid_shuffle(seed=1, strands=4), "b": b.shuffle(2)}
    whole = DataLoader(MixtureDataset(sources, {"a": 3, "b": 1}, 8, num_steps=700))
    tokens = sum(int(batch.tokens.astype("int32").sum()) for batch in whole)
    assert [int(out.split()[-1]) for out in said] == [tokens, tokens]


HANGS = (
    COMMON
    + """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have ignored it
from headrace.store import open_cache
from headrace.store.array import StoredArray
from headrace.testing.caches import with_arrays

class Hanging:
    def result(self, timeout=None):
        time.sleep(timeout)
        raise TimeoutError

class HangingArray(StoredArray):
    def read_into(self, out, start):
        return Hanging()

cache = with_arrays(open_cache(f"{sys.argv[1]}/a"), HangingArray)
with DataLoader(TokenSeqDataset(cache, 8), batch_size=8).iter_from_step(0) as batches:
    print("waiting", flush=True)
    next(batches)
"""
)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_store_hangs(root):
    with start(HANGS, root) as process:
        try:
            assert process.stdout.readline() == "waiting\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    assert "KeyboardInterrupt" in said
    assert process.returncode != 0


LEAVES = (
    COMMON
    + """
loader = DataLoader(mixture(sys.argv[1]))
kept = [loader.iter_from_step(step) for step in (0, 1, 2)]
print(int(next(kept[0]).batch_size), int(next(kept[2]).batch_size))
"""
)


def test_a_program_may_end_without_closing_anything(root):
    with start(LEAVES, root) as process:
        out, said = process.communicate()
    assert (process.returncode, out, said) == (0, "8 8\n", "")


@pytest.mark.parametrize("reader", ["thread", "atexit"])
def test_a_loader_is_read_to_its_end_after_the_main_thread_has_ended(root, reader):
    """Its rows are converted, for which it has a pool, and pools end with the main thread."""
    program = """
import atexit, threading
loader = DataLoader(mixture(sys.argv[1]))
whole = len(list(loader))
batches = iter(loader)
next(batches)

def go_on():
    assert len(list(batches)) == whole - 1
    print("went on")
    try:
        assert len(list(loader)) == whole
    except ReadError as error:  # no thread can be started then, from Python 3.12 on
        assert "batch_at(step)" in error.cure
    assert loader.batch_at(1).token_ids.shape[0] == 8
    print("and again")
"""
    program += {
        "thread": "threading.Thread(target=lambda: (threading.main_thread().join(), go_on())).start()",
        "atexit": "atexit.register(go_on)",
    }[reader]
    ended = start(f"{COMMON}\nfrom headrace.errors import ReadError\n{program}", root)
    out, err = ended.communicate()
    assert (ended.returncode, out, err) == (0, "went on\nand again\n", "")
