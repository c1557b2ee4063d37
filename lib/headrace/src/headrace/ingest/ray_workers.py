"""The same part tasks on a Ray cluster: an existing one (``RAY_ADDRESS``), or one started on this
machine.

All nodes must see the cache and the sources under the same path: an object store or a shared
folder. ``headrace`` must be installed on the nodes, in the same version. Ray's own retries are
disabled: lost workers and nodes are handled by the rules of :mod:`headrace.ingest.schedule`, as for
the pool. A small actor on the builder's node reports progress.

Price: starting Ray here takes about 9 s and 0.4 GiB; a task some milliseconds.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections import deque
from contextlib import suppress
from typing import Any

from headrace.errors import ConfigError, install_command
from headrace.ingest.pool import build_one_part
from headrace.ingest.progress import NO_PROGRESS, Progress
from headrace.ingest.schedule import Done, Event, Failed, Job, Lost, Moved, Task
from headrace.store.ledger_table import PartRecord
from headrace.store.retry import use_policy

_SILENCE_S = 60.0


class Board:
    """Collects the progress of attempts: a Ray actor."""

    def __init__(self) -> None:
        self._moved: dict[int, Progress] = {}

    def add(self, attempt: int, progress: Progress) -> None:
        """Adds the progress of an attempt."""
        self._moved[attempt] = self._moved.get(attempt, NO_PROGRESS) + progress

    def take(self) -> dict[int, Progress]:
        """Returns the progress since the last call."""
        moved = self._moved
        self._moved = {}
        return moved


def build_part(
    job: Job, attempt: int, task: Task, root: str, board: Any
) -> tuple[PartRecord, Progress]:
    """A Ray task: builds one part below ``root``."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # Ray gives the task one core
    use_policy(job.retries)
    return build_one_part(
        job.part_builder(), task, root, lambda moved: board.add.remote(attempt, moved)
    )


class RayWorkers:
    """Tasks of a Ray cluster; see :class:`~headrace.ingest.schedule.Workers`.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, job: Job, count: int | None = None) -> None:
        # else a driver under `uv run` has its folder copied, and its environment made anew, on
        # every node
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError(
                "needs the package ray",
                field="engine",
                value="ray",
                cure=install_command("headrace[ray]"),
            ) from error
        self._count = count
        self._running: dict[Any, int] = {}
        self._ended: deque[Event] = deque()
        self._silent_since: float | None = time.monotonic()
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            self._connect()
        node_id = self._ray.get_runtime_context().get_node_id()
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        beside = strategies.NodeAffinitySchedulingStrategy(node_id, soft=True)
        self._board = (
            self._ray.remote(Board).options(num_cpus=0, scheduling_strategy=beside).remote()
        )
        self._task = self._ray.remote(build_part).options(
            num_cpus=1, max_retries=0, runtime_env={"env_vars": {"RAYON_NUM_THREADS": "1"}}
        )
        self._job = self._ray.put(job)

    def slots(self) -> int:
        return self._count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, attempt: int, task: Task, root: str) -> None:
        self._running[self._task.remote(self._job, attempt, task, root, self._board)] = attempt

    def wait(self, timeout_s: float) -> list[Event]:
        if not self._running:
            return []
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        events: list[Event] = [Moved(attempt, moved) for attempt, moved in self._progress().items()]
        self._warn_of_silence(heard=bool(ended or events))
        return events + [
            self._outcome(reference, self._running.pop(reference)) for reference in ended
        ]

    def stop(self, attempt: int) -> None:
        for reference in [r for r, a in self._running.items() if a == attempt]:
            del self._running[reference]
            self._ray.cancel(reference, force=True)
            with suppress(self._ray.exceptions.RayError):  # until it is gone
                self._ray.wait([reference], timeout=10.0)

    def close(self) -> None:
        for attempt in list(self._running.values()):
            self.stop(attempt)
        if self._started_here:
            self._ray.shutdown()
        else:
            self._ray.kill(self._board)

    def _progress(self) -> dict[int, Progress]:
        try:
            moved: dict[int, Progress] = self._ray.get(self._board.take.remote(), timeout=2.0)
        except self._ray.exceptions.RayError:  # progress is for the eye; a build does without
            return {}
        return moved

    def _warn_of_silence(self, *, heard: bool) -> None:
        """Logs once that the build waits for its first worker, which is not an error: a cluster may
        grow slowly.
        """
        if heard:
            self._silent_since = None
        elif self._silent_since is not None and time.monotonic() - self._silent_since > _SILENCE_S:
            self._silent_since = None
            logging.getLogger(__name__).warning(
                f"no worker of the Ray cluster has begun a part for {_SILENCE_S:.0f} s: `ray"
                " status` says why; its nodes need headrace too"
            )

    def _outcome(self, reference: Any, attempt: int) -> Event:
        errors = self._ray.exceptions
        try:
            return Done(attempt, *self._ray.get(reference))
        except errors.RayTaskError as error:
            return Failed(attempt, getattr(error, "cause", None) or error)
        except errors.RayError as error:  # its worker died, its node is gone, its memory ran out
            return Lost(attempt, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")

    def _connect(self) -> None:
        address = os.environ.get("RAY_ADDRESS")
        try:
            self._ray.init(
                address=address or "local",
                log_to_driver=False,
                include_dashboard=False if not address else None,
                configure_logging=False,
            )
        except Exception as error:  # Ray raises plain Exception too
            raise ConfigError(
                f"the cluster cannot be {'reached' if address else 'started'} ({error})",
                field="RAY_ADDRESS",
                value=address,
                cure="Start it (ray start --head), unset RAY_ADDRESS to start one here, or pass"
                " --engine pool.",
            ) from error
