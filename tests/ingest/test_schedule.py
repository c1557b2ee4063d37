"""The rules of scheduling, on workers that do what a test says; no process is started here."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheError, SourceError
from headrace.ingest import SourceConfig
from headrace.ingest.part_builder import BuildJob, PartBuilder, PartTask, plan_parts
from headrace.ingest.progress import Progress
from headrace.ingest.schedule import (
    MAX_LOST,
    Done,
    Event,
    Failed,
    Lost,
    Moved,
    Scheduler,
    cure_of_lost,
)
from headrace.ingest.tokenize import ByteTokenizer
from headrace.store import CacheLayout
from headrace.store.lease import owning
from headrace.store.ledger import ATTEMPTS_FOLDER
from headrace.store.ledger_table import PartRecord

Tree = Callable[[str | Path], dict[str, bytes]]
ONE = Progress(1, 2, 3, 4)


def build_part(job: BuildJob, task: PartTask) -> PartRecord:
    return PartBuilder(job, ByteTokenizer())(task, job.root, lambda _: None)


class Scripted:
    """Workers whose fate is a list: for each attempt ``done``, ``bad``, ``lost`` (after some work)
    or ``hang``.
    """

    def __init__(self, job: BuildJob, fates: list[str], slots: int) -> None:
        self.job = job
        self.fates = list(fates)
        self._slots = slots
        self.events: list[Event] = []
        self.hanging: set[int] = set()
        self.stopped: list[int] = []
        self.roots: list[str] = []
        self.closed = False

    def slots(self) -> int:
        return self._slots

    def start(self, attempt: int, task: PartTask, root: str) -> None:
        self.roots.append(root)
        fate = self.fates.pop(0) if self.fates else "done"
        if fate == "hang":
            self.hanging.add(attempt)
            return
        self.events.append(Moved(attempt, ONE))
        if fate == "done":
            job = BuildJob(root, self.job.source, self.job.tokenizer, self.job.layout)
            record = build_part(job, task)
            self.events.append(Done(attempt, record))
        elif fate == "bad":
            self.events.append(Failed(attempt, SourceError("is bad")))
        else:
            self.events.append(Lost(attempt, "killed by signal 9"))

    def wait(self, timeout_s: float) -> list[Event]:
        events = self.events[:2]
        self.events = self.events[2:]
        return events

    def stop(self, attempt: int) -> None:
        self.stopped.append(attempt)

    def close(self) -> None:
        self.closed = True


def prepared(
    folder: Path, write_jsonl: Callable[..., str], parts: int = 5
) -> tuple[BuildJob, list[PartTask]]:
    for i in range(parts):
        write_jsonl(folder / "corpus" / f"{i}.jsonl", [f"part {i} line {j}" for j in range(4)])
    source = SourceConfig([str(folder / "corpus")])
    layout = CacheLayout("uint16", chunk_elements=16, shard_chunks=2)
    job = BuildJob(str(folder / "cache"), source, ByteTokenizer().record(), layout)
    return job, plan_parts(source.files(), part_bytes=1)


class Clock:
    """Every look at it is ten seconds later."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


@settings(
    max_examples=max(10, settings.default.max_examples // 4)
)  # each example builds five parts, twice
@given(fates=st.lists(st.sampled_from(["done", "lost"]), max_size=8), slots=st.integers(1, 4))
def test_whatever_is_lost_every_part_is_built_once(
    tmp_path_factory: pytest.TempPathFactory,
    write_jsonl: Callable[..., str],
    tree: Tree,
    fates: list[str],
    slots: int,
):
    folder = tmp_path_factory.mktemp("schedule")
    job, tasks = prepared(folder, write_jsonl)
    moved: list[Progress] = []
    workers = Scripted(job, fates, slots)
    scheduler = Scheduler(job, tasks, workers, moved.append)
    if (
        max((fates[:i].count("done") + 1) for i in range(len(fates) + 1))
        and fates.count("lost") > MAX_LOST
    ):
        return  # may give up, rightly
    records = list(scheduler.run())
    assert sorted(r.name for r in records) == [t.name for t in tasks]
    assert workers.closed
    assert sum((m.documents for m in moved), 0) == len(tasks)  # what was lost was taken back
    alone = BuildJob(str(folder / "alone"), job.source, job.tokenizer, job.layout)
    for task in tasks:
        build_part(alone, task)
    assert tree(job.root) == tree(alone.root)


def test_a_part_that_kills_its_workers_ends_the_build(
    tmp_path: Path, write_jsonl: Callable[..., str]
):
    job, tasks = prepared(tmp_path, write_jsonl, parts=1)
    workers = Scripted(job, ["lost"] * 9, 2)
    with pytest.raises(
        CacheError,
        match=r"5 workers were lost while they built it \(killed by signal 9\).*--workers",
    ):
        list(Scheduler(job, tasks, workers).run())
    assert workers.closed


def test_only_what_was_killed_is_said_to_lack_memory():
    lost = {
        "killed by signal 9": True,
        "OutOfMemoryError: x": True,
        "killed by signal 6": False,
        "exit status 1": False,
    }
    for reason, memory in lost.items():
        assert ("memory" in cure_of_lost(reason)) == memory, reason


def test_an_error_ends_the_build(tmp_path: Path, write_jsonl: Callable[..., str]):
    job, tasks = prepared(tmp_path, write_jsonl)
    workers = Scripted(job, ["done", "bad"], 1)
    with pytest.raises(SourceError, match="is bad"):
        list(Scheduler(job, tasks, workers).run())
    assert workers.closed


@pytest.mark.parametrize("second", ["done", "lost"])
def test_a_straggler_is_overtaken(
    tmp_path: Path, write_jsonl: Callable[..., str], tree: Tree, second: str
):
    job, tasks = prepared(tmp_path, write_jsonl, parts=3)
    (tmp_path / "cache" / "parts" / "00000").mkdir(parents=True)
    (tmp_path / "cache" / "parts" / "00000" / "half done").touch()
    workers = Scripted(job, ["hang", "done", "done", second, "done"], 2)
    scheduler = Scheduler(job, tasks, workers, clock=Clock())
    with owning(job.root):
        assert sorted(r.name for r in scheduler.run()) == ["00000", "00001", "00002"]
    assert 0 in workers.stopped
    assert workers.roots[3].startswith(f"{job.root}/{ATTEMPTS_FOLDER}/00000-")
    assert scheduler.second_attempts == (1 if second == "done" else 2)
    alone = BuildJob(str(tmp_path / "alone"), job.source, job.tokenizer, job.layout)
    for task in tasks:
        build_part(alone, task)
    assert tree(job.root) == tree(alone.root)
