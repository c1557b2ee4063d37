"""A sweep repeats each source as often as the full run would, and its fit finds the best mixture."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from headrace import ComponentConfig, LmDataConfig, load_config
from headrace.analysis.resolved import ResolvedRun
from headrace.analysis.sweep import plan_sweep
from headrace.analysis.sweep_fit import Results, fit_mixture
from headrace.cli.application import application
from headrace.errors import ConfigError
from headrace.mix.bounds import bounded_shares

STEPS = 4000
BATCH = 64


def many_sources(count: int, **settings: object) -> LmDataConfig:
    sizes = np.random.default_rng(0).lognormal(19, 1, count)
    components = {
        f"s{number}": ComponentConfig(f"caches/s{number}", expected_tokens=size, weight=size**0.7)
        for number, size in enumerate(sizes.tolist())
    }
    return LmDataConfig(components, num_steps=STEPS, batch_size=BATCH, **settings)


def epochs(config: LmDataConfig) -> dict[str, float]:
    return {name: source.epochs or 0.0 for name, source in ResolvedRun.of(config).drawn.items()}


def test_arms_repeat_sources_as_often_as_the_full_run():
    config = many_sources(12)
    sweep = plan_sweep(
        ResolvedRun.of(config),
        4,
        steps=1000,
        least={f"s{number}": 0.02 for number in range(12)},
    )
    assert not sweep.unmatched
    for arm in range(4):
        short = sweep.config(arm)
        full = LmDataConfig(
            {
                name: ComponentConfig(c.cache, expected_tokens=c.expected_tokens)
                for name, c in config.components.items()
            },
            weights=short.weights,
            num_steps=STEPS,
            batch_size=BATCH,
        )
        of_full = epochs(full)
        for name, passes in epochs(short).items():
            assert passes == pytest.approx(of_full[name], rel=0.01), (arm, name)


def test_a_batch_that_grows_is_repeated_as_often_too():
    config = LmDataConfig(
        {
            "web": ComponentConfig("caches/web", expected_tokens=2e7),
            "code": ComponentConfig("caches/code", expected_tokens=1e7),
        },
        num_steps=STEPS,
        batch_size={0: 8, 1000: 32},
    )
    sweep = plan_sweep(ResolvedRun.of(config), 2, steps=2000)
    assert epochs(sweep.config(0)) == pytest.approx(epochs(config), rel=0.01)


def test_subsets_and_limits_are_cut_as_well():
    web = ComponentConfig("caches/web", expected_tokens=4e7, max_tokens=4_000_000)
    part = load_config(overrides=["subset.fraction=0.5"]).subset
    code = ComponentConfig("caches/code", expected_tokens=4e7, subset=part)
    config = LmDataConfig({"web": web, "code": code}, num_steps=STEPS)
    cut = plan_sweep(ResolvedRun.of(config), 2, steps=400).config(1)
    assert cut.components["web"].max_tokens == 400_000
    assert cut.components["code"].subset_in("code", cut.subset)[0].fraction == pytest.approx(0.05)
    assert cut.subset is not None
    assert cut.subset.fraction == pytest.approx(0.1)


def test_two_hundred_sources_are_planned_in_seconds():
    """64 arms; the bar of 30 s of processor time is far above."""
    began = time.process_time()
    files = plan_sweep(ResolvedRun.of(many_sources(200)), 64, steps=1000).files()
    assert len(files) == 65
    assert time.process_time() - began < 30


def test_bounds_hold_in_all_arms():
    capped = ComponentConfig("caches/a", expected_tokens=1e7, weight=5, max_share=0.4)
    others = {n: ComponentConfig(f"caches/{n}", expected_tokens=1e9) for n in "bcd"}
    others["c"] = replace(others["c"], max_share=0.3)
    run = ResolvedRun.of(LmDataConfig({"a": capped, **others}, num_steps=STEPS))
    sweep = plan_sweep(run, 100, draw="uniform", steps=500, least={"b": 0.2})
    shares = sweep.shares
    assert shares.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert shares[:, 0].max() <= 0.4
    assert shares[:, 1].min() >= 0.2
    assert shares[:, 2].max() <= 0.3
    assert len(np.unique(shares, axis=0)) > 80


def test_the_same_seed_draws_the_same_arms():
    run = ResolvedRun.of(many_sources(5))
    one = plan_sweep(run, 9, seed=3)
    assert one.files() == plan_sweep(run, 9, seed=3).files()
    assert one.files() != plan_sweep(run, 9, seed=4).files()
    # more arms are the same arms and others
    assert np.array_equal(one.shares[0], plan_sweep(run, 20, seed=3).shares[0])


def test_the_cure_of_an_arm_that_is_too_short_works():
    small = ComponentConfig("caches/small", expected_tokens=1e6)
    web = ComponentConfig("caches/web", expected_tokens=1e8)
    run = ResolvedRun.of(LmDataConfig({"small": small, "web": web}, num_steps=10_000))
    with pytest.raises(ConfigError, match="leaves no row of component 'small'") as error:
        plan_sweep(run, 4, steps=10)
    steps = int(str(error.value.cure).rpartition(" ")[2].rstrip("."))
    assert not plan_sweep(run, 4, steps=steps).unmatched
    assert plan_sweep(run, 4, steps=steps // 3).unmatched == ["small"]


@pytest.mark.parametrize(
    ("settings", "options", "field"),
    [
        ({}, {"least": {"nobody": 0.1}}, "--least"),
        ({}, {"least": {"s0": 0.7, "s1": 0.7}}, "--least"),
        ({}, {"steps": STEPS}, "--steps"),
        ({"seq_len": {0: 512, 100: 1024}}, {}, "subset"),
    ],
)
def test_what_cannot_be_swept_is_refused(settings, options, field):
    run = ResolvedRun.of(many_sources(3, **settings))
    with pytest.raises(ConfigError) as error:
        plan_sweep(run, 4, **options).files()
    assert error.value.field == field


def test_within_keeps_ratios_between_bounds():
    random = np.random.default_rng(0)
    for _ in range(200):
        count = int(random.integers(2, 30))
        least = random.dirichlet(np.ones(count)) * random.uniform(0, 0.9)
        most = np.minimum(least + random.uniform(0.2, 1, count), 1)
        if most.sum() < 1:
            continue
        weights = random.lognormal(0, 3, count)
        shares = bounded_shares(weights, least, most)
        assert shares.sum() == pytest.approx(1, abs=1e-12)
        assert (shares >= least - 1e-12).all()
        assert (shares <= most + 1e-12).all()
        free = (shares > least + 1e-9) & (shares < most - 1e-9)
        ratios = shares[free] / weights[free]
        assert ratios == pytest.approx(ratios[:1].repeat(free.sum()), rel=1e-6)


def law(shares: np.ndarray, costs: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """A loss that falls as a power of what is seen of each source, as scaling laws say."""
    return (costs * (shares + 0.01) ** -powers).sum(axis=-1)


def best_of(costs: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """The best mixture of the law, by its condition: all sources have one slope."""
    low, high = 1e-9, 1e9
    shares = costs
    for _ in range(200):
        slope = np.sqrt(low * high)
        shares = np.maximum((costs * powers / slope) ** (1 / (powers + 1)) - 0.01, 0)
        low, high = (slope, high) if shares.sum() > 1 else (low, slope)
    return shares


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_finds_the_best_mixture_of_a_law(seed: int):
    random = np.random.default_rng(seed)
    sources = 4
    costs = random.uniform(0.2, 1, sources)
    powers = random.uniform(0.2, 0.5, sources)
    run = ResolvedRun.of(many_sources(sources))
    shares = plan_sweep(run, 64, draw="uniform", seed=seed).shares
    losses = law(shares, costs, powers) + random.normal(0, 0.002, len(shares))
    proposal = fit_mixture(Results([*"abcd"], shares, losses, 0), bootstraps=8)
    weights = np.array([*proposal.weights.values()])
    assert np.abs(weights - best_of(costs, powers)).max() < 0.05
    assert max(proposal.spread.values()) < 0.05
    assert proposal.rank_correlation > 0.9


def test_the_uncertainty_grows_with_the_noise():
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(3), 48)
    truth = law(shares, np.ones(3), np.array([0.2, 0.3, 0.4]))
    spreads = []
    for noise in (0.001, 0.3):
        losses = truth + random.normal(0, noise, len(shares))
        proposal = fit_mixture(Results([*"abc"], shares, losses, 0), bootstraps=8)
        spreads.append(max(proposal.spread.values()))
    assert spreads[1] > 3 * spreads[0]


def test_trees_find_a_better_mixture_than_an_even_one():
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 64)
    best = np.array([0.6, 0.3, 0.1])
    losses = ((shares - best) ** 2).sum(axis=1)
    proposal = fit_mixture(Results([*"abc"], shares, losses, 0), "trees", bootstraps=1)
    assert np.abs(np.array([*proposal.weights.values()]) - best).max() < 0.15


def invoke(*typed: str) -> str:
    done = CliRunner().invoke(application(), [*typed])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_block_that_is_printed_is_a_config_and_an_amendment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    head = "num_steps: 4000\ncomponents:\n"
    head += "  web: {cache: a, expected_tokens: 2e8}\n  'on': {cache: b, expected_tokens: 1e8}\n"
    Path("run.yaml").write_text(head)
    said = invoke("config", "sweep", "run.yaml", "--arms", "12", "-o", "sweep")
    lines = Path("sweep/results.csv").read_text().splitlines()
    assert lines[0] == "arm,share:web,share:on,loss"
    filled = [f"{line}{(float(line.split(',')[1]) - 0.7) ** 2 + 1}" for line in lines[1:-1]]
    Path("sweep/results.csv").write_text("\n".join([lines[0], *filled, lines[-1]]) + "\n")
    advice = said.strip().rpartition("headrace ")[2]  # as printed
    block = invoke(*advice.split())
    assert "11 arms (1 without a loss left out)" in block
    Path("new.yaml").write_text(head + block)
    weights = load_config("new.yaml").weights
    assert weights is not None
    assert weights["web"] == pytest.approx(0.7, abs=0.05)
    assert sum(weights.values()) == pytest.approx(1, abs=1e-3)
    invoke("config", "check", "new.yaml")
    amendment = {"step": 100, **yaml.safe_load(block)}
    Path("amended.yaml").write_text(head + yaml.safe_dump({"amendments": [amendment]}))
    assert load_config("amended.yaml").plan().stages[-1].blend.to_config() == weights
    # the arms are configs, and a folder with results is not overwritten
    assert load_config("sweep/arm_03.yaml").num_steps == 200
    again = CliRunner().invoke(
        application(), ["config", "sweep", "run.yaml", "--arms", "12", "-o", "sweep"]
    )
    assert again.exit_code
    assert isinstance(again.exception, ConfigError)


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ("arm,loss\n", "RESULTS"),
        ("arm,share:a,val\n", "--loss"),
        ("arm,share:a,loss\n" + "x,1,2\n" * 3, "RESULTS"),
        ("arm,share:a,loss\n" + "x,1,2\n" * 9 + "y,1,nan\n", "loss"),
        ("arm,share:a,loss\n" + "x,1,2\n" * 9 + "y,what,2\n", "share:a"),
        ("arm,share:a,share:b,loss\n" + "x,.4,.6,2\n" * 9 + "y,-1,2,3\n", "share:a, share:b"),
        ("arm,share:a,share:b,loss\n" + "x,.4,.6,2\n" * 9 + "y,.4,.7,3\n", "share:a, share:b"),
        ("arm,share:a,loss\n" + "x,1,2\n" * 9, "loss"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, table: str, field: str):
    (tmp_path / "results.csv").write_text(table)
    done = CliRunner().invoke(application(), ["config", "fit", str(tmp_path / "results.csv")])
    assert isinstance(done.exception, ConfigError)
    assert done.exception.field == field


def test_without_scikit_learn_the_cure_is_a_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(ConfigError, match="needs scikit-learn") as error:
        fit_mixture(Results(["a"], np.ones((9, 1)), np.ones(9), 0))
    assert "install 'headrace[sweep]'" in str(error.value.cure)
