"""A small BPE, corpora and folders compared byte by byte, for the tests of building."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "def function(self, value):\n    return value + 1\n",
    "Über die Straße läuft ein größerer Fuchs, наконец-то, 日本語。",
] * 4


def train_bpe(special: list[str], vocab_size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def bpe_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small BPE whose file adds special tokens, truncates and pads by itself: all of which must be ignored."""
    tokenizer = train_bpe(["<pad>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>", length=16)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], str]:
    """Saves a BPE with the given special tokens."""

    def make(special: list[str]) -> str:
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        train_bpe(special, vocab_size=300).save(str(path))
        return str(path)

    return make


@pytest.fixture(scope="session")
def write_jsonl() -> Callable[..., str]:
    """Writes texts as a JSONL file."""

    def write(path: Path, texts: list[str], field: str = "text") -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({field: t, "id": i}) + "\n" for i, t in enumerate(texts)))
        return str(path)

    return write


@pytest.fixture(scope="session")
def tree() -> Callable[[str | Path], dict[str, bytes]]:
    """All files of a folder: relative path to content."""

    def read(root: str | Path) -> dict[str, bytes]:
        return {
            os.path.relpath(os.path.join(parent, name), root): (Path(parent) / name).read_bytes()
            for parent, _, names in os.walk(root)
            for name in names
        }

    return read
