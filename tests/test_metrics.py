"""Counters and timers, each held against something known: numbers made up by hand, a known delay."""

import re
import time
from dataclasses import fields

import pytest

import headrace.metrics
from headrace.metrics import LoaderStats, QueueStats, ReadStats, Stopwatch


def test_read_stats_add_and_subtract():
    a, b = ReadStats(*range(1, 8)), ReadStats(*range(10, 80, 10))
    assert (a + b) - b == a
    assert (a + b).bytes_read == 77
    assert ReadStats() + a == a


def test_ratios_of_known_counts():
    stats = ReadStats(examples_requested=40, tensorstore_reads_issued=10, block_fetches=10, block_hits=30)
    assert (stats.reads_per_example, stats.cache_hit_rate) == (0.25, 0.75)
    assert (ReadStats().reads_per_example, ReadStats().cache_hit_rate) == (0.0, 0.0)
    assert stats.to_json()["cache_hit_rate"] == 0.75


def fail_slowly(watch):
    with watch.phase("failed"):
        time.sleep(0.02)
        raise KeyError


def test_a_stopwatch_shows_a_known_delay():
    watch = Stopwatch()
    assert watch.seconds("read") == 0
    for _ in range(3):
        with watch.phase("read"):
            time.sleep(0.02)
    with pytest.raises(KeyError):
        fail_slowly(watch)
    assert 0.06 <= watch.seconds("read") < 1
    assert 0.02 <= watch.seconds("failed") < 1


def test_the_first_wait_is_the_cold_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(headrace.metrics.time, "perf_counter", lambda: now[0])
    stats = QueueStats()
    assert (stats.waiting_share, stats.percentile(50), stats.occupancy, stats.gets) == (0, 0, 0, 0)
    for wait, occupancy in ((5.0, 0.0), (1.0, 0.5), (0.0, 1.0), (1.0, 0.5)):
        stats.record(wait, occupancy)
    now[0] += 8
    assert stats.total_wait_s == 2.0  # without the five seconds of the start
    assert stats.waiting_share == 0.25
    assert stats.longest_wait_s == 5.0
    assert stats.occupancy == 0.5
    assert stats.gets == 4
    assert (stats.percentile(0), stats.percentile(50), stats.percentile(100)) == (0.0, 1.0, 5.0)


def test_percentiles_are_of_recent_waits_and_memory_is_bounded():
    stats = QueueStats()
    for k in range(25_000):
        stats.record(float(k < 15_000), 1.0)
    assert stats.percentile(99) == 0.0
    assert stats.longest_wait_s == 1.0
    assert len(stats._waits) == 10_000


def test_every_counter_is_in_the_table():
    table = headrace.metrics.__doc__ or ""
    documented = set(re.findall(r"\b[a-z][a-z_0-9]+\b", table))
    for name in (f.name for f in fields(ReadStats)):
        assert name in documented, name
    for name in ("reads_per_example", "cache_hit_rate", "queue_occupancy", "wait_s", "waiting_share", "read_s"):
        assert name in documented, name


def test_loader_stats_are_flat_json():
    stats = LoaderStats(3, ReadStats(4, block_hits=1), *([0.5] * 11), resident_bytes=7)
    flat = stats.to_json()
    assert (flat["batches"], flat["examples_requested"], flat["resident_bytes"]) == (3, 4, 7)
    assert all(isinstance(v, int | float) for v in flat.values())
    names = {f.name for f in fields(LoaderStats)} - {"reads"} | {f.name for f in fields(ReadStats)}
    assert names <= set(flat)
