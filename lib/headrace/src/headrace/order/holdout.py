"""A validation split without a table: what is held out is a keyed hash of its number.

Blocks of rows form groups of ``one_in``; one block of each group, selected by the seed and the
group's number, is held out. Both sides are closed forms: any row, in any order of access, in O(1)
memory. Whole blocks stay together, so shuffles of either side still read whole chunks. A short last
group, and rows that fill no block, belong to train.

With pencil and paper: 20 rows in blocks of 3, one in 3, seed 0. Of the blocks 0 to 5 there are two
groups; the hash holds out member 2 of the first and member 0 of the second: blocks 2 and 3. ::

    row     0 1 2   3 4 5   6 7 8   9 10 11   12 13 14   15 16 17   18 19
    block     0       1       2        3         4          5
    side     train   train  held     held      train      train     train

Train has its rows one after the other: its i-th row is i plus the rows that are held out before it.
Its block i // 3 is in group number (i // 3) // 2, as each group has two blocks left. One block is
held out of each earlier group, and one more of its own where its member is not before the one held
out. So row 6 of train is in block 2, group 1, member 0: two blocks are held out before, and it is
row 12 of the source. (The examples of :class:`TrainSplit` and :class:`ValidationSplit` have these
rows.)

Invariants: each row is on exactly one side; the split depends only on (rows, block, one_in, seed),
not on shuffles, epochs or batches; data appended to the corpus changes no full group.

Price: one hash per index, 30 ns. Levanter, by contrast, shuffles all rows and then cuts: its train
side reads chunks that also contain held-out rows, and a corpus that grows is cut elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, check_at_least, check_choice
from headrace.order.order import Order
from headrace.order.seeds import derive, derive_keys

DEFAULT_ONE_IN = 100
HoldOutBy: TypeAlias = Literal["blocks", "documents"]


class HeldOutOf(Protocol):
    """What a hold-out has to know of a dataset."""

    def __len__(self) -> int: ...

    def default_io_block_size(self) -> int: ...

    def holdout_block_size(self, one_in: int) -> int: ...

    def full_blocks(self, io_block_size: int) -> int: ...


@dataclass(frozen=True)
class ValidationConfig:
    """The config field ``validation``: a split of every component; see the module.

    Attributes:
        one_in: One block or document in this many is held out; default 100.
        fraction: Instead of ``one_in``: the share that is held out, at most 0.5. One in ``round(1 /
            fraction)``.
        rows: Instead of ``one_in``: rows that are held out of each component, exactly; at most half
            of them. Where ``seq_len`` changes: whole blocks, which hold at least so many rows of
            the first length.
        by: ``blocks`` keeps reads whole and cuts documents at the borders of blocks; ``documents``
            keeps documents whole and costs reads (see :mod:`headrace.data.token_seq`).
        seed: Seed of the split only: runs with other seeds share their validation data.
        io_block_size: Examples in a block; None: one stored chunk. Set it to the block of the
            shuffle if that is larger.

    Raises:
        ConfigError: a value is invalid.

    Example:
        >>> ValidationConfig(fraction=0.002).groups_of
        500
    """

    one_in: int | None = None
    fraction: float | None = None
    rows: int | None = None
    by: HoldOutBy = "blocks"
    seed: int = 0
    io_block_size: int | None = None

    def __post_init__(self) -> None:
        derive(self.seed)
        set_fields = [n for n in ("one_in", "fraction", "rows") if getattr(self, n) is not None]
        if set_fields[1:]:
            raise ConfigError(
                f"is given beside {set_fields[0]}",
                field=f"validation.{set_fields[1]}",
                cure="Give one of them.",
            )
        check_at_least("validation.rows", self.rows, 1, "E.g. 1000.")
        check_at_least("validation.one_in", self.one_in, 2, "E.g. 100.")
        if self.fraction is not None and not 0 < self.fraction <= 0.5:
            raise ConfigError(
                "must lie above 0 and be at most 0.5",
                field="validation.fraction",
                value=self.fraction,
                cure="E.g. 0.01.",
            )
        check_choice("validation.by", self.by, get_args(HoldOutBy))
        if self.rows is not None and self.by == "documents":
            raise ConfigError(
                "counts rows, and whole documents do not fill them",
                field="validation.rows",
                value=self.rows,
                cure="Use by: blocks, or fraction in place of rows.",
            )
        if self.io_block_size is not None and self.by == "documents":
            raise ConfigError(
                "goes with by: blocks", field="validation.io_block_size", cure="Leave it out."
            )
        check_at_least("validation.io_block_size", self.io_block_size)

    def holdout(self, dataset: HeldOutOf, block_rows: int | None = None) -> HoldOut:
        """The blocks to hold out of a dataset: of ``block_rows`` rows, or as the dataset has them
        (None).

        Raises:
            ConfigError: more rows than half of the dataset.
        """
        if self.rows is None:
            block = block_rows or self.io_block_size or dataset.holdout_block_size(self.groups_of)
            return HoldOut(self.groups_of, block, None)
        total = len(dataset)
        if block_rows is not None:
            blocks = -(-self.rows // block_rows)
            if 2 * blocks > dataset.full_blocks(block_rows):
                raise _more_than_half(self.rows, dataset.full_blocks(block_rows) // 2 * block_rows)
            return HoldOut(dataset.full_blocks(block_rows) // blocks, block_rows, blocks)
        if 2 * self.rows > total:
            raise _more_than_half(self.rows, total // 2)
        # The largest blocks that divide the rows, up to a stored chunk, and of which two are there
        # for each held out.
        most = self.io_block_size or dataset.default_io_block_size()
        for block in range(min(most, self.rows), 0, -1):
            blocks = self.rows // block
            if self.rows % block == 0 and 2 * blocks <= dataset.full_blocks(block):
                return HoldOut(dataset.full_blocks(block) // blocks, block, blocks)
        raise _more_than_half(self.rows, dataset.full_blocks(1) // 2)

    @property
    def groups_of(self) -> int:
        """Size of a group, of which one block or document is held out."""
        if self.fraction is not None:
            return round(1 / self.fraction)
        return DEFAULT_ONE_IN if self.one_in is None else self.one_in


class HoldOut(NamedTuple):
    """Which blocks are held out: one of each group of ``one_in`` blocks of ``block`` rows, of the
    first ``groups`` groups (None: of all).
    """

    one_in: int
    block: int
    groups: int | None


def _more_than_half(rows: int, most: int) -> ConfigError:
    return ConfigError(
        "is more than half of the rows that there are",
        field="rows",
        value=rows,
        cure=f"Give at most {most}." if most else "Hold out nothing of it.",
    )


def held_out(
    members: int, one_in: int, seed: int, *, what: str = "blocks"
) -> Int64[np.ndarray, " g"]:
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
    check_at_least("one_in", one_in, 2, "E.g. 100: one in a hundred.")
    if members < one_in:
        raise ConfigError(
            f"is more than the {members} {what} that there are, so nothing would be held out",
            field="one_in",
            value=one_in,
            cure="Hold out a larger share, or smaller blocks.",
        )
    return members // one_in


def _member(group: Int64[np.ndarray, " n"], one_in: int, seed: int) -> Int64[np.ndarray, " n"]:
    """The member of each group that is held out."""
    return (derive_keys(seed, "holdout", last=group) % np.uint64(one_in)).astype(np.int64)


class _SplitSide(Order):
    """One side of the split of rows by blocks: what both have in common. Arguments: see
    :class:`ValidationSplit`.
    """

    trains: bool
    described = ("rows", "one_in", "block", "seed", "groups")

    def __init__(
        self,
        n: int,
        *,
        one_in: int,
        block: int,
        seed: int,
        blocks: int | None = None,
        groups: int | None = None,
    ) -> None:
        check_at_least("io_block_size", block, cure="Count in examples.")
        if blocks is not None and not 0 <= blocks <= n // block:
            raise ConfigError(f"do not fit into {n} rows", field="blocks", value=blocks)
        members = n // block if blocks is None else blocks
        self.groups = _num_groups(members, one_in, seed, f"blocks of {block} examples")
        if groups is not None:
            self.groups = min(self.groups, groups)
        super().__init__(n - self.groups * block if self.trains else self.groups * block, n)
        self.one_in = one_in
        self.block = block
        self.seed = seed


class TrainSplit(_SplitSide):
    """The rows that are not held out, in stored order; see the module. Arguments as of
    :class:`ValidationSplit`.

    Example:
        >>> train = TrainSplit(
        ...     20, one_in=3, block=3, seed=0
        ... )  # two groups of three blocks, and two rows
        >>> train(np.arange(len(train))).tolist()
        [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19]
    """

    trains = True

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        # Which group, and whether that group's held-out block lies before; then skip them all
        block = i // self.block
        group, member = np.divmod(block, self.one_in - 1)
        shift = np.where(group < self.groups, member >= _member(group, self.one_in, self.seed), 0)
        return i + (np.minimum(group, self.groups) + shift) * self.block


class ValidationSplit(_SplitSide):
    """The rows that are held out, in stored order; see the module.

    Args:
        n: Rows to split.
        one_in: One block in this many is held out; at least 2.
        block: Rows in a block.
        seed: Integer seed.
        blocks: Number of full blocks, which come first; what follows belongs to train. None: as
            many as there are.
        groups: Number of groups of which one block is held out: the first ones; None: all.

    Raises:
        ConfigError: a size out of range, or fewer full blocks than ``one_in``.

    Example:
        >>> held = ValidationSplit(20, one_in=3, block=3, seed=0)
        >>> held(np.arange(len(held))).tolist()
        [6, 7, 8, 9, 10, 11]
    """

    trains = False

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        group, offset = np.divmod(i, self.block)
        return (group * self.one_in + _member(group, self.one_in, self.seed)) * self.block + offset
