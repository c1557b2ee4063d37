"""``DocumentEnds``: the last tokens of documents within runs of tokens of a cache, from its stored
offsets.

Price: the offsets of a part are read whole when one of its documents is first asked for, and kept:
4 bytes for each document, 8 in parts of 2**32 tokens or more. Then two searches for each run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64, UInt

from headrace.order.intervals import run_numbers
from headrace.store.array import ArrayFuture
from headrace.store.leaf import LeafPart, MadeList

_READS_IN_FLIGHT = 32


class DocumentEnds:
    """Where the documents of a cache end.

    Args:
        parts: The parts of its tokens, in order.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=6)
        >>> cache.lengths(0, 3).tolist()
        [44, 33, 27]
        >>> run, last = cache.document_ends.last_tokens(
        ...     np.array([0, 0]), np.array([40, 60]), np.array([40, 10])
        ... )
        >>> run.tolist(), last.tolist()
        ([0, 0], [3, 36])
    """

    def __init__(self, parts: MadeList[LeafPart]) -> None:
        self._parts = parts
        # By part: one past the last token of each document, ascending. Threads that meet store
        # equal values.
        self._ends: dict[int, UInt[np.ndarray, " d"]] = {}
        self._requests: dict[tuple[int, bool], int] = {}

    def last_tokens(
        self,
        part: Int64[np.ndarray, " n"],
        start: Int64[np.ndarray, " n"],
        size: Int64[np.ndarray, " n"],
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """The last tokens of documents in runs of ``size`` tokens, each within one part.

        Args:
            part: Number of each run's part.
            start: Its first token in the part.
            size: Its tokens.

        Returns:
            For each end: the number of its run, and its position in the run. Empty documents may
            repeat one.

        Raises:
            ReadError: offsets cannot be read.
        """
        by_part = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[by_part], return_index=True)
        self._load(numbers.tolist())
        ends_per_array: list[np.ndarray] = []
        runs: list[np.ndarray] = []
        for number, some in zip(numbers.tolist(), np.split(by_part, begins[1:]), strict=False):
            ends = self._ends[number]
            # A run holds the last token of a document if the end lies behind its first token, and
            # not behind its last.
            first = np.searchsorted(ends, start[some].astype(ends.dtype), side="right")
            stop = np.searchsorted(ends, (start[some] + size[some]).astype(ends.dtype), "right")
            count = stop - first
            run = np.repeat(some, count)
            document = run_numbers(first, count)
            runs.append(run)
            ends_per_array.append(ends[document].astype(np.int64) - 1 - start[run])
        nothing = [np.zeros(0, np.int64)]
        return np.concatenate(runs or nothing), np.concatenate(ends_per_array or nothing)

    def requests(self, part: int, *, described: bool) -> int:
        """Requests over HTTP with which the offsets of a part are read; ``described`` as in
        :class:`~headrace.store.leaf.ArrayRun`. Reads nothing.
        """
        key = (part, described)
        if key not in self._requests:
            offsets = self._parts.once(part).borders
            self._requests[key] = offsets.requests_of_all(described=described)
        return self._requests[key]

    def _load(self, numbers: Iterable[int]) -> None:
        """Reads the offsets of parts that are not there yet, several at a time."""
        flying: deque[tuple[int, ArrayFuture]] = deque()

        def take() -> None:
            number, read = flying.popleft()
            offsets = read.result()
            fits = int(offsets[-1]) < 1 << 32
            self._ends[number] = offsets[1:].astype(np.uint32 if fits else np.uint64)

        for number in numbers:
            if number in self._ends:
                continue
            offsets = self._parts.once(number).borders  # an open one takes 70 KB
            flying.append((number, offsets.read(0, offsets.length)))
            if len(flying) > _READS_IN_FLIGHT:
                take()
        while flying:
            take()
