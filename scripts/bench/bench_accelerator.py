"""Feeding an accelerator: training steps fed by the loader, beside the same steps on batches that
are there already.

    python scripts/bench/bench_accelerator.py --check --json docs/bench/accelerator.json
    python scripts/bench/bench_accelerator.py --quick --on-cpu      (no accelerator: only shows that it runs)

A small transformer in bfloat16 trains on rows of 2,048 two-byte tokens from a warm local cache,
four times the budget, on all devices of the host. ``loader.headspace()`` hands out copies of
batches that lie on the devices: the speed that training would have with a perfect loader. Runs of
both alternate; ``of headspace`` is the median of their ratios. A loader whose work and transfers
did not overlap with computation would lose the time of both in each step. ``transfer alone``
delivers batches without training. Where JAX finds no accelerator, the bench says so and measures
nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Report, run_bench

from headrace import DataLoader, TokenSeqDataset
from headrace.demo.train import Transformer, make_optimizer, train_step
from headrace.feed.prefetch import Prefetched
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN = 2048
VOCABULARY = 50_304
OF_HEADSPACE = 0.98
WAITING = 0.02


def make_loader(folder: Path, rows: int, batch: int) -> DataLoader:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY - 304, rows * SEQ_LEN, dtype=np.uint16)
    cache = write_cache(
        folder / "cache", [[tokens]], vocab_size=VOCABULARY, layout=CacheLayout("uint16")
    )
    dataset = TokenSeqDataset(cache, SEQ_LEN).braid_shuffle(seed=0, batch_size=batch).repeat()
    return DataLoader(dataset, batch, prefetch_bytes=tokens.nbytes // 4)


class Training:
    """The model, its optimizer, and steps on batches from anywhere."""

    def __init__(self, dim: int, layers: int) -> None:
        model = Transformer(
            VOCABULARY, dim=dim, layers=layers, heads=dim // 64, key=jax.random.key(0)
        )
        floats, rest = eqx.partition(model, eqx.is_inexact_array)
        self.model: Any = eqx.combine(jax.tree.map(lambda x: x.astype(jnp.bfloat16), floats), rest)
        self.optimizer = make_optimizer(10_000, peak_lr=1e-4)
        self.state = self.optimizer.init(eqx.filter(self.model, eqx.is_array))

    def run(self, batches: Prefetched[Any], steps: int) -> tuple[float, float]:
        """Wall and processor seconds of some steps."""
        loss = jnp.zeros(())
        started = time.perf_counter()
        spent = time.process_time()
        for _ in range(steps):
            self.model, self.state, loss = train_step(
                self.model, self.state, self.optimizer, next(batches)
            )
        loss.block_until_ready()
        return time.perf_counter() - started, time.process_time() - spent


def transfer_speed(loader: DataLoader, batches: int) -> float:
    """Bytes a second that the loader brings to the devices with nothing else to do."""
    with loader.iter_from_step(0) as stream:
        batch = next(stream).token_ids.block_until_ready()
        started = time.perf_counter()
        for _ in range(batches):
            batch = next(stream).token_ids.block_until_ready()
        return batches * batch.nbytes / (time.perf_counter() - started)


def measure(args: argparse.Namespace, report: Report) -> None:
    platform = jax.devices()[0].platform
    if platform == "cpu" and not args.on_cpu:
        report.note(
            "JAX finds no accelerator here: nothing was measured. `--on-cpu` runs the bench on the"
            " CPU."
        )
        report.number("platform", platform)
        return
    small = platform == "cpu"
    batch, steps, repeats = (
        (2, 2, 2) if small else (16, 20 if args.quick else 100, 3 if args.quick else 7)
    )
    training = Training(*((64, 1) if small else (768, 12)))
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        with make_loader(Path(folder), (1 << 10) if small else (1 << 16), batch) as loader:
            alone = transfer_speed(loader, 8 if small else 200)
        taken = []
        for _ in range(repeats):
            pair = []
            for replayed in (True, False):
                with make_loader(
                    Path(folder) / f"{replayed}", (1 << 10) if small else (1 << 16), batch
                ) as loader:
                    with loader.headspace() if replayed else loader.iter_from_step(0) as batches:
                        training.run(batches, 2)  # compiles, and fills the queue
                        wall, core = training.run(batches, steps)
                    pair.append((wall, core, loader.stats().waiting_share))
            taken.append((pair[0][0] / pair[1][0], pair[1][0], pair[1][1], pair[0][1], pair[1][2]))
    ratio, wall, core, idle_core, waiting = (
        statistics.median(column) for column in zip(*taken, strict=True)
    )
    tokens = steps * batch * SEQ_LEN
    device = jax.devices()[0].device_kind
    report.number("device", device)
    report.table(
        f"{len(jax.devices())} x {device}, {steps} steps of {batch} x {SEQ_LEN} tokens",
        [
            "of headspace",
            "M tokens/s",
            "waiting share",
            "core s per 1e9",
            "of it the loader's",
            "transfer alone MB/s",
        ],
        [
            [
                ratio,
                tokens / wall / 1e6,
                waiting,
                1e9 * core / tokens,
                1e9 * (core - idle_core) / tokens,
                alone / 1e6,
            ]
        ],
    )
    report.bar("tokens/s, of those with batches that are there", ratio, at_least=OF_HEADSPACE)
    report.bar("share of time that training waits", waiting, at_most=WAITING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-cpu", action="store_true", help="run without an accelerator, on a tiny model"
    )


if __name__ == "__main__":
    run_bench("bench_accelerator", __doc__, measure, add_arguments=add_arguments)
