"""Progress of long work: functions report it, and commands show it.

A function calls :func:`report`, or iterates over :func:`track`. A command that shows the progress
opens :func:`watched` in the same thread; otherwise, a report costs only the look-up of a context
variable. :func:`bar` is the progress bar of all commands: the task, a bar, the share done, a rate
if there is one, and the time left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
Watcher: TypeAlias = Callable[[str, float, float], None]
"""Receives the task, the amount done, and the total."""

_watcher: ContextVar[Watcher | None] = ContextVar("headrace_watcher", default=None)
_BAR_WIDTH = 24
LINE_EVERY_S = 10.0
"""Seconds between two lines of progress where output is no terminal."""


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Passes reports from within this context to ``watcher``."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(what: str, done: float, total: float) -> None:
    """Reports the progress of some work."""
    watcher = _watcher.get()
    if watcher is not None and total > 0:
        watcher(what, done, total)


def track(
    items: Iterable[T], what: str, total: float, size: Callable[[T], float] = lambda _: 1
) -> Iterator[T]:
    """Yields items, and reports each when the next one is requested.

    Args:
        items: The items to yield.
        what: What is done with them.
        total: Their total size.
        size: Size of an item; 1 if left out.

    Example:
        >>> with watched(lambda what, done, total: print(f"{what}: {done} of {total}")):
        ...     letters = "".join(track("ab", "reading", 2))
        reading: 0 of 2
        reading: 1 of 2
        reading: 2 of 2
    """
    size_so_far = 0.0 if total != int(total) else 0
    report(what, size_so_far, total)
    for item in items:
        yield item
        size_so_far += size(item)
        report(what, size_so_far, total)


@contextmanager
def countdown(what: str) -> Iterator[Callable[[float], None]]:
    """Shows what is waited for on stderr, if that is a terminal, and the seconds left, which the
    function that it yields is called with; at the end, the line is empty again.
    """

    def show(left_s: float) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{what}: {left_s:.0f} s left\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def bar(*, show: bool = True) -> Progress:
    """A progress bar on stderr, which disappears at the end; where that is no terminal, a line
    every :data:`LINE_EVERY_S` seconds. Its tasks have a field ``rate``.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
    )
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            remaining = task.time_remaining if task.total is not None else None
            minutes, seconds = divmod(
                int((task.elapsed or 0) if remaining is None else remaining), 60
            )
            time = (
                f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
                if minutes >= 60
                else f"{minutes}:{seconds:02}"
            )
            return Text(f"{time} so far" if remaining is None else f"{time} left")

    class Lines(Progress):
        """What a bar shows, in lines for a log."""

        printed_at = time.monotonic()

        def update(self, task_id: TaskID, *args: Any, **fields: Any) -> None:
            super().update(task_id, *args, **fields)
            self.print_line(task_id)

        def advance(self, task_id: TaskID, advance: float = 1) -> None:
            super().advance(task_id, advance)
            self.print_line(task_id)

        def print_line(self, task_id: TaskID) -> None:
            now = time.monotonic()
            task = self._tasks[task_id]
            if not show or task.total is None or now - self.printed_at < LINE_EVERY_S:
                return
            self.printed_at = now
            time_left = "" if task.time_remaining is None else f"{task.time_remaining:.0f} s left"
            parts = [f"{task.percentage:.0f}%", str(task.fields["rate"]), time_left]
            print(f"{task.description}: {'  '.join(filter(None, parts))}", file=sys.stderr)

    console = Console(stderr=True)
    kind = Progress if console.is_terminal else Lines
    return kind(
        TextColumn("{task.description}"),
        BarColumn(_BAR_WIDTH),
        TaskProgressColumn("{task.percentage:3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        Left(),
        console=console,
        disable=not (show and console.is_terminal),
        transient=True,
    )
