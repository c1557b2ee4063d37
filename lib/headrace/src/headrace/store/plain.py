"""Arrays in plain files, as other systems write them: numbers end to end from a byte on, and arrays
that are computed from such.

A file is read in chunks, as an array of headrace's is: a local one through the mapping
(:class:`~headrace.store.mapped.MappedFileArray`), one in a store over HTTP with one request per
chunk, neighbours together. There are no checksums: a file that was cut, or replaced after its first
read, is an error (web servers may have several versions of it, so not there); flipped bits are not
seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import CacheCorruptError, ReadError
from headrace.store import files, remote
from headrace.store.array import ArrayFuture, StoredArray
from headrace.store.layout import DEFAULT_CHUNK, DEFAULT_SHARD_CHUNKS, CacheLayout, StoredLayout
from headrace.store.location import Location
from headrace.store.mapped import MappedArray, map_file
from headrace.store.requests import Store
from headrace.store.sharded import REQUEST_BYTES, ShardedArray

_LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
COPY_AGAIN = "Copy that file again, with all that belong to it."


@cache
def plain_layout(dtype: str) -> CacheLayout:
    """The layout of an array in a plain file: the chunks in which it is read."""
    return CacheLayout(dtype, DEFAULT_CHUNK, DEFAULT_SHARD_CHUNKS, "none")


class PlainArray(StoredArray):
    """An array that a plain file holds, little-endian.

    Args:
        url: The file.
        length: Number of elements.
        dtype: Their dtype.
        first_byte: Where they begin.
        file_bytes: Size of the whole file when it was opened.
    """

    described = True

    def __init__(
        self, url: str, length: int, dtype: str, first_byte: int = 0, file_bytes: int = 0
    ) -> None:
        super().__init__(url, length, plain_layout(dtype))
        self.first_byte = first_byte
        self._file_bytes = file_bytes or first_byte + length * self.dtype.itemsize

    @cached_property
    def _over_http(self) -> bool:
        return True  # local files that are not mapped are read in the same way

    def file_of(self, shard: int) -> str:
        return self.url

    def file_problems(self) -> list[tuple[str, str]]:
        try:
            size = file_size(self.url)
        except FileNotFoundError:
            return [(self.url, "is missing")]
        if size == self._file_bytes:
            return []
        return [(self.url, f"has {size:,} bytes instead of {self._file_bytes:,}")]

    def requests_of_all(self, *, described: bool) -> int:
        stored_bytes = self.layout.shard_elements * self.dtype.itemsize
        shards, rest = divmod(self.length * self.dtype.itemsize, stored_bytes)
        return shards * -(-stored_bytes // REQUEST_BYTES) + -(-rest // REQUEST_BYTES)

    def _map(self, folder: Path) -> MappedArray | None:
        return map_file(folder, self.first_byte, self.dtype, self.length, self.chunk_elements)

    async def _open_over_http(self) -> ShardedArray:
        # Of an array in a plain file, the folder is that file.
        folder, name = Location.parse(str(self._folder or self.url)).up()
        url = str(folder)
        spec = files.kvstore_spec(url)
        attempts = self.damaged_attempts
        watches = spec["driver"] in ("file", "gcs", "s3")
        store = Store(spec, url, attempts, attempts, watches=watches)
        stored = StoredLayout(
            length=self.length,
            dtype=self.layout.dtype,
            shard=self.layout.shard_elements,
            chunk=self.chunk_elements,
            codecs=[_LITTLE],
            index_codecs=[_LITTLE],
            index_last=True,
            plain=True,
        )
        place = name, self.first_byte
        return ShardedArray(store, self.url, stored, computed=True, plain=place)


class ComputedArray(StoredArray):
    """An array that is computed from others when it is read, such as the offsets of documents from
    an index.

    Args:
        url: The file that it comes from, for errors.
        length: Number of elements.
        begin: Starts the reads for elements ``start .. stop``, called once a range; returns a
            function that waits for them and computes the elements. Raises ReadError if the stored
            ones contradict themselves.
        sources: What it reads; the first says whether its file is as it was.
        dtype: Its dtype.
    """

    described = True

    def __init__(
        self,
        url: str,
        length: int,
        begin: Callable[[int, int], Callable[[], np.ndarray]],
        sources: tuple[PlainArray, ...] = (),
        dtype: str = "int64",
    ) -> None:
        super().__init__(url, length, plain_layout(dtype))
        self._begin = begin
        self._sources = sources

    def file_of(self, shard: int) -> str:
        return self.url

    def file_problems(self) -> list[tuple[str, str]]:
        return self._sources[0].file_problems() if self._sources else []

    def requests_of_all(self, *, described: bool) -> int:
        return sum(source.requests_of_all(described=True) for source in self._sources)

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        finish = self._begin(start, start + out.size)

        def fill() -> np.ndarray:
            out[:] = finish()
            return out

        return _Computing(fill)


class _Computing:
    """A read of a computed array in flight."""

    def __init__(self, finish: Callable[[], np.ndarray]) -> None:
        self._finish = finish

    def result(self, timeout: float | None = None) -> np.ndarray:
        return self._finish()

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        return asyncio.to_thread(self._finish).__await__()


def array_in_memory(url: str, values: np.ndarray) -> ComputedArray:
    """An array that is held in memory, such as the offsets of documents."""
    begin = partial(_begin_in_memory, values)
    return ComputedArray(url, values.size, begin, dtype=values.dtype.name)


def _begin_in_memory(values: np.ndarray, start: int, stop: int) -> Callable[[], np.ndarray]:
    return lambda: values[start:stop].copy()


def file_size(url: str) -> int:
    """Bytes of a file. Raises FileNotFoundError, or CacheError if the store cannot be reached or
    does not say.
    """
    if files.is_local(url):
        return files.local_path(url).stat().st_size
    size = remote.info(url).get("size")
    if size is None:
        cure = "Put it on a server that tells the sizes of files (Content-Length)."
        raise ReadError("has no size, as its server says", field="file", value=url, cure=cure)
    return int(size)


def corrupt(url: str, problem: str, cure: str = COPY_AGAIN) -> CacheCorruptError:
    """The error for a file that contradicts itself, or what lies beside it."""
    return CacheCorruptError(problem, field="file", value=url, cure=cure)
