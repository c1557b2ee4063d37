"""A policy from outside: one file (here) and one entry in the registry, and it works wherever
policies do.
"""

import json
from typing import Any, cast

import jax
import numpy as np
import pytest
import yaml

from headrace.analysis import simulate
from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.simulate.forecast import RunSteps
from headrace.config import load_config
from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.mix import BatchSchedule
from headrace.mix.plan import POLICIES, Plan, PolicyKind
from headrace.mix.policy import Anchor, MixingPolicy, Watch, anchor_integer
from headrace.mix.shares import UNLIMITED
from headrace.run import open_run, where
from headrace.testing import tiny_cache, write_cache
from headrace_compat.constant_weights import equal_weights


class InTurns(MixingPolicy):
    """Each component in turn gives one example. In place of a dearer rule it notes how many
    examples it would count up to the step that is asked for, from 0 or from its anchor.
    """

    name = "in_turns"

    def __init__(self, components: int, batch: BatchSchedule) -> None:
        self.components = components
        self.batch = batch
        self.reached = 0
        self.counted = 0

    def starts_at(self, step: int) -> np.ndarray:
        first = self.batch.rows_at(step)[0]
        if first > self.reached:
            self.counted += first - self.reached
            self.reached = first
        return (first + np.arange(self.components)[::-1]) // self.components

    def components_at(self, step: int) -> np.ndarray:
        first, size = self.batch.rows_at(step)
        return (np.arange(first, first + size) % self.components).astype(np.int32)

    def supply(self) -> np.ndarray:
        return np.full(self.components, UNLIMITED)

    def anchor_at(self, step: int) -> Anchor:
        return {"reached": int(self.starts_at(step).sum())}

    def use_anchor(self, anchor: Any) -> None:
        self.reached = anchor_integer(anchor, "reached")

    def walk_to(self, step: int, watch: Watch) -> None:
        total = int(self.starts_at(step).sum())
        watch(total, total)


class TakeTurns(PolicyKind):
    def make(self, plan: Plan) -> InTurns:
        equal_weights(plan, "in_turns")
        return InTurns(len(plan.names), plan.batch)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(POLICIES, "in_turns", TakeTurns())


@pytest.fixture
def path(tmp_path, registered):
    parts = [[np.arange(2000) % 50]]
    names = ("a", "b", "c")
    for name in names:
        write_cache(tmp_path / name, parts)
    config = {
        "components": {name: {"cache": str(tmp_path / name)} for name in names},
        "policy": "in_turns",
        "seq_len": 16,
        "batch_size": {0: 4, 10: 6},
        "num_steps": 40,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    return str(tmp_path / "run.yaml")


def test_it_works_in_a_config(path):
    config = load_config(path)
    assert config.policy == "in_turns"
    assert yaml.safe_load(config.to_yaml())["policy"] == "in_turns"
    dataset = cast(MixtureDataset, config.dataset())
    assert dataset.describe()["policy"] == "in_turns"
    component, ordinal = dataset.draws.route(np.arange(9))
    assert component.tolist() == [0, 1, 2] * 3
    assert ordinal.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for setting, said in (
        ("max_epochs=2", "knows no limits"),
        ("components.a.weight=3", "takes no weights"),
        ("policy=in_turn", "Did you mean 'in_turns'"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(path, [setting]).dataset()


def test_it_is_checked_and_forecast(path):
    config = load_config(path)
    plan = RunPlan.of(config)
    drawn = cast(MixtureDataset, config.dataset()).draws.starts_at(40)
    assert plan.steps == 40
    assert [c.drawn_rows for c in plan.components] == drawn.tolist()
    assert all(finding.level != "error" for finding in findings(plan))
    dataset = config.dataset()
    seen = list[tuple[int, int]]()
    forecast = simulate(
        dataset,
        dataset.batch_schedule,
        hosts=[1],
        steps=RunSteps(20, 40),
        watch=lambda *n: seen.append(n),
    )
    assert forecast.steps == 20
    assert seen == [(100, 100)]


def test_where_a_run_is(path):
    at = where(load_config(path), 30)
    assert [source.rows for source in at.sources.values()] == [54, 53, 53]
    assert [source.rows_in_step for source in at.sources.values()] == [2, 2, 2]


def test_a_loader_resumes_with_an_anchor(path, tmp_path):
    config = load_config(path)
    folder = str(tmp_path / "run")
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    loader = DataLoader(config.dataset(), mesh=mesh)
    run = open_run(folder, loader)
    batches = [np.asarray(loader.batch_at(step).tokens) for step in (25, 26)]
    run.state(25)
    anchors = json.loads((tmp_path / "run" / "anchors.json").read_text())["anchors"]
    assert anchors == {"25": {"policy": "InTurns", "step": 25, "state": {"reached": 130}}}
    resumed = DataLoader(config.dataset(), mesh=mesh)
    open_run(folder, resumed, 25)
    for step, tokens in zip((25, 26), batches, strict=True):
        assert np.array_equal(resumed.batch_at(step).tokens, tokens)
    assert cast(Any, resumed.dataset).draws.policy.counted < 20  # not the 130 before step 25


def test_rows_may_change_their_length(path):
    dataset = cast(PhasedDataset, load_config(path, ["seq_len={0: 16, 20: 32}"]).dataset())
    drawn = [
        cast(MixtureDataset, phase).draws.starts_at(20).tolist() for _, phase in dataset.phases
    ]
    assert drawn == [[34, 33, 33]] * 2


def test_a_mixture_takes_it_by_name(registered):
    a, b = (TokenSeqDataset(tiny_cache(seed=s), seq_len=8, name="ab"[s]) for s in (0, 1))
    mixture = MixtureDataset({"a": a, "b": b}, {"a": 1, "b": 1}, batch_size=3, policy="in_turns")
    assert mixture.draws.step_table(1)[0].tolist() == [1, 0, 1]
