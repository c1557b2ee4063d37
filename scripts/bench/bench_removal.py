"""What removing documents at index time costs: reads of each stored chunk in an epoch, and tokens
that fill no row.

    python scripts/bench/bench_removal.py --check --json docs/bench/removal.json

A cache of 4,096 chunks of 4,096 tokens, documents of 1,000 tokens on average, rows of 256 tokens,
batches of 16, a braided shuffle with 16 strands; one whole epoch is loaded, with memory for four
times the open blocks, and the loader's own counters are read. "Gaps close" is what the docstring of
data/token_seq.py says for gaps too close to begin rows anew: 1 + (1 - f) / k reads of each chunk,
for a share f removed and blocks of k chunks.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
from _common import Report, run_bench

from headrace import DataLoader, TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

CHUNK = 4096
SEQ_LEN = 256
BATCH = 16
STRANDS = 16
ROWS_A_CHUNK = CHUNK // SEQ_LEN


def make_cache(folder: str, chunks: int) -> TokenCache:
    lengths = np.random.default_rng(0).geometric(1e-3, chunks * CHUNK // 1000)
    documents = [np.zeros(n, np.uint16) for n in lengths.tolist()]
    return write_cache(folder, [documents], layout=CacheLayout("uint16", CHUNK, 256))


def epoch(
    cache: TokenCache, documents: np.ndarray, chunks_a_block: int
) -> tuple[float, float, float]:
    """Shares of tokens removed and dropped, and reads of each chunk."""
    whole = TokenSeqDataset(cache, SEQ_LEN, removed=DocumentFilter(documents))
    order = whole.braid_shuffle(
        seed=0, strands=STRANDS, io_block_size=ROWS_A_CHUNK * chunks_a_block
    )
    memory = 4 * STRANDS * (chunks_a_block + 1) * CHUNK * 2
    with (
        DataLoader(order, BATCH, prefetch_bytes=memory) as loader,
        loader.iter_from_step(0) as batches,
    ):
        for _ in batches:
            pass
        fetches = loader.stats().reads.block_fetches
    tokens = cache.num_tokens
    return whole.removed_tokens / tokens, whole.dropped_tokens / tokens, fetches * CHUNK / tokens


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = make_cache(f"{folder}/cache", 1024 if args.quick else 4096)
        rng = np.random.default_rng(1)
        rows: list[list[float]] = []
        for share in (0.0, 0.001, 0.01, 0.1, 0.3):
            documents = np.flatnonzero(rng.random(cache.num_documents) < share)
            for k in (1, 4):
                removed, dropped, reads = epoch(cache, documents, k)
                close = 1 + (1 - removed) / k if removed else 1.0
                rows.append([share, removed, dropped, k, reads, close])
                bar = 1.05 if share <= 0.001 else 1.25 if share == 0.01 else 1.05 * close
                report.bar(f"{share:g} removed, blocks of {k}: reads a chunk", reads, at_most=bar)
    report.table(
        "Reads of each stored chunk in one epoch",
        [
            "documents removed",
            "tokens removed",
            "tokens dropped",
            "chunks a block",
            "reads a chunk",
            "gaps close",
        ],
        rows,
    )


if __name__ == "__main__":
    run_bench("bench_removal", __doc__, measure)
