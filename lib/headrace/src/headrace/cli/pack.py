"""``headrace cache pack``: plans how the documents of a cache share rows, saves the plan, and shows
its figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from headrace.cli.options import (
    AsJson,
    Format,
    Settings,
    cache_at,
    refuse_typed,
)
from headrace.cli.shown import bar, facts_table, figures_table, say_json, terminal, working
from headrace.config.writing import CONFIG_SUFFIXES
from headrace.errors import ConfigError, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.data.documents import DocumentFilter
    from headrace.data.packed import PackedTokenDataset
    from headrace.pack.spec import PackingConfig
    from headrace.store.cache import TokenCache

_OF_CACHE = (
    "seq_len",
    "algorithm",
    "long",
    "capacity",
    "min_fill",
    "max_documents",
    "unit",
    "remove",
    "plans",
    "compare",
    "format",
)
_EDGES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


def command(
    context: typer.Context,
    cache: Annotated[
        str, typer.Argument(help="Folder or URL of a cache, or a config.", metavar="CACHE|CONFIG")
    ],
    settings: Settings = None,
    seq_len: Annotated[int, typer.Option("--seq-len", "-s", help="Tokens of a row.")] = 2048,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm", "-a", help="windowed, bfd, wfd, ffd, bfd_split, next_fit or wrap."
        ),
    ] = "windowed",
    long: Annotated[
        str | None,
        typer.Option(
            help="Documents longer than the capacity: split, truncate, truncate_start, drop, keep"
            " (whole, in a row of"
            " its own) or error; by default, drop for conversations and pairs, split for others."
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            help="Tokens up to which rows are filled; by default, all of --seq-len. The rest is"
            " room for what --long keep keeps."
        ),
    ] = None,
    min_fill: Annotated[
        float, typer.Option(help="Drop packs that are less full than this share.")
    ] = 0.0,
    max_documents: Annotated[
        int | None,
        typer.Option(help="With next_fit: most documents in a row; by default, as many as fit."),
    ] = None,
    unit: Annotated[
        int | None,
        typer.Option(
            help="Number of neighbouring documents that stay together; by default, 2 for"
            " preference pairs, else 1."
        ),
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(help="File of documents to leave out, as in a config.", metavar="FILE"),
    ] = None,
    plans: Annotated[
        str | None,
        typer.Option(help="Folder for plans; by default, plans in the cache.", metavar="FOLDER"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Try all algorithms, and save nothing.")
    ] = False,
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
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Plan how documents share rows of one length, save the plan in the cache, and show how full
    the rows are.

    Training finds the plan there and starts at once. For a config, it plans all packed components.
    It reads the lengths of documents, but no tokens.

    For example:

        headrace cache pack cache --seq-len 4096

        headrace cache pack cache --seq-len 4096 --compare

        headrace cache pack cache -s 4096 -a bfd --long truncate --ranks 8 --json

        headrace cache pack cache -s 8192 --long keep --capacity 4096

        headrace cache pack run.yaml seq_len=8192
    """
    from headrace.data.documents import DocumentFilter
    from headrace.data.packed import PackedTokenDataset
    from headrace.data.pairs import check_pairs, is_of_pairs
    from headrace.pack.spec import PackingConfig

    console = terminal()
    if ranks is None:
        refuse_typed(context, ("drop_last",), "has no effect without --ranks", "Add --ranks N.")
    if cache.endswith(CONFIG_SUFFIXES):
        problem = "has no effect on a config"
        cure = "Leave it out, or write a setting: seq_len=4096."
        refuse_typed(context, _OF_CACHE, problem, cure)
        facts = _of_config(cache, settings or [], ranks, drop_last)
        say_json(facts) if as_json else _show_each(console, facts)
        return
    refuse_typed(context, ("settings",), "have no effect on a cache", "Leave them out.")
    opened = cache_at(cache, format)
    choices = cast("Any", algorithm), cast("Any", long)  # checked there
    how = PackingConfig(choices[0], choices[1], min_fill, unit, plans, max_documents, capacity)
    opened.check_unit(unit or 1)
    removed = None if remove is None else DocumentFilter.load(remove, name="--remove")
    if compare:
        mask = opened.mask_leaf("auto")
        pairs = is_of_pairs(opened, None)
        how = how.resolved(pairs=pairs, conversations=mask is not None)
        if pairs:
            with _typed_for_a_config():
                check_pairs(opened, how.unit or 1, mask)
        rows = _compared(opened, seq_len, how, removed)
        say_json(rows) if as_json else _show_compared(console, cache, seq_len, rows)
        return
    with working("packing"), _typed_for_a_config():
        one = _facts(
            PackedTokenDataset(opened, seq_len, removed=removed, **vars(how)), ranks, drop_last
        )
    say_json(one) if as_json else _show(console, cache, one)


@contextmanager
def _typed_for_a_config() -> Iterator[None]:
    """A field of a component in a cure becomes the command that sets it: a cache has no such
    field.
    """
    try:
        yield
    except ConfigError as error:
        if "pairs: false" not in (error.cure or ""):
            raise
        typed = "headrace cache pack RUN.yaml components.NAME.pairs=false"
        cure = (error.cure or "").replace("pairs: false", typed)
        raise error.but(cure=cure) from error


def _show_each(console: Console, plans: dict[str, dict[str, Any]]) -> None:
    for name, plan in plans.items():
        _show(console, f"{name}: {plan['path']}", plan)


@working("packing")
def _of_config(
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


@working("packing")
def _compared(
    cache: TokenCache, seq_len: int, how: PackingConfig, removed: DocumentFilter | None
) -> list[dict[str, Any]]:
    """The figures of each algorithm for the documents of a cache, as JSON values."""
    import numpy as np

    from headrace.data.documents import removed_by
    from headrace.data.packed import PackedRows
    from headrace.pack.plan import plan_of
    from headrace.pack.saved_plans import of_documents, unit_lengths
    from headrace.pack.spec import CUTTING, Algorithm, PackingConfig
    from headrace.progress import track

    unit = how.unit or 1
    removed_documents = removed_by(removed, cache)
    lengths = np.concatenate(
        [np.zeros(0, np.int64), *unit_lengths(cache, removed_documents.documents, unit)]
    )
    algorithms = [name for name in get_args(Algorithm) if unit == 1 or name not in CUTTING]
    rows: list[dict[str, Any]] = []
    for name in track(algorithms, "trying algorithms", len(algorithms)):
        long = "split" if name in CUTTING else how.long
        most = how.max_documents // unit if how.max_documents and name == "next_fit" else None
        tried = PackingConfig(name, long, how.min_fill, max_documents=most, capacity=how.capacity)
        spec = tried.spec(seq_len, cache.layout.chunk_elements)
        started = time.perf_counter()
        plan = plan_of(spec, lengths, (cache.part_documents // unit).tolist())
        seconds = time.perf_counter() - started
        plan = of_documents(plan, cache, unit)
        rows.append(
            {
                "algorithm": name,
                "packs": len(plan),
                "fill": plan.fill,
                "blocks_a_pack": PackedRows(cache, plan, name).blocks_per_row(),
                "split_documents": plan.counts.split_documents,
                "lost_tokens": cache.num_tokens
                - removed_documents.num_tokens
                - plan.counts.packed_tokens,
                "seconds": seconds,
            }
        )
    return rows


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
    empty = (
        counts["empty_documents"] - removed - incomplete
    )  # the plan counts removed and incomplete ones as empty
    lacking = (
        f"{format_count(incomplete, 'document')},"
        f" {format_count(facts['incomplete_tokens'], 'token')}"
    )
    lines = {
        "removed": format_count(removed, "document") if removed else "",
        "incomplete": f"{lacking}: other documents of their units are removed or empty"
        if incomplete
        else "",
        "without tokens": format_count(empty, "document") if empty else "",
        "split": format_count(counts["split_documents"], "document")
        if counts["split_documents"]
        else "",
    }
    for name, what in (
        ("dropped", "documents"),
        ("truncated", "documents"),
        ("underfilled", "packs"),
    ):
        lost = counts[f"{name}_tokens"]
        lines[name] = (
            f"{counts[f'{name}_{what}']:,} {what}, {lost:,} tokens ({lost / tokens:.2%})"
            if lost
            else ""
        )
    return {name: line for name, line in lines.items() if line}


def _show_compared(console: Console, path: str, seq_len: int, rows: list[dict[str, Any]]) -> None:
    heads = ("packs", "fill", "blocks per pack", "documents split", "tokens lost", "seconds")
    table = figures_table("algorithm", *heads, title=f"{path} in rows of {seq_len:,} tokens")
    for one in rows:
        packs, split, lost = (
            f"{one[name]:,}" for name in ("packs", "split_documents", "lost_tokens")
        )
        blocks, seconds = (f"{one[name]:.2f}" for name in ("blocks_a_pack", "seconds"))
        table.add_row(one["algorithm"], packs, f"{one['fill']:.4%}", blocks, split, lost, seconds)
    console.print(table)
