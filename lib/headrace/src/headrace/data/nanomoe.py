"""nanomoe's flat form of a batch (seed 002), there and back: one sequence of T tokens, segments by ``cu_seqlens``.

It differs from :class:`~headrace.data.flat.FlatBatch` in three ways: a label at the end of a segment repeats the last
token (and weighs 0), log probabilities are those of the response tokens alone, end to end, and rewards are one a
segment.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer

from headrace.data.batch import PackedBatch, pack_rows
from headrace.errors import ConfigError


class NanomoeBatch(NamedTuple):
    """nanomoe's ``PackedBatch``, on the host.

    Attributes:
        tokens: Token ids.
        labels: The token that follows; at the end of a segment its own last token.
        position_ids: Position within the segment.
        cu_seqlens: Where segments begin, and T.
        token_weights: Weight of each label's loss.
        log_probs: Log probabilities of the labels that are trained on, end to end, or None.
        rewards: One a segment, or None.
    """

    tokens: Int64[np.ndarray, " T"]
    labels: Int64[np.ndarray, " T"]
    position_ids: Int64[np.ndarray, " T"]
    cu_seqlens: Int32[np.ndarray, " n1"]
    token_weights: Float32[np.ndarray, " T"]
    log_probs: Float32[np.ndarray, " r"] | None = None
    rewards: Float32[np.ndarray, " n"] | None = None


def to_nanomoe(batch: PackedBatch) -> NanomoeBatch:
    """A batch on the host, without its padding.

    Example:
        >>> found = to_nanomoe(pack_rows(np.array([[5, 6, 7, 8]]), segment_lengths=np.array([[2, 1]], np.int32)))
        >>> found.tokens.tolist(), found.labels.tolist(), found.token_weights.tolist(), found.cu_seqlens.tolist()
        ([5, 6, 7], [6, 6, 7], [1.0, 0.0, 0.0], [0, 2, 3])
    """
    flat = batch.flatten().compact()
    labels = flat.labels.astype(np.int64)
    last = flat.cu_seqlens[1:] - 1
    labels[last] = flat.tokens[last]
    mask = np.asarray(batch.label_mask)
    rewards = None
    if batch.rewards is not None and batch.segment_lengths is not None:
        rewards = np.asarray(batch.rewards)[np.asarray(batch.segment_lengths) > 0].astype(np.float32)
    return NanomoeBatch(
        flat.tokens.astype(np.int64),
        labels,
        flat.position_ids.astype(np.int64),
        flat.cu_seqlens,
        flat.token_weights.astype(np.float32),
        None if batch.log_probs is None else np.asarray(batch.log_probs)[mask].astype(np.float32),
        rewards,
    )


def from_nanomoe(flat: NanomoeBatch, *, loss_mask: Integer[np.ndarray, " T"] | None = None) -> PackedBatch:
    """One row of all tokens.

    Labels and positions follow from tokens and segments; those given are not looked at. The last position of a segment
    weighs 0 whatever it weighed.

    Args:
        flat: nanomoe's batch, or any object with its fields.
        loss_mask: Which labels are trained on, where a weight may be 0 for another reason (an advantage of 0); None:
            those with a weight.

    Raises:
        ConfigError: log probabilities are not as many as labels that are trained on; segments are not the tokens.

    Example:
        >>> batch = pack_rows(np.array([[5, 6, 7]]), segment_lengths=np.array([[2, 1]], np.int32))
        >>> again = from_nanomoe(to_nanomoe(batch))
        >>> again.labels.tolist(), again.token_weights.tolist()
        ([[6, 0, 0]], [[1.0, 0.0, 0.0]])
    """
    tokens, bounds = np.asarray(flat.tokens), np.asarray(flat.cu_seqlens, np.int64)
    if bounds.size < 2 or bounds[0] != 0 or bounds[-1] != tokens.size or (np.diff(bounds) < 1).any():
        raise ConfigError(
            f"must rise from 0 to the {tokens.size} tokens",
            field="cu_seqlens",
            value=bounds.tolist() if bounds.size < 20 else int(bounds.size),
        )
    weights = np.asarray(flat.token_weights, np.float32)
    mask = (weights if loss_mask is None else np.asarray(loss_mask)) != 0
    mask[bounds[1:] - 1] = False
    batch = pack_rows(tokens[None], segment_lengths=np.diff(bounds).astype(np.int32)[None])
    log_probs = rewards = None
    if flat.log_probs is not None:
        given = np.asarray(flat.log_probs, np.float32)
        if given.size != mask.sum():
            raise ConfigError(
                f"are not as many as the {int(mask.sum())} labels that are trained on",
                field="log_probs",
                value=int(given.size),
                cure="Give loss_mask, where an advantage is 0.",
            )
        log_probs = np.zeros((1, tokens.size), np.float32)
        log_probs[0, mask] = given
    if flat.rewards is not None:
        rewards = np.asarray(flat.rewards, np.float32)[None]
    return dataclasses.replace(
        batch, weights=weights[None], loss_mask=mask.astype(np.uint8)[None], log_probs=log_probs, rewards=rewards
    )
