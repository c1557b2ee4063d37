"""One-dimensional zarr3 arrays through TensorStore: open, read a range, write shard by shard.

The invariant: a finished array never changes, so nothing of it is ever re-validated (``recheck_cached_data: open``),
and a range that lies on chunk borders is read with no waste. A read costs about 30 us of CPU plus its bytes; never read
single rows.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from headrace.errors import CacheError, ConfigError
from headrace.store import files
from headrace.store.layout import CacheLayout

_UNBOUNDED = 1 << 54  # an array grows shard by shard; its true length is set when the writer closes


class ArrayFuture(Protocol):
    """What a read returns: a handle whose ``result()`` is the data."""

    def result(self, timeout: float | None = None) -> np.ndarray: ...


def kvstore_spec(url: str) -> dict[str, Any]:
    """TensorStore's key-value store for a path or URL.

    ``AWS_ENDPOINT_URL`` (and ``AWS_REGION``) choose another S3 server than Amazon's; ``TENSORSTORE_GCS_HTTP_URL``
    another GCS.

    Raises:
        ConfigError: TensorStore has no driver for the scheme.

    Example:
        >>> kvstore_spec("gs://bucket/cache/data")
        {'driver': 'gcs', 'bucket': 'bucket', 'path': 'cache/data/'}
    """
    if files.is_local(url):
        return {"driver": "file", "path": f"{files.local_path(url).absolute()}/"}
    parts = urlsplit(url)
    path = parts.path.strip("/") + "/"
    if parts.scheme in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": parts.netloc, "path": path}
    if parts.scheme == "s3":
        spec: dict[str, Any] = {"driver": "s3", "bucket": parts.netloc, "path": path}
        if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            spec |= {"endpoint": endpoint, "aws_region": os.environ.get("AWS_REGION", "us-east-1")}
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


class StoredArray:
    """A finished one-dimensional array, opened at the first read.

    Args:
        url: Folder of the array (the one that holds ``zarr.json``).
        length: Number of elements, from the ledger: opening needs no request for it.
    """

    def __init__(self, url: str, length: int, layout: CacheLayout) -> None:
        self.url = url
        self.length = length
        self.layout = layout
        self._store: Any = None
        self._lock = threading.Lock()

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
        return self._opened()[start:stop].read(order="C")

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        """Starts reading ``out.size`` elements from ``start`` on straight into ``out`` (contiguous, of this dtype).

        ``out`` holds the data once the future's ``result()`` has returned; no copy is made on the way.
        """
        target = ts.array(out, copy=False)
        return target.write(self._opened()[start : start + out.size])

    def _opened(self) -> Any:
        with self._lock:
            if self._store is None:
                spec = {
                    "driver": "zarr3",
                    "kvstore": kvstore_spec(self.url),
                    "recheck_cached_data": "open",
                    "recheck_cached_metadata": "open",
                    "fill_missing_data_reads": False,  # a lost shard is an error, not a run of zeros
                }
                try:
                    self._store = ts.open(spec, read=True, write=False, context=_read_context()).result()
                except (ValueError, OSError) as error:
                    raise CacheError(
                        f"cannot be opened ({_first_line(error)})",
                        field="array",
                        value=self.url,
                        cure="Check that the cache was copied whole; build it again if not.",
                    ) from error
            return self._store


class ArrayWriter:
    """Appends to a new array, one whole shard at a time, in bounded memory (one shard).

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
        self._store: Any = _written(ts.open(spec, create=True, delete_existing=True, context=ts.Context()), url)

    def append(self, values: np.ndarray) -> None:
        """Adds a one-dimensional array of the layout's dtype.

        Raises:
            CacheError: the store cannot be written.
        """
        self._pending.append(np.asarray(values, self.layout.dtype))
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
            f"cannot be written ({_first_line(error)})",
            field="array",
            value=url,
            cure="Check permissions and free space, then run the same command again: finished parts are kept.",
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_context_lock = threading.Lock()
_shared_context: Any = None


def _read_context() -> Any:
    """One TensorStore context for all reads: shard indices are cached, chunks are not (the feed layer does that)."""
    global _shared_context
    with _context_lock:
        if _shared_context is None:
            _shared_context = ts.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
        return _shared_context
