"""How long a training job waits for batches of 200 sources in a store that is far away.

    python scripts/bench/bench_stalls.py --check --json docs/bench/stalls.json

Every request takes 50 ms, and a connection carries 20 MB/s. Batches have 1,024 rows of 4,096
two-byte tokens: 8 MiB a step, of 200 sources whose weights fall from 1 to 1/200. Eight hosts, each
a loader in this process with caches of its own and 1 GB of memory, take a batch, work for a second,
and take the next. It is the beginning of a run, the hardest part: all strands of all sources open
their first blocks in the first steps.

``first batch`` is from the opening of the caches on; ``waited`` sums the waits for all batches
behind it, and ``longest`` is the longest of them. A request that Python serves takes this machine's
time, too: the figures are those of a busy machine.

With Levanter installed (Python 3.12, `uv sync --group marin`), its loader reads an eighth of such a
batch from caches in its own format on this machine's disk, as one host: it has no distance to the
store. ``--quick`` has two of the eight hosts, 20 sources and fewer steps.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

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
        sources: Number of sources.
        steps: Steps of the run.
        work_s: Seconds of work on a batch.
    """

    def __init__(self, sources: int, steps: int, work_s: float) -> None:
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


class HostRun(threading.Thread):
    """A host that takes a batch, works for a while, and takes the next.

    Attributes:
        waits: Seconds of each wait for a batch; the first counts from before the caches are opened.
    """

    def __init__(self, job: Job, batches: Callable[[], Iterator[Any]]) -> None:
        super().__init__(daemon=True)
        self.job = job
        self.batches = batches
        self.waits: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asked = time.perf_counter()
            for batch in self.batches():
                jax.block_until_ready(batch)
                self.waits.append(time.perf_counter() - asked)
                time.sleep(self.job.work_s)
                asked = time.perf_counter()
        except BaseException as error:  # noqa: BLE001  # whoever joins it gets it
            self.error = error


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


def loader_of(job: Job, root: str, number: int) -> DataLoader:
    """The loader of one of the eight hosts, which opens everything anew."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    placement = functools.partial(HostPlacement, number=number, hosts=HOSTS)
    dataset = job.config(root).dataset()
    with _patching, mock.patch.object(loader_module, "Placement", placement):
        return DataLoader(dataset, sharding=sharding, prefetch_bytes=BUDGET)


_patching = threading.Lock()


def headrace_batches(
    job: Job, root: str, number: int, loaders: dict[int, DataLoader]
) -> Iterator[Any]:
    """Batches of a host."""
    loaders[number] = loader_of(job, root, number)
    with loaders[number] as loader, loader.iter_from_step(0) as batches:
        for batch in batches:
            yield batch.token_ids


def summed(name: str, store: str, runs: list[HostRun], reads: float | None) -> list[Any]:
    """A row of the table: the worst host of each figure."""
    first = max(run.waits[0] for run in runs)
    waited = max(sum(run.waits[1:]) for run in runs)
    longest = max(max(run.waits[1:]) for run in runs)
    return [name, store, len(runs), len(runs[0].waits), first, waited, longest, reads]


def run_all(runs: list[HostRun]) -> None:
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        if run.error is not None:
            raise run.error


def run_headrace(job: Job, folder: Path, numbers: list[int]) -> list[Any]:
    with far_away(folder) as root:
        loaders: dict[int, DataLoader] = {}
        runs = [
            HostRun(job, functools.partial(headrace_batches, job, root, number, loaders))
            for number in numbers
        ]
        run_all(runs)
    fetches = sum(loader.stats().reads.block_fetches for loader in loaders.values())
    blocks = job.steps * BATCH / BLOCK_ROWS * len(numbers) / HOSTS
    place = f"{LATENCY_MS} ms, {MB_PER_S} MB/s"
    return summed("headrace", place, runs, fetches / blocks)


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
        runs = [HostRun(job, functools.partial(levanter_batches, job, folder))]
        run_all(runs)
        return summed("Levanter", "this machine's disk", runs, None)


def measure(args: argparse.Namespace, report: Report) -> None:
    job = Job(20, 16, 0.5) if args.quick else Job(200, 96, 1.0)
    numbers = [0, 7] if args.quick else [*range(HOSTS)]
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
    run_bench("bench_stalls", __doc__, measure)
