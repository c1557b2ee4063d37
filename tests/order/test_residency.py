"""What stays in memory: against a machine that moves blocks in and out of slots, and against the
best there is.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.residency import NEVER, Residency, window_steps, window_uses

steps_of_blocks = st.integers(1, 12).flatmap(
    lambda kinds: st.lists(st.lists(st.integers(0, kinds), max_size=5), min_size=1, max_size=120)
)


def uses_of(steps, first):
    block = np.array([b for s in steps for b in s], np.int64)
    step = np.array([k for k, s in enumerate(steps) for _ in s], np.int64)
    return window_uses(first, len(steps), block, step)


def decisions(run, slots, first=0, stop=True):
    """Decides all steps of a run as a loader does; each with the slots of its pieces."""
    memory = Residency(slots, first, first + len(run) if stop else None)
    pieces = {}
    for k in range(len(run)):
        while memory.wants_window:
            at = memory.planned_until
            steps = (run[at - first :] + [[]] * 200)[: memory.window_steps]
            uses, index = uses_of(steps, at)
            bounds = np.cumsum([0, *(len(s) for s in steps)])
            pieces |= {at + j: index[bounds[j] : bounds[j + 1]] for j in range(len(steps))}
            memory.extend(uses)
        assert memory.next_step == first + k
        yield memory.decide(pieces[first + k]), memory


def fewest_fetches(run, slots):
    """Belady's rule with all of the future in view."""
    held = set()
    fetches = 0
    for k, blocks in enumerate(run):
        used = set(blocks)
        fetches += len(used - held)
        held |= used
        rest = [next((j for j in range(k + 1, len(run)) if b in run[j]), NEVER) for b in held]
        for _, b in sorted(zip(rest, held, strict=True), reverse=True):
            if len(held) > slots and b not in used:
                held.discard(b)
    return fetches


@given(steps_of_blocks, st.integers(0, 8), st.integers(0, 1000), st.booleans())
def test_every_block_is_where_it_is_said_to_be(run, slack, first, stop):
    slots = max(max(len(set(s)) for s in run), 1) + slack
    held = {}
    used_last = {}
    for (decision, memory), blocks in zip(decisions(run, slots, first, stop), run, strict=True):
        before = set(held.values())
        assert decision.hits == len(set(blocks) & before)
        assert sorted(decision.blocks) == sorted(set(blocks) - before)
        for block, slot, free_after in zip(
            decision.blocks, decision.into, decision.free_after, strict=True
        ):
            assert 0 <= slot < slots
            assert free_after == used_last.get(slot, -1) < decision.step
            held[slot] = block
        assert len(set(held.values())) == len(held) <= memory.resident <= slots
        assert [held[s] for s in decision.slots.tolist()] == blocks
        used_last |= dict.fromkeys(decision.slots.tolist(), decision.step)


@given(steps_of_blocks, st.integers(0, 8))
def test_fetches_are_few(run, slack):
    """No fewer than the best there is; as few if all fits; never more than one a use."""
    slots = max(max(len(set(s)) for s in run), 1) + slack
    fetched = sum(len(d.blocks) for d, _ in decisions(run, slots))
    assert fewest_fetches(run, slots) <= fetched <= sum(len(set(s)) for s in run)
    if slots >= len({b for s in run for b in s}):
        assert fetched == len({b for s in run for b in s})


def test_a_sweep_that_does_not_fit_keeps_a_part_of_it():
    """10 blocks in turn, room for 8: the least recently used one would go just before it is needed,
    every time.
    """
    run = [[k % 10] for k in range(200)]
    fetched = sum(len(d.blocks) for d, _ in decisions(run, 8))
    assert fewest_fetches(run, 8) <= fetched <= 1.3 * fewest_fetches(run, 8)


def test_what_is_fetched_depends_on_nothing_but_the_plan():
    run = [[k * k % 17, k % 5, k * 7 % 23] for k in range(150)]
    once = [(d.blocks, d.into, d.free_after) for d, _ in decisions(run, 7)]
    assert once == [(d.blocks, d.into, d.free_after) for d, _ in decisions(run, 7)]


def test_thousands_of_slots_come_into_use_as_they_are_needed():
    run = [list(range(40 * k, 40 * k + 40)) for k in range(100)] * 2
    held = {}
    for (decision, _), blocks in zip(decisions(run, 3000), run, strict=True):
        held |= dict(zip(decision.into, decision.blocks, strict=True))
        assert [held[s] for s in decision.slots.tolist()] == blocks
    assert len(held) == 3000


def test_the_first_windows_are_short():
    assert [window_steps(n) for n in range(6)] == [1, 8, 32, 64, 64, 64]
    memory = Residency(4, 0)
    memory.extend(uses_of([[1]], 0)[0])
    assert not memory.wants_window  # one step is enough for the first batch
    memory.decide()
    assert memory.wants_window


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=60), st.integers(0, 1 << 61)
)
def test_uses_of_a_window_by_their_definition(pairs, base):
    """Whatever the block numbers: packed into one integer with step and place where they fit,
    sorted otherwise.
    """
    pairs.sort(key=lambda p: p[1])
    run = [[b + base for b, s in pairs if s == k] for k in range(10)]
    uses, index = uses_of(run, 5)
    assert uses.blocks[index].tolist() == [b for s in run for b in s]
    assert uses.blocks.tolist() == sorted({b for s in run for b in s})
    for k, blocks in enumerate(run):
        here = slice(int(uses.bounds[k]), int(uses.bounds[k + 1]))
        assert uses.blocks[uses.block[here]].tolist() == sorted(set(blocks))
        later = [
            next((5 + j for j in range(k + 1, 10) if b in run[j]), NEVER)
            for b in sorted(set(blocks))
        ]
        assert uses.following[here].tolist() == later
    assert (uses.following[uses.last] == NEVER).all()


def test_too_few_slots_for_a_step_are_refused():
    with pytest.raises(
        ConfigError, match="slots = 2: hold too little: the rows of step 8 lie in 3 blocks"
    ):
        Residency(2, 7).extend(uses_of([[1], [1, 2, 3]], 7)[0])
