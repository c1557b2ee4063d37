"""How far long work has come: said where it is done, shown where somebody looks.

Work calls :func:`report`, or walks through :func:`track`. A command that wants to show it opens :func:`watched`, in the
same thread; where nobody looks, a report costs the look-up of a context variable. :func:`bar` is how all of them look:
what is done, a bar, the share, a rate if there is one, and the time that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
Watcher: TypeAlias = Callable[[str, float, float], None]
"""Told what is done, how much of it is, and of how much."""

_watcher: ContextVar[Watcher | None] = ContextVar("headrace_watcher", default=None)
_BAR_WIDTH = 24


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tells ``watcher`` what is reported within."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(what: str, done: float, total: float) -> None:
    """Says how far some work is."""
    watcher = _watcher.get()
    if watcher is not None and total > 0:
        watcher(what, done, total)


def track(items: Iterable[T], what: str, total: float, size: Callable[[T], float] = lambda _: 1) -> Iterator[T]:
    """The items, each reported when the next one is asked for.

    Args:
        items: What the work walks through.
        what: What is done with them.
        total: Size of all of them together.
        size: Size of one; each counts one if left out.

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


def bar(*, show: bool = True) -> Progress:
    """A bar on stderr, if that is a terminal, that is gone when it is closed; its tasks have a field ``rate``."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Share(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.total is None else f"{task.percentage:3.0f}%")

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            remaining = task.time_remaining if task.total is not None else None
            minutes, seconds = divmod(int((task.elapsed or 0) if remaining is None else remaining), 60)
            time = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"
            return Text(f"{time} so far" if remaining is None else f"{time} left")

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(_BAR_WIDTH),
        Share(),
        TextColumn("{task.fields[rate]}"),
        Left(),
        console=console,
        disable=not (show and console.is_terminal),
        transient=True,
    )
