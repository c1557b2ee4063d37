"""What it costs to know which row comes next: component, row and locality order of a batch, all in.

    python scripts/bench/bench_index_speed.py --check --json docs/bench/index_speed.json

20 Zipf components, braided shuffle at the default budget: ``Draws.route``, ``BraidTable``, then the
sort by locality. Batches follow each other, so nothing is mapped twice. The machine may be busy:
the fastest of many batches counts, and flatness is the ratio of two settings measured in turns.

Then the first batch of a process that starts at a far step, with a saved anchor and without: of the
index maps alone, and of a ``DataLoader`` in an opened run; and a million steps of ramped weights
prepared at once. Each in processes of their own, from the imports on, the fastest of several, in
seconds of processor time (of index maps, which are one thread, on an idle machine the same as by
the clock).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.quota import Quota
from headrace.mix.stages import Stage, Stages
from headrace.order.braid import BraidShuffle, BraidTable
from headrace.order.permutation import Feistel
from headrace.order.shuffle_config import StrandPlan, resolve_strands

LENGTHS = (10**6, 10**9, 10**12)
COMPONENTS = 20
FAR = 10**6
BATCH = 1024
WIDTHS = (20, 64)
RAMPED = (20, 200, 1000)
WINDOW_STEPS = 32


def braid_table(lengths: np.ndarray, plan: StrandPlan) -> BraidTable:
    """The braids of components of these lengths."""
    firsts = np.cumsum(plan.strands) - plan.strands
    columns = (lengths, plan.strands, plan.laps, firsts)
    return BraidTable.of(
        [
            BraidShuffle(n, io_block_size=32, strands=strands, lap=lap, first_strand=first, seed=k)
            for k, (n, strands, lap, first) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]
    )


def mapping(n: int, batch: int) -> Callable[[int], np.ndarray]:
    """Maps the batch of a step: rows in locality order."""
    shares = 1.0 / np.arange(1, COMPONENTS + 1)
    shares /= shares.sum()
    lengths = np.maximum((n * shares).astype(np.int64), 1)
    plan = resolve_strands(lengths, shares, batch_size=batch, strands=min(8 * batch, n // 8))
    table = braid_table(lengths, plan)
    blend = Blend({str(k): float(s) for k, s in enumerate(shares)})
    draws = Draws(Quota(blend.at, COMPONENTS, BatchSchedule(batch)))

    def batch_at(step: int) -> np.ndarray:
        component, ordinal = draws.route(np.arange(step * batch, (step + 1) * batch))
        rows, locality = table(component, ordinal)
        return rows[np.argsort(locality, kind="stable")]

    return batch_at


def best_us(maps: list[Callable[[int], np.ndarray]], batch: int, rounds: int) -> list[float]:
    """Fastest microseconds an index of each mapping, measured in turns."""
    best = [float("inf")] * len(maps)
    for step in range(rounds):
        for k, batch_at in enumerate(maps):
            started = time.perf_counter()
            batch_at(1000 + step)
            best[k] = min(best[k], (time.perf_counter() - started) / batch * 1e6)
    return best


def draws_of(components: int, ramps: bool) -> Draws:
    """A run of two million steps whose weights all change with the step, or not at all."""
    start = np.random.default_rng(0).lognormal(0, 1.5, (2, components)) + 0.01
    names = [str(d) for d in range(components)]
    ramped = {
        n: {"linear": {0: a, 2 * FAR: b}} for n, a, b in zip(names, *start.tolist(), strict=True)
    }
    blend = Blend(ramped if ramps else dict(zip(names, start[0].tolist(), strict=True)))
    return Draws(Stages(names, [Stage(0, blend)], BatchSchedule(BATCH)))


def child(what: str, components: int, ramps: bool, step: int, anchor: str) -> dict[str, Any]:
    """Runs in a process of its own: what it is asked for, timed."""
    if what == "prepare":
        policy = draws_of(components, ramps).policy
        before = peak_mib()
        started = time.process_time()
        policy.prepare(FAR)  # pyright: ignore[reportAttributeAccessIssue]
        seconds = time.process_time() - started
        late = policy.late_steps  # pyright: ignore[reportAttributeAccessIssue]
        return {"seconds": seconds, "mib": peak_mib() - before, "late": late}
    if what == "load":
        return loaded(components, step, anchor)
    if what == "save":
        draws = draws_of(components, ramps)
        Path(anchor).write_text(json.dumps(draws.anchor_at(step)))
        return {"bytes": Path(anchor).stat().st_size, "starts": draws.starts_at(step).tolist()}
    lengths = np.full(components, 10**9)
    plan = resolve_strands(
        lengths, np.full(components, 1 / components), batch_size=BATCH, strands=8 * BATCH
    )
    table = braid_table(lengths, plan)
    draws_of(components, ramps)  # numpy loads its random numbers only now
    started = time.process_time()
    draws = draws_of(components, ramps)
    if anchor:
        draws.use_anchor(json.loads(Path(anchor).read_text()))
    one = _rows(draws, table, step)
    seconds = time.process_time() - started
    for ahead in range(1, WINDOW_STEPS):
        _rows(draws, table, step + ahead)
    window = time.process_time() - started
    return {
        "seconds": seconds,
        "window": window,
        "rows": int(one.sum()),
        "starts": draws.starts_at(step).tolist(),
    }


def loaded(components: int, step: int, folder: str) -> dict[str, Any]:
    """Processor seconds to a loader's batch of one step, read at once, on the devices, in a run
    that is opened.

    The first process writes the caches, and leaves the run's anchor at ``FAR``.
    """
    import jax

    from headrace import DataLoader, MixtureDataset, TokenSeqDataset, open_run
    from headrace.testing import write_cache

    path = f"{folder}/loaded-{components}"
    fresh = not Path(path).exists()
    names = [f"c{k}" for k in range(components)]
    for name in names if fresh else ():
        tokens = np.random.default_rng(0).integers(0, 5000, 1 << 19).astype(np.uint16)
        write_cache(f"{path}/{name}", [[tokens]], vocab_size=1 << 16)
    parts = {
        n: TokenSeqDataset(f"{path}/{n}", 256, name=n).braid_shuffle(strands=16, seed=0).repeat()
        for n in names
    }
    weights = {n: {"linear": {0: 1.0 + k, 2 * FAR: 1.0 + k % 3}} for k, n in enumerate(names)}
    loader = DataLoader(MixtureDataset(parts, weights, batch_size=BATCH, num_steps=2 * FAR))
    manifest = open_run(f"{path}/run", loader)
    if fresh:
        manifest.state(step=FAR)
    jax.device_put(np.zeros(1)).block_until_ready()
    started = time.process_time()
    batch = loader.batch_at(
        step
    )  # an iteration would go on in the background, by how much is chance
    batch.token_ids.block_until_ready()
    seconds = time.process_time() - started
    return {"seconds": seconds, "rows": int(batch.source_id.sum())}


def _rows(draws: Draws, table: BraidTable, step: int) -> np.ndarray:
    rows, locality = table(*draws.route(np.arange(step * BATCH, (step + 1) * BATCH)))
    return rows[np.argsort(locality, kind="stable")]


def peak_mib() -> float:
    """Most memory that this process ever held."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # pyright: ignore[reportOptionalSubscript]


def in_a_process(
    what: str, components: int, ramps: bool, step: int = 0, anchor: str = ""
) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        json.dumps([what, components, ramps, step, anchor]),
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def first_batches(report: Report, widths: Sequence[int], tries: int, folder: str) -> None:
    """First batch of a fresh process, at the start and far out."""
    rows: list[list[Any]] = []
    loaders: list[list[Any]] = []
    for components in widths:
        anchor = f"{folder}/{components}.json"
        saved = in_a_process("save", components, True, FAR, anchor)
        report.number(f"bytes of an anchor, {components} components", saved["bytes"])
        cases = {
            "changing weights, step 0": (True, 0, ""),
            "changing weights, step 1e6, saved anchor": (True, FAR, anchor),
            "changing weights, step 1e6, no anchor": (True, FAR, ""),
            "constant weights, step 0": (False, 0, ""),
            "constant weights, step 1e6, no anchor": (False, FAR, ""),
        }
        best = {name: [float("inf")] * 2 for name in cases}
        for number in range(tries):  # in turns, so that a busy machine is busy for all
            for name, case in cases.items():
                if number and case == (True, FAR, ""):
                    continue  # seconds, once is enough
                found = in_a_process("first", components, *case)
                best[name] = [
                    min(best[name][0], found["seconds"]),
                    min(best[name][1], found["window"]),
                ]
                if case[:2] == (True, FAR) and found["starts"] != saved["starts"]:
                    raise SystemExit("an anchor changed the order")
        rows += [[components, name, *(1e3 * s for s in seconds)] for name, seconds in best.items()]
        near, far = list(best.values())[:2]
        report.number(
            f"step 1e6 with its anchor over step 0, {components} components, first batch alone",
            far[0] / near[0],
        )
        where = f"{components} components: step 1e6 with its anchor over step 0"
        report.bar(f"{where}, first window", far[1] / near[1], at_most=1.1)
        in_a_process("load", components, True, FAR, folder)
        taken = [
            [in_a_process("load", components, True, s, folder)["seconds"] for s in (0, FAR)]
            for _ in range(tries // 2)
        ]
        near_s, far_s = np.min(taken, axis=0).tolist()
        loaders.append([components, 1e3 * near_s, 1e3 * far_s])
        report.bar(f"{where}, a loader's first batch", far_s / near_s, at_most=1.1)
    columns = [
        "components",
        "a fresh process at",
        "first batch, ms",
        f"first {WINDOW_STEPS} steps, ms",
    ]
    report.table(
        f"Processor time to the first batch of {BATCH}, imports not counted, reading an anchor"
        " counted",
        columns,
        rows,
    )
    columns = ["components", "step 0, ms", "step 1e6, ms"]
    report.table(
        "Processor time to a loader's first batch on the devices, all threads", columns, loaders
    )


def prepared(report: Report, tries: int) -> None:
    """A million steps of ramped weights."""
    rows = []
    for components in RAMPED:
        found = [in_a_process("prepare", components, True) for _ in range(tries)]
        seconds = min(f["seconds"] for f in found)
        mib = max(f["mib"] for f in found)
        rows.append([components, seconds, mib, found[0]["late"]])
        if components == 200:
            name = f"a million steps of {components} ramped components"
            report.bar(f"{name}, seconds", seconds, at_most=1.0)
            report.bar(f"{name}, peak MiB", mib, at_most=50.0)
    report.table(
        "A million steps of linear ramps prepared",
        ["components", "seconds", "peak MiB", "late steps"],
        rows,
    )


def measure(args: argparse.Namespace, report: Report) -> None:
    rounds = 40 if args.quick else 200
    rows = []
    for batch in (256, 1024, 4096, 16384):
        best = best_us([mapping(n, batch) for n in LENGTHS], batch, rounds)
        rows.append([batch, *best])
        if batch >= 1024:
            report.bar(f"batch {batch}: microseconds an index, any length", max(best), at_most=1.0)
        if batch == 1024:
            report.bar("n = 1e12 over n = 1e6, batch 1024", best[2] / best[0], at_most=1.25)
    report.table(
        f"Microseconds an index: {COMPONENTS} components, braid, locality order",
        ["batch", *(f"n = {n:.0e}" for n in LENGTHS)],
        rows,
    )
    with tempfile.TemporaryDirectory() as folder:
        first_batches(report, WIDTHS[:1] if args.quick else WIDTHS, 3 if args.quick else 15, folder)
    prepared(report, 1 if args.quick else 3)
    i = np.arange(10**6)
    full = Feistel(10**9, seed=0)
    seconds = min(_seconds(lambda: full(i)) for _ in range(3))
    report.number("seconds for a million indices of a full shuffle", seconds)
    report.bar("a million indices of a full shuffle, seconds", seconds, at_most=1.0)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__" and "--child" in sys.argv[1:]:
    print(json.dumps(child(*json.loads(sys.argv[2]))))
elif __name__ == "__main__":
    run_bench("bench_index_speed", __doc__, measure)
