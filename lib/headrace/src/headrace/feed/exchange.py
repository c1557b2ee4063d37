"""Rows that one host reads for another, so that each stored block is read by one host, even while
shares change.

A batch is sorted by locality and cut into equal shares. If a source contributes one more row, all
rows after it move, some of them across the borders of hosts, and the hosts on both sides read the
same blocks. With the exchange, a row is read by the host that *owns* its locality. The borders
between owners are quantiles of the localities of a whole window of steps, and stay fixed unless
shares have changed a lot, so a block has one owner as long as it is open. Most rows are owned by
the host where their place in the batch is; the others pass through a small collective on the
devices::

    arrays as they are read   shard k of n: [its share of the batch | pool], in both rows it owns
    all_gather of the pools   over the mesh axes that split rows
    take                      place i of the batch <- its own place, or a place in the pools

Step by step, for a window of steps; the comments below have the same numbers:

1. **Holder**: the shard of the batch in which the row's place is, and the processes that have it.
2. **Borders** between owners: quantiles of the localities of the first 64 steps. They are kept as
   long as possible, because a block whose owner changes is read once more.
3. **Owner**: the processes between whose borders the row's locality is; for sources of few blocks,
   see below.
4. **Out** go the rows whose holder is not their owner. Those of a step and an owner are numbered,
   and dealt out to the owner's shards in turn, as if to players.
5. **Pool**: as many rows as the largest hand; a row that does not fit is read by its holder.
6. **Place** of each row in the arrays of its step: its own place in its shard's share of the batch
   or, for a row that goes out, a slot in the pool of a shard of its owner.
7. **Origin** of each place of the batch: the inverse of step 6, as seen by the shard of that place.
8. **On the devices** (:mod:`headrace.feed.pooled_rows`): all shards get all pools, and each takes
   its rows from these and its share.

With two shards of two rows, of which the first's second row belongs to the second (a pool of one)::

    batch                 a  b | c  d         owners 0 1 | 1 1
    arrays as read        a  -  (-) | c  d  (b)      places 0, 5, 3, 4; pools in parentheses
    origin                0  3 | 0  1                3: after its share of 2, slot 1 of the pools

The batch is bit-identical to one without the exchange. Everything follows from the plan, which is
the same on every host. A pool has as many rows as the largest surplus of a host in a window,
rounded up, and never shrinks, so the arrays change their shape and the collective is recompiled a
few times in a run. Rows that do not fit into a pool (:data:`POOL_BYTES`) are read where their place
is.

``auto`` looks ahead before the first window, and again after every 64th: it counts the reads of the
next 256 steps with the exchange and without, and turns it on for good if there are :data:`WORTH_IT`
times as many without. Reads per block alone do not tell: a block that is read often for another
reason, such as packs that lie in several blocks, is read as often with the exchange. Nothing is
kept from earlier steps, so a run that is resumed exchanges rows from its first step on.

**Few blocks.** Every host draws from all blocks of a source that is shuffled as a whole
(:mod:`headrace.order.braid`), and keeps them all. The exchange gives each of these blocks
one owner too, which its number tells, so that all hosts together keep them once. Nearly all of
these rows then go through the pools in every step: ``auto`` leaves them where they are if they are
more than :data:`FEW_ROWS` of a batch.

Price: 0.1 us a row to plan; 0.2 s to look ahead with batches of 1,024 rows, 1 s with 8,192.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError, check_choice
from headrace.mix.schedule import ExchangeSetting
from headrace.order.intervals import run_numbers

WORTH_IT = 1.05
"""``auto`` turns the exchange on if there are more than so many times as many reads without it."""
POOL_BYTES = 1 << 27
"""Limit on the bytes of the pools of all hosts together, which each device holds for a moment."""
FEW_ROWS = 1 / 8
"""Share of a batch up to which ``auto`` passes on rows of sources that every host draws from."""
PERIOD = 64
"""Windows after which ``auto`` looks again, and borders are redrawn if pools would have to be
twice as large as when they were last drawn. If hosts own few strands each, new borders cause most
open blocks to be read once more.
"""
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole numbers, spread any run of block numbers evenly."""
_LOOKS = 4
"""Windows of full length that ``auto`` looks ahead. It decides from the second half of them."""


_COUNTED_USES = 1 << 16
"""Uses of blocks that ``auto`` counts at most, about, in a window."""


class Look(NamedTuple):
    """A window of steps that is still to come, as a look ahead sees it."""

    sizes: Int64[np.ndarray, " steps"]  # rows of each batch
    valid: Int64[np.ndarray, " steps"]  # rows of each that hold data
    locality: Float64[np.ndarray, " n"]  # of these rows, in batch order
    blocks: Callable[[], tuple[Int64[np.ndarray, " u"], Int64[np.ndarray, " u"]]]
    """The row of each use of a block, and the block, as
    :meth:`headrace.feed.plan.GlobalRows.blocks` gives them."""
    everywhere: Bool[np.ndarray, " n"]
    """Whether the row is of a source from whose blocks every host draws."""


class Arranged(NamedTuple):
    """The rows of a window of steps, arranged as hosts read them; see the module."""

    sizes: Int64[np.ndarray, " steps"]  # rows of the arrays of each step, pools included
    place: Int64[np.ndarray, " n"]  # place of each row in the arrays of its step
    # For each place of all batches in order: position in its shard and the pools.
    origin: Int32[np.ndarray, " m"]
    owner: Int64[np.ndarray, " n"]  # number of the processes that read each row
    sent: Bool[np.ndarray, " n"]  # whether the row goes through a pool


class RowExchange:
    """Decides who reads the rows of each window. All hosts must ask for the same windows, in order.

    Args:
        holders: For each shard of the rows of a batch, a number for the processes that hold it.
        setting: ``"on"`` or ``"auto"``.

    Example:
        >>> exchange, four = RowExchange(np.arange(2), "on"), np.array([4])
        >>> blocks = lambda: (np.arange(4), np.array([0, 0, 1, 1]))
        >>> everywhere = np.zeros(4, bool)
        >>> rows = Look(four, four, np.array([0.0, 0.1, 0.6, 0.9]), blocks, everywhere)
        >>> exchange.arrange(rows, lambda: [rows], row_bytes=8) is None  # all are where they belong
        True
        >>> rows = rows._replace(locality=np.array([0.1, 0.2, 0.3, 0.7]))
        >>> later = exchange.arrange(rows, lambda: [rows], row_bytes=8)  # as two hosts share it
        >>> later.owner.tolist(), later.place.tolist(), later.origin.tolist(), later.sizes.tolist()
        ([0, 0, 0, 1], [0, 1, 2, 4], [0, 1, 2, 1], [6])
    """

    def __init__(self, holders: Int64[np.ndarray, " n"], setting: Literal["auto", "on"]) -> None:
        self.holders = holders
        self.on = setting == "on"
        self._by_block = setting == "on"  # whether rows that are drawn everywhere have owners
        self.pool = 0  # rows of each shard's pool
        order = np.argsort(holders, kind="stable")
        self._shards = np.bincount(holders)  # of each holder
        self._shard = order  # shards, holder by holder
        self._first = np.cumsum(self._shards) - self._shards
        self._borders = np.zeros(0)
        self._window = 0
        self._row_bytes = 0
        self._surplus = 0  # rows of a pool that the last window needed
        self._drawn_surplus = 0  # the same for the steps for which borders were drawn

    def arrange(
        self, window: Look, ahead: Callable[[], Iterable[Look]], *, row_bytes: int
    ) -> Arranged | None:
        """The rows of the next window as hosts read them; None: where their places are.

        Args:
            window: The window.
            ahead: Returns windows of full length from its first step on, planned one by one.
            row_bytes: Bytes of a row. When this changes, as between phases, borders are redrawn.
        """
        # A new length of rows is a new beginning: other rows, other blocks.
        number = self._window if row_bytes == self._row_bytes else 0
        self._window = number + 1
        self._row_bytes = row_bytes
        # 2. All of this depends on the plan alone, which is the same on every host: hosts agree on
        #    borders and pools without a word, and must, because a collective depends on them.
        if number % PERIOD == 0 and not self.on:
            self._judge(itertools.islice(ahead(), _LOOKS))
        elif number == 0:
            self._draw(next(iter(ahead()), window))
        elif number % PERIOD == 0 and self._surplus > 2 * self._drawn_surplus + 2:
            self._draw(window)
        return self._arranged(window) if self.on else None

    def _draw(self, look: Look) -> None:
        """Draws borders, and makes pools, for some steps."""
        self._by_block = self._by_block or look.everywhere.mean() <= FEW_ROWS
        self._borders = _quantiles(look.locality, self.holders.size)
        self._arranged(look)
        self._drawn_surplus = self._surplus

    def _positions(self, window: Look) -> _Places:
        # 1. Shards have equally many places, so the shard of a position is a division.
        shards = self.holders.size
        sizes = window.sizes
        valid = window.valid
        step = np.repeat(np.arange(sizes.size), valid)
        position = run_numbers(0, valid)
        shard = position * shards // sizes[step]
        # 3. A row on a border belongs to the owner above it, on every host.
        owner = self.holders[np.searchsorted(self._borders, self._front(window), side="right")]
        return _Places(step, position, shard, sizes[step] // shards, self.holders[shard], owner)

    def _front(self, look: Look) -> Float64[np.ndarray, " n"]:
        """Where between the borders the owner of each row is."""
        if not (self._by_block and look.everywhere.any()):
            return look.locality
        row, block = look.blocks()
        spread = look.everywhere[row]
        front = look.locality.copy()
        front[row[spread]] = block[spread] * _GOLDEN % 1
        return front

    def _arranged(self, window: Look) -> Arranged | None:
        sizes = window.sizes
        rows = self._positions(window)
        # 4. A process with several shards has as many pools: `ways`. The n-th row of a step and an
        #    owner goes to the (n mod ways)-th of them, into its slot n // ways.
        shards = self.holders.size
        owner = rows.owner.copy()
        out = np.flatnonzero(rows.holder != owner)
        nth = _count_within(rows.step[out] * shards + owner[out])
        ways = self._shards[owner[out]]
        # 5. The pool never shrinks and has few possible sizes: each new one is a new shape, for
        #    which the collective is compiled again.
        most = max(POOL_BYTES // max(shards * self._row_bytes, 1), 1)
        self._surplus = int((nth // ways).max(initial=-1)) + 1
        self.pool = max(self.pool, min(_rounded(self._surplus), most))
        if not self.pool:
            return None
        # What does not fit stays with its holder: its blocks are read twice, nothing else happens.
        fits = nth < ways * self.pool
        owner[out[~fits]] = rows.holder[out[~fits]]
        out = out[fits]
        nth = nth[fits]
        ways = ways[fits]
        # 6. In the arrays each shard is its share of the batch and its pool, so a place moves up by
        #    one pool for each shard before it.
        to = self._shard[self._first[owner[out]] + nth % ways]
        slot = nth // ways
        positions = rows.place + rows.shard * self.pool
        positions[out] = to * (rows.share[out] + self.pool) + rows.share[out] + slot
        # 7. Every place is its own origin at first, also that of a row without data; then the rows
        #    that went out are fetched from pools, which lie one after the other behind the share.
        first = np.cumsum(sizes) - sizes
        origin = (np.arange(int(sizes.sum())) - np.repeat(first, sizes)) % np.repeat(
            np.maximum(sizes // shards, 1), sizes
        )
        origin[first[rows.step[out]] + rows.place[out]] = rows.share[out] + to * self.pool + slot
        sent = np.zeros(owner.size, bool)
        sent[out] = True
        return Arranged(sizes + shards * self.pool, positions, origin.astype(np.int32), owner, sent)

    def _judge(self, looks: Iterable[Look]) -> None:
        """Counts the reads of the steps to come if their holders read all rows, and if their owners
        do, and turns the exchange on if that is worth it.
        """
        without = _ReadCount()
        exchanged = _ReadCount()
        hosts = int(self.holders.max(initial=0)) + 1
        self.pool = 0
        for number, look in enumerate(looks):
            if number == 0:
                self._draw(look)
            arranged = self._arranged(look)
            holder = self._positions(look).holder
            owner = holder if arranged is None else arranged.owner
            # The first half only tells which blocks are open. Counted from nothing, all open blocks
            # would be new, and most hosts that read them still to come: too few reads without the
            # exchange.
            judged = 2 * number >= _LOOKS
            row, block = look.blocks()
            # Of large batches, some of the blocks tell as much as all
            some = block % max(block.size // _COUNTED_USES, 1) == 0
            row = row[some]
            block = block[some]
            without.add(block * hosts + holder[row], judged=judged)
            exchanged.add(block * hosts + owner[row], judged=judged)
        more = without.reads / max(exchanged.reads, 1)
        if more > WORTH_IT:
            self.on = True
            logging.getLogger(__name__).info(
                "row_exchange: auto turns it on: without it, hosts read %.2f times as many blocks",
                more,
            )


class _Places(NamedTuple):
    """Rows of a window; one entry per row."""

    step: np.ndarray
    place: np.ndarray  # in its batch
    shard: np.ndarray  # that contains the place
    share: np.ndarray  # rows of a shard of the batch
    holder: np.ndarray  # of the shard
    owner: np.ndarray


class _ReadCount:
    """How many blocks hosts read, each as often as there are hosts that use it while it is open."""

    def __init__(self) -> None:
        self.reads = 0
        self._seen = np.zeros(0, np.int64)

    def add(self, uses: Int64[np.ndarray, " u"], *, judged: bool) -> None:
        """Counts the uses of a window, a number for each pair of a block and a host. ``judged``:
        enough windows came before it to be representative of later ones.
        """
        blocks_read = np.union1d(self._seen, uses)
        if judged:
            self.reads += blocks_read.size - self._seen.size
        self._seen = blocks_read


def _quantiles(locality: np.ndarray, shards: int) -> np.ndarray:
    """Localities at which each shard but the first begins, if all have equally many rows."""
    if not locality.size:
        return np.ones(shards - 1)
    return np.sort(locality)[np.arange(1, shards) * locality.size // shards]


def _count_within(key: np.ndarray) -> np.ndarray:
    """For each entry, the number of equal entries before it."""
    # Sorted, equal entries are runs: the place within its run is the number of equal ones before.
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.diff(first, append=key.size)
    nth = np.empty(key.size, np.int64)
    nth[order] = np.arange(key.size) - np.repeat(first, counts)
    return nth


def _rounded(rows: int) -> int:
    """Rounds up to one of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few shapes, little waste."""
    if rows <= 4:
        return rows
    half = 1 << ((rows - 1).bit_length() - 1)
    return 3 * half // 2 if rows <= 3 * half // 2 else 2 * half


def check_exchange(setting: str, order: BatchOrder) -> ExchangeSetting:
    """Returns the setting; ConfigError if its name is unknown, or if it is ``on`` and rows come
    from ``get_batch``.
    """
    check_choice("row_exchange", setting, get_args(ExchangeSetting))
    if setting == "on" and order.planned is None:
        raise ConfigError(
            f"needs stored blocks, and {type(order.dataset).__name__} reads its rows itself",
            field="row_exchange",
            value=setting,
            cure="Use 'auto' or 'off'.",
        )
    return cast(ExchangeSetting, setting)
