"""A small BPE, corpora, folders compared byte by byte, and a Ray cluster that loses nodes."""

import base64
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

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
    """A small BPE whose file adds special tokens, truncates and pads by itself: all of which must
    be ignored.
    """
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
def panicking_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer whose Rust panics at every text that is not ASCII: the table of its normalizer
    ends too soon.
    """
    table = base64.b64encode((512).to_bytes(4, "little") + bytes(512)).decode()
    model = {"type": "WordLevel", "vocab": {"good": 0, "bad": 1, "<unk>": 2}, "unk_token": "<unk>"}
    content = {
        **dict.fromkeys(["truncation", "padding", "post_processor", "decoder"]),
        **{
            "version": "1.0",
            "added_tokens": [],
            "model": model,
            "pre_tokenizer": {"type": "Whitespace"},
        },
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": table},
    }
    path = tmp_path_factory.mktemp("panicking") / "tokenizer.json"
    path.write_text(json.dumps(content))
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
        path.write_text(
            "".join(json.dumps({field: t, "id": i}) + "\n" for i, t in enumerate(texts))
        )
        return str(path)

    return write


class RayNodes:
    """A cluster of a head and some other nodes, each of one core; in temporary folders of their own
    below ``folder``, if that is given.
    """

    def __init__(self, cluster: Any, others: int, folder: str | None = None) -> None:
        self._cluster = cluster
        self._others = others
        self._folder = folder

    def fill_up(self) -> bool:
        """Adds the nodes that are missing. Ray gives one 30 s to start; on a busy machine it may
        need another try.
        """
        for _ in range(self._others + 3):
            if len(self._cluster.worker_nodes) >= self._others:
                return True
            with suppress(Exception):
                self._cluster.add_node(num_cpus=1, **own_folder(self._folder))
        return len(self._cluster.worker_nodes) >= self._others

    def workers(self) -> list[int]:
        """Processes that build a part."""
        numbers: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and b"ray::build_part" in (entry / "cmdline").read_bytes():
                    numbers.append(int(entry.name))
        return numbers

    def kill_a_worker(self, pick: random.Random) -> bool:
        """Whether there was one."""
        with suppress(ProcessLookupError, IndexError):
            os.kill(pick.choice(self.workers()), signal.SIGKILL)
            return True
        return False

    def lose_a_node(self, *, at_work: bool = False) -> bool:
        """Kills all processes of a node; ``at_work``: of one that builds a part, if one does so
        within a minute.
        """
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            raylets = {self._parent(worker) for worker in self.workers()}
            for node in list(self._cluster.worker_nodes):
                if not at_work or node.all_processes["raylet"][0].process.pid in raylets:
                    self._cluster.remove_node(node, allow_graceful=False)
                    return True
            time.sleep(0.01)
        return False

    def _parent(self, process: int) -> int | None:
        with suppress(OSError):
            return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return None

    def hit_while(
        self, work: Callable[[], object], disaster: Callable[[], bool], delay_s: float
    ) -> bool:
        """Does the work; ``delay_s`` after the first part was begun the disaster is called. Whether
        it came and hit.
        """
        over = threading.Event()
        hit = threading.Event()

        def watch() -> None:
            while not self.workers() and not over.wait(0.02):
                pass
            if not over.wait(delay_s) and disaster():
                hit.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            over.set()
            watcher.join()
        return hit.is_set()


def own_folder(parent: str | None) -> dict[str, str]:
    """Arguments for a node that shares no folder of Ray's with others: a short one, sockets lie in
    it.
    """
    return {} if parent is None else {"temp_dir": tempfile.mkdtemp(dir=parent)}


@pytest.fixture(scope="session")
def ray_nodes() -> Callable[..., AbstractContextManager[RayNodes]]:
    """Starts a cluster with so many nodes besides its head; ``RAY_ADDRESS`` names it meanwhile."""

    @contextmanager
    def start(others: int, *, own_folders: bool = False) -> Iterator[RayNodes]:
        from ray.cluster_utils import Cluster

        with (
            pytest.MonkeyPatch.context() as patch,
            tempfile.TemporaryDirectory(prefix="ray") as parent,
        ):
            patch.setenv("RAY_DEDUP_LOGS", "0")
            try:
                cluster: Any = Cluster(
                    initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
                )
            except Exception as error:  # noqa: BLE001 (a busy machine does not start it in time)
                pytest.skip(f"Ray did not start: {error}")
            nodes = RayNodes(cluster, others, parent if own_folders else None)
            if not nodes.fill_up():
                cluster.shutdown()
                pytest.skip("Ray's other nodes did not start")
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield nodes
            cluster.shutdown()

    return start
