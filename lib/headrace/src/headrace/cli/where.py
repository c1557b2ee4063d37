"""``headrace run where``: shows the position of a run at a step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    AsJson,
    ConfigOrRun,
    Settings,
    open_target,
)
from headrace.cli.shown import figures_table, say, say_json, terminal, working
from headrace.errors import ConfigError, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config.lm_data import LmDataConfig
    from headrace.data.phased import RunDataset
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
    document: Annotated[
        list[int] | None,
        typer.Option(
            help="Show the earlier steps that trained on this document instead (repeatable).",
            metavar="I",
        ),
    ] = None,
    component: Annotated[
        str | None,
        typer.Option(help="Source of the documents, if there are several sources.", metavar="NAME"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where a run is at a step: stage, weights, tokens, and the epoch of each source; or when
    it saw documents.

    The order is a pure function of the config, so the answer is exact for any step of any run, and
    only the ledgers of the caches are opened. Documents removed since then (`headrace cache
    remove`) are found, too.

    For example:

        headrace run where --step 120000 run.yaml

        headrace run where --step 120000 run.yaml --json | jq .sources.web.epochs

        headrace run where --step 120000 runs/7b --document 4711 --component web
    """
    from headrace.data.dataset import BatchOrder
    from headrace.run.anchors import last_checkpoint
    from headrace.run.where import whereabouts

    config, dataset, lock = open_target(target, settings)
    if step is None:
        step = 0 if lock is None else last_checkpoint(target, lock) or 0
    if document is not None or component is not None:
        _find(config, dataset, step, document or [], component, as_json)
        return
    with working("counting steps"):
        position = whereabouts(BatchOrder(dataset, row_order=config.row_order), step)
    if as_json:
        say_json(position.to_dict())
    else:
        _show(terminal(), position)


def _find(
    config: LmDataConfig,
    dataset: RunDataset,
    step: int,
    documents: list[int],
    component: str | None,
    as_json: bool,
) -> None:
    """Prints the steps that trained on documents."""
    import numpy as np

    from headrace.mix.amendments import family
    from headrace.order.intervals import Intervals
    from headrace.run.sightings import sightings

    config = config.at_snapshots()
    names = ", ".join(config.components)
    if not documents or min(documents) < 0:
        cure = (
            "Give a number, from 0 on: --document 4711; headrace cache inspect CACHE --id ID --json"
            " finds one by its id."
        )
        raise ConfigError("names no document", field="--document", value=documents, cure=cure)
    first = next(iter(config.components))
    if component is None and len(family(first, config.components)) < len(config.components):
        cure = f"Name one of {names}: --component {first}."
        raise ConfigError(
            "is missing: documents are numbered in each source", field="--component", cure=cure
        )
    name = component or first
    numbers = Intervals.of_numbers(np.array(documents))
    with working("searching the steps"):
        all_sightings = sightings(dataset, name, numbers, step, config.row_order)
    if as_json:
        say_json({"component": name, "step": step, "seen": [asdict(one) for one in all_sightings]})
        return
    for one in all_sightings:
        suffix = ", already removed" if one.removed else ""
        where = f"step {one.step:,}, row {one.row:,}"
        say(f"document {one.document:,} of {name}: {where}, {one.tokens:,} tokens{suffix}")
    documents_seen = {one.document for one in all_sightings if not one.removed}
    say(
        f"{len(documents_seen):,} of {len({*documents}):,} documents were trained on before step"
        f" {step:,}"
    )


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
