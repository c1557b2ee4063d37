"""The same parts on a Ray cluster of two nodes: the same cache, though a worker or a node is killed
on the way.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
Tree = Callable[[str | Path], dict[str, bytes]]
SMALL: dict[str, Any] = {"part_bytes": 1 << 20, "chunk_tokens": 4096, "progress": False}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ray") / "a.jsonl"
    pick = random.Random(6)
    with path.open("w") as f:
        while f.tell() < 4 << 20:
            f.write(
                json.dumps({"text": " ".join(pick.choices(["alpha", "beta", "0123"], k=300))})
                + "\n"
            )
    return str(path)


@pytest.fixture(scope="module")
def whole(
    corpus: str, bpe_path: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("whole") / "cache"
    build_cache(
        SourceConfig([corpus]), TokenizerConfig(bpe_path), str(root), engine="inline", **SMALL
    )
    return tree(root)


@pytest.fixture(scope="module")
def cluster(ray_nodes: Any) -> Iterator[Any]:
    """Two nodes of one core."""
    with ray_nodes(1) as nodes:
        yield nodes


def build(corpus: str, tokenizer: str, root: Path) -> None:
    build_cache(
        SourceConfig([corpus]), TokenizerConfig(tokenizer), str(root), engine="ray", **SMALL
    )


@pytest.mark.slow
def test_a_cluster_builds_the_same(
    cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree
):
    build(corpus, bpe_path, tmp_path / "c")
    assert tree(tmp_path / "c") == whole
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(SourceError, match=r"bad\.jsonl, line 1: holds a number"):
        build(str(tmp_path / "bad.jsonl"), bpe_path, tmp_path / "d")


@pytest.mark.slow
def test_a_document_at_which_the_tokenizer_panics_is_named(
    cluster: Any, panicking_path: str, tmp_path: Path
):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": "b\u00e4d"}\n')
    tokenizer = TokenizerConfig(panicking_path, eos="none")
    for on_bad_line, root in (("error", "a"), ("skip", "b")):
        source = SourceConfig([str(tmp_path / "a.jsonl")], on_bad_line=on_bad_line)  # pyright: ignore[reportArgumentType]
        if on_bad_line == "error":
            with pytest.raises(
                SourceError, match=r"a\.jsonl, line 2: cannot be encoded by this tokenizer .*panic"
            ):
                build_cache(source, tokenizer, str(tmp_path / root), engine="ray", **SMALL)
        else:
            report = build_cache(source, tokenizer, str(tmp_path / root), engine="ray", **SMALL)
            assert (report.documents, report.skipped_lines) == (1, 1)


@pytest.mark.slow
def test_a_killed_worker_and_a_lost_node(
    cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree
):
    seed = time.time_ns()
    pick = random.Random(seed)

    def both() -> bool:
        cluster.kill_a_worker(pick)
        time.sleep(pick.random())
        return cluster.lose_a_node()

    cluster.hit_while(partial(build, corpus, bpe_path, tmp_path / "c"), both, 1.5 * pick.random())
    assert tree(tmp_path / "c") == whole, seed
    cluster.fill_up()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(30))
@pytest.mark.parametrize("what", ["worker", "node"])
def test_thirty_kills(
    cluster: Any,
    corpus: str,
    bpe_path: str,
    whole: Any,
    tmp_path: Path,
    tree: Tree,
    trial: int,
    what: str,
):
    """Each trial is repeated until its kill came before the end of the build."""
    for attempt in range(10):
        seed = time.time_ns()
        root = tmp_path / str(attempt)
        pick = random.Random(seed)
        disaster = partial(cluster.kill_a_worker, pick) if what == "worker" else cluster.lose_a_node
        hit = cluster.hit_while(
            partial(build, corpus, bpe_path, root), disaster, 2.5 * pick.random()
        )
        assert tree(root) == whole, (what, trial, seed)
        cluster.fill_up()
        if hit:
            return
    pytest.fail("no kill came in time")


def test_no_cluster_there(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        build(corpus, "bytes", tmp_path / "c")
