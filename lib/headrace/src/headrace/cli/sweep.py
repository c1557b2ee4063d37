"""``headrace config sweep`` and ``headrace config fit``: short runs of random mixtures, and the
mixture that their losses recommend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.options import AsJson, Config, Settings, parse_shares
from headrace.cli.shown import say, say_json, working
from headrace.errors import ConfigError, command_line, format_count, format_some

if TYPE_CHECKING:
    from headrace.analysis.sweep import Sweep

_SHOWN_NAMES = 8


def sweep(
    config: Config,
    output: Annotated[
        str, typer.Option("--output", "-o", help="New folder for the configs.", metavar="FOLDER")
    ],
    settings: Settings = None,
    arms: Annotated[int, typer.Option(help="Number of mixtures, the run's own included.")] = 64,
    draw: Annotated[
        Literal["dirichlet", "uniform"],
        typer.Option("--from", help="Draw around the run's shares, or from all mixtures alike."),
    ] = "dirichlet",
    seed: Annotated[int, typer.Option(help="Seed of the mixtures.")] = 0,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of each arm; by default a twentieth of the run's."),
    ] = None,
    least: Annotated[
        list[str] | None,
        typer.Option(
            help="Least share of a source in all arms (repeatable).", metavar="NAME=SHARE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write configs of short runs with random mixtures, to find the best mixture for a run.

    Each source is cut (`subset`) so that an arm repeats it as often as the full run with these
    shares would: without this, mixtures that are best for a short run need not be for the long
    one. The first arm has the run's own shares. `max_share` and `max_epochs` of the config bound
    the others, as --least does. Opens the ledgers of the caches, and reads no tokens.

    Train each arm, write its loss into the last column of FOLDER/results.csv, and ask
    `headrace config fit`.

    For example:

        headrace config sweep run.yaml --arms 64 --from dirichlet --seed 0 -o sweep

        headrace config sweep run.yaml --steps 2000 --least code=0.05 -o sweep
    """
    from headrace.analysis.resolved import ResolvedRun
    from headrace.analysis.sweep import plan_sweep
    from headrace.config.lm_data import load_config

    with working("planning"):
        planned = plan_sweep(
            ResolvedRun.of(load_config(config, settings or [])),
            arms,
            draw=draw,
            seed=seed,
            steps=steps,
            least=parse_shares(least, "--least"),
        )
        _write(output, planned.files())
    if as_json:
        facts = {
            "arms": planned.arms,
            "sources": list(planned.rows),
            "shares": planned.shares.tolist(),
            "steps": planned.steps,
            "fraction": planned.fraction,
            "unmatched": planned.unmatched,
            "matched_steps": planned.matched_steps,
        }
        say_json({"folder": output, **facts})
    else:
        _show(planned, output)


def _write(output: str, texts: Mapping[str, str]) -> None:
    """Writes the files of a sweep into a new folder, or into that of a sweep which was killed.

    Raises:
        ConfigError: it has something else.
    """
    from headrace.store import files

    for name in files.names_in(output):
        text = texts.get(name.removesuffix(".tmp"))
        is_ours = text is not None and (
            name.endswith(".tmp") or files.read_bytes(files.join(output, name)) == text.encode()
        )
        if not is_ours:
            cure = "Name a new folder: losses that were filled in there would be lost."
            raise ConfigError(f"has another {name}", field="--output", value=output, cure=cure)
    for name, text in texts.items():
        files.write_atomic(files.join(output, name), text.encode())


def _show(planned: Sweep, output: str) -> None:
    arms = planned.arms
    say(
        f"{format_count(len(arms), 'arm')} of {format_count(planned.steps, 'step')}, each with"
        f" {planned.fraction:.3%} of every source: {output}/{arms[0]}.yaml to {arms[-1]}.yaml"
    )
    if planned.unmatched:
        say(
            f"Not repeated as often as in the full run, within 1 %, because they are too small:"
            f" {format_some(planned.unmatched, _SHOWN_NAMES)}. Arms of --steps"
            f" {planned.matched_steps} repeat all sources as often."
        )
    results = f"{output}/results.csv"
    say(
        f"Train each, write its loss into the last column of {results}, then:"
        f" {command_line('config fit', results)}"
    )


def fit(
    results: Annotated[
        str, typer.Argument(help="The results.csv of a sweep, filled in.", metavar="RESULTS")
    ],
    model: Annotated[
        Literal["linear", "trees"],
        typer.Option(help="Regression from shares to losses: linear, or an ensemble of trees."),
    ] = "linear",
    loss: Annotated[
        str, typer.Option(help="Column of the losses to minimize.", metavar="COLUMN")
    ] = "loss",
    seed: Annotated[int, typer.Option(help="Seed of the search and the bootstrap.")] = 0,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write the weights to.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose weights for a run by the losses of a sweep, with their uncertainty.

    A regression predicts the loss of any mixture; the mixtures between the least and the greatest
    shares of the arms are searched for the least predicted loss. The weights are printed as a
    config has them, or an amendment. Needs scikit-learn: `pip install 'headrace[sweep]'`.

    For example:

        headrace config fit sweep/results.csv

        headrace config fit sweep/results.csv --model trees -o weights.yaml
    """
    from headrace.analysis.sweep_fit import fit_mixture, read_results
    from headrace.store import files

    with working("fitting"):
        table = read_results(results, loss)
        proposal = fit_mixture(table, model, seed=seed)
    if as_json:
        facts = {"arms": len(table.losses), "unfilled": table.unfilled, **asdict(proposal)}
        say_json(facts)
    else:
        skipped = f" ({table.unfilled:,} without a loss left out)" if table.unfilled else ""
        say(
            f"# {format_count(len(table.losses), 'arm')}{skipped}; predicted loss"
            f" {proposal.loss:.4f} ± {proposal.loss_spread:.2g}, least of an arm"
            f" {proposal.best_arm_loss:.4f}"
        )
        say(
            "# rank correlation of losses with predictions of models that had not seen them:"
            f" {proposal.rank_correlation:.2f}"
        )
        if output is None:
            say(proposal.to_yaml())
    if output is not None:
        files.write_atomic(output, proposal.to_yaml().encode() + b"\n")
