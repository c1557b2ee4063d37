"""Ranks of equal cost: beside the best of all assignments, and never worse than what they are made
of.
"""

import functools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.batch import TransformerCost
from headrace.batch.balance import costs_of, micro_batches
from headrace.errors import ConfigError
from headrace_posttrain import RLSettings, ScoredGroup
from headrace_posttrain.ranks.rank_balance import level_ranks
from headrace_posttrain.rollouts.step_batch import pack_groups

MODEL = TransformerCost(1024, 12, 16, 64, 4, 4096, 32000)
FLOPS = {False: None, True: lambda tokens: MODEL.flops(tokens * 100)}


def most(ranks, costs):
    return max(sum(costs[i] for b in of_rank for i in b) for of_rank in ranks)


def best_of_all(costs, sizes, cap, ranks, height):
    """The least that the costliest rank can cost, over all assignments that fit into so many
    micro-batches each.
    """

    @functools.cache
    def bins(subset):  # the fewest that hold it, and the least tokens in the last of these
        holding = [(1, 0)] if not subset else []
        for i in range(len(sizes)):
            if subset >> i & 1:
                count, filled = bins(subset & ~(1 << i))
                fits = filled + sizes[i] <= cap
                holding.append((count, filled + sizes[i]) if fits else (count + 1, sizes[i]))
        return min(holding)

    def cost(subset):
        is_one = bins(subset)[0] <= height <= subset.bit_count()
        return sum(c for i, c in enumerate(costs) if subset >> i & 1) if is_one else np.inf

    of_one = [cost(subset) for subset in range(1 << len(sizes))]
    least = of_one
    for _ in range(ranks - 1):
        more = [np.inf] * len(least)
        for subset in range(len(least)):
            part = subset
            while part:
                more[subset] = min(more[subset], max(of_one[part], least[subset ^ part]))
                part = (part - 1) & subset
        least = more
    return least[-1]


def dealt(sizes, cap, ranks, costs):
    try:
        return micro_batches(sizes, cap, ranks=ranks, costs=costs)
    except ConfigError as error:
        assume("cannot be filled" not in str(error))  # fewer samples than micro-batches
        raise


def check(made, ranks, sizes, cap):
    """Every sample once, as many micro-batches of each rank, none empty or above the cap."""
    assert sorted(i for of_rank in made for b in of_rank for i in b) == list(range(len(sizes)))
    assert [len(of_rank) for of_rank in made] == [len(of_rank) for of_rank in ranks]
    assert all(b and sum(sizes[i] for i in b) <= cap for of_rank in made for b in of_rank)


SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=8)


@given(SIZES, st.sampled_from([40, 60, 100]), st.integers(2, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_are_within_a_twentieth_of_the_best_of_all_assignments(sizes, cap, ranks, by_flops):
    costs = costs_of(FLOPS[by_flops], np.array(sizes))
    before = dealt(sizes, cap, ranks, costs)
    made = level_ranks(before, costs, sizes, cap)
    check(made, before, sizes, cap)
    best = best_of_all(costs, sizes, cap, ranks, len(before[0]))
    assert best * (1 - 1e-9) <= most(made, costs) <= 1.05 * best


@given(st.lists(st.integers(1, 400), min_size=8, max_size=60), st.integers(2, 4), st.booleans())
@settings(max_examples=30, deadline=None)
def test_of_many_samples_no_rank_costs_more_than_before(sizes, ranks, by_flops):
    costs = costs_of(FLOPS[by_flops], np.array(sizes))
    before = dealt(sizes, 600, ranks, costs)
    made = level_ranks(before, costs, sizes, 600)
    check(made, before, sizes, 600)
    assert most(made, costs) <= most(before, costs) * (1 + 1e-9)
    assert made == level_ranks(before, costs, sizes, 600)
    for of_rank in made:
        values = [sum(costs[i] for i in b) for b in of_rank]
        assert values == pytest.approx(sorted(values, reverse=True))


def test_differences_of_micro_batches_do_not_add_up():
    # 24 samples for 4 ranks: the costliest rank is a fifth above the mean
    sizes = np.random.default_rng(7).lognormal(7, 1, 24).astype(int).clip(16, 4096)
    costs = MODEL.flops(sizes)
    before = micro_batches(sizes, 4096, ranks=4, costs=costs)
    made = level_ranks(before, costs, sizes, 4096)
    mean = sum(costs) / 4
    assert most(before, costs) > 1.2 * mean
    assert most(made, costs) < 1.02 * mean


@given(st.lists(st.integers(1, 20), min_size=4, max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_step_of_rollouts_is_within_a_twentieth_too(sizes):
    groups = [
        ScoredGroup(
            [np.arange(n + 1) for n in sizes[k : k + 2]], np.arange(len(sizes[k : k + 2])), 1
        )
        for k in range(0, len(sizes), 2)
    ]
    lengths = [n + 1 for n in sizes]
    ranks = dealt(lengths, 24, 2, None)
    height = len(ranks[0]) + 1
    batch = pack_groups(
        groups, RLSettings(24, len(groups), seed=0, rows=2 * height, ranks=2), oldest=None
    )
    assert batch.segment_lengths is not None
    load = batch.segment_lengths.reshape(2, -1).sum(axis=1)
    assert load.max() <= 1.05 * best_of_all(lengths, lengths, 24, 2, len(ranks[0]))


def test_samples_without_any_cost_stay():
    ranks = [[[0]], [[1]]]
    assert level_ranks(ranks, [0, 0], [1, 1], 2) == ranks
