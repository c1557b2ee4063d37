"""What buckets of one source cost: reads of each stored chunk, and seconds and bytes for many
documents.

    python scripts/bench/bench_buckets.py --check --json docs/bench/buckets.json

Reads: a cache of 16,384 chunks of 512 tokens, documents of 60 tokens on average with a random
score, rows of 32 tokens, batches of 16, braids of 16 strands, memory for 256 chunks. Three buckets,
of .3, .4 and .3 of the documents, each told apart, or in layers that repeat .5, 1 and 2 times.
"Reads a chunk" is block reads over chunks' worth of delivered rows, forecast for a run of one pass
and counted by the loader for its first eighth; "a pass" of the source has the documents of a bucket
as often as it repeats, so that the highest of them is the least number of reads that there can be.

Documents: forged offsets and scores of 1e8 documents in one part (``--quick``: 1e6), three buckets
and three layers. Seconds (of one core) and bytes are those of what a loader has to know before its
first row, with the rows of each component.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
import tracemalloc
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace import LmDataConfig, load_config
from headrace.analysis.simulate.forecast import RunSteps, simulate
from headrace.config.component import left_out
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger
from headrace.store.ledger_table import LeafRecord, PartRecord
from headrace.testing import write_cache

CHUNK = 512
SEQ_LEN = 32
BATCH = 16
MEMORY = 256 * 1024
EDGES = [0.3, 0.7]
REPEATS = [0.5, 1, 2]
ROADS = {
    "no buckets": "",
    "told apart, as they are": f"buckets: {{by: score, edges: {EDGES}}}",
    "told apart, as they repeat": f"buckets: {{by: score, edges: {EDGES}, weights: [{{repeat:"
    " .5}, {repeat: 1}, {repeat: 2}]}",
    "in layers, as they repeat": f"buckets: {{by: score, edges: {EDGES}, repeats: {REPEATS}}}",
}


def make_cache(folder: str, chunks: int) -> TokenCache:
    rng = np.random.default_rng(0)
    documents = [
        np.zeros(n, np.uint16) for n in rng.geometric(1 / 60, chunks * CHUNK // 60).tolist()
    ]
    score = {LeafSpec("score", "float32", "fixed"): lambda tokens: rng.random(1).astype(np.float32)}
    return write_cache(folder, [documents], layout=CacheLayout("uint16", CHUNK, 1024), leaves=score)


def measure_reads(report: Report, chunks: int) -> None:
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = make_cache(f"{folder}/cache", chunks)
        for road, buckets in ROADS.items():
            source = (
                f"components.web={{cache: {cache.path}, shuffle: {{kind: braid, strands: 16}},"
                f" {buckets}}}"
            )
            config = load_config(overrides=[f"seq_len={SEQ_LEN}", f"batch_size={BATCH}", source])
            dataset: Any = config.dataset()
            unit = (
                sum(r * s for r, s in zip(REPEATS, (0.3, 0.4, 0.3), strict=True))
                if "repeat" in road
                else 1.0
            )
            steps = int(chunks * CHUNK * unit / (SEQ_LEN * BATCH))
            worth = CHUNK / (SEQ_LEN * BATCH * steps)
            whole, few = (forecast_reads(dataset, n) for n in (steps, steps // 8))
            counted = count(config, steps // 8)
            rows.append(
                [road, len(dataset.names), whole * worth, whole * worth * unit, few, counted]
            )
            report.bar(
                f"{road}: block reads counted over forecast", counted / few, within=(1.0, 1e-9)
            )
    report.table(
        "Reads of each stored chunk",
        ["source", "components", "reads a chunk", "reads a pass", "forecast", "counted"],
        rows,
    )


def forecast_reads(dataset: MixtureDataset | PhasedDataset, steps: int) -> int:
    run = RunSteps(num_steps=steps, max_rows=1 << 30)
    return (
        simulate(dataset, dataset.batch_schedule, hosts=[1], cache_bytes=MEMORY, steps=run)
        .by_hosts[0]
        .block_fetches
    )


def count(config: LmDataConfig, steps: int) -> int:
    run = dataclasses.replace(config, num_steps=steps, prefetch_bytes=MEMORY)
    with run.loader() as loader, loader.iter_from_step(0) as batches:
        for _ in batches:
            pass
        return loader.stats().reads.block_fetches


class Forged(StoredArray):
    """An array that is in memory."""

    values: np.ndarray

    def read(self, start: int, stop: int) -> Ready:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Ready(self.values[start:stop])


class Ready:
    """A read that is done."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def result(self, timeout: float | None = None) -> np.ndarray:
        return self._values


def forged_cache(documents: int) -> TokenCache:
    """So many documents of 1 to 2,000 tokens with random scores, in one part, of which only offsets
    can be read.
    """
    rng = np.random.default_rng(0)
    ends = np.zeros(documents + 1, np.int64)
    np.cumsum(rng.integers(1, 2001, documents), out=ends[1:])
    scores = rng.random(documents, np.float32)
    tokens = int(ends[-1])
    layout = CacheLayout("uint16")

    def open_part(name: str, part: int) -> LeafPart:
        dtype = "uint16" if name == TOKENS else "float32"
        values = {TOKENS: np.zeros(0, np.uint16), "score": scores}[name]
        data = Forged(
            "forged",
            tokens if name == TOKENS else documents,
            CacheLayout(dtype, layout.chunk_elements),
        )
        offsets = Forged("forged", documents + 1, layout.offsets())
        data.values = values
        offsets.values = ends
        return LeafPart(documents, data, offsets if name == TOKENS else None)

    part = PartRecord(
        "00000", documents, tokens, "forged", leaves={"score": LeafRecord(documents, "forged")}
    )
    tokenizer = {"path": "forged", "file": None, "fingerprint": "forged", "vocab_size": 1 << 16}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": 0}
    leaf = LeafSpec("score", "float32", "fixed").to_dict()
    return TokenCache(
        "/forged", Ledger(True, tokenizer, layout.to_dict(), parts=[part], leaves=[leaf]), open_part
    )


def measure_documents(report: Report, documents: int) -> None:
    cache = forged_cache(documents)
    rows: list[list[object]] = []
    for road, buckets in list(ROADS.items())[1:]:
        config = load_config(overrides=[f"components.web={{cache: /forged, {buckets}}}"])
        numbers = {
            name: component.document_numbers(name, cache)
            for name, component in config.components.items()
        }
        tracemalloc.start()
        begin = time.process_time()
        caches = {name: one.cache for name, one in numbers.items()}
        filters = left_out(config.components, caches, numbers)
        filtered_s = time.process_time() - begin
        kept, most = tracemalloc.get_traced_memory()
        datasets = [TokenSeqDataset(cache, 2048, removed=one) for one in filters.values()]
        seconds = time.process_time() - begin
        del filters
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append(
            [
                road,
                len(datasets),
                filtered_s,
                seconds,
                kept / documents,
                held / documents,
                max(most, peak) / documents,
            ]
        )
    report.table(
        f"{documents:,} documents",
        [
            "source",
            "components",
            "CPU s to tell apart",
            "CPU s in all",
            "bytes kept a document",
            "bytes held",
            "at most",
        ],
        rows,
    )


def measure(args: argparse.Namespace, report: Report) -> None:
    measure_reads(report, 2048 if args.quick else 16_384)
    measure_documents(report, 1_000_000 if args.quick else args.documents)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--documents", type=int, default=100_000_000, help="forged documents")


if __name__ == "__main__":
    run_bench("bench_buckets", __doc__, measure, add_arguments=flags)
