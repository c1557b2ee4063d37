"""Documents out of files: decompressed, cut into lines, decoded and parsed, in memory bounded by one document.

What counts as a document: each line of a JSONL file that is not blank, each text file. Text is strict UTF-8 (a byte
order mark at the start of a file is dropped) and is passed on as it is: no normalisation, no change of line ends. An
empty text is a document. What cannot be read is named with file and line; it is never dropped in silence.

Price: about 300 MB/s of JSONL on one core, 80 times what a BPE tokenizer eats there.
"""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.ingest.source import SourceConfig, SourceFile, stat_file
from headrace.store import files

_BLOCK_BYTES = 1 << 20
# A few stored bytes may unpack to very many; a decompressor gets little at a time, so that what comes out is bounded.
_PACKED_BLOCK_BYTES = 1 << 14
_BOM = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """One text and where it comes from.

    Attributes:
        text: The text.
        path: Its file.
        line: Its line, counted from 1 (1 for a text file).
        num_bytes: Its length in UTF-8.
    """

    text: str
    path: str
    line: int
    num_bytes: int


class DocumentReader:
    """Iterates over the documents of one file, once.

    Args:
        file: The file, as listed.
        config: Format settings.

    Attributes:
        stored_bytes: Bytes of the file consumed so far, as stored (for progress).
        skipped_lines: Lines left out so far (``on_bad_line="skip"``).
        first_skipped: Why the first of them was.
    """

    def __init__(self, file: SourceFile, config: SourceConfig) -> None:
        self.file, self.config = file, config
        self.stored_bytes = 0
        self.skipped_lines = 0
        self.first_skipped = ""

    def __iter__(self) -> Iterator[Document]:
        """The documents, in order.

        Raises:
            SourceError: the file cannot be read, a line is bad (unless skipped), or the file changed since it was
                listed.
        """
        try:
            yield from self._lines() if self.file.format == "jsonl" else self._whole()
        except SourceError:
            self._check_unchanged()  # if the file is being written to, that is the news, not the half line
            raise
        self._check_unchanged()

    def _lines(self) -> Iterator[Document]:
        field, path = self.config.text_field, self.file.path
        for number, line in enumerate(split_lines(self._blocks()), start=1):
            if not line or line.isspace():
                continue
            try:
                text = _text_of(line, field)
                num_bytes = utf8_length(text)
            except _BadLineError as bad:
                self._bad(f"{path}, line {number}", bad)
                continue
            yield Document(text, path, number, num_bytes)

    def _whole(self) -> Iterator[Document]:
        raw = b"".join(self._blocks())
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            self._bad(f"{self.file.path}, line {line}", _BadLineError(_not_utf8(error, "file"), _UTF8_CURE))
            return
        yield Document(text, self.file.path, 1, len(raw))

    def _bad(self, place: str, bad: _BadLineError) -> None:
        if self.config.on_bad_line == "error":
            cure = f"{bad.cure} Or pass --restart --on-bad-line skip: such lines are then left out and counted."
            raise SourceError(bad.problem, field=place, cure=cure.strip())
        self.skipped_lines += 1
        self.first_skipped = self.first_skipped or f"{place}: {bad.problem}"

    def _blocks(self) -> Iterator[bytes]:
        path = self.file.path
        try:
            with files.open_read(path) as stream:
                yield from without_bom(unpack(self._stored(stream), self.file))
        except HeadraceError:
            raise
        except FileNotFoundError as error:
            raise SourceError(
                "is gone since it was listed", field=path, cure="Restore it and run the command again."
            ) from error
        except Exception as error:  # fsspec's filesystems raise errors of their client libraries
            raise SourceError(
                f"cannot be read ({type(error).__name__}: {error})",
                field=path,
                cure="Run the same command again when it can: finished parts are kept.",
            ) from error

    def _stored(self, stream: IO[bytes]) -> Iterator[bytes]:
        size = _BLOCK_BYTES if self.file.compression == "none" else _PACKED_BLOCK_BYTES
        while block := stream.read(size):
            self.stored_bytes += len(block)
            yield block

    def _check_unchanged(self) -> None:
        try:
            now = stat_file(self.file.path)
        except OSError:
            return  # gone or unreachable after it was read whole: what was read is what was listed
        if now != (self.file.size, self.file.version):
            raise SourceError(
                "changed while the cache was being built",
                field=self.file.path,
                cure="Run the same command again when nothing writes to it any more.",
            )


class _BadLineError(Exception):
    def __init__(self, problem: str, cure: str = "") -> None:
        super().__init__(problem)
        self.problem, self.cure = problem, cure


def _text_of(line: bytes, field: str) -> str:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise _BadLineError(_not_utf8(error, "line"), _UTF8_CURE) from None
    except json.JSONDecodeError as error:
        raise _BadLineError(f"is not valid JSON ({error.msg}, column {error.colno})", _spread_out(line)) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise _BadLineError(f"is JSON that cannot be read ({error})") from None
    if not isinstance(record, dict):
        raise _BadLineError(f"holds a JSON {_json_type(record)}, not an object", _spread_out(line))
    try:
        text = record[field]
    except KeyError:
        names = [repr(k) for k in record][:12]
        has = "it has " + ", ".join(names) if names else "the object is empty"
        raise _BadLineError(f"has no field {field!r} ({has})", "Choose the field with --text-field.") from None
    if not isinstance(text, str):
        raise _BadLineError(f"holds a {_json_type(text)} in field {field!r}, not a string")
    return text


def utf8_length(text: str) -> int:
    """Bytes of ``text`` in UTF-8; refuses half characters (lone surrogates), which no tokenizer takes."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        problem = f"holds half a character ({code}, a lone surrogate, at character {error.start + 1} of the text)"
        raise _BadLineError(problem, "It stands for no Unicode text.") from None


_UTF8_CURE = "Convert the file to UTF-8 (e.g. iconv -f latin1 -t utf-8)."


def _not_utf8(error: UnicodeDecodeError, what: str) -> str:
    return f"is not UTF-8 (byte 0x{error.object[error.start]:02x} at byte {error.start} of the {what})"


def _spread_out(line: bytes) -> str:
    if line.strip() in (b"[", b"{") or line.lstrip().startswith(b"["):
        return "JSONL has one object on each line; to convert a JSON file: jq -c '.[]' FILE (or jq -c . FILE)."
    return ""


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Lines of a stream of blocks, without their ``\n``; a last line without one counts too.

    Linear in the bytes also for a line of many blocks.

    Example:
        >>> list(split_lines([b"a\n", b"b", b"c\r\n\n", b"d"]))
        [b'a', b'bc\r', b'', b'd']
    """
    tail: list[bytes] = []
    for block in blocks:
        first, *rest = block.split(b"\n")
        tail.append(first)
        if rest:
            yield b"".join(tail)
            tail = [rest.pop()]
            yield from rest
    if last := b"".join(tail):
        yield last


def without_bom(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks without the byte order mark that some programs put at the start of a UTF-8 file."""
    head = b""
    stream = iter(blocks)
    for block in stream:
        head += block
        if len(head) >= len(_BOM):
            break
    yield head.removeprefix(_BOM)
    yield from stream


def unpack(blocks: Iterable[bytes], file: SourceFile) -> Iterator[bytes]:
    """Decompresses a stream of blocks; several compressed streams in one file follow each other.

    Raises:
        SourceError: the file is damaged, or ends in the middle of its compressed stream.
        ConfigError: zstd is not installed.
    """
    if file.compression == "none":
        yield from blocks
        return
    damage, new = _decompressor(file)
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
            f"is damaged: its {file.compression} stream cannot be read ({error})", field=file.path, cure=_FETCH_AGAIN
        ) from error
    if stream is not None:
        raise SourceError(
            f"ends in the middle of its {file.compression} stream (cut off?)", field=file.path, cure=_FETCH_AGAIN
        )


_FETCH_AGAIN = "Fetch or write the file again, then run the same command: finished parts are kept."


def _decompressor(file: SourceFile) -> tuple[type[Exception], Any]:
    if file.compression == "gzip":
        return zlib.error, lambda: zlib.decompressobj(wbits=31)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise ConfigError(
            "needs the package zstandard to be read", field=file.path, cure="pip install 'headrace[zstd]'"
        ) from error
    return zstandard.ZstdError, lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
