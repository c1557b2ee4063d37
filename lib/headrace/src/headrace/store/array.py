"""One-dimensional zarr3 arrays through TensorStore: open, read a range, write shard by shard.

The invariant: a finished array never changes, so nothing of it is ever re-validated (``recheck_cached_data: open``),
and what is read is what was written, or an error: a lost shard, a flipped bit (crc32c) or an array of another length
never becomes data. A range that lies on chunk borders is read with no waste. A read costs about 30 us of CPU plus its
bytes; never read single rows. What lies on a store over HTTP is read chunk by chunk in one request each, retried and
hedged as :mod:`headrace.store.retry` says (:mod:`headrace.store.sharded`, 0.2 ms of CPU a chunk).

After ``os.fork`` a child cannot read if its parent has: it gets an error (:mod:`headrace.store.forks`).

Object stores: TensorStore reads the arrays, fsspec (:mod:`headrace.store.files`) the small files beside them, and both
must reach the same server as the same user. These variables do that; on Google's and Amazon's own none is needed.

======================================  ==============================================================================
``GOOGLE_APPLICATION_CREDENTIALS``      key file for ``gs://``; otherwise what ``gcloud auth application-default`` left
``STORAGE_EMULATOR_HOST``               another GCS server (fake-gcs-server, ...), read before the first use of GCS in a
                                        process; nobody is logged in there
``AWS_ACCESS_KEY_ID``,                  keys for ``s3://``; otherwise the profile or the role of the machine
``AWS_SECRET_ACCESS_KEY``
``AWS_ENDPOINT_URL_S3``,                another S3 server (MinIO, Ceph, R2, ...), read whenever an array is opened
``AWS_ENDPOINT_URL``
``AWS_REGION``, ``AWS_DEFAULT_REGION``  its region, if it cares; ``us-east-1`` if not set
======================================  ==============================================================================
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Generator
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from headrace.errors import CacheCorruptError, CacheError, ConfigError, ReadError
from headrace.store import files, retry
from headrace.store.credentials import asked_as
from headrace.store.forks import check_same_process
from headrace.store.layout import CacheLayout
from headrace.store.mapped import MappedArray, map_array
from headrace.store.requests import arrived, get, reason, submit
from headrace.store.sharded import ShardedArray, parse_metadata

__all__ = ["ArrayFuture", "ArrayWriter", "StoredArray", "kvstore_spec", "reason"]

_UNBOUNDED = 1 << 54  # an array grows shard by shard; its true length is set when the writer closes


class ArrayFuture(Protocol):
    """A read in flight: ``result()`` or ``await`` gives the data. Dropping it abandons the read."""

    def result(self, timeout: float | None = None) -> np.ndarray:
        """The data, once it is there.

        Raises:
            ReadError: it cannot be read; the array and the chunk are named.
            TimeoutError: not there within ``timeout`` seconds; the read goes on.
        """
        ...

    def __await__(self) -> Generator[Any, None, np.ndarray]: ...


def kvstore_spec(url: str) -> dict[str, Any]:
    """TensorStore's key-value store for a path or URL. The module's docstring lists the variables that it follows.

    Raises:
        ConfigError: TensorStore has no driver for the scheme.

    Example:
        >>> kvstore_spec("gs://bucket/cache/data")
        {'driver': 'gcs', 'bucket': 'bucket', 'path': 'cache/data/'}
    """
    # Read once, at the first request of the process: a connection that gives nothing for so long is broken.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(max(round(retry.policy().timeout_s), 1)))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    if files.is_local(url):
        return {"driver": "file", "path": f"{files.local_path(url).absolute()}/"}
    parts = urlsplit(url)
    path = parts.path.strip("/") + "/"
    if parts.scheme in ("gs", "gcs"):
        _follow_gcs_emulator()
        return {"driver": "gcs", "bucket": parts.netloc, "path": path}
    if parts.scheme == "s3":
        spec: dict[str, Any] = {"driver": "s3", "bucket": parts.netloc, "path": path}
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region}
        if os.environ.get("AWS_ACCESS_KEY_ID"):  # do not ask profiles and metadata servers first
            spec["aws_credentials"] = {"type": "environment"}
        return spec
    if parts.scheme in ("http", "https"):
        return {"driver": "http", "base_url": f"{parts.scheme}://{parts.netloc}", "path": "/" + path}
    raise ConfigError(
        "has a scheme that token caches cannot be stored under",
        field="path",
        value=url,
        cure="Use a local path, gs://, s3:// or https://.",
    )


def _follow_gcs_emulator() -> None:
    """Tells TensorStore, which has variables of its own, what ``STORAGE_EMULATOR_HOST`` tells everybody else.

    TensorStore reads them once, at the process's first use of GCS, and keeps what they said.
    """
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if host not in ("", "default"):
        url = host if host.startswith(("http://", "https://")) else f"http://{host}"
        os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", url.rstrip("/"))
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")


def _failed(opening: asyncio.Future[Any]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


class _PendingRead:
    """A read in flight that fails as :class:`ReadError`, with the array, the chunk and the shard file named."""

    __slots__ = ("_array", "_future", "_start", "_stop")

    def __init__(self, future: Any, array: StoredArray, start: int, stop: int) -> None:
        self._future, self._array, self._start, self._stop = future, array, start, stop

    def result(self, timeout: float | None = None) -> np.ndarray:
        try:
            return self._future.result(timeout)
        except (ValueError, OSError) as error:
            if isinstance(error, TimeoutError) and not self._future.done():
                raise  # it is not there yet; else the store's own, which the system knows by the same name
            raise self._failed(error) from _told(error, self._array.url, self._shards())

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        future = self._future
        waiting = asyncio.wrap_future(future) if isinstance(future, concurrent.futures.Future) else future
        try:
            return (yield from waiting.__await__())
        except (ValueError, OSError) as error:
            raise self._failed(error) from _told(error, self._array.url, self._shards())

    def __del__(self) -> None:
        if isinstance(self._future, concurrent.futures.Future):  # TensorStore's own end by being forgotten
            self._future.cancel()

    def _failed(self, error: Exception) -> ReadError:
        chunk = self._array.chunk_elements
        first, last = self._start // chunk, max(self._stop - 1, self._start) // chunk
        chunks = f"chunk {first}" if first == last else f"chunks {first} to {last}"
        return ReadError(
            f"{chunks} cannot be read ({_told(error, self._array.url, self._shards())})",
            field="array",
            value=self._array.url,
            cure="Check that the store can be reached and that the cache was copied whole; build it again if not.",
        )

    def _shards(self) -> str:
        shard = self._array.layout.shard_elements
        first, last = self._start // shard, max(self._stop - 1, self._start) // shard
        url = f"{self._array.url.rstrip('/')}/c/{first}"
        return f"shard file {url}" if first == last else f"shard files {url} to {last}"


def _told(error: Exception, url: str, shards: str = "") -> OSError:
    """What went wrong, and the shard file and the credential if they matter and are not named yet."""
    said = reason(error)
    if shards and "shard file" not in said:
        said = f"{said}, {shards}"
    if "PERMISSION_DENIED" in said or "UNAUTHENTICATED" in said:
        said = f"{said}, asked as {asked_as(url)}"
    told = OSError(said)
    told.__cause__ = error
    return told


class StoredArray:
    """A finished one-dimensional array, opened at the first read.

    Args:
        url: Folder of the array (the one that holds ``zarr.json``).
        length: Number of elements, from the ledger: opening needs no request for it.
    """

    _MISSING_IS_ZERO = False  # a lost shard is an error, not a run of zeros

    def __init__(self, url: str, length: int, layout: CacheLayout) -> None:
        self.url = url
        self.length = length
        self.layout = layout
        self._kvstore = kvstore_spec(url)  # now: a relative path means the working directory of now
        self._absolute = files.local_path(url).absolute() if files.is_local(url) else None
        self._store: Any = None
        self._mapped: MappedArray | None = None
        self._looked = False
        self._lock = threading.Lock()
        self._opening: asyncio.Task[ShardedArray | None] | None = None
        self._over_http = self._kvstore["driver"] in ("gcs", "s3", "http")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.layout.dtype)

    @property
    def chunk_elements(self) -> int:
        return self.layout.chunk_elements

    def read(self, start: int, stop: int) -> ArrayFuture:
        """Starts reading elements ``start .. stop``; several reads may be in flight.

        Args:
            start: First element, at least 0.
            stop: One past the last, at most ``length``.

        Returns:
            A future of a one-dimensional array of ``stop - start`` elements.
        """
        if self._over_http:
            return self._read_over_http(np.empty(stop - start, self.dtype), start)
        return _PendingRead(self._opened()[start:stop].read(order="C"), self, start, stop)

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        """Starts reading ``out.size`` elements from ``start`` on straight into ``out`` (contiguous, of this dtype).

        ``out`` holds the data once the future's ``result()`` has returned; no copy is made on the way.
        """
        if self._over_http:
            return self._read_over_http(out, start)
        stop = start + out.size
        return _PendingRead(ts.array(out, copy=False).write(self._opened()[start:stop]), self, start, stop)

    def mapped(self) -> MappedArray | None:
        """The array's chunks in place, if they are local and uncompressed; None: they have to be read.

        A subclass that reads in a way of its own is always asked to read.
        """
        if self._absolute is None or type(self).read_into is not StoredArray.read_into:
            return None
        with self._lock:
            if not self._looked:
                self._mapped, self._looked = map_array(self._absolute, self.dtype, self.length), True
            return self._mapped

    def _read_over_http(self, out: np.ndarray, start: int) -> ArrayFuture:
        async def read() -> np.ndarray:
            sharded = await self._opened_over_http()
            if sharded is not None:
                return await sharded.read(start, out)
            store = await self._opened_as_is()
            await arrived(ts.array(out, copy=False).write(store[start : start + out.size]))
            return out

        return _PendingRead(submit(read), self, start, start + out.size)

    async def _opened_over_http(self) -> ShardedArray | None:
        """This array, asked for once by all reads that come before it is there; None if TensorStore must read it."""
        opening = self._opening
        if opening is None or _failed(opening):  # a failed one is tried again by the next read
            opening = self._opening = asyncio.ensure_future(self._open_over_http())
            opening.add_done_callback(_failed)  # if all who waited have given up, its error is nobody's
        return await asyncio.shield(opening)

    async def _open_over_http(self) -> ShardedArray | None:
        kvstore: Any = ts.KvStore.open(self._kvstore, context=_read_context()).result()
        try:
            raw = await get(kvstore, "zarr.json", None, index=True)
            if raw is None:
                raise FileNotFoundError("NOT_FOUND: zarr.json is missing")
            metadata = parse_metadata(raw)
        except (ValueError, OSError) as error:
            raise self._not_opened(error) from error
        try:
            array = ShardedArray(
                self._kvstore, self.url, metadata, _read_context(), missing_is_zero=self._MISSING_IS_ZERO
            )
        except (ValueError, KeyError, TypeError):
            return None  # another kind of array: TensorStore says what is wrong with it, if anything
        if self._store is None:  # else it was checked already
            self._check_found(array.length, array.dtype.name)
        return array

    def _opened(self) -> Any:
        check_same_process()
        with self._lock:
            if self._store is None:
                try:
                    store = self._open().result()
                except (ValueError, OSError) as error:
                    raise self._not_opened(error) from error
                self._check_opened(store)
                self._store = store
            return self._store

    async def _opened_as_is(self) -> Any:
        """TensorStore's own view of an array over HTTP that is no plainly sharded one."""
        if self._store is None:
            try:
                store = await arrived(self._open())
            except (ValueError, OSError) as error:
                raise self._not_opened(error) from error
            self._check_opened(store)
            self._store = store
        return self._store

    def _open(self) -> Any:
        spec = {
            "driver": "zarr3",
            "kvstore": self._kvstore,
            "recheck_cached_data": "open",
            "recheck_cached_metadata": "open",
            "fill_missing_data_reads": self._MISSING_IS_ZERO,
        }
        return ts.open(spec, read=True, write=False, context=_read_context())

    def _not_opened(self, error: Exception) -> CacheError:
        return CacheError(
            f"cannot be opened ({_told(error, self.url)})",
            field="array",
            value=self.url,
            cure="Check that the cache was copied whole; build it again if not.",
        )

    def _check_opened(self, store: Any) -> None:
        self._check_found(int(store.shape[0]), store.dtype.name)

    def _check_found(self, length: int, dtype: str) -> None:
        found, recorded = f"{length} elements of {dtype}", f"{self.length} elements of {self.dtype.name}"
        if found != recorded:
            raise CacheCorruptError(
                f"holds {found}, but the ledger has {recorded}",
                field="array",
                value=self.url,
                cure="Parts and ledger are of different builds: copy the cache again, or build it again.",
            )


class ArrayWriter:
    """Appends to a new array, one whole shard at a time, in bounded memory (two shards).

    Args:
        url: Folder to create; what is there is replaced.
        layout: Dtype, chunks and codecs.
    """

    def __init__(self, url: str, layout: CacheLayout) -> None:
        self.url, self.layout = url, layout
        self.length = 0
        self._pending: list[np.ndarray] = []
        self._pending_elements = 0
        self._written = 0
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore_spec(url),
            "metadata": layout.zarr_metadata(_UNBOUNDED),
            "store_data_equal_to_fill_value": True,  # every chunk exists, so a missing one is a loss
        }
        self._store: Any = _written(ts.open(spec, create=True, delete_existing=True, context=_write_context()), url)

    def append(self, values: np.ndarray) -> None:
        """Adds a one-dimensional array of the layout's dtype. It is copied: the caller may write to it again.

        Raises:
            CacheError: the store cannot be written.
        """
        self._pending.append(np.array(values, self.layout.dtype))
        self._pending_elements += values.size
        self.length += values.size
        if self._pending_elements >= self.layout.shard_elements:
            self._flush(self._pending_elements // self.layout.shard_elements * self.layout.shard_elements)

    def close(self) -> None:
        """Writes the last, partial shard and the true length."""
        if self._pending_elements:
            self._flush(self._pending_elements)
        _written(self._store.resize(exclusive_max=[self.length], resize_metadata_only=True, shrink_only=True), self.url)

    def _flush(self, elements: int) -> None:
        values = np.concatenate(self._pending)
        self._pending = [values[elements:]] if elements < values.size else []
        self._pending_elements = values.size - elements
        _written(self._store[self._written : self._written + elements].write(values[:elements]), self.url)
        self._written += elements


def _written(future: Any, url: str) -> Any:
    try:
        return future.result()
    except (ValueError, OSError) as error:
        raise CacheError(
            f"cannot be written ({_told(error, url)})",
            field="array",
            value=url,
            cure="Check permissions and free space, then run the same command again: finished parts are kept.",
        ) from error


_context_lock = threading.Lock()
_contexts: dict[retry.RetryPolicy, Any] = {}


def _read_context() -> Any:
    """One TensorStore context for all reads under a policy. The pool is for local files: shard indices, and the chunks
    read last.
    """
    policy = retry.policy()
    with _context_lock:
        if policy not in _contexts:
            pool = {"cache_pool": {"total_bytes_limit": 64 << 20}}
            _contexts[policy] = ts.Context(pool | policy.tensorstore_context())
        return _contexts[policy]


def _write_context() -> Any:
    check_same_process()
    policy = retry.policy()
    return ts.Context(policy.tensorstore_context(policy.write_retries))
