"""How far an iteration has planned, and where it stops because its run changes.

A loader plans some steps ahead: at most :data:`MOST_AHEAD` steps beyond the one that it begins. A
step that is planned has its batch. Whoever changes the run first ends the plan at the step from
which the change holds. If that step is planned already, the change is refused; otherwise the
iteration comes to the step, waits for the decision, and goes on with the run as it is then.
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
        hold: A step at which the plan ends until :meth:`decide`.

    Example:
        >>> horizon = Horizon(0, 100)
        >>> horizon.plan(0, 64), horizon.end_at(40), horizon.end_at(80), horizon.plan(64, 64)
        (64, False, True, 16)
    """

    def __init__(self, first: int, stop: int | None = None, hold: int | None = None) -> None:
        # Re-entrant: a loader that is garbage calls `close` from within any call of this thread.
        self._lock = threading.RLock()
        self._decided = threading.Event()
        self._last = stop
        self.stop = stop
        self.planned_until = first
        self.is_closed = False
        if hold is not None:
            self.end_at(hold)

    def plan(self, first: int, steps: int) -> int:
        """The number of steps, of ``steps`` from ``first`` on, that may be planned. They count as
        planned.
        """
        with self._lock:
            if self.stop is not None:
                steps = min(steps, self.stop - first)
            self.planned_until = first + steps
            return steps

    def end_at(self, step: int) -> bool:
        """Ends the plan at a step until :meth:`decide`; False if the step is planned already."""
        with self._lock:
            if step < self.planned_until:
                return False
            # an end that comes first is kept: what is decided until then holds behind it
            if self.stop is None or step < self.stop:
                self._decided.clear()
                self.stop = step
            return True

    def decide(self) -> None:
        """Lets an iteration that has come to its end go on."""
        self._decided.set()

    def wait(self) -> bool:
        """Waits, where the plan has ended, for the decision; False if the iteration is over."""
        with self._lock:
            is_over = self.stop == self._last
        if not is_over:
            self._decided.wait()
        return not is_over

    def close(self) -> None:
        """Ends the iteration: nobody waits any more."""
        with self._lock:
            self._last = self.stop
            self.is_closed = True
        self._decided.set()
