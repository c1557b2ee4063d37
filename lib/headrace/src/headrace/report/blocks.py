"""The elements of a page: tiles, tables, charts, notes; each can render its HTML. All text is
escaped here.

Invariant: no name of a source, path or error message can become markup: only this module writes
HTML.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

Figure: TypeAlias = dict[str, Any]
"""``{"series": [...], "x": {...}, "y": {...}}`` as charts.js draws it."""
Kind: TypeAlias = Literal["left", "right", "code", "prose"]
"""Kind of a column: text, numbers, text to copy, sentences."""
_LONG = 24
"""Rows above which a table scrolls within itself."""


@dataclass(frozen=True)
class Tiles:
    """Questions in a row: level (as of :class:`Notes`, or empty), question, verdict, figures."""

    items: Sequence[tuple[str, str, str, str]]

    def to_html(self) -> str:
        tiles = "".join(
            f'<div class="tile {level}"><dt>{_text(label)}</dt><dd>{_text(value)}</dd>'
            f'<dd class="note">{_text(note)}</dd></div>'
            for level, label, value, note in self.items
        )
        return f'<dl class="tiles">{tiles}</dl>'


@dataclass(frozen=True)
class Table:
    """A table: heading and kind of each column, and cells as text; a folded one is shown on a click
    on its caption.
    """

    columns: Sequence[tuple[str, Kind]]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False

    def to_html(self) -> str:
        shown_caption = self.caption and not self.folded
        caption = f"<caption>{_text(self.caption)}</caption>" if shown_caption else ""
        head = "".join(
            f'<th scope="col" class="{kind}">{_text(title)}</th>' for title, kind in self.columns
        )
        body = "".join(f"<tr>{self._row(row)}</tr>" for row in self.rows)
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        long = " long" if len(self.rows) > _LONG else ""
        scrolling = f'<div class="scroll{long}" tabindex="0" role="group">{table}</div>'
        if not self.folded:
            return scrolling
        return f"<details><summary>{_text(self.caption)}</summary>{scrolling}</details>"

    def _row(self, row: Sequence[str]) -> str:
        cells: list[str] = []
        for k, ((_, kind), cell) in enumerate(zip(self.columns, row, strict=True)):
            text = f"<code>{_text(cell)}</code>" if kind == "code" and cell else _text(cell)
            tag, scope = ("th", ' scope="row"') if k == 0 else ("td", "")
            cells.append(f'<{tag}{scope} class="{kind}">{text}</{tag}>')
        return "".join(cells)


def columns(*heads: str, left: int = 0) -> list[tuple[str, Kind]]:
    """Headings of columns, the first ``left`` of which are text and the others numbers."""
    return [(head, "left" if k < left else "right") for k, head in enumerate(heads)]


@dataclass(frozen=True)
class Chart:
    """A chart, drawn by the page's script in the page's colours; ``name``, its id, is letters and
    dashes.
    """

    name: str
    title: str
    figure: Figure
    caption: str = ""

    def to_html(self) -> str:
        height = int(self.figure.get("height", 320))
        return (
            f'<figure class="chart"><h3>{_text(self.title)}</h3>'
            f'<div id="chart-{self.name}" class="plot" style="min-height:{height}px" role="img"'
            f' aria-label="{_text(self.title)}"></div>'
            f"<figcaption>{_text(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Text:
    """A paragraph; ``quiet`` for what is missing."""

    text: str
    quiet: bool = False

    def to_html(self) -> str:
        return (
            f'<p class="quiet">{_text(self.text)}</p>'
            if self.quiet
            else f"<p>{_text(self.text)}</p>"
        )


@dataclass(frozen=True)
class Notes:
    """Notes for the reader: level (``problem``, ``warning`` or ``good``), place, and text."""

    items: Sequence[tuple[str, str, str]]

    def to_html(self) -> str:
        lines: list[str] = []
        for level, where, what in self.items:
            code = f"<code>{_text(where)}</code> " if where else ""
            lines.append(f'<li class="{level}"><b>{_text(level)}</b> {code}{_text(what)}</li>')
        return f'<ul class="notes">{"".join(lines)}</ul>'


@dataclass(frozen=True)
class Details:
    """Preformatted text that is shown on a click."""

    summary: str
    text: str

    def to_html(self) -> str:
        summary = f"<summary>{_text(self.summary)}</summary>"
        return f"<details>{summary}<pre>{_text(self.text)}</pre></details>"


Block: TypeAlias = Tiles | Table | Chart | Text | Notes | Details


@dataclass(frozen=True)
class Section:
    """A part of the page, with its place in the table of contents.

    Attributes:
        line: What it says in one line. With it, the section is folded.
        as_it_should_be: Whether a section with a line stays folded until it is clicked.
    """

    name: str
    title: str
    blocks: Sequence[Block]
    line: str = ""
    as_it_should_be: bool = True

    def to_html(self) -> str:
        parts = "".join(
            f'<div class="part" id="{part["id"]}">{part["html"]}</div>' for part in self.parts()
        )
        title = f"<h2>{_text(self.title)}</h2>"
        if self.line:
            opened = "" if self.as_it_should_be else " open"
            line = f'<span class="line">{_text(self.line)}</span>'
            parts = f"<details{opened}><summary>{title}{line}</summary>{parts}</details>"
            title = ""
        return f'<section id="{self.name}">{title}{parts}</section>'

    def parts(self) -> list[dict[str, str]]:
        """Id and HTML of each block."""
        return [
            {"id": f"{self.name}-{k}", "html": block.to_html()}
            for k, block in enumerate(self.blocks)
        ]

    def figures(self) -> dict[str, Figure]:
        """The figures of its charts, by id."""
        return {f"chart-{b.name}": plain(b.figure) for b in self.blocks if isinstance(b, Chart)}


def plain(value: Any) -> Any:
    """JSON values with six digits; values that are not finite become null, a gap in a line.

    Example:
        >>> plain({"y": (1.23456789, float("nan"), 10**12)})
        {'y': [1.23457, None, 1000000000000]}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("Sequence[Any]", value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.6g}")
    return value


def _text(text: str) -> str:
    return html.escape(text, quote=True)
