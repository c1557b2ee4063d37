"""The bar of a build: how far, how fast, how long still. Silent where nobody looks (stderr is no terminal)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headrace.ingest import engine
from headrace.ingest.plan import PartTask

Report = Callable[[engine.Progress], None]


@contextmanager
def show_progress(tasks: Sequence[PartTask], enabled: bool = True) -> Iterator[Report | None]:
    """A bar over the stored bytes of ``tasks``, and the function that moves it; None if there is nobody to see it."""
    if not enabled or not tasks or not sys.stderr.isatty():
        yield None
        return
    total = sum(t.stored_bytes for t in tasks)
    bar = Progress(
        TextColumn("building"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rates]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    rates = Rates()
    with bar:
        shown = bar.add_task("", total=total or None, rates="")

        def report(done: engine.Progress) -> None:
            bar.update(shown, advance=done.stored_bytes, rates=rates.after(done))

        yield report


class Rates:
    """Mean rates since the build began, as text.

    Example:
        >>> rates = Rates(clock=iter([0.0, 2.0]).__next__)
        >>> rates.after(engine.Progress(documents=10, tokens=3_000_000, text_bytes=12_000_000, stored_bytes=1))
        '5 docs/s  1.50 M tokens/s  6.0 MB/s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._documents = self._tokens = self._bytes = 0

    def after(self, done: engine.Progress) -> str:
        """The rates, ``done`` included."""
        self._documents += done.documents
        self._tokens += done.tokens
        self._bytes += done.text_bytes
        seconds = max(self._clock() - self._started, 1e-9)
        return (
            f"{self._documents / seconds:,.0f} docs/s  {self._tokens / seconds / 1e6:.2f} M tokens/s  "
            f"{self._bytes / seconds / 1e6:.1f} MB/s"
        )
