"""Assigns parts to workers, with the same rules for processes of this machine and for a Ray
cluster.

A part whose worker was lost is built again by another. When workers are idle and no part waits, a
part that takes unusually long is also built by another worker, and the first to finish counts. An
error ends the build.

Invariant: parts are idempotent, so the cache is bit-identical whichever workers build them, however
often. Two attempts at one part never write to the same folder: the second one works in
``attempts/``, and its part is moved into place after the first was stopped. Price: a few messages
per second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.errors import CacheError
from headrace.ingest.progress import NO_PROGRESS, Progress, Report
from headrace.store import files, remote
from headrace.store.lease import remove_tree
from headrace.store.ledger import ATTEMPTS_FOLDER, PART_RECORD_NAME, part_folder
from headrace.store.ledger_table import PartRecord
from headrace.store.retry import RetryPolicy

MAX_LOST = 4
"""Number of workers that may be lost on one part before the build gives up, because the part
probably kills them.
"""
STRAGGLER_S = 20.0
STRAGGLER_FACTOR = 2.0
_POLL_S = 0.5


class Task(Protocol):
    """The task of building one part."""

    @property
    def name(self) -> str:
        """Name of the part."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes to read for it, about."""
        ...

    @property
    def has_known_size(self) -> bool:
        """Whether these are all."""
        ...


BuildPart: TypeAlias = Callable[[Any, str, Report], PartRecord]
"""Builds the part of a task below a root, reports progress, and returns the part's record once it
is complete.
"""


class Job(Protocol):
    """What all parts have in common. Can be pickled: a worker needs only this and its tasks."""

    @property
    def root(self) -> str:
        """Folder or URL of the cache."""
        ...

    @property
    def retries(self) -> RetryPolicy:
        """The retry policy of workers."""
        ...

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker."""
        ...

    def part_builder(self) -> BuildPart:
        """Loads what a worker needs for its parts."""
        ...


class Moved(NamedTuple):
    """An attempt made progress."""

    attempt: int
    progress: Progress


class Done(NamedTuple):
    """An attempt finished its part."""

    attempt: int
    record: PartRecord
    costs: Progress = NO_PROGRESS


class Failed(NamedTuple):
    """An attempt ended with an error that would recur."""

    attempt: int
    error: BaseException


class Lost(NamedTuple):
    """The worker of an attempt is gone."""

    attempt: int
    reason: str


Event: TypeAlias = Moved | Done | Failed | Lost


class Workers(Protocol):
    """Runs attempts: processes here, or tasks of a cluster."""

    def slots(self) -> int:
        """Number of attempts that may currently run at once."""
        ...

    def start(self, attempt: int, task: Task, root: str) -> None:
        """Starts to build a part below ``root``."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Waits for events, at most ``timeout_s``."""
        ...

    def stop(self, attempt: int) -> None:
        """Ends an attempt; afterwards it writes nothing and sends no events."""

    def close(self) -> None:
        """Ends all attempts."""


@dataclass
class _Attempt:
    task: Task
    root: str
    began: float
    moved: Progress = NO_PROGRESS


@dataclass
class Scheduler:
    """Builds parts on workers.

    Attributes:
        workers: The workers; closed at the end.
        report: Called with the progress since its last call; negative if work was lost.
        straggler_s: Seconds before a part may be built twice.
    """

    job: Job
    tasks: Sequence[Task]
    workers: Workers
    report: Report | None = None
    clock: Callable[[], float] = time.monotonic
    straggler_s: float = STRAGGLER_S
    second_attempts: int = 0
    _running: dict[int, _Attempt] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)
    _next: int = 0

    def run(self) -> Generator[PartRecord]:
        """Builds the parts.

        Yields:
            The record of each, in the order of their completion on disk.

        Raises:
            SourceError: a source cannot be read. Parts that were yielded are complete.
            CacheError: the cache cannot be written, or workers are lost repeatedly.
        """
        attempts = files.join(self.job.root, ATTEMPTS_FOLDER)
        remove_tree(attempts)
        waiting = deque(self.tasks)
        remaining = len(self.tasks)
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
            remove_tree(attempts)

    def _start(self, waiting: deque[Task]) -> None:
        slots = self.workers.slots()
        while len(self._running) < slots and waiting:
            self._begin(waiting.popleft(), self.job.root)
        if len(self._running) < slots and not waiting and (slow := self._straggler()) is not None:
            self.second_attempts += 1
            self._begin(
                slow.task,
                files.join(self.job.root, ATTEMPTS_FOLDER, f"{slow.task.name}-{self._next}"),
            )

    def _begin(self, task: Task, root: str) -> None:
        self._running[self._next] = _Attempt(task, root, self.clock())
        self.workers.start(self._next, task, root)
        self._next += 1

    def _straggler(self) -> _Attempt | None:
        """The longest-running attempt, if it is unusually long and the only one at its part."""
        limit = (
            max(self.straggler_s, STRAGGLER_FACTOR * median(self._seconds))
            if self._seconds
            else float("inf")
        )
        names = [a.task.name for a in self._running.values()]
        slow = [
            a
            for a in self._running.values()
            if self.clock() - a.began > limit and names.count(a.task.name) == 1
        ]
        return min(slow, key=lambda a: a.began, default=None)

    def _say(self, progress: Progress) -> None:
        if self.report is not None and progress != NO_PROGRESS:
            self.report(progress)

    def _lose(self, event: Lost, waiting: deque[Task]) -> None:
        attempt = self._running.pop(event.attempt)
        self._say(-attempt.moved)
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
        self._say(event.costs)
        for number, other in list(self._running.items()):
            if other.task.name == winner.task.name:
                self.workers.stop(number)
                del self._running[number]
                self._say(-other.moved)
                if winner.root == self.job.root:
                    remove_tree(other.root)
        if winner.root != self.job.root:
            publish(winner.root, self.job.root, winner.task.name)
        return event.record


def cure_of_lost(reason: str) -> str:
    """The cure for workers that end for a known reason."""
    if "signal 9" in reason or "memory" in reason.lower():
        return (
            "They probably ran out of memory: give fewer --workers; then run the same command"
            " again."
        )
    return (
        "What they printed last says why. Finished parts are kept; --engine inline builds the"
        " others here."
    )


def publish(attempt: str, root: str, name: str) -> None:
    """Moves a complete part from the folder of an attempt into the cache. Its record comes last."""
    source = part_folder(attempt, name)
    target = part_folder(root, name)
    remove_tree(files.join(target, PART_RECORD_NAME))
    remove_tree(target)
    if files.is_local(root):
        files.make_folder(files.local_path(target).parent)
        files.rename(files.local_path(source), files.local_path(target))
    else:
        fs, path = remote.filesystem(source)
        _, target_path = remote.filesystem(target)
        with remote.client_errors(target):
            names = sorted(
                remote.sizes_below(source), key=lambda p: p.endswith(f"/{PART_RECORD_NAME}")
            )
            for one in names:
                fs.cp_file(one, target_path + one[len(path) :])
    remove_tree(attempt)
