"""Mixes of ``.npy`` files, read in place: with NumPy's header, or without one as OLMo has them.

A file without a header is ids end to end, and its dtype has to be said: ``format: {name: npy,
dtype: uint32, eos_id: 100257}``. Where documents end is in ``NAME.csv.gz`` beside ``NAME.npy``, as
OLMo's tools write it (first and last token of each in the first two columns), or follows from the
token that ends them (:mod:`headrace_compat.document_index`).

Price of opening, for each file: its size, and up to 16 KiB at its beginning and its end.
"""

from __future__ import annotations

import gzip
import zlib
from functools import partial

import numpy as np

from headrace.errors import ConfigError
from headrace.store import files
from headrace.store.layouts import FormatConfig
from headrace.store.plain import array_in_memory, corrupt
from headrace_compat.document_index import IndexedFiles, ends_after, npy_header, with_documents
from headrace_compat.in_place import (
    TokenFile,
    check_sample,
    digest_of,
    read_exactly,
    size_of,
    token_paths,
)

MAGIC = b"\x93NUMPY"
_HEADER_BYTES = 1 << 14


class NpyFiles(IndexedFiles):
    """``.npy`` files: one, those of a folder, or of a pattern."""

    format_name = "npy"
    ending = ".npy"

    @classmethod
    def is_at(cls, path: str) -> bool:
        paths = token_paths(path, (cls.ending,))
        return bool(paths) and files.exists(paths[0])

    @staticmethod
    def token_file(settings: FormatConfig, url: str) -> TokenFile:
        size = size_of(url)
        head = read_exactly(url, 0, min(size, _HEADER_BYTES))
        if head.startswith(MAGIC):
            dtype, tokens, first_byte = npy_header(url, head)
            expected = first_byte + tokens * np.dtype(dtype).itemsize
            if size != expected:
                problem = f"has {size:,} bytes, and its header is of {expected:,}: it was cut off"
                raise corrupt(url, problem)
        else:
            dtype = _said_dtype(settings, url)
            first_byte = 0
            tokens, rest = divmod(size, np.dtype(dtype).itemsize)
            if rest:
                cure = "Copy it again, or write its dtype in format.dtype."
                raise corrupt(url, f"has {size:,} bytes, no whole number of {dtype}", cure)
        check_sample(url, head[first_byte:], dtype, settings)
        digest = digest_of("npy", url, size, first_byte, dtype.encode(), head[:first_byte])
        offsets = array_in_memory(url, np.array([0, tokens]))
        file = TokenFile(url, size, dtype, first_byte, tokens, offsets, digest)
        if settings.index is None:
            return file
        metadata = f"{url.removesuffix('.npy')}.csv.gz"
        if files.exists(metadata):
            rule = digest_of("listed", metadata, size_of(metadata), 0)  # gzip ends with a checksum
            return with_documents(file, settings.index, rule, lambda _: _listed_documents(metadata))
        if settings.eos_id is None:
            raise ConfigError(
                f"is missing, and there is no {metadata} that says where documents end",
                field="format.eos_id",
                cure="Give the token that ends documents: format: {name: npy, eos_id: 100257}.",
            )
        find = partial(ends_after, token=settings.eos_id)
        return with_documents(file, settings.index, f"end:{settings.eos_id}", find)


def _said_dtype(settings: FormatConfig, url: str) -> str:
    if settings.dtype is None:
        raise ConfigError(
            f"is missing, and {url} has no header that says it",
            field="format.dtype",
            cure="Say it: format: {name: npy, dtype: uint32}, or --format npy,dtype=uint32.",
        )
    return settings.dtype


def _listed_documents(url: str) -> np.ndarray:
    """Offsets of the documents in OLMo's metadata: a line for each, in order."""
    try:
        lines = gzip.decompress(read_exactly(url, 0, size_of(url))).decode().splitlines()
        spans = np.array([line.split(",", 2)[:2] for line in lines], np.int64).reshape(-1, 2)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise corrupt(url, f"does not list documents ({error})") from error
    if (spans[1:, 0] != spans[:-1, 1]).any():
        raise corrupt(url, "has documents that overlap, leave gaps, or are in another order")
    return np.concatenate([spans[:1, 0], spans[:, 1]]) if lines else np.zeros(1, np.int64)
