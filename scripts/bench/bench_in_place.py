"""What reading other systems' token files in place costs, beside a headrace cache of the same tokens.

    python scripts/bench/bench_in_place.py --check --json docs/bench/in_place.json

1.6e8 tokens (``--quick``: 4e6) in documents of 1,000, in four files of each format and in a cache of
the same dtype, on a local disk. A run of one epoch in headrace's own order, rows of 2,048 tokens and
batches of 128, is timed in turns with the cache's, 15 times (``--quick``: three); speeds are those
of the fastest turn, in CPU seconds, which other processes of the machine disturb less. ``copied``
are blocks that were read into memory of their own, and not mapped. Megatron's order
(``compat: megatron``) is forecast beside headrace's for the same ``.bin`` and ``.idx``, in batches of
8 with as many strands, with memory for 128 of the 2,500 blocks.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from _common import Report, run_bench

from headrace import load_config
from headrace.analysis.simulate.forecast import RunSteps, simulate
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN = 2048
BATCH = 128
ORDER_BATCH = 8
BLOCK = 65_536
DOCUMENT = 1000
FILES = 4
VOCABULARY = 50_000


def write_megatron(base: Path, ids: np.ndarray) -> Path:
    lengths = np.full(ids.size // DOCUMENT, DOCUMENT, "<i4")
    pointers = np.arange(lengths.size, dtype="<i8") * DOCUMENT * 2
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, lengths.size, lengths.size + 1)
    bounds = np.arange(lengths.size + 1, dtype="<i8")
    index = head + lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    base.with_suffix(".idx").write_bytes(index)
    ids.tofile(base.with_suffix(".bin"))
    return base


def write_npy(base: Path, ids: np.ndarray) -> Path:
    ids.tofile(f"{base}.npy")
    return base.with_suffix(".npy")


def write_headed_npy(base: Path, ids: np.ndarray) -> Path:
    np.save(f"{base}.npy", ids)
    return base.with_suffix(".npy")


def write_llmc(base: Path, ids: np.ndarray) -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, ids.size
    base.with_suffix(".bin").write_bytes(header.tobytes() + ids.tobytes())
    return base.with_suffix(".bin")


def write_datatrove(base: Path, ids: np.ndarray) -> Path:
    ids.tofile(base.with_suffix(".ds"))
    np.arange(DOCUMENT, ids.size + 1, DOCUMENT, dtype="<u8").tofile(f"{base}.ds.index")
    return base.with_suffix(".ds")


def write_arrow(base: Path, ids: np.ndarray) -> Path:
    rows = pa.ListArray.from_arrays(
        np.arange(0, ids.size + 1, DOCUMENT, dtype=np.int32), pa.array(ids)
    )
    table = pa.table({"input_ids": rows})
    path = base.with_suffix(".arrow")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    return path


Writer = Callable[[Path, np.ndarray], Path]
FORMATS: dict[str, tuple[Writer, str, str]] = {
    "megatron": (write_megatron, "megatron", "uint16"),
    "npy without header": (write_npy, "{name: npy, dtype: uint16, eos_id: 0}", "uint16"),
    "npy": (write_headed_npy, "{name: npy, eos_id: 0}", "uint16"),
    "llmc": (write_llmc, "llmc", "uint16"),
    "datatrove": (write_datatrove, "datatrove", "uint16"),
    "arrow": (write_arrow, "arrow", "int32"),
}


def config_of(source: str, steps: int, *more: str) -> Any:
    settings = [f"seq_len={SEQ_LEN}", f"batch_size={BATCH}", f"num_steps={steps}", *more]
    return load_config(overrides=[*settings, f"components.a={{{source}}}"])


def epoch_of(source: str, steps: int) -> tuple[float, float, int]:
    """CPU seconds and seconds of a run of so many steps, and blocks that it copied."""
    with config_of(source, steps).loader() as loader:
        with loader.iter_from_step(0) as batches:
            next(batches)
            begin = time.perf_counter()
            begin_cpu = time.process_time()
            for _ in batches:
                pass
            cpu = time.process_time() - begin_cpu
            seconds = time.perf_counter() - begin
        reads = loader.stats().reads
        return cpu, seconds, reads.block_fetches - reads.mapped_blocks


def measure_speed(report: Report, folder: Path, tokens: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    parts = np.split(rng.integers(1, VOCABULARY, tokens), FILES)
    steps = tokens // (SEQ_LEN * BATCH) - 1
    caches: dict[str, str] = {}
    rows: list[list[object]] = []
    for case, (write, settings, dtype) in FORMATS.items():
        if dtype not in caches:
            caches[dtype] = f"{folder}/{dtype}"
            documents = [[*part.astype(dtype).reshape(-1, DOCUMENT)] for part in parts]
            layout = CacheLayout(dtype, BLOCK)
            write_cache(caches[dtype], documents, vocab_size=VOCABULARY, layout=layout)
        (folder / case).mkdir()
        named = [
            write(folder / case / f"part-{number}", part.astype(dtype))
            for number, part in enumerate(parts)
        ]
        paths = ", ".join(f"'{path}'" for path in named)
        sources = {"in place": f"cache: [{paths}], format: {settings}"}
        sources["cache"] = f"cache: {caches[dtype]}"
        turns: dict[str, list[tuple[float, float, int]]] = {name: [] for name in sources}
        for _ in range(repeats):
            for name, source in sources.items():
                turns[name].append(epoch_of(source, steps))
        cpu = {name: min(one[0] for one in some) for name, some in turns.items()}
        seconds = {name: min(one[1] for one in some) for name, some in turns.items()}
        copied = max(one[2] for one in turns["in place"])
        share = cpu["cache"] / cpu["in place"]
        speed = tokens / seconds["in place"] / 1e6
        rows.append([case, dtype, share, seconds["cache"] / seconds["in place"], speed, copied])
        report.bar(f"{case}: speed of a cache's", share, at_least=0.9)
        report.bar(f"{case}: blocks copied", copied, at_most=0)
    heads = ["format", "dtype", "of a cache's, CPU", "of a cache's, time", "M tokens/s", "copied"]
    report.table("Files in place beside a cache of the same tokens", heads, rows)


def measure_orders(report: Report, folder: Path, tokens: int) -> None:
    """Reads of a block of the same files, in headrace's order and in Megatron's."""
    paths = ", ".join(f"'{folder}/megatron/part-{number}'" for number in range(FILES))
    steps = tokens // ((SEQ_LEN + 1) * ORDER_BATCH) - 1
    batch = f"batch_size={ORDER_BATCH}"
    orders = {
        "headrace's": [batch, "shuffle={strands: 8}"],
        "Megatron's": [batch, "compat=megatron", "seed=1234"],
    }
    reads: list[float] = []
    for more in orders.values():
        dataset = config_of(f"cache: [{paths}], format: megatron", steps, *more).dataset()
        run = RunSteps(num_steps=steps, max_rows=1 << 30)
        memory = 128 * BLOCK * 2
        forecast = simulate(
            dataset, dataset.batch_schedule, hosts=[1], cache_bytes=memory, steps=run
        )
        reads.append(forecast.by_hosts[0].reads_per_block)
    report.table("Reads of a block of .bin and .idx", [*orders], [reads])
    report.bar("headrace's order: reads of a block", reads[0], at_most=1.1)


def measure(args: argparse.Namespace, report: Report) -> None:
    tokens = 4_096_000 if args.quick else 163_840_000
    with tempfile.TemporaryDirectory() as name:
        measure_speed(report, Path(name), tokens, 3 if args.quick else 15)
        measure_orders(report, Path(name), tokens)


if __name__ == "__main__":
    run_bench("bench_in_place", __doc__, measure)
