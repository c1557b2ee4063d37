"""Lists of stored arrays, one for each part of a cache or of several, of which each is made at its first use.

Whoever plans over all arrays (how long each is, how many chunks it has) takes columns; nothing is made for an array
until somebody reads it. Price: 8 bytes an array and column, 1 us for the first use of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

import numpy as np
from jaxtyping import Int64

from headrace.order.rising import starts
from headrace.store.array import StoredArray
from headrace.store.chunk_pages import ChunkPages

T = TypeVar("T")


class MadeList(Sequence[T], Generic[T]):
    """Things by number, each made when it is first asked for.

    Example:
        >>> squares = MadeList(4, lambda number: number**2)
        >>> squares[-1], squares[1:3], len(squares)
        (9, [1, 4], 4)
    """

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size, self._make = size, make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(self._size)[index]
        if not isinstance(numbers, int):
            return [self[number] for number in numbers]
        item = self._made.get(numbers)
        if item is None:
            item = self._made.setdefault(numbers, self._make(numbers))  # another thread may have been faster
        return item

    def once(self, number: int) -> T:
        """One of them, which is not kept if it was not made before: for a pass over many."""
        item = self._made.get(number)
        return self._make(number) if item is None else item


class ArrayRun:
    """Arrays of one dtype, in chunks of one size.

    Args:
        lengths: Elements of each.
        chunk: Elements of a chunk.
        dtype: Of all of them; None: there are none, but places for them.
        shard_chunks: Chunks of a file.
        described: Whether chunks are asked for, over HTTP, without asking for ``zarr.json`` first (see
            :class:`~headrace.store.array.StoredArray`).
        computed: Whether they are asked for without the index of their file, too.
        get: An array by its number.
        pages: Where the checksums of their chunks are read from, over HTTP, and of which leaf they are.
    """

    def __init__(
        self,
        lengths: Int64[np.ndarray, " n"],
        chunk: int,
        dtype: np.dtype[Any] | None,
        get: Callable[[int], StoredArray | None],
        *,
        shard_chunks: int = 1,
        described: bool = False,
        computed: bool = False,
        pages: tuple[ChunkPages, str] | None = None,
    ) -> None:
        self.lengths, self.chunk, self.dtype, self.get = lengths, chunk, dtype, get
        self.shard_chunks, self.described, self.computed = shard_chunks, described, described and computed
        self.pages = pages

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0: nothing is stored."""
        return 0 if self.dtype is None else self.dtype.itemsize


class ArrayList(Sequence[StoredArray]):
    """Arrays, run after run.

    Attributes:
        runs: What they are made of.
        lengths: Elements of each array.

    Example:
        >>> import headrace.testing
        >>> arrays = headrace.testing.tiny_cache(parts=3).leaf("input_ids").arrays
        >>> len(arrays), bool((arrays.lengths == [array.length for array in arrays]).all())
        (3, True)
    """

    def __init__(self, runs: Sequence[ArrayRun]) -> None:
        self.runs = tuple(runs)
        self._first = np.cumsum([0, *(run.lengths.size for run in self.runs)])
        lengths = [run.lengths for run in self.runs] or [np.zeros(0, np.int64)]
        self.lengths: Int64[np.ndarray, " n"] = lengths[0] if len(lengths) == 1 else np.concatenate(lengths)

    @classmethod
    def of(cls, arrays: Sequence[StoredArray]) -> ArrayList:
        """These arrays as such a list; it is one already unless somebody made them by hand."""
        if isinstance(arrays, ArrayList):
            return arrays
        return cls([_run_of(array) for array in arrays])

    @classmethod
    def join(cls, lists: Sequence[ArrayList]) -> ArrayList:
        """Lists one after the other."""
        return cls(list(chain.from_iterable(one.runs for one in lists)))

    @classmethod
    def missing(cls, size: int) -> ArrayList:
        """Places of so many arrays that do not exist."""
        return cls([ArrayRun(np.zeros(size, np.int64), 1, None, dict[int, StoredArray]().get)])

    def __len__(self) -> int:
        return int(self._first[-1])

    @overload
    def __getitem__(self, index: int) -> StoredArray: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredArray]: ...
    def __getitem__(self, index: int | slice) -> StoredArray | list[StoredArray]:
        numbers = range(len(self))[index]
        if not isinstance(numbers, int):
            return [self[number] for number in numbers]
        array = self.get(numbers)
        if array is None:
            raise IndexError(f"array {index} is not stored")
        return array

    def get(self, number: int) -> StoredArray | None:
        """An array by its number; None if it is not stored."""
        run = 0 if len(self.runs) == 1 else int(np.searchsorted(self._first, number, side="right")) - 1
        return self.runs[run].get(number - int(self._first[run]))

    def page_requests(self, arrays: Int64[np.ndarray, " n"]) -> list[tuple[ChunkPages, Int64[np.ndarray, " pages"]]]:
        """The pages of checksums that have to be asked for to read some of the arrays, all different; see
        :mod:`headrace.store.chunk_pages`.
        """
        bounds = np.searchsorted(arrays, self._first)
        requests: list[tuple[ChunkPages, np.ndarray]] = []
        for run, first, low, high in zip(self.runs, self._first.tolist(), bounds, bounds[1:], strict=False):
            if run.pages is not None and high > low:
                requests.append((run.pages[0], run.pages[0].requests(run.pages[1], arrays[low:high] - first)))
        return requests

    def spread(self, values: Sequence[Any], dtype: Any = np.int64) -> np.ndarray:
        """A value of each run, as one of each array; takes no memory where all are the same."""
        by_run = np.asarray(values, dtype)
        if by_run.size and (by_run == by_run[0]).all():
            return np.broadcast_to(by_run[0], len(self))
        return np.repeat(by_run, np.diff(self._first))

    def first_chunks(self) -> Int64[np.ndarray, " n1"]:
        """Where the chunks of each array begin, and the last end, if those of all are numbered."""
        sizes = {run.chunk for run in self.runs}  # dividing by one number is faster
        size = sizes.pop() if len(sizes) == 1 else self.spread([r.chunk for r in self.runs])
        return starts((self.lengths + (size - 1)) // size)


def _run_of(array: StoredArray) -> ArrayRun:
    length, shard = np.array([array.length]), array.layout.shard_chunks
    return ArrayRun(length, array.chunk_elements, array.dtype, [array].__getitem__, shard_chunks=shard)
