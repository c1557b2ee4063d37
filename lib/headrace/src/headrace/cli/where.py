"""``headrace where``: where a run is at a step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, Config, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.run.where import Whereabouts


def command(
    config: Config,
    settings: Settings = None,
    step: Annotated[int, typer.Option(help="Steps that are done: the next one to load.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show where a run is at a step: stage, weights, tokens, and the epoch of each source.

    The order is a pure function of the config, so this is exact, for any step of any run, and only the ledgers of the
    caches are opened.

    For example:

        headrace where --step 120000 run.yaml

        headrace where --step 120000 run.yaml --json | jq .sources.web.epochs
    """
    from rich.console import Console

    from headrace.config.lm_data import load_config
    from headrace.run.where import where

    found = where(load_config(config, settings or []), step)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _show(Console(highlight=False), found)


def _show(console: Console, here: Whereabouts) -> None:
    from rich.table import Table
    from rich.text import Text

    of = "" if here.num_steps is None else f" of {here.num_steps:,}"
    name = f" {here.stage_name!r}" if here.stage_name else ""
    console.print(Text(f"step {here.step:,}{of}, in stage {here.stage}{name}, which began at step {here.stage_step:,}"))
    console.print(Text(f"{here.tokens:,} tokens in {here.rows:,} rows so far"))
    if here.step == here.num_steps:
        console.print(Text("the run is over"))
    else:
        console.print(Text(f"next: a batch of {here.batch_size:,} rows of {here.seq_len:,} tokens"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("source")
    for title in ("weight", "share so far", "rows next", "rows", "tokens", "epochs"):
        table.add_column(title, justify="right", no_wrap=True)
    for source, one in here.sources.items():
        epochs = "-" if one.epochs is None else f"{one.epochs:.3f}"
        table.add_row(
            Text(source), f"{one.weight:.4f}", f"{one.share:.4f}", f"{one.rows_in_step:,}", f"{one.rows:,}",
            f"{one.tokens:,}", epochs,
        )  # fmt: skip
    console.print(table)
    console.print(Text(f"fingerprint {here.fingerprint}", "dim"), soft_wrap=True)
