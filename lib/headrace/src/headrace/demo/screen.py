"""What the demo says: phases with their times, a live line while it trains, and the table at the end.

On a terminal the training line changes in place; elsewhere (a pipe, a CI log) a plain line comes every tenth of the
steps. Nothing here measures: it prints figures that ``run`` hands over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Progress:
    """Figures of the training line; the loss and the mixture are means over the last steps.

    Attributes:
        step: Steps done.
        steps: Steps in all.
        devices: Devices that the batch is split over.
        loss: In nats a token.
        tokens_per_s: Tokens trained on, a second.
        waiting: Share of the time that training waited for data, 0 to 1.
        reads_per_example: Reads of the store for each row.
        mixture: (realised, wanted) share of each source, 0 to 1.
    """

    step: int
    steps: int
    devices: int
    loss: float
    tokens_per_s: float
    waiting: float
    reads_per_example: float
    mixture: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Check:
    """One thing that the demo shows: what, with which figure, and whether it came out so."""

    name: str
    figure: str
    passed: bool
    decides: bool = True  # a figure that depends on how busy the machine is does not decide the exit status


@dataclass
class Screen:
    """Where the demo prints, and how long its phases took."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def say(self, text: str = "") -> None:
        """Prints one line of rich markup, never wrapped: a log keeps its lines."""
        self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Times a phase, and prints its name, its seconds and the details that were appended to the yielded list."""
        details: list[str] = []
        started = time.perf_counter()
        if self.console.is_terminal:
            with self.console.status(f"{name} ..."):
                yield details
        else:
            yield details
        self._book(name, time.perf_counter() - started, details)

    @contextmanager
    def training(self, steps: int) -> Iterator[TrainingLine]:
        """The training line; the time is booked under ``train``."""
        started = time.perf_counter()
        if self.console.is_terminal:
            with Live(Text("compiling the model ..."), console=self.console, refresh_per_second=8) as live:
                line = TrainingLine(self, steps, live)
                yield line
        else:
            line = TrainingLine(self, steps, None)
            yield line
        self._book("train", time.perf_counter() - started, line.details)

    def _book(self, name: str, seconds: float, details: Sequence[str] = ()) -> None:
        self.seconds[name] = seconds
        first, *others = details or [""]
        self.say(f"[bold]{name:<10}[/] {seconds:5.1f} s  {escape(first)}".rstrip())
        for other in others:
            self.say(f"{'':<19}{escape(other)}")

    def show_checks(self, checks: Sequence[Check]) -> None:
        """The table of what was shown."""
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "[green]yes[/]" if check.passed else "[bold red]NO [/]"
            self.say(f"  {mark}  {check.name:<{width}}  {escape(check.figure)}")

    def show_pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Two columns: a path or a command, and what it is good for."""
        width = max(len(left) for left, _ in pairs)
        for left, right in pairs:
            self.say(f"  [cyan]{escape(left):<{width}}[/]  {escape(right)}")


class TrainingLine:
    """The line that changes while the model trains; ``details`` are printed beside its time at the end."""

    def __init__(self, screen: Screen, steps: int, live: Live | None) -> None:
        self._screen, self._live = screen, live
        self._every = max(1, steps // 10)
        self.details: list[str] = []

    def say(self, text: str) -> None:
        """Prints a line above the training line."""
        self._screen.say(text)

    def update(self, now: Progress) -> None:
        """Shows the figures of a step."""
        if self._live is not None:
            self._live.update(_live_view(now))
        elif now.step % self._every == 0 or now.step == now.steps:
            self._screen.say(_plain_line(now))


def _plain_line(now: Progress) -> str:
    return (
        f"step {now.step:>4}/{now.steps}  {_figures(now)}  rows (wanted): {_mixture(now)}  on {_devices(now.devices)}"
    )


def _live_view(now: Progress) -> Group:
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        Text("train", style="bold"),
        Text(f"step {now.step}/{now.steps}"),
        ProgressBar(total=now.steps, completed=now.step, width=24),
        Text(f"on {_devices(now.devices)}"),
    )
    return Group(
        bar,
        Text(f"       {_figures(now)}", overflow="ellipsis", no_wrap=True),
        Text(f"       rows (wanted): {_mixture(now)}", overflow="ellipsis", no_wrap=True),
    )


def _figures(now: Progress) -> str:
    return (
        f"loss {now.loss:.2f}  {now.tokens_per_s:,.0f} tokens/s  waiting for data {now.waiting:.1%}"
        f"  reads/example {now.reads_per_example:.4f}"
    )


def _mixture(now: Progress) -> str:
    return "  ".join(f"{name} {real:.1%} ({wanted:.1%})" for name, (real, wanted) in now.mixture.items())


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
