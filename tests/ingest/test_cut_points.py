"""Long texts in pieces: the ids are those of the whole text, and no piece is too long."""

import os
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from headrace.ingest.cut_points import _candidates, cut_points

TEXT = st.text(st.sampled_from("ab é日。，\n .;'0\t\r{_"), max_size=400) | st.text(max_size=200)


def real_text() -> str:
    with open(os.__file__, encoding="utf-8") as f:
        return f.read()


def trained(pre_tokenizer: object, normalizer: object = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator([real_text()[:20_000], "日本語。日本語，"], trainer)
    return tokenizer


TOKENIZERS = {
    "byte level": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte level with a space before": trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "words": trained(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "no words at all": trained(None, normalizers.Replace(" ", "▁")),
    "stripped": trained(pre_tokenizers.Whitespace(), normalizers.Strip()),
}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def pieces(text: str, cuts: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("name", ["byte level", "words", "stripped"])
def test_pieces_give_the_ids_of_the_whole(name: str):
    tokenizer = TOKENIZERS[name]
    text = real_text() + "日本語。日本語，日本語。" * 500
    cuts = list(cut_points(text, lambda t: ids(tokenizer, t), piece_chars=1000))
    assert len(cuts) > len(text) / 4000
    assert [i for p in pieces(text, cuts) for i in ids(tokenizer, p)] == ids(tokenizer, text)


@given(text=TEXT)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_text_any_tokenizer(name: str, text: str):
    tokenizer = TOKENIZERS[name]
    cuts = list(
        cut_points(text, lambda t: ids(tokenizer, t), piece_chars=20, max_piece_chars=10_000)
    )
    assert all(0 < a < b < len(text) for a, b in pairwise([*cuts, len(text)]) if b != len(text))
    # All texts here are shorter than max_piece_chars, so no cut was forced: each one was shown to
    # change nothing.
    assert [i for p in pieces(text, cuts) for i in ids(tokenizer, p)] == ids(tokenizer, text)


@given(text=st.text(st.sampled_from("ab \n"), max_size=600))
def test_no_piece_is_longer_than_the_limit(text: str):
    # Ids that depend on the whole text: there is no place to cut.
    cuts = list(cut_points(text, lambda t: [len(t)] * 2, piece_chars=10, max_piece_chars=50))
    assert all(len(p) <= 50 for p in pieces(text, cuts))
    assert "".join(pieces(text, cuts)) == text


@given(text=TEXT, first=st.integers(0, 30), missing=st.integers(0, 30))
def test_candidates_are_where_words_begin_and_sentences_end(text: str, first: int, missing: int):
    stop = max(len(text) - missing, 0)
    before = r"(?<=\S\n)(?=[^\W\d_])|(?<=\S)(?= [^\W\d_])"
    after = r"(?<=\w)(?=[。！？；，、])|(?<=[。！？；，、])(?=\w)"
    expected = [
        match.start()
        for match in re.finditer(f"{before}|{after}", text[:stop])
        if match.start() >= first
    ]
    assert list(_candidates(text, first, stop)) == expected


def test_short_texts_are_not_touched():
    assert list(cut_points("a b\nc" * 2, lambda t: [len(t)], piece_chars=10)) == []


def test_a_text_without_any_place_to_cut_is_whole_up_to_the_limit():
    encode = TOKENIZERS["byte level"].encode
    assert (
        list(cut_points("x" * 1000, lambda t: encode(t).ids, piece_chars=10, max_piece_chars=1000))
        == []
    )
    assert list(
        cut_points("x" * 1001, lambda t: encode(t).ids, piece_chars=10, max_piece_chars=1000)
    ) == [1000]
