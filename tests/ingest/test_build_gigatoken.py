"""Builds with gigatoken: the cache of tokenizers to the bit, whoever builds it, and whatever the
two disagree on.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace import SourceConfig, TokenizerConfig
from headrace.errors import ConfigError
from headrace.ingest import build, build_cache, gigatoken_encoder
from headrace.ingest.choices import Engine
from headrace.ingest.part_builder import ONE_IN

Tree = Callable[[str | Path], dict[str, bytes]]


@pytest.fixture(autouse=True)
def quick_comparison(monkeypatch: pytest.MonkeyPatch):
    """All code points take too long for a test: ² stands for those that differ."""
    monkeypatch.setattr(
        gigatoken_encoder, "code_points_of", lambda tokenizer: ((ord("²"), ord("²") + 1),)
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a", "b", "c"):
        texts = [
            f"document {i} of {name}: " + "word " * (i % 50) + "²" * (i % 97 == 3)
            for i in range(1500)
        ]
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in [*texts, ""])
        )
    return folder


def built(
    corpus: Path, path: str, output: Path, library: str, engine: Engine = "inline"
) -> build.BuildReport:
    config = TokenizerConfig(path, eos="</s>", engine=library)  # pyright: ignore[reportArgumentType]
    return build_cache(
        SourceConfig([str(corpus)]),
        config,
        str(output),
        engine=engine,
        workers=2,
        part_bytes=1,
        progress=False,
    )


def check_engine(engine: Engine, corpus: Path, path: str, tmp_path: Path, tree: Tree) -> None:
    slow = built(corpus, path, tmp_path / "slow", "tokenizers")
    fast = built(corpus, path, tmp_path / "fast", "gigatoken", engine)
    assert tree(tmp_path / "slow") == tree(tmp_path / "fast")
    assert (slow.tokenizer_engine, fast.tokenizer_engine) == ("tokenizers", "gigatoken")
    assert fast.differing_code_points == 1
    assert fast.encoded.fast + fast.encoded.slow == fast.documents == 4503
    assert fast.encoded.slow == 3 * 16
    assert 3 * 8 <= fast.encoded.compared <= 3 * (8 + -(-1501 // ONE_IN))
    assert fast.encoded.differences == ()


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_the_cache_is_the_same(
    engine: Engine, corpus: Path, bpe_path: str, tmp_path: Path, tree: Tree
):
    check_engine(engine, corpus, bpe_path, tmp_path, tree)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "zephyr"])
def test_the_cache_is_the_same_on_clusters(
    engine: Engine, corpus: Path, bpe_path: str, tmp_path: Path, tree: Tree
):
    reason = "Zephyr needs Python 3.12 or newer: .ci/run newest runs this there"
    pytest.importorskip(engine, reason=reason)
    check_engine(engine, corpus, bpe_path, tmp_path, tree)


@pytest.mark.parametrize("wrong", [3, 1400])
def test_a_difference_takes_tokenizers_for_the_part(
    wrong: int,
    corpus: Path,
    bpe_path: str,
    tmp_path: Path,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Wrong from document 3 of b on: among the first; or from 1,400 on: only where the sample says,
    so it may pass.
    """
    load = gigatoken_encoder._load

    def lying(content: str) -> Callable[[str], np.ndarray]:
        encode = load(content)

        def one(text: str) -> np.ndarray:
            number, of, name = (*text.split(), "-1", "-1", "-1", "-1")[1:4]
            return (
                encode(text)[::-1].copy()
                if of == "of" and name == "b:" and int(number) >= wrong
                else encode(text)
            )

        return one

    monkeypatch.setattr(gigatoken_encoder, "_load", lying)
    monkeypatch.setattr("headrace.ingest.part_builder.ONE_IN", 16)
    built(corpus, bpe_path, tmp_path / "slow", "tokenizers")
    fast = built(corpus, bpe_path, tmp_path / "fast", "gigatoken")
    assert tree(tmp_path / "slow") == tree(tmp_path / "fast")
    (place,) = fast.encoded.differences
    assert place.startswith(f"{corpus}/b.jsonl, line ")
    assert int(place.rpartition(" ")[2]) > wrong
    assert place in caplog.text


def test_resumed_with_the_other_engine(corpus: Path, bpe_path: str, tmp_path: Path, tree: Tree):
    """Which library encodes is no part of what a cache is."""
    built(corpus, bpe_path, tmp_path / "slow", "tokenizers")
    before = tree(tmp_path / "slow")
    again = built(corpus, bpe_path, tmp_path / "slow", "gigatoken")
    assert (again.parts_built, again.tokenizer_engine) == (0, "")
    (record,) = (tmp_path / "slow" / "parts").glob("00001/part.json")
    record.unlink()
    again = built(corpus, bpe_path, tmp_path / "slow", "gigatoken")
    assert (again.parts_built, again.tokenizer_engine) == (1, "gigatoken")
    assert tree(tmp_path / "slow") == before


def test_refused_before_anything_is_written(corpus: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.engine.*no tokenizer\.json"):
        build_cache(
            SourceConfig([str(corpus)]),
            TokenizerConfig("bytes", engine="gigatoken"),
            str(tmp_path / "cache"),
            progress=False,
        )
    assert not (tmp_path / "cache").exists()
