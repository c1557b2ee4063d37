"""The plan of consecutive steps: which stored blocks this host needs, and for which rows.

How a window of steps is planned (:func:`plan_window`):

1. The rows of all hosts, step by step: indices of the run, mapped to (source, row), and each batch
   sorted by locality (:class:`RunRows`). The order is that of the whole batch, so it does not
   depend on the number of hosts.
2. With an exchange, who reads which row for whom (:mod:`headrace.feed.exchange`).
3. Cut to the rows that this process reads.
4. Each row as *pieces* of stored arrays; cut to the columns that this process holds, and where
   stored blocks end.
5. The block of each piece, and its offset in it. The blocks that each step uses are what decides
   which ones are fetched (:mod:`headrace.order.residency`).

With pencil and paper: rows of 4 tokens, blocks of 6, one array. Row 1 has tokens 4 to 7, so two
pieces: 2 tokens from offset 4 of block 0, and 2 from offset 0 of block 1. Row 2 has tokens 8 to 11,
one piece: 4 tokens from offset 2 of block 1. A step of these rows uses blocks 0 and 1.

Pure but for the exchange, which is told of each window once and in order: index maps and integer
arithmetic, no I/O. A handful of array operations plans a whole window of steps; a step costs well
under a microsecond per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from headrace.data.dataset import PlannedDataset, examples_of_steps
from headrace.data.rows import (
    BlockSpace,
    Pieces,
    Rows,
    ends_of,
    segments_of,
    without_padding,
)
from headrace.feed.exchange import Arranged, Look, RowExchange
from headrace.mix.schedule import BatchSchedule, RowOrder
from headrace.order.intervals import run_numbers
from headrace.order.residency import WINDOW_STEPS, WindowUses, window_uses

if TYPE_CHECKING:  # it imports jax, which a forecast does without
    from headrace.feed.placement import Placement


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """Rows of this host for the steps ``first_step .. first_step + steps``, and the blocks that
    hold them.

    Row arrays have an entry for each local row of all steps; step k has
    ``row_bounds[k]:row_bounds[k + 1]``. Piece arrays have one for each piece of those rows, within
    one block; step k has ``piece_bounds[k]:piece_bounds[k + 1]``.

    Attributes:
        row_elements: Elements of a row that this host holds; fewer than ``seq_len`` if hosts share
            sequences.
        batch_sizes: Global batch size of each step.
        array_sizes: Rows of the arrays that travel to the devices: those of the batch and, with an
            exchange, pools.
        origin: With an exchange, where the arrays hold each row of the batches that this host
            holds; see :class:`~headrace.feed.pooled_rows.PooledRows`.
        row_place: Place of each row among those of its step that this host reads; None: they are
            consecutive.
        sent: With an exchange, the number of rows of each step that this host reads for others.
        padded: Whether any batch has rows that hold no data.
        source: Source of each row.
        row: Number of each row within its source.
        piece_row: Row of each piece, counted from the step's first.
        column: Where each piece begins in its row, counted from the first element that this host
            holds.
        size: Elements of each piece.
        array: Array that contains each piece.
        start: First element of each piece in its array.
        offset: Elements from the start of its block to the start of each piece.
        block: Block of each piece, as an index into ``uses.blocks``, which has numbers of the
            :class:`~headrace.data.rows.BlockSpace`.
        whole: Whether every row is one piece.
        distinct: Number of distinct rows of each step.
        ranges: Number of runs of neighbours among them.
        segments: Lengths of the segments of each row; None: their sources do not know them.
        ends: Where documents end in each row, see :func:`~headrace.data.rows.ends_of`; None: rows
            are not divided.
    """

    first_step: int
    steps: int
    seq_len: int
    row_elements: int
    batch_sizes: Int64[np.ndarray, " steps"]
    array_sizes: Int64[np.ndarray, " steps"]
    origin: Sequence[Int32[np.ndarray, " l"]] | None
    row_place: Int64[np.ndarray, " n"] | None
    sent: Int64[np.ndarray, " steps"] | None
    padded: bool
    row_bounds: Int64[np.ndarray, " steps1"]
    source: Int64[np.ndarray, " n"]
    row: Int64[np.ndarray, " n"]
    piece_bounds: Int64[np.ndarray, " steps1"]
    piece_row: Int64[np.ndarray, " p"]
    column: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]
    array: Int64[np.ndarray, " p"]
    start: Int64[np.ndarray, " p"]
    offset: Int64[np.ndarray, " p"]
    block: Int64[np.ndarray, " p"]
    uses: WindowUses
    whole: bool
    distinct: Int64[np.ndarray, " steps"]
    ranges: Int64[np.ndarray, " steps"]
    segments: Int32[np.ndarray, "n M"] | None
    ends: UInt8[np.ndarray, "n W"] | None


class GlobalRows(NamedTuple):
    """The rows of all hosts for a window of steps, in batch order."""

    dataset: PlannedDataset  # the dataset that serves these steps
    space: BlockSpace  # the stored blocks of the whole run
    steps: int  # fewer than requested if the length of rows changes within them
    sizes: Int64[np.ndarray, " steps"]
    valid: Int64[np.ndarray, " steps"]  # rows of each batch that hold data
    rows: Rows

    def blocks(self) -> tuple[Int64[np.ndarray, " u"], Int64[np.ndarray, " u"]]:
        """Which blocks hold the rows: for each use, the row, as an index into ``rows`` (ascending),
        and the block.
        """
        joined = self.dataset.joined_rows
        # With their padding: rows that have some lie within one chunk, so it adds no block
        stored = joined.pieces(self.rows.source, self.rows.row, self.space.first_array)
        pieces = _within_blocks(stored, self.space)
        return pieces.row, _blocks_of(pieces, self.space)[0]

    def look(self) -> Look:
        """What an exchange has to know of them."""
        everywhere = self.dataset.everywhere[self.rows.source]
        return Look(self.sizes, self.valid, self.rows.locality, self.blocks, everywhere)


@dataclass(frozen=True)
class RunRows:
    """The rows of all batches of a run, before it is decided which host reads them.

    Attributes:
        dataset: What is loaded.
        schedule: Its batch sizes.
        row_order: Unless it is ``"stream"``, each batch is ordered by locality, over the global
            batch, so that the order does not depend on the number of processes.
    """

    dataset: PlannedDataset
    schedule: BatchSchedule
    row_order: RowOrder

    def of_steps(self, first_step: int, steps: int) -> GlobalRows:
        """The rows of ``steps`` steps from ``first_step`` on, of fewer if their length changes."""
        served, until = self.dataset.at_step(first_step)
        steps = steps if until is None else min(steps, until - first_step)
        numbers = np.arange(first_step, first_step + steps)
        examples, valid = examples_of_steps(self.dataset, self.schedule, numbers)
        rows = served.locate(examples)
        if self.row_order == "locality":
            order = _by_locality(rows.locality, valid)
            rows = Rows(*(a[order] for a in rows))
        sizes = self.schedule.size_at(numbers)
        return GlobalRows(served, self.dataset.block_space, steps, sizes, valid, rows)

    def ahead(self, first_step: int) -> Iterator[Look]:
        """Windows of full length from a step on, as long as rows keep their length and there are
        any.
        """
        row_bytes = self.dataset.at_step(first_step)[0].row_bytes
        while True:
            window = self.of_steps(first_step, WINDOW_STEPS)
            if window.dataset.row_bytes != row_bytes or not window.valid.any():
                return
            yield window.look()
            first_step += window.steps

    def arranged(
        self, window: GlobalRows, first_step: int, exchange: RowExchange
    ) -> Arranged | None:
        """The rows of a window that begins at a step as hosts read them under ``exchange``; None:
        each host reads the rows that it holds.
        """
        ahead = partial(self.ahead, first_step)
        return exchange.arrange(window.look(), ahead, row_bytes=window.dataset.row_bytes)


def plan_window(
    run: RunRows,
    placement: Placement,
    first_step: int,
    steps: int,
    exchange: RowExchange | None = None,
) -> WindowPlan:
    """Plans ``steps`` steps from ``first_step`` on, fewer if the length of rows changes within
    them.

    The rows of a step are first ordered over the global batch, then cut to the rows that this
    process reads (those that it holds, unless there is an ``exchange``) and to the columns that it
    holds.
    """
    # 1. and 2. Rows of all hosts
    window = run.of_steps(first_step, steps)
    arranged = None if exchange is None else run.arranged(window, first_step, exchange)
    dataset, space, steps, sizes, valid, rows = window
    # 3. Rows of this process
    row_place = None
    if arranged is None:
        keep, row_bounds = _local_cut(placement, sizes, valid)
    else:
        keep, row_place, row_bounds = _cut_arranged(placement, arranged, valid)
    source, row = (rows.source, rows.row) if keep is None else (rows.source[keep], rows.row[keep])
    # 4. Pieces. Mostly every row is one, and then rows and pieces have the same bounds
    sources = dataset.sources
    seq_len = sources[0].row_elements
    first_column, last_column = placement.local_columns(seq_len)
    row_elements = last_column - first_column
    pieces = dataset.joined_rows.pieces(source, row, space.first_array)
    segments = segments_of(sources, source, row)
    if segments is not None and dataset.joined_rows.has_padding:
        pieces = without_padding(pieces, segments)
    if row_elements < seq_len:
        pieces = _within_columns(pieces, first_column, last_column)
    pieces = _within_blocks(pieces, space)
    is_whole = pieces.row.size == row.size and bool((pieces.size == row_elements).all())
    row_step = np.repeat(np.arange(steps), np.diff(row_bounds))
    step = row_step if is_whole else row_step[pieces.row]
    # 5. Blocks
    block, offset = _blocks_of(pieces, space)
    uses, index = window_uses(first_step, steps, block, step)
    distinct, ranges = _distinct_and_ranges(source, row, row_step, steps)
    return WindowPlan(
        first_step=first_step,
        steps=steps,
        seq_len=seq_len,
        row_elements=row_elements,
        batch_sizes=sizes,
        array_sizes=sizes if arranged is None else arranged.sizes,
        origin=None if arranged is None else _local_origin(placement, arranged, sizes),
        row_place=row_place,
        sent=None
        if arranged is None
        else np.bincount(row_step[arranged.sent[keep]], minlength=steps),
        padded=bool((valid < sizes).any()),
        row_bounds=row_bounds,
        source=source,
        row=row,
        piece_bounds=row_bounds if is_whole else np.searchsorted(step, np.arange(steps + 1)),
        piece_row=pieces.row - row_bounds[step] if row_place is None else row_place[pieces.row],
        column=pieces.column,
        size=pieces.size,
        array=pieces.array,
        start=pieces.start,
        offset=offset,
        block=index,
        uses=uses,
        whole=is_whole,
        distinct=distinct,
        ranges=ranges,
        segments=segments,
        ends=ends_of(sources, source, row),
    )


def _blocks_of(pieces: Pieces, space: BlockSpace) -> tuple[np.ndarray, np.ndarray]:
    """The number of each piece's block, and the elements from the start of the block to that of the
    piece.
    """
    chunk = space.chunk_of(pieces.array)
    number = pieces.start // chunk
    return space.first_block[pieces.array] + number, pieces.start - number * chunk


def _by_locality(locality: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The permutation that sorts rows by step and locality; ties stay in the order
    of the stream.
    """
    steps = valid.size
    if steps and (valid == valid[0]).all():  # a table, whose rows are sorted separately
        size = int(valid[0])
        first = np.arange(steps)[:, None] * size
        # Faster than a stable sort, and equal without ties.
        order = np.argsort(locality.reshape(steps, size), axis=1)
        ordered = locality[order + first]
        differs = ordered[:, 1:] != ordered[:, :-1]
        if not differs.all():
            rank = np.zeros_like(order)
            np.cumsum(differs, axis=1, out=rank[:, 1:])
            rank *= size
            # The same ranks, and ties by their place in the stream.
            order = np.sort(rank + order, axis=1) - rank
        return (order + first).ravel()
    return np.lexsort((locality, np.repeat(np.arange(steps), valid)))


def _within_columns(pieces: Pieces, first: int, last: int) -> Pieces:
    """Cuts pieces to the columns ``first .. last`` of their rows; the result counts columns from
    ``first``.
    """
    begin = np.maximum(pieces.column, first)
    size = np.minimum(pieces.column + pieces.size, last) - begin
    cut = Pieces(
        pieces.row, begin - first, pieces.array, pieces.start + begin - pieces.column, size
    )
    nonempty = np.flatnonzero(size > 0)
    return cut if nonempty.size == size.size else Pieces(*(field[nonempty] for field in cut))


def _within_blocks(pieces: Pieces, space: BlockSpace) -> Pieces:
    """Cuts pieces where blocks end, so that each is within one block."""
    chunk = space.chunk_of(pieces.array)
    # Blocks that each piece touches
    first = pieces.start // chunk
    count = (pieces.start + pieces.size - 1) // chunk - first + 1
    if count.max(initial=1) == 1:
        return pieces
    chunk = np.broadcast_to(chunk, first.shape)
    row, column, array, start, size, chunk, first = (
        np.repeat(x, count) for x in (*pieces, chunk, first)
    )
    # Each piece once for each of them, cut to the nth
    nth = run_numbers(0, count)
    begin = np.maximum(start, (first + nth) * chunk)
    end = np.minimum(start + size, (first + nth + 1) * chunk)
    return Pieces(row, column + begin - start, array, begin, end - begin)


def _local_cut(
    placement: Placement, sizes: np.ndarray, valid: np.ndarray
) -> tuple[Int64[np.ndarray, " n"] | None, Int64[np.ndarray, " steps1"]]:
    """Indices of this process's rows among the valid ones of the window (None: it has all), and
    each step's bounds.
    """
    first = np.cumsum(valid) - valid
    local_rows = {size: placement.local_rows(size) for size in np.unique(sizes).tolist()}
    if all(local.size == size for size, local in local_rows.items()):
        return None, np.append(first, valid.sum())
    if len(local_rows) == 1 and (valid == sizes).all():
        (local,) = local_rows.values()
        return (first[:, None] + local).ravel(), np.arange(valid.size + 1) * local.size
    cuts: list[np.ndarray] = []
    for size, count, at in zip(sizes.tolist(), valid.tolist(), first.tolist(), strict=True):
        local = local_rows[size]
        cuts.append(local[: np.searchsorted(local, count)] + at)
    bounds = np.concatenate([[0], np.cumsum([k.size for k in cuts])])
    return np.concatenate(cuts), bounds


def _cut_arranged(
    placement: Placement, arranged: Arranged, valid: np.ndarray
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " steps1"]]:
    """Which rows of the window this process reads, their places among its rows of each step, and
    each step's bounds.
    """
    local = np.empty(arranged.place.size, np.int64)
    size_of_row = np.repeat(arranged.sizes, valid)
    for size in np.unique(arranged.sizes).tolist():
        at = np.full(size, -1)
        rows = placement.local_rows(size)
        at[rows] = np.arange(rows.size)
        of_size = size_of_row == size
        local[of_size] = at[arranged.place[of_size]]
    keep = np.flatnonzero(local >= 0)
    return keep, local[keep], np.searchsorted(keep, np.append(0, np.cumsum(valid)))


def _local_origin(
    placement: Placement, arranged: Arranged, sizes: np.ndarray
) -> list[Int32[np.ndarray, " l"]]:
    """For each step, the origins of the batch rows that this process holds."""
    first = np.cumsum(sizes) - sizes
    return [
        arranged.origin[at + placement.local_rows(size)]
        for at, size in zip(first.tolist(), sizes.tolist(), strict=True)
    ]


def _distinct_and_ranges(
    source: np.ndarray, row: np.ndarray, step: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The number of distinct rows of each step, and of runs of neighbours among them."""
    # One more: the last row of a source is next to none of another.
    bits = int(row.max(initial=0)).bit_length() + 1
    number = source << bits | row
    wide = int(number.max(initial=0)).bit_length() + 1
    if wide + steps.bit_length() < 63:
        key = np.sort(step << wide | number)
        step = key >> wide
    else:
        order = np.lexsort((number, step))
        key = number[order]
        step = step[order]
    gap = np.diff(key, prepend=-2)
    gap[np.flatnonzero(np.diff(step, prepend=-1))] = 2  # the first row of a step starts a run
    return np.bincount(step[gap != 0], minlength=steps), np.bincount(step[gap > 1], minlength=steps)
