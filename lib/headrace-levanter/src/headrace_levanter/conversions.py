"""Converts a ``PackedBatch`` for Levanter's trainers, and back.

Levanter's ``LmExample`` (haliax arrays) and ``GrugLmExample`` (plain ones) hold tokens, a loss
weight for the token that follows, and a causal mask with segment ids, aligned as in a PackedBatch.
Levanter is imported on first use. It keeps no lengths, so converting back finds segments where ids
change; a negative id is padding.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32, Integer

from headrace.batch.packed_batch import PackedBatch, pack_rows
from headrace.errors import ConfigError
from headrace_levanter.needs import wrong_levanter


def to_grug_example(batch: PackedBatch) -> Any:
    """Converts to Levanter's ``GrugLmExample``: ``[B, S]`` arrays on the batch's devices; works
    under jit.

    Raises:
        ConfigError: marin-levanter is not installed.
    """
    examples = _levanter("levanter.data.text.examples")
    attention = _levanter("levanter.grug.attention")
    mask = attention.AttentionMask.causal()
    if batch.is_divided:  # otherwise each row is one segment
        mask = mask.with_segment_ids(batch.segment_ids)
    return examples.GrugLmExample(
        tokens=batch.tokens, loss_weight=batch.token_weights, attn_mask=mask
    )


def to_lm_example(
    batch: PackedBatch, *, batch_axis: str = "batch", position_axis: str = "position"
) -> Any:
    """Converts to Levanter's ``LmExample`` with haliax axes; works under jit.

    Args:
        batch: The batch.
        batch_axis: Name of the axis of rows.
        position_axis: Name of the axis of positions.

    Raises:
        ConfigError: marin-levanter is not installed.
    """
    examples = _levanter("levanter.data.text.examples")
    hax = _levanter("haliax")
    grug = to_grug_example(batch)
    grug = jax.tree.map(jax.numpy.asarray, grug)
    position = hax.Axis(position_axis, batch.seq_len)
    rows = hax.Axis(batch_axis, batch.batch_size)
    model = _levanter("levanter.models.lm_model")
    return model.LmExample(
        tokens=hax.named(grug.tokens, (rows, position)),
        loss_weight=hax.named(grug.loss_weight, (rows, position)),
        attn_mask=examples.named_attention_mask_from_grug(grug.attn_mask, position, rows),
    )


def from_levanter_example(example: Any) -> PackedBatch:
    """Converts a ``GrugLmExample`` or ``LmExample`` of one or more rows to a batch on the host.

    A segment starts where the segment ids of the attention mask change; tokens of no segment (a
    negative id) must be at the end of their row. Without segment ids each row is one segment.

    Raises:
        ConfigError: padding comes before tokens.
    """
    mask = example.attn_mask
    tokens, weight = (_rows(x) for x in (example.tokens, example.loss_weight))
    ids = None if mask.segment_ids is None else _rows(mask.segment_ids[0])
    base = pack_rows(
        tokens,
        segment_lengths=None if ids is None else _lengths_of(np.broadcast_to(ids, tokens.shape)),
    )
    return dataclasses.replace(
        base, weights=weight.astype(np.float32), loss_mask=(weight != 0).astype(np.uint8)
    )


def _levanter(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise wrong_levanter(error, "levanter") from error


def _rows(values: Any) -> np.ndarray:
    """A plain or named array, as rows."""
    return np.atleast_2d(np.asarray(getattr(values, "array", values)))


def _lengths_of(ids: Integer[np.ndarray, "B S"]) -> Int32[np.ndarray, "B M"]:
    """Length of each run of equal, non-negative ids."""
    padding = ids < 0
    late = padding[:, :-1] & ~padding[:, 1:]
    if late.any():
        row = int(np.flatnonzero(late.any(axis=1))[0])
        raise ConfigError(
            "has padding before tokens", field=f"segment_ids[{row}]", value=ids[row].tolist()
        )
    starts = (
        np.concatenate([np.ones((len(ids), 1), bool), ids[:, 1:] != ids[:, :-1]], axis=1) & ~padding
    )
    number = np.cumsum(starts, axis=1) - 1
    width = max(int(starts.sum(axis=1).max(initial=0)), 1)
    lengths = np.zeros((len(ids), width), np.int32)
    row, column = np.nonzero(~padding)
    np.add.at(lengths, (row, number[row, column]), 1)
    return lengths
