"""What a read in flight is for whoever waits for it, and the error of one that fails."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np

from headrace.errors import CacheError, HeadraceError, ReadError
from headrace.store import files
from headrace.store.failures import reason


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


class RepeatedRead:
    """A read in flight that goes on as another one if it fails.

    Args:
        read: The first.
        again: Begins another one after an error, or raises it.
        use: Makes the result of what was read.
    """

    def __init__(
        self,
        read: ArrayFuture,
        again: Callable[[HeadraceError], ArrayFuture],
        use: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    ) -> None:
        self._read = read
        self._again = again
        self._use = use

    def result(self, timeout: float | None = None) -> np.ndarray:
        while True:
            try:
                return self._use(self._read.result(timeout))
            except (ReadError, CacheError) as error:
                self._read = self._again(error)

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        while True:
            try:
                return self._use((yield from self._read.__await__()))
            except (ReadError, CacheError) as error:
                self._read = self._again(error)


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
