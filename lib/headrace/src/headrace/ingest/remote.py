"""Reading source files from wherever they lie, through the bad minutes of an object store.

A local file is opened and that is all. A remote one is read through :class:`PatientFile`: a read that fails (503, a
connection that ends) is tried again from where it stopped, as the policy of :mod:`headrace.store.retry` says; then it
fails with the error that it failed with. What is read is the same, whatever failed in between.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, TypeVar, cast

from headrace.errors import CacheError
from headrace.store import files, retry

T = TypeVar("T")


def open_source(path: str) -> IO[bytes]:
    """A source file, opened for reading; remote ones are read with patience."""
    if files.is_local(path):
        return files.open_read(path)
    return cast("IO[bytes]", PatientFile(lambda: files.open_read(path)))


def patiently(work: Callable[[], T]) -> T:
    """Does something that may fail for a while, again and again as :mod:`headrace.store.retry` says.

    Args:
        work: What is done; must be harmless when it is repeated.

    Raises:
        Exception: what ``work`` raised last, or first if trying again cannot help.
    """
    return retry.with_retries(work, _may_pass)


def _may_pass(error: Exception) -> bool:
    # What the store's own functions raise tells the client's error as its cause.
    cause = error.__cause__
    return files.transient(cause if isinstance(error, CacheError) and isinstance(cause, Exception) else error)


class PatientFile(io.RawIOBase):
    """A file that is opened again, at the same place, when a read of it fails.

    Args:
        open_file: Opens it.
    """

    def __init__(self, open_file: Callable[[], IO[bytes]]) -> None:
        super().__init__()
        self._open = open_file
        self._file: IO[bytes] | None = None
        self._at = 0
        self._size: int | None = None
        patiently(self._inner)  # a file that is not there is noticed when it is opened

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is None:
            self._size = self._retried(lambda f: f.seek(0, io.SEEK_END))
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size or 0}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        at = self._at

        def read(file: IO[bytes]) -> bytes:
            if file.tell() != at:
                file.seek(at)
            return file.read(size)

        data = self._retried(read)
        self._at = at + len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read(-1)

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()

    def _retried(self, work: Callable[[IO[bytes]], T]) -> T:
        def attempt() -> T:
            try:
                return work(self._inner())
            except BaseException:
                self._drop()
                raise

        return patiently(attempt)

    def _inner(self) -> IO[bytes]:
        if self._file is None:
            self._file = self._open()
        return self._file

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except Exception:  # noqa: BLE001 (it is given up because it is broken)
                return
