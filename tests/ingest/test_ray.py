"""The same parts on a Ray cluster of two nodes: the same cache, though a worker or a node is killed on the way."""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
        while f.tell() < 6 << 20:
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
        nodes.add_node(num_cpus=1)
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


def worker_trial(corpus: str, tokenizer: str, root: Path, seed: int) -> int:
    """Builds, while a worker is killed at a random moment; how many were."""
    pick = random.Random(seed)
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := builders():
                time.sleep(pick.random())
                for pid in [p for p in found if p in builders()][:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    build(corpus, tokenizer, root)
    killer.join(0.1)
    return len(killed)


def test_a_killed_worker(cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree):
    seed = time.time_ns()
    worker_trial(corpus, bpe_path, tmp_path / "c", seed)
    assert tree(tmp_path / "c") == whole, seed


def node_trial(cluster: Any, corpus: str, tokenizer: str, root: Path, seed: int) -> None:
    """Builds, while a node is lost at a random moment."""
    node = next(iter(cluster.worker_nodes)) if cluster.worker_nodes else cluster.add_node(num_cpus=1)
    pick = random.Random(seed)
    timer = threading.Timer(2 + 6 * pick.random(), lambda: cluster.remove_node(node, allow_graceful=False))
    timer.start()
    build(corpus, tokenizer, root)
    timer.join()
    cluster.add_node(num_cpus=1)


def test_a_lost_node(cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree):
    seed = time.time_ns()
    node_trial(cluster, corpus, bpe_path, tmp_path / "c", seed)
    assert tree(tmp_path / "c") == whole, seed


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(30))
def test_thirty_kills(cluster: Any, corpus: str, bpe_path: str, whole: Any, tmp_path: Path, tree: Tree, trial: int):
    seed = time.time_ns()
    worker_trial(corpus, bpe_path, tmp_path / "worker", seed)
    assert tree(tmp_path / "worker") == whole, (trial, seed)
    node_trial(cluster, corpus, bpe_path, tmp_path / "node", seed)
    assert tree(tmp_path / "node") == whole, (trial, seed)


def test_no_cluster_there(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        build(corpus, "bytes", tmp_path / "c")
