"""Sequences of examples: random access equals the walk, whatever is asked for first."""

import math
import threading

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.mix import BatchSchedule
from headrace_compat.megatron import ExhaustiveBlend, GreedyBlend
from headrace_compat.nmoe import SmoothRoundRobin
from headrace_compat.sequence import STRETCH

ONE = BatchSchedule(1)
weights = st.lists(st.integers(0, 20) | st.floats(0.001, 5), min_size=1, max_size=6).filter(any)
policies = st.one_of(
    st.builds(SmoothRoundRobin, weights, st.just(ONE)),
    st.builds(GreedyBlend, weights, st.just(ONE)),
    st.builds(
        ExhaustiveBlend,
        st.lists(st.integers(0, 4000), min_size=1, max_size=5).filter(any),
        st.just(BatchSchedule(7)),
    ),
)


@given(
    policies,
    st.lists(st.tuples(st.integers(0, 3 * STRETCH), st.integers(0, 300)), min_size=1, max_size=5),
)
def test_any_stretch_in_any_order_is_cut_from_one_sequence(policy, stretches):
    whole, state = policy.walk(
        policy.initial_state(), 0, min(4 * STRETCH, policy.ends_after or 4 * STRETCH)
    )
    for first, size in stretches:
        assert policy.sequence(first, first + size).tolist() == whole[first : first + size]
        if first <= len(whole):
            counts = np.bincount(whole[:first], minlength=policy.components)
            assert policy.counts_before(first).tolist() == counts.tolist()
    assert policy.state_at(len(whole)) == state


@given(weights)
@example([0, 1, 1])
def test_weight_zero_is_never_drawn_and_none_starves(ws):
    for policy in (SmoothRoundRobin(ws, ONE), GreedyBlend(ws, ONE)):
        n = 2000
        drawn = np.bincount(policy.sequence(0, n), minlength=len(ws))
        share = np.array(ws) / sum(ws)
        assert not drawn[share == 0].any()
        assert np.abs(drawn - n * share).max() < 1 + math.log(len(ws) + 1) + 0.01 * n / 1000
        assert (policy.supply() > 0).tolist() == (share > 0).tolist()


def test_steps_cut_the_sequence_and_do_not_change_it():
    whole = GreedyBlend([3, 2, 1], ONE).sequence(0, 500).tolist()
    policy = GreedyBlend([3, 2, 1], BatchSchedule({0: 3, 10: 17}))
    assert (
        np.concatenate([policy.components_at(s) for s in range(30)]).tolist()
        == whole[: policy.batch.rows_at(30)[0]]
    )


def test_threads_that_ask_at_once_see_the_same():
    policy = GreedyBlend([5, 3, 2.5], ONE)
    failures = []
    expected = GreedyBlend([5, 3, 2.5], ONE).sequence(0, 6 * STRETCH)

    def ask(seed):
        firsts = np.random.default_rng(seed).integers(0, 6 * STRETCH - 50, 60).tolist()
        failures.extend(
            f
            for f in firsts
            if not np.array_equal(policy.sequence(f, f + 50), expected[f : f + 50])
        )

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
