"""What a read in flight is for whoever waits for it, and the error of one that fails."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
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
