"""What it costs that hosts wait for each other before each batch: real JAX processes.

    uv run scripts/bench/bench_hosts.py [--quick] [--json FILE] [--check]

Each host runs blocks of steps, in turn with the barrier and without. A step is a program over all
hosts' devices in which each device sleeps, as an accelerator works while its host has nothing to
do; a thread runs it, since programs over several processes hold up their caller on CPUs.
"Dispatched ahead": the trainer dispatches a step and waits for the one before it, as trainers do
that log the last loss. "Waits for each step": it waits for each step before it asks for the next
batch. "The meeting alone": hosts meet without batches. Of each host the fastest block of each kind
counts, since a busy machine only adds time, and of the hosts the one with the most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.store.layout import CacheLayout
from headrace.testing import write_cache
from headrace.testing.servers import free_port

HOSTS = (2, 4)
BAR_MS = 0.2
STEP_MS = 20


def host_arguments() -> argparse.Namespace:
    """What :func:`run` gives each process."""
    parser = argparse.ArgumentParser()
    for name in ("host", "hosts", "steps", "blocks"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("address", "cache"):
        parser.add_argument(f"--{name}")
    return parser.parse_args()


def host(arguments: argparse.Namespace) -> None:
    """One process of the job: prints its figures as JSON."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec

    import headrace
    from headrace.feed import HostBarrier

    jax.distributed.initialize(arguments.address, arguments.hosts, arguments.host)

    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    dataset = headrace.TokenSeqDataset(arguments.cache, 8).shuffle(0).repeat()
    loaders = {
        on: headrace.DataLoader(
            dataset, 4 * arguments.hosts, mesh=mesh, host_barrier=HostBarrier() if on else None
        )
        for on in (True, False)
    }

    def device_work(tokens: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((), jnp.int32)
        slept = jax.pure_callback(
            lambda x: (time.sleep(STEP_MS / 1000), x)[1], shape, tokens[0, 0].astype(jnp.int32)
        )
        return jax.lax.psum(slept, "data")

    work = jax.shard_map(
        device_work, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec()
    )
    step = jax.jit(lambda batch: work(batch.tokens))
    iterations = {on: loader.iter_from_step(0) for on, loader in loaders.items()}
    for batches in iterations.values():
        step(next(batches)).block_until_ready()
    modes = {
        "ahead": (1, arguments.steps),
        "in step": (1, arguments.steps),
        "meeting": (40, 25),
    }  # blocks, steps
    seconds: dict[tuple[str, bool], list[float]] = {
        (mode, on): [] for mode in modes for on in (True, False)
    }
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(arguments.blocks):
        for (mode, on), blocks in seconds.items():
            count, steps = modes[mode]
            used = time.process_time()
            blocks.extend(_block(iterations[on], step, mode, steps) for _ in range(count))
            if mode == "meeting":
                cpu[on].append((time.process_time() - used) / (count * steps))
    for batches in iterations.values():
        batches.close()
    figures = {mode: min(seconds[mode, True]) - min(seconds[mode, False]) for mode in modes}
    figures |= {"without": min(seconds["ahead", False]), "cpu": min(cpu[True]) - min(cpu[False])}
    print(
        "FIGURES" + json.dumps({mode: 1000 * value for mode, value in figures.items()}), flush=True
    )


def _block(batches: Any, step: Callable[[Any], Any], mode: str, steps: int) -> float:
    """Seconds a step."""
    previous: Future[Any] | None = None
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as devices:
        for _ in range(steps):
            if mode == "meeting":
                if batches._gate is not None:
                    batches._gate.cross()
                continue
            batch = next(batches)
            loss = devices.submit(lambda batch=batch: step(batch).block_until_ready())
            if mode == "in step":
                loss.result()
            elif previous is not None:
                previous.result()
            previous = loss
    return (time.perf_counter() - began) / steps


def run(hosts: int, steps: int, blocks: int, cache: str) -> dict[str, float]:
    """The figures of a job of so many hosts, the slowest host's."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "--address", address, "--cache", cache]
    command += ["--hosts", str(hosts), "--steps", str(steps), "--blocks", str(blocks)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [*command, "--host", str(number)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for number in range(hosts)
    ]
    outputs = [process.communicate()[0] for process in processes]
    figures = [json.loads(out.split("FIGURES", 1)[1]) for out in outputs]
    return {name: max(figure[name] for figure in figures) for name in figures[0]}


def measure(args: argparse.Namespace, report: Report) -> None:
    rows: list[list[float]] = []
    for hosts in HOSTS[-1:] if args.quick else HOSTS:
        with tempfile.TemporaryDirectory() as folder:
            documents = [np.arange(7, dtype=np.uint16) for _ in range(4096)]
            write_cache(f"{folder}/cache", [documents], layout=CacheLayout("uint16", 4096, 16))
            figures = run(
                hosts, 20 if args.quick else 50, 5 if args.quick else 15, f"{folder}/cache"
            )
        rows.append([hosts, *figures.values()])
        report.bar(f"{hosts} hosts, the meeting alone: ms", figures["meeting"], at_most=BAR_MS)
        report.bar(f"{hosts} hosts: ms of a host's CPU a meeting", figures["cpu"], at_most=BAR_MS)
    columns = [
        "hosts",
        "dispatched ahead",
        "waits for each step",
        "the meeting alone",
        "a step without",
        "CPU of a host",
    ]
    report.table(
        f"What the barrier adds to a step of {STEP_MS} ms of device work, ms", columns, rows
    )


if __name__ == "__main__":
    if "--host" in sys.argv:
        host(host_arguments())
    else:
        run_bench("bench_hosts", __doc__, measure)
