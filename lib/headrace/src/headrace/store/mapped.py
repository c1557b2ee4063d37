"""Chunks of local, uncompressed arrays in place: memory-mapped shard files instead of reads.

With zarr3 sharding and the codecs ``bytes`` and ``crc32c``, every chunk is contiguous in its shard
file, at a position in the index at the end of the file. Reading a chunk is therefore one copy from
the page cache.

Invariant: a chunk is used only from a shard file whose size and index are intact.
:meth:`MappedArray.check` compares the chunk with its crc32c in place (:meth:`MappedArray.copy`: the
copy), and that with the one that ``zarr.json`` lists for its position, if it does. Everything else
(a lost or truncated file, a wrong checksum, another layout, a system other than Linux) is left to
TensorStore, which reads it or reports the problem. Touching a page that a file has lost since it
was mapped raises SIGBUS, as with any memory map; finished caches are never written to, and only
compiled code touches them, which survives it (``native/gather.c``). On a network filesystem, a
server's hiccup would do the same, so files there are read and not mapped.

Price: about 30 us to map a shard; one pass over the bytes of a chunk, two if it is copied, without
the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from jaxtyping import Bool, Int64

from headrace.native import native_library
from headrace.store.layout import CRC_BYTES, NO_CHUNK, StoredLayout, checksum_bytes

MAX_MAPS = 16_384
"""Largest number of mapped shard files per process; others are read. Linux allows 65,530 maps, and
other code needs some.
"""

_ENTRY = 16
_UNSEEN = -1
_NO_CHECKSUM = -2  # as native/gather.c has it
_AROUND = 1 << 16
"""Linux maps at least this many bytes around a touched page, and unmaps them with it."""
_POPULATE_READ = 22
"""From Linux 5.14: maps all pages at once, and fails past the end of the file instead of raising
SIGBUS later.
"""
_FAILED = ctypes.c_void_p(-1).value

_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(\..+)?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|smb3"
    r"|smbfs|virtiofs"
)
_ESCAPED = re.compile(r"\\(\d{3})")

_lock = threading.Lock()
_maps = 0


class _Native:
    """The three system calls, without the interpreter's lock, and the compiled functions."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_size_t
        address = ctypes.c_void_p
        number = ctypes.c_int
        self.mmap = libc.mmap
        self.mmap.restype = address
        self.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
        self.munmap = libc.munmap
        self.munmap.argtypes = (address, size)
        self.madvise = libc.madvise
        self.madvise.argtypes = (address, size, number)
        self.calls = native_library().calls
        if failed := self.calls.handle_bus_errors():
            raise OSError(failed, f"SIGBUS cannot be handled: {os.strerror(failed)}")
        page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        self.bring = (
            mmap.MADV_WILLNEED
            if self.madvise(page.ctypes.data, page.size, _POPULATE_READ)
            else _POPULATE_READ
        )
        """The advice that brings pages into memory, and fails where a file does not reach."""


@functools.cache
def native() -> _Native | None:
    """The system functions for mapping; None on systems other than Linux, where files are read."""
    return _Native() if sys.platform.startswith("linux") else None


def advice_to_bring() -> int:
    """The advice that brings pages into memory, for ``native/gather.c``, which checks chunks by
    their :meth:`MappedArray.check_columns`.
    """
    system = native()
    assert system is not None
    return system.bring


class MappedFile(NamedTuple):
    """A file as it was when it was mapped. ``changed_ns`` is its ctime, since programs that copy
    set the mtime.
    """

    path: str
    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> MappedFile:
        return cls(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)

    def again(self) -> MappedFile:
        """The current state of the file. One that was removed or replaced is still mapped as it
        was.
        """
        try:
            now = MappedFile.of(self.path, os.stat(self.path))
        except OSError:
            return self
        return now if (self.device, self.inode) == (now.device, now.inode) else self


class _MappedShard(NamedTuple):
    region: tuple[int, int]  # first address, bytes
    file: MappedFile


class MappedArray:
    """The chunks of one array of ``size`` bytes, as addresses; ``chunk_bytes`` is without the
    checksum. Use :func:`map_array`. Safe for several threads.
    """

    def __init__(
        self,
        folder: Path,
        chunk_bytes: int,
        shard_chunks: int,
        size: int,
        checksums: np.ndarray | None = None,
    ) -> None:
        self._checksums = None if checksums is None else checksums.data
        self._folder = str(folder)
        self.chunk_bytes = chunk_bytes
        self.shard_chunks = shard_chunks
        self._bytes = size
        chunks = -(-size // chunk_bytes)
        self._native = native()
        self._address = np.full(chunks, _UNSEEN, np.int64)
        self._sound = np.zeros(chunks, np.bool_)
        self._losses: Counter[int] = Counter()
        self._shards: dict[int, _MappedShard] = {}
        self._mapping = threading.Lock()
        self._regions: list[tuple[int, int]] = []
        self._finalizer = weakref.finalize(self, _unmap, self._native, self._regions)
        self._finalizer.atexit = (
            False  # threads may still copy when the process ends; the system unmaps
        )

    @property
    def num_shards(self) -> int:
        """Number of files of the array."""
        return -(-self._address.size // self.shard_chunks)

    def bytes_of(self, chunk: int) -> int:
        """Bytes of a chunk that hold data."""
        return min(self.chunk_bytes, self._bytes - chunk * self.chunk_bytes)

    def address(self, chunk: int) -> int:
        """Address of the chunk's first byte, always the same; 0 if it cannot be mapped and has to
        be read.
        """
        if self._address[chunk] == _UNSEEN:
            self._map(chunk // self.shard_chunks)
        return int(self._address[chunk])

    def look_up(
        self, chunks: Int64[np.ndarray, " m"]
    ) -> tuple[Int64[np.ndarray, " m"], Bool[np.ndarray, " m"]]:
        """The :meth:`address` of each chunk, and whether :meth:`check` has verified it."""
        address = self._address[chunks]
        if np.count_nonzero(address < 0):  # some are not mapped yet
            for shard in np.unique(chunks[address == _UNSEEN] // self.shard_chunks).tolist():
                self._map(shard)
            address = self._address[chunks]
        return address, self._sound[chunks]

    def copy(self, chunk: int, into: np.ndarray) -> bool:
        """Copies a mapped chunk and returns whether its bytes are what was written.

        Args:
            chunk: One that has an :meth:`address`.
            into: Contiguous bytes, as many as a chunk has.
        """
        at = self.address(chunk)
        if not at or not self._bring(chunk, at):
            return False
        assert self._native is not None
        calls = self._native.calls
        stored = np.zeros(1, "<u4")
        # The file may lose these pages at any time, so no other code looks at them.
        calls.copy_mapped(into.ctypes.data, at, self.chunk_bytes)
        calls.copy_mapped(stored.ctypes.data, at + self.chunk_bytes, CRC_BYTES)
        # Out of this process; the system keeps them as it likes.
        self._advise(chunk, at, mmap.MADV_DONTNEED, _AROUND)
        if self._checksums is not None and stored[0] != self._checksums[chunk]:
            return False  # a sound chunk, but of another place
        return calls.crc32c(0, into.ctypes.data, self.chunk_bytes) == stored[0]

    def check(self, chunk: int) -> bool:
        """Returns whether the bytes of a mapped chunk, in place, are what was written. If not, it
        has to be read.
        """
        assert self._native is not None
        sound = False
        if self.address(chunk):
            columns = self.check_columns(np.array([chunk]))[:, 0].tolist()
            sound = self._native.calls.is_right(*columns, self._native.bring) == 1
        self.record(chunk, sound)
        return sound

    def check_again(self, shard: int) -> bool:
        """Returns whether the verified chunks of a mapped shard still are sound."""
        first = shard * self.shard_chunks
        chunks = first + np.flatnonzero(self._sound[first : first + self.shard_chunks])
        return all(self.check(chunk) for chunk in chunks.tolist())

    def check_columns(self, chunks: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, "5 m"]:
        """Columns from which another thread can :meth:`check` chunks that have an address: the
        address, the address of the first page, the bytes of the pages, the chunk's bytes, which its
        checksum follows, and the checksum that the metadata has for it (-1: none).
        """
        at = self._address[chunks]
        shards, which = np.unique(chunks // self.shard_chunks, return_inverse=True)
        begin, size = np.array([self._shards[shard].region for shard in shards.tolist()], np.int64)[
            which
        ].T
        low = np.maximum(at // mmap.PAGESIZE * mmap.PAGESIZE, begin)
        high = np.minimum(
            -(-(at + self.chunk_bytes + CRC_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE, begin + size
        )
        named = self._named(chunks)
        return np.stack(
            [at, low, high - low, np.full(at.size, self.chunk_bytes), named.astype(np.int64)]
        )

    def _named(self, chunks: Int64[np.ndarray, " m"]) -> np.ndarray:
        """The checksums that the metadata has for chunks; -1: none."""
        if self._checksums is None:
            return np.full(chunks.size, -1)
        return np.asarray(self._checksums)[chunks]

    def record(self, chunk: int, sound: bool) -> None:
        """Stores the result of a chunk's check."""
        if self._sound[chunk] and not sound:
            self._losses[chunk // self.shard_chunks] += 1
        self._sound[chunk] = sound

    def losses(self, shard: int) -> int:
        """How often a chunk of a shard was sound and then no longer: others may still use it
        without a check.
        """
        return self._losses[shard]

    def _bring(self, chunk: int, at: int) -> bool:
        """Brings a mapped chunk into memory, and returns whether all of it is in its file."""
        assert self._native is not None
        return self._advise(chunk, at, self._native.bring, mmap.PAGESIZE) == 0

    def leave(self) -> None:
        """Drops all mapped pages from this process's memory; the system may keep them cached."""
        assert self._native is not None
        for begin, size in list(self._regions):
            self._native.madvise(begin, size, mmap.MADV_DONTNEED)

    def file_of(self, shard: int) -> MappedFile | None:
        """The file of a shard, once one of its chunks was looked up; None if it could not be
        mapped.
        """
        return self._shards[shard].file if shard in self._shards else None

    def _advise(self, chunk: int, at: int, advice: int, unit: int) -> int:
        assert self._native is not None
        begin, size = self._shards[chunk // self.shard_chunks].region
        low = max(at // unit * unit, begin)
        high = min(-(-(at + self.chunk_bytes + CRC_BYTES) // unit) * unit, begin + size)
        return self._native.madvise(low, high - low, advice)

    def _map(self, shard: int) -> None:
        with self._mapping:
            first = shard * self.shard_chunks
            if self._address[first] == _UNSEEN:
                addresses = self._addresses_in(shard)
                chunks = self._address[first : first + self.shard_chunks]
                chunks[:] = 0 if addresses is None else addresses[: chunks.size]

    def _addresses_in(self, shard: int) -> Int64[np.ndarray, " c"] | None:
        """Maps a shard file and returns its chunks' addresses, 0 for an invalid chunk; None if none
        can be mapped.
        """
        global _maps
        assert self._native is not None
        path = self._path(shard)
        with _lock:
            if _maps >= MAX_MAPS:
                return None
            _maps += 1
        address = None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                size = status.st_size
                entries = self._entries_in(fd, status)
                if entries is None:
                    return None
                address = self._native.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
            finally:
                os.close(fd)
        except OSError:
            return None
        finally:
            if address is None or address == _FAILED:
                with _lock:
                    _maps -= 1
        if address is None or address == _FAILED:
            return None
        self._regions.append((address, size))
        self._shards[shard] = _MappedShard((address, size), MappedFile.of(path, status))
        return np.where(entries >= 0, entries + address, 0)

    def _path(self, shard: int) -> str:
        return f"{self._folder}/c/{shard}"

    def _entries_in(self, fd: int, status: os.stat_result) -> Int64[np.ndarray, " c"] | None:
        """Offsets of the chunks in an open shard file, as :meth:`_entries` returns them."""
        index_bytes = self.shard_chunks * _ENTRY + CRC_BYTES
        end = status.st_size - index_bytes
        return None if end < 0 else self._entries(os.pread(fd, index_bytes, end), end)

    def _entries(self, index: bytes, end: int) -> np.ndarray | None:
        """Offsets of the chunks of a shard, -1 for one that is missing or of another size; None: a
        damaged index.
        """
        if google_crc32c.value(index[:-CRC_BYTES]) != int.from_bytes(index[-CRC_BYTES:], "little"):
            return None
        offset, size = np.frombuffer(index, "<u8", self.shard_chunks * 2).reshape(-1, 2).T
        sound = (offset != NO_CHUNK) & (size == self.chunk_bytes + CRC_BYTES)
        sound &= (offset <= end) & (offset + size <= end)
        return np.where(sound, offset.astype(np.int64), -1)


class MappedFileArray(MappedArray):
    """The chunks of an array that one plain file holds, from a byte on: ``shard_chunks`` is their
    number. There are no checksums: a chunk is right if its file reaches so far and has not been
    written to since it was mapped.
    """

    def __init__(self, file: Path, first_byte: int, chunk_bytes: int, size: int) -> None:
        super().__init__(file.parent, chunk_bytes, max(-(-size // chunk_bytes), 1), size)
        self._file = file
        self._first_byte = first_byte
        self._modified_ns = 0

    def copy(self, chunk: int, into: np.ndarray) -> bool:
        at = self.address(chunk)
        if not at or not self._bring(chunk, at):
            return False
        assert self._native is not None
        calls = self._native.calls
        lost = calls.lost_pages()
        calls.copy_mapped(into.ctypes.data, at, min(self.bytes_of(chunk), into.size))
        self._advise(chunk, at, mmap.MADV_DONTNEED, _AROUND)
        return calls.lost_pages() == lost

    def check_again(self, shard: int) -> bool:
        try:
            return self._file.stat().st_mtime_ns == self._modified_ns
        except OSError:  # one that was removed is still mapped as it was
            return True

    def _named(self, chunks: Int64[np.ndarray, " m"]) -> np.ndarray:
        return np.full(chunks.size, _NO_CHECKSUM)

    def _path(self, shard: int) -> str:
        return str(self._file)

    def _entries_in(self, fd: int, status: os.stat_result) -> Int64[np.ndarray, " c"] | None:
        if status.st_size < self._first_byte + self._bytes:
            return None  # it was cut off: reading says so
        self._modified_ns = status.st_mtime_ns
        return self._first_byte + np.arange(self._address.size) * self.chunk_bytes


def map_file(
    file: Path, first_byte: int, dtype: np.dtype[Any], length: int, chunk_elements: int
) -> MappedFileArray | None:
    """The array in a plain local file, as mapped chunks; None if it has to be read."""
    if native() is None or _is_remote(file.parent):
        return None
    itemsize = dtype.itemsize
    return MappedFileArray(file, first_byte, chunk_elements * itemsize, length * itemsize)


def map_array(
    folder: Path, dtype: np.dtype[Any], length: int, chunk_elements: int, owner: str = ""
) -> MappedArray | None:
    """The array in a local folder, with the ledger's dtype, length, chunk and owner, as mapped
    chunks; None if it has to be read through TensorStore.
    """
    if native() is None or _is_remote(folder):
        return None
    try:
        stored = StoredLayout.read((folder / "zarr.json").read_bytes())
        as_in_memory = (
            stored.plain
            and stored.length == length
            and stored.chunk == chunk_elements
            and (not stored.owner or not owner or stored.owner == owner)
            and np.dtype(stored.dtype) == dtype
            and stored.index_last
            and checksum_bytes(stored.codecs, dtype.itemsize) == CRC_BYTES
            and checksum_bytes(stored.index_codecs, 8) == CRC_BYTES
        )
    except (OSError, ValueError, TypeError):
        return None
    if not as_in_memory:
        return None
    shard_chunks = stored.shard // stored.chunk
    itemsize = dtype.itemsize
    return MappedArray(
        folder, stored.chunk * itemsize, shard_chunks, length * itemsize, stored.checksums
    )


def _is_remote(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a folder is on another machine's disk; yes if unknown."""
    try:
        mounted = _filesystems(mounts.read_text())
        where = os.path.realpath(folder, strict=True)
    except OSError:
        return True
    while where not in mounted and where != "/":
        where = os.path.dirname(where)
    kind = mounted.get(where, "")
    return not kind or _REMOTE.fullmatch(kind) is not None


@functools.lru_cache(maxsize=1)  # hundreds of caches are opened under the same mounts
def _filesystems(mountinfo: str) -> dict[str, str]:
    """The kind of filesystem at each place where one is mounted."""
    mounted: dict[str, str] = {}  # a later mount hides an earlier one
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        mounted[_ESCAPED.sub(lambda m: chr(int(m[1], 8)), mount.split()[4])] = filesystem.split()[0]
    return mounted


def _unmap(native: _Native | None, regions: list[tuple[int, int]]) -> None:
    global _maps
    if native is not None:
        for address, size in regions:
            native.munmap(address, size)
    with _lock:
        _maps -= len(regions)
