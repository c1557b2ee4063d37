"""Whatever is needed, filtered, failed or too old: a step is made, or says why not. Nothing is
waited for in vain.
"""

import logging
import tempfile
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, HostError
from headrace.store import lease as lease_module
from headrace_posttrain import (
    NoGroupError,
    RLDataset,
    RLSettings,
    RolloutStore,
    ScoredGroup,
)

PROMPTS = [np.array([n + 1]) for n in range(7)]
LEFT_OUT = (
    "zero_var_groups",
    "single_groups",
    "filtered_groups",
    "too_long_groups",
    "untrained_groups",
    "stale_groups",
    "given_up_groups",
)


class Sampler:
    """Groups that teach nothing at some positions; the first calls of some fail; always of one
    version.
    """

    def __init__(self, empty=(), fails=(), version=0):
        self.empty = set(empty)
        self.fails = set(fails)
        self.version = version

    def sample_and_score(self, prompt):
        position = prompt.position
        if position in self.fails:
            self.fails.discard(position)
            raise OSError("the server is away")
        rewards = [0.0, 0.0] if position in self.empty else [0.0, 1.0]
        answers = [np.append(prompt.tokens, k) for k in range(2)]
        return ScoredGroup(answers, np.array(rewards), 1, policy_version=self.version)


def run_of(folder, sampler=None, producer=None, **options):
    options = {"seq_len": 8, "groups_per_batch": 3, "seed": 0, **options}
    store = RolloutStore(folder, producer=producer)
    return RLDataset(PROMPTS, sampler, RLSettings(**options), store=store)


def make_steps(folder, samplers, steps, *, ahead, of, version=0, **options):
    """Makes steps while producers sample, in this thread; returns the consumer, and
    what ended it.
    """
    trained = run_of(folder, **options)
    producers = [
        (share, run_of(folder, sampler, f"p{share}", **options))
        for share, sampler in samplers.items()
    ]
    ended_by = []

    def train():
        try:
            for step in range(steps):
                trained.next_batch(step, policy_version=version)
            ended_by.append(None)
        except Exception as error:  # noqa: BLE001  # whatever it is, the test compares it
            ended_by.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    while trainer.is_alive():
        stored = 0
        for share, producer in producers:
            try:
                stored += len(producer.produce((share, of), ahead=ahead))
            except OSError:
                continue
        if not stored:
            trainer.join(0.002)
    trained.store.close()
    for _, producer in producers:
        producer.store.close()
    return trained, ended_by[0]


@given(
    groups=st.integers(1, 9),
    ahead=st.integers(1, 12),
    at_a_time=st.integers(1, 5),
    of=st.integers(1, 3),
    present=st.sets(st.integers(0, 2), min_size=1),
    stragglers=st.sampled_from(["wait", "keep"]),
    empty=st.sets(st.integers(0, 30)),
    fails=st.sets(st.integers(0, 30), max_size=4),
)
@example(100, 64, 1, 1, {0}, "wait", set(), set())
@example(4, 12, 1, 1, {0}, "wait", set(range(20)), set())
@example(4, 12, 2, 2, {1}, "keep", set(range(20)), {3})
@settings(max_examples=12, deadline=None)
def test_steps_are_made_or_say_why_not(
    groups, ahead, at_a_time, of, present, stragglers, empty, fails
):
    present = {share % of for share in present}
    options = {
        "groups_per_batch": groups,
        "stragglers": stragglers,
        "prompts_at_a_time": at_a_time,
    }
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        patched.setattr("headrace_posttrain.rollouts.dataset._POLL_S", 0.002)
        patched.setattr(lease_module, "NEVER_S", 0.2)
        samplers = {share: Sampler(empty, fails) for share in present}
        trained, error = make_steps(folder, samplers, 2, ahead=ahead, of=of, **options)
        somebody_samples_all = len(present) == of or stragglers == "keep"
        if somebody_samples_all:
            assert error is None
            used = [p for record in trained.store.records() for p in record.positions]
            assert len(set(used)) == 2 * groups
            assert not {*used} & empty
        else:
            # A share that the first positions do not need may be missing.
            assert error is None or isinstance(error, HostError)
            if error is not None:
                assert error.field == "rollouts"
                position = next(trained.store.open_positions())
                assert position % of not in present
                assert f"share=({position % of}, {of})" in str(error)


def test_a_producer_samples_no_more_than_is_needed(tmp_path):
    """Ahead of the steps as many as it was told, and for an open step what that lacks."""
    sampler = Sampler(empty=range(10))
    made = run_of(tmp_path, sampler, "p", prompts_at_a_time=100)
    assert made.produce(ahead=4) == [0, 1, 2, 3]
    assert made.produce(ahead=4) == []
    trained = run_of(tmp_path, groups_per_batch=6)
    step = trained._make(0, 0)
    sampled = []
    for _ in range(20):
        try:
            next(step)
        except StopIteration:
            break
        sampled.append(made.produce(ahead=4))
    # The step has left out all four and lacks six; of the next six it leaves out all; then it takes
    # what comes.
    assert [positions for positions in sampled if positions] == [[*range(4, 10)], [*range(10, 16)]]
    assert made.produce(ahead=4) == [16, 17, 18, 19]


def test_a_step_that_begins_again_is_told_anew(tmp_path):
    """The consumer is killed while its step waits; the next one goes on with the same producer."""
    made = run_of(tmp_path, Sampler(empty=range(5)), "p", prompts_at_a_time=100)
    first = run_of(tmp_path, groups_per_batch=4)
    step = first._make(0, 0)
    for _ in range(4):
        next(step)
        made.produce(ahead=2)
    first.store.close()
    again = run_of(tmp_path, groups_per_batch=4)
    step = again._make(0, 0)
    for _ in range(30):
        try:
            next(step)
        except StopIteration:
            break
        made.produce(ahead=2)
    record = again.store.record(0)
    assert record is not None
    assert record.positions == [5, 6, 7, 8]


def test_a_step_is_not_waited_for_without_producers(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_module, "NEVER_S", 0.1)
    with pytest.raises(HostError, match="no producer has started") as caught:
        run_of(tmp_path).next_batch(0)
    assert caught.value.field == "rollouts"


@pytest.mark.parametrize("stragglers", ["wait", "keep"])
@pytest.mark.parametrize("stale", ["resample", "mask"])
@pytest.mark.parametrize("in_flight", [None, 2])
def test_a_sampler_with_an_old_policy_is_named_and_ends_the_step(
    caplog, stragglers, stale, in_flight
):
    made = run_of(
        None,
        Sampler(version=3),
        max_staleness=1,
        stale=stale,
        stragglers=stragglers,
        in_flight=in_flight,
        max_renewals=2,
        hang_s=0.0,
    )
    with (
        made,
        caplog.at_level(logging.WARNING),
        pytest.raises(NoGroupError, match=r"policy version 3, .* trains version 9 .* version 8"),
    ):
        made.next_batch(0, policy_version=9)
    assert sum("policy version 3" in record.message for record in caplog.records) == 1


def test_a_producer_with_an_old_policy_is_named(tmp_path, caplog):
    options = {"max_staleness": 1, "max_renewals": 2, "hang_s": 0.0}
    _, error = make_steps(tmp_path, {0: Sampler(version=3)}, 1, ahead=4, of=1, version=9, **options)
    assert isinstance(error, NoGroupError)
    assert error.field == "max_staleness"
    assert "producer p0" in str(error)


def test_a_sampler_that_gets_the_new_weights_later_goes_on():
    class Late(Sampler):
        calls = 0

        def sample_and_score(self, prompt):
            self.calls += 1
            self.version = 9 if self.calls > 8 else 3
            return super().sample_and_score(prompt)

    made = run_of(None, Late(), max_staleness=0, max_renewals=2)
    made.next_batch(0, policy_version=9)
    assert made.counts["stale_groups"] == 8


@given(
    sizes=st.lists(st.integers(1, 3), min_size=40, max_size=40),
    old=st.sets(st.integers(0, 39)),
    long=st.sets(st.integers(0, 39)),
    equal=st.sets(st.integers(0, 39)),
    has_filter=st.booleans(),
    stragglers=st.sampled_from(["wait", "keep"]),
)
@settings(max_examples=25, deadline=None)
def test_each_group_is_in_one_counter(sizes, old, long, equal, has_filter, stragglers):
    tried = set()

    class Mixed:
        def sample_and_score(self, prompt):
            position = prompt.position % 40
            is_old = position in old and prompt.position not in tried
            tried.add(prompt.position)
            tokens = [
                np.append(prompt.tokens, [k] * (9 if position in long else 1))
                for k in range(sizes[position])
            ]
            rewards = np.zeros(len(tokens)) if position in equal else np.arange(len(tokens)) * 1.0
            return ScoredGroup(tokens, rewards, 1, policy_version=0 if is_old else 5)

    options = {"stragglers": stragglers, "max_staleness": 1}
    if not has_filter:
        options["keep"] = None
    made = run_of(None, Mixed(), **options)
    for step in range(3):
        try:
            made.next_batch(step, policy_version=5)
        except NoGroupError:
            return
        left_out = sum(made.counts[name] for name in LEFT_OUT)
        assert made.counts["attempts_per_batch"] == made.counts["valid_groups"] + left_out
    assert made.totals["valid_groups"] == 9
    made.store.rewind(1)
    made.next_batch(1, policy_version=5)
    made.next_batch(2, policy_version=5)
    assert made.totals["valid_groups"] == 9


@pytest.mark.parametrize("wrong", [0.5, 0.01, float("nan"), float("-inf"), float("inf")])
def test_what_is_no_log_probability_is_refused(wrong):
    tokens = [np.array([1, 2, 3])]
    with pytest.raises(ConfigError) as caught:
        ScoredGroup(tokens, np.array([1.0]), 1, [np.array([-0.5, wrong])])
    assert caught.value.field == "log_probs[0][1]"
    assert str(caught.value.value) == str(float(np.float32(wrong)))
    ScoredGroup(tokens, np.array([1.0]), 1, [np.array([-0.5, 1e-7])])  # rounding
