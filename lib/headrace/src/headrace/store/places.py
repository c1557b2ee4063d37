"""Whether a stored chunk is the one that belongs at its place: its crc32c is the one that ``zarr.json`` names for it.

A chunk's own checksum says that its bytes are sound, not whose they are: a whole shard file in another's place reads
without an error. So ``zarr.json`` has the checksum of every chunk (:func:`headrace.store.layout.attributes_of`), 5.3
bytes for each, and whoever reads a chunk compares the four bytes that it ends with.

Mapped files and reads over HTTP see these bytes anyway. What TensorStore reads from a local disk does not show them;
they are read before it, once for each chunk: they lie next to bytes that are about to be read.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from headrace.store.failures import DamagedAnswerError
from headrace.store.layout import CRC_BYTES, NO_CHUNK, StoredLayout

_ENTRY = 16  # bytes of a chunk in a shard's index


def check_place(checksum: bytes, named: int) -> None:
    """Raises ValueError if a chunk ends with another checksum than the one that is named for its place."""
    if int.from_bytes(checksum, "little") != named:
        raise ValueError("DATA_LOSS: the chunk is not the one that was written here: it is of another place or cache")


class LocalPlaces:
    """The chunks of an array in a local folder, each looked at before it is read for the first time. Safe for several
    threads.

    Args:
        folder: The array's.
        stored: What its ``zarr.json`` says; it names its chunks.
    """

    def __init__(self, folder: Path, stored: StoredLayout, checksums: np.ndarray) -> None:
        self._folder, self._stored, self._checksums = folder, stored, checksums
        self._seen = np.zeros(checksums.size, np.bool_)

    def check(self, start: int, stop: int) -> None:
        """Raises DamagedAnswerError if a chunk with elements ``start .. stop`` is of another place. What is lost or cut
        is left to whoever reads it.
        """
        first, end = start // self._stored.chunk, -(-stop // self._stored.chunk)
        if self._seen[first:end].all():
            return
        chunks = self._stored.shard // self._stored.chunk
        for shard, of_shard in groupby(range(first, end), key=lambda chunk: chunk // chunks):
            self._look(shard, list(of_shard), shard * chunks)

    def _look(self, shard: int, chunks: list[int], first: int) -> None:
        file = self._folder / "c" / str(shard)
        try:
            with file.open("rb", buffering=0) as content:
                content.seek(_ENTRY * (chunks[0] - first) - self._stored.index_bytes, 2)
                entries = np.frombuffer(content.read(_ENTRY * len(chunks)), "<u8").reshape(-1, 2)
                for chunk, (offset, size) in zip(chunks, entries.tolist(), strict=True):
                    if offset == NO_CHUNK or self._seen[chunk]:
                        continue
                    content.seek(offset + size - CRC_BYTES)
                    checksum = content.read(CRC_BYTES)
                    if len(checksum) == CRC_BYTES:
                        check_place(checksum, int(self._checksums[chunk]))
                    self._seen[chunk] = True
        except (OSError, OverflowError):
            return
        except ValueError as error:
            if str(error).startswith("DATA_LOSS"):
                raise DamagedAnswerError(f"{error}, shard file {file}") from error
