"""From the config field ``shuffle`` to the order of a component.

:data:`ShuffleConfig` is the registry of shuffles: plain, checked values. ``False`` is the stored
order, ``True`` a full shuffle, a number an era shuffle of that length; the others are configs, each
a :class:`Shuffle` that makes its order of :class:`RowsToOrder`. To add a shuffle, write an
:class:`~headrace.order.order.Order` and a frozen dataclass that derives from :class:`Shuffle`, and
add its name to :data:`ShuffleConfig`.

The strands of braids follow from all components of a run together, so a braid is pending
(:class:`PendingBraid`) until :func:`resolve_strands` has distributed them, from one memory budget
for the whole job.

A strand keeps one block open. The budget counts open blocks over **all** hosts together, by default
K = 8 x the batch size: any 8 successive batches then come from different strands, and VR_w <= 1 up
to w = 8 B. How it is shared out:

1. Component d's lap (see braid) is its usual number of rows in one batch, B x its share, even if
   that is not a whole number: the rows of a batch then stay on their hosts.
2. Its depth, the strands of each cell, is what makes its strands about K x its largest share.
3. Its strands are lap x depth, rounded up; at most one for each example.

With pencil and paper: batches of 8, 64 strands, shares 0.75 and 0.25. Laps are 6 and 2 rows; both
get depth 8, so 48 and 16 strands:

    >>> plan = resolve_strands(np.array([1000, 1000]), np.array([0.75, 0.25]), batch_size=8)
    >>> plan.laps.tolist(), plan.strands.tolist()
    ([6.0, 2.0], [48, 16])

For weights that change all the time, no lap fits, and whole numbers are the better choice. Blocks
are read 1.06 times per epoch on 64 hosts with 20 components if laps fit, 2.2 times if they do not
(scripts/bench/bench_braid_reads.py).

**On a shuffled store**, the rows of a block have nothing in common, and several may be in a batch:
any order of blocks that is keyed by epoch trains like a full shuffle. There the hosts ask for
strands, not the batch: ``K = max(4 x the most hosts, the blocks that a batch uses up, 5 x the
components)``, and never more than the rows of a batch. The front passes over the store a whole
number of times in a batch, so that laps fit: K is rounded up to a batch divided by that number.

    >>> plan = resolve_strands(
    ...     np.array([10**6]), np.ones(1), batch_size=1000, hosts=64, block_rows=32
    ... )
    >>> plan.strands.tolist(), plan.laps.round(2).tolist()  # three passes a batch
    ([334], [333.33])

The result is resolved once and stored in the run's lock: it is part of the order.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, check_at_least, check_choice, check_whole
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import LAP_BITS, BraidShuffle, check_not_empty, lap_bits
from headrace.order.order import Identity, OpenWindow, Order
from headrace.order.permutation import PERMUTATIONS, Feistel, PermutationType
from headrace.order.score_order import ScoreOrder
from headrace.order.subset import Subset

Scores: TypeAlias = Float64[np.ndarray, " rows"]
"""A score for each row of a component."""


class Strands(NamedTuple):
    """A component's part of the strands of a run, which depend on all components together."""

    number: int  # its strands
    lap: float  # draws in which the front passes over its store once
    first: int  # strands of the components before it


@dataclass(frozen=True)
class RowsToOrder:
    """The rows of a component, and all else that its order is made of.

    Attributes:
        length: Its rows.
        seed: Integer seed of the component.
        block: Rows in a block; 0 unless the shuffle is :attr:`~Shuffle.in_blocks`.
        strands: Its strands; None unless the shuffle is :attr:`~Shuffle.in_strands`.
        scores: The scores of its rows; None unless the shuffle is :attr:`~Shuffle.scored_by` them.
    """

    length: int
    seed: int
    block: int = 0
    strands: Strands | None = None
    scores: Scores | None = None


class Shuffle(abc.ABC):
    """How a component is shuffled. Configs are frozen dataclasses with a field ``kind`` that names
    them.
    """

    io_block_size: int | None = None
    """Examples in a block; None: one stored chunk."""
    in_blocks: bool = False
    """The order uses blocks: rows are numbered so that no block crosses two stored arrays, and what
    it keeps open is what memory must hold. Without blocks rows are numbered as they are stored, and
    reads are forecast as if each row were one, or memory held all of them.
    """
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
    def order(self, rows: RowsToOrder) -> Order:
        """The order of a component."""

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
    """Braided shuffle (order/braid.py): mixes batches like a full shuffle, reads each block
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

    def order(self, rows: RowsToOrder) -> Order:
        assert rows.strands is not None  # in_strands
        braid = PendingBraid(
            rows.length,
            io_block_size=rows.block,
            seed=rows.seed,
            run_blocks=self.run_blocks or 1,
        )
        return braid.with_strands(*rows.strands)

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

    def order(self, rows: RowsToOrder) -> Order:
        return BlockShuffle(
            rows.length,
            io_block_size=rows.block,
            window_blocks=self.window_blocks,
            seed=rows.seed,
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

    def order(self, rows: RowsToOrder) -> Order:
        if rows.scores is None:
            raise ConfigError(
                "needs the scores of rows",
                field="shuffle.by",
                value=self.by,
                cure="Write it in a config of caches, or leave it out.",
            )
        return ScoreOrder(
            rows.scores,
            steps=self.steps,
            descending=self.descending,
            block=rows.block,
            open_blocks=self.open_blocks,
            seed=rows.seed,
        )


ShuffleConfig: TypeAlias = bool | int | BraidShuffleConfig | BlockShuffleConfig | ScoreShuffleConfig
"""The registry: possible values of ``shuffle``. Configs are distinguished by their
field ``kind``.
"""


@dataclass(frozen=True)
class _WithoutBlocks(Shuffle):
    """A shuffle that the config names by a value."""

    value: bool | int

    def order(self, rows: RowsToOrder) -> Order:
        if self.value is True:
            return Feistel(rows.length, rows.seed)
        if self.value:
            return EraShuffle(rows.length, era_length=self.value, seed=rows.seed)
        return Identity(rows.length)


def shuffle_of(config: ShuffleConfig | Shuffle) -> Shuffle:
    """The shuffle for a value of the field ``shuffle``.

    Example:
        >>> rows = RowsToOrder(100, seed=0)
        >>> shuffle_of(40).order(rows).kind, shuffle_of(False).order(rows).kind
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


class PendingBraid(Order):
    """A braid whose strands depend on the mixture that contains it, or on the batches in which it
    is loaded.

    Until these are known, it has a length, but its positions have no rows.

    Example:
        >>> PendingBraid(1000, io_block_size=10, seed=0).in_batches(4).strands
        32
    """

    bijective = reorders = is_pending = True
    kind = "braid"

    def __init__(
        self,
        n: int,
        *,
        io_block_size: int,
        seed: int,
        hosts: int | None = None,
        run_blocks: int = 1,
    ) -> None:
        super().__init__(n, n)
        self.io_block_size = io_block_size
        self.run_blocks = run_blocks
        self.seed = seed
        self.hosts = hosts
        """In a shuffled store, the most hosts of its run; see :func:`resolve_strands`."""

    def in_batches(self, batch_size: int, first_strand: int | None = None) -> BraidShuffle:
        """The order of a dataset that is not mixed and has this many examples in a batch."""
        plan = resolve_strands(
            np.asarray([self.length]),
            np.ones(1),
            batch_size=batch_size,
            hosts=self.hosts,
            block_rows=self.io_block_size,
        )
        return self.with_strands(int(plan.strands[0]), float(plan.laps[0]), first_strand)

    def with_strands(
        self, strands: int, lap: float | None, first_strand: int | None
    ) -> BraidShuffle:
        """The order with these strands; see :class:`BraidShuffle`."""
        return BraidShuffle(
            self.length,
            io_block_size=self.io_block_size * self.run_blocks,
            part=self.io_block_size,
            strands=strands,
            lap=lap,
            seed=self.seed,
            first_strand=first_strand,
        )

    def over(self, n: int) -> PendingBraid:
        """The order of ``n`` of its examples."""
        return PendingBraid(
            n,
            io_block_size=self.io_block_size,
            seed=self.seed,
            hosts=self.hosts,
            run_blocks=self.run_blocks,
        )

    def blocks_in_turn(self) -> Order:
        """All examples in a sequence of blocks that follows from the seed alone."""
        return Subset(self.length, self.length, block=self.io_block_size, seed=self.seed)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self._refuse()

    def open_window(self) -> OpenWindow:
        return self._refuse()

    def describe(self) -> dict[str, object]:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "is missing, and so is strands: the order follows from what the dataset is mixed with,"
            " or from its batches",
            field="batch_size",
            cure="Mix or load it, or give braid_shuffle the batch_size.",
        )


BATCHES_OPEN = 8
"""Default budget: this many batches' worth of examples each have their own open block."""
MAX_HOSTS = 256
"""Default of the most hosts that read a shuffled store: 1,024 strands."""
STRANDS_A_HOST = 4
STRANDS_A_COMPONENT = 5


@dataclasses.dataclass(frozen=True, eq=False)
class StrandPlan:
    """Strands of each component."""

    strands: Int64[np.ndarray, " d"]  # at least 1, at most the component's examples
    laps: Float64[np.ndarray, " d"]  # draws; divides ``strands`` if it is a whole number

    def open_bytes(self, block_bytes: Int64[np.ndarray, " d"] | int) -> int:
        """Bytes of the blocks that are open at a time, over all hosts together."""
        return int((self.strands * np.asarray(block_bytes, np.int64)).sum())


def resolve_strands(
    lengths: Int64[np.ndarray, " d"],
    shares: Float64[np.ndarray, " d"],
    *,
    batch_size: int,
    strands: int | None = None,
    budget_bytes: int | None = None,
    block_bytes: Int64[np.ndarray, " d"] | int | None = None,
    usual_shares: Float64[np.ndarray, " d"] | None = None,
    hosts: int | None = None,
    block_rows: Int64[np.ndarray, " d"] | int = 1,
    sources: int = 1,
) -> StrandPlan:
    """Strands and laps of every component.

    Args:
        lengths: Examples of each component, at least 1.
        shares: Largest share of a batch that each component ever gets, in [0, 1].
        batch_size: Examples in a batch (the largest, if it changes).
        strands: Open blocks for the whole job; None for ``8 * batch_size``, fewer if the corpus is
            small.
        budget_bytes: Instead of ``strands``: bytes of open blocks for the whole job. Needs
            ``block_bytes``.
        block_bytes: Bytes of a block in memory.
        usual_shares: Shares during most of the run, if weights change only at a few steps: laps fit
            these. None: ``shares`` if they add up to one, which means that they never change; else
            no lap fits.
        hosts: The most hosts that a run will have, for components in shuffled stores; None: the
            stores are plain, or ``strands`` or ``budget_bytes`` is given.
        block_rows: Examples in a block, with ``hosts``.
        sources: Components of the run, of which these may be some, with ``hosts``.

    Returns:
        At least one strand per component, never more than it has examples. Totals equal ``strands``
        up to rounding to whole batches; a byte budget is never exceeded.

    Raises:
        ConfigError: more strands than examples; a size below 1; a budget too small for one block
            per component.

    Example:
        >>> plan = resolve_strands(
        ...     np.array([10**6, 10**6, 5]), np.array([0.7, 0.29, 0.01]), batch_size=128
        ... )
        >>> plan.strands.tolist(), plan.laps.round(2).tolist()
        ([717, 297, 3], [89.6, 37.12, 1.28])
    """
    lengths = np.asarray(lengths, np.int64)
    shares = np.asarray(shares, np.float64)
    _check(lengths, shares, batch_size, strands)
    if usual_shares is None:
        usual = shares if shares.sum() <= 1.0 + 1e-6 else None
    else:
        usual = np.asarray(usual_shares, np.float64)
        if (
            usual.shape != shares.shape
            or not (usual <= shares + 1e-9).all()
            or not (usual >= 0).all()
        ):
            raise ConfigError(
                "above the largest shares", field="usual_shares", value=usual.tolist()
            )

    def split(total: float) -> StrandPlan:
        # With a budget below one batch, the front passes several times a batch
        base = min(batch_size, total)
        if usual is None:
            return _whole_laps(lengths, shares, base, total)
        return _fitting_laps(lengths, shares, usual, base, total)

    if hosts is not None:
        used = batch_size * float((shares / block_rows).sum() / max(shares.sum(), 1e-9))
        least = max(STRANDS_A_HOST * hosts, used, STRANDS_A_COMPONENT * sources)
        return split(batch_size / max(batch_size // least, 1))
    if budget_bytes is None:
        return split(BATCHES_OPEN * batch_size if strands is None else strands)
    return _within_bytes(split, lengths, strands, budget_bytes, block_bytes)


def _check(lengths: np.ndarray, shares: np.ndarray, batch_size: int, strands: int | None) -> None:
    if lengths.ndim != 1 or lengths.shape != shares.shape:
        raise ConfigError(
            f"one for each of the {lengths.size} components", field="shares", value=shares.tolist()
        )
    check_not_empty(lengths)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ConfigError("must lie in 0 .. 1", field="shares", value=shares.tolist())
    for name, value in (("batch_size", batch_size), ("strands", strands)):
        check_at_least(name, value)
    total = int(lengths.sum())
    if strands is not None and strands > total:
        raise ConfigError(
            f"more strands than the {total} examples",
            field="strands",
            value=strands,
            cure=f"Give at most {total}, or leave it out.",
        )


def _whole_laps(lengths: np.ndarray, shares: np.ndarray, base: float, total: float) -> StrandPlan:
    """Laps of whole rows, in proportion to the shares; cells as deep as the share asks."""
    laps = np.minimum(np.maximum(apportion(shares, base), 1), lengths)
    depth = np.maximum(np.rint(total * shares / laps).astype(np.int64), 1)
    return StrandPlan(laps * np.minimum(depth, lengths // laps), laps.astype(np.float64))


def _fitting_laps(
    lengths: np.ndarray, shares: np.ndarray, usual: np.ndarray, base: float, total: float
) -> StrandPlan:
    """Depth strands for each row of a lap, counted in units of 2**-bits rows."""
    # 1. Laps
    bits = lap_bits(base * usual)
    one = 1 << bits
    units = np.maximum(np.rint(base * usual * one).astype(np.int64), one >> LAP_BITS)
    laps = -(-units // one)
    # 2. Depths. At constant weights, all components have the same, without rounding anything
    target = np.where(
        usual == shares, int(total // base), np.rint(total * shares * one / units).astype(np.int64)
    )
    depth = np.maximum(np.minimum(target, lengths // laps), 1)
    # 3. The last, partial row is rounded up, so that laps * depth <= strands
    strands = -(-units * depth >> bits)
    short = strands > lengths  # less than one batch: every example a strand
    return StrandPlan(np.where(short, lengths, strands), np.where(short, lengths, units / one))


def apportion(shares: Float64[np.ndarray, " d"], total: float) -> Int64[np.ndarray, " d"]:
    """Whole numbers near ``total * shares`` whose sum is ``total * sum(shares)`` rounded (largest
    remainders).

    Example:
        >>> apportion(np.array([0.5, 0.3, 0.2]), 7).tolist()
        [4, 2, 1]
    """
    exact = total * shares
    # A share that float64 leaves just below a whole number must not lose it
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainder = int(np.rint(exact.sum())) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[: max(remainder, 0)]] += 1
    return counts


def _within_bytes(
    split: Callable[[int], StrandPlan],
    lengths: np.ndarray,
    strands: int | None,
    budget_bytes: int,
    block_bytes: np.ndarray | int | None,
) -> StrandPlan:
    """The largest plan that fits."""
    if strands is not None:
        raise ConfigError(
            "is given beside strands",
            field="budget_bytes",
            value=budget_bytes,
            cure="Give one of them.",
        )
    if block_bytes is None:
        raise ConfigError(
            "needs the bytes of a block",
            field="budget_bytes",
            value=budget_bytes,
            cure="Give block_bytes.",
        )
    sizes = np.broadcast_to(np.asarray(block_bytes, np.int64), lengths.shape)
    least = int(sizes.sum())
    if budget_bytes < least:
        raise ConfigError(
            f"does not hold one block of each of the {lengths.size} components",
            field="budget_bytes",
            value=budget_bytes,
            cure=f"Give at least {least} bytes.",
        )
    # Bytes grow with the total, up to rounding: bisect for the largest one that fits
    low = 1
    high = int(lengths.sum())
    best = StrandPlan(np.ones_like(lengths), np.ones(lengths.shape))
    while low <= high:
        middle = (low + high) // 2
        plan = split(middle)
        if plan.open_bytes(sizes) <= budget_bytes:
            best = plan
            low = middle + 1
        else:
            high = middle - 1
    return best
