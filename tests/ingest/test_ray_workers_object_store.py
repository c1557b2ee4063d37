"""A Ray cluster of three nodes that share no disk, and an S3 server: one node dies with a part in
work.

Sources and cache are on the server; each node has a temporary folder of its own, and the
tokenizer's file is gone from the builder's disk before a node has read anything.
"""

import json
import logging
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.schedule import Lost, Scheduler
from headrace.store import files, remote
from headrace.testing import s3_server
from headrace.testing.servers import use_s3

pytest.importorskip("ray")
pytest.importorskip("moto")
pytest.importorskip("s3fs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
Tree = Callable[[str | Path], dict[str, bytes]]
SMALL: dict[str, Any] = {
    "part_bytes": 1 << 20,
    "chunk_tokens": 4096,
    "shard_chunks": 16,
    "progress": False,
}


@pytest.fixture
def bucket() -> Iterator[str]:
    """Of a server whose address every process of the cluster inherits."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request otherwise
    with s3_server() as server, use_s3(server) as bucket:
        yield bucket


@pytest.fixture
def corpus(bucket: str) -> str:
    pick = random.Random(6)
    for number in range(3):
        texts = [" ".join(pick.choices(["alpha", "beta", "0123"], k=300)) for _ in range(2000)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        files.write_atomic(f"{bucket}/corpus/{number}.jsonl", lines.encode())
    return f"{bucket}/corpus"


@pytest.fixture
def cluster(bucket: str, ray_nodes: Any) -> Iterator[Any]:
    with ray_nodes(2, own_folders=True) as nodes:
        yield nodes


def read_all(root: str) -> dict[str, bytes]:
    filesystem, path = remote.filesystem(root)
    return {
        name.removeprefix(f"{path}/"): filesystem.cat_file(name) for name in filesystem.find(path)
    }


def test_a_node_dies_with_a_part_in_work(
    corpus: str,
    cluster: Any,
    bpe_path: str,
    bucket: str,
    tmp_path: Path,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
):
    tokenizer = Path(shutil.copy(bpe_path, tmp_path))

    def build(root: str, engine: Any = "ray") -> None:
        build_cache(
            SourceConfig([corpus]), TokenizerConfig(str(tokenizer)), root, engine=engine, **SMALL
        )

    build(str(tmp_path / "c"), "inline")
    losses: list[Lost] = []
    lose = Scheduler._lose

    def note(self: Scheduler, event: Lost, waiting: Any) -> None:
        losses.append(event)
        lose(self, event, waiting)

    monkeypatch.setattr(Scheduler, "_lose", note)

    def disaster() -> bool:
        tokenizer.unlink(missing_ok=True)
        return cluster.lose_a_node(at_work=True)

    for attempt in range(
        5
    ):  # until the part that the node was at was not finished within that instant
        shutil.copy(bpe_path, tmp_path)
        root = f"{bucket}/{attempt}"
        assert cluster.hit_while(partial(build, root), disaster, 0.0)
        assert read_all(root) == tree(tmp_path / "c")
        if losses:
            return
        cluster.fill_up()
        time.sleep(random.random())
    pytest.fail("no node had a part in work when it died")
