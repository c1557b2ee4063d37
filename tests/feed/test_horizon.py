"""Where the plan of an iteration ends because its run changes, and that a change which is refused
leaves no trace in it.
"""

import threading
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.horizon import Horizon, Horizons
from headrace.metrics import IterationStats

WINDOWS = st.lists(st.sampled_from([1, 8, 32, 64]), min_size=1, max_size=12)


@given(WINDOWS, st.lists(st.integers(0, 400), max_size=12), st.none() | st.integers(0, 300))
def test_a_change_that_is_refused_leaves_the_windows_as_they_are(windows, holds, stop):
    alone = Horizon(0, stop)
    asked = Horizon(0, stop)
    planned = 0
    for number, steps in enumerate(windows):
        if number < len(holds):
            assert asked.hold_at(holds[number]) == (holds[number] >= planned)
            asked.decide(change=False)
        steps_planned = alone.plan(planned, steps)
        assert asked.plan(planned, steps) == steps_planned
        planned += steps_planned
    assert not asked.is_changed


@given(WINDOWS, st.integers(0, 400))
def test_a_change_ends_the_plan_at_its_step_and_nowhere_before(windows, step):
    horizon = Horizon(0)
    assert horizon.hold_at(step)
    horizon.decide(change=True)
    planned = 0
    for steps in windows:
        steps_planned = horizon.plan(planned, steps)
        assert steps_planned == min(steps, step - planned)
        planned += steps_planned
    assert horizon.is_changed


def plan_in_thread(horizon: Horizon, first: int, steps: int) -> tuple[threading.Thread, list[int]]:
    planned: list[int] = []
    thread = threading.Thread(target=lambda: planned.append(horizon.plan(first, steps)))
    thread.start()
    return thread, planned


def test_nothing_across_the_step_is_planned_before_the_decision():
    for change, expected in ((False, 64), (True, 36)):
        horizon = Horizon(0, 1000)
        assert horizon.plan(0, 64) == 64
        assert horizon.hold_at(100)
        thread, planned = plan_in_thread(horizon, 64, 64)
        thread.join(0.2)
        assert planned == []
        assert horizon.planned_until == 64
        horizon.decide(change=change)
        thread.join()
        assert planned == [expected]


class Loads(NamedTuple):
    """What is loaded after some changes."""

    changes: int
    num_steps: int | None = 400


class Planner:
    """A host that hears of the changes of a run when it likes."""

    def __init__(self) -> None:
        self.horizons = Horizons(Loads(0))
        self.heard = 0
        self.horizon, self.loads = self.horizons.begin(0, IterationStats())
        self.planned = 0
        self.windows: list[tuple[int, int, int]] = []

    def hear(self, changes: list[int]) -> None:
        """Hears of the next change, of which all hosts have said that they have not planned it."""
        assert self.horizons.hold_at(changes[self.heard])
        self.heard += 1
        self.horizons.decide(Loads(self.heard))

    def plan(self, steps: int = 32) -> None:
        """Plans the next window, after the plans that end here."""
        while not (planned := self.horizon.plan(self.planned, steps)):
            following = self.horizons.follow(self.horizon) if self.horizon.is_changed else None
            if following is None:
                return
            self.horizon, self.loads = following
        self.windows.append((self.planned, planned, self.loads.changes))
        self.planned += planned


@given(st.lists(st.integers(0, 300), max_size=6), st.data())
def test_hosts_that_hear_of_changes_at_different_moments_plan_the_same_windows(steps, data):
    hosts = Planner(), Planner()
    agreed: list[int] = []
    for step in steps:
        # each goes on as far as it likes: a change that one has planned is refused
        for host in hosts:
            for _ in range(data.draw(st.integers(0, 4))):
                while host.heard < len(agreed) and data.draw(st.booleans()):
                    host.hear(agreed)
                if host.heard == len(agreed) or host.planned + 32 <= min(agreed[host.heard :]):
                    host.plan()
        # hosts vote on one change at a time
        for host in hosts:
            while host.heard < len(agreed):
                host.hear(agreed)
        if all(host.horizon.planned_until <= step for host in hosts):
            agreed.append(step)
    for host in hosts:
        while host.heard < len(agreed):
            host.hear(agreed)
        while host.horizon.planned_until < 400:
            host.plan()
    assert hosts[0].windows == hosts[1].windows


def test_what_is_closed_waits_for_no_decision():
    horizon = Horizon(0, 1000)
    assert horizon.hold_at(3)
    thread, planned = plan_in_thread(horizon, 0, 8)
    thread.join(0.2)
    assert planned == []
    horizon.close()
    thread.join()
    assert planned == [0]
