"""Token ids from other tools."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.ingest.base_tokenizer import Tokenizer
from headrace.ingest.chat_template import (
    ChatTemplate,
)
from headrace.ingest.choices import Kind
from headrace.ingest.documents import Document
from headrace.ingest.kinds.kind import LOSS_MASK, DocumentKind, EncodedBatch
from headrace.ingest.kinds.token_columns import MASKS, STARTS, Column, Stretches, one_for_each_id
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    containers_of,
    joined,
    lookup,
    names_in,
    numbers,
)
from headrace.ingest.source import (
    BOUNDS,
    FIELDS,
    TOKEN_MASKS,
    SourceConfig,
)
from headrace.store.ragged import LeafValues

_OF_IDS = ("tokens", "question", "answer")
"""What holds ids, all or a part of them."""


class TokensKind(DocumentKind):
    """Token ids from other tools: stored unchanged, without special tokens."""

    def __init__(
        self, config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        super().__init__(config, kind, tokenizer, template)
        self._masks = [name for name in TOKEN_MASKS if config.requires(kind, name)]
        if self._masks:
            self.own_leaves = (LOSS_MASK,)
        of_ids = [field for name in _OF_IDS if (field := self._fields[name])]
        self._containers = containers_of(of_ids)
        self._siblings = {
            f"{container}.{name}": name
            for container in {field.rpartition(".")[0] for field in of_ids} - {""}
            for name, usual in FIELDS[kind].items()
            if name == usual and name not in config.fields
        }
        """What the table of columns knows, within a field that holds ids, and is not read."""
        for column in self.columns:
            self._siblings.pop(column, None)

    def documents(self, record: Fields) -> Sequence[Document]:
        if self._siblings:
            self._refuse_siblings(record)
        if self._fields["tokens"] is None:
            ids = np.concatenate([self._ids(record, "question"), self._ids(record, "answer")])
        else:
            ids = self._ids(record, "tokens")
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
            for field in names_in(record, self._containers)
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

    def _ids(self, record: Fields, name: str) -> np.ndarray:
        value = self._field(record, name)
        field = self._field_name(name)
        return numbers(value, "int64", field, bools=False, cure=self._cure_of(name))

    def _mask(self, record: Fields, ids: np.ndarray, stretches: Stretches) -> np.ndarray | None:
        """Which ids are trained on: those that every mask of the record marks; None: the source has
        no masks.
        """
        mask = np.ones(ids.size, np.uint8)
        for name, meaning in TOKEN_MASKS.items():
            column = Column(name, self._field_name(name), self._field(record, name))
            if name in self._masks:
                try:
                    mask &= MASKS[meaning](column, ids, stretches)
                except BadRecordError as bad:
                    cure = f"{bad.cure} To train on every token: --field {name}=none.".strip()
                    raise BadRecordError(bad.problem, cure) from None
            elif column.value is not None:
                raise BadRecordError(
                    f"has a {column.field}, and the first record of the source has none",
                    f"Say --field {name}={column.field} if all have one, or --field {name}=none to"
                    " train without it.",
                )
        return mask if self._masks else None

    def _stretches(self, record: Fields, size: int) -> Iterator[tuple[int, int]]:
        """Where the documents of the record are: without padding, and those of a packed record
        apart.
        """
        start, stop = self._unpadded(record, size)
        starts: list[int] = [start]
        decided_by = ""
        for name, meaning in BOUNDS.items():
            value = self._field(record, name)
            if value is None:
                continue
            field = self._field_name(name)
            try:
                own_starts = STARTS[meaning](value, field, start, stop, size)
            except BadRecordError as bad:
                cure = f"{bad.cure} To leave it unused: --field {name}=none.".strip()
                raise BadRecordError(bad.problem, cure) from None
            if decided_by and set(own_starts) != set(starts):
                raise BadRecordError(
                    f"has documents that begin elsewhere by its {decided_by} than by its {field}",
                    f"Leave one unused: --field {name}=none.",
                )
            if not decided_by:
                starts = own_starts
                decided_by = field
        yield from itertools.pairwise([*starts, stop])

    def _unpadded(self, record: Fields, size: int) -> tuple[int, int]:
        """First and last place (exclusive) that ``attention_mask`` shows to the model."""
        value = self._field(record, "attention_mask")
        if value is None or not size:
            return 0, self._end_of_segments(record, size)
        field = self._field_name("attention_mask")
        values = numbers(value, "int64", field, cure=self._cure_of("attention_mask"))
        attended = np.flatnonzero(values)
        if values.size != size or (values[attended] != 1).any():
            cure = self._cure_of("attention_mask")
            if values.size == size:
                cure += (
                    " If it numbers the documents of a packed record:"
                    f" --field attention_mask=none --field segment_ids={field}."
                )
            raise BadRecordError(f"has {size} ids, and not a 0 or 1 for each in its {field}", cure)
        if not attended.size:
            return 0, 0
        start = int(attended[0])
        stop = int(attended[-1]) + 1
        if attended.size != stop - start:
            at = start + int(np.flatnonzero(values[start:stop] == 0)[0])
            raise BadRecordError(
                f"hides position {at} by its {field}, between others that it shows",
                "Only padding before and after the ids can be left out; to read all ids: --field"
                " attention_mask=none.",
            )
        return start, stop

    def _end_of_segments(self, record: Fields, size: int) -> int:
        """Where padding begins by numbers of documents that count from 1 and end with zeros."""
        ends = [size]
        for name, meaning in BOUNDS.items():
            value = self._field(record, name)
            if meaning == "numbers" and value is not None and size:
                field = self._field_name(name)
                values = one_for_each_id(value, field, size, self._cure_of(name))
                ends.append(int(np.flatnonzero(values)[-1]) + 1 if values[0] else size)
        return min(ends)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        ids = [d.ids for d in documents if d.ids is not None]
        lengths = np.fromiter((i.size for i in ids), np.int64, len(ids))
        leaves: dict[str, LeafValues] = {}
        if self.own_leaves:
            leaves[LOSS_MASK.name] = joined(
                LOSS_MASK, [d.mask for d in documents if d.mask is not None]
            )
        return EncodedBatch(
            np.concatenate(ids) if ids else np.zeros(0, self.tokenizer.dtype), lengths, leaves
        )
