"""A progress bar for commands that go through a whole cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def counting(what: str, *, show: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar on stderr, if that is a terminal.

    Args:
        what: What is being done, in a word.
        show: False: no bar.

    Yields:
        ``expect(total)`` and ``advance(done since the last call)``, in values; callable from any thread.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (show and console.is_terminal), transient=True) as progress:
        task = progress.add_task(what, total=None, rate="")

        def expect(total: int) -> None:
            progress.update(task, total=max(total, 1))

        def advance(done: int) -> None:
            progress.advance(task, done)
            speed = progress.tasks[task].speed
            if speed:
                progress.update(task, rate=f"{speed / 1e6:,.0f} M values/s")

        yield expect, advance
