"""Worker processes of this machine, one a core as far as memory allows, and what they say.

Each worker encodes with its share of the cores (one thread each, if there are as many workers as cores), so no core has
two masters. A worker holds about 0.5 GiB and one shard of each leaf, whatever it builds: documents wait in bytes, never
in files. So as many are started as fit into three quarters of the memory that is free.

Price: about 0.7 s until the first document is encoded, once, while the modules are loaded.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from headrace.ingest.engine import BuildJob
from headrace.ingest.pieces import THREADS_VARIABLE, cores
from headrace.ingest.plan import PartTask
from headrace.ingest.schedule import Done, Event, Failed, Lost, Moved

WORKER_BYTES = 512 << 20
_SHARE = 0.75


def workers_for(job: BuildJob, parts: int, memory: int | None = None) -> int:
    """How many workers a build gets here: one a core, no more than parts, no more than memory has room for.

    Args:
        job: The build.
        parts: Parts to build.
        memory: Free bytes; measured if None.
    """
    free = free_memory() if memory is None else memory
    shards = job.layout.shard_elements * (np.dtype(job.layout.dtype).itemsize + 2 * len(job.source.leaves) + 1)
    fits = parts if free is None else int(_SHARE * free) // (WORKER_BYTES + 2 * shards)
    return max(1, min(cores(), parts, fits))


def free_memory() -> int | None:
    """Bytes of memory that this process and its children may still take; None if the system does not say."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # another system, or another kind of container
    return min(found, default=None)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    attempt: int | None = None


class PoolWorkers:
    """Worker processes; see :class:`~headrace.ingest.schedule.Workers`.

    Args:
        job: What all parts have in common.
        count: How many.
    """

    def __init__(self, job: BuildJob, count: int) -> None:
        self._job, self._count = job, count
        self._workers: list[_Worker] = []

    @property
    def process_ids(self) -> Sequence[int]:
        return [w.process.pid for w in self._workers]

    def slots(self) -> int:
        return self._count

    def start(self, attempt: int, task: PartTask, root: str) -> None:
        worker = next((w for w in self._workers if w.attempt is None), None) or self._new()
        worker.attempt = attempt
        try:
            worker.pipe.send((attempt, task, root))
        except OSError:
            return  # it died just now; that is noticed when it is waited for

    def wait(self, timeout_s: float) -> list[Event]:
        events: list[Event] = []
        pipes = {w.pipe: w for w in self._workers}
        for pipe in wait(list(pipes), timeout_s):
            worker = pipes[pipe]  # pyright: ignore[reportArgumentType]
            try:
                what, attempt, value = worker.pipe.recv()
            except (EOFError, OSError):
                self._workers.remove(worker)
                reason = self._end(worker, grace_s=0.5)  # it has hung up, so it is about to end by itself
                if worker.attempt is not None:
                    events.append(Lost(worker.attempt, reason))
                continue
            if what == "moved":
                events.append(Moved(attempt, value))
                continue
            worker.attempt = None
            events.append(Done(attempt, *value) if what == "done" else Failed(attempt, value))
        return events

    def stop(self, attempt: int) -> None:
        for worker in [w for w in self._workers if w.attempt == attempt]:
            self._workers.remove(worker)
            self._end(worker)

    def close(self) -> None:
        while self._workers:
            self._end(self._workers.pop())

    def _new(self) -> _Worker:
        mine, its = socket.socketpair()
        with its:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                THREADS_VARIABLE: str(max(1, cores() // self._count)),
                "TOKENIZERS_PARALLELISM": "true" if self._count < cores() else "false",
            }
            program = f"from headrace.ingest.worker import main; main({its.fileno()}, {os.getpid()})"
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[its.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,  # an interrupt from the keyboard is the parent's business
            )
        worker = _Worker(process, Connection(mine.detach()))
        self._workers.append(worker)
        with suppress(OSError):  # as in start
            worker.pipe.send(self._job)
        return worker

    @staticmethod
    def _end(worker: _Worker, grace_s: float = 0.0) -> str:
        """Kills a worker and tells how it ended. Killed, not asked: parts are idempotent, and it may hang in a read."""
        try:
            code = worker.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        worker.pipe.close()
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
