"""``headrace config``: a config looked at before it is run: checked, shown whole, described, translated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    AsJson,
    ChunkLayout,
    Config,
    Declared,
    Hosts,
    Layout,
    SameRun,
    Settings,
    Tokens,
    load_run,
    parse_hosts,
    parse_sizes,
)

if TYPE_CHECKING:
    from headrace.config import LmDataConfig

app = typer.Typer(no_args_is_help=True)
HELP = "Check a config, show it whole, give its schema to an editor, or translate one of Levanter's."


@app.command("check")
def check(
    config: Config,
    settings: Settings = None,
    hosts: Hosts = None,
    num_steps: Annotated[
        int | None, typer.Option("--steps", help="Steps of the run, in place of the config's.", min=1)
    ] = None,
    tokens: Tokens = None,
    declared: Declared = False,
    layout: Layout = ChunkLayout.headrace,
    run: SameRun = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with status 1 for warnings, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a config: what it resolves to, what its first steps read, and what will hurt.

    Reads no tokens. Caches that do not exist yet are planned with their `expected_tokens`. Ends with status 1 if there
    is a problem (a run that cannot start, or would not be what was asked for), with 2 if the config is broken.

    For example:

        headrace config check run.yaml

        headrace config check run.yaml --hosts 64 --strict batch_size=1024

        headrace config check plan.yaml --declared --layout levanter --hosts 256

        headrace config check plan.yaml --tokens web=1e12 --tokens code=2e11 --steps 100000

        headrace config check run.yaml --run runs/7b --json
    """
    from headrace.check.findings import findings
    from headrace.check.plan import plan_run
    from headrace.cli.config_show import check_json, show_check
    from headrace.config import load_config

    plan = plan_run(
        load_config(config, settings or []),
        sizes=parse_sizes(tokens),
        layout=layout.value,
        look=not declared,
        hosts=parse_hosts(hosts),
        num_steps=num_steps,
    )
    if run is not None:
        check_same_run(run, plan.config)
    found = findings(plan)
    if as_json:
        typer.echo(json.dumps(check_json(plan, found)))
    else:
        show_check(plan, found)
    if any(f.level == "problem" or strict for f in found):
        raise typer.Exit(1)


@app.command("show")
def show(
    config: Config,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print a config whole, with settings applied and defaults filled in, as YAML that loads to the same.

    For example:

        headrace config show run.yaml

        headrace config show run.yaml seq_len=8192 components.code.weight=2 > long.yaml
    """
    import yaml

    from headrace.config import load_config

    text = load_config(config, settings or []).to_yaml()
    typer.echo(json.dumps(yaml.safe_load(text)) if as_json else text.rstrip("\n"))


@app.command("schema")
def schema(
    output: Annotated[str | None, typer.Option("--output", "-o", help="File to write.", metavar="FILE")] = None,
) -> None:
    """Print the JSON schema of a config: editors complete and check by it.

    With the YAML extension of an editor, name the file in the first line of a config:
    `# yaml-language-server: $schema=headrace.schema.json`.

    For example:

        headrace config schema -o headrace.schema.json
    """
    from headrace.config import LmDataConfig
    from headrace.config_schema import json_schema

    _put(json.dumps(json_schema(LmDataConfig), indent=2), output)


@app.command("from-levanter")
def from_levanter(
    config: Annotated[
        str, typer.Argument(help="YAML file of a Levanter data config, or of a whole training config.", metavar="FILE")
    ],
    output: Annotated[str | None, typer.Option("--output", "-o", help="File to write.", metavar="FILE")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with status 1 if something has no counterpart.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print config and notes as JSON.")] = False,
) -> None:
    """Translate a Levanter or Marin data config, with a note on everything that differs.

    What headrace does not have is named, not dropped. Sizes that decide something are looked up in the caches, if these
    are there.

    For example:

        headrace config from-levanter llama.yaml -o run.yaml

        headrace config from-levanter marin.yaml --json --strict
    """
    from headrace.cli.config_show import token_count
    from headrace.config import LmDataConfig
    from headrace.config_parsing import decode, read_mapping
    from headrace.levanter_config.translate import translate

    found = translate(read_mapping(config, foreign=True), sizes=token_count)
    decode(LmDataConfig, found.config)  # what is printed loads
    _put(json.dumps(found.to_json(), indent=2) if as_json else found.to_yaml().rstrip("\n"), output)
    missing = [note for note in found.notes if note.kind == "missing"]
    if output is not None:
        for note in found.notes:
            typer.echo(str(note), err=True)
    if strict and missing:
        raise typer.Exit(1)


def check_same_run(folder: str, config: LmDataConfig) -> None:
    """Makes sure that a config is that of a run, or differs from it by declared amendments alone.

    Raises:
        ConfigError: the folder holds no run.
        PlanMismatchError: it is a run of another config; the differences are shown.
    """
    from headrace.data.batch_order import BatchOrder
    from headrace.state import RunManifest

    theirs = load_run(folder)
    mine = RunManifest.of(BatchOrder(config.dataset(), row_order=config.row_order))
    if mine.amends(theirs) is None and theirs.amends(mine) is None:
        theirs.check_same(mine)


def _put(text: str, output: str | None) -> None:
    if output is None:
        typer.echo(text)
        return
    from headrace.store import files

    files.write_atomic(output, text.encode() + b"\n", writer=".new")
