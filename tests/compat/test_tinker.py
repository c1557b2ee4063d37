"""Tinker-style datums against tinker-cookbook's own, and back."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import pack_examples
from headrace.errors import ConfigError
from headrace_compat import Turn, example_of_datum, join_turns, rl_datum, sft_datum
from headrace_posttrain import group_advantages

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def same(datum, wanted):
    for name, values in wanted.items():
        if name == "dtypes":
            assert {key: datum[key].dtype.name for key in values} == values
        else:
            np.testing.assert_allclose(datum[name], values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", golden("tinker_sft_datum")["cases"])
def test_sft_datum(case):
    found = sft_datum(
        case["tokens"], case["weights"], max_length=case["max_length"], reduction=case["reduction"]
    )
    same(found, case["datum"])


@pytest.mark.parametrize("case", golden("tinker_sft_datum")["rejected"])
def test_sft_datum_of_too_little(case):
    tokens, max_length, _ = case
    with pytest.raises(ConfigError, match="nothing to predict"):
        sft_datum(tokens, [1] * len(tokens), max_length=max_length)


@pytest.mark.parametrize("case", golden("tinker_rl_data")["cases"], ids=lambda c: c["name"])
def test_rl_data(case):
    turns = [Turn(t["ob"], t["ac"], t["logprobs"], t["masked"]) for t in case["transitions"]]
    examples = join_turns(turns, weight=case["advantage"])
    assert len(examples) == len(case["data"])
    for example, wanted in zip(examples, case["data"], strict=True):
        same(rl_datum(example), wanted)


def test_a_trajectory_that_splits_keeps_its_group_and_its_advantage():
    # the shape of the golden's "assemble": two groups of two, one trajectory in two data
    whole = [Turn([1], [2])]
    split = [Turn([1], [2]), Turn([9], [3])]
    wanted = golden("tinker_rl_data")["assemble"]
    groups = [[whole, split], [whole, whole]]
    data = []
    first = []
    for number, (trajectories, rewards) in enumerate(
        zip(groups, ([1.0, 0.0], [0.0, 1.0]), strict=True)
    ):
        advantages = group_advantages(np.array(rewards), np.zeros(2, int), "tinker").values
        for k, (turns, advantage) in enumerate(zip(trajectories, advantages, strict=True)):
            for example in join_turns(turns, weight=float(advantage), group=number):
                data.append({"group_idx": example.group, "traj_idx": k})
                first.append(float(rl_datum(example)["advantages"].sum()))
    assert data == wanted["metadata"]
    assert len(data) == wanted["n_data"]
    assert {abs(a) for a in first} == {abs(a) for a in wanted["first_advantages"]}


turns_of_a_conversation = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=5,
)


@given(turns_of_a_conversation)
def test_turns_that_continue_are_one_sequence_and_only_actions_are_trained_on(drawn):
    turns = []
    so_far = []
    for new, action in drawn:
        turns.append(Turn([*so_far, *new], action, [-1.0] * len(action), policy_version=len(turns)))
        so_far += [*new, *action]
    [example] = join_turns(turns, strict=True)
    assert example.tokens.tolist() == so_far
    assert example.loss_mask.sum() == sum(len(a) for _, a in drawn)
    assert (example.log_probs != 0).tolist() == (example.loss_mask != 0).tolist()
    assert set(example.policy_version[example.loss_mask == 0].tolist()) <= {-1}


def test_the_prefix_is_of_ids_not_of_text():
    # "ab" as one token the first time, as two the second: the same text, other ids
    turns = [Turn([1], [7]), Turn([1, 5, 6, 2], [3])]
    assert [e.tokens.tolist() for e in join_turns(turns)] == [[1, 7], [1, 5, 6, 2, 3]]
    with pytest.raises(ConfigError, match=r"turns\[1\].*first other one: 1"):
        join_turns(turns, strict=True)
    with pytest.raises(ConfigError, match=r"turns\[1\].*first other one: 1"):
        join_turns([Turn([1], [7]), Turn([1], [3])], strict=True)  # shorter than what was


def test_a_masked_turn_is_not_trained_on():
    [example] = join_turns([Turn([1], [2]), Turn([1, 2], [3], masked=True)])
    assert example.loss_mask.tolist() == [0, 1, 0]
    assert join_turns([]) == []
    with pytest.raises(ConfigError, match="log_probs"):
        join_turns([Turn([1], [2, 3], [-0.1])])


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9), st.data())
def test_a_datum_and_back(tokens, data):
    weights = data.draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(tokens), max_size=len(tokens))
    )
    datum = sft_datum(tokens, weights)
    example = example_of_datum(datum)
    batch = pack_examples([example], len(tokens))
    assert batch.tokens[0].tolist() == tokens
    assert batch.token_weights[0].tolist() == [*weights[1:], 0.0]
    log_probs = [-weight for weight in weights[1:]]
    [rollout] = join_turns([Turn(tokens[:1], tokens[1:], log_probs)], weight=-0.25)
    again = rl_datum(example_of_datum(rl_datum(rollout)))
    same(again, rl_datum(rollout))


def test_what_is_no_datum():
    with pytest.raises(ConfigError, match="target_tokens"):
        example_of_datum({"model_input": [1, 2]})
    with pytest.raises(ConfigError, match="moved by one"):
        example_of_datum({"model_input": [1, 2], "target_tokens": [3, 4]})
    with pytest.raises(ConfigError, match="weights"):
        sft_datum([1, 2], [1])
