"""Who writes a folder of parts: one builder at a time, and the engine that builds them for it: this
process, worker processes of this machine, a Ray cluster or a Zephyr pipeline.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import get_args

from msgspec import structs

from headrace import extensions, progress
from headrace.errors import check_at_least, check_choice, check_whole
from headrace.ingest.choices import Engine
from headrace.ingest.pool import PoolWorkers, workers_for
from headrace.ingest.progress import NO_PROGRESS, Progress, Report
from headrace.ingest.ray_workers import RayWorkers
from headrace.ingest.schedule import ATTEMPTS_FOLDER, Job, Scheduler, Task
from headrace.ingest.tokenize import FILE_NAME
from headrace.numbers import in_bytes, short
from headrace.store import files
from headrace.store.grouped import TABLES
from headrace.store.lease import Lease, check_vacant, lease, remove_tree
from headrace.store.ledger import (
    LEDGER_NAME,
    PART_RECORD_NAME,
    Ledger,
    part_folder,
    read_ledger,
    write_ledger,
)
from headrace.store.ledger_table import TABLE_NAME, PartRecord
from headrace.store.snapshots import remove_snapshots

_LOG = logging.getLogger(__name__)
POOL_FROM_BYTES = 32 << 20
"""Less than this is built faster than worker processes start."""
RUNS_FOLDER = "runs"
"""Folder of the documents of a shuffle on their way."""
PLAIN_FOLDER = "unshuffled"
"""Folder in the output where ``headrace build --shuffle`` keeps the plain cache until it is
done.
"""
_ONLY_HERE = ("memory://", "local-memory://")


@contextmanager
def sole_builder(output: str, *, but: str = "") -> Iterator[tuple[Lease, Ledger | None]]:
    """Within it, nobody else builds in a folder, and what a killed builder left there besides parts
    is gone. Yields the lease, and the ledger of what was begun there.

    Args:
        output: Folder or URL of the cache.
        but: Name of a folder that may be in it before there is a ledger.

    Raises:
        CacheError: the folder has something else, is being written, or cannot be written.
    """
    try:
        if read_ledger(output) is None:
            check_vacant(output, but=but)
        with lease(output) as held_lease:
            if files.is_local(output):  # of an atomic write; object stores have no such files
                for name in (LEDGER_NAME, TABLE_NAME, FILE_NAME):
                    remove_tree(files.join(output, f"{name}.tmp"))
            remove_tree(files.join(output, ATTEMPTS_FOLDER))  # of a part that was built twice
            yield held_lease, read_ledger(output)
    except OSError as error:  # sources raise SourceError, so this is the output
        raise files.not_written(output, error) from error


def clear(output: str, begun: Ledger) -> None:
    """Deletes a cache, ledger last: after a kill, it is an unfinished cache, not a broken one."""
    if begun.finished:
        write_ledger(output, structs.replace(begun, finished=False, parts=[]))
    # a part without its record is never taken for complete
    for name in {str(source["part"]) for source in begun.sources}:
        remove_tree(files.join(part_folder(output, name), PART_RECORD_NAME))
    remove_snapshots(output)
    tables = [f"{name}.bin" for name in TABLES]
    folders = ("parts", RUNS_FOLDER, PLAIN_FOLDER, ATTEMPTS_FOLDER)
    for name in (*folders, FILE_NAME, TABLE_NAME, *tables, LEDGER_NAME):
        remove_tree(files.join(output, name))


@dataclass(frozen=True)
class Work:
    """How parts are built.

    Attributes:
        engine: What builds them; ``auto``: a pool, unless there is too little to do for one.
        workers: Number of workers; None: as many as fit.
        progress: Whether a bar is shown, if stderr is a terminal.

    Raises:
        ConfigError: the engine is unknown, or the number of workers invalid.
    """

    engine: Engine = "auto"
    workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(Engine), "is no engine")
        check_whole("workers", self.workers)
        check_at_least("workers", self.workers, cure="Leave it out: one a core.")

    def build(
        self, what: str, job: Job, tasks: Sequence[Task], paths: Iterable[str], held: Lease
    ) -> tuple[dict[str, PartRecord], Progress]:
        """Builds parts while the lease is held.

        Args:
            what: What is done, for the bar.
            job: What the parts have in common.
            tasks: The parts.
            paths: All paths to be read.
            held: Checked after each part.

        Returns:
            The records of the parts, by name, and the costs of the workers.
        """
        records: dict[str, PartRecord] = {}
        costs = NO_PROGRESS
        engine = self._engine_for(job, tasks, paths)
        total = sum(task.stored_bytes for task in tasks)
        with show_progress(total, what, show=self.progress and bool(tasks)) as move_bar:

            def report(done: Progress) -> None:
                nonlocal costs
                costs += Progress(encoder=done.encoder, wire=done.wire)
                move_bar(done)

            with closing(run_tasks(engine, job, tasks, self.workers, report)) as finished:
                for record in finished:
                    records[record.name] = record
                    held.check()
        return records, costs

    def _engine_for(self, job: Job, tasks: Sequence[Task], paths: Iterable[str]) -> Engine:
        if self.engine != "auto":
            return self.engine
        if any(path.startswith(_ONLY_HERE) for path in (job.root, *paths)):
            return "inline"  # what no other process sees
        is_known = all(task.has_known_size for task in tasks)
        is_little = is_known and sum(task.stored_bytes for task in tasks) < POOL_FROM_BYTES
        if is_little or (self.workers or workers_for(job, len(tasks))) == 1:
            return "inline"
        return "pool"


@contextmanager
def show_progress(total: int, what: str, *, show: bool = True) -> Iterator[Report]:
    """A bar over ``total`` stored bytes on stderr, if that is a terminal, and the function that
    moves it and shows the mean rates since it was made.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda _: None
        return

    so_far = NO_PROGRESS
    began = time.monotonic()
    with progress.bar() as bar:
        task = bar.add_task(what, total=total or None, rate="")

        def report(done: Progress) -> None:
            nonlocal so_far
            so_far += done
            seconds = max(time.monotonic() - began, 1e-9)
            tokens = short(so_far.tokens / seconds)
            text_bytes = in_bytes(so_far.text_bytes / seconds)
            rate = f"{tokens} tokens/s  {text_bytes}/s"
            bar.update(task, advance=done.stored_bytes, rate=rate)

        yield report


def run_tasks(
    engine: Engine, job: Job, tasks: Sequence[Task], workers: int | None, report: Report
) -> Generator[PartRecord]:
    """Builds parts with an engine that is not ``auto``; yields the record of each when it is
    complete, in any order.
    """
    if not tasks:
        return
    if engine == "inline":
        build = job.part_builder()
        for task in tasks:
            yield build(task, job.root, report)
        return
    if workers is not None and workers > len(tasks):
        parts = "1 part is" if len(tasks) == 1 else f"{len(tasks)} parts are"
        _LOG.warning(
            "%d of %d workers have nothing to do: %s to be built",
            workers - len(tasks),
            workers,
            parts,
        )
    if engine not in ("pool", "ray"):
        build_parts = extensions.load_extension(extensions.ENGINES, engine, "engine")
        yield from build_parts(job, tasks, workers, report)
        return
    pool = (
        RayWorkers(job, workers)
        if engine == "ray"
        else PoolWorkers(job, workers or workers_for(job, len(tasks)))
    )
    yield from Scheduler(job, tasks, pool, report).run()
