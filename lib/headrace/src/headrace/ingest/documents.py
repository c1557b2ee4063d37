"""Documents out of files: the container's records, made into documents by the kind, with what is bad about them.

What cannot be read is named with file and row; it is never dropped in silence: the policy (``on_bad_line``) either
stops the build or counts. Price: that of the container's reader; memory is bounded by one document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from headrace.errors import SourceError
from headrace.ingest.readers.registry import open_reader, stat_source
from headrace.ingest.records import BadRecordError, Fields, Reader
from headrace.ingest.source import PRE_TOKENIZED, Kind, SourceConfig, SourceFile


class Document(NamedTuple):
    """One document, before it is encoded.

    Attributes:
        text: Its text; empty if it is made of ids.
        num_bytes: Length of the text in UTF-8, or of the ids.
        leaves: Values of the leaves that were asked for, in their order.
        spans: Characters ``start .. stop`` that are trained on, increasing; None if the kind has no masks.
        cut: Characters of a prompt, which is encoded apart from what follows it; 0 if there is none.
        framed: Whether the special tokens of the policy stand around it (a prompt has none after it).
        ids: Its ids, if they are ready.
        mask: Its mask, if that is ready: uint8 ``[len(ids)]``.
        label: What a kind says of it: 1 for the chosen one of a pair.
    """

    text: str
    num_bytes: int
    leaves: tuple[np.ndarray, ...] = ()
    spans: tuple[tuple[int, int], ...] | None = None
    cut: int = 0
    framed: tuple[bool, bool] = (False, False)
    ids: np.ndarray | None = None
    mask: np.ndarray | None = None
    label: int = 0


class DocumentMaker(Protocol):
    """What makes documents of a record; see :mod:`headrace.ingest.kinds`."""

    columns: list[str]
    optional: set[str]

    def documents(self, record: Fields) -> Iterable[Document]:
        """The documents of a record, all of them or none.

        Raises:
            BadRecordError: it cannot be used.
        """
        ...


class DocumentReader:
    """Iterates over the documents of one file or slice, once.

    Args:
        file: The file, as listed.
        config: The source.
        maker: Makes documents of records.

    Attributes:
        stored_bytes: Bytes of the file consumed so far, as stored (for progress).
        skipped_lines: Records left out so far (``on_bad_line="skip"``).
        first_skipped: Why the first of them was.
        ignored: Records that hold no text, by what they are.
    """

    def __init__(self, file: SourceFile, config: SourceConfig, maker: DocumentMaker) -> None:
        self.file, self.config, self._maker = file, config, maker
        self.skipped_lines = 0
        self.first_skipped = ""
        self._reader: Reader = open_reader(file, maker.columns, maker.optional)
        self._ended = False

    @property
    def stored_bytes(self) -> int:
        known = self.file.num_bytes
        if known is None:
            return self._reader.stored_bytes
        return known if self._ended else min(known, self._reader.stored_bytes)

    @property
    def ignored(self) -> Counter[str]:
        return self._reader.ignored

    def __iter__(self) -> Iterator[Document]:
        """The documents, in order.

        Raises:
            SourceError: the file cannot be read, a record is bad (unless skipped), or the file changed since it was
                listed.
        """
        try:
            for row, record in self._reader:
                try:
                    if isinstance(record, BadRecordError):
                        raise record
                    made = self._maker.documents(record)
                except BadRecordError as bad:
                    self._bad(row, bad)
                    continue
                yield from made
        except SourceError:
            self._check_unchanged()  # if the file is being written to, that is the news, not the half line
            raise
        self._check_unchanged()
        self._ended = True

    def _bad(self, row: int, bad: BadRecordError) -> None:
        if self.config.on_bad_line == "error":
            cure = f"{bad.cure} Or pass --restart --on-bad-line skip: such lines are then left out and counted."
            raise SourceError(bad.problem, field=self._reader.place(row), cure=cure.strip())
        self.skipped_lines += 1
        if not self.first_skipped:
            self.first_skipped = f"{self._reader.place(row)}: {bad.problem}"

    def _check_unchanged(self) -> None:
        try:
            now = stat_source(self.file)
        except Exception:  # noqa: BLE001 (clients raise what they like)
            return  # gone or unreachable after it was read whole: what was read is what was listed
        if now != (self.file.size, self.file.version):
            raise SourceError(
                "changed while the cache was being built",
                field=self.file.path,
                cure="Run the same command again when nothing writes to it any more.",
            )


def with_mask_settled(source: SourceConfig, kind: Kind, listed: Sequence[SourceFile]) -> SourceConfig:
    """The source, its ``loss_mask`` named if it is of ready ids and nobody said: as the first record has it or not.

    Every part is built with the same leaves, so that is settled before the first; a record that differs is an error.

    Raises:
        SourceError: a file cannot be read.
    """
    if kind != "tokens" or not source.is_optional(kind, "loss_mask"):
        return source
    field = source.field_of(kind, "loss_mask") or ""
    for file in listed:
        if file.format in PRE_TOKENIZED:
            continue
        for _, record in open_reader(file, source.columns(kind), source.optional_columns(kind)):
            if not isinstance(record, BadRecordError):
                there = record.get(field) is not None
                return replace(source, fields={**source.fields, "loss_mask": field}) if there else source
    return source
