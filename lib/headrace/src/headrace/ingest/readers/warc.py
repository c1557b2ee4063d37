"""WARC files of web crawls: plain text in them becomes records, the rest is counted by its type.

Text is what ``conversion`` records hold (WET files) and what responses of type ``text/plain`` do. HTML is left: which
text a page has is a question of its own, answered by other programs before this one. A record has the fields
``text``, ``url``, ``id`` and ``date``.

A file that is cut off is an error, but for one place: an uncompressed one that ends within the headers of its last
record ends there without a word.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import Any, ClassVar

from headrace.errors import SourceError
from headrace.ingest.readers.columnar import import_extra
from headrace.ingest.readers.lines import BlockReader
from headrace.ingest.records import BadRecordError, Row, not_utf8, reading

_BUFFER = 1 << 16


class WarcReader(BlockReader):
    """The texts of a WARC file; rows are its records, all of them, counted from 1."""

    unit: ClassVar[str] = "record"

    def __iter__(self) -> Iterator[Row]:
        warcio: Any = import_extra("warcio.archiveiterator", "warc", self.path)
        damaged: Any = import_extra("warcio.exceptions", "warc", self.path).ArchiveLoadFailed
        stream = io.BufferedReader(_BlockStream(self.blocks()), _BUFFER)
        with reading(self.path, damaged, what="WARC file"):
            for number, record in enumerate(warcio.ArchiveIterator(stream, no_record_parse=False), start=1):
                kind = _kind(record)
                raw = record.content_stream().read() if kind == "text" else b""
                while record.raw_stream.read(_BUFFER):
                    pass
                promised = record.rec_headers.get_header("Content-Length")
                if promised is None or record.raw_stream.limit > 0:
                    raise SourceError(
                        f"ends in the middle of record {number} (cut off?)",
                        field=self.path,
                        cure="Fetch or write the file again, then run the same command: finished parts are kept.",
                    )
                if kind == "text":
                    yield number, _fields(record, raw)
                else:
                    self.ignored[kind] += 1


class _BlockStream(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._left = blocks, memoryview(b"")

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
    """``text``, or what else the record is."""
    if record.rec_type == "conversion":
        return "text"
    if record.rec_type != "response" or record.http_headers is None:
        return str(record.rec_type)
    kind = str(record.http_headers.get_header("Content-Type") or "no type").split(";")[0].strip().lower()
    return "text" if kind == "text/plain" else kind


def _fields(record: Any, raw: bytes) -> Any:
    header = record.rec_headers.get_header
    try:
        text = raw.decode(_charset(record))
    except UnicodeDecodeError as error:
        return not_utf8(error, "record") if error.encoding == "utf-8" else BadRecordError(f"is no {error.encoding}")
    return {
        "text": text,
        "url": header("WARC-Target-URI") or "",
        "id": header("WARC-Record-ID") or "",
        "date": header("WARC-Date") or "",
    }


def _charset(record: Any) -> str:
    kind = record.http_headers.get_header("Content-Type") if record.http_headers is not None else None
    _, _, said = str(kind or "").lower().partition("charset=")
    name = said.split(";")[0].strip(" \"'")
    try:
        # Codecs that turn bytes into text; Python has others ("hex", "zlib") that are none of a web page's.
        return name if name and codecs.lookup(name)._is_text_encoding else "utf-8"
    except LookupError:
        return "utf-8"
