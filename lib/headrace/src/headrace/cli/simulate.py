"""``headrace simulate``: what a run will read, before it is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    AsJson,
    ChunkLayout,
    Config,
    Declared,
    Hosts,
    Layout,
    Settings,
    Tokens,
    parse_hosts,
    parse_sizes,
)

if TYPE_CHECKING:
    from headrace.config import LmDataConfig
    from headrace.simulate import Forecast

LONG_S = 5.0
"""Seconds of counting that are worth a word."""


def command(
    config: Config,
    settings: Settings = None,
    hosts: Hosts = None,
    cache_mib: Annotated[
        int | None, typer.Option(help="Memory for blocks on a host, in MiB; prefetch_bytes by default.", metavar="MIB")
    ] = None,
    tokens: Tokens = None,
    declared: Declared = False,
    layout: Layout = ChunkLayout.headrace,
    num_steps: Annotated[int | None, typer.Option("--steps", help="Steps of the run.")] = None,
    first_step: Annotated[int, typer.Option(help="Step to begin to look at.")] = 0,
    max_rows: Annotated[int, typer.Option(help="Rows to look at, at most.")] = 1 << 20,
    price_per_1000_reads: Annotated[float, typer.Option(help="Money for a thousand requests.")] = 0.0004,
    price_per_gib: Annotated[float, typer.Option(help="Money for each GiB that leaves the store.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Forecast what a run will read, exactly, without reading it.

    The order is a pure function of the config, so reads, memory, bursts and costs are counted, not guessed, for any
    number of hosts. Only the ledgers of the caches are opened; where there is none yet, `expected_tokens` hold.

    For example:

        headrace simulate run.yaml

        headrace simulate run.yaml --hosts 8,64,1024 --cache-mib 512 batch_size=1024

        headrace simulate plan.yaml --tokens web=1e12 --tokens code=2e11
    """
    from headrace.check.sizes import planned_caches
    from headrace.config import load_config
    from headrace.simulate import Prices, simulate

    numbers = parse_hosts(hosts)
    _check_flags(cache_mib, num_steps, first_step, max_rows, price_per_1000_reads, price_per_gib)
    loaded = load_config(config, settings or [])
    planned = planned_caches(loaded, parse_sizes(tokens), layout=layout.value, look=not declared)
    resolved = planned.config
    _say_if_long(resolved)
    dataset = resolved.dataset(planned.caches)
    with _counting() as watch:
        forecast = simulate(
            dataset,
            dataset.batch_schedule,
            hosts=numbers or [n for n in (1, 8, 64) if n <= dataset.batch_schedule.rows_at(first_step)[1]],
            cache_bytes=resolved.prefetch_bytes if cache_mib is None else cache_mib << 20,
            num_steps=num_steps,
            first_step=first_step,
            row_order="locality" if resolved.row_order == "locality" else "stream",
            prices=Prices(price_per_1000_reads, price_per_gib),
            max_rows=max_rows,
            watch=watch,
        )
    if as_json:
        typer.echo(json.dumps(forecast.to_json()))
    else:
        show(forecast, len(resolved.components), dataset.phase_at(first_step)[0].seq_len)


def _check_flags(
    cache_mib: int | None,
    num_steps: int | None,
    first_step: int,
    max_rows: int,
    price_per_1000_reads: float,
    price_per_gib: float,
) -> None:
    """Raises ConfigError for what can be of no run, by the flag that was typed."""
    from headrace.errors import ConfigError
    from headrace.simulate.forecast import LAST_STEP, check_price

    for flag, value, least, below, cure in (
        ("--cache-mib", cache_mib, 1, 1 << 43, "Give the MiB that a host has for blocks, e.g. 1024."),
        ("--steps", num_steps, 1, LAST_STEP, "Give 1 or more, or leave it out."),
        ("--first-step", first_step, 0, LAST_STEP, "Steps count from 0, and there are 2**40 of them."),
        ("--max-rows", max_rows, 1, 1 << 40, "Give 1 or more; each 1,000,000 take about 2 s."),
    ):
        if value is not None and not least <= value < below:
            raise ConfigError("is too small" if value < least else "is too large", field=flag, value=value, cure=cure)
    check_price("--price-per-1000-reads", price_per_1000_reads)
    check_price("--price-per-gib", price_per_gib)


def _say_if_long(config: LmDataConfig) -> None:
    """Says so if the examples before a change of row length, or before limits, take long to count."""
    from headrace.index.schedule import BatchSchedule
    from headrace.simulate.walk import COUNTED_POLICIES, EXAMPLE_S

    limits = config.max_epochs is not None or any(
        c.max_epochs is not None or c.max_tokens is not None for c in config.components.values()
    )
    step = max(config.phases[-1][0], (config.num_steps or 0) if limits else 0)
    examples = BatchSchedule(config.batch_size).rows_at(step)[0]
    if config.policy in COUNTED_POLICIES and examples * EXAMPLE_S > LONG_S:
        typer.echo(
            f"policy: {config.policy} counts the {examples:,} examples before step {step:,} one by one:"
            f" about {examples * EXAMPLE_S:,.0f} s.",
            err=True,
        )


@contextmanager
def _counting() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal, for examples that are counted one by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("examples counted"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("count", total=None, visible=False)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield watch


def show(forecast: Forecast, components: int, seq_len: int) -> None:
    """Prints a forecast as two tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    whole = "all of the run" if forecast.exact else "a sample: the figures hold for these steps"
    looked = " and ".join(f"{look.first_step:,} to {look.stop_step - 1:,}" for look in forecast.looks)
    console.print(
        f"{components} components, batches of {forecast.batch_size:,} rows of {seq_len:,} tokens,"
        f" blocks of {forecast.block_bytes / 1024:,.0f} KiB"
    )
    console.print(f"Steps {looked}, {whole}.")
    ratios = ", ".join(f"{value:.3f} over {window}" for window, value in forecast.variance_ratio.items())
    console.print(f"{forecast.distinct_blocks:,.0f} blocks in a batch. Variance ratio (1: full shuffle): {ratios}\n")
    table = Table(title="Reads", title_justify="left")
    for column in (
        "hosts",
        "reads a block and epoch",
        "reads a host and step",
        "MiB a host and step",
        "MiB held by a host",
        "cold start MiB",
        "burst",
        "cost of 1,000 steps",
    ):
        table.add_column(column, justify="right")
    for h in forecast.by_hosts:
        table.add_row(
            f"{h.hosts:,}",
            f"{h.reads_per_block:.3f}",
            f"{h.reads_per_step:,.2f}",
            f"{h.bytes_per_step / 2**20:,.2f}",
            f"{h.resident_bytes / 2**20:,.1f}",
            f"{h.cold_start_bytes / 2**20:,.1f}",
            f"{h.burst:.2f} x",
            f"{h.cost_per_1000_steps:,.4f}",
        )
    console.print(table)
    for h in forecast.by_hosts:
        if h.hosts_replayed < h.hosts:
            console.print(f"{h.hosts:,} hosts: projected from {h.hosts_replayed}, evenly spread.")
    for note in forecast.notes:
        console.print(f"Note: {note}")
