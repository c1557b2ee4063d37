"""Losses for reinforcement learning, in three steps: a ratio, a clip, and a sum normalised by
:func:`weighted_mean`.

With A the batch's token weights (advantages), p the trained policy, o the *old* policy (the
trainer's when the step's batches were made), s the *sampler's* (``batch.log_probs``), and r a ratio
of p to o::

    ratio     r[i] = p[i] / o[i]                        level "token"
              r[i] = exp(mean over the segment of log(p / o))       "sequence": GSPO
              r[i] = sg(that mean's) * p[i] / sg(p[i])              "sequence_token": GSPO-token
              r[i] = exp(sum over the segment of log(p / o))        "product": whole answers, RLOO
    clip      "ratio":     f = min(r, 1 + high) where A >= 0, max(r, 1 - low) where A < 0;
                           term - A f
                           and f = min(f, dual_clip) where A < 0
              "log_prob":  f = sg(min(max(r, 1 - low), 1 + high));   term - A f log p
    loss      sum of c * correction * term + kl_coef * sum of c * KL
              - entropy_coef * sum of c * H

``sg`` stops the gradient, c is the denominator's coefficient (:mod:`headrace.batch.loss`), and sums
are over trained labels. ``- A min(r, ..)`` and so on is PPO's ``- min(r A, clip(r) A)``, written
out by sign. Log ratios are bounded to +-20, so that nothing becomes infinite.

=======================  ===========================================================================
preset                   what differs from the one before
=======================  ===========================================================================
``reinforce``            "log_prob", clipped to exactly 1: A log p; no ratio needed (Williams, 1992)
``importance_sampling``  "ratio", not clipped
``ppo``                  "ratio", clipped to 1 +- 0.2, a mean over tokens: arXiv:1707.06347
``grpo``                 PPO's, a mean over sequences of each one's mean: arXiv:2402.03300
``dapo``                 PPO's, clipped to 1 - 0.2 .. 1 + 0.28: arXiv:2503.14476
``gspo``                 GRPO's of level "sequence", clipped to 1 - 3e-4 .. 1 + 4e-4:
                         arXiv:2507.18071
``cispo``                "log_prob", clipped above at 5 alone, a mean over tokens: arXiv:2506.13585
=======================  ===========================================================================

Dr. GRPO (arXiv:2503.20783) is PPO's with a number as denominator: completions x their longest
length.

Sources of the rest: dual clip, Ye et al., arXiv:1912.09729; estimators of KL, Schulman,
"Approximating KL divergence", 2020; truncated and masked correction of the sampler's mismatch, Yao
et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025, and Ling
Team, arXiv:2510.18855 (IcePop); masks of sequences far from the old policy, and KL times the ratio,
DeepSeek-AI, arXiv:2512.02556.

Price: elementwise over [B, S], and two scatters for sequence levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from headrace.batch.loss import Denominator, LossBatch, token_mean, weighted_mean
from headrace.errors import ConfigError, check_choice, check_not_negative
from headrace_posttrain.losses.segments import segment_means, segment_sums, spread_segments

Level: TypeAlias = Literal["token", "sequence", "sequence_token", "product"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
Objective: TypeAlias = Literal["ratio", "log_prob"]
LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Correction:
    """The weight of each label for the mismatch between sampler and trainer: ``w = o / s``,
    bounded, without gradient.

    Attributes:
        level: Level of the ratio; see the module.
        low: Lower bound of the ratio.
        high: Upper bound of the ratio.
        outside: What happens to ratios out of bounds: ``clip`` bounds them (truncated importance
            sampling), ``mask`` removes their labels from the sum (masked; IcePop), not from the
            denominator.

    Raises:
        ConfigError: a bound is negative or the lower one exceeds the upper one; no such ``level``
            or ``outside``.
    """

    level: Level = "token"
    low: float = 0.0
    high: float = 2.0
    outside: Literal["clip", "mask"] = "clip"

    def __post_init__(self) -> None:
        check_choice("level", self.level, get_args(Level), "is no level")
        check_choice(
            "outside", self.outside, ("clip", "mask"), "is no way to treat a ratio out of bounds"
        )
        check_not_negative("low", self.low)
        if not self.high >= self.low:
            raise ConfigError(f"must be at least low, {self.low}", field="high", value=self.high)


@dataclass(frozen=True)
class PolicyLoss:
    """A loss for reinforcement learning; the module defines what each setting does.

    Attributes:
        objective: ``ratio``: the gradient goes through the ratio; ``log_prob``: the ratio weighs
            log p.
        level: Level of the ratio.
        clip_low: How far below 1 the ratio counts; None: no limit.
        clip_high: How far above 1 the ratio counts; None: no limit.
        dual_clip: With negative advantages, the largest ratio that counts, above ``1 + clip_high``;
            None: no limit.
        kl_coef: Weight of the KL divergence to the reference.
        kl: Estimator of the KL divergence, see :func:`kl_estimate`.
        kl_ratio: Whether it is multiplied by the ratio, so that its gradient is KL's off-policy as
            well.
        entropy_coef: Weight of the entropy bonus.
        correction: Correction for the mismatch between sampler and trainer; None: none.
        max_sequence_kl: Segments with a mean ``log s - log p`` above this are not trained on where
            their advantage is negative (they stay in the denominator); None: all are.
        denominator: Denominator of all terms; see :mod:`headrace.batch.loss`.

    Raises:
        ConfigError: a coefficient or a bound is negative; no such choice.

    Example:
        >>> PolicyLoss(clip_low=0.2, clip_high=0.28, correction=Correction(high=2.0)).objective
        'ratio'
    """

    objective: Objective = "ratio"
    level: Level = "token"
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl: Estimator = "k3"
    kl_ratio: bool = False
    entropy_coef: float = 0.0
    correction: Correction | None = None
    max_sequence_kl: float | None = None
    denominator: Denominator = "tokens"

    def __post_init__(self) -> None:
        for name, choices in (("objective", Objective), ("level", Level), ("kl", Estimator)):
            check_choice(name, getattr(self, name), get_args(choices), f"is no {name}")
        for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef"):
            check_not_negative(name, getattr(self, name))
        if self.dual_clip is not None and not self.dual_clip > 1 + (self.clip_high or 0):
            bound = 1 + (self.clip_high or 0)
            cure = "E.g. 3.0, as in the paper."
            raise ConfigError(
                f"must be above 1 + clip_high, {bound:g}",
                field="dual_clip",
                value=self.dual_clip,
                cure=cure,
            )


PolicyPreset: TypeAlias = Literal[
    "reinforce", "importance_sampling", "ppo", "grpo", "dapo", "gspo", "cispo"
]
PRESETS: Mapping[str, PolicyLoss] = {
    "reinforce": PolicyLoss("log_prob", clip_low=0.0, clip_high=0.0),
    "importance_sampling": PolicyLoss(clip_low=None, clip_high=None),
    "ppo": PolicyLoss(),
    "grpo": PolicyLoss(denominator="sequences"),
    "dapo": PolicyLoss(clip_high=0.28),
    "gspo": PolicyLoss(level="sequence", clip_low=3e-4, clip_high=4e-4, denominator="sequences"),
    "cispo": PolicyLoss("log_prob", clip_low=None, clip_high=4.0),
}


def policy_loss(
    log_probs: Float[Array, "B S"],
    batch: LossBatch,
    loss: PolicyLoss | PolicyPreset = "grpo",
    *,
    old_log_probs: Float[Array, "B S"] | None = None,
    sampler_log_probs: Float[Array, "B S"] | None = None,
    reference_log_probs: Float[Array, "B S"] | None = None,
    entropy: Float[Array, "B S"] | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss of a batch of rollouts, and metrics to monitor.

    Args:
        log_probs: Log probability of each label under the trained policy, for example from
            :func:`~headrace.batch.vocabulary.hidden_stats`: gradients flow only to these and to
            ``entropy``.
        batch: The batch; its token weights are the advantages.
        loss: Settings, or a preset of the module's table.
        old_log_probs: Under the old policy of the ratio; None: the sampler's.
        sampler_log_probs: As sampled; None: ``batch.log_probs``.
        reference_log_probs: Under the reference model, for KL.
        entropy: Entropy at each label, for a bonus; reported whenever given.

    Returns:
        The loss, and means over trained labels (of the whole batch, on all devices):
        ``policy_loss``, the first term; ``ratio_mean``, ``ratio_min``, ``ratio_max``;
        ``clip_low_share`` and ``clip_high_share``, where the clip blocks the gradient, and
        ``dual_clip_share``; ``old_kl``, the mean of log o - log p; ``sampler_kl``,
        ``sampler_kl_k2`` and ``sampler_entropy``, of s; ``kl`` (to the reference); ``entropy``;
        ``correction_mean``, ``correction_min``, ``correction_max`` and ``correction_share``, the
        share out of bounds; ``sequence_mask_share``. Metrics whose inputs or settings are missing
        are omitted.

        Elsewhere: clip shares are trl's ``clip_ratio/low_mean`` and ``high_mean``, and their sum is
        slime's ``pg_clipfrac``; ``old_kl`` is slime's ``ppo_kl``; ``sampler_kl``,
        ``sampler_kl_k2`` and ``sampler_entropy`` are tinker's ``kl_sample_train_v1``, ``_v2`` and
        ``optim/entropy``; the correction's are trl's ``sampling/importance_sampling_ratio/*``.

    Raises:
        ConfigError: log probabilities that the settings need are missing; shapes do not match; no
            such preset.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import Example, pack_examples
        >>> rollout = Example(np.array([1, 2, 3]), weights=1.0, log_probs=np.log([1.0, 0.5, 0.5]))
        >>> batch = pack_examples([rollout], 3)
        >>> value, metrics = policy_loss(jnp.log(jnp.array([[0.55, 0.75, 1.0]])), batch, "ppo")
        >>> round(float(value), 4), round(float(metrics["clip_high_share"]), 4)  # -(1.1 + 1.2) / 2
        (-1.15, 0.5)
    """
    loss = resolve(loss)
    mask = jnp.asarray(batch.label_mask)
    advantages = jnp.asarray(batch.token_weights)
    sampler = getattr(batch, "log_probs", None) if sampler_log_probs is None else sampler_log_probs
    old = sampler if old_log_probs is None else old_log_probs
    arrays = {
        "sampler_log_probs": sampler,
        "reference_log_probs": reference_log_probs,
        "entropy": entropy,
    }
    needed_old = (
        old if loss.correction is None else old_log_probs
    )  # the sampler needs no correction relative to itself
    _check_arrays(loss, batch, {"log_probs": log_probs, "old_log_probs": needed_old, **arrays})
    metrics: dict[str, Any] = {}
    if old is None:  # the ratio is always clipped to 1
        old = log_probs
    ratio = importance_ratio(log_probs, old, batch, loss.level)
    clipped, clip_shares = _clip(ratio, advantages, loss)
    term = -clipped if loss.objective == "ratio" else -clipped * jnp.where(mask, log_probs, 0)
    metrics |= _extremes("ratio", ratio, mask) | clip_shares | {"old_kl": old - log_probs}
    if sampler is not None:
        difference = sampler - log_probs
        metrics |= {
            "sampler_kl": difference,
            "sampler_kl_k2": difference**2 / 2,
            "sampler_entropy": -sampler,
        }
        if loss.max_sequence_kl is not None:
            far = segment_means(jax.lax.stop_gradient(difference), batch) > loss.max_sequence_kl
            term = jnp.where(far & (advantages < 0), 0, term)
            metrics["sequence_mask_share"] = far & (advantages < 0)
        if loss.correction is not None:
            weight, outside = _correct(old, sampler, batch, loss.correction)
            term = weight * term
            metrics |= _extremes("correction", weight, mask) | {"correction_share": outside}
    value = weighted_mean(term, batch, loss.denominator)
    metrics["policy_loss"] = value
    if reference_log_probs is not None:
        kl = kl_estimate(
            jnp.where(mask, log_probs, 0), jnp.where(mask, reference_log_probs, 0), loss.kl
        )
        kl = kl * ratio if loss.kl_ratio else kl
        metrics["kl"] = kl
        if loss.kl_coef:
            value = value + loss.kl_coef * token_mean(kl, batch, loss.denominator)
    if entropy is not None:
        metrics["entropy"] = entropy
        if loss.entropy_coef:
            value = value - loss.entropy_coef * token_mean(entropy, batch, loss.denominator)
    return value, {name: _mean_of(jax.lax.stop_gradient(v), batch) for name, v in metrics.items()}


def resolve(loss: PolicyLoss | str) -> PolicyLoss:
    """The settings of a preset's name; raises ConfigError if there is none."""
    if isinstance(loss, PolicyLoss):
        return loss
    check_choice("loss", loss, PRESETS, "is no preset")
    return PRESETS[loss]


def importance_ratio(
    log_probs: Float[Array, "B S"],
    old_log_probs: Float[Array, "B S"],
    batch: LossBatch,
    level: Level = "token",
) -> Float[Array, "B S"]:
    """The ratio of two policies at each label; 1 where a label is not trained on. No gradient flows
    to the old policy.

    Args:
        log_probs: Log probability of each label under the trained policy.
        old_log_probs: The same under the old policy.
        batch: Determines which labels are trained on, and the segment of each.
        level: See the module.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7]]))
        >>> policy, old = (
        ...     jnp.log(jnp.array([[0.5, 0.5, 0.5]])),
        ...     jnp.log(jnp.array([[0.25, 0.5, 1.0]])),
        ... )
        >>> importance_ratio(policy, old, batch).tolist()
        [[2.0, 1.0, 1.0]]
    """
    mask = jnp.asarray(batch.label_mask)
    log_ratio = jnp.where(mask, log_probs - jax.lax.stop_gradient(old_log_probs), 0)
    if level == "product":
        log_ratio = spread_segments(segment_sums(log_ratio, batch), batch)
    elif level != "token":
        mean = segment_means(log_ratio, batch)
        drift = log_ratio - jax.lax.stop_gradient(
            log_ratio
        )  # its value is 0, its gradient the token's
        log_ratio = jax.lax.stop_gradient(mean) + drift if level == "sequence_token" else mean
    return jnp.exp(jnp.where(mask, jnp.clip(log_ratio, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), 0))


def kl_estimate(
    log_probs: Float[Array, "*batch"],
    reference_log_probs: Float[Array, "*batch"],
    estimator: Estimator = "k3",
) -> Float[Array, "*batch"]:
    """An estimate of KL(policy || reference) from samples of the policy, label by label.

    With ``x = log reference - log policy``: k1 is ``-x``, unbiased and of either sign; k2 is ``x^2
    / 2``, whose gradient is that of KL; k3 is ``exp(x) - x - 1``, unbiased and never negative
    (Schulman, 2020). No gradient flows to the reference.

    Raises:
        ConfigError: unknown estimator.

    Example:
        >>> [
        ...     round(float(kl_estimate(jnp.array(-1.0), jnp.array(-2.0), name)), 4)
        ...     for name in ("k1", "k2", "k3")
        ... ]
        [1.0, 0.5, 0.3679]
    """
    check_choice("kl", estimator, get_args(Estimator), "is no estimator")
    x = jax.lax.stop_gradient(reference_log_probs) - log_probs
    if estimator == "k1":
        return -x
    return x**2 / 2 if estimator == "k2" else jnp.expm1(x) - x


def _clip(
    ratio: Float[Array, "B S"], advantages: Float[Array, "B S"], loss: PolicyLoss
) -> tuple[Float[Array, "B S"], dict[str, Bool[Array, "B S"]]]:
    """The clipped ratio, and where it differs from the ratio."""
    low = 0.0 if loss.clip_low is None else 1 - loss.clip_low
    high = jnp.inf if loss.clip_high is None else 1 + loss.clip_high
    below = ratio < low
    above = ratio > high
    if loss.objective == "log_prob":
        shares = {"clip_low_share": below, "clip_high_share": above}
        return jax.lax.stop_gradient(jnp.clip(ratio, low, high)), shares
    is_negative = advantages < 0
    clipped = jnp.where(is_negative, jnp.maximum(ratio, low), jnp.minimum(ratio, high))
    shares = {"clip_low_share": below & is_negative, "clip_high_share": above & (advantages > 0)}
    if loss.dual_clip is not None:
        shares["dual_clip_share"] = is_negative & (clipped > loss.dual_clip)
        clipped = jnp.where(is_negative, jnp.minimum(clipped, loss.dual_clip), clipped)
    return clipped, shares


def _correct(
    old: Any, sampler: Any, batch: LossBatch, correction: Correction
) -> tuple[Float[Array, "B S"], Bool[Array, "B S"]]:
    """The correction weight of each label for the sampler's mismatch, and where the ratio was out
    of bounds.
    """
    ratio = importance_ratio(jax.lax.stop_gradient(old), sampler, batch, correction.level)
    outside = (ratio < correction.low) | (ratio > correction.high)
    if correction.outside == "mask":
        return jnp.where(outside, 0, ratio), outside
    return jnp.clip(ratio, correction.low, correction.high), outside


def _extremes(name: str, values: Float[Array, "B S"], mask: Bool[Array, "B S"]) -> dict[str, Any]:
    """Mean, minimum and maximum over trained labels; 1 if there are none."""
    has_labels = mask.any()
    least = jnp.where(mask, values, jnp.inf).min()
    most = jnp.where(mask, values, -jnp.inf).max()
    return {
        f"{name}_mean": values,
        f"{name}_min": jnp.where(has_labels, least, 1),
        f"{name}_max": jnp.where(has_labels, most, 1),
    }


def _mean_of(values: Any, batch: LossBatch) -> Float[Array, ""]:
    """A scalar as it is; of per-label values, the mean over trained labels."""
    return (
        jnp.asarray(values, jnp.float32)
        if jnp.ndim(values) == 0
        else token_mean(values, batch, "tokens")
    )


def _check_arrays(loss: PolicyLoss, batch: LossBatch, arrays: dict[str, Any]) -> None:
    shape = tuple(batch.labels.shape)
    for name, values in arrays.items():
        if values is not None and tuple(values.shape) != shape:
            raise ConfigError(
                f"must be one a label, {shape}", field=name, value=tuple(values.shape)
            )
    bounds_one = loss.objective == "log_prob" and loss.clip_low == loss.clip_high == 0
    needs = {
        "sampler_log_probs": loss.correction is not None or loss.max_sequence_kl is not None,
        "old_log_probs": not bounds_one,
        "reference_log_probs": loss.kl_coef > 0,
        "entropy": loss.entropy_coef > 0,
    }
    cures = {
        "sampler_log_probs": "Sample with log probabilities: the batch's log_probs.",
        "old_log_probs": "Sample with log probabilities (the batch's log_probs), or, where each"
        " batch is trained on once, pass old_log_probs=jax.lax.stop_gradient(log_probs).",
        "reference_log_probs": "Run the reference model on the batch, or set kl_coef=0.",
        "entropy": "Pass the entropy of token_stats or hidden_stats, or set entropy_coef=0.",
    }
    for name, needed in needs.items():
        if needed and arrays[name] is None:
            raise ConfigError("is missing, and the loss needs it", field=name, cure=cures[name])
