"""Parquet and Arrow (Feather) files: only the requested columns, a few hundred rows at a time.

Rows are numbered from 0 within the file. A Parquet file can be cut at its row groups, an Arrow file
at its record batches. Lists of numbers are returned as arrays, without a Python object per number.

Price: memory of one row group's columns (one unpacked column chunk) or of one record batch.
"""

from __future__ import annotations

import abc
import importlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from headrace.errors import SourceError
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    Reader,
    Row,
    Slice,
    SourceFile,
    import_extra,
    reading,
    slices_of,
    with_texts_for_bytes,
)
from headrace.store.files import open_source

_ROWS = 512


class ColumnarReader(Reader):
    """What Parquet and Arrow files have in common."""

    what = "Parquet file"
    page_bytes: int | None = None
    """Bytes that are read at once of a column, page by page; None: a whole column chunk."""

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        """Runs of row groups or record batches of about ``target_bytes``."""
        if file.size is None:
            return []
        with _reading_table(file.path, cls.what), open_source(file.path) as stream:
            return pack(cls._unit_sizes(stream, file.path), target_bytes)

    @classmethod
    @abc.abstractmethod
    def _unit_sizes(cls, stream: IO[bytes], path: str) -> list[int]:
        """Stored bytes of each unit that the file can be cut at; none if it is read as a whole."""

    def _rows(self, batches: Iterator[Any], first: int) -> Iterator[Row]:
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                yield from rows_of(batch.slice(start, _ROWS), first + start)
            first += batch.num_rows


class ParquetReader(ColumnarReader):
    """The rows of a Parquet file, or of some of its row groups."""

    def __iter__(self) -> Iterator[Row]:
        with _reading_table(self.path, self.what), self.open_stream() as stream:
            file = _parquet(stream, self.path, self.page_bytes)
            groups = self.units(file.metadata.num_row_groups)
            row = sum(
                file.metadata.row_group(g).num_rows for g in range(min(groups.start, groups.stop))
            )
            names = self.columns_of(file.schema_arrow.names)
            for group in groups:
                batches = file.iter_batches(
                    _ROWS, row_groups=[group], columns=names, use_threads=False
                )
                yield from self._rows(batches, row)
                row += file.metadata.row_group(group).num_rows
                self.stored_bytes += _group_bytes(file, group)

    @classmethod
    def _unit_sizes(cls, stream: IO[bytes], path: str) -> list[int]:
        file = _parquet(stream, path)
        return [_group_bytes(file, group) for group in range(file.metadata.num_row_groups)]


class ArrowReader(ColumnarReader):
    """The rows of an Arrow IPC file (Feather) or stream, or of some record batches of a file."""

    what = "Arrow file"

    def __iter__(self) -> Iterator[Row]:
        with _reading_table(self.path, self.what) as arrow, self.open_stream() as stream:
            row = 0
            for batch in self._batches(stream, arrow):
                if isinstance(batch, int):
                    row += batch
                    continue
                yield from self._rows(
                    iter([batch.select(self.columns_of(batch.schema.names))]), row
                )
                row += batch.num_rows
                self.stored_bytes += batch.nbytes

    def _batches(self, stream: IO[bytes], arrow: Any) -> Iterator[Any]:
        """Record batches; for those before the slice, only their number of rows."""
        if not _is_ipc_file(stream):
            batches = arrow.ipc.open_stream(stream)
            self.columns_of(batches.schema.names)
            yield from batches
            return
        file = arrow.ipc.open_file(stream)
        self.columns_of(file.schema.names)  # before the first batch, which may be large
        units = self.units(file.num_record_batches)
        for i in range(units.stop):
            batch = file.get_batch(i)
            yield batch.num_rows if i < units.start else batch

    @classmethod
    def _unit_sizes(cls, stream: IO[bytes], path: str) -> list[int]:
        if not _is_ipc_file(stream):  # a stream, which can only be read from its start
            return []
        count = importlib.import_module("pyarrow").ipc.open_file(stream).num_record_batches
        stream.seek(0, 2)
        return [stream.tell() // max(1, count)] * count


@contextmanager
def _reading_table(path: str, what: str) -> Iterator[Any]:
    """The library that reads tables; its errors become errors about the file."""
    arrow = import_extra("pyarrow", "parquet", path)
    with reading(path, arrow.ArrowInvalid, what=what):
        yield arrow


def pack(sizes: list[int], target_bytes: int) -> list[Slice]:
    """Runs of consecutive units, each of at least ``target_bytes`` except the last.

    Example:
        >>> pack([3, 3, 3, 3, 3], 6)
        [Slice(start=0, stop=2, num_bytes=6), Slice(start=2, stop=4, num_bytes=6),
         Slice(start=4, stop=None, num_bytes=3)]
    """
    bounds = [0]
    filled: list[int] = []
    for i, size in enumerate(sizes):
        if bounds[-1] == i:
            filled.append(0)
        filled[-1] += size
        if filled[-1] >= target_bytes or i == len(sizes) - 1:
            bounds.append(i + 1)
    return slices_of(bounds, filled)


def rows_of(batch: Any, first: int) -> Iterator[Row]:
    """The rows of a record batch, numbered from ``first``."""
    names = batch.schema.names
    has_bytes = "binary" in str(batch.schema.types)
    columns = [column_values(batch.column(i)) for i in range(len(names))]
    for row, values in enumerate(zip(*columns, strict=True), start=first):
        yield row, record_of(names, values, has_bytes=has_bytes)


def record_of(
    names: Sequence[str], values: Sequence[Any], *, has_bytes: bool
) -> Fields | BadRecordError:
    """One row of a table; text that is stored as bytes is text."""
    record = dict(zip(names, values, strict=True))
    if not has_bytes:
        return record
    texts: dict[str, Any] = {}
    for name, value in record.items():
        try:
            texts[name] = with_texts_for_bytes(value)
        except BadRecordError as bad:
            cure = "Write the table anew with text in this column, decoded from its encoding."
            return BadRecordError(f"holds bytes in field {name!r}: {bad.problem}", cure)
    return texts


def column_values(column: Any) -> list[Any]:
    """The values of an Arrow array; lists of numbers without nulls as numpy arrays, maps as
    objects, as JSON has them.
    """
    arrow = importlib.import_module("pyarrow")
    kind = column.type
    is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
    is_numbers = is_list and (
        arrow.types.is_integer(kind.value_type) or arrow.types.is_floating(kind.value_type)
    )
    if not is_numbers or column.null_count or column.values.null_count:
        return column.to_pylist(maps_as_pydicts="lossy")  # of equal keys the last, as in JSON
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


def _parquet(stream: IO[bytes], path: str, page_bytes: int | None = None) -> Any:
    stream.seek(0, 2)
    if stream.tell() == 0:
        raise SourceError(
            "is empty, no Parquet file",
            field=path,
            cure="Fetch or write the file again, or leave it out.",
        )
    stream.seek(0)
    open_file = import_extra("pyarrow.parquet", "parquet", path).ParquetFile
    if page_bytes is None:
        return open_file(stream)
    return open_file(stream, buffer_size=page_bytes, pre_buffer=False)


def _group_bytes(file: Any, group: int) -> int:
    about = file.metadata.row_group(group)
    return sum(about.column(c).total_compressed_size for c in range(about.num_columns))


def _is_ipc_file(stream: IO[bytes]) -> bool:
    magic = stream.read(6)
    stream.seek(0)
    return magic == b"ARROW1"
