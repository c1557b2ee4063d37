"""A run may leave out the batches of some steps; the steps after them have the next ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.dataset import rows_of_step
from headrace.data.phased import RunDataset
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix import AmendmentConfig
from headrace.order.intervals import Intervals
from headrace.run import open_run, where
from headrace.run.sightings import sightings
from headrace.testing import tiny_cache

STEPS = 60
SKIPS = st.tuples(st.integers(1, 50), st.integers(1, 9)).map(lambda pair: [pair[0], sum(pair)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    root = tmp_path_factory.mktemp("skips")
    for seed, name in enumerate("abc"):
        tiny_cache(root / name, documents=150 + 50 * seed, parts=1 + seed, seed=seed)
    weights = {"a": {"linear": {0: 1, 50: 4}}, "b": 2, "c": 0.5}
    components = {name: ComponentConfig(str(root / name), weights[name]) for name in "abc"}
    return LmDataConfig(components, seq_len=16, batch_size=8, num_steps=STEPS)


def rows(config: LmDataConfig, step: int) -> list[list[int]]:
    return rows_in(config.dataset(), step)


def rows_in(dataset: RunDataset, step: int) -> list[list[int]]:
    drawn = rows_of_step(dataset, dataset.batch_schedule, step, "locality")
    return [drawn.source.tolist(), drawn.row.tolist()]


@settings(deadline=None, max_examples=4)
@given(st.lists(SKIPS, min_size=1, max_size=3, unique_by=lambda pair: pair[0]), st.booleans())
def test_later_steps_have_what_the_plan_has_next(plain, skips, changes):
    """With sizes of batches, lengths of rows and amendments that change on the way."""
    if changes:
        plain = replace(plain, batch_size={0: 8, 20: 16}, seq_len={0: 16, 35: 32})
    amendments = [AmendmentConfig(skip[0], skip=[skip]) for skip in sorted(skips)]
    skipped = replace(plain, amendments=amendments)
    total = sum(stop - first for first, stop in skips)
    longer = replace(plain, num_steps=STEPS + total)
    assert skipped.run_steps == skipped.loader().num_steps == STEPS
    dataset = skipped.dataset()
    of_run = [rows_in(dataset, step) for step in range(STEPS)]
    planned = skipped.skips.planned(np.arange(STEPS)).tolist()
    of_plan = longer.dataset()
    assert of_run == [rows_in(of_plan, step) for step in planned]
    here = where(skipped, STEPS)
    for number, name in enumerate(skipped.components):
        held = sum(sources.count(number) for sources, _ in of_run)
        assert here.sources[name].rows == held
    assert here.sources["a"].epoch == where(longer, STEPS + total).sources["a"].epoch


def test_an_amendment_after_a_skip_counts_steps_of_the_run(plain):
    skip = AmendmentConfig(10, skip=[[10, 30]])
    amended = replace(plain, amendments=[skip, AmendmentConfig(20, drop=["b"])])
    unskipped = replace(plain, num_steps=90, amendments=[AmendmentConfig(40, drop=["b"])])
    for step in (9, 10, 19, 20, 21, 59):
        assert rows(amended, step) == rows(unskipped, amended.skips.planned_step(step))
    assert where(amended, 20).stage_step == 20


def test_a_run_is_amended_by_a_skip_and_its_past_is_refused(plain, tmp_path):
    run = open_run(tmp_path, plain)
    run.state(12)
    with pytest.raises(PlanMismatchError, match="12 steps are done"):
        run.amend(10, skip=[[10, 20]])
    amended = run.amend(12, skip=[[12, 20]])
    assert amended.history == ({"fingerprint": run.fingerprint, "until_step": 12},)
    run = open_run(tmp_path, plain, run.state(12))  # the config needs no note of it
    assert run.fingerprint == amended.fingerprint
    with run.loader() as loader:
        longer = replace(plain, num_steps=STEPS + 8).loader()
        for step, planned in ((11, 11), (12, 20), (59, 67)):
            assert (loader.batch_at(step).tokens == longer.batch_at(planned).tokens).all()
    again = run.amend(15, weights={"b": 9}).amend(20, skip=[[20, 22]], drop=["b"])
    assert [one["until_step"] for one in again.history] == [12, 15, 20]
    assert open_run(tmp_path, plain).fingerprint == again.fingerprint


def test_a_skipped_document_is_not_seen(plain):
    skipped = replace(plain, amendments=[AmendmentConfig(10, skip=[[10, 15]])])
    all_documents = Intervals.of_numbers(np.arange(150))
    of_plan = {
        (one.document, one.step) for one in sightings(plain.dataset(), "a", all_documents, 40)
    }
    of_run = {
        (one.document, one.step) for one in sightings(skipped.dataset(), "a", all_documents, 35)
    }
    left = {
        (document, step - 5 * (step >= 15)) for document, step in of_plan if not 10 <= step < 15
    }
    assert of_run == left


@pytest.mark.parametrize(
    ("skip", "field", "cure"),
    [
        ([[40, 30]], "amendments[0].skip[0]", "Write"),
        ([[2, 10]], "amendments[0].skip[0]", "set the amendment's step to 2"),
        ([[60, 70]], "amendments[0].skip[0][0]", "prolong the run"),
        ([[20, 30], [25, 40]], "amendments[0].skip[1]", "join"),
    ],
)
def test_bad_skips_are_refused(plain, skip, field, cure):
    with pytest.raises(ConfigError, match=cure) as refused:
        replace(plain, amendments=[AmendmentConfig(10, skip=skip)])
    assert refused.value.field == field
