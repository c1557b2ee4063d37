"""Figures of a step: against plain sums over its groups, the same in every process that reads the
log.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.feed import LogStats
from headrace_posttrain import RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.advantages import Verdict
from headrace_posttrain.rollouts.dataset import RLSettings
from headrace_posttrain.rollouts.selection import COUNTERS

PROMPTS = [np.array([i + 1, 9]) for i in range(7)]


class Scripted:
    """Groups by position: rewards, and how many tokens lie behind the prompt."""

    def __init__(self, groups, version=0, says_truncated=True):
        self.groups = groups
        self.version = version
        self.says = says_truncated

    def sample_and_score(self, prompt):
        group = self.groups[prompt.position % len(self.groups)]
        tokens = [np.append(prompt.tokens, np.full(size, 5)) for _, size in group]
        cut = np.array([size == 4 for _, size in group]) if self.says else None
        rewards = np.array([reward for reward, _ in group])
        return ScoredGroup(tokens, rewards, 2, policy_version=self.version, truncated=cut)


GROUP = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 4)), min_size=2, max_size=4
)


def varies(group):
    return len({reward for reward, _ in group}) > 1


@given(
    st.lists(GROUP, min_size=1, max_size=5).filter(lambda groups: any(map(varies, groups))),
    st.integers(0, 3),
)
def test_figures_are_those_of_all_groups_that_were_looked_at(groups, version):
    dataset = RLDataset(
        PROMPTS, Scripted(groups), RLSettings(seq_len=8, groups_per_batch=2, seed=0)
    )
    dataset.next_batch(0, policy_version=version)
    found = dataset.metrics(0)
    record = dataset.store.record(0)
    seen = [groups[p % len(groups)] for p in (*record.positions, *record.dropped)]
    rewards, sizes = (np.array([one[k] for group in seen for one in group]) for k in (0, 1))
    expected = {
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
        "reward_min": rewards.min(),
        "reward_max": rewards.max(),
        "length_mean": sizes.mean(),
        "length_max": sizes.max(),
        "truncated_share": (sizes == 4).mean(),
        "zero_variance_share": len(record.dropped) / len(seen),
        "staleness_mean": version,
        "staleness_max": version,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["valid_groups"] == 2
    assert set(COUNTERS) < set(found)
    assert 0 <= found["sample_s_mean"] <= found["sample_s_max"]
    assert found["wait_s"] >= 0


def test_who_reads_the_log_has_the_same_figures_and_a_sampler_that_does_not_say_gives_no_share(
    tmp_path,
):
    sampler = Scripted([[(0.0, 1), (1.0, 3)]], says_truncated=False)
    settings = RLSettings(seq_len=8, groups_per_batch=2, seed=0)
    with RolloutStore(tmp_path) as store:
        made = RLDataset(PROMPTS, sampler, settings, store=store)
        made.next_batch(0)
        assert "truncated_share" not in made.metrics(0)
        follower = RLDataset(PROMPTS, None, settings, store=RolloutStore(tmp_path, follow=True))
        assert follower.metrics(0) == made.metrics(0)
        got = {}
        LogStats(None, lambda step, figures: got.update(figures))(0, rollout=follower.metrics(0))
        assert got["rollout/reward_mean"] == 0.5
        with pytest.raises(ConfigError, match="step"):
            made.metrics(1)


def test_figures_that_are_not_finite_are_left_out(tmp_path):
    groups = [[(-1.7e308, 1), (1.7e308, 1)], [(0.0, 1), (1.0, 1)]]
    sane = RLSettings(
        8, 1, seed=0, keep=lambda rewards: Verdict(bool(abs(rewards).max() < 10), "huge")
    )
    with RolloutStore(tmp_path) as store, np.errstate(over="ignore", invalid="ignore"):
        RLDataset(PROMPTS, Scripted(groups), sane, store=store).next_batch(0)
    record = RolloutStore(tmp_path, follow=True).record(0)
    assert record is not None
    assert record.dropped == {0: "huge"}
    assert all(map(math.isfinite, record.metrics.values()))
    assert "reward_std" not in record.metrics


@pytest.mark.parametrize("wrong", [[True], [True, 2], [0.5, 0.5]])
def test_truncated_must_say_of_each_completion_yes_or_no(wrong):
    with pytest.raises(ConfigError, match="truncated"):
        ScoredGroup([np.array([1, 2])] * 2, np.zeros(2), 1, truncated=np.array(wrong))
    group = ScoredGroup([np.array([1, 2])] * 2, np.zeros(2), 1, truncated=np.array([True, False]))
    again = ScoredGroup.from_bytes(group.to_bytes(), "a test")
    assert again.truncated is not None
    assert again.truncated.tolist() == [True, False]
