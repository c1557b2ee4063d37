"""``headrace cache inspect`` of rollouts: what their run has done, and which log is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace_posttrain import RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.dataset import RLSettings

Run = Callable[..., tuple[int, str, str]]


class Guess:
    def sample_and_score(self, prompt):
        return ScoredGroup(
            [np.array([1, k]) for k in range(2)], np.array([0.0, float(prompt.position != 1)]), 1
        )


@pytest.fixture
def rollouts(tmp_path: Path) -> str:
    with RolloutStore(tmp_path / "rollouts") as store:
        settings = RLSettings(seq_len=8, groups_per_batch=2, seed=3, prompts_at_a_time=4)
        dataset = RLDataset([np.array([k]) for k in range(5)], Guess(), settings, store=store)
        dataset.next_batch()
        store.refuse_group(3)
    return str(tmp_path / "rollouts")


def test_rollouts(headrace: Run, rollouts: str):
    status, printed, _ = headrace("cache", "inspect", rollouts)
    assert status == 0
    for words in (
        "1; the next is 1, from position 3",
        "2 trained on, 1 left out, 0 wait",
        "1 too old",
        "seq_len 8",
    ):
        assert words in " ".join(printed.split())
    facts = json.loads(headrace("cache", "inspect", rollouts, "--json")[1])
    assert facts["identity"]["prompts"] == 5
    assert facts["logs"]["consumer"] == {
        "records": 4,
        "closed": True,
        "torn_bytes": 0,
        "fenced_records": 0,
        "lost_records": 0,
    }


def test_damage(headrace: Run, rollouts: str):
    (segment,) = (Path(rollouts) / "producers" / "consumer").glob("*.log")
    raw = segment.read_bytes()
    segment.write_bytes(raw[:-60])
    assert "being written, or its writer was killed" in headrace("cache", "inspect", rollouts)[1]
    segment.write_bytes(raw[:200] + b"?" + raw[201:])
    status, _, error = headrace("cache", "inspect", rollouts)
    assert status == 2
    assert f"segment = '{segment}': is damaged there" in " ".join(error.split())
