"""``headrace run tree``: shows how a run is made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, ConfigOrRun, Settings, load_target
from headrace.cli.shown import labelled, say_json, terminal, working
from headrace.config.writing import CONFIG_SUFFIXES
from headrace.errors import format_count, format_some
from headrace.numbers import in_bytes

if TYPE_CHECKING:
    from rich.tree import Tree

WHOLE_SOURCES = 12
"""Most sources that are shown with their nodes unless ``--all`` asks for it."""
_SHOWN_WEIGHTS = 6


def command(
    target: ConfigOrRun,
    settings: Settings = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the nodes of every source, however many there are.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            help="Say which sources have the documents of which sources of another run, whatever"
            " their names: what was learned of them there holds here.",
            metavar="CONFIG|RUN",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a run is made: its sources, which of their documents and rows it trains on, their
    orders, and the mixture, with the count at each node.

    Opens the ledgers of the caches, and reads no tokens. Caches that do not exist yet are planned
    with their `expected_tokens`. Of more than 12 sources, the nodes are left out.

    For example:

        headrace run tree run.yaml

        headrace run tree run.yaml seq_len=4096 --all

        headrace run tree runs/7b --json

        headrace run tree run.yaml --like runs/7b
    """
    from headrace.analysis.resolved import ResolvedRun
    from headrace.analysis.tree import run_tree

    config, _ = load_target(target, settings)
    with working("counting rows"):
        facts = run_tree(ResolvedRun.of(config))
        if like is not None:
            of_other = _digests(like)
            for one in facts["sources"].values():
                digest = one["documents_digest"]
                one["like"] = [name for name, other in of_other.items() if other == digest]
    if as_json:
        say_json(facts)
    else:
        folds = len(facts["sources"]) > WHOLE_SOURCES and not show_all
        terminal().print(_tree(target, facts, folds=folds))


def _digests(target: str) -> dict[str, str]:
    """The digest of the documents of each source of a run or a config."""
    from headrace.analysis.resolved import ResolvedRun
    from headrace.run.lock import RunLock

    lock = None if target.endswith(CONFIG_SUFFIXES) else RunLock.load(target)
    if lock is not None and lock.documents:  # as the run began, whatever has become of its files
        return lock.documents
    return ResolvedRun.of(load_target(target, None)[0]).first.documents_digests()


def _tree(target: str, facts: dict[str, Any], *, folds: bool) -> Tree:
    from rich.tree import Tree

    tree = Tree(labelled(target, "bold", f" {_run_line(facts)}"), guide_style="dim")
    mixture = tree.add(f"mixture of {format_count(len(facts['sources']), 'source')}")
    learned = {decision["step"] for decision in facts["learned"]}
    for stage in facts["stages"]:
        if stage["step"] not in learned:
            mixture.add(_stage_line(stage))
    if learned:
        mixture.add(_learned_line(facts))
    for where, tokens in facts["skipped_tokens"].items():
        mixture.add(f"{where}: {tokens:,} tokens skipped by the change of seq_len")
    for name, one in facts["sources"].items():
        branch = tree.add(labelled(name, "bold", f" {_drawn_line(one['drawn'])}"))
        for kind, text in () if folds else _nodes(one):
            branch.add(labelled(kind, "dim", f" {text}"))
    if folds:
        tree.add("the nodes of these sources: --all", style="dim")
    return tree


def _run_line(facts: dict[str, Any]) -> str:
    steps = facts["steps"]
    length = "steps without a known end," if steps is None else format_count(steps, "step")
    sizes = _by_step(facts["batch_sizes"].items())
    lengths = _by_step(facts["phases"])
    unit = facts["unit"].replace("_", " ") if facts["unit"].endswith("tokens") else "tokens"
    tokens = "" if steps is None else f", {facts['tokens']:,} {unit}"
    return f"{length} of {sizes} rows of {lengths} tokens{tokens}"


def _by_step(values: Iterable[Sequence[int]]) -> str:
    """
    Example:
        >>> _by_step([(0, 8), (100, 16)])
        '8, then 16 from step 100'
    """
    return ", then ".join(
        f"{value:,}" + (f" from step {step:,}" if step else "") for step, value in values
    )


def _stage_line(stage: dict[str, Any]) -> str:
    called = f" ({stage['name']})" if stage["name"] else ""
    weights = [
        f"{name} {weight:.4g}"
        if isinstance(weight, float | int)
        else f"{name} {json.dumps(weight)}"
        for name, weight in stage["weights"].items()
    ]
    return f"from step {stage['step']:,}{called}: {format_some(weights, _SHOWN_WEIGHTS)}"


def _learned_line(facts: dict[str, Any]) -> str:
    """The last weights that a rule decided, beside those of the plan."""
    last = facts["learned"][-1]
    planned = {name: one["drawn"]["weight"] for name, one in facts["sources"].items()}
    weights = sorted(last["weights"].items(), key=lambda item: -item[1])
    lines = [f"{name} {weight:.4g} (planned {planned[name]:.4g})" for name, weight in weights]
    decisions = format_count(len(facts["learned"]), "decision")
    changes = format_some(lines, _SHOWN_WEIGHTS)
    return f"learned in {decisions}, the last at step {last['step']:,}: {changes}"


def _drawn_line(drawn: dict[str, Any]) -> str:
    """What the run draws of a source."""
    parts = [f"{drawn['weight']:.2%} at first"]
    if drawn["rows"] is not None:
        parts.append(f"{format_count(drawn['rows'], 'row')} drawn, {drawn['tokens']:,} tokens")
    if drawn["epochs"] is not None:
        parts.append(f"{drawn['epochs']:.3g} epochs")
    return ", ".join(parts)


def _nodes(one: dict[str, Any]) -> list[tuple[str, str]]:
    """The nodes of a source, from its cache to its order: what each is, and its counts. None of
    what it does not have.
    """
    nodes = [("cache", _cache_line(one["cache"])), *_document_nodes(one), *_row_nodes(one)]
    nodes.append(("order", _order_line(one["order"])))
    if one["limits"]:
        limits = ", ".join(f"{name} {value:,}" for name, value in one["limits"].items())
        nodes.append(("limits", limits))
    return nodes


def _cache_line(cache: dict[str, Any]) -> str:
    paths = ", ".join(cache["paths"])
    documents = "" if cache["documents"] is None else f"{cache['documents']:,} documents, "
    declared = "" if cache["exists"] else " (declared: it does not exist yet)"
    return f"{paths}: {documents}{cache['tokens']:,} tokens{declared}"


def _document_nodes(one: dict[str, Any]) -> list[tuple[str, str]]:
    """Which documents of a source are used, and which rows of them are kept from training."""
    account = one["account"]
    nodes: list[tuple[str, str]] = []
    if account["listed_documents"]:
        nodes.append(("filter", _filter_line(account)))
    elif account["removed_documents"]:
        nodes.append(("filter", f"{_counts(account, 'document', 'removed_')} left out"))
    if "like" in one:
        names = ", ".join(one["like"]) or "no source"
        nodes.append(("documents", f"those of {names} there"))
    if account["validation_rows"]:
        counts = _counts(account, "row", "validation_")
        nodes.append(("held out", f"{counts} by {one['held_out']}"))
    if account["unused_rows"]:
        nodes.append(("subset", f"{_counts(account, 'row', 'unused_')} not trained on"))
    return nodes


def _row_nodes(one: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of a source, and what became of tokens in cutting them."""
    account = one["account"]
    rows = one["rows"]
    counts = f"{format_count(rows['rows'], 'row')}, {account['train_tokens']:,} tokens"
    nodes = [("rows", f"{rows['kind']} of {rows['length']:,} tokens: {counts}")]
    for erased in one["erased"]:
        from_step = f" from step {erased['step']:,}" if erased["step"] else ""
        effect = "their places in the rows stay, and are not trained on"
        nodes.append(("removed", f"{_counts(erased, 'document')}{from_step}: {effect}"))
    effects = {
        "padding": "positions of the rows",
        "dropped": "tokens of the cache are in no row",
        "repeated": "tokens of the rows: they overlap or cover several passes",
    }
    for name, effect in effects.items():
        if count := account[f"{name}_tokens"]:
            nodes.append((name, f"{count:,} {effect}"))
    if account["incomplete_tokens"]:
        what = format_count(account["incomplete_documents"], "document")
        what += f" with {format_count(account['incomplete_tokens'], 'token')}"
        nodes.append(("incomplete", f"{what}: others of their units are removed or empty"))
    return nodes


def _counts(facts: dict[str, Any], unit: str, prefix: str = "") -> str:
    """So many rows or documents, and their tokens."""
    units = format_count(facts[f"{prefix}{unit}s"], unit)
    return f"{units}, {facts[f'{prefix}tokens']:,} tokens"


def _order_line(order: dict[str, Any]) -> str:
    strands = f" of {format_count(order['strands'], 'strand')}" if order["strands"] else ""
    blocks = (
        f", blocks of {format_count(order['block_rows'], 'row')}" if order["block_rows"] else ""
    )
    open_bytes = f", {in_bytes(order['open_bytes'])} open" if order["open_bytes"] else ""
    return f"{order['kind']}{strands}{blocks}{open_bytes}"


def _filter_line(counts: dict[str, int]) -> str:
    """Describes what a filter does.

    Example:
        >>> _filter_line(
        ...     dict(
        ...         listed_documents=5,
        ...         repeated_documents=1,
        ...         not_found_documents=1,
        ...         removed_documents=3,
        ...         removed_tokens=120,
        ...     )
        ... )
        'the filter lists 5 documents (1 repeated, 1 not found) and removes 3 with 120 tokens'
    """
    listed = format_count(counts["listed_documents"], "document")
    return (
        f"the filter lists {listed} ({counts['repeated_documents']:,} repeated,"
        f" {counts['not_found_documents']:,} not found) and removes {counts['removed_documents']:,}"
        f" with {counts['removed_tokens']:,} tokens"
    )
