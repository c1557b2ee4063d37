"""A ``PackedBatch`` as Levanter's and Megatron-LM's trainers take it, and back from Levanter's.

Levanter's ``LmExample`` (haliax arrays) and ``GrugLmExample`` (plain ones) hold tokens, a loss weight for the token
that follows, and a causal mask with segment ids: the alignment is a PackedBatch's own. The packages are imported when
they are asked for: headrace works without them.

Levanter keeps no lengths, so the way back finds segments where ids change; padding is what has a negative id.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Integer

from headrace.data.batch import PackedBatch, pack_rows
from headrace.errors import ConfigError


def to_grug_example(batch: PackedBatch) -> Any:
    """Levanter's ``GrugLmExample`` of a batch: ``[B, S]`` arrays where the batch's are; works under jit.

    Raises:
        ConfigError: marin-levanter is not installed.
    """
    examples, attention = _levanter("levanter.data.text.examples"), _levanter("levanter.grug.attention")
    mask = attention.AttentionMask.causal()
    if batch.eos_id is not None or batch.segment_lengths is not None:  # else rows are one segment each
        mask = mask.with_segment_ids(batch.segment_ids)
    return examples.GrugLmExample(tokens=batch.tokens, loss_weight=batch.token_weights, attn_mask=mask)


def to_lm_example(batch: PackedBatch, *, batch_axis: str = "batch", position_axis: str = "position") -> Any:
    """Levanter's ``LmExample`` of a batch, with haliax axes; works under jit.

    Args:
        batch: The batch.
        batch_axis: Name of the axis of rows.
        position_axis: Name of the axis of positions.

    Raises:
        ConfigError: marin-levanter is not installed.
    """
    examples, hax = _levanter("levanter.data.text.examples"), _levanter("haliax")
    grug = to_grug_example(batch)
    position, rows = hax.Axis(position_axis, batch.seq_len), hax.Axis(batch_axis, batch.batch_size)
    model = _levanter("levanter.models.lm_model")
    return model.LmExample(
        tokens=hax.named(_on_device(grug.tokens), (rows, position)),
        loss_weight=hax.named(_on_device(grug.loss_weight), (rows, position)),
        attn_mask=examples.named_attention_mask_from_grug(jax.tree.map(_on_device, grug.attn_mask), position, rows),
    )


def from_levanter_example(example: Any) -> PackedBatch:
    """The batch, on the host, of a ``GrugLmExample`` or ``LmExample`` of rows, or of one row.

    Segments are where the segment ids of the attention mask change; the tokens of no segment (a negative id) must be
    at the end of their row. Without segment ids each row is one segment.

    Raises:
        ConfigError: padding stands before tokens.
    """
    mask = example.attn_mask
    tokens, weight = (_rows(x) for x in (example.tokens, example.loss_weight))
    ids = None if mask.segment_ids is None else _rows(mask.segment_ids[0])
    base = pack_rows(tokens, segment_lengths=None if ids is None else _lengths_of(np.broadcast_to(ids, tokens.shape)))
    return dataclasses.replace(base, weights=weight.astype(np.float32), loss_mask=(weight != 0).astype(np.uint8))


class MegatronBatch(NamedTuple):
    """What Megatron-LM's GPT training step reads.

    Attributes:
        tokens: int64.
        labels: int64.
        loss_mask: What each label's loss is multiplied with.
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
    """Megatron-LM's keys of a batch on the host, with masking between documents.

    Example:
        >>> found = to_megatron(pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0))
        >>> found.cu_seqlens.tolist(), found.max_seqlen.tolist()
        ([[0, 3, 4, 4, 4]], [3])
    """
    cu = np.asarray(batch.cu_seqlens)
    wide = np.full((batch.batch_size, batch.seq_len + 1), batch.seq_len, np.int32)
    wide[:, : cu.shape[1]] = cu[:, : batch.seq_len + 1]
    leaves = (np.asarray(x) for x in (batch.tokens, batch.labels, batch.token_weights, batch.position_ids))
    tokens, labels, weights, positions = leaves
    longest = np.diff(cu, axis=1).max(axis=1).astype(np.int32)
    return MegatronBatch(
        tokens.astype(np.int64), labels.astype(np.int64), weights, positions.astype(np.int64), wide, longest
    )


class LtorMasks(NamedTuple):
    """Megatron-LM's masks of one row.

    Attributes:
        loss_mask: 0 where the input is the end-of-document token, if that is masked.
        position_ids: From 0 in each document, if they are reset.
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

    A PackedBatch with ``eos_id`` is what all three flags give together, but for the last position of the row: it has
    no label here, and weighs 0.

    Example:
        >>> ltor_masks(np.array([5, 0, 7]), 0, reset_position_ids=True).position_ids.tolist()
        [0, 1, 0]
    """
    ids = np.asarray(tokens)
    at = np.arange(ids.size)
    after = np.concatenate([[False], ids[:-1] == eod])
    document = np.cumsum(after)
    blocked = at[:, None] < at
    if reset_attention_mask:
        blocked = blocked | (document[:, None] != document)
    positions = at - np.maximum.accumulate(np.where(after, at, 0)) if reset_position_ids else at
    loss = np.ones(ids.size, np.float32)
    if eod_mask_loss:
        loss[ids == eod] = 0
    return LtorMasks(loss, positions.astype(np.int64), blocked)


def _levanter(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "needs the package marin-levanter", field="levanter", cure="pip install marin-levanter"
        ) from error


def _on_device(values: Any) -> Any:
    return jax.numpy.asarray(values)


def _rows(values: Any) -> np.ndarray:
    """A plain or named array as rows."""
    return np.atleast_2d(np.asarray(getattr(values, "array", values)))


def _lengths_of(ids: Integer[np.ndarray, "B S"]) -> Int32[np.ndarray, "B M"]:
    """Tokens of each run of one id that is not negative."""
    padding = ids < 0
    late = padding[:, :-1] & ~padding[:, 1:]
    if late.any():
        row = int(np.flatnonzero(late.any(axis=1))[0])
        raise ConfigError("has padding before tokens", field=f"segment_ids[{row}]", value=ids[row].tolist())
    starts = np.concatenate([np.ones((len(ids), 1), bool), ids[:, 1:] != ids[:, :-1]], axis=1) & ~padding
    number = np.cumsum(starts, axis=1) - 1
    width = max(int(starts.sum(axis=1).max(initial=0)), 1)
    lengths = np.zeros((len(ids), width), np.int32)
    row, column = np.nonzero(~padding)
    np.add.at(lengths, (row, number[row, column]), 1)
    return lengths
