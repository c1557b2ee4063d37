"""A loader's counters in TensorBoard, Weights & Biases or Prometheus, through their own libraries.

::

    log = LogStats(loader, tensorboard("runs/7"), wandb_run(run), every=10)
    for step, batch in enumerate(loader):
        state = train_step(state, batch)
        log(step)

A writer is any function of a step and a dict of numbers, so whatever else collects figures needs one line. The names
are those of the table in :mod:`headrace.metrics`, which says what high and low mean.

Price: one snapshot of the counters every ``every`` steps (about 0.1 ms).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headrace.errors import ConfigError
from headrace.metrics import LoaderStats

Writer: TypeAlias = Callable[[int, Mapping[str, float]], None]


class HasStats(Protocol):
    """Whatever has counters: a ``DataLoader``."""

    def stats(self) -> LoaderStats: ...


class LogStats:
    """Hands the counters of a loader to writers, every so many steps.

    Args:
        loader: The loader.
        writers: Each gets the step and the figures.
        every: Steps from one time to the next; the first call always writes.
        prefix: Put before every name.

    Raises:
        ConfigError: ``every`` is below 1.

    Example:
        >>> import headrace.testing
        >>> from headrace import DataLoader, TokenSeqDataset
        >>> loader = DataLoader(TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8)
        >>> log = LogStats(loader, lambda step, figures: print(step, figures["data/batches"]), every=2)
        >>> for step, batch in zip(range(4), loader):
        ...     log(step)
        0 1.0
        2 3.0
    """

    def __init__(self, loader: HasStats, *writers: Writer, every: int = 10, prefix: str = "data/") -> None:
        if every < 1:
            raise ConfigError("must be at least 1", field="every", value=every, cure="Count in steps.")
        self._loader, self._writers, self._every, self._prefix = loader, writers, every, prefix
        self._next: int | None = None

    def __call__(self, step: int) -> None:
        """Says that a step is done."""
        if self._next is not None and step < self._next:
            return
        self._next = step + self._every
        figures = {self._prefix + name: float(value) for name, value in self._loader.stats().to_json().items()}
        for write in self._writers:
            write(step, figures)


def tensorboard(target: str | Path | Any) -> Writer:
    """Writes scalars for TensorBoard.

    Args:
        target: A folder (written with tensorboardX), or a writer that is there already: whatever has
            ``add_scalar(name, value, step)``, as those of torch and tensorboardX do.

    Raises:
        ConfigError: a folder is given and tensorboardX is not installed.
    """
    writer = (
        _library("tensorboardX", "tensorboard").SummaryWriter(str(target)) if isinstance(target, str | Path) else target
    )

    def write(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def wandb_run(run: Any = None) -> Writer:
    """Logs to a Weights & Biases run.

    Args:
        run: What ``wandb.init`` gave; None: the run that is under way.

    Raises:
        ConfigError: no run is given, and wandb is not installed or none is under way.
    """
    if run is None:
        run = _library("wandb", "wandb").run
    if run is None:
        raise ConfigError("is not under way", field="run", cure="Call wandb.init first, or give the run.")

    def write(step: int, figures: Mapping[str, float]) -> None:
        run.log(dict(figures), step=step)

    return write


def prometheus(registry: Any = None, labels: Mapping[str, str] | None = None) -> Writer:
    """Sets gauges that Prometheus scrapes; serve them with ``prometheus_client.start_http_server``.

    Args:
        registry: A ``prometheus_client.CollectorRegistry``; None: the library's default one.
        labels: Labels of every gauge, the host's number for example.

    Raises:
        ConfigError: prometheus_client is not installed.
    """
    client = _library("prometheus_client", "prometheus")
    registry = client.REGISTRY if registry is None else registry
    labels = dict(labels or {})
    gauges: dict[str, Any] = {}

    def gauge(name: str) -> Any:
        if name not in gauges:
            known = f"headrace_{name.replace('/', '_')}"
            made = client.Gauge(known, "See headrace.metrics.", tuple(labels), registry=registry)
            gauges[name] = made.labels(**labels) if labels else made
        return gauges[name]

    def write(step: int, figures: Mapping[str, float]) -> None:
        for name, value in {"step": step, **figures}.items():
            gauge(name).set(value)

    return write


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError("is not installed", field=module, cure=f"pip install 'headrace[{extra}]'") from error
