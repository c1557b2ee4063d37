"""The order of documents in a store that was shuffled when it was written: a closed form in both
directions.

Documents form units (1, or 2 for the pairs of a cache of preferences). Whole units are permuted by
:func:`~headrace.order.permutation.permute` under a key of the seed; documents that fill no unit
stay at the end.

Invariant: the position of a document depends only on (documents, seed, unit), whatever wrote the
store with however much memory, and the inverse does too. A shuffled store therefore needs no table:
numbers of filters and hold-outs, which refer to the original, are located in it by arithmetic.

Price: about 50 ns per document in either direction, and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.errors import check_at_least
from headrace.order.permutation import permute, unpermute
from headrace.order.seeds import derive


@dataclass(frozen=True)
class DocumentShuffle:
    """Positions of the documents of a store in its shuffled copy.

    Attributes:
        documents: Number of documents.
        seed: Integer seed.
        unit: Number of neighbouring documents that stay together, in their order.

    Raises:
        ConfigError: ``unit`` below 1, or a seed that is not an integer.

    Example:
        >>> shuffle = DocumentShuffle(documents=7, seed=0, unit=2)
        >>> shuffle.stored_at(np.arange(7)).tolist()
        [2, 3, 4, 5, 0, 1, 6]
        >>> shuffle.originals(np.array([0, 1, 2])).tolist()
        [4, 5, 0]
    """

    documents: int
    seed: int
    unit: int = 1

    def __post_init__(self) -> None:
        derive(self.seed)
        check_at_least("unit", self.unit, cure="1, or 2 for pairs.")

    @property
    def units(self) -> int:
        """Number of whole units, which are permuted."""
        return self.documents // self.unit

    def stored_at(self, originals: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Stored positions of documents of the original; their numbers, below ``documents``, are
        not checked.
        """
        return self._moved(originals, inverse=False)

    def originals(self, stored: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Documents of the original at stored positions; numbers, below ``documents``, are not
        checked.
        """
        return self._moved(stored, inverse=True)

    def _moved(self, numbers: Int64[np.ndarray, " n"], *, inverse: bool) -> Int64[np.ndarray, " n"]:
        numbers = np.asarray(numbers, np.int64)
        if self.units < 2:
            return numbers
        unit, offset = np.divmod(numbers, self.unit)
        full_units = unit < self.units
        unit[full_units] = (unpermute if inverse else permute)(
            unit[full_units], self.units, derive(self.seed, "documents")
        )
        return unit * self.unit + offset
