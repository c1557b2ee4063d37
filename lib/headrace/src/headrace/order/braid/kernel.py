"""Rows of braids from compiled code (``native/braid.c``), at the same price for any number of
components.

NumPy would pass over all rows for each of about 100 operations; here one row is computed after the
other, and what the rows of a component have in common once per epoch.

Price: 0.07 us per row in windows of steps, 0.12 us in batches of 1,024; 15 us per call.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt64

from headrace.native import native_library
from headrace.order.braid.spec import BraidSpec
from headrace.order.permutation import rectangle

_SHORT = 1 << 14  # rows of a call during which other threads may wait for the interpreter
_MOST_PLACED = 1 << 12


class BraidKernel:
    """The compiled function."""

    def __init__(self) -> None:
        library = native_library()
        self._short = library.short_calls.braid_rows
        self._long = library.calls.braid_rows
        self._spec_bytes = library.calls.spec_bytes()
        self._epoch_bytes = library.calls.epoch_bytes()
        self._placed_bytes = library.calls.placed_bytes()

    def rows(
        self,
        specs: UInt64[np.ndarray, "d f"],
        component: Integer[np.ndarray, " m"] | None,
        ordinal: Int64[np.ndarray, " m"],
        first_epoch: Int64[np.ndarray, " m"] | None,
    ) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """As :meth:`~headrace.order.braid.table.BraidRows.__call__`, given the :func:`spec_fields`
        of the braids.

        Raises:
            IndexError: no such component.
        """
        assert specs.strides == (self._spec_bytes, 8)
        shape = np.broadcast_shapes(
            *(v.shape for v in (component, ordinal, first_epoch) if v is not None)
        )
        arrays = [
            None
            if values is None
            else np.ascontiguousarray(np.broadcast_to(values, shape), np.int64)
            for values in (component, ordinal, first_epoch)
        ]
        rows = np.empty(shape, np.int64)
        where = np.empty(shape)
        if not rows.size:
            return rows, where
        if arrays[0] is not None and not 0 <= int(arrays[0].min()) <= int(arrays[0].max()) < len(
            specs
        ):
            raise IndexError(f"components {arrays[0].min()} .. {arrays[0].max()} of {len(specs)}")
        epochs = 1 << (min(len(specs), 2 * rows.size) - 1).bit_length()
        placed = min(_MOST_PLACED, 1 << (rows.size // 2).bit_length())
        scratch = np.zeros(epochs * self._epoch_bytes + placed * self._placed_bytes, np.uint8)
        addresses = [None if values is None else values.ctypes.data for values in (specs, *arrays)]
        at = scratch.ctypes.data
        out = (rows.ctypes.data, where.ctypes.data)
        call = self._short if rows.size <= _SHORT else self._long
        call(
            rows.size, *addresses, at, epochs - 1, at + epochs * self._epoch_bytes, placed - 1, *out
        )
        return rows, where


def spec_fields(spec: BraidSpec) -> UInt64[np.ndarray, "d f"]:
    """The fields of the structure ``Spec`` for each braid."""
    columns = [*spec, *rectangle(spec.full_blocks), *rectangle(spec.n)]
    return np.stack(
        [np.ascontiguousarray(np.broadcast_to(c, spec.n.shape)).view(np.uint64) for c in columns],
        axis=1,
    )


@cache
def braid_kernel() -> BraidKernel:
    """The kernel, made once."""
    return BraidKernel()
