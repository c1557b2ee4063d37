"""Shares with limits against water poured in exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.quota import Quota
from headrace.mix.shares import BITS, ONE, PART, UNLIMITED, Account, Shares, fixed_point

STEPS = 60


def poured(weights, limits, sizes, largest=None):
    """Shares after each step in fractions; stops before a step that cannot be filled."""
    share = [Fraction(0)] * len(limits)
    rows = []
    for row, size in zip(weights, sizes, strict=True):
        left = Fraction(size)
        give = [Fraction(0)] * len(limits)
        room = rooms(limits, share, size, largest)
        sharing = [d for d, w in enumerate(row) if w > 0 and room[d] > 0]
        while left and sharing:
            total = sum(row[d] for d in sharing)
            full = [d for d in sharing if left * row[d] >= room[d] * total]
            for d in full or sharing:
                give[d] = Fraction(room[d]) if full else left * row[d] / total
            left -= sum(give[d] for d in full) if full else left
            sharing = [d for d in sharing if d not in full]
        if left:
            break
        share = [a + b for a, b in zip(share, give, strict=True)]
        rows.append(share)
    return rows


def rooms(limits, share, size, largest):
    """What each component may be given of a step; infinite if nothing bounds it."""
    left = [
        math.inf if limit is None else limit - had for limit, had in zip(limits, share, strict=True)
    ]
    return [
        most if bound is None else min(most, size * bound)
        for most, bound in zip(left, largest or [None] * len(left), strict=True)
    ]


@st.composite
def limited(draw):
    d = draw(st.integers(1, 5))
    weights = st.lists(st.integers(0, 9), min_size=d, max_size=d).filter(any)
    changes = draw(st.dictionaries(st.integers(1, STEPS - 1), weights, max_size=3))
    changes[0] = draw(weights)
    rows = [changes[max(k for k in changes if k <= s)] for s in range(STEPS)]
    limits = draw(st.lists(st.none() | st.integers(0, 400), min_size=d, max_size=d))
    return rows, limits, BatchSchedule({0: draw(st.integers(1, 30)), 20: draw(st.integers(1, 30))})


@given(limited())
def test_limits_are_reached_exactly_and_what_is_freed_is_shared_in_proportion(case):
    rows, limits, batch = case
    matrix = np.array(rows, float) / np.sum(rows, axis=1, keepdims=True)
    d = len(limits)
    run = Shares(lambda s: matrix[s], d, batch, limits).run(Account.empty(d), 0, STEPS)
    sizes = batch.size_at(np.arange(STEPS)).tolist()
    expected = poured([[Fraction(w) for w in row] for row in rows], limits, sizes)
    assert (
        abs(run.filled - len(expected)) <= 1
    )  # a share may be 2**-44 off, and a last step just not filled
    for s, row in enumerate(expected[: run.filled]):
        exact = [
            Fraction(int(w)) + Fraction(int(p), ONE)
            for w, p in zip(run.whole[s], run.part[s], strict=True)
        ]
        assert sum(exact) == sum(sizes[: s + 1])
        assert max(abs(a - b) for a, b in zip(exact, row, strict=True)) < Fraction(1, 10**9)
        assert all(
            limit is None or share <= limit for share, limit in zip(exact, limits, strict=True)
        )


@given(limited(), st.integers(1, STEPS - 1))
def test_a_run_in_two_parts_is_the_run_in_one(case, cut):
    rows, limits, batch = case
    matrix = np.array(rows, float) / np.sum(rows, axis=1, keepdims=True)
    shares = Shares(lambda s: matrix[s], len(limits), batch, limits)
    nothing = Account.empty(len(limits))
    one = shares.run(nothing, 0, STEPS)
    first = shares.run(nothing, 0, cut)
    if first.filled < cut:
        assert one.filled == first.filled
        return
    reached = Account(first.whole[-1], first.part[-1], first.whole[-1])
    rest = shares.run(reached, cut, STEPS - cut)
    assert one.filled == cut + rest.filled
    for name in ("whole", "part", "rate"):
        joined = np.concatenate([getattr(first, name), getattr(rest, name)[: rest.filled]])
        assert np.array_equal(getattr(one, name)[: one.filled], joined)


@given(limited(), st.data())
def test_any_first_steps_can_be_asked_for_if_each_can_be_met_whatever_lies_after(case, data):
    rows, limits, batch = case
    largest = [data.draw(st.sampled_from([None, None, 0.25, 0.5, 0.75])) for _ in limits]
    bounds = [None if share is None else Fraction(share) for share in largest]
    weights = [[Fraction(w) for w in row] for row in rows]
    sizes = batch.size_at(np.arange(STEPS)).tolist()
    expected = poured(weights, limits, sizes, bounds)
    end = len(expected)
    if end < STEPS:  # not on the edge, where 2**-44 of an example decides
        share = expected[-1] if expected else [Fraction(0)] * len(limits)
        room = rooms(limits, share, sizes[end], bounds)
        assume(sizes[end] - sum(n for n, w in zip(room, rows[end], strict=True) if w) > 1e-6)
    for row, size, before in zip(
        rows, sizes, [[Fraction(0)] * len(limits), *expected[:-1]], strict=False
    ):
        room = rooms(limits, before, size, bounds)
        assume(not 0 < sum(n for n, w in zip(room, row, strict=True) if w) - size < 1e-6)
    matrix = np.array(rows, float) / np.sum(rows, axis=1, keepdims=True)
    quota = Quota(
        lambda s: matrix[np.minimum(s, STEPS - 1)], len(limits), batch, limits, largest=largest
    )
    steps = data.draw(st.integers(0, STEPS) | st.sampled_from([end, min(end + 1, STEPS)]))
    if steps <= end:
        assert quota.starts_at(steps).sum() == batch.rows_at(steps)[0]
    elif steps == end + 1 == quota.find_end(STEPS + 1):  # a step that holds what is left
        assert quota.counts_at(end).sum() < sizes[end]
        limited = np.array([10**9 if limit is None else limit for limit in limits])
        assert (quota.starts_at(steps) == limited)[quota.counts_at(end) > 0].any()
    else:
        with pytest.raises(IndexOutOfRangeError, match="may have no more"):
            quota.starts_at(steps)


def test_a_limit_that_is_reached_where_a_step_ends_ends_only_what_comes_after():
    half = np.full((1, 2), 0.5)
    for limits, largest in (([8, None], [None, 0.5]), ([None, 8], [0.5, None])):
        quota = Quota(
            lambda s: half.repeat(len(s), 0), 2, BatchSchedule(4), limits, largest=largest
        )
        assert quota.find_end(100) == 4
        assert quota.starts_at(4).tolist() == quota.supply().tolist() == [8, 8]
        with pytest.raises(IndexOutOfRangeError, match="ends at step 4"):
            quota.starts_at(5)
    early = np.array([[0.5, 0.5], [0, 1.0]])  # without limits the same
    quota = Quota(lambda s: early[(s >= 3).astype(int)], 2, BatchSchedule(4), largest=[None, 0.5])
    assert (quota.find_end(100), quota.starts_at(3).tolist()) == (3, [6, 6])


@given(st.data())
def test_shares_of_tokens_go_on_as_long_as_endless_components_may_fill_a_step(data):
    """Rows of what is used up and of what stays hold other numbers of tokens; the largest shares
    are of tokens.
    """
    endless = data.draw(st.integers(1, 3))
    ending = data.draw(st.integers(1, 3))
    components = endless + ending
    limits = [None] * endless + data.draw(
        st.lists(st.integers(0, 40), min_size=ending, max_size=ending)
    )
    largest = data.draw(st.lists(st.floats(0.2, 1), min_size=components, max_size=components))
    assume(sum(largest[:endless]) > 1.001)
    row_tokens = data.draw(st.lists(st.integers(1, 40), min_size=components, max_size=components))
    weights = np.array(
        data.draw(st.lists(st.integers(1, 9), min_size=components, max_size=components)), float
    )
    batch = BatchSchedule(data.draw(st.integers(1, 9)))
    of_step = weights / weights.sum()
    shares = Shares(
        lambda steps: np.tile(of_step, (len(steps), 1)),
        components,
        batch,
        limits,
        largest,
        row_tokens,
    )
    run = shares.run(Account.empty(components), 0, STEPS)
    assert run.filled == STEPS
    assert run.whole.sum(axis=1).tolist() == [
        batch.rows_at(step + 1)[0] - (run.part[step].sum() >> 44) for step in range(STEPS)
    ]


def test_fixed_point_rows_must_sum_to_one():
    assert fixed_point(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist() == [
        [ONE // 2, ONE // 2],
        [ONE, 0],
    ]
    for bad in ([[0.5, 0.4]], [[np.nan, 1]], [[-1, 2.0]]):
        with pytest.raises(ConfigError, match="weights"):
            fixed_point(np.array(bad))


@pytest.mark.parametrize("limits", [[1], [1, -1], [1, UNLIMITED]])
def test_bad_limits_are_refused(limits):
    with pytest.raises(ConfigError, match="limits"):
        Shares(lambda s: np.full((len(s), 2), 0.5), 2, BatchSchedule(1), limits)


@st.composite
def bounded_mixtures(draw):
    """Weights, largest shares that fill a batch, and its size."""
    components = draw(st.integers(2, 6))
    weights = draw(
        st.lists(st.sampled_from([0.3, 1, 2, 3, 5]), min_size=components, max_size=components)
    )
    shares = st.sampled_from([None, 0.25, 0.3, 0.4, 0.5, 0.75])
    largest = draw(st.lists(shares, min_size=components, max_size=components))
    assume(sum(1 if share is None else share for share in largest) > 1.001)
    return weights, largest, draw(st.integers(1, 20))


def equal_quota(case, limits=None) -> Quota:
    weights, largest, size = case
    row = np.array(weights) / np.sum(weights)
    return Quota(
        lambda steps: row[None].repeat(len(steps), 0),
        len(weights),
        BatchSchedule(size),
        limits,
        0,
        largest,
    )


def settle_every_step(walk):
    """Makes a walk take each step as if a bit for each component were not enough for it."""

    def take_none(span, state, row, counts, off):
        account = walk._account(state)
        run = walk._shares.run(account, int(span.step[row]), 1)
        above = run.part[0] + walk.delta
        state.due[:] = run.whole[0] + (above >> BITS)
        state.above[:] = above & PART
        return 0

    walk._walk_bits = take_none


@given(bounded_mixtures(), st.none() | st.integers(20, 2000))
def test_no_step_has_more_of_a_component_than_its_largest_share_rounded_up(case, limit):
    weights, largest, size = case
    quota = equal_quota(case, None if limit is None else [limit, *[None] * (len(weights) - 1)])
    slow = equal_quota(case, None if limit is None else [limit, *[None] * (len(weights) - 1)])
    settle_every_step(slow._walk)
    end = quota.find_end(300)
    most = [size if share is None else math.ceil(share * size - 1e-9) for share in largest]
    for step in range(300 if end is None else end):
        counts = quota.counts_at(step)
        assert (counts <= most).all()
        assert counts.tolist() == slow.counts_at(step).tolist()
    if limit is None:
        assert quota.late_steps == 0


@given(bounded_mixtures(), st.integers(9_000, 30_000))
def test_a_far_step_under_a_largest_share_is_the_one_that_walking_reaches(case, step):
    far, near = equal_quota(case), equal_quota(case)
    expected = [near.starts_at(s).tolist() for s in range(0, step + 1, 4096)]
    assert far.starts_at(step).tolist() == near.starts_at(step).tolist()
    assert [equal_quota(case).starts_at(s).tolist() for s in range(0, step + 1, 4096)] == expected


def test_a_share_is_not_exceeded_by_the_row_that_was_early_elsewhere():
    case = [0.3, 1, 5, 2, 3], [0.3, 0.4, 0.5, 0.25, 0.25], 4
    counts = np.stack([equal_quota(case).counts_at(step) for step in range(200)])
    assert counts.max(axis=0).tolist() == [1, 1, 2, 1, 1]  # of 4 rows: 1.2, 1.6, 2, 1 and 1
