"""``headrace inspect run.yaml``: what a config resolves to: where the tokens of each source go, and what mixes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headrace.config import LmDataConfig
    from headrace.data.dataset import PlannedDataset

SUFFIXES = (".yaml", ".yml")


def inspect_run(path: str, settings: list[str], as_json: bool) -> None:
    """Prints what a config resolves to."""
    from headrace.config import load_config

    facts = overview_of_run(load_config(path, settings))
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        _show(Console(highlight=False), path, facts)


def overview_of_run(config: LmDataConfig) -> dict[str, Any]:
    """Accounts, shuffles and weights of a config's components, and what its phases skip, as JSON values."""
    from headrace.data.phased import PhasedDataset

    opened = config.open_caches()
    dataset = config.dataset(opened)
    first, _ = dataset.phase_at(0)
    described = first.describe()
    shuffles = dict(zip(described["names"], map(_shuffle, getattr(first, "components", ())), strict=True))
    changes = dataset.changes if isinstance(dataset, PhasedDataset) else ()
    return {
        "components": {name: {**found.to_json(), **shuffles[name]} for name, found in config.accounts(opened).items()},
        "stages": [{key: stage[key] for key in ("step", "name", "weights")} for stage in described["stages"]],
        "num_steps": config.run_steps,
        "unit": config.unit,
        "skipped_tokens": {f"{c.component} at step {c.step}": c.skipped_tokens for c in changes},
    }


def _shuffle(component: PlannedDataset) -> dict[str, Any]:
    """Name, strands and open bytes of a component's shuffle."""
    from headrace.data.dataset import ReorderedDataset
    from headrace.data.shuffle import open_bytes
    from headrace.index.braid import BraidShuffle

    inner = component.base if isinstance(component, ReorderedDataset) else component
    order = inner.order if isinstance(inner, ReorderedDataset) else None
    return {
        "shuffle": "none" if order is None else type(order).__name__,
        "strands": order.strands if isinstance(order, BraidShuffle) else 0,
        "open_bytes": open_bytes(component),
    }


def _show(console: Console, path: str, facts: dict[str, Any]) -> None:
    console.print(Text(path, "bold"))
    table = Table(title="Tokens", title_justify="left", box=None, pad_edge=False, header_style="dim")
    columns = {
        "train": "train_tokens",
        "held out": "validation_tokens",
        "removed": "removed_tokens",
        "in no row": "dropped_tokens",
        "in all": "tokens",
    }
    table.add_column("source")
    for title in (*columns, "strands", "open MiB"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, one in facts["components"].items():
        figures = [f"{one[key]:,}" for key in columns.values()]
        table.add_row(Text(name), *figures, f"{one['strands']:,}", f"{one['open_bytes'] / 2**20:,.1f}")
    console.print(table)
    for name, one in facts["components"].items():
        if one["listed_documents"]:
            console.print(Text(f"{name}: {removal_line(one)}"), soft_wrap=True)
        if one["incomplete_tokens"]:
            what = f"{one['incomplete_documents']:,} documents with {one['incomplete_tokens']:,} tokens"
            why = "as others of their units are removed or empty"
            console.print(Text(f"{name}: {what} are in no row, {why}"), soft_wrap=True)
        if one["padding_tokens"]:
            share = one["padding_tokens"] / (one["train_tokens"] + one["validation_tokens"] + one["padding_tokens"])
            console.print(
                Text(f"{name}: packed; {one['padding_tokens']:,} places of its rows are padding ({share:.2%})"),
                soft_wrap=True,
            )
    for stage in facts["stages"]:
        called = f" ({stage['name']})" if stage["name"] else ""
        console.print(
            Text(f"weights from step {stage['step']:,}{called}: {json.dumps(stage['weights'])}"), soft_wrap=True
        )
    for where, tokens in facts["skipped_tokens"].items():
        console.print(Text(f"{where}: {tokens:,} tokens skipped by the change of seq_len"), soft_wrap=True)


def removal_line(counts: dict[str, int]) -> str:
    """What a filter did, in words.

    Example:
        >>> removal_line(dict(listed_documents=5, repeated_documents=1, not_found_documents=1,
        ...     removed_documents=3, removed_tokens=120))
        'the filter lists 5 documents (1 again, 1 not found) and removes 3 with 120 tokens'
    """
    return (
        f"the filter lists {counts['listed_documents']:,} documents ({counts['repeated_documents']:,} again,"
        f" {counts['not_found_documents']:,} not found) and removes {counts['removed_documents']:,}"
        f" with {counts['removed_tokens']:,} tokens"
    )
