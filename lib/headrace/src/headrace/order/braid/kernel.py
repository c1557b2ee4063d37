"""Compiled braids: bit-identical to :mod:`headrace.order.braid.table`, at the same price for any number of components.

NumPy passes over all rows for each of about 100 operations; ``kernel.c`` computes one row after the other, and what the
rows of a component have in common once per epoch. ``scripts/compile_kernels.py`` makes ``kernel.ll`` of it.

Price: 0.07 us per row, 10 us per call, 0.03 s to assemble.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt64

from headrace.native import assemble, assembled
from headrace.order.braid.spec import BraidSpec
from headrace.order.permutation import rectangle

_WORTH = 4096  # rows of a call that are worth loading LLVM
_SHORT = 1 << 14  # rows of a call during which other threads may wait for the interpreter
_MOST_PLACED = 1 << 12
_EPOCH_FIELDS, _PLACED_FIELDS = 42, 5  # 8-byte fields of the structures Epoch and Placed


class BraidKernel:
    """The assembled function."""

    def __init__(self) -> None:
        self._engine = assemble("headrace.order.braid", "kernel.ll")  # its memory holds the function
        address = self._engine.get_function_address("braid_rows")
        arguments = None, ctypes.c_uint64, *[ctypes.c_void_p] * 6, ctypes.c_uint64, *[ctypes.c_void_p] * 2
        self._short, self._long = ctypes.PYFUNCTYPE(*arguments)(address), ctypes.CFUNCTYPE(*arguments)(address)

    def rows(
        self,
        specs: UInt64[np.ndarray, "d f"],
        component: Integer[np.ndarray, " m"] | None,
        ordinal: Int64[np.ndarray, " m"],
        first_epoch: Int64[np.ndarray, " m"] | None,
    ) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """As :meth:`~headrace.order.braid.table.BraidRows.__call__`, given the :func:`spec_fields` of the braids."""
        rows, where = np.empty(ordinal.size, np.int64), np.empty(ordinal.size)
        placed = min(_MOST_PLACED, 1 << (ordinal.size // 2).bit_length())
        scratch = np.zeros(len(specs) * _EPOCH_FIELDS + placed * _PLACED_FIELDS, np.uint64)
        arrays = [
            None if values is None else np.ascontiguousarray(values, np.int64)
            for values in (component, ordinal, first_epoch)
        ]
        addresses = [None if values is None else values.ctypes.data for values in (specs, *arrays)]
        epochs, out = scratch.ctypes.data, (rows.ctypes.data, where.ctypes.data)
        call = self._short if ordinal.size <= _SHORT else self._long
        call(ordinal.size, *addresses, epochs, epochs + 8 * len(specs) * _EPOCH_FIELDS, placed - 1, *out)
        return rows, where


def spec_fields(spec: BraidSpec) -> UInt64[np.ndarray, "d f"]:
    """The fields of the structure ``Spec`` for each braid."""
    columns = [*spec, *rectangle(spec.full_blocks), *rectangle(spec.n)]
    return np.stack([np.ascontiguousarray(np.broadcast_to(c, spec.n.shape)).view(np.uint64) for c in columns], axis=1)


@cache
def _kernel() -> BraidKernel | None:
    return assembled(BraidKernel, "rows are placed without compiled code, which takes up to eight times as long")


def braid_kernel(rows: int) -> BraidKernel | None:
    """The kernel; None if it cannot be assembled, or is not yet and this call has too few rows to do so."""
    return _kernel() if rows >= _WORTH or _kernel.cache_info().currsize else None
