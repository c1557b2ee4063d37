"""ms-swift's groups, Megatron-RL's bins and CoordExp's probe, as recorded from the originals."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.index.packing.other_systems import matched_groups, rl_bins
from headrace.index.packing.plan import plan_packs
from headrace.index.packing.probe import check_lengths_are_fixed, probe_indices

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def cases(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize(
    "case", cases("swift_matched_group"), ids=lambda c: f"{c['binpacking']}-{c['name']}-{c['strategy']}"
)
def test_groups_of_ms_swift(case):
    fit = "best" if case["binpacking"] < "2" else "worst"
    found = matched_groups(
        case["lengths"], case["packing_length"], strategy=case["strategy"], fit=fit, finished=case["is_finished"]
    )
    assert found == (case["packs"], case["carry"])


def test_an_unfinished_group_carries_its_last_pack():
    assert matched_groups([4, 8, 1, 4], 10, strategy="sequential", finished=False) == ([[0], [1, 2]], [3])
    assert matched_groups([], 10, finished=False) == ([], [])
    with pytest.raises(ConfigError, match="longer than a pack"):
        matched_groups([4, 11], 10)


def test_our_plan_does_not_depend_on_how_many_processes_pack():
    # ms-swift packs in each process: two halves give another plan than the whole
    lengths = np.random.default_rng(0).integers(1, 100, 60).tolist()
    whole, _ = matched_groups(lengths, 100)
    halves = [matched_groups(lengths[a : a + 30], 100)[0] for a in (0, 30)]
    assert len(whole) < len(halves[0]) + len(halves[1])
    plan = plan_packs(lengths, 100)
    assert plan.checksum == plan_packs(np.array(lengths, np.int32), 100).checksum


@pytest.mark.parametrize("case", cases("megatron_rl_packer"), ids=lambda c: f"{c['lengths']}-{c['multiple']}")
def test_bins_of_megatron_rl(case):
    size = case["bin_size"]
    bins, starts = rl_bins(
        case["lengths"], size, max_sequences=case["max_sequences_per_bin"], multiple=case["multiple"]
    )
    assert bins == case["bins"]
    assert starts == list(case["seq_starts"].values())
    positions, masks = np.zeros((len(bins), size), int), np.zeros((len(bins), size))
    for k, (members, begin) in enumerate(zip(bins, starts, strict=True)):
        for item, at in zip(members, begin, strict=False):
            n = case["lengths"][item]
            positions[k, at : at + n] = np.arange(n)
            masks[k, at : at + n] = 1.0
    assert positions.tolist() == case["position_ids"]
    assert masks.tolist() == case["loss_mask"]


def test_bins_hold_at_most_so_many():
    bins, _ = rl_bins([1] * 10, 100, max_sequences=4)
    assert [len(b) for b in bins] == [4, 4, 2]
    with pytest.raises(ConfigError, match="does not fit a bin of 8"):
        rl_bins([9], 8)


def test_probe_indices_of_coordexp():
    golden = json.loads((GOLDEN / "coordexp_static_plan.json").read_text())["probe_indices"]
    for samples, wanted in golden.items():
        assert probe_indices(int(samples)) == wanted


def test_lengths_that_change_are_refused():
    check_lengths_are_fixed(lambda samples, epoch: samples + 1, 100)
    with pytest.raises(ConfigError, match=r"samples\[6\].*in epoch 1"):
        check_lengths_are_fixed(lambda samples, epoch: np.where(samples == 6, 5 + epoch, 5), 100)
    calls = iter(range(1000))
    with pytest.raises(ConfigError, match=r"has \d+ tokens at first"):
        check_lengths_are_fixed(lambda samples, epoch: [next(calls) for _ in samples], 20)
    with pytest.raises(ConfigError, match="in another order"):
        check_lengths_are_fixed(lambda samples, epoch: np.arange(len(samples)), 20)
