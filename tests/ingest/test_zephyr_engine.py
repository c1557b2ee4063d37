"""The same parts as a pipeline of Marin's Zephyr: the same cache, whoever builds a part and however
often.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace_levanter.zephyr_engine import build_attempt, build_on_zephyr

pytest.importorskip("zephyr.dataset")
pytestmark = pytest.mark.filterwarnings("ignore")  # Zephyr's own
Tree = Callable[[str | Path], dict[str, bytes]]
SMALL: dict[str, Any] = {"part_bytes": 1 << 18, "chunk_tokens": 4096, "progress": False}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("zephyr")
    pick = random.Random(6)
    for name in "abc":
        with (folder / f"{name}.jsonl").open("w") as f:
            while f.tell() < 1 << 18:
                f.write(
                    json.dumps({"text": " ".join(pick.choices(["alpha", "beta", "0123"], k=300))})
                    + "\n"
                )
    return str(folder)


@pytest.fixture(scope="module")
def whole(
    corpus: str, bpe_path: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("whole") / "cache"
    build_cache(
        SourceConfig([corpus]), TokenizerConfig(bpe_path), str(root), engine="inline", **SMALL
    )
    return tree(root)


def build(corpus: str, tokenizer: str, root: Path, *, first_look: bool = True) -> Any:
    return build_cache(
        SourceConfig([corpus]),
        TokenizerConfig(tokenizer),
        str(root),
        engine="zephyr",
        workers=2,
        first_look=first_look,
        **SMALL,
    )


def test_a_pipeline_builds_the_same(
    corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree
):
    report = build(corpus, bpe_path, tmp_path / "c")
    assert report.parts_built == 3
    assert tree(tmp_path / "c") == whole
    assert build(corpus, bpe_path, tmp_path / "c").parts_reused == 3


def test_a_bad_line_is_named_and_what_is_complete_is_kept(
    corpus: str, bpe_path: str, tmp_path: Path
):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.jsonl").write_text(Path(corpus, f"{name}.jsonl").read_text())
    (folder / "d.jsonl").write_text('{"text": 1}\n' + "x" * (1 << 18))
    with pytest.raises(SourceError, match=r"d\.jsonl, line 1: holds a number"):
        build(str(folder), bpe_path, tmp_path / "c", first_look=False)
    done = [part for part in (tmp_path / "c" / "parts").iterdir() if (part / "part.json").exists()]
    (folder / "d.jsonl").write_text('{"text": "mended"}\n')
    report = build(str(folder), bpe_path, tmp_path / "c")
    assert report.parts_reused == len(done)
    assert report.documents == sum(len(path.read_text().splitlines()) for path in folder.iterdir())
    assert not (tmp_path / "c" / "attempts").exists()


def test_attempts_at_one_part_change_nothing(
    corpus: str,
    bpe_path: str,
    whole: Any,
    tmp_path: Path,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
):
    """Zephyr gives a part to another worker though its first one still lives: every part is built
    three times.
    """

    def thrice(job: Any, task: Any) -> Any:
        for _ in range(2):
            build_attempt(job, task)
        return build_attempt(job, task)

    monkeypatch.setattr("headrace_levanter.zephyr_engine.build_attempt", thrice)
    build(corpus, bpe_path, tmp_path / "c")
    assert tree(tmp_path / "c") == whole


def test_one_that_is_interrupted_goes_on(
    corpus: str,
    bpe_path: str,
    whole: Any,
    tmp_path: Path,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
):
    def first_only(*arguments: Any) -> Any:
        yield next(build_on_zephyr(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace_levanter.zephyr_engine.build_on_zephyr", first_only)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, bpe_path, tmp_path / "c")
    assert build(corpus, bpe_path, tmp_path / "c").parts_reused > 0
    assert tree(tmp_path / "c") == whole


def test_no_zephyr_there(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "zephyr.dataset", None)
    with pytest.raises(ConfigError, match=r"pip install marin-zephyr"):
        build(corpus, "bytes", tmp_path / "c")
