"""Context-parallel splits: slime's zig-zag, and that every rank has the same work."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import attention_work, zigzag
from headrace.batch.context_parallel import striped
from headrace.errors import ConfigError
from headrace_posttrain import response_part

CASES = json.loads((Path(__file__).parents[1] / "golden" / "slime_cp_zigzag.json").read_text())[
    "cases"
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['total']}-{c['cp_size']}-{c['cp_rank']}")
def test_zigzag_of_slime(case):
    split = zigzag(np.array([case["total"]]), case["cp_size"])
    tokens = split.take(np.arange(1, case["total"] + 1))
    assert tokens[case["cp_rank"]].tolist() == case["tokens_1based_pad0"]
    part = response_part(case["total"], case["response"], case["cp_size"], case["cp_rank"])
    wanted = case["chunk_size,chunks,logits,tokens"]
    if wanted is not None:
        assert json.loads(json.dumps(part)) == wanted
    else:  # the original has no answer for a response without a prompt
        assert part.chunk == -(-case["total"] // (2 * case["cp_size"]))


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 5))
def test_every_token_is_on_one_rank(lengths, ranks):
    total = sum(lengths)
    for split in (zigzag(np.array(lengths, np.int64), ranks), striped(total, ranks)):
        held = split.token[split.token >= 0]
        assert np.array_equal(np.sort(held), np.arange(total))
        assert split.token.shape == (ranks, int(split.lengths.sum()))
    joined = zigzag(np.array(lengths, np.int64), ranks)
    alone = [zigzag(np.array([n]), ranks).token for n in lengths]
    first = np.cumsum([0, *lengths])
    shifted = [np.where(a >= 0, a + f, -1) for a, f in zip(alone, first[:-1], strict=True)]
    assert np.array_equal(
        joined.token, np.concatenate([np.zeros((ranks, 0), int), *shifted], axis=1)
    )


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 4))
def test_the_parts_of_a_response_are_the_response(total, response, ranks):
    response = min(response, total)
    parts = [response_part(total, response, ranks, r) for r in range(ranks)]
    tokens = sorted(t for p in parts for a, b in p.tokens for t in range(a, b))
    assert tokens == list(
        range(max(total - response, 1), total)
    )  # nothing predicts the first token
    for p in parts:
        for (a, b), (c, d) in zip(p.logits, p.chunks, strict=True):
            assert a == b == 0 or c <= a < b <= d


def test_values_of_several_numbers_go_where_their_tokens_go():
    split = zigzag([5, 3], 2)
    values = np.arange(10, dtype=np.float32).reshape(10, 1) * [
        1,
        -1,
    ]  # two places of padding behind the documents
    found = split.take(values, fill=9)
    assert np.array_equal(found[..., 0], split.take(values[:, 0], fill=9))
    assert np.array_equal(found[..., 1], split.take(values[:, 1], fill=9))
    assert split.take(list(range(8))).tolist() == split.take(np.arange(8)).tolist()


def test_work_is_equal_where_contiguous_slices_are_not():
    length = 1024
    ranks = 4
    work = attention_work(zigzag(np.array([length]), ranks), np.array([length]))
    assert len(set(work.tolist())) == 1
    stripes = attention_work(striped(length, ranks), np.array([length]))
    assert stripes.max() / stripes.min() < 1.01
    contiguous = (np.arange(length) + 1).reshape(ranks, -1).sum(axis=1)
    assert contiguous.max() / contiguous.min() > 6
    packed = np.random.default_rng(0).integers(10, 400, 20)
    stripes = attention_work(striped(int(packed.sum()), ranks), packed)
    assert stripes.max() / stripes.min() < 1.05


def test_bad_input_is_named():
    for call, field in (
        (lambda: zigzag(np.array([3]), 0), "ranks"),
        (lambda: zigzag(np.array([-3]), 2), "lengths"),
        (lambda: response_part(3, 4, 2, 0), "response"),
        (lambda: response_part(3, 2, 2, 2), "rank"),
        (lambda: response_part(3, 2, 0, 0), "ranks"),
        (lambda: response_part(-3, 0, 2, 0), "total"),
        (lambda: response_part(3.5, 1, 2, 0), "total"),
        (lambda: zigzag(np.array([3.5]), 2), "lengths"),
        (lambda: zigzag(np.array([[3]]), 2), "lengths"),
        (lambda: zigzag(np.array([3]), 1.5), "ranks"),
        (lambda: striped(-1, 2), "length"),
        (lambda: striped(3, 0), "ranks"),
        (lambda: striped(3, 2).take(np.arange(2)), "values"),
        (lambda: attention_work(striped(3, 2), [2]), "lengths"),
        (lambda: attention_work(striped(3, 2), [2, 2]), "lengths"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert caught.value.field == field
