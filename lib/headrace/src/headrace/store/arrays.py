"""Lists of stored arrays, one for each part of a cache or of several; each array is created at its
first use.

Code that plans over all arrays (lengths, numbers of chunks) uses columns; no object is created for
an array until it is read. Price: 8 bytes per array and column, 1 us for the first use of an array.
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
    """Objects by number, each created at its first use.

    Example:
        >>> squares = MadeList(4, lambda number: number**2)
        >>> squares[-1], squares[1:3], len(squares)
        (9, [1, 4], 4)
    """

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size = size
        self._make = make
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
            item = self._made.setdefault(
                numbers, self._make(numbers)
            )  # another thread may have been faster
        return item

    def once(self, number: int) -> T:
        """One of them, without keeping it if it did not exist: for a pass over many."""
        item = self._made.get(number)
        return self._make(number) if item is None else item


class ArrayRun:
    """Arrays of one dtype, in chunks of one size.

    Args:
        lengths: Elements of each.
        chunk: Elements of a chunk.
        dtype: Dtype of all of them; None: placeholders for arrays that do not exist.
        shard_chunks: Chunks per file.
        described: Whether chunks can be requested over HTTP without reading ``zarr.json`` first
            (see :class:`~headrace.store.array.StoredArray`).
        computed: Whether they can be requested without the index of their file, too.
        get: Returns an array by its number.
        pages: Where to read the checksums of their chunks over HTTP, and their leaf.
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
        self.lengths = lengths
        self.chunk = chunk
        self.dtype = dtype
        self.get = get
        self.shard_chunks = shard_chunks
        self.described = described
        self.computed = described and computed
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
        self.lengths: Int64[np.ndarray, " n"] = (
            lengths[0] if len(lengths) == 1 else np.concatenate(lengths)
        )

    @classmethod
    def of(cls, arrays: Sequence[StoredArray]) -> ArrayList:
        """Converts arrays to such a list, unless they are one already."""
        if isinstance(arrays, ArrayList):
            return arrays
        return cls([_run_of(array) for array in arrays])

    @classmethod
    def join(cls, lists: Sequence[ArrayList]) -> ArrayList:
        """Lists one after the other."""
        return cls(list(chain.from_iterable(one.runs for one in lists)))

    @classmethod
    def missing(cls, size: int) -> ArrayList:
        """Placeholders for this many arrays that do not exist."""
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
        run = (
            0
            if len(self.runs) == 1
            else int(np.searchsorted(self._first, number, side="right")) - 1
        )
        return self.runs[run].get(number - int(self._first[run]))

    def page_requests(
        self, arrays: Int64[np.ndarray, " n"], folder: str = "data"
    ) -> list[tuple[ChunkPages, Int64[np.ndarray, " pages"]]]:
        """The distinct pages of checksums that have to be requested to read some of the arrays, or
        the ``offsets`` beside them; see :mod:`headrace.store.chunk_pages`.
        """
        bounds = np.searchsorted(arrays, self._first)
        requests: list[tuple[ChunkPages, np.ndarray]] = []
        for run, first, low, high in zip(
            self.runs, self._first.tolist(), bounds, bounds[1:], strict=False
        ):
            if run.pages is not None and high > low:
                pages, leaf = run.pages
                requests.append((pages, pages.requests(leaf, arrays[low:high] - first, folder)))
        return requests

    def spread(self, values: Sequence[Any]) -> np.ndarray:
        """Expands one value per run to one per array; takes no memory if all are the same."""
        by_run = np.asarray(values, np.int64)
        if by_run.size and (by_run == by_run[0]).all():
            return np.broadcast_to(by_run[0], len(self))
        return np.repeat(by_run, np.diff(self._first))

    def first_chunks(self) -> Int64[np.ndarray, " n1"]:
        """Number of the first chunk of each array, and the end of the last, counting chunks over
        all arrays.
        """
        sizes = {run.chunk for run in self.runs}  # dividing by one number is faster
        size = sizes.pop() if len(sizes) == 1 else self.spread([r.chunk for r in self.runs])
        return starts((self.lengths + (size - 1)) // size)


def _run_of(array: StoredArray) -> ArrayRun:
    length = np.array([array.length])
    shard = array.layout.shard_chunks
    return ArrayRun(
        length, array.chunk_elements, array.dtype, [array].__getitem__, shard_chunks=shard
    )
