"""How far an iteration has planned, and where it stops because its run changes.

A loader plans some steps ahead: at most :data:`MOST_AHEAD` steps beyond the one that it begins. A
step that is planned has its batch. Whoever changes the run first asks that the plan hold at the
step from which the change is to be. If that step is planned already, the change is refused.
Otherwise nothing across the step is planned before the decision. If the run changes, the plan ends
at the step, and the iteration goes on with the run as it is then. If it does not, the plan goes on
as if nobody had asked: hosts that exchange rows must plan the same windows, also after a change
that one of them refused.
"""

from __future__ import annotations

import threading

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
        hold: A step at which the plan holds until :meth:`decide`.

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

    def __init__(self, first: int, stop: int | None = None, hold: int | None = None) -> None:
        # Re-entrant: a loader that is garbage calls `close` from within any call of this thread.
        self._changed = threading.Condition(threading.RLock())
        self._hold = hold
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
                self.stop = self._hold
            self._hold = None
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the iteration: nobody waits any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
