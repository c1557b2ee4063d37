"""Reads the checksums of chunks from ``ledger.bin``, page by page, for arrays in a store over HTTP.

A page that was not read when the cache was opened is requested once per process, when the first
array with chunks in it is read, and kept. Price: one request for 65,536 chunks, 256 KiB; 4 bytes of
memory per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import ReadError
from headrace.store.array import kvstore_spec
from headrace.store.layout import CacheLayout, LeafSpec
from headrace.store.ledger_table import (
    PAGE_BYTES,
    PAGE_CHUNKS,
    TABLE_NAME,
    ArrayChunks,
    ColumnTable,
    chunks_of,
    from_page,
    pages_of,
)
from headrace.store.location import Location
from headrace.store.requests import Store, get


class ChunkPages:
    """The checksums of the chunks of a cache.

    Args:
        table: Table of its parts.
        layout: Layout of its tokens.
        leaves: Its other leaves.
    """

    def __init__(self, table: ColumnTable, layout: CacheLayout, leaves: Sequence[LeafSpec]) -> None:
        self._table = table
        self._layout = layout
        self._leaves = tuple(leaves)
        self._pages: dict[int, asyncio.Task[np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pages": {}}

    async def of_array(self, leaf: str, folder: str, part: int) -> np.ndarray | None:
        """The checksum of each chunk of an array, uint32; None if the table does not name them. For
        the loop's thread.

        Raises:
            ReadError: the number of chunks in the table differs from its parts.
            StoreFailedError: the store failed.
        """
        if not self._table.chunks:
            return None
        first, stop = self._kinds[leaf, folder].first[part : part + 2].tolist()
        pages = range(first // PAGE_CHUNKS, pages_of(stop)) if stop > first else range(0)
        contents = [await self._page(page) for page in pages]
        begin = pages.start * PAGE_CHUNKS
        return np.concatenate([np.zeros(0, np.uint32), *contents])[first - begin : stop - begin]

    def requests(
        self, leaf: str, parts: Int64[np.ndarray, " n"], folder: str = "data"
    ) -> Int64[np.ndarray, " pages"]:
        """The pages that have to be requested to read the values of a leaf in some parts, or its
        ``offsets``.
        """
        if not self._table.chunks:
            return np.zeros(0, np.int64)
        first = self._kinds[leaf, folder].first
        low = first[parts] // PAGE_CHUNKS
        high = -(-first[parts + 1] // PAGE_CHUNKS)
        steps = np.zeros(pages_of(self._table.chunks) + 1, np.int64)
        np.add.at(steps, low, 1)
        np.add.at(steps, np.maximum(low, high), -1)
        last_of_request = np.flatnonzero(np.cumsum(steps[:-1]))
        return last_of_request[last_of_request >= self._at_hand]

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], ArrayChunks]:
        kinds = chunks_of(self._table, self._layout, self._leaves)
        if (count := int(kinds[-1].first[-1])) != self._table.chunks:
            root = self._table.url.removesuffix(f"/{TABLE_NAME}")
            cure = f"Write it anew: headrace cache verify {root} --repair"
            problem = f"names {self._table.chunks} chunks, and its parts have {count}"
            raise ReadError(problem, field="ledger", value=self._table.url, cure=cure)
        return {(kind.leaf, kind.folder): kind for kind in kinds}

    @cached_property
    def _at_hand(self) -> int:
        """Pages in the bytes that were read when the cache was opened."""
        begin, stop = self._table.chunk_place
        if len(self._table.data) >= stop:
            return pages_of(self._table.chunks)
        return max(len(self._table.data) - begin, 0) // PAGE_BYTES

    async def _page(self, page: int) -> np.ndarray:
        task = self._pages.get(page)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._pages[page] = asyncio.ensure_future(self._read(page))
        return await asyncio.shield(task)

    async def _read(self, page: int) -> np.ndarray:
        begin, end = self._table.chunk_place
        start = begin + page * PAGE_BYTES
        stop = min(start + PAGE_BYTES, end)
        if page < self._at_hand:
            return from_page(page, self._table.data[start:stop])

        async def decode(stored: bytes) -> np.ndarray:
            return from_page(page, stored)

        folder, name = Location.parse(self._table.url).up()
        store = Store(kvstore_spec(str(folder)), str(folder))
        return await get(store, name, slice(start, stop), decode, index=True)
