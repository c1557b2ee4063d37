"""How far iterations have planned, and where they go on with another run because theirs changes.

A loader plans some steps ahead: at most :data:`MOST_AHEAD` steps beyond the one that it begins. A
step that is planned has its batch. Whoever changes the run first asks that the plan hold at the
step from which the change is to be. If that step is planned already, the change is refused.
Otherwise nothing across the step is planned before the decision. If the run changes, the plan ends
at the step, and another plan, of the run as it is then, begins. If it does not, the plan goes on as
if nobody had asked.

Hosts that exchange rows must plan the same windows, though they hear of a change at different
moments. So an iteration goes through the changes that were agreed after it began in one order that
follows from their steps alone (:class:`Horizons`), however late it comes to the first of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.metrics import IterationStats
from headrace.order.residency import FORESIGHT, WINDOW_STEPS

AHEAD = 64
"""Steps beyond the one that is delivered whose reads may have started."""
MOST_AHEAD = AHEAD + FORESIGHT + WINDOW_STEPS
"""Steps beyond the one that a reader begins that may be planned."""


class Horizon:
    """The plan of one iteration, as two threads see it: one plans, another may end the plan.

    Args:
        first: The first step.
        stop: One past the last step; None: there is none.

    Example:
        >>> horizon = Horizon(0, 200)
        >>> horizon.plan(0, 64), horizon.hold_at(40), horizon.hold_at(80)
        (64, False, True)
        >>> horizon.decide(change=False)
        >>> horizon.plan(64, 64), horizon.hold_at(150), horizon.decide(change=True)
        (64, True, None)
        >>> horizon.plan(128, 64), horizon.is_changed
        (22, True)
    """

    def __init__(self, first: int, stop: int | None = None) -> None:
        # Re-entrant: a loader that is garbage calls `close` from within any call of this thread.
        self._changed = threading.Condition(threading.RLock())
        self._hold: int | None = None
        self._last = stop
        self.stop = stop
        self.planned_until = first
        self.is_closed = False

    @property
    def is_changed(self) -> bool:
        """Whether the plan ends because the run changes."""
        return self.stop != self._last

    def plan(self, first: int, steps: int) -> int:
        """The number of steps, of ``steps`` from ``first`` on, that may be planned. They count as
        planned. Waits for the decision if the plan holds at one of them.
        """
        with self._changed:
            while self._hold is not None and self._hold < first + steps and not self.is_closed:
                self._changed.wait()
            if self._hold is not None and self.is_closed:
                self.stop = min(self._hold, first)
            if self.stop is not None:
                steps = max(min(steps, self.stop - first), 0)
            self.planned_until = first + steps
            return steps

    def hold_at(self, step: int) -> bool:
        """Holds the plan at a step until :meth:`decide`; False if the step is planned already."""
        with self._changed:
            if step < self.planned_until:
                return False
            # an end that comes first is kept: what is decided until then holds behind it
            if self.stop is None or step < self.stop:
                self._hold = step
            return True

    def decide(self, *, change: bool) -> None:
        """Lets a plan that holds go on, or end there because the run changes."""
        with self._changed:
            if change and self._hold is not None:
                self.end_at(self._hold)
            self._hold = None
            self._changed.notify_all()

    def end_at(self, step: int) -> None:
        """Ends the plan at a step, or before it as it is."""
        self.stop = step if self.stop is None else min(self.stop, step)

    def close(self) -> None:
        """Ends the iteration: nobody waits any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


class Loaded(Protocol):
    """What an iteration loads."""

    @property
    def num_steps(self) -> int | None: ...


T = TypeVar("T", bound=Loaded)


@dataclass(eq=False)
class Change(Generic[T]):
    """What is loaded from a step on.

    Attributes:
        step: The step.
        loads: What is loaded.
        later: The change that was agreed next; None: there is none.
    """

    step: int
    loads: T
    later: Change[T] | None = None

    def all_later(self) -> Iterator[Change[T]]:
        """The changes that were agreed after this one, in order."""
        change = self.later
        while change is not None:
            yield change
            change = change.later


class Horizons(Generic[T]):
    """The plans of a loader's iterations, and what they load.

    An iteration begins with the last change. When the run changes further, its plan ends at the
    first step of any later change, and the next plan is of the last change that begins there.
    What was agreed since has its own step behind, and ends that plan in turn.

    Args:
        loads: What the loader loads at first.
    """

    def __init__(self, loads: T) -> None:
        self._settled = threading.Condition()
        self._last = Change(0, loads)
        self._hold: int | None = None
        self._plans: dict[Horizon, tuple[Change[T], IterationStats]] = {}

    @property
    def loads(self) -> T:
        """What an iteration that begins loads."""
        return self._last.loads

    @property
    def steps(self) -> list[int]:
        """For each open iteration, the steps whose batches its trainer has."""
        with self._settled:
            return [stats.step for _, stats in self._open_plans().values()]

    def begin(self, step: int, stats: IterationStats) -> tuple[Horizon, T]:
        """The plan of an iteration, and what it loads. Waits while a change is decided."""
        with self._settled:
            while self._hold is not None:
                self._settled.wait()
            return self._open(step, self._last, stats)

    def follow(self, ended: Horizon) -> tuple[Horizon, T] | None:
        """The same after a plan that ended because the run changes; None if it is closed."""
        with self._settled:
            if ended.is_closed or ended.stop is None:
                return None
            change, stats = self._plans[ended]
            changes = [later for later in change.all_later() if later.step == ended.stop]
            following = self._open(ended.stop, changes[-1], stats)
            ended.close()
            return following

    def hold_at(self, step: int) -> bool:
        """Holds all plans at a step until :meth:`decide`; False, and none holds, if the step is
        planned already.
        """
        with self._settled:
            self._hold = step
            holds = [horizon.hold_at(step) for horizon in self._open_plans()]
        if not all(holds):
            self.decide(None)
        return all(holds)

    def decide(self, loads: T | None) -> None:
        """Lets plans that hold end, for this is loaded from the step on, or, if it is None, go on
        as they were.
        """
        with self._settled:
            if loads is not None and self._hold is not None:
                self._last.later = Change(self._hold, loads)
                self._last = self._last.later
            for horizon in self._open_plans():
                horizon.decide(change=loads is not None)
            self._hold = None
            self._settled.notify_all()

    def _open(self, step: int, change: Change[T], stats: IterationStats) -> tuple[Horizon, T]:
        horizon = Horizon(step, change.loads.num_steps)
        for later in change.all_later():
            horizon.end_at(later.step)
        if self._hold is not None:
            horizon.hold_at(self._hold)
        self._plans = {**self._open_plans(), horizon: (change, stats)}
        return horizon, change.loads

    def _open_plans(self) -> dict[Horizon, tuple[Change[T], IterationStats]]:
        return {horizon: plan for horizon, plan in self._plans.items() if not horizon.is_closed}
