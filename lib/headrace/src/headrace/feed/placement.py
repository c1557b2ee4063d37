"""Which rows of a batch this process must hold, and how local rows become one global, sharded array."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64, Shaped

from headrace.errors import ConfigError, did_you_mean


def all_devices_mesh() -> Mesh:
    """A one-axis mesh ``("data",)`` over all devices of all processes."""
    return Mesh(np.asarray(jax.devices()), ("data",))


def batch_sharding(mesh: Mesh | None, batch_axis: str | Sequence[str] | None) -> NamedSharding:
    """Sharding of ``[B, S]`` arrays: rows over ``batch_axis``, replicated over the mesh's other axes.

    Args:
        mesh: None: all devices along one axis ``"data"``.
        batch_axis: Name or names of mesh axes; None: ``"data"`` if the mesh has it, else its first axis.

    Raises:
        ConfigError: the mesh has no such axis.
    """
    mesh = all_devices_mesh() if mesh is None else mesh
    names: list[str] = [str(n) for n in mesh.axis_names]
    if batch_axis is None:
        batch_axis = "data" if "data" in names else names[0]
    axes = (batch_axis,) if isinstance(batch_axis, str) else tuple(batch_axis)
    if not axes:
        raise ConfigError("names no axis", field="batch_axis", value=batch_axis, cure=did_you_mean("", names))
    for axis in axes:
        if axis not in names:
            raise ConfigError(
                f"is not an axis of the mesh {dict(mesh.shape)}",
                field="batch_axis",
                value=axis,
                cure=did_you_mean(axis, names),
            )
    return NamedSharding(mesh, PartitionSpec(axes[0] if len(axes) == 1 else axes))


class Placement:
    """Where the rows of a batch go.

    Args:
        sharding: Sharding of ``[B, S]`` arrays.

    Raises:
        ConfigError: the sharding has more than two dimensions.
    """

    def __init__(self, sharding: NamedSharding) -> None:
        if len(sharding.spec) > 2:
            raise ConfigError("must be a sharding of [batch, sequence]", field="sharding", value=sharding.spec)
        self.sharding = sharding
        self._local: dict[int, Int64[np.ndarray, " n"]] = {}

    @cached_property
    def rows_sharding(self) -> NamedSharding:
        """Sharding of ``[B]`` arrays."""
        return NamedSharding(self.sharding.mesh, PartitionSpec(*self.sharding.spec[:1]))

    def check(self, batch_size: int, seq_len: int) -> None:
        """Raises ConfigError unless a batch divides evenly over the mesh axes."""
        for size, field, entry in zip(
            (batch_size, seq_len), ("batch_size", "seq_len"), self.sharding.spec, strict=False
        ):
            axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            ways = int(np.prod([self.sharding.mesh.shape[a] for a in axes], dtype=np.int64))
            if size % ways:
                lower, upper = size // ways * ways, -(-size // ways) * ways
                raise ConfigError(
                    f"is not divisible by mesh axis {'x'.join(axes)!r} of size {ways}",
                    field=field,
                    value=size,
                    cure=f"Use {f'{lower} or ' if lower else ''}{upper}, or another mesh.",
                )

    def local_rows(self, batch_size: int) -> Int64[np.ndarray, " n"]:
        """Rows of the global batch that devices of this process hold, ascending, each once."""
        if batch_size not in self._local:
            held = np.zeros(batch_size, bool)
            for index in self.rows_sharding.addressable_devices_indices_map((batch_size,)).values():
                held[index] = True
            self._local[batch_size] = np.flatnonzero(held)
        return self._local[batch_size]

    def to_global(self, local: Shaped[np.ndarray, "n ..."], batch_size: int) -> jax.Array:
        """The global array whose rows :meth:`local_rows` are ``local``.

        On CPU devices the array may share memory with ``local``: do not write to it afterwards.
        """
        first = self.local_rows(batch_size)
        sharding = self.rows_sharding if local.ndim == 1 else self.sharding

        def shard(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            at = int(np.searchsorted(first, start))
            return local[(slice(at, at + stop - start), *index[1:])]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, shard)
