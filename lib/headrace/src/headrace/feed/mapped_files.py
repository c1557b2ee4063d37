"""Finds blocks of local uncompressed caches in memory-mapped files, and checks that the files have
not changed.

Such blocks need no slots: rows are gathered in place, and the system keeps the blocks in its page
cache. A window of steps looks up only the addresses of blocks that the previous window did not
have.

A finished cache is never written to. If it is nevertheless, a run that continues would train on
other data. So the files of a window are looked at before a group of its batches is gathered, and
again before the group is delivered. If a file has changed, its chunks are verified against their
checksums again. Looks may take a hundredth of the time, saved up over :data:`LOOK_S` seconds: at
the pace of training, that is enough for every group. If batches are consumed faster, looks are at
most :data:`LOOK_S` apart, and what is overwritten between two of them may be delivered. A page that
is missing when it is copied, because its file became shorter, does not end the process
(feed/gather_kernel.py): all files of the window are then verified before the group is delivered.

Price: about 0.1 us for each block of a window, 5 us for each new array or file, 3 us to look at a
file.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import ReadError
from headrace.feed.gather_kernel import Checks, KernelThread, Submitted, gather_kernel
from headrace.order.residency import WindowUses
from headrace.store.leaf import ArrayList
from headrace.store.mapped import MappedArray, MappedFile, advice_to_bring

LOOK_S = 0.5
"""Longest time between two looks at a file in use."""
_APART = 100  # time between looks, as a multiple of the processor time that they take
_TABLE = 32  # chunks that are verified together
_NO_FILE = int(np.iinfo(np.int64).min) // 2
SWEEP_BYTES = 32 << 30
"""Bytes looked up after which mapped files leave this process's page tables, which take a 512th of
these bytes.
"""


class _Watched:
    """A mapped file, as it was at the last look."""

    def __init__(self, array: MappedArray, shard: int) -> None:
        file = array.file_of(shard)
        assert file is not None
        self.array = array
        self.shard = shard
        self.file = file
        self.losses = array.losses(shard)
        self.looked_at = -math.inf  # an earlier loader may have mapped and checked it long ago

    def look(self, *, verify: bool) -> bool:
        """Whether the file has changed, or is to be verified in any case. Raises ReadError if it is
        shorter, or a chunk of it is not what was written.
        """
        current: MappedFile = self.file.again()
        changed = verify or current != self.file
        intact = not changed or (
            self.array.check_again(self.shard) and current.size >= self.file.size
        )
        # Another loader may have noticed first.
        if not intact or self.array.losses(self.shard) != self.losses:
            raise ReadError(
                "was changed while it was mapped, and is not what was written",
                field="array",
                value=current.path,
                cure="Put the file back as it was (`headrace cache verify CACHE` says what else is"
                " damaged), and go on from this step.",
            )
        self.file = current
        return changed


class _Checks(NamedTuple):
    """Chunks to verify against their checksums for a window, in the order of their first use."""

    chunks: list[tuple[int, int, int]]  # block, array and number of each
    tables: list[Submitted | None]  # of :data:`_TABLE` chunks each; None: done
    sound: np.ndarray  # the results
    needed: list[int]  # number of chunks, from the first, that each step of the window needs
    changes: int  # file changes seen before the checks began


@dataclass(eq=False)
class MappedBlocks:
    """Addresses of the blocks of a window.

    Attributes:
        blocks: Block numbers, ascending.
        address: Address of each; 0 if the block has to be read.
        sound: Whether each was verified against its checksum before, or needs no check.
        file: Number of each block's file, among the files of the :class:`MappedFiles`; -1: none.
        files: The files, each once.
        checks: The chunks to verify against their checksums for this window; None: none.
        settled: How many of these are settled.
        replaced: Memory of blocks that were read because their chunks in mapped files are not
            sound.
        lost_pages: Pages that files of this process had lost when the files were last known to be
            intact.
    """

    blocks: Int64[np.ndarray, " m"]
    address: Int64[np.ndarray, " m"]
    sound: Bool[np.ndarray, " m"]
    file: Int64[np.ndarray, " m"]
    files: Sequence[_Watched] = ()
    checks: _Checks | None = None
    settled: int = 0
    replaced: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    lost_pages: int = 0

    @property
    def must_be_read(self) -> Bool[np.ndarray, " m"]:
        """Which blocks have to be read."""
        return (self.address == 0) & ~self.sound

    @classmethod
    def none(cls, blocks: Int64[np.ndarray, " m"]) -> MappedBlocks:
        """Blocks that all have to be read."""
        return cls(
            blocks,
            np.zeros(blocks.size, np.int64),
            np.zeros(blocks.size, np.bool_),
            np.full(blocks.size, -1),
        )

    def replace(self, block: int, memory: np.ndarray) -> None:
        """Gathers a block from memory instead of its file, if the window uses it."""
        at = int(np.searchsorted(self.blocks, block))
        if at < self.blocks.size and self.blocks[at] == block:
            self.address[at] = memory.ctypes.data
            self.sound[at] = True
            self.file[at] = -1
            self.replaced[block] = memory


class MappedFiles:
    """The mapped files of some arrays. Any thread may call :meth:`check_files`; only one thread may
    call the rest.

    Args:
        arrays: The arrays.
        default: A chunk that stands for all chunks of arrays that are not stored.
        checker: Verifies chunks against their checksums; None: the caller's thread does.
        mapping: Whether chunks of stored arrays are used in mapped files; otherwise all of them
            have to be read.
    """

    def __init__(
        self,
        arrays: ArrayList,
        default: np.ndarray,
        checker: KernelThread | None,
        *,
        mapping: bool,
    ) -> None:
        self._arrays = arrays
        self._default = default
        self._checker = checker
        self._mapping = mapping
        self._mapped: dict[int, MappedArray | None] = {}
        self._first_file: dict[int, int] = {}  # number of the first file of each mapped array
        self._num_files = 0
        self._watched: dict[int, _Watched] = {}  # files by number
        self._unsettled: set[int] = set()  # blocks being verified
        self._last = MappedBlocks.none(np.zeros(0, np.int64))
        self._windows: weakref.WeakSet[MappedBlocks] = weakref.WeakSet()
        self._looked = self._last, -math.inf  # and until when no new look is due
        self._changes = self._touched = 0
        # processor time that looks may take
        self._checked_at = -math.inf
        self._allowed_s = 0.0

    def array(self, number: int) -> MappedArray | None:
        """An array's chunks in place; None if they have to be read."""
        if number not in self._mapped:
            array = self._arrays.get(number)
            mapped = array.mapped() if array is not None and self._mapping else None
            self._mapped[number] = mapped
            if mapped is not None:
                self._first_file[number] = self._num_files
                self._num_files += mapped.num_shards
        return self._mapped[number]

    def find(
        self, uses: WindowUses, array: Int64[np.ndarray, " m"], chunk: Int64[np.ndarray, " m"]
    ) -> MappedBlocks:
        """Finds the blocks of the next window, given the array of each and its chunk number there.
        Begins to verify those that have not been verified, in the order of their first use.
        """
        last = self._last
        window = MappedBlocks.none(uses.blocks)
        window.lost_pages = last.lost_pages
        unknown = np.ones(uses.blocks.size, np.bool_)
        if last.blocks.size:
            at = np.minimum(np.searchsorted(last.blocks, uses.blocks), last.blocks.size - 1)
            unknown = (last.blocks[at] != uses.blocks) | ~last.sound[at]
            window.address = np.where(unknown, 0, last.address[at])
            window.file = np.where(unknown, -1, last.file[at])
            window.sound = ~unknown
        new = np.flatnonzero(unknown)
        if new.size:
            window.address[new], window.sound[new], window.file[new] = self._locate(
                array[new], chunk[new]
            )
        for (
            block,
            memory,
        ) in last.replaced.items():  # if this window does not use it, a later one reads it again
            window.replace(block, memory)
        window.files = [
            self._watch(number) for number in np.unique(window.file).tolist() if number >= 0
        ]
        if not window.sound.all():
            self._begin_checks(window, uses, array, chunk)
        self._windows.add(window)
        self._last = window
        return window

    def _locate(
        self, array: Int64[np.ndarray, " m"], chunk: Int64[np.ndarray, " m"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Address of each chunk, whether it was verified, and its file. Chunks of one array must be
        adjacent.
        """
        address = np.zeros(array.size, np.int64)
        sound = np.zeros(array.size, np.bool_)
        begins = np.flatnonzero(np.diff(array, prepend=-1))
        ends = [*begins[1:].tolist(), array.size]
        touched = 0
        first_file, shard_chunks = np.full((2, begins.size), 1)
        for k, (number, begin, end) in enumerate(
            zip(array[begins].tolist(), begins.tolist(), ends, strict=True)
        ):
            mapped = self.array(number)
            if mapped is not None:
                address[begin:end], sound[begin:end] = mapped.look_up(chunk[begin:end])
                first_file[k] = self._first_file[number]
                shard_chunks[k] = mapped.shard_chunks
                touched += (end - begin) * mapped.chunk_bytes
            elif self._arrays.get(number) is None:
                address[begin:end] = self._default.ctypes.data
                sound[begin:end] = True
                first_file[k] = _NO_FILE
            else:
                first_file[k] = _NO_FILE
        self._sweep(touched)
        sizes = np.diff(begins, append=array.size)
        file = np.repeat(first_file, sizes) + chunk // np.repeat(shard_chunks, sizes)
        file[(address == 0) | (file < 0)] = -1
        return address, sound, file

    def _watch(self, number: int) -> _Watched:
        """The file of a number."""
        if number not in self._watched:
            array = next(
                one for one, first in reversed(self._first_file.items()) if first <= number
            )
            mapped = self._mapped[array]
            assert mapped is not None
            self._watched[number] = _Watched(mapped, number - self._first_file[array])
        return self._watched[number]

    def _sweep(self, touched: int) -> None:
        self._touched += touched
        if self._touched >= SWEEP_BYTES:
            self._touched = 0
            for mapped in self._mapped.values():
                if mapped is not None:
                    mapped.leave()

    def _begin_checks(
        self, window: MappedBlocks, uses: WindowUses, array: np.ndarray, chunk: np.ndarray
    ) -> None:
        first_use = np.unique(uses.block, return_index=True)[1]  # every block has a first use
        order = np.argsort(first_use)
        order = order[(~window.sound & (window.file >= 0))[order]]
        order = order[[block not in self._unsettled for block in window.blocks[order].tolist()]]
        chunks = list(zip(*(a[order].tolist() for a in (window.blocks, array, chunk)), strict=True))
        columns = self._check_columns(array[order], chunk[order])
        sound = np.zeros(order.size, np.uint8)
        tables: list[Submitted | None] = []
        for begin in range(0, len(chunks), _TABLE):
            some = slice(begin, begin + _TABLE)
            ahead = 0 if begin else len(chunks)
            holds = [self._mapped[number] for _, number, _ in chunks[some]]
            tables.append(
                self._submit(Checks(columns[:, some], sound[some], ahead, advice_to_bring(), holds))
            )
        self._unsettled.update(block for block, _, _ in chunks)
        step_of_first_use = np.searchsorted(uses.bounds, first_use[order], side="right") - 1
        needed = np.searchsorted(step_of_first_use, np.arange(uses.steps), side="right").tolist()
        window.checks = _Checks(chunks, tables, sound, needed, self._changes)

    def _check_columns(self, array: np.ndarray, chunk: np.ndarray) -> Int64[np.ndarray, "5 c"]:
        columns = np.empty((5, array.size), np.int64)
        for number in np.unique(array).tolist():
            some = np.flatnonzero(array == number)
            mapped = self.array(number)
            assert mapped is not None
            columns[:, some] = mapped.check_columns(chunk[some])
        return columns

    def _submit(self, checks: Checks) -> Submitted | None:
        if self._checker is not None:
            return self._checker.submit([checks])
        checks()
        return None

    def is_settled(self, window: MappedBlocks, number: int) -> bool:
        """Whether the checks that a step of a window needs are done and found its chunks sound."""
        checks = window.checks
        if checks is None or checks.needed[number] <= window.settled:
            return True
        table = checks.tables[(checks.needed[number] - 1) // _TABLE]
        thread_done = table is None or table.thread.is_done(table.number)
        return thread_done and bool(checks.sound[window.settled : checks.needed[number]].all())

    def settle(self, window: MappedBlocks, number: int) -> Iterator[tuple[int, int, int]]:
        """Waits for the checks that a step of a window needs. Yields block, array and number of
        each chunk that is not sound: the caller has to :meth:`replace` it.
        """
        checks = window.checks
        while checks is not None and window.settled < checks.needed[number]:
            at = window.settled // _TABLE
            if (table := checks.tables[at]) is not None:
                table.result()
                checks.tables[at] = None
            block, array, chunk = checks.chunks[window.settled]
            mapped = self._mapped[array]
            sound = bool(checks.sound[window.settled])
            assert mapped is not None
            if checks.changes != self._changes:  # a file may have changed since the check
                sound = mapped.check(chunk)
            mapped.record(chunk, sound)
            self._unsettled.discard(block)
            if not sound:
                yield block, array, chunk
            window.settled += 1

    def replace(self, block: int, memory: np.ndarray) -> None:
        """Gathers a block from memory instead of its file, for as long as windows use it."""
        for window in self._windows:
            window.replace(block, memory)

    def check_files(self, window: MappedBlocks) -> None:
        """Looks at the files of a window.

        Raises:
            ReadError: a file became shorter, or a chunk of it is not what was written.
        """
        if not window.files:
            return
        now = time.monotonic()
        lost_pages = gather_kernel().calls.lost_pages()
        self._allowed_s = min(self._allowed_s + (now - self._checked_at) / _APART, LOOK_S / _APART)
        self._checked_at = now
        verify = lost_pages != window.lost_pages
        (looked, until) = self._looked
        if looked is window and now < until and self._allowed_s <= 0 and not verify:
            return
        began = time.thread_time()
        for file in window.files:
            if verify or self._allowed_s > 0 or now - file.looked_at >= LOOK_S:
                file.looked_at = now
                self._changes += file.look(verify=verify)
        self._allowed_s -= time.thread_time() - began
        self._looked = window, min(file.looked_at for file in window.files) + LOOK_S
        window.lost_pages = lost_pages
