"""``headrace run diff`` and ``headrace run amend``: what an edited config changes in a run, and the
change itself.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.options import (
    AsJson,
    Config,
    OptionalConfig,
    RunFolder,
    Settings,
    lock_in,
    named_values,
    range_of_steps,
)
from headrace.cli.shown import say, say_json, terminal, working
from headrace.errors import ConfigError, PlanMismatchError, check_at_least, command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config.lm_data import LmDataConfig
    from headrace.mix.stage_config import AmendmentConfig
    from headrace.run.changes import RunChanges
    from headrace.run.lock import RunLock
    from headrace.run.steering import Request

_SHOWN_FIELDS = 40
_STEP_CURE = "Type the first step that changes, --step N, or edit a config and name it."

Step = Annotated[
    int | None,
    typer.Option(help="First step that may change; by default, that of the last checkpoint."),
]
Newest = Annotated[
    bool,
    typer.Option(
        "--newest-caches",
        help="Also train on what was appended to the caches since, and no longer on what was"
        " removed.",
    ),
]


def diff(
    run: RunFolder,
    config: Config,
    settings: Settings = None,
    step: Step = None,
    newest_caches: Newest = False,
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="Also show what follows from the differences."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a run with an edited config.

    Shows the fields that differ, and what would change from which step on. Reads no tokens. Exits
    with status 1 if they differ.

    For example:

        headrace run diff runs/1 run.yaml
    """
    from headrace.run.anchors import last_checkpoint
    from headrace.run.changes import config_of_run, newer_snapshots

    edit = _Edit(run, config, settings or [], step, newest_caches)
    lock, changes, steps_done, edited = edit.compared()
    newer: list[str] = []
    if lock.config is not None and not newest_caches:
        newer = sorted(newer_snapshots(config_of_run(lock, edited), lock))
    if as_json:
        facts = _facts(changes, run, config, steps_done)
        facts |= {"plan": changes.plan if resolved else None, "newer_caches": newer}
        say_json(facts)
    else:
        _show_changes(changes, run, resolved)
        if changes.amended is not None:
            reached = last_checkpoint(run, lock)
            goes_back = reached is None or (changes.first_step or 0) < reached
            typed = edit.command(
                step=changes.first_step if goes_back else step, going_back=goes_back
            )
            say(f"To make this change: {typed}")
        if newer:
            say(
                f"Documents were appended to or removed from {', '.join(newer)} since: add"
                " --newest-caches to train on the newest state."
            )
    if not changes.same:
        raise typer.Exit(PROBLEM_FOUND)


def amend(
    run: RunFolder,
    config: OptionalConfig = None,
    settings: Settings = None,
    step: Step = None,
    newest_caches: Newest = False,
    going_back: Annotated[
        bool,
        typer.Option(
            "--going-back",
            help="The run goes on from an earlier checkpoint than its last, at or before --step.",
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Ask the job that trains the run to go on as CONFIG says."),
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="New weights, for a running job.", metavar="NAME=NUMBER,...")
    ] = None,
    caches: Annotated[
        str | None,
        typer.Option(
            help="Later snapshots of caches, for a running job; of several caches of a component,"
            " web=3-1.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Steps to leave out, the first and the one after the last, for a running job"
            " (repeatable).",
            metavar="A:B",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A source to draw no longer, for a running job (repeatable)."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the answer of a running job.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Change a run as its config was edited: weights, sources, stages, from a step on.

    Edit the config as the run is to go on: other weights, new or fewer components, other stages,
    in any order. This command writes the difference into the run's lock, as an amendment that
    begins at its last checkpoint, or at a later --step. Steps before it stay as they were. The
    config needs no note of it: the run goes on with the same command as before.

    A running job is changed by --live beside the edited config, or without a config by --weights,
    --skip, --drop and --caches, from a --step on that it has not planned. The command waits until
    the job's lock has the change, or says why it was refused.

    For example:

        headrace run amend runs/1 run.yaml

        headrace run amend runs/1 run.yaml --step 20000

        headrace run amend runs/1 run.yaml --step 20000 --live

        headrace run amend runs/1 --step 20000 --weights web=2,code=1

        headrace run amend runs/1 --skip 20000:20100
    """
    from headrace.store.lease import end_lease_of_gone

    if config is None:
        alone = {"--newest-caches": newest_caches, "--going-back": going_back}
        cure = "Leave it out, or edit a config and name it."
        _refuse(alone, "is given without a config", cure)
        _ask_as_typed(run, step, weights, skip or [], drop or [], caches, wait, as_json)
        return
    instead = {"--weights": weights, "--skip": skip, "--drop": drop, "--caches": caches}
    _refuse(instead, "is given beside a config", f"Leave out {config}, or say it there.")
    if live:
        cure = "Leave it out, or stop the job and leave out --live."
        _refuse({"--going-back": going_back}, "is given for a job that runs", cure)
    if live and step is None:
        raise ConfigError("is missing", field="--step", cure=_STEP_CURE)
    edit = _Edit(run, config, settings or [], step, newest_caches)
    lock, changes, steps_done, edited = edit.compared()
    facts = _facts(changes, run, config, steps_done) | {"written": changes.amended is not None}
    if changes.amended is None:
        if as_json:
            say_json(facts)
        else:
            _show_changes(changes, run, False)
        end_lease_of_gone(run)  # of an amendment that was killed when all was written
        if changes.same:
            return
        raise typer.Exit(PROBLEM_FOUND)
    if live:
        _ask_as_edited(edit, lock, changes, edited, wait, as_json)
        return
    if not as_json:
        _show_changes(changes, run, False)
    _write(edit, lock, changes.amended, edited, done=steps_done if going_back else None)
    if as_json:
        say_json(facts)
    else:
        # the job reads the config without what was typed behind it
        too = f" Write {' and '.join(edit.settings)} into {config}, too." if settings else ""
        say(f"Written into {run}/lock.json.{too} Go on with the run as before.")


def _refuse(options: Mapping[str, object], problem: str, cure: str) -> None:
    """Raises ConfigError for the first of these options that has a value, or is a flag that is
    set.
    """
    for option, value in options.items():
        if value:
            details = {} if value is True else {"value": value}
            raise ConfigError(problem, field=option, cure=cure, **details)


def _write(
    edit: _Edit, lock: RunLock, amended: LmDataConfig, edited: LmDataConfig, done: int | None
) -> None:
    """Writes a change into the lock of a run that no job trains now."""
    from headrace.run.run import amend_run
    from headrace.store.lease import lease

    run = edit.run
    meanwhile = f"To change it as it runs: {edit.command(step='N', live=True)}"
    with lease(run, field="run", meanwhile=meanwhile), working("writing the amendment"):
        try:
            amend_run(run, lock, amended, edited, done=done)
        except PlanMismatchError as error:
            general = command_line("run amend", run, "CONFIG")
            raise error.but(cure=(error.cure or "").replace(general, edit.command())) from None


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Errors name the options, not the amendment that these make: --skip[1]."""
    try:
        yield
    except (ConfigError, PlanMismatchError) as error:
        option = re.sub(r"^amendments\[\d+\]\.", "--", error.field or "")
        if option == error.field:
            raise
        raise error.but(field=option) from error


@_named_as_typed()
def _ask_as_typed(
    run: str,
    step: int | None,
    weights: str | None,
    skip: list[str],
    drop: list[str],
    caches: str | None,
    wait: float,
    as_json: bool,
) -> None:
    """Asks a running job for the changes that were typed as options."""
    from headrace.mix.stage_config import AmendmentConfig, check_plan, with_amendment
    from headrace.run.steering import Request

    lock = lock_in(run, "RUN")
    if not (weights or skip or drop or caches):
        cure = "Type one: --weights web=2,code=1, --skip 1200:1400, --drop NAME or --caches web=3;"
        cure += " or edit the run's config and name it behind the run."
        raise ConfigError("is asked for no change", field="run", value=run, cure=cure)
    skipped = [[*range_of_steps("--skip", pair)] for pair in skip]
    if step is None and skipped:
        step = min(first for first, _ in skipped)
    if step is None:
        raise ConfigError("is missing", field="--step", cure=_STEP_CURE)
    cure = "Type names with numbers:"
    snapshots = named_values(
        "--caches", _listed(caches), _snapshots, "is no snapshot", f"{cure} --caches web=3,code=2."
    )
    weighed = named_values(
        "--weights", _listed(weights), _weight, "is no weight", f"{cure} --weights web=2,code=1."
    )
    amendment = AmendmentConfig(step, weights=weighed, drop=drop, caches=snapshots, skip=skipped)
    check_plan([], [amendment])
    if lock.config is not None:
        # refuses a name that the run does not have before a wait for its job
        amendments = with_amendment(lock.run_config.amendments, amendment)
        replace(lock.run_config, amendments=amendments).plan()
    _ask(run, amendment, Request.of(amendment, {}), wait, as_json)


def _live_amendment(lock: RunLock, changes: RunChanges, edit: _Edit) -> AmendmentConfig:
    """The amendment that makes the changes of an edited config, as typed, in a running job."""
    from headrace.mix.stage_config import AmendmentConfig, with_amendment
    from headrace.run.changes import alters_earlier, amendment_between

    amended = changes.amended
    assert amended is not None
    locked = lock.run_config
    step = edit.step
    assert step is not None
    if changes.amendment is not None and changes.amendment.step != step:
        raise alters_earlier("--step", step, changes.amendment.step - 1)
    # what the lock has at this step already is changed further
    amendment = amendment_between(locked, amended, step)
    if changes.amendment is not None and changes.amendment.caches:
        caches = changes.amendment.caches
        amendment = replace(amendment or AmendmentConfig(step), caches=caches)
    if amendment is not None:
        joined = with_amendment(locked.amendments, amendment)
        if _but_for_weights_at(step, joined) != _but_for_weights_at(step, amended.amendments):
            amendment = None
    if amendment is None:
        raise ConfigError(
            "changes more than weights, sources and caches after the last amendment, and a job that"
            " runs cannot",
            field="config",
            value=edit.config,
            cure=f"Stop the job, then: {edit.command(step=step)}",
        )
    return amendment


def _but_for_weights_at(step: int, amendments: list[AmendmentConfig]) -> list[AmendmentConfig]:
    """Amendments without what changes weights and sources at a step."""
    others = [
        replace(one, add={}, weights={}, drop=[]) if one.step == step else one for one in amendments
    ]
    return [one for one in others if one.changes_mixture or one.skip]


def _ask(
    run: str, amendment: AmendmentConfig, request: Request, wait: float, as_json: bool
) -> None:
    """Asks a running job for an amendment."""
    from headrace.run.steering import ask
    from headrace.store.lease import open_slot

    if not 0 <= wait < float("inf"):
        cure = "Give a number of seconds: --wait 60."
        raise ConfigError("is no time to wait", field="--wait", value=wait, cure=cure)
    if open_slot(run).read() is None:
        command = command_line("run amend", run, "CONFIG", step=amendment.step)
        say(
            f"No job trains {run} now: waiting {wait:g} s for one. To change it without a job, edit"
            f" its config: {command} (with --going-back, if it is to go on from an earlier"
            " checkpoint than its last)",
            err=True,
        )
    with working("waiting for the job"):
        ask(run, request, wait)
    if as_json:
        facts = {"run": run, "first_step": amendment.step, "amendment": _fields_of(amendment)}
        say_json(facts)
        return
    say(f"From step {amendment.step:,} on: {', '.join(_written(amendment).splitlines())}")
    say(f"Written into {run}/lock.json; the job goes on with it.")


def _ask_as_edited(
    edit: _Edit,
    lock: RunLock,
    changes: RunChanges,
    edited: LmDataConfig,
    wait: float,
    as_json: bool,
) -> None:
    """Asks a running job for the changes of an edited config. A command like this one that was
    killed may have asked for them: then the job refuses what it did meanwhile.
    """
    from headrace.run.steering import Request

    assert changes.amended is not None
    amendment = _live_amendment(lock, changes, edit)
    locked = lock.run_config.components
    new = {n: one for n, one in changes.amended.components.items() if n not in locked}
    request = Request.of(amendment, new, edited)
    try:
        _ask(edit.run, amendment, request, wait, as_json)
    except (ConfigError, PlanMismatchError):
        if not edit.compared()[1].same:
            raise
        if as_json:
            say_json({"run": edit.run, "written": False})
        else:
            say(f"{edit.run} goes on so already: the job did it when it was asked before.")


def _listed(typed: str | None) -> list[str]:
    return typed.split(",") if typed else []


def _weight(typed: str) -> float:
    from headrace.mix.schedule import weight_from_config

    weight = float(typed)
    weight_from_config(weight, "--weights")
    return weight


def _snapshots(typed: str) -> int | list[int]:
    numbers = [int(number) for number in typed.split("-")]
    return numbers if numbers[1:] else numbers[0]


class _Edit(NamedTuple):
    """A run, and the edited config with which it is to go on, as they were typed."""

    run: str
    config: str
    settings: list[str]
    step: int | None
    newest_caches: bool

    def compared(self) -> tuple[RunLock, RunChanges, int, LmDataConfig]:
        """The run's lock, the changes, the steps that are done, and the user's config."""
        from headrace.config.lm_data import load_config
        from headrace.run.anchors import last_checkpoint
        from headrace.run.changes import run_changes

        lock = lock_in(self.run, "RUN")
        check_at_least("--step", self.step, 0, "Give the number of steps that are done.")
        steps_done = (last_checkpoint(self.run, lock) or 0) if self.step is None else self.step
        with working("comparing"):
            edited = load_config(self.config, self.settings)
            changes = run_changes(lock, edited, steps_done, newest_caches=self.newest_caches)
        return lock, changes, steps_done, edited

    def command(self, **options: object) -> str:
        """The command that makes the changes."""
        options = {"newest_caches": self.newest_caches, **options}
        return command_line("run amend", self.run, self.config, *self.settings, **options)


def _facts(changes: RunChanges, run: str, config: str, step: int) -> dict[str, Any]:
    return {
        "run": run,
        "config": config,
        "step": step,
        "same": changes.same,
        "fields": changes.fields,
        "first_step": changes.first_step,
        "amendment": None if changes.amendment is None else _fields_of(changes.amendment),
        "refused": list(changes.refused),
    }


def _show_changes(changes: RunChanges, run: str, resolved: bool) -> None:
    from rich.text import Text

    console = terminal(soft_wrap=True)
    if changes.fields is None:
        console.print("The run has no config, so only what follows from it is compared.")
    for line in (changes.fields or [])[:_SHOWN_FIELDS]:
        console.print(line)
    if (more := len(changes.fields or []) - _SHOWN_FIELDS) > 0:
        console.print(f"{more:,} more (all with --json)", style="dim")
    if resolved or (changes.fields is None and not changes.same):
        console.print("What follows from it:", style="dim")
        for line in changes.plan:
            console.print(f"  {line}")
    if changes.same:
        console.print(Text.assemble(("the same run ", "green"), run))
    elif changes.amendment is not None:
        _show_amendment(changes.amendment, changes.amended)
    elif changes.first_step is not None:
        console.print(f"The batches differ from step {changes.first_step:,} on.")
    elif changes.refused:
        console.print("A run cannot make these changes; undo them, or use another folder:")
        for line in changes.refused[:_SHOWN_FIELDS]:
            console.print(f"  {line}")
    else:
        console.print("They are different runs: restore the run's config, or use another folder.")


def _show_amendment(amendment: AmendmentConfig, amended: LmDataConfig | None) -> None:
    console = terminal(soft_wrap=True)
    console.print(f"From step {amendment.step:,} on:")
    for line in _written(amendment).splitlines():
        console.print(f"  {line}", style="bold")
    has_learned = amended is not None and any(one.measured for one in amended.amendments)
    if amendment.weights and has_learned:
        console.print("These weights take the place of those that the run has learned.")


def _fields_of(amendment: AmendmentConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(amendment).items() if value or name == "step"}


def _written(amendment: AmendmentConfig) -> str:
    """What an amendment changes, as a config says it.

    Example:
        >>> from headrace.mix.stage_config import AmendmentConfig
        >>> print(_written(AmendmentConfig(60, weights={"web": 2}, drop=["code"])))
        weights: {web: 2}
        drop: [code]
    """
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes an object that occurs twice two times, without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    fields = _fields_of(amendment)
    del fields["step"]
    skip = fields.pop("skip", None)
    written = yaml.dump(
        fields, Dumper=Plain, sort_keys=False, default_flow_style=None, width=1000
    ).rstrip()
    return "\n".join([*([written] if fields else []), *([f"skip: {skip}"] if skip else [])])
