"""What a sampler may get wrong: a group that cannot be is named and never stored, and no step is
lost over it.
"""

import dataclasses
import os
import re
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import Example
from headrace.errors import CacheCorruptError, ConfigError
from headrace_posttrain import RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.dataset import NoGroupError, RLSettings
from headrace_posttrain.rollouts.prompt_order import PromptOrder
from headrace_posttrain.rollouts.rollout_records import BatchRecord

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
PROMPTS = [np.array([i + 1]) for i in range(7)]


def good(position=0, **changes):
    """Two completions, of three tokens and of four, whose prompt is the first token."""
    values = {
        "tokens": [np.array([1, 100 + position, 7]), np.array([1, 100 + position, 8, 9])],
        "rewards": np.array([0.0, 1.0]),
        "prompt_len": 1,
    }
    return ScoredGroup(**(values | changes))


class Makes:
    """A sampler of a function of the position, which counts what was asked."""

    def __init__(self, make=good):
        self.make = make
        self.asked = []

    def sample_and_score(self, prompt):
        self.asked.append(prompt.position)
        return self.make(prompt.position)


def dataset(make=good, store=None, **options):
    options = {"seq_len": 8, "groups_per_batch": 3, "seed": 0} | options
    return RLDataset(PROMPTS, Makes(make), RLSettings(**options), store=store)


FAULTS = {
    "log_probs[0]": lambda: good(log_probs=[np.zeros(7), np.zeros(1)]),
    "loss_masks[1]": lambda: good(loss_masks=[np.ones(3), np.ones(7)]),
    "policy_version[1]": lambda: good(policy_version=[np.zeros(3, int), np.zeros(3, int)]),
    "tokens[0]": lambda: good(tokens=[np.array([1, 2.5]), np.array([1, 2])]),
    "rewards[1]": lambda: good(rewards=np.array([0.0, np.nan])),
    "sample_and_score()": lambda: None,
}


@given(
    faults=st.dictionaries(st.integers(1, 14), st.sampled_from(sorted(FAULTS)), max_size=5),
    small=st.dictionaries(
        st.integers(0, 3), st.sampled_from([{"rows": 1}, {"max_segments": 1}]), max_size=2
    ),
    at_a_time=st.integers(1, 4),
    threads=st.integers(1, 2),
    restarts=st.booleans(),
    numbered=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_a_fault_that_is_mended_changes_nothing(
    faults, small, at_a_time, threads, restarts, numbered
):
    """Any call may give a bad group, any step may find its rows too small: the run that goes on is
    the calm one's.
    """
    steps = 4
    calls = 0

    def make(position):
        nonlocal calls
        calls += 1
        return FAULTS[faults[calls]]() if calls in faults else good(position)

    options = {"prompts_at_a_time": at_a_time, "threads": threads}
    calm = dataset()
    wanted = [calm.next_batch(s) for s in range(steps)]
    small = dict(small)
    trained = []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        found = dataset(make, store=RolloutStore(folder), **options)
        while len(trained) < steps:
            step = len(trained)
            if restarts:
                found.store.close()
                found = dataset(make, store=RolloutStore(folder), **options)
            sizes = {"rows": None, "max_segments": None} | small.get(step, {})
            found.settings = dataclasses.replace(found.settings, **sizes)
            try:
                trained.append(found.next_batch(step if numbered else None))
            except ConfigError as error:
                if error.field in ("rows", "max_segments"):
                    del small[step]
                    continue
                position, prompt = map(
                    int, re.search(r"group (\d+), of prompt (\d)", str(error)).groups()
                )
                assert prompt == PromptOrder(7, seed=0)(np.array([position]))[0]
                assert not found.store.has_group(position)
            assert found.store.next_step == len(trained)
        assert [p for r in found.store.records() for p in [*r.positions, *r.dropped]] == list(
            range(3 * steps)
        )
        found.store.close()
        assert restarts or found.totals["valid_groups"] == 3 * steps
    for mine, theirs in zip(trained, wanted, strict=True):
        assert np.array_equal(mine.tokens, theirs.tokens)
        assert np.array_equal(mine.token_weights, theirs.token_weights)


rows = st.lists(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 99), min_size=n, max_size=n),
            st.lists(st.integers(0, 1), min_size=n, max_size=n),
            st.lists(st.floats(-5, 0, width=32), max_size=n),
            st.lists(st.integers(0, 9), min_size=n, max_size=n),
        )
    ),
    min_size=1,
    max_size=4,
)


@given(rows, st.sampled_from([list, tuple, np.array, jnp.array]))
@settings(deadline=None)
def test_a_group_is_the_same_of_whatever_it_is_made(rows, kind):
    tokens, masks, log_probs, versions = (
        [kind(v) for v in column] for column in zip(*rows, strict=True)
    )
    rewards = kind([float(k) for k in range(len(rows))])
    advantages = np.ones(len(rows))
    group = ScoredGroup(tokens, rewards, np.int64(1), log_probs, masks, versions)
    again = ScoredGroup.from_bytes(group.to_bytes(), "x")
    found = zip(group.examples(advantages, 0), again.examples(advantages, 0), rows, strict=True)
    for k, (mine, theirs, (ids, mask, given_log_probs, given_versions)) in enumerate(found):
        wanted = Example(
            np.array(ids),
            loss_mask=np.array(mask),
            weights=1.0,
            log_probs=np.array(
                [0.0] * (len(ids) - len(given_log_probs)) + given_log_probs, np.float32
            ),
            reward=float(k),
            group=0,
            policy_version=np.where(mask, given_versions, -1),
        )
        for field in dataclasses.fields(Example):
            assert np.array_equal(getattr(mine, field.name), getattr(wanted, field.name)), (
                field.name
            )
            assert np.array_equal(getattr(theirs, field.name), getattr(wanted, field.name)), (
                field.name
            )
    assert group.trains() == any(any(mask[1:]) for _, mask, _, _ in rows)


@given(
    st.integers(1, 6),
    st.integers(0, 8),
    st.sampled_from(["loss_masks", "policy_version", "log_probs"]),
)
def test_what_is_said_about_tokens_is_of_their_number(tokens, said, name):
    fits = said <= tokens if name == "log_probs" else said == tokens
    values = {name: [np.zeros(said, int)]}
    if fits:
        ScoredGroup([np.arange(tokens)], np.zeros(1), 0, **values)
        return
    with pytest.raises(ConfigError, match=rf"{name}\[0\] = {said}: .* {tokens} tokens"):
        ScoredGroup([np.arange(tokens)], np.zeros(1), 0, **values)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tokens", {"tokens": None}),
        ("tokens[0]", {"tokens": [[1, 2.5], [1]]}),
        ("tokens[0]", {"tokens": [[True, False], [1]]}),
        ("tokens[0]", {"tokens": [np.ones((1, 2), int)] * 2}),
        ("tokens[1]", {"tokens": [[1], []]}),
        ("tokens[1]", {"tokens": [[1], [[1], [2, 3]]]}),
        ("rewards", {"rewards": ["good", "bad"]}),
        ("rewards", {"rewards": np.zeros((2, 1))}),
        ("rewards", {"rewards": 1.0}),
        ("prompt_len", {"prompt_len": -3}),
        ("prompt_len", {"prompt_len": 1.0}),
        ("policy_version", {"policy_version": 1.5}),
        ("policy_version", {"policy_version": None}),
        ("policy_version[0]", {"policy_version": [3, 3]}),
        ("policy_version[0]", {"policy_version": [np.zeros(3), np.zeros(4)]}),
        ("loss_masks", {"loss_masks": [np.ones(3)]}),
        ("loss_masks[0]", {"loss_masks": [[0, 1, 0.5], [0, 1, 1, 1]]}),
        ("loss_masks[0]", {"loss_masks": [[0, 1, -1], [0, 1, 1, 1]]}),
        ("log_probs", {"log_probs": -0.5}),
        ("log_probs[1]", {"log_probs": [[-0.5], [[-0.5]]]}),
    ],
)
def test_a_group_that_cannot_be(field, changes):
    with pytest.raises(ConfigError) as caught:
        good(**changes)
    assert caught.value.field == field
    with pytest.raises(ConfigError, match=r"\(group 0, of prompt \d\)") as caught:
        dataset(lambda _: good(**changes)).next_batch()
    assert caught.value.field == field


def test_versions_of_numpy_are_numbers():
    found = dataset(lambda p: good(p, policy_version=np.int64(3)), max_staleness=1)
    batch = found.next_batch(np.int64(0), policy_version=np.int64(4))
    assert (batch.policy_version[batch.label_mask] == 3).all()
    record = found.store.record(0)
    assert BatchRecord.from_json(record.to_json(), "x") == record


def test_a_stored_group_that_cannot_be_is_damage():
    group = good(log_probs=[np.zeros(3), np.zeros(4)])
    object.__setattr__(group, "log_probs", [np.zeros(7, np.float32), np.zeros(4, np.float32)])
    with pytest.raises(CacheCorruptError, match="no stored group"):
        ScoredGroup.from_bytes(group.to_bytes(), "x")


def test_tokens_of_any_integers_stay_integers():
    group = good(tokens=[np.array([1, 2], np.uint64), [1, 3]])
    assert ScoredGroup.from_bytes(group.to_bytes(), "x").tokens[0].dtype == np.int64


@pytest.mark.parametrize(
    "nothing",
    [
        {"prompt_len": 4},
        {"prompt_len": 99},
        {"loss_masks": [np.zeros(3), np.zeros(4)]},
        {"loss_masks": [[1, 0, 0], [1, 0, 0, 0]]},  # the first token is told from nothing
    ],
)
@pytest.mark.parametrize(
    "options", [{}, {"keep": None}, {"max_staleness": 1}, {"max_staleness": 1, "stale": "mask"}]
)
def test_groups_without_a_trained_token_are_not_valid(nothing, options):
    found = dataset(lambda p: good(p, policy_version=5, **(nothing if p % 2 else {})), **options)
    batch = found.next_batch(policy_version=5)
    assert found.store.record(0).dropped == {1: "untrained", 3: "untrained"}
    assert {k: v for k, v in found.counts.items() if v} == {
        "valid_groups": 3,
        "attempts_per_batch": 5,
        "untrained_groups": 2,
    }
    assert len(np.unique(batch.group_ids[batch.segment_lengths > 0])) == 3


def test_groups_that_are_masked_whole_are_not_valid():
    found = dataset(
        lambda p: good(p, policy_version=0 if p % 2 else 8), max_staleness=1, stale="mask"
    )
    batch = found.next_batch(policy_version=9)
    assert found.store.record(0).dropped == {1: "stale", 3: "stale"}
    assert found.counts["untrained_groups"] == 2
    assert (batch.policy_version[batch.label_mask] == 8).all()
    assert np.array_equal(found.next_batch(0).loss_mask, batch.loss_mask)


@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (good, {"max_staleness": 1}, ["(stale: 4)", "max_staleness"]),
        (good, {"max_staleness": 1, "stale": "mask"}, ["(stale: 4)", "max_staleness"]),
        (good, {"seq_len": 3}, ["(too_long: 4)", "seq_len"]),
        (lambda p: good(p, prompt_len=9), {}, ["(untrained: 4)", "prompt_len and loss_masks"]),
        (lambda p: good(p, rewards=[1.0, 1.0]), {}, ["(zero_std_1.0: 4)", "Look at the rewards"]),
    ],
)
def test_a_run_that_ends_says_what_of(make, options, told):
    with pytest.raises(NoGroupError) as caught:
        dataset(make, max_attempts=4, **options).next_batch(policy_version=9)
    assert all(words in str(caught.value) for words in told)
    assert ("rewards" in str(caught.value)) == ("zero_std" in told[0])


def test_a_run_that_ends_of_several_causes_says_them_all():
    def make(position):
        return good(position, rewards=[0.0, 0.0]) if position < 3 else good(position, prompt_len=9)

    with pytest.raises(
        NoGroupError,
        match=r"\(zero_std_0.0: 3, untrained: 2\)\. Look at the rewards.* Look at prompt",
    ):
        dataset(make, max_attempts=5).next_batch()


def test_counters_that_an_older_record_has_not_are_zero():
    found = dataset()
    found.next_batch()
    old = found.store.record(0)
    old.counts.pop("untrained_groups", None)
    found.next_batch(0)
    assert found.counts["untrained_groups"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stale", "maks"),
        ("stale", None),
        ("seq_len", 0),
        ("multiple", 0),
        ("rows", 0),
        ("max_segments", 0),
    ],
)
def test_settings_that_cannot_be(field, value):
    with pytest.raises(ConfigError) as caught:
        dataset(**{field: value})
    assert caught.value.field == field
