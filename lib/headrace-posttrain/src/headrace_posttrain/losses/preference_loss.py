"""Preference losses, in three steps: a score for each answer, the margin of a pair, a link from
margin to loss.

With log P(y) the sum over the answer's trained labels, log Q(y) the reference's, and n their
number::

    score   s = log P - log Q            (log P without a reference)
            s = s / n                    with ``length_normalized``
            s = s - log(1 - exp(s))      with ``odds``: the log of the odds
    margin  m = beta * (s of the chosen one - s of the rejected one) - target_margin
    link    sigmoid   - (1 - e) log sigmoid(m) - e log sigmoid(-m)   e: ``label_smoothing``
            robust    (- (1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2 e)      rDPO
            hinge     max(0, 1 - m)
            square    (m / beta - 1 / (2 beta))^2                                     IPO
    loss    scale * mean over pairs of the link
            + nll_coef * mean NLL of the chosen answers' labels

==========  =========================================================  ============================
preset      settings                                                   source
==========  =========================================================  ============================
``dpo``     sigmoid, beta 0.1; with label smoothing it is              arXiv:2305.18290, equation 7
            conservative DPO
``rdpo``    robust, label smoothing 0.1                                arXiv:2403.00409
``slic``    hinge                                                      arXiv:2305.10425
``ipo``     square, length normalised                                  arXiv:2310.12036, eq. 17
``cpo``     sigmoid without reference, nll_coef 1                      arXiv:2401.08417
``simpo``   sigmoid without reference, length normalised, beta 2,      arXiv:2405.14734
            target_margin 1
``orpo``    sigmoid of the log odds ratio without reference, beta 1,   arXiv:2403.07691
            scale 0.1, nll_coef 1
==========  =========================================================  ============================

KTO (arXiv:2402.01306) needs no pairs: :func:`kto_loss`. If only gradients are needed, DPO is also
the unified loss of weighted pairs: :mod:`headrace_posttrain.losses.preference`.

Price: sums over segments; and one forward pass of the reference for its log probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from headrace.batch.packed_batch import PackedBatch
from headrace.errors import ConfigError, check_choice, check_not_negative
from headrace_posttrain.losses.segments import segment_sums

Link: TypeAlias = Literal["sigmoid", "robust", "hinge", "square"]


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss of pairs; the module defines what each setting does.

    Attributes:
        link: From margin to loss.
        beta: Scale of the margin.
        label_smoothing: Assumed share of pairs with wrong labels, below one half.
        reference: Whether scores are relative to a reference.
        length_normalized: Whether scores are means over labels.
        odds: Whether scores are log odds.
        target_margin: Margin to exceed.
        scale: Weight of the link term.
        nll_coef: Weight of the chosen answers' NLL.

    Raises:
        ConfigError: no such link; a number out of range.

    Example:
        >>> PreferenceLoss(beta=0.3, label_smoothing=0.1).link
        'sigmoid'
    """

    link: Link = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    reference: bool = True
    length_normalized: bool = False
    odds: bool = False
    target_margin: float = 0.0
    scale: float = 1.0
    nll_coef: float = 0.0

    def __post_init__(self) -> None:
        check_choice("link", self.link, get_args(Link), "is no link")
        for name in ("label_smoothing", "scale", "nll_coef"):
            check_not_negative(name, getattr(self, name))
        if not self.beta > 0:
            raise ConfigError("must be positive", field="beta", value=self.beta, cure="E.g. 0.1.")
        if self.label_smoothing >= 0.5:
            cure = "E.g. 0.1: one pair in ten is labelled the wrong way round."
            raise ConfigError(
                "must be below 0.5", field="label_smoothing", value=self.label_smoothing, cure=cure
            )
        if self.label_smoothing and self.link in ("hinge", "square"):
            cure = "Set link to sigmoid or robust, or label_smoothing to 0."
            raise ConfigError(
                f"has no meaning with link {self.link!r}", field="label_smoothing", cure=cure
            )
        if self.odds and (self.reference or not self.length_normalized):
            cure = "Set reference=False and length_normalized=True, as ORPO does."
            raise ConfigError(
                "needs the probability of a label, on average", field="odds", value=True, cure=cure
            )


PreferencePreset: TypeAlias = Literal["dpo", "rdpo", "slic", "ipo", "cpo", "simpo", "orpo"]
PRESETS: Mapping[str, PreferenceLoss] = {
    "dpo": PreferenceLoss(),
    "rdpo": PreferenceLoss("robust", label_smoothing=0.1),
    "slic": PreferenceLoss("hinge"),
    "ipo": PreferenceLoss("square", length_normalized=True),
    "cpo": PreferenceLoss(reference=False, nll_coef=1.0),
    "simpo": PreferenceLoss(beta=2.0, reference=False, length_normalized=True, target_margin=1.0),
    "orpo": PreferenceLoss(
        beta=1.0, reference=False, length_normalized=True, odds=True, scale=0.1, nll_coef=1.0
    ),
}


def preference_loss(
    log_probs: Float[Array, "B S"],
    batch: PackedBatch,
    loss: PreferenceLoss | PreferencePreset = "dpo",
    *,
    reference_log_probs: Float[Array, "B S"] | None = None,
    pairs: float | None = None,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The loss of a batch of pairs, and metrics to monitor.

    Args:
        log_probs: Log probability of each label under the model; gradients flow only to these.
        batch: Rows of pairs, alternating chosen and rejected (``batch.pairs``).
        loss: Settings, or a preset of the module's table.
        reference_log_probs: The same under the reference model.
        pairs: Divisor of the sum over pairs; None: the batch's pairs, on all devices.

    Returns:
        The loss, and means over pairs: ``accuracy`` (the chosen answer scores higher), ``margin``,
        ``chosen_reward`` and ``rejected_reward`` (beta times the score), ``chosen_log_prob`` and
        ``rejected_log_prob`` (sums over labels).

    Raises:
        ConfigError: the batch has no pairs; the reference is missing or not needed; shapes do not
            match.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import Example
        >>> from headrace_posttrain import pack_pairs
        >>> batch = pack_pairs([(Example(np.array([1, 2])), Example(np.array([1, 3])))], 4)
        >>> zeros = jnp.zeros((1, 4))
        >>> value, metrics = preference_loss(zeros, batch, reference_log_probs=zeros)
        >>> round(float(value), 4), sorted(metrics)[:2]  # log 2
        (0.6931, ['accuracy', 'chosen_log_prob'])
    """
    loss = resolve(loss)
    _check(loss, batch, log_probs, reference_log_probs)
    counts = segment_sums(jnp.ones(log_probs.shape, jnp.float32), batch)
    sums = segment_sums(log_probs, batch)
    score = (
        sums
        if reference_log_probs is None
        else sums - segment_sums(jax.lax.stop_gradient(reference_log_probs), batch)
    )
    score = score / jnp.maximum(1, counts) if loss.length_normalized else score
    score = jnp.where(counts > 0, score - _log_of_complement(score), 0) if loss.odds else score
    chosen, rejected = _sides(score)
    count_c, count_r = _sides(counts)
    is_pair = (count_c > 0) | (count_r > 0)
    number = jnp.maximum(1, is_pair.sum())
    margin = loss.beta * (chosen - rejected) - loss.target_margin
    value = (
        loss.scale
        * jnp.where(is_pair, _linked(margin, loss), 0).sum()
        / (number if pairs is None else pairs)
    )
    sum_c, sum_r = _sides(sums)
    if loss.nll_coef:
        value = value - loss.nll_coef * sum_c.sum() / jnp.maximum(1, count_c.sum())

    def mean(values: Any) -> Any:
        return jax.lax.stop_gradient(jnp.where(is_pair, values, 0).sum() / number)

    return value, {
        "accuracy": mean(chosen > rejected),
        "margin": mean(margin),
        "chosen_reward": mean(loss.beta * chosen),
        "rejected_reward": mean(loss.beta * rejected),
        "chosen_log_prob": mean(sum_c),
        "rejected_log_prob": mean(sum_r),
    }


def kto_loss(
    log_probs: Float[Array, "B S"],
    reference_log_probs: Float[Array, "B S"],
    batch: PackedBatch,
    desirable: Bool[Any, "B M"],
    *,
    beta: float = 0.1,
    kl: Float[Any, ""] | float = 0.0,
    weights: tuple[float, float] = (1.0, 1.0),
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """KTO: the mean over answers of ``w (1 - sigmoid(beta (s - kl)))``, and of the opposite for
    undesirable ones.

    Args:
        log_probs: Log probability of each label under the model; gradients flow only to these.
        reference_log_probs: The same under the reference model.
        batch: Answers, one per segment.
        desirable: Which answers are desirable, for example ``batch.rewards > 0``.
        beta: Scale of the score ``s = log P - log Q``.
        kl: The reference point: how far the model is from the reference, see
            :func:`kto_reference_point`.
        weights: Weights of desirable and of undesirable answers, for classes of unequal size.

    Returns:
        The loss, and ``desirable_reward`` and ``undesirable_reward``, means of beta times the
        score.

    Raises:
        ConfigError: shapes do not match; beta is not positive.

    Reference: Ethayarajh et al., "KTO: model alignment as prospect theoretic optimization",
        arXiv:2402.01306, eq. 7.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import Example, pack_examples
        >>> batch = pack_examples(
        ...     [Example(np.array([1, 2]), reward=1.0), Example(np.array([1, 3]), reward=-1.0)], 4
        ... )
        >>> value, _ = kto_loss(jnp.zeros((1, 4)), jnp.zeros((1, 4)), batch, batch.rewards > 0)
        >>> float(value)
        0.5
    """
    if not beta > 0:
        raise ConfigError("must be positive", field="beta", value=beta, cure="E.g. 0.1.")
    score, is_answer = _log_ratios(log_probs, reference_log_probs, batch)
    spare = score.shape[1] - desirable.shape[1]
    if spare not in (0, 1):
        raise ConfigError(
            "must be one a segment",
            field="desirable",
            value=desirable.shape,
            cure=f"Give {score.shape}.",
        )
    good = jnp.pad(jnp.asarray(desirable, bool), ((0, 0), (0, spare)))
    sign = jnp.where(good, 1.0, -1.0)
    loss = jnp.where(good, weights[0], weights[1]) * (
        1 - jax.nn.sigmoid(sign * beta * (score - kl))
    )
    value = jnp.where(is_answer, loss, 0).sum() / jnp.maximum(1, is_answer.sum())

    def mean(side: Any) -> Any:
        return jax.lax.stop_gradient(
            jnp.where(side, beta * score, 0).sum() / jnp.maximum(1, side.sum())
        )

    return value, {
        "desirable_reward": mean(is_answer & good),
        "undesirable_reward": mean(is_answer & ~good),
    }


def kto_reference_point(
    log_probs: Float[Array, "B S"], reference_log_probs: Float[Array, "B S"], batch: PackedBatch
) -> Float[Array, ""]:
    """KTO's ``kl``: the mean over answers of ``log P - log Q``, at least 0, without gradient.

    Args:
        log_probs: Log probability of each label under the model.
        reference_log_probs: The same under the reference model.
        batch: Prompts with answers **to other prompts**, for example those of the batch, each with
            the next one's answer.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> float(
        ...     kto_reference_point(
        ...         jnp.zeros((1, 3)), -jnp.ones((1, 3)), pack_rows(np.array([[1, 2, 3]]))
        ...     )
        ... )
        2.0
    """
    score, is_answer = _log_ratios(log_probs, reference_log_probs, batch)
    mean = jnp.where(is_answer, score, 0).sum() / jnp.maximum(1, is_answer.sum())
    return jax.lax.stop_gradient(jnp.maximum(mean, 0))


def resolve(loss: PreferenceLoss | str) -> PreferenceLoss:
    """The settings of a preset's name; raises ConfigError if there is none."""
    if isinstance(loss, PreferenceLoss):
        return loss
    check_choice("loss", loss, PRESETS, "is no preset")
    return PRESETS[loss]


def _linked(margin: Float[Array, "B P"], loss: PreferenceLoss) -> Float[Array, "B P"]:
    if loss.link == "hinge":
        return jnp.maximum(0, 1 - margin)
    if loss.link == "square":
        return (margin / loss.beta - 1 / (2 * loss.beta)) ** 2
    e = loss.label_smoothing
    right = -jax.nn.log_sigmoid(margin)
    wrong = -jax.nn.log_sigmoid(-margin)
    if loss.link == "robust":
        return ((1 - e) * right - e * wrong) / (1 - 2 * e)
    return (1 - e) * right + e * wrong


def _log_of_complement(log_p: Float[Array, "B M"]) -> Float[Array, "B M"]:
    """``log(1 - exp(x))`` for negative x; a probability of 1 counts as the largest float32 below
    it.
    """
    x = jnp.minimum(log_p, -6e-8)
    near = x > -0.6931472  # each form is exact where the other is not
    return jnp.where(
        near,
        jnp.log(-jnp.expm1(jnp.where(near, x, -1.0))),
        jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))),
    )


def _sides(values: Float[Array, "B M"]) -> tuple[Float[Array, "B P"], Float[Array, "B P"]]:
    """The values of chosen and of rejected segments; a range without a partner is padding."""
    pairs = values[:, : values.shape[1] // 2 * 2]
    return pairs[:, 0::2], pairs[:, 1::2]


def _log_ratios(
    log_probs: Float[Array, "B S"], reference_log_probs: Float[Array, "B S"], batch: PackedBatch
) -> tuple[Float[Array, "B M"], Bool[Array, "B M"]]:
    """``log P - log Q`` of each segment, and which segments have trained labels."""
    for field, values in (("log_probs", log_probs), ("reference_log_probs", reference_log_probs)):
        _check_labels(field, values, batch)
    counts = segment_sums(jnp.ones(log_probs.shape, jnp.float32), batch)
    return segment_sums(log_probs - jax.lax.stop_gradient(reference_log_probs), batch), counts > 0


def _check_labels(field: str, values: Any, batch: PackedBatch) -> None:
    shape = tuple(batch.token_ids.shape)
    if tuple(values.shape) != shape:
        raise ConfigError(f"must be one a label, {shape}", field=field, value=tuple(values.shape))


def _check(
    loss: PreferenceLoss, batch: PackedBatch, log_probs: Any, reference_log_probs: Any
) -> None:
    if not batch.pairs:
        cure = "Pack pairs with pack_pairs, or rows of a cache with unit=2."
        raise ConfigError(
            "are not chosen and rejected in turn", field="batch.pairs", value=False, cure=cure
        )
    _check_labels("log_probs", log_probs, batch)
    if loss.reference != (reference_log_probs is not None):
        if loss.reference:
            cure = (
                "Run the reference model on the batch, or set reference=False for a loss without"
                " one."
            )
            raise ConfigError(
                "is missing, and the loss needs it", field="reference_log_probs", cure=cure
            )
        raise ConfigError(
            "is not looked at by this loss", field="reference_log_probs", cure="Leave it out."
        )
    if reference_log_probs is not None:
        _check_labels("reference_log_probs", reference_log_probs, batch)
