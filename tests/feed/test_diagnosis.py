"""Every stall gets its cause, each of them made on purpose; and what the figures say is what a clock outside says."""

import asyncio
import gc
import logging
import threading
import time

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import headrace.feed.reader
from headrace.data.dataset import AsyncDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.feed.block_cache import BlockCache
from headrace.feed.diagnosis import Wait, WaitLog
from headrace.feed.loader import DataLoader
from headrace.stalls import StallRule
from headrace.store.decode import Decoder
from headrace.store.layout import CacheLayout
from headrace.store.mapped import MappedArray
from headrace.testing import SlowArray, with_arrays, write_cache
from headrace.testing.servers import web_server

LATE = 0.4
STEPS = 45
# A machine that stands still for a moment adds a stall of its own, which is explained just as truly.
pytestmark = pytest.mark.flaky(reruns=2, only_rerun=["AssertionError", "ValueError"])


class LateChunk(SlowArray):
    """Chunk 41 comes late, all others at once."""

    def read_into(self, out, start):
        self.latency_s = LATE if start // self.chunk_elements == 41 else 0.0
        return super().read_into(out, start)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two hundred rows of one block each: with batches of two, step s reads chunks 2s and 2s + 1."""
    root = tmp_path_factory.mktemp("rows")
    return write_cache(root, [[np.full(4, r) for r in range(200)]], layout=CacheLayout("uint8", 4, 200))


def loader_of(cache, **options):
    return DataLoader(TokenSeqDataset(cache, 4), batch_size=2, mesh=one_device(), row_order="stream", **options)


def one_device():
    return Mesh(np.asarray(jax.devices()[:1]), ("data",))


def stalls_of(loader, steps=STEPS, least=LATE / 2):
    with loader.iter_from_step(0) as batches:
        for _ in range(steps):
            next(batches)
    found = [s for s in loader.stats().stalls if s.step > 0 and s.wait_s >= least]
    assert all(s.wait_s < LATE + 5 for s in found)
    return found


def sleeping_at(function, number, seconds=LATE):
    """The function, slow when it is called for the n-th time, from 0."""
    calls = []

    def slow(*arguments, **options):
        calls.append(None)
        if len(calls) == number + 1:
            time.sleep(seconds)
        return function(*arguments, **options)

    return slow


def test_a_late_answer_of_the_store(stored):
    (stall,) = stalls_of(loader_of(with_arrays(stored, LateChunk)))
    assert (stall.step, stall.cause, stall.block) == (20, "store", 41)
    assert stall.array == stored.parts[0].data.url
    assert stall.detail.startswith("store ")
    assert "read took 4" in stall.detail
    assert str(stall).startswith("step 20 waited ")
    assert f"store, chunk 41 of {stall.array} (" in str(stall)


def test_a_slow_check_of_a_mapped_chunk(stored, monkeypatch):
    copy = MappedArray.copy

    def slow(self, chunk, into):
        time.sleep(LATE if chunk == 41 else 0)
        return copy(self, chunk, into)

    monkeypatch.setattr(MappedArray, "copy", slow)
    (stall,) = stalls_of(loader_of(stored))
    assert (stall.step, stall.cause, stall.block) == (20, "check", 41)
    assert "check took" in stall.detail


def test_a_slow_transfer(stored, monkeypatch):
    loader = loader_of(stored)
    monkeypatch.setattr(loader, "_deliver", sleeping_at(loader._deliver, 17))
    (stall,) = stalls_of(loader)
    assert (stall.step, stall.cause, stall.array, stall.block) == (17, "transfer", None, None)


def test_a_slow_function(stored):
    def respelled(batch):
        return batch

    slow = sleeping_at(respelled, 17)
    slow.__qualname__ = "respelled"
    loader = DataLoader(TokenSeqDataset(stored, 4).map(slow), batch_size=2, mesh=one_device())
    (stall,) = stalls_of(loader)
    assert (stall.step, stall.cause) == (17, "dataset")
    assert "respelled" in stall.detail
    assert loader.stats().map_s > LATE / 2


def test_a_slow_gather(stored, monkeypatch):
    monkeypatch.setattr(BlockCache, "gather", sleeping_at(BlockCache.gather, 2))
    (stall,) = stalls_of(loader_of(stored))
    assert stall.cause == "gather"


def test_a_slow_plan(stored, monkeypatch):
    """The third window, planned while the steps of the second are loaded, is late."""
    monkeypatch.setattr(headrace.feed.reader, "plan_window", sleeping_at(headrace.feed.reader.plan_window, 2))
    (stall,) = stalls_of(loader_of(stored))
    assert stall.cause == "plan"


def test_reads_held_back_by_a_tiny_budget(stored):
    """Room for one batch: each read must wait until the batch before was gathered. With room, none is to blame."""

    rule = StallRule(least_s=0.01, times_median=0)
    tight = loader_of(with_arrays(stored, SlowArray), prefetch_bytes=16, stall_rule=rule)
    found = stalls_of(tight, 25, 0.01)
    assert len(found) > 15
    to_blame = [s for s in found if s.cause == "budget"]
    assert len(to_blame) > 0.7 * len(found)  # a busy machine adds waits of its own, and the first are the store's
    assert all("for room" in s.detail and s.block is not None for s in to_blame)
    assert not any(
        s.cause == "budget" for s in stalls_of(loader_of(with_arrays(stored, SlowArray), stall_rule=rule), 25, 0)
    )


def test_the_first_batch_is_the_start(stored):
    loader = loader_of(with_arrays(stored, lambda *a: SlowArray(*a, latency_s=LATE)))
    with loader.iter_from_step(7) as batches:
        next(batches)
    (stall,) = loader.stats().stalls
    assert (stall.step, stall.cause, stall.block) == (7, "start", 14)
    assert stall.detail.startswith("store ")


class Slow(AsyncDataset[dict]):
    """Serves itself; index 8 takes long."""

    @property
    def length(self):
        return 40

    async def get_batch(self, indices):
        await asyncio.sleep(LATE if 8 in indices else 0)
        return {"number": indices}

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return {}


def test_a_slow_dataset():
    (stall,) = stalls_of(DataLoader(Slow(), batch_size=2, mesh=one_device()), 20)
    assert (stall.step, stall.cause) == (4, "dataset")
    assert stall.detail.endswith("get_batch of Slow")


def test_waits_are_shared_out_over_the_time_of_the_stall():
    log = WaitLog(first_step=10)
    for cause, began, ended in (
        ("store", 0, 5),
        ("gather", 5, 6),
        ("plan", 6, 6.5),
        ("gather", 6.5, 9),
        ("plan", 9, 20),
    ):
        log.add(Wait(cause, began, ended, detail=f"until {ended}"))
    found = log.explain(3, 4.5, 9.5)  # of the store only half a second
    assert (found.step, found.wait_s, found.cause) == (13, 5.0, "gather")
    assert found.detail == "gather 3500 ms, plan 1000 ms, store 500 ms; until 9"
    assert log.explain(3, 30, 31).cause == "trainer ahead"
    assert log.explain(3, 18, 24).cause == "trainer ahead"  # the longest is a third
    assert log.explain(0, 30, 31).cause == "start"


def test_short_waits_are_not_written_down():
    log = WaitLog()
    with log.during("gather"):
        pass
    with log.during("plan"):
        time.sleep(0.005)
    assert [w.cause for w in log._waits] == ["plan"]


@pytest.mark.parametrize(("latency", "training"), [(0.03, 0.01), (0.03, 0.0), (0.005, 0.02)])
def test_waits_are_those_that_a_clock_outside_sees(stored, latency, training):
    """Room for one batch, so that each waits for its own read, less the time that the trainer takes. A busy machine may
    take the processor away between the two clocks.
    """
    cache = with_arrays(stored, lambda *a: SlowArray(*a, latency_s=latency))
    loader = loader_of(cache, prefetch_bytes=16)
    seen = []
    with loader.iter_from_step(0) as batches:
        next(batches)
        began = time.perf_counter()
        for _ in range(40):
            time.sleep(training)
            asked = time.perf_counter()
            next(batches)
            seen.append(time.perf_counter() - asked)
        elapsed = time.perf_counter() - began
    stats = loader.stats()
    assert stats.waiting_share == pytest.approx(sum(seen) / elapsed, abs=0.12)
    if latency > training:
        assert 0.5 * (latency - training) / latency < stats.waiting_share
    assert stats.wait_s == pytest.approx(sum(seen), rel=0.15, abs=0.05)
    assert stats.batches_per_s == pytest.approx(40 / elapsed, rel=0.15)
    for q, found in ((50, stats.wait_p50_s), (95, stats.wait_p95_s), (99, stats.wait_p99_s)):
        low, high = np.percentile(seen, [max(q - 6, 0), min(q + 6, 100)])  # the first wait is not among them
        assert low - 0.01 <= found <= max(high, stats.wait_max_s if q > 90 else 0) + 0.01


def test_a_headspace_run_replays_and_may_be_donated(stored):
    @eqx.filter_jit(donate="all")
    def step(batch):
        return batch.token_ids + 1, ~batch.valid, batch.source_id + 1

    loader = loader_of(stored)
    expected = [np.asarray(loader.batch_at(s).token_ids) for s in (3, 4, 5)]
    with loader.headspace(3, batches=3) as replayed:
        kept = [next(replayed) for _ in range(6)]  # all alive: nothing is handed out twice
        places = [b.token_ids.unsafe_buffer_pointer() for b in kept]
        assert len(set(places)) == 6
        for k in range(6, 20):
            batch = next(replayed)
            assert batch.token_ids.sharding == kept[0].token_ids.sharding
            assert np.array_equal(step(batch)[0], expected[k % 3] + 1)
        for k, batch in enumerate(kept):
            assert np.array_equal(batch.token_ids, expected[k % 3])
    stats = loader.stats()
    assert (stats.batches, stats.replayed_batches, stats.reads.examples_requested) == (20, 20, 6)


def test_decoding_is_told_from_a_late_answer(stored, tmp_path, monkeypatch):
    write_cache(tmp_path / "c", [[np.full(4, r) for r in range(200)]], layout=CacheLayout("uint8", 4, 200))
    copy = Decoder._copy

    def slowly(self, out, encoded, start):
        if self.shape == (4,) and encoded[0] == 41:
            time.sleep(LATE)
        copy(self, out, encoded, start)

    monkeypatch.setattr(Decoder, "_copy", slowly)
    with web_server(tmp_path) as url:
        found = stalls_of(loader_of(f"{url}/c"))
    assert [s.cause for s in found] == ["decode"], found  # of chunk 41, or of one that came after it
    assert "of it decoding" in found[0].detail


def test_a_wait_is_said_while_it_lasts(stored, caplog):
    loader = loader_of(with_arrays(stored, LateChunk), stall_rule=StallRule(say_after_s=LATE / 8))
    waiting, done = [], threading.Event()

    def watch():
        while not done.wait(LATE / 20):
            waiting.append(loader.stats().waiting_now_s)

    watcher = threading.Thread(target=watch)
    with caplog.at_level(logging.WARNING, "headrace.stalls"), loader.iter_from_step(0) as batches:
        watcher.start()
        for _ in range(STEPS):
            next(batches)
        done.set()
    watcher.join()
    said = [r.getMessage() for r in caplog.records if "step 20 waited" in r.getMessage()]
    assert said  # after 1/8, 1/4 and 1/2 of the time
    assert "store, chunk 41 of" in said[0]
    assert LATE / 2 < max(waiting) < LATE + 5
    assert loader.stats().waiting_now_s == 0


def test_headspace_of_a_slow_store_shows_no_waits(stored):
    loader = loader_of(with_arrays(stored, SlowArray), prefetch_bytes=16)
    with loader.headspace(batches=4) as replayed:
        for _ in range(60):
            next(replayed)
            time.sleep(0.002)
    stats = loader.stats()
    assert stats.wait_max_s > 0.06  # loading came first
    assert stats.waiting_share < 0.3
    assert stats.wait_p50_s < 0.01


def test_iterations_are_counted_apart_and_kept_only_while_somebody_has_them(stored):
    loader = loader_of(stored)
    held = loader.iter_from_step(0)
    next(held)
    for _ in range(20):
        with loader.iter_from_step(3) as batches:
            next(batches)
            next(batches)
    batches = None
    gc.collect()
    stats = loader.stats()
    assert (batches, stats.batches) == (None, 41)
    assert len(loader._counted) == 1
    held.close()
    after = loader.stats()
    assert (after.batches, after.wait_p50_s, after.waiting_share) == (41, stats.wait_p50_s, stats.waiting_share)
