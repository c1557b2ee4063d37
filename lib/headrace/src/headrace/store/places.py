"""Whether a stored chunk is the one that belongs at its place: its crc32c is the one that ``zarr.json`` names for it.

A chunk's own checksum says that its bytes are sound, not whose they are: a whole shard file in another's place reads
without an error. So ``zarr.json`` has the checksum of every chunk (:func:`headrace.store.layout.attributes_of`), 5.3
bytes for each, and whoever reads a chunk compares the four bytes that it ends with.

Mapped files and reads over HTTP see these bytes anyway. What TensorStore reads from a local disk does not show them;
they are read before it, once for each chunk: they lie next to bytes that are about to be read.
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
    """Raises ValueError if a chunk ends with another checksum than the one that is named for its place."""
    if int.from_bytes(checksum, "little") != named:
        raise ValueError("DATA_LOSS: the chunk is not the one that was written here: it is of another place or cache")


class LocalPlaces:
    """The chunks of an array in a local folder, each looked at before it is read for the first time. Safe for several
    threads.

    Args:
        folder: The array's.
        stored: What its ``zarr.json`` says.
        checksums: That of each chunk, as it names them.
    """

    def __init__(self, folder: Path, stored: StoredLayout, checksums: np.ndarray) -> None:
        self._shards, self._checksums = f"{folder}/c/", checksums.data
        self._chunk, self._shard_chunks = stored.chunk, stored.shard // stored.chunk
        self._index_bytes = stored.index_bytes
        self._seen = bytearray(checksums.size)

    def check(self, start: int, stop: int) -> None:
        """Raises DamagedAnswerError if a chunk with elements ``start .. stop`` is of another place. What is lost or cut
        is left to whoever reads it.
        """
        first, end = start // self._chunk, -(-stop // self._chunk)
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
            os.lseek(file, _ENTRY.size * (first - shard * self._shard_chunks) - self._index_bytes, os.SEEK_END)
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
