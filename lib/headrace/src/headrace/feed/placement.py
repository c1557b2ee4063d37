"""Which rows of a batch this process must hold, and how they become a global, sharded array or a
``PackedBatch``.

Only tokens in the store's dtype and a few numbers per row travel to the devices. No kernel runs
here: a training step derives everything else that it needs itself (batch/packed_batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int64, Shaped

from headrace.batch.packed_batch import PackedBatch
from headrace.errors import ConfigError, check_choice, did_you_mean


def batch_sharding(mesh: Mesh | None, batch_axis: str | Sequence[str] | None) -> NamedSharding:
    """Sharding of ``[B, S]`` arrays: rows over ``batch_axis``, replicated over the mesh's other
    axes.

    Args:
        mesh: Device mesh; None: all devices of all processes along one axis ``"data"``.
        batch_axis: Name or names of mesh axes; None: ``"data"`` if the mesh has it, else its first
            axis.

    Raises:
        ConfigError: the mesh has no such axis.
    """
    mesh = Mesh(np.asarray(jax.devices()), ("data",)) if mesh is None else mesh
    if not isinstance(mesh, Mesh):
        raise ConfigError(
            "is no mesh",
            field="mesh",
            value=mesh,
            cure="Give a jax.sharding.Mesh: jax.make_mesh(...).",
        )
    names: list[str] = [str(n) for n in mesh.axis_names]
    if batch_axis is None:
        batch_axis = "data" if "data" in names else names[0]
    axes = (batch_axis,) if isinstance(batch_axis, str) else tuple(batch_axis)
    if not axes:
        raise ConfigError(
            "names no axis", field="batch_axis", value=batch_axis, cure=did_you_mean("", names)
        )
    for axis in axes:
        check_choice("batch_axis", axis, names, f"is not an axis of the mesh {dict(mesh.shape)}")
    return NamedSharding(mesh, PartitionSpec(axes[0] if len(axes) == 1 else axes))


class Placement:
    """Places the rows of a batch on devices, according to a sharding of ``[B, S]`` arrays."""

    def __init__(self, sharding: NamedSharding) -> None:
        if not isinstance(sharding, NamedSharding):
            raise ConfigError(
                "does not say which mesh axes split a batch",
                field="sharding",
                value=sharding,
                cure="Give a NamedSharding(mesh, PartitionSpec(...)).",
            )
        if len(sharding.spec) > 2:
            raise ConfigError(
                "must be a sharding of [batch, sequence]", field="sharding", value=sharding.spec
            )
        self.sharding = sharding
        self._local: dict[int, Int64[np.ndarray, " n"]] = {}
        self._columns: dict[int, tuple[int, int]] = {}
        self._transfers: dict[tuple[Any, ...], Transfer] = {}

    @cached_property
    def rows_sharding(self) -> NamedSharding:
        """Sharding of ``[B]`` arrays."""
        return NamedSharding(self.sharding.mesh, PartitionSpec(*self.sharding.spec[:1]))

    def _ways(self, entry: Any) -> tuple[tuple[str, ...], int]:
        """The mesh axes that an entry of the sharding names, and the number of parts that they
        split an array into.
        """
        axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        return axes, int(np.prod([self.sharding.mesh.shape[a] for a in axes], dtype=np.int64))

    @property
    def sequence_ranks(self) -> int:
        """The number of parts that sequences are split into."""
        return self._ways(self.sharding.spec[1])[1] if len(self.sharding.spec) > 1 else 1

    def check(self, batch_size: int, seq_len: int) -> None:
        """Raises ConfigError unless a batch divides evenly over the mesh axes."""
        for size, field, entry in zip(
            (batch_size, seq_len), ("batch_size", "seq_len"), self.sharding.spec, strict=False
        ):
            axes, ways = self._ways(entry)
            if size % ways:
                lower = size // ways * ways
                upper = -(-size // ways) * ways
                raise ConfigError(
                    f"is not divisible by mesh axis {'x'.join(axes)!r} of size {ways}",
                    field=field,
                    value=size,
                    cure=f"Use {f'{lower} or ' if lower else ''}{upper}, or another mesh.",
                )

    def local_rows(self, batch_size: int) -> Int64[np.ndarray, " n"]:
        """Rows of the global batch that devices of this process hold, ascending, without
        duplicates.
        """
        if batch_size not in self._local:
            is_local = np.zeros(batch_size, bool)
            for index in self.rows_sharding.addressable_devices_indices_map((batch_size,)).values():
                is_local[index] = True
            self._local[batch_size] = np.flatnonzero(is_local)
        return self._local[batch_size]

    def local_columns(self, seq_len: int) -> tuple[int, int]:
        """The first column of any row that devices of this process hold, and one past the last.

        All columns between them count as held: a process whose devices hold the two ends of a row
        gets all of it.
        """
        if seq_len not in self._columns:
            over_columns = NamedSharding(
                self.sharding.mesh, PartitionSpec(None, *self.sharding.spec[1:])
            )
            indices = over_columns.addressable_devices_indices_map((1, seq_len)).values()
            bounds = [index[1].indices(seq_len)[:2] for index in indices if index is not None]
            begin = min((b for b, _ in bounds), default=0)
            end = max((e for _, e in bounds), default=seq_len)
            self._columns[seq_len] = begin, end
        return self._columns[seq_len]

    def _local_slice(self, batch_size: int) -> Callable[[slice], slice]:
        """A function from rows of the global batch to rows of the local one."""
        first = self.local_rows(batch_size)
        if first.size == batch_size:
            return lambda rows: rows

        def local_slice(rows: slice) -> slice:
            start, stop, _ = rows.indices(batch_size)
            at = int(np.searchsorted(first, start))
            return slice(at, at + stop - start)

        return local_slice

    def to_global(
        self,
        local: Shaped[np.ndarray, "n ..."],
        batch_size: int,
        *,
        along_rows: bool = False,
        seq_len: int | None = None,
    ) -> jax.Array:
        """The global array whose rows :meth:`local_rows` are ``local``.

        Args:
            local: Rows of this process.
            batch_size: Rows of the global array.
            along_rows: Whether to keep rows whole even if the sharding splits sequences.
            seq_len: Columns of the global array; ``local`` has :meth:`local_columns` of them. None:
                it has them all.

        On CPU devices the array may share memory with ``local``: do not write to it afterwards.
        """
        transfer = self.transfer(local, batch_size, along_rows=along_rows, seq_len=seq_len)
        return transfer(local)

    def transfer(
        self,
        local: Shaped[np.ndarray, "n ..."],
        batch_size: int,
        *,
        along_rows: bool = False,
        seq_len: int | None = None,
    ) -> Transfer:
        """What makes global arrays of local ones like this; see :meth:`to_global`."""
        key = local.shape, local.dtype, batch_size, along_rows, seq_len
        if key not in self._transfers:
            self._transfers[key] = self._new_transfer(local.shape, batch_size, along_rows, seq_len)
        return self._transfers[key]

    def _new_transfer(
        self, local_shape: tuple[Any, ...], batch_size: int, along_rows: bool, seq_len: int | None
    ) -> Transfer:
        sharding = self.rows_sharding if along_rows or len(local_shape) == 1 else self.sharding
        rows = self._local_slice(batch_size)
        if seq_len is None or local_shape[1:2] == (seq_len,):
            return Transfer(
                (batch_size, *local_shape[1:]), sharding, lambda index: (rows(index[0]), *index[1:])
            )
        first = self.local_columns(seq_len)[0]
        shape = (batch_size, seq_len, *local_shape[2:])

        def local_index(index: tuple[Any, ...]) -> tuple[Any, ...]:
            begin, end, _ = index[1].indices(seq_len)
            return rows(index[0]), slice(begin - first, end - first)

        return Transfer(shape, sharding, local_index)


_FIELDS = {
    "tokens": "token_ids",
    "source_id": "source_id",
    "segment_lengths": "segment_lengths",
    "document_ends": "document_ends",
    "row_weights": "weights",
    "token_mask": "token_mask",
}
"""Arrays of :class:`HostRows`, in the order of a batch's leaves, and their names in a batch."""
_OF_TOKENS = "tokens", "token_mask"
"""Those that have values of tokens; the others have values of rows."""


class HostRows(NamedTuple):
    """This process's rows of one batch, as they travel to the devices.

    Attributes:
        tokens: ``[local rows, local columns]`` in the stores' dtype; padding rows are zeros.
        source_id: int32 ``[local rows]``; -1 for padding rows.
        segment_lengths: int32 ``[local rows, M]``, or None if the sources do not know their
            segments.
        document_ends: uint8 ``[local rows, W]``, where documents end in whole rows, or None if rows
            are not divided.
        row_weights: float32 ``[local rows, 1]``, the weight of each row's loss, or None if all are
            equal.
        token_mask: uint8 or float32 ``[local rows, local columns]``, 0 where a token is not trained
            on, or None if all tokens are trained on.
        extras: Other columns by name, ``[local rows, local columns, ...]``, or None if there are
            none.
        seq_len: Elements of a whole row; ``tokens`` has those of them that this process holds.
        batch_size: Rows of the global batch.
    """

    tokens: np.ndarray
    source_id: np.ndarray
    segment_lengths: np.ndarray | None
    document_ends: np.ndarray | None
    row_weights: np.ndarray | None
    token_mask: np.ndarray | None
    extras: dict[str, np.ndarray] | None
    seq_len: int
    batch_size: int

    def named(self) -> dict[str, np.ndarray]:
        """Its arrays but the extras, by name."""
        return {name: one for name in _FIELDS if (one := getattr(self, name)) is not None}

    def arrays(self) -> list[np.ndarray]:
        """Its arrays, in the order of the leaves of a batch."""
        extras = self.extras or {}
        arrays = [one for one in list[Any](self)[: len(_FIELDS)] if one is not None]
        return arrays + [extras[name] for name in sorted(extras)]

    def part(self, rows: slice, batch_size: int) -> HostRows:
        """Some of the rows, of a batch of this size."""
        fields = list[Any](self)[: len(_FIELDS)]
        arrays: list[Any] = [None if one is None else one[rows] for one in fields]
        extras = self.extras and {name: values[rows] for name, values in self.extras.items()}
        return HostRows(*arrays, extras=extras, seq_len=self.seq_len, batch_size=batch_size)


class BatchMaker:
    """Makes batches of a dataset from arrays without a Module's constructor, which costs as much as
    all transfers.

    ``eos_id`` and ``pairs`` are those of the batches.
    """

    def __init__(self, eos_id: int | None, pairs: bool) -> None:
        self._eos_id = eos_id
        self._pairs = pairs
        self._structures: dict[tuple[Any, ...], Any] = {}

    def of_host(self, host: HostRows) -> PackedBatch:
        """The rows as a batch on the host."""
        return self._structure(host).unflatten(host.arrays())

    def of_devices(
        self, placement: Placement, group: list[HostRows], ready: list[PackedBatch]
    ) -> None:
        """Moves batches of equal shapes from ``group`` to the devices of a placement, and adds
        them to ``ready``, one by one. Their arrays belong to the batches from now on.

        Batches share no arrays, so a training step may donate everything that it gets.
        """
        structure = self._structure(group[0])
        transfers = _transfers(group[0], placement)
        while group:
            arrays = group.pop(0).arrays()
            ready.append(
                structure.unflatten([put(one) for put, one in zip(transfers, arrays, strict=True)])
            )

    def _structure(self, host: HostRows) -> Any:
        """The tree structure that makes a batch of the leaves."""
        names = tuple(host.named())
        key = names, tuple(host.extras or ())
        if key not in self._structures:
            leaf = np.zeros(0)
            batch = PackedBatch(
                **{_FIELDS[name]: leaf for name in names},
                eos_id=self._eos_id,
                pairs=self._pairs,
                extras=host.extras and dict.fromkeys(host.extras, leaf),
            )
            self._structures[key] = jax.tree.structure(batch)
        return self._structures[key]


def _transfers(host: HostRows, placement: Placement) -> list[Transfer]:
    """What moves each of :meth:`HostRows.arrays`."""
    of_tokens = [name in _OF_TOKENS for name in host.named()] + [True] * len(host.extras or ())
    return [
        placement.transfer(one, host.batch_size, seq_len=host.seq_len)
        if has_tokens
        else placement.transfer(one, host.batch_size, along_rows=True)
        for one, has_tokens in zip(host.arrays(), of_tokens, strict=True)
    ]


def fresh_copy(batch: Any) -> Any:
    """The same global arrays in memory of their own: one small program per device, no
    communication.
    """
    leaves, structure = jax.tree.flatten(batch)
    shards: dict[Any, list[jax.Array]] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            shards.setdefault(shard.device, []).append(shard.data)
    copies = {device: iter(_copied(of_device)) for device, of_device in shards.items()}
    fresh = [
        jax.make_array_from_single_device_arrays(
            leaf.shape,
            leaf.sharding,
            [next(copies[shard.device]) for shard in leaf.addressable_shards],
        )
        for leaf in leaves
    ]
    return jax.tree.unflatten(structure, fresh)


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


def count_untrained(mask: np.ndarray) -> int:
    """The number of rows that are all zeros. Nearly all others show it in their first entries.

    Example:
        >>> count_untrained(np.array([[0.0, 0.5], [0.0, 0.0]]))
        1
    """
    suspects = np.flatnonzero(~mask[:, :16].any(axis=1))
    return int((~mask[suspects].any(axis=1)).sum())


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
    """Makes global arrays of one shape and sharding: ``jax.make_array_from_callback`` with its work
    done once per kind of array.

    For each array, JAX works out which part goes to which device, the type of the array, and
    whether everything fits. This takes 14 of the 18 us that an array takes on a CPU, and depends
    only on shape, dtype and sharding. So JAX makes the first array of a kind. For the next ones,
    this calls the function that JAX calls last, ``batched_device_put``, with the type and devices
    of the first. That function is not public: in a release of JAX without it, every array is made
    like the first.

    Price: 4 us per array, 1 us more for each further device.

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
        # JAX may store 8-byte values in 4 bytes: then it converts each array.
        if array.dtype == local.dtype:
            indices = self._sharding.addressable_devices_indices_map(self._shape)
            self._devices = list(indices)
            self._parts = [self._local_index(index or ()) for index in indices.values()]
            self._aval, self._put = array.aval, batched_device_put()
        return array
