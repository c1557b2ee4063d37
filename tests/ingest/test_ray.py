"""The same parts on a Ray cluster of two nodes: the same cache, though a worker or a node is killed on the way."""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig

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
            f.write(json.dumps({"text": " ".join(pick.choices(["alpha", "beta", "0123"], k=300))}) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def whole(corpus: str, bpe_path: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("whole") / "cache"
    build_cache(SourceConfig([corpus]), TokenizerConfig(bpe_path), str(root), engine="inline", **SMALL)
    return tree(root)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core; ``RAY_ADDRESS`` names it."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_DEDUP_LOGS", "0")
        try:
            nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        except Exception as error:  # noqa: BLE001 (a busy machine does not start it in time)
            pytest.skip(f"Ray did not start: {error}")
        replace_a_node(nodes)
        if not nodes.worker_nodes:
            nodes.shutdown()
            pytest.skip("Ray's second node did not start")
        patch.setenv("RAY_ADDRESS", nodes.address)
        yield nodes
        nodes.shutdown()


def build(corpus: str, tokenizer: str, root: Path) -> None:
    build_cache(SourceConfig([corpus]), TokenizerConfig(tokenizer), str(root), engine="ray", **SMALL)


def builders() -> list[int]:
    """Processes that run a part task."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"ray::build_part" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_cluster_builds_the_same(cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree):
    build(corpus, bpe_path, tmp_path / "c")
    assert tree(tmp_path / "c") == whole
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(SourceError, match=r"bad\.jsonl, line 1: holds a number"):
        build(str(tmp_path / "bad.jsonl"), bpe_path, tmp_path / "d")


def built_while(disaster: Callable[[], bool], delay_s: float, corpus: str, tokenizer: str, root: Path) -> bool:
    """Builds; ``delay_s`` after the first part was begun the disaster is called. Whether it came and hit."""
    over, happened = threading.Event(), threading.Event()

    def watch() -> None:
        while not builders() and not over.wait(0.02):
            pass
        if not over.wait(delay_s) and disaster():
            happened.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        build(corpus, tokenizer, root)
    finally:
        over.set()
        watcher.join()
    return happened.is_set()


def kill_a_worker(pick: random.Random) -> bool:
    found = builders()
    with suppress(ProcessLookupError, IndexError):
        os.kill(pick.choice(found), signal.SIGKILL)
        return True
    return False


def lose_a_node(cluster: Any) -> bool:
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    return True


def replace_a_node(cluster: Any) -> None:
    """Ray gives a node 30 s to start; on a busy machine it may need another try."""
    for _ in range(3):
        if cluster.worker_nodes:
            return
        with suppress(Exception):
            cluster.add_node(num_cpus=1)


@pytest.mark.slow
def test_a_killed_worker_and_a_lost_node(
    cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree
):
    seed = time.time_ns()
    pick = random.Random(seed)

    def both() -> bool:
        kill_a_worker(pick)
        time.sleep(pick.random())
        return lose_a_node(cluster)

    built_while(both, 1.5 * pick.random(), corpus, bpe_path, tmp_path / "c")
    assert tree(tmp_path / "c") == whole, seed
    replace_a_node(cluster)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(30))
@pytest.mark.parametrize("what", ["worker", "node"])
def test_thirty_kills(
    cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree, trial: int, what: str
):
    """Each trial is repeated until its kill came before the end of the build."""
    for attempt in range(10):
        seed, root = time.time_ns(), tmp_path / str(attempt)
        pick = random.Random(seed)
        disaster = partial(kill_a_worker, pick) if what == "worker" else partial(lose_a_node, cluster)
        hit = built_while(disaster, 2.5 * pick.random(), corpus, bpe_path, root)
        assert tree(root) == whole, (what, trial, seed)
        replace_a_node(cluster)
        if hit:
            return
    pytest.fail("no kill came in time")


def test_no_cluster_there(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        build(corpus, "bytes", tmp_path / "c")
