"""Reads and speed of shuffled row reads, with the options of marin's plan of block shuffles (issue
2917):

    python scripts/bench/bench_data_loading_block_shuffle.py --steps 20 --batch-size 128
    --prefetch-batches 16 \
        --num-examples 16384 --seq-len 2048 --strategies full,era,block --era-length 1024

Each step asks a dataset for ``prefetch-batches`` batches at once, as Levanter's loader does.
``reads`` counts runs of neighbouring rows, each one request; ``reduction`` is what they save
against a request for every row. headrace's own loader reads whole blocks, each once:
scripts/bench/bench_data_loading.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import numpy as np
from _common import Report, at_least, run_bench

from headrace import TokenSeqDataset
from headrace.data import AsyncDataset
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

MARIN_CHUNK = 256 * 1024
"""Tokens of a chunk of Levanter's caches: a block of its plan."""


def measure(args: argparse.Namespace, report: Report) -> None:
    block = max(MARIN_CHUNK // args.seq_len, 1)
    strategies: dict[str, Callable[[TokenSeqDataset], AsyncDataset]] = {
        "full": lambda d: d.shuffle(0),
        "era": lambda d: d.era_shuffle(args.era_length, seed=0),
        "block": lambda d: d.block_shuffle(
            io_block_size=block, window_blocks=args.window_blocks, seed=0
        ),
        "braid": lambda d: d.braid_shuffle(batch_size=args.batch_size, seed=0),
    }
    if unknown := set(args.strategies.split(",")) - strategies.keys():
        raise SystemExit(
            f"--strategies: {', '.join(sorted(unknown))}: choose from {', '.join(strategies)}"
        )
    group = args.batch_size * args.prefetch_batches
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        tokens = (
            np.random.default_rng(0)
            .integers(0, 50_000, args.num_examples * args.seq_len)
            .astype(np.uint16)
        )
        layout = CacheLayout("uint16", chunk_elements=block * args.seq_len)
        cache = write_cache(folder, [[tokens]], vocab_size=65_536, layout=layout)
        for name in args.strategies.split(","):
            base = TokenSeqDataset(cache, args.seq_len)
            dataset = strategies[name](base).repeat()
            started = time.perf_counter()
            for step in range(args.steps):
                dataset.read(np.arange(step * group, (step + 1) * group))
            seconds = time.perf_counter() - started
            stats = base.read_stats
            asked = stats.examples_requested
            reads = stats.coalesced_ranges
            speed = asked / seconds
            saved = 1 - reads / asked
            rows.append(
                [name, seconds, speed, speed * args.seq_len, asked, reads, reads / asked, saved]
            )
    heads = [
        "strategy",
        "elapsed s",
        "examples/s",
        "tokens/s",
        "examples",
        "reads",
        "reads/example",
        "reduction",
    ]
    report.table(
        f"{args.steps} steps of {args.prefetch_batches} x {args.batch_size} examples", heads, rows
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=at_least(1), default=20, help="times that the dataset is asked"
    )
    parser.add_argument("--batch-size", type=at_least(1), default=128)
    parser.add_argument(
        "--prefetch-batches",
        type=at_least(1),
        default=16,
        help="batches that it is asked for at once",
    )
    parser.add_argument("--num-examples", type=at_least(1), default=16_384)
    parser.add_argument(
        "--seq-len", type=at_least(1), default=2048, help="blocks hold 262,144 tokens"
    )
    parser.add_argument(
        "--strategies", default="full,era,block", metavar="NAMES", help="of full, era, block, braid"
    )
    parser.add_argument("--era-length", type=at_least(1), default=1024)
    parser.add_argument("--window-blocks", type=at_least(1), default=8)


if __name__ == "__main__":
    run_bench("bench_data_loading_block_shuffle", __doc__, measure, add_arguments=add_arguments)
