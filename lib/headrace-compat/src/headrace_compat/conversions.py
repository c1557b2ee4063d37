"""Converts a ``PackedBatch`` for Megatron-LM and nanomoe trainers, and back from nanomoe.

nanomoe's form (seed 002) is flat: one sequence of T tokens, segments by ``cu_seqlens``. It differs
from :class:`~headrace.batch.packed_batch.FlatBatch` in three ways: a label at the end of a segment
repeats the last token (and weighs 0), log probabilities are those of response tokens only,
concatenated, and there is one reward per segment.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Integer

from headrace.batch.packed_batch import PackedBatch, pack_rows
from headrace.errors import ConfigError


class MegatronBatch(NamedTuple):
    """What Megatron-LM's GPT training step reads.

    Attributes:
        tokens: int64.
        labels: int64.
        loss_mask: Factor of each label's loss.
        position_ids: int64.
        cu_seqlens: Where each row's segments begin, padded with S to S + 1 entries.
        max_seqlen: Tokens of each row's longest segment.
    """

    tokens: Int64[np.ndarray, "B S"]
    labels: Int64[np.ndarray, "B S"]
    loss_mask: Float32[np.ndarray, "B S"]
    position_ids: Int64[np.ndarray, "B S"]
    cu_seqlens: Int32[np.ndarray, "B S1"]
    max_seqlen: Int32[np.ndarray, " B"]


def to_megatron(batch: PackedBatch) -> MegatronBatch:
    """Converts to Megatron-LM's keys on the host, with masking between documents.

    Example:
        >>> found = to_megatron(pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0))
        >>> found.cu_seqlens.tolist(), found.max_seqlen.tolist()
        ([[0, 3, 4, 4, 4]], [3])
    """
    cu = np.asarray(batch.cu_seqlens)
    wide = np.full((batch.batch_size, batch.seq_len + 1), batch.seq_len, np.int32)
    wide[:, : cu.shape[1]] = cu[:, : batch.seq_len + 1]
    tokens, labels, positions = (
        np.asarray(x, np.int64) for x in (batch.tokens, batch.labels, batch.position_ids)
    )
    longest = np.diff(cu, axis=1).max(axis=1).astype(np.int32)
    return MegatronBatch(tokens, labels, np.asarray(batch.token_weights), positions, wide, longest)


class LtorMasks(NamedTuple):
    """Megatron-LM's masks of one row.

    Attributes:
        loss_mask: 0 where the input is the end-of-document token, if it is masked.
        position_ids: Starting at 0 in each document, if they are reset.
        blocked: True where position i must not attend to position j.
    """

    loss_mask: Float32[np.ndarray, " S"]
    position_ids: Int64[np.ndarray, " S"]
    blocked: Bool[np.ndarray, "S S"]


def ltor_masks(
    tokens: Integer[np.ndarray, " S"],
    eod: int,
    *,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    eod_mask_loss: bool = False,
) -> LtorMasks:
    """Left-to-right masks and positions as Megatron-LM makes them for one row.

    A PackedBatch with ``eos_id`` equals all three flags together, except at the last position of
    the row, which has no label there and weighs 0.

    Example:
        >>> ltor_masks(np.array([5, 0, 7]), 0, reset_position_ids=True).position_ids.tolist()
        [0, 1, 0]
    """
    ids = np.asarray(tokens)
    at = np.arange(ids.size)
    after_eod = np.concatenate([[False], ids[:-1] == eod])
    document = np.cumsum(after_eod)
    blocked = at[:, None] < at
    if reset_attention_mask:
        blocked = blocked | (document[:, None] != document)
    positions = at - np.maximum.accumulate(np.where(after_eod, at, 0)) if reset_position_ids else at
    loss = np.ones(ids.size, np.float32)
    if eod_mask_loss:
        loss[ids == eod] = 0
    return LtorMasks(loss, positions.astype(np.int64), blocked)


class NanomoeBatch(NamedTuple):
    """nanomoe's ``PackedBatch``, on the host.

    Attributes:
        tokens: Token ids.
        labels: The token that follows; at the end of a segment, its last token again.
        position_ids: Position within the segment.
        cu_seqlens: Where segments begin, and T.
        token_weights: Weight of each label's loss.
        log_probs: Log probabilities of the trained labels, concatenated, or None.
        rewards: One per segment, or None.
    """

    tokens: Int64[np.ndarray, " T"]
    labels: Int64[np.ndarray, " T"]
    position_ids: Int64[np.ndarray, " T"]
    cu_seqlens: Int32[np.ndarray, " n1"]
    token_weights: Float32[np.ndarray, " T"]
    log_probs: Float32[np.ndarray, " r"] | None = None
    rewards: Float32[np.ndarray, " n"] | None = None


def to_nanomoe(batch: PackedBatch) -> NanomoeBatch:
    """Converts a batch on the host, without its padding.

    Example:
        >>> found = to_nanomoe(
        ...     pack_rows(np.array([[5, 6, 7, 8]]), segment_lengths=np.array([[2, 1]], np.int32))
        ... )
        >>> (
        ...     found.tokens.tolist(),
        ...     found.labels.tolist(),
        ...     found.token_weights.tolist(),
        ...     found.cu_seqlens.tolist(),
        ... )
        ([5, 6, 7], [6, 6, 7], [1.0, 0.0, 0.0], [0, 2, 3])
    """
    flat = batch.flatten().compact()
    labels = flat.labels.astype(np.int64)
    last = flat.cu_seqlens[1:] - 1
    labels[last] = flat.tokens[last]
    mask = np.asarray(batch.label_mask)
    rewards = None
    if batch.rewards is not None and batch.segment_lengths is not None:
        rewards = np.asarray(batch.rewards)[np.asarray(batch.segment_lengths) > 0].astype(
            np.float32
        )
    return NanomoeBatch(
        flat.tokens.astype(np.int64),
        labels,
        flat.position_ids.astype(np.int64),
        flat.cu_seqlens,
        flat.token_weights.astype(np.float32),
        None if batch.log_probs is None else np.asarray(batch.log_probs)[mask].astype(np.float32),
        rewards,
    )


def from_nanomoe(
    flat: NanomoeBatch, *, loss_mask: Integer[np.ndarray, " T"] | None = None
) -> PackedBatch:
    """Converts to a batch of one row with all tokens.

    Labels and positions follow from tokens and segments; those given are ignored. The last position
    of a segment weighs 0 whatever it weighed before.

    Args:
        flat: nanomoe's batch, or any object with its fields.
        loss_mask: Which labels are trained on, if a weight may be 0 for another reason (an
            advantage of 0); None: those with non-zero weight.

    Raises:
        ConfigError: log probabilities and trained labels differ in number; segments do not cover
            the tokens.

    Example:
        >>> batch = pack_rows(np.array([[5, 6, 7]]), segment_lengths=np.array([[2, 1]], np.int32))
        >>> again = from_nanomoe(to_nanomoe(batch))
        >>> again.labels.tolist(), again.token_weights.tolist()
        ([[6, 0, 0]], [[1.0, 0.0, 0.0]])
    """
    tokens = np.asarray(flat.tokens)
    bounds = np.asarray(flat.cu_seqlens, np.int64)
    if (
        bounds.size < 2
        or bounds[0] != 0
        or bounds[-1] != tokens.size
        or (np.diff(bounds) < 1).any()
    ):
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
        all_log_probs = np.asarray(flat.log_probs, np.float32)
        if all_log_probs.size != mask.sum():
            raise ConfigError(
                f"are not as many as the {int(mask.sum())} labels that are trained on",
                field="log_probs",
                value=int(all_log_probs.size),
                cure="Give loss_mask, where an advantage is 0.",
            )
        log_probs = np.zeros((1, tokens.size), np.float32)
        log_probs[0, mask] = all_log_probs
    if flat.rewards is not None:
        rewards = np.asarray(flat.rewards, np.float32)[None]
    return dataclasses.replace(
        batch,
        weights=weights[None],
        loss_mask=mask.astype(np.uint8)[None],
        log_probs=log_probs,
        rewards=rewards,
    )
