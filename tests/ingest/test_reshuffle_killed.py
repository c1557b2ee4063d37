"""A shuffle killed by SIGKILL at any moment, and started again, also with other memory, ends as the
same folder: in one process, with worker processes, and on a Ray cluster of three nodes that loses a
worker or a node.
"""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import ReshuffleConfig, reshuffle, shuffle_plan
from headrace.store import CacheLayout, open_cache
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

Tree = Callable[[str | Path], dict[str, bytes]]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
HOW = {"seed": 5, "part_bytes": 40_000}
MEMORIES = (150_000, 400_000)
PROGRAM = """
import sys
from headrace.ingest import shuffle_plan
from headrace.ingest.reshuffle import reshuffle
from headrace.ingest.shuffle_plan import ReshuffleConfig
shuffle_plan.BASE_BYTES, shuffle_plan._LEAST_DOCUMENTS = 0, 1
cache, root, engine, memory, pack = sys.argv[1:]
how = ReshuffleConfig(seed=5, part_bytes=40_000, memory=int(memory), pack=int(pack) or None)
reshuffle(cache, root, how, engine=engine, workers=None if engine == "inline" else 2, progress=False)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    parts = [random_documents(3_000, max_tokens=300, seed=k) for k in range(2)]
    layout = CacheLayout("uint8", 512, 8)
    return write_cache(tmp_path_factory.mktemp("kill") / "cache", parts, layout=layout).path


@pytest.fixture(scope="module")
def whole(cache: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> dict[str, bytes]:
    """The copy as one process makes it, in one run and one slice a part."""
    root = tmp_path_factory.mktemp("whole") / "copy"
    report = reshuffle(cache, str(root), ReshuffleConfig(**HOW), engine="inline", progress=False)
    assert (report.runs_dealt, report.parts_built) == (1, 25)
    return tree(root)


def start(
    cache: str, root: Path, engine: str, memory: int, pack: int = 0
) -> subprocess.Popen[bytes]:
    arguments = [cache, str(root), engine, str(memory), str(pack)]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])


def begun(root: Path, process: subprocess.Popen[bytes]) -> float:
    """When the ledger was there."""
    while not (root / "ledger.json").exists() and process.poll() is None:
        time.sleep(0.001)
    return time.monotonic()


def killed_again_and_again(
    cache: str,
    whole: dict[str, bytes],
    folder: Path,
    tree: Tree,
    engine: str,
    kills: int,
    pack: int = 0,
):
    """Kills until there were so many, each somewhere in the time that an
    undisturbed shuffle takes.
    """
    seed = time.time_ns()
    pick = random.Random(seed)
    process = start(cache, folder / "alone", engine, MEMORIES[0], pack)
    first = begun(folder / "alone", process)
    assert process.wait() == 0
    alone_s = time.monotonic() - first
    assert tree(folder / "alone") == whole
    killed = trial = 0
    while killed < kills:
        trial += 1
        root = folder / str(trial)
        for _ in range(4):  # killed while it goes on, too; each time it may be given other memory
            process = start(cache, root, engine, pick.choice(MEMORIES), pack)
            begun(root, process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(pick.random() * alone_s)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
            if process.returncode == 0 or killed == kills:
                break
        assert start(cache, root, engine, pick.choice(MEMORIES), pack).wait() == 0
        assert tree(root) == whole, (engine, trial, seed)
        assert open_cache(root).num_originals == 6_000
        assert trial < 4 * kills, "nothing was interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_killed(cache: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree, engine: str):
    killed_again_and_again(cache, whole, tmp_path, tree, engine, kills=3)


@pytest.mark.slow
def test_packs_are_killed(cache: str, tmp_path: Path, tree: Tree):
    how = ReshuffleConfig(**HOW, pack=250)
    reshuffle(cache, str(tmp_path / "whole"), how, engine="inline", progress=False)
    whole = tree(tmp_path / "whole")
    killed_again_and_again(cache, whole, tmp_path, tree, "pool", kills=3, pack=250)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_thirty_kills(cache: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree, engine: str):
    killed_again_and_again(cache, whole, tmp_path, tree, engine, kills=30)


@pytest.fixture(scope="module")
def cluster(ray_nodes: Any) -> Iterator[Any]:
    """Three nodes of one core."""
    pytest.importorskip("ray")
    with ray_nodes(2) as nodes:
        yield nodes


def hit_while_shuffling(
    cluster: Any, cache: str, root: Path, pick: random.Random, what: str
) -> bool:
    """Shuffles; some time after the first worker was seen, one is killed or a node lost. Whether
    that came in time.
    """
    disaster = partial(cluster.kill_a_worker, pick) if what == "worker" else cluster.lose_a_node
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_plan, "BASE_BYTES", 0)
        patch.setattr(shuffle_plan, "_LEAST_DOCUMENTS", 1)
        how = ReshuffleConfig(**HOW, memory=pick.choice(MEMORIES))
        work = partial(reshuffle, cache, str(root), how, engine="ray", progress=False)
        return cluster.hit_while(work, disaster, pick.random() * 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_writes_the_same(
    cluster: Any, cache: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree
):
    seed = time.time_ns()
    hit_while_shuffling(cluster, cache, tmp_path / "c", random.Random(seed), "worker")
    assert tree(tmp_path / "c") == whole, seed


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.parametrize("trial", range(15))
@pytest.mark.parametrize("what", ["worker", "node"])
def test_thirty_disasters_on_a_cluster(
    cluster: Any,
    cache: str,
    whole: dict[str, bytes],
    tmp_path: Path,
    tree: Tree,
    trial: int,
    what: str,
):
    """Each trial is repeated until its disaster came before the end."""
    for attempt in range(10):
        seed = time.time_ns()
        root = tmp_path / str(attempt)
        hit = hit_while_shuffling(cluster, cache, root, random.Random(seed), what)
        assert tree(root) == whole, (what, trial, seed)
        cluster.fill_up()
        if hit:
            return
    pytest.fail("no disaster came in time")
