"""Where documents begin, for whoever saves a plan: told by those who read the lengths, asked for by document."""

from __future__ import annotations

import threading

import numpy as np
from jaxtyping import Int64

_MOST_CHUNKS = 64  # between which documents are looked for


class DocumentStarts:
    """Where documents begin in the stream of all parts, as their lengths arrive: what is planned needs some, and later
    ones.

    Example:
        >>> starts = DocumentStarts()
        >>> starts.add(np.array([3, 0, 4]))
        >>> starts.add(np.array([5]))
        >>> starts.of(np.array([3, 1, 2]))
        array([7, 3, 3])
    """

    def __init__(self) -> None:
        self._documents = self._tokens = 0
        self._chunks: list[tuple[int, np.ndarray]] = []  # replaced, not changed: one thread adds, another one asks
        self._lock = threading.Lock()

    def add(self, lengths: Int64[np.ndarray, " n"]) -> None:
        """Tokens of the next documents, those that are left out of the plan included."""
        with self._lock:
            ends = np.cumsum(lengths) + self._tokens
            self._chunks = [*self._chunks, (self._documents, ends - lengths)]
            self._documents += lengths.size
            self._tokens = int(ends[-1]) if ends.size else self._tokens

    def of(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The first token of each document. Those that were forgotten, or are not there yet, are not looked for."""
        with self._lock:
            if len(self._chunks) > _MOST_CHUNKS:
                self._chunks = [(self._chunks[0][0], np.concatenate([starts for _, starts in self._chunks]))]
            chunks = self._chunks
        out = np.empty(documents.size, np.int64)
        chunk = np.searchsorted([first for first, _ in chunks], documents, side="right") - 1
        for number in np.unique(chunk).tolist():
            first, starts = chunks[number]
            some = slice(None) if len(chunks) == 1 else chunk == number
            out[some] = starts[documents[some] - first]
        return out

    def forget(self, document: int) -> None:
        """Nobody asks for documents before this one any more."""
        with self._lock:
            count = sum(first <= document for first, _ in self._chunks)
            self._chunks = self._chunks[max(count - 1, 0) :]
