"""The config field ``shuffle``: plain, checked values that name an order and make it.

``False`` is the stored order, ``True`` a full shuffle, a number an era shuffle of that length; or
one of the configs of :data:`ShuffleConfig`, the registry of shuffles. To add a shuffle, write an
:class:`~headrace.order.order.Order` and a frozen dataclass that derives from :class:`Shuffle`, and
add its name to :data:`ShuffleConfig`.
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64

from headrace.errors import ConfigError, check_at_least, check_choice, check_whole
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid.shuffle import PendingBraid
from headrace.order.order import Identity, Order
from headrace.order.permutation import PERMUTATIONS, Feistel, PermutationType
from headrace.order.score_order import ScoreOrder

Scores: TypeAlias = Float64[np.ndarray, " rows"]
"""A score for each row of a component."""


class Strands(NamedTuple):
    """A component's part of the strands of a run, which depend on all components together."""

    number: int  # its strands
    lap: float  # draws in which the front passes over its store once
    first: int  # strands of the components before it


class Shuffle(abc.ABC):
    """How a component is shuffled. Configs are frozen dataclasses with a field ``kind`` that names
    them.
    """

    io_block_size: int | None = None
    """Examples in a block; None: one stored chunk."""
    in_blocks: bool = False
    """The order uses blocks: rows are numbered so that no block crosses two stored arrays."""
    in_strands: bool = False
    """The order has strands, which are resolved for all components together; such configs have the
    fields ``strands`` and ``budget_bytes``.
    """
    strands: int | None = None
    budget_bytes: int | None = None

    @property
    def scored_by(self) -> str | None:
        """The number of documents whose order it follows; None: it depends on no document."""
        return None

    @property
    def chooses_strands(self) -> bool:
        """Whether it says neither how many strands there are nor their memory."""
        return self.strands is None and self.budget_bytes is None

    @property
    def fields(self) -> frozenset[str]:
        """Names of its settings, for errors of its order."""
        return frozenset(vars(self))

    @abc.abstractmethod
    def order(
        self,
        n: int,
        *,
        block: int,
        seed: int,
        strands: Strands | None = None,
        scores: Scores | None = None,
    ) -> Order:
        """The order of a component.

        Args:
            n: Its examples.
            block: Examples in a block; 0 unless :attr:`in_blocks`.
            seed: Integer seed of the component.
            strands: Its strands; None unless :attr:`in_strands`.
            scores: The scores of its examples; None unless :attr:`scored_by`.
        """

    def in_runs(self, run_blocks: int) -> Shuffle:
        """This shuffle with so many blocks one after the other, if it does not say how many."""
        return self

    def of_one_length(self) -> Shuffle:
        """This shuffle where rows change their length. ConfigError if they may not."""
        return self

    def resized(self, block: int, rows: int | None) -> Shuffle:
        """This shuffle over blocks of ``block`` examples, with at most ``rows`` strands (None: any
        number).
        """
        return self


@dataclass(frozen=True)
class BraidShuffleConfig(Shuffle):
    """Braided shuffle (order/braid/shuffle.py): mixes batches like a full shuffle, reads each block
    about once on any number of hosts.

    Attributes:
        strands: Blocks open at a time, over all components and hosts; None: 8 x the batch size, or,
            in shuffled stores, as many as ``max_hosts`` asks for.
        budget_bytes: Instead of ``strands``: memory for open blocks over all hosts, in bytes.
        io_block_size: Examples in a block; None: one stored chunk.
        run_blocks: Blocks that are read one after the other, as they are stored: what lies across
            their borders, as packs do, is read once. None: 1, or up to 32 for packed rows of
            shuffled stores if neither ``strands`` nor ``budget_bytes`` is given.
        kind: Distinguishes this config from a block shuffle's.
    """

    strands: int | None = None
    budget_bytes: int | None = None
    io_block_size: int | None = None
    run_blocks: int | None = None
    kind: Literal["braid"] = "braid"

    in_blocks = in_strands = True

    def __post_init__(self) -> None:
        for name in ("strands", "budget_bytes", "io_block_size", "run_blocks"):
            _check_positive(f"shuffle.{name}", getattr(self, name))
        if self.strands is not None and self.budget_bytes is not None:
            raise ConfigError(
                "is given beside strands", field="shuffle.budget_bytes", cure="Give one of them."
            )

    def order(
        self,
        n: int,
        *,
        block: int,
        seed: int,
        strands: Strands | None = None,
        scores: Scores | None = None,
    ) -> Order:
        assert strands is not None  # in_strands
        braid = PendingBraid(n, io_block_size=block, seed=seed, run_blocks=self.run_blocks or 1)
        return braid.with_strands(strands.number, strands.lap, strands.first)

    def resized(self, block: int, rows: int | None) -> BraidShuffleConfig:
        strands = self.strands if self.strands is None or rows is None else min(self.strands, rows)
        return dataclasses.replace(self, io_block_size=block, strands=strands)

    def in_runs(self, run_blocks: int) -> BraidShuffleConfig:
        return self if self.run_blocks else dataclasses.replace(self, run_blocks=run_blocks)

    def of_one_length(self) -> BraidShuffleConfig:
        if (self.run_blocks or 1) > 1:
            raise ConfigError(
                "needs rows of one length",
                field="run_blocks",
                value=self.run_blocks,
                cure="Leave it out, or give one seq_len.",
            )
        return self.in_runs(1)


@dataclass(frozen=True)
class BlockShuffleConfig(Shuffle):
    """Hierarchical block shuffle (seed 004).

    Attributes:
        io_block_size: Examples in a block; None: one stored chunk.
        window_blocks: Blocks that are mixed together: best at least as many as a batch has rows.
        perm_type: ``feistel`` or ``linear``.
        cache_windows: Windows of each component that the loader's memory must hold; checked before
            a run.
        kind: Distinguishes this config from a braid's.
    """

    io_block_size: int | None = None
    window_blocks: int = 512
    perm_type: PermutationType = "feistel"
    cache_windows: int = 1
    kind: Literal["block"] = "block"

    in_blocks = True

    def __post_init__(self) -> None:
        for name in ("io_block_size", "window_blocks", "cache_windows"):
            _check_positive(f"shuffle.{name}", getattr(self, name))
        check_choice(
            "shuffle.perm_type", self.perm_type, PERMUTATIONS, "is not a permutation family"
        )

    def order(
        self,
        n: int,
        *,
        block: int,
        seed: int,
        strands: Strands | None = None,
        scores: Scores | None = None,
    ) -> Order:
        return BlockShuffle(
            n,
            io_block_size=block,
            window_blocks=self.window_blocks,
            seed=seed,
            perm_type=self.perm_type,
            held_windows=self.cache_windows,
        )

    def resized(self, block: int, rows: int | None) -> BlockShuffleConfig:
        return dataclasses.replace(self, io_block_size=block)


@dataclass(frozen=True)
class ScoreShuffleConfig(Shuffle):
    """Rows by score, in steps, each shuffled in itself (order/score_order.py). A row's score is the
    mean over its tokens.

    Attributes:
        by: Where the number of each document comes from: an attribute, a leaf with one value per
            document, ``length``, or a ``.npy`` file.
        steps: In how many steps, of equally many rows. An epoch reads a block about so many times,
            unless rows of like scores are stored together.
        descending: Whether the highest scores come first.
        open_blocks: Blocks that are mixed together.
        kind: Distinguishes this config from others.
    """

    by: str
    steps: int = 10
    descending: bool = False
    open_blocks: int = 512
    kind: Literal["score"] = "score"

    in_blocks = True

    def __post_init__(self) -> None:
        for name in ("steps", "open_blocks"):
            _check_positive(f"shuffle.{name}", getattr(self, name))

    @property
    def scored_by(self) -> str | None:
        return self.by

    def order(
        self,
        n: int,
        *,
        block: int,
        seed: int,
        strands: Strands | None = None,
        scores: Scores | None = None,
    ) -> Order:
        if scores is None:
            raise ConfigError(
                "needs the scores of rows",
                field="shuffle.by",
                value=self.by,
                cure="Write it in a config of caches, or leave it out.",
            )
        return ScoreOrder(
            scores,
            steps=self.steps,
            descending=self.descending,
            block=block,
            open_blocks=self.open_blocks,
            seed=seed,
        )


ShuffleConfig: TypeAlias = bool | int | BraidShuffleConfig | BlockShuffleConfig | ScoreShuffleConfig
"""The registry: possible values of ``shuffle``. Configs are distinguished by their
field ``kind``.
"""


@dataclass(frozen=True)
class _WithoutBlocks(Shuffle):
    """A shuffle that the config names by a value."""

    value: bool | int

    def order(
        self,
        n: int,
        *,
        block: int,
        seed: int,
        strands: Strands | None = None,
        scores: Scores | None = None,
    ) -> Order:
        if self.value is True:
            return Feistel(n, seed)
        return EraShuffle(n, era_length=self.value, seed=seed) if self.value else Identity(n)


def shuffle_of(config: ShuffleConfig | Shuffle) -> Shuffle:
    """The shuffle for a value of the field ``shuffle``.

    Example:
        >>> (
        ...     shuffle_of(40).order(100, block=0, seed=0).kind,
        ...     shuffle_of(False).order(100, block=0, seed=0).kind,
        ... )
        ('era', 'none')
    """
    return config if isinstance(config, Shuffle) else _WithoutBlocks(config)


def check_shuffle(shuffle: object, path: str) -> None:
    """Raises ConfigError for an unknown shuffle."""
    if isinstance(shuffle, bool | Shuffle):
        return
    if not isinstance(shuffle, int | np.integer) or shuffle < 1:
        raise ConfigError(
            "is not an era length",
            field=path,
            value=shuffle,
            cure="Give false (none), true (full), or the examples of an era, from 1.",
        )


def _check_positive(field: str, value: int | None) -> None:
    check_whole(field, value)
    check_at_least(field, value, cure="Leave it out for the default.")
