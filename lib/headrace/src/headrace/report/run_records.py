"""The measurements of a run: the lines of :mod:`headrace.feed.run_log`, read back and converted to
rates.

Counters are sums since a process began, and readers need the differences between lines. Each
process is therefore its own **session**, whose counters are differenced. A session that begins at a
step replaces earlier lines from that step on, because those steps were repeated.

Invariant: an incomplete line, or one that is not a record, is skipped and counted, never an error:
reports are made while a run writes, and after it was killed.

Price: 20 us per line; at most 400 points per host are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Float64, Int64

from headrace.metrics import STATS_FOLDER, Stall
from headrace.store import files

MAX_POINTS = 400
SUMS = (
    "batches",
    "wait_s",
    "plan_s",
    "read_s",
    "gather_s",
    "map_s",
    "transfer_s",
    "examples_requested",
    "block_fetches",
    "block_hits",
    "tensorstore_reads_issued",
    "bytes_read",
    "retries",
    "hedges",
    "requests",
)
LEVELS = (
    "wait_p50_s",
    "wait_p95_s",
    "wait_p99_s",
    "wait_max_s",
    "queue_occupancy",
    "resident_bytes",
)


Points: TypeAlias = tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]


@dataclass(frozen=True)
class HostSeries:
    """What one host measured, over its steps.

    Attributes:
        host: Its number.
        step: Step of each point, increasing.
        time: Unix time of each.
        seconds: Since the previous point; NaN for the first of a session.
        sums: By name of :data:`SUMS`: increase since the previous point.
        levels: By name of :data:`LEVELS`: the figure at the point, for the whole session so far.
    """

    host: int
    step: Int64[np.ndarray, " n"]
    time: Float64[np.ndarray, " n"]
    seconds: Float64[np.ndarray, " n"]
    sums: Mapping[str, Float64[np.ndarray, " n"]]
    levels: Mapping[str, Float64[np.ndarray, " n"]]

    def total(self, name: str) -> float:
        """Sum of a counter over all sessions."""
        return float(self.sums[name].sum())

    def per_batch(self, name: str) -> Float64[np.ndarray, " n"]:
        """Increase of a counter per batch; NaN where there was no batch."""
        return _ratio(self.sums[name], self.sums["batches"])

    def per_second(self, name: str) -> Float64[np.ndarray, " n"]:
        """Increase of a counter per second; NaN where a session begins."""
        return _ratio(self.sums[name], self.seconds)


@dataclass(frozen=True)
class RunRecords:
    """What all hosts of a run measured.

    Attributes:
        figures: Figures logged by the program of the first host, by name: steps, and the value at
            each; limited in number.
        figures_at: All figures that the programs of all hosts logged, by step.
        hosts: Number of hosts, according to the last process.
        series: One series for each host with measurements.
        sessions: Number of processes of host 0 (or the first host): 1, plus one for each
            resumption.
        config: YAML of the config that the last process recorded; None: none was recorded.
        left_out: Lines that are not records.
    """

    hosts: int = 1
    series: tuple[HostSeries, ...] = ()
    stalls: tuple[Stall, ...] = ()
    sessions: int = 0
    config: str | None = None
    left_out: int = 0
    began: float | None = None
    ended: float | None = None
    figures: Mapping[str, Points] = field(default_factory=dict[str, Points])
    figures_at: Mapping[int, Mapping[str, float]] = field(
        default_factory=dict[int, Mapping[str, float]]
    )

    @property
    def last_step(self) -> int | None:
        """The last step that any host has recorded; None: none has."""
        ends = [int(s.step[-1]) for s in self.series] + [
            int(steps[-1]) for steps, _ in self.figures.values()
        ]
        return max(ends, default=None)

    @property
    def steps_done(self) -> int:
        """The step after the last that any host has recorded."""
        return 0 if self.last_step is None else self.last_step + 1

    @property
    def waiting_share(self) -> float | None:
        """Time waited over time, of the host that waits most; None if not known."""
        shares = [
            s.total("wait_s") / t for s in self.series if (t := float(np.nansum(s.seconds))) > 0
        ]
        return max(shares, default=None)


def read_records(folder: str) -> RunRecords:
    """The records in a run's folder (a path or URL); empty if there are none."""
    return parse_records(_texts(folder))


def parse_records(texts: Sequence[bytes]) -> RunRecords:
    r"""The records in files of :class:`~headrace.feed.run_log.RunLog`.

    Args:
        texts: Contents of files, those of one host in the order in which they were written.

    Example:
        >>> lines = [
        ...     {"kind": "start", "version": 1, "host": 0, "hosts": 1, "time": 0.0, "config": None}
        ... ]
        >>> lines += [
        ...     {"kind": "stats", "step": s, "time": 1.0 * s, "stats": {"batches": s}}
        ...     for s in (10, 20, 40)
        ... ]
        >>> found = parse_records(["\n".join(map(json.dumps, lines)).encode() + b'\n{"kind": "sta'])
        >>> found.series[0].sums["batches"].tolist(), found.left_out
        ([10.0, 10.0, 20.0], 1)
    """
    by_host: dict[int, _Host] = {}
    left_out = 0
    hosts = 1
    times = list[float]()
    last_start = -np.inf
    config = None
    for text in texts:
        host: _Host | None = None
        for line in filter(bytes.strip, text.splitlines()):
            record = _record(line)
            if record is not None and record["kind"] == "start":
                host = by_host.setdefault(record["host"], _Host(record["host"]))
                host.sessions += 1
                if record["time"] >= last_start:
                    last_start = record["time"]
                    hosts = record["hosts"]
                    config = record.get("config") or config
            elif record is not None and host is not None:
                host.add(record)
            else:
                left_out += 1
                continue
            if "time" in record:
                times.append(record["time"])
    of_hosts = [by_host[number] for number in sorted(by_host)]
    stalls = sorted((s for host in of_hosts for s in host.stalls), key=lambda s: (s.step, s.host))
    return RunRecords(
        hosts=hosts,
        series=tuple(host.series() for host in of_hosts if host.records),
        stalls=tuple(stalls),
        sessions=of_hosts[0].sessions if of_hosts else 0,
        config=config,
        left_out=left_out,
        began=min(times, default=None),
        ended=max(times, default=None),
        figures=next((host.points() for host in of_hosts if host.figures), {}),
        figures_at={
            step: values for host in of_hosts for step, (_, values) in host.figures.items()
        },
    )


@dataclass
class _Host:
    number: int
    sessions: int = 0
    records: list[tuple[int, dict[str, Any]]] = field(
        default_factory=list[tuple[int, dict[str, Any]]]
    )
    stalls: list[Stall] = field(default_factory=list[Stall])
    figures: dict[int, tuple[int, dict[str, float]]] = field(
        default_factory=dict[int, tuple[int, dict[str, float]]]
    )

    def add(self, record: dict[str, Any]) -> None:
        if record["kind"] == "sources":
            return  # the report computes them from the config, for every step
        if record["kind"] == "figures":
            self.add_figures(record["step"], record["figures"])
            return
        if record["kind"] == "stall":
            fields: dict[str, Any] = {
                k: v for k, v in record.items() if k in Stall.__dataclass_fields__
            }
            fields["host"] = self.number
            self.stalls.append(Stall(**fields))
            return
        # Steps from here on were repeated.
        if self.records and self.records[-1][0] != self.sessions:
            while self.records and self.records[-1][1]["step"] >= record["step"]:
                self.records.pop()
        elif self.records and self.records[-1][1]["step"] >= record["step"]:
            self.records.pop()
        self.records.append((self.sessions, record))

    def add_figures(self, step: int, figures: dict[str, Any]) -> None:
        # Steps from here on were repeated.
        if next(reversed(self.figures.values()), (0,))[0] != self.sessions:
            self.figures = {s: old for s, old in self.figures.items() if s < step}
        _, values = self.figures.get(step, (0, {}))
        added = {name: value for name, value in figures.items() if isinstance(value, float)}
        self.figures[step] = self.sessions, {**values, **added}

    def points(self) -> dict[str, Points]:
        """Steps and values of each figure, limited in number."""
        every = -(-len(self.figures) // MAX_POINTS)
        steps = sorted(self.figures)
        chosen = sorted({*steps[::every], steps[-1]})
        names = dict.fromkeys(name for _, values in self.figures.values() for name in values)
        points: dict[str, Points] = {}
        for name in names:
            have = [step for step in chosen if name in self.figures[step][1]]
            if have:
                points[name] = (
                    np.array(have, np.int64),
                    np.array([self.figures[s][1][name] for s in have], np.float64),
                )
        return points

    def series(self) -> HostSeries:
        records = _thinned(self.records)
        session = np.asarray([number for number, _ in records])
        first = np.diff(session, prepend=-1) != 0
        time = np.asarray([r["time"] for _, r in records], np.float64)

        def column(name: str) -> np.ndarray:
            return np.asarray([r["stats"].get(name, 0.0) for _, r in records], np.float64)

        def added(values: np.ndarray) -> np.ndarray:
            return np.where(first, values, np.diff(values, prepend=0.0))

        return HostSeries(
            self.number,
            np.asarray([r["step"] for _, r in records], np.int64),
            time,
            np.where(first, np.nan, np.diff(time, prepend=np.nan)),
            {name: added(column(name)) for name in SUMS},
            {name: column(name) for name in LEVELS},
        )


def _thinned(records: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Every n-th record, and the first and last of each session, as sums are differences of the
    remaining records.
    """
    every = -(-len(records) // MAX_POINTS)
    if every <= 1:
        return records
    last = len(records) - 1
    return [
        record
        for k, record in enumerate(records)
        if k % every == 0
        or k == last
        or record[0] != records[k - 1][0]
        or record[0] != records[k + 1][0]
    ]


_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "start": {"host": int, "hosts": int, "time": (int, float)},
    "stats": {"step": int, "time": (int, float), "stats": dict},
    "figures": {"step": int, "time": (int, float), "figures": dict},
    "sources": {"step": int, "time": (int, float), "sources": dict},
    "stall": {"step": int, "wait_s": (int, float), "cause": str},
}


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        parsed: object = json.loads(line)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    record = cast("dict[str, Any]", parsed)
    fields = _FIELDS.get(str(record.get("kind")))
    if fields is None or not all(
        isinstance(record.get(name), kind) for name, kind in fields.items()
    ):
        return None
    return record


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def _texts(folder: str) -> list[bytes]:
    inside = files.join(folder, STATS_FOLDER)
    names = [name for name in files.names_in(inside) if fnmatchcase(name, "host-*.jsonl")]
    texts = (files.read_bytes(files.join(inside, name)) for name in names)
    return [text for text in texts if text is not None]
