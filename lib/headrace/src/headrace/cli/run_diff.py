"""``headrace run diff``: compares a run with an edited config, and shows the amendment that would
allow the change.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.options import AsJson, Config, Settings, load_as_begun
from headrace.cli.shown import say, terminal, working

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config.lm_data import LmDataConfig
    from headrace.mix.stage_config import AmendmentConfig
    from headrace.run.changes import RunChanges

_SHOWN_FIELDS = 40


def command(
    run: Annotated[str, typer.Argument(help="Folder of a run.", metavar="RUN")],
    config: Config,
    settings: Settings = None,
    step: Annotated[
        int | None, typer.Option(help="The steps done; by default, those of its last checkpoint.")
    ] = None,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Also show what follows from the differing fields."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a run with an edited config.

    Shows the fields that differ, and the amendment that allows the change. Reads no tokens. Exits
    with status 1 if they differ.

    For example:

        headrace run diff runs/1 run.yaml

        headrace run diff runs/1 run.yaml seed=2 --resolved
    """
    from headrace.errors import ConfigError, check_at_least
    from headrace.run.changes import newer_snapshots, run_changes
    from headrace.run.manifest import RunManifest, last_checkpoint

    manifest = RunManifest.load(run)
    if manifest is None:
        raise ConfigError(
            "is not the folder of a run: it has no manifest.json",
            field="RUN",
            value=run,
            cure="Name the folder passed to open_run.",
        )
    check_at_least("--step", step, 0, "Give the number of steps that are done.")
    steps_done = (last_checkpoint(run, manifest) or 0) if step is None else step
    with working("comparing"):
        edited = load_as_begun(config, settings, run)
        changes = run_changes(manifest, edited, steps_done)
        newer = newer_snapshots(edited)
    if as_json:
        amendment = None if changes.amendment is None else _fields_of(changes.amendment)
        facts = {
            "run": run,
            "config": config,
            "step": steps_done,
            **asdict(changes),
            "amendment": amendment,
        }
        facts |= {"newer_snapshots": newer}
        say(json.dumps(facts if resolved else facts | {"resolved": None}, ensure_ascii=False))
    else:
        console = terminal(soft_wrap=True)
        _show_changes(console, changes, run, resolved)
        if newer:
            say("Caches of this run have later snapshots: headrace cache inspect shows them.")
        _show_amendments(console, changes, edited, steps_done, newer)
    if not changes.same:
        raise typer.Exit(1)


def _show_amendments(
    console: Console,
    changes: RunChanges,
    edited: LmDataConfig,
    steps_done: int,
    newer: dict[str, int | list[int]],
) -> None:
    """Shows the amendments of the config that would make all changes that a run can make, to be
    pasted as they are.
    """
    from dataclasses import replace

    from rich.text import Text

    from headrace.mix.stage_config import AmendmentConfig

    amendment = changes.amendment
    if amendment is None and not newer:
        return
    declared = list(edited.amendments)
    if amendment is None:
        last = max((one.step for one in declared), default=0)
        amendment = AmendmentConfig(max(steps_done, last + 1))
    amendment = replace(amendment, caches=newer)
    # What has no place for the old mixture beside the new one has to be put back.
    restore = amendment.weights or amendment.drop or (amendment.add and edited.weights is not None)
    add = "write all amendments so" if declared else "add"
    doing = f"restore the mixture and {add}" if restore else add
    console.print(f"To make this change from step {amendment.step:,} on, {doing}:")
    console.print(Text(_written([*declared, amendment]), "bold"))


def _show_changes(console: Console, changes: RunChanges, run: str, resolved: bool) -> None:
    from rich.text import Text

    if changes.fields is None:
        console.print(
            "The run was started without a config, so only what follows from it is compared."
        )
    for line in (changes.fields or [])[:_SHOWN_FIELDS]:
        console.print(Text(line))
    if (more := len(changes.fields or []) - _SHOWN_FIELDS) > 0:
        console.print(Text(f"{more:,} more (all with --json)", "dim"))
    if resolved or (changes.fields is None and not changes.same):
        console.print(Text("What follows from it:", "dim"))
        for line in changes.resolved:
            console.print(Text(f"  {line}"))
    if changes.same:
        console.print(Text.assemble(("the same run ", "green"), run))
    elif changes.first_step is not None:
        console.print(
            f"The run and the config differ by amendments, from step {changes.first_step:,} on."
        )
    elif changes.refused:
        console.print("A run cannot make these changes; undo them, or use another folder:")
        for line in changes.refused[:_SHOWN_FIELDS]:
            console.print(Text(f"  {line}"))
    elif changes.amendment is None:
        console.print("They are different runs: restore the run's config, or use another folder.")


def _fields_of(amendment: AmendmentConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(amendment).items() if value or name == "step"}


def _written(amendments: list[AmendmentConfig]) -> str:
    """Amendments as written in a config.

    Example:
        >>> from headrace.mix.stage_config import AmendmentConfig
        >>> print(_written([AmendmentConfig(60, weights={"web": 2}, drop=["code"])]))
        amendments:
        - step: 60
          weights: {web: 2}
          drop: [code]
    """
    import yaml

    # Blends written in several lines have YAML's anchors where an object occurs twice: plain values
    # have none.
    plain = json.loads(json.dumps([_fields_of(amendment) for amendment in amendments]))
    for amendment in plain:
        for name in ("add", "weights"):
            if name in amendment:
                amendment[name] = _with_steps(amendment[name])
    return yaml.safe_dump(
        {"amendments": plain}, sort_keys=False, default_flow_style=None, width=1000
    ).rstrip()


def _with_steps(value: Any) -> Any:
    """A (nested) mapping whose keys are steps where they look like them, as users write them."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        int(name) if name.isdecimal() else name: _with_steps(inner)
        for name, inner in fields.items()
    }
