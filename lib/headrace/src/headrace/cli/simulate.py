"""``headrace config simulate``: forecasts what a run reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from csv import DictWriter
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.options import (
    AsJson,
    Config,
    Declared,
    Hosts,
    Icc,
    Optimizer,
    Schedule,
    Settings,
    host_numbers,
    parse_shares,
)
from headrace.cli.shown import figures_table, say, say_json, show_judgments, terminal, working
from headrace.errors import ConfigError, format_count
from headrace.numbers import in_bytes
from headrace.progress import report

if TYPE_CHECKING:
    from headrace.analysis.simulate.forecast import Forecast
    from headrace.data.mixture import MixtureDataset
    from headrace.mix.schedule import ExchangeSetting


def command(
    config: Config,
    settings: Settings = None,
    hosts: Hosts = None,
    declared: Declared = False,
    icc: Icc = None,
    schedule: Schedule = "wsd",
    optimizer: Optimizer = "adam",
    first_step: Annotated[int, typer.Option(help="First step to forecast.", min=0)] = 0,
    max_rows: Annotated[
        int | None, typer.Option(help="Most rows to examine; by default 262,144.", min=1)
    ] = None,
    price_per_1000_reads: Annotated[
        float, typer.Option(help="Price of a thousand requests.")
    ] = 0.0004,
    price_per_gib: Annotated[
        float, typer.Option(help="Price of each GiB read from the store.")
    ] = 0.0,
    csv: Annotated[
        str | None,
        typer.Option(
            "--csv",
            help="Also write a table for spreadsheets: a line for each number of hosts.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast exactly what a run will read, without reading it.

    The order is a pure function of the config, so reads, memory, bursts and costs are counted, not
    estimated, for any number of hosts. Only the ledgers of the caches are opened (and, of shuffled
    ones, lengths of a few documents); caches that do not exist yet are planned with their
    `expected_tokens`.

    For example:

        headrace config simulate run.yaml

        headrace config simulate run.yaml --hosts 8,64,1024 batch_size=1024 prefetch_bytes=5e8

        headrace config simulate plan.yaml --declared components.web.expected_tokens=1e12

        headrace config simulate run.yaml --hosts 8,64 --csv forecast.csv
    """
    from headrace.analysis.check.judgments import NOT_JUDGED, judge_forecast
    from headrace.analysis.check.plan import RunPlan
    from headrace.analysis.resolved import OrderFacts
    from headrace.analysis.simulate.forecast import DEFAULT_ROWS, Prices
    from headrace.config.lm_data import load_config

    host_counts = host_numbers(hosts) or [1]
    if csv is not None:
        _check_csv(csv)
    run = RunPlan.of(
        load_config(config, settings or []),
        look=not declared,
        icc=parse_shares(icc, "--icc"),
        schedule=schedule,
        optimizer=optimizer,
    )
    resolved = run.config
    with working("looking at the steps"):
        examined = run.examine(
            host_counts,
            first_step=first_step,
            max_rows=max_rows or DEFAULT_ROWS,
            watch=partial(report, "counting examples"),
        )
        prices = Prices(price_per_1000_reads, price_per_gib)
        forecast = examined.forecast(resolved.prefetch_bytes, prices)
    if csv is not None:
        _write_csv(csv, forecast.to_dict()["by_hosts"])
    noise = run.noise
    micro = run.micro_batches
    if as_json:
        more = {
            "noise": {n: one._asdict() for n, one in noise.items()},
            "micro_batches": micro and micro._asdict(),
        }
        say_json(forecast.to_dict() | more)
        return
    mixture = cast("MixtureDataset", run.dataset.at_step(first_step)[0])
    show(forecast, len(mixture.names), mixture.seq_len, resolved.exchange_setting)
    if micro is not None:
        say(str(micro))
    for name, one in noise.items():
        say(f"{name}: {one} over a full shuffle")
    orders = [OrderFacts.of(component) for component in mixture.components]
    judgments = judge_forecast(forecast, resolved, orders, noise)
    show_judgments([*judgments, NOT_JUDGED])


def _write_csv(path: str, by_hosts: Sequence[Mapping[str, Any]]) -> None:
    """Writes what ``--json`` has in ``by_hosts``; fields of ``exchange`` begin with its name."""
    from headrace.store import files

    lines = [
        {
            **{name: value for name, value in figures.items() if name != "exchange"},
            **{f"exchange_{name}": value for name, value in (figures["exchange"] or {}).items()},
        }
        for figures in by_hosts
    ]
    # One host exchanges nothing, so its line lacks fields that the others have.
    names = list(dict.fromkeys(name for line in lines for name in line))
    table = StringIO()
    writer = DictWriter(table, names)
    writer.writeheader()
    writer.writerows(lines)
    files.write_atomic(path, table.getvalue().encode())


def _check_csv(path: str) -> None:
    """Refuses what cannot be written before the long counting."""
    if os.path.isdir(path) or not os.access(os.path.dirname(path) or ".", os.W_OK):
        raise ConfigError(
            "cannot be written",
            field="--csv",
            value=path,
            cure="Name a file in a folder that exists and may be written to.",
        )


def show(forecast: Forecast, components: int, seq_len: int, exchange: ExchangeSetting) -> None:
    """Prints a forecast: the steps examined, a table of reads, and details for each number of
    hosts.
    """
    console = terminal()
    scope = "the whole run" if forecast.exact else "a sample: the figures apply to these steps"
    looked = " and ".join(
        f"{look.first_step:,} to {look.stop_step - 1:,}" for look in forecast.looks
    )
    console.print(
        f"{format_count(components, 'component')}, batches of"
        f" {format_count(forecast.batch_size, 'row')}"
        f" of {seq_len:,} tokens, blocks of {in_bytes(forecast.block_bytes)}"
    )
    console.print(f"Steps {looked}, {scope}.")
    ratios = ", ".join(
        f"{value:.3f} over {window}" for window, value in forecast.variance_ratio.items()
    )
    blocks = format_count(round(forecast.distinct_blocks), "block")
    console.print(f"{blocks} in a batch. Variance ratio (1: full shuffle): {ratios}\n")
    heads = (
        "reads per block per epoch",
        "reads per host per step",
        "MiB per host per step",
        "MiB held per host",
    )
    table = figures_table(
        "hosts", *heads, "MiB at cold start", "burst", "cost of 1,000 steps", left=0
    )
    for h in forecast.by_hosts:
        sizes = (h.resident_bytes / 2**20, h.cold_start_bytes / 2**20)
        reads = (
            f"{h.reads_per_block:.3f}",
            f"{h.reads_per_step:,.2f}",
            f"{h.bytes_per_step / 2**20:,.2f}",
        )
        sizes_mib = (f"{size:,.1f}" for size in sizes)
        table.add_row(
            f"{h.hosts:,}", *reads, *sizes_mib, f"{h.burst:.2f} x", f"{h.cost_per_1000_steps:,.4f}"
        )
    console.print(table)
    for h in forecast.by_hosts:
        hosts = format_count(h.hosts, "host")
        if text := h.describe_exchange(exchange, forecast.batch_size):
            console.print(text)
        described = (
            f", {h.index_requests:,} for zarr.json, indices and ends of documents"
            if h.index_requests
            else ""
        )
        console.print(
            f"{hosts} on an object store: {format_count(h.requests, 'request')} in these steps,"
            f" {h.opening_requests:,} to open the caches{described}."
        )
        if h.hosts_replayed < h.hosts:
            console.print(f"{hosts}: projected from {h.hosts_replayed} evenly spaced hosts.")
    if end := str(forecast.data_end or ""):
        console.print(end)
    for note in forecast.notes:
        console.print(f"Note: {note}")
