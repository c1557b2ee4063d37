"""Megatron-LM's GPT index: its own vectors, and a count of its documents and samples one by one."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace_compat.gpt_index import GptIndex

CASES = json.loads((Path(__file__).parents[1] / "golden" / "megatron_gpt_index.json").read_text())[
    "cases"
]


def sample_index(index: GptIndex, lengths: np.ndarray, stride: int) -> list[list[int]]:
    """Where each sample begins, and the last one ends: place in the documents' order, and tokens
    into that document.
    """
    ends = np.cumsum(lengths[index.documents])
    begin = np.arange(index.order.size + 1) * stride
    place = np.searchsorted(ends, begin, side="right")
    return np.stack([place, begin - (ends - lengths[index.documents])[place]], axis=1).tolist()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"seed {c['seed']}")
def test_the_index_is_that_of_megatron(case):
    lengths = np.array(case["sizes"])
    documents = np.array(case["documents"])
    stride = case["seq_length"]
    index = GptIndex(
        lengths,
        documents,
        stride=stride,
        samples=case["num_samples"],
        seed=case["seed"],
        overlap=case["add_extra_token"],
    )
    assert (index.epochs, index.last_epoch_apart) == (
        case["num_epochs"],
        case["separate_final_epoch"],
    )
    assert index.documents.tolist() == case["document_index"]
    if case["drop_last_partial"]:
        assert sample_index(index, lengths, stride) == case["sample_index"]
        assert index.order.tolist() == case["shuffle_index"]
    else:  # its last, partial sample is one more than are kept here, and moves the others' order
        assert sample_index(index, lengths, stride) == case["sample_index"][:-1]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(2, 9),
    st.integers(1, 60) | st.none(),
    st.integers(0, 5),
)
def test_every_document_is_there_once_an_epoch_and_samples_suffice(sizes, stride, samples, seed):
    lengths = np.array(sizes)
    if lengths.sum() <= stride:
        with pytest.raises(ConfigError, match="is longer than the"):
            GptIndex(lengths, np.arange(lengths.size), stride=stride, samples=samples, seed=seed)
        return
    index = GptIndex(lengths, np.arange(lengths.size), stride=stride, samples=samples, seed=seed)
    assert (
        np.bincount(index.documents, minlength=lengths.size).tolist()
        == [index.epochs] * lengths.size
    )
    assert sorted(index.order.tolist()) == list(range(index.order.size))
    assert index.order.size >= (samples or 1)
    assert index.order.size == (index.epochs * int(lengths.sum()) - 1) // stride
    before = ((index.epochs - 1) * int(lengths.sum()) - 1) // stride
    if index.last_epoch_apart:  # the samples of the epochs before come first
        assert sorted(index.order[:before].tolist()) == list(range(before))


def test_a_seed_that_numpy_does_not_take_is_refused():
    with pytest.raises(
        ConfigError, match=r"seed = -1: must lie in 0 .. 2\*\*32 - 1 for Megatron's order"
    ):
        GptIndex(np.array([20]), np.arange(1), stride=4, samples=1, seed=-1)
