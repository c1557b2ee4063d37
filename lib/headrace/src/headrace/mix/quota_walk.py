"""What a ``Quota`` draws in a chunk of steps; and far steps without the walk there.

The rule, its promises and an example by hand are in :mod:`headrace.mix.quota`; comments in
:class:`Walk` have the numbers of its steps. All that does not depend on the choices is computed for
a whole chunk with numpy (:class:`Plan`); what is left is one bit a component, kept as a byte string
of the numbers of those that are one example ahead. Price: 256 steps of 20 components in 0.5 ms, of
64 in 0.9 ms; above 256 components 20 us per step.

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

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import BITS, ONE, PART, UNLIMITED, ShareRun, Shares

CHUNK = 256
"""Steps between two anchors, and in one recomputed table."""
_PLANNED = 1 << 16
"""Steps times components of one :class:`Plan`, which has a dozen numbers for each: 4 MB."""
NEVER = 1 << 62
"""More examples than any run has."""
_LONGEST = 1 << 32
"""Longest wait for which deadlines, in float64, are exact enough."""
_MOST_WALKED = 1 << 21
"""Steps that are walked at most to one that is asked for, with up to 256 components: 3 to 30 s."""
_MOST_REPLAYED = 1 << 18
"""Steps that are walked at most before a far step, where weights are constant, up to 32 components:
below 1 s.
"""


@dataclass(frozen=True)
class Account:
    """What each component should have (``whole + part * 2**-44`` examples) and has,
    before a step.
    """

    whole: Int64[np.ndarray, " d"]
    part: Int64[np.ndarray, " d"]
    drawn: Int64[np.ndarray, " d"]


@dataclass(frozen=True)
class Plan:
    """All that does not depend on the choices, for n steps: see :meth:`Walk.chunk`."""

    shares: ShareRun  # W after each step
    whole: Int64[np.ndarray, "n d"]  # of W + delta: what is due
    total: Int64[np.ndarray, " n"]  # examples drawn in all
    order: Int64[np.ndarray, "n d"]  # components by deadline; the first ``eligible`` may be drawn
    eligible: list[int]
    crossed: Bool[np.ndarray, "n d"]  # more is due than before: what was one ahead is no longer
    roomy: Bool[np.ndarray, "n d"]  # W is far enough above the last integer for the next example
    largest: Int64[np.ndarray, "n d"] | None  # most examples of a step, by largest shares
    full: Bool[np.ndarray, "n d"] | None  # what is due in the step is that many


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
        self._planned = min(CHUNK, max(_PLANNED // components, 1))

    def chunk(
        self, anchor: Account, first: int, off: list[float]
    ) -> tuple[Int64[np.ndarray, "n d"], Account]:
        """Examples drawn after each step of the chunk that begins at ``first``, fewer steps if the
        mixture ends in it; and the account behind the last one that was planned.

        Deviations that may exceed what is promised are appended to ``off``. Many components are
        planned a part of the chunk at a time; the counts are those of one plan.
        """
        rows: list[Int64[np.ndarray, "m d"]] = []
        account = anchor
        for begin in range(first, first + CHUNK, self._planned):
            steps = min(self._planned, first + CHUNK - begin)
            plan = self._plan(account, begin, steps)
            rows.append(self._drawn(account, plan, off))
            if len(rows[-1]) < steps:
                break
            whole = plan.shares.whole[-1].copy()  # not a view, which would keep the plan
            account = Account(whole, plan.shares.part[-1].copy(), rows[-1][-1].copy())
        return np.concatenate(rows), account

    def _plan(self, anchor: Account, first: int, steps: int) -> Plan:
        """Shares after each of some steps, who crosses an integer, and the order of deadlines."""
        # 1. Shares
        shares = self._shares.run(anchor.whole, anchor.part, first, steps)
        # 2. Due is the whole part of W + delta; ``part`` is what that leaves, delta included
        part = shares.part + self.delta
        due = shares.whole + (part >> BITS)
        part &= PART
        start = anchor.whole + ((anchor.part + self.delta) >> BITS)
        crossings = np.diff(due, axis=0, prepend=start[None])
        crossed = crossings > 0
        # 3. W is delta above the last integer, and W + delta twice that
        roomy = part >= 2 * self.delta
        may = roomy & (shares.rate > 0)
        largest = None
        if self._shares.bounded:
            sizes = self._batch.size_at(np.arange(first, first + steps))
            largest = self._shares.largest_rows(shares.rate, sizes)
        # 4. The order of deadlines
        order = deadline_order(part, shares.rate, may, self.id_bits)
        total = self._batch.offset_at(np.arange(first + 1, first + steps + 1)) + self._before
        eligible = may.sum(axis=1).tolist()
        full = None if largest is None else crossings >= largest
        return Plan(shares, due, total, order, eligible, crossed, roomy, largest, full)

    def _drawn(self, anchor: Account, plan: Plan, off: list[float]) -> Int64[np.ndarray, "n d"]:
        """Examples drawn after each step of a plan."""
        return (self._bits if self._components <= 256 else self._one_by_one)(anchor, plan, off)

    def _one_by_one(
        self, anchor: Account, plan: Plan, off: list[float]
    ) -> Int64[np.ndarray, "n d"]:
        """Step by step in numpy: any number of components, 20 us per step."""
        rows: list[Int64[np.ndarray, " d"]] = [anchor.drawn]
        for s in range(plan.shares.filled):
            drawn = self._settle(plan, s, rows[-1])
            if drawn is None:
                break
            rows.append(drawn)
            off.append(_deviation(plan, s, drawn))
        return np.stack(rows)[1:]

    def _bits(self, anchor: Account, plan: Plan, off: list[float]) -> Int64[np.ndarray, "n d"]:
        """The same for at most 256 components, whose numbers are bytes: 1 us per step.

        A byte string holds who is one example ahead of what is due. ``translate`` removes numbers
        from such a set, slices take the first of an order, so a step is a few calls in C::

            ahead  =  ahead, less those who crossed an integer (their example is now due)
            need   =  the step's total, less all that is due, less those who are still ahead
            ahead +=  the first ``need`` of the order of deadlines, less those who are ahead

        Where that does not suffice, :meth:`_settle` does the step in full generality: if more is
        due than the step holds (``need < 0``), or fewer may be drawn, or a component is off by more
        than its bit can say. What bits cannot say is kept in ``base``.
        """
        d = self._components
        filled = plan.shares.filled
        eligible = plan.eligible
        live = plan.shares.live
        # The plan as bytes and lists. Step s has the crossings ``start:ends[s]``
        crossed_rows, crossed_ids = np.nonzero(plan.crossed)
        ends = np.cumsum(np.bincount(crossed_rows, minlength=len(plan.crossed))).tolist()
        crossed = crossed_ids.astype(np.uint8).tobytes()
        order = plan.order.astype(np.uint8).tobytes()
        full = None
        if plan.full is not None and plan.full.any():
            full = [np.flatnonzero(row).astype(np.uint8).tobytes() for row in plan.full]
        surplus = (plan.total - plan.whole.sum(axis=1)).tolist()
        # The state before the first step
        drawn = anchor.drawn
        start_part = anchor.part + self.delta
        ahead, base = _split(
            drawn - anchor.whole - (start_part >> BITS), start_part & PART >= 2 * self.delta
        )
        # Off by more than a bit can say, which may last only while their weight is 0
        odd = np.flatnonzero(base)
        bits: list[bytes] = []
        bases = [(0, base)]
        total = int(base.sum())
        start = 0
        for s in range(filled):
            # 2. What is due
            ahead_left = ahead.translate(None, crossed[start : ends[s]])
            start = ends[s]
            need = surplus[s] - total - len(ahead_left)
            # 3. Who may be drawn
            drawn_bits = ahead_left
            if full and full[s]:
                # Who is due its largest share has no example more, unless it had one early before
                drawn_bits = ahead_left + full[s].translate(None, ahead)
            pick = order[s * d : s * d + eligible[s]].translate(None, drawn_bits)
            # 4. The first of them
            if 0 <= need <= len(pick) and not (odd.size and live[s, odd].any()):
                ahead = ahead_left + pick[:need]
                if odd.size:
                    off.append(_deviation(plan, s, plan.whole[s] + base + _join(ahead, d)))
            else:
                begin_counts = plan.whole[s - 1] + base + _join(ahead, d) if s else drawn
                settled = self._settle(plan, s, begin_counts)
                if settled is None:
                    break
                ahead, base = _split(settled - plan.whole[s], plan.roomy[s])
                odd = np.flatnonzero(base)
                total = int(base.sum())
                bases.append((s, base))
                off.append(_deviation(plan, s, settled))
            bits.append(ahead)
        # Counts: what is due, the bits, and from each settled step on its base
        end_counts = plan.whole[: len(bits)] + _join_rows(bits, d)
        for (row, base), stop in zip(
            bases, [row for row, _ in bases[1:]] + [len(bits)], strict=True
        ):
            end_counts[row:stop] += base
        return end_counts

    def _settle(
        self, plan: Plan, row: int, drawn: Int64[np.ndarray, " d"]
    ) -> Int64[np.ndarray, " d"] | None:
        """Examples drawn after one step, for when bits do not suffice; None: it cannot be filled.

        First what is due, then what may be drawn in the order of deadlines. Where more is due than
        the batch holds, the least late wait; where less may be drawn than it holds, the least early
        are drawn.
        """
        # 2. What is due; nothing is taken back, and without weight nothing is drawn
        due = plan.whole[row]
        live = plan.shares.live[row]
        end_counts = np.where(live, np.maximum(due, drawn), drawn)
        most = self._shares.limits
        if plan.largest is not None:
            most = np.minimum(most, drawn + plan.largest[row])
            end_counts = np.minimum(end_counts, np.maximum(most, drawn))
        # 3. and 4. Who may be drawn, by deadline, until the step is full
        rest = int(plan.total[row] - end_counts.sum())
        if rest > 0:
            by_deadline = plan.order[row, : plan.eligible[row]]
            is_next = (end_counts[by_deadline] == due[by_deadline]) & (
                end_counts[by_deadline] < most[by_deadline]
            )
            end_counts[by_deadline[is_next][:rest]] += 1
            rest = int(plan.total[row] - end_counts.sum())
        # Still not full: who is furthest behind, even if it may not; past its largest share, if
        # need be, but never past its limit
        for _ in range(rest):
            can = live & (end_counts < most)
            if not can.any():
                can = live & (end_counts < self._shares.limits)
            if not can.any():
                return None
            end_counts[np.where(can, _deficits(plan, row, end_counts), -np.inf).argmax()] += 1
        # Too full: what the step was to draw for who is furthest ahead waits
        for _ in range(-rest):
            end_counts[
                np.where(end_counts > drawn, _deficits(plan, row, end_counts), np.inf).argmin()
            ] -= 1
        return end_counts


def _deficits(plan: Plan, row: int, drawn: Int64[np.ndarray, " d"]) -> Float64[np.ndarray, " d"]:
    """Share minus examples drawn, per component."""
    return (plan.shares.whole[row] - drawn) + plan.shares.part[row] / ONE


def _deviation(plan: Plan, row: int, drawn: Int64[np.ndarray, " d"]) -> float:
    return float(np.abs(_deficits(plan, row, drawn)).max())


def _split(
    extra: Int64[np.ndarray, " d"], roomy: Bool[np.ndarray, " d"]
) -> tuple[bytes, Int64[np.ndarray, " d"]]:
    """Examples beyond what is due: those that are one ahead and may be, as bytes; and the rest.

    Example:
        Components 0 and 2 are ahead, 2 by two examples: one is a bit, and one is left. Component 1
        is late.

        >>> ahead, base = _split(np.array([1, -1, 2]), np.array([True, True, True]))
        >>> list(ahead), base.tolist()
        ([0, 2], [0, -1, 1])
    """
    bit = (extra > 0) & roomy
    return np.flatnonzero(bit).astype(np.uint8).tobytes(), extra - bit


def _join(ahead: bytes, d: int) -> Int64[np.ndarray, " d"]:
    return np.bincount(np.frombuffer(ahead, np.uint8), minlength=d)


def _join_rows(ahead: list[bytes], d: int) -> Int64[np.ndarray, "n d"]:
    rows = np.repeat(np.arange(len(ahead)), [len(ids) for ids in ahead])
    joined = np.zeros((len(ahead), d), np.int64)
    joined[rows, np.frombuffer(b"".join(ahead), np.uint8)] = 1
    return joined


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


def shares_after(
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    rate: Int64[np.ndarray, " d"],
    examples: int,
) -> tuple[Int64[np.ndarray, " d"], Int64[np.ndarray, " d"]]:
    """Exact shares after a number of further examples at constant rates.

    Example:
        >>> rate = np.array([ONE // 4, 3 * ONE // 4])
        >>> whole, part = shares_after(np.array([1, 0]), np.array([0, 0]), rate, 6)
        >>> whole.tolist(), (part / ONE).tolist()
        ([2, 4], [0.5, 0.5])
    """
    # Python's integers: products go beyond 64 bits
    sums = [int(p) + int(r) * examples for p, r in zip(part, rate, strict=True)]
    return whole + np.array([x >> BITS for x in sums]), np.array([x & PART for x in sums])


def room_before_limits(
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    rate: Int64[np.ndarray, " d"],
    limits: Int64[np.ndarray, " d"],
) -> int:
    """Examples of the mixture before a share comes within two of its limit; below 0: none.

    Example:
        A share of 1 that grows by a quarter may reach 8, two below its limit of 10.

        >>> one, zero = np.array([1]), np.array([0])
        >>> room_before_limits(one, zero, np.array([ONE // 4]), np.array([10]))
        28
    """
    room = [
        ((int(most) - 2 - int(w)) * ONE - int(p)) // int(r)
        for w, p, r, most in zip(whole, part, rate, limits, strict=True)
        if r > 0 and most < UNLIMITED
    ]
    return min(room, default=NEVER)


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
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    rate: Int64[np.ndarray, " d"],
    earlier: Int64[np.ndarray, " d"],
    total: int,
    delta: int,
    id_bits: int,
) -> Int64[np.ndarray, " d"] | None:
    """The guess: what is due was drawn, and of the rest what is due first.

    ``earlier`` are the examples drawn at a step from which on weights are constant: for components
    whose rate is 0, and those that cannot have been served early since. None if the guess cannot
    sum to ``total``.

    Example:
        After 12 examples at weights 1/2, 3/10, 1/5, in units of 1/10 of an example:

        >>> whole, part = np.array([6, 3, 2]), np.array([0, 6, 4]) * (ONE // 10)
        >>> rate = np.array([5, 3, 2]) * (ONE // 10)
        >>> due_first(whole, part, rate, np.zeros(3, int), 12, ONE // 8, id_bits=2)
        array([6, 4, 2])
    """
    # What is due
    with_margin = part + delta
    early = may_be_early(part, rate, delta)
    due = np.where(rate > 0, whole + (with_margin >> BITS), earlier)
    drawn = np.where(early, due, np.maximum(due, earlier))
    # Of the rest, what is due first; only of those that can have been served early
    with_margin &= PART
    may = (with_margin >= 2 * delta) & early
    need = total - int(drawn.sum())
    if not 0 <= need <= may.sum():
        return None
    order = deadline_order(with_margin[None], rate[None], may[None], id_bits)[0]
    drawn[order[:need]] += 1
    return drawn


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
    rank = np.arange(component.size, dtype=np.int64) - np.repeat(
        np.cumsum(of_each) - of_each, of_each
    )
    # 43 bits of (2k + 1) / (2 count) tell all places apart, which differ by 2**-35 at least. The
    # row's number below them (18 bits: a batch has at most 2**18 rows) makes the sort total
    key = ((2 * rank + 1) << 42) // np.repeat(of_each, of_each)
    first = np.arange(steps)[:, None] * (component.size // max(steps, 1))
    key = key.reshape(first.size, -1) << 18
    key |= np.arange(key.shape[1])
    key.sort(axis=1)
    order = (key & ((1 << 18) - 1)) + first
    return component[order], rank[order]


class Reach:
    """What a quota walks at most, so that no far step takes minutes; ``names`` are the components',
    for errors.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._walked = int(_MOST_WALKED / max(len(names) / 256, 1.0)) // CHUNK
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

    def check_wait(
        self, at: int, stop: int, rate: Int64[np.ndarray, " d"], examples: float
    ) -> None:
        """Raises ConfigError if it is too far from one chunk to another, up to where the rarest
        component was served.

        Args:
            at: The chunk that is counted already.
            stop: The other chunk.
            rate: Weights in units of 2**-44.
            examples: Of a chunk.
        """
        if self.is_far(at, stop):
            raise self._too_rare(rate, examples)

    def check_replay(
        self, begin: int, chunk: int, rate: Int64[np.ndarray, " d"], examples: float
    ) -> None:
        """Raises ConfigError if the chunks from ``begin`` on are too many to be walked before a far
        one.
        """
        if chunk - begin > self._replayed:
            raise self._too_rare(rate, examples)

    def _too_rare(self, rate: Int64[np.ndarray, " d"], examples: float) -> ConfigError:
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
