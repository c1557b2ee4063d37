"""Megatron-LM's blends: its own sequences (golden), and what it gets wrong."""

import json
from pathlib import Path

import pytest

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace_compat.megatron import ExhaustiveBlend, GreedyBlend
from headrace_compat.nmoe import SmoothRoundRobin

GOLDEN = Path(__file__).parents[1] / "golden"
ONE = BatchSchedule(1)


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def count_up(components):
    seen = {}
    out = []
    for d in components:
        out.append(seen.get(d, 0))
        seen[d] = out[-1] + 1
    return out


@pytest.mark.parametrize("case", golden("megatron_blending"), ids=lambda c: str(c["weights"]))
def test_greedy_is_that_of_megatron(case):
    got = GreedyBlend(case["weights"], ONE).sequence(0, case["size"]).tolist()
    assert got == case["dataset_index"]
    assert count_up(got) == case["dataset_sample_index"]


@pytest.mark.parametrize(
    "case", golden("megatron_blending_exhaustive"), ids=lambda c: str(c["sizes"])
)
def test_exhaustive_is_that_of_megatron(case):
    got = ExhaustiveBlend(case["sizes"], ONE).sequence(0, 10**6).tolist()
    assert got == case["dataset_index"]
    assert count_up(got) == case["dataset_sample_index"]


def test_swrr_and_greedy_part_at_the_fifth_example():
    same = SmoothRoundRobin([0.5, 0.3, 0.2], ONE).sequence(0, 5) == GreedyBlend(
        [0.5, 0.3, 0.2], ONE
    ).sequence(0, 5)
    assert same.tolist() == [True, True, True, True, False]


def test_an_empty_source_does_not_hang_the_exhaustive_blend():
    assert ExhaustiveBlend([0, 2, 0, 1], ONE).sequence(0, 9).tolist() == [1, 3, 1]
    policy = ExhaustiveBlend([5, 3], BatchSchedule(3))
    assert [len(policy.components_at(s)) for s in range(3)] == [3, 3, 2]
    assert policy.supply().tolist() == policy.starts_at(99).tolist() == [5, 3]
    with pytest.raises(IndexOutOfRangeError, match="ends after 8"):
        policy.components_at(3)


def test_bad_input_is_refused():
    for bad in ([], [0], [-1, 3]):
        with pytest.raises(ConfigError, match="sizes"):
            ExhaustiveBlend(bad, ONE)
    with pytest.raises(IndexOutOfRangeError):
        GreedyBlend([1], ONE).counts_before(-1)
