"""Skipped steps: the map from steps of a run to steps of its plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import ConfigError
from headrace.mix.draws import NO_SKIPS, Draws, Skips, check_skip
from headrace.mix.plan import skips_of
from headrace.mix.schedule import BatchSchedule, weight_from_config
from headrace.mix.stage_config import (
    AmendmentConfig,
    StageConfig,
    check_plan,
    with_amendment,
)

PAIR = st.tuples(st.integers(1, 40), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))
PAIRS = st.lists(PAIR, max_size=5)  # each of an amendment of its own
BATCHES = st.dictionaries(st.integers(1, 60), st.integers(1, 9), max_size=3).map(
    lambda sizes: BatchSchedule({0: 4, **dict(sorted(sizes.items()))})
)


def left_out(pairs: list[tuple[int, int]], steps: int) -> list[int]:
    """The steps of a plan that a run has, found by taking batches away one skip at a time."""
    plan = [*range(steps + sum(stop - first for first, stop in pairs))]
    for first, stop in pairs:
        del plan[first:stop]
    return plan[:steps]


def skipping(pairs: list[tuple[int, int]]) -> Skips:
    skips = NO_SKIPS
    for pair in pairs:
        skips = skips.then([pair])
    return skips


@given(PAIRS)
def test_a_skip_takes_its_steps_away(pairs: list[tuple[int, int]]):
    skips = skipping(pairs)
    planned = left_out(pairs, 80)
    assert skips.planned(np.arange(80)).tolist() == planned
    for step in range(max(planned)):
        assert skips.step_of(step) == np.searchsorted(planned, step)
    cut = [step for low, high in skips.stretches(5, 70) for step in range(low, high)]
    assert cut == planned[5:70]


@given(PAIRS, BATCHES)
def test_batches_are_those_of_the_plan(pairs: list[tuple[int, int]], batch: BatchSchedule):
    skips = skipping(pairs)
    steps = np.arange(80)
    run = skips.left_of(batch)
    assert run.size_at(steps).tolist() == batch.size_at(skips.planned(steps)).tolist()
    weights = [weight_from_config(weight) for weight in (3, {"linear": {0: 1, 60: 4}}, 1)]
    drawn = draws_of(weights, batch)
    left = Draws(drawn.policy, skips=skips)
    for step in range(80):
        at = skips.planned_step(step)
        for of_run, of_plan in zip(left.step_table(step), drawn.step_table(at), strict=True):
            assert of_run.tolist() == of_plan.tolist()
        assert left.starts_at(step).tolist() == drawn.starts_at(at).tolist()
    component, ordinal = left.route(np.arange(run.rows_at(60)[0]))
    tables = [drawn.step_table(at) for at in skips.planned(steps[:60]).tolist()]
    assert component.tolist() == [c for table in tables for c in table[0].tolist()]
    assert ordinal.tolist() == [o for table in tables for o in table[1].tolist()]
    for index in range(0, component.size, 37):
        assert left.index_of(int(component[index]), int(ordinal[index])) == index


@given(PAIRS, BATCHES, st.integers(400, 900))
def test_rows_left(pairs: list[tuple[int, int]], batch: BatchSchedule, length: int):
    skips = skipping(pairs)
    steps = int(batch.step_of(np.asarray([length - 1]))[0]) + 1
    held = np.minimum(batch.offset_at(np.arange(steps)) + batch.size_at(np.arange(steps)), length)
    kept = [step for step in left_out(pairs, steps) if step < steps]
    left = sum(int(held[step] - batch.rows_at(step)[0]) for step in kept)
    if all(first < steps for first, _ in skips.ranges):
        assert skips.rows_left(length, batch) == left
    else:
        with pytest.raises(ConfigError, match="after the last one of the run"):
            skips.rows_left(length, batch)


@given(st.lists(st.tuples(PAIR, st.integers(0, 3), st.booleans()), max_size=5))
def test_a_skip_names_steps_as_all_that_were_asked_for_before_leave_them(asked):
    """Whatever their steps, also if the mixture changes at the same one."""
    amendments = []
    for (first, stop), ahead, reweighs in asked:
        weights = {"a": 2} if reweighs else {}
        new = AmendmentConfig(max(first - ahead, 1), weights=weights, skip=[[first, stop]])
        amendments = with_amendment(amendments, new)
        if reweighs:
            amendments = with_amendment(amendments, AmendmentConfig(new.step, weights={"a": 3}))
    check_plan([StageConfig({"a": 1})], amendments)
    planned = left_out([pair for pair, _, _ in asked], 80)
    assert skips_of(amendments).planned(np.arange(80)).tolist() == planned


def test_ranges_of_one_amendment_count_the_same_steps():
    assert NO_SKIPS.then([[3, 5], [5, 6], [8, 9]]).ranges == ((3, 6), (8, 9))


@pytest.mark.parametrize(
    ("skip", "field", "cure"),
    [
        ([[1400, 1200]], "skip[0]", r"Write \[1200, 1400\]"),
        ([[1200, 1200]], "skip[0]", r"Write \[1200, 1201\]"),
        ([[1200, 1300], [1250, 1400]], "skip[1]", "join those that overlap"),
        ([[1300, 1310], [1200, 1210]], "skip[1]", "Sort them"),
        ([[900, 1200]], "skip[0]", "Begin it at 1000 or later"),
        ([[1200, 1 << 41]], "skip[0]", "Count in steps"),
        ([[1200]], "skip[0]", "one after the last"),
    ],
)
def test_bad_skips_are_refused(skip: list[list[int]], field: str, cure: str):
    with pytest.raises(ConfigError, match=cure) as refused:
        check_skip(skip, 1000, "skip")
    assert refused.value.field == field


def test_no_skips_change_nothing():
    batch = BatchSchedule({0: 4, 7: 8})
    assert NO_SKIPS.left_of(batch) is batch
    assert NO_SKIPS.rows_left(50, batch) == 50
    assert not NO_SKIPS
