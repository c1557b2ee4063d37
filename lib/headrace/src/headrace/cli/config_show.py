"""How ``headrace config check`` shows what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli.shown import in_bytes

if TYPE_CHECKING:
    from headrace.check.findings import Finding
    from headrace.check.plan import RunPlan


def check_json(plan: RunPlan, found: Sequence[Finding]) -> dict[str, Any]:
    """A checked config as JSON values: ``ok`` unless there is a problem; the whole config under ``config``."""
    import yaml

    return {
        "ok": not any(f.level == "problem" for f in found),
        "findings": [f.to_json() for f in found],
        "plan": plan.to_json(),
        "config": yaml.safe_load(plan.config.to_yaml()),
    }


def token_count(path: str) -> int | None:
    """Tokens of the cache at a path; None if there is none that can be used."""
    from headrace.errors import HeadraceError
    from headrace.store.cache import TokenCache

    try:
        return TokenCache.open(path).num_tokens
    except (HeadraceError, OSError):
        return None


def show_check(plan: RunPlan, found: Sequence[Finding]) -> None:
    """Prints a checked config: the run, its components, its reads, and what will hurt."""
    console = Console(highlight=False)
    console.print(Text(_run_line(plan)), soft_wrap=True)
    for stage in plan.stages if len(plan.stages) > 1 else ():
        console.print(Text(f"  from step {stage['step']:,}: {stage['name'] or _short(stage['weights'])}"))
    console.print()
    console.print(_components(plan))
    console.print()
    console.print(
        Text(
            f"The first batch touches {plan.first_batch_chunks:,} chunks, {in_bytes(plan.first_batch_bytes)}, for"
            f" {in_bytes(plan.batch_size * plan.row_bytes)} of tokens."
        ),
        soft_wrap=True,
    )
    console.print()
    console.print(_reads(plan))
    console.print()
    for finding in found:
        style = "bold red" if finding.level == "problem" else "yellow"
        console.print(Text.assemble((finding.level, style), " ", str(finding)), soft_wrap=True)
    problems = sum(f.level == "problem" for f in found)
    if not found:
        console.print(Text("nothing found that will hurt", "green"))
    else:
        console.print(Text(f"{problems} problems, {len(found) - problems} warnings", "dim"))


def _run_line(plan: RunPlan) -> str:
    rows = f"batches of {plan.batch_size:,}"
    rows += f" to {plan.largest_batch:,} rows" if plan.largest_batch != plan.batch_size else " rows"
    lengths = ", then ".join(f"{n:,}" + (f" from step {s:,}" if s else "") for s, n in plan.phases)
    end = "without an end" if plan.steps is None else f"{plan.steps:,} steps, {plan.tokens or 0:,} tokens"
    return f"{len(plan.components)} components, {rows} of {lengths} tokens, {end}"


def _short(weights: Any) -> str:
    text = ", ".join(f"{name} {weight:g}" if isinstance(weight, float) else name for name, weight in weights.items())
    return text if len(text) <= 100 else text[:97] + "..."


def _components(plan: RunPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("component", overflow="fold")
    for title in ("tokens", "share", "epochs", "order", "strands", "block rows", "open blocks"):
        table.add_column(title, justify="right")
    for c in plan.components:
        share = f"{c.first_share:.2%}"
        if abs(c.last_share - c.first_share) > 5e-5:
            share += f" > {c.last_share:.2%}"
        table.add_row(
            Text(c.name),
            f"{c.tokens:,}" + ("" if c.exists else " (declared)"),
            share,
            "-" if c.epochs is None else f"{c.epochs:.3g}",
            c.shuffle,
            f"{c.strands:,}" if c.strands else "-",
            f"{c.block_rows:,}" if c.block_rows else "-",
            in_bytes(c.open_bytes) if c.open_bytes else "-",
        )
    return table


def _reads(plan: RunPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("hosts", "reads a block and epoch", "reads a host and step", "a step", "held by a host", "needed"):
        table.add_column(title, justify="right")
    forecast = plan.forecast or plan.unlimited
    for h in forecast.by_hosts:
        table.add_row(
            f"{h.hosts:,}",
            f"{h.reads_per_block:.2f}",
            f"{h.reads_per_step:,.2f}",
            in_bytes(round(h.bytes_per_step)),
            in_bytes(h.resident_bytes),
            in_bytes(plan.held_bytes(h.hosts)),
        )
    return table
