"""The ways to build parts: in this process, in a pool of processes here, or on a Ray cluster.

All run the same :func:`~headrace.ingest.engine.run_parts` on the same tasks, so the cache does not tell which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal, TypeAlias, get_args

from headrace.errors import ConfigError, did_you_mean
from headrace.ingest.engine import BuildJob, Progress, run_parts
from headrace.ingest.plan import PartTask
from headrace.ingest.pool import PoolWorkers, workers_for
from headrace.ingest.ray_workers import RayWorkers
from headrace.ingest.schedule import Scheduler
from headrace.ingest.tokenize import Tokenizer
from headrace.store.ledger import PartRecord
from headrace.store.wire import Wire

Engine: TypeAlias = Literal["auto", "pool", "inline", "ray"]

POOL_FROM_BYTES = 32 << 20
"""Sources smaller than this are built before worker processes would have started."""
_ONLY_HERE = ("memory://", "local-memory://")


def check_engine(engine: str, workers: int | None) -> None:
    """Refuses what is no engine, or no number of workers.

    Raises:
        ConfigError: it is none.
    """
    if engine not in get_args(Engine):
        raise ConfigError(
            "is no engine", field="engine", value=engine, cure=did_you_mean(str(engine), get_args(Engine))
        )
    if workers is not None and workers < 1:
        raise ConfigError("must be at least 1", field="workers", value=workers, cure="Leave it out: one a core.")


def run_on(
    engine: Engine,
    job: BuildJob,
    tasks: Sequence[PartTask],
    tokenizer: Tokenizer,
    report: Callable[[Progress], None] | None,
    workers: int | None,
    sent: Callable[[Wire], None] | None = None,
) -> Generator[PartRecord]:
    """Builds parts with an engine; yields the record of each when it is complete, in any order.

    Raises:
        SourceError: a source cannot be read. Parts that were yielded are complete.
        CacheError: the cache cannot be written, or workers are lost again and again.
        ConfigError: the engine cannot be used.
    """
    if engine == "auto":
        engine = _choose(job, tasks, workers)
    if engine == "inline" or not tasks:
        yield from run_parts(job, tasks, tokenizer=tokenizer, report=report)
        return
    if engine == "ray":
        yield from Scheduler(job, tasks, RayWorkers(job, workers), report, sent=sent).run()
        return
    pool = PoolWorkers(job, workers or workers_for(job, len(tasks)))
    yield from Scheduler(job, tasks, pool, report, sent=sent).run()


def _choose(job: BuildJob, tasks: Sequence[PartTask], workers: int | None) -> Engine:
    places = [job.root, *(f.path for t in tasks for f in t.files)]
    if any(p.startswith(_ONLY_HERE) for p in places):  # what no other process sees
        return "inline"
    sizes = [f.num_bytes for t in tasks for f in t.files]
    little = None not in sizes and sum(s or 0 for s in sizes) < POOL_FROM_BYTES
    alone = (workers or workers_for(job, len(tasks))) == 1
    return "inline" if little or alone else "pool"
