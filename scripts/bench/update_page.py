"""Bring the tables of docs/performance.md and docs/order.md up to date with the records in
docs/bench.

    python scripts/bench/update_page.py            write the pages
    python scripts/bench/update_page.py --check    exit status 1 if one differs from what it would write

What stands between ``<!-- bars peers,peers_latency -->`` (or ``<!-- table peers 0 -->``, ``<!--
notes peers -->``) and the next ``<!-- end -->`` is made from those records; all else is written by
hand. ``<!-- table peers 0 * -->`` has the rows alone in which a cell has that text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("performance.md", "order.md")]
RECORDS = ROOT / "docs" / "bench"
_PART = re.compile(r"<!-- (bars|table|notes) (\S+) ?(\d*) ?(\S*?) ?-->\n.*?<!-- end -->", re.DOTALL)


def update(page: str, records: Path = RECORDS) -> str:
    """The page with its tables made afresh."""

    def part(found: re.Match[str]) -> str:
        kind, names, number, having = found.groups()
        read = [json.loads((records / f"{name}.json").read_text()) for name in names.split(",")]
        if kind == "bars":
            made = _bars([bar for record in read for bar in record["bars"]])
        elif kind == "table":
            table = read[0]["tables"][int(number)]
            rows = [row for row in table["rows"] if any(having in str(cell) for cell in row)]
            made = _markdown(
                [c.replace("pro- cesses", "processes") for c in table["columns"]], rows
            )
        else:
            made = "\n".join(f"- {note.replace('*', '`*`')}" for note in read[0]["notes"])
        return f"{found[0].partition(chr(10))[0]}\n\n{made}\n\n<!-- end -->"

    return _PART.sub(part, page)


def _bars(bars: Sequence[dict[str, Any]]) -> str:
    """How many bars are met, and those that are not: a record has all of them."""
    missed: list[list[Any]] = []
    subject = ""
    for bar in bars:
        name = bar["name"].replace("the same", subject)
        subject = name.partition(":")[0]
        if not bar["ok"]:
            missed.append([name, bar["measured"], _wanted(bar)])
    table = _markdown(["missed", "measured", "wanted"], missed)
    return f"{len(bars) - len(missed)} of {len(bars)} bars are met.\n\n{table}"


def _wanted(bar: dict[str, Any]) -> str:
    limit = f"{bar['limit']:g}"
    return (
        f"{limit} +- {bar['tolerance']:g}" if bar["kind"] == "within" else f"{bar['kind']} {limit}"
    )


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit status 1 if a page is not up to date",
    )
    check = parser.parse_args().check
    for path in PAGES:
        page = path.read_text()
        updated = update(page)
        if not check:
            path.write_text(updated)
        elif updated != page:
            sys.exit(
                f"docs/{path.name} does not say what docs/bench does: python"
                " scripts/bench/update_page.py"
            )


if __name__ == "__main__":
    main()
