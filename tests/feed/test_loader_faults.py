"""What goes wrong with loaders: errors that name array, chunk and step; no thread, file or memory
left behind.

And what they count: held against arrays that count and delay their reads.
"""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.data import TokenSeqDataset
from headrace.errors import ReadError
from headrace.feed import DataLoader
from headrace.store import CacheLayout
from headrace.store.array import StoredArray
from headrace.testing import write_cache
from headrace.testing.caches import CountingArray, with_arrays

ROWS = 256
SEQ_LEN = 8
BLOCK = 4
MEMORY_CONSTANT = 120 << 20
"""What a loader may take beside its budget: 64 MiB are TensorStore's own pool."""


@pytest.fixture
def cache(tmp_path):
    """Blocks of four rows, shards of four blocks; the tokens of row r are r."""
    rows = [np.full(SEQ_LEN, r) for r in range(ROWS)]
    return write_cache(tmp_path, [rows], layout=CacheLayout("uint8", BLOCK * SEQ_LEN, 4))


def loader(cache, shuffle=True, **options):
    dataset = TokenSeqDataset(cache, SEQ_LEN)
    one = Mesh(np.array(jax.devices()[:1]), ("data",))
    return DataLoader(dataset.shuffle(0) if shuffle else dataset, batch_size=8, mesh=one, **options)


def running():
    return [t for t in threading.enumerate() if t.name.startswith("headrace")]


def wait_until(condition):
    while not condition():
        time.sleep(0.002)


def lose_shard(cache, number):
    Path(cache.path, "parts", "00000", "input_ids", "data", "c", str(number)).unlink()


def test_a_lost_shard_reaches_the_consumer_at_its_step(cache):
    lose_shard(cache, 2)  # rows 32 to 47: steps 4 and 5
    batches = loader(cache, shuffle=False).iter_from_step(0)
    for step in range(4):
        assert np.asarray(next(batches).tokens)[:, 0].tolist() == list(
            range(8 * step, 8 * step + 8)
        )
    with pytest.raises(ReadError, match=r"chunk 8 cannot be read for step 4 \(NOT_FOUND") as caught:
        next(batches)
    assert (caught.value.field, caught.value.value) == ("array", cache.parts[0].data.url)
    assert "go on from this step" in (caught.value.cure or "")
    wait_until(lambda: not running())


@pytest.mark.parametrize("memory_map", [True, False])
def test_a_flipped_bit_reaches_the_consumer_at_its_step(cache, memory_map):
    shard = Path(cache.path, "parts", "00000", "input_ids", "data", "c", "1")
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    broken = loader(cache, shuffle=False, memory_map=memory_map)
    good = []
    with pytest.raises(
        ReadError, match=r"chunk 5 cannot be read for step 2 .*[Dd]igest mismatch.*c/1"
    ):
        good.extend(np.asarray(b.tokens)[0, 0] for b in broken)
    assert good == [0, 8]
    with pytest.raises(ReadError, match="chunk 5 cannot be read for step 2"):
        broken.batch_at(2)


@pytest.mark.parametrize("memory_map", [True, False])
@pytest.mark.parametrize("left", [0, 7, 100])
def test_a_truncated_shard_is_an_error_and_no_end_of_the_process(cache, memory_map, left):
    os.truncate(Path(cache.path, "parts", "00000", "input_ids", "data", "c", "0"), left)
    with pytest.raises(ReadError, match="chunk 0 cannot be read for step 0"):
        next(loader(cache, shuffle=False, memory_map=memory_map).iter_from_step(0))


def test_mapped_and_read_are_the_same_batches_and_counters_tell_them_apart(cache):
    mapped = loader(cache)
    read = loader(cache, memory_map=False)
    for one, other in zip(mapped, read, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
    counted = mapped.stats().reads
    others = read.stats().reads
    assert (counted.mapped_blocks, counted.tensorstore_reads_issued) == (ROWS // BLOCK, 0)
    assert (others.mapped_blocks, others.tensorstore_reads_issued) == (0, ROWS // BLOCK)
    assert (counted.block_fetches, counted.bytes_read) == (others.block_fetches, others.bytes_read)


MEMORY = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
from headrace.data.token_seq import TokenSeqDataset
from headrace.feed.loader import DataLoader

def rss():
    '''Memory that belongs to this process: not the page cache, of which mapped files are a part.'''
    with open("/proc/self/status") as file:
        held = dict(line.split(":") for line in file)
    return 1024 * sum(int(held[name].split()[0]) for name in ("RssAnon", "RssShmem"))

dataset = TokenSeqDataset(sys.argv[1], 512).shuffle(0).repeat()
loader = DataLoader(dataset, 16, prefetch_bytes=int(sys.argv[2]), memory_map=sys.argv[3] == "map")
before = rss()
with loader.iter_from_step(0) as batches:
    for step, _ in zip(range(2001), batches):
        if step in (1000, 2000):
            print(rss() - before, loader.stats().resident_bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["map", "read"])
@pytest.mark.slow
def test_memory_stays_within_the_budget_over_2000_batches(tmp_path, how):
    """A store of 64 MiB, each step reads all over it; a budget of 4 MiB, and what Python, jax and
    TensorStore take.
    """
    tokens = np.zeros(1 << 25, np.uint16)
    write_cache(tmp_path, [[tokens]], vocab_size=1 << 16, layout=CacheLayout("uint16", 1 << 14, 64))
    budget = 4 << 20
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), str(budget), how],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    (early, held), (late, held_late) = (
        [int(x) for x in line.split()] for line in ran.stdout.splitlines()
    )
    assert 0 < held <= budget
    assert 0 < held_late <= budget
    assert late < budget + MEMORY_CONSTANT
    assert late - early < 8 << 20


def test_asking_again_after_an_error_is_an_error_again_and_then_heals(cache):
    """Never a batch of what happened to lie in memory."""
    shard = Path(cache.path, "parts", "00000", "input_ids", "data", "c", "2")
    held = shard.read_bytes()
    shard.unlink()
    broken = loader(cache, shuffle=False)
    for _ in range(3):
        with pytest.raises(ReadError, match="cannot be read for step 4"):
            broken.batch_at(4)
    assert np.asarray(broken.batch_at(6).tokens)[0, 0] == 48
    shard.write_bytes(held)
    again = loader(with_arrays(cache, StoredArray), shuffle=False)
    assert np.asarray(again.batch_at(4).tokens)[:, 0].tolist() == list(range(32, 40))


def test_many_steps_one_by_one_within_a_tight_budget(cache):
    """Each asks for other blocks; what one has used must be free for the next."""
    tight = loader(cache, prefetch_bytes=8 * BLOCK * SEQ_LEN)
    everything = loader(cache)
    for step in range(32):
        assert np.array_equal(tight.batch_at(step).tokens, everything.batch_at(step).tokens)


def test_steps_may_be_asked_for_from_several_threads(cache):
    shared = loader(cache, prefetch_bytes=8 * BLOCK * SEQ_LEN)
    wanted = [np.asarray(shared.batch_at(step).tokens) for step in range(16)]
    wrong = []

    def ask(offset):
        for k in range(16):
            step = (k * 5 + offset) % 16
            if not np.array_equal(shared.batch_at(step).tokens, wanted[step]):
                wrong.append(step)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class BrokenArray(StoredArray):
    """Fails from its third read on."""

    reads = 0

    def read_into(self, out, start):
        self.reads += 1
        if self.reads > 2:
            raise OSError("the network is gone")
        return super().read_into(out, start)


def test_an_error_when_a_read_begins_reaches_the_consumer(cache):
    broken = loader(with_arrays(cache, BrokenArray))
    with pytest.raises(OSError, match="the network is gone"):
        list(broken)
    wait_until(lambda: not running())


def test_a_held_error_holds_no_memory(cache):
    """A notebook keeps the last error, and with it every frame: not the blocks too."""
    lose_shard(cache, 5)
    broken = loader(cache)
    with pytest.raises(ReadError) as caught:
        list(broken)
    assert caught.value.__traceback__ is not None
    assert broken.stats().resident_bytes == 0


class HangingArray(StoredArray):
    """Never answers."""

    def read_into(self, out, start):
        return Hanging()


class Hanging:
    def result(self, timeout=None):
        assert timeout is not None, "nobody may wait for ever"
        time.sleep(timeout)
        raise TimeoutError

    def __await__(self):
        raise NotImplementedError


@pytest.mark.parametrize("how", ["iterator", "loader", "drop"])
def test_closing_does_not_wait_for_a_store_that_hangs(cache, how):
    hanging = loader(with_arrays(cache, HangingArray))
    batches = hanging.iter_from_step(0)
    time.sleep(0.02)
    if how == "iterator":
        batches.close()
    elif how == "loader":
        hanging.close()
    else:
        del batches
        gc.collect()
    wait_until(lambda: not running())


def test_an_error_of_the_training_step_ends_the_background_work(cache):
    def train():
        with loader(cache).iter_from_step(0) as batches:
            for _ in batches:
                _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    assert not running()


def test_early_ends_of_all_kinds(cache):
    shared = loader(cache)
    for batch in shared:  # break: the iterator is dropped
        assert batch.batch_size == 8
        break
    wait_until(lambda: not running())
    batches = shared.iter_from_step(3)
    next(batches)
    shared.close()
    shared.close()
    with pytest.raises(ReadError, match="was closed before its end"):
        next(batches)
    assert not running()
    assert shared.batch_at(0).batch_size == 8  # a closed loader may go on
    with shared as again, again.iter_from_step(31) as last:
        assert len(list(last)) == 1


def test_fifty_starts_and_stops_leave_nothing(cache):
    shared = loader(cache)
    next(shared.iter_from_step(0))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    threads = threading.active_count()
    for k in range(50):
        with shared.iter_from_step(k % 30) as batches:
            if k % 3:
                next(batches)
    assert threading.active_count() <= threads
    assert not running()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert shared.stats().resident_bytes == 0  # and the memory of their blocks is gone


def test_each_block_is_fetched_once_an_epoch(cache):
    counted = with_arrays(cache, CountingArray)
    array = counted.parts[0].data
    assert isinstance(array, CountingArray)
    full = loader(counted)
    assert len(list(full)) == 32
    reads = full.stats().reads
    assert array.reads == reads.tensorstore_reads_issued == reads.block_fetches == ROWS // BLOCK
    assert array.elements == reads.bytes_read == ROWS * SEQ_LEN
    assert (reads.examples_requested, reads.unique_examples) == (ROWS, ROWS)
    assert reads.reads_per_example == 1 / BLOCK
    assert full.stats().batches == 32
    # the same epoch with room for 20 of the 64 blocks: some are read again, and the counters say so
    array.reads = 0
    tight = loader(counted, prefetch_bytes=20 * BLOCK * SEQ_LEN)
    assert len(list(tight)) == 32
    reads = tight.stats().reads
    assert array.reads == reads.tensorstore_reads_issued > ROWS // BLOCK
    assert reads.cache_hit_rate < 0.5


def test_a_budget_that_is_too_small_for_the_order_is_said_once(cache, caplog):
    assert len(list(loader(cache))) == 32
    assert not caplog.records
    little = 8 * BLOCK * SEQ_LEN  # one batch of 8 rows may need as much
    assert len(list(loader(cache, prefetch_bytes=little))) == 32
    assert not caplog.records  # rows are gathered where the file is mapped: nothing is read twice
    tight = loader(with_arrays(cache, CountingArray), prefetch_bytes=little)
    assert len(list(tight)) == 32
    reads = tight.stats().reads
    assert (reads.bytes_delivered, reads.bytes_read > 3 * reads.bytes_delivered) == (
        ROWS * SEQ_LEN,
        True,
    )
    (warning,) = caplog.records
    assert re.search(
        r"prefetch_bytes = \d+: [\d.]+ bytes are read .* more, .* `headrace config simulate`",
        warning.message,
    )


def test_sequential_reading_has_one_run_a_batch(cache):
    stored = loader(cache, shuffle=False)
    list(stored)
    reads = stored.stats().reads
    assert (reads.coalesced_ranges, reads.block_fetches) == (32, ROWS // BLOCK)


def test_what_takes_time_is_in_the_timers(cache):
    loading = loader(cache)
    assert len(list(loading)) == 32
    stats = loading.stats()
    assert min(stats.plan_s, stats.gather_s, stats.transfer_s) > 0
    assert stats.to_dict()["reads_per_example"] == 0.25


def test_a_known_delay_is_what_the_timers_show(cache, clock):
    """Every read takes 40 ms, all of them together; the consumer waits for the first batch, and
    then for the others.
    """
    loading = loader(with_arrays(cache, clock.late(0.04)), prefetch_bytes=1 << 20)
    began = clock.now
    with clock.watch(loading.iter_from_step(0)) as batches:
        assert len(list(batches)) == 32
    stats = loading.stats()
    assert stats.wait_max_s == pytest.approx(0.04)
    assert stats.read_s == pytest.approx(clock.now - began)
    assert clock.now - began < 4.5 * 0.04  # more and more at once, not 64 one by one


def test_waiting_is_counted_when_every_batch_waits(cache, clock):
    """Room for the blocks of one batch only: nothing can be read ahead, and every batch waits for
    its reads.
    """
    late = with_arrays(cache, clock.late(0.02))
    loading = loader(late, shuffle=False, prefetch_bytes=2 * BLOCK * SEQ_LEN)
    with clock.watch(loading.iter_from_step(0)) as batches:
        assert len(list(batches)) == 32
    stats = loading.stats()
    assert stats.read_s == pytest.approx(32 * 0.02)
    assert stats.wait_s == pytest.approx(31 * 0.02)  # the first is the start
    assert stats.wait_p50_s == pytest.approx(0.02)
    assert stats.waiting_share == pytest.approx(1)
    assert stats.queue_occupancy == 0


def test_nobody_waits_for_batches_that_were_ready(cache, clock):
    loading = loader(cache)
    with loading.iter_from_step(0) as batches:
        for number in range(32):
            wait_until(lambda number=number: batches._made[0] > number)
            next(batches)
            clock.now += 0.01
    stats = loading.stats()
    assert stats.wait_s == 0
    assert stats.queue_occupancy > 0
