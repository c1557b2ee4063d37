"""Bytes of a file on their way to records: a slice of it, decompressed, cut into lines, in blocks of bounded size.

Each step takes blocks and gives blocks; where they are cut changes nothing. Price: about 1 GB/s uncompressed.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from headrace.errors import ConfigError, SourceError

BLOCK_BYTES = 1 << 20
# A few stored bytes may unpack to very many; a decompressor gets little at a time, so that what comes out is bounded.
PACKED_BLOCK_BYTES = 1 << 14
_BOM = b"\xef\xbb\xbf"


def lines_between(stream: IO[bytes], start: int, stop: int | None, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The lines that begin at the bytes ``start .. stop``, as blocks; however a file is cut, each line is in one slice.

    Args:
        stream: The file, uncompressed and seekable.
        start: First byte.
        stop: One past the last byte; None: to the end of the file.
        block_bytes: Bytes that are read at once.
    """
    # A line begins at a byte if the byte before ends one. So both ends of the slice move to behind the first line end
    # at or after the byte before them.
    at = max(0, start - 1)
    stream.seek(at)
    begun = start == 0
    while block := stream.read(block_bytes):
        first = 0
        if not begun:
            end = block.find(b"\n")
            if end < 0:
                at += len(block)
                if stop is not None and at >= stop:  # no line begins in the slice
                    return
                continue
            first, begun = end + 1, True
            if stop is not None and at + first >= stop:
                return
        if stop is not None and at + len(block) >= stop:
            end = block.find(b"\n", max(first, stop - 1 - at))
            if end >= 0:
                yield block[first : end + 1]
                return
        yield block[first:]
        at += len(block)


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


def unpack(blocks: Iterable[bytes], compression: str, path: str) -> Iterator[bytes]:
    """Decompresses a stream of blocks; several compressed streams in one file follow each other.

    Args:
        blocks: The file as stored.
        compression: ``none``, ``gzip`` or ``zstd``.
        path: The file, for messages.

    Raises:
        SourceError: the file is damaged, or ends in the middle of its compressed stream.
        ConfigError: zstd is not installed.
    """
    if compression == "none":
        yield from blocks
        return
    damage, new = _decompressor(compression, path)
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
            f"is damaged: its {compression} stream cannot be read ({error})", field=path, cure=_FETCH_AGAIN
        ) from error
    if stream is not None:
        raise SourceError(f"ends in the middle of its {compression} stream (cut off?)", field=path, cure=_FETCH_AGAIN)


_FETCH_AGAIN = "Fetch or write the file again, then run the same command: finished parts are kept."


def _decompressor(compression: str, path: str) -> tuple[type[Exception], Any]:
    if compression == "gzip":
        return zlib.error, lambda: zlib.decompressobj(wbits=31)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise ConfigError(
            "needs the package zstandard to be read", field=path, cure="pip install 'headrace[zstd]'"
        ) from error
    return zstandard.ZstdError, lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
