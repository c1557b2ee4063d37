"""Readers of a stream of bytes: JSONL (one object a line), plain text (one document a file), WARC
files of web crawls.

Text is strict UTF-8 (a byte order mark at the start of a file is dropped) and is not changed: no
normalisation, no conversion of line ends. Blank lines are skipped. A JSONL file can be cut at any
byte, a compressed one at any unpacked byte, for which everything before is unpacked again. A line
belongs to the slice in which it begins.

Plain text in a WARC file becomes records with the fields ``text``, ``url``, ``id`` and ``date``;
the rest is counted by type. Plain text means ``conversion`` records (WET files) and responses of
type ``text/plain``. HTML is not converted: extracting text from pages is left to other programs. A
truncated WARC file is an error, with one exception: an uncompressed one that ends within the
headers of its last record ends there silently.

Between file and record, blocks of bytes of bounded size pass through several steps: slicing,
decompression, cutting into lines. The result does not depend on the blocks. This runs at about 1
GB/s uncompressed.

``msgspec`` parses JSON, and ``json`` parses the lines that it refuses: ``json`` decides what is
valid, and its value. Price: about 350 MB/s of JSONL on one core, 200 MB/s if it is compressed with
zstd.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any

import msgspec

from headrace.errors import SourceError
from headrace.ingest.records import (
    MAX_RECORD_BYTES,
    NAMED_FILE,
    BadRecordError,
    Fields,
    Reader,
    Row,
    Slice,
    SourceFile,
    import_extra,
    not_utf8,
    reading,
    slices_of,
    type_name,
)
from headrace.store.files import open_source

_PACKED = ((b"\x1f\x8b\x08", "gzip", ".gz"), (b"\x28\xb5\x2f\xfd", "zstd", ".zst"))
"""How packed files begin, and the endings of their names."""
BLOCK_BYTES = 1 << 20
# A few stored bytes may unpack to very many, so a decompressor gets little at a time, which bounds
# its output.
PACKED_BLOCK_BYTES = 1 << 14
# of a compressed file, all before a slice is unpacked for each
_JUDGED_BYTES = 1 << 20
_MOST_SLICES = 8
ZSTD_STEP_BYTES = 1 << 11  # 4 bytes of zstd may unpack to 128 KiB, so that 64 MiB come out at most
_decode = msgspec.json.Decoder().decode
_BOM = b"\xef\xbb\xbf"
_BEGIN_OF_JSON = re.compile(rb"\s*(?:[\[{][^\S\n]*\n|\[\s*\{|\[[^\n]*\n?\Z)")
"""A list of objects, or one that goes on beyond the first line, or an object that does."""
_CONVERSION = (
    f"Convert it: jq -c 'arrays[], objects' {NAMED_FILE} > {NAMED_FILE}.new && mv {NAMED_FILE}.new"
    f" {NAMED_FILE} (records in a field of one object, such as data: jq -c '.data[]')."
)
_FETCH_AGAIN = "Fetch or write the file again, then run the same command: finished parts are kept."


class BlockReader(Reader):
    """A reader of a stream of bytes, which may be compressed."""

    unpacks = True

    def blocks(self) -> Iterator[bytes]:
        """The bytes of the file or the slice, decompressed.

        Raises:
            SourceError: they cannot be read.
        """
        part = self.file.part
        compression = self.file.compression
        with reading(self.path), self.open_stream() as stream:
            if part is None:
                size = BLOCK_BYTES if compression == "none" else PACKED_BLOCK_BYTES
                stored = self._count_bytes(iter(lambda: stream.read(size), b""))
                unpacked = unpack(stored, compression, self.path)
            else:
                unpacked = self._count_bytes(self._lines_between(stream, part.start, part.stop))
            yield from (unpacked if part is not None and part.start else without_bom(unpacked))

    def blocks_of_text(self) -> Iterator[bytes]:
        """The blocks of a file that holds text, and not packed text without saying so.

        Raises:
            SourceError: they cannot be read, or are packed and the name of the file does not say
                so.
        """
        blocks = self.blocks()
        head = next(blocks, b"")
        for magic, compression, ending in _PACKED if self.file.compression == "none" else ():
            if head.startswith(magic):
                cure = f"Rename it: mv {NAMED_FILE} {NAMED_FILE}{ending}"
                raise SourceError(
                    f"is packed by {compression}, and its name does not say so",
                    field=self.path,
                    cure=self.file.named_in(cure),
                )
        yield head
        yield from blocks

    def _lines_between(self, stream: IO[bytes], start: int, stop: int | None) -> Iterator[bytes]:
        """The lines that begin at the bytes ``start .. stop`` of the unpacked file (None: to its
        end).
        """
        at = max(0, start - 1)
        if self.file.compression == "none":
            stream.seek(at)
            blocks = iter(lambda: stream.read(BLOCK_BYTES), b"")
        else:  # all before is unpacked
            packed = iter(lambda: stream.read(PACKED_BLOCK_BYTES), b"")
            blocks = _without_first(at, unpack(packed, self.file.compression, self.path))
        return lines_between(blocks, start, stop)

    def _count_bytes(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.stored_bytes += len(block)
            yield block


class JsonlReader(BlockReader):
    """One JSON object per line; its row is its line, counted from 1 within the file."""

    unit = "line"

    def __iter__(self) -> Iterator[Row]:
        for number, line in enumerate(
            split_lines(self._blocks_of_lines(), self.columns.max_record_bytes), start=1
        ):
            if line is None:
                yield number, self.too_long()
                continue
            if not line or line.isspace():
                continue
            try:
                yield number, _object_of(line)
            except BadRecordError as bad:
                yield number, bad

    def _blocks_of_lines(self) -> Iterator[bytes]:
        """The blocks of a file that does not begin with a list, or an object on several lines."""
        blocks = self.blocks_of_text()
        head = next(blocks, b"")
        is_start = self.file.part is None or not self.file.part.start
        if is_start and _BEGIN_OF_JSON.match(head):
            raise no_lines(self.file)
        yield head
        yield from blocks

    def describe_row(self, row: int) -> str:
        part = self.file.part
        if part is not None and part.start:  # lines are counted only when one has to be named
            with reading(self.path), open_source(self.path) as stream:
                earlier_lines = self._lines_between(stream, 0, part.start)
                row += sum(block.count(b"\n") for block in earlier_lines)
        return super().describe_row(row)

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        """Slices of a file, at most 8 of a compressed one. The unpacked size of that is estimated
        from its first MiB; none if it cannot be unpacked.
        """
        size = file.size or 0
        count = size // target_bytes
        if count < 2:
            return []
        ratio = 1.0
        if file.compression != "none":
            ratio = _unpacked_share(file)
            count = min(count, _MOST_SLICES)
        unpacked = int(size * ratio)
        cuts = [unpacked * i // count for i in range(count + 1)]
        stored = [size * i // count for i in range(count + 1)]
        sizes = [b - a for a, b in itertools.pairwise(stored)]
        return slices_of(cuts, sizes) if unpacked else []


def no_lines(file: SourceFile) -> SourceError:
    """The error about a JSON file that has its records in a list, or spread over lines."""
    problem = "is a JSON file, and not one object on each line"
    return SourceError(problem, field=file.shown_path, cure=file.named_in(_CONVERSION))


def _unpacked_share(file: SourceFile) -> float:
    """Unpacked bytes for each stored one at the start of a compressed file, in quarters."""
    with reading(file.path), open_source(file.path) as stream:
        head = stream.read(_JUDGED_BYTES)
    unpacked = 0
    # It ends in the middle, if it is not damaged, which who reads it says.
    with suppress(SourceError):
        for block in unpack([head], file.compression, file.path):
            unpacked += len(block)
    return round(4 * unpacked / max(len(head), 1)) / 4


class TextReader(BlockReader):
    """A whole file as one record ``{"text": ...}``. Its row is 1, or the line of the first byte
    that is not text.
    """

    unit = "line"

    def __iter__(self) -> Iterator[Row]:
        blocks: list[bytes] = []
        size = 0
        decoder = codecs.getincrementaldecoder("utf-8")()
        for block in self.blocks_of_text():
            blocks.append(block)
            if (size := size + len(block)) > self.columns.max_record_bytes:
                yield 1, self.too_long()
                return
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                break  # what follows cannot make it text, so it is not read
        raw = b"".join(blocks)
        try:
            yield 1, {self.only_field("text"): raw.decode()}
        except UnicodeDecodeError as error:
            yield raw.count(b"\n", 0, error.start) + 1, not_utf8(error, "file")


def _object_of(line: bytes) -> Fields:
    try:
        record: Any = _decode(line)
    except Exception:  # noqa: BLE001
        # it has many; json takes more, such as NaN, and says what is wrong
        record = _object_by_json(line)
    if not isinstance(record, dict):
        raise BadRecordError(f"holds a JSON {type_name(record)}, not an object")
    return record


def _object_by_json(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise not_utf8(error, "line") from None
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON ({error.msg}, column {error.colno})"
        raise BadRecordError(problem) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits, nesting without end
        raise BadRecordError(f"is JSON that cannot be read ({error})") from None


def _without_first(count: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks without so many bytes at their begin."""
    for block in blocks:
        if len(block) > count:
            yield block[count:]
        count = max(count - len(block), 0)


def lines_between(blocks: Iterable[bytes], start: int, stop: int | None) -> Iterator[bytes]:
    """The lines that begin at the bytes ``start .. stop`` of a file, as blocks; None: to its end.
    ``blocks`` are those of the file from the byte before ``start`` on.
    """
    # A line begins at a byte if the byte before ends one. So both ends of the slice move to behind
    # the first line end at or after the byte before them.
    at = max(0, start - 1)
    at_line_start = start == 0
    for block in blocks:
        first = 0
        if not at_line_start:
            end = block.find(b"\n")
            if end < 0:
                at += len(block)
                if stop is not None and at >= stop:  # no line begins in the slice
                    return
                continue
            first = end + 1
            at_line_start = True
            if stop is not None and at + first >= stop:
                return
        if stop is not None and at + len(block) >= stop:
            end = block.find(b"\n", max(first, stop - 1 - at))
            if end >= 0:
                yield block[first : end + 1]
                return
        yield block[first:]
        at += len(block)


def split_lines(blocks: Iterable[bytes], limit: int = MAX_RECORD_BYTES) -> Iterator[bytes | None]:
    r"""Lines of a stream of blocks, without their ``\n``; a last line without one counts too. None
    replaces a line of more than ``limit`` bytes, which is not kept.

    Linear in the bytes also for a line of many blocks.

    Example:
        >>> list(split_lines([b"a\n", b"b", b"c\r\n\n", b"d"]))
        [b'a', b'bc\r', b'', b'd']
    """
    tail: list[bytes] = []
    size = 0  # of the line that the tail is of
    for block in blocks:
        first, *rest = block.split(b"\n")
        size += len(first)
        if size > limit:
            tail.clear()
        else:
            tail.append(first)
        if rest:
            yield b"".join(tail) if size <= limit else None
            tail = [rest.pop()]
            size = len(tail[0])
            yield from (
                rest
                if len(block) <= limit
                else (line if len(line) <= limit else None for line in rest)
            )
    if size > limit:
        yield None
    elif last := b"".join(tail):
        yield last


def without_bom(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks without the byte order mark that some programs put at the start of
    a UTF-8 file.
    """
    head = b""
    stream = iter(blocks)
    for block in stream:
        head += block
        if len(head) >= len(_BOM):
            break
    yield head.removeprefix(_BOM)
    yield from stream


def unpack(blocks: Iterable[bytes], compression: str, path: str) -> Iterator[bytes]:
    """Decompresses a stream of blocks; a file may have several consecutive compressed streams.

    Raises:
        SourceError: the file is damaged, or ends in the middle of its compressed stream.
        ConfigError: zstd is not installed.
    """
    if compression == "none":
        yield from blocks
        return
    damage: type[Exception] = zlib.error
    new: Any = partial(zlib.decompressobj, wbits=31)
    if compression != "gzip":
        zstandard = import_extra("zstandard", "zstd", path)
        blocks = (
            block[at : at + ZSTD_STEP_BYTES]
            for block in blocks
            for at in range(0, len(block), ZSTD_STEP_BYTES)
        )
        damage = zstandard.ZstdError
        new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    stream: Any = None
    try:
        for block in blocks:
            while block:
                if stream is None:
                    block = block.lstrip(b"\0")  # gzip files may be padded with zeros
                    if not block:
                        break
                    stream = new()
                if data := stream.decompress(block):
                    yield data
                block = stream.unused_data
                if stream.eof:
                    stream = None
    except damage as error:
        raise SourceError(
            f"is damaged: its {compression} stream cannot be read ({error})",
            field=path,
            cure=_FETCH_AGAIN,
        ) from error
    if stream is not None:
        raise SourceError(
            f"ends in the middle of its {compression} stream (cut off?)",
            field=path,
            cure=_FETCH_AGAIN,
        )


_BUFFER = 1 << 16


class WarcReader(BlockReader):
    """The texts of a WARC file; rows are its records, all of which are counted from 1."""

    unit = "record"

    def __iter__(self) -> Iterator[Row]:
        warcio: Any = import_extra("warcio.archiveiterator", "warc", self.path)
        damaged: Any = import_extra("warcio.exceptions", "warc", self.path).ArchiveLoadFailed
        stream = io.BufferedReader(_BlockStream(self.blocks()), _BUFFER)
        with reading(self.path, damaged, what="WARC file"):
            for number, record in enumerate(
                warcio.ArchiveIterator(stream, no_record_parse=False), start=1
            ):
                kind = _kind(record)
                raw = record.content_stream().read() if kind == "text" else b""
                while record.raw_stream.read(_BUFFER):
                    pass
                promised = record.rec_headers.get_header("Content-Length")
                if promised is None or record.raw_stream.limit > 0:
                    raise SourceError(
                        f"ends in the middle of record {number} (cut off?)",
                        field=self.path,
                        cure="Fetch or write the file again, then run the same command: finished"
                        " parts are kept.",
                    )
                if kind == "text":
                    yield number, _fields(record, raw)
                else:
                    self.ignored[kind] += 1


class _BlockStream(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = memoryview(block)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _kind(record: Any) -> str:
    """``text``, or the type of the record."""
    if record.rec_type == "conversion":
        return "text"
    if record.rec_type != "response" or record.http_headers is None:
        return str(record.rec_type)
    kind = (_content_type(record) or "no type").split(";")[0].strip()
    return "text" if kind == "text/plain" else kind


def _content_type(record: Any) -> str:
    headers = record.http_headers
    return "" if headers is None else str(headers.get_header("Content-Type") or "").lower()


def _fields(record: Any, raw: bytes) -> Any:
    header = record.rec_headers.get_header
    try:
        text = raw.decode(_charset(record))
    except UnicodeDecodeError as error:
        return BadRecordError(f"is no {error.encoding}")
    return {
        "text": text,
        "url": header("WARC-Target-URI") or "",
        "id": header("WARC-Record-ID") or "",
        "date": header("WARC-Date") or "",
    }


def _charset(record: Any) -> str:
    _, _, charset = _content_type(record).partition("charset=")
    name = charset.split(";")[0].strip(" \"'")
    try:
        # Codecs that turn bytes into text; Python has others ("hex", "zlib") that are none of a web
        # page's.
        return name if name and codecs.lookup(name)._is_text_encoding else "utf-8"
    except LookupError:
        return "utf-8"
