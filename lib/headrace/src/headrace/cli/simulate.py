"""``headrace simulate``: what a run will read, before it is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.simulate import Forecast


def command(
    config: Annotated[str, typer.Argument(help="YAML file of an LmDataConfig.", metavar="CONFIG")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings over the file, e.g. batch_size=512.", metavar="[NAME=VALUE]...")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Numbers of hosts to forecast for; 1,8,64 by default.", metavar="N,N,...")
    ] = None,
    cache_mib: Annotated[
        int | None, typer.Option(help="Memory for blocks on a host, in MiB; prefetch_bytes by default.", metavar="MIB")
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(help="Size of a source that does not exist yet (repeatable).", metavar="NAME=TOKENS"),
    ] = None,
    num_steps: Annotated[int | None, typer.Option("--steps", help="Steps of the run.")] = None,
    first_step: Annotated[int, typer.Option(help="Step to begin to look at.")] = 0,
    max_rows: Annotated[int, typer.Option(help="Rows to look at, at most.")] = 1 << 20,
    price_per_1000_reads: Annotated[float, typer.Option(help="Money for a thousand requests.")] = 0.0004,
    price_per_gib: Annotated[float, typer.Option(help="Money for each GiB that leaves the store.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON.")] = False,
) -> None:
    """Forecast what a run will read, exactly, without reading it.

    The order is a pure function of the config, so reads, memory, bursts and costs are counted, not guessed, for any
    number of hosts. Only the ledgers of the caches are opened.

    For example:

        headrace simulate run.yaml

        headrace simulate run.yaml --hosts 8,64,1024 --cache-mib 512 batch_size=1024

        headrace simulate plan.yaml --tokens web=1e12 --tokens code=2e11
    """
    from headrace.config import load_config
    from headrace.simulate import Prices, simulate, virtual_cache

    numbers = None if hosts is None else _numbers(hosts)
    resolved = load_config(config, settings or [])
    sizes = dict(_size(item) for item in tokens or [])
    dataset = resolved.dataset({name: virtual_cache(name, size) for name, size in sizes.items()})
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
    )
    if as_json:
        typer.echo(json.dumps(forecast.to_json()))
    else:
        show(forecast, len(resolved.components), dataset.phase_at(first_step)[0].seq_len)


def show(forecast: Forecast, components: int, seq_len: int) -> None:
    """Prints a forecast as two tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    last = forecast.first_step + forecast.steps - 1
    looked = "all of the run" if forecast.exact else "a sample: the figures hold for these steps"
    console.print(
        f"{components} components, batches of {forecast.batch_size:,} rows of {seq_len:,} tokens,"
        f" blocks of {forecast.block_bytes / 1024:,.0f} KiB"
    )
    console.print(f"Steps {forecast.first_step:,} to {last:,}, {looked}.")
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


def _numbers(text: str) -> list[int]:
    from headrace.errors import ConfigError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError("is not a list of numbers", field="--hosts", value=text, cure="E.g. 1,8,64.") from None


def _size(item: str) -> tuple[str, int]:
    from headrace.errors import ConfigError

    name, _, number = item.partition("=")
    try:
        return name, int(float(number))
    except ValueError:
        raise ConfigError("is not a size", field="--tokens", value=item, cure="E.g. web=1e12.") from None
