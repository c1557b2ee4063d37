"""Rules that learn a mixture, against their papers' formulas in plain Python."""

import math

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.mix import AdaptiveMixture, BanditMixture, PlainRule
from headrace.mix.online import Measured, exact_fractions, fit_laws

SOURCES = 4


def some_run(seed: int, decisions: int) -> list[Measured]:
    """Falling, noisy losses; some sources are not drawn."""
    random = np.random.default_rng(seed)
    floors = random.uniform(1, 2, SOURCES)
    powers = random.uniform(0.1, 0.6, SOURCES)
    run: list[Measured] = []
    labels = 0.0
    for number in range(decisions):
        counts = random.integers(1, 900, SOURCES).astype(float)
        if number % 3 == 2:
            counts[random.integers(SOURCES)] = 0
        labels += counts.sum()
        losses = floors + 9 * labels**-powers + random.normal(0, 0.01, SOURCES)
        run.append(Measured(10 * number + 10, np.where(counts > 0, losses, np.nan), counts))
    return run


def exp3(run: list[Measured], shares: list[list[float]], alpha: float) -> list[float]:
    """Algorithm 1 of arXiv 2312.02406."""
    rewards = [0.0] * SOURCES
    wanted: list[float] = []
    for t, measured in enumerate(run, 1):
        for k in range(SOURCES):
            if not math.isnan(measured.losses[k]):
                estimate = float(measured.losses[k]) / shares[t - 1][k]
                rewards[k] = alpha * rewards[k] + (1 - alpha) * estimate

        def eps(decision: int) -> float:
            if decision == 0:
                return 1 / SOURCES
            return min(1 / SOURCES, math.sqrt(math.log(SOURCES) / (SOURCES * decision)))

        powers = [math.exp(eps(t - 1) * reward) for reward in rewards]
        wanted = [(1 - SOURCES * eps(t)) * power / sum(powers) + eps(t) for power in powers]
    return wanted


def ado(run: list[Measured], prior: list[float], rule: AdaptiveMixture) -> list[float]:
    """Algorithm 1 of arXiv 2410.11820; the laws are fitted by trying all exponents."""
    history = list(prior)
    mean = list(prior)
    at: list[float] = []
    points: list[list[float]] = [[] for _ in range(SOURCES)]
    wanted = list(prior)
    for t, measured in enumerate(run, 1):
        count = sum(measured.counts.tolist())
        at.append((at[-1] if at else 0.0) + count)
        known = [value for value in measured.losses.tolist() if not math.isnan(value)]
        for k in range(SOURCES):
            history[k] = rule.history * history[k] + (1 - rule.history) * measured.counts[k] / count
            value = float(measured.losses[k])
            if math.isnan(value):
                value = points[k][-1] if points[k] else sum(known) / len(known)
            points[k].append(value)
        if t <= rule.warmup:
            continue
        speeds = []
        for k in range(SOURCES):
            _, scale, exponent = law(at, points[k])
            reducible = scale * at[-1] ** -exponent  # L(n) - e
            speeds.append(exponent * reducible / at[-1])
        rho = [prior[k] * history[k] ** rule.credit * speeds[k] for k in range(SOURCES)]
        rho = [max(value / sum(rho), rule.least) for value in rho]
        rho = [value / sum(rho) for value in rho]
        wanted = [rule.smoothing * rho[k] + (1 - rule.smoothing) * mean[k] for k in range(SOURCES)]
        mean = [(1 - 1 / (t + 1)) * mean[k] + rho[k] / (t + 1) for k in range(SOURCES)]
    return wanted


def law(at: list[float], points: list[float]) -> tuple[float, float, float]:
    """Floor, scale and exponent with the least squares, for one exponent after the other."""
    best = (math.inf, 0.0, 0.0, 0.0)
    for number in range(1, 21):
        exponent = number / 20
        design = np.array([[1.0, n**-exponent] for n in at])
        floor, scale = np.linalg.lstsq(design, np.array(points), rcond=None)[0]
        if scale < 0:
            floor, scale = sum(points) / len(points), 0.0
        elif floor < 0:
            column = design[:, 1]
            floor, scale = 0.0, float(column @ points / (column @ column))
        error = sum(
            (loss - floor - scale * n**-exponent) ** 2 for n, loss in zip(at, points, strict=True)
        )
        best = min(best, (error, floor, scale, exponent))
    return best[1:]


@pytest.mark.parametrize("seed", range(4))
def test_the_bandit_is_the_paper_s(seed: int):
    rule = BanditMixture()
    run = some_run(seed, 30)
    shares = [np.full(SOURCES, 1 / SOURCES)]
    state = rule.begin(shares[0])
    for measured in run:
        state, wanted = rule.update(state, shares[-1], measured)
        shares.append(wanted)
    expected = exp3(run, [one.tolist() for one in shares], rule.alpha)
    assert shares[-1] == pytest.approx(expected, rel=1e-9)
    assert shares[-1].sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_the_adaptive_mixture_is_the_paper_s(seed: int, smoothing: float):
    rule = AdaptiveMixture(smoothing=smoothing)
    prior = np.random.default_rng(seed).dirichlet(np.ones(SOURCES))
    run = some_run(seed, 40)
    state = rule.begin(prior)
    wanted = prior
    for measured in run:
        state, wanted = rule.update(state, prior, measured)
    assert wanted == pytest.approx(ado(run, prior.tolist(), rule), rel=1e-6)
    assert wanted.sum() == pytest.approx(1)


def test_the_state_stays_small_and_is_not_changed_in_place():
    rule = AdaptiveMixture()
    prior = np.full(SOURCES, 1 / SOURCES)
    state = rule.begin(prior)
    states = [state]
    run = some_run(0, 300)
    for measured in run:
        state, _ = rule.update(state, prior, measured)
        states.append(state)
    assert max(len(one["at"]) for one in states) <= 64
    again, wanted = rule.update(states[100], prior, run[100])
    assert np.array_equal(again["losses"], states[101]["losses"])
    assert np.array_equal(rule.update(states[100], prior, run[100])[1], wanted)


def test_laws_are_found_and_noise_has_no_slope():
    at = np.cumsum(np.full(40, 5000.0))
    losses = np.stack([1.5 + 20 * at**-0.4, np.full(40, 3.0), 40 * at**-0.25], axis=1)
    floor, scale, exponent = fit_laws(at, losses)
    assert floor == pytest.approx([1.5, 3.0, 0.0], abs=1e-6)
    assert scale == pytest.approx([20, 0, 40], rel=1e-6)
    assert exponent[[0, 2]] == pytest.approx([0.4, 0.25])


def test_a_rule_of_ones_own_sees_what_was_measured():
    def rule(step: int, losses: np.ndarray, shares: np.ndarray) -> np.ndarray:
        return shares * np.where(np.isnan(losses), 1, losses) + step

    measured = Measured(3, np.array([np.nan, 2.0]), np.array([0.0, 9.0]))
    _, wanted = PlainRule(rule).update({}, np.array([0.25, 0.75]), measured)
    assert wanted.tolist() == [3.25, 4.5]


def test_fractions_are_exact():
    random = np.random.default_rng(0)
    for _ in range(100):
        shares = random.dirichlet(np.full(int(random.integers(1, 300)), 0.3))
        fractions = exact_fractions(shares)
        assert fractions.sum() == 1
        assert (np.abs(fractions - shares) < 2**-16).all()
        assert [float(repr(one)) for one in fractions.tolist()] == fractions.tolist()
    with pytest.raises(ConfigError, match="are no shares"):
        exact_fractions(np.array([np.nan, 1.0]))
