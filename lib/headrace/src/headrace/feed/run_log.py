"""A loader's counters in the folder of its run, for ``headrace run report``; or in TensorBoard, W&B
or Prometheus.

::

    run = open_run("runs/7", config)
    with RunLog(loader, "runs/7", config=config) as log:
        for step, batch in enumerate(loader):
            state, losses = train_step(state, batch)
            log(step, train=losses)

Each host writes ``stats/host-00000.jsonl`` in the folder, JSON lines of five kinds:

- ``start``: a process began: its host, the number of hosts, the time, the config as YAML (or null);
- ``stats``: the step, the time and all counters of :meth:`headrace.metrics.LoaderStats.to_dict`,
  since ``start``;
- ``sources``: the step, the time and, for each source of a mixture, rows, tokens, epochs and weight
  (``sources/...`` in the table of :mod:`headrace.metrics`) after ``steps_done`` steps; with each
  tenth line of ``stats``, and the last;
- ``stall``: a :class:`headrace.metrics.Stall`, once;
- ``figures``: the step, the time, and figures of the program's own, as they are handed over: those
  of ``log(step, train={"kl": kl}, rollout=dataset.metrics(step))`` are ``train/kl``,
  ``rollout/reward_mean`` and so on. They are of that step alone, and written at every call,
  whatever ``every`` is.

Invariant: lines are only added. A process that is killed leaves at most one line cut off, the next
one begins a new line; who reads leaves out what is no record (headrace.report.run_records). A
folder that cannot be written does not end training: it is said once, and counted in ``failed``.

Price: 0.2 ms every ``every`` steps, about 900 bytes a time. Object stores have no appending: there
whole objects of up to 1 MB are written again, at most every 30 s, by a thread of its own.

:class:`LogStats` takes one snapshot (about 0.1 ms) for any number of writers. A writer is any
function of a step and a dict of numbers, so whatever else collects figures needs one line. The
names are those of the table in :mod:`headrace.metrics`, which says what high and low mean. It takes
the program's own figures as ``RunLog`` does.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, TypeAlias

import jax
import numpy as np

from headrace.errors import ConfigError, HeadraceError, check_at_least, install_command
from headrace.metrics import STATS_FOLDER, LoaderStats
from headrace.store import files

FORMAT_VERSION = 1
_OBJECT_BYTES = 1_000_000
_OBJECT_EVERY_S = 30.0
_SOURCES_EVERY = 10  # lines of counters: a source is 100 bytes, and there may be hundreds
_OF_SOURCE = re.compile(r"((?:.*/)?)sources/(.+)/(rows|tokens|epochs|weight)")
_LOG = logging.getLogger(__name__)

Writer: TypeAlias = Callable[[int, Mapping[str, float]], None]


class HasStats(Protocol):
    """An object with counters, such as a ``DataLoader``."""

    def stats(self) -> LoaderStats: ...


class HasYaml(Protocol):
    """An object that can be written as YAML, such as an ``LmDataConfig``."""

    def to_yaml(self) -> str: ...


class RunLog:
    """Writes the counters of a loader into the folder of its run.

    Args:
        loader: The loader; None: only the program's own figures are written.
        folder: Path or URL of the run's folder, as passed to
            :func:`headrace.run.run.open_run`.
        config: The config of the run, for ``headrace run report FOLDER``, if the lock in the folder
            has none.
        every: Steps between two lines; the first call always writes, and so does :meth:`close`.
        host: Number of this host; None: jax's process index.
        hosts: Number of hosts; None: jax's process count.

    Attributes:
        failed: Number of failed writes.

    Raises:
        ConfigError: ``every`` is below 1.

    Example:
        >>> import headrace.testing, tempfile
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> loader = DataLoader(
        ...     TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8
        ... )
        >>> with tempfile.TemporaryDirectory() as folder, RunLog(loader, folder, every=2) as log:
        ...     for step, batch in zip(range(4), loader):
        ...         log(step)
        ...     lines = Path(folder, "stats/host-00000.jsonl").read_text().splitlines()
        >>> [json.loads(line)["kind"] for line in lines if '"stall"' not in line]
        ['start', 'stats', 'stats']
    """

    def __init__(
        self,
        loader: HasStats | None,
        folder: str | os.PathLike[str],
        *,
        config: HasYaml | None = None,
        every: int = 10,
        host: int | None = None,
        hosts: int | None = None,
    ) -> None:
        check_at_least("every", every, cure="Count in steps.")
        self._loader = loader
        self._every = every
        self._host = jax.process_index() if host is None else host
        hosts = jax.process_count() if hosts is None else hosts
        base = files.join(str(folder), STATS_FOLDER, f"host-{self._host:05d}")
        self._sink = (
            _File(files.local_path(base + ".jsonl")) if files.is_local(base) else _Objects(base)
        )
        self._next: int | None = None
        self._last: int | None = None
        self._written: int | None = None
        self._lines = 0  # of counters
        self._sources_at: int | None = None  # the step of the last line of sources
        self._stalls = 0 if loader is None else loader.stats().num_stalls
        self.failed = 0
        start: dict[str, Any] = {
            "kind": "start",
            "version": FORMAT_VERSION,
            "host": self._host,
            "hosts": hosts,
        }
        start |= {"time": time.time(), "headrace": version("headrace")}
        self._add({**start, "config": None if config is None else config.to_yaml()})

    def __call__(self, step: int, **figures: Mapping[str, SupportsFloat]) -> None:
        """Records that a step is done.

        Args:
            step: The step.
            figures: The program's own figures, numbers or arrays of one number, by name; the
                keyword is the prefix of each name.

        Raises:
            ConfigError: a figure is not one number.
        """
        self._last = step
        if handed := _named(figures):
            self._add({"kind": "figures", "step": step, "time": time.time(), "figures": handed})
        if self._next is None or step >= self._next:
            self._next = step + self._every
            self._write(step)

    def close(self) -> None:
        """Writes the counters of the last finished step, and waits until everything is written."""
        if self._last is not None and self._last != self._written:
            self._write(self._last)
        if self._last is not None and self._last != self._sources_at:
            self._write_sources(self._last)
        self._guarded(self._sink.close)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write(self, step: int) -> None:
        if self._loader is None:
            return
        stats = self._loader.stats()
        self._written = step
        fresh = min(stats.num_stalls - self._stalls, len(stats.stalls))
        self._stalls = stats.num_stalls
        stalls = [
            {"kind": "stall", **asdict(stall), "host": self._host}
            for stall in stats.stalls[-fresh:]
            if fresh > 0
        ]
        self._add(
            {"kind": "stats", "step": step, "time": time.time(), "stats": stats.to_dict()}, *stalls
        )
        if self._lines % _SOURCES_EVERY == 0:
            self._write_sources(step)
        self._lines += 1

    def _write_sources(self, step: int) -> None:
        stats = None if self._loader is None else self._loader.stats()
        if stats is None or not stats.sources:
            return
        self._sources_at = step
        sources = {name: source.figures() for name, source in stats.sources.items()}
        record = {"kind": "sources", "step": step, "time": time.time()}
        self._add({**record, "steps_done": stats.step, "sources": sources})

    def _add(self, *records: dict[str, Any]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        self._guarded(lambda: self._sink.add(lines))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Lets training continue if its log cannot be written."""
        try:
            act()
        except (OSError, HeadraceError) as error:
            self.failed += 1
            if self.failed == 1:
                _LOG.warning("the log of the run cannot be written: %s", error)


class _File:
    """Appends lines to a local file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, lines: bytes) -> None:
        files.make_folder(self._path.parent)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    lines = b"\n" + lines  # behind what a killed process left
            file.write(lines)

    def close(self) -> None:
        """Syncs the file. Until then, the last lines may be lost, because writes are not waited
        for.
        """
        if self._path.exists():
            files.sync_file(self._path)
            files.sync_folder(self._path.parent)


class _Objects:
    """Stores lines in objects of a store; the last object is rewritten until it is full."""

    def __init__(self, base: str) -> None:
        self._base = f"{base}-{time.time_ns() // 1000:017d}"  # later processes sort behind this one
        self._number = 0
        self._lines = b""
        self._sent = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-run-log")
        self._sending: Future[None] | None = None

    def add(self, lines: bytes) -> None:
        self._lines += lines
        full = len(self._lines) >= _OBJECT_BYTES
        idle = self._sending is None or self._sending.done()
        if idle and (full or time.monotonic() - self._sent >= _OBJECT_EVERY_S):
            self._send()
            if full:
                self._number = self._number + 1
                self._lines = b""

    def close(self) -> None:
        try:
            self._send()
            if self._sending is not None:
                self._sending.result()
        finally:
            self._pool.shutdown()

    def _send(self) -> None:
        previous = self._sending
        self._sent = time.monotonic()
        url = f"{self._base}-{self._number:05d}.jsonl"
        lines = self._lines
        self._sending = self._pool.submit(files.write_atomic, url, lines) if lines else None
        if previous is not None:
            previous.result()  # so that its error is said


class LogStats:
    """Passes the counters of a loader to writers, every ``every`` steps.

    ::

        log = LogStats(loader, tensorboard("runs/7"), wandb_run(run), every=10)

    Args:
        loader: The loader; None: only the program's own figures are passed on.
        writers: Each gets the step and the figures.
        every: Steps between two writes; the first call always writes.
        prefix: Prefix of the names of the loader's counters.
        sources_every: Steps between two writes of the figures of each source, which may be
            hundreds; written with the counters that are due.

    Raises:
        ConfigError: ``every`` or ``sources_every`` is below 1.

    Example:
        >>> import headrace.testing
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> loader = DataLoader(
        ...     TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8
        ... )
        >>> log = LogStats(
        ...     loader, lambda step, figures: print(step, figures["data/batches"]), every=2
        ... )
        >>> for step, batch in zip(range(4), loader):
        ...     log(step)
        0 1.0
        2 3.0
    """

    def __init__(
        self,
        loader: HasStats | None,
        *writers: Writer,
        every: int = 10,
        prefix: str = "data/",
        sources_every: int = 100,
    ) -> None:
        check_at_least("every", every, cure="Count in steps.")
        check_at_least("sources_every", sources_every, cure="Count in steps.")
        self._sources_every = sources_every
        self._next_of_sources: int | None = None
        self._loader = loader
        self._writers = writers
        self._every = every
        self._prefix = prefix
        self._next: int | None = None

    def __call__(self, step: int, **figures: Mapping[str, SupportsFloat]) -> None:
        """Records that a step is done, with the program's own figures, like
        :meth:`RunLog.__call__`.
        """
        values = _named(figures)
        if self._loader is not None and (self._next is None or step >= self._next):
            self._next = step + self._every
            stats = self._loader.stats()
            counters = stats.to_dict()
            if self._next_of_sources is None or step >= self._next_of_sources:
                self._next_of_sources = step + self._sources_every
                counters |= stats.figures_of_sources()
            values |= {self._prefix + name: float(value) for name, value in counters.items()}
        for write in self._writers if values else ():
            write(step, values)


def _named(figures: Mapping[str, Mapping[str, SupportsFloat]]) -> dict[str, float]:
    """The figures by name; ConfigError for one that is not a number."""
    values: dict[str, float] = {}
    for group, of_group in figures.items():
        if not isinstance(of_group, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            cure = f"Give them by name: {group}={{'loss': loss}}."
            raise ConfigError(
                "are no figures", field=group, value=type(of_group).__name__, cure=cure
            )
        for name, value in of_group.items():
            try:
                values[f"{group}/{name}"] = float(np.asarray(value).item())
            except (TypeError, ValueError, OverflowError) as error:
                problem = f"is not one number ({error})"
                cure = "Log its mean, or leave it out."
                raise ConfigError(
                    problem, field=f"{group}/{name}", value=type(value).__name__, cure=cure
                ) from error
    return values


def tensorboard(target: str | Path | Any) -> Writer:
    """Writes scalars for TensorBoard.

    Args:
        target: A folder (written with tensorboardX), or an existing writer with ``add_scalar(name,
            value, step)``, such as those of torch and tensorboardX.

    Raises:
        ConfigError: a folder is given and tensorboardX is not installed.
    """
    writer: Any = target
    if isinstance(target, str | Path):
        writer = _library("tensorboardX", "tensorboard").SummaryWriter(str(target))

    def write(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def wandb_run(run: Any = None) -> Writer:
    """Logs to a Weights & Biases run.

    Args:
        run: The result of ``wandb.init``; None: the current run.

    Raises:
        ConfigError: no run is given, and wandb is not installed or has no current run.
    """
    if run is None:
        run = _library("wandb", "wandb").run
    if run is None:
        raise ConfigError(
            "is not under way", field="run", cure="Call wandb.init first, or give the run."
        )

    def write(step: int, figures: Mapping[str, float]) -> None:
        run.log(dict(figures), step=step)

    return write


def prometheus(registry: Any = None, labels: Mapping[str, str] | None = None) -> Writer:
    """Sets gauges that Prometheus scrapes; serve them with ``prometheus_client.start_http_server``.
    Figures of sources have the source as a label: ``headrace_data_sources_rows{source="web"}``.

    Args:
        registry: A ``prometheus_client.CollectorRegistry``; None: the library's default one.
        labels: Labels of every gauge, the host's number for example.

    Raises:
        ConfigError: prometheus_client is not installed.
    """
    client = _library("prometheus_client", "prometheus")
    registry = client.REGISTRY if registry is None else registry
    labels = dict(labels or {})
    gauges: dict[str, Any] = {}  # by metric
    series: dict[str, Any] = {}  # by figure

    def series_of(name: str) -> Any:
        if name not in series:
            own_labels = dict(labels)
            name_of_metric = name
            if (of_source := _OF_SOURCE.fullmatch(name)) is not None:
                prefix, own_labels["source"], figure = of_source.groups()
                name_of_metric = f"{prefix}sources/{figure}"
            metric = f"headrace_{name_of_metric.replace('/', '_')}"
            if metric not in gauges:
                gauges[metric] = client.Gauge(
                    metric, "See headrace.metrics.", tuple(own_labels), registry=registry
                )
            gauge = gauges[metric]
            series[name] = gauge.labels(**own_labels) if own_labels else gauge
        return series[name]

    def write(step: int, figures: Mapping[str, float]) -> None:
        for name, value in {"step": step, **figures}.items():
            series_of(name).set(value)

    return write


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "is not installed", field=module, cure=install_command(f"headrace[{extra}]")
        ) from error
