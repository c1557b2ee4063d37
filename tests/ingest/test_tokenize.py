"""Tokenizers: the ids of a document depend on the document, the file and the policy, and on nothing
else.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from headrace.errors import CacheCorruptError, ConfigError
from headrace.ingest import TokenizerConfig, tokenize
from headrace.ingest.records import BadRecordError
from headrace.ingest.tokenize import Tokenizer, load_tokenizer, recorded_tokenizer

TEXTS = st.lists(st.text(max_size=40), max_size=6)
POLICIES = [(None, "auto"), ("auto", "auto"), ("auto", "none"), (None, None)]


@pytest.fixture(scope="session", params=["bytes", "bpe"])
def path(request: pytest.FixtureRequest, bpe_path: str) -> str:
    return "bytes" if request.param == "bytes" else bpe_path


@pytest.mark.parametrize(("bos", "eos"), POLICIES)
@given(texts=TEXTS)
def test_a_batch_is_its_documents_one_by_one(
    path: str, bos: str | None, eos: str | None, texts: list[str]
):
    tokenizer = load_tokenizer(TokenizerConfig(path, bos=bos, eos=eos))
    ids, lengths = tokenizer.encode_batch(texts)
    assert ids.dtype == np.uint16
    assert lengths.dtype == np.int64
    assert lengths.shape == (len(texts),)
    assert lengths.sum() == ids.size
    one_by_one = [tokenizer.encode_batch([t])[0] for t in texts]
    assert [d.tolist() for d in np.split(ids, np.cumsum(lengths))[:-1]] == [
        d.tolist() for d in one_by_one
    ]
    for text, document in zip(texts, one_by_one, strict=True):
        assert tokenizer.decode(document) == (tokenizer.bos or "") + text + (tokenizer.eos or "")


@given(texts=TEXTS)
def test_bytes(texts: list[str]):
    tokenizer = load_tokenizer(TokenizerConfig("bytes", bos="auto"))
    ids, _ = tokenizer.encode_batch(texts)
    want = [i for t in texts for i in (257, *t.encode(), 256)]
    assert ids.tolist() == want
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (258, 256, 257)


@given(texts=TEXTS)
def test_the_files_own_special_tokens_truncation_and_padding_are_off(
    bpe_path: str, texts: list[str]
):
    library = Library.from_file(bpe_path)
    library.no_truncation()
    library.no_padding()
    tokenizer = load_tokenizer(TokenizerConfig(bpe_path))
    ids, lengths = tokenizer.encode_batch(texts)
    want = [[*library.encode(t, add_special_tokens=False).ids, 2] for t in texts]
    assert ids.tolist() == [i for w in want for i in w]
    assert lengths.tolist() == [len(w) for w in want]


def test_long_texts_go_in_pieces_with_the_same_ids(bpe_path: str, monkeypatch: pytest.MonkeyPatch):
    text = Path(np.__file__).read_text(encoding="utf-8")
    texts = ["short", text, "", text[: len(text) // 2], "x" * 3000, "last"]
    whole, lengths = load_tokenizer(TokenizerConfig(bpe_path, bos="auto")).encode_batch(texts)
    calls: list[int] = []
    monkeypatch.setattr(tokenize, "PIECE_CHARS", 500)
    monkeypatch.setattr(tokenize, "batch_chars", lambda: 1000)
    monkeypatch.setattr(
        tokenize,
        "cut_points",
        lambda t, e: calls.append(len(t)) or tokenize_cut_points(t, e, piece_chars=500),
    )
    cut, cut_lengths = load_tokenizer(TokenizerConfig(bpe_path, bos="auto")).encode_batch(texts)
    assert cut.tolist() == whole.tolist()
    assert cut_lengths.tolist() == lengths.tolist()
    assert calls == [len(t) for t in texts if len(t) > 500]


tokenize_cut_points = tokenize.cut_points


def test_threads_do_not_disturb_each_other(bpe_path: str):
    tokenizer = load_tokenizer(TokenizerConfig(bpe_path))
    batches = [[f"document {i} {j}" * (j % 7) for j in range(50)] for i in range(8)]
    want = [tokenizer.encode_batch(b)[0].tolist() for b in batches]
    with ThreadPoolExecutor(4) as pool:
        assert [r[0].tolist() for r in pool.map(tokenizer.encode_batch, batches)] == want


def test_decoding_bytes_that_are_no_text():
    tokenizer = load_tokenizer(TokenizerConfig("bytes"))
    assert tokenizer.decode([0xC3, 256, 0xA9, 257, 9999]) == "�<eos>�<bos>�"
    assert tokenizer.decode([]) == ""


def test_a_vocabulary_with_holes(tmp_path: Path):
    vocabulary = {"a": 0, "b": 70_000}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    tokenizer = load_tokenizer(TokenizerConfig(str(tmp_path), eos="none"))
    assert tokenizer.vocab_size == 70_001
    assert tokenizer.dtype == np.uint32
    assert tokenizer.encode_batch(["b"])[0].tolist() == [70_000]


class TestFingerprint:
    def test_not_of_the_path_or_the_spelling(self, bpe_path: str, tmp_path: Path):
        want = load_tokenizer(TokenizerConfig(bpe_path)).fingerprint
        content = json.loads(Path(bpe_path).read_text())
        content["truncation"] = None
        other = tmp_path / "other.json"
        other.write_text(json.dumps(content, indent=4, sort_keys=True))
        assert load_tokenizer(TokenizerConfig(str(other))).fingerprint == want
        assert load_tokenizer(TokenizerConfig(bpe_path, eos="</s>")).fingerprint == want

    def test_of_rules_and_policy(self, bpe_path: str, make_tokenizer: Callable[[list[str]], str]):
        configs = [TokenizerConfig(bpe_path, bos=b, eos=e) for b, e in POLICIES]
        configs += [TokenizerConfig("bytes", bos=b, eos=e) for b, e in POLICIES]
        configs += [TokenizerConfig(make_tokenizer(["<pad>", "<s>", "</s>"]))]
        prints = [load_tokenizer(c).fingerprint for c in configs]
        assert len(set(prints)) == len(prints)
        assert all(p.startswith("sha256:") and len(p) == 71 for p in prints)

    def test_pinned(self):
        assert load_tokenizer(TokenizerConfig("bytes")).fingerprint == (
            "sha256:d5cd67f9770114567ebb96200beb3bfa85d07dc848298db076a2cb404ee47714"
        )


def test_a_record_suffices_to_make_it_again(path: str, tmp_path: Path):
    for bos, eos in POLICIES:
        tokenizer = load_tokenizer(TokenizerConfig(path, bos=bos, eos=eos))
        record = json.loads(json.dumps(tokenizer.record()))
        if tokenizer.content is not None:
            (tmp_path / "tokenizer.json").write_bytes(tokenizer.content)
        again = recorded_tokenizer(str(tmp_path), record)
        assert again.record() == record
        assert (
            again.encode_batch(["ab é"])[0].tolist() == tokenizer.encode_batch(["ab é"])[0].tolist()
        )


def test_a_cache_without_its_tokenizer(
    bpe_path: str, tmp_path: Path, make_tokenizer: Callable[[list[str]], str]
):
    record = load_tokenizer(TokenizerConfig(bpe_path)).record()
    with pytest.raises(CacheCorruptError, match="missing"):
        recorded_tokenizer(str(tmp_path), record)
    (tmp_path / "tokenizer.json").write_bytes(Path(make_tokenizer(["<s>", "</s>"])).read_bytes())
    with pytest.raises(
        CacheCorruptError, match="is not the tokenizer that the cache was built with"
    ):
        recorded_tokenizer(str(tmp_path), record)


def test_a_cache_of_another_byte_tokenizer(tmp_path: Path):
    record = {
        **load_tokenizer(TokenizerConfig("bytes")).record(),
        "fingerprint": "sha256:of another release",
    }
    with pytest.raises(
        CacheCorruptError, match="is not the tokenizer that the cache was built with"
    ):
        recorded_tokenizer(str(tmp_path), record)


def test_the_wrong_tokenizer_for_a_cache(bpe_path: str, make_tokenizer: Callable[[list[str]], str]):
    built = load_tokenizer(TokenizerConfig(bpe_path))
    built.check_same(built.record(), "cache")
    with pytest.raises(
        ConfigError, match=r"not the tokenizer of cache \(eos '</s>' there, None here\)"
    ):
        load_tokenizer(TokenizerConfig(bpe_path, eos="none")).check_same(built.record(), "cache")
    with pytest.raises(
        ConfigError, match=r"vocab_size \d+ there, 258 here.*a copy is cache/tokenizer.json"
    ):
        load_tokenizer(TokenizerConfig("bytes")).check_same(built.record(), "cache")
    with pytest.raises(ConfigError, match="not the tokenizer"):
        built.check_same({"kind": "none", "vocab_size": 400, "fingerprint": "testing"}, "cache")


class TestBadInput:
    def test_nothing_there(self, tmp_path: Path):
        with pytest.raises(
            ConfigError, match=r"tokenizer = '.*nope': does not exist.*hf://OWNER/NAME"
        ):
            load_tokenizer(TokenizerConfig(str(tmp_path / "nope")))
        with pytest.raises(ConfigError, match=r"folder without tokenizer\.json"):
            load_tokenizer(TokenizerConfig(str(tmp_path)))

    @pytest.mark.parametrize(
        "content", ["", "{}", "[]", "{", '{"model": {"type": "Nope"}}', "\x00\x01sentencepiece"]
    )
    def test_no_tokenizer(self, tmp_path: Path, content: str):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ConfigError, match="is not a file of the tokenizers library"):
            load_tokenizer(TokenizerConfig(str(tmp_path)))

    def test_unknown_tokens(self, path: str):
        with pytest.raises(ConfigError, match="is not a token of this tokenizer"):
            load_tokenizer(TokenizerConfig(path, bos="<nope>"))


PIECES = st.lists(
    st.sampled_from(["</s>", "<s>", "<pad>", "</", "s>", "<", "a b", "é", "\n", "<unk>"]),
    max_size=8,
)


@pytest.fixture(scope="session")
def as_token(bpe_path: str) -> Tokenizer:
    return load_tokenizer(TokenizerConfig(bpe_path, eos="none"))


@given(pieces=PIECES)
def test_special_tokens_that_a_text_spells_out_are_tokens_or_text_or_refused(
    as_token: Tokenizer, pieces: list[str]
):
    """As text, it is what it would be if the tokenizer had no such tokens; refused, exactly if
    there are some.
    """
    text = "".join(pieces)
    as_text = as_token.reading_special("text")
    as_error = as_token.reading_special("error")
    special = {as_token.id_of(name) for name in as_token.special}
    ids = as_text.encode_batch([text])[0]
    assert as_text.decode(ids.tolist()) == text
    assert not special & set(ids.tolist())
    assert as_text.encode_with_places([text])[0].ids.tolist() == ids.tolist()
    assert as_text.fingerprint == as_token.fingerprint
    default = as_token.encode_batch([text])[0]
    if special & set(default.tolist()):
        for refusing in (as_error.encode_batch, as_error.encode_with_places):
            with pytest.raises(BadRecordError, match=r"spells out the special token '<") as refusal:
                refusing([text])
            assert "--special-tokens-in-text text" in (refusal.value.cure or "")
    else:
        assert default.tolist() == ids.tolist() == as_error.encode_batch([text])[0].tolist()
    assert as_text.reading_special("token").encode_batch([text])[0].tolist() == default.tolist()


def test_the_special_tokens_of_the_policy_are_no_matter_of_the_text(bpe_path: str):
    for setting in ("text", "error"):
        tokenizer = load_tokenizer(TokenizerConfig(bpe_path, bos="auto")).reading_special(setting)
        ids = tokenizer.encode_batch(["a"])[0].tolist()
        assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)


@pytest.mark.parametrize("setting", ["token", "text", "error"])
def test_bytes_are_never_special_tokens(setting: str):
    tokenizer = load_tokenizer(TokenizerConfig("bytes", eos="none")).reading_special(setting)
    assert tokenizer.encode_batch(["<eos>"])[0].tolist() == list(b"<eos>")


def test_a_model_that_knows_a_special_token_as_a_word_cannot_read_it_as_text(tmp_path: Path):
    library = Library(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))  # type: ignore[call-arg]
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    library.add_special_tokens(["<unk>", "</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(TokenizerConfig(str(tmp_path))).reading_special("text")
    assert tokenizer.encode_batch(["a b"])[0].tolist() == [
        2,
        0,
        1,
    ]  # what it does not know is no special token
    with pytest.raises(BadRecordError, match="has no other tokens than the special '</s>'"):
        tokenizer.encode_batch(["a </s>"])


def test_ready_ids_may_say_what_ends_a_document():
    plain, ended = (load_tokenizer(TokenizerConfig("ids:100", eos=eos)) for eos in ("auto", "7"))
    assert (plain.eos_id, ended.eos_id) == (None, 7)
    assert plain.fingerprint != ended.fingerprint
    assert plain.fingerprint == load_tokenizer(TokenizerConfig("ids:100", eos=None)).fingerprint
    for wrong in ("<eos>", "100"):
        with pytest.raises(
            ConfigError,
            match=f"tokenizer.eos = '{wrong}': is no id. Give the id that ends documents",
        ):
            load_tokenizer(TokenizerConfig("ids:100", eos=wrong))
