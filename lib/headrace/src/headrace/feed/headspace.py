"""Batches replayed from the devices' own memory: the speed that training would reach with a perfect loader.

Each batch handed out is a copy of its own, made on the device, so that a training step may donate it. Every process
copies its own shards: nothing is exchanged. Price: the replayed batches stay in device memory, and a few copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp


def replay(batches: Iterator[Any]) -> Iterator[Any]:
    """Fresh copies of these batches, over and over, without end (none if there are none)."""
    held = list(batches)
    while held:
        for batch in held:
            yield fresh_copy(batch)


def fresh_copy(batch: Any) -> Any:
    """The same global arrays in memory of their own: one small program a device."""
    leaves, structure = jax.tree.flatten(batch)
    shards: dict[Any, list[jax.Array]] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            shards.setdefault(shard.device, []).append(shard.data)
    copies = {device: iter(_copied(held)) for device, held in shards.items()}
    fresh = [
        jax.make_array_from_single_device_arrays(
            leaf.shape, leaf.sharding, [next(copies[shard.device]) for shard in leaf.addressable_shards]
        )
        for leaf in leaves
    ]
    return jax.tree.unflatten(structure, fresh)


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]
