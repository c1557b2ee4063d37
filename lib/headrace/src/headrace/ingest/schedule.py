"""Which worker builds which part when: the same rules for processes of this machine and for a Ray cluster.

The rules: a part whose worker was lost is built again by another; when workers are idle and no part waits, the part
that takes unusually long is built a second time, and the first of the two to finish counts; an error ends it all.

The invariant: parts are idempotent, so whoever builds them, however often, the cache is the same to the bit. Two
attempts at one part never write to the same place: the second one works in ``attempts/``, and its part is moved into
place after the other was stopped.

Price: nothing but a few messages a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.errors import CacheError
from headrace.ingest.progress import NOTHING, Progress, Spent
from headrace.store import durable, files
from headrace.store.ledger import PART_RECORD_NAME, part_folder
from headrace.store.parts import PartRecord
from headrace.store.retry import RetryPolicy

ATTEMPTS_FOLDER = "attempts"
MAX_LOST = 4
"""Workers that may be lost on one part before the build gives up: it is probably the part that kills them."""
STRAGGLER_S = 20.0
STRAGGLER_FACTOR = 2.0
_POLL_S = 0.5


class Task(Protocol):
    """What becomes one part."""

    @property
    def name(self) -> str:
        """Name of the part."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes to read for it, about."""
        ...


BuildPart: TypeAlias = Callable[[Any, str, Callable[[Progress], None]], PartRecord]
"""Builds the part of a task below a root, reports what it did, and gives the part's record once it is complete."""


class Job(Protocol):
    """What all parts have in common. Picklable: a worker needs nothing besides it and its tasks."""

    @property
    def root(self) -> str:
        """Folder or URL that the parts are for."""
        ...

    @property
    def retries(self) -> RetryPolicy:
        """How workers ask a store again."""
        ...

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker."""
        ...

    def part_builder(self) -> BuildPart:
        """Loads what a worker needs for all its parts."""
        ...


class Moved(NamedTuple):
    """An attempt got on."""

    attempt: int
    progress: Progress


class Done(NamedTuple):
    """An attempt finished its part; ``spent`` is what it took."""

    attempt: int
    record: PartRecord
    spent: Spent = Spent()


class Failed(NamedTuple):
    """An attempt ended with an error, and any other would too."""

    attempt: int
    error: BaseException


class Lost(NamedTuple):
    """The worker of an attempt is gone."""

    attempt: int
    reason: str


Event: TypeAlias = Moved | Done | Failed | Lost


class Workers(Protocol):
    """What runs attempts: processes here, or tasks of a cluster."""

    def slots(self) -> int:
        """How many attempts may run at once, now."""
        ...

    def start(self, attempt: int, task: Task, root: str) -> None:
        """Begins to build a part below ``root``."""

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened; returns after ``timeout_s`` at the latest."""
        ...

    def stop(self, attempt: int) -> None:
        """Ends an attempt; when this returns it writes no more. No event of it follows."""

    def close(self) -> None:
        """Ends all attempts."""


@dataclass
class _Attempt:
    task: Task
    root: str
    began: float
    moved: Progress = NOTHING


@dataclass
class Scheduler:
    """Builds parts on workers.

    Attributes:
        workers: What builds the parts; closed at the end.
        report: Called with what was done since its last call; less than nothing if work was lost.
        straggler_s: A part is not built twice before it has taken that long, in seconds.
        spent: Called with what each finished part took.
    """

    job: Job
    tasks: Sequence[Task]
    workers: Workers
    report: Callable[[Progress], None] | None = None
    clock: Callable[[], float] = time.monotonic
    straggler_s: float = STRAGGLER_S
    spent: Callable[[Spent], None] | None = None
    second_attempts: int = 0
    lost_workers: int = 0
    _running: dict[int, _Attempt] = field(default_factory=dict[int, _Attempt])
    _lost: dict[str, int] = field(default_factory=dict[str, int])
    _seconds: list[float] = field(default_factory=list[float])
    _next: int = 0

    def run(self) -> Generator[PartRecord]:
        """Builds the parts.

        Yields:
            The record of each, when it is complete on disk; in the order in which they are.

        Raises:
            SourceError: a source cannot be read. Parts that were yielded are complete.
            CacheError: the cache cannot be written, or workers are lost again and again.
        """
        attempts = files.join(self.job.root, ATTEMPTS_FOLDER)
        files.remove_tree(attempts)
        waiting, remaining = deque(self.tasks), len(self.tasks)
        try:
            while remaining:
                self._start(waiting)
                for event in self.workers.wait(_POLL_S):
                    if event.attempt not in self._running:
                        continue  # of an attempt that was stopped
                    if isinstance(event, Moved):
                        self._running[event.attempt].moved += event.progress
                        self._say(event.progress)
                    elif isinstance(event, Failed):
                        raise event.error
                    elif isinstance(event, Lost):
                        self._lose(event, waiting)
                    else:
                        remaining -= 1
                        yield self._finish(event)
        finally:
            self.workers.close()
        if self.second_attempts:
            files.remove_tree(attempts)

    def _start(self, waiting: deque[Task]) -> None:
        slots = self.workers.slots()
        while len(self._running) < slots and waiting:
            self._begin(waiting.popleft(), self.job.root)
        if len(self._running) < slots and not waiting and (slow := self._straggler()) is not None:
            self.second_attempts += 1
            self._begin(slow.task, files.join(self.job.root, ATTEMPTS_FOLDER, f"{slow.task.name}-{self._next}"))

    def _begin(self, task: Task, root: str) -> None:
        self._running[self._next] = _Attempt(task, root, self.clock())
        self.workers.start(self._next, task, root)
        self._next += 1

    def _straggler(self) -> _Attempt | None:
        """The attempt that has run longest, if that is unusually long and it is the only one at its part."""
        limit = max(self.straggler_s, STRAGGLER_FACTOR * median(self._seconds)) if self._seconds else float("inf")
        names = [a.task.name for a in self._running.values()]
        slow = [a for a in self._running.values() if self.clock() - a.began > limit and names.count(a.task.name) == 1]
        return min(slow, key=lambda a: a.began, default=None)

    def _say(self, progress: Progress) -> None:
        if self.report is not None and progress != NOTHING:
            self.report(progress)

    def _lose(self, event: Lost, waiting: deque[Task]) -> None:
        attempt = self._running.pop(event.attempt)
        self._say(-attempt.moved)
        self.lost_workers += 1
        name = attempt.task.name
        self._lost[name] = self._lost.get(name, 0) + 1
        if self._lost[name] > MAX_LOST:
            raise CacheError(
                f"{self._lost[name]} workers were lost while they built it ({event.reason})",
                field="part",
                value=name,
                cure=cure_of_lost(event.reason),
            )
        if all(a.task.name != name for a in self._running.values()):
            waiting.appendleft(attempt.task)

    def _finish(self, event: Done) -> PartRecord:
        winner = self._running.pop(event.attempt)
        self._seconds.append(self.clock() - winner.began)
        if self.spent is not None:
            self.spent(event.spent)
        for number, other in list(self._running.items()):
            if other.task.name == winner.task.name:
                self.workers.stop(number)
                del self._running[number]
                self._say(-other.moved)
                if winner.root == self.job.root:
                    files.remove_tree(other.root)
        if winner.root != self.job.root:
            publish(winner.root, self.job.root, winner.task.name)
        return event.record


def cure_of_lost(reason: str) -> str:
    """What to do about workers that end for a reason."""
    if "signal 9" in reason or "memory" in reason.lower():
        return "They probably ran out of memory: give fewer --workers; then run the same command again."
    return "What they printed last says why. Finished parts are kept; --engine inline builds the others here."


def publish(attempt: str, root: str, name: str) -> None:
    """Moves a complete part from the folder of an attempt into the cache. Its record comes last."""
    source, target = part_folder(attempt, name), part_folder(root, name)
    files.remove_tree(files.join(target, PART_RECORD_NAME))
    files.remove_tree(target)
    if files.is_local(root):
        durable.make_folder(files.local_path(target).parent)
        durable.rename(files.local_path(source), files.local_path(target))
    else:
        fs, path = files.filesystem(source)
        _, target_path = files.filesystem(target)
        with files.client_errors(target):
            names = sorted(fs.find(path), key=lambda p: p.endswith(f"/{PART_RECORD_NAME}"))
            for one in names:
                fs.cp_file(one, target_path.rstrip("/") + one[len(path.rstrip("/")) :])
    files.remove_tree(attempt)
