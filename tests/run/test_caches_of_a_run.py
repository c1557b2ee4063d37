"""Runs keep the states of their caches that they began with; new ones get the latest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.config import ComponentConfig, LmDataConfig
from headrace.errors import PlanMismatchError
from headrace.mix import AmendmentConfig
from headrace.run import open_run
from headrace.testing import tiny_cache
from headrace.testing.caches import grow, remove


def test_functions_and_phases_go_along(living, tmp_path):
    phased = dataclasses.replace(living, seq_len={0: 16, 4: 32})
    began = open_run(str(tmp_path / "run"), phased, fn=np.asarray)
    remove(tmp_path / "a", 3, 4)
    again = open_run(str(tmp_path / "run"), phased, 2, fn=np.asarray)
    assert again.fingerprint == began.fingerprint
    assert again.loader().functions == (np.asarray,)


@pytest.fixture
def living(tmp_path) -> LmDataConfig:
    """A run over caches from which nothing was removed."""
    for seed, name in enumerate("ab"):
        tiny_cache(tmp_path / name, documents=120, seed=seed)
    components = {name: ComponentConfig(str(tmp_path / name)) for name in "ab"}
    return LmDataConfig(components, seq_len=16, batch_size=8)


def tokens(loader, step: int) -> np.ndarray:
    return np.asarray(loader.batch_at(step).tokens)


def test_a_run_keeps_its_removals_until_an_amendment_takes_newer_ones_in(living, tmp_path):
    run = str(tmp_path / "run")
    remove(tmp_path / "a", 3, 4)
    began = open_run(run, living)
    loader = began.loader()
    before = [tokens(loader, step) for step in range(8)]
    remove(tmp_path / "a", *range(20, 90))
    remove(tmp_path / "b", 1)
    assert not np.array_equal(tokens(living.loader(), 4), before[4])  # a new run
    again = open_run(run, living, 4)
    resumed = again.loader()
    assert again.fingerprint == began.fingerprint
    assert np.array_equal(tokens(resumed, 4), before[4])
    amended = dataclasses.replace(living, amendments=[AmendmentConfig(5, caches={"a": 3})])
    with pytest.raises(PlanMismatchError, match="may touch the past"):
        open_run(run, amended, 6)
    manifest = open_run(run, amended, 5)
    loader = manifest.loader()
    assert manifest.history == ({"fingerprint": began.fingerprint, "until_step": 5},)
    assert all(np.array_equal(tokens(loader, step), before[step]) for step in range(5))
    assert not np.array_equal(tokens(loader, 5), before[5])
    assert all(
        np.array_equal(loader.batch_at(s).source_id, resumed.batch_at(s).source_id)
        for s in range(8)
    )
    assert open_run(run, amended, 7).fingerprint == manifest.fingerprint
    for step in (5, 7):
        with pytest.raises(
            PlanMismatchError, match="has another"
        ):  # what is gone does not come back
            open_run(run, living, step)


def test_runs_without_removals_never_hear_of_later_ones(living, tmp_path):
    run = str(tmp_path / "run")
    began = open_run(run, living)
    assert "snapshots" not in str(began.lock.plan)
    remove(tmp_path / "b", 7)
    assert "removed" in living.loader().describe()["dataset"]
    again = open_run(run, living, 3)
    assert again.fingerprint == began.fingerprint
    assert "removed" not in again.loader().describe()["dataset"]


@pytest.mark.parametrize("change", ["phases", "weights", "join"])
def test_removals_and_other_amendments_go_together(living, tmp_path, change):
    run = str(tmp_path / "run")
    if change == "phases":
        living = dataclasses.replace(living, seq_len={0: 16, 4: 32})
    if change == "join":
        living = dataclasses.replace(living, components={"a": living.components["a"]})
    began = open_run(run, living)
    other = tiny_cache(tmp_path / "c", documents=90, seed=5)
    remove(other.path, 2)
    remove(tmp_path / "a", *range(10, 60))
    amendment = AmendmentConfig(6, caches={"a": 2})
    if change == "weights":
        amendment = dataclasses.replace(amendment, weights={"b": 2})
    if change == "join":
        components = {**living.components, "c": ComponentConfig(other.path)}
        amendment = dataclasses.replace(amendment, add={"c": 1})
        living = dataclasses.replace(living, components=components)
    manifest = open_run(run, dataclasses.replace(living, amendments=[amendment]), 6)
    assert manifest.history == ({"fingerprint": began.fingerprint, "until_step": 6},)
    recorded = manifest.lock.plan["dataset"]["removed"]
    assert [*recorded["a"]] == ["6"]
    assert ("c" in recorded) == (
        change == "join"
    )  # a newcomer begins with what was removed from it by then


@pytest.mark.parametrize("later", [lambda path: remove(path, 3), lambda path: grow(path, 100)])
def test_a_job_that_began_a_run_is_amended_after_its_cache_changed(tmp_path, later):
    path = tiny_cache(tmp_path / "web", documents=300).path
    parts = {name: ComponentConfig(path) for name in ("a", "b")}
    run = open_run(tmp_path / "run", LmDataConfig(parts, seq_len=8, batch_size=8))
    run.state(1)
    before = run.dataset.read(np.arange(80)).tokens
    later(path)
    run.amend(10, weights={"a": 3})
    assert np.array_equal(run.dataset.read(np.arange(80)).tokens, before)
