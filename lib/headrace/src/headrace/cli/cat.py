"""``headrace cat``: what the model sees at a step, and where every token of it comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.decoded import ID_LEAF
from headrace.cli.options import AsJson, Config, Decoder, IdLeaf, SameRun, Settings, load_run

if TYPE_CHECKING:
    from headrace.config import LmDataConfig
    from headrace.data.mixture import MixtureDataset
    from headrace.data.phased import PhasedDataset
    from headrace.data.provenance import StepRows


def command(
    config: Config,
    settings: Settings = None,
    step: Annotated[int, typer.Option(help="The step, counted from 0.", metavar="S")] = 0,
    row: Annotated[
        list[int] | None, typer.Option(help="Just this row of the batch, whole (repeatable).", metavar="R")
    ] = None,
    run: SameRun = None,
    id_leaf: IdLeaf = ID_LEAF,
    tokenizer: Decoder = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model sees at a step: for each row its component, documents, their files and the text.

    The order is a pure function of the config, so nothing has to have been recorded. Rows are numbered as in the batch
    that the loader gives.

    For example:

        headrace cat run.yaml --step 12345

        headrace cat run.yaml --step 12345 --row 7

        headrace cat run.yaml --step 12345 --run runs/7b --json

        headrace cat run.yaml --step 0 batch_size=4 seed=1
    """
    from headrace.cli.cat_rows import described_rows, show_rows
    from headrace.config import load_config
    from headrace.data.provenance import rows_of_step

    resolved = load_config(config, settings or [])
    dataset = resolved.dataset()
    if run is not None:
        check_run(run, resolved, dataset, step)
    order = "locality" if resolved.row_order == "locality" else "stream"
    rows = rows_of_step(dataset, dataset.batch_schedule, step, order)
    _check_rows(rows, row or [])
    facts = {
        "step": step,
        "batch_size": rows.batch_size,
        "seq_len": rows.seq_len,
        "rows": described_rows(rows, row or list(range(len(rows))), id_leaf, tokenizer),
    }
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        show_rows(Console(highlight=False), facts, whole=bool(row))


def check_run(folder: str, config: LmDataConfig, dataset: MixtureDataset | PhasedDataset, step: int) -> None:
    """Makes sure that a step of a config is that step of a run, and uses the run's anchors to get there.

    Args:
        folder: The run's folder.
        config: The config.
        dataset: Its dataset.
        step: The step.

    Raises:
        ConfigError: there is no run, or it was amended before the step and the config was not, or the other way round.
        PlanMismatchError: it is a run of another config; the differences are shown.
    """
    from headrace.data.batch_order import BatchOrder
    from headrace.errors import ConfigError
    from headrace.state import Anchors, RunManifest

    theirs = load_run(folder)
    planned = BatchOrder(dataset, row_order=config.row_order)
    mine = RunManifest.of(planned)
    if mine.fingerprint == theirs.fingerprint:
        Anchors(folder, theirs.fingerprint, planned).use(None)
        return
    parted = [int(h["until_step"]) for h in theirs.history if h["fingerprint"] == mine.fingerprint]
    for first in (mine.amends(theirs), theirs.amends(mine)):
        parted += [] if first is None else [first]
    if not parted:
        theirs.check_same(mine)
    if step >= min(parted):
        raise ConfigError(
            f"the config and the run in {folder} differ by an amendment from step {min(parted):,} on",
            field="--step",
            value=step,
            cure="Use the config with the amendments that the run was resumed with.",
        )


def _check_rows(rows: StepRows, asked: list[int]) -> None:
    from headrace.errors import ConfigError

    for one in asked:
        if not 0 <= one < len(rows):
            padding = len(rows) <= one < rows.batch_size
            raise ConfigError(
                "is padding: the last batch is not full" if padding else "is not a row of this step",
                field="--row",
                value=one,
                cure=f"Its rows run from 0 to {len(rows) - 1}.",
            )
