"""A study: arms x seeds, each run kept when it is done, and the figures that compare arms with one
of them.

Runs go seed by seed, so that an interrupted study has whole seeds. A finished run is one JSON file
in the work folder, under the digest of everything that determines it (:attr:`Study.settings`): a
study that is started again does what is left, and one with other settings shares nothing with it.

Comparison: runs of one seed share their initial weights, so arms are compared by paired
differences. ``seed_sd`` is the standard deviation of the reference arm over its seeds: how much the
loss differs for no reason at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from headrace.order.seeds import ORDER_VERSION

WORK = Path("runs/experiments")
_T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, two-sided 95 %, for 1 to 9 degrees of freedom."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What is run.

    Attributes:
        name: Folder of the experiment.
        settings: All that determines the runs, as JSON values.
        seeds: Seeds of each arm, by name of the arm.
        work: Folder for finished runs.
    """

    name: str
    settings: Mapping[str, Any]
    seeds: Mapping[str, Sequence[int]]
    work: Path

    @property
    def digest(self) -> str:
        """Names the settings."""
        said = json.dumps([ORDER_VERSION, self.settings], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Where the finished runs of these settings lie."""
        return self.work / self.name / self.digest

    def run(
        self, one: Callable[[str, int], Record], say: Callable[[str], None]
    ) -> dict[str, list[Record]]:
        """Does the runs that are not there yet.

        Args:
            one: Does the run of an arm and a seed.
            say: Told what is going on.

        Returns:
            The records of each arm, by seed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = sorted({seed for seeds in self.seeds.values() for seed in seeds})
        for seed in wanted:
            for arm in (arm for arm, seeds in self.seeds.items() if seed in seeds):
                path = self._path(arm, seed)
                if path.exists():
                    say(f"{arm} seed {seed}: done before")
                    continue
                started = time.perf_counter()
                cpu = time.process_time()
                record = {"arm": arm, "seed": seed, **one(arm, seed)}
                record |= {
                    "seconds": time.perf_counter() - started,
                    "cpu_seconds": time.process_time() - cpu,
                }
                write_json(path, record)
                say(f"{arm} seed {seed}: {record['seconds']:.0f} s")
        return {
            arm: [json.loads(self._path(arm, s).read_text()) for s in seeds]
            for arm, seeds in self.seeds.items()
        }

    def _path(self, arm: str, seed: int) -> Path:
        return self.folder / f"{arm}-{seed}.json"


@dataclass(frozen=True)
class Compared:
    """An arm beside the reference: all in the unit of the values.

    Attributes:
        mean: Mean over seeds.
        sd: Standard deviation over seeds; NaN for one seed.
        difference: Mean of the paired differences to the reference.
        half_width: Of their 95 % confidence interval; NaN for one pair.
    """

    mean: float
    sd: float
    difference: float
    half_width: float

    def to_dict(self) -> dict[str, float | None]:
        """NaN as null."""
        return {name: value if np.isfinite(value) else None for name, value in vars(self).items()}


def compare(values: Mapping[int, float], reference: Mapping[int, float]) -> Compared:
    """Values of an arm by seed, beside those of the reference; seeds that both have are paired.

    Example:
        >>> compare({0: 2.0, 1: 4.0}, {0: 1.0, 1: 3.0, 2: 5.0}).difference
        1.0
    """
    mine = np.array(list(values.values()))
    pairs = np.array([values[s] - reference[s] for s in values if s in reference])
    sd = float(mine.std(ddof=1)) if mine.size > 1 else float("nan")
    half = float("nan")
    if pairs.size > 1:
        t = _T_975[min(pairs.size - 1, len(_T_975)) - 1]
        half = float(t * pairs.std(ddof=1) / np.sqrt(pairs.size))
    return Compared(float(mine.mean()), sd, float(pairs.mean()), half)


def by_seed(records: Sequence[Record], field: str = "val_loss") -> dict[int, float]:
    """A field of an arm's records, by seed."""
    return {record["seed"]: float(record[field]) for record in records}


def mean_of(records: Sequence[Record], field: str) -> float:
    """Mean of a field over an arm's seeds."""
    return float(np.mean([record[field] for record in records]))


def mean_curve(records: Sequence[Record], field: str) -> np.ndarray:
    """Mean over seeds of a curve, float ``[points, 2]``: step and value."""
    return np.mean([record[field] for record in records], axis=0)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parse(
    description: str | None, argv: Sequence[str] | None, *, seeds: int | None = None
) -> argparse.Namespace:
    """The flags that every experiment has; ``--seeds`` where a number of them is usual (two with
    ``--quick``).
    """
    parser = argparse.ArgumentParser(
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a toy of it, in seconds; decides nothing"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where the record goes; the picture goes beside it",
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder for corpora and finished runs"
    )
    if seeds is not None:
        parser.add_argument("--seeds", type=int, help=f"seeds of most arms, {seeds} by default")
    args = parser.parse_args(argv)
    if seeds is not None and args.seeds is None:
        args.seeds = 2 if args.quick else seeds
    return args


def finish(
    args: argparse.Namespace,
    home: Path,
    record: Record,
    draw: Callable[[Path], None],
    name: str = "results",
) -> None:
    """Prints the table, writes record and picture, and puts the table of a full run into the
    README.

    Args:
        args: Of :func:`parse`.
        home: Folder of the experiment.
        record: With ``table`` (columns and rows of text) and ``conclusion`` (lines).
        draw: Writes the picture to a path.
        name: Of the record in that folder, and of its table in the README.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    shown = Table()
    for k, column in enumerate(record["table"]["columns"]):
        shown.add_column(column, justify="right" if k else "left")
    for row in record["table"]["rows"]:
        shown.add_row(*row)
    console.print(shown)
    for line in record["conclusion"]:
        console.print(line, highlight=False)

    quick = args.work / f"{home.name}-quick.json"
    path: Path = args.json or (quick if args.quick else home / f"{name}.json")
    write_json(path, record)
    draw(path.with_suffix(".png"))
    console.print(f"written: {path}, {path.with_suffix('.png')}", style="dim", highlight=False)
    if not args.quick and args.json is None:
        readme = home / "README.md"
        table = markdown(record["table"]["columns"], record["table"]["rows"])
        readme.write_text(with_table(readme.read_text(), table, name))


def with_table(readme: str, table: str, name: str = "results") -> str:
    """The text with what stands between the marks of a record replaced.

    Raises:
        ValueError: the marks are missing.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = readme.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"README.md lacks the marks <!-- {name} --> and {end}")
    return before + begin + table + end + after


def write_json(path: Path, record: Record) -> None:
    """Writes a record so that whoever sees it sees all of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
