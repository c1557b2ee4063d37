"""What attributes cost: joining one, seconds of CPU and memory for as many ids as documents; two
hundred buckets by one, reads of each stored chunk and what a run knows before its first row; and
what is written when a tenth of the documents moves to another bucket.

    python scripts/bench/bench_attributes.py --only join --check --json docs/bench/attributes.json
    python scripts/bench/bench_attributes.py --only buckets --check --json
        docs/bench/attributes_buckets.json
    python scripts/bench/bench_attributes.py --only moves --check --json
        docs/bench/attributes_moves.json

A cache of 1e8 documents (``--quick``: 1e6), of which only ids can be read (texts of 16 bytes, made
as they are asked for), and Parquet files with as many rows, in another order, of an id and a
float32. Measured is a process that joins them, saves the result, and reads it again; memory is the
largest resident size of the process above that at its start, without the pages of the saved file.

Buckets: forged lengths of 1 to 2,000 tokens, equal weights, in a store as it is, and in one that
``headrace cache reshuffle --by`` would write. Reads are those of a pass over 1e6 documents
(``--quick``: 3e5) in rows of 2,048 tokens, batches of 256, two strands a bucket, memory for 1,024 of
the 15,000 chunks (``--quick``: of 4,600), as ``headrace config simulate`` forecasts them. Seconds
and bytes are those of 1e8 documents (``--quick``: 1e6) in groups, without the leaf with the scores.

Moves: a store of 1e5 documents (``--quick``: 1e4) of 1 to 2,000 tokens in 20 groups, of which a tenth
moves, as ``headrace cache reshuffle --by --update`` does it. Bytes are those of the files that are
new, over those of the tokens that moved. Reads are those of a pass in 20 buckets, in chunks of
8,192 tokens, with memory for 256 of them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _common import Report, run_bench

from headrace import LmDataConfig, load_config
from headrace.analysis.simulate.forecast import RunSteps, simulate
from headrace.data.attributes import AttributeConfig, open_attribute
from headrace.ingest.part_builder import Work
from headrace.ingest.reshuffle import move_documents, reshuffle
from headrace.ingest.shuffle_plan import Grouping, ReshuffleConfig
from headrace.order.permutation import Feistel
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger
from headrace.store.ledger_table import LeafRecord, PartRecord
from headrace.store.plain import ComputedArray, array_in_memory
from headrace.testing import write_cache

WIDTH = 16
BUCKETS = 200
SEQ_LEN = 2048
BATCH = 256
CHUNK = 65_536
MOVE_GROUPS = 20
MOVE_CHUNK = 8_192
MEMORY = 1024 * CHUNK * 2
TOKENIZER = {
    "path": "forged",
    "file": None,
    "fingerprint": "forged",
    "vocab_size": 1 << 16,
    "bos": None,
    "bos_id": None,
    "eos": None,
    "eos_id": 0,
}
ROWS = 1 << 20  # of a group of rows
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def ids_of(numbers: np.ndarray) -> np.ndarray:
    """The texts of ids, uint8 ``[n, 16]``: hexadecimal digits of scrambled numbers."""
    scrambled = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(WIDTH, dtype=np.uint64) * np.uint64(4)
    return _DIGITS[(scrambled[:, None] >> shifts & np.uint64(15)).astype(np.int64)]


def forged_cache(documents: int, folder: str) -> TokenCache:
    """So many documents of one token, of which only the ids can be read."""
    layout = CacheLayout("uint16")

    def bytes_of(start: int, stop: int) -> Callable[[], np.ndarray]:
        first = start // WIDTH
        text = ids_of(np.arange(first, -(-stop // WIDTH))).reshape(-1)
        return lambda: text[start - first * WIDTH : stop - first * WIDTH]

    def offsets_of(start: int, stop: int) -> Callable[[], np.ndarray]:
        return lambda: np.arange(start, stop, dtype=np.int64) * WIDTH

    def open_part(name: str, part: int) -> LeafPart:
        assert name != TOKENS
        data = ComputedArray("ids", documents * WIDTH, bytes_of, dtype="uint8")
        return LeafPart(documents, data, ComputedArray("ids", documents + 1, offsets_of))

    leaf = LeafSpec("id", "uint8", "ragged").to_dict()
    part = PartRecord(
        "00000",
        documents,
        documents,
        "forged",
        leaves={"id": LeafRecord(documents * WIDTH, "forged")},
    )
    ledger = Ledger(True, TOKENIZER, layout.to_dict(), parts=[part], leaves=[leaf])
    return TokenCache(folder, ledger, open_part)


def write_rows(path: Path, documents: int) -> None:
    """A Parquet file with the ids of all documents, in another order, each with a number."""
    order = Feistel(documents, seed=1)
    schema = pa.schema({"id": pa.string(), "quality": pa.float32()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, documents, ROWS):
            numbers = order(np.arange(first, min(first + ROWS, documents)))
            text = ids_of(numbers).tobytes()
            offsets = np.arange(numbers.size + 1, dtype=np.int32) * WIDTH
            ids = pa.StringArray.from_buffers(
                numbers.size, pa.py_buffer(offsets), pa.py_buffer(text)
            )
            values = pa.array((numbers % 1000).astype(np.float32))
            writer.write_table(pa.Table.from_arrays([ids, values], schema=schema))


def forged_lengths(documents: int, buckets: int, *, in_groups: bool) -> TokenCache:
    """Documents of 1 to 2,000 tokens with the number of a bucket, of which no tokens can be read."""
    rng = np.random.default_rng(0)
    bucket = rng.integers(0, buckets, documents, np.uint8)
    lengths = rng.integers(1, 2001, documents)
    parts = [slice(0, documents)]
    if in_groups:
        bucket.sort()
        borders = np.searchsorted(bucket, np.arange(buckets + 1)).tolist()
        parts = [slice(first, stop) for first, stop in pairwise(borders)]
    layout = CacheLayout("uint16")
    offsets = [np.append(0, np.cumsum(lengths[part])) for part in parts]

    def open_part(name: str, part: int) -> LeafPart:
        own = bucket[parts[part]]
        if name != TOKENS:
            return LeafPart(own.size, array_in_memory("forged", own), None)
        tokens = ComputedArray("forged", int(offsets[part][-1]), _no_tokens, dtype="uint16")
        return LeafPart(own.size, tokens, array_in_memory("forged", offsets[part]))

    records = [
        PartRecord(
            f"{number:05d}",
            own.size - 1,
            int(own[-1]),
            f"forged {number}",
            leaves={"bucket": LeafRecord(own.size - 1, "forged")},
        )
        for number, own in enumerate(offsets)
    ]
    leaf = LeafSpec("bucket", "uint8", "fixed").to_dict()
    ledger = Ledger(True, TOKENIZER, layout.to_dict(), parts=records, leaves=[leaf])
    return TokenCache("/forged", ledger, open_part)


def _no_tokens(start: int, stop: int) -> Callable[[], np.ndarray]:
    raise NotImplementedError


def config_in_buckets(buckets: int) -> LmDataConfig:
    edges = [*range(1, buckets)]
    source = f"cache: /forged, shuffle: {{strands: 2}}, buckets: {{by: bucket, edges: {edges}}}"
    return load_config(
        overrides=[f"seq_len={SEQ_LEN}", f"batch_size={BATCH}", f"components.a={{{source}}}"]
    )


def reads_of(documents: int, buckets: int, *, in_groups: bool) -> float:
    """Reads of each chunk in a pass."""
    cache = forged_lengths(documents, buckets, in_groups=in_groups)
    config = config_in_buckets(buckets)
    dataset: Any = config.with_caches(dict.fromkeys(config.components, cache)).dataset()
    steps = cache.num_tokens // (SEQ_LEN * BATCH)
    run = RunSteps(num_steps=steps, max_rows=1 << 30)
    schedule = dataset.batch_schedule
    forecast = simulate(dataset, schedule, hosts=[1], cache_bytes=MEMORY, steps=run)
    return forecast.by_hosts[0].block_fetches * CHUNK / cache.num_tokens


def measure_buckets(report: Report, documents: int, read_documents: int) -> None:
    reads = {
        (buckets, in_groups): reads_of(read_documents, buckets, in_groups=in_groups)
        for buckets in (3, BUCKETS)
        for in_groups in (False, True)
    }
    report.table(
        "Reads of each stored chunk in a pass",
        ["buckets", "in a store as it is", "in groups"],
        [[buckets, reads[buckets, False], reads[buckets, True]] for buckets in (3, BUCKETS)],
    )
    report.bar(
        "reads of a chunk, in groups", max(reads[3, True], reads[BUCKETS, True]), at_most=1.1
    )
    cache = forged_lengths(documents, BUCKETS, in_groups=True)
    config = config_in_buckets(BUCKETS)
    caches = dict.fromkeys(config.components, cache)
    begin = time.process_time()
    config.with_caches(caches).datasets()
    seconds = time.process_time() - begin
    tracemalloc.start()
    config.with_caches(caches).datasets()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    report.table(
        f"{BUCKETS} buckets of {documents:,} documents in groups",
        ["documents", "CPU s to start", "MiB at most"],
        [[f"{documents:,}", seconds, most / 2**20]],
    )
    share = documents / 100_000_000
    report.bar("CPU s to start", seconds, at_most=max(5.0 * share, 1.0))
    report.bar("MiB to start", most / 2**20, at_most=max(500.0 * share, 50.0))


def move_reads(
    store: str, group: np.ndarray, folder: str, tokens: int, block_chunks: int = 1
) -> float:
    """Reads of each chunk in a pass over a store in buckets by group."""
    numbers = f"{folder}/group.npy"
    np.save(numbers, group)
    edges = [*range(1, MOVE_GROUPS)]
    rows = block_chunks * MOVE_CHUNK // SEQ_LEN
    shuffle = f"{{strands: 2, io_block_size: {rows}}}"
    source = f"cache: {store}, shuffle: {shuffle}, buckets: {{by: {numbers}, edges: {edges}}}"
    config = load_config(
        overrides=[f"seq_len={SEQ_LEN}", "batch_size=64", f"components.a={{{source}}}"]
    )
    dataset: Any = config.dataset()
    steps = RunSteps(num_steps=tokens // (SEQ_LEN * 64), max_rows=1 << 30)
    memory = 256 * MOVE_CHUNK * 2
    forecast = simulate(dataset, dataset.batch_schedule, hosts=[1], cache_bytes=memory, steps=steps)
    return forecast.by_hosts[0].block_fetches * MOVE_CHUNK / tokens


def measure_moves(report: Report, documents: int) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2001, documents)
    group = rng.integers(0, MOVE_GROUPS, documents).astype(np.uint8)
    moves = rng.random(documents) < 0.1
    later = np.where(moves, (group + rng.integers(1, MOVE_GROUPS, documents)) % MOVE_GROUPS, group)
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            [rng.integers(0, 50_000, size).astype(np.uint16) for size in some]
            for some in np.array_split(lengths, 4)
        ]
        layout = CacheLayout("uint16", MOVE_CHUNK)
        cache = write_cache(f"{folder}/cache", parts, vocab_size=50_000, layout=layout)
        store = f"{folder}/store"
        tokens = cache.num_tokens
        how = ReshuffleConfig(0, groups=Grouping(group))
        reshuffle(cache, store, how, progress=False)
        reads = [move_reads(store, one, folder, tokens) for one in (group, later)]
        bytes_before = files.tree_bytes(store)
        how = ReshuffleConfig(0, groups=Grouping(later.astype(np.uint8)))
        begin = time.perf_counter()
        moved = move_documents(cache, store, how, Work(progress=False))
        seconds = time.perf_counter() - begin
        written = (files.tree_bytes(store) - bytes_before) / (2 * moved.tokens)
        reads += [move_reads(store, later, folder, tokens, chunks) for chunks in (1, 4)]
    report.table(
        f"A tenth of {documents:,} documents moves",
        ["moved", "seconds", "bytes written over theirs"],
        [[f"{moved.moved:,}", seconds, written]],
    )
    report.table(
        "Reads of each stored chunk in a pass",
        ["before", "in the store as it was", "moved", "moved, blocks of 4 chunks"],
        [reads],
    )
    report.bar("bytes written over those of what moved", written, at_most=1.3)
    report.bar("reads of a chunk after the move, blocks of 4 chunks", reads[3], at_most=1.3)


def largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(args: argparse.Namespace, report: Report) -> None:
    if args.only in (None, "join"):
        measure_join(args, report)  # first: a process's largest size never shrinks
    if args.only in (None, "moves"):
        measure_moves(report, 10_000 if args.quick else 100_000)
    if args.only in (None, "buckets"):
        many = 1_000_000 if args.quick else 100_000_000
        measure_buckets(report, many, 300_000 if args.quick else 1_000_000)


def measure_join(args: argparse.Namespace, report: Report) -> None:
    documents = 1_000_000 if args.quick else args.documents
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.parquet")
        # In a process of its own: the memory of writing is not that of the join
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(write_rows, rows, documents).result()
        cache = forged_cache(documents, f"{folder}/cache")
        config = AttributeConfig(str(rows))
        before = largest_bytes()
        begin = time.process_time()
        open_attribute(cache, "quality", config)
        join_s = time.process_time() - begin
        grown = largest_bytes() - before
        begin = time.process_time()
        values = open_attribute(cache, "quality", config).values
        read_s = time.process_time() - begin
        right = np.arange(documents) % 1000
        assert (values == right).all()
        assert files.names_in(f"{folder}/cache/attributes")
    report.table(
        f"{documents:,} ids",
        ["documents", "CPU s, joined", "CPU s, read again", "MiB", "bytes a document"],
        [[f"{documents:,}", join_s, read_s, grown / 2**20, grown / documents]],
    )
    # 170 MiB do not depend on the number of documents
    limit = 0.17 + 1.83 * documents / 100_000_000
    report.bar("memory of the join, GiB", grown / 2**30, at_most=limit)
    report.bar("CPU of reading again over joining", read_s / join_s, at_most=0.1)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=["join", "buckets", "moves"], help="one only")
    parser.add_argument("--documents", type=int, default=100_000_000, help="documents and ids")


if __name__ == "__main__":
    run_bench("bench_attributes", __doc__, measure, add_arguments=flags)
