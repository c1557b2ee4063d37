"""Token files of datatrove, read in place: ``.ds`` with ``.ds.index``.

``NAME.ds`` has the ids of all documents end to end, two or four bytes each. ``NAME.ds.index`` has
where each document ends, counted in tokens (uint64). Its last number and the size of the ``.ds``
say how wide an id is. ``NAME.ds.metadata`` and ``NAME.ds.loss`` are not read.

Price of opening, for each file: two sizes, the last number of its index, and two samples of 4 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Self

import numpy as np

from headrace.errors import CacheError
from headrace.store import files
from headrace.store.layouts import FormatConfig
from headrace.store.plain import ComputedArray, PlainArray, corrupt
from headrace_compat.in_place import (
    FileStore,
    TokenFile,
    check_rising,
    digest_of,
    read_all,
    read_exactly,
    size_of,
    token_paths,
)

_ENDING = ".ds"
_INDEX_ITEM = 8
_DTYPES = {2: "uint16", 4: "uint32"}


class DatatroveFiles(FileStore):
    """``.ds`` files with their indexes: one, those of a folder, or of a pattern."""

    @classmethod
    def is_at(cls, path: str) -> bool:
        paths = token_paths(path, (_ENDING,))
        return bool(paths) and files.exists(paths[0])

    @classmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        return cls(
            "datatrove", path, read_all(_token_file, token_paths(path, (_ENDING,))), settings
        )


def _token_file(url: str) -> TokenFile:
    size = size_of(url)
    index_url = f"{url}.index"
    index_size = size_of(index_url)
    documents, rest = divmod(index_size, _INDEX_ITEM)
    if rest:
        raise corrupt(index_url, f"has {index_size:,} bytes, no whole number of ends of documents")
    last = read_exactly(index_url, index_size - _INDEX_ITEM, index_size) if documents else bytes(8)
    tokens = int(np.frombuffer(last, "<u8")[0])
    itemsize = size // tokens if tokens else 2
    if itemsize not in _DTYPES or itemsize * tokens != size:
        problem = (
            f"has {size:,} bytes, and by {index_url} {tokens:,} tokens of two or four bytes: one of"
            " them was cut off"
        )
        raise corrupt(url, problem)
    if files.exists(f"{url}.loss"):
        raise CacheError(
            "says which tokens are trained on, which is not read in place",
            field="file",
            value=f"{url}.loss",
            cure="Move it away to train on all tokens, or build a cache with a loss_mask of it.",
        )
    ends = PlainArray(index_url, documents, "int64", 0, index_size)
    begin = partial(_begin_offsets, ends, tokens)
    offsets = ComputedArray(index_url, documents + 1, begin, (ends,))
    digest = digest_of("datatrove", url, size, 0, repr(index_size).encode())
    return TokenFile(url, size, _DTYPES[itemsize], 0, tokens, offsets, digest)


def _begin_offsets(
    ends: PlainArray, tokens: int, start: int, stop: int
) -> Callable[[], np.ndarray]:
    """Reads offsets ``start .. stop`` of documents: offset k is the end of document k - 1."""
    first = max(start - 1, 0)
    read = ends.read(first, max(stop - 1, first))

    def finish() -> np.ndarray:
        offsets = read.result()
        if start == 0 and stop > 0:
            offsets = np.append(0, offsets)
        check_rising(ends.url, offsets, tokens)
        return offsets

    return finish
