"""The part of a row exchange that runs on the devices: arrays with pools become batches
(:mod:`headrace.feed.exchange` decides what goes where).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64


def holders_of(sharding: NamedSharding) -> Int64[np.ndarray, " n"]:
    """For each shard of a batch's rows, the number (from 0) of the processes that hold it.

    ``sharding`` is that of ``[B]`` arrays. Shards have the same number if they are in the same
    process at each position of the other mesh axes: what is read for one of them is available to
    the other.
    """
    shards = row_shards(sharding)
    processes: dict[int, list[int]] = {}
    for device, (rows,) in sharding.devices_indices_map((shards,)).items():
        processes.setdefault(rows.indices(shards)[0], []).append(device.process_index)
    numbers: dict[tuple[int, ...], int] = {}
    return np.asarray(
        [numbers.setdefault(tuple(processes[k]), len(numbers)) for k in range(shards)]
    )


def row_shards(sharding: NamedSharding) -> int:
    """Number of shards into which rows are split."""
    return int(
        np.prod([sharding.mesh.shape[axis] for axis in _row_axes(sharding.spec)], dtype=np.int64)
    )


class PooledRows(NamedTuple):
    """A batch before the exchange: arrays whose shards have a pool after their share of the rows.

    Attributes:
        arrays: The batch: a ``HostRows``, or any pytree of arrays with ``[rows and pools]`` first;
            on the host, then on the devices.
        origin: int32 ``[rows]``, position of each row of the batch: in its shard's share or, after
            that, in the pools of all shards. On the host: the rows of this process.
        batch_size: Rows of the batch.
        array_size: Rows of the arrays, with the pools.
    """

    arrays: Any
    origin: Any
    batch_size: int
    array_size: int


def exchange_rows(pooled: PooledRows) -> Any:
    """The batch with its rows in place. A collective: all processes of the mesh must call it in the
    same order.
    """
    leaves, structure = jax.tree.flatten(pooled.arrays)
    sharding = pooled.origin.sharding
    program = _program(sharding.mesh, sharding.spec, tuple(leaf.sharding for leaf in leaves))
    return jax.tree.unflatten(structure, program(pooled.origin, leaves))


@functools.lru_cache(maxsize=64)
def _program(
    mesh: Mesh, rows: PartitionSpec, shardings: tuple[NamedSharding, ...]
) -> Callable[..., list[jax.Array]]:
    axes = _row_axes(rows)
    specs = [sharding.spec for sharding in shardings]

    def of_shard(origin: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        # 8. One collective for all arrays, as bytes: of several, each would have its own latency.
        #    The index of the result is that of step 7: the own share first, then all pools.
        share = origin.shape[0]
        pools = [leaf[share:] for leaf in leaves]
        gathered = jax.lax.all_gather(
            jnp.concatenate([_as_bytes(pool) for pool in pools], 1), axes, tiled=True
        )
        ends = np.cumsum([pool[:1].nbytes for pool in pools])[:-1].tolist()
        return [
            jnp.take(
                jnp.concatenate([leaf[:share], _from_bytes(part, leaf)]), origin, 0, mode="clip"
            )
            for leaf, part in zip(leaves, jnp.split(gathered, ends, 1), strict=True)
        ]

    exchanged = jax.shard_map(
        of_shard, mesh=mesh, in_specs=(rows, specs), out_specs=specs, check_vma=False
    )
    return jax.jit(exchanged, out_shardings=list(shardings))


def _as_bytes(rows: jax.Array) -> jax.Array:
    """Rows as uint8 ``[rows, bytes of a row]``, so that one collective carries all arrays."""
    rows = rows.astype(jnp.uint8) if rows.dtype == jnp.bool_ else rows
    return jax.lax.bitcast_convert_type(rows, jnp.uint8).reshape(rows.shape[0], -1)


def _from_bytes(rows: jax.Array, like: jax.Array) -> jax.Array:
    """Rows with the dtype and row shape of another array."""
    if like.dtype == jnp.bool_:
        return rows.reshape(-1, *like.shape[1:]).astype(jnp.bool_)
    width = () if like.dtype.itemsize == 1 else (like.dtype.itemsize,)
    return jax.lax.bitcast_convert_type(rows.reshape(-1, *like.shape[1:], *width), like.dtype)


def _row_axes(spec: PartitionSpec) -> tuple[str, ...]:
    entry = spec[0] if len(spec) else None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
