"""``headrace inspect``: shows what is in a token cache, how far an unfinished one is and how to
finish it, how a config uses its tokens, and how far a run of rollouts is.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    CONFIG_SUFFIXES,
    ID_LEAF,
    AsJson,
    CacheOrConfig,
    Decoder,
    IdLeaf,
    Settings,
    refuse_typed,
)
from headrace.cli.shown import counting, figures_table, working
from headrace.errors import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config.lm_data import LmDataConfig
    from headrace.data.dataset import PlannedDataset
    from headrace.store.cache import TokenCache
    from headrace.store.ledger import Ledger

_SHOWN_MATCHES = 8
_OF_CACHE = ("samples", "document", "by_id", "id_leaf", "seed", "tokenizer", "remove")
_COUNTERS = (
    "text_bytes",
    "empty_documents",
    "skipped_lines",
    "trained_tokens",
    "untrained_documents",
)


def command(
    context: typer.Context,
    cache: CacheOrConfig,
    settings: Settings = None,
    samples: Annotated[int, typer.Option(help="Documents to show, drawn at random.", min=0)] = 3,
    document: Annotated[
        int | None, typer.Option(help="Show only this document, in full.", metavar="I")
    ] = None,
    by_id: Annotated[
        str | None, typer.Option("--id", help="Show only the documents with this id, in full.")
    ] = None,
    id_leaf: IdLeaf = ID_LEAF,
    seed: Annotated[int, typer.Option(help="Seed of the draw of samples.")] = 0,
    tokenizer: Decoder = None,
    remove: Annotated[
        str | None, typer.Option(help="Filter file: count what it would remove.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a token cache: sizes, lengths, frequent tokens, decoded samples. For a
    config, show how it uses its tokens. For a folder of rollouts, show its run, the run's progress,
    and whether the rollouts are complete.

    Samples show where documents begin and end, and which tokens are trained on, if the cache
    records it. In huge caches, lengths and tokens are sampled. Levanter's caches can be read too.

    For example:

        headrace inspect cache

        headrace inspect gs://bucket/cache --samples 0 --json

        headrace inspect cache --document 17

        headrace inspect cache --id https://example.org/a --id-leaf url

        headrace inspect levanter-cache/train --tokenizer llama3/

        headrace inspect cache --remove duplicates.txt

        headrace inspect run.yaml seq_len=4096

        headrace inspect run/rollouts
    """
    if _is_no_cache(context, cache, settings or [], as_json):
        return
    refuse_typed(context, ("settings",), "have no effect on a cache", "Leave them out.")
    from rich.console import Console
    from rich.text import Text

    from headrace.cli import inspect_show as show
    from headrace.cli.decoded import drawn, sample
    from headrace.data.documents import stored_documents
    from headrace.ingest.tokenize import cache_tokenizer
    from headrace.store.joined import open_cache
    from headrace.store.tombstones import removed_documents

    console = Console(highlight=False, soft_wrap=False)
    if (state := unfinished(cache)) is not None:
        typer.echo(json.dumps(state)) if as_json else show_unfinished(console, state)
        return
    opened = open_cache(cache)
    decoder = cache_tokenizer(opened, tokenizer)
    chosen = _chosen(opened, document, by_id, id_leaf, quiet=as_json)
    every = chosen is None
    there = stored_documents(opened, removed_documents(opened)).complement(opened.num_documents)
    numbers = drawn(there, samples, seed) if chosen is None else chosen[:_SHOWN_MATCHES]
    all_samples = [sample(opened, decoder, i, whole=not every) for i in numbers]
    removed = None if remove is None else removal(opened, remove)
    with working("reading lengths and tokens"):
        facts: dict[str, Any] = overview(opened) if every else {}
        lengths = show.length_statistics(opened) if every else None
        tokens = show.token_statistics(opened, decoder) if every else None
    if as_json:
        if lengths is not None and tokens is not None:
            facts |= {"lengths": asdict(lengths), "token_frequencies": asdict(tokens)}
        facts |= {} if removed is None else {"removal": removed}
        facts |= (
            {} if by_id is None else {"documents_with_id": opened.originals(chosen or []).tolist()}
        )
        typer.echo(
            json.dumps({**facts, "samples": [asdict(s) for s in all_samples]}, ensure_ascii=False)
        )
        return
    if lengths is not None and tokens is not None:
        show.show_overview(console, facts)
        show.show_lengths(console, lengths)
        show.show_tokens(console, tokens)
    if removed is not None:
        console.print(Text(removal_line(removed)), soft_wrap=True)
    show.show_samples(console, all_samples)
    if chosen is not None and len(chosen) > len(all_samples):
        console.print(
            Text(f"{len(chosen) - len(all_samples):,} more have this id (all with --json)", "dim")
        )


def _is_no_cache(context: typer.Context, path: str, settings: list[str], as_json: bool) -> bool:
    """Shows a config, or what another package knows (rollouts), if the path is one; returns whether
    it is.
    """
    from headrace import extensions
    from headrace.store.ledger import read_ledger

    if path.endswith(CONFIG_SUFFIXES):
        refuse_typed(
            context, _OF_CACHE, "has no effect on a config", "Name a cache, or leave it out."
        )
        inspect_run(path, settings, as_json)
        return True
    if read_ledger(path) is not None:
        return False
    inspectors = extensions.installed_names(extensions.INSPECTORS)
    loaded = (extensions.load_extension(extensions.INSPECTORS, name, "path") for name in inspectors)
    return any(inspector(path, as_json) for inspector in loaded)


def _chosen(
    cache: TokenCache, document: int | None, by_id: str | None, id_leaf: str, *, quiet: bool
) -> list[int] | None:
    """Positions of the documents requested by number or id; None if none was requested."""
    from headrace.cli.decoded import documents_with_id
    from headrace.errors import ConfigError

    if by_id is not None:
        if document is not None:
            raise ConfigError(
                "cannot be combined with --document",
                field="--id",
                value=by_id,
                cure="Give only one of them.",
            )
        with counting("searching", show=not quiet) as (expect, advance):
            expect(cache.num_documents)
            numbers = documents_with_id(cache, by_id, id_leaf, advance)
        if not numbers:
            raise ConfigError(
                f"no document of {cache.path} has this id",
                field="--id",
                value=by_id,
                cure=f"Give a complete id; headrace inspect {cache.path} shows some of leaf"
                f" {id_leaf!r}.",
            )
        return numbers
    if document is None:
        return None
    if not 0 <= document < cache.num_documents:
        raise ConfigError(
            f"is not a document of {cache.path}",
            field="--document",
            value=document,
            cure=f"Documents are numbered from 0 to {cache.num_documents - 1}.",
        )
    return cache.stored_at([document]).tolist()


def removal(cache: TokenCache, url: str) -> dict[str, int]:
    """Counts what a filter file would remove from a cache, including numbers that
    no document has.
    """
    from headrace.data.documents import DocumentFilter

    document_filter = DocumentFilter.load(url, name="--remove", count_not_found=True).of(cache)
    return {
        "listed_documents": document_filter.listed,
        "repeated_documents": document_filter.repeated,
        "not_found_documents": document_filter.not_found,
        "removed_documents": document_filter.num_documents,
        "removed_tokens": document_filter.num_tokens,
    }


def overview(cache: TokenCache) -> dict[str, Any]:
    """Sizes, layout, tokenizer and counters of a finished cache, as JSON values."""
    from headrace.cli.remove import removal_facts
    from headrace.ingest.build import unused_fields_of
    from headrace.store import files
    from headrace.store.document_ends import block_tokens_of
    from headrace.store.ledger import SHUFFLED

    ledger = cache.whole_ledger
    shuffled = ledger.metadata.get(SHUFFLED)
    sources = ledger.sources if shuffled is None else shuffled["sources"]
    source_bytes = {
        str(s.get("path")): int(s.get("size") or 0) for s in sources
    }  # slices record the size of the whole file
    return {
        "path": cache.path,
        "finished": True,
        "documents": cache.num_documents,
        "tokens": cache.num_tokens,
        "bytes_on_disk": files.tree_bytes(cache.path),
        **{name: sum(int(part.extra.get(name, 0)) for part in ledger.parts) for name in _COUNTERS},
        "unused_fields": unused_fields_of(ledger.parts),
        "parts": len(ledger.parts),
        "part_sizes": [
            {"name": p.name, "documents": p.documents, "tokens": p.tokens} for p in ledger.parts
        ],
        "leaves": [
            {**leaf, "values": cache.leaf(leaf["name"]).num_elements} for leaf in ledger.leaves
        ],
        "source_files": len(source_bytes),
        "source_bytes": sum(source_bytes.values()),
        "layout": ledger.layout,
        "tokenizer": ledger.tokenizer,
        "fingerprint": cache.fingerprint,
        "block_tokens": block_tokens_of(cache),
        "shuffled": shuffled and {key: shuffled[key] for key in ("seed", "unit", "fingerprint")},
        "tombstones": removal_facts(cache),
        **({"generations": _generations(cache)} if cache.members[1:] else {}),
    }


def _generations(cache: TokenCache) -> list[dict[str, Any]]:
    return [
        {"path": one.path, "documents": one.num_documents, "tokens": one.num_tokens}
        for one in cache.members
    ]


def unfinished(cache: str) -> dict[str, Any] | None:
    """The progress of an interrupted build, and the command that finishes it; None: nothing is
    unfinished.
    """
    from headrace.store.ledger import read_ledger, read_part_record

    ledger = read_ledger(cache)
    if ledger is None or ledger.finished:
        return None
    names = sorted({str(s["part"]) for s in ledger.sources})
    records = [r for name in names if (r := read_part_record(cache, name)) is not None]
    return {
        "path": cache,
        "finished": False,
        "parts": len(names),
        "parts_finished": len(records),
        "documents": sum(r.documents for r in records),
        "tokens": sum(r.tokens for r in records),
        "command": build_command(cache, ledger),
    }


def build_command(cache: str, ledger: Ledger) -> str:
    """The command that builds a cache, from its ledger."""
    from headrace.store.ledger import SHUFFLED

    shuffled = ledger.metadata.get(SHUFFLED, {})
    if shuffled.get("cache"):
        words = ["headrace", "reshuffle", shuffled["cache"], cache, "--seed", str(shuffled["seed"])]
        return shlex.join(
            [*words, "--unit", str(shuffled["unit"]), "--part-bytes", str(shuffled["part_bytes"])]
        )
    source = ledger.metadata["source"]
    layout = ledger.layout
    tokenizer = ledger.tokenizer
    words = [
        "headrace",
        "build",
        *ledger.metadata["paths"],
        "--output",
        cache,
        "--tokenizer",
        tokenizer["path"],
    ]
    words += ["--eos", tokenizer["eos"] or "none"]
    for flag, value, default in (
        ("--bos", tokenizer["bos"] or "none", "none"),
        ("--format", source["format"], "auto"),
        ("--text-field", source["text_field"], "text"),
        ("--on-bad-line", source["on_bad_line"], "error"),
        ("--max-record-bytes", str(source.get("max_record_bytes", 1 << 30)), str(1 << 30)),
        ("--special-tokens-in-text", source.get("special_tokens_in_text", "token"), "token"),
        ("--chunk-tokens", str(layout["chunk_elements"]), "65536"),
        ("--compression", layout["compression"], "none"),
        ("--kind", source["kind"], "auto"),
        ("--chat-template", source["chat"]["template"] or "", ""),
        ("--mask", source["chat"]["mask"], "generation"),
        ("--part-bytes", str(ledger.metadata["part_bytes"]), "67108864"),
    ):
        words += [flag, value] if value != default else []
    leaves = {
        name: f"{leaf['field']}:{leaf['dtype']}"
        + (
            f":token:{leaf['width']}"
            if "width" in leaf
            else ""
            if leaf["kind"] == "auto"
            else f":{leaf['kind']}"
        )
        for name, leaf in source["leaves"].items()
    }
    for flag, values in (
        ("--extension", source["extensions"]),
        ("--mask-role", source["chat"]["roles"] if source["chat"]["mask"] == "roles" else []),
        (
            "--chat-variable",
            [f"{name}={value}" for name, value in source["chat"].get("variables", {}).items()],
        ),
        ("--field", [f"{name}={field}" for name, field in source["fields"].items()]),
        ("--leaf", [f"{name}={text}" for name, text in leaves.items()]),
    ):
        words += [word for value in values for word in (flag, value)]
    if fim := source.get("fim"):
        words += [
            "--fim",
            fim["prefix"],
            fim["suffix"],
            fim["middle"],
            "--fim-rate",
            str(fim["rate"]),
        ]
        words += ["--fim-spm-rate", str(fim["spm_rate"]), "--fim-seed", str(fim["seed"])]
    words += ["--shuffle", str(shuffled["seed"])] if shuffled else []
    return shlex.join([*words, "--dtype", layout["dtype"]])


def show_unfinished(console: Console, state: dict[str, Any]) -> None:
    """Prints what :func:`unfinished` found."""
    from rich.text import Text

    parts = f": {state['parts_finished']:,} of {format_count(state['parts'], 'part')} done"
    title = ((state["path"], "bold"), (" is unfinished", "yellow"))
    parts += f", {format_count(state['documents'], 'document')}, {state['tokens']:,} tokens."
    console.print(Text.assemble(*title, parts))
    console.print(Text(f"To finish it: {state['command']}"), soft_wrap=True)


def inspect_run(path: str, settings: list[str], as_json: bool) -> None:
    """Prints how a config uses the tokens of its sources."""
    from rich.console import Console

    from headrace.config.lm_data import load_config

    facts = overview_of_run(load_config(path, settings))
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
    else:
        _show_run(Console(highlight=False), path, facts)


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


def removal_line(counts: dict[str, int]) -> str:
    """Describes what a filter does.

    Example:
        >>> removal_line(
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
