"""Checksums of Levanter's caches, which have none: taken once, and compared at every read.

``headrace cache verify CACHE --record`` reads a cache and writes the crc32c of each chunk of each
array into a sealed record: beside the cache (:data:`RECORD_NAME`), or, where the cache cannot be
written, into the folder that the variable ``HEADRACE_CHECKSUMS`` names, under the fingerprint of
the cache. Whoever reads the cache from then on, with the same variable, reads whole chunks and
compares them. So a flipped bit, or a file in another's place, is an error that names the file.

The checksum is of the values of a chunk as they are delivered, little-endian, up to the end of the
array, so it does not depend on codecs; the first offset, in which Levanter keeps the number of
rows, counts as 0. Price: 4 bytes a chunk of a megabyte, one request when the first array is read,
and 0.1 ms for each megabyte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

import google_crc32c
import msgspec
import numpy as np
from jaxtyping import UInt32

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    ConfigError,
    HeadraceError,
    ReadError,
    command_line,
)
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.failures import DamagedAnswerError
from headrace.store.layouts import ChecksumRecorder
from headrace.store.records import RecordKind, read_record, write_record

RECORD_NAME = "headrace_checksums.json"
PLACE_VARIABLE = "HEADRACE_CHECKSUMS"
ErrorT = TypeVar("ErrorT", bound=HeadraceError)


class ArrayChecksums(msgspec.Struct, frozen=True):
    """The chunks of an array.

    Attributes:
        length: Elements of the array.
        dtype: Their dtype.
        chunk: Elements of a chunk.
        crc32c: The checksum of each chunk, little-endian uint32.
    """

    length: int
    dtype: str
    chunk: int
    crc32c: bytes

    @classmethod
    def of(cls, array: StoredArray, crc32c: bytes) -> ArrayChecksums:
        """The checksums of an array."""
        return cls(array.length, array.dtype.name, array.chunk_elements, crc32c)

    @property
    def values(self) -> UInt32[np.ndarray, " chunks"]:
        """The checksums."""
        return np.frombuffer(self.crc32c, "<u4")


CHECKSUMS = RecordKind("levanter_checksums", 1, dict[str, ArrayChecksums])
"""The arrays of a cache, by their folders in it; the record is of the fingerprint of the cache."""


class WrongChunkError(ReadError):
    """A chunk of a cache of Levanter's is not the one of which the checksum was taken."""


def record_url(path: str, fingerprint: str) -> str:
    """Where the checksums of a cache are written, and looked for first."""
    folder = os.environ.get(PLACE_VARIABLE)
    if not folder:
        return files.join(path, RECORD_NAME)
    return files.join(files.absolute(folder), f"{fingerprint.removeprefix('sha256:')[:32]}.json")


def read_checksums(path: str, fingerprint: str) -> dict[str, ArrayChecksums] | None:
    """The checksums of a cache; None: they were not taken.

    Raises:
        CacheCorruptError: the record is damaged or of another cache.
        CacheError: it cannot be read.
    """
    beside = files.join(path, RECORD_NAME)
    for url in dict.fromkeys((record_url(path, fingerprint), beside)):
        cure = f"If the cache was built again, delete this file, then: {taken_by(path)}"
        content = read_record(url, CHECKSUMS, fingerprint, cure)
        if content is not None:
            return content
    return None


class Recorder(ChecksumRecorder):
    """Takes the checksums of a cache.

    Raises:
        ConfigError: nothing can be written where they belong.
    """

    def __init__(self, path: str, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._url = record_url(path, fingerprint)
        self._of_array: dict[str, list[np.ndarray]] = {}
        try:
            files.check_writable(self._url, "checksums")
        except ConfigError as error:
            raise _not_written(ConfigError, error, path) from error

    def add(self, array: StoredArray, values: np.ndarray) -> None:
        sums = self._of_array.setdefault(array.url, [])
        sums.append(chunk_checksums(values, array.chunk_elements))

    def write(self, arrays: Sequence[StoredArray]) -> str:
        checksums: dict[str, ArrayChecksums] = {}
        for array in arrays:
            sums = np.concatenate([np.zeros(0, np.uint32), *self._of_array.get(array.url, ())])
            stored = sums.astype("<u4").tobytes()
            checksums[array_name(self._path, array.url)] = ArrayChecksums.of(array, stored)
        try:
            write_record(self._url, CHECKSUMS, checksums, self._fingerprint)
        except CacheError as error:
            raise _not_written(CacheError, error, self._path) from error
        return self._url


def _not_written(kind: type[ErrorT], error: HeadraceError, path: str) -> ErrorT:
    cure = (
        "Take them into a folder of your own, and set the variable for those who read the cache:"
        f" {PLACE_VARIABLE}=checksums {taken_by(path)}"
    )
    return kind(error.problem, field=error.field, value=error.value, cure=cure)


def taken_by(path: str) -> str:
    """The command that takes the checksums of a cache.

    Example:
        >>> taken_by("levanter/train")
        'headrace cache verify levanter/train --record'
    """
    return command_line("cache verify", path, record=True)


def chunk_checksums(values: np.ndarray, chunk: int) -> UInt32[np.ndarray, " chunks"]:
    """The checksum of each chunk of values that begin with a whole one.

    Example:
        >>> chunk_checksums(np.arange(5, dtype=np.int32), 4).tolist()
        [2203794861, 860191284]
    """
    stored = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(np.uint8)
    step = chunk * values.dtype.itemsize
    sums = [google_crc32c.value(stored[at : at + step]) for at in range(0, stored.size, step)]
    return np.array(sums, np.uint32)


def check_chunks(
    array: StoredArray, values: np.ndarray, first: int, expected: UInt32[np.ndarray, " chunks"]
) -> None:
    """Compares chunks with their checksums.

    Args:
        array: Their array.
        values: Whole chunks.
        first: Number of the first one.
        expected: The checksums of all chunks of the array.

    Raises:
        WrongChunkError: one differs; names its file.
    """
    actual = chunk_checksums(values, array.chunk_elements)
    wrong = np.flatnonzero(actual != expected[first : first + actual.size])
    if wrong.size:
        number = first + int(wrong[0])
        file = array.file_of(number // array.layout.shard_chunks)
        problem = f"DATA_LOSS: it is not the one of which the checksum was taken, shard file {file}"
        cure = (
            "Copy that file again from where the cache came from; headrace cache verify --deep"
            " lists all that are damaged."
        )
        raise WrongChunkError(
            f"chunk {number} cannot be read ({problem})",
            field="array",
            value=array.url,
            cure=cure,
        ) from DamagedAnswerError(problem)


def checksums_of(
    path: str, checksums: Mapping[str, ArrayChecksums], array: StoredArray
) -> UInt32[np.ndarray, " chunks"]:
    """The checksums of an array of the cache at ``path``, of those of its arrays.

    Raises:
        CacheCorruptError: they are of another array, or there are none.
    """
    recorded = checksums.get(array_name(path, array.url))
    if recorded is None or recorded != ArrayChecksums.of(array, recorded.crc32c):
        cure = f"If the cache was built again: {taken_by(path)}"
        problem = (
            f"are not of this array, which has {array.length} values of {array.dtype.name} in"
            f" chunks of {array.chunk_elements}"
        )
        raise CacheCorruptError(problem, field="checksums", value=array.url, cure=cure)
    return recorded.values


def array_name(path: str, url: str) -> str:
    """The folder of an array within its cache.

    Example:
        >>> array_name("s3://bucket/web/train", "s3://bucket/web/train/input_ids/data")
        'input_ids/data'
    """
    return url.removeprefix(path.rstrip("/")).lstrip("/")
