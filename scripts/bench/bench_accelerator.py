"""Feeding an accelerator: training steps fed by the loader, beside the same steps on batches that
are there already.

    python scripts/bench/bench_accelerator.py --check --json docs/bench/accelerator.json
    python scripts/bench/bench_accelerator.py --on-cpu      # only shows that it runs

A decoder in bfloat16, whose parameters are counted in the table's title (124 million; a tiny one on
a CPU), trains on rows of 2,048 two-byte tokens from a warm local cache, four times the budget, on
all devices of the host. ``loader.headspace()`` hands out copies of batches that lie on the devices:
the speed that training would have with a perfect loader. Runs of both alternate; ``of headspace``
is the median of their ratios. ``alone ms`` is what a batch takes while nothing trains, ``lost ms``
what it costs a step: the rest is hidden behind computation. ``ready MiB`` is what batches hold on
the devices while nobody takes them. The second table has batches alone whose rows are split over
all devices, in each layout of context parallelism. Rows are exchanged between processes only
(``bench_row_exchange.py``). Where JAX finds no accelerator, the bench says so and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Report, run_bench
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, TokenCache, TokenSeqDataset
from headrace.demo.train import Transformer, make_optimizer, train_step
from headrace.feed.prefetch import Prefetched
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN = 2048
OF_HEADSPACE = 0.98
WAITING = 0.02


@dataclass(frozen=True)
class Size:
    """How much is run: of the corpus, of the model, and of both together."""

    rows: int
    vocabulary: int
    dim: int
    layers: int
    batch: int
    steps: int
    repeats: int
    alone: int
    """Batches that are timed without training."""


ON_CPU = Size(1 << 10, 512, 64, 1, batch=2, steps=2, repeats=1, alone=8)
QUICK = Size(1 << 16, 50_304, 768, 12, batch=16, steps=20, repeats=3, alone=200)
WHOLE = dataclasses.replace(QUICK, steps=100, repeats=7)


def write_corpus(folder: Path, size: Size) -> TokenCache:
    tokens = np.random.default_rng(0).integers(
        0, size.vocabulary, size.rows * SEQ_LEN, dtype=np.uint16
    )
    layout = CacheLayout("uint16")
    return write_cache(folder, [[tokens]], vocab_size=size.vocabulary, layout=layout)


def make_loader(cache: TokenCache, batch: int, **options: Any) -> DataLoader:
    dataset = TokenSeqDataset(cache, SEQ_LEN).braid_shuffle(seed=0, batch_size=batch).repeat()
    return DataLoader(dataset, batch, prefetch_bytes=cache.num_tokens // 2, **options)


class Training:
    """The model, its optimizer, and steps on batches from anywhere."""

    def __init__(self, size: Size) -> None:
        model = Transformer(
            size.vocabulary,
            dim=size.dim,
            layers=size.layers,
            heads=size.dim // 64,
            key=jax.random.key(0),
        )
        floats, rest = eqx.partition(model, eqx.is_inexact_array)
        self.parameters = sum(array.size for array in jax.tree.leaves(floats))
        floats = jax.tree.map(lambda array: array.astype(jnp.bfloat16), floats)
        self.optimizer = make_optimizer(10_000, peak_lr=1e-4)
        # Whole on every device, as the step returns them: else it is compiled a second time.
        whole = NamedSharding(Mesh(np.asarray(jax.devices()), ("data",)), PartitionSpec())
        floats, self.state = jax.device_put((floats, self.optimizer.init(floats)), whole)
        self.model: Any = eqx.combine(floats, rest)

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


def time_alone(loader: DataLoader, batches: int) -> tuple[float, int]:
    """Seconds in which the loader brings a batch to the devices with nothing else to do, and its
    bytes.
    """
    with loader.iter_from_step(0) as stream:
        batch = jax.block_until_ready(next(stream))
        started = time.perf_counter()
        for _ in range(batches):
            batch = jax.block_until_ready(next(stream))
        seconds = (time.perf_counter() - started) / batches
        return seconds, sum(array.nbytes for array in jax.tree.leaves(batch))


def ready_bytes(loader: DataLoader) -> int:
    """Bytes on the devices, of batches that are ready when their number grows no more."""
    before = live_bytes()
    with loader.iter_from_step(0) as stream:
        next(stream)
        held = -1
        while (now := live_bytes() - before) > held:
            held = now
            time.sleep(0.5)
    return held


def live_bytes() -> int:
    """Bytes of all jax arrays of this process."""
    return sum(array.nbytes for array in jax.live_arrays())


def layout_speeds(cache: TokenCache, size: Size) -> list[list[Any]]:
    """M bytes a second of batches whose rows are split over all devices, by layout."""
    mesh = Mesh(np.asarray(jax.devices())[None], ("data", "sequence"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    table: list[list[Any]] = []
    for layout in ("contiguous", "zigzag", "striped"):
        options = {"sharding": sharding, "sequence_layout": layout}
        with make_loader(cache, size.batch, **options) as loader:
            seconds, nbytes = time_alone(loader, size.alone)
        table.append([layout, len(jax.devices()), nbytes / seconds / 1e6])
    return table


def time_training(
    training: Training, cache: TokenCache, size: Size, *, replayed: bool
) -> tuple[float, float, float]:
    """Wall and processor seconds of the steps, and the share of time that they waited."""
    with make_loader(cache, size.batch) as loader:
        with loader.headspace() if replayed else loader.iter_from_step(0) as batches:
            training.run(batches, 2)  # compiles, and fills the queue
            wall, core = training.run(batches, size.steps)
        return wall, core, loader.stats().waiting_share


def measure(args: argparse.Namespace, report: Report) -> None:
    device = jax.devices()[0]
    if device.platform == "cpu" and not args.on_cpu:
        report.note(
            "JAX finds no accelerator here: nothing was measured. `--on-cpu` runs the bench on the"
            " CPU."
        )
        report.number("platform", device.platform)
        return
    on_cpu = device.platform == "cpu"
    size = ON_CPU if on_cpu else QUICK if args.quick else WHOLE
    training = Training(size)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        cache = write_corpus(Path(folder), size)
        with make_loader(cache, size.batch) as loader:
            alone, nbytes = time_alone(loader, size.alone)
            ready = ready_bytes(loader)
        if len(jax.devices()) > 1:
            report.table(
                "Rows split over all devices, batches alone",
                ["layout", "devices", "MB/s"],
                layout_speeds(cache, size),
            )
        else:
            report.note("One device: no layout of context parallelism was measured.")
        pairs = []
        for _ in range(size.repeats):
            perfect, perfect_core, _ = time_training(training, cache, size, replayed=True)
            wall, core, waiting = time_training(training, cache, size, replayed=False)
            pairs.append((perfect / wall, wall, core, core - perfect_core, waiting))
    ratio, wall, core, loader_core, waiting = (
        statistics.median(column) for column in zip(*pairs, strict=True)
    )
    tokens = size.steps * size.batch * SEQ_LEN
    report.number("device", device.device_kind)
    report.number("parameters", training.parameters)
    report.table(
        f"{len(jax.devices())} x {device.device_kind}, {training.parameters:,} parameters,"
        f" {size.steps} steps of {size.batch} x {SEQ_LEN} tokens",
        [
            "of headspace",
            "M tokens/s",
            "waiting share",
            "core s per 1e9",
            "of it the loader's",
            "alone ms",
            "alone MB/s",
            "lost ms",
            "ready MiB",
        ],
        [
            [
                ratio,
                tokens / wall / 1e6,
                waiting,
                1e9 * core / tokens,
                1e9 * loader_core / tokens,
                1e3 * alone,
                nbytes / alone / 1e6,
                1e3 * wall * (1 - ratio) / size.steps,
                ready / (1 << 20),
            ]
        ],
    )
    if on_cpu:
        report.note("On a CPU, loading and training share the cores: no bar is held.")
        return
    report.bar("tokens/s, of those with batches that are there", ratio, at_least=OF_HEADSPACE)
    report.bar("share of time that training waits", waiting, at_most=WAITING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-cpu", action="store_true", help="run without an accelerator, on a tiny model"
    )


if __name__ == "__main__":
    run_bench("bench_accelerator", __doc__, measure, add_arguments=add_arguments)
