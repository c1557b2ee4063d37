"""Where the blocks of local uncompressed caches lie in memory-mapped files, and whether the files are still the same.

Such blocks need no slots: rows are gathered where they lie, and the system keeps them in its page cache. A window of
steps looks up the addresses of the blocks that the window before did not have.

A finished cache is never written to. If it is, a run that goes on would train on something else: a file that became
shorter ends the process when what is gone is touched (SIGBUS), one that was written over gives other tokens. So the
files of a window are looked at before a group of its batches is gathered, each when it is first used and then once in
:data:`LOOK_S` seconds: chunks of a file that changed are held against their checksums again. What changes between that
and the copy cannot be noticed.

Price: about 0.1 us for each block of a window, 5 us for each new array or file, 2 us to look at a file.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import ReadError
from headrace.store.arrays import ArrayList
from headrace.store.mapped import MappedArray, MappedFile

LOOK_S = 0.5
SWEEP_BYTES = 32 << 30
"""After so many bytes, what is mapped leaves this process's page tables, whose size is a 512th of it."""


class _Watched:
    """A mapped file, as it was when it was last looked at."""

    def __init__(self, array: MappedArray, shard: int) -> None:
        file = array.file_of(shard)
        assert file is not None
        self.array, self.shard, self.file = array, shard, file
        self.looked_at = -math.inf  # it may have been mapped, and checked, by a loader of long ago

    def look(self) -> None:
        """Raises ReadError if the file became shorter, or a chunk of it is not what was written."""
        current: MappedFile = self.file.again()
        if current == self.file:
            return
        if not self.array.check_again(self.shard) or current.size < self.file.size:
            raise ReadError(
                "was changed while it was mapped, and is not what was written",
                field="array",
                value=str(current.path),
                cure="Put the file back as it was (`headrace verify CACHE` says what else is damaged), and go on from"
                " this step.",
            )
        self.file = current


@dataclass(eq=False)
class MappedBlocks:
    """Where the blocks of a window begin.

    Attributes:
        blocks: Their numbers, ascending.
        address: Of each; 0 for one that has to be read.
        sound: Whether each was held against its checksum, or needs none.
        file: Number of the file that each lies in, among those of the :class:`MappedFiles`; -1: in none.
        files: The files, each once.
    """

    blocks: Int64[np.ndarray, " m"]
    address: Int64[np.ndarray, " m"]
    sound: Bool[np.ndarray, " m"]
    file: Int64[np.ndarray, " m"]
    files: Sequence[int] = ()

    @classmethod
    def none(cls, blocks: Int64[np.ndarray, " m"]) -> MappedBlocks:
        """Blocks that all have to be read."""
        return cls(blocks, np.zeros(blocks.size, np.int64), np.zeros(blocks.size, np.bool_), np.full(blocks.size, -1))


class MappedFiles:
    """The mapped files of some arrays; ``default`` is a chunk for those of them that are not stored. :meth:`check` is
    for any thread, the rest for one.
    """

    def __init__(self, arrays: ArrayList, default: np.ndarray) -> None:
        self._arrays, self._default = arrays, default
        self._mapped: dict[int, MappedArray | None] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # by array and shard
        self._files: list[_Watched] = []
        self._last = MappedBlocks.none(np.zeros(0, np.int64))
        self._windows: weakref.WeakSet[MappedBlocks] = weakref.WeakSet()
        self._checked = self._last, -math.inf  # and until when that holds
        self._touched = 0

    def array(self, number: int) -> MappedArray | None:
        """An array's chunks in place; None if they have to be read."""
        if number not in self._mapped:
            array = self._arrays.get(number)
            self._mapped[number] = None if array is None else array.mapped()
        return self._mapped[number]

    def find(
        self, blocks: Int64[np.ndarray, " m"], array: Int64[np.ndarray, " m"], chunk: Int64[np.ndarray, " m"]
    ) -> MappedBlocks:
        """The blocks of the next window: their numbers, ascending, the array of each, and which chunk of it it is."""
        last, window = self._last, MappedBlocks.none(blocks)
        unknown = np.ones(blocks.size, np.bool_)
        if last.blocks.size:
            at = np.minimum(np.searchsorted(last.blocks, blocks), last.blocks.size - 1)
            unknown = (last.blocks[at] != blocks) | ~last.sound[at]
            window.address = np.where(unknown, 0, last.address[at])
            window.file = np.where(unknown, -1, last.file[at])
            window.sound = ~unknown
        new = np.flatnonzero(unknown)
        begins = np.flatnonzero(np.diff(array[new], prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], new.size], strict=False):
            some = new[begin:end]
            self._locate(int(array[some[0]]), some, chunk[some], window)
        window.files = [number for number in np.unique(window.file).tolist() if number >= 0]
        self._windows.add(window)
        self._last = window
        return window

    def _locate(self, number: int, some: Int64[np.ndarray, " k"], chunks: np.ndarray, window: MappedBlocks) -> None:
        """Fills in some blocks, all of one array."""
        mapped = self.array(number)
        if mapped is None:
            if self._arrays.get(number) is None:
                window.address[some], window.sound[some] = self._default.ctypes.data, True
            return
        address = mapped.addresses(chunks)
        shards, which = np.unique(chunks // mapped.shard_chunks, return_inverse=True)
        files = [self._number_of(number, mapped, shard) for shard in shards.tolist()]
        window.address[some], window.sound[some] = address, mapped.are_sound(chunks)
        window.file[some] = np.where(address, np.array(files)[which], -1)
        self._sweep(chunks.size * mapped.chunk_bytes)

    def _number_of(self, number: int, mapped: MappedArray, shard: int) -> int:
        if mapped.file_of(shard) is None:
            return -1
        file = self._numbers.setdefault((number, shard), len(self._files))
        if file == len(self._files):
            self._files.append(_Watched(mapped, shard))
        return file

    def _sweep(self, touched: int) -> None:
        self._touched += touched
        if self._touched >= SWEEP_BYTES:
            self._touched = 0
            for mapped in self._mapped.values():
                if mapped is not None:
                    mapped.leave()

    def drop(self, block: int) -> None:
        """Says that a block is read after all: it is not gathered from its file."""
        for window in self._windows if self._files else ():
            at = int(np.searchsorted(window.blocks, block))
            if at < window.blocks.size and window.blocks[at] == block:
                window.address[at], window.sound[at] = 0, False

    def check(self, window: MappedBlocks) -> None:
        """Looks at the files of a window.

        Raises:
            ReadError: a file became shorter, or a chunk of it is not what was written.
        """
        now, (checked, until) = time.monotonic(), self._checked
        if checked is window and now < until:
            return
        files = [self._files[number] for number in window.files]
        for file in files:
            if now - file.looked_at >= LOOK_S:
                file.looked_at = now
                file.look()
        self._checked = window, min([file.looked_at for file in files], default=now) + LOOK_S
