"""The same part tasks as a pipeline of Marin's Zephyr: on the cluster of the current Fray client,
or in threads here.

Zephyr decides which worker builds which part, and reassigns a part if its worker is lost, although
that worker may still be running. Every attempt therefore writes to its own folder in ``attempts/``
and moves its part into place when it is complete, unless the part is already there: a later attempt
changes nothing, because parts are bit-identical.

Zephyr's own result arrives only at the end. Completed parts are found in the cache itself, once a
second, so that progress is visible and an interrupted build can be resumed. A part with a bad
source ends the pipeline early: parts that were not started are skipped.

All workers must see the cache and the sources under the same path, and ``headrace`` must be
installed there. Price: the pipeline starts in about a second here; one listing of ``parts/`` per
second; in an object store, a copy of each part within the store.
"""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from headrace.errors import CacheError, ConfigError, HeadraceError, install_command
from headrace.ingest.pool import build_one_part
from headrace.ingest.progress import NO_PROGRESS, Progress, Report
from headrace.ingest.schedule import Job, Task, publish
from headrace.store import files
from headrace.store.lease import remove_tree
from headrace.store.ledger import ATTEMPTS_FOLDER, read_part_record
from headrace.store.ledger_table import PartRecord
from headrace.store.retry import use_policy

_POLL_S = 1.0
_FAILED = "failed"


def build_on_zephyr(
    job: Job,
    tasks: Sequence[Task],
    count: int | None = None,
    report: Report | None = None,
) -> Generator[PartRecord]:
    """Builds the parts of ``tasks`` with at most ``count`` workers; None: as many as Zephyr
    provides.

    Args:
        job: What the parts have in common.
        tasks: The parts.
        count: Largest number of workers.
        report: Called with the progress of each completed part, and at the end with its costs.

    Yields:
        The record of each part, in the order of their completion on disk.

    Raises:
        ConfigError: Zephyr is not installed.
        SourceError: a source cannot be read. Parts that were yielded are complete.
        CacheError: the cache cannot be written, or Zephyr gave up.
    """
    attempts = files.join(job.root, ATTEMPTS_FOLDER)
    context, dataset = _pipeline(job, count, files.join(attempts, "zephyr"))
    pipeline = dataset.from_list(list(tasks)).map(partial(build_attempt, job))
    waiting = {task.name: task for task in tasks}
    with ThreadPoolExecutor(1, thread_name_prefix="headrace-zephyr") as driver:
        running = driver.submit(context.execute, pipeline)
        try:
            while not wait([running], _POLL_S).done:
                yield from _finished(job.root, waiting, report)
        except BaseException:  # interrupted: parts in progress are finished, no others are started
            files.write_atomic(files.join(attempts, _FAILED), b"interrupted")
            raise
        finally:
            wait([running])
            _close_threads_here(context)
    try:
        results = running.result().results
    except Exception as error:
        raise CacheError(
            f"Zephyr gave up ({type(error).__name__}: {error})",
            field="cache",
            value=job.root,
            cure="Its log says more. Run the same command again: parts that are complete are kept.",
        ) from error
    yield from _finished(job.root, waiting, report)
    for outcome in results:
        if isinstance(outcome, Exception):
            raise outcome
        if report is not None:
            report(outcome)
    if waiting:
        cure = "Run the same command again."
        raise CacheError("were not built", field="parts", value=sorted(waiting), cure=cure)
    remove_tree(attempts)


def build_attempt(job: Job, task: Task) -> Progress | HeadraceError:
    """On a worker: builds one part in a separate folder and moves it into place; returns its costs.

    A recurring error is returned, because Zephyr retries what is raised; ``attempts/failed`` tells
    the other workers not to start anything.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # a worker has one core
    use_policy(job.retries)
    failed = files.join(job.root, ATTEMPTS_FOLDER, _FAILED)
    if files.exists(failed):
        return NO_PROGRESS
    attempt = files.join(job.root, ATTEMPTS_FOLDER, f"{task.name}-{uuid.uuid4().hex[:12]}")
    try:
        _, costs = build_one_part(job.part_builder(), task, attempt, lambda _: None)
    except HeadraceError as error:
        files.write_atomic(failed, task.name.encode())
        remove_tree(attempt)
        return error
    if read_part_record(job.root, task.name) is None:
        publish(attempt, job.root, task.name)
    else:
        remove_tree(attempt)
    return costs


def _finished(root: str, waiting: dict[str, Task], report: Report | None) -> Iterator[PartRecord]:
    """The records of parts that became complete since the last call; they are no longer
    ``waiting``.
    """
    names = files.names_in(files.join(root, "parts"))
    for name in sorted(waiting.keys() & set(names)):
        record = read_part_record(root, name)
        if record is None:
            continue
        stored = waiting.pop(name).stored_bytes
        if report is not None:
            report(
                Progress(
                    record.documents, record.tokens, int(record.extra.get("text_bytes", 0)), stored
                )
            )
        yield record


def _pipeline(job: Job, count: int | None, scratch: str) -> tuple[Any, Any]:
    """Zephyr's context and its ``Dataset``."""
    try:
        dataset = importlib.import_module("zephyr.dataset").Dataset
        types = importlib.import_module("fray.types")
        module = importlib.import_module("zephyr.context")
    except ImportError as error:
        cure = install_command("marin-zephyr")
        raise ConfigError(
            "needs the package marin-zephyr", field="engine", value="zephyr", cure=cure
        ) from error
    need = types.ResourceConfig(cpu=1, ram=f"{job.worker_bytes >> 20}m")
    context = module.ZephyrContext(
        max_workers=count, resources=need, chunk_storage_prefix=scratch, name="headrace"
    )
    return context, dataset


def _close_threads_here(context: Any) -> None:
    """Ends the threads of a client that the context made for itself."""
    local = importlib.import_module("fray.local_backend").LocalClient
    current = importlib.import_module("fray.current_client").current_client
    if isinstance(context.client, local) and context.client is not current():
        context.client.shutdown()
