"""A loader's counters in the folder of its run, for ``headrace report``: JSON lines, one every so many steps.

::

    manifest = open_run("runs/7", loader)
    with RunLog(loader, "runs/7", config=config) as log:
        for step, batch in enumerate(loader):
            state = train_step(state, batch)
            log(step)

Each host writes ``stats/host-00000.jsonl`` in the folder, whose lines are of three kinds:

- ``start``: a process began: its host, the number of hosts, the time, the config as YAML (or null);
- ``stats``: the step, the time and all counters of :meth:`headrace.metrics.LoaderStats.to_json`, since ``start``;
- ``stall``: a :class:`headrace.metrics.Stall`, once.

Invariant: lines are only added. A process that is killed leaves at most one line cut off, the next one begins a new
line; who reads leaves out what is no record (headrace.report.run_records). A folder that cannot be written does not
end training: it is said once, and counted in ``failed``.

Price: 0.2 ms every ``every`` steps, about 900 bytes a time. Object stores have no appending: there whole objects of up
to 1 MB are written again, at most every 30 s, by a thread of its own.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import jax

from headrace.errors import ConfigError, HeadraceError
from headrace.feed.callbacks import HasStats
from headrace.store import files

FOLDER = "stats"
FORMAT_VERSION = 1
_OBJECT_BYTES = 1_000_000
_OBJECT_EVERY_S = 30.0
_LOG = logging.getLogger(__name__)


class HasYaml(Protocol):
    """Whatever can be written as YAML: an ``LmDataConfig``."""

    def to_yaml(self) -> str: ...


class RunLog:
    """Writes the counters of a loader into the folder of its run.

    Args:
        loader: The loader.
        folder: Path or URL of the run's folder, as :func:`headrace.state.open_run` was given.
        config: The config of the run. With it ``headrace report FOLDER`` needs nothing else.
        every: Steps from one line to the next; the first call always writes, and so does :meth:`close`.
        host: The number of this host; None: what jax says.
        hosts: How many there are; None: what jax says.

    Attributes:
        failed: Times that writing failed.

    Raises:
        ConfigError: ``every`` is below 1.

    Example:
        >>> import headrace.testing, tempfile
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> loader = DataLoader(TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8)
        >>> with tempfile.TemporaryDirectory() as folder, RunLog(loader, folder, every=2) as log:
        ...     for step, batch in zip(range(4), loader):
        ...         log(step)
        ...     lines = Path(folder, "stats/host-00000.jsonl").read_text().splitlines()
        >>> [json.loads(line)["kind"] for line in lines if '"stall"' not in line]
        ['start', 'stats', 'stats']
    """

    def __init__(
        self,
        loader: HasStats,
        folder: str | os.PathLike[str],
        *,
        config: HasYaml | None = None,
        every: int = 10,
        host: int | None = None,
        hosts: int | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError("must be at least 1", field="every", value=every, cure="Count in steps.")
        self._loader, self._every = loader, every
        self._host = jax.process_index() if host is None else host
        hosts = jax.process_count() if hosts is None else hosts
        base = files.join(str(folder), FOLDER, f"host-{self._host:05d}")
        self._sink = _File(files.local_path(base + ".jsonl")) if files.is_local(base) else _Objects(base)
        self._next: int | None = None
        self._last: int | None = None
        self._written: int | None = None
        self._stalls = loader.stats().num_stalls
        self.failed = 0
        start: dict[str, Any] = {"kind": "start", "version": FORMAT_VERSION, "host": self._host, "hosts": hosts}
        start |= {"time": time.time(), "headrace": version("headrace")}
        self._add({**start, "config": None if config is None else config.to_yaml()})

    def __call__(self, step: int) -> None:
        """Says that a step is done."""
        self._last = step
        if self._next is None or step >= self._next:
            self._next = step + self._every
            self._write(step)

    def close(self) -> None:
        """Writes the counters of the last step that is done, and waits until all is written."""
        if self._last is not None and self._last != self._written:
            self._write(self._last)
        self._guarded(self._sink.close)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write(self, step: int) -> None:
        stats, self._written = self._loader.stats(), step
        fresh = min(stats.num_stalls - self._stalls, len(stats.stalls))
        self._stalls = stats.num_stalls
        stalls = [
            {"kind": "stall", **asdict(stall), "host": self._host} for stall in stats.stalls[-fresh:] if fresh > 0
        ]
        self._add({"kind": "stats", "step": step, "time": time.time(), "stats": stats.to_json()}, *stalls)

    def _add(self, *records: dict[str, Any]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        self._guarded(lambda: self._sink.add(lines))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Training goes on without its log."""
        try:
            act()
        except (OSError, HeadraceError) as error:
            self.failed += 1
            if self.failed == 1:
                _LOG.warning("the log of the run cannot be written: %s", error)


class _File:
    """Lines added to a local file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, lines: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            if file.tell() and not self._ends_a_line(file):
                lines = b"\n" + lines  # behind what a killed process left
            file.write(lines)

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _ends_a_line(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class _Objects:
    """Lines in objects of a store, the last of which is written again and again until it is full."""

    def __init__(self, base: str) -> None:
        self._base = f"{base}-{time.time_ns() // 1000:017d}"  # later processes sort behind this one
        self._number, self._lines, self._sent = 0, b"", 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-run-log")
        self._sending: Future[None] | None = None

    def add(self, lines: bytes) -> None:
        self._lines += lines
        full = len(self._lines) >= _OBJECT_BYTES
        idle = self._sending is None or self._sending.done()
        if idle and (full or time.monotonic() - self._sent >= _OBJECT_EVERY_S):
            self._send()
            if full:
                self._number, self._lines = self._number + 1, b""

    def close(self) -> None:
        try:
            self._send()
            if self._sending is not None:
                self._sending.result()
        finally:
            self._pool.shutdown()

    def _send(self) -> None:
        before, self._sent = self._sending, time.monotonic()
        url, lines = f"{self._base}-{self._number:05d}.jsonl", self._lines
        self._sending = self._pool.submit(files.write_atomic, url, lines) if lines else None
        if before is not None:
            before.result()  # so that its error is said
