"""Quotas of nmoe, sizes and splits of Megatron-LM: golden, and their sums as properties."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix.shares import largest_remainder
from headrace_compat.megatron import megatron_sizes, megatron_splits, split_documents
from headrace_compat.nmoe import fixed_point_weights

GOLDEN = Path(__file__).parents[1] / "golden"
MEGATRON = json.loads((GOLDEN / "megatron_sizes_splits.json").read_text())["cases"]


@pytest.mark.parametrize(
    "case", json.loads((GOLDEN / "nmoe_plan.json").read_text())["cases"], ids=str
)
def test_quotas_are_those_of_nmoe(case):
    assert (
        largest_remainder(case["weights"], case["tokens_target"] // case["seq_len"])
        == case["quotas"]
    )
    assert list(fixed_point_weights(case["weights"])) == case["weight_fp"]


@pytest.mark.parametrize("case", [c for c in MEGATRON if "sizes" in c], ids=str)
def test_sizes_are_those_of_megatron(case):
    assert megatron_sizes(case["weights"], case["targets"], case["surplus"]) == case["sizes"]


@pytest.mark.parametrize("case", [c for c in MEGATRON if "split" in c], ids=str)
def test_splits_are_those_of_megatron(case):
    assert [None if s is None else list(s) for s in megatron_splits(case["split"])] == case[
        "matrix"
    ]


weights = st.lists(st.integers(0, 50) | st.floats(0, 9), min_size=1, max_size=9).filter(any)


@given(weights, st.integers(0, 10**9))
def test_largest_remainders_sum_up_and_are_within_one(ws, total):
    counts = largest_remainder(ws, total)
    assert sum(counts) == total
    for w, n in zip(ws, counts, strict=True):
        assert abs(n - w / math.fsum(ws) * total) < 1 + 1e-6
        assert w > 0 or n == 0


@given(st.lists(st.integers(0, 999), min_size=3, max_size=3).filter(any), st.integers(0, 10**7))
def test_splits_cover_all_documents_once(parts, documents):
    spans = [s for s in split_documents(",".join(map(str, parts)), documents) if s]
    assert sum(len(s) for s in spans) == documents
    for before, after in pairwise(spans):
        assert before.stop == after.start


def test_short_splits_are_filled_up():
    assert megatron_splits("1") == [(0.0, 1.0), None, None]
    assert split_documents("1,1", 5) == [range(2), range(2, 5), range(0)]  # 2.5 rounds to even


def test_bad_input_is_refused():
    for bad in ([], [0.0], [-1, 2], [math.inf]):
        with pytest.raises(ConfigError, match="weights"):
            largest_remainder(bad, 3)
    with pytest.raises(ConfigError, match="total"):
        largest_remainder([1], -1)
    for bad in ("a,b", "", "0,0,0", "-1,2,0", "nan,1,0"):
        with pytest.raises(ConfigError, match="split"):
            megatron_splits(bad)
