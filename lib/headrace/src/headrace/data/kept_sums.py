"""Sums that take long to add up, saved next to the plans of a cache, like anchors in a run's
folder.

The fingerprint in ``<plans>/<fingerprint>/sums.json`` covers everything that the numbers depend on:
data, rows, order and what is counted. The file repeats this, so a lookup is exact. Numbers that are
too many for a record are in ``sums.bin`` next to it (:mod:`headrace.store.vectors`). They only save
time: if the folder is damaged, deleted or not writable, the sums are added up again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Integer

from headrace.data.dataset import PlannedDataset, stored_dataset
from headrace.data.saved_filters import request_digest
from headrace.errors import ConfigError, HeadraceError
from headrace.pack.saved_plans import PLANS_FOLDER
from headrace.store import files
from headrace.store.records import RecordKind, read_record, write_record
from headrace.store.vectors import PiecedVector, VectorWriter

_SUMS = "sums.json"
_VECTOR = "sums.bin"
_IN_RECORD = 4096  # numbers


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    made_from: dict[str, Any]
    numbers: list[int] = []
    vector: dict[str, Any] | None = None  # what describes them, if they are too many


_KIND = RecordKind("sums", 1, _Record)


def plans_of(dataset: PlannedDataset) -> str | None:
    """The folder for sums of a dataset: that of its pack plan, or that of its first cache's plans.
    None if nothing can be written there.
    """
    dataset = stored_dataset(dataset)
    if (plan := getattr(dataset, "plan_path", None)) is not None:
        return str(plan).rpartition("/")[0]
    try:
        cache = dataset.caches()[0]
    except ConfigError:
        return None
    is_there = cache.takes_files and files.exists(cache.path)
    return files.join(cache.path, PLANS_FOLDER) if is_there else None


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
    if folder is None:
        return add_up()
    request = json.loads(json.dumps(made_from))
    root = files.join(folder, request_digest(request)[:32])
    with contextlib.suppress(OSError, HeadraceError):
        record = read_record(files.join(root, _SUMS), _KIND)
        if record is not None and record.made_from == request:
            if record.vector is None:
                return np.array(record.numbers, np.int64)
            return PiecedVector(files.join(root, _VECTOR), record.vector, "sums").loaded()
    numbers = add_up()
    if not worth(numbers):
        return numbers
    with contextlib.suppress(
        OSError, HeadraceError
    ):  # a run must not fail because they cannot be saved
        record = (
            _Record(request, numbers.tolist())
            if numbers.size <= _IN_RECORD
            else _Record(request, vector=_written(files.join(root, _VECTOR), numbers))
        )
        write_record(files.join(root, _SUMS), _KIND, record, shared=True)
    return numbers


def _written(url: str, numbers: Integer[np.ndarray, " n"]) -> dict[str, Any]:
    writer = VectorWriter(url, numbers.dtype.newbyteorder("<").str, "sums")
    try:
        writer.append(numbers)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
