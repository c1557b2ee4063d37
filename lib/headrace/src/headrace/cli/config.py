"""``headrace config check`` and ``headrace config show``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.options import (
    AsJson,
    Config,
    Declared,
    Hosts,
    Icc,
    Optimizer,
    Schedule,
    Settings,
    cache_at,
    host_numbers,
    load_target,
    parse_shares,
)
from headrace.cli.shown import (
    figures_table,
    labelled,
    say,
    say_json,
    terminal,
    working,
)
from headrace.errors import ConfigError, HeadraceError, format_count
from headrace.numbers import in_bytes, short

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.analysis.check.findings import Finding
    from headrace.analysis.check.plan import RunPlan

_WHOLE_NAME = 24
"""Longest name of a component that the table never folds."""


def check(
    config: Config,
    settings: Settings = None,
    hosts: Hosts = None,
    declared: Declared = False,
    icc: Icc = None,
    schedule: Schedule = "wsd",
    optimizer: Optimizer = "adam",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 1 for warnings, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a config: what it resolves to, what its first steps read, and what will cause problems.

    Reads no tokens, except of a few first documents; of conversations, lengths and masks. Caches
    that do not exist yet are planned with their `expected_tokens`, and the first records of their
    sources are tried. Exits with status 1 if there is a problem (the run could not start, or would
    not be what was asked for), with 2 if the config is invalid.

    For example:

        headrace config check run.yaml

        headrace config check run.yaml --hosts 64 --strict batch_size=1024

        headrace config check plan.yaml --declared --hosts 256

        headrace config check plan.yaml components.web.expected_tokens=1e12 num_steps=100000

        headrace config check run.yaml --json
    """
    from headrace.analysis.check.findings import findings, source_findings
    from headrace.analysis.check.plan import RunPlan
    from headrace.config.sources import source_faults
    from headrace.ingest.first_look import refuse_faults

    with working("checking"):
        loaded, _ = load_target(config, settings)
        faults = {} if declared else source_faults(loaded.components, loaded.tokenizer)
        try:
            plan = RunPlan.of(
                loaded,
                look=not declared,
                hosts=host_numbers(hosts) or [1],
                icc=parse_shares(icc, "--icc"),
                schedule=schedule,
                optimizer=optimizer,
            )
            all_findings = findings(plan)
        except ConfigError:
            # A cache without a size is built first, for which its source has to be mended.
            refuse_faults([fault for some in faults.values() for fault in some])
            raise
        all_findings = [*source_findings(faults), *all_findings]
        all_findings.sort(key=lambda finding: finding.level)
    if as_json:
        say_json(check_json(plan, all_findings))
    else:
        show_check(plan, all_findings)
    if any(f.level == "problem" or strict for f in all_findings):
        raise typer.Exit(PROBLEM_FOUND)


def show(
    config: Annotated[
        str | None, typer.Argument(help="YAML file of an LmDataConfig.", metavar="CONFIG")
    ] = None,
    settings: Settings = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", help="Print the JSON schema of all configs instead; without CONFIG."
        ),
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File to write.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a config in full, with settings applied and defaults filled in, as YAML that loads as
    the same config.

    With `--schema`, print the JSON schema with which editors complete and check configs. For an
    editor with a YAML extension, name its file in the first line of a config: `#
    yaml-language-server: $schema=headrace.schema.json`.

    For example:

        headrace config show run.yaml

        headrace config show run.yaml seq_len=8192 components.code.weight=2 -o long.yaml

        headrace config show --schema -o headrace.schema.json
    """
    import yaml

    from headrace.config.lm_data import LmDataConfig, load_config
    from headrace.config.schema import json_schema

    if schema and config is None:
        put(json.dumps(json_schema(LmDataConfig), indent=2), output)
        return
    if schema or config is None:
        problem = "has no effect: all configs have one schema" if schema else "is missing"
        cure = "Leave it out." if schema else "Give the path of a YAML file, or --schema."
        raise ConfigError(problem, field="CONFIG", value=config, cure=cure)
    text = load_config(config, settings or []).to_yaml()
    put(json.dumps(yaml.safe_load(text)) if as_json else text.rstrip("\n"), output, config)


def put(text: str, output: str | None, source: str | None = None) -> None:
    """Prints a text, or writes it to a file, which must not be its ``source``."""
    if output is None:
        say(text)
        return
    if source is not None and Path(output).resolve() == Path(source).resolve():
        raise ConfigError(
            "is the config itself, which would be lost",
            field="--output",
            value=output,
            cure="Name another file.",
        )
    from headrace.store import files

    files.write_atomic(output, text.encode() + b"\n")


def check_json(plan: RunPlan, found: Sequence[Finding]) -> dict[str, Any]:
    """A checked config as JSON values: ``ok`` is true unless there is a problem; ``config`` is the
    full config.
    """
    import yaml

    return {
        "ok": not any(f.level == "problem" for f in found),
        "findings": [f.to_dict() for f in found],
        "plan": plan.to_dict(),
        "config": yaml.safe_load(plan.original.to_yaml()),
    }


def token_count(path: str) -> int | None:
    """Tokens of the cache at a path; None if there is no usable cache."""
    try:
        return cache_at(path).num_tokens
    except (HeadraceError, OSError):
        return None


def show_check(plan: RunPlan, found: Sequence[Finding]) -> None:
    """Prints a checked config: the run, its components, its reads, and the findings."""
    console = terminal()
    console.print(_run_line(plan), soft_wrap=True)
    for stage in plan.stages if len(plan.stages) > 1 else ():
        console.print(f"  from step {stage['step']:,}: {stage['name'] or _short(stage['weights'])}")
    console.print()
    console.print(_components(plan))
    for c in plan.components:
        if c.replicas:
            replicas = ", ".join(f"{replica.path} ({replica.state})" for replica in c.replicas)
            console.print(f"{c.name} has replicas {replicas}", soft_wrap=True)
    console.print()
    console.print(
        f"The first batch touches {format_count(plan.first_batch[0], 'chunk')},"
        f" {in_bytes(plan.first_batch[1])}, for"
        f" {in_bytes(plan.batch_size * plan.first.row_bytes)} of tokens.",
        soft_wrap=True,
    )
    console.print()
    console.print(_reads(plan))
    for h in (plan.forecast or plan.unlimited).by_hosts:
        if text := h.describe_exchange(plan.config.exchange_setting, plan.batch_size):
            console.print(text, soft_wrap=True)
    console.print()
    for finding in found:
        style = "bold red" if finding.level == "problem" else "yellow"
        console.print(labelled(finding.level, style, str(finding)), soft_wrap=True)
    problems = sum(f.level == "problem" for f in found)
    if not found:
        console.print("no problems found", style="green")
    else:
        warnings = format_count(len(found) - problems, "warning")
        console.print(f"{format_count(problems, 'problem')}, {warnings}", style="dim")


def _run_line(plan: RunPlan) -> str:
    smallest = f"{plan.batch_size:,} to " if plan.largest_batch != plan.batch_size else ""
    rows = f"batches of {smallest}{format_count(plan.largest_batch, 'row')}"
    lengths = ", then ".join(
        f"{n:,}" + (f" from step {s:,}" if s else "") for s, n in plan.config.phases
    )
    end = (
        "no known end"
        if plan.steps is None
        else f"{format_count(plan.steps, 'step')}, {plan.tokens or 0:,} tokens"
    )
    packed = ""
    if (effective := plan.effective_batch) is not None:
        documents, tokens = effective
        packed = (
            f"\nA batch of {plan.batch_size:,} packed rows holds about {documents:,} documents and"
            f" {tokens:,} tokens."
        )
    packed += f"\n{plan.micro_batches}" if plan.micro_batches is not None else ""
    packed += f"\n{plan.data_end}" if str(plan.data_end or "") else ""
    return (
        f"{format_count(len(plan.components), 'component')}, {rows} of {lengths} tokens,"
        f" {end}{packed}"
    )


def _short(weights: Any) -> str:
    text = ", ".join(
        f"{name} {weight:g}" if isinstance(weight, float) else name
        for name, weight in weights.items()
    )
    return text if len(text) <= 100 else text[:97] + "..."


def _components(plan: RunPlan) -> Table:
    share_of = "share of rows" if plan.config.counted_tokens else "share"
    table = figures_table(
        "component", "tokens", share_of, "epochs", "order", "strands", "block\nrows", "open\nblocks"
    )
    for c in plan.components:
        share = f"{c.first_share:.2%}"
        if abs(c.last_share - c.first_share) > 5e-5:
            share += f" > {c.last_share:.2%}"
        table.add_row(
            c.name,
            f"{c.tokens:,}" if c.exists else f"{short(c.tokens)} declared",
            share,
            "-" if c.epochs is None else f"{c.epochs:.3g}",
            c.shuffle,
            f"{c.strands:,}" if c.strands else "-",
            f"{c.block_rows:,}" if c.block_rows else "-",
            in_bytes(c.open_bytes) if c.open_bytes else "-",
        )
    table.columns[0].no_wrap = (
        max(len(c.name) for c in plan.components) <= _WHOLE_NAME
    )  # longer ones fold
    return table


def _reads(plan: RunPlan) -> Table:
    heads = (
        "reads per block per epoch",
        "reads per host per step",
        "bytes per host per step",
        "memory held",
    )
    table = figures_table("hosts", *heads, "memory needed", left=0)
    for h in (plan.forecast or plan.unlimited).by_hosts:
        table.add_row(
            f"{h.hosts:,}",
            f"{h.reads_per_block:.2f}",
            f"{h.reads_per_step:,.2f}",
            in_bytes(round(h.bytes_per_step)),
            in_bytes(h.resident_bytes),
            in_bytes(plan.open_bytes.needed(1 / h.hosts)),
        )
    return table
