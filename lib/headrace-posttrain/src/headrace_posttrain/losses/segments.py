"""Sums over the segments of a packed batch, on devices: of whole segments, and from each label to
its segment's end.

Segments are identified by ``segment_ids``, so a row may hold any number of them; padding belongs to
none. Values of labels that are not trained on are ignored, and may be NaN.

Price: one scatter and one gather of [B, S] values; sums to a segment's end are a scan of log2(S)
steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.batch.along_rows import with_auto_axes
from headrace.batch.packed_batch import ExpandedBatch, PackedBatch


def segment_sums(
    values: Float[Array, "B S"], batch: PackedBatch | ExpandedBatch
) -> Float[Array, "B M"]:
    """The sum of each segment's values over its trained labels; 0 where there is no segment.

    M is the number of ranges of ``cu_seqlens``; gradients flow through it.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]]))
        >>> segment_sums(jnp.ones((1, 5)), batch).tolist()
        [[2.0, 1.0, 0.0]]
    """
    ids, masked = _ids_and_masked(values, batch)
    width = batch.cu_seqlens.shape[1] - 1
    return with_auto_axes(lambda v, i: _summed(v, i, width), masked, ids, out=lambda spec: spec)


def segment_means(
    values: Float[Array, "B S"], batch: PackedBatch | ExpandedBatch
) -> Float[Array, "B S"]:
    """At each label, the mean of its segment's values over trained labels; 0 in padding.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]]))
        >>> segment_means(jnp.array([[1.0, 3.0, 9.0, 4.0, 9.0]]), batch).tolist()
        [[2.0, 2.0, 2.0, 4.0, 4.0]]
    """
    ids, masked = _ids_and_masked(values, batch)
    width = batch.cu_seqlens.shape[1] - 1

    def means(values: Any, mask: Any, ids: Any) -> Any:
        mean = _summed(values, ids, width) / jnp.maximum(1, _summed(mask, ids, width))
        return _spread(mean, ids)

    return with_auto_axes(
        means, masked, jnp.asarray(batch.label_mask, masked.dtype), ids, out=lambda spec: spec
    )


def spread_segments(
    values: Float[Array, "B M"], batch: PackedBatch | ExpandedBatch
) -> Float[Array, "B S"]:
    """Each segment's value at all of its labels; 0 in padding.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]]))
        >>> spread_segments(jnp.array([[0.5, -1.0]]), batch).tolist()
        [[0.5, 0.5, 0.5, -1.0, -1.0]]
    """
    return with_auto_axes(
        _spread, jnp.asarray(values), jnp.asarray(batch.segment_ids), out=lambda spec: spec
    )


def discounted_sums(
    values: Float[Array, "B S"], batch: PackedBatch | ExpandedBatch, decay: float = 1.0
) -> Float[Array, "B S"]:
    """``y[i] = value[i] + decay * y[next]``, where next is the segment's next trained label; 0
    elsewhere.

    If values are rewards, these are returns.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]]))
        >>> discounted_sums(jnp.ones((1, 5)), batch, 0.5).tolist()
        [[1.5, 1.0, 0.0, 1.0, 0.0]]
    """
    _, masked = _ids_and_masked(values, batch)
    mask = jnp.asarray(batch.label_mask)
    return jnp.where(mask, run_backwards(jnp.where(mask, decay, 1.0), masked, batch), 0)


def next_in_segment(values: Any, batch: PackedBatch | ExpandedBatch, distance: int = 1) -> Any:
    """The value of the label ``distance`` positions ahead, if it is in the same segment; 0
    otherwise.

    Example:
        >>> import numpy as np
        >>> from headrace.batch import pack_rows
        >>> batch = pack_rows(np.array([[5, 6, 7, 8, 9]]), segment_lengths=np.array([[3, 2]]))
        >>> next_in_segment(jnp.array([[1, 2, 3, 4, 5]]), batch).tolist()
        [[2, 3, 0, 5, 0]]
    """
    ids = jnp.asarray(batch.segment_ids)
    values = jnp.asarray(values)
    along = [(0, 0, 0), (-distance, distance, 0)]
    ids_there = jax.lax.pad(ids, jnp.asarray(-1, ids.dtype), along)
    moved = jax.lax.pad(values, jnp.asarray(0, values.dtype), along)
    return jnp.where((ids == ids_there) & (ids >= 0), moved, jnp.zeros_like(moved))


def run_backwards(
    decay: Float[Array, "B S"], values: Float[Array, "B S"], batch: PackedBatch | ExpandedBatch
) -> Float[Array, "B S"]:
    """``y[i] = values[i] + decay[i] * y[i + 1]``, from the end of each segment to its beginning."""

    def run(values: Any, decay: Any, ids: Any) -> Any:
        last = jnp.pad(ids[:, 1:] != ids[:, :-1], ((0, 0), (0, 1)), constant_values=True)
        slope = jnp.where(last, 0, decay).astype(values.dtype)
        return jax.lax.associative_scan(_composed, (slope, values), reverse=True, axis=1)[1]

    return with_auto_axes(run, values, decay, jnp.asarray(batch.segment_ids), out=lambda spec: spec)


def _composed(later: tuple[Any, Any], earlier: tuple[Any, Any]) -> tuple[Any, Any]:
    """Composes two steps: ``y -> b + a y`` of the later label, then of the earlier one."""
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]


def _ids_and_masked(
    values: Any, batch: PackedBatch | ExpandedBatch
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    return jnp.asarray(batch.segment_ids), jnp.where(jnp.asarray(batch.label_mask), values, 0)


def _summed(values: Float[Array, "B S"], ids: Int[Array, "B S"], width: int) -> Float[Array, "B M"]:
    rows = jnp.arange(ids.shape[0])[:, None]
    return (
        jnp.zeros((ids.shape[0], width), values.dtype)
        .at[rows, jnp.where(ids < 0, width, ids)]
        .add(values, mode="drop")
    )


def _spread(values: Float[Array, "B M"], ids: Int[Array, "B S"]) -> Float[Array, "B S"]:
    return jnp.where(ids < 0, 0, jnp.take_along_axis(values, jnp.maximum(ids, 0), axis=1))
