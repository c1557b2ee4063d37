"""Sharded arrays in stores over HTTP: one request per chunk, because shard indices are cached
separately from data.

TensorStore caches shard indices and chunks in one pool, so the chunks of a shuffled epoch evict the
indices, and each chunk costs two requests. Here, an index (16 bytes per chunk) is requested once
and kept: a cache of S shards with C chunks each costs S (1 + C) requests in the first epoch, and S
C in each further one. Uncompressed chunks all have one size and are consecutive, so their positions
are computed and no index is requested; a chunk that is not there, by its checksum, is located with
the index. Neighbouring chunks that are read together are one request. A chunk that is read in parts
(rows, offsets) is kept for a while, so the next part costs nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, NamedTuple, cast

import google_crc32c
import numpy as np

from headrace.store.failures import DamagedAnswerError, MissingAnswerError, StoreFailedError
from headrace.store.layout import (
    CRC_BYTES,
    NO_CHUNK,
    StoredLayout,
    check_place,
    checksum_bytes,
    named_in,
    open_in_memory,
)
from headrace.store.requests import Sent, Store, arrived, get, send
from headrace.store.retry import own_counts

INDEX_BYTES = 64 << 20
CHUNK_BYTES = 64 << 20
REQUEST_BYTES = 8 << 20
_ABSENT = np.uint64(NO_CHUNK)
_MOST_DECODING = 1 << 20  # chunks that may be decoded at the same time; unused slots cost nothing
_DECODE_S = 60.0
_SOUND = google_crc32c.value(bytes(CRC_BYTES))
"""The crc32c of any bytes that are followed by their own crc32c; here of none."""
_numbers = itertools.count()


class _Kept:
    """The last arrays used, up to a number of bytes. Only ``in`` is for any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._arrays: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._arrays

    def get(self, key: tuple[int, int]) -> np.ndarray | None:
        array = self._arrays.get(key)
        if array is not None:
            self._arrays.move_to_end(key)
        return array

    def put(self, key: tuple[int, int], array: np.ndarray) -> None:
        if key not in self._arrays:
            self._bytes += array.nbytes
        self._arrays[key] = array
        while self._bytes > self._max_bytes and len(self._arrays) > 1:
            self._bytes -= self._arrays.popitem(last=False)[1].nbytes


_indices = _Kept(INDEX_BYTES)
_chunks = _Kept(CHUNK_BYTES)


class _Decoding:
    """Counts the time in which anything is decoded, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # nothing is called under it
        self._under_way = 0
        self._began = 0.0

    def __enter__(self) -> None:
        now = time.perf_counter()
        with self._lock:
            if not self._under_way:
                self._began = now
            self._under_way += 1

    def __exit__(self, *exc_info: object) -> None:
        now = time.perf_counter()
        counts = own_counts()
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                counts.decode_s += now - self._began


_decoding = _Decoding()


class _Piece(NamedTuple):
    """A chunk of a read: its elements ``start .. start + size`` go to ``at`` in the target."""

    chunk: int
    start: int
    size: int
    at: int


class Decoder:
    """Decodes stored bytes to chunks of one size, by zarr's names of their dtype and codecs, and
    verifies checksums.

    An uncompressed chunk is verified and copied directly into its target: 40 us for 65,536 uint16
    tokens. TensorStore can only decode from one of its stores, so a compressed chunk is put into
    one in memory and read from there: 0.15 ms more. Only the waiting thread writes into the target,
    and never after a read was given up.
    """

    def __init__(self, dtype: str, size: int, codecs: list[dict[str, Any]]) -> None:
        self.size = size
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._checksum_bytes = checksum_bytes(codecs, self._dtype.itemsize)
        self._slots = itertools.cycle(range(_MOST_DECODING))
        if self._checksum_bytes is None:
            metadata = {
                "shape": [size * _MOST_DECODING],
                "data_type": dtype,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [size]}},
                "chunk_key_encoding": {"name": "default"},
                "codecs": codecs,
                "fill_value": 0,
            }
            self._array, self._kvstore = open_in_memory(metadata)

    @property
    def stored_bytes(self) -> int | None:
        """Bytes of a stored chunk, including its checksum; None: the number varies."""
        checksum = self._checksum_bytes
        return None if checksum is None else self.size * self._dtype.itemsize + checksum

    async def into(self, out: np.ndarray, encoded: bytes, start: int = 0) -> None:
        """Decodes a chunk and copies ``out.size`` of its elements, from ``start`` on, into ``out``.

        Raises:
            ValueError: the bytes are damaged.
        """
        if self._checksum_bytes is not None:
            self.copy(out, encoded, start)
            return
        slot = next(self._slots)
        key = f"c/{slot}"
        self._kvstore.write(key, encoded).result()  # in memory: done at once
        first = slot * self.size + start
        try:
            out[...] = await arrived(self._array[first : first + out.size].read(), _DECODE_S)
        finally:
            self._kvstore.write(key, None).result()

    def copy(self, out: np.ndarray, encoded: bytes, start: int) -> None:
        """The same for an uncompressed chunk, in any thread."""
        if len(encoded) != self.stored_bytes:
            raise ValueError(f"DATA_LOSS: {len(encoded)} bytes are not those of a chunk")
        if self._checksum_bytes and google_crc32c.value(encoded) != _SOUND:
            raise ValueError("DATA_LOSS: digest mismatch: the crc32c of the bytes is another one")
        out[...] = np.frombuffer(encoded, self._dtype, out.size, start * self._dtype.itemsize)


@functools.lru_cache(maxsize=64)
def _even_places(shard_chunks: int, chunks: int, size: int) -> np.ndarray:
    """The index of a file whose first chunks are consecutive and of one size."""
    entries = np.full((shard_chunks, 2), _ABSENT)
    entries[:chunks, 0] = np.arange(chunks) * size
    entries[:chunks, 1] = size
    return entries


@functools.lru_cache(maxsize=64)
def _decoder(dtype: str, size: int, codecs: str) -> Decoder:
    """One decoder for all arrays with the same format."""
    return Decoder(dtype, size, json.loads(codecs))


class ShardedArray:
    """A one-dimensional sharded zarr3 array. Its coroutines run on the loop of
    :mod:`headrace.store.requests`.

    Args:
        store: The folder.
        url: The folder, for errors.
        stored: Its ``zarr.json``.
        missing_is_zero: Whether chunks that were never written read as zeros; otherwise they are an
            error.
        computed: Whether chunks of one size are consecutive from the first byte of each file on.
        plain: Name and first byte of the one file that has all chunks end to end, without an index;
            the last is as long as what is left. None: each shard has a file with an index.

    Raises:
        ValueError: it is an array of another kind.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        stored: StoredLayout,
        *,
        missing_is_zero: bool = False,
        computed: bool = False,
        plain: tuple[str, int] | None = None,
    ) -> None:
        if not stored.plain or any(
            c["name"] not in ("bytes", "crc32c") for c in stored.index_codecs
        ):
            raise ValueError("not a plainly sharded array")
        self.url = url
        self._missing_is_zero = missing_is_zero
        self.length = stored.length
        self.chunk = stored.chunk
        self.shard_chunks = stored.shard // stored.chunk
        self.dtype = np.dtype(stored.dtype)
        self._index_span = (
            slice(-stored.index_bytes, None) if stored.index_last else slice(0, stored.index_bytes)
        )
        self._decode = _decoder(stored.dtype, self.chunk, json.dumps(stored.codecs))
        self._decode_index = _decoder(
            "uint64", 2 * self.shard_chunks, json.dumps(stored.index_codecs)
        )
        self._even_bytes = self._decode.stored_bytes if computed else None
        self._computed = self._even_bytes is not None
        self._plain = plain
        self._checksums = None if stored.checksums is None else stored.checksums.data
        self._store = store
        self._number = next(_numbers)
        self._under_way: dict[tuple[str, int], asyncio.Task[Any]] = {}

    def forget(self) -> None:
        """Keeps nothing of what was read so far: it may be damaged, as its reader has found."""
        self._number = next(_numbers)

    def send(self, start: int, out: np.ndarray) -> concurrent.futures.Future[np.ndarray] | None:
        """Starts reading one whole chunk whose place is computed into ``out``, from this thread;
        None: it is another read, or the chunk is kept.
        """
        chunk, offset = divmod(start, self.chunk)
        is_whole = not offset and 0 < out.size == min(self.chunk, self.length - start)
        # A plain file has no checksums: its store watches it instead, which only coroutines see to.
        is_computed = self._computed and self._plain is None
        if not (is_computed and is_whole) or (self._number, chunk) in _chunks:
            return None
        shard, number = divmod(chunk, self.shard_chunks)
        size = self._even_bytes or 0

        def accept(encoded: bytes) -> np.ndarray:
            self._check_place(chunk, encoded)
            with _decoding:
                self._decode.copy(out, encoded, 0)
            return out

        async def go_on(first: Sent) -> np.ndarray:
            piece = _Piece(chunk, 0, out.size, 0)
            await self._read_run([piece], self._computed_places(shard), out, first)
            return out

        span = slice(number * size, (number + 1) * size)
        return send(self._store, f"c/{shard}", span, accept, go_on)

    async def read(self, start: int, out: np.ndarray) -> np.ndarray:
        """Reads ``out.size`` elements from ``start`` on into ``out``.

        Raises:
            StoreFailedError: the store failed.
            DamagedAnswerError: a chunk or an index is lost or damaged; names the shard file.
        """
        whole_pieces: list[_Piece] = []
        jobs: list[Coroutine[Any, Any, None]] = []
        for piece in self._pieces(start, out.size):
            if (values := _chunks.get((self._number, piece.chunk))) is not None:
                out[piece.at : piece.at + piece.size] = values[
                    piece.start : piece.start + piece.size
                ]
            elif piece.size < min(self.chunk, self.length - piece.chunk * self.chunk):
                jobs.append(self._read_part(piece, out))
            else:
                whole_pieces.append(piece)
        shards = itertools.groupby(whole_pieces, key=lambda p: p.chunk // self.shard_chunks)
        await _all([*jobs, *(self._read_whole(list(pieces), out) for _, pieces in shards)])
        return out

    def _pieces(self, start: int, size: int) -> Iterator[_Piece]:
        position = start
        while position < start + size:
            chunk, offset = divmod(position, self.chunk)
            size_here = min(self.chunk - offset, start + size - position)
            yield _Piece(chunk, offset, size_here, position - start)
            position += size_here

    async def _read_part(self, piece: _Piece, out: np.ndarray) -> None:
        chunk = await self._once("chunk", piece.chunk)
        out[piece.at : piece.at + piece.size] = chunk[piece.start : piece.start + piece.size]

    async def _read_whole(self, pieces: list[_Piece], out: np.ndarray) -> None:
        """Reads whole chunks of one shard: neighbours in the file are one request."""
        entries = await self._places_in(pieces[0].chunk // self.shard_chunks)
        places: list[tuple[int, int, _Piece]] = []
        for piece in pieces:
            begin, size = map(int, entries[piece.chunk % self.shard_chunks])
            if begin == NO_CHUNK and self._missing_is_zero:
                out[piece.at : piece.at + piece.size] = 0
            else:
                places.append((begin, size, piece))
        runs: list[list[_Piece]] = []
        first = end = 0  # of the bytes of the last run
        for begin, size, piece in sorted(places):
            if runs and begin == end and begin + size - first <= REQUEST_BYTES:
                runs[-1].append(piece)
            else:
                runs.append([piece])
                first = begin
            end = begin + size
        await _all([self._read_run(run, entries, out) for run in runs])

    async def _read_run(
        self, run: list[_Piece], places: np.ndarray, out: np.ndarray, first: Sent | None = None
    ) -> None:
        spans = [self._chunk_span(p.chunk, places) for p in run]
        begin = spans[0].start
        end = spans[-1].stop

        async def decode(data: bytes) -> None:
            for piece, span in zip(run, spans, strict=True):
                encoded = data[span.start - begin : span.stop - begin]
                if self._plain is not None:  # the last is shorter
                    encoded = encoded.ljust(span.stop - span.start, b"\0")
                self._check_place(piece.chunk, encoded)
                with _decoding:
                    await self._decode.into(
                        out[piece.at : piece.at + piece.size], encoded, piece.start
                    )

        try:
            await self._request(run[0].chunk, slice(begin, end), decode, first=first)
        except MissingAnswerError:
            raise
        except DamagedAnswerError:
            stored = (
                None
                if self._even_bytes is None or self._plain is not None
                else await self._stored_places(run[0].chunk // self.shard_chunks)
            )
            if stored is None or np.array_equal(places, stored):
                raise
            self._computed = False  # from now on this array is read by its indices
            await _all([self._read_run([piece], stored, out) for piece in run])

    def _check_place(self, chunk: int, encoded: bytes) -> None:
        if self._checksums is not None:
            check_place(encoded[-CRC_BYTES:], self._checksums[chunk])

    async def _once(self, what: str, number: int) -> Any:
        """Requests a chunk or an index once, even if several reads need it at the same time."""
        key = (what, number)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.ensure_future(
                self._load_chunk(number) if what == "chunk" else self._load_index(number)
            )
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: tuple[str, int], task: asyncio.Task[Any]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # it is known, even if those who waited for it are gone

    async def _load_chunk(self, chunk: int) -> np.ndarray:
        entries = await self._places_in(chunk // self.shard_chunks)
        values = np.zeros(self.chunk, self.dtype)
        if not (self._missing_is_zero and entries[chunk % self.shard_chunks, 0] == _ABSENT):
            await self._read_run([_Piece(chunk, 0, self.chunk, 0)], entries, values)
        _chunks.put((self._number, chunk), values)
        return values

    async def _places_in(self, shard: int) -> np.ndarray:
        if self._computed:
            return self._computed_places(shard)
        entries = _indices.get((self._number, shard))
        return entries if entries is not None else await self._once("index", shard)

    def _computed_places(self, shard: int) -> np.ndarray:
        chunks = min(-(-self.length // self.chunk) - shard * self.shard_chunks, self.shard_chunks)
        return _even_places(self.shard_chunks, chunks, self._even_bytes or 0)

    async def _stored_places(self, shard: int) -> np.ndarray | None:
        """Positions of chunks according to the index; None if it cannot be read."""
        try:
            return await self._once("index", shard)
        except StoreFailedError:
            return None

    async def _load_index(self, shard: int) -> np.ndarray:
        chunk = shard * self.shard_chunks
        entries = np.full((self.shard_chunks, 2), _ABSENT)

        async def decode(data: bytes) -> None:
            await self._decode_index.into(entries.reshape(-1), data)

        try:
            await self._request(chunk, self._index_span, decode, index=True)
        except MissingAnswerError:
            if not self._missing_is_zero:
                raise
        _indices.put((self._number, shard), entries)
        return entries

    def _chunk_span(self, chunk: int, places: np.ndarray) -> slice:
        begin, size = places[chunk % self.shard_chunks]
        if begin == _ABSENT:
            raise self._damaged(chunk, f"NOT_FOUND: chunk {chunk} is missing")
        return slice(int(begin), int(begin) + int(size))

    async def _request(
        self,
        chunk: int,
        span: slice,
        decode: Callable[[bytes], Awaitable[None]],
        *,
        index: bool = False,
        first: Sent | None = None,
    ) -> None:
        """Requests and decodes bytes of a shard file."""
        shard = chunk // self.shard_chunks
        key = f"c/{shard}"
        if self._plain is not None:
            key, first_byte = self._plain
            itemsize = self.dtype.itemsize
            begin = first_byte + shard * self.shard_chunks * self.chunk * itemsize
            end = first_byte + self.length * itemsize
            span = slice(begin + span.start, min(begin + span.stop, end))
        try:
            await get(self._store, key, span, decode, index=index, first=first)
        except StoreFailedError as error:
            why = str(error)
            if why.startswith("OUT_OF_RANGE"):
                why = f"DATA_LOSS: it is shorter than it was written ({why})"
            raise type(error)(
                f"{'its index: ' if index else ''}{why}, {self._shard(chunk)}"
            ) from error

    def _shard(self, chunk: int) -> str:
        if self._plain is not None:
            return f"file {self.url}"
        return f"shard file {self.url.rstrip('/')}/c/{chunk // self.shard_chunks}"

    def _damaged(self, chunk: int, why: str) -> DamagedAnswerError:
        return DamagedAnswerError(f"{why}, {self._shard(chunk)}")


async def _all(jobs: list[Coroutine[Any, Any, None]]) -> None:
    """Runs jobs together; the first failure ends the others."""
    if len(jobs) == 1:
        await jobs[0]
        return
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def described_by(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``zarr.json``. ValueError if it is damaged."""
    try:
        metadata = json.loads(raw)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(metadata, dict):
        raise ValueError("DATA_LOSS: zarr.json is no object")
    named_in(cast("dict[str, Any]", metadata))
    return cast("dict[str, Any]", metadata)
