"""Each judgment is good for a good run, and says what to change of a bad one."""

from __future__ import annotations

import pytest

from headrace.analysis.check.judgments import BURST, EXCESS, SHARED_READS, Judgment, judge_forecast
from headrace.analysis.check.plan import RunPlan
from headrace.config import ComponentConfig, LmDataConfig
from headrace.order import BlockShuffleConfig


def judged(*, hosts=(1,), icc=None, **changes):
    components = {n: ComponentConfig(f"no/{n}", expected_tokens=4e9) for n in "ab"}
    config = LmDataConfig(
        **{
            "components": components,
            "seq_len": 2048,
            "batch_size": 64,
            "num_steps": 1000,
            **changes,
        }
    )
    plan = RunPlan.of(config, hosts=list(hosts), max_rows=1 << 15, icc=icc or {})
    judgments = judge_forecast(plan.forecast, config, plan.orders.values(), plan.noise)
    return {j.figure: j for j in judgments}, plan


def test_a_sound_run_is_good():
    judgments, _ = judged()
    assert {j.level for name, j in judgments.items() if name != "excess loss"} == {"good"}
    assert "on 1 host (up to 1.5)" in judgments["reads per block per epoch"].text


@pytest.mark.parametrize(("hosts", "level"), [((1, 8), "high"), ((1,), "good")])
def test_reads_follow_their_bound(hosts, level):
    judgments, plan = judged(hosts=hosts, shuffle=BlockShuffleConfig(32, 64), row_exchange=False)
    worst = max(h.reads_per_block for h in plan.forecast.by_hosts)
    assert judgments["reads per block per epoch"].level == level
    assert (worst > SHARED_READS) == (level == "high")
    if level == "high":
        assert "on 8 hosts. Leave shuffle out" in judgments["reads per block per epoch"].text


def test_memory_that_does_not_hold_what_is_open_says_how_much_does():
    judgments, _ = judged(prefetch_bytes=1 << 26)
    assert judgments["prefetch_bytes"].level == "low"
    enough = int(
        judgments["prefetch_bytes"]
        .text.split("Raise prefetch_bytes to ")[1]
        .rstrip(".")
        .replace(",", "")
    )
    assert judged(prefetch_bytes=enough)[0]["prefetch_bytes"].level == "good"


def test_a_full_shuffle_mixes_well_and_reads_much():
    judgments, _ = judged(shuffle=True, prefetch_bytes=1 << 28)
    assert judgments["order"].level == "good"
    assert "Leave shuffle out" in judgments["prefetch_bytes"].text


def test_excess_loss_is_known_only_where_it_was_measured():
    block = {"shuffle": BlockShuffleConfig(32, 2)}
    command = "headrace cache inspect no/b --icc --seq-len 2048 --batch-size 64 --save"
    assert command in judged(icc={"a": 0.0}, **block)[0]["excess loss"].text
    assert judged(icc={"a": 0.0, "b": 0.0}, **block)[0]["excess loss"].level == "good"
    assert (
        "headrace cache reshuffle no/b OUTPUT"
        in judged(icc={"a": 0.0, "b": 0.5}, **block)[0]["excess loss"].text
    )


def test_bursts_count_where_most_steps_read():
    judgments, plan = judged()
    (h,) = plan.forecast.by_hosts
    assert h.reads_per_step >= 1
    assert judgments["burst"].level == ("good" if h.burst <= BURST else "high")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"batch_size": 2, "num_steps": 500},
            "not judged, as most steps read nothing and any read is a burst",
        ),
        ({"batch_size": 2, "num_steps": 5}, "too few steps to tell"),
    ],
)
def test_a_burst_that_is_not_judged_says_why(changes, text):
    judgments, plan = judged(**changes)
    assert all(h.reads_per_step < 1 for h in plan.forecast.by_hosts) == (
        changes["num_steps"] == 500
    )
    assert judgments["burst"] == Judgment("unknown", "burst", text)


@pytest.mark.parametrize("icc", [None, {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.5}])
def test_a_variance_ratio_above_its_bound_is_said_with_what_follows(icc):
    judgments, plan = judged(shuffle=BlockShuffleConfig(32, 2), icc=icc)
    worst = max(plan.forecast.variance_ratio.values())
    assert worst > EXCESS
    assert f"; the variance ratio is {worst:.2f}, above 1.1" in judgments["excess loss"].text
