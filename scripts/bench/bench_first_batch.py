"""Seconds from the start of a process to its first batch: fresh and resumed, of 3 and of 200
sources, local and over HTTP, beside Grain.

    python scripts/bench/bench_first_batch.py --check --json docs/bench/first_batch.json

Each run is a process of its own, in turn with the others; the table has medians. The stages are CPU
seconds of all threads: ``jax`` until jax and its devices are up, ``imports`` of the loader beyond
that, ``opening`` from there to a loader (config, caches, dataset), and ``batch`` from there to a
batch of 64 rows of 512 tokens on the devices. ``CPU s`` is their sum; ``first batch s`` is by the
clock, from the start of the process. A resumed run begins at step 1,000,000 from the anchors of its folder; Grain sets
the state of an iterator to that step. Over HTTP, a server of this machine answers at once. Grain
(``uv sync --group peers``) mixes sources of rows in memory-mapped files, shuffled, and is local.

The second table has commands that plan without devices, on the same configs of 2,000 steps and
their runs: CPU seconds of the whole process.

Bars are of CPU, the least of all runs, as wall time depends on what else the machine does.
``--quick`` runs each once in place of five times, and leaves 200 sources over HTTP out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _common import Report, run_bench

ROWS = 256
SEQ_LEN = 512
BATCH = 64
STEP = 1_000_000
STAGES = ("jax", "imports", "opening", "batch")
COMMANDS = (
    "config check {0}.yaml",
    "config simulate {0}.yaml",
    "config show {0}.yaml",
    "run tree {0}-run",
    "run where {0}-run --step 500",
    "run cat {0}-run --step 5",
    "run blame {0}-run --steps 5:7",
    "run report {0}-run",
)

Case = tuple[str, str, int, int]
"""Loader, where its data are, sources, and the first step."""


def main_of_run(loader: str, where: str, sources: int, step: int) -> None:
    """One run: prints when each of the stages was done, and the CPU seconds of all."""
    import jax

    jax.devices()
    done = [time.process_time()]
    batches = {"headrace": headrace_batches, "grain": grain_batches}[loader]
    with batches(where, sources, step, done) as stream:
        batch = next(stream)
        jax.block_until_ready(batch)
    done.append(time.process_time())
    print(json.dumps({"done": done, "ended": time.monotonic()}))


@contextlib.contextmanager
def headrace_batches(where: str, sources: int, step: int, done: list[float]) -> Iterator[Any]:
    """Token ids from a run with a folder."""
    from headrace import DataLoader, load_config, open_run

    assert DataLoader  # its module is imported with the name, and by the first loader otherwise

    done.append(time.process_time())
    run = open_run(f"{where}-run", load_config(f"{where}.yaml"), step)
    with run.loader() as loader:
        done.append(time.process_time())
        with loader.iter_from_step(step) as batches:
            yield (batch.token_ids for batch in batches)


@contextlib.contextmanager
def grain_batches(where: str, sources: int, step: int, done: list[float]) -> Iterator[Any]:
    """Rows of mapped files, as its documentation mixes, shuffles and batches them."""
    import grain  # pyright: ignore[reportMissingImports]
    import jax

    done.append(time.process_time())
    parts = [
        grain.MapDataset.source(np.load(f"rows/{k}.npy", mmap_mode="r")).seed(k).shuffle().repeat()
        for k in range(sources)
    ]
    mixed: Any = grain.MapDataset.mix(parts, [1.0 + k % 5 for k in range(sources)])
    batches = iter(mixed.batch(BATCH, drop_remainder=True).to_iter_dataset())
    if step:
        batches.set_state(batches.get_state() | {"next_index": step})
    done.append(time.process_time())
    yield (jax.device_put(batch) for batch in batches)


def write(folder: Path, sources: int, url: str) -> None:
    """Caches, their rows, and the configs of runs on them, local and over HTTP."""
    from headrace.testing import write_cache

    (folder / "rows").mkdir()
    rows = np.random.default_rng(0).integers(0, 50_000, (ROWS, SEQ_LEN)).astype(np.uint16)
    for k in range(sources):
        np.save(folder / "rows" / f"{k}.npy", rows)
    write_cache(folder / "caches" / "0", [list(rows)], vocab_size=50_000)
    for k in range(1, sources):
        shutil.copytree(folder / "caches" / "0", folder / "caches" / str(k))
    for count in (3, sources):
        for where, root in (("local", "caches"), ("http", f"{url}/caches")):
            config = {
                "seed": 0,
                "seq_len": SEQ_LEN,
                "batch_size": BATCH,
                "components": {
                    f"source_{k}": {"cache": f"{root}/{k}", "weight": 1 + k % 5}
                    for k in range(count)
                },
            }
            path = folder / f"{where}-{count}.yaml"
            path.write_text(yaml.safe_dump(config, sort_keys=False))


def run_once(folder: Path, loader: str, where: str, sources: int, step: int) -> list[float]:
    """CPU seconds of each stage and of all, then seconds by the clock."""
    command = [sys.executable, __file__, "--run", loader, where, str(sources), str(step)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": ""}
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    stages = np.diff([0.0, *said["done"]]).tolist()
    return [*stages, sum(stages), said["ended"] - began]


def command_s(folder: Path, arguments: str) -> float:
    """CPU seconds of a command."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "headrace", *arguments.split()]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):  # 1: something was found
        raise RuntimeError(f"headrace {arguments} ended with {status}")
    return used.ru_utime + used.ru_stime


def bench_commands(report: Report, folder: Path, repeats: int) -> None:
    """Commands that plan without devices, with 3 and 200 sources."""
    from headrace import load_config, open_run

    names = {sources: f"planned-{sources}" for sources in (3, 200)}
    for sources, name in names.items():
        config = yaml.safe_load((folder / f"local-{sources}.yaml").read_text())
        text = yaml.safe_dump(config | {"num_steps": 2000}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(text)
        with contextlib.chdir(folder):
            open_run(f"{name}-run", load_config(f"{name}.yaml"))
    table: list[list[Any]] = []
    for command in COMMANDS:
        runs = [
            [command_s(folder, command.format(name)) for name in names.values()]
            for _ in range(1 + repeats)  # the first fills caches of bytecode
        ]
        few, many = (min(seconds) for seconds in zip(*runs, strict=True))
        words = " ".join(command.split()[:2])
        table.append([f"headrace {words}", few, many])
        report.bar(f"{words}, 3 sources: CPU s", few, at_most=1)
    report.table("Commands that plan, CPU s", ["command", "3 sources", "200 sources"], table)


def measure(args: argparse.Namespace, report: Report) -> None:
    """The runs, and their table."""
    from headrace.testing import web_server

    repeats = 1 if args.quick else 5
    with tempfile.TemporaryDirectory() as name, web_server(name) as url:
        folder = Path(name)
        write(folder, 200, url)
        cases = [
            ("headrace", f"{place}-{sources}", sources, step)
            for place in ("local", "http")
            for sources in (3, 200)
            for step in (0, STEP)
            if not (args.quick and place == "http" and sources == 200)
        ]
        if importlib.util.find_spec("grain"):
            cases += [("grain", "local", n, step) for n in (3, 200) for step in (0, STEP)]
        else:
            report.note("Grain is not installed: uv sync --group peers")
        runs: dict[Case, list[list[float]]] = {case: [] for case in cases}
        not_counted = 0 if args.quick else 1  # it fills caches of pages and bytecode
        for number in range(not_counted + repeats):
            for case in cases:
                found = run_once(folder, *case)
                if number >= not_counted:
                    runs[case].append(found)
        show(report, runs)
        bench_commands(report, folder, repeats)


def show(report: Report, runs: dict[Case, list[list[float]]]) -> None:
    """The table of first batches, and its bars."""
    table: list[list[Any]] = []
    for (loader, where, sources, step), found in runs.items():
        median = [statistics.median(values) for values in zip(*found, strict=True)]
        least = [min(values) for values in zip(*found, strict=True)]
        place = where.partition("-")[0]
        state = "resumed" if step else "fresh"
        table.append([loader, place, sources, state, *median])
        if loader == "headrace":
            name = f"{place}, {sources} sources, {state}"
            report.bar(f"{name}: CPU s", least[-2], at_most=1.6 if sources == 3 else 3.2)
            report.bar(f"{name}: CPU s of imports beyond jax", least[1], at_most=0.43)
    columns = ["loader", "place", "sources", "run", *STAGES, "CPU s", "first batch s"]
    report.table("From the start of the process to the first batch", columns, table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        main_of_run(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        run_bench("bench_first_batch", __doc__, measure)
