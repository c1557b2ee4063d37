"""Where the plan of an iteration ends because its run changes, and that a change which is refused
leaves no trace in it.
"""

import threading

from hypothesis import given
from hypothesis import strategies as st

from headrace.feed.horizon import Horizon

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


def test_what_is_closed_waits_for_no_decision():
    horizon = Horizon(0, 1000, hold=3)
    thread, planned = plan_in_thread(horizon, 0, 8)
    thread.join(0.2)
    assert planned == []
    horizon.close()
    thread.join()
    assert planned == [0]
