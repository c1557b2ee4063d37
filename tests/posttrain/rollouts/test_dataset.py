"""The pull loop: groups by number, filters, guards, staleness, and a store that makes every step
once.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import Example, pack_examples
from headrace.errors import CacheError, ConfigError, IndexOutOfRangeError, PlanMismatchError
from headrace.store import open_cache
from headrace.testing import tiny_cache
from headrace.testing.caches import remove
from headrace_posttrain import CachePrompts, RLDataset, RolloutStore, ScoredGroup, group_advantages
from headrace_posttrain.rollouts.advantages import Verdict
from headrace_posttrain.rollouts.dataset import NoGroupError, RLSettings
from headrace_posttrain.rollouts.prompt_order import PromptOrder

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
PROMPTS = [np.array([i + 1]) for i in range(7)]


class Scripted:
    """Rewards by position; every completion names its position and its number. Counts what was
    asked.
    """

    def __init__(self, rewards=lambda position: [0.0, 1.0, float(position % 3)], version=0):
        self.rewards = rewards
        self.version = version
        self.asked = []

    def sample_and_score(self, prompt):
        self.asked.append(prompt.position)
        rewards = np.array(self.rewards(prompt.position), float)
        tokens = [
            np.array([*prompt.tokens, 100 + prompt.position, *[k] * (k + 1)])
            for k in range(rewards.size)
        ]
        log_probs = [-np.arange(1, t.size, dtype=np.float32) for t in tokens]
        return ScoredGroup(
            tokens, rewards, prompt.tokens.size, log_probs, policy_version=self.version
        )


def dataset(sampler, store=None, **options):
    options = {"seq_len": 16, "groups_per_batch": 3, "seed": 0} | options
    return RLDataset(PROMPTS, sampler, RLSettings(**options), store=store)


def segments(batch):
    """(tokens, weights of its labels, reward, group, log probabilities, versions)
    of each segment.
    """
    for b in range(batch.batch_size):
        for k, n in enumerate(batch.segment_lengths[b]):
            at = slice(batch.cu_seqlens[b, k], batch.cu_seqlens[b, k] + n)
            if n:
                yield (
                    batch.tokens[b, at],
                    batch.token_weights[b, at],
                    batch.rewards[b, k],
                    batch.group_ids[b, k],
                    batch.log_probs[b, at],
                    batch.policy_version[b, at],
                )


@pytest.mark.parametrize("preset", ["nanomoe", "slime", "megatron", "tinker", "dr_grpo"])
def test_a_batch_holds_the_advantages_of_its_groups(preset):
    sampler = Scripted(lambda p: [0.0, 1.0, p / 10, 0.3][: 2 + p % 3], version=4)
    batch = dataset(sampler, advantages=preset).next_batch(policy_version=4)
    order = PromptOrder(7, seed=0)(np.arange(3))
    found = 0
    for tokens, weights, reward, group, log_probs, versions in segments(batch):
        position = int(tokens[1]) - 100
        assert tokens[0] == PROMPTS[order[position]][0]
        rewards = np.array(sampler.rewards(position), float)
        k = int(tokens[-1])
        assert (reward, group) == (np.float32(rewards[k]), position)
        advantage = group_advantages(rewards, np.zeros(rewards.size, int), preset).values[k]
        np.testing.assert_allclose(weights, [*[advantage] * (tokens.size - 1), 0.0], rtol=1e-6)
        assert log_probs.tolist() == [*(-np.arange(1.0, tokens.size)), 0.0]
        assert versions.tolist() == [*[4] * (tokens.size - 1), -1]
        found += 1
    assert found == 2 + 3 + 4


def test_prompts_are_not_trained_on():
    group = ScoredGroup.dense(
        np.arange(8).reshape(2, 4), np.full((2, 2), -0.5), np.array([0.0, 1.0]), 2
    )

    class One:
        def sample_and_score(self, prompt):
            return group

    batch = dataset(One(), groups_per_batch=1).next_batch()
    assert batch.labels[batch.label_mask].tolist() == [2, 3, 6, 7]
    assert batch.log_probs[batch.label_mask].tolist() == [-0.5] * 4


def test_groups_that_teach_nothing_are_left_out_and_counted():
    rewards = {0: [1.0, 1.0], 1: [0.5], 2: [0.1, 0.1, 0.1]}
    found = dataset(Scripted(lambda p: rewards.get(p, [0.0, 1.0])))
    found.next_batch()
    assert found.store.record(0).positions == [3, 4, 5]
    assert found.store.record(0).dropped == {
        0: "zero_std_1.0",
        1: "zero_std_0.5",
        2: "zero_std_0.1",
    }
    assert {k: v for k, v in found.counts.items() if v} == {
        "valid_groups": 3,
        "attempts_per_batch": 6,
        "zero_var_groups": 2,
        "single_groups": 1,
    }
    found.next_batch()
    assert found.counts["attempts_per_batch"] == 3
    assert found.totals["valid_groups"] == 6


def test_without_a_filter_a_group_of_one_weighs_nothing():
    found = dataset(Scripted(lambda p: [3.0]), keep=None)
    batch = found.next_batch()
    assert (batch.token_weights == 0).all()
    assert batch.label_mask.any()
    assert (found.counts["single_groups"], found.counts["valid_groups"]) == (0, 3)


def test_a_filter_of_the_user_has_its_own_counter():
    found = dataset(Scripted(), keep=lambda r: Verdict(bool(r.mean() > 0.5), "too easy"))
    found.next_batch()
    assert found.counts["filtered_groups"] == found.counts["attempts_per_batch"] - 3 > 0
    assert set(found.store.record(0).dropped.values()) == {"too easy"}


def test_completions_longer_than_a_row_are_counted():
    found = dataset(Scripted(lambda p: [0.0, 1.0] if p % 2 else [0.0] * 12 + [1.0]), seq_len=10)
    found.next_batch()
    assert found.store.record(0).positions == [1, 3, 5]
    assert found.counts["too_long_groups"] == 3


def test_groups_that_are_all_left_out_end_the_run_with_the_counts():
    sampler = Scripted(lambda p: [1.0, 1.0] if p % 2 else [0.0, 0.0])
    with pytest.raises(
        NoGroupError, match=r"max_attempts = 5.*step 0 \(zero_std_0.0: 3, zero_std_1.0: 2\)"
    ):
        dataset(sampler, max_attempts=5).next_batch()
    assert len(sampler.asked) == 5


def test_attempts_are_counted_in_a_row():
    found = dataset(Scripted(lambda p: [0.0, float(p % 4 == 3)]), max_attempts=4)
    found.next_batch()  # three left out, one kept, three left out, ...
    assert found.counts["attempts_per_batch"] == 12


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_reward_that_is_no_number_names_its_group(wrong):
    sampler = Scripted(lambda p: [0.0, wrong if p == 4 else 1.0])
    found = dataset(sampler)
    found.next_batch()
    with pytest.raises(ConfigError, match=r"rewards\[1\].*group 4, of prompt \d"):
        found.next_batch()
    assert not found.store.has_group(4)


def test_oversampled_groups_wait_for_the_next_step_and_are_not_sampled_again():
    sampler = Scripted(lambda p: [0.0, float(p % 2)])
    found = dataset(sampler, prompts_at_a_time=8, threads=2)
    for step in range(4):
        found.next_batch(step)
    assert sorted(sampler.asked) == list(range(len(sampler.asked)))
    assert [p for r in found.store.records() for p in r.positions] == list(range(1, 24, 2))


def test_old_groups_are_sampled_again_by_the_present_policy():
    sampler = Scripted(version=0)
    found = dataset(sampler, prompts_at_a_time=6, max_staleness=1)
    found.next_batch(policy_version=0)
    sampler.version = 2
    batch = found.next_batch(policy_version=2)
    assert found.counts["stale_groups"] == 3
    assert (batch.policy_version[batch.label_mask] == 2).all()
    assert [p for r in found.store.records() for p in r.positions] == list(range(6))
    with pytest.raises(NoGroupError, match="stale: 5"):  # the sampler never gets the new weights
        dataset(Scripted(version=0), max_staleness=1, max_attempts=5).next_batch(policy_version=9)


def test_admission_is_by_the_oldest_token_and_old_tokens_may_be_masked_instead():
    class Partial:
        """Begun by version 0, finished by version 3."""

        def sample_and_score(self, prompt):
            tokens = [np.array([1, 2, 3, 4 + k]) for k in range(2)]
            versions = [np.array([0, 0, 3, 3], np.int32)] * 2
            return ScoredGroup(tokens, np.array([0.0, 1.0]), 1, policy_version=versions)

    with pytest.raises(NoGroupError, match="stale"):
        dataset(Partial(), max_staleness=2, max_attempts=3).next_batch(policy_version=3)
    batch = dataset(Partial(), max_staleness=2, stale="mask").next_batch(policy_version=3)
    assert (batch.policy_version[batch.label_mask] == 3).all()
    assert sorted(set(batch.labels[batch.label_mask].tolist())) == [3, 4, 5]
    assert dataset(Partial(), max_staleness=3).next_batch(policy_version=3).label_mask.sum() == 18


@given(
    crashes=st.lists(st.integers(1, 12), max_size=5),
    at_a_time=st.integers(1, 5),
    checkpoint_every=st.integers(1, 3),
)
@settings(max_examples=25)
def test_a_crash_loses_nothing_and_doubles_nothing(crashes, at_a_time, checkpoint_every):
    """The sampler, or the write behind it, dies at any call; the trainer goes back to its last
    checkpoint.
    """
    steps = 5

    class Dies(Scripted):
        left = 0

        def sample_and_score(self, prompt):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().sample_and_score(prompt)

    sampler = Dies(lambda p: [0.0, float(p % 3 > 0)])
    calm = dataset(Scripted(sampler.rewards), prompts_at_a_time=at_a_time)
    wanted = [calm.next_batch(s) for s in range(steps)]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        step = 0
        trained = {}
        found = dataset(sampler, store=RolloutStore(folder))
        for budget in [*crashes, 0]:
            sampler.left = budget
            found.store.close()
            found = dataset(sampler, prompts_at_a_time=at_a_time, store=RolloutStore(folder))
            try:
                for s in range(step, steps):
                    trained[s] = found.next_batch(s)
                    if (s + 1) % checkpoint_every == 0:
                        step = s + 1
                        found.store.forget(step)
            except KeyboardInterrupt:
                continue
        used = [p for r in found.store.records() for p in [*r.positions, *r.dropped]]
        assert sorted(used) == list(range(found.store.next_position))
        assert len(set(sampler.asked)) == len(
            sampler.asked
        )  # nothing that was stored was sampled again
    for s in range(steps):
        assert np.array_equal(trained[s].tokens, wanted[s].tokens)
        assert np.array_equal(trained[s].token_weights, wanted[s].token_weights)


def test_a_step_is_the_same_however_often_it_is_asked_for(tmp_path):
    store = RolloutStore(tmp_path)
    first = dataset(Scripted(), store=store).next_batch(0)
    other = Scripted(lambda p: [9.0, 8.0])
    store.close()
    again = dataset(other, store=RolloutStore(tmp_path))
    assert np.array_equal(again.next_batch(0).token_weights, first.token_weights)
    assert other.asked == []
    with pytest.raises(ConfigError, match="ahead"):
        again.next_batch(5)
    again.store.forget(1)
    with pytest.raises(CacheError, match="let go"):
        again.next_batch(0)


@pytest.mark.parametrize("bounds", [{"rows": 1}, {"max_segments": 1}])
def test_a_batch_that_does_not_fit_is_no_step_yet(bounds, tmp_path):
    small = dataset(Scripted(), store=RolloutStore(tmp_path), **bounds)
    with pytest.raises(ConfigError, match=next(iter(bounds))):
        small.next_batch()
    assert (small.store.next_step, small.store.next_position, small.store.pending) == (
        0,
        0,
        [0, 1, 2],
    )
    assert small.totals == {}
    other = Scripted()
    small.store.close()
    mended = dataset(other, store=RolloutStore(tmp_path))
    mended.next_batch()
    assert mended.store.record(0).positions == [0, 1, 2]
    assert other.asked == []


def test_a_run_may_begin_at_any_step():
    found = dataset(Scripted())
    found.next_batch(5)
    assert found.store.next_step == 6
    with pytest.raises(ConfigError, match="before the first step that was made"):
        found.next_batch(3)


def test_steps_may_be_taken_back(tmp_path):
    found = dataset(Scripted(), store=RolloutStore(tmp_path))
    batches = [found.next_batch(s) for s in range(3)]
    found.store.rewind(1)
    assert RolloutStore(tmp_path).next_step == 1
    assert RolloutStore(tmp_path).pending == list(range(3, 9))
    assert np.array_equal(found.next_batch(1).tokens, batches[1].tokens)


def test_a_store_is_one_run_s(tmp_path):
    dataset(Scripted(), store=RolloutStore(tmp_path))
    with pytest.raises(PlanMismatchError, match="seed = 1"):
        dataset(Scripted(), store=RolloutStore(tmp_path), seed=1)


def test_a_group_survives_its_file_exactly():
    group = ScoredGroup(
        [np.array([1, 2, 3], np.uint16), np.array([4], np.uint16)],
        np.array([0.1, 1 / 3]),
        1,
        [np.array([-0.1, -0.2], np.float32), np.zeros(0, np.float32)],
        [np.array([0, 1, 0]), np.array([1])],
        [np.array([0, 7, 8]), np.array([9])],
    )
    again = ScoredGroup.from_bytes(group.to_bytes(), "x")
    for mine, theirs in zip(
        group.examples(np.ones(2), 0), again.examples(np.ones(2), 0), strict=True
    ):
        for field in dataclasses.fields(mine):
            assert np.array_equal(getattr(mine, field.name), getattr(theirs, field.name)), (
                field.name
            )
    assert again.rewards.tolist() == group.rewards.tolist()
    assert again.oldest_version == 7


def test_prompts_of_a_cache_and_the_iterator():
    cache = tiny_cache(documents=9)
    prompts = CachePrompts(cache)
    found = RLDataset(
        prompts, Scripted(), RLSettings(seq_len=128, groups_per_batch=2, seed=3, multiple=2)
    )
    batches = [batch for batch, _ in zip(found, range(3), strict=False)]
    assert len(prompts) == 9
    assert all(b.batch_size % 2 == 0 for b in batches)
    first = int(PromptOrder(9, seed=3)(np.array([0]))[0])
    assert np.array_equal(found.store.group(0).tokens[0][: prompts[first].size], prompts[first])


def test_prompts_that_were_removed_from_their_cache_are_not_sampled(tmp_path: Path):
    cache = tiny_cache(tmp_path / "prompts", documents=9)
    whole = CachePrompts(open_cache(cache.path))
    remove(cache.path, 2, 8)
    prompts = CachePrompts(open_cache(cache.path))
    left = [whole[number] for number in (0, 1, 3, 4, 5, 6, 7)]
    assert [one.tolist() for one in prompts] == [one.tolist() for one in left]
    assert prompts.fingerprint != whole.fingerprint == cache.fingerprint
    with pytest.raises(IndexOutOfRangeError, match="from 0 to 6"):
        prompts[7]


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("groups_per_batch", lambda: dataset(Scripted(), groups_per_batch=0)),
        ("max_staleness", lambda: dataset(Scripted(), max_staleness=-1)),
        ("advantages", lambda: dataset(Scripted(), advantages="grpo")),
        ("prompts", lambda: RLDataset([], Scripted(), RLSettings(8, 1, 0))),
        ("tokens", lambda: ScoredGroup([], np.zeros(0), 1)),
        ("rewards", lambda: ScoredGroup([np.array([1])], np.zeros(2), 1)),
        (
            "log_probs[0]",
            lambda: ScoredGroup([np.array([1])], np.zeros(1), 1, [np.zeros(2)]).examples(
                np.ones(1), 0
            ),
        ),
    ],
)
def test_bad_input(field, make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_columns_of_rollouts_are_beside_their_tokens(tmp_path):
    """Stored and read back, they come with the tokens of each completion; groups without them have
    zeros.
    """
    ids = [np.array([[1, 2], [3, 4], [5, 6]]), np.array([[7, 8], [9, 10]])]
    columns = {"ids": ids, "score": [[0.5] * 3, [1.5] * 2]}
    group = ScoredGroup(
        [np.array([1, 2, 3]), np.array([4, 5])], np.array([1.0, 0.0]), 1, extras=columns
    )
    again = ScoredGroup.from_bytes(group.to_bytes(), "x")
    examples = [*again.examples(np.array([1.0, -1.0]), 0), Example(np.array([6, 7]))]
    batch = pack_examples(examples, 8)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert batch.extras["ids"].tolist() == [
        [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [0, 0], [0, 0], [0, 0]]
    ]
    assert batch.extras["score"].tolist() == [[0.5, 0.5, 0.5, 1.5, 1.5, 0, 0, 0]]
    assert batch.of_labels("score").tolist() == [[0.5, 0.5, 0, 1.5, 0, 0, 0, 0]]
    with pytest.raises(
        ConfigError, match=r"extras.score\[1\] = \(3,\): are not numbers of the 2 tokens"
    ):
        ScoredGroup(group.tokens, group.rewards, 1, extras={"score": [np.zeros(3), np.zeros(3)]})
