"""Compiled packing for :class:`~headrace.pack.stream.WindowedPacks`: bit-identical, seven times as fast.

Used if ``numba`` is installed (``headrace[numba]``) and there are many documents. It releases the GIL, so that lengths
are read and files written meanwhile. Price: ten to twenty seconds to compile once (cached in ``__pycache__``), a few
seconds to load.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64
from numba import njit  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


@njit(nogil=True, cache=True)
def pack_windows(
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
    order, counts = np.empty(sizes.size, np.int64), np.empty(sizes.size, np.int64)
    carry, waiting, size = (
        np.empty(sizes.size, np.int64),
        np.empty(sizes.size, np.int64),
        np.empty(sizes.size, np.int64),
    )
    carry[:carried] = np.arange(carried)
    history = np.empty((candidates + 1, capacity // 64 + 1), np.uint64)
    chosen, used = np.empty(sizes.size, np.int64), np.zeros(sizes.size, np.bool_)
    items = packs = 0
    for window in range(over.size + 1):
        if window == over.size and not (last and carried):
            break
        first, stop = (bounds[window], bounds[window + 1]) if window < over.size else (sizes.size, sizes.size)
        final = last and stop == sizes.size
        running = stop > first and not final and over[window]
        due = carried
        count = _ranked(carry[:carried], sizes, waiting, size, 0)
        count = _ranked(np.arange(first, stop - running), sizes, waiting, size, count)
        total = size[:count].sum()
        while count and (final or due or total >= capacity):
            number, gap = _choose(size[:count], due, capacity, candidates, history, chosen)
            if not (final or due) and gap * tolerance > capacity:
                break
            due -= _mark(chosen[:number], waiting, due, used, order[items : items + number])
            counts[packs] = number
            items, packs, total = items + number, packs + 1, total - capacity + gap
            count = _without(waiting, size, used, count)
        carry[:count] = np.sort(waiting[:count])
        carried = count
        if running:
            carry[carried] = stop - 1
            carried += 1
    return order[:items], counts[:packs], carry[:carried].copy()


@njit(nogil=True, cache=True)
def _ranked(items: np.ndarray, sizes: np.ndarray, left: np.ndarray, size: np.ndarray, count: int) -> int:
    """Merges items into those left, largest first, equal sizes in order. Returns how many are left."""
    keys = np.sort((-sizes[items] << 32) + np.arange(items.size))
    for key in keys:
        item = items[key & 0xFFFFFFFF]
        left[count], size[count] = item, sizes[item]
        count += 1
    return count


@njit(nogil=True, cache=True)
def _mark(chosen: np.ndarray, left: np.ndarray, due: int, used: np.ndarray, pack: np.ndarray) -> int:
    """Writes the items of a pack, sorted, and returns how many of them were due."""
    were_due = 0
    for nth in range(chosen.size):
        used[chosen[nth]] = True
        were_due += chosen[nth] < due
        item, slot = left[chosen[nth]], nth
        while slot and pack[slot - 1] > item:  # there are only a few
            pack[slot] = pack[slot - 1]
            slot -= 1
        pack[slot] = item
    return were_due


@njit(nogil=True, cache=True)
def _without(left: np.ndarray, size: np.ndarray, used: np.ndarray, count: int) -> int:
    """Removes the used items. Returns how many are left."""
    count_left = 0
    for nth in range(count):
        if used[nth]:
            used[nth] = False
        else:
            left[count_left], size[count_left] = left[nth], size[nth]
            count_left += 1
    return count_left


@njit(nogil=True, cache=True)
def _choose(
    sizes: np.ndarray, due: int, capacity: int, candidates: int, history: np.ndarray, chosen: np.ndarray
) -> tuple[int, int]:
    """Like :func:`headrace.pack.stream._choose`: returns how many positions it wrote to ``chosen``, and the space left.
    Row k of ``history`` has a bit for each gap that some of the first k items leave.
    """
    space, number = capacity - sizes[0], 1
    chosen[0] = 0
    for nth in range(1, due):
        if sizes[nth] <= space:
            chosen[number] = nth
            number += 1
            space -= sizes[nth]
    if space <= 0:
        return number, space
    words, start, tried = space // 64 + 1, max(due, 1), 0
    most = min(sizes.size, start + candidates)
    while start < most and sizes[start] > space:
        start += 1
    history[0, :words] = 0
    history[0, space // 64] = np.uint64(1) << np.uint64(space % 64)
    while start + tried < most and not history[tried, 0] & np.uint64(1):
        _shift(history[tried], history[tried + 1], words, sizes[start + tried])
        tried += 1
    row, gap = tried, 0
    while not _has(history[row], gap):
        gap += 1
    rest = gap
    while gap < space:  # back to the gap before anything was taken
        row -= 1
        if not _has(history[row], gap):
            chosen[number] = start + row
            number += 1
            gap += sizes[start + row]
    if rest:
        for nth in range(start + tried, sizes.size):
            if sizes[nth] <= rest:
                chosen[number] = nth
                number += 1
                rest -= sizes[nth]
    return number, rest


@njit(nogil=True, cache=True)
def _has(bits: np.ndarray, bit: int) -> bool:
    return (bits[bit // 64] >> np.uint64(bit % 64)) & np.uint64(1) != 0


@njit(nogil=True, cache=True)
def _shift(bits: np.ndarray, out: np.ndarray, words: int, size: int) -> None:
    """``out = bits | bits >> size``, for bits in this many 64-bit words."""
    skip, rest = size // 64, np.uint64(size % 64)
    full_words = max(words - skip, 0)  # words that receive shifted bits
    low = bits[skip:]
    if rest == 0:
        for k in range(full_words):
            out[k] = bits[k] | low[k]
    elif full_words:
        high = low[1:]  # slices of one row, so that this compiles to vector code
        for k in range(full_words - 1):
            out[k] = bits[k] | low[k] >> rest | high[k] << (np.uint64(64) - rest)
        out[full_words - 1] = bits[full_words - 1] | low[full_words - 1] >> rest
    for k in range(full_words, words):
        out[k] = bits[k]
