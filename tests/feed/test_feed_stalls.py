"""Every stall gets its cause, each of them made on purpose; and what the figures say is what a
clock outside says.

By a clock that stands still but for what is late (conftest.py): all other waits are none, on a busy
machine too.
"""

import gc
import logging
import time
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import headrace.feed.reader
from headrace.data import AsyncDataset, TokenSeqDataset
from headrace.feed import DataLoader
from headrace.feed.mapped_files import MappedFiles
from headrace.feed.read_ahead import BlockCache
from headrace.metrics import StallRule, Wait, WaitLog
from headrace.store import CacheLayout
from headrace.store.sharded import Decoder
from headrace.testing import web_server, write_cache
from headrace.testing.caches import with_arrays

LATE = 0.4
STEPS = 45


def late_chunk(chunk):
    """Chunk 41 comes late, all others at once."""
    return LATE if chunk == 41 else 0.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two hundred rows of one block each: with batches of two, step s reads chunks
    2s and 2s + 1.
    """
    root = tmp_path_factory.mktemp("rows")
    return write_cache(
        root, [[np.full(4, r) for r in range(200)]], layout=CacheLayout("uint8", 4, 200)
    )


def loader_of(cache, **options):
    return DataLoader(
        TokenSeqDataset(cache, 4), batch_size=2, mesh=one_device(), row_order="stream", **options
    )


def one_device():
    return Mesh(np.asarray(jax.devices()[:1]), ("data",))


def stalls_of(loader, clock, steps=STEPS):
    with clock.watch(loader.iter_from_step(0)) as batches:
        for _ in range(steps):
            next(batches)
    return [s for s in loader.stats().stalls if s.step > 0]


def late_at(function, clock, number, step=None):
    """The function, late for the batch of that step (or for any) when it is called for the n-th
    time, from 0.
    """
    calls = []

    def late(*arguments, **options):
        calls.append(None)
        if len(calls) == number + 1:
            clock.pass_when_waited_for(LATE, step)
        return function(*arguments, **options)

    return late


def test_a_late_answer_of_the_store(stored, clock):
    (stall,) = stalls_of(loader_of(with_arrays(stored, clock.late(late_chunk))), clock)
    assert stall.wait_s == pytest.approx(LATE)
    assert (stall.step, stall.cause, stall.block) == (20, "store", 41)
    assert stall.array == stored.parts[0].data.url
    assert stall.detail.startswith("store ")
    assert "read took 400 ms" in stall.detail
    assert str(stall).startswith("step 20 waited ")
    assert f"store, chunk 41 of {stall.array} (" in str(stall)


def test_a_slow_check_of_a_mapped_chunk(stored, clock, monkeypatch):
    settle = MappedFiles.settle
    is_settled = MappedFiles.is_settled
    late = []

    def late_for(window, number):
        return 41 in window.blocks and number == window.blocks.tolist().index(41) // 2 and not late

    def slow(self, window, number):
        if late_for(window, number):
            clock.pass_when_waited_for(LATE, 20)
            late.append(number)
        return settle(self, window, number)

    monkeypatch.setattr(MappedFiles, "settle", slow)
    monkeypatch.setattr(
        MappedFiles, "is_settled", lambda *one: not late_for(*one[1:]) and is_settled(*one)
    )
    (stall,) = stalls_of(loader_of(stored), clock)
    assert (stall.step, stall.cause, stall.block) == (
        20,
        "check",
        40,
    )  # the first block of the step
    assert "check took 400 ms" in stall.detail


def test_a_slow_transfer(stored, clock, monkeypatch):
    loader = loader_of(stored)
    delivery = loader._horizons.loads
    monkeypatch.setattr(delivery, "_deliver", late_at(delivery._deliver, clock, 17, 17))
    (stall,) = stalls_of(loader, clock)
    assert (stall.step, stall.cause, stall.array, stall.block) == (17, "transfer", None, None)


def test_a_slow_function(stored, clock):
    def respelled(batch):
        return batch

    slow = late_at(respelled, clock, 17, 17)
    slow.__qualname__ = "respelled"
    loader = DataLoader(TokenSeqDataset(stored, 4).map(slow), batch_size=2, mesh=one_device())
    (stall,) = stalls_of(loader, clock)
    assert (stall.step, stall.cause) == (17, "dataset")
    assert "respelled" in stall.detail
    assert loader.stats().map_s == pytest.approx(LATE)


def test_a_slow_gather(stored, clock, monkeypatch):
    monkeypatch.setattr(BlockCache, "gather", late_at(BlockCache.gather, clock, 2))
    (stall,) = stalls_of(loader_of(stored), clock)
    assert stall.cause == "gather"


def test_a_slow_plan(stored, clock, monkeypatch):
    """The third window, planned while the steps of the second are loaded, is late."""
    monkeypatch.setattr(
        headrace.feed.reader, "plan_window", late_at(headrace.feed.reader.plan_window, clock, 2)
    )
    (stall,) = stalls_of(loader_of(stored), clock)
    assert stall.cause == "plan"


def test_reads_held_back_by_a_tiny_budget(stored, clock):
    """Room for one batch: each read must wait until the batch before was gathered. With room, none
    is to blame.
    """
    rule = StallRule(least_s=0.01, times_median=0)
    late = with_arrays(stored, clock.late(0.03))
    stalls = stalls_of(loader_of(late, prefetch_bytes=16, stall_rule=rule), clock, 25)
    assert len(stalls) > 15
    to_blame = [s for s in stalls if s.cause == "budget"]
    assert len(to_blame) > 0.7 * len(stalls)  # the first are the store's
    assert all("for room" in s.detail and s.block is not None for s in to_blame)
    assert not any(
        s.cause == "budget" for s in stalls_of(loader_of(late, stall_rule=rule), clock, 25)
    )


def test_the_first_batch_is_the_start(stored, clock):
    loader = loader_of(with_arrays(stored, clock.late(LATE)))
    with clock.watch(loader.iter_from_step(7)) as batches:
        next(batches)
    (stall,) = loader.stats().stalls
    assert (stall.step, stall.cause, stall.block) == (7, "start", 14)
    assert stall.detail.startswith("store ")


class Slow(AsyncDataset[dict]):
    """Serves itself; index 8 takes long."""

    def __init__(self, clock):
        self.clock = clock

    @property
    def length(self):
        return 40

    async def get_batch(self, indices):
        if 8 in indices:
            self.clock.pass_when_waited_for(LATE, 4)
        return {"number": indices}

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return {}


def test_a_slow_dataset(clock):
    (stall,) = stalls_of(DataLoader(Slow(clock), batch_size=2, mesh=one_device()), clock, 20)
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


def test_short_waits_are_not_written_down(clock):
    log = WaitLog()
    with log.during("gather"):
        clock.now += 0.0005
    with log.during("plan"):
        clock.now += 0.005
    assert [w.cause for w in log._waits] == ["plan"]


@pytest.mark.parametrize(("latency", "training"), [(0.03, 0.01), (0.03, 0.0), (0.005, 0.02)])
def test_waits_are_those_that_a_clock_outside_sees(stored, clock, latency, training):
    """Room for one batch, so that each waits for its own read, less the time that the trainer
    takes.
    """
    cache = with_arrays(stored, clock.late(latency))
    loader = loader_of(cache, prefetch_bytes=16)
    array = cast(Any, cache.parts[0].data)
    waits = []
    assert isinstance(array, clock.array)
    with clock.watch(loader.iter_from_step(0)) as batches:
        next(batches)
        first_s = clock.now - 100.0
        began = clock.now
        for _ in range(40):
            while array.asked < 2 * (batches._taken + 1):  # the reads of the next batch have begun
                time.sleep(0.001)
            clock.now += training
            asked = clock.now
            next(batches)
            waits.append(clock.now - asked)
        elapsed = clock.now - began
    stats = loader.stats()
    assert stats.waiting_share == pytest.approx(sum(waits) / elapsed)
    if latency > training:
        assert 0.5 * (latency - training) / latency < stats.waiting_share
    assert stats.wait_s == pytest.approx(sum(waits))
    assert stats.batches_per_s == pytest.approx(40 / elapsed)
    for q, wait_s in ((50, stats.wait_p50_s), (95, stats.wait_p95_s), (99, stats.wait_p99_s)):
        assert wait_s == pytest.approx(np.percentile([first_s, *waits], q), abs=1e-9)


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


def test_decoding_is_told_from_a_late_answer(stored, tmp_path, clock, monkeypatch):
    write_cache(
        tmp_path / "c", [[np.full(4, r) for r in range(200)]], layout=CacheLayout("uint8", 4, 200)
    )
    copy = Decoder.copy

    def slowly(self, out, encoded, start):
        if self.size == 4 and encoded[0] == 41:
            while not clock.waited_for_a_block():
                time.sleep(0.001)
            clock.now += LATE
        copy(self, out, encoded, start)

    monkeypatch.setattr(Decoder, "copy", slowly)
    with web_server(tmp_path) as url:
        (stall,) = stalls_of(loader_of(f"{url}/c"), clock)
    assert stall.cause == "decode"  # of chunk 41, or of one that came after it
    assert "400 ms of it decoding" in stall.detail


def test_a_wait_is_said_while_it_lasts(stored, clock, caplog, monkeypatch):
    """Chunk 41 comes once it was said that it is waited for."""
    loader = loader_of(
        with_arrays(stored, clock.late(late_chunk)), stall_rule=StallRule(say_after_s=LATE / 8)
    )
    lines = []
    waiting = []
    result = clock.answer.result

    def result_once_said(self, timeout=None):
        if timeout and clock.waited_for(20) and self.due > clock.now:
            clock.now += LATE / 4
            waiting.append(loader.stats().waiting_now_s)
            while not lines:
                lines.extend(
                    r.getMessage()
                    for r in caplog.records
                    if "step 20 waited 100 ms" in r.getMessage()
                )
                time.sleep(0.001)
        return result(self, timeout)

    monkeypatch.setattr(clock.answer, "result", result_once_said)
    with caplog.at_level(logging.WARNING, "headrace.metrics"):
        (stall,) = stalls_of(loader, clock)
    assert "store, chunk 41 of" in lines[0]
    assert waiting[0] == pytest.approx(LATE / 4)
    assert (stall.wait_s, loader.stats().waiting_now_s) == (pytest.approx(LATE), 0)


def test_headspace_of_a_slow_store_shows_no_waits(stored, clock):
    loader = loader_of(with_arrays(stored, clock.late(0.03)), prefetch_bytes=16)
    with clock.watch(loader.headspace(batches=4)) as replayed:
        for _ in range(60):
            next(replayed)
            clock.now += 0.002
    stats = loader.stats()
    assert stats.wait_max_s > 0.06  # loading came first
    assert stats.waiting_share == stats.wait_p50_s == 0


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
    assert (after.batches, after.wait_p50_s, after.waiting_share) == (
        41,
        stats.wait_p50_s,
        stats.waiting_share,
    )
