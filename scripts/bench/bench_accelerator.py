"""Feeding an accelerator: training steps fed by the loader, beside the same steps on batches that
are there already.

    python scripts/bench/bench_accelerator.py --check --json docs/bench/accelerator.json
    python scripts/bench/bench_accelerator.py --on-cpu      # only shows that it runs

A decoder in bfloat16, whose parameters are counted in the table's title (124 million; a tiny one on
a CPU), trains on rows of 2,048 two-byte tokens from a warm local cache, four times the budget, on
all devices of the host. The backward pass computes each layer again, as is usual at this length.
Three cases: one source, 200 sources, and documents packed into rows, whose segments the attention
respects.

``loader.headspace()`` hands out copies of batches that lie on the devices: the speed that training
would have with a perfect loader. Runs of both alternate; ``of headspace`` is the median of their
ratios. ``alone ms`` is what a batch takes while nothing trains, ``lost ms`` what it costs a step:
the rest is hidden behind computation. ``ready MiB`` is what batches hold on the devices while
nobody takes them. ``core s per 1e9`` are processor seconds for a billion tokens, of all threads,
``of it the loader's`` those beyond training on batches that are there.

The second table has batches alone whose rows are split over all devices, in each layout of context
parallelism. Rows are exchanged between processes only (``bench_row_exchange.py``). Where JAX finds
no accelerator, the bench says so and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _common import Report, run_bench
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, MixtureDataset, TokenSeqDataset
from headrace.data import AsyncDataset, PackedTokenDataset
from headrace.demo.train import Transformer, make_optimizer, train_step
from headrace.feed.prefetch import Prefetched
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN = 2048
OF_HEADSPACE = 0.98
WAITING = 0.02


@dataclass(frozen=True)
class Size:
    """How much is run: of the corpus, of the model, and of both together."""

    rows: int
    sources: int
    vocabulary: int
    dim: int
    layers: int
    batch: int
    steps: int
    repeats: int
    alone: int
    """Batches that are timed without training."""


ON_CPU = Size(1 << 10, 4, 512, 64, 1, batch=2, steps=2, repeats=1, alone=8)
QUICK = Size(1 << 16, 200, 50_304, 768, 12, batch=8, steps=20, repeats=3, alone=200)
WHOLE = dataclasses.replace(QUICK, steps=40, repeats=5)


@dataclass(frozen=True)
class Case:
    """Data to train on.

    Attributes:
        name: In the tables.
        dataset: An endless dataset.
        prefetch_bytes: A quarter of its tokens.
    """

    name: str
    dataset: AsyncDataset[Any]
    prefetch_bytes: int

    def loader(self, batch: int, **options: Any) -> DataLoader:
        """A loader of batches of so many rows."""
        return DataLoader(self.dataset, batch, prefetch_bytes=self.prefetch_bytes, **options)


def write_corpus(folder: Path, documents: Sequence[np.ndarray], vocabulary: int) -> TokenCache:
    return write_cache(folder, [documents], vocab_size=vocabulary, layout=CacheLayout("uint16"))


def make_cases(folder: Path, size: Size) -> list[Case]:
    """One source, many of them, and packed documents: each has ``size.rows`` rows."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, size.vocabulary, size.rows * SEQ_LEN, dtype=np.uint16)
    budget = tokens.nbytes // 4

    one = write_corpus(folder / "one", [tokens], size.vocabulary)
    plain = TokenSeqDataset(one, SEQ_LEN).braid_shuffle(seed=0, batch_size=size.batch).repeat()

    parts = {}
    for number, rows in enumerate(np.array_split(tokens.reshape(-1, SEQ_LEN), size.sources)):
        name = f"source-{number:03d}"
        cache = write_corpus(folder / name, [rows.reshape(-1)], size.vocabulary)
        parts[name] = TokenSeqDataset(cache, SEQ_LEN, name=name).braid_shuffle(seed=0, strands=8)
    many = MixtureDataset(parts, dict.fromkeys(parts, 1), size.batch)

    lengths = rng.integers(64, 2 * SEQ_LEN, 2 * tokens.size // (SEQ_LEN + 32))
    documents = np.split(tokens, np.minimum(np.cumsum(lengths), tokens.size))
    whole = [document[:SEQ_LEN] for document in documents if document.size]
    packs = PackedTokenDataset(write_corpus(folder / "packs", whole, size.vocabulary), SEQ_LEN)
    packed = packs.braid_shuffle(seed=0, batch_size=size.batch).repeat()

    return [
        Case("one source", plain, budget),
        Case(f"{size.sources} sources", many, budget),
        Case("packed documents", packed, budget),
    ]


class Recomputed(eqx.Module):
    """A layer whose inner values are computed again for the gradient, in place of being kept."""

    block: Any

    def __call__(self, *inputs: Any) -> Any:
        return eqx.filter_checkpoint(self.block)(*inputs)


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
        layers = tuple(Recomputed(block) for block in model.blocks)
        model = eqx.tree_at(lambda transformer: transformer.blocks, model, layers)
        floats, rest = eqx.partition(model, eqx.is_inexact_array)
        self.parameters = sum(array.size for array in jax.tree.leaves(floats))
        if jax.default_backend() != "cpu":  # where bfloat16 is slow
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


def layout_speeds(case: Case, size: Size) -> list[list[Any]]:
    """M bytes a second of batches whose rows are split over all devices, by layout."""
    mesh = Mesh(np.asarray(jax.devices())[None], ("data", "sequence"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    table: list[list[Any]] = []
    for layout in ("contiguous", "zigzag", "striped"):
        with case.loader(size.batch, sharding=sharding, sequence_layout=layout) as loader:
            seconds, nbytes = time_alone(loader, size.alone)
        table.append([layout, len(jax.devices()), nbytes / seconds / 1e6])
    return table


def time_training(
    training: Training, case: Case, size: Size, *, replayed: bool
) -> tuple[float, float, float]:
    """Wall and processor seconds of the steps, and the share of time that they waited."""
    with case.loader(size.batch) as loader:
        with loader.headspace() if replayed else loader.iter_from_step(0) as batches:
            training.run(batches, 2)  # compiles, and fills the queue
            wall, core = training.run(batches, size.steps)
        return wall, core, loader.stats().waiting_share


def time_case(training: Training, case: Case, size: Size, report: Report) -> list[Any]:
    """The row of a case in the table."""
    with case.loader(size.batch) as loader:
        alone, nbytes = time_alone(loader, size.alone)
        ready = ready_bytes(loader)
    pairs = []
    for _ in range(size.repeats):
        perfect, perfect_core, _ = time_training(training, case, size, replayed=True)
        wall, core, waiting = time_training(training, case, size, replayed=False)
        pairs.append((perfect / wall, wall, core, core - perfect_core, waiting))
    ratio, wall, core, loader_core, waiting = (
        statistics.median(column) for column in zip(*pairs, strict=True)
    )
    if jax.default_backend() != "cpu":
        report.bar(f"{case.name}: of the speed on ready batches", ratio, at_least=OF_HEADSPACE)
        report.bar(f"{case.name}: share of time that training waits", waiting, at_most=WAITING)
    tokens = size.steps * size.batch * SEQ_LEN
    return [
        case.name,
        ratio,
        tokens / wall / 1e6,
        waiting,
        1e9 * core / tokens,
        1e9 * loader_core / tokens,
        1e3 * wall / size.steps,
        1e3 * alone,
        nbytes / alone / 1e6,
        1e3 * wall * (1 - ratio) / size.steps,
        ready / (1 << 20),
    ]


def measure(args: argparse.Namespace, report: Report) -> None:
    device = jax.devices()[0]
    report.number("device", device.device_kind)
    on_cpu = device.platform == "cpu"
    if on_cpu and not args.on_cpu:
        report.note(
            "JAX finds no accelerator here: nothing was measured. `--on-cpu` runs the bench on the"
            " CPU."
        )
        return
    size = ON_CPU if on_cpu else QUICK if args.quick else WHOLE
    training = Training(size)
    report.number("parameters", training.parameters)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        cases = make_cases(Path(folder), size)
        rows = [time_case(training, case, size, report) for case in cases]
        if len(jax.devices()) > 1:
            report.table(
                "Rows split over all devices, batches alone",
                ["layout", "devices", "MB/s"],
                layout_speeds(cases[0], size),
            )
        else:
            report.note("One device: no layout of context parallelism was measured.")
    report.table(
        f"{len(jax.devices())} x {device.device_kind}, {training.parameters:,} parameters,"
        f" {size.steps} steps of {size.batch} x {SEQ_LEN} tokens",
        [
            "case",
            "of headspace",
            "M tokens/s",
            "waiting share",
            "core s per 1e9",
            "of it the loader's",
            "step ms",
            "alone ms",
            "alone MB/s",
            "lost ms",
            "ready MiB",
        ],
        rows,
    )
    if on_cpu:
        report.note("On a CPU, loading and training share the cores: no bar is held.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-cpu", action="store_true", help="run without an accelerator, on a tiny model"
    )


if __name__ == "__main__":
    run_bench("bench_accelerator", __doc__, measure, add_arguments=add_arguments)
