"""Policies that users bring from elsewhere, each equal to the original's sequence: a component for every example index.

``quota`` (:mod:`headrace.index.quota`) is the default. Here are

* ``swrr``: smooth weighted round robin over weights in millionths, as in nmoe (and nginx);
* ``greedy``: the largest shortfall first, as in Megatron-LM's blends;
* ``exhaustive``: the same until every example of every component is used, once.

``least_consumed`` is in :mod:`headrace.index.least_consumed`, nmoe's staged plans in :mod:`headrace.index.stages`.

These are sequential rules. :class:`SequencePolicy` gives them random access: the state is kept every 4096 examples (at
512 places at most: the longer the run, the further apart), and a stretch is walked again when it is asked for. A
sequence does not depend on how it is cut into steps or hosts.

Price: 2 to 4 us an example to walk there once, unless there is an anchor (``Quota`` needs 2 us a **step**, and none
where weights are constant): 50 minutes for a billion examples. Then 10 ms for a stretch of 4096 near the last one, and
10 ms times the distance of two kept states for one far behind. ``swrr`` repeats itself: it never walks further than
one period, about a million examples.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
from jaxtyping import Float64, Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.index.anchors import Anchor, anchor_integer, anchor_integers, anchor_sum, refused
from headrace.index.kept import Kept
from headrace.index.schedule import BatchSchedule, Weight
from headrace.index.shares import UNLIMITED

STRETCH = 4096
"""Examples between two anchors."""
_STRETCHES = 8
State = TypeVar("State")


class SequencePolicy(abc.ABC, Generic[State]):
    """A sequence of components defined one example after the other, with random access. Thread-safe.

    Subclasses give the state before the first example and how a stretch is walked from a state.

    Args:
        components: Number of components D.
        batch: Examples per step.
        length: Examples in all, None if there is no end. The last step may hold fewer than its batch.
    """

    def __init__(self, components: int, batch: BatchSchedule, length: int | None = None) -> None:
        if components < 1:
            raise ConfigError("needs at least one", field="components", value=components)
        self.components, self.batch, self.length = components, batch, length
        start = (self.initial_state(), np.zeros(components, np.int64))
        self._kept: Kept[tuple[State, Int64[np.ndarray, " d"]]] = Kept(start)
        # Filled without a lock, as in Quota: threads that meet store equal values.
        self._stretches: list[tuple[int, Int32[np.ndarray, " n"]] | None] = [None] * _STRETCHES

    @abc.abstractmethod
    def initial_state(self) -> State:
        """State before the first example."""

    @abc.abstractmethod
    def walk(self, state: State, first: int, n: int) -> tuple[list[int], State]:
        """The next ``n`` components from ``state`` on, and the state after them; ``state`` itself is not changed."""

    def state_at(self, index: int) -> State:
        """State before the example ``index``."""
        stretch, place = divmod(self._checked(index), STRETCH)
        return self.walk(self._before(stretch)[0], stretch * STRETCH, place)[1]

    def sequence(self, first: int, stop: int) -> Int32[np.ndarray, " n"]:
        """Components of the examples ``first .. stop``, cut at the end of the sequence."""
        stop = stop if self.length is None else min(stop, self.length)
        if stop <= first:
            return np.zeros(0, np.int32)
        parts = [self._stretch(s) for s in range(first // STRETCH, (stop - 1) // STRETCH + 1)]
        skip = first // STRETCH * STRETCH
        return np.concatenate(parts)[first - skip : stop - skip]

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order.

        Raises:
            IndexOutOfRangeError: the sequence ends before the step.
        """
        first, size = self.batch.rows_at(step)
        if self.length is not None and first >= self.length:
            raise IndexOutOfRangeError(f"the mixture ends after {self.length} examples", field="step", value=step)
        return self.sequence(first, first + size)

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        return self.counts_before(self.batch.rows_at(step)[0])

    def counts_before(self, index: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component before the global example ``index``."""
        stretch, place = divmod(self._checked(index), STRETCH)
        counts = self._before(stretch)[1]
        return (
            counts + np.bincount(self._stretch(stretch)[:place], minlength=self.components) if place else counts.copy()
        )

    def anchor_at(self, step: int) -> Anchor:
        """See :class:`~headrace.index.anchors.Anchored`.

        Raises:
            IndexOutOfRangeError: the sequence ends before the step.
        """
        first = self.batch.rows_at(step)[0]
        if self.length is not None and first > self.length:
            raise IndexOutOfRangeError(f"the mixture ends after {self.length} examples", field="step", value=step)
        stretch = self._anchored(self._checked(first)) // STRETCH
        state, counts = self._before(stretch)
        return {"stretch": stretch, "drawn": counts.tolist(), "state": _lists(state)}

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """See :class:`~headrace.index.anchors.Anchored`."""
        stretch = anchor_integer(anchor, "stretch", most=1 << 50)
        if self.length is not None and stretch * STRETCH > self.length:
            raise refused("is of a longer sequence")
        drawn = anchor_integers(anchor, "drawn", self.components)
        anchor_sum(drawn, stretch * STRETCH, "drawn")
        state = cast(State, _tuples(anchor.get("state")))
        try:
            self.walk(state, stretch * STRETCH, min(self._size(stretch), 1))
        except (TypeError, ValueError, IndexError) as error:
            raise refused("has no 'state' that can be") from error
        self._kept.keep(stretch, (state, drawn), always=True)

    def supply(self) -> Int64[np.ndarray, " d"]:
        """Examples of each component in the whole run, ``UNLIMITED`` for those drawn for ever."""
        return np.full(self.components, UNLIMITED) if self.length is None else self.counts_before(self.length)

    def _checked(self, index: int) -> int:
        if index < 0:
            raise IndexOutOfRangeError("is negative", field="index", value=index)
        return int(index) if self.length is None else min(int(index), self.length)

    def _anchored(self, index: int) -> int:
        """The example whose state is needed for that of ``index``."""
        return index

    def _stretch(self, stretch: int) -> Int32[np.ndarray, " n"]:
        held = self._stretches[stretch % _STRETCHES]
        if held is None or held[0] != stretch:
            drawn, _ = self._walked(stretch, self._before(stretch))
            held = self._stretches[stretch % _STRETCHES] = (stretch, np.array(drawn, np.int32))
        return held[1]

    def _size(self, stretch: int) -> int:
        return STRETCH if self.length is None else min(STRETCH, self.length - stretch * STRETCH)

    def _before(self, stretch: int) -> tuple[State, Int64[np.ndarray, " d"]]:
        """State and counts before a stretch."""
        at, held = self._kept.before(stretch)
        for number in range(at, stretch):
            _, held = self._walked(number, held)
        return held

    def _walked(
        self, stretch: int, held: tuple[State, Int64[np.ndarray, " d"]]
    ) -> tuple[list[int], tuple[State, Int64[np.ndarray, " d"]]]:
        """Components of a stretch, and state and counts after it, which are remembered."""
        drawn, after = self.walk(held[0], stretch * STRETCH, self._size(stretch))
        now = (after, held[1] + np.bincount(drawn, minlength=self.components))
        self._kept.keep(stretch + 1, now)
        return drawn, now


def _lists(state: Any) -> Any:
    return [_lists(x) for x in cast(tuple[Any, ...], state)] if isinstance(state, tuple) else state


def _tuples(state: Any) -> Any:
    return tuple(_tuples(x) for x in cast(list[Any], state)) if isinstance(state, list) else state


class SmoothRoundRobin(SequencePolicy[tuple[int, ...]]):
    """``swrr``: each draw credits every component with its weight, serves the richest and charges it the sum.

    The state is the credits, in millionths. It returns to all zeros after a period of (sum of the weights in millionths
    / their common divisor) examples; random access uses that, so that no more than one period is ever walked.

    Args:
        weights: Constant weights, at least one positive. Weight 0 is never drawn.
        batch: Examples per step.

    Raises:
        ConfigError: no weights, all zero, or a schedule.

    Example:
        >>> SmoothRoundRobin([0.5, 0.3, 0.2], BatchSchedule(5)).sequence(0, 10)
        array([0, 1, 2, 0, 0, 1, 0, 2, 1, 0], dtype=int32)
    """

    def __init__(self, weights: Sequence[float | Weight], batch: BatchSchedule) -> None:
        self.weights_fp = fixed_point_weights(constant_weights(weights, "swrr"))
        self.period = sum(self.weights_fp) // math.gcd(*self.weights_fp)
        super().__init__(len(self.weights_fp), batch)

    def initial_state(self) -> tuple[int, ...]:
        return (0,) * len(self.weights_fp)

    def walk(self, state: tuple[int, ...], first: int, n: int) -> tuple[list[int], tuple[int, ...]]:
        draws, credits_ = smooth_draws(self.weights_fp, state), state
        drawn: list[int] = []
        for _ in range(n):
            k, credits_ = next(draws)
            drawn.append(k)
        return drawn, tuple(credits_)

    def state_at(self, index: int) -> tuple[int, ...]:
        return super().state_at(index % self.period)

    def sequence(self, first: int, stop: int) -> Int32[np.ndarray, " n"]:
        if stop <= self.period:
            return super().sequence(first, stop)
        if self.period <= STRETCH:
            return super().sequence(0, self.period)[np.arange(first, stop) % self.period]
        parts: list[Int32[np.ndarray, " n"]] = [np.zeros(0, np.int32)]
        while first < stop:
            start = first % self.period
            size = min(stop - first, self.period - start)
            parts.append(super().sequence(start, start + size))
            first += size
        return np.concatenate(parts)

    def counts_before(self, index: int) -> Int64[np.ndarray, " d"]:
        rounds, place = divmod(self._checked(index), self.period)
        per_period = np.array(self.weights_fp, np.int64) // math.gcd(*self.weights_fp)
        return rounds * per_period + super().counts_before(place)

    def supply(self) -> Int64[np.ndarray, " d"]:
        return np.where(np.array(self.weights_fp) > 0, UNLIMITED, 0)

    def _anchored(self, index: int) -> int:
        return index % self.period


def smooth_draws(weights_fp: Sequence[int], credit: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Endless draws of smooth weighted round robin: (component, credits after it); the list is reused."""
    total, now = sum(weights_fp), list(credit)
    while True:
        now = [c + w for c, w in zip(now, weights_fp, strict=True)]
        k = now.index(max(now))
        now[k] -= total
        yield k, now


class GreedyBlend(SequencePolicy[tuple[int, ...]]):
    """``greedy``: example s goes to the component with the largest ``weight * max(s, 1) - drawn``, the first on a tie.

    In float64, operation by operation as Megatron-LM does it; but weight 0 is never drawn, not even on a tie at zero.
    The state is what has been drawn.

    Args:
        weights: Constant weights, at least one positive.
        batch: Examples per step.

    Raises:
        ConfigError: no weights, all zero, or a schedule.

    Example:
        >>> GreedyBlend([0.5, 0.3, 0.2], BatchSchedule(5)).sequence(0, 10)
        array([0, 1, 2, 0, 1, 0, 2, 0, 1, 0], dtype=int32)
    """

    def __init__(self, weights: Sequence[float | Weight], batch: BatchSchedule) -> None:
        values = np.array(constant_weights(weights, "greedy"))
        self._weights: Float64[np.ndarray, " d"] = values / values.sum()
        super().__init__(len(values), batch)

    def initial_state(self) -> tuple[int, ...]:
        return (0,) * len(self._weights)

    def walk(self, state: tuple[int, ...], first: int, n: int) -> tuple[list[int], tuple[int, ...]]:
        counts = np.array(state, np.float64)
        never = np.where(self._weights > 0, 0.0, -np.inf)
        drawn: list[int] = []
        for s in range(first, first + n):
            k = int((self._weights * float(max(s, 1)) - counts + never).argmax())
            counts[k] += 1
            drawn.append(k)
        return drawn, tuple(int(c) for c in counts)

    def supply(self) -> Int64[np.ndarray, " d"]:
        return np.where(self._weights > 0, UNLIMITED, 0)


class ExhaustiveBlend(SequencePolicy[tuple[int, ...]]):
    """``exhaustive``: greedy in proportion to the sizes, until every example is used; used-up components drop out.

    Args:
        sizes: Examples of each component. Zero is allowed (the original loops for ever on it).
        batch: Examples per step; the last step may hold fewer.

    Raises:
        ConfigError: no sizes, a negative one, or nothing in any of them.

    Example:
        >>> ExhaustiveBlend([3, 0, 2], BatchSchedule(5)).sequence(0, 99)
        array([0, 2, 0, 2, 0], dtype=int32)
    """

    def __init__(self, sizes: Sequence[int], batch: BatchSchedule) -> None:
        if not sizes or min(sizes) < 0 or sum(sizes) == 0:
            raise ConfigError("must hold at least one example, none negative", field="sizes", value=list(sizes))
        self._sizes = np.array(sizes, np.int64)
        self._weights: Float64[np.ndarray, " d"] = self._sizes / self._sizes.sum()
        super().__init__(len(sizes), batch, int(self._sizes.sum()))

    def initial_state(self) -> tuple[int, ...]:
        return (0,) * len(self._sizes)

    def walk(self, state: tuple[int, ...], first: int, n: int) -> tuple[list[int], tuple[int, ...]]:
        counts = np.array(state, np.float64)
        spent = np.where(counts >= self._sizes, -np.inf, 0.0)
        drawn: list[int] = []
        for s in range(first, first + n):
            k = int((self._weights * float(max(s, 1)) - counts + spent).argmax())
            counts[k] += 1
            drawn.append(k)
            if counts[k] >= self._sizes[k]:
                spent[k] = -np.inf
        return drawn, tuple(int(c) for c in counts)

    def supply(self) -> Int64[np.ndarray, " d"]:
        return self._sizes.copy()


def constant_weights(weights: Sequence[float | Weight], policy: str) -> list[float]:
    """Plain values of constant weights.

    Raises:
        ConfigError: none, all zero, negative or not finite, or one is a schedule.
    """
    values: list[float] = []
    for i, weight in enumerate(weights):
        if isinstance(weight, Weight):
            if weight.is_scheduled:
                raise ConfigError(
                    f"the policy {policy} has constant weights only",
                    field=weight.path,
                    value=weight.to_config(),
                    cure="Write a number, or use policy: quota.",
                )
            values.append(weight.points[0][1] * weight.scale)
        elif not (math.isfinite(weight) and weight >= 0):
            raise ConfigError("must be finite and not negative", field=f"weights[{i}]", value=weight)
        else:
            values.append(float(weight))
    if not any(values):
        raise ConfigError("needs a positive weight", field="weights", value=values)
    return values


def fixed_point_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights in millionths of their sum, rounded, at least 1 for a positive weight.

    Example:
        >>> fixed_point_weights([3, 2, 2])
        (428571, 285714, 285714)
    """
    total = math.fsum(weights)  # sum() rounds differently from Python 3.12 on
    return tuple(max(1, round(w / total * 1_000_000)) if w else 0 for w in weights)
