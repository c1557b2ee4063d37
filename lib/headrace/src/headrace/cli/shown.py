"""How commands show text, sizes, shares and progress: in colour on a terminal, with plain marks
elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.errors import printable as printable
from headrace.numbers import short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.analysis.check.judgments import Judgment

_BAR = 32
TRAINED = "bold bright_green"
NOT_TRAINED = "dim"
BOUNDARY = "reverse magenta"
OPEN = "\u27e6"
CLOSE = "\u27e7"
# What JSON itself leaves as it is: controls, what turns the direction of text, halves of pairs
_ESCAPED = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def say(text: str, *, err: bool = False) -> None:
    """Prints a text without what controls a terminal: names in it may be of anybody's choice."""
    import typer

    typer.echo(printable(text), err=err)


def say_json(value: Any) -> None:
    """Prints a value as one line of JSON, in which what controls a terminal is escaped."""
    import typer

    text = json.dumps(value, ensure_ascii=False)
    typer.echo(_ESCAPED.sub(lambda control: f"\\u{ord(control[0]):04x}", text))


def terminal(*, soft_wrap: bool = False) -> Console:
    """A console of rich's that shows text as :func:`say` does; nothing in it is markup."""
    from rich.console import Console
    from rich.segment import Segment

    class Shown:
        def __init__(self, content: Any) -> None:
            self._content = content

        def __rich_console__(self, console: Any, options: Any) -> Iterator[Segment]:
            for text, style, control in console.render(self._content, options):
                yield Segment(text if control else printable(text), style, control)

    class Hook:
        def process_renderables(self, renderables: list[Any]) -> list[Any]:
            return [Shown(content) for content in renderables]

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)
    console.push_render_hook(Hook())  # pyright: ignore[reportArgumentType]
    return console


def labelled(label: str, style: str, text: str) -> Text:
    """A text after a word of another style."""
    from rich.text import Text

    return Text.assemble((label, style), f" {text}")


def coloured(console: Console) -> bool:
    """Whether the console shows colours; if not, plain marks replace them."""
    return console.color_system is not None and not console.no_color


def marked(runs: list[tuple[str, bool]], console: Console) -> Text:
    """Text whose trained pieces are coloured, or put between ``\u27e6`` and ``\u27e7``."""
    from rich.text import Text

    text = Text()
    for piece, trained in runs:
        spelled = printable(piece)
        if coloured(console):
            text.append(spelled, TRAINED if trained else NOT_TRAINED)
        else:
            text.append(f"{OPEN}{spelled}{CLOSE}" if trained else spelled)
    return text


def legend(console: Console) -> Text:
    """Explains the marks of :func:`marked`."""
    from rich.text import Text

    trained = Text("trained on", TRAINED) if coloured(console) else Text(f"{OPEN}trained on{CLOSE}")
    return Text.assemble(trained, ", ", ("not trained on", NOT_TRAINED))


def one_line(text: str, width: int) -> str:
    r"""The text as one line of at most ``width`` cells of a terminal, with visible line ends.

    Example:
        >>> one_line("a\nb\tc" + "x" * 20, 10), one_line("漢字漢字", 5)
        ('a⏎b cxxxx…', '漢字…')
    """
    from rich.text import Text

    line = Text(printable(text[: width + 1].replace("\t", " ").replace("\n", "⏎")))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def bar(share: float) -> str:
    """A bar of up to 32 characters; any share above 0 is visible.

    Example:
        >>> len(bar(1.0)), bar(0.001), bar(0)
        (32, '▏', '')
    """
    eighths = round(share * _BAR * 8)
    full, rest = divmod(max(eighths, 1) if share > 0 else 0, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def figures_table(*titles: str, left: int = 1, title: str | None = None) -> Table:
    """A table without rules: the first ``left`` columns hold names, the others figures; long cells
    are folded.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for number, head in enumerate(titles):
        table.add_column(head, justify="left" if number < left else "right", overflow="fold")
    return table


def show_judgments(judgments: Iterable[Judgment]) -> None:
    """Prints one line for each judgment: its coloured level, the figure, and why or
    what to change.
    """
    console = terminal(soft_wrap=True)
    for one in judgments:
        style = {"good": "green", "unknown": "dim"}.get(one.level, "yellow")
        console.print(labelled(one.level, style, f"{one.figure}: {one.text}"))


def facts_table(facts: Mapping[str, str]) -> Table:
    """One row for each fact: its name, dimmed, and its value."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


@contextmanager
def counting(
    what: str, *, show: bool
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Shows a progress bar on stderr, if that is a terminal and ``show`` is True.

    Yields:
        ``expect(total)`` and ``advance(values since the last call)``; both can be called from any
        thread.
    """
    from headrace import progress as reports

    with reports.bar(show=show) as progress:
        task = progress.add_task(what, total=None, rate="")

        def expect(total: int) -> None:
            progress.update(task, total=max(total, 1))

        def advance(done: int) -> None:
            progress.advance(task, done)
            speed = progress.tasks[task].speed
            if speed:
                progress.update(task, rate=f"{short(speed)} values/s")

        yield expect, advance


@contextmanager
def working(what: str, *, show: bool = True) -> Iterator[None]:
    """Shows a progress bar on stderr, if that is a terminal: the time taken and, once the work
    reports its progress (:mod:`headrace.progress`), its current task, the share done and the time
    left.
    """
    from headrace import progress

    with progress.bar(show=show) as progress_bar:
        task = progress_bar.add_task(what, total=None, rate="")

        def watch(now: str, done: float, total: float) -> None:
            if progress_bar.tasks[task].description != now:
                progress_bar.reset(task, description=now)
            progress_bar.update(task, completed=done, total=max(total, 1))

        with progress.watched(watch):
            yield
