"""headrace beside other loaders, on the same examples, in one run.

    python scripts/bench/bench_peers.py --json docs/bench/peers.json
    python scripts/bench/bench_peers.py --latency 50 --json docs/bench/peers_latency.json

First command: rows of 2,048 tokens, shuffled, in batches of 128, from a warm local disk, delivered
as sharded jax arrays. One corpus is written once in each loader's own format, with 2-byte tokens
for all that can store them and with 4-byte tokens. Each run has a process of its own and measures
the floor (``np.memmap`` + ``np.take`` of the same dtype into one reused buffer) right before and
right after the loader; ``of floor`` is the median of these ratios, and repeats go round all
loaders, so that a busy machine disturbs all alike. Every run checks that what came are rows of the
corpus, none twice in a batch. CPU, threads and memory are those of the run's process and its
children. The consumer waits for batches and looks at nothing, in later passes, if no column says
otherwise: ``first pass`` is the same from the first batches on, ``summed`` has a jitted step that
sums all tokens. ``first batch`` is the time from opening to the first batch, with libraries imported and
jax up. Timing begins after the first epoch, unless that takes more than 3 s. The table begins with
headrace on a corpus four times its ``prefetch_bytes``; ``within the budget`` is a corpus that it
holds as a whole.

Second command: every request or record is some milliseconds away: headrace reads a cache over HTTP
from a server that waits before each answer, Grain a source whose every record takes as long. Timed
from opening, the first batch included, for at most one epoch, so that nothing is read a second
time.

What is not installed is named with the command that installs it (``uv sync --group peers`` for all
but torch).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from _common import Report, run_bench
from peers import PEERS, load
from peers.grain_loader import FAR
from peers.interface import BATCH, SEQ_LEN, Corpus, Peer, Setting
from peers.one_run import RESULT

HERE = Path(__file__).resolve().parent
EXAMPLES = 262_144
QUICK_EXAMPLES = 16_384
OURS = ("4 times the budget", "within the budget")
FAR_OURS = "4-byte, within the budget"
MIXED = "4-byte, 3 sources"
ZSTD = "4-byte, zstd, 4 times the budget"
OF_FLOOR = {"2-byte": (0.45, 0.6), "4-byte": (0.6, 0.8)}  # a bar for each of OURS
TORCH = {"__getitems__, 0 workers": (2, 3), "rows, 0 workers": (4, 5)}
STREAMS = 5
OWN_WAYS = ("default", "documented")
COLUMNS = [
    "loader",
    "setting",
    "kind",
    "M tokens/s",
    "of floor",
    "CPU s per 1e9 tokens",
    "first pass M tokens/s",
    "summed M tokens/s",
    "summed CPU s",
    "threads",
    "pro- cesses",
]
COLUMNS += ["peak MiB", "first batch s", "longest stall ms", "corpus"]
FAR_COLUMNS = [
    "loader",
    "setting",
    "kind",
    "M tokens/s",
    "first batch s",
    "longest stall ms",
    "threads",
    "batches",
]

Key = tuple[str, str]  # file of the peer, name of the setting
Runs = dict[Key, list[dict[str, Any]]]


class Bench:
    """Starts the runs, each in its own process, and remembers what failed."""

    def __init__(self, corpus: Corpus, timeout_s: float, devices: int) -> None:
        self.corpus = corpus
        self.timeout_s = timeout_s
        flags = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        )
        self.environment = os.environ | {"XLA_FLAGS": flags.strip(), "PYTHONPATH": str(HERE)}
        self.environment.setdefault("JAX_PLATFORMS", "cpu")
        self.failed: dict[Key, str] = {}

    def run(self, peer: str, setting: Setting | None, **job: Any) -> dict[str, Any] | None:
        """What the run printed; None if it failed or took too long, and then that setting is not
        run again.
        """
        key = (peer, setting.name if setting else job["format"])
        if key in self.failed:
            return None
        job |= {"peer": peer, "folder": str(self.corpus.folder), "examples": self.corpus.examples}
        if setting is not None:
            job["setting"] = dataclasses.asdict(setting)
        command = [sys.executable, "-m", "peers.one_run", json.dumps(job)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen(command, env=self.environment, start_new_session=True, **pipes)
        try:
            out, err = child.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self.failed[key] = f"{job['task']}: not done after {self.timeout_s:g} s"
            return None
        finally:
            _end(child)
        for line in out.splitlines():
            if line.startswith(
                RESULT
            ):  # a loader may still crash on its way out: it has done its work
                return json.loads(line[len(RESULT) :])
        said = [line for line in err.splitlines() if line.strip()] or [
            f"exit status {child.returncode}"
        ]
        self.failed[key] = f"{job['task']}: {said[-1][:200]}"
        return None

    def write(self, selected: dict[str, list[Setting]]) -> None:
        """Every format that the settings need; a setting whose format cannot be written fails."""
        done: set[str] = set()
        for peer, settings in selected.items():
            for layout in dict.fromkeys(f for s in settings for f in s.formats):
                if (shared := layout or peer) in done:
                    continue
                done.add(shared)
                if self.run(peer, None, task="write", format=layout) is None:
                    for setting in settings:
                        if layout in setting.formats:
                            self.failed[(peer, setting.name)] = self.failed[(peer, layout)]


def _end(child: subprocess.Popen[str]) -> None:
    """Ends what the run left behind: its workers are in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def installed(peer: Peer) -> bool:
    """Whether all its distributions are here."""
    try:
        return all(metadata.version(package) for package in peer.packages)
    except metadata.PackageNotFoundError:
        return False


def versions(peers: Sequence[Peer]) -> dict[str, str]:
    """Of every distribution that takes part."""
    return {package: metadata.version(package) for peer in peers for package in peer.packages}


def median(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def share(runs: list[dict[str, Any]]) -> float:
    """Of the floor beside it."""
    return statistics.median(run["tokens_per_s"] / run["floor"] for run in runs)


def speed_rows(
    peers: dict[str, Peer], selected: dict[str, list[Setting]], runs: Runs, bench: Bench
) -> list[list[Any]]:
    rows: list[list[Any]] = []
    best = _best(selected, runs)
    for name, peer in peers.items():
        for setting in selected.get(name, ()):
            key = (name, setting.name)
            if not runs.get(key):
                rows.append(
                    [peer.title, f"{setting.name}: failed, see below", "", *[None] * 11, ""]
                )
                continue
            these = runs[key]
            rows.append(
                [
                    peer.title,
                    setting.name,
                    setting.kind.replace("documented", "") + (" *" if key in best else ""),
                    _short(median(these, "tokens_per_s") / 1e6),
                    _short(share(these)),
                    _short(median(these, "cpu_s_per_gtoken")),
                    _short(median(these, "first_pass") / 1e6),
                    _short(median(these, "summed") / 1e6),
                    _short(median(these, "summed_cpu_s_per_gtoken")),
                    max(r["threads"] for r in these),
                    max(r["processes"] for r in these),
                    round(max(r["peak_bytes"] for r in these) / 2**20),
                    round(median(these, "first_s"), 3),
                    round(1e3 * max(r["stall_s"] for r in these), 1),
                    setting.whole,
                ]
            )
    return rows


def _short(value: float) -> float:
    """Three digits; whole numbers from a hundred on."""
    return float(f"{value:.3g}") if value < 100 else round(value)


def _best(selected: dict[str, list[Setting]], runs: Runs) -> set[Key]:
    """The fastest of each peer's own ways, for each kind of place that the corpus lies in."""
    fastest: dict[tuple[str, str], Key] = {}
    for name, settings in selected.items():
        for setting in settings:
            key = (name, setting.name)
            place = (name, setting.whole)
            if setting.kind not in OWN_WAYS or not runs.get(key):
                continue
            if place not in fastest or share(runs[key]) > share(runs[fastest[place]]):
                fastest[place] = key
    return set(fastest.values())


def speed_bars(selected: dict[str, list[Setting]], runs: Runs, report: Report) -> None:
    def share_of(name: str, setting: str) -> float:
        these = runs.get((name, setting))
        return share(these) if these else float("nan")

    for width, bars in OF_FLOOR.items():
        for number, (way, least) in enumerate(zip(OURS, bars, strict=True)):
            ours = share_of("headrace_loader", f"{width}, {way}")
            if ("headrace_loader", f"{width}, {way}") not in runs:
                continue
            report.bar(f"headrace, {width}, {way}: share of memmap + take", ours, at_least=least)
            for setting, times in TORCH.items() if "torch_loader" in selected else ():
                theirs = share_of("torch_loader", f"{width}, {setting}")
                report.bar(
                    f"the same: times torch, {setting}", ours / theirs, at_least=times[number]
                )
            streams = {
                (name, s.name): share(runs[(name, s.name)])
                for name, settings in selected.items()
                for s in settings
                if (name, s.name) in runs and name != "headrace_loader" and s.kind in OWN_WAYS
                if s.whole == "streams" and s.name.startswith(width)
            }
            if streams:
                fastest = max(streams, key=lambda key: streams[key])
                name = f"the same: times the fastest that streams, {load(fastest[0]).title}"
                report.bar(name, ours / streams[fastest], at_least=STREAMS)
    if mixed := runs.get(("headrace_loader", MIXED)):
        one = runs[("headrace_loader", FAR_OURS)]
        ratios = [
            m["tokens_per_s"] / m["floor"] / (o["tokens_per_s"] / o["floor"])
            for m, o in zip(mixed, one)  # noqa: B905
        ]
        report.bar(
            "headrace: three sources mixed, of a single one",
            statistics.median(ratios),
            at_least=0.95,
        )
    blocks = share_of("tensorstore_blocks", "4-byte, zstd in order, numpy")
    if ("headrace_loader", ZSTD) in runs:
        ours = share_of("headrace_loader", ZSTD)
        report.bar("headrace: zstd, of TensorStore's block rate", ours / blocks, at_least=0.9)


def measure_speed(args: argparse.Namespace, report: Report, bench: Bench) -> None:
    peers = {
        name: load(name) for name in PEERS if not args.peers or name.split("_")[0] in args.peers
    }
    here = {name: peer for name, peer in peers.items() if installed(peer)}
    selected = {n: [s for s in p.settings if s.quick or not args.quick] for n, p in here.items()}
    left_out = [here[n].title for n, settings in selected.items() if not settings]
    selected = {n: settings for n, settings in selected.items() if settings}
    peers = {n: p for n, p in peers.items() if n in selected or n not in here}
    bench.write(selected)
    runs: Runs = {}
    for _ in range(args.repeats):
        for name, settings in selected.items():
            for setting in settings:
                found = bench.run(name, setting, task="time", seconds=args.seconds)
                if found is not None:
                    runs.setdefault((name, setting.name), []).append(found)
    title = (
        f"{bench.corpus.examples:,} examples x {SEQ_LEN} tokens, batch {BATCH}, {args.devices}"
        " devices, "
    )
    title += f"medians of {args.repeats} runs of {args.seconds:g} s"
    report.table(title, COLUMNS, speed_rows(peers, selected, runs, bench))
    if not args.quick:
        measure_restart(report, bench, selected, runs)
    report.number("versions", versions([here[n] for n in selected]))
    report.number("runs", {f"{name} / {setting}": found for (name, setting), found in runs.items()})
    report.note(
        "default: as its documentation begins. *: the fastest of its documented ways that was run,"
        " for each 'corpus'."
    )
    report.note(
        "peak MiB: resident, child processes and mapped file pages included; Python and jax alone"
        " take about 200."
    )
    for text in dict.fromkeys(
        peer.note for name, peer in here.items() if name in selected and peer.note
    ):
        report.note(text)
    for name, peer in peers.items():
        if name not in here:
            report.note(f"Not installed: {peer.title}. {peer.install}")
    if left_out:
        report.note(f"Installed, but left out by --quick: {', '.join(left_out)}.")
    for (name, setting), problem in bench.failed.items():
        report.note(f"Failed: {name} / {setting}: {problem}")
    speed_bars(selected, runs, report)


def measure_restart(
    report: Report, bench: Bench, selected: dict[str, list[Setting]], runs: Runs
) -> None:
    step = 10 * bench.corpus.steps + bench.corpus.steps * 9 // 10
    rows: list[list[Any]] = []
    for name, settings in selected.items():
        peer = load(name)
        for setting in settings if peer.resumes else []:
            start = runs.get((name, setting.name))
            late = bench.run(name, setting, task="restart", step=step)
            if start and late:
                first = round(median(start, "first_s"), 3)
                again = round(late["first_s"], 3)
                rows.append([peer.title, setting.name, first, again, peer.resumes])
    columns = [
        "loader",
        "setting",
        "first batch s, step 0",
        f"first batch s, step {step:,}",
        "how it resumes",
    ]
    report.table("Restart: from opening to the first batch", columns, rows)


def far_row(name: str, setting: Setting, runs: list[dict[str, Any]]) -> list[Any]:
    kind = setting.kind.replace("documented", "")
    if not runs:
        return [load(name).title, f"{setting.name}: failed, see below", kind, *[None] * 5]
    return [
        load(name).title,
        setting.name,
        kind,
        _short(median(runs, "tokens_per_s") / 1e6),
        round(median(runs, "first_s"), 3),
        round(1e3 * max(r["stall_s"] for r in runs), 1),
        max(r["threads"] for r in runs),
        int(median(runs, "batches")),
    ]


def measure_latency(args: argparse.Namespace, report: Report, bench: Bench) -> None:
    headrace = load("headrace_loader")
    grain = load("grain_loader")
    ours = next(s for s in headrace.settings if s.name == FAR_OURS)
    bench.write({"headrace_loader": [ours]})
    command = [
        sys.executable,
        "-m",
        "peers.range_server",
        str(bench.corpus.folder),
        str(args.latency),
    ]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, env=bench.environment, **pipes)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    settings = [("headrace_loader", dataclasses.replace(ours, options={"url": url}))]
    if installed(grain):
        settings += [
            (
                "grain_loader",
                dataclasses.replace(s, options={"latency_s": args.latency / 1e3, **s.options}),
            )
            for s in FAR
        ]
    runs: Runs = {}
    for _ in range(args.repeats):
        for name, setting in settings:
            found = bench.run(name, setting, task="far", seconds=args.seconds)
            if found is not None:
                runs.setdefault((name, setting.name), []).append(found)
    requests, _ = server.communicate("")
    rows = [
        far_row(name, setting, runs.get((name, setting.name), [])) for name, setting in settings
    ]
    if not installed(grain):
        rows.append([grain.title, f"not installed: {grain.install}", "", *[None] * 5])
    title = f"Every request {args.latency:g} ms away, batch {BATCH} x {SEQ_LEN}, one host"
    report.table(title, FAR_COLUMNS, rows)
    report.note(
        "headrace reads its cache over HTTP, Grain asks for one record at a time. Timed from"
        " opening."
    )
    report.number("requests_to_the_server", int(requests))
    report.number("runs", {f"{name} / {setting}": found for (name, setting), found in runs.items()})
    for (name, setting), problem in bench.failed.items():
        report.note(f"Failed: {name} / {setting}: {problem}")
    fast, slow = (
        runs.get(k) for k in (("headrace_loader", FAR_OURS), ("grain_loader", FAR[0].name))
    )
    if installed(grain):
        times = (
            median(fast, "tokens_per_s") / median(slow, "tokens_per_s")
            if fast and slow
            else float("nan")
        )
        report.bar(f"headrace: times Grain's default at {args.latency:g} ms", times, at_least=20)


def measure(args: argparse.Namespace, report: Report) -> None:
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.seconds = args.seconds or (1.0 if args.quick else 10.0 if args.latency else 2.0)
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as folder:
        corpus = Corpus(Path(folder), QUICK_EXAMPLES if args.quick else EXAMPLES)
        corpus.create()
        bench = Bench(corpus, args.timeout, args.devices)
        (measure_latency if args.latency else measure_speed)(args, report, bench)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--latency",
        type=float,
        metavar="MS",
        help="instead: every request so many milliseconds away",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        metavar="NAME",
        help="only these: " + ", ".join(p.split("_")[0] for p in PEERS),
    )
    parser.add_argument("--devices", type=int, default=2, help="jax devices on the host (2)")
    parser.add_argument("--repeats", type=int, help="runs of each setting (3; --quick: 1)")
    parser.add_argument(
        "--seconds", type=float, help="of a timed stretch (2; --quick: 1; --latency: 10)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds that any one run may take (300)"
    )


if __name__ == "__main__":
    run_bench("bench_peers", __doc__, measure, add_arguments=add_arguments)
