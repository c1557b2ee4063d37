"""Compiled packing for :class:`~headrace.pack.stream.WindowedPacks`: bit-identical, several times as fast.

``scripts/compile_kernels.py`` makes ``window_kernel.ll`` of ``window_kernel.c``. Other threads run meanwhile, so that
lengths are read and files written.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from jaxtyping import Bool, Int64

from headrace.native import assemble, assembled


class WindowKernel:
    """The assembled function."""

    def __init__(self) -> None:
        engine = assemble("headrace.pack", "window_kernel.ll")
        integer = ctypes.c_int64
        address = ctypes.c_void_p
        arguments = integer, *[address] * 3, *[integer] * 4, *[address] * 7, integer
        self._call = ctypes.CFUNCTYPE(integer, *arguments)(
            engine.get_function_address("pack_windows")
        )
        self._beside = integer.from_address(engine.get_global_value_address("words_beside")).value

    def __call__(
        self,
        sizes: Int64[np.ndarray, " n"],
        bounds: Int64[np.ndarray, " w1"],
        over: Bool[np.ndarray, " w"],
        settings: tuple[int, int, int, int],
        last: bool,
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " p"], Int64[np.ndarray, " c"]]:
        """Packs windows, one after the other.

        Args:
            sizes: Tokens of all items, each below 2**31: carried items first, then those of the windows.
            bounds: Where the items of each window begin, and where the last window's end.
            over: Whether each window's last item crosses its end.
            settings: Number of carried items, capacity, tolerance, and most candidates.
            last: Whether nothing may be carried after the last window.

        Returns:
            Items of all packs, ascending in each, the number in each pack, and the carried items.
        """
        carried, capacity, tolerance, candidates = settings
        n = sizes.size
        count = np.array([carried])
        order, counts, carry, *_ = scratch = np.empty((7, n), np.int64)
        carry[:carried] = np.arange(carried)
        used = np.zeros(n, np.bool_)
        reached = np.empty(
            (min(candidates, n) + 1) * (capacity // 64 + 1 + self._beside), np.uint64
        )
        dtypes = (np.int64, np.int64, np.bool_)
        inputs = [
            np.ascontiguousarray(*pair) for pair in zip((sizes, bounds, over), dtypes, strict=True)
        ]
        packs = self._call(
            over.size,
            *(a.ctypes.data for a in inputs),
            capacity,
            tolerance,
            candidates,
            int(last),
            *(a.ctypes.data for a in (order, counts, carry, count, scratch[3:], used, reached)),
            n,
        )
        return order[: counts[:packs].sum()].copy(), counts[:packs].copy(), carry[: count[0]].copy()


@cache
def window_kernel() -> WindowKernel | None:
    """The kernel; None if it cannot be assembled."""
    return assembled(
        WindowKernel, "windows are packed without compiled code, which takes several times as long"
    )
