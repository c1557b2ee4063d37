"""The EOS and BOS policy: what ``auto`` finds, when it refuses to guess, and tokens named by the
user.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.ingest import TokenizerConfig
from headrace.ingest.tokenize import (
    BOS_NAMES,
    EOS_NAMES,
    declared_tokens,
    load_tokenizer,
    resolve_special,
)

VOCABULARY = {"<pad>": 0, "</s>": 1, "<|endoftext|>": 2, "<|im_end|>": 3, "word": 4, "<s>": 5}


def eos(
    wanted: str | None, special: list[str], declared: str | None = None
) -> tuple[str | None, int | None]:
    return resolve_special("eos", wanted, special, EOS_NAMES, VOCABULARY.get, declared)


@pytest.mark.parametrize("wanted", [None, "none"])
def test_none(wanted: str | None):
    assert eos(wanted, ["</s>"]) == (None, None)


@pytest.mark.parametrize("name", EOS_NAMES)
def test_auto_knows_the_usual_names(name: str):
    assert resolve_special(
        "eos", "auto", ["<pad>", name, "<|im_end|>"], EOS_NAMES, {name: 7}.get
    ) == (name, 7)


@pytest.mark.parametrize("name", BOS_NAMES)
def test_auto_bos(name: str):
    assert resolve_special("bos", "auto", ["<pad>", name], BOS_NAMES, {name: 7}.get) == (name, 7)


def test_auto_refuses_to_guess():
    with pytest.raises(
        ConfigError, match=r"eos = 'auto': finds several: '</s>', '<\|endoftext\|>'.*--eos TOKEN"
    ):
        eos("auto", ["<pad>", "</s>", "<|endoftext|>"])
    with pytest.raises(
        ConfigError, match=r"finds none \(special tokens: '<pad>', '<\|im_end\|>'\).*--eos none"
    ):
        eos("auto", ["<pad>", "<|im_end|>"])
    with pytest.raises(ConfigError, match="special tokens: no one"):
        eos("auto", [])


def test_a_declared_token_settles_a_doubt_but_overrules_nothing():
    assert eos("auto", ["</s>", "<|endoftext|>"], declared="</s>") == ("</s>", 1)
    assert eos("auto", ["<pad>"], declared="<|im_end|>") == ("<|im_end|>", 3)
    assert eos("auto", ["<|endoftext|>"], declared="<|im_end|>") == ("<|endoftext|>", 2)
    with pytest.raises(ConfigError, match="finds none"):
        eos("auto", ["<pad>"], declared="<not in the vocabulary>")


def test_any_token_of_the_vocabulary_can_be_named():
    assert eos("word", ["<pad>"]) == ("word", 4)
    with pytest.raises(ConfigError, match=r"is not a token.*Did you mean '<\|im_end\|>'"):
        eos("<|im_end>", ["<pad>", "<|im_end|>"])


def test_with_real_files(make_tokenizer: Callable[[list[str]], str], tmp_path: Path):
    gpt = load_tokenizer(TokenizerConfig(make_tokenizer(["<|endoftext|>"])))
    assert (gpt.eos, gpt.eos_id, gpt.bos) == ("<|endoftext|>", 0, None)
    both = make_tokenizer(["<s>", "</s>", "<|endoftext|>"])
    with pytest.raises(ConfigError, match="finds several"):
        load_tokenizer(TokenizerConfig(both))
    chosen = load_tokenizer(TokenizerConfig(both, bos="auto", eos="<|endoftext|>"))
    assert (chosen.bos_id, chosen.eos_id) == (0, 2)
    # A transformers folder settles it.
    (tmp_path / "tokenizer.json").write_bytes(Path(both).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    )
    assert load_tokenizer(TokenizerConfig(str(tmp_path))).eos == "</s>"
    assert load_tokenizer(TokenizerConfig(str(tmp_path / "tokenizer.json"))).eos == "</s>"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"eos_token": null, "bos_token": {"x": 1}}'])
def test_an_odd_tokenizer_config_declares_nothing(tmp_path: Path, content: str):
    (tmp_path / "tokenizer_config.json").write_text(content)
    assert declared_tokens(str(tmp_path)) == {}
