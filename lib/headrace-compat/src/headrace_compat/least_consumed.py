"""``least_consumed``: the next sample comes from the source with the fewest tokens so far; a seeded
draw breaks ties.

If the lengths of samples are known, the order is a plan (:class:`LeastConsumedPlan`), with random
access and without a state. Invariant: as long as two sources have samples left, their counts differ
by at most the longest sample drawn from them (plus their difference at the start). Price: 0.3 us
per sample if few tie and 2 us if all do (1 us for 100 sources). The draw of ties is sequential, so
a far sample is counted up to, or restored from an anchor (10 kB).

The sources in use may change between stages. A source that joins or returns starts at the smallest
count of those that stay, so that it is neither drawn alone until it has caught up nor left waiting.
Only its count is raised: it continues at its own position in its order. If the run counts tokens, a
packed row counts the tokens that it has (:mod:`headrace.data.row_tokens`).

The tie draw is ``random.Random(seed).choice`` over the tied sources in order, consumed only by
ties; a source counts as exhausted once it was picked and had nothing, so until then it takes part
in ties. Both are nanoschnack's. If lengths are not known in advance, see
:mod:`headrace_compat.least_consumed_live`.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.mix.plan import Plan, PolicyKind
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import UNLIMITED
from headrace_compat.constant_weights import equal_weights
from headrace_compat.sequence import SequencePolicy

_NO_LENGTHS = "must hold at least one sample, none of negative length"
PlanState = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Equal:
    """A number of samples of one length, None if they are endless (a source that starts over)."""

    tokens: int
    samples: int | None = None

    def between(self, first: int, stop: int) -> Int64[np.ndarray, " n"]:
        """Tokens of each of the samples ``first .. stop``."""
        return np.full(stop - first, self.tokens)


@dataclass(frozen=True)
class InOrder:
    """A number of samples of known lengths, None if they are endless.

    Attributes:
        between: Returns the tokens of each of the samples ``first .. stop``.
        samples: How many there are.
    """

    between: Callable[[int, int], Int64[np.ndarray, " n"]]
    samples: int | None = None

    @classmethod
    def listed(cls, lengths: Sequence[int] | Int64[np.ndarray, " n"]) -> InOrder:
        """Samples of these lengths, none of which may be negative."""
        tokens = np.asarray(lengths, np.int64)
        if tokens.min(initial=0) < 0:
            raise ConfigError(_NO_LENGTHS, field="lengths")
        return cls(partial(_of_these, tokens), tokens.size)


def _of_these(tokens: np.ndarray, first: int, stop: int) -> np.ndarray:
    return tokens[first:stop]


class LeastConsumedPlan(SequencePolicy[PlanState]):
    """The order for known lengths, with random access. Used-up sources drop out; the last step may
    not be full.

    Args:
        lengths: Tokens of every sample of each source, in order; or :class:`Equal` or
            :class:`InOrder` samples.
        batch: Examples per step.
        seed: Seed of the tie draw.
        start_counts: Tokens consumed of each source before the first sample; 0 by default.
        stages: First sample of each stage and the sources in use, in order; None: all from the
            first on.

    Raises:
        ConfigError: no sources, no samples, a negative length, not one start count per source.

    Example:
        >>> plan = LeastConsumedPlan([[4, 4, 4], [4, 4, 4], [6, 6]], BatchSchedule(4))
        >>> plan.sequence(0, 8)
        array([2, 0, 1, 0, 1, 2, 1, 0], dtype=int32)
        >>> joined = LeastConsumedPlan(
        ...     [Equal(4), Equal(2)], BatchSchedule(4), stages=[(0, [0]), (50, [0, 1])]
        ... )
        >>> joined.sequence(46, 56)
        array([0, 0, 0, 0, 0, 1, 1, 0, 1, 1], dtype=int32)
    """

    name = "least_consumed"

    def __init__(
        self,
        lengths: Sequence[Sequence[int] | Int64[np.ndarray, " n"] | Equal | InOrder],
        batch: BatchSchedule,
        seed: int = 42,
        start_counts: Sequence[int] | None = None,
        stages: Sequence[tuple[int, Sequence[int]]] | None = None,
    ) -> None:
        self._lengths = [
            x if isinstance(x, Equal | InOrder) else InOrder.listed(x) for x in lengths
        ]
        self._samples = [x.samples for x in self._lengths]
        if not any(n is None or n > 0 for n in self._samples):
            raise ConfigError(_NO_LENGTHS, field="lengths")
        if start_counts is not None and len(start_counts) != len(self._lengths):
            raise ConfigError(
                "needs one count a source", field="start_counts", value=list(start_counts)
            )
        self._start = (
            tuple(int(c) for c in start_counts) if start_counts else (0,) * len(self._lengths)
        )
        self._seed = seed
        self._members = dict(stages or [(0, range(len(self._lengths)))])
        super().__init__(len(self._lengths), batch)
        self.ends_after = self._end()

    def initial_state(self) -> PlanState:
        return (
            self._start,
            (0,) * len(self._lengths),
            tuple(self._members[0]),
            random.Random(self._seed).getstate(),
        )

    def _end(self) -> int | None:
        """Samples until a stage has none left; found by walking to the last stage whose sources all
        have an end.
        """
        borders = [*self._members, None]
        for (first, members), stop in zip(self._members.items(), borders[1:], strict=True):
            if None in (samples := [self._samples[d] for d in members]):
                continue
            drawn = self.counts_before(first) if first else np.zeros(self.components, np.int64)
            remaining = sum(
                n - int(drawn[d]) for d, n in zip(members, samples, strict=True) if n is not None
            )
            if stop is None or remaining < stop - first:
                return first + remaining
        return None

    def walk(self, state: PlanState, first: int, n: int) -> tuple[list[int], PlanState]:
        missing = (0,) * (len(self._lengths) - len(state[0]))  # an anchor from before an amendment
        walk = _Walk(
            self._lengths, [*state[0], *missing], [*state[1], *missing], list(state[2]), state[3]
        )
        for border in (*(at for at in self._members if first < at < first + n), first + n):
            at = first + len(walk.drawn)
            if 0 < at < border and at in self._members:
                walk.join(self._members[at])
            if not walk.draw(border - first):
                break
        return walk.drawn, (
            tuple(walk.tokens),
            tuple(walk.rows),
            tuple(walk.active),
            walk.rng.getstate(),
        )

    def supply(self) -> Int64[np.ndarray, " d"]:
        if len(self._members) > 1 and self.ends_after is not None:
            return self.counts_before(self.ends_after)
        everyone = {d for members in self._members.values() for d in members}
        most = [UNLIMITED if n is None else n for n in self._samples]
        return np.array([n if d in everyone else 0 for d, n in enumerate(most)], np.int64)


class _Walk:
    """The draws from a state on. A sample's turn is the number of tokens of its source before it,
    so stretches of known samples are sorted by turn; only samples with equal turns are drawn one by
    one.
    """

    def __init__(
        self,
        lengths: Sequence[Equal | InOrder],
        tokens: list[int],
        rows: list[int],
        active: list[int],
        ties: tuple[Any, ...],
    ) -> None:
        self._lengths = lengths
        self.tokens = tokens
        self.rows = rows
        self.active = active
        self.rng = random.Random()
        self.rng.setstate(ties)
        self.drawn: list[int] = []
        self._ahead = dict.fromkeys(
            range(len(lengths)), np.zeros(0, np.int64)
        )  # of samples that were not drawn yet

    def join(self, members: Sequence[int]) -> None:
        """Sets the sources in use; the tokens of new ones rise to the smallest count of those that
        stay.
        """
        staying = [d for d in members if d in self.active]
        smallest = min((self.tokens[d] for d in staying or self.active), default=0)
        for d in members:
            if d not in staying:
                self.tokens[d] = max(self.tokens[d], smallest)
        self.active = list(members)

    def draw(self, stop: int) -> bool:
        """Draws up to ``stop`` samples since the state; False: there are no more."""
        while len(self.drawn) < stop:
            self._look_ahead(stop - len(self.drawn))
            if not self._draw_sorted(stop) and not self._draw_one():
                return False
        return True

    def _look_ahead(self, samples: int) -> None:
        for d in self.active:
            lookahead = self._ahead[d]
            fair = samples // len(self.active) + 16
            if lookahead.size < fair // 2:
                first = self.rows[d] + lookahead.size
                most = self._lengths[d].samples
                until = first + fair if most is None else min(first + fair, most)
                self._ahead[d] = np.concatenate([lookahead, self._lengths[d].between(first, until)])

    def _draw_sorted(self, stop: int) -> bool:
        """Draws all samples whose turn is before that of any unknown sample; False:
        there are none.
        """
        until = min((self.tokens[d] + int(self._ahead[d].sum()) for d in self.active), default=0)
        turns = [self.tokens[d] + np.cumsum(self._ahead[d]) - self._ahead[d] for d in self.active]
        turns = [turn[: np.searchsorted(turn, until)] for turn in turns]
        source = np.repeat(np.arange(len(turns)), [len(one) for one in turns])
        turn = np.concatenate([np.zeros(0, np.int64), *turns])
        order = np.argsort(turn, kind="stable")
        drawn = self._ties_broken(
            turn[order], np.asarray(self.active)[source[order]].tolist(), stop - len(self.drawn)
        )
        self.drawn += drawn
        for d, samples in Counter(drawn).items():
            self.tokens[d] += int(self._ahead[d][:samples].sum())
            self.rows[d] += samples
            self._ahead[d] = self._ahead[d][samples:]
        return bool(drawn)

    def _ties_broken(
        self, turn: Int64[np.ndarray, " n"], sources: list[int], samples: int
    ) -> list[int]:
        """The first ``samples`` sources by rising turns; equal turns are in the order of the tie
        draw.
        """
        begins = np.flatnonzero(np.diff(turn, prepend=-1))
        sizes = np.diff(begins, append=turn.size)
        for at, size in zip(begins[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
            waiting = sources[at : at + size]
            for nth in range(at, min(at + size, samples)):
                tied = [*dict.fromkeys(waiting)]
                sources[nth] = tied[0] if len(tied) == 1 else self.rng.choice(tied)
                waiting.remove(sources[nth])
        return sources[:samples]

    def _draw_one(self) -> bool:
        """Draws a sample, after dropping sources that were picked and had none left; False: no
        source has any.
        """
        while self.active:
            k = least(self.tokens, self.active, self.rng)
            if self.rows[k] != self._lengths[k].samples:
                self.drawn.append(k)
                self.tokens[k] += int(self._ahead[k][0])
                self.rows[k] += 1
                self._ahead[k] = self._ahead[k][1:]
                return True
            self.active.remove(k)
        return False


def least(tokens: Sequence[int], active: Sequence[int], rng: random.Random) -> int:
    """The active source with the fewest tokens; ``rng`` is used only if several tie."""
    fewest = min(tokens[d] for d in active)
    tied = [d for d in active if tokens[d] == fewest]
    return tied[0] if len(tied) == 1 else rng.choice(tied)


class LeastConsumedFirst(PolicyKind):
    """``policy: least_consumed``."""

    counts_tokens = True
    ends_with_data = True

    def make(self, plan: Plan) -> LeastConsumedPlan:
        for stage in plan.stages:
            alone = dataclasses.replace(plan, names=stage.blend.names, stages=[stage])
            equal_weights(alone, "least_consumed", limits=True)
        samples: Sequence[Equal | InOrder] = [Equal(plan.seq_len, limit) for limit in plan.limits]
        if plan.lengths is not None:
            samples = [
                InOrder(lengths.between, limit)
                for lengths, limit in zip(plan.lengths, plan.limits, strict=True)
            ]
        numbers = {name: number for number, name in enumerate(plan.names)}
        stages = [
            (
                plan.batch.rows_at(stage.first_step)[0],
                [numbers[name] for name in stage.blend.names],
            )
            for stage in plan.stages
        ]
        return LeastConsumedPlan(samples, plan.batch, stages=stages)
