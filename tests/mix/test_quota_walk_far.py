"""Far steps without the walk equal those with it, for whatever weights settle at; and they cost no
walk.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace.mix import quota as quota_module
from headrace.mix.blend import Blend
from headrace.mix.quota import Quota
from headrace.mix.quota_walk import (
    CHUNK,
    Reach,
    Walk,
    due_first,
    longest_wait,
    may_be_early,
)
from headrace.mix.schedule import MAX_STEP
from headrace.mix.shares import NEVER, ONE, Account, fixed_point
from headrace.mix.stages import Stage, Stages


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_module, "_FAR", 2)


def rows_of(matrix):
    matrix = np.asarray(matrix, float)
    matrix = matrix / np.cumsum(matrix, axis=1)[:, -1:]
    return lambda steps: matrix[np.minimum(steps, len(matrix) - 1)]


def weights_of(kind, rng, d):
    """Weights of one row; many deadlines that nearly coincide among them."""
    if kind == "equal":
        return np.ones(d)
    if kind == "small whole":
        return rng.integers(1, 9, d).astype(float)
    if kind == "nearly equal":
        return 1 + rng.integers(0, 3, d) * 2.0**-43 * d
    if kind == "doubled":
        return 2.0 ** rng.integers(0, 6, d) / 3
    if kind == "rare":  # several whose next example is not due for many chunks
        return np.where(rng.random(d) < 0.5, 1.0, 10.0 ** -rng.uniform(3, 6, d))
    if kind == "skewed":  # several examples that are not due for longer than a chunk
        return np.where(rng.random(d) < 0.5, 1.0, 3e-3 * rng.random(d) + 3e-4)
    return rng.lognormal(0, 1.5, d) + 0.01


@st.composite
def settling(draw):
    """Weights that jump about for a while (or not) and then stay; limits; a batch schedule."""
    d = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(
        st.sampled_from(
            ["equal", "small whole", "nearly equal", "doubled", "skewed", "rare", "any"]
        )
    )
    before = draw(st.sampled_from([0, 0, 1, 100, CHUNK, CHUNK + 7]))
    rows = np.stack(
        [
            *(rng.lognormal(0, 2, (before, d)) * (rng.random((before, d)) < 0.8) + 1e-6),
            weights_of(kind, rng, d),
        ]
    )
    if draw(st.booleans()):
        rows[-1, rng.integers(d)] += 1
        rows[-1, rng.random(d) < 0.2] = 0
        rows[-1, rng.integers(d)] += 1
    limits = [None] * d
    if draw(st.booleans()):
        limits = draw(st.lists(st.none() | st.integers(0, 60_000), min_size=d, max_size=d))
    small = st.integers(1, 2)
    sizes = {
        0: draw(small | st.integers(1, 40)),
        draw(st.integers(1, 5000)): draw(small | st.integers(1, 200)),
    }
    return rows, before, limits, BatchSchedule(sizes)


@given(settling(), st.lists(st.integers(2 * CHUNK, 60 * CHUNK), min_size=1, max_size=3))
@settings(max_examples=60)
def test_far_steps_are_those_of_the_walk(case, steps):
    rows, settled, limits, batch = case
    d = rows.shape[1]
    jumping, walked = (Quota(rows_of(rows), d, batch, limits, known) for known in (settled, None))
    for step in steps:
        end = walked.find_end(step + 1)
        if end is not None:
            assert jumping.find_end(step + 1) == end
            step = end - 1
        if step < 0:
            continue
        assert jumping.starts_at(step).tolist() == walked.starts_at(step).tolist()
        assert jumping.counts_at(step).tolist() == walked.counts_at(step).tolist()
        near = max(step - 3 * CHUNK, 0)  # between anchors, so that the walk goes on from one
        assert jumping.starts_at(near).tolist() == walked.starts_at(near).tolist()
        two = jumping.account_at(step)
        other = walked.account_at(step)
        assert (two.whole.tolist(), two.part.tolist()) == (
            other.whole.tolist(),
            other.part.tolist(),
        )
    assert jumping.late_steps <= walked.late_steps


@pytest.mark.parametrize(
    "weights", [[3, 1], [1] * 7, [0.7, 0.2, 0.1 - 1e-5, 1e-5], [5, 0, 3, 0, 1]]
)
def test_any_step_up_to_the_last_takes_few_anchors(weights):
    quota = Quota(rows_of([weights]), len(weights), BatchSchedule({0: 64, 10**6: 1024}), settled=0)
    far = MAX_STEP - 1
    counted = np.bincount(quota.components_at(far), minlength=len(weights))
    assert counted.sum() == 1024
    drawn = quota.starts_at(far)
    shares = np.asarray(weights) / np.sum(weights)
    total = quota.batch.rows_at(far)[0]
    assert drawn.sum() == total
    fixed = fixed_point(shares[None])[0]
    exact = [int(n) * ONE - int(r) * total for n, r in zip(drawn, fixed, strict=True)]
    assert max(abs(x) for x in exact) < ONE
    assert len(quota._anchors) < 60


def test_twenty_components_for_a_million_steps_are_pinned():
    # walked to once, with settled left out
    shares = 1 / np.arange(1, 21)
    quota = Quota(rows_of([shares]), 20, BatchSchedule(1024), settled=0)
    assert quota.starts_at(10**6).tolist() == PINNED
    assert len(quota._anchors) < 10


PINNED = [
    284623152,
    142311576,
    94874384,
    71155788,
    56924631,
    47437192,
    40660450,
    35577894,
    31624795,
    28462315,
    25874832,
    23718596,
    21894088,
    20330225,
    18974877,
    17788947,
    16742538,
    15812397,
    14980166,
    14231157,
]


def test_what_was_ramped_down_and_is_owed_something_takes_the_walk():
    blend = Blend({"a": 1, "b": {"linear": {0: 1, 100: 0}}, "c": 2})
    jumping = Quota(blend.at, 3, BatchSchedule(7), settled=100)
    walked = Quota(blend.at, 3, BatchSchedule(7))
    assert jumping.starts_at(40 * CHUNK).tolist() == walked.starts_at(40 * CHUNK).tolist()
    assert jumping.late_steps == walked.late_steps


def test_a_weight_too_rare_to_be_waited_for_costs_no_walk():
    assert longest_wait(fixed_point(np.array([[1 - 1e-12, 1e-12]]))[0]) == NEVER
    quota = Quota(rows_of([[1 - 1e-12, 1e-12]]), 2, BatchSchedule(4), settled=0)
    assert quota.starts_at(40 * CHUNK).tolist() == [160 * CHUNK, 0]
    assert len(quota._anchors) == 2


def test_who_may_have_been_served_early():
    rate = np.array([ONE - (1 << 20) - (1 << 12), 1 << 20, 1 << 12])
    delta = ONE // 8
    for share, early in [(0.1, False), (0.6, False), (0.75, True), (0.85, True)]:
        part = np.array([ONE // 3, int(share * ONE), 0])
        assert may_be_early(part, rate, delta)[1] == early
    both = np.array([ONE // 3, ONE // 2, ONE // 2])  # together they may fill what the first leaves
    assert may_be_early(both, rate, delta).tolist() == [True, True, False]
    assert not may_be_early(both, np.array([ONE, 0, 0]), delta)[1:].any()
    assert longest_wait(np.zeros(3, np.int64)) == 0


def test_parts():
    whole = np.array([5, 9])
    part = np.array([ONE // 2, ONE // 2])
    rate = np.array([ONE // 4, 3 * ONE // 4])
    account = Account(whole, part, whole)
    assert account.room_before(np.array([10, 1 << 62]), rate) == 10
    assert account.room_before(np.array([6, 11]), rate) < 0
    assert account.after(rate, 2).whole.tolist() == [6, 11]
    assert due_first(account, rate, 15, ONE // 4, 1) is not None
    assert due_first(account, rate, 99, ONE // 4, 1) is None


def test_a_guess_is_exact_once_the_longest_wait_is_over():
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(30):
        d = int(rng.integers(2, 9))
        quota = Quota(rows_of([weights_of("skewed", rng, d)]), d, BatchSchedule(1))
        for step in range(0, 37 * CHUNK, CHUNK):
            quota.prepare(step)
        for chunk in range(4, 20, 5):
            held = quota._anchors[chunk]
            rate = quota._shares.run(held, 0, 1).rate[0]
            guess = due_first(held, rate, chunk * CHUNK, quota._walk.delta, quota._walk.id_bits)
            assert guess is not None
            wrong += guess.tolist() != held.drawn.tolist()
            if longest_wait(rate) > 15 * CHUNK:
                continue
            guessed = Quota(
                quota._weights, d, BatchSchedule(1), start=Account(held.whole, held.part, guess)
            )
            after = longest_wait(rate)
            for step in (after, after + 1, after + 77):
                assert (
                    guessed.starts_at(step).tolist()
                    == quota.starts_at(chunk * CHUNK + step).tolist()
                )
    assert wrong > 5  # the wait is needed


class Steps:
    """Counts the steps that quotas walk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.walked = 0
        walk = Walk.walk

        def count(walker, anchor, first, steps, counts):
            self.walked += steps
            return walk(walker, anchor, first, steps, counts)

        monkeypatch.setattr(Walk, "walk", count)


def count_to(weights: dict[str, object], step: int, batch: int = 128, limits=None) -> list[int]:
    stages = Stages(list(weights), [Stage(0, Blend(weights))], BatchSchedule(batch), limits)
    return stages.starts_at(step).tolist()


def take_cure(weights: dict[str, object], refusal: ConfigError) -> dict[str, object]:
    """The weights as an error about a weight says."""
    field = str(refusal.field)
    share = float(str(refusal.cure).split("at least ")[1].split()[0])
    name = field.removeprefix("weights.")
    return weights | {
        name: share / (1 - share) * sum(float(str(w)) for n, w in weights.items() if n != name)
    }


@pytest.mark.parametrize(
    ("rare", "batch", "step", "refused"),
    [
        (1e-6, 128, 10**9, False),
        (5e-8, 128, 10**6, False),
        (1e-8, 4096, 10**12, False),
        (1e-9, 1024, 10**6, False),
        (1e-8, 128, 10**9, False),
        (1e-8, 128, int((7 + 0.85) * 1.5e8 / 128), False),
        (5e-10, 1024, int(0.85 * 3e9 / 1024), True),
        (1e-9, 128, 10**9, False),
        (1e-9, 128, int((85 + 0.85) * 1.5e9 / 128), True),
        (1e-12, 1, 10**12, False),
        (2e-12, 1, int(0.85 * 0.75e12), True),
        (1e-16, 128, 10**12, False),
    ],
)
def test_a_far_step_of_a_rare_component_is_near_or_refused(rare, batch, step, refused, monkeypatch):
    steps = Steps(monkeypatch)
    weights: dict[str, object] = {"web": 1.0, "code": 0.5, "rare": rare}
    if refused:
        with pytest.raises(ConfigError) as error:
            count_to(weights, step, batch)
        assert error.value.field == "weights.rare"
        assert error.value.value == pytest.approx(max(rare / 1.5, 2**-44), rel=0.01)
        assert steps.walked == 0
        weights = take_cure(weights, error.value)
    drawn = count_to(weights, step, batch)
    assert steps.walked <= (1 << 18) or step <= 10**6
    rates = fixed_point(Blend(weights).at(np.zeros(1, np.int64)))[0].tolist()
    assert sum(drawn) == step * batch
    assert all(abs(n - rate * step * batch / ONE) < 1 for n, rate in zip(drawn, rates, strict=True))


@pytest.mark.parametrize(
    "weight",
    [{"linear": {0: 1, 10**9: 2}}, {"linear": {0: 1, 10**4: 1e-10}}, {"linear": {0: 1, 10**4: 0}}],
)
def test_a_ramp_that_takes_too_many_steps_is_refused(weight, monkeypatch):
    steps = Steps(monkeypatch)
    with pytest.raises(ConfigError) as error:
        count_to({"web": 1.0, "code": weight}, 5 * 10**8)
    assert error.value.field in ("weights", "weights.code")
    assert steps.walked <= 10**4 + 16 * CHUNK
    again = Stages(
        ["web"],
        [Stage(0, Blend({"web": 1})), Stage(10**4, Blend({"web": 1.0}))],
        BatchSchedule(128),
    )
    assert (
        again.starts_at(5 * 10**8).sum() == 128 * 5 * 10**8
    )  # stages of constant weights, as the error says


def test_many_components_reach_less_far():
    few = Reach([str(d) for d in range(20)])
    many = Reach([str(d) for d in range(2048)])
    assert not few.is_far(0, 8192)
    assert many.is_far(0, 8192)


def test_limits_that_are_reached_on_the_way_to_a_far_step():
    drawn = count_to({"web": 1.0, "code": 0.5, "rare": 1e-4}, 10**9, limits=[None, None, 50])
    assert drawn[2] == 50
    assert sum(drawn) == 128 * 10**9


def test_the_walk_of_a_long_run_with_a_tiny_weight_is_as_it_was():
    weights = {"web": 1.0, "rare": 1e-9}
    assert count_to(weights, 5000) == [128 * 5000, 0]
