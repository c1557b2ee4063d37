"""Functions along the rows of a batch, ``[B, S]``: shifts, counts, segment starts; in numpy on the
host, in jax on devices, for any sharding of rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Bool, Int32

T = TypeVar("T")


def with_auto_axes(
    function: Callable[..., T], *arguments: Any, out: Callable[[PartitionSpec], Any]
) -> T:
    """Runs ``function(*arguments)`` with sharding left to the compiler, on any mesh.

    On a mesh with explicit axes, as ``jax.make_mesh`` makes them, types carry the sharding, and
    operations that mix rows of several devices do not type-check. There the function runs as on a
    mesh with automatic axes, and its result gets the sharding from ``out`` (PartitionSpecs of its
    leaves, given that of the first argument's first leaf).
    """
    sharding: Any = jax.typeof(jax.tree.leaves(arguments)[0]).sharding
    mesh = sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return function(*arguments)
    specs = out(PartitionSpec(*sharding.spec))
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    automatic: Any = jax.sharding.auto_axes(function, out_sharding=shardings)
    return automatic(*arguments)


def shifted(values: Any, by: int, fill: Any) -> Any:
    """Values this many positions ahead, or behind (-1). In jax, only ``pad`` type-checks on sharded
    rows.
    """
    if not isinstance(values, np.ndarray):
        around = [(0, 0, 0), (by, -by, 0)] + [(0, 0, 0)] * (values.ndim - 2)
        return jax.lax.pad(values, jnp.asarray(fill, values.dtype), around)
    edge = np.full_like(values[:, : abs(by)], fill)
    return np.concatenate([edge, values[:, :-by]] if by > 0 else [values[:, -by:], edge], axis=1)


def latest(begun: Int32[Any, "B S"]) -> Int32[Any, "B S"]:
    """The largest value so far, along each row."""
    if isinstance(begun, np.ndarray):
        return np.maximum.accumulate(begun, axis=1)
    return with_auto_axes(
        lambda values: jax.lax.cummax(values, axis=1), begun, out=lambda spec: spec
    )


def count_starts(starts: Bool[Any, "B S"]) -> Int32[Any, "B S"]:
    """The number of starts so far, along each row."""
    if isinstance(starts, np.ndarray):
        return starts.cumsum(axis=1, dtype=np.int32)
    return with_auto_axes(
        lambda values: values.cumsum(axis=1, dtype=np.int32), starts, out=lambda spec: spec
    )


def unpacked_bits(tokens: Any, bits: Any) -> Bool[Any, "B S"]:
    """A bit for each token, sharded like the tokens: bit ``i % 8`` of byte ``i // 8`` of a row is
    that of token i.

    Example:
        >>> unpacked_bits(np.zeros((1, 10)), np.array([[5, 2]], np.uint8)).astype(int).tolist()
        [[1, 0, 1, 0, 0, 0, 0, 0, 0, 1]]
    """
    length = tokens.shape[1]
    if isinstance(tokens, np.ndarray):
        return np.unpackbits(bits, axis=1, count=length, bitorder="little").astype(bool)

    def unpack(_: Any, bits: Any) -> Any:
        each = (bits[:, :, None] >> np.arange(8, dtype=np.uint8)) & 1
        return each.reshape(bits.shape[0], -1)[:, :length] != 0

    return with_auto_axes(unpack, tokens, bits, out=lambda spec: spec)


def begins_and_end(begins: Int32[Any, "B S"]) -> Int32[Any, "B S1"]:
    """Positions of starts in ascending order, then the length of the row."""
    xp = np if isinstance(begins, np.ndarray) else jnp
    ends = xp.full_like(begins[:, :1], begins.shape[1])
    return xp.concatenate([xp.sort(begins, axis=1), ends], axis=1).astype(np.int32)


def segment_starts(
    xp: ModuleType, segment_lengths: Int32[Any, "B M"], length: int
) -> Bool[Any, "B S"]:
    """Where segments, and the padding after them, begin."""
    rows = segment_lengths.shape[0]
    ends = segment_lengths.cumsum(axis=1)
    if xp is np:
        starts = np.zeros((rows, length + 1), bool)
        starts[np.arange(rows)[:, None], ends] = (
            True  # after a full row: the column that is cut off
        )
        starts[:, 0] = True
        return starts[:, :length]
    # a comparison and a reduction fuse and keep any sharding; a scatter does not
    position = jnp.arange(length, dtype=np.int32)[None, :]
    return (ends[:, None, :] == position[:, :, None]).any(axis=2) | (position == 0)
