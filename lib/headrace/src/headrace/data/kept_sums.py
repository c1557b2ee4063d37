"""Sums that take long to add up, saved next to the plans of a cache, like anchors in a run's
folder.

They are in ``<plans>/<fingerprint>/sums.json`` (:mod:`headrace.store.saved_results`), or, if they
are too many for a record, in ``sums.bin`` next to it. What they are made from are data, rows, order
and what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Integer

from headrace.store import files
from headrace.store.records import RecordKind
from headrace.store.saved_results import ResultRecord, SavedResults
from headrace.store.vectors import PiecedVector, write_vector

_VECTOR = "sums.bin"
_IN_RECORD = 4096  # numbers


class _Record(ResultRecord):
    numbers: list[int] = msgspec.field(default_factory=list[int])
    vector: dict[str, Any] | None = None  # what describes them, if they are too many


def _write(folder: str, made_from: dict[str, Any], sums: Integer[np.ndarray, " n"]) -> _Record:
    if sums.size <= _IN_RECORD:
        return _Record(made_from, sums.tolist())
    return _Record(made_from, vector=write_vector(files.join(folder, _VECTOR), sums, "sums"))


def _read(folder: str, record: _Record) -> Integer[np.ndarray, " n"]:
    if record.vector is None:
        return np.array(record.numbers, np.int64)
    return PiecedVector(files.join(folder, _VECTOR), record.vector, "sums").loaded()


_SUMS = SavedResults(RecordKind("sums", 1, _Record), "sums.json", _write, _read)


def load_or_add_up(
    folder: str | None,
    made_from: Mapping[str, Any],
    add_up: Callable[[], Integer[np.ndarray, " n"]],
    worth: Callable[[Integer[np.ndarray, " n"]], bool] = lambda numbers: True,
) -> Integer[np.ndarray, " n"]:
    """Loads non-negative integers from a folder of plans, or adds them up and saves them there.

    Args:
        folder: Its path or URL; None: they are not saved.
        made_from: Everything that the numbers depend on, as JSON values.
        add_up: Computes them.
        worth: Whether they took so long that they should be saved.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> [
        ...     load_or_add_up(folder, {"order": 1}, lambda: np.arange(k)).tolist() for k in (3, 4)
        ... ]  # once
        [[0, 1, 2], [0, 1, 2]]
    """
    return _SUMS.found_or_made(folder, made_from, add_up, worth)[0]
