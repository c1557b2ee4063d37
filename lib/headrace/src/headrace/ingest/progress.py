"""How far a build is: what was done, its sum and rates, and a bar on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What came through the pipeline since the last report."""

    documents: int
    tokens: int
    text_bytes: int
    stored_bytes: int

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __neg__(self) -> Progress:
        return Progress(*(-n for n in vars(self).values()))


NOTHING = Progress(0, 0, 0, 0)


@contextmanager
def show_progress(total: int, what: str = "building") -> Iterator[Callable[[Progress], None]]:
    """A bar over ``total`` stored bytes on stderr, and the function that moves it."""
    from rich import progress  # here, as workers do without
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn(what),
        progress.BarColumn(),
        progress.TextColumn("{task.percentage:>3.0f}%"),
        progress.TextColumn("{task.fields[rates]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    rates = Rates()
    with bar:
        shown = bar.add_task("", total=total or None, rates="")

        def report(done: Progress) -> None:
            bar.update(shown, advance=done.stored_bytes, rates=rates.after(done))

        yield report


class Rates:
    """Mean rates since the build began, as text.

    Example:
        >>> rates = Rates(clock=iter([0.0, 2.0]).__next__)
        >>> rates.after(Progress(documents=10, tokens=3_000_000, text_bytes=12_000_000, stored_bytes=1))
        '5 docs/s  1.50 M tokens/s  6.0 MB/s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._started, self._done = clock, clock(), NOTHING

    def after(self, done: Progress) -> str:
        """The rates, ``done`` included."""
        self._done += done
        seconds = max(self._clock() - self._started, 1e-9)
        documents, tokens, text_bytes, _ = (n / seconds for n in vars(self._done).values())
        return f"{documents:,.0f} docs/s  {tokens / 1e6:.2f} M tokens/s  {text_bytes / 1e6:.1f} MB/s"
