"""How long a training job waits for batches of 200 sources in a store that is far away.

    python scripts/bench/bench_stalls.py --check --json docs/bench/stalls.json

Every request takes 50 ms, and a connection carries 20 MB/s. Batches have 1,024 rows of 4,096
two-byte tokens: 8 MiB a step, of 200 sources whose weights fall from 1 to 1/200. Of eight hosts,
three run, one after the other, as no host knows of the others: each takes a batch, works for half a
second, and takes the next, with 1 GB of memory. It is the beginning of a run, the hardest part: all
strands of all sources open their first blocks in the first steps.

``first batch`` is from the opening of the caches on; ``waited`` sums the waits for all batches
behind it, and ``longest`` is the longest of them. The server is a process of this machine: while
others use the machine, it answers later.

With Levanter installed (Python 3.12, `uv sync --group marin`), its loader reads an eighth of such a
batch from caches in its own format on this machine's disk, as one host: it has no distance to the
store. ``--quick`` has one of the hosts, 20 sources and fewer steps.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import Report, run_bench
from bench_object_store import HostPlacement
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import ComponentConfig, DataLoader, LmDataConfig
from headrace.feed import loader as loader_module
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

HOSTS = 8
BATCH = 1024
SEQ_LEN = 4096
BLOCK_ROWS = 16
LATENCY_MS = 50
MB_PER_S = 20
BUDGET = 1_000_000_000
WAITED_S = 2.0
LONGEST_S = 0.2


class Job:
    """A run and its store.

    Attributes:
        sizes: What it is made of.
        sources: Number of sources.
        steps: Steps of the run.
        work_s: Seconds of work on a batch.
    """

    def __init__(self, sources: int, steps: int, work_s: float) -> None:
        self.sizes = sources, steps, work_s
        self.sources = sources
        self.steps = steps
        self.work_s = work_s
        weights = 1 / np.arange(1, sources + 1)
        self.shares = dict(
            zip([f"source{k:03d}" for k in range(sources)], weights / weights.sum(), strict=True)
        )

    def rows(self, name: str) -> int:
        """Rows of a source: somewhat more than the run draws from it, in whole blocks."""
        drawn = self.steps * BATCH * self.shares[name]
        return (int(1.02 * drawn) // BLOCK_ROWS + 2) * BLOCK_ROWS

    def write(self, folder: Path) -> None:
        """Writes the caches."""
        most = max(map(self.rows, self.shares))
        tokens = np.random.default_rng(0).integers(0, 50_000, most * SEQ_LEN, dtype=np.uint16)
        layout = CacheLayout("uint16", BLOCK_ROWS * SEQ_LEN)
        for name in self.shares:
            own = tokens[: self.rows(name) * SEQ_LEN]
            write_cache(folder / name, [[own]], vocab_size=1 << 16, layout=layout)

    def config(self, root: str) -> LmDataConfig:
        """The run over the caches at ``root``."""
        components = {
            name: ComponentConfig(f"{root}/{name}", share) for name, share in self.shares.items()
        }
        return LmDataConfig(
            components, seq_len=SEQ_LEN, batch_size=BATCH, num_steps=self.steps, max_epochs=2
        )


def take(job: Job, batches: Iterator[Any], asked: float) -> list[float]:
    """Takes batches, works on each for a while, and gives the seconds of each wait; the first
    counts from ``asked``.
    """
    waits: list[float] = []
    for batch in batches:
        jax.block_until_ready(batch)
        waits.append(time.perf_counter() - asked)
        time.sleep(job.work_s)
        asked = time.perf_counter()
    return waits


def main_of_host(job: Job, root: str, number: int) -> None:
    """One of the eight hosts, a process of its own: prints its waits."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    loader_module.Placement = functools.partial(HostPlacement, number=number, hosts=HOSTS)  # pyright: ignore[reportAttributeAccessIssue]
    asked = time.perf_counter()
    dataset = job.config(root).dataset()
    with (
        DataLoader(dataset, sharding=sharding, prefetch_bytes=BUDGET) as loader,
        loader.iter_from_step(0) as batches,
    ):
        waits = take(job, (batch.token_ids for batch in batches), asked)
        fetches = loader.stats().reads.block_fetches
    print("WAITS" + json.dumps([waits, fetches]), flush=True)


@contextmanager
def far_away(folder: Path) -> Iterator[str]:
    """A server of the folder, as far away as the module says."""
    command = [sys.executable, "-m", "peers.range_server", str(folder), f"{LATENCY_MS}"]
    with subprocess.Popen(
        [*command, f"{MB_PER_S}"],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.communicate()


def summed(name: str, store: str, waits: list[list[float]], reads: float | None) -> list[Any]:
    """A row of the table: the worst host of each figure."""
    first = max(of_host[0] for of_host in waits)
    waited = max(sum(of_host[1:]) for of_host in waits)
    longest = max(max(of_host[1:]) for of_host in waits)
    return [name, store, len(waits), len(waits[0]), first, waited, longest, reads]


def run_headrace(job: Job, folder: Path, numbers: Sequence[int]) -> list[Any]:
    answers: list[tuple[list[float], int]] = []
    with far_away(folder) as root:
        for number in numbers:
            arguments = json.dumps([*job.sizes, root, number])
            command = [sys.executable, __file__, "--host", arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            answers.append(json.loads(done.stdout.split("WAITS")[1]))
    blocks = job.steps * BATCH / BLOCK_ROWS * len(numbers) / HOSTS
    place = f"{LATENCY_MS} ms, {MB_PER_S} MB/s"
    fetches = sum(fetches for _, fetches in answers)
    return summed("headrace", place, [waits for waits, _ in answers], fetches / blocks)


LEVANTER_ROWS = 256
"""Rows of a block of Levanter's default shuffle: it refuses a source of fewer."""


def write_levanter_caches(job: Job, folder: Path) -> None:
    """An eighth of the rows of each source, in Levanter's format, four bytes a token as its own."""
    from headrace_levanter.export import write_levanter

    for name in job.shares:
        rows = max(job.rows(name) // HOSTS, LEVANTER_ROWS)
        tokens = np.random.default_rng(0).integers(0, 50_000, rows * SEQ_LEN, dtype=np.uint16)
        cache = write_cache(folder / "own" / name, [[tokens]], vocab_size=1 << 16)
        write_levanter(cache, str(folder / "theirs" / name))


def levanter_batches(job: Job, folder: Path) -> Iterator[Any]:
    """Batches of Levanter's loader in its default shuffle, as its ``LmDataConfig`` makes them: an
    eighth of the rows.
    """
    import bench_levanter
    import haliax as hax
    from levanter.data.mixture import MixtureDataset
    from levanter.data.text.datasets import (
        DEFAULT_LM_DATA_SHUFFLE,
        CausalLmDataset,
        NamedLmDataset,
    )
    from levanter.data.text.datasets import TokenSeqDataset as TheirTokens
    from levanter.store.cache import TreeCache

    position = hax.Axis("position", SEQ_LEN)
    parts: dict[str, Any] = {}
    for name in job.shares:
        path = str(folder / "theirs" / name)
        cache = TreeCache.load(path, {"input_ids": np.zeros(0, np.int32)})
        rows = max(job.rows(name) // HOSTS, LEVANTER_ROWS)
        blocks = min(DEFAULT_LM_DATA_SHUFFLE.window_blocks, rows // LEVANTER_ROWS)
        parts[name] = CausalLmDataset(TheirTokens(cache, SEQ_LEN), position).block_shuffle(
            io_block_size=LEVANTER_ROWS, window_blocks=blocks, key=jax.random.key(0)
        )
    mixed: Any = MixtureDataset(parts, job.shares, block_size=2048, key=jax.random.key(1))
    with bench_levanter.make_trainer(folder) as trainer:
        batches = iter(trainer.data_loader(NamedLmDataset(mixed, position), batch=BATCH // HOSTS))
        for _ in range(job.steps):
            yield next(batches)


def run_levanter(job: Job) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        write_levanter_caches(job, folder)
        waits = take(job, levanter_batches(job, folder), time.perf_counter())
        return summed("Levanter", "this machine's disk", [waits], None)


def measure(args: argparse.Namespace, report: Report) -> None:
    job = Job(20, 16, 0.5) if args.quick else Job(200, 96, 0.5)
    numbers = [0] if args.quick else [0, 3, 7]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        job.write(Path(folder))
        rows = [run_headrace(job, Path(folder), numbers)]
    if importlib.util.find_spec("levanter") is not None:
        rows.append(run_levanter(job))
    columns = ["loader", "store", "hosts", "steps", "first batch s", "waited s", "longest s"]
    report.table(
        f"{job.sources} sources, batches of {BATCH:,} x {SEQ_LEN:,}, {job.work_s:g} s of work",
        [*columns, "reads a block"],
        rows,
    )
    _, _, _, _, _, waited, longest, _ = rows[0]
    report.bar("headrace: seconds waited behind the first batch", waited, at_most=WAITED_S)
    report.bar("headrace: longest wait", longest, at_most=LONGEST_S)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        *sizes, root, number = json.loads(sys.argv[2])
        main_of_host(Job(*sizes), root, number)
    else:
        run_bench("bench_stalls", __doc__, measure)
