"""Packing of :class:`~headrace.pack.stream.WindowedPacks` by compiled code, ``native/windows.c``.

Other threads run meanwhile, so that lengths are read and files written.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Bool, Int64

from headrace.native import native_library

_MOST = (1 << 31) - 1


class WindowKernel:
    """The compiled function."""

    def __init__(self) -> None:
        library = native_library()
        self._call = library.calls.pack_windows
        self._beside = library.calls.words_beside()

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
            sizes: Tokens of all items: carried items first, then those of the windows.
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
        # Items of 2**31 tokens and more are larger than any pack, and each is one of its own, in
        # whatever order
        sizes = np.minimum(sizes, _MOST)
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
def window_kernel() -> WindowKernel:
    """The kernel, made once."""
    return WindowKernel()
