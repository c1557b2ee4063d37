"""Reads in flight, and errors for those that fail, with the array, the chunk, the shard file and
the credential.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.errors import ReadError
from headrace.store import files
from headrace.store.failures import reason

if TYPE_CHECKING:
    from headrace.store.array import StoredArray


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


class PendingRead:
    """A read in flight that ends with :meth:`StoredArray.received`, or fails with a
    :class:`ReadError` that names the array, the chunk and the shard file. ``out``: the target
    array; None: the future returns one.
    """

    __slots__ = ("_array", "_future", "_out", "_start", "_stop")

    def __init__(
        self, future: Any, array: StoredArray, start: int, stop: int, out: np.ndarray | None = None
    ) -> None:
        self._future = future
        self._array = array
        self._start = start
        self._stop = stop
        self._out = out

    def result(self, timeout: float | None = None) -> np.ndarray:
        try:
            values = self._future.result(timeout)
        except (ValueError, OSError) as error:
            if isinstance(error, TimeoutError) and timeout is not None:
                if not self._future.done():
                    raise  # it is not there yet
                return (
                    self.result()
                )  # it came just now, or fails with the store's own error of that name
            raise self._failed(error) from store_error(error, self._array.url, self._shards())
        self._array.received(values if self._out is None else self._out, self._start)
        return values

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        future = self._future
        waiting = (
            asyncio.wrap_future(future) if isinstance(future, concurrent.futures.Future) else future
        )
        try:
            values = yield from waiting.__await__()
        except (ValueError, OSError) as error:
            raise self._failed(error) from store_error(error, self._array.url, self._shards())
        self._array.received(values if self._out is None else self._out, self._start)
        return values

    def __del__(self) -> None:
        if isinstance(
            self._future, concurrent.futures.Future
        ):  # TensorStore's own end by being forgotten
            self._future.cancel()

    def _failed(self, error: Exception) -> ReadError:
        first, last = self._units(self._array.chunk_elements)
        chunks = f"chunk {first}" if first == last else f"chunks {first} to {last}"
        cure = (
            "Check that the store can be reached and that the cache was copied whole; build it"
            " again if not."
        )
        problem = f"{chunks} cannot be read ({store_error(error, self._array.url, self._shards())})"
        return ReadError(problem, field="array", value=self._array.url, cure=cure)

    def _shards(self) -> str:
        first, last = self._units(self._array.layout.shard_elements)
        file = self._array.file_of(first)
        if file == self._array.file_of(last):
            return f"shard file {file}"
        return f"shard files {file} to {last}"

    def _units(self, elements: int) -> tuple[int, int]:
        """The first and the last chunk or shard that it touches."""
        return self._start // elements, max(self._stop - 1, self._start) // elements


def store_error(error: Exception, url: str, shards: str = "") -> OSError:
    """The problem, with the shard file and the credential if they matter and are not named yet."""
    message = reason(error)
    if shards and "shard file" not in message:
        message = f"{message}, {shards}"
    if "PERMISSION_DENIED" in message or "UNAUTHENTICATED" in message:
        message = f"{message}, asked as {files.asked_as(url)}"
    failure = OSError(message)
    failure.__cause__ = error
    return failure
