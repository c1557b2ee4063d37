"""Losses besides next-token prediction: distillation from a teacher, multi-token prediction,
z-loss.

A teacher is given by its K most likely tokens at each label and their log probabilities (``[B, S,
K]``, aligned with labels). The remaining probability mass is one more outcome, the *rest*, so that
both sides are distributions and the divergence is a lower bound of that over the whole vocabulary,
tight when K covers all of it. With t the teacher and p the policy, over the K tokens and the rest::

    forward   KL(t || p) = sum of t (log t - log p)         covers what the teacher does
    reverse   KL(p || t) = sum of p (log p - log t)         keeps to what the teacher does

A cache stores the teacher's output for each token as columns (:mod:`headrace.data.columns`);
``batch.of_labels`` aligns them with labels.

Price: the log probabilities of K ids per label, in the one pass over the vocabulary that the loss
makes anyway.

References: Hinton et al., arXiv:1503.02531, and Agarwal et al., arXiv:2306.13649 (distillation);
DeepSeek-AI, arXiv:2412.19437 (several next tokens); Chowdhery et al., arXiv:2204.02311 (z-loss).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.batch.loss import Denominator, LabelBatch, token_mean, weighted_mean
from headrace.batch.packed_batch import ExpandedBatch, PackedBatch
from headrace.batch.vocabulary import DEFAULT_CHUNK, token_stats
from headrace.errors import ConfigError, check_at_least, check_choice
from headrace_posttrain.losses.segments import next_in_segment

Direction: TypeAlias = Literal["forward", "reverse"]
SMALLEST_REST = 1e-7
"""Smallest mass of the rest: float32 cannot distinguish less from zero."""


def top_k_divergence(
    log_probs: Float[Array, "*batch K"],
    teacher_log_probs: Float[Array, "*batch K"],
    direction: Direction = "forward",
    *,
    rest: bool = True,
) -> Float[Array, "*batch"]:
    """KL divergence of teacher and policy at each label; reduce it with ``token_mean`` or
    ``weighted_mean``.

    Args:
        log_probs: The policy's log probabilities of the teacher's tokens, as
            :func:`~headrace.batch.vocabulary.hidden_stats` returns them for labels ``[*batch, K]``.
        teacher_log_probs: The teacher's own; -inf for unused entries.
        direction: ``forward``: KL(teacher || policy); ``reverse``: KL(policy || teacher).
        rest: Whether the remaining mass counts; without it the sum over the K tokens may be
            negative.

    Raises:
        ConfigError: no such direction; other shapes.

    Example:
        >>> half = jnp.log(jnp.array([[0.5, 0.25]]))
        >>> float(top_k_divergence(half, half)[0])
        0.0
        >>> round(
        ...     float(top_k_divergence(jnp.log(jnp.array([[0.25, 0.25]])), half)[0]), 4
        ... )  # .5 log 2 + .25 log .5
        0.1733
    """
    check_choice("direction", direction, ("forward", "reverse"), "is no direction")
    if log_probs.shape != teacher_log_probs.shape:
        raise ConfigError(
            f"must be one for each of the policy's, {log_probs.shape}",
            field="teacher_log_probs",
            value=teacher_log_probs.shape,
            cure="Take the policy's log probabilities of the teacher's token ids.",
        )
    sides = log_probs.astype(jnp.float32), jnp.maximum(teacher_log_probs.astype(jnp.float32), -1e9)
    if rest:
        sides = tuple(
            jnp.concatenate([side, _log_rest(side)[..., None]], axis=-1) for side in sides
        )
    policy, teacher = sides
    first, second = (teacher, policy) if direction == "forward" else (policy, teacher)
    p = jnp.exp(first)
    return (p * jnp.where(p > 0, first - second, 0)).sum(axis=-1)


def distillation_loss(
    logits: Float[Array, "B S V"],
    batch: LabelBatch,
    teacher_ids: Int[Array, "B S K"],
    teacher_log_probs: Float[Array, "B S K"],
    direction: Direction = "forward",
    denominator: Denominator = "weights",
    *,
    rest: bool = True,
    chunk: int = DEFAULT_CHUNK,
) -> Float[Array, ""]:
    """The mean divergence of teacher and policy over the trained labels, in nats.

    Args:
        logits: The policy's logits.
        batch: The batch they were computed from.
        teacher_ids: The teacher's most likely tokens at each label; from a column of a cache:
            ``batch.of_labels(name)``.
        teacher_log_probs: Their log probabilities; -inf for filler ids.
        direction: See :func:`top_k_divergence`.
        denominator: See :mod:`headrace.batch.loss`; label weights are the batch's.
        rest: See :func:`top_k_divergence`.
        chunk: Entries of the vocabulary at a time.

    Raises:
        ConfigError: no such direction or denominator; shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> teacher = {
        ...     "ids": np.array([[[0], [1], [2]]]),
        ...     "log_probs": np.log(np.full((1, 3, 1), 0.25, np.float32)),
        ... }
        >>> batch = pack_rows(np.array([[1, 2, 3]]), extras=teacher)
        >>> round(
        ...     float(
        ...         distillation_loss(jnp.zeros((1, 3, 4)), batch, *map(batch.of_labels, teacher))
        ...     ),
        ...     6,
        ... )
        0.0
    """
    stats = token_stats(logits, jnp.asarray(teacher_ids), entropy=False, chunk=chunk)
    divergence = top_k_divergence(
        stats.log_probs, jnp.asarray(teacher_log_probs), direction, rest=rest
    )
    return weighted_mean(divergence, batch, denominator)


def z_loss(
    log_normalizer: Float[Array, "B S"], batch: LabelBatch, denominator: Denominator = "tokens"
) -> Float[Array, ""]:
    """``mean of log_normalizer^2``: keeps logits from drifting; PaLM adds 1e-4 of it to the loss.

    Args:
        log_normalizer: From :func:`~headrace.batch.vocabulary.token_stats` or ``hidden_stats``.
        batch: Determines which labels are trained on.
        denominator: See :mod:`headrace.batch.loss`.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> float(z_loss(jnp.array([[1.0, 3.0, 9.0]]), pack_rows(np.array([[1, 2, 3]]))))
        5.0
    """
    return token_mean(log_normalizer**2, batch, denominator)


def mtp_batch(batch: PackedBatch | ExpandedBatch, depth: int) -> ExpandedBatch:
    """The batch with labels ``depth`` tokens further ahead, for the loss of a multi-token
    prediction head.

    Label i becomes label ``i + depth``, with its weight and mask, if it is in the same segment;
    otherwise the position is not trained on. It works with any loss and any denominator. Nothing is
    stored or transferred: it is derived on the device.

    Args:
        batch: The batch as delivered.
        depth: 0 leaves the batch as it is; 1 is the first head besides the model's own.

    Raises:
        ConfigError: a negative depth.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = mtp_batch(
        ...     pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]])), 1
        ... )
        >>> batch.labels.tolist(), batch.token_weights.tolist()
        ([[7, 0, 0, 0, 0]], [[1.0, 0.0, 0.0, 0.0, 0.0]])
    """
    check_at_least("depth", depth, 0)
    expanded = batch.expand() if isinstance(batch, PackedBatch) else batch
    if depth == 0:
        return expanded
    names = ("labels", "token_weights", "label_mask")
    return dataclasses.replace(
        expanded, **{n: next_in_segment(getattr(expanded, n), expanded, depth) for n in names}
    )


def _log_rest(log_probs: Float[Array, "*batch K"]) -> Float[Array, "*batch"]:
    """Log of the probability mass that the tokens leave."""
    return jnp.log(jnp.maximum(1 - jnp.exp(log_probs).sum(axis=-1), SMALLEST_REST))
