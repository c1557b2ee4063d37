r"""Megatron-LM's ``.bin`` and ``.idx``, read in place.

The ``.bin`` holds the tokens of all documents end to end. The ``.idx``: ``MMIDIDX\\0\\0``, version
1 (uint64), dtype code (uint8), sequences S and bounds D (uint64), S lengths (int32), S byte offsets
(int64), D bounds of documents in sequences (int64, the first is 0), and, of some, S modes (int8).
A document is all its sequences; a part is a pair of files, in the order of their names.

Invariant: document i is at the i-th place in its file. An index that says otherwise (documents that
overlap, leave gaps, or are in another order) is refused: at opening by its ends, and all of it
where its documents are read, by ``headrace cache verify`` too.

Price of opening, for each pair: up to 64 KiB of the index, three numbers at the ends of its lists,
two sizes, and two samples of 4 KiB; nothing that grows with the number of documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from headrace.errors import CacheMissingError
from headrace.store.layouts import FormatConfig
from headrace.store.location import Location
from headrace.store.plain import ComputedArray, PlainArray, corrupt
from headrace_compat.in_place import (
    FileStore,
    TokenFile,
    begins_with,
    check_rising,
    digest_of,
    read_all,
    read_exactly,
    size_of,
    token_paths,
)

MAGIC = b"MMIDIDX\0\0"
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_OTHER_DTYPES = {6: "float64", 7: "float32"}
_HEADER = len(MAGIC) + 8 + 1 + 8 + 8
_HEAD_BYTES = 1 << 16
NOT_ONE_SEQUENCE = (
    "Some documents are not one sequence. Each is one document here; Megatron's GPT data takes each"
    " sequence as one."
)


class MegatronFiles(FileStore):
    """Pairs of ``.bin`` and ``.idx``: a prefix, one of the two files, a folder, or a pattern."""

    @classmethod
    def is_at(cls, path: str) -> bool:
        paths = sorted(_paths(path), key=lambda one: one[-4:])  # indices are last
        return bool(paths) and begins_with(f"{paths[-1][:-4]}.idx", MAGIC)

    @classmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        return cls(
            "megatron",
            path,
            read_all(_token_file, sorted({one[:-4] for one in _paths(path)})),
            settings,
        )


def _paths(path: str) -> list[str]:
    """The files of the pairs at a path, either or both; a name or a pattern of neither ending is of
    prefixes, but for the root of a bucket or a server.
    """
    if paths := token_paths(path, (".idx", ".bin")):
        return paths
    return token_paths(f"{path}.idx", (".idx",)) if Location.parse(path).key else []


@dataclass(frozen=True)
class _Index:
    """An index: its file, and what its header says."""

    url: str
    dtype: np.dtype
    sequences: int
    bounds: int

    @property
    def pointers_at(self) -> int:
        return _HEADER + 4 * self.sequences

    @property
    def bounds_at(self) -> int:
        return _HEADER + 12 * self.sequences

    @property
    def size(self) -> int:
        return self.bounds_at + 8 * self.bounds


def _token_file(prefix: str) -> TokenFile:
    url = f"{prefix}.idx"
    data = f"{prefix}.bin"
    index_size = size_of(url)  # of a .bin alone this is an error: its tokens would be lost
    data_size = size_of(data)
    head = read_exactly(url, 0, min(index_size, _HEAD_BYTES))
    index = _parse(url, head)
    if index_size not in (index.size, index.size + index.sequences):
        problem = (
            f"has {index_size:,} bytes, and its header is of {index.size:,}: it was cut off, or its"
            " header is wrong"
        )
        raise corrupt(url, problem)

    def number(at: int, dtype: str) -> int:
        size = np.dtype(dtype).itemsize
        raw = head[at : at + size] if at + size <= len(head) else read_exactly(url, at, at + size)
        return int(np.frombuffer(raw, dtype)[0])

    tokens, rest = divmod(data_size, index.dtype.itemsize)
    end = 0
    if index.sequences:
        last = number(index.pointers_at - 4, "<i4")
        end = number(index.bounds_at - 8, "<i8") + last * index.dtype.itemsize
    if rest or end != data_size:
        problem = (
            f"has {data_size:,} bytes, and by {url} {end:,} of {index.dtype.name}: one of them was"
            " cut off, or its header is wrong"
        )
        raise corrupt(data, problem)
    bounds = number(index.bounds_at, "<i8"), number(index.size - 8, "<i8")
    if bounds != (0, index.sequences):
        problem = f"has documents from sequence {bounds[0]} to {bounds[1]}, of {index.sequences}"
        raise corrupt(url, problem)
    digest = digest_of("megatron", data, data_size, 0, head, repr((index_size, end)).encode())
    offsets = _offsets(index, index_size, tokens)
    limits = () if index.bounds == index.sequences + 1 else (NOT_ONE_SEQUENCE,)
    return TokenFile(data, data_size, index.dtype.name, 0, tokens, offsets, digest, limits=limits)


def _parse(url: str, head: bytes) -> _Index:
    if len(head) < _HEADER or head[: len(MAGIC)] != MAGIC:
        raise CacheMissingError(
            "is no index of Megatron's: it does not begin with MMIDIDX",
            field="file",
            value=url,
            cure="Name the prefix of a .bin and its .idx, as for Megatron's --data-path.",
        )
    version, code, sequences, bounds = np.frombuffer(
        head, np.dtype("<u8,u1,<u8,<u8"), 1, len(MAGIC)
    )[0].tolist()
    if version != 1 or code not in DTYPES:
        what = _OTHER_DTYPES.get(code, f"dtype code {code}")
        cure = (
            "Write it with Megatron-LM's preprocess_data.py, which writes version 1 and integers."
        )
        raise corrupt(url, f"is of version {version} and {what}, which is not read", cure)
    if bounds < 1 or max(sequences, bounds) > 1 << 48:
        raise corrupt(url, f"has a header of {sequences} sequences and {bounds} bounds")
    return _Index(url, np.dtype(DTYPES[code]), sequences, bounds)


def _offsets(index: _Index, size: int, tokens: int) -> ComputedArray:
    """The first token of each document, and the end of the last one."""
    itemsize = index.dtype.itemsize
    lengths = PlainArray(index.url, index.sequences, "int32", _HEADER, size)
    pointers = PlainArray(index.url, index.sequences, "int64", index.pointers_at, size)
    bounds = PlainArray(index.url, index.bounds, "int64", index.bounds_at, size)

    def begin(start: int, stop: int) -> Callable[[], np.ndarray]:
        of_documents = bounds.read(start, stop)
        # Nearly always each document is one sequence, so its number is that of its sequence.
        is_likely = index.bounds == index.sequences + 1
        guess = (start, min(stop, index.sequences)) if is_likely else (0, 0)
        guessed = lengths.read(*guess), pointers.read(*guess)

        def finish() -> np.ndarray:
            first_sequence = of_documents.result()
            check_rising(index.url, first_sequence, index.sequences)
            low = int(first_sequence[0])
            high = min(int(first_sequence[-1]) + 1, index.sequences)
            sizes_read, begins_read = guessed
            if (low, high) != guess:
                sizes_read = lengths.read(low, high)
                begins_read = pointers.read(low, high)
            sizes = sizes_read.result().astype(np.int64)
            begins = begins_read.result()
            starts_elsewhere = low == 0 and begins.size > 0 and begins[0] != 0
            follow = begins[1:] == begins[:-1] + sizes[:-1] * itemsize
            if starts_elsewhere or (sizes < 0).any() or not follow.all():
                problem = "has documents that overlap, leave gaps, or are in another order"
                cure = "Copy that file again; if Megatron reads it, build a cache of it."
                raise corrupt(index.url, problem, cure)
            ends = np.append(begins // itemsize, tokens)
            offsets = ends[first_sequence - low]
            check_rising(index.url, offsets, tokens)
            return offsets

        return finish

    return ComputedArray(index.url, index.bounds, begin, (bounds, lengths, pointers))
