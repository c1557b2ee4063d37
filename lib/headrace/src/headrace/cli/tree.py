"""``headrace run tree``: shows how a run is made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.cli.options import AsJson, Config, Settings
from headrace.cli.remove import removal_line
from headrace.cli.shown import figures_table, say, terminal
from headrace.errors import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config.lm_data import LmDataConfig
    from headrace.data.dataset import PlannedDataset


def command(config: Config, settings: Settings = None, as_json: AsJson = False) -> None:
    """Show how a run is made: how it uses the tokens of its sources, and their weights.

    Opens the ledgers of the caches, and reads no tokens.

    For example:

        headrace run tree run.yaml

        headrace run tree run.yaml seq_len=4096 --json
    """
    from headrace.config.lm_data import load_config

    facts = overview_of_run(load_config(config, settings or []))
    if as_json:
        say(json.dumps(facts, ensure_ascii=False))
    else:
        _show_run(terminal(), config, facts)


def overview_of_run(config: LmDataConfig) -> dict[str, Any]:
    """Token counts, shuffles and weights of a config's components, and tokens skipped by its
    phases, as JSON values.
    """
    opened = config.open_caches()
    dataset = config.dataset(opened)
    first, _ = dataset.at_step(0)
    described = first.describe()
    shuffles = dict(
        zip(described["names"], map(_shuffle, getattr(first, "components", ())), strict=True)
    )
    return {
        "components": {
            name: {**account.to_json(), **shuffles[name]}
            for name, account in config.accounts(opened).items()
        },
        "stages": [
            {key: stage[key] for key in ("step", "name", "weights")}
            for stage in described["stages"]
        ],
        "num_steps": config.run_steps,
        "unit": config.unit,
        "skipped_tokens": {
            f"{c.component} at step {c.step}": c.skipped_tokens for c in dataset.changes
        },
    }


def _shuffle(component: PlannedDataset) -> dict[str, Any]:
    """Name, strands and open bytes of a component's shuffle."""
    order = component.shuffle_order()
    return {
        "shuffle": "none" if order is None else type(order).__name__,
        "strands": 0 if order is None else order.strands,
        "open_bytes": component.open_window().rows * component.row_bytes,
    }


def _show_run(console: Console, path: str, facts: dict[str, Any]) -> None:
    from rich.text import Text

    console.print(Text(path, "bold"))
    heads = ("train", "held out", "removed", "in no row", "total", "strands", "open MiB")
    table = figures_table("source", *heads, title="Tokens")
    for name, one in facts["components"].items():
        figures = [
            f"{one[f'{key}tokens']:,}"
            for key in ("train_", "validation_", "removed_", "dropped_", "")
        ]
        table.add_row(
            Text(name), *figures, f"{one['strands']:,}", f"{one['open_bytes'] / 2**20:,.1f}"
        )
    console.print(table)
    lines: list[str] = []
    for name, one in facts["components"].items():
        if one["unused_rows"]:
            share = one["train_rows"] / (one["train_rows"] + one["unused_rows"])
            rest = (
                f"{format_count(one['unused_rows'], 'row')} with"
                f" {format_count(one['unused_tokens'], 'token')}"
            )
            lines.append(
                f"{name}: a subset of {one['train_rows']:,} rows is trained on ({share:.3%});"
                f" {rest} are left out"
            )
        if one["listed_documents"]:
            lines.append(f"{name}: {removal_line(one)}")
        if one["incomplete_tokens"]:
            what = format_count(one["incomplete_documents"], "document")
            what += f" with {format_count(one['incomplete_tokens'], 'token')}"
            lines.append(
                f"{name}: {what} are in no row, because other documents of their units are removed"
                " or empty"
            )
        if one["repeated_tokens"]:
            reason = "rows overlap or cover several passes"
            lines.append(
                f"{name}: {one['repeated_tokens']:,} tokens of its rows are repeated: {reason}"
            )
        if one["padding_tokens"]:
            share = one["padding_tokens"] / (
                one["train_tokens"] + one["validation_tokens"] + one["padding_tokens"]
            )
            lines.append(
                f"{name}: packed; {one['padding_tokens']:,} positions of its rows are padding"
                f" ({share:.2%})"
            )
    for stage in facts["stages"]:
        called = f" ({stage['name']})" if stage["name"] else ""
        lines.append(f"weights from step {stage['step']:,}{called}: {json.dumps(stage['weights'])}")
    for where, tokens in facts["skipped_tokens"].items():
        lines.append(f"{where}: {tokens:,} tokens skipped by the change of seq_len")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
