"""Preference pairs as weighted pairs: the same batch and the same loss as everything else.

A pair is two examples that stay together: the even one is chosen, the odd one rejected. Its loss is
the unified loss with positive weights on the chosen tokens and negative weights on the rejected
ones.

DPO is of that form: with m = beta * ((log p_c - log q_c) - (log p_r - log q_r)), where p is the
policy and q the reference, the gradient of ``-log sigmoid(m)`` is that of ``-w * (log p_c - log
p_r)`` for ``w = beta * sigmoid(-m)`` held fixed. :func:`pair_log_probs` sums the log probabilities
of both sides, :func:`dpo_weights` returns w, and :func:`pair_weights` spreads it over the tokens;
divide by the number of pairs (``denominator=pairs``).

Pairs of a cache (``headrace build --kind preference``) are packed as units by a static plan,
``unit=2`` of :class:`~headrace.data.packed.PackedTokenDataset`; :func:`pack_pairs` packs pairs in
memory. Either way batches have ``pairs`` set, which gives the weights their sign.

Price: DPO needs the log probabilities of both sides before the step: one forward pass of policy and
reference each.

Reference: Rafailov et al., "Direct preference optimization", arXiv:2305.18290, equation 7.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from headrace.batch.examples import Example, pack_examples
from headrace.batch.packed_batch import PackedBatch
from headrace.batch.sample_numbers import checked_costs
from headrace.errors import ConfigError


def pair_log_probs(
    batch: PackedBatch, log_probs: Float[Any, "B S"]
) -> tuple[Float[Any, "B P"], Float[Any, "B P"]]:
    """Log probabilities of the chosen and the rejected answer of each pair: sums over trained
    labels.

    Works on host and device batches, under jit or not. P is half the width of ``segment_lengths``;
    rows with fewer pairs are padded with zeros.

    Args:
        batch: Rows of pairs.
        log_probs: Log probability of each label.
    """
    assert batch.segment_lengths is not None  # rows of pairs always have segment lengths
    xp = np if isinstance(batch.token_ids, np.ndarray) else jnp
    of_labels = xp.where(batch.label_mask, log_probs, 0)
    width = -(-batch.segment_lengths.shape[1] // 2) * 2
    of_segment = batch.segment_ids[:, :, None] == xp.arange(width)
    sums = xp.where(of_segment, of_labels[:, :, None], 0).sum(axis=1)
    return sums[:, 0::2], sums[:, 1::2]


def pair_weights(batch: PackedBatch, weights: Float[Any, "B P"]) -> Float[Any, "B S"]:
    """Spreads the weight of each pair over its tokens: the ``weights`` of a batch of pairs.

    Args:
        batch: Rows of pairs.
        weights: Weight of each pair, in the order of :func:`pair_log_probs`.
    """
    xp: Any = np if isinstance(batch.token_ids, np.ndarray) else jnp
    return xp.take_along_axis(
        weights, xp.clip(batch.segment_ids // 2, 0, weights.shape[1] - 1), axis=1
    )


def dpo_weights(
    chosen: Float[Any, ...],
    rejected: Float[Any, ...],
    reference_chosen: Float[Any, ...],
    reference_rejected: Float[Any, ...],
    *,
    beta: float = 0.1,
) -> Float32[Any, ...]:
    """The weight of each pair, by which DPO's gradient multiplies both sides.

    Args:
        chosen: The policy's log probability of each chosen answer, of any shape, numpy or jax.
        rejected: The same for each rejected answer.
        reference_chosen: The reference model's for chosen answers.
        reference_rejected: The reference model's for rejected answers.
        beta: Strength of the pull towards the reference.

    Example:
        >>> dpo_weights(
        ...     np.array([-1.0]), np.array([-1.0]), np.array([-2.0]), np.array([-2.0])
        ... ).tolist()
        [0.05000000074505806]
    """
    xp = np if isinstance(chosen, np.ndarray) else jnp
    margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return (beta / (1.0 + xp.exp(xp.clip(margin, -500, 500)))).astype(np.float32)


def pair_examples(
    pairs: Sequence[tuple[Example, Example]],
    weights: float | Sequence[float] | Float32[np.ndarray, " p"] = 1.0,
) -> list[Example]:
    """Alternating chosen and rejected examples, with weights of opposite signs, each pair one
    group.
    """
    of_pairs: Any = np.full(len(pairs), weights) if np.ndim(weights) == 0 else weights
    numbers = checked_costs(of_pairs, field="weights")
    if len(numbers) != len(pairs):
        raise ConfigError(
            f"must be one for each of {len(pairs)} pairs", field="weights", value=len(numbers)
        )
    return [
        dataclasses.replace(side, weights=sign * float(weight), group=number)
        for number, (pair, weight) in enumerate(zip(pairs, numbers, strict=True))
        for side, sign in zip(pair, (1.0, -1.0), strict=True)
    ]


def pack_pairs(
    pairs: Sequence[tuple[Example, Example]],
    seq_len: int,
    weights: float | Sequence[float] | Float32[np.ndarray, " p"] = 1.0,
    *,
    rows: int | None = None,
    multiple: int = 1,
) -> PackedBatch:
    """A batch of pairs, both sides of a pair in one row, chosen first. Without pairs, an empty
    batch.

    Args:
        pairs: (chosen, rejected), each with its mask.
        seq_len: Tokens in a row.
        weights: Weight of each pair, or one for all; finite and not negative.
        rows: Rows of the batch, padded with empty ones; None: as many as needed.
        multiple: In that case, the number of rows is a multiple of this.

    Raises:
        ConfigError: a pair is longer than a row; not one weight per pair, or a weight is negative
            or not finite.

    Example:
        >>> pair = Example(np.array([1, 2])), Example(np.array([1, 3]))
        >>> pack_pairs([pair], 6).token_weights.tolist()
        [[1.0, 0.0, -1.0, 0.0, 0.0, 0.0]]
    """
    batch = pack_examples(
        pair_examples(pairs, weights), seq_len, unit=2, rows=rows, multiple=multiple
    )
    if batch.weights is None:  # no pairs
        return dataclasses.replace(batch, pairs=True)
    strength = np.abs(np.asarray(batch.weights))  # the side determines the sign
    return dataclasses.replace(batch, weights=strength, pairs=True)
