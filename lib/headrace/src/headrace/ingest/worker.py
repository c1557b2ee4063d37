"""A worker process of a build: takes part tasks from a pipe, builds them, says how it went.

It is started as ``python -c "from headrace.ingest.worker import main; main(FD)"``, so it needs nothing of the program
that builds: no guard around its main module, no fork of its threads. It ends with the process that started it, at once
and whatever ends that: two builders of one cache never write side by side.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from headrace.ingest.engine import NOTHING, BuildJob, Progress, run_parts
from headrace.ingest.tokenize import recorded_tokenizer
from headrace.store.retry import use_policy
from headrace.store.wire import wire

_REPORT_S = 0.2
_PR_SET_PDEATHSIG = 1


class Reporter:
    """Collects what was done and tells it now and then.

    Args:
        tell: Called with the sum since its last call, at most five times a second.
    """

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell, self._sum, self._told = tell, NOTHING, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        self._sum += progress
        if time.monotonic() - self._told >= _REPORT_S:
            self.flush()

    def flush(self) -> None:
        """Tells what is left."""
        if self._sum != NOTHING:
            self._tell(self._sum)
        self._sum, self._told = NOTHING, time.monotonic()


def main(fd: int, parent: int) -> None:
    """Serves the process at the other end of a socket until it hangs up.

    Args:
        fd: The socket.
        parent: Its process id.
    """
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and decides
    pipe: Connection[Any, Any] = Connection(fd)
    try:
        job: BuildJob = pipe.recv()
        use_policy(job.retries)
        tokenizer = None
        while True:
            attempt, task, root = pipe.recv()
            before = wire()
            reporter = Reporter(lambda moved, a=attempt: pipe.send(("moved", a, moved)))
            try:
                # The first part is built when the cache's copy of the tokenizer is there.
                tokenizer = tokenizer or recorded_tokenizer(job.root, job.tokenizer)
                (record,) = run_parts(replace(job, root=root), [task], tokenizer=tokenizer, report=reporter)
            except Exception as error:  # noqa: BLE001 (it is raised at the other end)
                pipe.send(("failed", attempt, _travelling(error)))
            else:
                reporter.flush()
                pipe.send(("done", attempt, (record, wire() - before)))
    except (EOFError, OSError):
        os._exit(0)


def _travelling(error: Exception) -> Exception:
    """The error, or what can be said of it if it cannot be sent."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
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
