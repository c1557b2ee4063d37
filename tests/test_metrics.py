"""Counters and timers, each held against something known: numbers made up by hand,
a known delay.
"""

import json
import re
from dataclasses import asdict, fields, replace

import pytest

import headrace.metrics
from headrace.errors import ConfigError
from headrace.metrics import (
    IterationStats,
    LoaderStats,
    QueueStats,
    ReadStats,
    Stall,
    StallRule,
    WaitLog,
)


def test_read_stats_add_and_subtract():
    a = ReadStats(*range(1, 8))
    b = ReadStats(*range(10, 80, 10))
    assert (a + b) - b == a
    assert (a + b).bytes_read == 77
    assert ReadStats() + a == a


def test_ratios_of_known_counts():
    stats = ReadStats(
        examples_requested=40, tensorstore_reads_issued=10, block_fetches=10, block_hits=30
    )
    assert (stats.reads_per_example, stats.cache_hit_rate) == (0.25, 0.75)
    assert (ReadStats().reads_per_example, ReadStats().cache_hit_rate) == (0.0, 0.0)
    assert stats.to_dict()["cache_hit_rate"] == 0.75
    assert ReadStats(bytes_read=30, bytes_delivered=20).to_dict()["read_amplification"] == 1.5


def fail_slowly(watch, now):
    with watch.during(None, phase="failed"):
        now[0] += 0.02
        raise KeyError


def test_a_log_of_waits_shows_a_known_delay(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(headrace.metrics.time, "perf_counter", lambda: now[0])
    watch = WaitLog()
    for _ in range(3):
        with watch.during(None, phase="read"):
            now[0] += 0.02
    with pytest.raises(KeyError):
        fail_slowly(watch, now)
    assert watch.seconds["read"] == pytest.approx(0.06)
    assert watch.seconds["failed"] == pytest.approx(0.02)


def test_the_first_wait_is_the_cold_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(headrace.metrics.time, "perf_counter", lambda: now[0])
    stats = QueueStats()
    assert (stats.waiting_share, stats.percentile(50), stats.occupancy, stats.gets) == (0, 0, 0, 0)
    for wait, occupancy, at in (
        (5.0, 0.0, 100.0),
        (1.0, 0.5, 104.0),
        (0.0, 1.0, 106.0),
        (1.0, 0.5, 108.0),
    ):
        now[0] = at
        stats.record(wait, occupancy)
    assert stats.waiting_share == 0.25
    now[0] += 100  # after the last batch, an evaluation for example: not the loader's
    assert stats.waiting_share == 0.25
    assert stats.per_second == 3 / 8
    assert stats.total_wait_s == 2.0  # without the five seconds of the start
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
    for name in (f.name for f in fields(LoaderStats)):
        assert re.sub(r"^wait_.*", "wait_s", name) in documented | {"batches", "reads"}, name
    ratios = (
        "reads_per_example",
        "cache_hit_rate",
        "read_amplification",
        "queue_occupancy",
        "waiting_share",
    )
    for name in (*ratios, "wait_s", "read_s"):
        assert name in documented, name


def test_loader_stats_are_flat_json():
    stats = LoaderStats(
        3,
        ReadStats(4, block_hits=1),
        *([0.5] * 12),
        resident_bytes=7,
        stalls=(Stall(3, 1.0, "plan"),),
    )
    flat = stats.to_dict()
    assert LoaderStats.from_record(json.loads(json.dumps(stats.to_record()))) == stats
    assert (flat["batches"], flat["examples_requested"], flat["resident_bytes"]) == (3, 4, 7)
    assert all(isinstance(v, int | float) for v in flat.values())
    names = {f.name for f in fields(LoaderStats)} - {"reads", "sources", "stalls"} | {
        f.name for f in fields(ReadStats)
    }
    assert names <= set(flat)


def explained(number, began, ended):
    return Stall(number, ended - began, "gather")


def test_stalls_are_the_waits_above_both_bounds():
    waits = [0.2, 0.01, 0.01, 0.01, 0.04, 0.06, 0.03, 0.03, 0.03, 0.03, 0.03, 0.14, 0.16]
    for rule, wanted in (
        (StallRule(), [0, 5, 12]),  # 12: the median is 0.03
        (StallRule(least_s=0.15), [0, 12]),
        (StallRule(times_median=0), [0, 5, 11, 12]),
        (StallRule(times_median=0, kept=2), [11, 12]),
        (StallRule(least_s=1.0), []),
    ):
        stats = QueueStats(rule, explained)
        for wait in waits:
            stats.record(wait, 0.0)
        assert [s.step for s in stats.stalls] == wanted
        assert stats.num_stalls == max(len(wanted), 4 if rule.kept == 2 else 0)
        for stall in stats.stalls:
            assert stall.wait_s == pytest.approx(waits[stall.step])


@pytest.mark.parametrize("name", ["least_s", "times_median", "kept"])
def test_bad_stall_rules(name):
    with pytest.raises(ConfigError, match="must not be negative") as caught:
        StallRule(**{name: -1})
    assert caught.value.field == f"stall_rule.{name}"


def format_count(waits, replay=False):
    log = WaitLog()
    log.explain = explained
    stats = IterationStats(StallRule(times_median=0), log, replay=replay)
    for wait in waits:
        stats.queue.record(wait, 0.5)
    stats.reads.bytes_read += 10
    with stats.waits.during("gather"):
        pass
    return stats


def test_iterations_are_summed():
    parts = [
        format_count([0.5, 0.1, 0.2]),
        format_count([0.3]),
        format_count([0.7, 0.0], replay=True),
    ]
    total = IterationStats()
    for part in parts:
        total.absorb(part)
    twice = IterationStats()
    twice.absorb(total)  # a sum can be added to another
    stats = twice.snapshot(ReadStats(requests=3), 7)
    assert (stats.batches, stats.replayed_batches, stats.num_stalls, stats.resident_bytes) == (
        6,
        2,
        5,
        7,
    )
    assert (stats.reads.bytes_read, stats.reads.requests) == (30, 3)
    assert stats.wait_s == pytest.approx(0.1 + 0.2 + 0.0)
    assert (stats.wait_max_s, stats.wait_p50_s) == (0.7, pytest.approx(0.25))
    assert stats.gather_s == pytest.approx(sum(p.waits.seconds["gather"] for p in parts))
    assert [s.wait_s for s in stats.stalls] == pytest.approx([0.5, 0.1, 0.2, 0.3, 0.7])


def test_hosts_are_reduced():
    zero = IterationStats().snapshot(ReadStats(), 0)
    seconds = [
        name
        for name, value in asdict(zero).items()
        if isinstance(value, float) and name != "batches_per_s"
    ]

    def host(requested, each, **others):
        return replace(
            zero, batches=9, reads=ReadStats(requested), **dict.fromkeys(seconds, each), **others
        )

    one = host(4, 0.5, resident_bytes=7, batches_per_s=3.0, num_stalls=1)
    stalls = (Stall(2, 0.1, "plan"), Stall(8, 0.4, "store"))
    other = host(6, 0.1, resident_bytes=1, batches_per_s=2.0, num_stalls=2, stalls=stalls)
    both = LoaderStats.over_hosts({3: one, 12: other})
    assert (both.batches, both.reads.examples_requested, both.resident_bytes, both.num_stalls) == (
        9,
        10,
        8,
        3,
    )
    assert (both.wait_p99_s, both.gather_s, both.batches_per_s, both.hosts) == (0.5, 0.5, 2.0, 2)
    assert (both.waiting_share, both.queue_occupancy) == (pytest.approx(0.3), pytest.approx(0.3))
    assert [(s.step, s.host) for s in both.stalls] == [(2, 12), (8, 12)]
    assert str(both.stalls[1]) == "step 8 on host 12 waited 400 ms: store"
    assert LoaderStats.over_hosts({0: one}) == one
