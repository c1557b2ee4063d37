"""Context phases: the length of rows changes at a step, and each source continues with what no row
has touched yet.

This is possible because blocks are ranges of *tokens*, the same in all phases, and rows are cut
within blocks. An order draws rows from many blocks at a time. When the length changes, the rest of
the epoch is delivered in two parts:

1. The blocks that no row has touched: a new shuffle covers them, with rows of the new length.
2. What was not drawn of the blocks that were touched, and of the ends of stored arrays that fill no
   block: a stream of tokens with gaps, cut into rows of the new length, which continue across the
   gaps.

Later epochs are ordinary ones.

Invariants: no token occurs twice in an epoch, whatever the phases, and all occur but the few that
cannot fill a row, which are counted; phases before a change do not depend on it. Price, once per
phase: a table of two ranges per strand, and 24 bytes and 3 us for each row in part 2: a braid's
open blocks, at most two per strand, a window of a block shuffle, or all that a full shuffle has not
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import ConfigError
from headrace.order.intervals import Intervals
from headrace.order.order import Order, Slice
from headrace.order.permutation import INVERSES, PERMUTATIONS

MAX_UNFILLED = 0.01
"""Share of a block that may be left unfilled by rows of any phase, if a larger block avoids it."""
_LARGEST_BLOCK = 16
_SCAN = 1 << 16  # positions that are looked at together


@dataclass(frozen=True)
class PhaseChange:
    """The effect of a change of length on one component.

    Attributes:
        step: First step of the new length.
        component: Name of the component.
        seq_len: New length.
        epoch: Epoch in which the change occurred.
        drawn: Examples that were drawn from the component before, in the whole run.
        left_blocks: Blocks of the epoch that no row had touched; the phase begins with them.
        block_tokens: Tokens of a block.
        left_rows: Rows of the new length that what is left of touched blocks fills; they follow
            these blocks.
        skipped_tokens: Tokens of this epoch that fill no row of the new length, less those that
            filled none of the old one: less than a row of what is left, and what rows do not fill
            of blocks.
    """

    step: int
    component: str
    seq_len: int
    epoch: int
    drawn: int
    left_blocks: int
    block_tokens: int
    left_rows: int
    skipped_tokens: int


def phase_block(chunk: int, lengths: Sequence[int], rows: int | None = None) -> int:
    """Tokens of the blocks of all phases, from those of a stored chunk and the row lengths of the
    phases.

    As many whole rows of the first phase as a stored chunk holds, so that the first phase is what
    it would be alone; or the smallest multiple of it that holds a row of each phase and leaves
    hardly anything of a block unfilled; or ``rows`` rows of the first phase, if the user says so.

    Raises:
        ConfigError: the user's block does not hold a row of each phase.

    Example:
        >>> (
        ...     phase_block(65_536, [4096, 32_768]),
        ...     phase_block(65_536, [4096, 131_072]),
        ...     phase_block(1000, [300, 450]),
        ... )
        (65536, 131072, 900)
    """
    longest = max(lengths)
    if rows is not None:
        if rows * lengths[0] < longest:
            problem = (
                f"holds {rows * lengths[0]} tokens, less than the {longest} of the longest row"
            )
            cure = (
                f"Give at least {-(-longest // lengths[0])} (rows of the first phase), or leave it"
                " out."
            )
            raise ConfigError(problem, field="io_block_size", value=rows, cure=cure)
        return rows * lengths[0]
    unit = max(chunk // lengths[0], 1) * lengths[0]
    least = -(-longest // unit)
    sizes = np.arange(least, _LARGEST_BLOCK * least + 1) * unit
    unfilled = np.max([sizes % length / sizes for length in lengths], axis=0)
    good = np.flatnonzero(unfilled <= MAX_UNFILLED)
    return int(sizes[good[0] if good.size else unfilled.argmin()])


@runtime_checkable
class BlockOrder(Protocol):
    """An order that permutes blocks and keeps some of them open at a time. Blocks are numbered in
    the order's sequence (*virtual*) and in the store.
    """

    io_block_size: int

    def touched_blocks(self, drawn: int, epoch: int) -> Intervals:
        """Virtual blocks with any of the rows at the first ``drawn`` positions of an epoch."""
        ...

    def block_permutation(self, epoch: int) -> tuple[str, int, int]:
        """Family, length and key of the permutation that takes virtual blocks to stored ones."""
        ...


def untouched_blocks(
    order: Order, *, drawn: int, epoch: int, blocks: int, block_behind: Callable[[int], int]
) -> Order:
    """Map onto the blocks among ``range(blocks)`` that an order's first draws leave whole, in the
    order's own sequence.

    Args:
        order: A shuffle; one that permutes blocks does so over rows in blocks, full ones first.
        drawn: Number of positions of the epoch that were drawn.
        epoch: The epoch.
        blocks: Number of full blocks; later rows are in no block.
        block_behind: For orders without blocks: the first full block after a number of rows.

    Example:
        >>> from headrace.order.block_shuffle import BlockShuffle
        >>> order = BlockShuffle(100, io_block_size=10, window_blocks=2, seed=0)
        >>> left = untouched_blocks(
        ...     order, drawn=55, epoch=0, blocks=10, block_behind=lambda row: -(-row // 10)
        ... )
        >>> touched = set((order(np.arange(60)) // 10).tolist())
        >>> sorted(touched | set(left(np.arange(len(left))).tolist())) == list(range(10)), len(left)
        (True, 4)
    """
    if isinstance(order, BlockOrder):
        return UntouchedBlocks(order, drawn=drawn, epoch=epoch, blocks=blocks)
    return Slice(blocks, min(block_behind(order.touched_rows(drawn)), blocks))


def rows_in_touched_blocks(
    order: Order,
    *,
    drawn: int,
    epoch: int,
    block: int,
    blocks: int,
    rows_behind: Callable[[int], Int64[np.ndarray, " m"]],
) -> Int64[np.ndarray, " n"]:
    """The rows that an order's first draws leave of the blocks that they touch, and those that are
    in no full block: all that is left of the epoch but the blocks of :func:`untouched_blocks`.

    Args:
        order: A shuffle, as for :func:`untouched_blocks`.
        drawn: Number of positions of the epoch that were drawn.
        epoch: The epoch.
        block: Rows of a block.
        blocks: Number of full blocks; later rows are in no block.
        rows_behind: For orders without blocks: the rows behind a number of rows that are in no
            untouched block.

    Example:
        >>> from headrace.order.block_shuffle import BlockShuffle
        >>> order = BlockShuffle(102, io_block_size=10, window_blocks=2, seed=0)
        >>> sizes = {"drawn": 55, "epoch": 0, "blocks": 10}
        >>> left = untouched_blocks(order, **sizes, block_behind=lambda row: -(-row // 10))
        >>> rows = rows_in_touched_blocks(
        ...     order, **sizes, block=10, rows_behind=lambda row: np.arange(row, 102)
        ... )
        >>> len(left) * 10 + rows.size == 102 - 55, np.intersect1d(rows, order(np.arange(55))).size
        (True, 0)
    """
    if not isinstance(order, BlockOrder):
        touched = order.touched_rows(drawn)
        positions = np.arange(drawn, touched)
        open_rows = order.at(positions, np.full_like(positions, epoch))
        return np.sort(np.concatenate([open_rows, rows_behind(touched)]))
    n = len(order)
    family, of, key = order.block_permutation(epoch)
    touched_blocks = order.touched_blocks(drawn, epoch)

    def is_touched(row: Int64[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        number = row // block
        in_full = number < of
        virtual = np.full_like(row, of)  # the partial block comes last
        if of:
            virtual[in_full] = INVERSES[family](number[in_full], of, key)
        return touched_blocks.has(virtual)

    # Rows of no full block, as the order counts blocks, that are in blocks which nothing has
    # touched
    others = np.arange(blocks * block, n)
    untouched = others[~is_touched(others)]
    # All other rows are in touched blocks. A shuffle goes through its blocks one by one, so most of
    # them are near the position that was reached; and where strands begin within a block, the rest
    # of it is drawn last
    touched_rows = touched_blocks.total * block
    if touched_blocks.has(np.array([of]))[0]:
        touched_rows -= (of + 1) * block - n
    missing = touched_rows - drawn
    parts = [untouched]
    low = drawn
    high = n
    step = max(missing, _SCAN)
    while missing > 0 and low < high:
        middle = min(low + step, high)
        last_start = max(high - step, middle)
        positions = np.concatenate([np.arange(low, middle), np.arange(last_start, high)])
        rows = order.at(positions, np.full_like(positions, epoch))
        rows = rows[is_touched(rows)]
        parts.append(rows)
        missing -= rows.size
        low = middle
        high = last_start
    return np.sort(np.concatenate(parts))


class UntouchedBlocks(Order):
    """:func:`untouched_blocks` of an order that permutes blocks."""

    described = ("order", "drawn", "epoch", "rows")

    def __init__(self, order: BlockOrder, *, drawn: int, epoch: int, blocks: int) -> None:
        self.order = order
        self.drawn = drawn
        self.epoch = epoch
        self._family, of, self._key = order.block_permutation(epoch)
        # The sequence also holds blocks of rows that lie in no block, if they are many.
        others = (
            INVERSES[self._family](np.arange(blocks, of), of, self._key)
            if of > blocks
            else np.zeros(0, np.int64)
        )
        touched = Intervals.union(
            [order.touched_blocks(drawn, epoch), Intervals.of_numbers(others)]
        )
        self._left = touched.complement(of)
        self._of = of
        super().__init__(self._left.total, blocks)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return PERMUTATIONS[self._family](self._left.numbers(i), self._of, self._key)


class RowsOfBlocks(Order):
    """The rows of the blocks that an order returns, block by block (``block`` rows each); there are
    ``n`` rows.

    Example:
        >>> RowsOfBlocks(Slice(5, 3), block=2, n=11)(np.arange(4)).tolist()
        [6, 7, 8, 9]
    """

    described = ("blocks", "block", "rows")

    def __init__(self, blocks: Order, *, block: int, n: int) -> None:
        if blocks.rows * block > n:
            raise ConfigError(
                f"are more than the {n} rows", field="blocks", value=blocks.rows * block
            )
        super().__init__(len(blocks) * block, n)
        self.blocks = blocks
        self.block = block

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        number, offset = np.divmod(i, self.block)
        return self.blocks.at(number, epoch) * self.block + offset
