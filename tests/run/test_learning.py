"""A run whose mixture learns is replayed from its lock, bit for bit and without losses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.batch.loss import SourceLosses
from headrace.cli.application import application
from headrace.data.mixture import mixture_of
from headrace.errors import ConfigError
from headrace.mix import (
    AdaptiveMixture,
    AmendmentConfig,
    BanditMixture,
    OnlineMixture,
    PlainRule,
    StageConfig,
)
from headrace.run import MixtureLearner, RunLock, ShareBounds
from headrace.run.changes import order_of
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

NAMES = ("code", "docs", "noise")
STEPS = 120
EVERY = 10
RULES = (AdaptiveMixture(warmup=2), BanditMixture())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate(NAMES):
        write_cache(str(folder / name), [random_documents(150, seed=seed)])
    return LmDataConfig(
        {name: ComponentConfig(str(folder / name)) for name in NAMES},
        weights={"code": 2, "docs": 1, "noise": 1},
        seq_len=8,
        batch_size=8,
        num_steps=STEPS,
    )


def measured(batch: Any, step: int) -> SourceLosses:
    """Losses as if the first two sources were learned."""
    counts = np.bincount(np.asarray(batch.source_id), minlength=len(NAMES)).astype(float)
    noise = np.random.default_rng(step).normal(0, 0.01, len(NAMES))
    losses = np.array([1 + 4 * step**-0.5, 2 + 2 * step**-0.3, 4.0]) + noise
    return SourceLosses(counts * losses, counts)


def trained(
    learner: MixtureLearner, step: int, stop: int, losses: bool = True
) -> dict[int, np.ndarray]:
    """Trains until a step; the tokens of each."""
    seen: dict[int, np.ndarray] = {}
    while step < stop:
        with learner.run.loader().iter_from_step(step) as batches:
            for batch in batches:
                seen[step] = np.asarray(batch.tokens)
                step += 1
                if step >= stop or (losses and learner.observe(step, measured(batch, step))):
                    break
    return seen


def learner_of(
    folder: Path, config: LmDataConfig, rule: OnlineMixture, bounds: ShareBounds | None = None
) -> MixtureLearner:
    return MixtureLearner(open_run(folder, config), rule, every=EVERY, bounds=bounds)


def decisions(learner: MixtureLearner) -> dict[int, dict[str, float]]:
    assert learner.run.config is not None
    return {one.step: one.weights for one in learner.run.config.amendments}


@pytest.mark.parametrize("rule", RULES)
def test_a_killed_run_replays_its_decisions_without_losses(
    tmp_path: Path, config: LmDataConfig, rule: OnlineMixture
):
    whole = learner_of(tmp_path / "whole", config, rule)
    batches = trained(whole, 0, STEPS)
    assert sorted(decisions(whole)) == list(range(EVERY, STEPS, EVERY))
    killed = learner_of(tmp_path / "killed", config, rule)
    trained(killed, 0, 65)
    # the lock has the decisions up to step 60: whoever opens it draws them, from any step
    replayed = learner_of(tmp_path / "killed", config, rule)
    assert decisions(replayed) == {s: w for s, w in decisions(whole).items() if s <= 60}
    for step, tokens in trained(replayed, 0, 70, losses=False).items():
        assert np.array_equal(tokens, batches[step]), step
    # and goes on to learn from the last of them as if it had not been killed
    again = learner_of(tmp_path / "killed", config, rule)
    for step, tokens in trained(again, 60, STEPS).items():
        assert np.array_equal(tokens, batches[step]), step
    assert decisions(again) == decisions(whole)
    final = open_run(tmp_path / "killed", config)
    assert final.fingerprint == whole.run.fingerprint


def lengths(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("later", [[], [AmendmentConfig(75, skip=[[75, 80]])]])
def test_decisions_make_of_a_run_what_its_config_says(
    tmp_path: Path, config: LmDataConfig, later: list[AmendmentConfig]
):
    """What stays open is what would be opened: in a ramp, with functions, among other changes."""
    ramp = {"code": {"linear": {0: 1, 100: 3}}, "docs": 1, "noise": {"step": {0: 1, 30: 2}}}
    weighed = AmendmentConfig(20, weights={"docs": 2})
    amendments = [AmendmentConfig(5, skip=[[5, 9]]), weighed, *later]
    changed = replace(config, weights=ramp, amendments=amendments)
    run = open_run(tmp_path, changed, 0, fn=lengths)
    learner = MixtureLearner(run, BanditMixture(), every=EVERY)
    for step in range(1, 90):
        learner._mixture_at(0).draws.starts_at(step)  # counted before and after each decision
        learner.observe(step, SourceLosses(np.array([3.0, 2.0, 1.0 + step % 7]), np.ones(3)))
    assert run is learner.run
    assert run.config is not None
    assert [one.step for one in run.config.amendments if one.measured] == [*range(10, 90, 10)]
    assert len(run.config.amendments) == 9 + len(later)  # the one of step 20 is joined
    opened = order_of(run.config, lengths)
    own = RunLock.of(opened)
    assert (own.plan, own.config) == (run.lock.plan, run.lock.config)
    assert RunLock.load(str(tmp_path)) == run.lock
    assert opened.planned is not None
    mixture = mixture_of(opened.planned)
    assert mixture is not None
    draws = learner._mixture_at(0).draws
    for step in range(100):
        assert (draws.counts_at(step) == mixture.draws.counts_at(step)).all(), step


def test_a_run_that_learns_is_steered(tmp_path: Path, config: LmDataConfig):
    """A source leaves and another joins; who goes on from the lock knows the same."""
    late = write_cache(str(tmp_path / "late"), [random_documents(150, seed=9)])
    run = open_run(tmp_path / "run", replace(config, num_steps=600))
    learner = MixtureLearner(run, BanditMixture(), every=EVERY)
    seen: dict[int, np.ndarray] = {}
    while (begin := len(seen)) < 350:
        with run.loader().iter_from_step(begin) as batches:
            for step, batch in enumerate(batches, begin + 1):
                seen[step - 1] = np.asarray(batch.tokens)
                if step == 5:
                    run.amend(240, weights={"code": 3})
                    run.amend(245, drop=["docs"], skip=[[246, 250]])
                if step == 45:
                    joins = {"late": ComponentConfig(late.path)}
                    run.amend(300, add={"late": 0.5}, components=joins)
                losses = SourceLosses(np.array([3.0, 2.0, 1.0 + step % 7]), np.ones(3))
                if step == 350 or learner.observe(step, losses):
                    break
    assert run.config is not None
    decided = [one.step for one in run.config.amendments if one.measured]
    assert decided == [10, 20, 30, 40, 310, 320, 330, 340]  # none while one is to join
    resumed = open_run(tmp_path / "run", replace(config, num_steps=600))
    assert resumed.lock == run.lock
    again = MixtureLearner(resumed, BanditMixture(), every=EVERY)
    for name, value in learner._state.items():
        assert np.array_equal(value, again._state[name]), name
    with resumed.loader() as loader:
        for step in range(0, 350, 3):
            assert (np.asarray(loader.batch_at(step).tokens) == seen[step]).all(), step


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "change",
    [AmendmentConfig(15, drop=["docs"]), AmendmentConfig(8, add={"late": 1})],
    ids=["leaves", "joins"],
)
def test_sources_that_join_or_leave_about_the_first_decision_are_learned_the_same_after_a_restart(
    tmp_path: Path, config: LmDataConfig, change: AmendmentConfig, rule: OnlineMixture
):
    late = write_cache(str(tmp_path / "late"), [random_documents(150, seed=9)])
    joins = {name: ComponentConfig(late.path) for name in change.add}
    changed = replace(
        config, components={**config.components, **joins}, weights=None, amendments=[change]
    )
    learners = [learner_of(tmp_path / name, changed, rule) for name in ("whole", "restarted")]
    for step in range(1, 80):
        if step in (11, 31, 51):
            learners[1] = learner_of(tmp_path / "restarted", changed, rule)
        losses = np.array([3.0, 2.0, 1.0 + step % 7, 2 + 9 / step])[: 3 + len(joins)]
        for learner in learners:
            learner.observe(step, SourceLosses(losses, np.ones(len(losses))))
    assert decisions(learners[0]) == decisions(learners[1])
    assert learners[0].names == learners[1].names == ["code", "docs", "noise", *joins]
    last = decisions(learners[0])[70]
    if joins:  # it is learned as the others are, not as one of which nothing was planned
        assert last["late"] > 0.1


def test_steps_that_are_trained_again_decide_nothing(tmp_path: Path, config: LmDataConfig):
    trained(learner_of(tmp_path, config, BanditMixture()), 0, 55)
    before = RunLock.load(str(tmp_path))
    trained(learner_of(tmp_path, config, BanditMixture()), 20, 50)
    assert RunLock.load(str(tmp_path)) == before


def test_the_adaptive_mixture_leaves_what_is_not_learned(tmp_path: Path, config: LmDataConfig):
    learner = learner_of(tmp_path, config, AdaptiveMixture(warmup=2, smoothing=1))
    trained(learner, 0, STEPS)
    last = decisions(learner)[STEPS - EVERY]
    assert last["noise"] < 0.05
    assert sum(last.values()) == 1


def test_the_tree_shows_what_was_learned_beside_the_plan(tmp_path: Path, config: LmDataConfig):
    learner = learner_of(tmp_path, config, BanditMixture())
    trained(learner, 0, 45)
    shown = CliRunner().invoke(application(), ["run", "tree", str(tmp_path)]).stdout
    words = " ".join(shown.replace("│", "").split())
    assert "learned in 4 decisions, the last at step 40:" in words
    last = decisions(learner)[40]
    assert f"code {last['code']:.4g} (planned 0.5)" in words
    assert "amendment" not in shown


def test_decisions_stay_within_bounds(tmp_path: Path, config: LmDataConfig):
    greedy = PlainRule(lambda _, losses, shares: np.array([0.0, 0.0, 1.0]))
    bounds = ShareBounds(least=0.05, most_change=0.1)
    learner = learner_of(tmp_path, config, greedy, bounds)
    trained(learner, 0, STEPS)
    shares = np.array(
        [[0.5, 0.25, 0.25], *([*one.values()] for one in decisions(learner).values())]
    )
    assert np.abs(np.diff(shares, axis=0)).max() <= 0.1 + 2**-15
    assert shares.min() >= 0.05 - 2**-15
    assert shares[-1] == pytest.approx([0.05, 0.05, 0.9], abs=1e-4)


def test_no_source_is_repeated_more_often_than_allowed(tmp_path: Path, config: LmDataConfig):
    sides = config.train_datasets()
    rows = {name: len(sides[name]) for name in NAMES}
    passes = 1.2 * STEPS * 8 / sum(rows.values())
    greedy = PlainRule(lambda _, losses, shares: np.array([0.0, 0.0, 1.0]))
    learner = learner_of(tmp_path, config, greedy, ShareBounds(max_epochs=passes))
    seen = trained(learner, 0, STEPS)
    assert len(seen) == STEPS
    with learner.run.loader() as loader:
        drawn = np.zeros(len(NAMES))
        for step in range(STEPS):
            drawn += np.bincount(np.asarray(loader.batch_at(step).source_id), minlength=3)
    for name, count in zip(NAMES, drawn, strict=True):
        assert count <= passes * rows[name] + 2, name
    assert drawn[2] >= 0.95 * min(passes * rows["noise"], STEPS * 8)


@pytest.mark.parametrize(
    ("change", "options", "field"),
    [
        ({}, {"every": 0}, "every"),
        ({}, {"bounds": ShareBounds(max_epochs=0.01)}, "max_epochs"),
        ({"num_steps": None}, {"bounds": ShareBounds(max_epochs=9)}, "num_steps"),
        (
            {"weights": {"a": {"weight": 1, "blend": {"code": 1, "docs": 1}}, "noise": 1}},
            {},
            "weights",
        ),
        (
            {"weights": None, "stages": [{"weights": dict.fromkeys(NAMES, 1), "step": 0}]},
            {},
            "stages",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(tmp_path, config, change, options, field):
    if "stages" in change:
        change = {**change, "stages": [StageConfig(**one) for one in change["stages"]]}
    run = open_run(tmp_path, replace(config, **change))
    with pytest.raises(ConfigError) as error:
        MixtureLearner(run, BanditMixture(), **{"every": 5, **options})
    assert error.value.field == field


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="most_change"):
        ShareBounds(most_change=2)


def test_a_rule_that_returns_nonsense_is_named(tmp_path: Path, config: LmDataConfig):
    nonsense = PlainRule(lambda *_: np.full(3, np.nan))
    with pytest.raises(ConfigError, match="weights"):
        trained(learner_of(tmp_path, config, nonsense), 0, STEPS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -5.0])
def test_losses_that_are_no_numbers_or_negative_are_replayed(
    tmp_path: Path, config: LmDataConfig, rule: OnlineMixture, bad: float
):
    """A spike of one source, and a first decision of which no loss is a number."""
    learner = learner_of(tmp_path, config, rule)
    for step in range(1, 70):
        losses = np.array([3.0, 2.0, 4.0])
        losses[0 if step > EVERY else slice(None)] = bad
        learner.observe(step, SourceLosses(losses * 8, np.full(3, 8.0)))
    assert learner.run.config is not None
    assert all(sum(weights.values()) == 1 for weights in decisions(learner).values())
    again = learner_of(tmp_path, config, rule)
    assert decisions(again) == decisions(learner)
    for one in (learner, again):
        one.observe(70, SourceLosses(np.full(3, 8.0), np.full(3, 8.0)))
        assert decisions(one)[60] == decisions(learner)[60]
