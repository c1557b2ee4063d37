r"""Token ids from other tools: Megatron's ``.bin`` + ``.idx`` and nmoe's ``.npy`` + ``.idx``.

Records have one field, ``input_ids`` (an integer array ``[n]``), under any requested name.
Documents are numbered from 0 and can be cut anywhere. The index is checked against the data before
anything is read: no position is trusted to be within the file, and nothing is ever unpickled.

Megatron ``.idx``: ``MMIDIDX\\0\\0``, version 1 (uint64), dtype code (uint8), sequences S and
documents D (uint64), S lengths (int32), S byte offsets (int64), D document bounds in sequences
(int64, the first is 0). nmoe ``.idx``: ``NMOEIDX\\0``, version 1, documents N, a reserved number
(uint64), N pairs of first and last token (uint64).

Price: the index in memory (12 and 16 bytes per document), and the tokens of 1 MiB of documents at a
time.
"""

from __future__ import annotations

import abc
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

import numpy as np

from headrace.errors import SourceError
from headrace.ingest.records import (
    Columns,
    Reader,
    Row,
    Slice,
    SourceFile,
    reading,
    slices_of,
)
from headrace.store import files
from headrace.store.files import open_source
from headrace.store.npy import NPY_ERRORS, read_npy_head
from headrace_compat.megatron_files import DTYPES, MAGIC

_READ_BYTES = 1 << 20
_MEGATRON_HEADER = struct.Struct("<9sQBQQ")
_NMOE_HEADER = struct.Struct("<8sQQQ")
_BAD = "Fetch or write both files again: the index is not that of the data."


class ShardReader(Reader):
    """Documents of ids, end to end in one file, with an index beside it."""

    unit = "document"

    @abc.abstractmethod
    def _index(self) -> tuple[np.ndarray, np.dtype]:
        """Positions of the documents, int64 ``[n, 2]`` (first byte, one past the last), and the
        dtype of the ids.
        """

    def __iter__(self) -> Iterator[Row]:
        name = self.only_field("input_ids")
        with reading(self.path):
            spans, dtype = self._index()
        units = self.units(len(spans))
        spans = spans[units.start : units.stop]
        with reading(self.path), open_source(self.path) as stream:
            for first, last in _runs(spans):
                low = int(spans[first, 0])
                high = int(spans[last - 1, 1])
                stream.seek(low)
                raw = _read_exactly(stream, high - low, self.path)
                self.stored_bytes += high - low
                for i in range(first, last):
                    a, b = (int(p) - low for p in spans[i])
                    yield (
                        units.start + i,
                        {name: np.frombuffer(raw, dtype, (b - a) // dtype.itemsize, a)},
                    )

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        with reading(file.path):
            spans, _ = cls(file, Columns())._index()
        ends = np.cumsum(spans[:, 1] - spans[:, 0])
        total = int(ends[-1]) if ends.size else 0
        cuts = np.searchsorted(ends, np.arange(target_bytes, total, target_bytes)) + 1
        bounds = [0, *np.unique(cuts[cuts < len(spans)]).tolist(), len(spans)]
        sizes = np.diff(np.concatenate([[0], ends])[bounds]).tolist()
        return slices_of(bounds, sizes)

    @classmethod
    def described(cls, file: SourceFile) -> SourceFile:
        size, version = cls.stat(file)
        return replace(file, size=size, version=version)

    @classmethod
    def stat(cls, file: SourceFile) -> tuple[int | None, str]:
        size, version = files.stat_file(file.path)
        try:
            return size, f"{version} idx {files.stat_file(index_path(file.path))[1]}"
        except FileNotFoundError:
            return size, version  # the reader says it better

    def bad_index(self, problem: str) -> SourceError:
        """The error for an invalid index."""
        return SourceError(f"has an index that {problem}", field=self.path, cure=_BAD)

    def _index_bytes(self) -> bytes:
        path = index_path(self.path)
        try:
            with open_source(path) as stream:
                return stream.read()
        except FileNotFoundError:
            raise SourceError(
                "has no index beside it",
                field=self.path,
                cure=f"There must be a {os.path.basename(path)}.",
            ) from None


class MegatronReader(ShardReader):
    """Documents of a Megatron dataset (``.bin`` + ``.idx``); one document may be
    several sequences.
    """

    def _index(self) -> tuple[np.ndarray, np.dtype]:
        raw = self._index_bytes()
        header = _MEGATRON_HEADER.size
        if len(raw) < header or not raw.startswith(MAGIC):
            raise self.bad_index("is none of Megatron's")
        _, version, code, sequences, documents = _MEGATRON_HEADER.unpack_from(raw)
        if version != 1 or code not in DTYPES:
            raise self.bad_index(f"is of version {version}, dtype code {code}, which is not read")
        if len(raw) < header + 12 * sequences + 8 * documents or documents < 1:
            raise self.bad_index("is cut off")
        dtype = np.dtype(DTYPES[code])
        lengths = np.frombuffer(raw, "<i4", sequences, header).astype(np.int64)
        pointers = np.frombuffer(raw, "<i8", sequences, header + 4 * sequences)
        bounds = np.frombuffer(raw, "<i8", documents, header + 12 * sequences)
        if (
            bounds[0] != 0
            or bounds[-1] != sequences
            or np.any(np.diff(bounds) < 0)
            or np.any(lengths < 0)
        ):
            raise self.bad_index("has documents out of order")
        stops = pointers + lengths * dtype.itemsize
        size, _ = files.stat_file(self.path)
        _check_within(self, pointers, stops, size)
        filled = np.diff(bounds) > 0
        # An empty document has no position; it gets the end of the previous one.
        spans = np.zeros((documents - 1, 2), np.int64)
        spans[filled, 0] = pointers[bounds[:-1][filled]]
        spans[filled, 1] = stops[bounds[1:][filled] - 1]
        inner = np.ones(max(0, sequences - 1), bool)
        inner[bounds[1:-1][(bounds[1:-1] > 0) & (bounds[1:-1] < sequences)] - 1] = False
        if np.any((pointers[1:] != stops[:-1]) & inner):
            raise self.bad_index("has a document whose sequences do not follow each other")
        return spans, dtype


class NmoeReader(ShardReader):
    """Documents of an nmoe shard (``.npy`` + ``.idx``)."""

    def _index(self) -> tuple[np.ndarray, np.dtype]:
        raw = self._index_bytes()
        header = _NMOE_HEADER.size
        if len(raw) < header or not raw.startswith(b"NMOEIDX\0"):
            raise self.bad_index("is none of nmoe's")
        _, version, documents, _ = _NMOE_HEADER.unpack_from(raw)
        if version != 1:
            raise self.bad_index(f"is of version {version}, which is not read")
        if len(raw) < header + 16 * documents:
            raise self.bad_index("is cut off")
        first, dtype, size = self._npy_header()
        tokens = np.frombuffer(raw, "<u8", 2 * documents, header).reshape(-1, 2)
        if tokens.size and int(tokens.max()) > size:
            raise self.bad_index("points behind the end of the data")
        spans = first + tokens.astype(np.int64) * dtype.itemsize
        _check_within(self, spans[:, 0], spans[:, 1], first + size * dtype.itemsize)
        return spans, dtype

    def _npy_header(self) -> tuple[int, np.dtype, int]:
        """Where the data begins, its dtype, and how many elements there are."""
        with open_source(self.path) as stream:
            try:
                shape, dtype = read_npy_head(stream)
            except NPY_ERRORS as error:
                raise SourceError(
                    f"is no .npy file ({error})", field=self.path, cure=_BAD
                ) from None
            if len(shape) != 1 or dtype.kind not in "iu":
                raise SourceError(
                    f"holds {dtype} of shape {shape}, not a row of ids",
                    field=self.path,
                    cure="Choose another file.",
                )
            begin = stream.tell()
            stream.seek(0, 2)
            if stream.tell() < begin + shape[0] * dtype.itemsize:
                raise SourceError("is cut off", field=self.path, cure=_BAD)
        return begin, dtype, shape[0]


def index_path(path: str) -> str:
    """The index that belongs to a file of ids."""
    return os.path.splitext(path)[0] + ".idx"


def _check_within(
    reader: ShardReader, starts: np.ndarray, stops: np.ndarray, size: int | None
) -> None:
    if starts.size and (
        int(starts.min()) < 0 or np.any(starts > stops) or (size is not None and stops.max() > size)
    ):
        raise reader.bad_index("points behind the end of the data")


def _runs(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Runs of consecutive documents, of about 1 MiB, to be read at once."""
    first = 0
    for i in range(1, len(places) + 1):
        if (
            i == len(places)
            or places[i, 0] != places[i - 1, 1]
            or places[i, 1] < places[i, 0]
            or places[i, 1] - places[first, 0] > _READ_BYTES
        ):
            yield first, i
            first = i


def _read_exactly(stream: IO[bytes], size: int, path: str) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        data = stream.read(size)
        if not data:
            raise SourceError("is shorter than its index says", field=path, cure=_BAD)
        pieces.append(data)
        size -= len(data)
    return b"".join(pieces)
