r"""Tables of separated values: CSV (commas) and TSV (tabs), with a line of column names.

A field that begins with a quote goes to the next quote that is not doubled, whatever separators and
line feeds are between them. Text is strict UTF-8 and is not changed, as in :mod:`.streams`. A row
is numbered by the line of the file in which it begins, counted from 1. Blank lines are skipped.

An empty field is a null, and ``""`` is an empty text. Fields are texts, except in columns of which
numbers are asked (:attr:`headrace.ingest.records.Columns.typed`), or fields within: there they are
JSON, such as ``0.5``, ``true`` or ``[1, 2]``. What is no JSON stays a text, which is refused there.

A row with too many or too few fields, with text behind a closing quote, with other bytes than UTF-8
or with more bytes than a record may have is a bad record. A file is read as a whole: where a row
begins is known only from all before it.

``csv`` parses: it takes one line at a time, so that memory is bounded by one row, it goes on after
a row that is bad, and it says in which line each begins. Its limit of the size of a field, one for
the process, is raised to that of records. Price: several times that of JSONL.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.errors import SourceError
from headrace.ingest.readers.streams import BlockReader
from headrace.ingest.records import BadRecordError, Fields, Row, not_utf8

_LONGEST_NAME = 200
_MOST_OF_CSV = (1 << 31) - 1
_CONSTANTS = {"true": True, "false": False}
"""Values that programs write with small letters and with capital ones."""


class _Column(NamedTuple):
    """A column that is read: its number, and whether its fields are JSON."""

    number: int
    name: str
    is_json: bool


class CsvReader(BlockReader):
    """The rows of a table whose fields are separated by commas."""

    unit = "line"
    separator = ","

    def __iter__(self) -> Iterator[Row]:
        limit = self.columns.max_record_bytes
        csv.field_size_limit(max(csv.field_size_limit(), min(limit, _MOST_OF_CSV)))
        lines = _Lines(self, self.separator)
        rows = csv.reader(lines, delimiter=self.separator, strict=True)
        header = self._next(rows, lines)
        if header is None:
            return
        if isinstance(header, BadRecordError):
            raise self._bad_header(header)
        columns = self._columns_of(header)
        while (row := self._next(rows, lines)) is not None:
            if isinstance(row, BadRecordError):
                yield lines.first, row
            elif len(row) != len(header):
                yield lines.first, _of_other_width(row, header)
            else:
                yield lines.first, _record(row, columns, lines)

    def _next(self, rows: Any, lines: _Lines) -> list[str] | BadRecordError | None:
        """The next row that is not blank; None after the last."""
        row: list[str] | None = []
        while row is not None and not row:
            lines.begin()
            try:
                row = next(rows, None)
            except BadRecordError as bad:
                return bad
            except csv.Error as error:
                return _not_parsed(error)
        return row if lines.bad is None else lines.bad

    def _columns_of(self, header: list[str]) -> list[_Column]:
        longest = max(map(len, header))
        if longest > _LONGEST_NAME:
            raise SourceError(
                f"does not begin with the names of its columns: one would have {longest:,} letters",
                field=self.path,
                cure="Put a line with a name for each column before the first row.",
            )
        wanted = self.columns_of(header)
        for name in wanted:
            if header.count(name) > 1:
                raise SourceError(
                    f"has {header.count(name)} columns {name!r}",
                    field=self.path,
                    cure="Give each column another name.",
                )
        outer = {name.partition(".")[0] for name in self.columns.names if name not in header}
        of_json = outer | self.columns.typed
        return [_Column(header.index(name), name, name in of_json) for name in wanted]

    def _bad_header(self, bad: BadRecordError) -> SourceError:
        """The error about a bad line of names, without which no row can be read."""
        problem = f"has no line of column names: its first {bad.problem}"
        return SourceError(problem, field=self.path, cure=self.file.named_in(bad.cure))


class TsvReader(CsvReader):
    """The rows of a table whose fields are separated by tabs."""

    separator = "\t"


_State: TypeAlias = Literal["start", "plain", "quoted", "closed"]
"""Where in a field a piece of a row ends."""


class _Lines:
    """The lines that the parser is given, each when it asks for it, and what is known of the row
    that it reads.

    Attributes:
        first: The line in which the row begins.
        bad: The error about its first bytes that are not UTF-8.
    """

    def __init__(self, reader: CsvReader, separator: str) -> None:
        self._reader = reader
        self._limit = reader.columns.max_record_bytes
        self._pieces = _pieces(reader.blocks_of_text())
        self._separator = separator.encode()
        self._cell = re.compile(rf'"[^"]*(?:""[^"]*)*"|[^{separator}\r\n]*'.encode())
        self._count = 0
        self.begin()

    def begin(self) -> None:
        """The line that is asked for next is the first of a row."""
        self.first = self._count + 1
        self.bad: BadRecordError | None = None
        self._size = 0
        self._lines: list[bytes] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        """The next line.

        Raises:
            BadRecordError: the row has more bytes than a record may have; the line that is asked
                for next is the first after it.
            SourceError: the file cannot be read.
        """
        line: list[bytes] = []
        for piece in self._pieces:
            line.append(piece)
            self._size += len(piece)
            is_end = piece.endswith(b"\n")
            if self._size - is_end > self._limit:
                self._skip(line)
                raise self._reader.too_long()
            if is_end:
                break
        if not line:
            raise StopIteration
        self._count += 1
        self._lines.append(b"".join(line))
        try:
            return self._lines[-1].decode()
        except UnicodeDecodeError as error:
            self.bad = self.bad or not_utf8(error, "line")
            return self._lines[-1].decode(errors="replace")

    def _skip(self, line: list[bytes]) -> None:
        """Reads to the end of a row, from pieces of a line of it that were read before."""
        # The parser asks for another line of a row only where a quote is open.
        state: _State = "quoted" if self._lines else "start"
        self._lines = []
        for piece in itertools.chain(line, self._pieces):
            state = self._state_after(piece, state)
            if piece.endswith(b"\n"):
                self._count += 1
                if state != "quoted":
                    return

    def _state_after(self, piece: bytes, state: _State) -> _State:
        at = 0
        while at < len(piece):
            if state == "quoted":
                at = piece.find(b'"', at) + 1
                state = "closed"
                if not at:
                    return "quoted"
            elif state != "plain" and piece.startswith(b'"', at):
                at += 1
                state = "quoted"
            else:
                at = piece.find(self._separator, at) + 1
                state = "start"
                if not at:
                    return "plain"
        return state

    def nulls(self) -> list[bool]:
        """Of each field of the row, whether nothing stands for it, not even quotes."""
        text = b"".join(self._lines)
        is_null: list[bool] = []
        at = 0
        while (cell := self._cell.match(text, at)) is not None:
            is_null.append(cell.end() == at)
            at = cell.end() + 1
            if text[cell.end() : at] != self._separator:
                break
        return is_null


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks that are cut behind each line feed."""
    for block in blocks:
        *lines, last = block.split(b"\n")
        for line in lines:
            yield line + b"\n"
        if last:
            yield last


def _record(row: list[str], columns: list[_Column], lines: _Lines) -> Fields:
    record: dict[str, Any] = {column.name: row[column.number] for column in columns}
    if "" in record.values():
        is_null = lines.nulls()
        record |= {column.name: None for column in columns if is_null[column.number]}
    for column in columns:
        if column.is_json and record[column.name] is not None:
            record[column.name] = _value(record[column.name])
    return record


def _value(field: str) -> Any:
    """The value of a field that is JSON."""
    if field.lower() in _CONSTANTS:
        return _CONSTANTS[field.lower()]
    with suppress(ValueError, RecursionError):
        return json.loads(field)
    return field


def _of_other_width(row: list[str], header: list[str]) -> BadRecordError:
    problem = f"has {len(row)} fields, and the first line names {len(header)} columns"
    return BadRecordError(problem, 'Quote fields with separators or line feeds: "a, b".')


def _not_parsed(error: csv.Error) -> BadRecordError:
    is_open = "unexpected end of data" in str(error)
    problem = "has a quote that is not closed" if is_open else f"is no row of a table ({error})"
    return BadRecordError(problem, 'Double the quotes within a field: "a ""b""".')
