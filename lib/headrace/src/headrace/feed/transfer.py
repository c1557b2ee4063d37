"""Host arrays to global, sharded arrays: ``jax.make_array_from_callback`` with its work done once
per kind of array.

For each array, JAX works out which part goes to which device, the type of the array, and whether
everything fits. This takes 14 of the 18 us that an array takes on a CPU, and depends only on shape,
dtype and sharding. So JAX makes the first array of a kind. For the next ones, this module calls the
function that JAX calls last, ``batched_device_put``, with the type and devices of the first. That
function is not public: in a release of JAX without it, every array is made like the first.

Price: 4 us per array, 1 us more for each further device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding


@cache
def batched_device_put() -> Callable[..., jax.Array] | None:
    """JAX's function that puts one host array on each device; None if this release has no function
    of that name.
    """
    try:
        return import_module("jax._src.lib").xla_client.batched_device_put
    except (ImportError, AttributeError):
        return None


class Transfer:
    """Makes global arrays of one shape and sharding.

    Args:
        shape: Shape of the global arrays.
        sharding: Sharding of the global arrays.
        local_index: Maps the index of a part of the global array to its index in the local one,
            both tuples of slices.

    Example:
        >>> sharding = NamedSharding(
        ...     jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data")
        ... )
        >>> transfer = Transfer((4, 2), sharding, lambda index: index)
        >>> [int(transfer(np.full((4, 2), value, np.int32)).sum()) for value in (1, 5)]
        [8, 40]
    """

    def __init__(
        self,
        shape: Sequence[int],
        sharding: NamedSharding,
        local_index: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    ) -> None:
        self._shape = tuple(shape)
        self._sharding = sharding
        self._local_index = local_index
        self._put: Callable[..., jax.Array] | None = None
        self._aval: Any = None
        self._devices: list[Any] = []
        self._parts: list[tuple[Any, ...]] = []

    def __call__(self, local: np.ndarray) -> jax.Array:
        """The global array of a local one. Local arrays must always have the same shape and dtype.
        The local array belongs to the global one from now on: on CPU devices they share memory.
        """
        if self._put is not None:
            return self._put(
                self._aval, self._sharding, [local[part] for part in self._parts], self._devices
            )
        array = jax.make_array_from_callback(
            self._shape, self._sharding, lambda index: local[self._local_index(index or ())]
        )
        if (
            array.dtype == local.dtype
        ):  # JAX may store 8-byte values in 4 bytes: then it converts each array
            indices = self._sharding.addressable_devices_indices_map(self._shape)
            self._devices = list(indices)
            self._parts = [self._local_index(index or ()) for index in indices.values()]
            self._aval, self._put = array.aval, batched_device_put()
        return array
