"""Rows of stores of several parts, numbered so that blocks never cross two parts.

:class:`Windows` are rows over the token streams of parts: the part of each row, and where it begins
there. Without blocks, rows are consecutive windows over each part. With blocks of a number of
tokens, rows stay within blocks: full blocks of all parts come first, in order, then the ends of all
parts. If rows fill blocks exactly, this is the numbering of :class:`BlockAligned`. Because a block
is a fixed range of tokens, rows of another length in the same blocks cover the same tokens.

:class:`BlockAligned` numbers existing rows. A shuffle works on blocks of ``b`` consecutive rows: if
a part did not have a multiple of ``b`` rows, every later block would straddle two stored chunks,
and each chunk would be read twice.

Invariant: rows never overlap and never cross a part. Price: one search among the parts, 0.05 us per
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, check_at_least
from headrace.order.intervals import starts
from headrace.order.order import Order


class Windows:
    """Rows of ``seq_len`` tokens over parts.

    Args:
        part_tokens: Tokens of each part.
        seq_len: Tokens of a row, at least 1.
        block_tokens: Tokens of a block, at least ``seq_len``; None: rows are consecutive over the
            whole part.

    Attributes:
        num_rows: Rows of all parts.
        num_blocks: Full blocks of all parts, whose rows come first; 0 without blocks.
        rows_per_block: Rows of a full block; 1 without blocks.
        block_size: Tokens of a block; of a row without blocks.
        block_rows: Rows of all full blocks.
        first_block: First block of each part, and one past the last.
        first_end: The same for the rows in what is left of the parts; None without blocks.

    Raises:
        ConfigError: a row is longer than a block.

    Example:
        >>> Windows(np.array([10, 7]), 3).locate(np.arange(5))  # 0 3 6, then 0 3 of the second part
        (array([0, 0, 0, 1, 1]), array([0, 3, 6, 0, 3]))
        >>> Windows(np.array([10, 7]), 2, block_tokens=4).locate(
        ...     np.arange(8)
        ... )  # blocks, then what is left of the parts
        (array([0, 0, 0, 0, 1, 1, 0, 1]), array([0, 2, 4, 6, 0, 2, 8, 4]))
    """

    def __init__(
        self, part_tokens: Int64[np.ndarray, " p"], seq_len: int, block_tokens: int | None = None
    ) -> None:
        part_tokens = np.asarray(part_tokens, np.int64)
        block = seq_len if block_tokens is None else block_tokens
        if block < seq_len:
            raise ConfigError(
                f"is shorter than a row of {seq_len} tokens",
                field="block_tokens",
                value=block_tokens,
                cure=f"Give at least {seq_len}.",
            )
        self.seq_len = seq_len
        self.block_tokens = block_tokens
        self._part_tokens = part_tokens
        self.rows_per_block = block // seq_len
        self.block_size = block
        blocks = part_tokens // block  # np.divmod takes five times as long
        self.first_block = starts(blocks)
        self.num_blocks = 0 if block_tokens is None else int(self.first_block[-1])
        self.block_rows = int(self.first_block[-1]) * self.rows_per_block
        # Without blocks, what is left of a part fills no row.
        self.first_end = (
            None if block_tokens is None else starts((part_tokens - blocks * block) // seq_len)
        )
        self.num_rows = self.block_rows + (0 if self.first_end is None else int(self.first_end[-1]))

    @property
    def rows_of_part(self) -> Int64[np.ndarray, " p"]:
        """Rows of each part."""
        rows = np.diff(self.first_block)
        return (
            rows if self.first_end is None else rows * self.rows_per_block + np.diff(self.first_end)
        )

    @cached_property
    def _table(self) -> WindowsTable:
        return WindowsTable([self])

    def locate(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Part of each row, and its first token there. Rows are not checked."""
        return self._table.locate(0, rows)

    def block_behind(self, row: int, block_tokens: int) -> int:
        """The first block after the first ``row`` rows: the number of blocks that they touch or
        pass.

        Counts full blocks of all parts, in order; see the module. If the windows have blocks, the
        size must be theirs.

        Example:
            >>> rows = Windows(
            ...     np.array([10, 7, 9]), 2
            ... )  # blocks of 4: 2 in the first part, 1 in the second, 2
            >>> [rows.block_behind(row, 4) for row in (0, 1, 2, 4, 5, 6, 8, 12)]
            [0, 1, 1, 2, 2, 3, 3, 5]
        """
        if self.block_tokens is not None:
            return min(-(-row // self.rows_per_block), self.num_blocks)
        blocks = self._part_tokens // block_tokens
        part = int(np.searchsorted(self.first_block[1:], row, side="right"))
        earlier_blocks = int(blocks[:part].sum())
        if part == blocks.size:
            return earlier_blocks
        inside = row - int(self.first_block[part])
        return earlier_blocks + min(-(-inside * self.seq_len // block_tokens), int(blocks[part]))

    def rows_behind(self, row: int, block_tokens: int) -> Int64[np.ndarray, " n"]:
        """The rows from ``row`` on that are in none of the full blocks from :meth:`block_behind`
        on, rising.

        Example:
            >>> rows = Windows(np.array([10, 7, 9]), 2)  # blocks of 4; rows 4 and 7 are in none
            >>> [rows.rows_behind(row, 4).tolist() for row in (0, 1, 5, 9)]
            [[4, 7], [1, 4, 7], [7], [9]]
        """
        if self.block_tokens is not None:
            block = self.block_behind(row, block_tokens)
            return rows_outside(row, block, self.num_blocks, self.rows_per_block, self.num_rows)
        rows_per_block = block_tokens // self.seq_len
        first_row = self.first_block[:-1]
        end = self.first_block[1:]
        blocks_end = first_row + self._part_tokens // block_tokens * rows_per_block
        # The block that the row is in, and what is left of each part behind its blocks
        part = int(np.searchsorted(end, row, side="right"))
        started = np.zeros(0, np.int64)
        if part < end.size:
            inside = row - int(first_row[part])
            block_end = int(first_row[part]) + -(-inside // rows_per_block) * rows_per_block
            started = np.arange(row, min(block_end, int(blocks_end[part])))
        begin = np.maximum(blocks_end, row)
        count = np.maximum(end - begin, 0)
        ends = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        return np.concatenate([started, ends])


def rows_outside(
    row: int, block: int, blocks: int, rows_per_block: int, rows: int
) -> Int64[np.ndarray, " n"]:
    """The rows ``row .. rows`` that are in none of the blocks ``block .. blocks``; full blocks come
    first.

    Example:
        >>> rows_outside(3, block=2, blocks=4, rows_per_block=2, rows=10).tolist()
        [3, 8, 9]
    """
    started = np.arange(row, block * rows_per_block)
    return np.concatenate([started, np.arange(max(row, blocks * rows_per_block), rows)])


class WindowsTable:
    """The windows of several sources, searched in one pass: the cost does not depend on their
    number.

    Parts are numbered through all sources.

    Example:
        >>> table = WindowsTable(
        ...     [Windows(np.array([10, 7]), 3), Windows(np.array([8]), 2, block_tokens=4)]
        ... )
        >>> table.locate(np.array([1, 0, 1, 0]), np.array([1, 3, 3, 2]))
        (array([2, 1, 2, 0]), array([2, 0, 6, 6]))
    """

    def __init__(self, windows: Sequence[Windows]) -> None:
        self._blocks = _JoinedStarts([w.first_block for w in windows])
        ends = [
            np.zeros_like(w.first_block) if w.first_end is None else w.first_end for w in windows
        ]
        self._ends = _JoinedStarts(ends) if any(w.first_end is not None for w in windows) else None
        sizes = [(w.rows_per_block, w.block_size, w.seq_len, w.block_rows) for w in windows]
        columns = np.array(sizes, np.int64).reshape(-1, 4).T
        self._rows_per_block, self._block_size, self._seq_len, self._block_rows = columns

    def locate(
        self, source: Int64[np.ndarray, " n"] | int, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Part of each row of each source, or of one source, and its first token there. Rows are
        not checked.
        """
        rows_per_block = self._rows_per_block[source]
        block = rows // rows_per_block
        part, first = self._blocks.find(source, block)
        start = (block - first) * self._block_size[source] + (
            rows - block * rows_per_block
        ) * self._seq_len[source]
        if self._ends is None or not (in_end := rows >= self._block_rows[source]).any():
            return part, start
        of = np.broadcast_to(source, rows.shape)[in_end]
        end = (rows - self._block_rows[source])[in_end]
        part[in_end], first = self._ends.find(of, end)
        start[in_end] = (
            self._blocks.size_of(part[in_end]) * self._block_size[of]
            + (end - first) * self._seq_len[of]
        )
        return part, start


class _JoinedStarts:
    """The :func:`~headrace.order.intervals.starts` of the parts of several sources, one after the
    other.
    """

    def __init__(self, first: Sequence[Int64[np.ndarray, " p1"]]) -> None:
        ends = starts(np.array([int(of_source[-1]) for of_source in first], np.int64))
        self._base = ends[:-1]
        self._first = first[0]
        if len(first) > 1:
            joined = [
                of_source[:-1] + base
                for of_source, base in zip(first, self._base.tolist(), strict=True)
            ]
            self._first = np.concatenate([*joined, ends[-1:]])

    def find(self, source: np.ndarray | int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part at places of sources, and where it begins in its source."""
        base = self._base[source]
        part = np.searchsorted(self._first, base + places, side="right") - 1
        return part, self._first[part] - base

    def size_of(self, part: np.ndarray) -> np.ndarray:
        """The size of parts."""
        return self._first[part + 1] - self._first[part]


class BlockAligned(Order):
    """A bijection that lists the full blocks (of ``block`` rows) of all parts in order, then the
    tails of all parts.

    Raises:
        ConfigError: ``block`` below 1.

    Example:
        >>> BlockAligned(np.array([5, 3]), 2)(np.arange(8)).tolist()
        [0, 1, 2, 3, 5, 6, 4, 7]
    """

    bijective = True
    # The rows of the parts follow from the cache, which has its own fingerprint.
    described = (
        "length",
        "block",
    )

    def __init__(self, part_rows: Int64[np.ndarray, " p"], block: int) -> None:
        part_rows = np.asarray(part_rows, np.int64)
        super().__init__(int(part_rows.sum()), int(part_rows.sum()))
        check_at_least("io_block_size", block, cure="Count in examples.")
        self.block = block
        self._part_start = starts(part_rows)
        self._rows = Windows(part_rows, 1, block)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        if self._part_start.size <= 2:
            return i
        part, row = self._rows.locate(i)
        return self._part_start[part] + row
