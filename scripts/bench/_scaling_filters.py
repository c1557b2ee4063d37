"""Filters that take a tenth of a billion documents out of a cache: working them out, opening them,
the first batch.

The cache is that of :mod:`_scaling_plans`, one small part under many names. One filter lists
documents at random, the other runs of a thousand neighbours; both are ``.npy`` files of numbers.
What is measured runs in a process of its own: the first start, which works out what is left and
saves it, and the second, which finds it. Then what the second start takes with packed rows, for
which the plan is made in between (of a tenth as many documents).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import Report
from _scaling_plans import BATCH, CAPACITY, forge_cache, memory

from headrace import DataLoader, MixtureDataset, TokenSeqDataset
from headrace.data import PackedTokenDataset
from headrace.data.documents import DocumentFilter
from headrace.store import TokenCache

RUN = 1000


def forge_filter(path: Path, documents: int, run: int) -> None:
    """Writes the numbers of a tenth of the documents, in runs of so many."""
    runs = np.flatnonzero(np.random.default_rng(2).random(documents // run) < 0.1)
    numbers = np.lib.format.open_memmap(path, "w+", np.dtype("<i8"), (runs.size * run,))
    for at in range(0, runs.size, 1 << 20):
        some = runs[at : at + (1 << 20)]
        numbers[at * run : (at + some.size) * run] = (some[:, None] * run + np.arange(run)).reshape(
            -1
        )
    numbers.flush()


def forget(folder: Path) -> float:
    """Files of a folder are read from the disk again; returns their MiB."""
    size = 0
    for path in (one for one in folder.rglob("*") if one.is_file()):
        size += path.stat().st_size
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return size / 2**20


def job_filter(path: str, url: str, packed: str) -> list[float]:
    """Seconds, CPU seconds and MiB, of its own and in all, to open a cache with a filter; then to
    the first batch.
    """
    warm = TokenSeqDataset(
        TokenCache.open_member(Path(path).with_name("one")), 256, removed=DocumentFilter([1, 2])
    )
    DataLoader(
        MixtureDataset({"a": warm.shuffle(seed=0)}, {"a": 1.0}, 2), prefetch_bytes=1 << 28
    ).batch_at(0)
    jax.devices()
    before = memory(reset=True)
    began = time.perf_counter()
    spent = time.process_time()
    cache = TokenCache.open_member(path)
    removed = DocumentFilter.load(url)
    if packed == "packed":
        dataset: Any = PackedTokenDataset(cache, CAPACITY, removed=removed)
    else:
        dataset = TokenSeqDataset(cache, CAPACITY, removed=removed)
    dataset.describe()
    opened = memory()
    seconds = time.perf_counter() - began
    cpu = time.process_time() - spent
    mixture = MixtureDataset(
        {"a": dataset.braid_shuffle(seed=0, strands=32, batch_size=None)}, {"a": 1.0}, BATCH
    )
    assert DataLoader(mixture, prefetch_bytes=1 << 28).batch_at(0).tokens.shape == (BATCH, CAPACITY)
    first = time.perf_counter() - began
    after = memory()
    base = before["RssAnon"] + before["RssFile"]
    sizes = [opened["RssAnon"] - before["RssAnon"], opened["VmHWM"] - base, after["VmHWM"] - base]
    return [seconds, cpu, sizes[0], sizes[1], first, sizes[2], dataset.removed_documents]


JOBS: dict[str, Callable[..., list[float]]] = {"filter": job_filter}


def measure_filters(
    args: argparse.Namespace, apart: Callable[..., list[float]], report: Report
) -> None:
    """Filters of the full size, and one of a tenth with packed rows."""
    rows: list[list[Any]] = []
    full = 10_000_000 if args.quick else 1_000_000_000
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for documents, kinds in (
            (full // 10, {"packed rows": 1}),
            (full, {"at random": 1, "runs": RUN}),
        ):
            root = Path(folder, str(documents))
            root.mkdir()
            cache = forge_cache(root, documents)
            for kind, run in kinds.items():
                url = root / f"{run}.npy"
                forge_filter(url, documents, run)
                for start in ("first", "second"):
                    saved = forget(Path(cache.path, "filters")) if start == "second" else 0.0
                    forget(root / "one")
                    measured = apart(
                        "filter", cache.path, url, "packed" if kind == "packed rows" else ""
                    )
                    rows.append([kind, documents, int(measured[-1]), start, saved, *measured[:-1]])
                    print(rows[-1], flush=True)
                seconds = measured[0]
                most = measured[3]
                report.bar(f"{kind}, {documents:,} documents: s to start again", seconds, at_most=5)
                report.bar(
                    f"{kind}, {documents:,} documents: MiB to start again", most, at_most=1024
                )
    columns = [
        "filter",
        "documents",
        "filtered",
        "start",
        "MiB of all filters",
        "s",
        "CPU s",
        "MiB of its own",
        "most MiB",
    ]
    report.table(
        "Starting with a filter", [*columns, "s to the first batch", "most MiB then"], rows
    )
