"""What the columns beside ready ids say: where the documents of a packed record begin, and which
ids are trained on.

Tools name and count these differently: ``source.BOUNDS`` and ``source.TOKEN_MASKS`` say what each
name means, the two tables here what each meaning does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.ingest.records import (
    BadRecordError,
    numbers,
    type_name,
)

Stretches: TypeAlias = Sequence[tuple[int, int]]
"""First and last place (exclusive) of each document of a record."""


_NO_LABEL = -100


def _starts_by_length(lengths: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where documents of these lengths begin between ``start`` and ``stop``, the ids that are no
    padding.
    """
    counts = numbers(lengths, "int64", field, bools=False)
    if (counts < 0).any() or int(counts.sum()) != stop - start:
        raise BadRecordError(
            f"has {stop - start} ids, and lengths of documents in field {field!r} that do not sum"
            " up to it"
        )
    return [start, *(start + np.cumsum(counts)[:-1]).tolist()]


def _starts_by_bounds(bounds: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where documents begin by the bounds of all of them, 0 first, which count padding or not."""
    borders = numbers(bounds, "int64", field, bools=False)
    last = int(borders[-1]) if borders.size else -1
    if last not in (size, stop - start) or borders[0] != 0 or (np.diff(borders) < 0).any():
        raise BadRecordError(
            f"has {size} ids, and bounds in field {field!r} that do not increase from 0 to it",
            "Write the bounds of all documents: [0, 5, 9] for two of 5 and 4 ids.",
        )
    if last != size:
        borders = borders + start
    inside = np.clip(borders[:-1], start, stop)
    return [start, *np.unique(inside[(inside > start) & (inside < stop)]).tolist()]


def _restarts(positions: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where ``position_ids`` begin again at 0, which is where the next document begins."""
    values = one_for_each_id(positions, field, size)
    stretch = values[start:stop]
    if not stretch.size:
        return [start]
    is_start = stretch == 0
    is_start[0] = True
    wrong = np.flatnonzero(~is_start[1:] & (np.diff(stretch) != 1))
    if stretch[0] != 0 or wrong.size:
        at = start if stretch[0] != 0 else start + 1 + int(wrong[0])
        raise BadRecordError(
            f"has the position {int(values[at])} at place {at} of field {field!r}, neither 0 nor"
            " one more than before",
            "Positions count from 0 in each document.",
        )
    return (start + np.flatnonzero(is_start)).tolist()


def _changes(numbers_of_documents: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    """Where the number of the document changes that each id belongs to."""
    values = one_for_each_id(numbers_of_documents, field, size)
    changes = np.flatnonzero(np.diff(values[start:stop])) + 1
    return [start, *(start + changes).tolist()]


def one_for_each_id(value: Any, field: str, size: int, cure: str = "") -> np.ndarray:
    """The whole numbers of a column, int64 ``[size]``.

    Raises:
        BadRecordError: they are not as many as the ids.
    """
    values = numbers(value, "int64", field, bools=False, cure=cure)
    if values.size != size:
        raise BadRecordError(f"has {size} ids and {values.size} numbers in field {field!r}", cure)
    return values


def _refuse_starts(starts: Any, field: str, start: int, stop: int, size: int) -> list[int]:
    raise BadRecordError(
        f"has a {field}, as rows packed by NeMo have, whose loss_mask says of each id whether the"
        " next one is trained on",
        "Write seq_lengths in place of it, and a loss_mask that belongs to the id itself.",
    )


STARTS: dict[str, Callable[[Any, str, int, int, int], list[int]]] = {
    "lengths": _starts_by_length,
    "bounds": _starts_by_bounds,
    "positions": _restarts,
    "numbers": _changes,
    "packed by NeMo": _refuse_starts,
}
"""By what a column says: where the documents of a packed record begin."""


class Column(NamedTuple):
    """A column of a record that says which ids are trained on."""

    name: str
    field: str
    value: Any

    def ids(self) -> np.ndarray:
        return numbers(self.value, "int64", self.field, bools=False)

    def part_of(self, stretches: Stretches) -> np.ndarray:
        """Its ids, which are a part of the record's only document."""
        if len(stretches) > 1:
            problem = f"has {len(stretches)} documents, and field {self.field!r} belongs to one"
            raise BadRecordError(problem)
        return self.ids()


def _marked(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    name, field, value = column
    if not isinstance(value, np.ndarray | list | tuple):
        raise BadRecordError(
            f"holds a {type_name(value)} in field {field!r}, not a 0 or 1 for each id"
        )
    values = numbers(value, "float64", field)
    if values.size != ids.size:
        raise BadRecordError(f"has {ids.size} ids and {values.size} numbers in field {field!r}")
    if not np.isin(values, (0, 1)).all():
        raise BadRecordError(
            f"has {ids.size} ids, and not a 0 or 1 for each in its {field}",
            f"Keep weights as a leaf: --field {name}=none --leaf"
            f" loss_weights={field}:float32:token.",
        )
    return values.astype(np.uint8)


def _not_marked(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    return 1 - _marked(column, ids, stretches)


def _labelled(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """1 where the label is the id itself, 0 where it is -100: transformers shifts labels within the
    model.
    """
    field = column.field
    labels = one_for_each_id(column.value, field, ids.size)
    trained = labels != _NO_LABEL
    wrong = np.flatnonzero(trained & (labels != ids))
    if wrong.size:
        at = int(wrong[0])
        next_ids = np.append(ids[1:], labels[-1:])
        is_shifted = bool((labels == next_ids)[trained].all())
        cure = (
            f"They are shifted by one: write them unshifted, {field}[i] beside input_ids[i], as"
            " transformers does."
            if is_shifted
            else f"Give an id of input_ids or {_NO_LABEL} at each place."
        )
        raise BadRecordError(
            f"has the label {int(labels[at])} at position {at} of field {field!r}, where the"
            f" id is {int(ids[at])}",
            cure,
        )
    return trained.astype(np.uint8)


def _after_prompts(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """0 at the first ids of each document, as many as a number says, or a list with one for each
    document.
    """
    is_list = isinstance(column.value, np.ndarray | list | tuple)
    value = column.value if is_list else [column.value]
    lengths = numbers(value, "int64", column.field, bools=False).tolist()
    if len(lengths) != len(stretches):
        raise BadRecordError(
            f"has {len(stretches)} documents, and {len(lengths)} numbers in field {column.field!r}"
        )
    mask = np.ones(ids.size, np.uint8)
    for (start, stop), length in zip(stretches, lengths, strict=True):
        if not 0 <= length <= stop - start:
            raise BadRecordError(
                f"has a document of {stop - start} ids, of which {length} are the prompt by field"
                f" {column.field!r}"
            )
        mask[start : start + length] = 0
    return mask


def _after_prompt(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    prompt = column.part_of(stretches)
    start, stop = stretches[0]
    if not np.array_equal(prompt, ids[start:stop][: prompt.size]):
        raise BadRecordError(f"has ids that do not begin with those of field {column.field!r}")
    return (np.arange(ids.size) >= start + prompt.size).astype(np.uint8)


def _within_completion(column: Column, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    completion = column.part_of(stretches)
    start, stop = stretches[0]
    begin = stop - completion.size
    if begin < start or not np.array_equal(completion, ids[begin:stop]):
        raise BadRecordError(f"has ids that do not end with those of field {column.field!r}")
    return (np.arange(ids.size) >= begin).astype(np.uint8)


MASKS: dict[str, Callable[[Column, np.ndarray, Stretches], np.ndarray]] = {
    "trained": _marked,
    "weights": _marked,
    "untrained": _not_marked,
    "labels": _labelled,
    "prompt length": _after_prompts,
    "prompt": _after_prompt,
    "completion": _within_completion,
}
"""By what a column says: a 1 for each id that is trained on by it, uint8 ``[ids]``, else a 0."""
