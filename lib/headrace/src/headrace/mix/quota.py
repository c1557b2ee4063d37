"""``Quota``: how many examples of each component every step holds, exactly on the schedule.

Let ``W_d(s)`` be the share that component d should have had up to and including step s: the sum of
batch size times normalised weight over the steps. ``Quota`` hands out whole examples such that, for
the counts ``N_d(s)``,

* every step's counts sum to its batch size, none is negative, and a component of weight 0 gets
  nothing;
* step s depends only on weights and batch sizes of steps <= s, so that a run can be changed from a
  step on;
* ``|N_d(s) - W_d(s)| <= 1 - 1/(4(D-1))`` for constant weights and any batch schedule (D components,
  D > 1);
* the same for changing weights, except after abrupt changes that make it impossible: no rule that
  does not know the future can do it always. (One example a step; weights 1/4, 1/4, 1/4, 1/4, then
  nothing for the one that was drawn and 1/3 for the others, then nothing for the one drawn next and
  1/2 for the others: two of them are due at once, and as nothing can be taken back, one of them
  stays late every second step.) Then the least late component waits, is served first, and
  :attr:`Quota.late_steps` counts the steps at which some component was a full example or more off.
  Measured (``python tests/mix/test_quota.py``): none in ramps of 40 skewed components over 20,000
  steps; with all weights drawn anew every 100 steps, 1 step in 2,000 to 5,000 with 8 components, by
  at most 0.3 examples over the bound, and 1 in 70,000 with 40.

How a step is counted, with a margin delta = 1/(4(D-1)):

1. Add batch size times weight to each share W_d.
2. Draw what is *due*: component d must have ``floor(W_d + delta)`` examples by now.
3. Those *may* have their next example early whose share is at least delta above a whole number, and
   who do not have it yet.
4. Order these by *deadline*: how many examples of the mixture it takes, **at the current rates**,
   until the next one is due. Draw for the earliest ones until the step is full.

For constant weights, earliest deadline first meets all deadlines if they can be met. The margin is
half of what Tijdeman proves possible, and keeps rounding out of the promise.

With pencil and paper: weights 0.5, 0.3, 0.2, four examples a step. So delta = 1/8::

    step  W after it      due      may, with its deadline        N       counts
    0      2    1.2  0.8   2 1 0   c .075/.2 = 0.4, b .675/.3    2 1 1   2 1 1
    1      4    2.4  1.6   4 2 1   c .275/.2 = 1.4, b .475/.3    4 2 2   2 1 1
    2      6    3.6  2.4   6 3 2   b .275/.3 = 0.9, c .475/.2    6 4 2   2 2 0
    3      8    4.8  3.2   8 4 3   b .075/.3 = 0.3, c .675/.2    8 5 3   2 1 1
    4     10    6    4    10 6 4   none, and none is needed     10 6 4   2 1 1

(In step 0, c becomes due when W_c + 1/8, now 0.925, reaches 1: that takes 0.075 / 0.2 examples.)
The example of :class:`Quota` has these counts.

How that is made fast and exact: integers only. Normalised weights are multiples of 2**-44 that sum
to 1, so W is kept as a whole part and 44 bits, with carry. At any step a component has
``floor(W_d + delta)`` examples or one more: the state is one bit a component, and compiled code
walks the steps (``native/quota.c``). The state at the begin of a chunk of steps is an *anchor*; a
step is found by walking from the last anchor before it, at most 4,096 steps.

Price: 1,000,000 steps of 200 ramped components in 0.8 s and 1 MB (0.15 s of 20 components);
afterwards any step in some ms, neighbours in 1 us. While weights are constant, no steps
are walked: any step up to 2**40 takes some ms (mix/quota_walk.py). A weight so small that a step
would take more than about a second, or weights that change for so long that a step would take
minutes, are refused. :meth:`Quota.anchor_at` saves the state of a step for another process.

**What the rounding of weights means.** Counts follow the weights as multiples of 2**-44 (5.7e-14),
exactly and for ever. Against the real numbers a share drifts by up to 2**-45 of the examples drawn,
that of the largest weight by D times as much. With 1,024 rows per batch: 3e-8 examples after 1,000
steps, 3e-5 after 1e6, 29 (of 1e15) after 1e12. A positive weight below 2**-44 counts as 2**-44: one
of 1e-15 gets 58 examples by step 1e12 in place of 1.

References: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980); Baruah,
Cohen, Plaxton, Varvel, "Proportionate progress: a notion of fairness in resource allocation",
Algorithmica 15 (1996).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64, UInt

from headrace.errors import IndexOutOfRangeError
from headrace.mix.blend import LinesAt, WeightsAt
from headrace.mix.policy import (
    Anchor,
    MixingPolicy,
    anchor_integer,
    anchor_integers,
    anchor_sum,
    refused,
)
from headrace.mix.quota_walk import (
    CHUNK,
    Reach,
    Walk,
    Walked,
    due_first,
    longest_wait,
    may_be_early,
)
from headrace.mix.schedule import MAX_STEP, BatchSchedule
from headrace.mix.shares import BITS, NEVER, PART, UNLIMITED, Account, Shares

_TABLES = 16
"""Chunks of counts that are kept: neighbours of a step, and what several readers ask for."""
_TABLE_BYTES = 1 << 20
"""Of many components, fewer are kept, but at least the step's and the one before."""
_STRIDE = 16
"""Chunks between two anchors on the way to a far step."""
_FAR = 32
"""Chunks from which on it may pay not to walk."""


@dataclass(frozen=True)
class _Anchor(Account):
    """The state before a step: the account, and at how many steps it was a full example off."""

    late: int
    calm: int
    """Examples of the run from which on its beginning does not matter, if weights stay constant."""


class _Drawn(NamedTuple):
    """Examples drawn before each step of a chunk and after the last, one row more than steps that
    can be filled: those before the first, and in narrow numbers those since.
    """

    before: Int64[np.ndarray, " d"]
    since: UInt[np.ndarray, "m d"]

    @classmethod
    def of(cls, counts: Int64[np.ndarray, "m d"]) -> _Drawn:
        before = counts[0].copy()  # a view would keep them all
        since = np.empty(counts.shape, np.min_scalar_type(int((counts[-1] - before).max())))
        np.subtract(counts, before, out=since, casting="unsafe")  # nothing of their size between
        return cls(before, since)

    def rows(self, start: int, stop: int) -> Int64[np.ndarray, "n d"]:
        return self.before + self.since[start:stop]


_Chunk: TypeAlias = tuple[_Drawn, _Anchor | None]
"""The counts of a chunk, and the state behind it, None if the mixture ends in it."""


class Quota(MixingPolicy):
    """Exact counts of each component at each step. Thread-safe; random access through anchors,
    extended on demand.

    Args:
        weights: Steps -> rows of weights that sum to 1, e.g. ``Blend.at``.
        components: Number of components D, 1 to 4096; or their names, for errors.
        batch: Examples per step.
        limits: Largest number of examples of each component in the whole run, None for no limit. A
            component is drawn exactly up to its limit; the others then share its weight in
            proportion to theirs.
        settled: Step from which on the weights are constant, None if unknown: every step is then
            counted.
        largest: Largest share of each component in a step, None for no limit.
        start: The account before step 0; by default nothing. Limits and all counts include it.
        row_tokens: Mean tokens per row of each component, if weights and ``largest`` are shares of
            tokens; None: they are shares of rows.
        lines: The lines that weights follow, if they do: far steps are then counted in less time.

    Raises:
        ConfigError: no component, too many, a batch above 2**18, limits that do not fit; later also
            a step that is too far to count up to.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> q = Quota(Blend({"a": 0.5, "b": 0.3, "c": 0.2}).at, 3, BatchSchedule(4))
        >>> [q.counts_at(s).tolist() for s in range(5)], q.starts_at(5)
        ([[2, 1, 1], [2, 1, 1], [2, 2, 0], [2, 1, 1], [2, 1, 1]], array([10,  6,  4]))
    """

    name = "quota"
    follows_sizes = False

    def __init__(
        self,
        weights: WeightsAt,
        components: int | Sequence[str],
        batch: BatchSchedule,
        limits: Sequence[int | None] | None = None,
        settled: int | None = None,
        largest: Sequence[float | None] | None = None,
        start: Account | None = None,
        row_tokens: Sequence[float] | None = None,
        lines: LinesAt | None = None,
    ) -> None:
        names = [str(d) for d in range(components)] if isinstance(components, int) else components
        self._reach = Reach(names)
        components = len(names)
        self._shares = Shares(weights, components, batch, limits, largest, row_tokens, lines)
        self.components = components
        self.batch = batch
        self._weights = weights
        self._settled = settled
        start = start or Account.empty(components)
        self._before = int(start.drawn.sum())
        self._walk = Walk(self._shares, components, batch, self._before)
        self._no_counts = np.empty((0, components), np.int64)
        # Several threads may fill the caches at once without a lock: they store equal values.
        self._anchors: dict[int, _Anchor] = {}
        self._chunks: list[int] = []
        self._end: int | None = None
        self._last_is_partial = False
        self._keep(0, self._anchored(start, 0, 0, None))
        fitting = _TABLE_BYTES // (2 * CHUNK * components)
        self._tables: list[tuple[int, _Chunk] | None] = [None] * min(max(fitting, 2), _TABLES)

    @property
    def late_steps(self) -> int:
        """Number of steps, of those prepared so far, at which some component was at least one
        example off its share.
        """
        return self._anchors[self._chunks[-1]].late

    def counts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in ``step``."""
        drawn, row = self._locate(step, counts=True)
        at_begin, at_end = drawn.rows(row, row + 2)
        return at_end - at_begin

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        drawn, row = self._locate(step, counts=False)
        return drawn.rows(row, row + 1)[0]

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order: each spread evenly over the step."""
        return even_rows(self.counts_at(step))

    def tables_between(
        self, first: int, stop: int
    ) -> tuple[Int32[np.ndarray, " n"], Int64[np.ndarray, " n"]] | None:
        """Component and ordinal of each row of the steps ``first .. stop``, in stream order.

        The steps have one size. None if the last of them is the last of the mixture, which holds
        fewer.
        """
        parts: list[Int64[np.ndarray, "m d"]] = []
        step = first
        while step < stop:
            drawn, row = self._locate(step, counts=True)
            rows = min(stop - step, len(drawn.since) - 1 - row)
            parts.append(drawn.rows(row, row + rows + 1))
            step += rows
        if stop == self._end and self._last_is_partial:
            return None
        # A row's ordinal: its component's examples before the step, and its rank within the step
        component, rank = even_tables(np.concatenate([np.diff(p, axis=0) for p in parts]))
        starts = np.concatenate([p[:-1] for p in parts])
        at = component + np.arange(len(starts))[:, None] * starts.shape[1]
        return component.ravel(), (starts.ravel()[at] + rank).ravel()

    def prepare(self, steps: int) -> None:
        """Extend the anchors so that any step up to ``steps`` takes bounded time."""
        if steps > 0:
            self._check(steps - 1)
            self._extend(-(-steps // CHUNK))

    def account_at(self, step: int) -> Account:
        """The account of the components before ``step``: what they should have, and
        what they have.
        """
        drawn = self.starts_at(step)
        (chunk, row) = divmod(int(step), CHUNK)
        anchor = self._anchors[chunk]
        if row == 0:
            return anchor
        shares = self._shares.run(anchor, chunk * CHUNK, row)
        return Account(shares.whole[-1], shares.part[-1], drawn)

    def anchor_at(self, step: int) -> Anchor:
        """The state from which another process with an equal quota reaches ``step`` in 1 ms, as
        JSON values.
        """
        self._locate(step, counts=False)
        chunk = int(step) // CHUNK
        state = self._anchors[chunk]
        arrays = {name: getattr(state, name).tolist() for name in ("whole", "part", "drawn")}
        return {"step": chunk * CHUNK, **arrays, "late": state.late}

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        step = anchor_integer(anchor, "step", multiple=CHUNK, most=MAX_STEP)
        total = self._before + self.batch.rows_at(step)[0]
        drawn, part = (anchor_integers(anchor, name, self.components) for name in ("drawn", "part"))
        integers = anchor_integers(anchor, "whole", self.components, signed=True)
        anchor_sum(drawn, total, "drawn")
        if (part > PART).any():
            raise refused("has no 'part' that can be")
        anchor_sum(part, (total - int(integers.sum())) << BITS, "part")
        late = anchor_integer(anchor, "late")
        chunk = step // CHUNK
        self._keep(chunk, self._anchored(Account(integers, part, drawn), chunk, late, None))

    def supply(self) -> Int64[np.ndarray, " d"]:
        """See :class:`~headrace.mix.policy.MixingPolicy`; walks to where the weights settle, or to
        the end.
        """
        weights = self._weights(np.array([MAX_STEP], np.int64))[0]
        settled = self._settled or 0
        endless = self._shares.can_fill((weights > 0) & (self._shares.limits == UNLIMITED))
        stop = settled + 1
        while (end := self.find_end(stop)) is None and not endless:
            stop *= 2
        if end is not None:
            return self.starts_at(end)
        return np.where(weights > 0, self._shares.limits, self.starts_at(settled))

    def find_end(self, stop: int) -> int | None:
        """The first step before ``stop`` for which nothing is left: all with weight are used up or
        at their largest share. The step before it may hold fewer examples than a batch.

        Example:
            >>> from headrace.mix.blend import Blend
            >>> q = Quota(Blend({"a": 1, "b": 1}).at, 2, BatchSchedule(8), limits=[10, 25])
            >>> q.find_end(100), q.starts_at(4), q.counts_at(4)
            (5, array([10, 22]), array([0, 3]))
        """
        self._extend(-(-stop // CHUNK))
        return self._end if self._end is not None and self._end < stop else None

    def _check(self, step: int) -> None:
        if not 0 <= step < MAX_STEP:
            raise IndexOutOfRangeError(
                "is not a step", field="step", value=step, cure="Steps count from 0 to 2**40."
            )

    def _locate(self, step: int, counts: bool) -> tuple[_Drawn, int]:
        """The counts of the step's chunk, and the step's row in them.

        After that row there is one more if its ``counts`` are asked for.
        """
        self._check(step)
        chunk, row = divmod(int(step), CHUNK)
        self._extend(chunk)
        if row == 0 < step == self._end:  # behind the last row of the chunk before
            chunk -= 1
            row = CHUNK
        drawn = self._walk_chunk(chunk)[0] if chunk in self._anchors else None
        if drawn is None or row + counts >= len(drawn.since):
            raise IndexOutOfRangeError(
                f"the mixture ends at step {self._end}: the components that have weight then have"
                " too few examples left for it, or may have no more of it",
                field="step",
                value=step,
                cure="Allow more epochs, a larger budget or share, or other sources, or train for"
                " fewer steps.",
            )
        return drawn, row

    def _walk_chunk(self, chunk: int) -> _Chunk:
        """A chunk, walked for its table and for the anchor behind it in one go; the latest are
        kept.
        """
        entry = self._tables[chunk % len(self._tables)]
        if entry is not None and entry[0] == chunk:
            return entry[1]
        anchor = self._anchors[chunk]
        counts = np.empty((1 + CHUNK, self.components), np.int64)
        counts[0] = anchor.drawn
        walked = self._walk.walk(anchor, chunk * CHUNK, CHUNK, counts[1:])
        following = None
        if walked.steps < CHUNK:
            counts = self._with_rest(counts[: walked.steps + 1], chunk * CHUNK)
            self._end = chunk * CHUNK + len(counts) - 1
        else:
            following = self._anchor_behind(chunk, chunk + 1, walked)
        chunk_counts = _Drawn.of(counts), following
        self._tables[chunk % len(self._tables)] = (chunk, chunk_counts)
        return chunk_counts

    def _walk_far(self, chunk: int) -> _Anchor | None:
        """The anchor many chunks behind another, None if the mixture ends before it."""
        steps = _STRIDE * CHUNK
        walked = self._walk.walk(self._anchors[chunk], chunk * CHUNK, steps, self._no_counts)
        return None if walked.steps < steps else self._anchor_behind(chunk, chunk + _STRIDE, walked)

    def _anchor_behind(self, before: int, chunk: int, walked: Walked) -> _Anchor:
        """The anchor of a chunk, to which one walked from another."""
        anchor = self._anchors[before]
        return self._anchored(walked.account, chunk, anchor.late + walked.late, anchor)

    def _anchored(self, account: Account, chunk: int, late: int, before: _Anchor | None) -> _Anchor:
        calm = self._calm_from(account, chunk, before)
        return _Anchor(account.whole, account.part, account.drawn, late, calm)

    def _with_rest(
        self, counts: Int64[np.ndarray, "m d"], first_step: int
    ) -> Int64[np.ndarray, "n d"]:
        """Counts before and after each step, and those after the mixture's last steps, which hold
        what is left.

        Almost always that is one step with fewer examples than its batch. A component that was
        served late because its weight was 0 for a time may be owed more: then there is a full step
        before.
        """
        rows = list(counts)
        while len(rows) <= CHUNK:
            rows_before = rows[-1]
            step = first_step + len(rows) - 1
            # What is left goes in the order of the components, until the step is full
            rest = self._shares.rest(step, rows_before)
            size = int(self.batch.size_at(np.array([step]))[0])
            rows_taken = np.diff(np.minimum(np.cumsum(rest), size), prepend=0)
            if not rows_taken.any():
                break
            rows.append(rows_before + rows_taken)
            if rows_taken.sum() < size:
                self._last_is_partial = True
                break
        return np.array(rows)

    def _extend(self, chunk: int) -> None:
        """Make the anchor of ``chunk``, unless the mixture ends before it.

        From the last anchor before it: by a jump if one may, else by walking chunk after chunk.
        """
        if self._end is not None:
            chunk = min(chunk, self._end // CHUNK)
        at = self._chunks[bisect_right(self._chunks, chunk) - 1]
        while at < chunk and (self._end is None or (at + 1) * CHUNK <= self._end):
            reached = self._jump(at, chunk)
            if reached is not None:
                at = reached
                continue
            if self._reach.is_far(at, chunk):
                self._check_reach(at, chunk)
            # Far ahead, one anchor for many chunks; near, or where the mixture ends, one for each
            stride = _STRIDE if chunk - at > _STRIDE else 1
            following = self._walk_far(at) if stride > 1 else None
            if following is None:
                stride = 1
                following = self._walk_chunk(at)[1]
            if following is None:
                return
            at += stride
            self._keep(at, following)

    def _keep(self, chunk: int, anchor: _Anchor) -> None:
        if chunk not in self._anchors:
            self._anchors[chunk] = anchor
            # After the anchor, for other threads; a chunk that is in it twice does no harm
            insort(self._chunks, chunk)

    def _calm_from(self, account: Account, chunk: int, before: _Anchor | None) -> int:
        """Examples of the run from which on its beginning does not matter; ``NEVER``: it may.

        See :mod:`headrace.mix.quota_walk` for why it does not.
        """
        # 1. Only constant weights forget, and only if no largest share binds
        if self._settled is None or chunk * CHUNK < self._settled:
            return NEVER
        if self._shares.may_fill_largest(account, chunk * CHUNK):
            return NEVER
        # 2. What was told at the anchor before holds until another component is used up
        used_up = account.whole >= self._shares.limits
        if (
            before is not None
            and before.calm != NEVER
            and (used_up == (before.whole >= self._shares.limits)).all()
        ):
            return before.calm
        # 3. A state in which nothing is owed is a beginning like any other
        weights, last = self._weights(np.array([self._settled, MAX_STEP], np.int64))
        if (
            not account.part.any()
            and (account.whole == account.drawn).all()
            and (weights == last).all()
        ):
            return self._examples(chunk)
        # 4. If components without weight are owed something, or have had too much, the others can
        #    be off for ever
        idle = used_up | (weights == 0)
        if idle.any() and (account.part[idle].any() or (account.whole - account.drawn)[idle].any()):
            return NEVER
        # 5. Else it takes the waits in which every component gets what it is off, and as many again
        run = self._shares.run(account, chunk * CHUNK, 1)
        if not run.filled:
            return NEVER
        off = int(np.abs(account.drawn - account.whole)[~idle].max()) + 1
        return self._examples(chunk) + 2 * (off + 1) * longest_wait(run.rate[0])

    def _jump(self, at: int, chunk: int) -> int | None:
        """Make the anchor of a chunk up to ``chunk`` without all between it and ``at``.

        None if it takes the walk. Numbers are those of the steps in :mod:`headrace.mix.quota_walk`.
        """
        # Is it far, and is the beginning forgotten?
        anchor = self._anchors[at]
        examples = self._examples(at)
        if chunk - at < _FAR or anchor.calm > examples:
            return None
        run = self._shares.run(anchor, at * CHUNK, 1)
        if not run.filled:
            return None
        rate = run.rate[0]
        # Not past the point where a component comes near its limit: rates change there
        room = anchor.room_before(self._shares.limits, rate)
        if room < 0:
            return None
        if room < NEVER:
            chunk = min(chunk, self._chunk_of(examples + room))
        # 1. Where to guess, and the shares there
        begin, account = self._find_begin(anchor, at, chunk, rate)
        self._reach.check_replay(begin, chunk, rate, self._examples(chunk) / max(chunk, 1))
        if begin <= at + 1:
            return None
        # 2. The guess
        total = self._before + self._examples(begin)
        guess = due_first(account, rate, total, self._walk.delta, self._walk.id_bits)
        if guess is None:
            return None
        # 3. The walk from there. If a component is ever a full example off, the guess was no state
        #    that a quota can be in
        now = replace(account, drawn=guess)
        for number in range(begin, chunk):
            walked = self._walk.walk(now, number * CHUNK, CHUNK, self._no_counts)
            if walked.steps < CHUNK or walked.late:
                return None
            now = walked.account
        self._keep(chunk, _Anchor(now.whole, now.part, now.drawn, anchor.late, anchor.calm))
        return chunk

    def _find_begin(
        self, anchor: _Anchor, at: int, chunk: int, rate: Int64[np.ndarray, " d"]
    ) -> tuple[int, Account]:
        """The chunk from which a guess is exact at ``chunk``, or ``at``; and the account before it,
        with what was drawn before ``at``.

        Twice the longest wait before ``chunk``, of the components that need a guess there. Which
        ones do depends on where that is, so it is searched for: back by a tenth more each time.
        """
        back = 1.0
        while (begin := chunk - int(back)) > at:
            account = anchor.after(rate, self._examples(begin) - self._examples(at))
            early = may_be_early(account.part, rate, self._walk.delta)
            if self._examples(chunk) - self._examples(begin) >= 2 * longest_wait(
                np.where(early, rate, 0)
            ):
                return begin, account
            back *= 1.1
        return at, anchor

    def _check_reach(self, at: int, chunk: int) -> None:
        """Raises ConfigError if the walk to a chunk, or to where one may jump, takes too long."""
        anchor = self._anchors[at]
        last = self._examples(chunk)
        if self._settled is None or anchor.calm == NEVER:
            settled = -(-(self._settled or MAX_STEP) // CHUNK)
            self._reach.check_walk(at, min(settled, chunk) if settled > at else chunk)
            return
        examples = self._examples(at)
        rate = self._shares.run(anchor, at * CHUNK, 1).rate[0]
        # Where it is calm already but cannot jump, a limit is near, which is reached by then
        calm = anchor.calm if anchor.calm > examples else examples + 4 * longest_wait(rate)
        if self._reach.is_far(at, self._chunk_of(min(calm, last))):
            raise self._reach.too_rare(rate, last / chunk)

    def _examples(self, chunk: int) -> int:
        """Examples of all steps before a chunk."""
        return self.batch.rows_at(chunk * CHUNK)[0]

    def _chunk_of(self, examples: int) -> int:
        """The last chunk that begins before, or with, the example of this number."""
        return int(self.batch.step_of(np.array([examples]))[0]) // CHUNK


def even_rows(counts: Int64[np.ndarray, " d"]) -> Int32[np.ndarray, " b"]:
    """Components in the order of a step's rows, each spread evenly over it.

    The k-th of n examples stands at (k + 1/2) / n of the step; ties go by component.

    Example:
        Four of component 0 stand at 1/8, 3/8, 5/8 and 7/8, two of component 2 at 1/4 and 3/4.

        >>> even_rows(np.array([4, 0, 2]))
        array([0, 2, 0, 0, 2, 0], dtype=int32)
    """
    return even_tables(counts[None])[0][0]


def even_tables(
    counts: Int64[np.ndarray, "m d"],
) -> tuple[Int32[np.ndarray, "m b"], Int64[np.ndarray, "m b"]]:
    """:func:`even_rows` of m steps of one size b, and each row's rank in its component and step.

    Example:
        >>> components, ranks = even_tables(np.array([[4, 0, 2], [1, 5, 0]]))
        >>> components.tolist()
        [[0, 2, 0, 0, 2, 0], [1, 1, 0, 1, 1, 1]]
        >>> ranks.tolist()
        [[0, 0, 1, 2, 1, 3], [0, 1, 0, 2, 3, 4]]
    """
    steps, components = counts.shape
    of_each = counts.ravel()
    component = np.repeat(np.tile(np.arange(components, dtype=np.int32), steps), of_each)
    first_of_each = np.cumsum(of_each) - of_each
    rank = np.arange(component.size, dtype=np.int64) - np.repeat(first_of_each, of_each)
    # 43 bits of (2k + 1) / (2 count) tell all places apart, which differ by 2**-35 at least. The
    # row's number below them (18 bits: a batch has at most 2**18 rows) makes the sort total
    key = ((2 * rank + 1) << 42) // np.repeat(of_each, of_each)
    first = np.arange(steps)[:, None] * (component.size // max(steps, 1))
    key = key.reshape(first.size, -1) << 18
    key |= np.arange(key.shape[1])
    key.sort(axis=1)
    order = (key & ((1 << 18) - 1)) + first
    return component[order], rank[order]
