"""What a ``Quota`` draws in a chunk of steps; and far steps without the walk there.

The rule, its promises and an example by hand are in :mod:`headrace.mix.quota`; comments here and in
``native/quota.c``, which walks, have the numbers of its steps. At any step a component has what is
due or one example more, so the state is one bit a component. Where a bit is not enough, after a
change of weights that makes the promises impossible, ``Walk._settle`` does the step in full
generality. Price: a step of 200 components takes 0.8 us where weights
follow straight lines from one step to another, 8 us where they have to be evaluated with numpy
(nested blends, limits, largest shares, tokens); of 20 components, 0.15 and 1.

**Far steps: the order forgets how it began.** While weights are constant, the state before a far
step is reached without the steps between. P is the longest wait: 1 / the smallest weight, the
examples of the mixture for one of the rarest component.

1. Go to 2 P examples before the step. Shares there are weights times examples, in whole numbers.
2. Guess what was drawn by then: what is due, and of the rest what is due first (:func:`due_first`).
3. Walk the 2 P examples from the guess.

By hand, for the example of :mod:`headrace.mix.quota`: after 12 examples the shares are 6, 3.6 and
2.4, so 6 + 3 + 2 are due, and the twelfth is b's, whose next one is due first: 6, 4, 2, as the walk
has it.

Why the guess comes right: what a quota hands out depends on the past through one bit a component,
whether its next example was drawn already. Let weights be constant from some step on, and start
from two different states there, with the same shares and as many examples drawn in all. Both serve
the same examples in the same order of deadlines, as many in each step. Take the examples that one
has drawn and the other has not. At a step, what enters this set is earlier than something that
stays in it, since both cut one order: so **the latest deadline in the set never moves**, and when
it has passed, the two are equal. An example's deadline is one example of its component away, P
examples of the mixture: a run that starts from a guess is exact after P examples, if the guess can
keep its deadlines. Drawing what is due first is such a guess, as everything that it leaves is due
later than what another state leaves.

The factor 2 is for deadlines that are compared in float64 and may change places if they differ by
less than one part in 2**36. It needs components without weight to be owed nothing (else the others
can be late for ever), no limit on the way, and P up to 2**32. Tested against the walk. Price: 2 P
examples, e.g. 20 steps if the rarest weight is 1e-4 and the batch is 1024.

**A rare component is not waited for while nobody can have served it early.** An example is drawn
before it is due only if all that are due earlier do not fill the step. Let a be how far a share is
above its last whole example. With e components that may be drawn and are due earlier than this one,
they fill the step unless the a of all D sum to e + 1 or more; each of the e adds less than 1 -
delta, each that may not be drawn less than delta, so this one and those that are due later add at
least 1 - (D - 1) delta = 3/4. Both the share of an example and the set of those due later only grow
with time: where that sum is below 0.7 now, the example was never drawn. Its state is known and
needs no guess (:func:`may_be_early`), so that a weight of 1e-9 costs nothing most of the time, and
at worst about 0.4 P examples.

**Largest shares are kept to the row.** Of a step with B examples, a component whose largest share
is m has at most ceil(m B). What is due in a step never exceeds that, but an example that is drawn
early beside it would. Whether it would depends on the step before, so the exchange above does not
hold: where a largest share can bind for ever, all steps are walked.

**What would take minutes is refused**, with a cure (:class:`Reach`): a walk of more than 2**21
steps from what is counted already, and more than 2**18 steps before a far one whose weights are
constant; fewer of many components, which take longer each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import BITS, NEVER, ONE, PART, Account, ShareRun, Shares
from headrace.native import native_library

CHUNK = 256
"""Steps between two anchors, and in one recomputed table."""
_TABLED = 1 << 16
"""Steps times components whose shares are made with numpy at a time: 2 MB."""
_LONGEST = 1 << 32
"""Longest wait for which deadlines, in float64, are exact enough."""
_MOST_WALKED = 1 << 21
"""Steps that are walked at most to one that is asked for, with up to 512 components: 4 to 40 s."""
_MOST_REPLAYED = 1 << 18
"""Steps that are walked at most before a far step, where weights are constant, up to 32 components:
below 1 s.
"""


@dataclass(frozen=True)
class Walked:
    """How many steps were walked, the account behind them, and at how many of them a component was
    a full example or more off its share.
    """

    steps: int
    account: Account
    late: int


class _State(NamedTuple):
    """An account with the margin: W + delta is ``due`` whole examples, and ``above`` * 2**-44."""

    due: Int64[np.ndarray, " d"]
    above: Int64[np.ndarray, " d"]
    drawn: Int64[np.ndarray, " d"]


@dataclass(frozen=True)
class _Span:
    """Consecutive steps whose shares are known, as straight lines of weights or as numbers."""

    step: Int64[np.ndarray, " n"]
    size: Int64[np.ndarray, " n"]
    total: Int64[np.ndarray, " n"]
    """Examples drawn in all, after each step."""
    lines: Float64[np.ndarray, "5 d"] | None
    shares: ShareRun | None
    largest: Int64[np.ndarray, "n d"] | None
    """Most examples of a step, by largest shares."""

    @property
    def filled(self) -> int:
        """Steps that can be filled: fewer than there are if the mixture ends."""
        return self.size.size if self.shares is None else self.shares.filled


class Walk:
    """Walks from any account; ``before`` examples were drawn before step 0."""

    def __init__(self, shares: Shares, components: int, batch: BatchSchedule, before: int) -> None:
        self._shares = shares
        self._components = components
        self._batch = batch
        self._before = before
        self.delta = ONE // (4 * max(components - 1, 1))
        """How far above a whole example a share must be for the next, and how far
        below it is due.
        """
        self.id_bits = max(components - 1, 1).bit_length()
        """Bits of the largest component number."""
        self._tabled = min(CHUNK, max(_TABLED // components, 1))

    def walk(
        self, anchor: Account, first: int, steps: int, counts: Int64[np.ndarray, "n d"]
    ) -> Walked:
        """Walks some steps from ``first`` on, fewer if the mixture ends.

        Examples drawn after each step are written to ``counts``, unless it has no rows.
        """
        above = anchor.part + self.delta
        state = _State(anchor.whole + (above >> BITS), above & PART, anchor.drawn.copy())
        off = np.zeros(steps)
        walked = 0
        while walked < steps:
            span = self._span(state, first + walked, steps - walked)
            steps_walked = self._walk_span(span, state, counts[walked:], off[walked:])
            walked += steps_walked
            if steps_walked < span.size.size:
                break
        late = int((off[:walked] >= 1).sum())
        return Walked(walked, self._account(state), late)

    def _account(self, state: _State) -> Account:
        part = state.above - self.delta
        return Account(state.due + (part >> BITS), part & PART, state.drawn)

    def _span(self, state: _State, first: int, steps: int) -> _Span:
        """The next steps whose shares are known together."""
        lines = self._shares.lines_at(first)
        stop = first + min(steps, self._tabled)
        pieces = None
        shares = None
        largest = None
        if lines is not None:
            stop = min(first + steps, lines.stop)
            pieces = lines.pieces
        step = np.arange(first, stop + 1)
        size = self._batch.size_at(step[:-1])
        if lines is None:
            account = self._account(state)
            shares = self._shares.run(account, first, stop - first)
            if self._shares.bounded:
                largest = self._shares.largest_rows(shares.rate, size)
        total = self._batch.offset_at(step[1:]) + self._before
        return _Span(step, size, total, pieces, shares, largest)

    def _walk_span(
        self,
        span: _Span,
        state: _State,
        counts: Int64[np.ndarray, "n d"],
        off: Float64[np.ndarray, " n"],
    ) -> int:
        """Walks a span, and returns how many steps it could fill."""
        row = 0
        while row < span.filled:
            row += self._walk_bits(span, state, row, counts, off)
            if row == span.filled:
                break
            # A bit for each component is not enough for this step
            settled = self._settle(span, state, row)
            if settled is None:
                break
            counts[row : row + 1] = settled
            off[row] = np.abs(self._deficits(state, settled)).max()
            state.drawn[:] = settled
            row += 1
        return row

    def _walk_bits(
        self,
        span: _Span,
        state: _State,
        row: int,
        counts: Int64[np.ndarray, "n d"],
        off: Float64[np.ndarray, " n"],
    ) -> int:
        """Walks a span from a row on, and returns how many steps it walked: less than all up to a
        step that a bit is not enough for. ``state`` then has the shares after that step, and what
        was drawn before it.
        """
        calls = native_library().calls
        padded = -(-self._components // 4) * 4
        lines = None
        if span.lines is not None:
            lines = np.zeros((5, padded))
            lines[1] = 1  # a line without a step would divide by 0
            lines[:, : self._components] = span.lines
        shares = span.shares
        by_step = [span.step, span.size, span.total, span.largest]
        if shares is not None:
            by_step += [shares.live, shares.rate, shares.whole, shares.part]
        arrays = [None if x is None else np.ascontiguousarray(x[row:]) for x in by_step]
        arrays += [None] * (8 - len(arrays))
        arrays += [lines, *state, off[row:], counts[row:] if len(counts) else None]
        # The fields of `Walk` in quota.c
        numbers = [span.filled - row, self._components, padded, self.delta, (1 << self.id_bits) - 1]
        addresses = [0 if array is None else array.ctypes.data for array in arrays]
        table = np.array([*numbers, *addresses], np.int64)
        scratch = np.empty((calls.quota_rows(), padded), np.int64)
        return calls.walk_quota(table.ctypes.data, scratch.ctypes.data)

    def _settle(self, span: _Span, state: _State, row: int) -> Int64[np.ndarray, " d"] | None:
        """Examples drawn after one step, for when bits do not suffice; None: it cannot be filled.

        First what is due, then what may be drawn in the order of deadlines. Where more is due than
        the batch holds, the least late wait; where less may be drawn than it holds, the least early
        are drawn.
        """
        shares = span.shares
        if shares is None:  # rates do not depend on what was drawn
            shares = self._shares.run(self._account(state), int(span.step[row]), 1)
            rate = shares.rate[0]
            live = shares.live[0]
        else:
            rate = shares.rate[row]
            live = shares.live[row]
        # 2. What is due; nothing is taken back, and without weight nothing is drawn
        end_counts = np.where(live, np.maximum(state.due, state.drawn), state.drawn)
        most = self._shares.limits
        if span.largest is not None:
            most = np.minimum(most, state.drawn + span.largest[row])
            end_counts = np.minimum(end_counts, np.maximum(most, state.drawn))
        # 3. and 4. Who may be drawn, by deadline, until the step is full
        rest = int(span.total[row] - end_counts.sum())
        if rest > 0:
            may = (state.above >= 2 * self.delta) & (rate > 0)
            may &= (end_counts == state.due) & (end_counts < most)
            order = deadline_order(state.above[None], rate[None], may[None], self.id_bits)[0]
            end_counts[order[: min(rest, may.sum())]] += 1
            rest = int(span.total[row] - end_counts.sum())
        # Still not full: who is furthest behind, even if it may not; past its largest share, if
        # need be, but never past its limit
        for _ in range(rest):
            can = live & (end_counts < most)
            if not can.any():
                can = live & (end_counts < self._shares.limits)
            if not can.any():
                return None
            deficit = self._deficits(state, end_counts)
            end_counts[np.where(can, deficit, -np.inf).argmax()] += 1
        # Too full: what the step was to draw for who is furthest ahead waits
        for _ in range(-rest):
            deficit = self._deficits(state, end_counts)
            end_counts[np.where(end_counts > state.drawn, deficit, np.inf).argmin()] -= 1
        return end_counts

    def _deficits(self, state: _State, drawn: Int64[np.ndarray, " d"]) -> Float64[np.ndarray, " d"]:
        """Share minus examples drawn, per component."""
        return (state.due - drawn) + (state.above - self.delta) / ONE


def deadline_order(
    part: Int64[np.ndarray, "n d"],
    rate: Int64[np.ndarray, "n d"],
    may: Bool[np.ndarray, "n d"],
    id_bits: int,
) -> Int64[np.ndarray, "n d"]:
    """Components in the order in which they are due, row by row; who may not be drawn comes last.

    ``part`` is the share above the last whole example, margin included; ``id_bits`` the bits of the
    largest number.

    Example:
        Both lack half an example. At rates 1 and 3, that takes 1/2 and 1/6.

        >>> half = np.array([[ONE // 2, ONE // 2, 0]])
        >>> deadline_order(half, np.array([[1, 3, 2]]), np.array([[True, True, False]]), 2)[0, :2]
        array([1, 0])
    """
    # Positive floats sort like their bits: the component's number replaces the lowest ones, which
    # makes the sort total, and fast (no argsort). Two deadlines that differ by less than 2**-36 may
    # thus change places.
    deadline = ((ONE - part) / np.maximum(rate, 1)).view(np.int64)
    low = (1 << id_bits) - 1
    key = np.where(may, (deadline & ~low) | np.arange(part.shape[1]), np.iinfo(np.int64).max)
    key.sort(axis=1)
    return key & low


def longest_wait(rate: Int64[np.ndarray, " d"]) -> int:
    """P: examples of the mixture for one of its rarest component; 0 of none.

    ``NEVER`` if that is too long to be exact.

    Example:
        >>> longest_wait(np.array([ONE // 4, 0, 3 * ONE // 4]))
        5
    """
    if not rate.any():
        return 0
    wait = ONE // int(rate[rate > 0].min()) + 1
    return wait if wait <= _LONGEST else NEVER


def may_be_early(
    part: Int64[np.ndarray, " d"], rate: Int64[np.ndarray, " d"], delta: int
) -> Bool[np.ndarray, " d"]:
    """Components whose next example may have been drawn before it is due.

    If weights were constant since its last. The module says why 0.7.

    Example:
        Both halves make up a whole example, so somebody has had one early: either may have. The
        third has hardly begun on its next.

        >>> part = np.array([ONE // 2, ONE // 2 - 1, 1])
        >>> may_be_early(part, np.array([ONE // 2, ONE // 2, 1]), ONE // 8)
        array([ True,  True, False])
    """
    above = (part + delta) & PART
    deadline = (ONE - above) / np.maximum(rate, 1)
    order = np.argsort(deadline)
    # The sum, over who is due no earlier, of how far a share is above its last whole example
    due_later = np.cumsum((np.maximum(above - delta, 0) * (rate > 0) / ONE)[order][::-1])[::-1]
    # Deadlines that nearly coincide change places: count who is due a little earlier, too
    first = np.searchsorted(deadline[order], deadline * (1 - 1e-9))
    return (rate > 0) & (due_later[first] >= 0.7)


def due_first(
    account: Account, rate: Int64[np.ndarray, " d"], total: int, delta: int, id_bits: int
) -> Int64[np.ndarray, " d"] | None:
    """The guess: what is due was drawn, and of the rest what is due first.

    The account has the examples drawn at an earlier step, from which on weights are constant: for
    components whose rate is 0, and those that cannot have been served early since. None if the
    guess cannot sum to ``total``.

    Example:
        After 12 examples at weights 1/2, 3/10, 1/5, in units of 1/10 of an example:

        >>> whole, part = np.array([6, 3, 2]), np.array([0, 6, 4]) * (ONE // 10)
        >>> rate = np.array([5, 3, 2]) * (ONE // 10)
        >>> due_first(Account(whole, part, np.zeros(3, int)), rate, 12, ONE // 8, id_bits=2)
        array([6, 4, 2])
    """
    # What is due
    with_margin = account.part + delta
    early = may_be_early(account.part, rate, delta)
    due = np.where(rate > 0, account.whole + (with_margin >> BITS), account.drawn)
    drawn = np.where(early, due, np.maximum(due, account.drawn))
    # Of the rest, what is due first; only of those that can have been served early
    with_margin &= PART
    may = (with_margin >= 2 * delta) & early
    need = total - int(drawn.sum())
    if not 0 <= need <= may.sum():
        return None
    order = deadline_order(with_margin[None], rate[None], may[None], id_bits)[0]
    drawn[order[:need]] += 1
    return drawn


class Reach:
    """What a quota walks at most, so that no far step takes minutes; ``names`` are the components',
    for errors.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._walked = int(_MOST_WALKED / max(len(names) / 512, 1.0)) // CHUNK
        self._replayed = int(_MOST_REPLAYED / max(len(names) / 32, 1.0)) // CHUNK

    def is_far(self, at: int, chunk: int) -> bool:
        """Whether it is too far from one chunk to the other to walk."""
        return chunk - at > self._walked

    def check_walk(self, at: int, stop: int) -> None:
        """Raises ConfigError if it is too far from one chunk to another, where each step between
        them counts.
        """
        if self.is_far(at, stop):
            most = self._walked * CHUNK
            raise ConfigError(
                f"cannot be counted so far: counts depend on each of {(stop - at) * CHUNK:,} steps"
                f" before, and at most {most:,} are counted through",
                field="weights",
                cure=f"Let weights change within {most:,} steps, or write stages of constant"
                " weights that leave out"
                " what they give no weight; or go on from a run's folder: its anchors.json holds"
                " counts.",
            )

    def check_replay(
        self, begin: int, chunk: int, rate: Int64[np.ndarray, " d"], examples: float
    ) -> None:
        """Raises ConfigError if the chunks from ``begin`` on are too many to be walked before a far
        one.
        """
        if chunk - begin > self._replayed:
            raise self.too_rare(rate, examples)

    def too_rare(self, rate: Int64[np.ndarray, " d"], examples: float) -> ConfigError:
        """The error for a weight, in units of 2**-44, for which too many steps would be walked;
        ``examples`` are those of a chunk.
        """
        rarest = int(np.where(rate > 0, rate, ONE + 1).argmin())
        share = int(rate[rarest]) / ONE
        least = 2.2 / (self._replayed * examples)
        return ConfigError(
            f"is too small for this step: it gives one example in {1 / share:,.0f}, the next of"
            " which is nearly due, and counts depend on up to twice as many before them",
            field=f"weights.{self._names[rarest]}",
            value=float(f"{share:.3g}"),
            cure=f"Give it at least {least:.1e} of the sum of the weights, or none; or go on from"
            " a run's folder: its anchors.json holds counts.",
        )
