"""``headrace cache pack``: plans how documents share rows, and shows the figures of the plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, Config, Settings, refuse_typed
from headrace.cli.shown import bar, facts_table, say_json, terminal, working
from headrace.errors import ConfigError, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.data.packed import PackedTokenDataset

_EDGES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


def command(
    context: typer.Context,
    config: Config,
    settings: Settings = None,
    ranks: Annotated[
        int | None,
        typer.Option(help="Show how many packs this many ranks train on, the same number each."),
    ] = None,
    drop_last: Annotated[
        bool,
        typer.Option(
            "--drop-last",
            help="With --ranks: drop packs to make ranks even, instead of repeating some.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan how documents share rows of one length, save the plans in the caches, and show how full
    the rows are.

    Plans all packed components of a config. Training finds the plans and starts at once. It reads
    the lengths of documents, but no tokens.

    For example:

        headrace cache pack run.yaml

        headrace cache pack run.yaml seq_len=4096 components.web.packing.algorithm=bfd

        headrace cache pack run.yaml --ranks 8 --json
    """
    if ranks is None:
        refuse_typed(context, ("drop_last",), "has no effect without --ranks", "Add --ranks N.")
    plans = _planned(config, settings or [], ranks, drop_last)
    if as_json:
        say_json(plans)
        return
    for name, plan in plans.items():
        _show(terminal(), f"{name}: {plan['path']}", plan)


@working("packing")
def _planned(
    path: str, settings: list[str], ranks: int | None, drop_last: bool
) -> dict[str, dict[str, Any]]:
    from headrace.config.lm_data import load_config
    from headrace.data.packed import packed_datasets

    datasets = load_config(path, settings).datasets()
    packed = packed_datasets(datasets)
    if not packed:
        name = next(iter(datasets))
        raise ConfigError(
            "no component is packed",
            field="components",
            cure=f"Write components.{name}.packing: {{}}, for example.",
        )
    return {name: _facts(dataset, ranks, drop_last) for name, dataset in packed.items()}


def _facts(dataset: PackedTokenDataset, ranks: int | None, drop_last: bool) -> dict[str, Any]:
    """The figures of a plan, as JSON values."""
    import numpy as np

    plan = dataset.plan
    fill = np.digitize(plan.lengths / plan.spec.row, _EDGES[1:])
    histogram = np.bincount(fill, minlength=len(_EDGES))
    facts: dict[str, Any] = {
        "path": dataset.cache.path,
        "plan": dataset.plan_path,
        **plan.record(),
        "counts": vars(plan.counts),
        "removed_documents": dataset.removed_documents,
        "removed_tokens": dataset.removed_tokens,
        "incomplete_documents": dataset.incomplete_documents,
        "incomplete_tokens": dataset.incomplete_tokens,
        "padding_tokens": dataset.padding_tokens,
        "documents_a_pack": {"mean": plan.items.size.size / len(plan), "max": plan.max_items},
        "blocks_a_pack": dataset.blocks_per_row(),
        "fill_histogram": [
            {"from": low, "packs": n, "share": n / len(plan)}
            for low, n in zip(_EDGES, histogram.tolist(), strict=True)
        ],
    }
    if ranks is not None:
        facts["aligned"] = plan.aligned_plan(ranks, drop_last).record()
    return facts


def _show(console: Console, title: str, facts: dict[str, Any]) -> None:
    spec = facts["spec"]
    counts = facts["counts"]
    console.print(title, style="bold", soft_wrap=True)
    each = facts["documents_a_pack"]
    tokens = max(counts["tokens"], 1)
    rows = {
        "packs": f"{facts['packs']:,} of {_size(spec)} ({spec['algorithm']}): a step of B rows has"
        f" B packs, {counts['packed_tokens'] / facts['packs']:,.1f} tokens each",
        "fill": f"{facts['fill']:.4%} ({facts['padding_tokens']:,} positions are padding)",
        "documents": f"{counts['documents']:,}, {each['mean']:.1f} per pack, at most"
        f" {each['max']:,}",
        "blocks": f"{facts['blocks_a_pack']:.2f} stored blocks per pack",
        **_what_became(facts, tokens),
        "checksum": facts["checksum"],
        "plan": facts["plan"],
    }
    console.print(facts_table(rows))
    console.print("packs by fill", style="dim")
    for one, above in zip(facts["fill_histogram"], (*_EDGES[1:], None), strict=True):
        if one["packs"]:
            span = "full" if above is None else f"{one['from']:.0%} to {above:.0%}"
            console.print(f"{span:>12} {one['packs']:>12,}  {bar(one['share'])}", soft_wrap=True)
    if "aligned" in facts:
        a = facts["aligned"]
        uneven = f"{a['dropped']:,} dropped" if a["drop_last"] else f"{a['pad_needed']:,} repeated"
        console.print(
            f"for {format_count(a['world_size'], 'rank')}:"
            f" {format_count(a['N_aligned_packs'], 'pack')}, {uneven}"
        )


def _size(spec: dict[str, Any]) -> str:
    """Describes how long packs are."""
    capacity = f"{spec['capacity']:,} tokens"
    return f"{capacity} in rows of {spec['row_tokens']:,}" if "row_tokens" in spec else capacity


def _what_became(facts: dict[str, Any], tokens: int) -> dict[str, str]:
    """Describes the documents and packs that are not packed whole, leaving out counts of 0."""
    counts = facts["counts"]
    removed = facts["removed_documents"]
    incomplete = facts["incomplete_documents"]
    # the plan counts removed and incomplete ones as empty
    empty = counts["empty_documents"] - removed - incomplete
    lines: dict[str, str] = {}
    if removed:
        lines["removed"] = format_count(removed, "document")
    if incomplete:
        lacking = format_count(facts["incomplete_tokens"], "token")
        lines["incomplete"] = (
            f"{format_count(incomplete, 'document')}, {lacking}: other documents of their units"
            " are removed or empty"
        )
    if empty:
        lines["without tokens"] = format_count(empty, "document")
    if counts["split_documents"]:
        lines["split"] = format_count(counts["split_documents"], "document")
    units = {"dropped": "documents", "truncated": "documents", "underfilled": "packs"}
    for name, unit in units.items():
        if lost := counts[f"{name}_tokens"]:
            count = f"{counts[f'{name}_{unit}']:,} {unit}"
            lines[name] = f"{count}, {lost:,} tokens ({lost / tokens:.2%})"
    return lines
