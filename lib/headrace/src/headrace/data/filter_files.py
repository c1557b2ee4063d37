"""Lists of documents and their files: numbers as text or ``.npy``, and bitmaps.

Price: a file of numbers is read once, a local ``.npy`` file in place; long lists take one bit per
document in memory.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, HeadraceError
from headrace.order.bits import Bits, NumberSet
from headrace.order.intervals import Intervals
from headrace.store import files, remote
from headrace.store.npy import NPY_ERRORS, PYTHON_PARSER

_CHUNK = 1 << 20  # numbers that are a list of their own
RANGE_BITS = 128
"""Bits of memory that a range of documents takes."""
_WORTH_SAVING = 256  # ranges of documents
# bytes: larger files are read only when needed, in pieces of this size
_LARGE = 1 << 24
_PIECE = 1 << 22
_CACHE_LINE = re.compile(rb"^#\s*cache:\s*([\x21-\x7e]+)\s*$", re.MULTILINE)
_CURE = (
    "Give document numbers, one a line or as an integer .npy file,"
    " or a boolean .npy file with one entry a document."
)


@dataclass(frozen=True)
class Listing:
    """The content of a filter."""

    documents: NumberSet
    listed: int  # numbers, repeats included
    bitmap_length: int | None = None
    cache: str = ""  # fingerprint of the one that it is of

    @property
    def is_long(self) -> bool:
        """Whether locating all of these takes so long that the result is saved."""
        return isinstance(self.documents, Bits) or self.documents.start.size >= _WORTH_SAVING


def listing_of(
    documents: np.ndarray | Sequence[int] | Intervals, name: str, cache: str = ""
) -> Listing:
    """Parses a list or bitmap; ConfigError, with the field ``name``, if it is neither."""
    if isinstance(documents, Intervals):
        return Listing(documents, documents.total, None, cache)
    try:
        numbers = np.asarray(documents)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"is no list of documents ({error})", field=name, cure=_CURE) from error
    if numbers.size == 0:
        numbers = numbers.astype(np.int64).ravel()
    if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
        raise ConfigError(
            f"is no list of documents: {numbers.dtype} of shape {numbers.shape}",
            field=name,
            cure=_CURE,
        )
    if numbers.dtype == np.bool_:
        bits = Bits.of_masks(lambda first, stop: numbers[first:stop], numbers.size)
        few = bits.total * RANGE_BITS <= numbers.size or numbers.size <= _CHUNK
        return Listing(bits.intervals() if few else bits, bits.total, numbers.size, cache)
    least, most = (0, -1) if not numbers.size else (int(numbers.min()), int(numbers.max()))
    if least < 0:
        raise ConfigError("names a negative document", field=name, value=least, cure=_CURE)
    if most > np.iinfo(np.int64).max - 1:
        raise ConfigError("is no document", field=name, value=most, cure=_CURE)
    if numbers.size >= _CHUNK and most < numbers.size * RANGE_BITS:
        return Listing(Bits.of_numbers(numbers, most + 1), int(numbers.size), None, cache)
    return Listing(Intervals.of_numbers(numbers.astype(np.int64)), int(numbers.size), None, cache)


def read_listing(url: str, field: str) -> Listing:
    """Parses a file; ConfigError if it is missing or not a list."""
    with _as_config_errors(url, field):
        if url.endswith(".npy") and is_large(url) and files.is_local(url):
            return listing_of(read_npy(files.local_path(url), field, url, _CURE), field)
        raw = files.read_bytes(url) if url else None
    if raw is None:
        raise ConfigError("does not exist", field=field, value=url, cure=_CURE)
    if url.endswith(".npy"):
        return listing_of(read_npy(raw, field, url, _CURE), field)
    named = _CACHE_LINE.search(raw)
    return listing_of(_numbers(raw, field, url), field, named[1].decode() if named else "")


def is_large(url: str) -> bool:
    """Whether a file exists and takes long to read."""
    try:
        if files.is_local(url):
            return files.local_path(url).stat().st_size > _LARGE
        filesystem, path = remote.filesystem(url)
        with remote.client_errors(url):
            return (filesystem.size(path) or 0) > _LARGE
    except (OSError, HeadraceError):
        return False  # which reading it says


def content_digest(url: str, field: str) -> str:
    """Digest of a file's content: SHA-256 as 64 hex digits."""
    digest = hashlib.sha256(b".npy" if url.endswith(".npy") else b"text")
    with _as_config_errors(url, field), files.open_read(url) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _as_config_errors(url: str, field: str) -> Iterator[None]:
    try:
        yield
    except (IsADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", field=field, value=url, cure=_CURE
        ) from error
    except FileNotFoundError as error:
        raise ConfigError("does not exist", field=field, value=url, cure=_CURE) from error


def read_npy(raw: bytes | Path, field: str, url: str, cure: str) -> np.ndarray:
    """The array in the bytes of a ``.npy`` file, or in a file, which is mapped; ConfigError if it
    is invalid.
    """
    try:
        # warnings are of names of dtypes that go; dtypes are looked at later
        with PYTHON_PARSER, warnings.catch_warnings(action="ignore"):
            if isinstance(raw, Path):
                return np.load(raw, mmap_mode="r", allow_pickle=False)
            return np.load(io.BytesIO(raw), allow_pickle=False)
    except NPY_ERRORS as error:
        raise ConfigError(
            f"is not a .npy file of numbers ({error})", field=field, value=url, cure=cure
        ) from error


def _numbers(raw: bytes, field: str, url: str) -> Int64[np.ndarray, " n"]:
    some: list[np.ndarray] = []
    at = 0
    while at < len(raw):
        stop = raw.find(b"\n", at + _PIECE) + 1 or len(raw)
        lines = [line for line in raw[at:stop].splitlines() if not line.startswith(b"#")]
        if any(b"_" in line for line in lines):  # which Python takes for a part of a number
            raise _bad_line(raw, field, url)
        try:
            some.append(
                np.array(
                    [number for line in lines if (number := line.strip())] or np.zeros(0), np.int64
                )
            )
        except (ValueError, OverflowError):
            raise _bad_line(raw, field, url) from None
        if (some[-1] < 0).any():
            raise _bad_line(raw, field, url)
        at = stop
    return np.concatenate([np.zeros(0, np.int64), *some])


def _bad_line(raw: bytes, field: str, url: str) -> ConfigError:
    lines = [b"" if line.startswith(b"#") else line.strip() for line in raw.splitlines()]
    bad, line = next(
        (n, x) for n, x in enumerate(lines, start=1) if x and not (x.isdigit() and len(x) < 19)
    )
    problem = f"line {bad} is not a document number: {line[:40].decode(errors='replace')!r}"
    return ConfigError(problem, field=field, value=url, cure=_CURE)
