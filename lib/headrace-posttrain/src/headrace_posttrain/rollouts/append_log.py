"""``AppendLog``: append-only records, each with a checksum, written by one writer at a time.

A log is a folder of segments, ``<writer>-<segment>.log``. A record is a header and a payload; the
header has the record's number in the log, the number of its writer, and checksums of the payload
and of itself. Records are numbered without a gap, so lost or damaged records are detected. There
are two cases:

- **The tail.** Bytes after the last complete record are the rest of a record that was never
  reported as stored, after a kill or a power cut: :meth:`AppendLog.append` returns only when its
  record is on disk. They are ignored, counted and logged. A log that was not closed is logged too.
- **The middle.** Records are missing before a complete one. headrace never causes this, so it is an
  error, which names segment and offset.

One writer holds the lease of the folder (:mod:`headrace.store.lease`). Each writer has a higher
number than all before it, and its first record fences them: records of a writer that was suspended
and lost its lease have numbers that are already used, and are not read. Such a writer gets an error
from its next :meth:`~AppendLog.append`, which checks the lease again after storing the record:
either the record was there before another writer looked, or it raises.

On a local disk, a segment grows to 64 MiB; in an object store, whose objects cannot grow, each
record is a segment. Price: one ``fsync``, or one PUT, per record, and 48 bytes. Opening reads all
segments, objects 32 at a time.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
import uuid
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from headrace.errors import CacheCorruptError, CacheError, ConfigError, HeadraceError
from headrace.store import files
from headrace.store.lease import Lease, lease, remove_tree
from headrace_posttrain.rollouts.log_segments import (
    Record,
    decode,
    encode,
    read_from,
    scan,
    segment_name,
    segment_names,
    writer_of,
)

logger = logging.getLogger(__name__)

OPENED = 1
CLOSED = 2
DROPPED = 3
"""Kinds of the log's own records; a DROPPED one replaces all from its number to its key. Other
kinds are the user's.
"""
SEGMENT_BYTES = 64 << 20
_READS = 32
_READ_AHEAD = 256
"""Objects that are read at once; and that are held together, before their records are taken out."""
LARGEST_KEY = (1 << 63) - 1
LARGEST_PAYLOAD = (1 << 32) - 1
MOST_SEGMENTS = 10**6
"""Of a writer: with more of them names would not sort. It goes on as another."""


class AppendLog:
    """A log, open for reading; :meth:`write` opens it for writing.

    Args:
        folder: Path or URL; None: in memory.
        load: Kinds whose payloads are in the records that :meth:`refresh` returns.
        cure: What to do about a segment that is damaged.
        may_lose: Whether a missing segment is only counted and logged, because its records can be
            made again.

    Attributes:
        lost_records: Records that were in missing segments.
        fenced_records: Records of writers that had lost their lease.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with AppendLog(folder) as log:
        ...     _ = log.write()
        ...     _ = log.append(16, key=7, payload=b"seven")
        >>> [(r.number, r.key, r.payload) for r in AppendLog(folder, load=[16]).refresh()]
        [(1, 7, b'seven')]
    """

    def __init__(
        self,
        folder: str | None,
        *,
        load: Collection[int] = (),
        cure: str = "",
        may_lose: bool = False,
    ) -> None:
        self.folder = folder
        self._load = frozenset(load)
        self._cure = cure
        self._may_lose = may_lose
        self.lost_records = self.fenced_records = 0
        self._id = b""
        self._ends: dict[str, int] = {}  # where the last whole record of a segment ends
        self._torn: dict[str, int] = {}  # bytes after it
        self._first: dict[int, int] = {}  # each writer's first number
        # numbers; kind and writer of the last record
        self._next = 0
        self._dropped = 0
        self._last = (OPENED, 0)
        self._records: dict[str, list[Record]] = {}
        self._writer: _Writer | None = None
        self._forgotten: weakref.finalize[..., AppendLog] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> AppendLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def torn_bytes(self) -> int:
        """Bytes at the ends of segments that are not a complete record."""
        return sum(self._torn.values())

    @property
    def num_records(self) -> int:
        """Records that can be read, without the log's own."""
        return sum(
            record.kind > DROPPED for records in self._records.values() for record in records
        )

    @property
    def is_closed(self) -> bool:
        """Whether it is not being written, and the last writer closed it."""
        return self._writer is None and (not self._ends or self._last[0] == CLOSED)

    def refresh(self) -> list[Record]:
        """Reads the records added since the last call, and returns them in order, without the log's
        own records.

        Raises:
            CacheCorruptError: records in the middle are missing or damaged; a segment belongs to
                another log.
        """
        with self._lock:
            if self._writer is not None or self.folder is None:
                return []  # nobody else writes
            fresh, bad = self._read_segments(self.folder)
            for record in fresh:
                self._first.setdefault(record.writer, record.number)
            return [record for record in self._in_order(fresh, bad) if record.kind > DROPPED]

    def _read_segments(self, folder: str) -> tuple[list[Record], list[tuple[str, int]]]:
        """Whole records that were not read before; and where other bytes begin, as segment and
        offset.
        """
        fresh: list[Record] = []
        bad: list[tuple[str, int]] = []
        names = segment_names(folder)
        if not files.is_local(folder):
            names = [name for name in names if not self._ends.get(name)]  # objects do not grow
        for name, url, at, data in self._read_ahead(folder, names):
            try:
                records, damaged, self._id = scan(data, name, at, self._load, self._id)
            except CacheCorruptError as error:
                raise CacheCorruptError(
                    error.problem, field="segment", value=url, cure=self._cure
                ) from error
            bad += [(name, position) for position in damaged]
            self._ends[name] = records[-1].end if records else at
            self._torn[name] = at + len(data) - self._ends[name]
            fresh += records
            if records and files.is_local(
                url
            ):  # a writer may have been killed before it did: what is used stays
                files.sync_file(files.local_path(url))
                files.sync_folder(files.local_path(folder))
        return fresh, bad

    def _read_ahead(self, folder: str, names: list[str]) -> Iterator[tuple[str, str, int, bytes]]:
        """Names of segments, with URL, where to go on, and the bytes from there. Objects, one a
        record, are read several at a time.
        """
        segments = [(name, files.join(folder, name), self._ends.get(name, 0)) for name in names]
        if files.is_local(folder):
            yield from ((*segment, read_from(segment[1], segment[2])) for segment in segments)
            return
        with ThreadPoolExecutor(_READS, thread_name_prefix="headrace-log") as pool:
            for begin in range(0, len(segments), _READ_AHEAD):
                window = segments[begin : begin + _READ_AHEAD]
                yield from (
                    (*segment, data)
                    for segment, data in zip(
                        window, pool.map(lambda p: read_from(p[1], p[2]), window), strict=True
                    )
                )

    def _in_order(self, fresh: list[Record], bad: list[tuple[str, int]]) -> Iterator[Record]:
        """Those records that count, by number. Raises CacheCorruptError where one is missing."""
        fences = dict[int, float]()
        fence = float("inf")
        for writer, number in sorted(self._first.items(), reverse=True):
            fences[writer] = fence
            fence = min(fence, number)
        for record in sorted(fresh, key=lambda r: (r.number, r.kind != DROPPED, r.writer)):
            if record.number < self._dropped:
                continue  # its segment was about to be deleted
            if record.number >= fences[record.writer]:
                self.fenced_records += 1
                continue
            if record.number > self._next:
                self._miss(record, bad)
            elif record.number < self._next and record.writer <= self._last[1]:
                raise self._damaged(
                    record.segment, record.offset, f"has record {record.number} once more"
                )
            self._next = record.number + 1
            self._last = (record.kind, record.writer)
            if record.kind == DROPPED:
                self._next = self._dropped = record.key
            self._records.setdefault(record.segment, []).append(record)
            yield record

    def _miss(self, record: Record, bad: list[tuple[str, int]]) -> None:
        """Raises an error if the missing records before one cannot be explained."""
        lost = (
            f"{self._next}"
            if record.number == self._next + 1
            else f"{self._next} to {record.number - 1}"
        )
        earlier = [position for position in bad if position <= (record.segment, record.offset)]
        if earlier:
            raise self._damaged(
                *earlier[-1], f"is damaged there: record {lost} cannot be read, and later ones can"
            )
        if not self._may_lose:
            raise self._damaged(
                record.segment, record.offset, f"goes on here, and no segment has record {lost}"
            )
        self.lost_records += record.number - self._next
        logger.warning("%s: a segment is missing, with record %s", self.folder, lost)

    def _damaged(self, segment: str, offset: int, problem: str) -> CacheCorruptError:
        path = files.join(self.folder or "", segment)
        return CacheCorruptError(
            f"{problem} (offset {offset})", field="segment", value=path, cure=self._cure
        )

    def read(self, record: Record) -> bytes:
        """A record's payload; raises CacheCorruptError if it is damaged or no longer there."""
        if self.folder is None:
            return record.payload
        url = files.join(self.folder, record.segment)
        try:
            data = files.read_range(url, record.offset, record.end)
        except FileNotFoundError:
            data = b""
        decoded = decode(data, 0, record.segment, record.offset)
        if decoded is None or decoded[0] != replace(record, payload=b""):
            raise self._damaged(
                record.segment, record.offset, f"is not record {record.number} any more"
            )
        return decoded[2]

    def write(self) -> list[Record]:
        """Opens the log for writing, and returns what :meth:`refresh` does.

        Raises:
            CacheError: another process is writing it, or it cannot be written.
            CacheCorruptError: as for :meth:`refresh`.
        """
        with self._lock:
            if self._writer is not None:
                return []
            stack = ExitStack()
            with stack:
                log_lease = (
                    None if self.folder is None else stack.enter_context(_leased(self.folder))
                )
                records = self.refresh()
                numbers = (
                    []
                    if self.folder is None
                    else [writer_of(n) for n in segment_names(self.folder)]
                )
                self._id = self._id or uuid.uuid4().bytes[:8]
                writer = _Writer(
                    self.folder, self._id, log_lease, max(numbers, default=0), self._next
                )
                if not self.is_closed or self._torn.get(max(self._ends, default="")):
                    logger.warning(
                        "%s: its last writer did not close it: %d records are whole, %d bytes of"
                        " an unfinished one are left out",
                        self.folder,
                        self._next,
                        self.torn_bytes,
                    )
                writer.resources = stack.pop_all()
            self._writer = writer
            self._forgotten = weakref.finalize(self, writer.close_later)
            self._forgotten.atexit = False  # the writer is closed then, and waited for
            return records

    def append(self, kind: int, key: int, payload: bytes) -> Record:
        """Appends a record, and returns when it would survive a power cut.

        Raises:
            CacheError: it cannot be written, or the lease was lost: the record may be there or not.
            ConfigError: a key or a payload that does not fit a header.
        """
        if not 0 <= key <= LARGEST_KEY:
            raise ConfigError(
                "must lie in 0 .. 2**63 - 1", field="key", value=key, cure="Count from 0."
            )
        if len(payload) > LARGEST_PAYLOAD:
            raise ConfigError(
                "has 4 GiB or more", field="record", value=key, cure="Store less in one."
            )
        with self._lock:
            if self._writer is None:
                raise CacheError(
                    "is not open for writing",
                    field="rollouts",
                    value=self.folder,
                    cure="Call write() first.",
                )
            records = self._writer.append(kind, key, payload)
            for record in records:
                self._records.setdefault(record.segment, []).append(record)
            self._next = records[-1].number + 1
            return records[-1]

    def drop(self, is_done: Callable[[Record], bool]) -> int:
        """Deletes all segments but the newest whose records are no longer needed; returns the
        number of their records.

        One small record replaces them, and is written before they are deleted.
        """
        with self._lock:
            if self.folder is None:
                return 0
            dropped = 0
            newest = max((*self._ends, *self._records), default="")
            for name in [
                name for name in self._ends if name not in self._records and name != newest
            ]:
                remove_tree(
                    files.join(self.folder, name)
                )  # of no use: a kill came before it was deleted
                del self._ends[name], self._torn[name]
            for run in self._runs(is_done):
                records = [record for name in run for record in self._records.pop(name)]
                last = records[-1]
                end = max(r.key if r.kind == DROPPED else r.number + 1 for r in records)
                mark = Record(DROPPED, end, records[0].number, last.writer, run[-1], 0, 0, 0)
                if len(records) > 1:
                    files.write_atomic(
                        files.join(self.folder, run[-1]), encode(mark, self._id, b"")
                    )
                for name in run[:-1]:
                    remove_tree(files.join(self.folder, name))
                self._records[run[-1]] = [mark]
                dropped += sum(r.kind > DROPPED for r in records)
            return dropped

    def _runs(self, is_done: Callable[[Record], bool]) -> list[list[str]]:
        """Names of neighbouring segments that are no longer needed."""
        runs: list[list[str]] = [[]]
        for name in sorted(self._records)[:-1]:
            if all(r.kind <= DROPPED or is_done(r) for r in self._records[name]):
                runs[-1].append(name)
            elif runs[-1]:
                runs.append([])
        return [run for run in runs if run]

    def close(self) -> None:
        """Closes the log for writing; it stays open for reading."""
        with self._lock:
            if self._writer is not None:
                assert self._forgotten is not None
                self._forgotten.detach()
                self._writer.close()
                self._writer = None
                self._last = (CLOSED, self._last[1])


def _leased(folder: str) -> AbstractContextManager[Lease]:
    return lease(
        folder,
        field="rollouts",
        cure="What that one stored is used; end this process, or start it again later.",
    )


class _Writer:
    """The end of a log that one process writes. After a failed write, it continues as a new writer,
    whose first record fences what may be left of the failed one.
    """

    def __init__(
        self, folder: str | None, log: bytes, held: Lease | None, writer: int, next_number: int
    ) -> None:
        self.folder = folder
        self.log = log
        self._held = held
        self._writer = writer
        self._next = next_number
        self._segment = 0
        self._size = 0
        self._opened = False
        self._file = -1
        self._pid = os.getpid()
        self.resources = ExitStack()
        atexit.register(self.close)

    def append(self, kind: int, key: int, payload: bytes) -> list[Record]:
        """The record, after that of a new writer if there is one."""
        if self.folder is None:
            self._next += 1
            return [
                Record(
                    kind, key, self._next - 1, 1, "", 0, len(payload), zlib.crc32(payload), payload
                )
            ]
        records: list[Record] = []
        if os.getpid() != self._pid:
            problem = f"is written by process {self._pid}, of which this one is a fork"
            cure = (
                "Give its results back to that process, or open the store here, under a producer's"
                " name."
            )
            raise CacheError(problem, field="rollouts", value=self.folder, cure=cure)
        if not self._opened or self._segment == MOST_SEGMENTS:
            self._release_file()
            self._writer = self._writer + 1
            self._segment = 0
            self._opened = True
            writer = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
            records.append(self._put(OPENED, 0, writer))
        return [*records, self._put(kind, key, payload)]

    def _put(self, kind: int, key: int, payload: bytes) -> Record:
        assert self.folder is not None
        assert self._held is not None
        self._held.check()
        if self._size >= SEGMENT_BYTES:
            self._release_file()
        name = segment_name(self._writer, self._segment)
        record = Record(
            kind, key, self._next, self._writer, name, self._size, len(payload), zlib.crc32(payload)
        )
        self._opened = False  # unless all of this goes well
        url = files.join(self.folder, name)
        data = encode(record, self.log, payload)
        if files.is_local(url):
            self._extend(url, data)
            self._size = record.end
        else:
            files.write_atomic(url, data)
            self._segment += 1
        self._opened = True
        self._next += 1
        self._held.confirm()
        return record

    def _extend(self, url: str, data: bytes) -> None:
        path = files.local_path(url)
        try:
            is_new = self._file < 0
            if is_new:
                self._file = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666
                )
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
            if is_new:
                files.sync_folder(path.parent)
        except OSError as error:
            raise files.not_written(url, error) from error

    def _release_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._segment += 1
        self._file = -1
        self._size = 0

    def close(self) -> None:
        """Marks the end of what was written, if anything was, and releases the lease."""
        if os.getpid() != self._pid:  # a fork's copy
            return
        atexit.unregister(self.close)
        with suppress(HeadraceError):  # what is stored stays
            if self._opened:
                self._put(CLOSED, 0, b"")
        self._release_file()
        with suppress(HeadraceError):  # who lost the lease was told by append()
            self.resources.close()

    def close_later(self) -> None:
        """Closes it in the lease's thread: for a finalizer, which must not wait."""
        if self._held is not None:
            self._held.hand_over(self.close)
