"""Exact quotas. Shares are computed apart, in whole numbers or fractions, and every promise of the
docstring is held against them; the compiled walk must agree with the rule in Python; ``python
tests/mix/test_quota.py`` prints the measurements.
"""

import hashlib
import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.quota import Quota, even_rows
from headrace.mix.quota_walk import CHUNK
from headrace.mix.schedule import MAX_STEP
from headrace.mix.shares import ONE, UNLIMITED, Account, fixed_point


def rows_of(matrix):
    """Weights given as a matrix [steps, D], the last row for ever."""
    matrix = np.asarray(matrix, float)
    matrix = matrix / np.cumsum(matrix, axis=1)[:, -1:]
    return lambda steps: matrix[np.minimum(steps, len(matrix) - 1)]


def counts(quota, steps):
    return np.stack([quota.counts_at(s) for s in range(steps)])


def deviations(quota, steps):
    """N - W after each step, [steps, D], W in exact whole numbers of 2**-44 examples."""
    at = np.arange(steps)
    due = (
        fixed_point(quota._shares._weights(at)).astype(object)
        * quota.batch.size_at(at).astype(object)[:, None]
    )
    share = np.cumsum(due, axis=0)
    drawn = np.stack([quota.starts_at(s + 1) for s in range(steps)]).astype(object)
    return ((drawn * ONE - share) / ONE).astype(float)


def bound(d):
    return 1 - 1 / (4 * (d - 1)) if d > 1 else 0.0


def skewed(d, seed, points=1):
    return np.random.default_rng(seed).lognormal(0, 2, (points, d))


SCHEDULES = {
    "constant": lambda a, b: a.tolist(),
    "ramp": lambda a, b: [
        {"linear": {0: x, 20_000: y}} for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ],
    "zigzag": lambda a, b: [
        {"linear": {0: x, 3_000: y, 9_000: x, 15_000: y}}
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ],
}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(
    ("seed", "size"), [(0, 32), (1, 512), (2, 1), (3, {0: 8, 700: 333, 15_001: 64})]
)
def test_forty_skewed_components_over_twenty_thousand_steps(kind, seed, size):
    a, b = skewed(40, seed, 2)
    blend = Blend({str(i): w for i, w in enumerate(SCHEDULES[kind](a, b))})
    quota = Quota(blend.at, 40, BatchSchedule(size))
    got = counts(quota, 20_000)
    sizes = quota.batch.size_at(np.arange(20_000))
    assert got.min() >= 0
    assert np.array_equal(got.sum(axis=1), sizes)
    off = deviations(quota, 20_000)
    assert np.abs(off).max() <= bound(40) < 1
    # and against the weights themselves, not their fixed-point form
    share = np.cumsum(blend.at(np.arange(20_000)) * sizes[:, None], axis=0)
    assert np.abs(np.cumsum(got, axis=0) - share).max() < 1 - 1e-3
    assert quota.late_steps == 0


@given(
    st.lists(st.integers(1, 10**6) | st.integers(1, 9), min_size=1, max_size=9),
    st.dictionaries(st.integers(1, 200), st.integers(1, 40), max_size=3),
    st.integers(1, 40),
)
def test_constant_weights_keep_the_bound_in_exact_fractions(weights, sizes, first):
    d = len(weights)
    total = sum(weights)
    quota = Quota(rows_of([weights]), d, BatchSchedule({0: first, **dict(sorted(sizes.items()))}))
    drawn = [0] * d
    size = 0
    for s in range(280):
        size += quota.batch.rows_at(s)[1]
        drawn = [n + int(c) for n, c in zip(drawn, quota.counts_at(s), strict=True)]
        for n, w in zip(drawn, weights, strict=True):
            assert abs(n - Fraction(size * w, total)) <= Fraction(bound(d)) + Fraction(1, 10**6)
    assert quota.late_steps == 0


@st.composite
def abrupt(draw):
    """Weights redrawn at random steps, zeros included, and a batch schedule."""
    d = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = 2 * CHUNK + 40
    change = rng.random(steps) < draw(st.sampled_from([0.01, 0.1, 1.0]))
    rows = rng.lognormal(0, draw(st.sampled_from([0.1, 2, 5])), (steps, d)) * (
        rng.random((steps, d)) < 0.7
    )
    rows[:, rng.integers(d)] += 1e-3
    rows = rows[np.maximum.accumulate(np.where(change, np.arange(steps), 0))]
    size = draw(st.integers(1, 4) | st.integers(1, 300))
    return rows, BatchSchedule({0: size, draw(st.integers(1, 200)): draw(st.integers(1, 50))})


@given(abrupt())
@settings(max_examples=60)
def test_promises_under_any_schedule(case):
    rows, batch = case
    steps, d = rows.shape
    quota = Quota(rows_of(rows), d, batch)
    quota.prepare(steps // CHUNK * CHUNK)
    got = counts(quota, steps)
    assert got.min() >= 0
    assert np.array_equal(got.sum(axis=1), batch.size_at(np.arange(steps)))
    assert not got[rows == 0].any()  # nothing from a component while its weight is 0
    worst = np.abs(deviations(quota, steps)).max(axis=1)
    prepared = steps // CHUNK * CHUNK
    assert quota.late_steps == (worst[:prepared] >= 1).sum()
    assert worst.max() < max(d, 1)  # however it is switched


def by_the_rule(weights, batch, steps):
    """Counts step by step, as the module of quotas tells the rule: slow, with Python's numbers."""
    d = weights(np.arange(1)).shape[1]
    delta = ONE // (4 * max(d - 1, 1))
    low = (1 << max(d - 1, 1).bit_length()) - 1
    drawn = [0] * d
    share = [0] * d
    out = []
    for s in range(steps):
        rate = [int(r) for r in fixed_point(weights(np.array([s])))[0]]
        size = batch.rows_at(s)[1]
        share = [w + size * r for w, r in zip(share, rate, strict=True)]
        # What is due, and who is next: by deadline, the last bits of which are the number
        due = [(w + delta) // ONE for w in share]
        above = [(w + delta) % ONE for w in share]
        counts = [max(a, b) if r else b for a, b, r in zip(due, drawn, rate, strict=True)]
        deadline = [np.float64((ONE - a) / max(r, 1)) for a, r in zip(above, rate, strict=True)]
        order = sorted(range(d), key=lambda k: (int(deadline[k].view(np.int64)) & ~low) | k)
        rest = batch.rows_at(s + 1)[0] - sum(counts)
        for k in order:
            if rest > 0 and rate[k] and above[k] >= 2 * delta and counts[k] == due[k]:
                counts[k] += 1
                rest -= 1
        # Not full, or too full: who is furthest behind gets one, or who is furthest ahead waits
        while rest > 0:
            behind = max((k for k in range(d) if rate[k]), key=lambda k: share[k] - counts[k] * ONE)
            counts[behind] += 1
            rest -= 1
        while rest < 0:
            served = (k for k in range(d) if counts[k] > drawn[k])
            counts[min(served, key=lambda k: share[k] - counts[k] * ONE)] -= 1
            rest += 1
        out.append([a - b for a, b in zip(counts, drawn, strict=True)])
        drawn = counts
    return np.array(out)


@given(abrupt())
def test_the_compiled_walk_is_the_rule(case):
    rows, batch = case
    quota = Quota(rows_of(rows), rows.shape[1], batch)
    steps = CHUNK + 30
    assert np.array_equal(counts(quota, steps), by_the_rule(rows_of(rows), batch, steps))


@st.composite
def schedules(draw):
    """A blend whose weights jump and go up and down in straight lines, zeros included."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = {"0": float(rng.lognormal())}
    for k in range(1, draw(st.integers(1, 3) | st.integers(2, 12))):
        points = np.unique(rng.integers(0, 2 * CHUNK, rng.integers(1, 4))).tolist()
        values = rng.lognormal(0, draw(st.sampled_from([0.1, 2, 9])), len(points))
        values *= rng.random(len(points)) < 0.8
        kind = str(rng.choice(["linear", "step"]))
        weights[str(k)] = {kind: dict(zip(points, values.tolist(), strict=True)), "scale": 0.3}
    return Blend(weights)


@given(schedules(), st.integers(1, 300), st.integers(1, 2 * CHUNK), st.integers(0, 40))
def test_lines_give_what_weights_give(blend, size, later, first):
    batch = BatchSchedule({0: size, later: 7})
    last = 2 * CHUNK
    weights = lambda steps: blend.at(np.minimum(steps + first, last))  # noqa: E731
    lines = partial(blend.lines_at, first=first, last=last)
    slow, fast, far = (
        Quota(weights, len(blend.names), batch, lines=given) for given in (None, lines, lines)
    )
    steps = 3 * CHUNK
    assert np.array_equal(counts(slow, steps), counts(fast, steps))
    # and far from all that was asked before, some anchors further
    there = 20 * CHUNK + 3
    assert far.starts_at(there).tolist() == slow.starts_at(there).tolist()
    assert far.late_steps == slow.late_steps


@pytest.mark.parametrize("d", [20, 300])
def test_lines_of_many_components(d):
    a, b = skewed(d, d, 2)
    weights = {
        str(k): {"linear": {0: x, 900: y}} for k, (x, y) in enumerate(zip(a, b, strict=True))
    }
    blend = Blend({**weights, "still": 1.0})
    slow = Quota(blend.at, d + 1, BatchSchedule(50))
    fast = Quota(blend.at, d + 1, BatchSchedule(50), lines=blend.lines_at)
    assert np.array_equal(counts(slow, 1200), counts(fast, 1200))


def test_a_blend_without_weight_at_a_step_is_named_by_its_lines():
    blend = Blend({"a": {"step": {0: 1, 300: 0}}}, may_end=True)
    blend._last = MAX_STEP  # as if nobody had asked where it ends
    with pytest.raises(ConfigError, match="all weights are zero at step 300"):
        Quota(blend.at, 1, BatchSchedule(4), lines=blend.lines_at).counts_at(310)


@given(
    abrupt(),
    st.lists(st.none() | st.integers(0, 4000), min_size=7, max_size=7),
    st.integers(1, CHUNK),
)
def test_a_chunk_that_is_planned_in_parts_has_the_same_counts(case, limits, planned):
    # as more than 256 components are
    rows, batch = case
    d = rows.shape[1]
    whole, parts = (Quota(rows_of(rows), d, batch, limits[:d]) for _ in range(2))
    parts._walk._tabled = planned
    end = whole.find_end(len(rows))
    assert parts.find_end(len(rows)) == end
    steps = len(rows) if end is None else end
    assert [parts.counts_at(s).tolist() for s in range(steps)] == [
        whole.counts_at(s).tolist() for s in range(steps)
    ]
    assert parts.late_steps == whole.late_steps


def test_many_components_keep_few_tables():
    quota = Quota(rows_of(skewed(1000, 0)), 1000, BatchSchedule(64))
    for step in range(0, 8 * CHUNK, CHUNK):
        quota.counts_at(step)
    kept = [entry[1][0].since.nbytes for entry in quota._tables if entry is not None]
    assert len(kept) == 2
    assert sum(kept) < 3 << 19


@given(abrupt(), st.integers(0, 2 * CHUNK + 30), st.integers(0, 10**6))
def test_a_step_does_not_depend_on_what_comes_later(case, s0, seed):
    rows, batch = case
    other = rows.copy()
    other[s0 + 1 :] = np.random.default_rng(seed).random(other[s0 + 1 :].shape) + 0.01
    later = BatchSchedule({**{s: b for s, b in batch.points if s <= s0}, s0 + 1: 77})
    one = Quota(rows_of(rows), rows.shape[1], batch)
    two = Quota(rows_of(other), rows.shape[1], later)
    assert np.array_equal(counts(one, s0 + 1), counts(two, s0 + 1))


@given(abrupt(), st.randoms())
def test_any_order_of_asking(case, random):
    rows, batch = case
    quota, fresh = (Quota(rows_of(rows), rows.shape[1], batch) for _ in range(2))
    expected = counts(quota, len(rows))
    starts = np.cumsum(expected, axis=0) - expected
    order = random.sample(range(len(rows)), 40)
    for s in order:
        assert fresh.counts_at(s).tolist() == expected[s].tolist()
        assert fresh.starts_at(s).tolist() == starts[s].tolist()


def test_threads_that_ask_at_once_see_the_same():
    quota, alone = (Quota(rows_of(skewed(20, 5)), 20, BatchSchedule(64)) for _ in range(2))
    expected = counts(alone, 20 * CHUNK)
    failures = []

    def ask(seed):
        asked = np.random.default_rng(seed).integers(0, 20 * CHUNK, 200).tolist()
        failures.extend(s for s in asked if not np.array_equal(quota.counts_at(s), expected[s]))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert sorted(set(quota._chunks)) == sorted(quota._anchors)


@pytest.mark.parametrize("d", [256, 257, 300])
def test_many_components(d):
    quota = Quota(rows_of(skewed(d, d)), d, BatchSchedule(40))
    assert counts(quota, 600).sum() == 600 * 40
    assert np.abs(deviations(quota, 600)).max() <= bound(d)


def served_and_switched_off():
    """One example a step; who was served is switched off. After two such steps two components are
    due at once.
    """
    rows = np.ones((12, 4))
    for s in (0, 1):
        served = int(Quota(rows_of(rows[: s + 1]), 4, BatchSchedule(1)).counts_at(s).argmax())
        rows[s + 1 :, served] = 0
    return rows


def test_a_change_that_no_rule_survives_is_counted():
    # What the two that are off had too much can never be given back: every second step, one of the
    # others is late.
    rows = served_and_switched_off()
    quota = Quota(rows_of(rows), 4, BatchSchedule(1))
    quota.prepare(CHUNK)
    off = np.abs(deviations(quota, 12)).max(axis=1)
    assert off[2] == pytest.approx(1 + 1 / 12)
    assert (off >= 1).tolist() == [False, False] + [True, False] * 5
    assert quota.late_steps == (CHUNK - 2) // 2


@st.composite
def bounded(draw):
    """Constant weights, limits on some or all components, a batch schedule."""
    d = draw(st.integers(1, 6))
    weights = np.random.default_rng(draw(st.integers(0, 2**32))).lognormal(0, 1.5, d)
    limits = draw(st.lists(st.none() | st.integers(0, 3000), min_size=d, max_size=d))
    return (
        weights,
        limits,
        BatchSchedule(
            {0: draw(st.integers(1, 60)), draw(st.integers(1, 99)): draw(st.integers(1, 60))}
        ),
    )


@given(bounded())
def test_components_are_drawn_up_to_their_limits_exactly(case):
    weights, limits, batch = case
    quota = Quota(rows_of([weights]), len(weights), batch, limits)
    end = quota.find_end(2 * CHUNK)
    steps = 2 * CHUNK if end is None else end
    got = counts(quota, steps).sum(axis=0) if steps else np.zeros(len(weights), int)
    full = max(steps - 1, 0) if end is not None else steps  # the last step holds what is left
    assert batch.rows_at(full)[0] <= got.sum() <= batch.rows_at(steps)[0]
    assert all(limit is None or n <= limit for n, limit in zip(got.tolist(), limits, strict=True))
    supply = quota.supply()
    if None in limits:
        assert end is None
        assert supply.tolist() == [UNLIMITED if limit is None else limit for limit in limits]
    elif end is not None:
        assert got.tolist() == limits  # to the last example
        assert supply.tolist() == got.tolist() == quota.starts_at(end).tolist()
        with pytest.raises(IndexOutOfRangeError, match=f"ends at step {end}"):
            quota.counts_at(end)
        with pytest.raises(IndexOutOfRangeError, match=f"ends at step {end}"):
            quota.starts_at(end + 1)


@given(bounded())
def test_limits_do_not_disturb_the_past_or_the_bound(case):
    weights, limits, batch = case
    free, quota = (
        Quota(rows_of([weights]), len(weights), batch, given) for given in (None, limits)
    )
    run = quota._shares.run(Account.empty(len(weights)), 0, 2 * CHUNK)
    reached = (run.whole[: run.filled] >= quota._shares.limits).any(axis=1)
    before = int(reached.argmax()) if reached.any() else run.filled
    for s in range(before):
        assert quota.counts_at(s).tolist() == free.counts_at(s).tolist()
    for s in range(run.filled):
        drawn = quota.starts_at(s + 1)
        off = drawn - run.whole[s] - run.part[s] / ONE
        assert np.abs(off).max() < 2  # a limit is an abrupt change of weights
        full = run.whole[s] == quota._shares.limits
        assert (off[full] <= 0).all()


@given(abrupt(), st.lists(st.integers(0, 4000), min_size=7, max_size=7))
def test_limits_and_zeros_hold_under_any_schedule(case, limits):
    rows, batch = case
    d = rows.shape[1]
    quota = Quota(rows_of(rows), d, batch, limits[:d])
    found = quota.find_end(len(rows))
    end = len(rows) if found is None else found
    got = counts(quota, end) if end else np.zeros((0, d), int)
    assert got.min(initial=0) >= 0
    sizes = batch.size_at(np.arange(end))
    assert np.array_equal(got.sum(axis=1)[:-1], sizes[:-1])
    if found is not None and end:
        assert 0 < got[-1].sum() <= sizes[-1]
    assert not got[rows[:end] == 0].any()
    assert (got.sum(axis=0) <= limits[:d]).all()


def test_a_late_component_that_is_switched_off_gets_nothing_more():
    rows = served_and_switched_off()
    rows[3:] = [
        d == int(Quota(rows_of(rows[:3]), 4, BatchSchedule(1)).counts_at(2).argmax())
        for d in range(4)
    ]
    quota = Quota(rows_of(rows), 4, BatchSchedule(1))
    assert not counts(quota, 12)[rows == 0].any()


def test_who_must_take_more_than_its_share_does_not_take_more_than_its_limit():
    rows = np.ones((8, 6))
    served = counts(Quota(rows_of(rows), 6, BatchSchedule(1)), 2).sum(axis=0) > 0
    rows[2:, ~served] = (
        # the four that were not served yet are off: the two others have to take what they are owed
        0
    )
    first = int(served.argmax())
    quota = Quota(rows_of(rows), 6, BatchSchedule(1), [1 if d == first else None for d in range(6)])
    got = counts(quota, 8)
    assert not got[rows == 0].any()
    assert got[:, first].sum() == 1


def test_a_mixture_that_ends_where_a_chunk_ends():
    for whole in (2 * CHUNK, 2 * CHUNK + 1):
        quota = Quota(rows_of([[1, 1]]), 2, BatchSchedule(2), [whole, whole])
        assert quota.counts_at(whole - 1).tolist() == [1, 1]
        assert quota.starts_at(whole).tolist() == [whole, whole]
        for step in (whole, whole + 1, 10 * CHUNK):
            with pytest.raises(IndexOutOfRangeError, match=f"ends at step {whole}"):
                quota.counts_at(step)
        assert quota.find_end(whole) is None
        assert quota.find_end(whole + 1) == whole


def test_a_source_used_up_while_the_others_rest_ends_the_mixture():
    blend = Blend({"a": {"step": {0: 1, 50: 0}}, "b": {"step": {0: 0, 50: 1}}})
    quota = Quota(blend.at, 2, BatchSchedule(10), [300, None], settled=50)
    assert quota.supply().tolist() == [300, 0]
    with pytest.raises(IndexOutOfRangeError, match="ends at step 30"):
        quota.counts_at(60)


def test_a_tiny_weight_is_served_in_the_end():
    quota = Quota(rows_of([[1.0, 1e-4, 1e-30]]), 3, BatchSchedule(100))
    quota.prepare(1000)
    assert quota.starts_at(1000)[1] in (9, 10, 11)
    assert fixed_point(np.array([[1 - 1e-30, 1e-30]])).tolist() == [[ONE - 1, 1]]


def test_far_steps_use_few_anchors():
    quota = Quota(rows_of([[1.0, 2.0]]), 2, BatchSchedule(4))
    quota.prepare(50_000)
    assert len(quota._anchors) < 40
    quota.counts_at(49_999)
    assert quota.starts_at(49_998).sum() == 49_998 * 4


def test_pinned_counts():
    blend = Blend({"code": 0.5, "tests": 0.3, "docs": {"linear": {0: 0.0, 10: 0.4}}})
    quota = Quota(blend.at, 3, BatchSchedule(8))
    assert counts(quota, 6).tolist() == PINNED
    wide = Quota(rows_of(np.linspace(1, 3, 40 * 50).reshape(50, 40) ** 4), 40, BatchSchedule(33))
    assert hashlib.sha256(counts(wide, 1000).tobytes()).hexdigest()[:16] == PINNED_HASH


PINNED = [[5, 3, 0], [5, 3, 0], [4, 3, 1], [5, 2, 1], [4, 3, 1], [4, 2, 2]]
PINNED_HASH = "e8587c8a3ce7ed67"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(any))
def test_fixed_point_sums_to_one_and_keeps_every_weight(weights):
    w = np.array([weights]) / np.cumsum(weights)[-1]
    fixed = fixed_point(w)
    assert fixed.sum() == ONE
    assert ((fixed > 0) == (w > 0)).all()
    assert np.abs(fixed / ONE - w).max() <= (len(weights) + 1) / ONE


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any))
def test_even_rows_spread_each_component(c):
    rows = even_rows(np.array(c))
    keys = sorted(((Fraction(2 * k + 1, 2 * n), d) for d, n in enumerate(c) for k in range(n)))
    assert rows.tolist() == [d for _, d in keys]


def test_even_rows_of_the_largest_batch_are_exact():
    rng = np.random.default_rng(0)
    c = rng.multinomial(1 << 18, rng.dirichlet(np.ones(50)))
    rows = even_rows(c)
    assert np.bincount(rows, minlength=50).tolist() == c.tolist()
    ahead = np.cumsum(rows[:, None] == np.arange(50), axis=0) - np.arange(1, (1 << 18) + 1)[
        :, None
    ] * (c / (1 << 18))
    assert (
        np.abs(ahead).max() < 26
    )  # each is within half an example of its line; the sum of all moves the line


def test_bad_input_is_refused():
    for d in (0, 4097):
        with pytest.raises(ConfigError, match="components"):
            Quota(rows_of([[1]]), d, BatchSchedule(1))
    for rows in ([[0.5, 0.6]], [[np.nan, 1.0]], [[-0.5, 1.5]]):
        with pytest.raises(ConfigError, match="weights"):
            Quota(lambda s, rows=rows: np.repeat(rows, len(s), 0), 2, BatchSchedule(1)).counts_at(0)
    quota = Quota(rows_of([[1]]), 1, BatchSchedule(1))
    for step in (-1, MAX_STEP):
        with pytest.raises(IndexOutOfRangeError):
            quota.counts_at(step)


if __name__ == "__main__":
    for d, size in ((8, 1), (8, 8), (8, 32), (40, 8), (40, 64)):
        off = 0
        late = 0
        worst = 0.0
        changes = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            table = np.repeat(
                rng.lognormal(0, 2, (100, d)) * (rng.random((100, d)) < 0.8) + 1e-9, 100, axis=0
            )
            q = Quota(rows_of(table), d, BatchSchedule(size))
            q.prepare(10_000)
            late = late + q.late_steps
            worst = max(worst, float(np.abs(deviations(q, 10_000)).max()))
            changes = changes + 99
        print(
            f"{d} components, batch {size}: {changes} redraws of all weights, {late} late steps,"
            f" worst {worst:.3f}"
        )
