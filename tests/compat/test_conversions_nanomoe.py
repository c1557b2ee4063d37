"""nanomoe's flat form: its own numbers, there and back, and where its pretraining path is wrong and
ours is not.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Example, pack_examples, pack_rows
from headrace.errors import ConfigError
from headrace_compat import NanomoeBatch, from_nanomoe, to_nanomoe
from headrace_posttrain import ScoredGroup, group_advantages

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "nanomoe_rl.json").read_text())["cases"]


@pytest.mark.parametrize("case", GOLDEN)
def test_rollouts_weigh_what_they_weigh_there(case):
    rewards = np.array(case["rewards"], float)
    mask = np.array(case["loss_mask"])
    tokens = [np.arange(mask.size) + 10 * k for k in range(rewards.size)]
    advantages = group_advantages(rewards, np.zeros(rewards.size, int), "nanomoe").values
    group = ScoredGroup(
        tokens, rewards, 0, [np.full(mask.size, -0.5)] * rewards.size, [mask] * rewards.size
    )
    flat = to_nanomoe(pack_examples(group.examples(advantages, 0), 4 * mask.size * rewards.size))
    found = {
        int(flat.tokens[a]): flat.token_weights[a : a + mask.size] for a in flat.cu_seqlens[:-1]
    }
    for k, wanted in enumerate(case["token_weights"]):
        np.testing.assert_allclose(found[10 * k], wanted, rtol=1e-6)
    assert flat.log_probs is not None
    assert flat.log_probs.tolist() == [-0.5] * (rewards.size * int(mask[1:].sum()))


documents = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=6)


@given(documents, st.data())
def test_there_and_back(texts, data):
    examples = [
        Example(
            np.array(t),
            loss_mask=np.array(
                data.draw(st.lists(st.integers(0, 1), min_size=len(t), max_size=len(t)))
            ),
            weights=data.draw(st.sampled_from([0.5, -2.0])),
            log_probs=-np.arange(len(t), dtype=np.float32),
            reward=float(k),
        )
        for k, t in enumerate(texts)
    ]
    batch = pack_examples(examples, 12)
    flat = to_nanomoe(batch)
    assert flat.tokens.size == sum(map(len, texts))
    ends = flat.cu_seqlens[1:] - 1
    assert (flat.token_weights[ends] == 0).all()
    inner = np.delete(np.arange(flat.tokens.size), ends)
    assert (flat.labels[inner] == flat.tokens[inner + 1]).all()
    assert (flat.labels[ends] == flat.tokens[ends]).all()
    again = to_nanomoe(from_nanomoe(flat))
    for name, mine, theirs in zip(NanomoeBatch._fields, flat, again, strict=True):
        assert np.array_equal(mine, theirs), name


def test_the_first_transition_is_trained_on_and_the_last_token_is_not_its_own_label():
    # nanomoe's pretraining path emits labels [2, 3, 3, 5, 5] with weights [0, 1, 1, 0, 1]
    batch = pack_rows(np.array([[1, 2, 3, 4, 5]]), segment_lengths=np.array([[3, 2]], np.int32))
    flat = to_nanomoe(batch)
    assert flat.token_weights.tolist() == [1, 1, 0, 1, 0]
    wrong = flat._replace(token_weights=np.array([0, 1, 1, 0, 1], np.float32))
    assert from_nanomoe(wrong).token_weights.tolist() == [[0, 1, 0, 0, 0]]


def test_an_advantage_of_zero_needs_the_mask():
    flat = NanomoeBatch(
        np.arange(4),
        np.arange(4),
        np.arange(4),
        np.array([0, 4], np.int32),
        np.zeros(4, np.float32),
        np.array([-1.0, -2.0], np.float32),
        np.array([3.0], np.float32),
    )
    with pytest.raises(ConfigError, match="Give loss_mask"):
        from_nanomoe(flat)
    batch = from_nanomoe(flat, loss_mask=np.array([0, 1, 1, 0]))
    assert batch.log_probs is not None
    assert batch.log_probs.tolist() == [[0, -1, -2, 0]]
    assert batch.label_mask.tolist() == [[False, True, True, False]]
    assert to_nanomoe(batch).log_probs is not None
    with pytest.raises(ConfigError, match="cu_seqlens"):
        from_nanomoe(flat._replace(cu_seqlens=np.array([0, 3], np.int32)))
