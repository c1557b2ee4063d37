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
from headrace.feed.gather_kernel import Checks, KernelThread, Submitted, gather_kernel
from headrace.order.residency import WindowUses
from headrace.store.arrays import ArrayList
from headrace.store.mapped import MappedArray, MappedFile, native_addresses

LOOK_S = 0.5
_TABLE = 32  # chunks that are checked together
SWEEP_BYTES = 32 << 30
"""After so many bytes, what is mapped leaves this process's page tables, whose size is a 512th of it."""


class _Watched:
    """A mapped file, as it was when it was last looked at."""

    def __init__(self, array: MappedArray, shard: int) -> None:
        file = array.file_of(shard)
        assert file is not None
        self.array, self.shard, self.file = array, shard, file
        self.changes = 0  # seen since
        self.looked_at = -math.inf  # it may have been mapped, and checked, by a loader of long ago

    def look(self) -> None:
        """Raises ReadError if the file became shorter, or a chunk of it is not what was written."""
        current: MappedFile = self.file.again()
        if current == self.file:
            return
        self.changes += 1
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


class ChunkCheck:
    """A chunk that is held against its checksum: ``sound``, a byte, once a table is done (None: it is)."""

    def __init__(self, table: Submitted | None, sound: np.ndarray, file: _Watched, chunk: int) -> None:
        self._table, self._sound, self._file, self.chunk = table, sound, file, chunk
        self._changes, self.recorded = file.changes, False

    def result(self, timeout: float | None = None) -> bool:
        """Whether it is sound. Waits for it, however long; only with a ``timeout`` of 0 there may be a TimeoutError."""
        if self._table is not None:
            if timeout == 0 and not self._table.thread.is_done(self._table.number):
                raise TimeoutError
            self._table.result()
        mapped, self.recorded = self._file.array, True
        if self._file.changes != self._changes:  # what was checked may be there no more
            return mapped.check(self.chunk)
        mapped.record(self.chunk, bool(self._sound[0]))
        return bool(self._sound[0])


class MappedFiles:
    """The mapped files of some arrays. :meth:`check` is for any thread, the rest for one.

    Args:
        arrays: The arrays.
        default: A chunk for those of them that are not stored.
        checker: Holds chunks against their checksums; None: whoever asks does.
    """

    def __init__(self, arrays: ArrayList, default: np.ndarray, checker: KernelThread | None) -> None:
        self._arrays, self._default, self._checker = arrays, default, checker
        self._checks: dict[int, ChunkCheck] = {}  # under way, by block
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

    def find(self, uses: WindowUses, array: Int64[np.ndarray, " m"], chunk: Int64[np.ndarray, " m"]) -> MappedBlocks:
        """Where the blocks of the next window lie: the array of each, and which chunk of it it is. Those that were not
        checked yet are, in the order of their first use.
        """
        blocks = uses.blocks
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
        if not window.sound.all():
            self._check_chunks(window, uses, array, chunk)
        return window

    def check_of(self, block: int) -> ChunkCheck:
        """The check of a block that :meth:`find` has not found sound."""
        return self._checks[block]

    def _check_chunks(self, window: MappedBlocks, uses: WindowUses, array: np.ndarray, chunk: np.ndarray) -> None:
        self._checks = {block: check for block, check in self._checks.items() if not check.recorded}
        in_order = np.argsort(np.unique(uses.block, return_index=True)[1])  # of first use; every block has one
        unchecked = in_order[(~window.sound & (window.file >= 0))[in_order]]
        unchecked = unchecked[[block not in self._checks for block in window.blocks[unchecked].tolist()]]
        numbers, columns = array[unchecked], np.empty((5, unchecked.size), np.int64)
        mapped: dict[int, MappedArray] = {n: m for n in np.unique(numbers).tolist() if (m := self.array(n)) is not None}
        for number, of_array in mapped.items():
            some = np.flatnonzero(numbers == number)
            columns[:, some] = of_array.check_columns(chunk[unchecked[some]])
        chunks = list(zip(*(a[unchecked].tolist() for a in (window.blocks, window.file, chunk)), strict=True))
        for begin in range(0, len(chunks), _TABLE):
            sound = np.zeros(min(_TABLE, len(chunks) - begin), np.uint8)
            part, ahead = columns[:, begin : begin + _TABLE], 0 if begin else len(chunks)
            table = self._submit(Checks(part, sound, ahead, native_addresses(), holds=mapped))
            for k, (block, file, one) in enumerate(chunks[begin : begin + _TABLE]):
                self._checks[block] = ChunkCheck(table, sound[k : k + 1], self._files[file], one)

    def _submit(self, checks: Checks) -> Submitted | None:
        if self._checker is not None:
            return self._checker.submit([checks])
        kernel = gather_kernel()
        assert kernel is not None
        kernel.run(checks.table(kernel))
        return None

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
