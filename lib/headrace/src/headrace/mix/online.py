"""Mixtures that learn: rules that turn the losses of a run into new shares of its sources.

A rule is a pure function with a small state: :meth:`OnlineMixture.update` takes the state, and what
was measured since the last decision, and returns the next state and the shares that it wants. It
reads no clock, no file and no random number, so whoever has the inputs has the decisions.
:class:`~headrace.run.learning.MixtureLearner` bounds and rounds them and writes them into the lock
of a run, with the inputs.

With K sources, priors mu (the shares with which the run begins) and decision t = 1, 2, ...:

**ADO** (arXiv 2410.11820), :class:`AdaptiveMixture`. The loss of source k after n labels of the
whole run follows ``L_k(n) = e_k + b_k n^-a_k``, so a further label lowers it by
``s_k = a_k (L_k(n) - e_k) / n``. With the mean h of the shares that were drawn, in which the last
weigh ``1 - gamma_1``, and ``lambda_k = h_k^s``, the rule prefers
``rho_k ~ mu_k lambda_k s_k``, at least ``delta`` each, and wants
``pi(t) = gamma_2 rho(t) + (1 - gamma_2) m(t - 1)``, with the mean of all so far,
``m(t) = (1 - 1 / (t + 1)) m(t - 1) + rho(t) / (t + 1)``. The paper fits the laws to logarithms of
losses with a Huber loss from a grid of starts. Here the exponent is searched on a grid, and the two
other parameters, which are linear, by least squares: the same in every process.

**ODM** (arXiv 2312.02406), :class:`BanditMixture`. EXP3 with the loss as the reward: what is not
learned yet is drawn more. With ``eps_t = min(1 / K, sqrt(ln K / (K t)))`` and the estimate
``R_k <- alpha R_k + (1 - alpha) L_k / pi_k(t - 1)`` of each source that was drawn,
``pi_k(t) = (1 - K eps_t) exp(eps_(t-1) R_k) / sum_j exp(eps_(t-1) R_j) + eps_t``.

**A rule of one's own**, :class:`PlainRule`: a function of the step, the losses and the shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from jaxtyping import Float64

from headrace.errors import ConfigError

State: TypeAlias = dict[str, Any]
"""Arrays and numbers of a rule, by name; never changed in place."""
_POINTS = 64
_EXPONENTS = np.linspace(0.05, 1.0, 20)
_FRACTIONS = 1 << 16


@dataclass(frozen=True)
class Measured:
    """What a run measured since the last decision.

    Attributes:
        step: Steps that are done.
        losses: Mean loss of a label of each source; NaN for a source that was not drawn.
        counts: Labels of each source, or the sum of their weights.
    """

    step: int
    losses: Float64[np.ndarray, " d"]
    counts: Float64[np.ndarray, " d"]


class OnlineMixture(Protocol):
    """A rule that learns shares; see the module."""

    def begin(self, shares: Float64[np.ndarray, " d"]) -> State:
        """The state of a run that begins with these shares."""
        ...

    def update(
        self, state: State, shares: Float64[np.ndarray, " d"], measured: Measured
    ) -> tuple[State, Float64[np.ndarray, " d"]]:
        """The next state, and the shares that the rule wants.

        Args:
            state: As :meth:`begin` or this method returned it.
            shares: The shares with which the run drew since the last decision.
            measured: What was measured with them.
        """
        ...


@dataclass(frozen=True)
class PlainRule:
    """A rule without a state, from a function.

    Attributes:
        function: Of the steps that are done, the loss of each source (NaN where it was not drawn)
            and their shares; returns weights, which need not sum to 1.

    Example:
        >>> rule = PlainRule(lambda step, losses, shares: shares * losses)
        >>> even = np.array([0.5, 0.5])
        >>> rule.update(rule.begin(even), even, Measured(9, np.array([3.0, 1.0]), even))[1]
        array([1.5, 0.5])
    """

    function: Callable[[int, np.ndarray, np.ndarray], np.ndarray]

    def begin(self, shares: Float64[np.ndarray, " d"]) -> State:
        return {}

    def update(
        self, state: State, shares: Float64[np.ndarray, " d"], measured: Measured
    ) -> tuple[State, Float64[np.ndarray, " d"]]:
        return state, self.function(measured.step, measured.losses, shares)


@dataclass(frozen=True)
class BanditMixture:
    """Online data mixing by EXP3, with the loss as the reward; see the module.

    It draws what has a high loss, and so cannot tell noise from what is hard but can be learned.

    Attributes:
        alpha: Share of the old estimate that remains when a source is measured.

    Example:
        >>> rule = BanditMixture()
        >>> even = np.array([0.5, 0.5])
        >>> state = rule.begin(even)
        >>> for step in (10, 20, 30, 40):
        ...     measured = Measured(step, np.array([3.0, 1.0]), np.array([80.0, 80.0]))
        ...     state, shares = rule.update(state, even, measured)
        >>> shares.round(3)
        array([0.547, 0.453])
    """

    alpha: float = 0.9

    def begin(self, shares: Float64[np.ndarray, " d"]) -> State:
        return {"decisions": 0, "rewards": np.zeros(len(shares)), "exploration": 1 / len(shares)}

    def update(
        self, state: State, shares: Float64[np.ndarray, " d"], measured: Measured
    ) -> tuple[State, Float64[np.ndarray, " d"]]:
        sources = len(shares)
        decisions = state["decisions"] + 1
        drawn = np.isfinite(measured.losses) & (shares > 0)
        rewards = state["rewards"].copy()
        reward = measured.losses[drawn] / shares[drawn]
        rewards[drawn] = self.alpha * rewards[drawn] + (1 - self.alpha) * reward
        exploration = min(1 / sources, np.sqrt(np.log(sources) / (sources * decisions)))
        # the largest is subtracted so that no exponential overflows; the quotient is the same
        power = np.exp(state["exploration"] * (rewards - rewards.max()))
        weights = (1 - sources * exploration) * power / power.sum() + exploration
        return {"decisions": decisions, "rewards": rewards, "exploration": exploration}, weights


@dataclass(frozen=True)
class AdaptiveMixture:
    """Adaptive data optimization: draws what is learned fastest; see the module.

    The losses that the laws are fitted to are kept as at most 64 points: when they are full,
    neighbours are joined.

    Attributes:
        warmup: Decisions before the first that changes anything: a law needs points.
        credit: The exponent s.
        history: gamma_1.
        smoothing: gamma_2; 1: no memory of earlier preferences.
        least: delta, the least preference for a source, at most an even share.

    Example:
        >>> rule = AdaptiveMixture(warmup=4, smoothing=1)
        >>> shares = np.array([0.5, 0.5])
        >>> state = rule.begin(shares)
        >>> for step in range(10, 110, 10):  # the first is learned, the second is noise
        ...     losses = np.array([1 + 5 * (64 * step) ** -0.5, 4.0])
        ...     state, wanted = rule.update(
        ...         state, shares, Measured(step, losses, np.full(2, 320.0))
        ...     )
        >>> wanted.round(2)
        array([0.99, 0.01])
    """

    warmup: int = 8
    credit: float = 0.5
    history: float = 0.9
    smoothing: float = 0.1
    least: float = 0.01

    def begin(self, shares: Float64[np.ndarray, " d"]) -> State:
        return {
            "decisions": 0,
            "labels": 0.0,
            "prior": shares,
            "drawn": shares,
            "mean": shares,
            "at": np.empty(0),
            "losses": np.empty((0, len(shares))),
        }

    def update(
        self, state: State, shares: Float64[np.ndarray, " d"], measured: Measured
    ) -> tuple[State, Float64[np.ndarray, " d"]]:
        decisions = state["decisions"] + 1
        count = measured.counts.sum()
        if not count > 0:
            return state, shares
        labels = state["labels"] + count
        drawn = self.history * state["drawn"] + (1 - self.history) * measured.counts / count
        # a source that was not drawn keeps its last loss; before it was ever drawn, the mean
        last = state["losses"][-1] if len(state["losses"]) else np.nanmean(measured.losses)
        losses = np.where(np.isfinite(measured.losses), measured.losses, last)
        at = np.append(state["at"], labels)
        points = np.concatenate([state["losses"], losses[None]])
        if len(at) > _POINTS:
            at = at[1:].reshape(-1, 2).mean(axis=1)
            points = points[1:].reshape(len(at), 2, -1).mean(axis=1)
        following = {
            **state,
            "decisions": decisions,
            "labels": labels,
            "drawn": drawn,
            "at": at,
            "losses": points,
        }
        if decisions <= self.warmup:
            return following, shares
        _, scale, exponent = fit_laws(at, points)
        slope = exponent * scale * labels**-exponent / labels
        preferred = state["prior"] * drawn**self.credit * slope
        total = preferred.sum()
        preferred = preferred / total if total > 0 else state["prior"]
        preferred = np.maximum(preferred, min(self.least, 1 / len(shares)))
        preferred = preferred / preferred.sum()
        weights = self.smoothing * preferred + (1 - self.smoothing) * state["mean"]
        following["mean"] = state["mean"] + (preferred - state["mean"]) / (decisions + 1)
        return following, weights


def fit_laws(
    at: Float64[np.ndarray, " n"], losses: Float64[np.ndarray, "n d"]
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
    """Floor, scale and exponent of ``loss = floor + scale n^-exponent`` for each source, by least
    squares, with none below 0.

    Args:
        at: Labels at which losses were measured.
        losses: Of each source.

    Example:
        >>> at = np.arange(1.0, 65) * 1000
        >>> floor, scale, exponent = fit_laws(at, 2 + 5 * at[:, None] ** -0.3)
        >>> floor.round(6), scale.round(6), exponent.round(6)
        (array([2.]), array([5.]), array([0.3]))
    """
    begin = at[0]
    # [exponents, points]; relative to the first point, so that no power is tiny
    falling = (at / begin) ** -_EXPONENTS[:, None]
    centered = falling - falling.mean(axis=1, keepdims=True)
    spread = (centered**2).sum(axis=1)
    mean = losses.mean(axis=0)
    scale = centered @ (losses - mean) / np.maximum(spread, 1e-300)[:, None]
    scale = np.maximum(scale, 0)
    # where the floor would be below 0 it is 0, and the scale is that of a line through the origin
    floor = mean - scale * falling.mean(axis=1)[:, None]
    through_origin = falling @ losses / (falling**2).sum(axis=1)[:, None]
    scale = np.where(floor < 0, through_origin, scale)
    floor = np.maximum(floor, 0)
    # sum over points of (loss - floor - scale * falling)^2, without an array of all three axes
    error = (
        (losses**2).sum(axis=0)
        - 2 * floor * losses.sum(axis=0)
        - 2 * scale * (falling @ losses)
        + len(at) * floor**2
        + 2 * floor * scale * falling.sum(axis=1)[:, None]
        + scale**2 * (falling**2).sum(axis=1)[:, None]
    )
    best = error.argmin(axis=0)
    source = np.arange(losses.shape[1])
    exponent = _EXPONENTS[best]
    return floor[best, source], scale[best, source] * begin**exponent, exponent


def exact_fractions(shares: Float64[np.ndarray, " d"]) -> Float64[np.ndarray, " d"]:
    """Shares rounded to multiples of 2^-16 that sum to 1, by largest remainders: numbers that text
    stores exactly.

    Raises:
        ConfigError: they are not shares.

    Example:
        >>> (exact_fractions(np.full(3, 1 / 3)) * 2**16).tolist()
        [21846.0, 21845.0, 21845.0]
    """
    if not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        cure = "A rule returns a weight from 0 up for each source, and not all 0."
        raise ConfigError("are no shares", field="weights", value=shares.tolist(), cure=cure)
    fractions = np.floor(shares * _FRACTIONS)
    remainders = shares * _FRACTIONS - fractions
    remaining_fractions = round(_FRACTIONS - fractions.sum())
    fractions[np.argsort(-remainders, kind="stable")[:remaining_fractions]] += 1
    return fractions / _FRACTIONS
