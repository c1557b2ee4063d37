"""Memory against the number of sources: one, two and four processes, beside other loaders.

    python scripts/bench/bench_memory.py --check --json docs/bench/memory.json

A corpus of 64 MiB of two-byte tokens is cut into 1, 10, 100 and 1,000 sources of equal weight, in
chunks and files as ``headrace cache build`` writes them, and read in batches of 64 rows of 512
tokens by processes that share a mesh. Figures are MiB of a
process after its last batch, the largest of the job's: ``own`` is memory that no file is behind;
``resident`` has mapped pages of files too, which the system takes back when it needs them;
``at first`` is its own memory when jax and the loader were imported. The bars are of ``own``,
against that of one source. Grain (``uv sync --group peers``) mixes shuffled rows of memory-mapped
files, MosaicML streams of MDS shards, LitData datasets of its ``TokensLoader`` (both need torch, as
in ``bench_peers.py``). ``--quick`` has 1 and 10 sources, one process, a sixteenth
of the corpus, fewer steps and no others.
"""

from __future__ import annotations

import argparse
import importlib
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


def main_of_process(
    loader: str, sources: int, steps: int, address: str, count: int, number: int
) -> None:
    """One process of a job: prints its memory."""
    import jax

    if count > 1:
        jax.distributed.initialize(address, count, number)
    made = LOADERS[loader](sources)
    next(made)
    at_first = memory()["RssAnon"]
    for batch in islice(made, steps):
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


def mosaic_batches(sources: int) -> Iterator[Any]:
    """None when all is imported, then batches."""
    import jax

    importlib.import_module("peers.torchvision_stand_in")  # before streaming
    from streaming import (  # pyright: ignore[reportMissingImports]
        Stream,
        StreamingDataLoader,
        StreamingDataset,
    )

    yield None
    streams = [
        Stream(local=f"{sources}/{k}.mosaic", proportion=1 / sources) for k in range(sources)
    ]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH)
    while True:
        for batch in StreamingDataLoader(dataset, batch_size=BATCH, drop_last=True):
            yield jax.device_put(np.asarray(batch["tokens"]))


def litdata_batches(sources: int) -> Iterator[Any]:
    """None when all is imported, then batches."""
    import jax
    from litdata import (  # pyright: ignore[reportMissingImports]
        CombinedStreamingDataset,
        StreamingDataLoader,
        StreamingDataset,
        TokensLoader,
    )

    yield None
    parts = [
        StreamingDataset(
            f"{sources}/{k}.litdata", item_loader=TokensLoader(block_size=SEQ_LEN), shuffle=True
        )
        for k in range(sources)
    ]
    mixed = CombinedStreamingDataset(parts, weights=[1 / sources] * sources, iterate_over_all=False)
    while True:
        for batch in StreamingDataLoader(mixed, batch_size=BATCH, drop_last=True):
            yield jax.device_put(batch.numpy())


LOADERS = {
    "headrace": headrace_batches,
    "grain": grain_batches,
    "streaming": mosaic_batches,
    "litdata": litdata_batches,
}
"""By the module that each needs."""


def write_mosaic(folder: Path, tokens: np.ndarray) -> None:
    importlib.import_module("peers.torchvision_stand_in")  # before streaming
    from streaming import MDSWriter  # pyright: ignore[reportMissingImports]

    columns = {"tokens": f"ndarray:{tokens.dtype}:{SEQ_LEN}"}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for row in tokens:
            writer.write({"tokens": row})


def torch_rows(path: str) -> Iterator[Any]:
    """What LitData's ``optimize`` calls."""
    import torch  # pyright: ignore[reportMissingImports]

    for row in np.load(path):
        yield torch.from_numpy(row)


def write_litdata(folder: Path, tokens: str) -> None:
    from litdata import TokensLoader, optimize  # pyright: ignore[reportMissingImports]

    optimize(
        fn=torch_rows,
        inputs=[tokens],
        output_dir=str(folder),
        chunk_size=4096 * SEQ_LEN,
        item_loader=TokensLoader(block_size=SEQ_LEN),
        num_workers=1,
        verbose=False,
    )


def write(folder: Path, all_rows: int, sources: int, loaders: list[str]) -> None:
    """The corpus as so many caches, as rows for Grain, and in the formats of others."""
    from headrace.store.layout import CacheLayout
    from headrace.testing import write_cache

    rows = all_rows // sources
    tokens = np.random.default_rng(0).integers(0, 50_000, (rows, SEQ_LEN)).astype(np.uint16)
    caches = folder / f"{sources}"
    documents = np.split(tokens.reshape(-1), range(DOCUMENT, tokens.size, DOCUMENT))
    write_cache(caches / "0", [documents], vocab_size=50_000, layout=CacheLayout())
    np.save(caches / "0.npy", tokens)
    if "streaming" in loaders:
        write_mosaic(caches / "0.mosaic", tokens)
    if "litdata" in loaders:
        write_litdata(caches / "0.litdata", str(caches / "0.npy"))
    for k in range(1, sources):
        shutil.copy(caches / "0.npy", caches / f"{k}.npy")
        for one in caches.glob("0*/"):
            shutil.copytree(one, caches / f"{k}{one.suffix}")
    components = {f"source_{k}": {"cache": f"{sources}/{k}"} for k in range(sources)}
    config = {"seed": 0, "seq_len": SEQ_LEN, "batch_size": BATCH, "components": components}
    (folder / f"{sources}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def run_job(folder: Path, loader: str, sources: int, steps: int, count: int) -> list[float]:
    """The figures of the process that has the largest memory of its own."""
    from headrace.testing.servers import free_port

    address = f"127.0.0.1:{free_port()}"
    numbers = [str(sources), str(steps), address, str(count)]
    command = [sys.executable, __file__, "--process", loader, *numbers]
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
    rows = ROWS // 16 if args.quick else ROWS
    steps = 20 if args.quick else STEPS
    jobs = [("headrace", count) for count in (PROCESSES[:1] if args.quick else PROCESSES)]
    others = [] if args.quick else [name for name in LOADERS if name != "headrace"]
    for name in others:
        if importlib.util.find_spec(name):
            jobs.append((name, 1))
        else:
            report.note(f"{name} is not installed: see `bench_peers.py`")
    table: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sources in all_sources:
            write(folder, rows, sources, [loader for loader, _ in jobs])
        for loader, count in jobs:
            own: dict[int, float] = {}
            for sources in all_sources:
                at_first, own[sources], resident = run_job(folder, loader, sources, steps, count)
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
        loader, sources, steps, address, count, number = sys.argv[2:]
        main_of_process(loader, int(sources), int(steps), address, int(count), int(number))
    else:
        run_bench("bench_memory", __doc__, measure)
