"""``headrace run where``: shows the position of a run at a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, ConfigOrRun, Settings, open_target
from headrace.cli.shown import figures_table, say_json, terminal, working
from headrace.errors import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.run.where import Whereabouts


def command(
    target: ConfigOrRun,
    settings: Settings = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Number of steps done, which is the next step to load; by default those of the"
            " run's last checkpoint."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a run is at a step: stage, weights, tokens, and the epoch of each source.

    The order is a pure function of the config, so the answer is exact for any step of any run, and
    only the ledgers of the caches are opened.

    For example:

        headrace run where --step 120000 run.yaml

        headrace run where --step 120000 run.yaml --json | jq .sources.web.epochs
    """
    from headrace.data.dataset import BatchOrder
    from headrace.run.anchors import last_checkpoint
    from headrace.run.where import whereabouts

    config, dataset, lock = open_target(target, settings)
    if step is None:
        step = 0 if lock is None else last_checkpoint(target, lock) or 0
    with working("counting steps"):
        position = whereabouts(BatchOrder(dataset, row_order=config.row_order), step)
    if as_json:
        say_json(position.to_dict())
    else:
        _show(terminal(), position)


def _show(console: Console, here: Whereabouts) -> None:
    of = "" if here.num_steps is None else f" of {here.num_steps:,}"
    name = f" {here.stage_name!r}" if here.stage_name else ""
    console.print(
        f"step {here.step:,}{of}, in stage {here.stage}{name}, which began at step"
        f" {here.stage_step:,}"
    )
    console.print(
        f"{format_count(here.tokens, 'token')} in {format_count(here.rows, 'row')} so far"
    )
    if here.step == here.num_steps:
        console.print("the run is over")
    else:
        console.print(f"next: a batch of {here.batch_size:,} rows of {here.seq_len:,} tokens")
    table = figures_table(
        "source", "weight", "share so far", "rows next", "rows", "tokens", "epochs"
    )
    for source, one in here.sources.items():
        epochs = "-" if one.epochs is None else f"{one.epochs:.3f}"
        table.add_row(
            source,
            f"{one.weight:.4f}",
            f"{one.share:.4f}",
            f"{one.rows_in_step:,}",
            f"{one.rows:,}",
            f"{one.tokens:,}",
            epochs,
        )
    console.print(table)
    console.print(f"fingerprint {here.fingerprint}", style="dim", soft_wrap=True)
