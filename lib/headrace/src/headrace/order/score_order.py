"""``ScoreOrder``: rows by score, in steps; within a step, shuffled.

A curriculum: an epoch begins with the rows of the lowest scores (or the highest), and ends with the
others. In full it would read a block for each row, since neighbours in score lie anywhere. So:

1. Rows are sorted by score, and cut into equally many per step.
2. The rows of a step are numbered as they are stored. Where scores lie anywhere, about one row in
   ``steps`` of a block is among them, so ``block`` of these numbers lie in ``steps`` blocks.
3. These numbers are shuffled by :class:`~headrace.order.block_shuffle.BlockShuffle`, another way in
   each epoch and step.

So each step reads about every block once, and an epoch ``steps`` times; fewer, if the store has
rows of like scores together.

Price: 8 bytes a row.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from headrace.order.block_shuffle import BlockShuffle
from headrace.order.order import OpenWindow, Order
from headrace.order.seeds import derive


class ScoreOrder(Order):
    """Rows by score, in steps, each shuffled in itself.

    Args:
        scores: A number for each row.
        steps: In how many steps; at most one for each row.
        descending: Whether the highest scores come first.
        block: Rows of a stored block.
        open_blocks: Blocks that are mixed together.
        seed: Integer seed.

    Attributes:
        rows_of_steps: The rows of the first step as they are stored, then those of the second, ...

    Example:
        >>> scores = np.array([5.0, 1.0, 4.0, 0.0, 3.0, 2.0])
        >>> order = ScoreOrder(scores, steps=2, block=1, open_blocks=4, seed=0)
        >>> rows = order(np.arange(6))
        >>> sorted(rows[:3].tolist()), sorted(rows[3:].tolist())
        ([1, 3, 5], [0, 2, 4])
    """

    bijective = reorders = True
    kind = "score"
    described = ("length", "steps", "io_block_size", "open_blocks", "seed", "digest")

    def __init__(
        self,
        scores: Float64[np.ndarray, " rows"],
        *,
        steps: int,
        block: int,
        open_blocks: int,
        seed: int,
        descending: bool = False,
    ) -> None:
        super().__init__(scores.size, scores.size)
        self.steps = min(steps, max(scores.size, 1))
        self.io_block_size = block
        self.open_blocks = open_blocks
        self.seed = seed
        self._first = np.arange(self.steps + 1) * scores.size // self.steps
        by_score = np.argsort(-scores if descending else scores, kind="stable")
        step = np.repeat(np.arange(self.steps), np.diff(self._first))
        self.rows_of_steps: Int64[np.ndarray, " rows"] = by_score[np.lexsort((by_score, step))]
        changes = (np.diff(step) != 0) | (np.diff(self.rows_of_steps // block) != 0)
        blocks = -(-max(scores.size, 1) // block)
        self.block_reads = (np.count_nonzero(changes) + 1) / blocks
        self._mixed_together = max(open_blocks // self.steps, 1)
        self._within: dict[int, BlockShuffle] = {}  # of the steps that were asked for

    @cached_property
    def digest(self) -> str:
        """Digest of the rows of all steps, which follow from the scores."""
        return hashlib.sha256(self.rows_of_steps.astype("<i8").tobytes()).hexdigest()

    def open_window(self) -> OpenWindow:
        blocks = self._mixed_together * self.steps
        return OpenWindow(blocks, min(blocks * self.io_block_size, self.length))

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        step = np.searchsorted(self._first, i, side="right") - 1
        number_in_step = i - self._first[step]
        for k in np.unique(step).tolist():
            of_step = step == k
            number_in_step[of_step] = self._shuffle(k).at(number_in_step[of_step], epoch[of_step])
        return self.rows_of_steps[self._first[step] + number_in_step]

    def _shuffle(self, step: int) -> BlockShuffle:
        if step not in self._within:
            self._within[step] = BlockShuffle(
                int(self._first[step + 1] - self._first[step]),
                io_block_size=self.io_block_size,
                window_blocks=self._mixed_together,
                seed=derive(self.seed, "score", step),
            )
        return self._within[step]
