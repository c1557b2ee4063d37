"""Where documents begin, for saving a plan: added as lengths are read, looked up by document."""

from __future__ import annotations

import threading

import numpy as np
from jaxtyping import Int64

_MOST_CHUNKS = 64  # the range in which documents are looked up


class DocumentStarts:
    """Where documents begin in the stream of all parts, collected as lengths arrive. Planning looks
    up ever later ones.

    Example:
        >>> starts = DocumentStarts()
        >>> starts.add(np.array([3, 0, 4]))
        >>> starts.add(np.array([5]))
        >>> starts.of(np.array([3, 1, 2]))
        array([7, 3, 3])
    """

    def __init__(self) -> None:
        self._documents = self._tokens = 0
        # Replaced, never modified: one thread adds, another looks up.
        self._chunks: list[tuple[int, np.ndarray]] = []
        self._lock = threading.Lock()

    def add(self, lengths: Int64[np.ndarray, " n"]) -> None:
        """Adds the tokens of the next documents, including those left out of the plan."""
        with self._lock:
            ends = np.cumsum(lengths) + self._tokens
            self._chunks = [*self._chunks, (self._documents, ends - lengths)]
            self._documents += lengths.size
            self._tokens = int(ends[-1]) if ends.size else self._tokens

    def of(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The first token of each document. Documents that were forgotten or have not arrived must
        not be passed.
        """
        with self._lock:
            if len(self._chunks) > _MOST_CHUNKS:
                self._chunks = [
                    (self._chunks[0][0], np.concatenate([starts for _, starts in self._chunks]))
                ]
            chunks = self._chunks
        out = np.empty(documents.size, np.int64)
        chunk = np.searchsorted([first for first, _ in chunks], documents, side="right") - 1
        for number in np.unique(chunk).tolist():
            first, starts = chunks[number]
            some = slice(None) if len(chunks) == 1 else chunk == number
            out[some] = starts[documents[some] - first]
        return out

    def forget(self, document: int) -> None:
        """Drops all documents before this one: they will not be looked up again."""
        with self._lock:
            count = sum(first <= document for first, _ in self._chunks)
            self._chunks = self._chunks[max(count - 1, 0) :]
