"""One-dimensional zarr3 arrays through TensorStore: open, read a range, write shard by shard.

Invariant: a finished array never changes, so it is never re-validated (``recheck_cached_data:
open``), and a read returns what was written or raises an error: a lost shard, a flipped bit
(crc32c) or an array of another length never becomes data. A range on chunk borders is read without
waste. A read costs about 30 us of CPU plus its bytes; never read single rows. Arrays in a store
over HTTP are read with one request per chunk, retried and hedged as in :mod:`headrace.store.retry`
(:mod:`headrace.store.sharded`, 0.2 ms of CPU per chunk).

That a chunk is the one that belongs at its position is told by the crc32c that ``zarr.json`` lists
for it: its own checksum shows that its bytes are intact, not where they belong, so a whole shard
file in the wrong position could be read without an error. ``zarr.json`` has the checksum of every
chunk (:func:`headrace.store.layout.attributes_of`), 5.3 bytes each, and readers compare it with the
last four bytes of the chunk (:func:`headrace.store.layout.check_place`). Mapped files and reads
over HTTP have these bytes anyway. TensorStore does not return them when it reads from a local disk,
so they are read first, once per chunk (:class:`LocalPlaces`): they are next to bytes that are about
to be read.

After ``os.fork``, a child of a process that has read cannot read, because it lacks the parent's
threads: instead of waiting forever, it gets an error (:func:`check_same_process`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorstore as ts

from headrace.errors import CacheCorruptError, CacheError, HeadraceError, ReadError
from headrace.store import files, remote, retry
from headrace.store.failures import DamagedAnswerError
from headrace.store.layout import (
    CRC_BYTES,
    NO_CHUNK,
    CacheLayout,
    StoredLayout,
    check_place,
    owner_of,
)
from headrace.store.mapped import MappedArray, map_array
from headrace.store.requests import Store, arrived, get, read_context, submit
from headrace.store.sharded import REQUEST_BYTES, ShardedArray, described_by

# of a long read: chunks in each of its reads, and reads in flight
_FILL_CHUNKS = 16
_FILL_READS = 8
_ENTRY = struct.Struct("<QQ")  # a chunk's offset and size in a shard's index


_first_process: int | None = None  # the first that used TensorStore


def check_same_process() -> None:
    """Checks the process before TensorStore is used; costs 0.1 us.

    Raises:
        ReadError: a parent of this process has used it, then forked.
    """
    global _first_process
    process = os.getpid()
    if _first_process is None:
        _first_process = process
    elif _first_process != process:
        raise ReadError(
            f"reads in a process that was forked from process {_first_process}, whose reading"
            " threads it does not have",
            field="process",
            value=process,
            cure='Start such processes with multiprocessing.get_context("spawn") or "forkserver",'
            " or fork before the first read;"
            " in a torch DataLoader: multiprocessing_context='spawn'.",
        )


class ArrayFuture(Protocol):
    """A read in flight: ``result()`` or ``await`` returns the data. Dropping it
    abandons the read.
    """

    def result(self, timeout: float | None = None) -> np.ndarray:
        """Waits for the data and returns it.

        Raises:
            ReadError: it cannot be read; names the array and the chunk.
            TimeoutError: not there within ``timeout`` seconds; the read continues.
        """
        ...

    def __await__(self) -> Generator[Any, None, np.ndarray]: ...


@dataclass(eq=False)
class RepeatedRead:
    """A read in flight that goes on as another one if it fails.

    Attributes:
        read: The one in flight.
        again: Begins another one after an error, or raises it.
        use: Makes the result of what was read.
    """

    read: ArrayFuture
    again: Callable[[HeadraceError], ArrayFuture]
    use: Callable[[np.ndarray], np.ndarray] = lambda values: values

    def result(self, timeout: float | None = None) -> np.ndarray:
        while True:
            try:
                return self.use(self.read.result(timeout))
            except (ReadError, CacheError) as error:
                self.read = self.again(error)

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        while True:
            try:
                return self.use((yield from self.read.__await__()))
            except (ReadError, CacheError) as error:
                self.read = self.again(error)


class LocalPlaces:
    """The chunks of an array in a local folder, each checked before it is first read. Safe for
    several threads.

    Args:
        folder: Folder of the array.
        stored: Its ``zarr.json``.
        checksums: Listed checksum of each chunk.
    """

    def __init__(self, folder: Path, stored: StoredLayout, checksums: np.ndarray) -> None:
        self._shards = f"{folder}/c/"
        self._checksums = checksums.data
        self._chunk = stored.chunk
        self._shard_chunks = stored.shard // stored.chunk
        self._index_bytes = stored.index_bytes
        self._seen = bytearray(checksums.size)

    def check(self, start: int, stop: int) -> None:
        """Raises DamagedAnswerError if a chunk with elements ``start .. stop`` belongs elsewhere.
        Lost or truncated chunks are left to the reader.
        """
        first = start // self._chunk
        end = -(-stop // self._chunk)
        while (first := self._seen.find(0, first, end)) >= 0:
            shard = first // self._shard_chunks
            next_shard = min((shard + 1) * self._shard_chunks, end)
            self._look(shard, first, next_shard)
            first = next_shard

    def _look(self, shard: int, first: int, end: int) -> None:
        path = f"{self._shards}{shard}"
        try:
            file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError:
            return
        try:
            os.lseek(
                file,
                _ENTRY.size * (first - shard * self._shard_chunks) - self._index_bytes,
                os.SEEK_END,
            )
            for chunk, (offset, size) in enumerate(
                _ENTRY.iter_unpack(os.read(file, _ENTRY.size * (end - first))), first
            ):
                if offset != NO_CHUNK and not self._seen[chunk]:
                    os.lseek(file, offset + size - CRC_BYTES, os.SEEK_SET)
                    checksum = os.read(file, CRC_BYTES)
                    if len(checksum) == CRC_BYTES:
                        check_place(checksum, self._checksums[chunk])
                    self._seen[chunk] = 1
        except (OSError, OverflowError, struct.error):
            return
        except ValueError as error:
            raise DamagedAnswerError(f"{error}, shard file {path}") from error
        finally:
            os.close(file)


def _failed(opening: asyncio.Future[Any]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


class StoredArray:
    """A finished one-dimensional array, opened at the first read.

    Args:
        url: Folder of the array (the one with ``zarr.json``).
        length: Number of elements, from the ledger, so that opening needs no request for it.
        layout: How they are stored.
        digest: Returns the digest of the leaf, from the ledger: an array of another leaf is
            refused.
        names: Returns the crc32c of each chunk, from the ledger; None if it has none. Over HTTP,
            chunks are then requested at the positions that follow from the layout, without reading
            ``zarr.json`` and the shards' indices. If a chunk is not there, its index is read after
            all.

    Attributes:
        damaged_attempts: Most requests over HTTP for bytes that come damaged or are missing, if it
            is set before the first read; None: as the process's policy says.
    """

    damaged_attempts: int | None = None
    described = False
    """Whether chunks can be requested over HTTP without reading anything about the array first."""

    missing_is_zero = False
    """Whether what is not stored is zero, as in arrays of other systems; a lost shard is an error
    here.
    """

    def __init__(
        self,
        url: str,
        length: int,
        layout: CacheLayout,
        digest: Callable[[], str] = str,
        names: Callable[[], Awaitable[np.ndarray | None]] | None = None,
    ) -> None:
        self.url = url
        self.length = length
        self.layout = layout
        self._digest = digest
        self._names = names
        # Nothing else is computed here: a run may open a million arrays and read few of them.
        # What a relative path means.
        self._working_folder = "" if url.startswith("/") or not files.is_local(url) else os.getcwd()
        self._store: Any = None
        self._places: LocalPlaces | None = None
        self._mapped: MappedArray | None = None
        self._looked = False
        self._lock = threading.Lock()
        self._opening: asyncio.Task[ShardedArray | None] | None = None
        self._sharded: ShardedArray | None = None  # what any thread may send requests to

    def __getstate__(self) -> dict[str, Any]:
        fresh = dict.fromkeys(("_store", "_places", "_mapped", "_lock", "_opening", "_sharded"))
        return self.__dict__ | fresh | {"_looked": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @cached_property
    def _folder(self) -> Path | None:
        return (
            Path(self._working_folder, files.local_path(self.url))
            if files.is_local(self.url)
            else None
        )

    @cached_property
    def _kvstore(self) -> dict[str, Any]:
        return files.kvstore_spec(self.url if self._folder is None else str(self._folder))

    @cached_property
    def _over_http(self) -> bool:
        return self._kvstore["driver"] in ("gcs", "s3", "http", "az")

    def file_of(self, shard: int) -> str:
        """The file that holds a shard."""
        return f"{self.url.rstrip('/')}/c/{shard}"

    def must_exist(self, shard: int) -> bool:
        """Whether a missing shard file is lost, rather than all zeros."""
        return True

    def file_problems(self) -> list[tuple[str, str]] | None:
        """Problems of its files, as (file, problem) pairs, if it is not an array of zarr; else
        None: see :mod:`headrace.store.verify`.
        """
        return None

    def requests_of_all(self, *, described: bool) -> int:
        """Requests over HTTP of one read of the whole array: for chunks, neighbours together;
        unless it is ``described`` (by ``names``), for ``zarr.json``; and for indices of files,
        unless it is described and not compressed. Compressed chunks count as if they were not.
        """
        chunks = -(-self.length // self.chunk_elements)
        files_filled, rest = divmod(chunks, self.layout.shard_chunks)
        stored_bytes = self.chunk_elements * self.dtype.itemsize + CRC_BYTES
        together = max(REQUEST_BYTES // stored_bytes, 1)
        requests = files_filled * -(-self.layout.shard_chunks // together) - (-rest // together)
        if described and self.layout.compression == "none":
            return requests
        return requests + files_filled + (rest > 0) + (not described)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.layout.dtype)

    @property
    def chunk_elements(self) -> int:
        return self.layout.chunk_elements

    def read(self, start: int, stop: int) -> ArrayFuture:
        """Starts reading elements ``start .. stop``, within ``0 .. length``; several reads may be
        in flight. A subclass with its own way of reading has it in :meth:`read_into` alone.
        """
        if self._over_http or type(self).read_into is not StoredArray.read_into:
            return self.read_into(np.empty(stop - start, self.dtype), start)
        return self._read_here(start, stop, lambda store: store[start:stop].read(order="C"))

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        """Starts reading ``out.size`` elements from ``start`` on straight into ``out`` (contiguous,
        of this dtype).

        ``out`` holds the data once the future's ``result()`` has returned; no copy is made on the
        way.
        """
        if self._over_http:
            return self._read_over_http(out, start)
        stop = start + out.size
        return self._read_here(
            start, stop, lambda store: ts.array(out, copy=False).write(store[start:stop]), out
        )

    def fill(self, out: np.ndarray, start: int) -> None:
        """Reads ``out.size`` elements from ``start`` on into ``out`` (contiguous, of this dtype),
        and returns when they are there. For long ranges: mapped chunks are copied in place, others
        read with little in flight.

        Raises:
            ReadError: stored bytes are missing or damaged.
        """
        mapped = self.mapped()
        size = self.chunk_elements
        flying: deque[ArrayFuture] = deque()
        at = start
        stop = start + out.size
        while at < stop:
            chunk, offset = divmod(at, size)
            is_whole = offset == 0 and at + size <= stop
            if mapped is not None and is_whole and mapped.address(chunk):
                piece = out[at - start : at - start + size]
                if mapped.copy(chunk, piece.view(np.uint8)):
                    at += size
                    continue
            end = min(
                stop,
                (chunk + 1) * size if mapped is not None else at - offset + _FILL_CHUNKS * size,
            )
            flying.append(self.read_into(out[at - start : end - start], at))
            if len(flying) > _FILL_READS:
                flying.popleft().result()
            at = end
        for read in flying:
            read.result()

    def received(self, values: np.ndarray, start: int) -> None:
        """Receives what was read from ``start`` on before anything else; a subclass may check and
        change it.
        """

    @property
    def owner(self) -> str:
        """The owner that its ``zarr.json`` must name, if it names one; empty if unknown."""
        digest = self._digest()
        return owner_of(self.url, digest) if digest else ""

    def mapped(self) -> MappedArray | None:
        """The array's chunks in place, if they are local and uncompressed; None: they have to be
        read.

        Always None for a subclass with its own way of reading.
        """
        own_way = (
            type(self).read_into is not StoredArray.read_into
            or type(self).received is not StoredArray.received
        )
        if self._folder is None or own_way:
            return None
        with self._lock:
            if not self._looked:
                self._mapped = self._map(self._folder)
                self._looked = True
            return self._mapped

    def _map(self, folder: Path) -> MappedArray | None:
        return map_array(folder, self.dtype, self.length, self.chunk_elements, self.owner)

    def _read_here(
        self, start: int, stop: int, begin: Callable[[Any], Any], out: np.ndarray | None = None
    ) -> PendingRead:
        store = self._opened()
        try:
            if self._places is not None:
                self._places.check(start, stop)
            future = begin(store)
        except DamagedAnswerError as error:
            future = concurrent.futures.Future[Any]()
            future.set_exception(error)
        return PendingRead(future, self, start, stop, out)

    def _read_over_http(self, out: np.ndarray, start: int) -> ArrayFuture:
        check_same_process()
        sending = None if self._sharded is None else self._sharded.send(start, out)
        if sending is not None:
            return PendingRead(sending, self, start, start + out.size)

        async def read() -> np.ndarray:
            sharded = await self._opened_over_http()
            if sharded is not None:
                return await sharded.read(start, out)
            store = await self._opened_as_is()
            await arrived(ts.array(out, copy=False).write(store[start : start + out.size]))
            return out

        return PendingRead(submit(read), self, start, start + out.size)

    async def _opened_over_http(self) -> ShardedArray | None:
        """This array, opened once for all waiting reads; None if TensorStore has to read it."""
        opening = self._opening
        if opening is None or _failed(opening):  # a failed one is tried again by the next read
            opening = self._opening = asyncio.ensure_future(self._open_over_http())
            # If all waiting reads have given up, its error is ignored.
            opening.add_done_callback(_failed)
        opened = await asyncio.shield(opening)
        if self._kvstore["driver"] != "az":  # whose requests are sent by the loop's thread
            self._sharded = opened
        return opened

    def forget(self) -> None:
        """Asks the store again for all that is read from now on."""
        opening = self._opening
        if opening is not None and opening.done() and not _failed(opening):
            sharded = opening.result()
            if sharded is not None:
                sharded.forget()

    async def _open_over_http(self) -> ShardedArray | None:
        missing_attempts = 1 if self.missing_is_zero else self.damaged_attempts
        store = Store(self._kvstore, self.url, self.damaged_attempts, missing_attempts)
        if self._names is not None:
            stored = StoredLayout.parse(self.layout.zarr_metadata(self.length))
            try:
                checksums = await self._names()
            except (ValueError, OSError) as error:
                raise self._not_opened(error) from error
            return ShardedArray(
                store, self.url, replace(stored, checksums=checksums), computed=True
            )
        try:
            metadata = await get(store, "zarr.json", None, described_by, index=True)
        except (ValueError, OSError) as error:
            raise self._not_opened(error) from error
        try:
            stored = StoredLayout.parse(metadata)
            self._check_found(stored.length, stored.dtype, stored.owner)
            return ShardedArray(store, self.url, stored, missing_is_zero=self.missing_is_zero)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return (
                None  # another kind of array: TensorStore says what is wrong with it, if anything
            )

    def _opened(self) -> Any:
        check_same_process()
        with self._lock:
            if self._store is None:
                try:
                    store = self._open().result()
                except (ValueError, OSError) as error:
                    raise self._not_opened(error) from error
                self._places = self._checked_places()
                self._store = store
            return self._store

    async def _opened_as_is(self) -> Any:
        """TensorStore's own view of an array over HTTP that is not plainly sharded."""
        if self._kvstore["driver"] == "az":
            raise self._not_opened(ValueError("it is of a kind that TensorStore has to read"))
        if self._store is None:
            try:
                store = await arrived(self._open())
            except (ValueError, OSError) as error:
                raise self._not_opened(error) from error
            self._check_found(int(store.shape[0]), store.dtype.name, "")
            self._store = store
        return self._store

    def _open(self) -> Any:
        spec = {
            "driver": "zarr3",
            "kvstore": self._kvstore,
            "recheck_cached_data": "open",
            "recheck_cached_metadata": "open",
            "fill_missing_data_reads": self.missing_is_zero,
        }
        return ts.open(spec, read=True, write=False, context=read_context(retry.policy().retries))

    def _not_opened(self, error: Exception) -> CacheError:
        cure = "Check that the cache was copied whole; build it again if not."
        return CacheError(
            f"cannot be opened ({remote.store_error(error, self.url)})",
            field="array",
            value=self.url,
            cure=cure,
        )

    def _checked_places(self) -> LocalPlaces | None:
        """The places of the chunks of an array in a local folder, if it names them. Raises
        CacheCorruptError for another array than the ledger's.
        """
        assert self._folder is not None
        try:
            stored = StoredLayout.read((self._folder / "zarr.json").read_bytes())
        except (OSError, ValueError) as error:
            raise self._not_opened(ValueError(f"DATA_LOSS: {error}")) from error
        self._check_found(stored.length, stored.dtype, stored.owner)
        checksums = stored.checksums
        return None if checksums is None else LocalPlaces(self._folder, stored, checksums)

    def _check_found(self, length: int, dtype: str, owner: str) -> None:
        actual = f"{length} elements of {dtype}"
        recorded = f"{self.length} elements of {self.dtype.name}"
        if actual != recorded:
            cure = (
                "Parts and ledger are of different builds: copy the cache again, or build it again."
            )
            raise CacheCorruptError(
                f"holds {actual}, but the ledger has {recorded}",
                field="array",
                value=self.url,
                cure=cure,
            )
        if owner and self.owner and owner != self.owner:
            cure = (
                "Copy that part again, or build it again: headrace cache verify names it, and what"
                " rebuilds it."
            )
            raise CacheCorruptError(
                "is of another part, or of another cache", field="array", value=self.url, cure=cure
            )


@dataclass(eq=False, slots=True)
class PendingRead:
    """A read in flight that ends with :meth:`StoredArray.received`, or fails with a
    :class:`ReadError` that names the array, the chunk and the shard file. ``out``: the target
    array; None: the future returns one.
    """

    future: Any
    array: StoredArray
    start: int
    stop: int
    out: np.ndarray | None = None

    def result(self, timeout: float | None = None) -> np.ndarray:
        try:
            values = self.future.result(timeout)
        except (ValueError, OSError) as error:
            if isinstance(error, TimeoutError) and timeout is not None:
                if not self.future.done():
                    raise  # it is not there yet
                # It came just now, or fails with the store's own error of that name.
                return self.result()
            raise self._failed(error) from remote.store_error(error, self.array.url, self._shards())
        return self._received(values)

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        future = self.future
        waiting = (
            asyncio.wrap_future(future) if isinstance(future, concurrent.futures.Future) else future
        )
        try:
            values = yield from waiting.__await__()
        except (ValueError, OSError) as error:
            raise self._failed(error) from remote.store_error(error, self.array.url, self._shards())
        return self._received(values)

    def _received(self, values: np.ndarray) -> np.ndarray:
        if self.out is not None:
            values = self.out
        self.array.received(values, self.start)
        return values

    def __del__(self) -> None:
        # TensorStore's own futures end by being forgotten.
        if isinstance(self.future, concurrent.futures.Future):
            self.future.cancel()

    def _failed(self, error: Exception) -> ReadError:
        first, last = self._units(self.array.chunk_elements)
        chunks = f"chunk {first}" if first == last else f"chunks {first} to {last}"
        why = str(remote.store_error(error, self.array.url, self._shards()))
        cure = (
            "Serve it with a server that answers byte ranges; Python's http.server does not."
            if "was ignored by server" in why
            else "Check that the store can be reached and that the cache was copied whole; build it"
            " again if not."
        )
        problem = f"{chunks} cannot be read ({why})"
        return ReadError(problem, field="array", value=self.array.url, cure=cure)

    def _shards(self) -> str:
        first, last = self._units(self.array.layout.shard_elements)
        file = self.array.file_of(first)
        if file == self.array.file_of(last):
            return f"shard file {file}"
        return f"shard files {file} to {last}"

    def _units(self, elements: int) -> tuple[int, int]:
        """The first and the last chunk or shard that it touches."""
        return self.start // elements, max(self.stop - 1, self.start) // elements
