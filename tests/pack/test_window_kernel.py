"""Windowed packing in C is what a few lines of Python say."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack import stream
from headrace.pack.items import Packed
from headrace.pack.spec import PackSpec


def pack_windows(
    sizes: np.ndarray,
    bounds: np.ndarray,
    over: np.ndarray,
    settings: tuple[int, int, int, int],
    last: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See :func:`~headrace.pack.stream.pack_windows`."""
    size: list[int] = sizes.tolist()
    carried = list(range(settings[0]))
    packs = list[list[int]]()
    for (first, stop), runs_over in zip(pairwise(bounds.tolist()), over.tolist(), strict=True):
        final = last and stop == len(size)
        carried = _pack_window(
            carried, range(first, stop), size, settings[1], packs, over=runs_over, last=final
        )
    if last and carried:
        carried = _pack_window(carried, range(0), size, settings[1], packs, over=False, last=True)
    number = np.array([k for pack in packs for k in sorted(pack)], np.int64)
    return number, np.array([len(pack) for pack in packs], np.int64), np.array(carried, np.int64)


def _pack_window(
    carried: list[int],
    fresh: range,
    sizes: list[int],
    capacity: int,
    packs: list[list[int]],
    *,
    over: bool,
    last: bool,
) -> list[int]:
    """Packs the carried items and those of a window that fill packs. Returns what is carried on,
    sorted. ``over``: the window's last item crosses its end and is carried. ``last``: nothing may
    be carried.
    """
    running = [fresh[-1]] if over and not last else []
    window = fresh[:-1] if running else fresh
    waiting = sorted(carried, key=sizes.__getitem__, reverse=True)
    due = len(waiting)  # the leading items that must be packed
    waiting += sorted(window, key=sizes.__getitem__, reverse=True)
    size = [sizes[k] for k in waiting]
    total = sum(size)
    while waiting and (last or due or total >= capacity):
        chosen, gap = _choose(size, due, capacity)
        if not (last or due) and gap * stream._TOLERANCE > capacity:
            break
        packs.append([waiting[k] for k in chosen])
        due -= sum(k < due for k in chosen) if due else 0
        total -= capacity - gap
        for k in sorted(chosen, reverse=True):
            del waiting[k], size[k]
    return sorted(waiting) + running


def _choose(sizes: list[int], due: int, capacity: int) -> tuple[list[int], int]:
    """Chooses a pack: as many of the first ``due`` items as fit, or the first, then what fills it
    best. Returns positions in ``sizes``, and the space left (negative for an item larger than a
    pack).
    """
    space = capacity - sizes[0]
    chosen = [0]
    for k in range(1, due):
        if sizes[k] <= space:
            chosen.append(k)
            space -= sizes[k]
    if space <= 0:
        return chosen, space
    gaps = 1 << space  # bit g: some of the items tried so far leave a gap of g
    history = [gaps]
    start = max(due, 1)
    most = min(len(sizes), start + stream._CANDIDATES)
    while start < most and sizes[start] > space:
        start += 1
    for size in sizes[start:most]:
        gaps |= gaps >> size
        history.append(gaps)
        if gaps & 1:
            break
    at = start + len(history) - 1
    rest = gap = (gaps & -gaps).bit_length() - 1
    tried = len(history) - 1
    while gap < space:  # back to the gap before anything was taken
        tried -= 1
        if not history[tried] >> gap & 1:
            chosen.append(start + tried)
            gap += sizes[start + tried]
    for k in range(at, len(sizes) if rest else at):
        if sizes[k] <= rest:
            chosen.append(k)
            rest -= sizes[k]
    return chosen, rest


def packs(spec, chunks, arrays=None):
    packed = Packed.join(list(stream.PackStream(spec, arrays).plan(chunks)))
    return [values.tolist() for values in (*packed.items, packed.item_counts)]


def check_equal(spec, chunks, arrays=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "pack_windows", pack_windows)
        wanted = packs(spec, chunks, arrays)
    assert packs(spec, chunks, arrays) == wanted


@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=120),
    capacity=st.sampled_from([1, 7, 63, 64, 65, 100, 128, 300]),
    window=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 120), max_size=3),
    parts=st.lists(st.integers(0, 120), max_size=2),
    long=st.sampled_from(["keep", "split", "truncate"]),
)
def test_packs_are_those_of_python(lengths, capacity, window, cuts, parts, long):
    chunks = np.split(np.array(lengths), sorted(cuts))
    ends = sorted({*(n for n in parts if n < len(lengths)), 0, len(lengths)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CANDIDATES", 9)  # what more would be tried is taken as it comes
        spec = PackSpec(capacity, "windowed", long, block_tokens=window * capacity)
        check_equal(spec, chunks, np.diff(ends))


@pytest.mark.parametrize("capacity", [1000, 2048, 4096])
def test_packs_of_documents_as_long_as_in_use(capacity):
    drawn = np.exp(np.random.default_rng(1).standard_normal(50_000)) * 600
    lengths = np.clip(np.rint(drawn), 1, 9000).astype(np.int64)
    check_equal(PackSpec(capacity, "windowed", "split"), np.split(lengths, [7, 30_000]))


@pytest.mark.parametrize(
    "lengths", [np.ones(40_000, np.int64), np.full(3, 2**31 - 1), np.arange(4097)[::-1]]
)
def test_packs_of_documents_of_one_token_and_of_huge_ones(lengths):
    check_equal(PackSpec(4096, "windowed", "keep"), [lengths])


def test_packs_of_many_items():
    drawn = np.random.default_rng(2).integers(0, 6, 60_000)
    check_equal(PackSpec(1 << 14, "windowed", "split"), [drawn])


@pytest.mark.parametrize("seed", range(8))
def test_items_of_more_than_31_bits_are_packs_of_their_own(seed):
    random = np.random.default_rng(seed)
    huge = random.integers(1 << 31, 1 << 36, 40)
    lengths = np.where(random.random(40) < 0.3, huge, random.integers(1, 90, 40))
    check_equal(PackSpec(100, "windowed", "keep"), [lengths])
