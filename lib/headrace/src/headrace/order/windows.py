"""Rows of stores of several parts, numbered so that blocks never lie across two parts.

:class:`Windows` are rows over the token streams of parts: which part a row lies in, and where it begins there.

Without blocks, rows are consecutive windows over each part. With blocks of so many tokens, rows lie inside blocks: full
blocks of all parts come first, in order, then the ends of all parts. Where rows fill blocks exactly this is the
numbering of :class:`BlockAligned`; and because a block is a fixed range of tokens, rows of
another length inside the same blocks cover the same tokens.

:class:`BlockAligned` numbers rows that exist. A shuffle works on blocks of ``b`` consecutive rows: if a part did not
hold a multiple of ``b`` rows, every block after it would straddle two stored chunks, and each chunk be read twice.

Invariant: rows never overlap and never cross a part. Price: one search among the parts, 0.05 us a row.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, check_at_least
from headrace.order.order import Order


class Windows:
    """Rows of ``seq_len`` tokens over parts.

    Args:
        part_tokens: Tokens of each part.
        seq_len: Tokens of a row, at least 1.
        block_tokens: Tokens of a block, at least ``seq_len``; None: rows follow each other over the whole part.

    Attributes:
        rows_of_part: int64: rows of each part.
        num_rows: Rows of all parts.
        num_blocks: Full blocks of all parts, the first rows of all; 0 without blocks.
        rows_per_block: Rows of a full block; 1 without blocks.

    Raises:
        ConfigError: a row is longer than a block.

    Example:
        >>> Windows(np.array([10, 7]), 3).locate(np.arange(5))  # 0 3 6, then 0 3 of the second part
        (array([0, 0, 0, 1, 1]), array([0, 3, 6, 0, 3]))
        >>> Windows(np.array([10, 7]), 2, block_tokens=4).locate(np.arange(8))  # blocks, then what is left of the parts
        (array([0, 0, 0, 0, 1, 1, 0, 1]), array([0, 2, 4, 6, 0, 2, 8, 4]))
    """

    def __init__(self, part_tokens: Int64[np.ndarray, " p"], seq_len: int, block_tokens: int | None = None) -> None:
        part_tokens = np.asarray(part_tokens, np.int64)
        block = seq_len if block_tokens is None else block_tokens
        if block < seq_len:
            raise ConfigError(
                f"is shorter than a row of {seq_len} tokens",
                field="block_tokens",
                value=block_tokens,
                cure=f"Give at least {seq_len}.",
            )
        self.seq_len, self.block_tokens = seq_len, block_tokens
        self._part_tokens = part_tokens
        self.rows_per_block = block // seq_len
        self._block = block
        blocks = part_tokens // block  # np.divmod takes five times as long
        # Without blocks, what is left of a part fills no row.
        ends = [] if block_tokens is None else [(part_tokens - blocks * block) // seq_len]
        rows = np.concatenate([blocks * self.rows_per_block, *ends])
        self.num_blocks = 0 if block_tokens is None else int(blocks.sum())
        self.num_rows = int(rows.sum())
        self.rows_of_part = rows.reshape(2, -1).sum(axis=0) if ends else rows
        part = np.flatnonzero(rows)  # stretches of rows: of full blocks by part, then of ends by part
        self._first_row = (np.cumsum(rows) - rows)[part]
        first_end = int(np.searchsorted(part, part_tokens.size))
        part[first_end:] -= part_tokens.size
        self._part, self._offset = part, np.zeros_like(part)
        self._offset[first_end:] = blocks[part[first_end:]] * block

    def locate(self, rows: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Part of each row, and its first token there. Rows are not checked."""
        stretch = np.searchsorted(self._first_row, rows, side="right") - 1
        nth = rows - self._first_row[stretch]
        if self.rows_per_block == 1:
            return self._part[stretch], self._offset[stretch] + nth * self._block
        block, offset = np.divmod(nth, self.rows_per_block)
        return self._part[stretch], self._offset[stretch] + block * self._block + offset * self.seq_len

    def block_behind(self, row: int, block_tokens: int) -> int:
        """The first block of so many tokens behind the first ``row`` rows: how many blocks they reach into, or pass by.

        Full blocks of all parts count, in order; see the module. With blocks of its own, the size must be theirs.

        Example:
            >>> rows = Windows(np.array([10, 7, 9]), 2)  # blocks of 4: 2 in the first part, 1 in the second, 2
            >>> [rows.block_behind(row, 4) for row in (0, 1, 2, 4, 5, 6, 8, 12)]
            [0, 1, 1, 2, 2, 3, 3, 5]
        """
        if self.block_tokens is not None:
            return min(-(-row // self.rows_per_block), self.num_blocks)
        blocks = self._part_tokens // block_tokens
        rows = np.cumsum(self.rows_of_part)
        part = int(np.searchsorted(rows, row, side="right"))
        earlier_blocks = int(blocks[:part].sum())
        if part == blocks.size:
            return earlier_blocks
        inside = row - int(rows[part] - self.rows_of_part[part])
        return earlier_blocks + min(-(-inside * self.seq_len // block_tokens), int(blocks[part]))


class BlockAligned(Order):
    """Bijection that lists the full blocks (of ``block`` rows) of all parts in order, then the tails of all in order.

    Raises:
        ConfigError: ``block`` below 1.

    Example:
        >>> BlockAligned(np.array([5, 3]), 2)(np.arange(8)).tolist()
        [0, 1, 2, 3, 5, 6, 4, 7]
    """

    bijective = True
    described = ("length", "block")  # the rows of the parts follow from the cache, which has a fingerprint of its own

    def __init__(self, part_rows: Int64[np.ndarray, " p"], block: int) -> None:
        part_rows = np.asarray(part_rows, np.int64)
        super().__init__(int(part_rows.sum()), int(part_rows.sum()))
        check_at_least("io_block_size", block, cure="Count in examples.")
        self.block = block
        self._part_start = np.cumsum(part_rows) - part_rows
        self._rows = Windows(part_rows, 1, block)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        if self._part_start.size <= 1:
            return i
        part, row = self._rows.locate(i)
        return self._part_start[part] + row
