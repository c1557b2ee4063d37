"""What every bench shares: flags, tables, the JSON record, and bars that can fail.

A bench is a function that fills a :class:`Report`; :func:`run_bench` gives it ``--quick`` (under 50
s on two cores), ``--json FILE`` and ``--check`` (one line a bar, exit status 1 when one falls
short) and prints its tables::

    def measure(args: argparse.Namespace, report: Report) -> None:
        report.table("Orders", ["order", "VR"], [["full", 1.0]])
        report.bar("full: VR_128", 1.0, at_most=1.05)


    if __name__ == "__main__":
        run_bench("bench_example", __doc__, measure)

The record names the command, the machine and the versions, so that a number in a document can be
traced and repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

VERSIONS_OF = ("headrace", "numpy", "jax", "tensorstore")


@dataclasses.dataclass(frozen=True)
class Bar:
    """A number that an issue demands.

    Attributes:
        name: What is measured.
        measured: The value found.
        limit: The demanded value.
        kind: ``"at most"``, ``"at least"`` or ``"within"`` (of ``limit`` by ``tolerance``).
        tolerance: Only for ``"within"``.
    """

    name: str
    measured: float
    limit: float
    kind: str
    tolerance: float = 0.0

    @property
    def ok(self) -> bool:
        """NaN never passes."""
        if self.kind == "at most":
            return self.measured <= self.limit
        if self.kind == "at least":
            return self.measured >= self.limit
        return abs(self.measured - self.limit) <= self.tolerance

    def line(self) -> str:
        """``ok | FALLS SHORT``, name, measured, bar."""
        demand = f"{self.kind} {self.limit:g}" + (
            f" +- {self.tolerance:g}" if self.kind == "within" else ""
        )
        demand = demand.replace("within ", "")
        return (
            f"{'ok' if self.ok else 'FALLS SHORT':<11}  {self.name:<60}  {self.measured:>10.4g} "
            f" {demand}"
        )


class Report:
    """Tables, numbers and bars that a bench has collected so far."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []
        self.numbers: dict[str, Any] = {}
        self.notes: list[str] = []
        self.bars: list[Bar] = []

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Adds a table; cells are strings or numbers (floats are shown with four digits, None as a
        dash).
        """
        self.tables.append(
            {"title": title, "columns": list(columns), "rows": [list(r) for r in rows]}
        )

    def number(self, name: str, value: Any) -> None:
        """Records a value that belongs to no table."""
        self.numbers[name] = value

    def note(self, text: str) -> None:
        """A sentence that the reader of the numbers needs; printed below the tables and kept in the
        record.
        """
        self.notes.append(text)

    def bar(
        self,
        name: str,
        measured: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        within: tuple[float, float] | None = None,
    ) -> None:
        """Records a bar: exactly one of ``at_most``, ``at_least`` and ``within=(value,
        tolerance)``.
        """
        if at_most is not None:
            self.bars.append(Bar(name, float(measured), at_most, "at most"))
        if at_least is not None:
            self.bars.append(Bar(name, float(measured), at_least, "at least"))
        if within is not None:
            self.bars.append(Bar(name, float(measured), within[0], "within", within[1]))


def machine() -> dict[str, Any]:
    """The machine and the versions, without anything that names a person or a host."""
    model = platform.processor() or platform.machine()
    memory_gib = None
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
        memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        pass  # not Linux: the plain names have to do
    versions = {}
    for package in VERSIONS_OF:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": memory_gib,
        "load_average_at_start": round(os.getloadavg()[0], 2)
        if hasattr(os, "getloadavg")
        else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _plain(value: Any) -> Any:
    """Numpy values as JSON knows them; NaN as null."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "-"
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """A rich table: text to the left, numbers to the right. One that would break words is printed
    as several, one below the other, each with the first column.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    texts = [[column, *(row[k] for row in cells)] for k, column in enumerate(columns)]
    longest = [
        max(len(word) for text in column for word in text.split() or [""]) for column in texts
    ]
    for number, group in enumerate(_groups_that_fit(longest, console.width)):
        table = Table(title=title if number == 0 else None, title_justify="left")
        room = console.width - 1 - sum(longest[k] + 3 for k in group)
        for k in group:
            more = min(max(map(len, texts[k])) - longest[k], max(room, 0))
            room -= more
            is_text = all(isinstance(row[k], str) for row in rows)
            table.add_column(
                columns[k], justify="left" if is_text else "right", width=longest[k] + more
            )
        for row in cells:
            table.add_row(*[row[k] for k in group])
        console.print(table)


def _groups_that_fit(longest: Sequence[int], width: int) -> list[list[int]]:
    """Columns of each table, the first in all of them, so that none is narrower than its longest
    word.
    """
    groups = [[0]]
    for k in range(1, len(longest)):
        if len(groups[-1]) > 1 and sum(longest[n] + 3 for n in (*groups[-1], k)) + 1 > width:
            groups.append([0])
        groups[-1].append(k)
    return groups


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from ``least`` up."""

    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} up")
        return int(text)

    return whole


def bench_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser with the three flags that every bench has."""
    parser = argparse.ArgumentParser(
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes: under 50 s on two cores"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to FILE")
    parser.add_argument(
        "--check", action="store_true", help="one line a bar; exit status 1 when one falls short"
    )
    return parser


def touch_memory(size: int = 2 << 30) -> None:
    """Writes to memory and gives it back, so that what a bench allocates next is not memory's very
    first use.

    A virtual machine gets a page from its host when it first writes to it: seen here, 10 times the
    price of an ordinary page fault, and the machine's, not the loader's.
    """
    np.empty(size, np.uint8)[::4096] = 1


def run_bench(
    name: str,
    description: str | None,
    measure: Callable[[argparse.Namespace, Report], None],
    *,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Parses the flags, measures, prints, writes the record; exits with 1 if ``--check`` and a bar
    falls short.

    Args:
        name: File name without ``.py``; goes into the record.
        description: The script's docstring.
        measure: Fills the report.
        add_arguments: Adds the bench's own flags.
        argv: Arguments; None for the command line's.
    """
    parser = bench_parser(description)
    if add_arguments is not None:
        add_arguments(parser)
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(arguments)
    report = Report()
    before = machine()
    started = time.perf_counter()
    measure(args, report)
    seconds = time.perf_counter() - started

    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in report.tables:
        print_table(console, table["title"], table["columns"], table["rows"])
    for note in report.notes:
        console.print(note, style="dim", highlight=False)
    console.print(f"{seconds:.1f} s on {before['cores']} cores", style="dim", highlight=False)

    if args.json is not None:
        record = {
            "bench": name,
            "command": " ".join(["python", f"scripts/bench/{name}.py", *arguments]),
            "quick": args.quick,
            "seconds": round(seconds, 1),
            "machine": before,
            "tables": report.tables,
            "numbers": report.numbers,
            "notes": report.notes,
            "bars": [dataclasses.asdict(b) | {"ok": b.ok} for b in report.bars],
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(_plain(record), indent=1) + "\n")
    if args.check:
        for bar in report.bars:
            print(bar.line())
        if not all(bar.ok for bar in report.bars):
            sys.exit(1)


def take_share(tokens: np.ndarray, column: np.ndarray, batch_size: int, batches: int) -> float:
    """Speed of ``np.take`` of shuffled rows of both arrays into buffers, as a share of that of
    tokens alone.
    """
    order = np.random.default_rng(1).integers(0, len(tokens), (batches, batch_size))
    arrays = [
        (array, np.empty((batch_size, array.shape[1]), array.dtype)) for array in (tokens, column)
    ]
    seconds = []
    for sources in (arrays[:1], arrays):
        started = time.perf_counter()
        for rows in order:
            for array, out in sources:
                np.take(array, rows, axis=0, out=out, mode="clip")
        seconds.append(time.perf_counter() - started)
    return seconds[0] / seconds[1]
