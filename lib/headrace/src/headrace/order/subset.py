"""A fixed part of a source: a number of its rows, the same in every epoch, as if the source were no
larger.

A run of a tenth of the tokens that reads a tenth of every source repeats each as often as the full
run will (simulated epoching); ``max_tokens``, by contrast, ends a source and never repeats it.

The subset consists of whole blocks, in the order of a keyed permutation of all blocks, and a part
of the last one: any exact number of rows in O(1) memory. A larger part of the same blocks contains
the smaller one.

With pencil and paper: 7 of 20 rows, in blocks of 3, seed 0. There are 6 full blocks, and the
permutation of the seed takes 0, 1, 2, 3, 4, 5 to 5, 1, 2, 3, 4, 0. Position 0 is in block 0 of the
subset, so in block 5 of the source, which has the rows 15, 16 and 17; position 3 is in block 1, row
3; position 6 is the first row of block 2, row 6. A subset of more than 18 rows takes what fills no
block, rows 18 and 19, last. (The example of :class:`Subset` has these rows.)

Invariant: the rows depend only on (rows, length, block, seed), not on shuffles, weights, epochs or
other sources. Price: one permutation per index, 0.1 us; whole stored chunks are read, as without a
subset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from headrace.errors import ConfigError, check_at_least, check_choice
from headrace.order.order import Order
from headrace.order.permutation import permute
from headrace.order.seeds import derive

SubsetBy: TypeAlias = Literal["blocks", "start"]
LEAST_BLOCKS = 64
"""A subset consists of at least this many blocks, which are smaller than a stored chunk if
necessary.
"""


@dataclass(frozen=True)
class SubsetConfig:
    """The config field ``subset``: the part of a component to train on; see the module.

    Attributes:
        fraction: Share of the component's rows, above 0 and at most 1; rounded down to whole rows.
        rows: Instead of ``fraction``: the number of rows.
        by: ``blocks``: stored chunks, selected by the seed, or parts of chunks if there would be
            fewer than 64; ``start``: the first rows as stored.
        seed: Seed of the selection only: runs with other seeds share their subset.

    Raises:
        ConfigError: a value is invalid.

    Example:
        >>> SubsetConfig(fraction=0.1).rows_of(1019)
        101
    """

    fraction: float | None = None
    rows: int | None = None
    by: SubsetBy = "blocks"
    seed: int = 0

    def __post_init__(self) -> None:
        derive(self.seed)
        if (self.fraction is None) == (self.rows is None):
            problem = "is missing, and so is rows" if self.rows is None else "is given beside rows"
            raise ConfigError(
                problem, field="fraction", cure="Give one of them, e.g. fraction: 0.1."
            )
        if self.fraction is not None and not 0 < self.fraction <= 1:
            problem = "must lie above 0 and be at most 1"
            raise ConfigError(problem, field="fraction", value=self.fraction, cure="E.g. 0.1.")
        check_at_least("rows", self.rows, cure="Count in rows of seq_len tokens.")
        check_choice("by", self.by, get_args(SubsetBy))

    def rows_of(self, length: int) -> int:
        """Number of rows in the subset of ``length`` rows."""
        return int(length * self.fraction) if self.fraction is not None else int(self.rows or 0)


class Subset(Order):
    """A part of ``n`` rows, block by block; see the module.

    Args:
        n: Rows to choose from.
        length: Rows to choose.
        block: Rows in a block.
        seed: Integer seed.
        blocks: Number of full blocks, which come first; what follows is chosen last. None: as many
            as there are.

    Raises:
        ConfigError: more rows than there are, or more blocks.

    Example:
        >>> Subset(20, 7, block=3, seed=0)(np.arange(7)).tolist()
        [15, 16, 17, 3, 4, 5, 6]
    """

    described = ("length", "rows", "block", "blocks", "seed")

    def __init__(
        self, n: int, length: int, *, block: int, seed: int, blocks: int | None = None
    ) -> None:
        check_at_least("block", block, cure="Count in rows.")
        if not 0 <= length <= n:
            raise ConfigError(
                f"is not among the {n} rows that there are", field="length", value=length
            )
        if blocks is not None and not 0 <= blocks <= n // block:
            raise ConfigError(f"do not fit into {n} rows", field="blocks", value=blocks)
        super().__init__(length, n)
        self.block = block
        self.seed = seed
        self.blocks = n // block if blocks is None else blocks
        self.bijective = length == n
        self._key = derive(seed, "subset")

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        full = self.blocks * self.block
        if full == 0:
            return i
        block, offset = np.divmod(np.minimum(i, full - 1), self.block)
        return np.where(i < full, permute(block, self.blocks, self._key) * self.block + offset, i)
