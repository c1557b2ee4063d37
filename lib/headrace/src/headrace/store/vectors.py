"""Long vectors of whole numbers, one file each, read in pieces on demand.

A file has the numbers, little-endian, followed by the SHA-256 of each piece of 64 KiB. A record
that lists the file stores the SHA-256 of these digests, so it covers every number. A local file is
mapped and occupies the system's page cache. From others, pieces are read by range, many at a time,
and the last ones are kept.

Invariant: every number returned is the one that was written, or there is an error. Price: opening
reads 32 bytes per piece, 4 MB for a billion numbers of 8 bytes; a piece is read and verified once
(1.5 GB/s), and from remote stores again when 64 MiB of others were read since.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

import numpy as np
from jaxtyping import Integer

from headrace.errors import CacheCorruptError, CacheError, ConfigError
from headrace.store import files, remote
from headrace.store.location import Location

_PIECE_BYTES = 1 << 16
_DIGEST = hashlib.sha256().digest_size
_KEPT_BYTES = 1 << 26  # of one vector that is no local file
_RUN = 16  # neighbouring pieces that are read with one request
_REQUESTS = 32  # at a time
_BLOCK = 1 << 20  # numbers that are written at a time
RUN_BYTES = _RUN * _PIECE_BYTES
"""Bytes that are read with one request."""


def damaged(url: str, problem: str, what: str, cure: str | None = None) -> CacheCorruptError:
    """The error for a damaged file; ``what`` it belongs to, such as a plan."""
    cure = cure or f"Delete the {what}'s folder; it is made again."
    return CacheCorruptError(problem, field=what, value=url, cure=cure)


class VectorWriter:
    """Writes a vector; when it is finished, it replaces an existing file.

    Args:
        url: The file.
        dtype: Dtype of the numbers, little-endian.
        what: What the vector belongs to, for errors.

    Example:
        >>> import tempfile
        >>> url = tempfile.mkdtemp() + "/squares.bin"
        >>> writer = VectorWriter(url, "<u4", "table")
        >>> writer.append(np.arange(100) ** 2)
        >>> PiecedVector(url, writer.finish(), "table")[np.array([3, 99])].tolist()
        [9, 9801]
    """

    def __init__(self, url: str, dtype: str, what: str) -> None:
        self.url = url
        self._dtype = np.dtype(dtype)
        self._what = what
        self._local = files.is_local(url)
        self._length = 0
        self._digests: list[bytes] = []
        self._piece = hashlib.sha256()  # of the piece that is not full yet
        self._room = _PIECE_BYTES
        self._temporary: files.TemporaryFile | None = None  # if it is local
        self._file: Any = None  # open for writing

    def append(self, values: Integer[np.ndarray, " n"]) -> None:
        """The next numbers.

        Raises:
            ConfigError: one is too large.
            CacheError: the file cannot be written.
        """
        if values.size == 0:
            return
        if int(values.max()) > np.iinfo(self._dtype).max:
            raise ConfigError(
                f"is more than a {self._what} file holds",
                field="lengths",
                value=int(values.max()),
                cure="Split long documents.",
            )
        data = np.ascontiguousarray(values, self._dtype).data.cast("B")
        self._write(data)
        self._length += values.size
        while len(data) >= self._room:
            self._piece.update(data[: self._room])
            data = data[self._room :]
            self._digests.append(self._piece.digest())
            self._piece = hashlib.sha256()
            self._room = _PIECE_BYTES
        self._piece.update(data)
        self._room -= len(data)

    def finish(self) -> dict[str, Any]:
        """Moves the file into place, durably, and returns its record: JSON values for
        :class:`PiecedVector`.

        Raises:
            CacheError: the file cannot be written.
        """
        if self._room < _PIECE_BYTES:
            self._digests.append(self._piece.digest())
        digests = b"".join(self._digests)
        self._write(digests)
        try:
            if self._temporary is not None:
                self._temporary.keep()
            else:
                self._opened().close()
        except OSError as error:
            raise self._failed(error) from error
        piece = _PIECE_BYTES // self._dtype.itemsize
        sha256 = hashlib.sha256(digests).hexdigest()
        return {"dtype": self._dtype.str, "length": self._length, "piece": piece, "sha256": sha256}

    def abort(self) -> None:
        """Deletes the unfinished file."""
        if self._temporary is not None:
            self._temporary.discard()
        elif self._file is not None and not self._file.closed:
            with suppress(OSError):
                self._file.discard()
                self._file.forced = True  # else closing puts a part into the place of what is there
                self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        try:
            self._opened().write(data)
        except OSError as error:
            raise self._failed(error) from error

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            if self._local:
                path = files.local_path(self.url)
                self._temporary = files.TemporaryFile(path, shared=True)
                self._file = self._temporary.content
            else:
                Location.parse(self.url).check_output_file()
                fs, path = remote.filesystem(self.url)
                with remote.client_errors(self.url):
                    self._file = fs.open(path, "wb")
        return self._file

    def _failed(self, error: OSError) -> CacheError:
        cure = (
            f"Make room and run the same command again, or give another folder for {self._what}s."
        )
        problem = f"cannot be written ({files.refusal(self.url, error)})"
        return CacheError(problem, field="file", value=self.url, cure=cure)


def write_vector(url: str, numbers: Any, what: str, size: int | None = None) -> dict[str, Any]:
    """Writes a vector, and returns its record; see :class:`VectorWriter`.

    Args:
        url: The file.
        numbers: An array, or what can be indexed by ranges like one.
        what: As for the writer.
        size: How many of the numbers are written, from the first on; None: all.
    """
    size = len(numbers) if size is None else size
    writer = VectorWriter(url, numbers[0:1].dtype.newbyteorder("<").str, what)
    try:
        for first in range(0, size, _BLOCK):
            writer.append(numbers[first : min(first + _BLOCK, size)])
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


class PiecedVector:
    """A vector written by :class:`VectorWriter`, indexed like an array: by integer arrays and by
    ranges.

    Args:
        url: The file.
        record: What its writer returned.
        what: What it belongs to, for errors.
        cure: What to do if it is damaged; None: delete the folder.

    Attributes:
        dtype: Dtype of the numbers.
        size: Number of numbers.

    Raises:
        CacheCorruptError: the file is missing, of another size, or its digests are damaged; on
            access: the numbers are damaged.
        ValueError, KeyError, TypeError: the record is invalid.
    """

    def __init__(
        self, url: str, record: Mapping[str, Any], what: str, cure: str | None = None
    ) -> None:
        self._url = url
        self._cure = cure
        self._record = record
        self._what = what
        self.dtype = np.dtype(record["dtype"])
        self.size = int(record["length"])
        self._piece = int(record["piece"])
        # Mapped objects would be addresses.
        if self._piece < 1 or self.size < 0 or self.dtype.kind not in "iu":
            raise ValueError("no whole numbers, or lengths that are not positive")
        self._pieces = -(-self.size // self._piece)
        self._mapped = self._map() if files.is_local(url) else None
        begin = self.size * self.dtype.itemsize
        try:
            digests = files.read_range(url, begin, begin + self._pieces * _DIGEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise self._damaged("is missing") from None
        if len(digests) != self._pieces * _DIGEST:
            raise self._damaged("has another size than it was written with")
        if hashlib.sha256(digests).hexdigest() != record["sha256"]:
            raise self._damaged("is not what was written (another digest)")
        self._digests = digests
        self._checked = np.zeros(self._pieces, bool)  # of a mapped file
        self._lock = threading.Lock()
        # Pieces of another one, the last used behind.
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return PiecedVector, (self._url, self._record, self._what, self._cure)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, indices: Any) -> Any:
        if isinstance(indices, slice):
            begin, stop, step = indices.indices(self.size)
            return self._range(begin, max(stop, begin)) if step == 1 else np.asarray(self)[indices]
        if np.ndim(indices) == 0:
            at = int(indices) + (self.size if indices < 0 else 0)
            return self._range(at, at + 1)[0]
        indices = np.asarray(indices)
        indices = np.flatnonzero(indices) if indices.dtype == np.bool_ else indices
        piece = indices // self._piece
        distinct = np.unique(piece)
        if self._mapped is not None:
            self._check(distinct)
            return np.asarray(self._mapped[indices])
        numbers = np.empty((distinct.size, self._piece), self.dtype)
        for row, values in zip(numbers, self._fetch(distinct.tolist()), strict=True):
            row[: values.size] = values
        return numbers[np.searchsorted(distinct, piece), indices % self._piece]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.loaded()
        return values if dtype is None else values.astype(dtype, copy=False)

    def loaded(self) -> np.ndarray:
        """All numbers, with each piece verified: mapped if the file is local, else in memory."""
        if self._mapped is None:
            return self._range(0, self.size)
        self._check(np.arange(self._pieces))
        return self._mapped

    def _map(self) -> np.ndarray:
        path = files.local_path(self._url)
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise self._damaged("is missing") from None
        if size != (expected_size := self.size * self.dtype.itemsize + self._pieces * _DIGEST):
            raise self._damaged(f"has {size} bytes instead of {expected_size}")
        return (
            np.memmap(path, self.dtype, "r", shape=(self.size,))
            if self.size
            else np.zeros(0, self.dtype)
        )

    def _range(self, begin: int, stop: int) -> np.ndarray:
        first = begin // self._piece
        last = -(-stop // self._piece)
        if self._mapped is not None:
            self._check(np.arange(first, last))
            return np.asarray(self._mapped[begin:stop])
        numbers = np.empty(stop - begin, self.dtype)
        batch = _RUN * _REQUESTS
        for at in range(first, last, batch):
            values = np.concatenate(self._fetch(list(range(at, min(at + batch, last)))))
            skip = max(begin - at * self._piece, 0)
            target = max(at * self._piece - begin, 0)
            values = values[skip : skip + numbers.size - target]
            numbers[target : target + values.size] = values
        return numbers

    def _check(self, pieces: np.ndarray) -> None:
        """Verifies pieces of a mapped file that were not verified yet. Concurrent threads may do so
        twice.
        """
        assert self._mapped is not None
        for number in pieces[~self._checked[pieces]].tolist():
            self._compare(
                number,
                self._mapped[number * self._piece : (number + 1) * self._piece].data.cast("B"),
            )
            self._checked[number] = True

    def _compare(self, number: int, data: bytes | memoryview) -> None:
        if (
            hashlib.sha256(data).digest()
            != self._digests[number * _DIGEST : (number + 1) * _DIGEST]
        ):
            raise self._damaged(f"is not what was written (piece {number} has another digest)")

    def _fetch(self, pieces: list[int]) -> list[np.ndarray]:
        """Pieces of a file that is not local, by rising number."""
        with self._lock:
            have = {number: self._kept[number] for number in pieces if number in self._kept}
        runs: list[list[int]] = []
        for number in pieces:
            if number in have:
                continue
            if runs and runs[-1][-1] == number - 1 and len(runs[-1]) < _RUN:
                runs[-1].append(number)
            else:
                runs.append([number])
        for values in _each(self._read, runs):
            have |= values
        with self._lock:
            for number in pieces:
                self._kept[number] = have[number]
                self._kept.move_to_end(number)
            while len(self._kept) * self._piece * self.dtype.itemsize > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return [have[number] for number in pieces]

    def _read(self, run: list[int]) -> dict[int, np.ndarray]:
        """Reads neighbouring pieces with one request; retries if they are damaged."""
        width = self._piece * self.dtype.itemsize
        begin = run[0] * width
        stop = min((run[-1] + 1) * width, self.size * self.dtype.itemsize)

        def ask() -> dict[int, np.ndarray]:
            try:
                data = memoryview(files.read_range(self._url, begin, stop))
            except FileNotFoundError:
                raise self._damaged("is missing") from None
            values: dict[int, np.ndarray] = {}
            for nth, number in enumerate(run):
                self._compare(number, data[nth * width : (nth + 1) * width])
                values[number] = np.frombuffer(
                    bytes(data[nth * width : (nth + 1) * width]), self.dtype
                )
            return values

        return files.read_sound(self._url, ask)

    def _damaged(self, problem: str) -> CacheCorruptError:
        return damaged(self._url, problem, self._what, self._cure)


def _each(
    work: Callable[[list[int]], dict[int, np.ndarray]], runs: list[list[int]]
) -> list[dict[int, np.ndarray]]:
    if len(runs) < 2:
        return [work(run) for run in runs]
    with ThreadPoolExecutor(
        min(len(runs), _REQUESTS), thread_name_prefix="headrace-pieces"
    ) as pool:
        return list(pool.map(work, runs))
