"""The output of the demo: phases with their times, a live line during training, and the table at
the end; and ``StepLog``, one record per step, for ``metrics.jsonl`` and for that line.

On a terminal, the training line changes in place; elsewhere (a pipe, a CI log), a plain line is
printed every tenth of the steps. This module only prints the figures that ``run`` passes to it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.mix.blend import Blend

_RECENT = 20  # number of steps over which the figures on the screen are averaged


@dataclass(frozen=True)
class Check:
    """One claim of the demo: its text, its figure, and whether it holds."""

    name: str
    figure: str
    passed: bool
    decides: bool = (
        True  # a figure that depends on how busy the machine is does not decide the exit status
    )


@dataclass
class Screen:
    """Where the demo prints, and how long its phases took."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def say(self, text: str = "") -> None:
        """Prints one line of rich markup without wrapping it."""
        self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Times a phase, and prints its name, its seconds and the details that were appended to the
        yielded list.
        """
        details: list[str] = []
        started = time.perf_counter()
        terminal = self.console.is_terminal
        with self.console.status(f"{name} ...") if terminal else nullcontext():
            yield details
        self._book(name, time.perf_counter() - started, details)

    @contextmanager
    def training(self, steps: int) -> Iterator[TrainingLine]:
        """The training line; the time is booked under ``train``."""
        started = time.perf_counter()
        live: Live | None = None
        if self.console.is_terminal:
            text = Text("compiling the model ...")
            live = Live(text, console=self.console, refresh_per_second=8)
        line = TrainingLine(self, steps, live)
        with live or nullcontext():
            yield line
        self._book("train", time.perf_counter() - started, line.details)

    def _book(self, name: str, seconds: float, details: Sequence[str] = ()) -> None:
        self.seconds[name] = seconds
        first, *others = details or [""]
        self.say(f"[bold]{name:<10}[/] {seconds:5.1f} s  {escape(first)}".rstrip())
        for other in others:
            self.say(f"{'':<19}{escape(other)}")

    def show_checks(self, checks: Sequence[Check]) -> None:
        """Prints the table of checks."""
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "[green]yes[/]" if check.passed else "[bold red]NO [/]"
            self.say(f"  {mark}  {check.name:<{width}}  {escape(check.figure)}")

    def show_pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Prints two columns: a path or a command, and its purpose."""
        width = max(len(first) for first, _ in pairs)
        for first, right in pairs:
            self.say(f"  [cyan]{escape(first):<{width}}[/]  {escape(right)}")


class TrainingLine:
    """The line that changes while the model trains; ``details`` are printed next to its time at the
    end.
    """

    def __init__(self, screen: Screen, steps: int, live: Live | None) -> None:
        self._screen = screen
        self._steps = steps
        self._live = live
        self.details: list[str] = []

    def update(self, step: int, devices: int, figures: str, mixture: str) -> None:
        """Shows the number of completed steps and devices, and two texts: figures, and rows by
        source.
        """
        on = f"on {devices} device{'s' if devices > 1 else ''}"
        mixture = f"rows (wanted): {mixture}"
        if self._live is not None:
            bar = Table.grid(padding=(0, 2))
            progress = ProgressBar(total=self._steps, completed=step, width=24)
            bar.add_row(
                Text("train", style="bold"), Text(f"step {step}/{self._steps}"), progress, Text(on)
            )
            texts = (
                Text(f"       {text}", overflow="ellipsis", no_wrap=True)
                for text in (figures, mixture)
            )
            self._live.update(Group(bar, *texts))
        elif step % max(1, self._steps // 10) == 0 or step == self._steps:
            self._screen.say(f"step {step:>4}/{self._steps}  {figures}  {mixture}  {on}")


@dataclass(frozen=True)
class StepRecord:
    """One step of training, as in ``metrics.jsonl``."""

    step: int
    loss: float  # in nats per token
    devices: int
    wait_s: float  # of the training, for the batch
    train_s: float
    tokens: int
    rows: dict[str, int]  # by source
    reads_per_example: float  # reads of the store per row, since this loader was opened
    digest: str  # of the tokens of the batch


class StepLog:
    """The steps of a run.

    Args:
        path: The file to write, one JSON line per step; it must not exist yet.
        weights: The weights of the mixture, by source.
        steps: Steps of the run.
        line: Where to show the figures.
    """

    def __init__(
        self, path: Path, weights: Mapping[str, object], steps: int, line: TrainingLine
    ) -> None:
        self.records: list[StepRecord] = []
        self.names = tuple(weights)
        self.wanted: Float64[np.ndarray, "steps sources"] = Blend(weights).at(np.arange(steps))
        self._path = path
        self._line = line
        self._recent: deque[StepRecord] = deque(maxlen=_RECENT)

    def add(self, record: StepRecord) -> None:
        """Writes and shows a step."""
        if self.records and self.records[-1].devices != record.devices:
            self._recent.clear()
        self.records.append(record)
        self._recent.append(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        loss = sum(r.loss for r in self._recent) / len(self._recent)
        waiting, tokens_per_s = _rates(self._timed()[-_RECENT:] or [*self._recent])
        figures = (
            f"loss {loss:.2f}  {tokens_per_s:,.0f} tokens/s  waiting for data {waiting:.1%}"
            f"  reads/example {record.reads_per_example:.4f}"
        )
        rows = np.array([[r.rows[name] for name in self.names] for r in self._recent]).sum(axis=0)
        planned = self.wanted[self._recent[0].step : record.step + 1].mean(axis=0)
        shares = zip(self.names, rows / rows.sum(), planned, strict=True)
        mixture = "  ".join(f"{name} {share:.1%} ({want:.1%})" for name, share, want in shares)
        self._line.update(record.step + 1, record.devices, figures, mixture)

    @property
    def losses(self) -> Float64[np.ndarray, " steps"]:
        """Loss of each step so far."""
        return np.array([record.loss for record in self.records])

    @property
    def rows(self) -> Int64[np.ndarray, "steps sources"]:
        """Rows that each step so far took from each source."""
        return np.array([[record.rows[name] for name in self.names] for record in self.records])

    @property
    def digests(self) -> list[str]:
        """Digest of the batch of each step so far."""
        return [record.digest for record in self.records]

    @property
    def waiting_share(self) -> float:
        """Time waited for data / time of the run, 0 to 1, both without the steps that compile the
        model.
        """
        return _rates(self._timed())[0]

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on per second, without the steps that compile the model."""
        return _rates(self._timed())[1]

    @property
    def worst_deviation(self) -> float:
        """Largest difference, at any step and for any source, between actual and target rows so
        far.
        """
        rows = self.rows
        planned = rows.sum(axis=1, keepdims=True) * self.wanted[: len(rows)]
        return float(np.abs(np.cumsum(rows - planned, axis=0)).max())

    def _timed(self) -> list[StepRecord]:
        """The steps without those that compiled the model: the first one on each
        number of devices.
        """
        return [
            now
            for previous, now in itertools.pairwise(self.records)
            if previous.devices == now.devices
        ]


def _rates(records: Sequence[StepRecord]) -> tuple[float, float]:
    """Share of the time spent waiting, and tokens per second."""
    waited = sum(r.wait_s for r in records)
    seconds = max(waited + sum(r.train_s for r in records), 1e-9)
    return waited / seconds, sum(r.tokens for r in records) / seconds
