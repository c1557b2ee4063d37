"""Writes ``ledger.bin`` for a finished cache of an earlier release, or with a damaged file.

With ``ledger.bin``, positions of uncompressed chunks are computed without reading an index, so all indices are first
checked to agree; headrace has always written chunks this way. Price: reading all of ``ledger.json``, and one small read
of each file of uncompressed chunks, 16 at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headrace.errors import CacheCorruptError, CacheMissingError, CacheUnfinishedError
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.chunk_names import PAGE_BYTES, ChunkNames, from_page
from headrace.store.layout import TOKENS
from headrace.store.ledger import LEDGER_NAME, chunk_names, read_part_record, table_of, whole_state
from headrace.store.ledger_table import TABLE_NAME, parse_table
from headrace.store.sharded import even_index

_FILES_AT_ONCE = 16


def upgrade(root: str) -> bool:
    """Writes ``ledger.bin`` next to the ledger of a finished cache, and nothing else.

    Returns:
        Whether it was missing, damaged or of another ledger.

    Raises:
        CacheMissingError: there is no cache in headrace's format.
        CacheUnfinishedError: its build was interrupted.
        CacheCorruptError: its ledger is damaged, or does not match its first or last part; a file has its chunks in
            another order than headrace writes them.
        CacheError: it cannot be read or written.

    Example:
        >>> import os, headrace.testing
        >>> cache = headrace.testing.tiny_cache()
        >>> os.remove(f"{cache.path}/ledger.bin")
        >>> upgrade(cache.path), upgrade(cache.path)
        (True, False)
    """
    state = whole_state(root)
    if state is None or state.ledger is None:
        cure = "Name the folder of a cache that headrace built."
        raise CacheMissingError(f"has no {LEDGER_NAME}", field="cache", value=root, cure=cure)
    if not state.finished:
        cure = (
            "Run the same `headrace build` command again: a finished cache has what upgrade writes."
        )
        raise CacheUnfinishedError(
            "was not finished building", field="cache", value=root, cure=cure
        )
    parts = state.ledger.parts
    for part in {part.name: part for part in (*parts[:1], *parts[-1:])}.values():
        if read_part_record(root, part.name) != part:
            cure = (
                f"Restore it, or the parts: headrace verify {root} names what does not go together."
            )
            url = files.join(root, LEDGER_NAME)
            raise CacheCorruptError(
                f"is not the ledger of part {part.name}", field="ledger", value=url, cure=cure
            )
    names = chunk_names(root, state.ledger)
    table = table_of(state.ledger, state.name, names)
    url = files.join(root, TABLE_NAME)
    if files.read_bytes(url) == table:
        return False
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="headrace-upgrade") as pool:
        for _ in pool.map(
            _check_index, *zip(*_shards(TokenCache(root, state.ledger)), strict=True)
        ):
            pass
    files.write_atomic(url, table)
    return True


def table_problem(root: str, *, mend: bool = False) -> str:
    """The problem of the ``ledger.bin`` of a finished cache, compared byte for byte; empty if there is none, or no
    file. ``mend``: rewrites it.

    Raises the same errors as :func:`~headrace.store.ledger.read_ledger`.
    """
    url = files.join(root, TABLE_NAME)
    state = whole_state(root)
    raw = files.read_bytes(url)
    if raw is None or state is None or state.ledger is None:
        return ""
    names = chunk_names(root, state.ledger)
    if not names.checksums.size:  # an array may be damaged, which is told where it is looked at
        names = _own_names(url, raw) or names
    table = table_of(state.ledger, state.name, names)
    if raw == table:
        return ""
    if mend:
        files.write_atomic(url, table)
    return f"is not what {LEDGER_NAME} and the arrays say: headrace upgrade {root} writes it anew"


def _own_names(url: str, raw: bytes) -> ChunkNames | None:
    """The checksums that a table lists; None if it does not, or is damaged."""
    try:
        table = parse_table(url, raw)
        if not table.head.chunks:
            return None
        begin, end = table.chunk_place
        pages = enumerate(range(begin, end, PAGE_BYTES))
        pages_read = [from_page(page, raw[at : min(at + PAGE_BYTES, end)]) for page, at in pages]
        return ChunkNames(np.concatenate(pages_read), table.head.described)
    except (CacheCorruptError, ValueError):
        return None


def _shards(cache: TokenCache) -> Iterator[tuple[StoredArray, int]]:
    """Every file of uncompressed chunks: its array, and its number."""
    for name in (TOKENS, *cache.leaves):
        for part in cache.leaf(name).parts:
            for array in filter(None, (part.data, part.offsets)):
                if array.layout.compression == "none":
                    yield from (
                        (array, shard)
                        for shard in range(-(-array.length // array.layout.shard_elements))
                    )


def _check_index(array: StoredArray, shard: int) -> None:
    layout = array.layout
    url = files.join(array.url, "c", str(shard))
    chunks = min(
        -(-array.length // layout.chunk_elements) - shard * layout.shard_chunks, layout.shard_chunks
    )
    expected, begin = even_index(layout, chunks)
    try:
        index = files.read_range(url, begin, begin + len(expected))
    except FileNotFoundError:
        index = b""
    if index != expected:
        cure = f"headrace verify {array.url.split('/parts/')[0]} says what is damaged; if nothing is, read it as it is."
        problem = "does not have its chunks where headrace writes them"
        raise CacheCorruptError(problem, field="file", value=url, cure=cure)
