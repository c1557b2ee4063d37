"""Token ids from other tools, and what the columns beside them say: where the documents of a packed
record begin, and which ids are trained on.

Tools name and count these differently: ``source.BOUNDS`` and ``source.TOKEN_MASKS`` say what each
name means, the tables :data:`STARTS` and :data:`MASKS` what each meaning does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from headrace.ingest.documents import LOSS_MASK, Document, DocumentKind, EncodedBatch
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    FieldValue,
    containers_of,
    is_list,
    joined,
    lookup,
    names_in,
    sizes_of,
)
from headrace.ingest.source import (
    BOUNDS,
    FIELDS,
    TOKEN_MASKS,
)
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

_OF_IDS = ("tokens", "question", "answer")
"""What holds ids, all or a part of them."""


class TokensKind(DocumentKind):
    """Token ids from other tools: stored unchanged, without special tokens."""

    @property
    def specs(self) -> list[LeafSpec]:
        return [LOSS_MASK, *super().specs] if self._masks else super().specs

    @cached_property
    def _masks(self) -> list[str]:
        return [name for name in TOKEN_MASKS if self.is_required(name)]

    @cached_property
    def _of_ids(self) -> list[str]:
        """The fields that hold ids."""
        return [self.reads[name].field for name in _OF_IDS if name in self.reads]

    @cached_property
    def _siblings(self) -> dict[str, str]:
        """What the table of columns knows, within a field that holds ids, and is not read."""
        return {
            field: name
            for container in {field.rpartition(".")[0] for field in self._of_ids} - {""}
            for name, usual in FIELDS["tokens"].items()
            if name == usual
            and name not in self.config.fields
            and (field := f"{container}.{name}") not in self.columns.names
        }

    def documents(self, record: Fields) -> Sequence[Document]:
        if self._siblings:
            self._refuse_siblings(record)
        if "tokens" not in self.reads:
            parts = [self._read(record, name) for name in ("question", "answer")]
        else:
            parts = [self._read(record, "tokens")]
        ids = np.concatenate([part.numbers("int64", bools=False) for part in parts])
        stretches = list(self._stretches(record, ids.size))
        visible_columns = slice(stretches[0][0], stretches[-1][1])
        outside = (ids[visible_columns] < 0) | (ids[visible_columns] >= self.tokenizer.vocab_size)
        if outside.any():
            at = visible_columns.start + int(np.flatnonzero(outside)[0])
            raise BadRecordError(
                f"holds the id {int(ids[at])} at position {at}, outside the vocabulary of"
                f" {self.tokenizer.vocab_size}",
                "Give the tokenizer that it was made with.",
            )
        mask = self._mask(record, ids, stretches)
        leaves = self._leaves(record)
        for spec, values in zip(self._asked, leaves, strict=True):
            if spec.width is not None and values.size != spec.width * ids.size:
                field = self.config.leaves[spec.name].field
                each = "a number" if spec.width == 1 else f"{spec.width} numbers"
                raise BadRecordError(
                    f"has {ids.size} ids, and not {each} for each in field {field!r}"
                )
        ids = ids.astype(self.tokenizer.dtype)
        documents: list[Document] = []
        for start, stop in stretches:
            own_leaves = tuple(
                values if spec.width is None else values[start * spec.width : stop * spec.width]
                for spec, values in zip(self._asked, leaves, strict=True)
            )
            own_ids = ids[start:stop]
            own_mask = None if mask is None else mask[start:stop]
            documents.append(Document("", own_ids.nbytes, own_leaves, ids=own_ids, mask=own_mask))
        return documents

    def _refuse_siblings(self, record: Fields) -> None:
        """Raises BadRecordError if a column that says something about the ids is beside them in
        another field, and nothing says whether it is to be read.
        """
        there = [
            field
            for field in names_in(record, containers_of(self._of_ids))
            if field in self._siblings and lookup(record, field) is not None
        ]
        if there:
            names = [self._siblings[field] for field in there]
            use = " ".join(
                f"--field {name}={field}" for name, field in zip(names, there, strict=True)
            )
            leave = " ".join(f"--field {name}=none" for name in names)
            raise BadRecordError(
                f"has {', '.join(there)} beside its ids, and nothing says whether to read it",
                f"Say {use} to read it. Or leave it unused: {leave}.",
            )

    def _mask(self, record: Fields, ids: np.ndarray, stretches: Stretches) -> np.ndarray | None:
        """Which ids are trained on: those that every mask of the record marks; None: the source has
        no masks.
        """
        mask = np.ones(ids.size, np.uint8)
        for meaning, column in self._columns(record, TOKEN_MASKS):
            name = column.name
            if name in self._masks:
                mask &= MASKS[meaning](column, ids, stretches)
            elif column.value is not None:
                raise BadRecordError(
                    f"has a {column.field}, and the first record of the source has none",
                    f"Say --field {name}={column.field} if all have one, or --field {name}=none to"
                    " train without it.",
                )
        return mask if self._masks else None

    def _columns(
        self, record: Fields, meanings: Mapping[str, str]
    ) -> Iterator[tuple[str, FieldValue]]:
        """The columns of a record that a table knows, each after what it says."""
        for name, meaning in meanings.items():
            read = self.reads.get(name)
            if read is not None and (read.field in record or not read.is_optional):
                yield meaning, read.of(record)

    def _stretches(self, record: Fields, size: int) -> Iterator[tuple[int, int]]:
        """Where the documents of the record are: without padding, and those of a packed record
        apart.
        """
        start, stop = self._unpadded(record, size)
        starts: list[int] = [start]
        decided_by = ""
        for meaning, column in self._columns(record, BOUNDS):
            if column.value is None:
                continue
            own_starts = STARTS[meaning](column, start, stop, size)
            if decided_by and set(own_starts) != set(starts):
                raise column.bad(
                    f"has documents that begin elsewhere by its {decided_by} than by its"
                    f" {column.field}"
                )
            if not decided_by:
                starts = own_starts
                decided_by = column.field
        yield from itertools.pairwise([*starts, stop])

    def _unpadded(self, record: Fields, size: int) -> tuple[int, int]:
        """First and last place (exclusive) that ``attention_mask`` shows to the model."""
        column = self._read(record, "attention_mask")
        if column.value is None or not size:
            return 0, self._end_of_segments(record, size)
        values = column.numbers("int64")
        attended = np.flatnonzero(values)
        if values.size != size or (values[attended] != 1).any():
            cure = (
                "If it numbers the documents of a packed record: --field attention_mask=none"
                f" --field segment_ids={column.field}."
            )
            problem = f"has {size} ids, and not a 0 or 1 for each in its {column.field}"
            raise column.bad(problem, cure if values.size == size else "")
        if not attended.size:
            return 0, 0
        start = int(attended[0])
        stop = int(attended[-1]) + 1
        if attended.size != stop - start:
            at = start + int(np.flatnonzero(values[start:stop] == 0)[0])
            raise BadRecordError(
                f"hides position {at} by its {column.field}, between others that it shows",
                "Only padding before and after the ids can be left out; to read all ids: --field"
                " attention_mask=none.",
            )
        return start, stop

    def _end_of_segments(self, record: Fields, size: int) -> int:
        """Where padding begins by numbers of documents that count from 1 and end with zeros."""
        ends = [size]
        for meaning, column in self._columns(record, BOUNDS):
            if meaning == "numbers" and column.value is not None and size:
                values = _one_for_each_id(column, size)
                ends.append(int(np.flatnonzero(values)[-1]) + 1 if values[0] else size)
        return min(ends)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        ids = [d.ids for d in documents if d.ids is not None]
        lengths = sizes_of(ids)
        leaves: dict[str, LeafValues] = {}
        if self._masks:
            leaves[LOSS_MASK.name] = joined(
                LOSS_MASK, [d.mask for d in documents if d.mask is not None]
            )
        return EncodedBatch(
            np.concatenate(ids) if ids else np.zeros(0, self.tokenizer.dtype), lengths, leaves
        )


Stretches: TypeAlias = Sequence[tuple[int, int]]
"""First and last place (exclusive) of each document of a record."""


_NO_LABEL = -100


def _starts_by_length(lengths: FieldValue, start: int, stop: int, size: int) -> list[int]:
    """Where documents of these lengths begin between ``start`` and ``stop``, the ids that are no
    padding.
    """
    counts = lengths.numbers("int64", bools=False)
    if (counts < 0).any() or int(counts.sum()) != stop - start:
        raise lengths.bad(
            f"has {stop - start} ids, and lengths of documents in {lengths} that do"
            " not sum up to it"
        )
    return [start, *(start + np.cumsum(counts)[:-1]).tolist()]


def _starts_by_bounds(bounds: FieldValue, start: int, stop: int, size: int) -> list[int]:
    """Where documents begin by the bounds of all of them, 0 first, which count padding or not."""
    borders = bounds.numbers("int64", bools=False)
    last = int(borders[-1]) if borders.size else -1
    if last not in (size, stop - start) or borders[0] != 0 or (np.diff(borders) < 0).any():
        raise bounds.bad(
            f"has {size} ids, and bounds in {bounds} that do not increase from 0 to it",
            "Write the bounds of all documents: [0, 5, 9] for two of 5 and 4 ids.",
        )
    if last != size:
        borders = borders + start
    inside = np.clip(borders[:-1], start, stop)
    return [start, *np.unique(inside[(inside > start) & (inside < stop)]).tolist()]


def _restarts(positions: FieldValue, start: int, stop: int, size: int) -> list[int]:
    """Where ``position_ids`` begin again at 0, which is where the next document begins."""
    values = _one_for_each_id(positions, size)
    stretch = values[start:stop]
    if not stretch.size:
        return [start]
    is_start = stretch == 0
    is_start[0] = True
    wrong = np.flatnonzero(~is_start[1:] & (np.diff(stretch) != 1))
    if stretch[0] != 0 or wrong.size:
        at = start if stretch[0] != 0 else start + 1 + int(wrong[0])
        raise positions.bad(
            f"has the position {int(values[at])} at place {at} of {positions},"
            " neither 0 nor one more than before",
            "Positions count from 0 in each document.",
        )
    return (start + np.flatnonzero(is_start)).tolist()


def _changes(numbers: FieldValue, start: int, stop: int, size: int) -> list[int]:
    """Where the number of the document changes that each id belongs to."""
    values = _one_for_each_id(numbers, size)
    changes = np.flatnonzero(np.diff(values[start:stop])) + 1
    return [start, *(start + changes).tolist()]


def _one_for_each_id(column: FieldValue, size: int) -> np.ndarray:
    """The whole numbers of a column, int64 ``[size]``.

    Raises:
        BadRecordError: they are not as many as the ids.
    """
    values = column.numbers("int64", bools=False)
    if values.size != size:
        raise column.bad(f"has {size} ids and {values.size} numbers in {column}")
    return values


def _refuse_starts(starts: FieldValue, start: int, stop: int, size: int) -> list[int]:
    raise starts.bad(
        f"has a {starts.field}, as rows packed by NeMo have, whose loss_mask says of each id"
        " whether the next one is trained on",
        "Write seq_lengths in place of it, and a loss_mask that belongs to the id itself.",
    )


STARTS: dict[str, Callable[[FieldValue, int, int, int], list[int]]] = {
    "lengths": _starts_by_length,
    "bounds": _starts_by_bounds,
    "positions": _restarts,
    "numbers": _changes,
    "packed by NeMo": _refuse_starts,
}
"""By what a column says: where the documents of a packed record begin."""


def _part_of(column: FieldValue, stretches: Stretches) -> np.ndarray:
    """The ids of a column, which are a part of the record's only document."""
    if len(stretches) > 1:
        raise column.bad(f"has {len(stretches)} documents, and {column} belongs to one")
    return column.numbers("int64", bools=False)


def _marked(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    field = column.field
    if not is_list(column.value):
        raise column.is_not("a 0 or 1 for each id")
    values = column.numbers("float64")
    if values.size != ids.size:
        raise column.bad(f"has {ids.size} ids and {values.size} numbers in field {field!r}")
    if not np.isin(values, (0, 1)).all():
        raise column.bad(
            f"has {ids.size} ids, and not a 0 or 1 for each in its {field}",
            f"Keep weights as a leaf: --field {column.name}=none --leaf"
            f" loss_weights={field}:float32:token.",
        )
    return values.astype(np.uint8)


def _not_marked(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    return 1 - _marked(column, ids, stretches)


def _labelled(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """1 where the label is the id itself, 0 where it is -100: transformers shifts labels within the
    model.
    """
    field = column.field
    labels = _one_for_each_id(column, ids.size)
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
        raise column.bad(
            f"has the label {int(labels[at])} at position {at} of field {field!r}, where the"
            f" id is {int(ids[at])}",
            cure,
        )
    return trained.astype(np.uint8)


def _after_prompts(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    """0 at the first ids of each document, as many as a number says, or a list with one for each
    document.
    """
    if not is_list(column.value):
        column = column._replace(value=[column.value])
    lengths = column.numbers("int64", bools=False).tolist()
    if len(lengths) != len(stretches):
        raise column.bad(f"has {len(stretches)} documents, and {len(lengths)} numbers in {column}")
    mask = np.ones(ids.size, np.uint8)
    for (start, stop), length in zip(stretches, lengths, strict=True):
        if not 0 <= length <= stop - start:
            raise column.bad(
                f"has a document of {stop - start} ids, of which {length} are the prompt by field"
                f" {column.field!r}"
            )
        mask[start : start + length] = 0
    return mask


def _after_prompt(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    prompt = _part_of(column, stretches)
    start, stop = stretches[0]
    if not np.array_equal(prompt, ids[start:stop][: prompt.size]):
        raise column.bad(f"has ids that do not begin with those of {column}")
    return (np.arange(ids.size) >= start + prompt.size).astype(np.uint8)


def _within_completion(column: FieldValue, ids: np.ndarray, stretches: Stretches) -> np.ndarray:
    completion = _part_of(column, stretches)
    start, stop = stretches[0]
    begin = stop - completion.size
    if begin < start or not np.array_equal(completion, ids[begin:stop]):
        raise column.bad(f"has ids that do not end with those of {column}")
    return (np.arange(ids.size) >= begin).astype(np.uint8)


MASKS: dict[str, Callable[[FieldValue, np.ndarray, Stretches], np.ndarray]] = {
    "trained": _marked,
    "weights": _marked,
    "untrained": _not_marked,
    "labels": _labelled,
    "prompt length": _after_prompts,
    "prompt": _after_prompt,
    "completion": _within_completion,
}
"""By what a column says: a 1 for each id that is trained on by it, uint8 ``[ids]``, else a 0."""
