"""Where documents end in files that do not say it: in an index that is made once, where the user
says.

Without a folder for it, a file is one document: rows can still be divided after the token that ends
documents, but packing, filters and hold-outs go by files. With ``format: {index: FOLDER}``, one
pass over a file (or over the metadata beside it) finds the ends, and saves them there as an array
of int64; later openings read only its size. Its name has the digest of the file and the rule for
its documents, and so has the part of the cache: another token that ends documents is another cache.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import numpy as np

from headrace.store import files
from headrace.store.layouts import FormatConfig
from headrace.store.npy import NPY_ERRORS, read_npy_head
from headrace.store.plain import PlainArray, corrupt
from headrace_compat.in_place import (
    FINGERPRINTED,
    NO_CHECKSUMS,
    FileStore,
    TokenFile,
    check_rising,
    read_all,
    read_exactly,
    size_of,
    token_paths,
)

ONE_DOCUMENT = (
    "where documents end: each file is one, and rows are divided at the token that ends them; for"
    " documents, give a folder: format: {index: FOLDER}"
)
_BLOCK = 1 << 22
_HEADER_BYTES = 1 << 14


class IndexedFiles(FileStore):
    """Files that do not say where documents end: one, those of a folder, or of a pattern.

    Attributes:
        format_name: Name of the format.
        ending: Ending of its files.
    """

    format_name: ClassVar[str]
    ending: ClassVar[str]

    @staticmethod
    @abstractmethod
    def token_file(settings: FormatConfig, url: str) -> TokenFile:
        """A file, with the documents of its index if the settings have a folder for it."""

    @classmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        token_files = read_all(partial(cls.token_file, settings), token_paths(path, (cls.ending,)))
        is_without_index = settings.index is None
        limits = [NO_CHECKSUMS, FINGERPRINTED, *([ONE_DOCUMENT] if is_without_index else [])]
        return cls(
            cls.format_name, path, token_files, settings, limits, whole_files=is_without_index
        )


def with_documents(
    file: TokenFile, folder: str, rule: str, find: Callable[[PlainArray], np.ndarray]
) -> TokenFile:
    """A file of which the documents are not known, with those of its index.

    Args:
        file: The file.
        folder: Folder of the index.
        rule: What documents follow from, apart from the file.
        find: Returns the offsets of documents, int64 ``[documents + 1]``, by reading the file.

    Raises:
        CacheCorruptError: the index, or what it is made from, is not of this file.
    """
    digest = f"{file.digest}:{rule}"
    url = files.join(folder, f"{digest.replace(':', '-')}.documents")
    raw = files.read_range(url, 0, _HEADER_BYTES) if files.exists(url) else None
    if raw is None:
        array = PlainArray(file.path, file.tokens, file.dtype, file.first_byte, file.size)
        offsets = np.ascontiguousarray(find(array), "<i8")
        if offsets[0] != 0 or offsets[-1] != file.tokens:
            bounds = f"{int(offsets[0])} to {int(offsets[-1])}"
            raise corrupt(file.path, f"has documents from {bounds}, of {file.tokens} tokens")
        check_rising(file.path, offsets, file.tokens)
        stream = io.BytesIO()
        np.save(stream, offsets)
        files.write_atomic(url, stream.getvalue(), shared=True)
        raw = stream.getvalue()[:_HEADER_BYTES]
    return replace(file, offsets=_saved_offsets(url, raw, file), digest=digest)


def _saved_offsets(url: str, raw: bytes, file: TokenFile) -> PlainArray:
    cure = f"Delete it: it is made again from {file.path}."
    dtype, length, first_byte = npy_header(url, raw)
    size = first_byte + 8 * length
    if dtype != "int64" or length < 1 or size_of(url) != size:
        raise corrupt(url, "is no whole index of documents", cure)
    last = int(np.frombuffer(read_exactly(url, size - 8, size), "<i8")[0])
    if last != file.tokens:
        raise corrupt(url, f"is of a file of {last:,} tokens, and {file.path} has others", cure)
    return PlainArray(url, length, dtype, first_byte, size)


def npy_header(url: str, raw: bytes) -> tuple[str, int, int]:
    """Dtype, length and first byte of the array in a ``.npy`` file that begins with these bytes.

    Raises:
        CacheCorruptError: it is no row of numbers.
    """
    stream = io.BytesIO(raw)
    try:
        shape, dtype = read_npy_head(stream)
    except NPY_ERRORS as error:
        raise corrupt(url, f"is no .npy file ({error})") from error
    if len(shape) != 1 or dtype.kind not in "iu" or dtype.byteorder == ">":
        cure = "Write one row of little-endian integers."
        raise corrupt(url, f"holds {dtype} of shape {shape}, not a row of ids", cure)
    return dtype.name, int(shape[0]), stream.tell()


def places_of(array: PlainArray, token: int) -> Iterator[np.ndarray]:
    """Where a token is in a file, block by block."""
    for start in range(0, array.length, _BLOCK):
        values = array.read(start, min(start + _BLOCK, array.length)).result()
        yield np.flatnonzero(values == token) + start


def ends_after(array: PlainArray, token: int) -> np.ndarray:
    """Offsets of documents that end with a token; what follows the last one is a document."""
    ends = np.concatenate([np.zeros(1, np.int64), *(at + 1 for at in places_of(array, token))])
    return ends if ends[-1] == array.length else np.append(ends, array.length)


def begins_at(array: PlainArray, token: int) -> np.ndarray:
    """Offsets of documents that begin with a token; what precedes the first one is a document."""
    begins = np.concatenate([np.zeros(0, np.int64), *places_of(array, token)])
    first = [] if begins.size and begins[0] == 0 else [0]
    return np.concatenate([np.array(first, np.int64), begins, [array.length]])
