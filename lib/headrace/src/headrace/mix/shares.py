"""Shares: the exact amount that each component should have had after each step, before rounding to
examples.

A step of B examples gives component d the share B x w_d. Normalised weights are whole multiples of
2**-44 that sum to 1, and a share is a whole part and 44 bits, with carry: no error accumulates,
sums are exact. A component may have a limit (its epochs or its budget, in examples): at the step
that reaches it, the component gets exactly the remainder, the rest of that step goes to the others
in proportion to their weights, and from then on they share its weight.

With pencil and paper: weights 1/2, 1/4, 1/4, eight examples a step, and at most 10 of the first::

    step   share after it    due in the step
    0       4     2     2     4   2   2
    1       8     4     4     4   2   2
    2      10     7     7     2   3   3    only 2 are left of the first; the others share the 6
    3      10    11    11     0   4   4    and its weight from then on

If weights count tokens, and rows of the components have different numbers of them, shares of tokens
are converted to shares of rows after limits are applied: each is divided by the mean tokens per row
over an epoch. The rows of a component are then exact as before, and its tokens are exact at the end
of each epoch; within an epoch, they deviate as the rows drawn so far deviate from the mean.

Invariant: shares after a step sum to the examples of all steps, and depend on nothing later. If the
components with weight cannot fill a step, because they are used up or at their largest share, the
mixture ends: with a last step of what they still have (:meth:`Shares.rest`), or before it if they
have nothing. Price: 2 us per step for 64 components, in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from headrace.errors import ConfigError, check_not_negative
from headrace.mix.blend import Lines, LinesAt, WeightsAt
from headrace.mix.schedule import BatchSchedule, Steps

BITS = 44
ONE = 1 << BITS
PART = ONE - 1
UNLIMITED = 1 << 62
NEVER = 1 << 62
"""More examples than any run has."""
_SHORT = 1e-9  # of a step: what rounding may leave of it


def fixed_point(weights: Float64[np.ndarray, "n d"]) -> Int64[np.ndarray, "n d"]:
    """Rows of weights as multiples of 2**-44 that sum to exactly 2**44; a positive weight never
    becomes 0.

    Each is within one unit of the weight, except the row's largest, which absorbs the rounding of
    all (at most half a unit each). At 1e9 examples, the drift is thus about 1e-4 examples.

    Raises:
        ConfigError: a weight is negative or not a number, or a row does not sum to 1.

    Example:
        >>> fixed_point(np.array([[0.25, 0.75, 0.0]])) / 2**44
        array([[0.25, 0.75, 0.  ]])
    """
    if not (weights >= 0).all():
        raise ConfigError(
            "must be numbers from 0 up", field="weights", value=weights[~(weights >= 0)][0]
        )
    fixed = np.rint(weights * ONE).astype(np.int64)
    fixed += (fixed == 0) & (weights > 0)
    short = ONE - fixed.sum(axis=1)
    if np.abs(short).max(initial=0) > weights.shape[1] << 10:
        row = int(np.abs(short).argmax())
        raise ConfigError(
            "must sum to 1 at each step", field="weights", value=weights[row].tolist()
        )
    fixed[np.arange(len(fixed)), fixed.argmax(axis=1)] += short
    return fixed


@dataclass(frozen=True)
class Account:
    """What each component should have (``whole + part * 2**-44`` examples) and has, before a
    step.
    """

    whole: Int64[np.ndarray, " d"]
    part: Int64[np.ndarray, " d"]
    drawn: Int64[np.ndarray, " d"]

    @classmethod
    def empty(cls, components: int) -> Account:
        """That before all steps."""
        zero = np.zeros(components, np.int64)
        return cls(zero, zero, zero)

    def after(self, rate: Int64[np.ndarray, " d"], examples: int) -> Account:
        """With the exact shares after a number of further examples at constant rates.

        Example:
            >>> rate = np.array([ONE // 4, 3 * ONE // 4])
            >>> later = Account(np.array([1, 0]), *np.zeros((2, 2), int)).after(rate, 6)
            >>> later.whole.tolist(), (later.part / ONE).tolist()
            ([2, 4], [0.5, 0.5])
        """
        # Python's integers: products go beyond 64 bits
        sums = [int(p) + int(r) * examples for p, r in zip(self.part, rate, strict=True)]
        examples_due = self.whole + np.array([x >> BITS for x in sums])
        return Account(examples_due, np.array([x & PART for x in sums]), self.drawn)

    def room_before(self, limits: Int64[np.ndarray, " d"], rate: Int64[np.ndarray, " d"]) -> int:
        """Examples of the mixture before a share comes within two of its limit; below 0: none.

        Example:
            A share of 1 that grows by a quarter may reach 8, two below its limit of 10.

            >>> one = Account(np.array([1]), np.array([0]), np.array([0]))
            >>> one.room_before(np.array([10]), np.array([ONE // 4]))
            28
        """
        room = [
            ((int(most) - 2 - int(w)) * ONE - int(p)) // int(r)
            for w, p, r, most in zip(self.whole, self.part, rate, limits, strict=True)
            if r > 0 and most < UNLIMITED
        ]
        return min(room, default=NEVER)


@dataclass(frozen=True)
class ShareRun:
    """Shares of D components after each of n steps."""

    whole: Int64[np.ndarray, "n d"]
    part: Int64[np.ndarray, "n d"]
    """The share is ``whole + part * 2**-44``."""
    rate: Int64[np.ndarray, "n d"]
    """Weights in units of 2**-44, 0 for a component that had reached its limit before the step."""
    live: Bool[np.ndarray, "n d"]
    """Whether the component has weight at the step, used up or not."""
    filled: int
    """Number of steps that can be filled: n, unless the mixture ends. Later rows are undefined."""


class Shares:
    """Runs of shares from any known state; the arguments are those of
    :class:`~headrace.mix.quota.Quota`.

    Example:
        >>> shares = Shares(
        ...     lambda steps: np.full((len(steps), 2), 0.5), 2, BatchSchedule(8), [10, None]
        ... )
        >>> shares.run(Account.empty(2), 0, 4).whole.tolist()
        [[4, 4], [8, 8], [10, 14], [10, 22]]
    """

    def __init__(
        self,
        weights: WeightsAt,
        components: int,
        batch: BatchSchedule,
        limits: Sequence[int | None] | None = None,
        largest: Sequence[float | None] | None = None,
        row_tokens: Sequence[float] | None = None,
        lines: LinesAt | None = None,
    ) -> None:
        if not 1 <= components <= 4096:
            raise ConfigError("must be 1 to 4096", field="components", value=components)
        if limits is not None and len(limits) != components:
            raise ConfigError(
                f"needs one entry for each of {components} components", field="limits", value=limits
            )
        for limit in limits or ():
            if limit is not None and not 0 <= limit < UNLIMITED:
                raise ConfigError("must be 0 to 2**62 examples", field="limits", value=limit)
        for share in largest or ():
            if share is not None and not 0 < share <= 1:
                raise ConfigError("must be above 0 and at most 1", field="max_share", value=share)
        self._weights = weights
        self._batch = batch
        self._bound = np.array([1.0 if x is None else x for x in largest or [None] * components])
        self.bounded = bool((self._bound < 1).any())
        self._row_tokens = None if row_tokens is None else np.array(row_tokens, np.float64)
        self.limits = np.array(
            [UNLIMITED if x is None else x for x in limits or [None] * components], np.int64
        )
        self.limited = bool((self.limits < UNLIMITED).any())
        changed = self.limited or self.bounded or self._row_tokens is not None
        self._lines = None if changed else lines

    def lines_at(self, step: int) -> Lines | None:
        """The straight lines of the weights, if shares are these weights and nothing else."""
        return None if self._lines is None else self._lines(step)

    def run(self, account: Account, first: int, n: int) -> ShareRun:
        """Shares after each of the ``n`` steps from ``first`` on, given the account before it."""
        whole = account.whole
        part = account.part
        steps = np.arange(first, first + n, dtype=np.int64)
        weights = self._weights(steps)
        sizes = self._batch.size_at(steps)
        if not self.limited:
            bounded, met = self._below_largest(weights)
            rate = fixed_point(self._of_rows(bounded))
            return ShareRun(*_accumulate(whole, part, rate * sizes[:, None]), rate, rate > 0, met)
        # With limits, from one step that reaches a limit to the next:
        # 1. Weights of those that are not used up, to the first step at which none is left
        # 2. Shares of all these steps, as if no limit were near
        # 3. Keep them up to the first step (``plain``) after which some share has reached its limit
        # 4. That step is poured: who is full gets what is left, the others share the rest
        wholes, parts, rates = (np.empty((n, len(whole)), np.int64) for _ in range(3))
        row = 0
        while row < n:  # once more for each limit reached: at most D times in a whole run
            weight = weights[row:] * (whole < self.limits)
            total = np.add.accumulate(weight, axis=1)[:, -1:]
            usable = n - row if total.all() else int((total[:, 0] == 0).argmax())
            bounded, usable = self._below_largest(weight[:usable] / total[:usable])
            if usable == 0:
                break
            rate = fixed_point(self._of_rows(bounded[:usable]))
            w, p = _accumulate(whole, part, rate * sizes[row : row + usable, None])
            over = ((w > self.limits) | ((w == self.limits) & (whole < self.limits))).any(axis=1)
            plain = int(over.argmax()) if over.any() else usable
            end = row + plain
            wholes[row:end] = w[:plain]
            parts[row:end] = p[:plain]
            rates[row:end] = rate[:plain]
            if plain:
                whole = w[plain - 1]
                part = p[plain - 1]
            if plain < usable:
                due = self._last_of_some(weight[plain], rate[plain], int(sizes[end]), whole, part)
                if due is None:
                    return ShareRun(wholes, parts, rates, weights > 0, end)
                w, p = _accumulate(whole, part, due[None])
                whole = w[0]
                part = p[0]
                wholes[end] = whole
                parts[end] = part
                rates[end] = rate[plain]
                end += 1
            row = end
        return ShareRun(wholes, parts, rates, weights > 0, row)

    def _last_of_some(
        self,
        weight: Float64[np.ndarray, " d"],
        rate: Int64[np.ndarray, " d"],
        size: int,
        whole: Int64[np.ndarray, " d"],
        part: Int64[np.ndarray, " d"],
    ) -> Int64[np.ndarray, " d"] | None:
        """What each component gets of a step in which limits are reached; None: it cannot be
        filled.
        """
        due = _pour(rate, size, whole, part, self.limits, self._row_bound(rate))
        if due is not None or self._row_tokens is None:
            return due
        # The bounds were those of rows with as many tokens as those that are used up now: take
        # those of what stays.
        staying = weight * (self.limits - whole > size)
        if not staying.any():
            return None
        bounded, met = self._below_largest(staying[None] / np.add.accumulate(staying)[-1])
        largest = self._row_bound(fixed_point(self._of_rows(bounded))[0])
        return _pour(rate, size, whole, part, self.limits, largest) if met else None

    def rest(self, step: int, drawn: Int64[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
        """Examples that each component may still have of a step that all of them cannot fill, after
        ``drawn``: what its limit leaves, within its largest share of the batch. Nothing, unless
        that uses one of them up: components that have more need no step that is not full.

        Example:
            >>> equal = lambda steps: np.full((len(steps), 2), 0.5)
            >>> Shares(equal, 2, BatchSchedule(8), [10, 25]).rest(4, np.array([10, 22]))
            array([0, 3])
            >>> Shares(equal, 2, BatchSchedule(8), [10, 99], [None, 0.5]).rest(2, np.array([9, 7]))
            array([1, 4])
        """
        at = np.array([step], np.int64)
        weight = self._weights(at)[0]
        size = int(self._batch.size_at(at)[0])
        rest = np.where(weight > 0, np.clip(self.limits - drawn, 0, size), 0)
        left_share = weight * (rest > 0)
        if self.bounded and left_share.any():
            rate = fixed_point(self._of_rows(left_share[None] / np.add.accumulate(left_share)[-1]))[
                0
            ]
            largest = np.floor(self._row_bound(rate) * size + _SHORT).astype(np.int64)
            rest = np.minimum(rest, largest)
        used_up = (rest > 0) & (rest == self.limits - drawn)
        return rest if used_up.any() else np.zeros_like(rest)

    def can_fill(self, components: Bool[np.ndarray, " d"]) -> bool:
        """Whether these may have all of a step between them."""
        return float(self._bound[components].sum()) > 1 - _SHORT

    def _of_rows(self, shares: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
        return shares if self._row_tokens is None else row_shares(shares, self._row_tokens)

    def largest_rows(
        self, rate: Int64[np.ndarray, "n d"], sizes: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, "n d"]:
        """The most rows of each step that a component may have: its largest share, rounded up."""
        return np.ceil(self._row_bound(rate) * sizes[:, None] - _SHORT).astype(np.int64)

    def may_fill_largest(self, account: Account, step: int) -> bool:
        """Whether a component may be due as many rows of a step as its largest share allows, from
        ``step`` on, while weights stay as they are there.
        """
        if not self.bounded:
            return False
        run = self.run(account, step, 1)
        if not run.filled:
            return False
        rate = run.rate
        sizes = np.array(self._batch.unique_sizes, np.int64)
        largest = self.largest_rows(rate.repeat(sizes.size, axis=0), sizes)
        due = -(-rate * sizes[:, None] >> BITS)  # rounded up
        return bool(((due >= largest) & (largest < sizes[:, None])).any())

    def _row_bound(self, rate: Int64[np.ndarray, "*n d"]) -> Float64[np.ndarray, "*n d"]:
        """The largest shares of rows in a step, or in each, at the rate of rows that has the same
        tokens.
        """
        if self._row_tokens is None:
            return self._bound
        average = np.add.accumulate(rate * self._row_tokens, axis=-1)[..., -1:] / ONE
        return np.where(
            self._bound < 1, np.minimum(self._bound * average / self._row_tokens, 1.0), 1.0
        )

    def _below_largest(
        self, weights: Float64[np.ndarray, "n d"]
    ) -> tuple[Float64[np.ndarray, "n d"], int]:
        """The weights below the limits, and the number of steps that can be met; later rows only
        sum to 1.
        """
        if not self.bounded:
            return weights, len(weights)
        scaled, short = _bounded_rows(weights, self._bound)
        met = int(short.argmax()) if short.any() else len(weights)
        return np.where(short[:, None], weights, scaled), met


def row_shares(
    shares: Float64[np.ndarray, "n d"], row_tokens: Float64[np.ndarray, " d"]
) -> Float64[np.ndarray, "n d"]:
    """Shares of rows from shares of tokens, given the mean tokens per row of each component.

    Example:
        >>> row_shares(np.array([[0.5, 0.5]]), np.array([18.0, 32.0]))
        array([[0.64, 0.36]])
    """
    rows = shares / row_tokens
    return rows / np.add.accumulate(rows, axis=1)[:, -1:]


def bound_shares(
    rows: Float64[np.ndarray, "n d"], bound: Float64[np.ndarray, " d"], steps: Steps
) -> Float64[np.ndarray, "n d"]:
    """The same shares with no component above its limit at any step; the others share the excess.

    Raises:
        ConfigError: the components with weight at a step, all at their largest share, do not fill
            it.

    Example:
        >>> bound_shares(np.array([[0.7, 0.2, 0.1]]), np.array([0.4, 1, 1]), np.arange(1))
        array([[0.4, 0.4, 0.2]])
    """
    scaled, short = _bounded_rows(rows, bound)
    if short.any():
        raise ConfigError(
            f"cannot be met: at step {int(steps[short].min())} all sources with weight are at"
            " their largest share and leave a rest",
            field="max_share",
            value=bound.tolist(),
            cure="Raise a share or give another source weight.",
        )
    return scaled


def _bounded_rows(
    rows: Float64[np.ndarray, "n d"], bound: Float64[np.ndarray, " d"]
) -> tuple[Float64[np.ndarray, "n d"], Bool[np.ndarray, " n"]]:
    """The same shares with none above its limit, and the rows that are then not filled."""
    full = np.zeros(rows.shape, bool)
    scaled = rows
    for _ in range(len(bound) + 1):  # each round fills at least one more component, or is the last
        open_weight = np.add.accumulate(np.where(full, 0.0, rows), axis=1)[:, -1:]
        share_left = 1 - np.add.accumulate(np.where(full, bound, 0.0), axis=1)[:, -1:]
        scaled = np.where(
            full, bound, rows * (share_left / np.where(open_weight > 0, open_weight, 1.0))
        )
        over = (scaled > bound) & ~full
        if not over.any():
            break
        full |= over
    return scaled, np.abs(np.add.accumulate(scaled, axis=1)[:, -1] - 1) > _SHORT


def _accumulate(
    whole: Int64[np.ndarray, " d"], part: Int64[np.ndarray, " d"], due: Int64[np.ndarray, "n d"]
) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n d"]]:
    """Running sums of ``due`` (each <= 2**62, in 2**-44 examples) from a start, as
    whole and part.
    """
    parts = np.cumsum(due & PART, axis=0) + part  # n * 2**44 at most
    wholes = np.cumsum(due >> BITS, axis=0) + whole + (parts >> BITS)
    parts &= PART
    return wholes, parts


def _pour(
    rate: Int64[np.ndarray, " d"],
    size: int,
    whole: Int64[np.ndarray, " d"],
    part: Int64[np.ndarray, " d"],
    limits: Int64[np.ndarray, " d"],
    bound: Float64[np.ndarray, " d"],
) -> Int64[np.ndarray, " d"] | None:
    """The share of each component in a step that reaches limits (in 2**-44 examples); None: the
    step cannot be filled.

    Like filling vessels: a component that would get more than its capacity gets exactly that, and
    the others share the rest. Uses integers of any size.
    """
    rates = [int(r) for r in rate]
    room = [(int(x) - int(w)) * ONE - int(p) for x, w, p in zip(limits, whole, part, strict=True)]
    room = [min(most, size * int(b * ONE)) for most, b in zip(room, bound, strict=True)]
    due = [0] * len(rates)
    to_pour = size * ONE
    sharing = [d for d, r in enumerate(rates) if r > 0]
    while to_pour and sharing:
        total = sum(rates[d] for d in sharing)
        full = [d for d in sharing if to_pour * rates[d] >= room[d] * total]
        if not full:
            for d in sharing:
                due[d] = to_pour * rates[d] // total
            due[max(sharing, key=lambda d: rates[d])] += to_pour - sum(due[d] for d in sharing)
            to_pour = 0
        for d in full:
            due[d] = room[d]
            to_pour -= room[d]
            sharing.remove(d)
    return None if to_pour else np.array(due, np.int64)


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """``total`` items in proportion to ``weights``: each share rounded down, then one more to the
    largest remainders.

    This is Hamilton's method, as in nmoe; of equal remainders, the first gets it.

    Raises:
        ConfigError: a negative weight or total, or no positive weight.

    Example:
        >>> largest_remainder([0.5, 0.3, 0.2], 1_000_000 // 1024)
        [488, 293, 195]
    """
    check_not_negative("total", total)
    sum_of_all = sum_of_weights(weights)
    exact = [w / sum_of_all * total for w in weights]
    counts = [math.floor(x) for x in exact]
    by_remainder = sorted(
        range(len(exact)), key=lambda d: counts[d] - exact[d]
    )  # stable: the first of equals first
    for d in by_remainder[: total - sum(counts)]:
        counts[d] += 1
    return counts


def sum_of_weights(weights: Sequence[float], field: str = "weights") -> float:
    """Raises ConfigError unless all are finite and not negative, and one is positive."""
    if (
        not len(weights)
        or not all(math.isfinite(w) and w >= 0 for w in weights)
        or not any(weights)
    ):  # also arrays
        raise ConfigError(
            "must be finite and not negative, one of them positive",
            field=field,
            value=list(weights),
        )
    return math.fsum(weights)
