"""Segments of an :class:`~headrace_posttrain.rollouts.append_log.AppendLog`: the format of records,
and how they are found.

A record is 48 bytes of header, then its payload. The header begins with four fixed bytes and ends
with a checksum of itself, by which the next complete record is found after damaged bytes.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.errors import CacheCorruptError, CacheError
from headrace.store import files

STEPS = "steps"  # the log of the process that trains
_DIGITS = 6
_NAME = re.compile(rf"[0-9]{{{_DIGITS},12}}-[0-9]{{{_DIGITS},12}}\.log")
_MAGIC = b"\x89HRL"
_FIELDS = struct.Struct(
    "<4sB3xIIQQ8sI"
)  # magic, kind, writer, payload's length, number, key, log, payload's checksum
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True)
class Record:
    """A record and its position.

    Attributes:
        kind: Kind, defined by the log's user.
        key: A number of the user's.
        number: Number of earlier records in the log.
        writer: Number of the writer.
        segment: Name of the file.
        offset: Of its header in the file.
        size: Bytes of the payload.
        checksum: CRC-32 of the payload.
        payload: The payload, if its kind is loaded; else empty.
    """

    kind: int
    key: int
    number: int
    writer: int
    segment: str
    offset: int
    size: int
    checksum: int
    payload: bytes = b""

    @property
    def end(self) -> int:
        """Where the next record begins in the file."""
        return self.offset + HEADER_BYTES + self.size


def encode(record: Record, log: bytes, payload: bytes) -> bytes:
    """A record's bytes in a segment of the log with that id."""
    fields = (
        record.kind,
        record.writer,
        len(payload),
        record.number,
        record.key,
        log,
        record.checksum,
    )
    header = _FIELDS.pack(_MAGIC, *fields)
    return header + _CHECKSUM.pack(zlib.crc32(header)) + payload


def decode(data: bytes, at: int, segment: str, base: int = 0) -> tuple[Record, bytes, bytes] | None:
    """The complete record at a position, the log's id and the payload; None if there is none.
    ``base`` is where ``data`` begins in the file.
    """
    begin = at + HEADER_BYTES
    header = data[at : at + _FIELDS.size]
    if (
        len(data) < begin
        or header[:4] != _MAGIC
        or _CHECKSUM.unpack_from(data, begin - 4)[0] != zlib.crc32(header)
    ):
        return None
    _, kind, writer, size, number, key, log, checksum = _FIELDS.unpack(header)
    payload = data[begin : begin + size]
    if len(payload) < size or zlib.crc32(payload) != checksum:
        return None
    return Record(kind, key, number, writer, segment, base + at, size, checksum), log, payload


def segment_name(writer: int, segment: int) -> str:
    """Names sort in the order of writers, and of the segments of each.

    Example:
        >>> segment_name(2, 0), writer_of(segment_name(2, 0))
        ('000002-000000.log', 2)
    """
    return f"{writer:0{_DIGITS}d}-{segment:0{_DIGITS}d}.log"


def writer_of(name: str) -> int:
    """Number of the writer of a segment."""
    return int(name.split("-")[0])


def read_from(url: str, at: int) -> bytes:
    """A segment's bytes from a position on; empty if it was deleted."""
    if not files.is_local(url):
        return (files.read_bytes(url) or b"")[at:]
    try:
        with files.open_read(url) as file:
            file.seek(at)
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        cure = "Move it away if it is none of headrace's; else let this user read it."
        raise CacheError(
            f"cannot be read ({error.strerror or error})", field="segment", value=url, cure=cure
        ) from error


def scan(
    data: bytes, name: str, base: int, load: Collection[int], expected_log: bytes
) -> tuple[list[Record], list[int], bytes]:
    """The records in a segment's bytes.

    Args:
        data: Bytes of the segment.
        name: Its name.
        base: Where they begin in it.
        load: Kinds whose records get their payload.
        expected_log: Id of the log; empty if it is not known yet.

    Returns:
        The records, the start of bytes that are not a complete record, and the log's id.

    Raises:
        CacheCorruptError: a record belongs to another log.
    """
    records: list[Record] = []
    bad: list[int] = []
    at = 0
    expects = 0
    while 0 <= at < len(data):
        decoded = decode(data, at, name, base)
        if decoded is None:
            bad += [base + at] if at == expects else []
            at = data.find(_MAGIC, at + 1)
            continue
        record, log, payload = decoded
        expected_log = expected_log or log
        if log != expected_log or record.writer != writer_of(name):
            raise CacheCorruptError(
                f"holds records of another log (offset {base + at})", field="segment", value=name
            )
        records.append(replace(record, payload=payload) if record.kind in load else record)
        at = expects = record.end - base
    return records, bad, expected_log


def list_names(folder: str) -> list[str]:
    """Names in a folder, in order; empty if there is no folder."""
    if not files.exists(folder):
        return []
    if files.is_local(folder):
        try:
            return sorted(os.listdir(files.local_path(folder)))
        except OSError as error:
            cure = "Move it away if it is a file of another program's; else let this user read it."
            problem = f"is no folder that can be read ({error.strerror or error})"
            raise CacheError(problem, field="rollouts", value=folder, cure=cure) from error
    return files.names_in(folder)


def segment_names(folder: str) -> list[str]:
    """Names of the segments in a folder, in order."""
    return [name for name in list_names(folder) if _NAME.fullmatch(name)]


def holds_rollouts(folder: str) -> bool:
    """Whether a folder has rollouts."""
    return bool(segment_names(files.join(folder, STEPS)))
