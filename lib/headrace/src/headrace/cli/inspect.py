"""``headrace cache inspect``: shows what is in a token cache, how far an unfinished one is and how
to finish it, how similar its rows are, and how far a run of rollouts is.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    ID_LEAF,
    AsJson,
    Decoder,
    Format,
    IdLeaf,
    cache_at,
    parse_attributes,
    refuse_typed,
)
from headrace.cli.shown import counting, figures_table, say, say_json, terminal, working
from headrace.config.writing import CONFIG_SUFFIXES
from headrace.errors import ConfigError, command_line, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.analysis.probe import ShuffleProbe
    from headrace.store.cache import TokenCache
    from headrace.store.ledger import Ledger

_SHOWN_MATCHES = 8
_OF_ICC = ("seq_len", "batch_size", "block", "blocks", "losses", "save")
_OF_CONTENT = (
    "samples",
    "document",
    "by_id",
    "id_leaf",
    "seed",
    "tokenizer",
    "attributes",
)
_COUNTERS = (
    "text_bytes",
    "empty_documents",
    "skipped_lines",
    "trained_tokens",
    "untrained_documents",
)


def command(
    context: typer.Context,
    cache: Annotated[
        str,
        typer.Argument(help="Folder or URL of a cache or of rollouts.", metavar="CACHE|ROLLOUTS"),
    ],
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
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            help="Numbers of documents from tables: join them, and show their values (repeatable).",
            metavar="NAME=FILES[,SETTING=VALUE]...",
        ),
    ] = None,
    icc: Annotated[
        bool,
        typer.Option(
            "--icc", help="Measure instead how similar neighbouring rows are (see above)."
        ),
    ] = False,
    seq_len: Annotated[int, typer.Option(help="With --icc: tokens in a row.")] = 2048,
    batch_size: Annotated[int, typer.Option(help="With --icc: rows in a batch.")] = 512,
    block: Annotated[
        int | None, typer.Option(help="With --icc: rows in a block; by default one stored chunk.")
    ] = None,
    blocks: Annotated[int, typer.Option(help="With --icc: most blocks to read.")] = 4096,
    losses: Annotated[
        str | None,
        typer.Option(
            help="With --icc: .npy file with the loss of each row, from your own model.",
            metavar="FILE",
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="With --icc: save the result in the cache, for forecasts."),
    ] = False,
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Show what is in a token cache: sizes, lengths, frequent tokens, decoded samples. For a folder
    of rollouts, show its run, the run's progress, and whether the rollouts are complete.

    Samples show where documents begin and end, and which tokens are trained on, if the cache
    records it. In huge caches, lengths and tokens are sampled. Levanter's caches and the token
    files of other systems can be read too; what their format cannot promise is shown.

    With `--icc`, it measures whether a corpus needs shuffling: the share of the variance of losses
    that lies between blocks (the intraclass correlation), and how noisy each order's batches are
    for it. After `--save`, checks, forecasts and reports of runs say what an order costs in loss.

    For example:

        headrace cache inspect cache

        headrace cache inspect gs://bucket/cache --samples 0 --json

        headrace cache inspect cache --document 17

        headrace cache inspect cache --id https://example.org/a --id-leaf url

        headrace cache inspect levanter-cache/train --tokenizer llama3/

        headrace cache inspect megatron/web_text_document

        headrace cache inspect cache --attributes 'quality=scores/*.parquet'

        headrace cache inspect run/rollouts

        headrace cache inspect caches/code --icc --save

        headrace cache inspect caches/code --icc --seq-len 4096 --losses losses.npy
    """
    if _is_no_cache(cache, as_json):
        return
    if icc:
        refuse_typed(context, _OF_CONTENT, "has no effect with --icc")
        probe = _probed(cache_at(cache), seq_len, batch_size, block, blocks, losses, save)
        say_json(probe.to_dict()) if as_json else _show_probe(probe)
        return
    refuse_typed(context, _OF_ICC, "has no effect without --icc", "Add --icc, or leave it out.")
    from headrace.cli import inspect_show as show
    from headrace.cli.decoded import sample, say_undecoded
    from headrace.ingest.tokenize import cache_tokenizer

    console = terminal()
    if (state := _unfinished(cache)) is not None:
        say_json(state) if as_json else _show_unfinished(console, state)
        return
    opened = cache_at(cache, format)
    decoder = cache_tokenizer(opened, tokenizer)
    # None unless documents were asked for: then some samples, and what is said of the whole cache
    chosen = _chosen(opened, document, by_id, id_leaf, quiet=as_json)
    numbers = _drawn(opened, samples, seed) if chosen is None else chosen[:_SHOWN_MATCHES]
    all_samples = [sample(opened, decoder, i, whole=chosen is not None) for i in numbers]
    statistics = [
        show.attribute_statistics(opened, name, config)
        for name, config in parse_attributes(attributes).items()
    ]
    facts: dict[str, Any] = {}
    if chosen is None:
        with working("reading lengths and tokens"):
            facts = _overview(opened)
            lengths = show.length_statistics(opened)
            tokens = show.token_statistics(opened, decoder)
        if not as_json:
            show.show_overview(console, facts)
            show.show_lengths(console, lengths)
            show.show_tokens(console, tokens)
        facts |= {"lengths": asdict(lengths), "token_frequencies": asdict(tokens)}
    if as_json:
        if statistics:
            facts["attributes"] = list(map(asdict, statistics))
        if by_id is not None:
            facts["documents_with_id"] = [*dict.fromkeys(opened.originals(chosen or []).tolist())]
        say_json({**facts, "samples": [asdict(s) for s in all_samples]})
        return
    show.show_attributes(console, statistics)
    show.show_samples(console, all_samples)
    say_undecoded(opened, decoder)
    if chosen is not None and len(chosen) > len(all_samples):
        more = len(chosen) - len(all_samples)
        console.print(f"{more:,} more have this id (all with --json)", style="dim")


def _is_no_cache(path: str, as_json: bool) -> bool:
    """Shows what another package knows (rollouts), if the path is one; returns whether it is."""
    from headrace import extensions
    from headrace.store.ledger import ledger_state

    if path.endswith(CONFIG_SUFFIXES):
        cure = f"Type: {command_line('run tree', path)}"
        raise ConfigError("is a config, not a cache", field="CACHE", value=path, cure=cure)
    if ledger_state(path) is not None:
        return False
    inspectors = extensions.installed_names(extensions.INSPECTORS)
    loaded = (extensions.load_extension(extensions.INSPECTORS, name, "path") for name in inspectors)
    return any(inspector(path, as_json) for inspector in loaded)


def _drawn(cache: TokenCache, samples: int, seed: int) -> list[int]:
    """Positions of some documents, drawn at random."""
    from headrace.cli.decoded import drawn
    from headrace.data.documents import places_in_use
    from headrace.store.layouts import WHOLE_FILES

    if cache.ledger.metadata.get(WHOLE_FILES):  # a sample would be all of a file
        return []
    return drawn(places_in_use(cache), samples, seed)


def _chosen(
    cache: TokenCache, document: int | None, by_id: str | None, id_leaf: str, *, quiet: bool
) -> list[int] | None:
    """Positions of the documents requested by number or id; None if none was requested."""
    from headrace.cli.decoded import documents_with_ids

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
            numbers = documents_with_ids(cache, [by_id], id_leaf, advance).get(by_id)
        if not numbers:
            raise ConfigError(
                f"no document of {cache.path} has this id",
                field="--id",
                value=by_id,
                cure=f"Give a complete id; some of leaf {id_leaf!r} are shown by:"
                f" {command_line('cache inspect', cache.path)}",
            )
        return cache.stored_at([*dict.fromkeys(cache.originals(numbers).tolist())]).tolist()
    if document is None:
        return None
    if not 0 <= document < cache.num_originals:
        raise ConfigError(
            f"is not a document of {cache.path}",
            field="--document",
            value=document,
            cure=f"Documents are numbered from 0 to {cache.num_originals - 1}.",
        )
    return cache.stored_at([document]).tolist()


def _overview(cache: TokenCache) -> dict[str, Any]:
    """Sizes, layout, tokenizer and counters of a finished cache, as JSON values."""
    from headrace.cli.inspect_show import trained_share
    from headrace.cli.snapshots import snapshot_facts
    from headrace.ingest.build import unused_fields_of
    from headrace.store import files
    from headrace.store.layouts import FORMAT, LIMITS
    from headrace.store.ledger import SHUFFLED, summed

    ledger = cache.whole_ledger
    counts = summed(part.extra for part in ledger.parts)
    counters = {name: counts.get(name, 0) for name in _COUNTERS}
    shuffled = ledger.metadata.get(SHUFFLED)
    sources = ledger.sources if shuffled is None else shuffled["sources"]
    # each slice of a file records the size of the whole file: by path, it counts once
    source_bytes = {str(s.get("path")): int(s.get("size") or 0) for s in sources}
    other = ledger.metadata.get(FORMAT)
    stored_bytes = sum(source_bytes.values())
    bytes_on_disk: int | None = stored_bytes
    if other is None:
        bytes_on_disk = None if files.is_web(cache.path) else files.tree_bytes(cache.path)
    return {
        "path": cache.path,
        "finished": True,
        "documents": cache.num_originals,
        "tokens": cache.original_tokens,
        "format": other,
        "limits": ledger.metadata.get(LIMITS, []),
        "bytes_on_disk": bytes_on_disk,  # None: a web server lists no files
        **counters,
        "trained_share": None if counters["trained_tokens"] else trained_share(cache),
        "unused_fields": unused_fields_of(counts),
        "parts": len(ledger.parts),
        "part_sizes": [
            {"name": p.name, "documents": p.documents, "tokens": p.tokens} for p in ledger.parts
        ],
        "leaves": [
            {**leaf, "values": cache.leaf(leaf["name"]).num_elements} for leaf in ledger.leaves
        ],
        "source_files": len(source_bytes),
        "source_bytes": stored_bytes,
        "layout": ledger.layout,
        "tokenizer": ledger.tokenizer,
        "fingerprint": cache.fingerprint,
        "block_tokens": cache.block_tokens,
        "shuffled": shuffled
        and {
            key: shuffled[key]
            for key in ("seed", "unit", "fingerprint", "split", "pack", "padding", "groups", "by")
            if key in shuffled
        },
        **snapshot_facts(cache),
    }


def _unfinished(cache: str) -> dict[str, Any] | None:
    """The progress of an interrupted build, and the command that finishes it; None: nothing is
    unfinished.
    """
    from headrace.store.ledger import ledger_state, read_part_record, whole_ledger

    state = ledger_state(cache)
    if state is None or state.finished:
        return None
    ledger = state.ledger or whole_ledger(cache)
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
    """The command that builds a cache, from its ledger; of one where nothing can be written, its
    original or a copy.
    """
    from headrace.cli import build
    from headrace.ingest.records import LeafConfig
    from headrace.store.ledger import SHUFFLED
    from headrace.store.location import Location

    shuffled = ledger.metadata.get(SHUFFLED, {})
    if shuffled.get("cache"):
        return _reshuffle_command(cache, shuffled)
    source = ledger.metadata["source"]
    chat = source["chat"]
    fim = source.get("fim") or {}
    layout = ledger.layout
    tokenizer = ledger.tokenizer
    options = {
        "output": Location.parse(cache).writable,
        "tokenizer": tokenizer["path"],
        "eos": tokenizer["eos"] or "none",
        "bos": tokenizer["bos"] or "none",
        "format": source["format"],
        "text_field": source["text_field"],
        "on_bad_line": source["on_bad_line"],
        "max_record_bytes": source.get("max_record_bytes"),
        "special_tokens_in_text": source.get("special_tokens_in_text"),
        "chunk_tokens": layout["chunk_elements"],
        "compression": layout["compression"],
        "kind": source["kind"],
        "chat_template": chat["template"],
        "mask": chat["mask"],
        "part_bytes": ledger.metadata["part_bytes"],
        "extension": source["extensions"],
        "mask_role": chat["roles"] if chat["mask"] == "roles" else None,
        "chat_variable": [f"{name}={value}" for name, value in chat.get("variables", {}).items()],
        "field": [f"{name}={field}" for name, field in source["fields"].items()],
        "leaf": [LeafConfig(**leaf).typed(name) for name, leaf in source["leaves"].items()],
        "fim": [(fim["prefix"], fim["suffix"], fim["middle"])] if fim else None,
        "fim_rate": fim.get("rate"),
        "fim_spm_rate": fim.get("spm_rate"),
        "fim_seed": fim.get("seed"),
        "shuffle": shuffled.get("seed"),
        "dtype": layout["dtype"],
    }
    defaults = signature(build.command).parameters
    chosen = {name: value for name, value in options.items() if value != defaults[name].default}
    return command_line("build", *ledger.metadata["paths"], **chosen)


def _reshuffle_command(cache: str, shuffled: dict[str, Any]) -> str:
    """The command that made a copy, from what its ledger says of it; of documents that moved into
    other groups, the update of their store until it lists them, and then their repair alone.
    """
    from headrace.store.location import Location
    from headrace.store.snapshots import cache_of_member, is_listed

    is_update = shuffled.get("moved", False) and not is_listed(cache)
    store = cache_of_member(cache) if is_update else cache
    flags = ["seed", "unit", "part_bytes", "pack" if "pack" in shuffled else "split", "format"]
    options = {flag: shuffled.get(flag) for flag in flags}
    output = Location.parse(store).writable
    words = [command_line("cache reshuffle", shuffled["cache"], output, **options)]
    words += map(shlex.quote, shuffled.get("by", []))
    if shuffled.get("moved"):
        words.append("--update" if is_update else "--repair")
    return " ".join(words)


def _show_unfinished(console: Console, state: dict[str, Any]) -> None:
    """Prints what :func:`_unfinished` found."""
    from rich.text import Text

    from headrace.store.location import Location

    parts = f": {state['parts_finished']:,} of {format_count(state['parts'], 'part')} done"
    title = ((state["path"], "bold"), (" is unfinished", "yellow"))
    parts += f", {format_count(state['documents'], 'document')}, {state['tokens']:,} tokens."
    console.print(Text.assemble(*title, parts))
    command = state["command"] + Location.parse(state["path"]).about_writable
    console.print(f"To finish it: {command}", soft_wrap=True)


def _probed(
    cache: TokenCache,
    seq_len: int,
    batch_size: int,
    block: int | None,
    blocks: int,
    losses: str | None,
    save: bool,
) -> ShuffleProbe:
    """How similar neighbouring rows are, by the losses in a file if one is named; and saves it if
    that was asked for.
    """
    from headrace.analysis.probe import probe_cache, save_probe
    from headrace.data.filter_files import read_npy

    values = None
    if losses is not None:
        cure = "Write it with numpy.save(FILE, losses), one loss per row."
        values = read_npy(Path(losses), "--losses", losses, cure)
    with working("reading blocks"):
        probe = probe_cache(
            cache, seq_len, batch_size=batch_size, block=block, losses=values, max_blocks=blocks
        )
    if save:
        say(f"saved: {save_probe(cache, seq_len, probe)}", err=True)
    return probe


def _show_probe(probe: ShuffleProbe) -> None:
    """Prints the result of a probe."""
    console = terminal()
    console.print(
        f"{probe.rows:,} of {probe.of_rows:,} rows, blocks of {probe.block} rows, by {probe.value}"
    )
    console.print(f"{probe.icc:.1%} of the variance lies between blocks\n")
    table = figures_table(
        "order", f"noise of a batch of {format_count(probe.batch_size, 'row')}, full shuffle = 1"
    )
    for order, noise in probe.noise.items():
        table.add_row(order, f"{noise:.2f}")
    console.print(table)
    needs = (
        "needs shuffling"
        if probe.needs_shuffling
        else "can be read in stored order, by this measure"
    )
    console.print(f"\nThis corpus {needs}.")
