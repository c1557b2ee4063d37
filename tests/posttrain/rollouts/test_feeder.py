"""Sampling in the background: the first groups that are there, bounds on their age, stragglers,
failures, replay.
"""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheError, ConfigError
from headrace_posttrain import PartialGroup, Prompt, RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.dataset import RLSettings
from headrace_posttrain.rollouts.feeder import SamplerError
from headrace_posttrain.rollouts.sampler_calls import SamplerCalls

PROMPTS = [np.array([i + 1]) for i in range(7)]


def group(prompt, version=0, rewards=(0.0, 1.0)):
    tokens = [np.array([*prompt.tokens, 100 + prompt.position, k]) for k in range(len(rewards))]
    return ScoredGroup(tokens, np.array(rewards), 1, policy_version=version)


class Policy:
    """Its version, which samplers stamp on what they sample, and which positions were asked for."""

    def __init__(self, seconds=lambda position: 0.0):
        self.version = 0
        self.seconds = seconds
        self.asked = []

    def sample_and_score(self, prompt):
        version = self.version
        self.asked.append(prompt.position)
        time.sleep(self.seconds(prompt.position))
        return group(prompt, version, (0.0, float(prompt.position % 5 > 0)))


def dataset(sampler, store=None, **options):
    options = {
        "seq_len": 16,
        "groups_per_batch": 3,
        "seed": 0,
        "in_flight": 6,
        "stragglers": "keep",
    } | options
    return RLDataset(PROMPTS, sampler, RLSettings(**options), store=store)


def digest(batch):
    return [np.asarray(a).tobytes() for a in (batch.tokens, batch.token_weights, batch.segment_ids)]


def train(made, policy, steps, first=0):
    """Batches of steps, the policy going on after each."""
    batches = []
    for step in range(first, steps):
        policy.version = step
        batches.append(made.next_batch(step, policy_version=step))
    made.set_policy_version(steps)
    return batches


def used(store):
    return [p for r in store.records() for p in [*r.positions, *r.dropped]]


@given(
    delays=st.lists(st.sampled_from([0.0, 0.001, 0.004, 0.02]), min_size=1, max_size=7),
    max_staleness=st.sampled_from([0, 1, 3]),
    stragglers=st.sampled_from(["wait", "keep", "abort"]),
    in_flight=st.integers(1, 9),
)
@settings(max_examples=12)
def test_no_token_is_older_than_the_bound_and_no_prompt_is_used_twice(
    delays, max_staleness, stragglers, in_flight
):
    class Abortable(Policy):
        def abort(self, prompt):
            pass

    policy = Abortable(lambda p: delays[p % len(delays)])
    made = dataset(policy, max_staleness=max_staleness, stragglers=stragglers, in_flight=in_flight)
    with made:
        for step, batch in enumerate(train(made, policy, 5)):
            sampled = batch.policy_version[batch.label_mask]
            assert sampled.min() >= step - max_staleness
    assert len(set(used(made.store))) == len(used(made.store))
    assert all(len(record.positions) == 3 for record in made.store.records())


def test_a_step_takes_the_first_groups_and_the_straggler_is_in_a_later_one():
    released = threading.Event()

    class Slow(Policy):
        def sample_and_score(self, prompt):
            if prompt.position == 1:
                assert released.wait(60)
            return super().sample_and_score(prompt)

    policy = Slow()
    with dataset(policy, keep=None) as made:
        train(made, policy, 2)
        assert 1 not in used(made.store)
        released.set()
        while not made.store.has_group(1):  # another call may end before it
            made._feeder.wait(0.1)
        steps = train(made, policy, 6, first=2)
        assert len(steps) == 4
        assert 1 in used(made.store)
        assert policy.asked.count(1) == 1


def test_the_same_log_replays_the_same_batches_and_samples_nothing(tmp_path):
    policy = Policy(lambda p: 0.002 * (p * 7 % 5))
    with RolloutStore(tmp_path) as store, dataset(policy, store, max_staleness=2) as made:
        batches = train(made, policy, 6)
    idle = Policy()
    with (
        RolloutStore(tmp_path) as store,
        dataset(idle, store, max_staleness=2, stragglers="wait") as again,
    ):
        assert [digest(again.next_batch(s)) for s in range(6)] == [digest(b) for b in batches]
        positions = [r.positions for r in store.records()]
    follower = RLDataset(PROMPTS, None, again.settings, store=RolloutStore(tmp_path, follow=True))
    assert [digest(follower.next_batch(s)) for s in range(6)] == [digest(b) for b in batches]
    assert len({p for of_step in positions for p in of_step}) == 18


def test_what_was_under_way_when_the_run_ended_is_begun_again_first(tmp_path):
    ended = threading.Event()

    class Dies(Policy):
        def sample_and_score(self, prompt):
            if prompt.position == 2:
                assert ended.wait(60)
                raise SystemExit
            return super().sample_and_score(prompt)

    with RolloutStore(tmp_path) as store, dataset(Dies(), store, keep=None, in_flight=4) as made:
        made.next_batch(0)
        assert 2 not in used(store)  # three of those that were answered
        ended.set()
    policy = Policy()
    with RolloutStore(tmp_path) as store, dataset(policy, store, keep=None, in_flight=9) as made:
        for step in (1, 2, 3):
            made.next_batch(step)
        assert 2 in used(store)
    assert min(policy.asked) == 2


def test_nothing_is_begun_for_a_policy_that_is_not_there_yet():
    policy = Policy()
    with dataset(policy, max_staleness=0, keep=None) as made:
        made.next_batch(0)
        time.sleep(0.02)
        assert len(policy.asked) == 3  # synchronous
        made.set_policy_version(1)
        while len(policy.asked) < 6:
            time.sleep(0.001)
        policy.version = 1
    with dataset(policy := Policy(), max_staleness=2, keep=None) as made:
        made.next_batch(0)
        while len(policy.asked) < 9:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(policy.asked) in (
            9,
            10,
        )  # two steps ahead, and what the step could not do without, if it was late


def test_a_call_that_fails_is_made_again_so_often():
    class Fails(Policy):
        fails = 1

        def sample_and_score(self, prompt):
            if prompt.position == 1 and self.asked.count(1) < self.fails:
                self.asked.append(1)
                raise OSError("gone")
            return super().sample_and_score(prompt)

    policy = Fails()
    with dataset(policy, retries=1, keep=None, stragglers="wait") as made:
        made.next_batch(0)
        assert made.counts["retries"] == 1
    policy = Fails()
    policy.fails = 2
    with dataset(policy, retries=1, keep=None, stragglers="wait") as made:
        with pytest.raises(OSError, match="gone") as caught:
            made.next_batch(0)
        assert caught.value.__notes__ == [
            f"2 calls failed of group 1, of prompt {made.order(np.array([1]))[0]}"
        ]
        made.next_batch(0)  # the run goes on with it
        assert made.store.record(0).positions == [0, 1, 2]


def test_a_sampler_that_hangs_is_named_and_given_up(caplog):
    hangs = threading.Event()
    end = threading.Event()

    class Hangs(Policy):
        def sample_and_score(self, prompt):
            if prompt.position == 1 and not hangs.is_set():
                hangs.set()
                end.wait(60)
            return super().sample_and_score(prompt)

    options = {
        "hang_s": 0.02,
        "stragglers": "wait",
        "keep": None,
        "groups_per_batch": 2,
        "in_flight": 2,
    }
    with (
        caplog.at_level(logging.WARNING),
        dataset(Hangs(), timeout_s=0.3, retries=1, **options) as made,
    ):
        made.next_batch(0)
        assert made.counts["timeouts"] == 1
        end.set()
    assert "has not answered for 0 s: group 1, of prompt" in caplog.text
    hangs.clear()
    end.clear()
    with dataset(Hangs(), timeout_s=0.05, **options) as made:
        with pytest.raises(
            SamplerError,
            match=r"timeout_s = 0.05: the sampler has not answered \(group 1, of prompt",
        ):
            made.next_batch(0)
        end.set()


def test_what_is_too_old_is_aborted_and_goes_on_from_what_there_was(tmp_path):
    class Long:
        """Takes three versions of the policy for position 1, and gives back what it has when it is
        aborted.
        """

        def __init__(self):
            self.version = 0
            self.stops = {}
            self.seen = []

        async def sample_and_score(self, prompt):
            if prompt.position != 1:
                return group(prompt, self.version)
            self.stops[1] = asyncio.Event()
            start = 1 if prompt.partial is None else prompt.partial.tokens[0].size
            self.seen.append(start)
            tokens = [np.arange(start + 2) + 1, np.arange(start + 2) + 2]
            made = ScoredGroup(tokens, np.array([0.0, 1.0]), 1, policy_version=self.version)
            if start >= 5:
                return made
            await self.stops[1].wait()
            return PartialGroup(made)

        async def abort(self, prompt):
            if prompt.position in self.stops:
                self.stops[prompt.position].set()

    policy = Long()
    options = {
        "max_staleness": 1,
        "stale": "mask",
        "stragglers": "abort",
        "keep": None,
        "in_flight": 3,
    }
    with RolloutStore(tmp_path) as store, dataset(policy, store, **options) as made:
        step = 0
        while 1 not in used(store):
            train(made, policy, step + 1, first=step)
            step += 1
            made._feeder.wait(0.05)
        assert policy.seen == [1, 3, 5]
        assert made.totals["aborted_groups"] >= made.totals["partial_groups"] == 2
        assert store.group(1).tokens[0].size == 7


def test_a_prompt_that_is_always_too_late_is_left_out_and_counted():
    class Slow(Policy):
        def abort(self, prompt):
            pass

    for stragglers, reason in (("keep", "stale"), ("abort", "stale")):
        policy = Slow(lambda p: 0.03 if p == 1 else 0.0)
        with dataset(
            policy, stragglers=stragglers, max_staleness=0, max_renewals=2, keep=None
        ) as made:
            step = 0
            while 1 not in used(made.store):
                train(made, policy, step + 1, first=step)
                step += 1
                time.sleep(0.004)
            if 1 in dict(kv for r in made.store.records() for kv in r.dropped.items()):
                assert made.totals["given_up_groups"] == 1
            assert reason


def test_an_async_sampler_runs_on_one_loop():
    loops = set()

    class Async:
        async def sample_and_score(self, prompt):
            loops.add(asyncio.get_running_loop())
            await asyncio.sleep(0.001)
            return group(prompt)

    with dataset(Async()) as made:
        for step in range(3):
            made.next_batch(step)
    plain = dataset(Async(), in_flight=None, stragglers="wait")
    plain.next_batch()
    plain.close()
    assert len(loops) == 2


@pytest.mark.parametrize(
    ("field", "make", "said"),
    [
        ("max_staleness", lambda: dataset(Policy(), max_staleness=-1), "must not be negative"),
        ("in_flight", lambda: dataset(Policy(), in_flight=0), "at least 1"),
        ("groups_per_batch", lambda: dataset(Policy(), groups_per_batch=0), "at least 1"),
        ("stragglers", lambda: dataset(Policy(), stragglers="abbort"), "Did you mean 'abort'"),
        (
            "max_staleness",
            lambda: dataset(Policy(), stragglers="abort"),
            "Set max_staleness, e.g. max_staleness=1",
        ),
        (
            "sampler",
            lambda: dataset(Policy(), stragglers="abort", max_staleness=1),
            r"Policy.*abort\(prompt\)",
        ),
        ("rows", lambda: dataset(Policy(), rows=3, ranks=2), "Use 4 rows"),
        (
            "sample_and_score()",
            lambda: dataset(Policy(), group_size=3).next_batch(),
            r"= 2: .*\(group \d, of prompt",
        ),
        (
            "sample_and_score()",
            lambda: dataset(Nothing()).next_batch(),
            r"NoneType.*\(group \d, of prompt",
        ),
        (
            "sample_and_score()",
            lambda: dataset(Gives(no_progress)).next_batch(),
            "no more tokens .* Go on from",
        ),
        (
            "sample_and_score()",
            lambda: dataset(Gives(lambda p: PartialGroup({}))).next_batch(),
            "'dict': is no Scored",
        ),
        (
            "keep",
            lambda: dataset(Policy(), keep=lambda rewards: True).next_batch(),
            r"True: .* Return Verdict\(True\)",
        ),
        ("keep", lambda: dataset(Policy(), keep="nonzero_std"), "Give a function .*nonzero_std"),
        ("in_flight", lambda: dataset(Policy(), in_flight="4"), "'4': must be a whole number"),
        ("seq_len", lambda: dataset(Policy(), seq_len=None), "must be a number. Give one."),
        ("retries", lambda: dataset(Policy(), retries=1.5), "must be a whole number"),
        ("hang_s", lambda: dataset(Policy(), hang_s=None), "E.g. hang_s=60"),
        ("timeout_s", lambda: dataset(Policy(), timeout_s="1"), "E.g. timeout_s=60"),
    ],
)
def test_wrong_input_is_named_with_a_cure(field, make, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make()
    assert caught.value.field == field


class Gives:
    def __init__(self, answer):
        self.sample_and_score = answer


class Nothing:
    def sample_and_score(self, prompt):
        return None


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_are_dealt_to_ranks_of_one_cost(ranks):
    class Uneven(Policy):
        def sample_and_score(self, prompt):
            tokens = [np.full(2 + (prompt.position * 5 + k * 3) % 13, 5) for k in range(4)]
            return ScoredGroup(tokens, np.array([0.0, 1.0, 0.0, 1.0]), 1)

    options = {"in_flight": None, "stragglers": "wait", "ranks": ranks, "groups_per_batch": 8}
    batch = dataset(Uneven(), **options).next_batch()
    load = batch.segment_lengths.reshape(ranks, -1).sum(axis=1)
    assert load.max() <= 1.05 * load.mean()
    rows = batch.batch_size + 2 * ranks
    padded = dataset(Uneven(), rows=rows, max_segments=9, **options).next_batch()
    assert padded.batch_size == rows
    assert padded.segment_lengths.reshape(ranks, -1).sum(axis=1).tolist() == load.tolist()
    assert (padded.valid == (padded.segment_lengths.sum(axis=1) > 0)).all()


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_double_nothing():
    """A few; ``--kills 30`` is the bench's."""
    bench = Path(__file__).parents[3] / "scripts" / "bench" / "bench_rollouts.py"
    done = subprocess.run(
        [sys.executable, str(bench), "--kills", "3", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def made_within(made, step, version=0, looks=100):
    """Makes a step; fails where it would be waited for without end."""
    making = made._make(step, version)
    while looks := looks - 1:
        try:
            next(making)
        except StopIteration as end:
            return end.value
        made._feeder.wait(0.02)
    raise AssertionError(f"step {step} is not made")


@given(
    in_flight=st.integers(1, 4),
    max_staleness=st.sampled_from([None, 0, 2]),
    stragglers=st.sampled_from(["wait", "keep"]),
    stored=st.integers(0, 9),
    first=st.sampled_from([0, 5]),
)
@settings(max_examples=15)
def test_steps_are_made_with_few_calls_and_whatever_is_stored(
    in_flight, max_staleness, stragglers, stored, first
):
    policy = Policy()
    options = {
        "max_staleness": max_staleness,
        "stragglers": stragglers,
        "keep": None,
        "in_flight": in_flight,
    }
    with RolloutStore(None) as store:
        for position in range(
            stored
        ):  # of version 0: what other processes, or other settings, left
            store.put_group(position, group(Prompt(position, 0, PROMPTS[0])))
        with dataset(policy, store, **options) as made:
            for step in range(3):
                policy.version = first + step
                made.set_policy_version(first + step)
                made_within(made, step, first + step)


def test_what_ends_a_process_ends_no_other_call():
    class Ends:
        async def sample_and_score(self, prompt):
            if prompt.position == 1:
                raise SystemExit
            await asyncio.sleep(0.001)
            return group(prompt)

    with dataset(
        Ends(), in_flight=2, groups_per_batch=500
    ) as made:  # not full without the one that raises
        with pytest.raises(SystemExit):
            made_within(made, 0)
        for _ in range(3):  # the loop goes on
            with pytest.raises(SystemExit):
                made_within(made, 1)


def test_a_closed_dataset_makes_no_step_and_a_closed_store_takes_no_group(tmp_path):
    with dataset(Policy(), in_flight=1) as made:
        made_within(made, 0)
    made.store.rewind(0)
    for position in made.store.pending:
        made.store.refuse_group(position)
    with pytest.raises(ConfigError, match=r"was closed\. Make another RLDataset of the same store"):
        made_within(made, 0)
    with RolloutStore(tmp_path) as store:
        made = dataset(Policy(), store)
    with pytest.raises(
        CacheError,
        match=r"closed while a group was sampled\. Close the RLDataset .*, then its store",
    ):
        store.put_group(0, group(Prompt(0, 0, PROMPTS[0])))
    assert RolloutStore(tmp_path).describe()["logs"]["steps"]["closed"]
    made.close()


def test_a_call_that_was_aborted_is_not_begun_and_one_that_begins_meanwhile_is_cancelled():
    class Waits:
        begun = 0

        async def sample_and_score(self, prompt):
            self.begun += 1
            await asyncio.Event().wait()

    sampler = Waits()
    calls = SamplerCalls(sampler, RLSettings(seq_len=8, groups_per_batch=1, seed=0, retries=2))
    prompt = Prompt(0, 0, PROMPTS[0])
    assert calls.sample(prompt, lambda: True) is None
    assert sampler.begun == 0
    answers = iter([False, True, True])
    assert calls.sample(prompt, lambda: next(answers)) is None
    calls.close()


def test_an_aborted_call_that_does_not_end_is_given_up_and_its_abort_may_fail(caplog):
    end = threading.Event()

    class Deaf(Policy):
        def sample_and_score(self, prompt):
            if prompt.position == 0 and prompt.position not in self.asked:
                self.asked.append(0)
                end.wait(20)
            return group(prompt, self.version)

        def abort(self, prompt):
            raise RuntimeError("no route")

    options = {
        "stragglers": "abort",
        "max_staleness": 0,
        "timeout_s": 0.3,
        "retries": 1,
        "in_flight": 1,
    }
    sampler = Deaf()
    with dataset(sampler, groups_per_batch=1, **options) as made:
        while 0 not in sampler.asked:
            made._feeder.fill()
        for version in (1, 2, 3):
            made.set_policy_version(version)
        assert made._calls.counts["aborted_groups"] == 1  # however often it was told
        for _ in range(200):
            if not made._calls.counts["timeouts"]:
                made._feeder.fill()
                made._feeder.wait(0.02)
        assert made._calls.counts["timeouts"] == 1
        end.set()
    assert "abort() failed at group 0, of prompt" in caplog.text


def no_progress(prompt):
    return PartialGroup(ScoredGroup([prompt.tokens] * 2, np.zeros(2), 1))
