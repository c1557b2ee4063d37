"""What comes from a sampler is refused, or is exactly what is trained on."""

import json
import logging
import math
import shutil
import tracemalloc
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError, ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.store import open_cache
from headrace.testing.servers import serve
from headrace_posttrain import (
    CachePrompts,
    CompletionsSampler,
    Prompt,
    RLDataset,
    RolloutStore,
    SamplerError,
    ScoredGroup,
)
from headrace_posttrain.rollouts.dataset import NoGroupError, RLSettings

PROMPT = Prompt(0, 0, np.array([5, 6, 7]))
NUMBERS = st.one_of(
    st.integers(0, 40),
    st.integers(-2, 1 << 65),
    st.floats(),
    st.booleans(),
    st.text("0123456789-.a", max_size=3),
    st.none(),
    st.sampled_from([1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, -1, -0.0, 1e40]),
)
ROWS = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=4), st.lists(NUMBERS, max_size=4)
)
DTYPES = st.sampled_from([None, "i1", "u2", "i4", "u4", "i8", "u8", "f4", "?", "O", "U"])


@st.composite
def arrays(draw):
    row = draw(ROWS)
    try:
        with np.errstate(all="ignore"):
            return np.array(row, draw(DTYPES))
    except (TypeError, ValueError, OverflowError):
        return row


@st.composite
def rollouts(draw):
    """The arguments of a group, few of them right."""
    tokens = draw(st.lists(arrays(), max_size=3))
    return {
        "tokens": tokens,
        "rewards": draw(st.one_of(st.just([float(i) for i in range(len(tokens))]), arrays())),
        "prompt_len": draw(st.one_of(st.just(1), NUMBERS)),
        "log_probs": draw(
            st.one_of(st.none(), st.just([[-0.5]] * len(tokens)), st.lists(arrays(), max_size=3))
        ),
        "loss_masks": draw(st.one_of(st.none(), st.lists(arrays(), max_size=3))),
        "policy_version": draw(st.one_of(st.just(0), NUMBERS, st.lists(arrays(), max_size=3))),
    }


class Once:
    """A sampler of one group."""

    def __init__(self, given: Any):
        self.given = given

    def sample_and_score(self, prompt):
        return ScoredGroup(**self.given)


def trained(batch):
    """The ids of each segment of a batch."""
    rows = zip(np.asarray(batch.tokens), batch.cu_seqlens, batch.segment_lengths, strict=True)
    return [
        row[a : a + n].tolist()
        for row, at, sizes in rows
        for a, n in zip(at, sizes, strict=False)
        if n
    ]


@given(rollouts())
def test_a_group_is_refused_or_trained_on_as_it_is(given):
    dataset = RLDataset(
        [np.array([1])], Once(given), RLSettings(8, 1, seed=0, keep=None, max_attempts=1)
    )
    try:
        batch = dataset.next_batch()
    except (ConfigError, NoGroupError):
        return
    assert sorted(trained(batch)) == sorted([int(i) for i in row] for row in given["tokens"])
    for row in given["tokens"]:
        assert all(
            type(i) is not bool and 0 <= i < 1 << 31 and i == int(i) for i in np.asarray(row)
        )
    assert np.isfinite(np.asarray(batch.rewards)).all()
    stored = ScoredGroup.from_bytes(ScoredGroup(**given).to_bytes(), "group")
    assert [row.tolist() for row in stored.tokens] == [
        list(map(int, row)) for row in given["tokens"]
    ]


def answer(choices):
    """An answer of a server."""
    return json.dumps({"choices": choices}).encode()


def choice(index, ids, log_probs):
    return {
        "index": index,
        "text": "",
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"token_logprobs": log_probs, "tokens": []},
    }


NOT_ARRAYS = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 2), NUMBERS),
            st.one_of(ROWS, NOT_ARRAYS),
            st.one_of(st.lists(st.floats(max_value=0.0), max_size=4), NOT_ARRAYS),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_an_answer_is_refused_or_is_what_the_server_sampled(given):
    sampler = CompletionsSampler("http://h/v1", lambda *_: 0.0, group_size=2, max_tokens=4)
    body = answer([choice(*parts) for parts in given])
    try:
        completions = sampler._completions(body)
    except ConfigError:
        return
    given.sort(key=lambda parts: parts[0])
    assert len({index for index, _, _ in given}) == 2
    for completion, (_, ids, log_probs) in zip(completions, given, strict=True):
        assert completion.tokens.tolist() == ([] if ids is None else ids)
        assert all(type(i) is int and 0 <= i < 1 << 31 for i in ids or [])
        assert completion.log_probs.tolist() == [float(np.float32(p)) for p in log_probs]
        assert all(math.isfinite(p) for p in completion.log_probs.tolist())


@pytest.mark.parametrize(
    "body",
    [
        answer([choice(0, [1], [-1.0]), choice(0, [2], [-1.0])]),
        answer([choice(0, [1 << 40], [-1.0]), choice(1, [2], [-1.0])]),
        answer([choice(0, [True], [-1.0]), choice(1, [2], [-1.0])]),
        answer([choice(0, ["7"], [-1.0]), choice(1, [2], [-1.0])]),
        answer([choice(0, [1.5], [-1.0]), choice(1, [2], [-1.0])]),
        answer([choice(0, [-1], [-1.0]), choice(1, [2], [-1.0])]),
        b'{"choices": ' + b"[" * 100_000,
        b'{"choices": ' + b'{"a":' * 100_000,
        b"\xff\xfe",
    ],
)
def test_wrong_answers_are_refused(body):
    sampler = CompletionsSampler("http://h/v1", lambda *_: 0.0, group_size=2, max_tokens=4)
    with pytest.raises(ConfigError, match="http://h/v1/completions"):
        sampler._completions(body)


@pytest.mark.parametrize("framing", ["length", "chunked", "end"])
def test_an_endless_answer_is_not_read(framing):
    sent = []

    class Endless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.send_response(200)
            if framing == "length":
                self.send_header("Content-Length", str(1 << 40))
            if framing == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            piece = b" " * (1 << 20)
            try:
                while True:
                    whole = b"%x\r\n%s\r\n" % (len(piece), piece)
                    self.wfile.write(whole if framing == "chunked" else piece)
                    sent.append(len(piece))
            except OSError:
                self.close_connection = True

        def log_message(self, format, *args):  # noqa: A002 - the name of the class above
            pass

    settings = RLSettings(8, 1, seed=0)
    with serve(Endless) as url:
        made = CompletionsSampler(f"{url}/v1", lambda *_: 0.0, group_size=2, max_tokens=4)
        tracemalloc.start()
        with (
            RLDataset([PROMPT.tokens], made, settings) as dataset,
            pytest.raises(SamplerError, match=r"a body of more than [\d,]+ bytes"),
        ):
            dataset.next_batch()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 32 << 20


def test_ids_that_the_tokenizer_of_the_prompts_does_not_have_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n' * 3)
    source = SourceConfig([str(tmp_path / "a.jsonl")], kind="prompts")
    build_cache(source, TokenizerConfig("bytes"), tmp_path / "cache")
    prompts = CachePrompts(open_cache(tmp_path / "cache"))
    assert prompts.vocab_size is not None

    class Last:
        def __init__(self, last):
            self.last = last

        def sample_and_score(self, prompt):
            ids = np.append(prompt.tokens, self.last)
            return ScoredGroup([ids, ids], [0.0, 1.0], prompt.tokens.size)

    plain = RLSettings(8, 1, seed=0)
    RLDataset(prompts, Last(prompts.vocab_size - 1), plain).next_batch()
    with pytest.raises(ConfigError, match="is not below the 258 ids") as caught:
        RLDataset(prompts, Last(prompts.vocab_size), plain).next_batch()
    assert "RLSettings(vocab_size=...)" in (caught.value.cure or "")
    larger = RLSettings(8, 1, seed=0, vocab_size=300)
    RLDataset(prompts, Last(299), larger).next_batch()


def test_groups_whose_steps_are_lost_are_not_trained_on_again(tmp_path):
    class Two:
        def sample_and_score(self, prompt):
            return ScoredGroup([np.append(prompt.tokens, i) for i in (2, 3)], [0.0, 1.0], 1)

    def opened():
        store = RolloutStore(tmp_path / "rollouts")
        return store, RLDataset([np.array([1])] * 8, Two(), RLSettings(8, 1, 0), store=store)

    store, dataset = opened()
    with store:
        for step in range(3):
            dataset.next_batch(step)
    shutil.rmtree(tmp_path / "rollouts" / "steps")
    store, dataset = opened()
    with store, pytest.raises(CacheCorruptError, match="their log is lost"):
        dataset.next_batch(3)
    shutil.rmtree(tmp_path / "rollouts" / "producers")
    store, dataset = opened()
    with store:
        dataset.next_batch(3)


def test_a_run_that_begins_at_a_later_step_may_fail_in_it(tmp_path):
    class Fails:
        left = 1

        def sample_and_score(self, prompt):
            if prompt.position and self.left:
                self.left -= 1
                raise RuntimeError
            return ScoredGroup([np.append(prompt.tokens, i) for i in (2, 3)], [0.0, 1.0], 1)

    with RolloutStore(tmp_path / "rollouts") as store:
        dataset = RLDataset([np.array([1])] * 8, Fails(), RLSettings(8, 2, 0), store=store)
        with pytest.raises(RuntimeError):
            dataset.next_batch(7)
        dataset.next_batch(7)


def test_constant_rewards_are_named_soon(caplog):
    asked = []

    class Same:
        def sample_and_score(self, prompt):
            asked.append(len(caplog.records))
            return ScoredGroup([np.append(prompt.tokens, i) for i in (2, 3)], [1.0, 1.0], 1)

    caplog.set_level(logging.WARNING, "headrace_posttrain")
    dataset = RLDataset([np.array([1])], Same(), RLSettings(8, 1, 0))
    with pytest.raises(NoGroupError, match="max_attempts = 500"):
        dataset.next_batch()
    assert len(asked) == 500
    assert asked.count(0) == 50
    assert "50 consecutive groups were left out at step 0 (zero_std_1.0: 50)" in caplog.text
