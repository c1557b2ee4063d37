"""Shards of llm.c and modded-nanogpt, read in place: ``.bin`` with a header of 256 int32.

The header: magic number, version, number of tokens. Magic 20240520, version 1: uint16 ids of GPT-2;
20240801, version 7: uint32 ids of Llama 3. Documents *begin* with a token (50256, 128000); where,
only a pass over the file tells (:mod:`headrace_compat.document_index`).

Price of opening, for each file: its size, its header, and two samples of 4 KiB.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from headrace.errors import CacheMissingError
from headrace.store.layouts import FormatConfig
from headrace.store.plain import array_in_memory, corrupt
from headrace_compat.document_index import IndexedFiles, begins_at, with_documents
from headrace_compat.in_place import (
    TokenFile,
    begins_with,
    digest_of,
    read_exactly,
    size_of,
    token_paths,
)

_HEADER_BYTES = 1024


class _Kind(NamedTuple):
    """What a magic number says: version, dtype of the ids, and the token that begins documents."""

    version: int
    dtype: str
    begin: int


_KINDS = {20240520: _Kind(1, "uint16", 50256), 20240801: _Kind(7, "uint32", 128000)}
_MAGIC = [np.int32(magic).tobytes() for magic in _KINDS]


class LlmcFiles(IndexedFiles):
    """``.bin`` shards: one, those of a folder, or of a pattern."""

    format_name = "llmc"
    ending = ".bin"

    @classmethod
    def is_at(cls, path: str) -> bool:
        paths = token_paths(path, (cls.ending,))
        return bool(paths) and any(begins_with(paths[0], magic) for magic in _MAGIC)

    @staticmethod
    def token_file(settings: FormatConfig, url: str) -> TokenFile:
        size = size_of(url)
        head = read_exactly(url, 0, min(size, _HEADER_BYTES))
        magic, version, tokens = np.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
        if magic not in _KINDS:
            raise CacheMissingError(
                "is no shard of llm.c's: it does not begin with its magic number",
                field="file",
                value=url,
                cure="Leave it out of the folder or pattern.",
            )
        kind = _KINDS[magic]
        if version != kind.version:
            problem = f"is of version {version}, and {kind.version} is read"
            raise corrupt(url, problem, "Write it with the newest data scripts of llm.c.")
        expected = _HEADER_BYTES + tokens * np.dtype(kind.dtype).itemsize
        if size != expected or tokens < 0:
            problem = f"has {size:,} bytes, and its header is of {expected:,}: it was cut off"
            raise corrupt(url, problem)
        digest = digest_of("llmc", url, size, _HEADER_BYTES, head)
        offsets = array_in_memory(url, np.array([0, tokens]))
        file = TokenFile(url, size, kind.dtype, _HEADER_BYTES, tokens, offsets, digest)
        if settings.index is None:
            return file
        begin = kind.begin if settings.eos_id is None else settings.eos_id
        find = partial(begins_at, token=begin)
        return with_documents(file, settings.index, f"begin:{begin}", find)
