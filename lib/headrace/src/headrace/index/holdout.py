"""A validation split without a table: what is held out is a keyed hash of its number.

Blocks of rows go in groups of ``one_in``; one of each group, drawn by the seed and the group's number, is held out.
Both sides are closed forms: any row, in any order of asking, in O(1) memory. Whole blocks stay together, so that
shuffles of either side still read whole chunks. A short last group, and what fills no block, belong to train.

Invariants: each row lies on exactly one side; the split follows from (rows, block, one_in, seed) alone, not from
shuffles, epochs or batches; what is appended to the corpus changes no group that was full.

Price: one hash an index, 30 ns. Levanter shuffles all rows and then cuts: its train side reads chunks for the sake of
rows that are not in it, and a corpus that grows is cut elsewhere.
"""

from __future__ import annotations

import abc

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.remap import IndexMap
from headrace.index.seeds import derive, derive_keys


def held_out(members: int, one_in: int, seed: int, *, what: str = "blocks") -> Int64[np.ndarray, " g"]:
    """The numbers, below ``members``, that are held out: one of each full group, rising.

    Raises:
        ConfigError: ``one_in`` below 2, or more than there are members.

    Example:
        >>> held_out(35, 10, seed=0).tolist()
        [0, 13, 25]
    """
    groups = _num_groups(members, one_in, seed, what)
    group = np.arange(groups)
    return group * one_in + _member(group, one_in, seed)


def _num_groups(members: int, one_in: int, seed: int, what: str) -> int:
    derive(seed)
    if one_in < 2:
        raise ConfigError("must be at least 2", field="one_in", value=one_in, cure="E.g. 100: one in a hundred.")
    if members < one_in:
        raise ConfigError(
            f"is more than the {members} {what} that there are, so nothing would be held out",
            field="one_in",
            value=one_in,
            cure="Hold out a larger share, or smaller blocks.",
        )
    return members // one_in


def _member(group: Int64[np.ndarray, " n"], one_in: int, seed: int) -> Int64[np.ndarray, " n"]:
    """Which member of each group is held out."""
    return (derive_keys(seed, "holdout", last=group) % np.uint64(one_in)).astype(np.int64)


class _SplitSide(IndexMap):
    """One side of the split of rows by blocks: what both need to know. Arguments: see :class:`ValidationSplit`."""

    def __init__(self, n: int, *, one_in: int, block: int, seed: int, blocks: int | None = None) -> None:
        self.groups = _groups_of_rows(n, one_in, block, seed, blocks)
        super().__init__(self._length(n, self.groups * block), n)
        self.one_in, self.block, self.seed = one_in, block, seed

    @abc.abstractmethod
    def _length(self, n: int, held_out: int) -> int:
        """Rows on this side, of ``n`` of which ``held_out`` are held out."""

    @property
    def described(self) -> tuple[str, ...]:
        return ("rows", "one_in", "block", "seed", "groups")


class TrainSplit(_SplitSide):
    """The rows that are not held out, in stored order; see the module. Arguments as of :class:`ValidationSplit`.

    Example:
        >>> train = TrainSplit(20, one_in=3, block=3, seed=0)  # two groups of three blocks, and two rows
        >>> train(np.arange(len(train))).tolist()
        [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19]
    """

    def _length(self, n: int, held_out: int) -> int:
        return n - held_out

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        block = i // self.block
        group, place = np.divmod(block, self.one_in - 1)
        behind = np.where(group < self.groups, place >= _member(group, self.one_in, self.seed), 0)
        return i + (np.minimum(group, self.groups) + behind) * self.block


class ValidationSplit(_SplitSide):
    """The rows that are held out, in stored order; see the module.

    Args:
        n: Rows to split.
        one_in: Of so many blocks, one is held out; at least 2.
        block: Rows in a block.
        seed: Integer seed.
        blocks: Full blocks that rows begin with; what follows belongs to train. None: as many as there are.

    Raises:
        ConfigError: a size out of range, or fewer full blocks than ``one_in``.

    Example:
        >>> held = ValidationSplit(20, one_in=3, block=3, seed=0)
        >>> held(np.arange(len(held))).tolist()
        [6, 7, 8, 9, 10, 11]
    """

    def _length(self, n: int, held_out: int) -> int:
        return held_out

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        group, place = np.divmod(i, self.block)
        return (group * self.one_in + _member(group, self.one_in, self.seed)) * self.block + place


def _groups_of_rows(n: int, one_in: int, block: int, seed: int, blocks: int | None) -> int:
    if block < 1:
        raise ConfigError("must be at least 1", field="io_block_size", value=block, cure="Count in examples.")
    if blocks is not None and not 0 <= blocks <= n // block:
        raise ConfigError(f"do not fit into {n} rows", field="blocks", value=blocks)
    members = n // block if blocks is None else blocks
    return _num_groups(members, one_in, seed, f"blocks of {block} examples")
