"""Pack plans of a billion documents: making them, opening them, the first batch.

A cache of so many documents is one small part under many names. Its ledger is real, its plan is
that of a million documents, repeated: for ``windowed`` one after the other, for ``bfd`` so that the
documents of a pack lie all over the corpus. What is measured runs in a process of its own, from the
files on this disk.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from _common import Report

from headrace import DataLoader, MixtureDataset, open_cache
from headrace.data import PackedTokenDataset
from headrace.pack import plan_file, plan_packs
from headrace.pack.items import Items, PackCounts, Packed, no_offsets
from headrace.pack.plan_file import PlanRequest, open_plan, write_plan
from headrace.pack.spec import PackingConfig, PackSpec
from headrace.pack.starts import DocumentStarts
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import LEDGER_NAME, Ledger, encode_ledger, readers_need
from headrace.store.ledger_table import TABLE_NAME, encode_table, narrow
from headrace.testing import write_cache

CAPACITY = 4096
MEDIAN = 600
PART = 10_000
TILE = 100
BATCH = 256
ALGORITHMS = ("windowed", "bfd")


def draw(documents: int) -> np.ndarray:
    """Log-normal lengths, the longest as long as a pack."""
    drawn = np.exp(np.random.default_rng(0).standard_normal(documents)) * MEDIAN
    return np.clip(np.rint(drawn), 1, CAPACITY).astype(np.int64)


def forge_cache(root: Path, documents: int) -> TokenCache:
    """A cache of so many documents: one part of 10,000 under many names."""
    rng = np.random.default_rng(1)
    documents_of_part = [rng.integers(1, 250, n) for n in draw(PART).tolist()]
    write_cache(root / "one", [documents_of_part], layout=CacheLayout("uint8"))
    ledger = open_cache(root / "one").ledger
    (record,) = ledger.parts
    parts = documents // PART
    many = root / "many"
    (many / "parts").mkdir(parents=True)
    for k in range(parts):
        (many / "parts" / f"{k:06d}").symlink_to(root / "one" / "parts" / record.name)
    filler = {"": "x" * (1 << 17)}  # so that it is not read at once
    ledger = Ledger(True, ledger.tokenizer, ledger.layout, metadata=filler)
    raw, name = encode_ledger(ledger)
    columns = {
        "name": np.array([f"{k:06d}".encode() for k in range(parts)]),
        "documents": narrow(np.full(parts, record.documents)),
        "tokens": narrow(np.full(parts, record.tokens)),
        "digest": np.frombuffer(bytes.fromhex(record.digest.split(":")[-1][:64]) * parts, "V32"),
    }
    need = {**readers_need(ledger), "metadata": {}}
    (many / LEDGER_NAME).write_bytes(raw)
    (many / TABLE_NAME).write_bytes(encode_table(columns, need, name, "sha256:" + "0" * 64))
    return open_cache(many)


class Repeated:
    """In place of what plans in order: the packs of a tile of documents, again and again."""

    tiles = 1
    spread = False

    def __init__(self, spec: PackSpec, array_documents: object = None) -> None:
        lengths = np.tile(draw(PART), TILE)
        self._plan = plan_packs(
            lengths, spec.capacity, spec.algorithm, spec.long, block_tokens=spec.block_tokens
        )
        counts = vars(self._plan.counts)
        self.counts = PackCounts(**{name: value * self.tiles for name, value in counts.items()})

    def plan(self, lengths: Iterable[np.ndarray]) -> Iterator[Packed]:
        for _ in lengths:
            pass
        items = self._plan.items
        part, within = np.divmod(items.document.astype(np.int64), PART)
        for tile in range(self.tiles):
            there = part * self.tiles + tile if self.spread else part + tile * TILE
            yield Packed(
                Items(there * PART + within, no_offsets(part.size), items.size),
                np.diff(self._plan.bounds),
            )


class RepeatedStarts(DocumentStarts):
    """Where documents begin whose lengths are those of one part, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths = draw(PART)
        self._ends = np.cumsum(self._lengths)

    def of(self, documents: np.ndarray) -> np.ndarray:
        part, within = np.divmod(documents, PART)
        return part * self._ends[-1] + (self._ends - self._lengths)[within]


def forge_plan(cache: TokenCache, folder: str, algorithm: str) -> int:
    """Writes the plan that a dataset of the cache asks for. Returns its bytes."""
    spec = PackingConfig(algorithm).spec(CAPACITY, cache.layout.chunk_elements)
    request = PlanRequest(cache.fingerprint, cache.num_documents, spec, {})
    Repeated.tiles = cache.num_documents // (PART * TILE)
    Repeated.spread = algorithm == "bfd"
    with (
        mock.patch.object(plan_file, "PackStream", Repeated),
        mock.patch.object(PackSpec, "in_order", True),
    ):
        write_plan(folder, request, iter(()), None, RepeatedStarts())
    paths = list(Path(folder, request.fingerprint).iterdir())
    for path in paths:  # read from the disk again
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(path.stat().st_size for path in paths)


def memory(*, reset: bool = False) -> dict[str, float]:
    """MiB of this process: the most at a time since this was ``reset``, and of what there is now
    that of its own (``RssAnon``) and that of mapped files (``RssFile``), which the system drops
    when it needs the room.
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return {
        name: int(re.findall(rf"{name}:\s*(\d+) kB", status)[0]) / 1024
        for name in ("VmHWM", "RssAnon", "RssFile")
    }


def job_plan(folder: str, documents: str, algorithm: str) -> list[float]:
    """Seconds and CPU seconds to make and save a plan of forged lengths, the most MiB, MiB of its
    own at the end.
    """
    count = int(documents)
    lengths = draw(1 << 20)
    spec = PackSpec(CAPACITY, algorithm, "split")
    plan_packs(lengths, CAPACITY, algorithm, "split")  # compiled code is loaded
    starts = DocumentStarts()

    def chunks() -> Iterator[np.ndarray]:
        for at in range(0, count, lengths.size):
            some = np.roll(lengths, at // 7919)[: count - at]
            starts.add(some)
            yield some

    before = memory(reset=True)
    wall = time.perf_counter()
    cpu = time.process_time()
    plan = open_plan(folder, PlanRequest(documents, count, spec), chunks, starts=starts)
    assert plan.counts.documents == count
    after = memory()
    seconds = [time.perf_counter() - wall, time.process_time() - cpu]
    return [*seconds, after["VmHWM"] - before["RssFile"], after["RssAnon"], plan.fill]


def job_open(path: str, folder: str, algorithm: str) -> list[float]:
    """Seconds to open a cache and its plan, MiB of its own, and in all; seconds to the first batch,
    and likewise.
    """
    warm = PackedTokenDataset(open_cache(Path(path).with_name("one")), 256, plans=f"{folder}-warm")
    DataLoader(
        MixtureDataset({"a": warm.shuffle(seed=0)}, {"a": 1.0}, 2), prefetch_bytes=1 << 28
    ).batch_at(0)
    jax.devices()
    before = memory(reset=True)
    began = time.perf_counter()
    dataset = PackedTokenDataset(open_cache(path), CAPACITY, algorithm=algorithm, plans=folder)
    seconds = time.perf_counter() - began
    opened = memory()
    mixture = MixtureDataset(
        {"a": dataset.braid_shuffle(seed=0, strands=32, batch_size=None)}, {"a": 1.0}, BATCH
    )
    batch = DataLoader(mixture, prefetch_bytes=1 << 28).batch_at(0)
    assert batch.tokens.shape == (BATCH, CAPACITY)
    first = time.perf_counter() - began
    after = memory()
    own = [state["RssAnon"] - before["RssAnon"] for state in (opened, after)]
    return [
        seconds,
        own[0],
        opened["VmHWM"] - before["RssAnon"] - before["RssFile"],
        first,
        own[1],
        after["VmHWM"],
    ]


JOBS: dict[str, Callable[..., list[float]]] = {"plan": job_plan, "open_plan": job_open}


def measure_plans(
    args: argparse.Namespace, apart: Callable[..., list[float]], report: Report
) -> None:
    """Plans are made at sizes of which cost is seen to be linear, and opened at full size."""
    rows: list[list[Any]] = []
    full = 10_000_000 if args.quick else 1_000_000_000
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for documents in (2_000_000, 4_000_000) if args.quick else args.planned:
            seconds, cpu, most, own, fill = apart("plan", f"{folder}/made", documents, "windowed")
            report.bar(
                f"windowed, {documents:,} documents: us each",
                1e6 * seconds / documents,
                at_most=0.4,
            )
            report.bar(f"windowed, {documents:,} documents: MiB", most, at_most=4096)
            rows.append(
                [
                    documents,
                    1e6 * seconds / documents,
                    1e6 * cpu / documents,
                    cpu / seconds,
                    most,
                    own,
                    fill,
                ]
            )
        columns = [
            "documents",
            "us each",
            "CPU us each",
            "cores",
            "most MiB",
            "MiB of its own at the end",
            "fill",
        ]
        report.table("Making and saving windowed plans", columns, rows)
        cache = forge_cache(Path(folder), full)
        rows = []
        for algorithm in ALGORITHMS:
            began = time.perf_counter()
            size = forge_plan(cache, f"{folder}/plans", algorithm)
            print(f"forged {algorithm} in {time.perf_counter() - began:.0f} s", flush=True)
            opening, own, most, first, *after = apart(
                "open_plan", cache.path, f"{folder}/plans", algorithm
            )
            report.bar(f"{algorithm}, {full:,} documents: s to open", opening, at_most=5)
            report.bar(f"{algorithm}, {full:,} documents: MiB to open", most, at_most=1024)
            report.bar(f"{algorithm}, {full:,} documents: s to the first batch", first, at_most=10)
            rows.append([algorithm, full, size / 2**30, opening, own, most, first, *after])
        columns = [
            "algorithm",
            "documents",
            "GiB of the plan",
            "s to open",
            "MiB of its own",
            "most MiB",
        ]
        columns += ["s to the first batch", "MiB of its own then", "most MiB of the process"]
        report.table("Opening a run with a plan", columns, rows)
