"""``Quota``: how many examples of each component every step holds, exactly on the weights' schedule.

Let ``W_d(s)`` be the share that component d should have had up to and including step s: the sum of batch size times
normalised weight over the steps. ``Quota`` hands out whole examples such that, for the counts ``N_d(s)``,

* every step's counts sum to its batch size, none is negative, and a component of weight 0 gets nothing;
* step s depends only on weights and batch sizes of steps <= s, so that a run can be changed from a step on;
* ``|N_d(s) - W_d(s)| <= 1 - 1/(4(D-1))`` for constant weights and any batch schedule (D components, D > 1);
* the same for changing weights, except after abrupt changes that make it impossible: no rule that does not know the
  future can do it always. (One example a step; weights 1/4, 1/4, 1/4, 1/4, then nothing for the one that was drawn and
  1/3 for the others, then nothing for the one drawn next and 1/2 for the others: two of them are due at once, and as
  nothing can be taken back, one of them stays late every second step.) Then the least late component waits, is served
  first, and :attr:`Quota.late_steps` counts the steps at which some component was a full example or more off. Measured
  (``python tests/index/test_quota.py``): none in ramps of 40 skewed components over 20,000 steps; with all weights
  drawn anew every 100 steps, 1 step in 2,000 to 5,000 with 8 components, by at most 0.3 examples over the bound, and
  1 in 70,000 with 40.

How: integers only. Normalised weights are multiples of 2**-44 that sum to 1, so W is kept as a whole part and 44 bits,
with carry. Component d is due its next example when W_d + delta reaches the next integer, may have it once W_d is delta
above the last, delta = 1/(4(D-1)); among those that may, the ones that are due first **at the current rates** are
served (earliest deadline first, which for constant rates meets all deadlines if they can be met; the margin delta is
half of what Tijdeman proves possible, and keeps rounding out of the promise). So at any step a component has floor(W_d
+ delta) examples or one more: the state is one bit a component, and everything but the bits is computed for whole
chunks of steps with numpy.

Price: 1,000,000 steps of 64 ramped components in 3 to 4 s and 8 MB (2 us a step at 20 components); afterwards any step
in 1 ms, neighbours in 1 us. Where weights stay constant nothing has to be walked: any step up to 2**40 in some ms
(index/quota_far.py). Elsewhere :meth:`Quota.anchor_at` saves the state of a step for another process.

References: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980); Baruah, Cohen, Plaxton, Varvel,
"Proportionate progress: a notion of fairness in resource allocation", Algorithmica 15 (1996).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import IndexOutOfRangeError
from headrace.index import quota_far
from headrace.index.anchors import Anchor, anchor_integer, anchor_integers, anchor_number, anchor_sum, refused
from headrace.index.blend import WeightsAt
from headrace.index.quota_far import NEVER
from headrace.index.quota_walk import CHUNK, Account, Walk
from headrace.index.schedule import MAX_STEP, BatchSchedule
from headrace.index.shares import BITS, PART, UNLIMITED, Shares

_TABLES = 16
_FAR = 32
"""Chunks from which on it may pay not to walk."""


def even_rows(counts: Int64[np.ndarray, " d"]) -> Int32[np.ndarray, " b"]:
    """Components in the order of a step's rows, each spread evenly: its k-th example stands at (k + 1/2) / count.

    Args:
        counts: Examples of each component, summing to b <= 2**18.

    Example:
        >>> even_rows(np.array([4, 0, 2]))
        array([0, 2, 0, 0, 2, 0], dtype=int32)
    """
    return even_tables(counts[None])[0][0]


def even_tables(
    counts: Int64[np.ndarray, "m d"],
) -> tuple[Int32[np.ndarray, "m b"], Int64[np.ndarray, "m b"]]:
    """:func:`even_rows` of m steps of one size b, and the number of each row among those of its component and step.

    Example:
        >>> components, ranks = even_tables(np.array([[4, 0, 2], [1, 5, 0]]))
        >>> components.tolist(), ranks.tolist()
        ([[0, 2, 0, 0, 2, 0], [1, 1, 0, 1, 1, 1]], [[0, 0, 1, 2, 1, 3], [0, 1, 0, 2, 3, 4]])
    """
    steps, components = counts.shape
    of_each = counts.ravel()
    component = np.repeat(np.tile(np.arange(components, dtype=np.int32), steps), of_each)
    rank = np.arange(component.size, dtype=np.int64) - np.repeat(np.cumsum(of_each) - of_each, of_each)
    # 43 bits of (2k + 1) / (2 count) tell all places apart, which differ by 2**-35 at least; ties go by component
    key = ((2 * rank + 1) << 42) // np.repeat(of_each, of_each)
    component, rank, key = (a.reshape(steps, -1) for a in (component, rank, key))
    key = (key << 18) | np.arange(key.shape[1])
    key.sort(axis=1)
    order = key & ((1 << 18) - 1)
    return np.take_along_axis(component, order, 1), np.take_along_axis(rank, order, 1)


@dataclass(frozen=True)
class _Anchor(Account):
    """The state before a step: the account, and how far off it ever was."""

    late: int
    worst: float
    calm: int
    """Examples of the run from which on, as long as weights stay constant, it does not matter how they began."""


class _Walked(NamedTuple):
    """What is known of a chunk of steps.

    Attributes:
        table: Examples drawn before each step and after the last: one row more than steps that can be filled.
        following: The state behind the chunk; None: the mixture ends in it.
    """

    table: Int64[np.ndarray, "m d"]
    following: _Anchor | None


class Quota:
    """Exact counts of each component at each step. Thread-safe; random access through anchors, extended on demand.

    Args:
        weights: Steps -> rows of weights that sum to 1, e.g. ``Blend.at``.
        components: Number of components D, 1 to 4096.
        batch: Examples per step.
        limits: Most examples of each component in the whole run, None for no limit. A component is drawn up to its
            limit exactly; the weight it leaves is shared by the others in proportion to theirs.
        settled: Step from which on the weights stay the same, None if that is not known: then every step is walked to.
        largest: Largest share of a step that each component may have, None for no bound.
        start: What the components should have and have before step 0, of as many examples; by default nothing. Limits
            and all counts include it.

    Raises:
        ConfigError: no component, too many, a batch above 2**18, limits that do not fit.

    Example:
        >>> from headrace.index.blend import Blend
        >>> q = Quota(Blend({"a": 0.5, "b": 0.3, "c": 0.2}).at, 3, BatchSchedule(4))
        >>> [q.counts_at(s).tolist() for s in range(5)], q.starts_at(5)
        ([[2, 1, 1], [2, 1, 1], [2, 2, 0], [2, 1, 1], [2, 1, 1]], array([10,  6,  4]))
    """

    def __init__(
        self,
        weights: WeightsAt,
        components: int,
        batch: BatchSchedule,
        limits: Sequence[int | None] | None = None,
        settled: int | None = None,
        largest: Sequence[float | None] | None = None,
        start: Account | None = None,
    ) -> None:
        self._shares = Shares(weights, components, batch, limits, largest)
        self.components, self.batch = components, batch
        self._weights, self._settled = weights, settled
        if start is None:
            zero = np.zeros(components, np.int64)
            start = Account(zero, zero, zero)
        self._before = int(start.drawn.sum())
        self._walk = Walk(self._shares, components, batch, self._before)
        promised = 1 - 1 / (4 * (components - 1)) if components > 1 else 0.0
        # All caches may be filled by several threads at once without a lock: whoever comes second stores equal values.
        self._anchors: dict[int, _Anchor] = {}
        self._chunks: list[int] = []
        self._end: int | None = None
        self._keep(0, _Anchor(start.whole, start.part, start.drawn, 0, promised, self._calm(start, 0, None)))
        self._tables: list[tuple[int, _Walked] | None] = [None] * _TABLES

    @property
    def late_steps(self) -> int:
        """Steps, of those prepared so far, at which some component was a full example or more off its share."""
        return self._anchors[self._chunks[-1]].late

    @property
    def worst_deviation(self) -> float:
        """Examples; at no step prepared so far was a component further off its share."""
        return self._anchors[self._chunks[-1]].worst

    def counts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in ``step``.

        Raises:
            IndexOutOfRangeError: the mixture ends before it, or it is no step.
        """
        table, row = self._locate(step, counts=True)
        return table[row + 1] - table[row]

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        table, row = self._locate(step, counts=False)
        return table[row].copy()

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order: each spread evenly over the step."""
        return even_rows(self.counts_at(step))

    def tables_between(self, first: int, stop: int) -> tuple[Int32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Component and ordinal of each row of the steps ``first .. stop``, which have one size, in stream order."""
        parts: list[Int64[np.ndarray, "m d"]] = []
        step = first
        while step < stop:
            table, row = self._locate(step, counts=True)
            taken = min(stop - step, len(table) - 1 - row)
            parts.append(table[row : row + taken + 1])
            step += taken
        component, rank = even_tables(np.concatenate([np.diff(p, axis=0) for p in parts]))
        starts = np.concatenate([p[:-1] for p in parts])
        return component.ravel(), (np.take_along_axis(starts, component, 1) + rank).ravel()

    def prepare(self, steps: int) -> None:
        """Extend the anchors so that any step up to ``steps`` takes bounded time."""
        if steps > 0:
            self._check(steps - 1)
            self._extend(-(-steps // CHUNK))

    def account_at(self, step: int) -> Account:
        """What the components should have and have before ``step``."""
        drawn, (chunk, row) = self.starts_at(step), divmod(int(step), CHUNK)
        anchor = self._anchors[chunk]
        if row == 0:
            return anchor
        shares = self._shares.run(anchor.whole, anchor.part, chunk * CHUNK, row)
        return Account(shares.whole[-1], shares.part[-1], drawn)

    def anchor_at(self, step: int) -> Anchor:
        """The state from which another process with an equal quota goes on to ``step`` in 1 ms. JSON values.

        Raises:
            IndexOutOfRangeError: the mixture ends before it, or it is no step.
        """
        self._locate(step, counts=False)
        chunk = int(step) // CHUNK
        held = self._anchors[chunk]
        arrays = {name: getattr(held, name).tolist() for name in ("whole", "part", "drawn")}
        return {"step": chunk * CHUNK, **arrays, "late": held.late, "worst": held.worst}

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """Take over what :meth:`anchor_at` of an equal quota gave.

        Raises:
            ConfigError: it is no anchor, or one of another quota as far as that can be seen.
        """
        step = anchor_integer(anchor, "step", multiple=CHUNK, most=MAX_STEP)
        total = self._before + self.batch.rows_at(step)[0]
        drawn, part = (anchor_integers(anchor, name, self.components) for name in ("drawn", "part"))
        whole = anchor_integers(anchor, "whole", self.components, signed=True)
        anchor_sum(drawn, total, "drawn")
        if (part > PART).any():
            raise refused("has no 'part' that can be")
        anchor_sum(part, (total - int(whole.sum())) << BITS, "part")
        late, worst = anchor_integer(anchor, "late"), anchor_number(anchor, "worst")
        calm = self._calm(Account(whole, part, drawn), step // CHUNK, None)
        self._keep(step // CHUNK, _Anchor(whole, part, drawn, late, worst, calm))

    def supply(self) -> Int64[np.ndarray, " d"]:
        """Examples of each component in the whole run, ``UNLIMITED`` for those drawn for ever.

        Walks to where the weights settle, or to the end if there is one: 2 us a step.
        """
        weights, settled = self._weights(np.array([MAX_STEP], np.int64))[0], self._settled or 0
        endless = self._shares.can_fill((weights > 0) & (self._shares.limits == UNLIMITED))
        stop = settled + 1
        while (end := self.find_end(stop)) is None and not endless:
            stop *= 2
        if end is not None:
            return self.starts_at(end)
        return np.where(weights > 0, self._shares.limits, self.starts_at(settled))

    def find_end(self, stop: int) -> int | None:
        """The first step that cannot be filled, as all with weight are used up or may not have more of it; None if not
        before ``stop``.

        Example:
            >>> from headrace.index.blend import Blend
            >>> q = Quota(Blend({"a": 1, "b": 1}).at, 2, BatchSchedule(8), limits=[10, 25])
            >>> q.find_end(100), q.starts_at(4)
            (4, array([10, 22]))
        """
        self._extend(-(-stop // CHUNK))
        return self._end if self._end is not None and self._end < stop else None

    def _check(self, step: int) -> None:
        if not 0 <= step < MAX_STEP:
            raise IndexOutOfRangeError("is not a step", field="step", value=step, cure="Steps count from 0 to 2**40.")

    def _locate(self, step: int, counts: bool) -> tuple[Int64[np.ndarray, "m d"], int]:
        """The table of the step's chunk, and the step's row in it, after which there is one more for its ``counts``."""
        self._check(step)
        chunk, row = divmod(int(step), CHUNK)
        self._extend(chunk)
        table = self._walked(chunk).table if chunk in self._anchors else None
        if table is None or row + counts >= len(table):
            raise IndexOutOfRangeError(
                f"the mixture ends at step {self._end}: the components that have weight then have too few examples left"
                " for it, or may have no more of it",
                field="step",
                value=step,
                cure="Allow more epochs, a larger budget or share, or other sources, or train for fewer steps.",
            )
        return table, row

    def _walked(self, chunk: int) -> _Walked:
        """A chunk, walked for its table and for the anchor behind it in one go; the latest are kept."""
        held = self._tables[chunk % _TABLES]
        if held is not None and held[0] == chunk:
            return held[1]
        anchor = self._anchors[chunk]
        plan = self._walk.plan(anchor, chunk * CHUNK)
        off: list[float] = []
        drawn = self._walk.drawn(anchor, plan, off)
        following = None
        if len(drawn) < CHUNK:
            self._end = chunk * CHUNK + len(drawn)
        else:
            late, worst = anchor.late + sum(o >= 1 for o in off), max(anchor.worst, *off, 0.0)
            after = Account(plan.shares.whole[-1].copy(), plan.shares.part[-1].copy(), drawn[-1].copy())
            calm = self._calm(after, chunk + 1, anchor)
            following = _Anchor(after.whole, after.part, after.drawn, late, worst, calm)
        walked = _Walked(np.concatenate([anchor.drawn[None], drawn]), following)
        self._tables[chunk % _TABLES] = (chunk, walked)
        return walked

    def _extend(self, chunk: int) -> None:
        """Make the anchor of ``chunk``, unless the mixture ends before it."""
        if self._end is not None:
            chunk = min(chunk, self._end // CHUNK)
        at = self._chunks[bisect_right(self._chunks, chunk) - 1]
        while at < chunk and (self._end is None or (at + 1) * CHUNK <= self._end):
            far = self._far(at, chunk)
            if far is not None:
                at = far
                continue
            following = self._walked(at).following
            if following is None:
                return
            at += 1
            self._keep(at, following)

    def _keep(self, chunk: int, anchor: _Anchor) -> None:
        if chunk not in self._anchors:
            self._anchors[chunk] = anchor
            insort(self._chunks, chunk)  # after the anchor, for other threads; a chunk that is in it twice does no harm

    def _calm(self, account: Account, chunk: int, before: _Anchor | None) -> int:
        """Examples of the run from which on its beginning does not matter, see :mod:`headrace.index.quota_far`."""
        if self._settled is None or chunk * CHUNK < self._settled:
            return NEVER
        used_up = account.whole >= self._shares.limits
        if before is not None and before.calm < NEVER and (used_up == (before.whole >= self._shares.limits)).all():
            return before.calm
        idle = used_up | (self._weights(np.array([self._settled], np.int64))[0] == 0)
        if idle.any() and (account.part[idle].any() or (account.whole - account.drawn)[idle].any()):
            return NEVER  # they are owed something, or have had too much, and the others wait for it
        run = self._shares.run(account.whole, account.part, chunk * CHUNK, 1)
        wait = quota_far.longest_wait(run.rate[0]) if run.filled else NEVER
        if wait == NEVER:
            return NEVER
        off = int(np.abs(account.drawn - account.whole)[~idle].max()) + 1
        return self._examples(chunk) + 2 * (off + 1) * wait

    def _far(self, at: int, chunk: int) -> int | None:
        """Make the anchor of a chunk up to ``chunk`` without all between it and ``at``; None if it takes the walk."""
        anchor, here = self._anchors[at], self._examples(at)
        if chunk - at < _FAR or anchor.calm > here:
            return None
        run = self._shares.run(anchor.whole, anchor.part, at * CHUNK, 1)
        if not run.filled:
            return None
        rate, idle = run.rate[0], run.rate[0] == 0
        room = quota_far.room_before_limits(anchor.whole, anchor.part, rate, self._shares.limits)
        if room < 0:
            return None
        if room < NEVER:
            chunk = min(chunk, self._chunk_of(here + room))
        begin = self._chunk_of(max(self._examples(chunk) - 2 * quota_far.longest_wait(rate), 0))
        if begin <= at + 1:
            return None
        whole, part = quota_far.shares_after(anchor.whole, anchor.part, rate, self._examples(begin) - here)
        whole, part = np.where(idle, anchor.whole, whole), np.where(idle, anchor.part, part)
        total = self._before + self._examples(begin)
        guess = quota_far.due_first(whole, part, rate, anchor.drawn, total, self._walk.delta, self._walk.id_bits)
        if guess is None:
            return None
        now = _Anchor(whole, part, guess, anchor.late, anchor.worst, anchor.calm)
        for number in range(begin, chunk):
            off: list[float] = []
            plan = self._walk.plan(now, number * CHUNK)
            drawn = self._walk.drawn(now, plan, off)
            if len(drawn) < CHUNK or any(o >= 1 for o in off):
                return None
            now = _Anchor(plan.shares.whole[-1], plan.shares.part[-1], drawn[-1], now.late, now.worst, now.calm)
        self._keep(chunk, now)
        return chunk

    def _examples(self, chunk: int) -> int:
        """Examples of all steps before a chunk."""
        return self.batch.rows_at(chunk * CHUNK)[0]

    def _chunk_of(self, examples: int) -> int:
        """The last chunk that begins before, or with, the example of this number."""
        return int(self.batch.step_of(np.array([examples]))[0]) // CHUNK
