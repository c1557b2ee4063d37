"""Checks that a stored chunk is the one that belongs at its position, by the crc32c that
``zarr.json`` lists for it.

A chunk's own checksum shows that its bytes are intact, not where they belong: a whole shard file in
the wrong position can be read without an error. ``zarr.json`` therefore has the checksum of every
chunk (:func:`headrace.store.layout.attributes_of`), 5.3 bytes each, and readers compare it with the
last four bytes of the chunk.

Mapped files and reads over HTTP have these bytes anyway. TensorStore does not return them when it
reads from a local disk, so they are read first, once per chunk: they are next to bytes that are
about to be read.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from headrace.store.failures import DamagedAnswerError
from headrace.store.layout import CRC_BYTES, NO_CHUNK, StoredLayout

_ENTRY = struct.Struct("<QQ")  # a chunk's offset and size in a shard's index


def check_place(checksum: bytes, named: int) -> None:
    """Raises ValueError if the checksum at the end of a chunk differs from the one listed for its
    position.
    """
    if int.from_bytes(checksum, "little") != named:
        raise ValueError(
            "DATA_LOSS: the chunk is not the one that was written here: it is of another place or"
            " cache"
        )


class LocalPlaces:
    """The chunks of an array in a local folder, each checked before it is first read. Safe for
    several threads.

    Args:
        folder: Folder of the array.
        stored: Its ``zarr.json``.
        checksums: Listed checksum of each chunk.
    """

    def __init__(self, folder: Path, stored: StoredLayout, checksums: np.ndarray) -> None:
        self._shards = f"{folder}/c/"
        self._checksums = checksums.data
        self._chunk = stored.chunk
        self._shard_chunks = stored.shard // stored.chunk
        self._index_bytes = stored.index_bytes
        self._seen = bytearray(checksums.size)

    def check(self, start: int, stop: int) -> None:
        """Raises DamagedAnswerError if a chunk with elements ``start .. stop`` belongs elsewhere.
        Lost or truncated chunks are left to the reader.
        """
        first = start // self._chunk
        end = -(-stop // self._chunk)
        while (first := self._seen.find(0, first, end)) >= 0:
            shard = first // self._shard_chunks
            next_shard = min((shard + 1) * self._shard_chunks, end)
            self._look(shard, first, next_shard)
            first = next_shard

    def _look(self, shard: int, first: int, end: int) -> None:
        path = f"{self._shards}{shard}"
        try:
            file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError:
            return
        try:
            os.lseek(
                file,
                _ENTRY.size * (first - shard * self._shard_chunks) - self._index_bytes,
                os.SEEK_END,
            )
            for chunk, (offset, size) in enumerate(
                _ENTRY.iter_unpack(os.read(file, _ENTRY.size * (end - first))), first
            ):
                if offset != NO_CHUNK and not self._seen[chunk]:
                    os.lseek(file, offset + size - CRC_BYTES, os.SEEK_SET)
                    checksum = os.read(file, CRC_BYTES)
                    if len(checksum) == CRC_BYTES:
                        check_place(checksum, self._checksums[chunk])
                    self._seen[chunk] = 1
        except (OSError, OverflowError, struct.error):
            return
        except ValueError as error:
            raise DamagedAnswerError(f"{error}, shard file {path}") from error
        finally:
            os.close(file)
