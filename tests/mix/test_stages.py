"""Stages: exact within each, the past untouched by what comes later, ordinals without a gap."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.quota import Quota
from headrace.mix.shares import ONE, UNLIMITED, fixed_point
from headrace.mix.stages import Stage, Stages

NAMES = ("a", "b", "c", "d", "e")


def counts(policy: Stages | Quota, step: int, components: int = len(NAMES)) -> list[int]:
    return np.bincount(policy.components_at(step), minlength=components).tolist()


@st.composite
def blends(draw: st.DrawFn) -> Blend:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    numbers = st.floats(0.01, 10)
    ramps = st.builds(lambda a, b: {"linear": {0: a, 40: b}}, numbers, numbers)
    return Blend({name: draw(st.one_of(numbers, ramps)) for name in names})


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Stage], BatchSchedule]:
    first = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    stages = [Stage(step, draw(blends())) for step in [0, *first]]
    sizes = draw(st.dictionaries(st.integers(1, 60), st.integers(1, 40), max_size=2))
    return stages, BatchSchedule({0: draw(st.integers(1, 40)), **dict(sorted(sizes.items()))})


def shares_of(stages: list[Stage], batch: BatchSchedule, steps: int) -> np.ndarray:
    """W after each step of the run, [steps, components], in exact whole numbers of
    2**-44 examples.
    """
    due = np.zeros((steps, len(NAMES)), object)
    bounds = [*(s.first_step for s in stages), steps]
    for stage, (first, stop) in zip(stages, pairwise(bounds), strict=True):
        at = np.arange(first, stop)
        columns = [NAMES.index(name) for name in stage.blend.names]
        rate = fixed_point(stage.blend.at(at)).astype(object)
        due[first:stop, columns] = rate * batch.size_at(at).astype(object)[:, None]
    return np.cumsum(due, axis=0)


def drawn_by(policy: Stages | Quota, steps: int) -> np.ndarray:
    return np.stack([policy.starts_at(s + 1) for s in range(steps)])


@given(runs())
def test_batches_are_full_and_what_is_owed_is_carried_over_the_whole_run(
    run: tuple[list[Stage], BatchSchedule],
) -> None:
    stages, batch = run
    policy = Stages(NAMES, stages, batch)
    steps = 80
    drawn = drawn_by(policy, steps)
    shares = shares_of(stages, batch, steps)
    each = np.diff(drawn, axis=0, prepend=0)
    assert each.min() >= 0
    assert each.sum(axis=1).tolist() == batch.size_at(np.arange(steps)).tolist()
    idle = np.diff(shares, axis=0, prepend=0) == 0
    assert not each[idle].any()  # nothing of a component that the stage does not use
    off = ((drawn.astype(object) * ONE - shares) / ONE).astype(float)
    moved = np.stack([policy.moved_at(s) for s in range(steps)])
    used = np.stack([policy._used(policy.stage_at(s)) for s in range(steps)])
    policy.prepare(steps)
    if policy.late_steps == 0:
        assert np.abs((off - moved)[used]).max() < 1  # the quota's promise, with the share as moved
        assert np.abs((off - moved)[used.all(axis=1)]).max(initial=0) < 1
    assert np.abs(off).max() < len(NAMES)  # and in any case
    if all(set(s.blend.names) == set(stages[0].blend.names) for s in stages):
        assert not moved.any()
    for step in range(steps):  # deviations of a stage sum to 0
        assert abs((off - moved)[step, used[step]].sum()) < 1e-9


@settings(max_examples=40)
@given(runs(), st.integers(1, 79))
def test_a_stage_that_is_cut_in_two_is_the_stage_in_one(
    run: tuple[list[Stage], BatchSchedule], cut: int
) -> None:
    stages, batch = run
    within = max((s for s in stages if s.first_step < cut), key=lambda s: s.first_step)
    if any(s.first_step == cut for s in stages):
        return
    more = sorted([*stages, Stage(cut, within.blend)], key=lambda s: s.first_step)
    one = Stages(NAMES, stages, batch)
    two = Stages(NAMES, more, batch)
    if one._used(one.stage_at(cut)).tolist() != two._used(two.stage_at(cut)).tolist():
        return  # a ramp from or to 0
    assert [counts(two, s) for s in range(80)] == [counts(one, s) for s in range(80)]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 4, 33]))
def test_stages_over_the_same_components_are_one_quota(
    seed: int, d: int, longest: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    names = NAMES[:d] if d < 6 else (*NAMES, "f")
    stages = []
    rows = []
    first = 0
    for _ in range(12):
        weights = rng.lognormal(0, 2, d) + 1e-6
        blend = Blend(dict(zip(names, weights.tolist(), strict=True)))
        steps = int(rng.integers(1, longest + 1))
        stages.append(Stage(first, blend))
        first += steps
        rows += [blend.at(np.zeros(1, np.int64))[0]] * steps
    table = np.stack(rows)
    staged = Stages(names, stages, BatchSchedule(size))
    plain = Quota(lambda s: table[np.minimum(s, first - 1)], d, BatchSchedule(size))
    assert drawn_by(staged, first).tolist() == drawn_by(plain, first).tolist()


@pytest.mark.parametrize("size", [1, 4])
def test_a_small_source_does_not_starve_in_short_stages(size: int) -> None:
    same = [Stage(s, Blend({"a": 0.9, "b": 0.1})) for s in range(100)]
    run = Stages("ab", same, BatchSchedule(size))
    assert run.starts_at(100).tolist() == [90 * size, 10 * size]
    coming_and_going = [Stage(s, Blend({"a": 0.9, "bc"[s % 2]: 0.1})) for s in range(200)]
    drawn = drawn_by(Stages("abc", coming_and_going, BatchSchedule(size)), 200)
    wanted = np.stack(
        [np.arange(1, 201) * size * 0.9, (np.arange(200) // 2 + 1) * size * 0.1], axis=1
    )
    assert np.abs(drawn[:, :2] - wanted).max() < 2
    assert drawn[-1].min() >= 10 * size - 1


def test_a_component_that_comes_back_goes_on_from_its_account_and_a_new_one_from_nothing() -> None:
    stages = [
        Stage(0, Blend({"a": 3, "b": 1})),
        Stage(1, Blend({"a": 1, "c": 1})),
        Stage(2, Blend({"b": 1, "c": 1})),
    ]
    run = Stages("abc", stages, BatchSchedule(1))
    assert run.starts_at(1).tolist() == [1, 0, 0]
    assert run.moved_at(0).tolist() == [0, 0, 0]
    assert run.moved_at(1).tolist() == [
        0.125,
        0,
        0.125,
    ]  # a has had 1/4 too much, b is owed it and is away
    assert (run.moved_at(2)[1:] == run.moved_at(2)[1]).all()


@settings(max_examples=40)
@given(runs(), st.lists(st.none() | st.integers(0, 500), min_size=5, max_size=5))
def test_what_a_limit_frees_goes_to_the_others_within_and_across_stages(
    run: tuple[list[Stage], BatchSchedule], limits: list[int | None]
) -> None:
    stages, batch = run
    policy = Stages(NAMES, stages, batch, limits)
    most = np.array([10**9 if limit is None else limit for limit in limits])
    bounds = [*(s.first_step for s in stages[1:]), 80]
    total = np.zeros(5, np.int64)
    for stage, stop in zip(stages, bounds, strict=True):
        columns = np.array([NAMES.index(name) for name in stage.blend.names])
        for step in range(stage.first_step, stop):
            try:
                drawn = np.asarray(counts(policy, step))
            except IndexOutOfRangeError:  # only once what may be given does not fill the step
                room = (most - total)[columns] * (stage.blend.at(np.array([step]))[0] > 0)
                assert room.sum() == 0
                return
            total += drawn
            assert (total <= most).all()
            if drawn.sum() < batch.rows_at(step)[1]:  # the last step: nothing is left for another
                in_use = columns[stage.blend.at(np.array([step]))[0] > 0]
                assert (total == most)[in_use].all()
                with pytest.raises(IndexOutOfRangeError):
                    counts(policy, step + 1)
                assert policy.supply().tolist() == total.tolist()
                return
        open_ = total[columns] < most[columns]
        quota = policy._quota(policy.stage_at(stage.first_step))
        account = quota.account_at(stop - stage.first_step)
        assert (account.whole <= most[columns]).all()
        # whole numbers: all that was to be given is on somebody's account
        assert (
            int(account.part.sum()) + (int(account.whole.sum()) - int(total[columns].sum())) * ONE
            == 0
        )
        if stage.blend.is_constant and open_.any() and quota.late_steps == 0:
            start = quota.account_at(0)
            first = total[columns]
            gained = (account.whole - start.whole) + (account.part - start.part) / ONE
            rate = gained[open_] / stage.blend.at(np.zeros(1, np.int64))[0][open_]
            assert np.ptp(rate) < 1e-6 * max(rate.max(), 1)  # in proportion to their weights
            assert np.abs(first - account.whole - account.part / ONE).max() < 2


@settings(max_examples=40)
@given(
    runs(),
    st.integers(0, 79),
    st.lists(st.none() | st.integers(50, 900), min_size=5, max_size=5),
    st.booleans(),
)
def test_an_anchor_changes_nothing(
    run: tuple[list[Stage], BatchSchedule], at: int, limits: list[int | None], limited: bool
) -> None:
    stages, batch = run
    made = [Stages(NAMES, stages, batch, limits if limited else None) for _ in range(3)]
    try:
        anchor = json.loads(json.dumps(made[0].anchor_at(at)))
    except IndexOutOfRangeError:
        return
    with_anchor, without = made[1:]
    with_anchor.use_anchor(anchor)
    entered = [e is not None for e in with_anchor._entered]
    assert sum(entered) == 1
    assert with_anchor.starts_at(at).tolist() == without.starts_at(at).tolist()
    assert [e is not None for e in with_anchor._entered] == entered  # nothing was walked to
    for step in (*range(at, 90), *range(at)):
        try:
            expected = counts(without, step)
        except IndexOutOfRangeError:
            with pytest.raises(IndexOutOfRangeError):
                with_anchor.components_at(step)
            continue
        assert counts(with_anchor, step) == expected
        assert with_anchor.starts_at(step).tolist() == without.starts_at(step).tolist()
    again = Stages(NAMES, stages, batch, limits if limited else None)
    again.use_anchor(anchor)
    assert again.anchor_at(at) == anchor


def test_damaged_anchors_are_refused() -> None:
    stages = [Stage(0, Blend({"a": 3, "b": 1})), Stage(20, Blend({"a": 1, "b": 1}))]
    anchor = Stages("ab", stages, BatchSchedule(5)).anchor_at(600)
    quota = anchor["quota"]
    for bad in (
        {},
        {**anchor, "stage": 2},
        {**anchor, "stage": 0},
        {**anchor, "drawn": [1, 2]},
        {**anchor, "drawn": [101, -1]},
        {**anchor, "drawn": [50.0, 50.0]},
        {**anchor, "owed": [5, 3]},
        {**anchor, "late": None},
        {**anchor, "quota": 3},
        {**anchor, "quota": {**quota, "step": 511}},
        {**anchor, "quota": {**quota, "step": 256}},
        {**anchor, "quota": {**quota, "whole": [1]}},
        {**anchor, "quota": {**quota, "part": [1, 0]}},
        {**anchor, "quota": {**quota, "late": "1"}},
    ):
        with pytest.raises(ConfigError, match="anchor: "):
            Stages("ab", stages, BatchSchedule(5)).use_anchor(bad)


def test_a_stage_is_asked_for_the_weights_of_its_own_steps_only() -> None:
    gone = {"a": {"step": {0: 0, 10: 1, 30: 0}}}
    stages = [
        Stage(0, Blend({"b": 1})),
        Stage(10, Blend(gone, first_step=10, num_steps=30)),
        Stage(30, Blend({"b": 1})),
    ]
    run = Stages("ab", stages, BatchSchedule(2))
    assert [counts(run, s, 2) for s in (9, 10, 29, 30)] == [[0, 2], [2, 0], [2, 0], [0, 2]]
    ends = Stages(
        "ab",
        [stages[0], Stage(10, Blend({"a": {"step": {0: 1, 30: 0}}, "b": {"step": {0: 0, 30: 1}}}))],
        BatchSchedule(2),
    )
    assert [counts(ends, s, 2) for s in (10, 29, 30)] == [[2, 0], [2, 0], [0, 2]]


@given(runs())
def test_starts_add_up(run: tuple[list[Stage], BatchSchedule]) -> None:
    policy = Stages(NAMES, *run)
    total = np.zeros(len(NAMES), np.int64)
    for step in range(80):
        assert policy.starts_at(step).tolist() == total.tolist()
        total += counts(policy, step)


@given(runs(), blends(), st.integers(1, 30))
def test_a_later_stage_does_not_touch_the_past(
    run: tuple[list[Stage], BatchSchedule], blend: Blend, after: int
) -> None:
    stages, batch = run
    step = stages[-1].first_step + after
    before = Stages(NAMES, stages, batch)
    amended = Stages(
        (*NAMES, "new"), [*stages, Stage(step, Blend({**blend.to_config(), "new": 1}))], batch
    )
    for s in range(step):
        assert counts(amended, s, len(NAMES) + 1)[:-1] == counts(before, s)
    assert amended.starts_at(step)[:-1].tolist() == before.starts_at(step).tolist()


def test_one_stage_is_a_plain_quota() -> None:
    blend = Blend({"a": 5, "b": 3, "c": {"linear": {0: 0, 50: 4}}})
    batch = BatchSchedule({0: 7, 20: 12})
    staged = Stages("abc", [Stage(0, blend)], batch)
    plain = Quota(blend.at, 3, batch)
    assert [counts(staged, s, 3) for s in range(100)] == [counts(plain, s, 3) for s in range(100)]


def test_a_paused_component_goes_on_where_it_stopped() -> None:
    stages = [
        Stage(0, Blend({"a": 1, "b": 1})),
        Stage(3, Blend({"b": 1})),
        Stage(5, Blend({"a": 1})),
    ]
    draws = Draws(Stages("ab", stages, BatchSchedule(4)))
    component, ordinal = draws.route(np.arange(24))
    assert ordinal[component == 0].tolist() == list(range(6 + 4))
    assert ordinal[component == 1].tolist() == list(range(6 + 8))


def test_limits_run_through_all_stages() -> None:
    stages = [Stage(0, Blend({"a": 1, "b": 1})), Stage(2, Blend({"a": 3, "b": 1}))]
    policy = Stages("ab", stages, BatchSchedule(8), [10, None])
    assert [counts(policy, s, 2) for s in range(4)] == [[4, 4], [4, 4], [2, 6], [0, 8]]
    assert policy.supply().tolist() == [10, UNLIMITED]


def test_a_mixture_that_runs_dry_says_in_which_stage() -> None:
    policy = Stages(
        "ab", [Stage(0, Blend({"a": 1})), Stage(2, Blend({"b": 1}))], BatchSchedule(4), [None, 6]
    )
    with pytest.raises(IndexOutOfRangeError, match="begins at step 2"):
        policy.components_at(4)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "step 0"),
        ([Stage(1, Blend({"a": 1}))], "step 0"),
        ([Stage(0, Blend({"a": 1})), Stage(0, Blend({"a": 1}))], "does not begin after"),
        ([Stage(0, Blend({"aa": 1}))], "Did you mean 'a'"),
    ],
)
def test_bad_stages_are_refused(stages: list[Stage], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Stages("ab", stages, BatchSchedule(4))


@pytest.mark.parametrize("size", [4, 64])
def test_components_that_come_and_go_stay_near_their_shares(size: int) -> None:
    assert worst_of_random_stages(seed=0, stages=120, components=8, longest=20, size=size) < 1.5


def worst_of_random_stages(
    seed: int, stages: int, components: int, longest: int, size: int
) -> float:
    """Largest deviation from the share of the whole run, stages of random lengths, components and
    weights.
    """
    rng = np.random.default_rng(seed)
    first = 0
    names = [str(d) for d in range(components)]
    made: list[Stage] = []
    rows: list[np.ndarray] = []
    for _ in range(stages):
        used = rng.random(components) < 0.6
        used[rng.integers(components)] = True
        weights = rng.lognormal(0, 2, components) * used
        steps = int(rng.integers(1, longest + 1))
        made.append(
            Stage(first, Blend({names[d]: float(weights[d]) for d in np.flatnonzero(used)}))
        )
        first += steps
        rows += [weights / weights.sum()] * steps
    drawn = drawn_by(Stages(names, made, BatchSchedule(size)), first)
    return float(np.abs(drawn - np.cumsum(np.stack(rows) * size, axis=0)).max())


if __name__ == "__main__":
    for case in ((8, 20, 32), (8, 1, 4), (20, 20, 64), (3, 1, 4)):
        worst = max(worst_of_random_stages(seed, 2000, *case) for seed in range(3))
        print(
            f"{case[0]} components, 6000 stages of 1 to {case[1]} steps, batch {case[2]}: worst"
            f" {worst:.3f}"
        )
