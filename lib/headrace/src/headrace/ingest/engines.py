"""The engines that build parts: this process, worker processes of this machine, a Ray cluster or a
Zephyr pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from typing import get_args

from headrace import extensions
from headrace.errors import check_at_least, check_choice, check_whole
from headrace.ingest.choices import Engine
from headrace.ingest.pool import PoolWorkers, workers_for
from headrace.ingest.progress import Report
from headrace.ingest.ray_workers import RayWorkers
from headrace.ingest.schedule import Job, Scheduler, Task
from headrace.store.parts import PartRecord

_LOG = logging.getLogger(__name__)
POOL_FROM_BYTES = 32 << 20
"""Less than this is built faster than worker processes start."""
_ONLY_HERE = ("memory://", "local-memory://")


def check_engine(engine: Engine, workers: int | None) -> None:
    """Raises ConfigError for an unknown engine or an invalid number of workers."""
    check_choice("engine", engine, get_args(Engine), "is no engine")
    check_whole("workers", workers)
    check_at_least("workers", workers, cure="Leave it out: one a core.")


def choose_engine(
    engine: Engine, job: Job, sizes: Sequence[int | None], paths: Iterable[str], workers: int | None
) -> Engine:
    """The engine, with ``auto`` resolved: a pool, unless there is too little to do for one.

    Args:
        engine: The user's choice.
        job: The job to run.
        sizes: Bytes to read for each part; None if unknown.
        paths: All paths to be read and written.
        workers: Number of workers; None: as many as fit.
    """
    if engine != "auto":
        return engine
    if any(
        path.startswith(_ONLY_HERE) for path in (job.root, *paths)
    ):  # what no other process sees
        return "inline"
    little = None not in sizes and sum(size or 0 for size in sizes) < POOL_FROM_BYTES
    return "inline" if little or (workers or workers_for(job, len(sizes))) == 1 else "pool"


def run_tasks(
    engine: Engine,
    job: Job,
    tasks: Sequence[Task],
    workers: int | None,
    report: Report | None,
) -> Generator[PartRecord]:
    """Builds parts with an engine that is not ``auto``; yields the record of each when it is
    complete, in any order.
    """
    if not tasks:
        return
    if engine == "inline":
        build = job.part_builder()
        for task in tasks:
            yield build(task, job.root, report or (lambda _: None))
        return
    if workers is not None and workers > len(tasks):
        parts = "1 part is" if len(tasks) == 1 else f"{len(tasks)} parts are"
        _LOG.warning(
            "%d of %d workers have nothing to do: %s to be built",
            workers - len(tasks),
            workers,
            parts,
        )
    if engine == "zephyr":
        build_on_zephyr = extensions.load_extension(extensions.ENGINES, engine, "engine")
        yield from build_on_zephyr(job, tasks, workers, report)
        return
    pool = (
        RayWorkers(job, workers)
        if engine == "ray"
        else PoolWorkers(job, workers or workers_for(job, len(tasks)))
    )
    yield from Scheduler(job, tasks, pool, report).run()
