"""Stages: consecutive mixtures, over one set of components whose ordinals continue without a gap.

A stage begins at a step and has its own blend, over any of the components, with exact quotas
(mix/quota.py). There are two kinds: those of a **plan** that is known from the start (pretraining,
then mid-training, then long context), and **amendments**, which a resumed run declares: sources are
added, dropped or reweighted from a step on.

**Debts are carried over.** Each component has one account over the whole run: its share W (the sum
of batch size times weight) minus the number N of its examples drawn. A stage continues from it, so
that a source with a small weight gets its example eventually, even if every stage is one step long.
Stages over the same components are one quota with changing weights. If components leave, their debt
(or surplus) stays on their account, and the accounts of the others no longer sum to 0. They share
the difference **evenly**: each is moved by the same part of an example until the next stage, so
that a stage's deviations sum to 0 (otherwise one of them would be late forever, see mix/quota.py).
A component that returns continues from its account, a new one starts from 0; a component that a
stage lists without ever weighting it counts as having left.

Invariant: a step depends on its own stage and on earlier steps, never on a later stage. An
amendment therefore cannot change the past, and a component keeps its position in its order when its
weight changes, when it pauses, and when others come and go. Within a stage ``|N - W|`` is what
``Quota`` promises, below 1, plus what the stage moved (``moved_at``); it is below 1 as long as no
component leaves. Measured where they do (``python tests/mix/test_stages.py``): 6000 stages of 1 to
20 steps, components and weights drawn anew for each, 8 components: never more than 1.48 examples;
20 components: 1.33. In tests never as many examples as there are components.

Price: that of ``Quota``; entering stage k counts through the earlier stages once, unless weights
are constant.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError, did_you_mean
from headrace.mix.blend import Blend
from headrace.mix.policy import (
    Anchor,
    MixingPolicy,
    anchor_integer,
    anchor_integers,
    anchor_sum,
    refused,
)
from headrace.mix.quota import Quota
from headrace.mix.schedule import MAX_STEP, BatchSchedule
from headrace.mix.shares import BITS, ONE, PART, UNLIMITED, Account, bound_shares, row_shares

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Stage:
    """One mixture of a run.

    Attributes:
        first_step: Global step at which it begins.
        blend: Weights, as functions of the **global** step, of the components that it uses.
        name: For reports and errors.
        max_share: Largest share of components in a batch at any step, by name; the others take the
            rest.
        row_tokens: If weights count tokens: tokens and rows of an epoch of each of its components,
            by name. Empty: they count rows, or all rows have the same number of tokens.
    """

    first_step: int
    blend: Blend
    name: str = ""
    max_share: Mapping[str, float] = field(default_factory=dict[str, float])
    row_tokens: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def tokens_of_rows(self) -> list[float] | None:
        """Mean tokens per row, in the order of the blend's names; None: weights count rows."""
        if not self.row_tokens:
            return None
        return [
            tokens / rows for tokens, rows in (self.row_tokens[name] for name in self.blend.names)
        ]

    def describe(self) -> dict[str, Any]:
        """As JSON values of a run's plan."""
        return {
            "step": self.first_step,
            "name": self.name,
            "components": list(
                self.blend.names
            ),  # their order breaks ties, and JSON objects have none
            "weights": self.blend.to_config(),
            "max_share": dict(self.max_share),
            **(
                {"row_tokens": {n: [*t] for n, t in self.row_tokens.items()}}
                if self.row_tokens
                else {}
            ),
        }


def check_first_steps(stages: Sequence[Stage]) -> None:
    """Raises ConfigError unless the first stage begins at step 0, and each other one after the one
    before it.

    Example:
        >>> check_first_steps([Stage(5, Blend({"web": 1}))])
        Traceback (most recent call last):
        headrace.errors.ConfigError: stages[0].step = 5: must begin at step 0. Add a first stage.
    """
    if not stages or stages[0].first_step != 0:
        first = stages[0].first_step if stages else None
        raise ConfigError(
            "must begin at step 0", field="stages[0].step", value=first, cure="Add a first stage."
        )
    for previous, next_stage in pairwise(stages):
        if not previous.first_step < next_stage.first_step <= MAX_STEP:
            raise ConfigError(
                f"does not begin after the stage before it, at step {previous.first_step}",
                field=f"stages[{next_stage.name or stages.index(next_stage)}].step",
                value=next_stage.first_step,
                cure="Sort the stages; each needs a step of its own.",
            )


def check_components(names: Sequence[str], stages: Iterable[Stage]) -> None:
    """Raises ConfigError if a stage names an unknown component, or a component has no weight
    anywhere, not even 0.

    Example:
        >>> check_components(
        ...     ["web", "code"], [Stage(0, Blend({"web": 1, "coed": 1}, "stages[0].weights"))]
        ... )
        Traceback (most recent call last):
        headrace.errors.ConfigError: stages[0].weights.coed: is not a component.
            Did you mean 'code'?
    """
    used: set[str] = set()
    for stage in stages:
        check_known(names, stage)
        used |= set(stage.blend.names)
    for name in names:
        if name not in used:
            cure = "Give it a weight (0 is one) in weights, stages or an amendment's add."
            raise ConfigError("has no weight anywhere", field=f"components.{name}", cure=cure)


def check_known(names: Sequence[str], stage: Stage) -> None:
    """Raises ConfigError if a stage names an unknown component."""
    for name in stage.blend.names:
        if name not in names:
            raise ConfigError(
                "is not a component",
                field=f"{stage.blend.path}.{name}",
                cure=did_you_mean(name, names),
            )


@dataclass(frozen=True)
class _Entry:
    """The accounts of the components before a stage."""

    drawn: Int64[np.ndarray, " d"]
    owed: Int64[np.ndarray, " d"]  # share minus drawn, in 2**-44 examples
    late: int


class Stages(MixingPolicy):
    """Exact quotas, stage after stage, for all components, ``names``, in the order in which they
    are numbered.

    The first ``planned`` stages (None: all) are planned, those after them are amendments.

    Raises:
        ConfigError: no stage, stages out of order, a stage with an unknown component.

    Example:
        >>> early, late = Blend({"web": 3, "code": 1}), Blend({"code": 1, "math": 1})
        >>> run = Stages(
        ...     ["web", "code", "math"], [Stage(0, early), Stage(2, late)], BatchSchedule(4)
        ... )
        >>> (
        ...     [np.bincount(run.components_at(s), minlength=3).tolist() for s in (1, 2)],
        ...     run.starts_at(3).tolist(),
        ... )
        ([[3, 1, 0], [0, 2, 2]], [6, 4, 2])
    """

    name = "quota"
    follows_sizes = False

    def __init__(
        self,
        names: Sequence[str],
        stages: Sequence[Stage],
        batch: BatchSchedule,
        limits: Sequence[int | None] | None = None,
        planned: int | None = None,
    ) -> None:
        check_first_steps(stages)
        self.names = tuple(names)
        self.stages = tuple(stages)
        self.batch = batch
        self.components = len(self.names)
        self._planned = len(stages) if planned is None else planned
        self._limits = [None] * self.components if limits is None else list(limits)
        if len(self._limits) != self.components:
            raise ConfigError(
                f"needs one entry for each of {self.components} components",
                field="limits",
                value=limits,
            )
        for stage in stages:
            check_known(self.names, stage)
            for name in stage.max_share:
                if name not in stage.blend.names:
                    cure = did_you_mean(name, stage.blend.names)
                    raise ConfigError(
                        "is not a component of this stage", field=f"max_share.{name}", cure=cure
                    )
        self._columns = [
            np.asarray([self.names.index(n) for n in stage.blend.names]) for stage in stages
        ]
        self._first_steps = [stage.first_step for stage in stages]
        self._stops = [*self._first_steps[1:], MAX_STEP + 1]
        # Filled without a lock: threads that meet store equal values.
        self._entered: list[_Entry | None] = [None] * len(stages)
        self._quotas: list[Quota | None] = [None] * len(stages)

    def followed_by(self, stage: Stage) -> Stages:
        """These stages and an amendment after them; what was counted is not counted again."""
        last = self.stages[-1]
        ended = replace(last, blend=last.blend.used(last.first_step, stage.first_step))
        other = copy.copy(self)
        other.stages = (*self.stages[:-1], ended, stage)
        columns = [self.names.index(name) for name in stage.blend.names]
        other._columns = [*self._columns, np.asarray(columns)]
        other._first_steps = [*self._first_steps, stage.first_step]
        other._stops = [*self._stops[:-1], stage.first_step, MAX_STEP + 1]
        other._entered = [*self._entered, None]
        # the last quota had no end
        other._quotas = [*self._quotas[:-1], None, None]
        return other

    def stage_at(self, step: int) -> int:
        """Number of the stage that holds a step."""
        return bisect_right(self._first_steps, step) - 1

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        return self._drawn_before(self.stage_at(step), step)

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order."""
        number = self.stage_at(step)
        drawn = self._ask(Quota.components_at, number, step)
        return self._columns[number][drawn].astype(np.int32)

    def tables_between(
        self, first: int, stop: int
    ) -> tuple[Int32[np.ndarray, " n"], Int64[np.ndarray, " n"]] | None:
        """Component and ordinal of each row of some steps of one size; None if they are of several
        stages.
        """
        number = self.stage_at(first)
        if self.stage_at(stop - 1) != number:
            return None
        first_step = self._first_steps[number]
        quota = self._quota(number)
        try:
            tables = quota.tables_between(first - first_step, stop - first_step)
        except IndexOutOfRangeError as error:
            raise self._ended(
                number, max(first, first_step + (quota.find_end(stop - first_step) or 0))
            ) from error
        if tables is None:
            return None
        drawn, ordinal = tables
        return self._columns[number][drawn].astype(np.int32), ordinal

    def supply(self) -> Int64[np.ndarray, " d"]:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        last = len(self.stages) - 1
        try:
            total = self._entry(last).drawn.copy()
        except (
            IndexOutOfRangeError
        ):  # limits end the mixture within the last stage that could be entered
            number = max(number for number, entry in enumerate(self._entered) if entry is not None)
            first = self._first_steps[number]
            end = self._quota(number).find_end(self._stops[number] - first + 1)
            return self._drawn_before(number, first + (end or 0))
        total[self._columns[last]] = self._quota(last).supply()
        return total

    def prepare(self, steps: int) -> None:
        """Counts ahead, so that any step up to ``steps`` takes bounded time."""
        for number in range(self.stage_at(max(steps - 1, 0)) + 1):
            self._quota(number).prepare(min(self._stops[number], steps) - self._first_steps[number])

    @property
    def late_steps(self) -> int:
        """Number of steps, of those prepared so far, at which a component was a full example off
        its shifted share.
        """
        quotas = [(number, quota) for number, quota in enumerate(self._quotas) if quota is not None]
        entry = self._entered[quotas[0][0] if quotas else 0]
        return (entry.late if entry else 0) + sum(quota.late_steps for _, quota in quotas)

    def moved_at(self, step: int) -> Float64[np.ndarray, " d"]:
        """Examples by which the stage of ``step`` shifts the share of each component, compared with
        the whole run.

        Constant over a stage; 0 as long as no component has left, and for those that have left.
        """
        number = self.stage_at(step)
        entry = self._entry(number)
        used = self._used(number)
        return np.where(used, _rebased(entry, used, self._room(entry)) - entry.owed, 0) / ONE

    def anchor_at(self, step: int) -> Anchor:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        number = self.stage_at(step)
        entry = self._entry(number)
        quota = self._ask(Quota.anchor_at, number, step)
        drawn = entry.drawn.tolist()
        owed = entry.owed.tolist()
        return {"stage": number, "drawn": drawn, "owed": owed, "late": entry.late, "quota": quota}

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        number = anchor_integer(anchor, "stage", most=len(self.stages) - 1)
        drawn = anchor_integers(
            anchor, "drawn", self.components, padded=True
        )  # amendments add components at the end
        anchor_sum(drawn, self.batch.rows_at(self._first_steps[number])[0], "drawn")
        owed = anchor_integers(anchor, "owed", self.components, signed=True, padded=True)
        anchor_sum(owed, 0, "owed")
        inner = anchor.get("quota")
        if not isinstance(inner, Mapping):
            raise refused("has no 'quota'")
        entry = _Entry(drawn, owed, anchor_integer(anchor, "late"))
        quota = self._quotas[number] or self._make_quota(number, entry)
        quota.use_anchor(cast(Mapping[str, object], inner))
        if self._quotas[number] is None:
            self._entered[number] = entry
            self._quotas[number] = quota

    def _drawn_before(self, number: int, step: int) -> Int64[np.ndarray, " d"]:
        """Examples drawn before a step of this stage, or before the first step after it."""
        total = self._entry(number).drawn.copy()
        total[self._columns[number]] = self._ask(Quota.starts_at, number, step)
        return total

    def _ask(self, question: Callable[[Quota, int], _Answer], number: int, step: int) -> _Answer:
        """What a stage's quota answers for a step, which it counts from the stage's first."""
        try:
            return question(self._quota(number), step - self._first_steps[number])
        except IndexOutOfRangeError as error:
            raise self._ended(number, step) from error

    def _entry(self, number: int) -> _Entry:
        entry = self._entered[number]
        if entry is None:
            zero = np.zeros(self.components, np.int64)
            entry = self._entered[number] = (
                self._entry_after(number - 1) if number else _Entry(zero, zero, 0)
            )
        return entry

    def _entry_after(self, number: int) -> _Entry:
        entry = self._entry(number)
        quota = self._quota(number)
        columns = self._columns[number]
        drawn = self._drawn_before(number, self._stops[number])
        if int(drawn.sum()) < self.batch.rows_at(self._stops[number])[0]:
            raise self._ended(number, self._stops[number])  # the stage's last step holds the rest
        account = quota.account_at(self._stops[number] - self._first_steps[number])
        owed = entry.owed.copy()
        owed[columns] += _off(account) - _off(quota.account_at(0))
        return _Entry(drawn, owed, entry.late + quota.late_steps)

    def _quota(self, number: int) -> Quota:
        quota = self._quotas[number]
        if quota is None:
            quota = self._quotas[number] = self._make_quota(number, self._entry(number))
        return quota

    def _make_quota(self, number: int, entry: _Entry) -> Quota:
        stage = self.stages[number]
        columns = self._columns[number]
        first = self._first_steps[number]
        stop = self._stops[number]
        owed = _rebased(entry, self._used(number), self._room(entry))[columns]
        drawn = entry.drawn[columns]
        start = Account(drawn + (owed >> BITS), owed & PART, drawn)
        last = min(stop - 1, MAX_STEP)
        return Quota(
            partial(_weights_at, stage.blend, first, last),
            stage.blend.names,
            self.batch.seen_from(first),
            [self._limits[c] for c in columns.tolist()],
            max(stage.blend.settles_at(last) - first, 0),
            [stage.max_share.get(name) for name in stage.blend.names],
            start,
            stage.tokens_of_rows,
            partial(stage.blend.lines_at, first=first, last=last),
        )

    def _used(self, number: int) -> Bool[np.ndarray, " d"]:
        """Components with weight at some step of the stage."""
        first = self._first_steps[number]
        last = self._stops[number] - 1
        blend = self.stages[number].blend
        amendment_follows = self._planned <= number + 1 < len(self.stages)
        if amendment_follows:  # which must not touch what was before it
            last = MAX_STEP
            blend = blend.used(first, None)
        used = np.zeros(self.components, bool)
        steps = np.append(blend.bends(first, last), min(last, MAX_STEP))
        used[self._columns[number]] = (blend.at(steps) > 0).any(axis=0)
        return used

    def _room(self, entry: _Entry) -> list[int]:
        """Remaining capacity of the components, in 2**-44 examples."""
        limits = [UNLIMITED if limit is None else limit for limit in self._limits]
        return [max(limit - int(n), 0) * ONE for limit, n in zip(limits, entry.drawn, strict=True)]

    def _ended(self, number: int, step: int) -> IndexOutOfRangeError:
        shares = dict(self.stages[number].max_share)
        bounded = f" within the largest shares of a step, {shares}" if shares else ""
        return IndexOutOfRangeError(
            f"the mixture of the stage that begins at step {self._first_steps[number]} ends before"
            f" it: no component that has weight then has enough examples left{bounded}",
            field="step",
            value=step,
            cure="Allow more epochs, a larger budget or share, or other sources, or train for"
            " fewer steps.",
        )


def _off(account: Account) -> Int64[np.ndarray, " d"]:
    """Share minus examples drawn, in 2**-44 examples (a few thousand examples at most)."""
    return ((account.whole - account.drawn) << BITS) + account.part


def _rebased(
    entry: _Entry, used: Bool[np.ndarray, " d"], room: Sequence[int]
) -> Int64[np.ndarray, " d"]:
    """The debts of components, shifted so that they sum to 0 over those in use and are 0 for the
    others.

    All are shifted equally, but none beyond the capacity that its limit leaves; exact in integers.
    """
    moved = np.zeros(len(used), np.int64)
    capped: set[int] = set()
    everyone = np.flatnonzero(used).tolist()
    while True:
        free = [d for d in everyone if d not in capped]
        part, rest = divmod(
            sum(int(entry.owed[d]) for d in free) + sum(room[d] for d in capped), max(len(free), 1)
        )
        carried = {d: int(entry.owed[d]) - part - (k < rest) for k, d in enumerate(free)}
        over = {d for d, owed in carried.items() if owed > room[d]}
        if not over:
            break
        capped |= over
    for d in everyone:
        moved[d] = carried[d] if d in carried else room[d]
    return moved


def _weights_at(
    blend: Blend, first: int, last: int, steps: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, "n d"]:
    """Weights at steps of a stage, counted from its first; its last step's hold behind it."""
    return blend.at(np.minimum(steps + first, last))


# a normalised share bends between two break points only in nested blends; this many looks are
# plenty
_SAMPLES = 33
_FITTING_SHARE = 0.5  # laps fit the usual share where it is at least this part of the largest


@dataclass(frozen=True)
class PlanShares:
    """Shares of the components of a plan, by name, in the order in which stages first use them."""

    largest: dict[str, float]
    """The largest share of a batch that each ever gets."""
    usual: dict[str, float] | None
    """The share for which its laps should fit, at most the largest; None if no stretch is without
    change.
    """


@dataclass(frozen=True)
class _Stretch:
    """Shares at some steps of ``[first, stop)``, between two break points."""

    first: int
    stop: int | None
    names: tuple[str, ...]
    rows: Float64[np.ndarray, "n d"]

    def constant(self) -> dict[str, float] | None:
        same = bool((np.abs(self.rows - self.rows[0]) < 1e-9).all())
        return dict(zip(self.names, self.rows[0].tolist(), strict=True)) if same else None


def plan_shares(stages: Sequence[Stage]) -> PlanShares:
    """Shares over consecutive stages, of which the last is endless.

    Strands are sized once for all stages, by the largest share; otherwise a component that grows in
    a later stage would mix within too small a window. Laps fit the usual share: that of the longest
    stretch without changes. The end of a run is deliberately not used: extending a run must not
    change its order. An endless last stretch counts as long as everything before it. Price: some 33
    evaluations between two break points.

    Raises:
        ConfigError: the largest shares leave a part of some batch unfilled.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> plan = plan_shares(
        ...     [Stage(0, Blend({"web": 3, "code": 1})), Stage(50, Blend({"code": 1, "math": 1}))]
        ... )
        >>> plan.largest
        {'web': 0.75, 'code': 0.5, 'math': 0.5}
        >>> plan.usual  # of the first stage, and of the last for what the first does not use
        {'web': 0.75, 'code': 0.25, 'math': 0.5}
    """
    last = stages[-1]
    endless = last.blend.used(last.first_step, None)
    stages = [*stages[:-1], replace(last, blend=endless)]
    stops = [*(stage.first_step for stage in stages[1:]), None]
    stretches = [
        s for stage, stop in zip(stages, stops, strict=True) for s in _stretches(stage, stop)
    ]
    largest: dict[str, float] = {}
    for stretch in stretches:
        for name, share in zip(stretch.names, stretch.rows.max(axis=0).tolist(), strict=True):
            largest[name] = max(largest.get(name, 0.0), share)
    usual = _longest(stretches)
    if usual is None:
        return PlanShares(largest, None)
    near = {name: usual.get(name, 0.0) for name in largest}
    fitting = {
        name: share if share >= _FITTING_SHARE * largest[name] else largest[name]
        for name, share in near.items()
    }
    return PlanShares(largest, fitting)


def _stretches(stage: Stage, stop: int | None) -> list[_Stretch]:
    first = stage.first_step
    inside = [b for b in stage.blend.breaks if first < b and (stop is None or b < stop)]
    names = stage.blend.names
    bound = np.array([stage.max_share.get(name, 1.0) for name in stage.blend.names])
    row_tokens = stage.tokens_of_rows
    stretches: list[_Stretch] = []
    for begin, end in pairwise([first, *inside, stop]):
        assert begin is not None  # only the last bound may be missing
        last = begin if end is None else end - 1
        steps = np.unique(np.linspace(begin, last, _SAMPLES).astype(np.int64))
        try:
            rows = stage.blend.at(steps)
        except (
            ConfigError
        ):  # no weight there: the blend was checked for the steps that are run, and this is behind
            continue
        rows = _bounded(rows, bound, steps, names)
        rows = rows if row_tokens is None else row_shares(rows, np.array(row_tokens))
        stretches.append(_Stretch(begin, end, names, rows))
    return stretches


def _bounded(
    rows: np.ndarray, bound: np.ndarray, steps: np.ndarray, names: tuple[str, ...]
) -> np.ndarray:
    if not (bound < 1).any():
        return rows
    try:
        return bound_shares(rows, bound, steps)
    except ConfigError as error:
        bounds = {n: b for n, b in zip(names, bound.tolist(), strict=True) if b < 1}
        raise error.but(field="max_share", value=bounds) from error


def _longest(stretches: Sequence[_Stretch]) -> dict[str, float] | None:
    """Shares of the longest stretch without change; the first of equals."""
    best = None
    longest = 0
    begin = 0
    previous = None
    for stretch in stretches:
        shares = stretch.constant()
        if shares is not None and shares != previous:  # neighbours that are alike are one
            begin = stretch.first
        previous = shares
        stop = max(2 * begin, begin + 1) if stretch.stop is None else stretch.stop
        if shares is not None and stop - begin > longest:
            best = shares
            longest = stop - begin
    return best
