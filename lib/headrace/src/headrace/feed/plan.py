"""The plan of a run of steps: which stored blocks this host needs, in which order, and where each row lies in them.

Pure: index maps and integer arithmetic, no I/O. A whole window of steps is planned with a handful of array operations;
a step costs well under a microsecond a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import PlannedDataset
from headrace.data.rows import Pieces, Rows, RowSource
from headrace.feed.placement import Placement
from headrace.index.schedule import BatchSchedule
from headrace.store.array import StoredArray

RowOrder: TypeAlias = Literal["locality", "stream"]


class BlockSpace:
    """Numbers all blocks (stored chunks) of all arrays of a dataset, one after the other.

    Attributes:
        arrays: All arrays, source by source.
        chunk: Elements of a block, by array.
        first_block: Number of each array's first block; its last entry is the number of all blocks.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self.arrays: list[StoredArray] = [a for s in sources for a in s.arrays]
        self.first_array = np.cumsum([0] + [len(s.arrays) for s in sources])
        self.chunk = np.asarray([a.chunk_elements for a in self.arrays], np.int64)
        lengths = np.asarray([a.length for a in self.arrays], np.int64)
        self.first_block = np.concatenate([[0], np.cumsum(-(-lengths // self.chunk))])

    def array_of(self, blocks: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The array that each block belongs to."""
        return np.searchsorted(self.first_block, blocks, side="right") - 1


@dataclass(frozen=True)
class WindowPlan:
    """Rows of this host for the steps ``first_step .. first_step + steps``, and the blocks under them.

    Row arrays run over the local rows of all steps; step k has ``row_bounds[k]:row_bounds[k + 1]``. Piece arrays run
    over the pieces of those rows, each within one block; step k has ``piece_bounds[k]:piece_bounds[k + 1]``. ``blocks``
    lists each block once, in order of first use; step k is the first to use ``block_bounds[k]:block_bounds[k + 1]``.

    Attributes:
        row_elements: Elements of a row.
        batch_sizes: Global batch size of each step.
        num_valid: Rows of each global batch that hold data; the rest is padding.
        source: Source of each row.
        row: Number of each row within its source.
        piece_row: Row of each piece, counted from the step's first.
        column: Where in its row each piece begins.
        size: Elements of each piece.
        array: Array that it lies in.
        offset: Elements from the start of its block to its own.
        block: Its block, as an index into ``blocks``.
        blocks: Numbers of all blocks needed (see :class:`BlockSpace`).
        last_use: Step, counted from ``first_step``, that uses each block last within this window.
    """

    first_step: int
    steps: int
    row_elements: int
    batch_sizes: Int64[np.ndarray, " steps"]
    num_valid: Int64[np.ndarray, " steps"]
    row_bounds: Int64[np.ndarray, " steps1"]
    source: Int64[np.ndarray, " n"]
    row: Int64[np.ndarray, " n"]
    piece_bounds: Int64[np.ndarray, " steps1"]
    piece_row: Int64[np.ndarray, " p"]
    column: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]
    array: Int64[np.ndarray, " p"]
    offset: Int64[np.ndarray, " p"]
    block: Int64[np.ndarray, " p"]
    blocks: Int64[np.ndarray, " m"]
    block_bounds: Int64[np.ndarray, " steps1"]
    last_use: Int64[np.ndarray, " m"]


def plan_window(
    dataset: PlannedDataset,
    space: BlockSpace,
    schedule: BatchSchedule,
    placement: Placement,
    first_step: int,
    steps: int,
    row_order: RowOrder,
) -> WindowPlan:
    """Plans ``steps`` steps from ``first_step`` on, fewer if rows change their length within them.

    Rows of a step are first ordered by locality (unless ``row_order`` is ``"stream"``), over the global batch, and then
    cut for this process: the global order does not depend on the number of processes.
    """
    length = dataset.length
    dataset, until = dataset.phase_at(first_step)
    steps = steps if until is None else min(steps, until - first_step)
    numbers = np.arange(first_step, first_step + steps)
    sizes = schedule.size_at(numbers)
    begin = schedule.offset_at(numbers)
    valid = sizes if length is None else np.clip(length - begin, 0, sizes)
    step_of_row = np.repeat(np.arange(steps), valid)
    indices = np.arange(int(valid.sum())) + (begin - (np.cumsum(valid) - valid))[step_of_row]
    located = dataset.locate(indices)
    if row_order == "locality":
        order = np.lexsort((located.locality, step_of_row))
        located = type(located)(*(a[order] for a in located))
    keep, row_bounds = _local_cut(placement, sizes, valid)
    source, row = located.source[keep], located.row[keep]

    pieces = _within_blocks(_pieces(dataset.sources, space, source, row), space)
    step = np.repeat(np.arange(steps), np.diff(row_bounds))[pieces.row]
    chunk = space.chunk[pieces.array]
    number, offset = np.divmod(pieces.start, chunk)
    blocks, block, block_bounds, last_use = _by_first_use(space.first_block[pieces.array] + number, step, steps)
    return WindowPlan(
        first_step=first_step,
        steps=steps,
        row_elements=dataset.seq_len,
        batch_sizes=sizes,
        num_valid=valid,
        row_bounds=row_bounds,
        source=source,
        row=row,
        piece_bounds=np.searchsorted(step, np.arange(steps + 1)),
        piece_row=pieces.row - row_bounds[step],
        column=pieces.column,
        size=pieces.size,
        array=pieces.array,
        offset=offset,
        block=block,
        blocks=blocks,
        block_bounds=block_bounds,
        last_use=last_use,
    )


def stored_blocks(
    sources: Sequence[RowSource], space: BlockSpace, rows: Rows
) -> tuple[Int64[np.ndarray, " u"], Int64[np.ndarray, " u"]]:
    """Which blocks rows lie in: for each use the row, as its place in ``rows`` (ascending), and the block."""
    pieces = _within_blocks(_pieces(sources, space, rows.source, rows.row), space)
    return pieces.row, space.first_block[pieces.array] + pieces.start // space.chunk[pieces.array]


def _pieces(sources: Sequence[RowSource], space: BlockSpace, source: np.ndarray, row: np.ndarray) -> Pieces:
    """Pieces of rows of any sources, ordered by row and column; arrays are numbered as in the block space."""
    if len(sources) == 1 or row.size == 0:  # a host may hold nothing but padding
        return sources[0].pieces(row)
    found: list[Pieces] = []
    for number in np.unique(source).tolist():
        here = np.flatnonzero(source == number)
        own = sources[number].pieces(row[here])
        found.append(own._replace(row=here[own.row], array=own.array + space.first_array[number]))
    joined = Pieces(*(np.concatenate(field) for field in zip(*found, strict=True)))
    order = np.argsort(joined.row, kind="stable")
    return Pieces(*(field[order] for field in joined))


def _within_blocks(pieces: Pieces, space: BlockSpace) -> Pieces:
    """Cuts pieces where blocks end, so that each lies within one."""
    chunk = space.chunk[pieces.array]
    first = pieces.start // chunk
    count = (pieces.start + pieces.size - 1) // chunk - first + 1
    if count.max(initial=1) == 1:
        return pieces
    row, column, array, start, size, chunk, first = (np.repeat(x, count) for x in (*pieces, chunk, first))
    nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
    begin = np.maximum(start, (first + nth) * chunk)
    end = np.minimum(start + size, (first + nth + 1) * chunk)
    return Pieces(row, column + begin - start, array, begin, end - begin)


def _local_cut(
    placement: Placement, sizes: np.ndarray, valid: np.ndarray
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " steps1"]]:
    """Positions, among all valid rows of the window, of the rows that this process holds; and each step's bounds."""
    first = np.cumsum(valid) - valid
    kept: list[np.ndarray] = []
    for size, count, at in zip(sizes.tolist(), valid.tolist(), first.tolist(), strict=True):
        local = placement.local_rows(size)
        kept.append(local[: np.searchsorted(local, count)] + at)
    bounds = np.concatenate([[0], np.cumsum([k.size for k in kept])])
    return np.concatenate(kept), bounds


def _by_first_use(
    used: np.ndarray, step: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct blocks in order of first use; each use as an index into them; bounds by step; step of last use."""
    distinct, first, inverse = np.unique(used, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    last_use = np.zeros(order.size, np.int64)
    last_use[rank[inverse]] = step  # steps ascend: the last one written stays
    return distinct[order], rank[inverse], np.searchsorted(step[first[order]], np.arange(steps + 1)), last_use
