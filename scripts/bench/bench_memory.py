"""Memory against the number of sources: one, two and four processes, beside Grain.

    python scripts/bench/bench_memory.py --check --json docs/bench/memory.json

A corpus of 64 MiB of two-byte tokens is cut into 1, 10, 100 and 1,000 sources of equal weight, and
read in batches of 64 rows of 512 tokens by processes that share a mesh. Figures are MiB of a
process after its last batch, the largest of the job's: ``own`` is memory that no file is behind;
``resident`` has mapped pages of files too, which the system takes back when it needs them;
``at first`` is its own memory when jax and the loader were imported. The bars are of ``own``,
against that of one source. Grain (``uv sync --group peers``) mixes shuffled rows of memory-mapped
files. ``--quick`` has 1 and 10 sources, and one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _common import Report, run_bench

SEQ_LEN = 512
BATCH = 64
ROWS = 65_536
DOCUMENT = 16_384
STEPS = 300
SOURCES = (1, 10, 100, 1000)
PROCESSES = (1, 2, 4)
FLAT = 1.2


def main_of_process(loader: str, sources: int, address: str, count: int, number: int) -> None:
    """One process of a job: prints its memory."""
    import jax

    if count > 1:
        jax.distributed.initialize(address, count, number)
    made = {"headrace": headrace_batches, "grain": grain_batches}[loader](sources)
    next(made)
    at_first = memory()["RssAnon"]
    for batch in islice(made, STEPS):
        jax.block_until_ready(batch)
    at_last = memory()
    print("MEMORY" + json.dumps([at_first, at_last["RssAnon"], at_last["VmRSS"]]), flush=True)


def memory() -> dict[str, float]:
    """MiB of this process, by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(kib) / 1024 for name, kib, _ in fields}


def headrace_batches(sources: int) -> Iterator[Any]:
    """None when all is imported, then batches."""
    import jax
    from jax.sharding import Mesh

    from headrace import DataLoader, load_config

    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    assert DataLoader
    yield None
    with load_config(f"{sources}.yaml").loader(mesh) as loader, loader.iter_from_step(0) as batches:
        for batch in batches:
            yield batch.token_ids


def grain_batches(sources: int) -> Iterator[Any]:
    """None when all is imported, then batches."""
    import grain  # pyright: ignore[reportMissingImports]
    import jax

    yield None
    paths = [f"{sources}/{k}.npy" for k in range(sources)]
    parts = [
        grain.MapDataset.source(np.load(path, mmap_mode="r")).seed(k).shuffle().repeat()
        for k, path in enumerate(paths)
    ]
    mixed: Any = grain.MapDataset.mix(parts, [1.0] * sources)
    for batch in mixed.batch(BATCH, drop_remainder=True).to_iter_dataset():
        yield jax.device_put(batch)


def write(folder: Path, sources: int) -> None:
    """The corpus as so many caches, and as rows for Grain."""
    from headrace.testing import write_cache

    rows = ROWS // sources
    tokens = np.random.default_rng(0).integers(0, 50_000, (rows, SEQ_LEN)).astype(np.uint16)
    caches = folder / f"{sources}"
    documents = np.split(tokens.reshape(-1), range(DOCUMENT, tokens.size, DOCUMENT))
    write_cache(caches / "0", [documents], vocab_size=50_000)
    np.save(caches / "0.npy", tokens)
    for k in range(1, sources):
        shutil.copytree(caches / "0", caches / str(k))
        shutil.copy(caches / "0.npy", caches / f"{k}.npy")
    components = {f"source_{k}": {"cache": f"{sources}/{k}"} for k in range(sources)}
    config = {"seed": 0, "seq_len": SEQ_LEN, "batch_size": BATCH, "components": components}
    (folder / f"{sources}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def run_job(folder: Path, loader: str, sources: int, count: int) -> list[float]:
    """The figures of the process that has the largest memory of its own."""
    from headrace.testing import free_port

    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "--process", loader, str(sources), address, str(count)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [*command, str(number)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    outputs = [process.communicate()[0] for process in processes]
    figures = [json.loads(output.split("MEMORY", 1)[1]) for output in outputs]
    return max(figures, key=lambda one: one[1])


def measure(args: argparse.Namespace, report: Report) -> None:
    all_sources = SOURCES[:2] if args.quick else SOURCES
    jobs = [("headrace", count) for count in (PROCESSES[:1] if args.quick else PROCESSES)]
    if importlib.util.find_spec("grain"):
        jobs.append(("grain", 1))
    else:
        report.note("Grain is not installed: uv sync --group peers")
    table: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sources in all_sources:
            write(folder, sources)
        for loader, count in jobs:
            own: dict[int, float] = {}
            for sources in all_sources:
                at_first, own[sources], resident = run_job(folder, loader, sources, count)
                table.append([loader, count, sources, at_first, own[sources], resident])
            if loader == "headrace":
                case = f"{count} processes" if count > 1 else "one process"
                growth = max(own.values()) / own[1]
                report.bar(f"{case}: own memory, of one source", growth, at_most=FLAT)
    report.table(
        "Memory of a process, MiB",
        ["loader", "processes", "sources", "at first", "own", "resident"],
        table,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        loader, sources, address, count, number = sys.argv[2:]
        main_of_process(loader, int(sources), address, int(count), int(number))
    else:
        run_bench("bench_memory", __doc__, measure)
