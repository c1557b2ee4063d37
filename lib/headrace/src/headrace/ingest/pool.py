"""Worker processes of this machine, one per core as far as memory allows, and their protocol.

A worker receives part tasks from a pipe, builds them, and reports the result. It is started as
``python -c "from headrace.ingest.pool import main; main(FD, PID)"``, so it is independent of the
building program: its main module needs no guard, and its threads are not forked. It ends
immediately when the process that started it ends, for whatever reason, so two builders never write
to one cache at the same time.

Each worker encodes with its share of the cores (one thread each, if there are as many workers as
cores), so cores are not oversubscribed. A worker uses about 0.5 GiB and one shard of each leaf,
whatever it builds, because its queues are bounded in bytes. As many are started as fit into three
quarters of the free memory.

Price: about 0.7 s until the first document is encoded, once, while the modules are loaded.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from headrace.ingest.progress import NO_PROGRESS, EncoderCounts, Progress, Report
from headrace.ingest.schedule import BuildPart, Done, Event, Failed, Job, Lost, Moved, Task
from headrace.ingest.tokenize import THREADS_VARIABLE, cores
from headrace.store.ledger_table import PartRecord
from headrace.store.retry import use_policy, wire

_SHARE = 0.75
_REPORT_S = 0.2
_PR_SET_PDEATHSIG = 1


def workers_for(job: Job, parts: int, memory: int | None = None) -> int:
    """Number of workers for a build on this machine: one per core, at most one per part, and as
    memory allows.
    """
    free = free_memory() if memory is None else memory
    fits = parts if free is None else int(_SHARE * free) // job.worker_bytes
    return max(1, min(cores(), parts, fits))


def free_memory() -> int | None:
    """Bytes of memory that this process and its children may still use; None if unknown."""
    limits: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            limits.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # another system, or another kind of container
    return min(limits, default=None)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    attempt: int | None = None


class PoolWorkers:
    """Worker processes; see :class:`~headrace.ingest.schedule.Workers`."""

    def __init__(self, job: Job, count: int) -> None:
        self._job = job
        self._count = count
        self._workers: list[_Worker] = []

    def slots(self) -> int:
        return self._count

    def start(self, attempt: int, task: Task, root: str) -> None:
        worker = next((w for w in self._workers if w.attempt is None), None) or self._new()
        worker.attempt = attempt
        with suppress(OSError):  # it died just now; that is noticed when it is waited for
            worker.pipe.send((attempt, task, root))

    def wait(self, timeout_s: float) -> list[Event]:
        events: list[Event] = []
        pipes = {w.pipe: w for w in self._workers}
        for pipe in wait(list(pipes), timeout_s):
            worker = pipes[pipe]  # pyright: ignore[reportArgumentType]
            try:
                event: Event = worker.pipe.recv()
            except (EOFError, OSError):
                self._workers.remove(worker)
                reason = self._end(
                    worker, grace_s=0.5
                )  # it has hung up, so it is about to end by itself
                if worker.attempt is not None:
                    events.append(Lost(worker.attempt, reason))
                continue
            if not isinstance(event, Moved):
                worker.attempt = None
            events.append(event)
        return events

    def stop(self, attempt: int) -> None:
        for worker in [w for w in self._workers if w.attempt == attempt]:
            self._workers.remove(worker)
            self._end(worker)

    def close(self) -> None:
        while self._workers:
            self._end(self._workers.pop())

    def _new(self) -> _Worker:
        own_end, its = socket.socketpair()
        with its:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                THREADS_VARIABLE: str(max(1, cores() // self._count)),
                "TOKENIZERS_PARALLELISM": "true" if self._count < cores() else "false",
            }
            program = f"from headrace.ingest.pool import main; main({its.fileno()}, {os.getpid()})"
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[its.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,  # an interrupt from the keyboard is the parent's business
            )
        worker = _Worker(process, Connection(own_end.detach()))
        self._workers.append(worker)
        with suppress(OSError):  # as in start
            worker.pipe.send(self._job)
        return worker

    @staticmethod
    def _end(worker: _Worker, grace_s: float = 0.0) -> str:
        """Kills a worker, as it may hang in a read and parts are idempotent.
        Returns how it ended.
        """
        try:
            code = worker.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        worker.pipe.close()
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


class Reporter:
    """Collects progress and reports the sum, at most five times a second, without its costs, which
    must not be lost on the way.
    """

    def __init__(self, tell: Report) -> None:
        self._tell = tell
        self._sum = NO_PROGRESS
        self._told = time.monotonic()
        self.costs = NO_PROGRESS

    def __call__(self, progress: Progress) -> None:
        self._sum += replace(progress, encoder=EncoderCounts())
        self.costs += Progress(encoder=progress.encoder)
        if time.monotonic() - self._told >= _REPORT_S:
            self.flush()

    def flush(self) -> None:
        """Reports the rest."""
        if self._sum != NO_PROGRESS:
            self._tell(self._sum)
        self._sum, self._told = NO_PROGRESS, time.monotonic()


def build_one_part(
    build: BuildPart, task: Task, root: str, tell: Report
) -> tuple[PartRecord, Progress]:
    """Builds one part below ``root``; returns its record and its costs."""
    wire_before = wire()
    reporter = Reporter(tell)
    record = build(task, root, reporter)
    reporter.flush()
    return record, reporter.costs + Progress(wire=wire() - wire_before)


def main(fd: int, parent: int) -> None:
    """Serves the process at the other end of a socket until it hangs up."""
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and decides
    pipe: Connection[Any, Any] = Connection(fd)
    try:
        job: Job = pipe.recv()
        use_policy(job.retries)
        build: BuildPart | None = None
        while True:
            attempt, task, root = pipe.recv()
            try:
                build = build or job.part_builder()
                built = build_one_part(
                    build, task, root, lambda moved, a=attempt: pipe.send(Moved(a, moved))
                )
            except BaseException as error:  # noqa: BLE001 (it is raised at the other end)
                pipe.send(Failed(attempt, _travelling(error)))
            else:
                pipe.send(Done(attempt, *built))
    except (EOFError, OSError):
        os._exit(0)


def _travelling(error: BaseException) -> Exception:
    """The error, or a replacement if it cannot be sent, or would end the receiving process."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return RuntimeError(text)
    if not isinstance(error, Exception):
        return RuntimeError(text)
    error.add_note(f"In a worker process:\n{text}")
    return error


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, name="headrace-parent", daemon=True).start()
