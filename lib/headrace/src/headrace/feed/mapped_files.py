"""The memory-mapped files under the slots of a loader, and whether they are still what they were.

A finished cache is never written to. If it is, a run that goes on would train on something else: a file that became
shorter ends the process when what is gone is touched (SIGBUS), one that was written over gives other tokens. So the
files that a group of batches is gathered from are looked at before, each when it is first gathered from and then once
in :data:`LOOK_S` seconds: what was written over is held against its checksums again. What is changed between that and
the copy cannot be noticed.
"""

from __future__ import annotations

import math
import time

import numpy as np
from jaxtyping import Int64

from headrace.errors import ReadError
from headrace.store.mapped import MappedArray, MappedFile

LOOK_S = 0.5
SWEEP_BYTES = 32 << 30
"""After so many bytes, what is mapped leaves this process's page tables, whose size is a 512th of it."""


class MappedFiles:
    """Which file each slot's chunk lies in. :meth:`check` is for any thread, the rest for one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}  # by array and shard
        self._files: list[MappedFile] = []
        self._looked_at: list[float] = []
        self._chunks: dict[int, tuple[MappedArray, int]] = {}  # by slot
        self.hold(0)

    def hold(self, slots: int) -> None:
        """Begins anew, with so many slots."""
        self._chunks.clear()
        self._touched = 0
        self._file = np.full(slots, -1)

    def put(self, slot: int, number: int, array: MappedArray, chunk: int) -> None:
        """Says that a slot is a chunk of the mapped array of this number."""
        key = number, chunk // array.shard_chunks
        file = self._numbers.setdefault(key, len(self._files))
        if file == len(self._files):
            self._files.append(array.file_of(chunk))
            self._looked_at.append(-math.inf)  # it may have been mapped, and checked, by a loader of long ago
        self._chunks[slot] = array, chunk
        self._file[slot] = file
        self._touched += array.chunk_bytes
        if self._touched >= SWEEP_BYTES:
            self._touched = 0
            for one in {mapped for mapped, _ in self._chunks.values()}:
                one.leave()

    def drop(self, slot: int) -> None:
        """Says that a slot is no mapped chunk any more."""
        if self._chunks.pop(slot, None) is not None:
            self._file[slot] = -1

    def check(self, slots: Int64[np.ndarray, " p"]) -> None:
        """Looks at the files under some slots.

        Raises:
            ReadError: a file became shorter, or a chunk of it is not what was written.
        """
        now = time.monotonic()
        for number in np.unique(self._file[slots]).tolist():
            if number >= 0 and now - self._looked_at[number] >= LOOK_S:
                self._looked_at[number] = now
                current = self._files[number].again()
                if current != self._files[number]:
                    self._check_again(number, current)

    def _check_again(self, number: int, current: MappedFile) -> None:
        chunks = [one for slot, one in list(self._chunks.items()) if self._file[slot] == number]
        for array, chunk in chunks:
            array.forget(chunk)
        if current.size < self._files[number].size or not all(array.check(chunk) for array, chunk in chunks):
            raise ReadError(
                "was changed while it was mapped, and is not what was written",
                field="array",
                value=str(current.path),
                cure="Put the file back as it was (`headrace verify CACHE` says what else is damaged), and go on from"
                " this step.",
            )
        self._files[number] = current
