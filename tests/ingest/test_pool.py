"""Worker processes: the same cache for any number of them, whoever is killed, and no process left
behind.
"""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.part_builder import BuildJob
from headrace.ingest.pool import workers_for
from headrace.ingest.tokenize import ByteTokenizer
from headrace.store import CacheLayout

Tree = Callable[[str | Path], dict[str, bytes]]
SMALL = {"part_bytes": 1 << 20, "chunk_tokens": 4096, "progress": False}
MEBIBYTES = 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One large file, so that parts are slices of it, and a small one."""
    folder = tmp_path_factory.mktemp("pool")
    pick = random.Random(5)
    words = ["alpha", "beta", "Ünder", "日本", "return", "\n", "0123"]
    with (folder / "a.jsonl").open("w") as f:
        while f.tell() < MEBIBYTES << 20:
            text = " ".join(pick.choices(words, k=pick.choice([0, 3, 80, 900])))
            f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    (folder / "b.jsonl").write_text('{"text": "last"}\n')
    return str(folder)


@pytest.fixture(scope="module")
def whole(
    corpus: str, bpe_path: str, tmp_path_factory: pytest.TempPathFactory, tree: Tree
) -> dict[str, bytes]:
    """The cache as one process builds it."""
    root = tmp_path_factory.mktemp("whole") / "cache"
    report = build_cache(
        SourceConfig([corpus]), TokenizerConfig(bpe_path), str(root), engine="inline", **SMALL
    )
    assert report.parts_built == MEBIBYTES + 1
    return tree(root)


def children() -> list[int]:
    """Workers of this process."""
    task = Path(f"/proc/{os.getpid()}/task")
    found = [int(c) for t in task.iterdir() for c in _content(t / "children").split()]
    return [c for c in found if b"headrace.ingest.pool" in _content(Path(f"/proc/{c}/cmdline"))]


def _content(file: Path) -> bytes:
    """Of a file under /proc; nothing if its process or thread is gone by now."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers(
    corpus: str, bpe_path: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree, workers: int
):
    report = build_cache(
        SourceConfig([corpus]),
        TokenizerConfig(bpe_path),
        str(tmp_path / "c"),
        engine="pool",
        workers=workers,
        **SMALL,
    )
    assert report.parts_built == MEBIBYTES + 1
    assert tree(tmp_path / "c") == whole
    assert children() == []


def kill_workers(times: int, seed: int, over: threading.Event) -> threading.Thread:
    """Kills a worker of this process now and then, until the build is over."""

    def run() -> None:
        pick = random.Random(seed)
        for _ in range(times):
            while not (found := children()) and not over.wait(0.01):
                pass
            over.wait(pick.random() * 1.5)
            try:
                os.kill(pick.choice(children() or found), signal.SIGKILL)
            except (ProcessLookupError, IndexError):
                continue

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def worker_trial(corpus: str, tokenizer: str, root: Path, seed: int) -> None:
    over = threading.Event()
    killer = kill_workers(2, seed, over)
    try:
        build_cache(
            SourceConfig([corpus]),
            TokenizerConfig(tokenizer),
            str(root),
            engine="pool",
            workers=2,
            **SMALL,
        )
    finally:
        over.set()
        killer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
def test_killed_workers(
    corpus: str, bpe_path: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree
):
    worker_trial(corpus, bpe_path, tmp_path / "c", seed=1)
    assert tree(tmp_path / "c") == whole
    assert children() == []


PROGRAM = """
import sys
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
corpus, tokenizer, root = sys.argv[1:]
settings = {"part_bytes": 1 << 20, "chunk_tokens": 4096, "progress": False}
build_cache(SourceConfig([corpus]), TokenizerConfig(tokenizer), root, engine="pool", workers=2, **settings)
"""


def builder_trial(corpus: str, tokenizer: str, root: Path, seed: int) -> None:
    """Kills a builder at a random moment, again and again until one comes through. It has no
    ``__main__`` guard.
    """
    pick = random.Random(seed)
    for attempt in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), corpus, tokenizer, str(root)]
        )
        try:
            process.wait(None if attempt > 3 else 0.5 + pick.random() * 3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return
        assert process.returncode == -signal.SIGKILL
    pytest.fail("the build never came through")


def test_killed_builder(
    corpus: str, bpe_path: str, whole: dict[str, bytes], tmp_path: Path, tree: Tree
):
    builder_trial(corpus, bpe_path, tmp_path / "c", seed=1)
    assert tree(tmp_path / "c") == whole


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trial", range(30))
@pytest.mark.parametrize("kill", [worker_trial, builder_trial])
def test_thirty_kills(
    corpus: str,
    bpe_path: str,
    whole: dict[str, bytes],
    tmp_path: Path,
    tree: Tree,
    trial: int,
    kill: Callable,
):
    seed = time.time_ns()
    kill(corpus, bpe_path, tmp_path / "c", seed)
    assert tree(tmp_path / "c") == whole, (trial, seed)


def test_an_error_in_a_worker_is_the_builds(corpus: str, tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text((Path(corpus) / "a.jsonl").read_text() + "{\n")
    with pytest.raises(SourceError, match=r"bad\.jsonl, line \d+: is not valid JSON") as caught:
        build_cache(
            SourceConfig([str(tmp_path)]),
            TokenizerConfig(),
            str(tmp_path / "c"),
            engine="pool",
            **SMALL,
        )
    lines = (tmp_path / "bad.jsonl").read_text().count("\n")
    assert str(caught.value.field).endswith(f"line {lines}")
    assert children() == []


def test_a_function_of_the_users_module_reaches_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "users_own.py").write_text(
        "def shard(i):\n    yield f'shard {i}'\nshard.num_shards = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = SourceConfig(["users_own:shard"], format="python")
    report = build_cache(
        config, TokenizerConfig(), str(tmp_path / "c"), engine="pool", workers=2, **SMALL
    )
    assert (report.documents, report.parts_built) == (3, 3)


def test_workers_fit_into_cores_parts_and_memory():
    job = BuildJob("x", SourceConfig(["x"]), ByteTokenizer().record(), CacheLayout())
    assert workers_for(job, parts=1) == 1
    assert workers_for(job, parts=1000, memory=1) == 1
    assert workers_for(job, parts=1000, memory=1 << 50) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("engine", "workers"), [("threads", None), ("pool", 0)])
def test_engines_that_do_not_exist(corpus: str, tmp_path: Path, engine: str, workers: int | None):
    with pytest.raises(ConfigError, match=r"engine|workers"):
        build_cache(
            SourceConfig([corpus]),
            TokenizerConfig(),
            str(tmp_path / "c"),
            engine=engine,
            workers=workers,
            **SMALL,
        )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_document_at_which_the_tokenizer_panics_is_named_or_skipped(
    panicking_path: str, tmp_path: Path, engine: Any
):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for k in range(2):
        (corpus / f"{k}.jsonl").write_text(
            '{"text": "good"}\n{"text": "b\u00e4d"}\n{"text": "bad"}\n'
        )
    tokenizer = TokenizerConfig(panicking_path, eos="none")
    settings: dict[str, Any] = {"engine": engine, "workers": 2, "part_bytes": 1, "progress": False}
    with pytest.raises(
        SourceError, match=r"\d\.jsonl, line 2: cannot be encoded by this tokenizer .*panic"
    ) as caught:
        build_cache(SourceConfig([str(corpus)]), tokenizer, str(tmp_path / "a"), **settings)
    assert "memory" not in str(caught.value)
    assert "--on-bad-line skip" in str(caught.value)
    source = SourceConfig([str(corpus)], on_bad_line="skip")
    report = build_cache(source, tokenizer, str(tmp_path / "b"), **settings)
    assert (report.documents, report.skipped_lines) == (4, 2)
    assert report.first_skipped.startswith(f"{corpus}/0.jsonl, line 2: cannot be encoded")


def test_a_source_that_wants_to_exit_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "gives_up.py").write_text(
        "import sys\ndef shard():\n    sys.exit('no data')\n    yield ''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = SourceConfig(["gives_up:shard"], format="python")
    how: Any = {"engine": "pool", **SMALL}
    with pytest.raises(
        SourceError, match=r"gives_up:shard: ends the program \(SystemExit: no data"
    ):
        build_cache(source, TokenizerConfig(), str(tmp_path / "c"), **how)
    with pytest.raises(RuntimeError, match="SystemExit: no data"):
        build_cache(source, TokenizerConfig(), str(tmp_path / "c"), first_look=False, **how)
