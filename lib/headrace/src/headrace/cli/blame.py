"""``headrace run blame``: what some steps had, by how unusual its loss was."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, RunFolder, load_target, lock_in, range_of_steps
from headrace.cli.shown import printable, say, say_json, working
from headrace.errors import format_count

if TYPE_CHECKING:
    from headrace.report.blame import Suspect


def command(
    run: RunFolder,
    steps: Annotated[
        str, typer.Option(help="The first step and the one after the last.", metavar="A:B")
    ],
    as_json: AsJson = False,
) -> None:
    """Show the sources, documents and files of some steps, the most unusual loss first.

    The batches follow from the run's lock. Losses are those that the trainer logged with RunLog:
    log(step, loss_by_source={"web": 2.1}), or log(step, row_loss={"0": 2.3}). Without them, it
    shows all the same, most tokens first.

    For example:

        headrace run blame runs/7b --steps 1200:1210
    """
    from headrace.report.blame import SHOWN_DOCUMENTS, SHOWN_SUSPECTS, blame
    from headrace.report.run_records import read_records

    lock_in(run, "RUN")
    first, stop = range_of_steps("--steps", steps)
    config, _ = load_target(run, None)
    with working("finding the rows"):
        figures = read_records(run).figures_at
        suspects = blame(config.dataset(), range(first, stop), figures, config.row_order)
    if as_json:
        facts = [asdict(one) for one in suspects]
        say_json({"run": run, "steps": [first, stop], "suspects": facts})
        return
    if all(one.loss is None for one in suspects):
        say(
            "No losses of these steps were logged (loss_by_source or row_loss), so the order is by"
            " tokens."
        )
    for one in suspects[:SHOWN_SUSPECTS]:
        say(_line(one))
        for document in one.documents[:SHOWN_DOCUMENTS]:
            say(
                f"  document {document.document:,}, {format_count(document.tokens, 'token')}:"
                f" {printable(document.origin or document.part)}"
            )
        if (more := len(one.documents) - SHOWN_DOCUMENTS) > 0:
            say(f"  and {format_count(more, 'document')} more (all with --json)")
    if (more := len(suspects) - SHOWN_SUSPECTS) > 0:
        say(f"and {more:,} more (all with --json)")


def _line(one: Suspect) -> str:
    """What is said of a source or a row."""
    where = one.source if one.row is None else f"{one.source}, step {one.steps[0]:,} row {one.row}"
    of = f"{format_count(one.tokens, 'token')} of {format_count(len(one.documents), 'document')}"
    if one.loss is None:
        return f"{where}: {of}"
    if one.usual is None or one.excess is None:
        return f"{where}: loss {one.loss:.4g}, {of}"
    far = f"{one.excess:+.1f} standard deviations"
    return f"{where}: loss {one.loss:.4g}, usually {one.usual:.4g} ({far}), {of}"
