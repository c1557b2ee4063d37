"""``headrace cache reshuffle``: copies a cache with its documents in a shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.build import (
    EngineOption,
    MemoryOption,
    RepairOption,
    WorkersOption,
    cost_in_words,
    memory_bytes,
    repair_parts,
)
from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import AsJson, Format, cache_at, parse_attributes, parse_list
from headrace.cli.shown import say, say_json
from headrace.errors import ConfigError, command_line, format_count

if TYPE_CHECKING:
    from headrace.data.document_numbers import DocumentNumbers
    from headrace.ingest.reshuffle import MoveReport, ReshuffleReport
    from headrace.ingest.shuffle_plan import Grouping
    from headrace.store.cache import TokenCache


def command(
    cache: Annotated[
        str,
        typer.Argument(
            help="Folder or URL of the cache, headrace's or Levanter's.", metavar="CACHE"
        ),
    ],
    output: Annotated[
        str, typer.Argument(help="Folder or URL to write, new or empty.", metavar="OUTPUT")
    ],
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 0,
    unit: Annotated[
        int | None,
        typer.Option(
            help="Number of neighbouring documents that stay together; by default 2 for pairs,"
            " otherwise 1.",
            metavar="N",
        ),
    ] = None,
    split: Annotated[
        int | None,
        typer.Option(
            help="Cut documents at multiples of this many tokens, best those of a row, and shuffle"
            " the pieces: rows of one long document are then not neighbours.",
            metavar="TOKENS",
        ),
    ] = None,
    pack: Annotated[
        int | None,
        typer.Option(
            help="Write documents packed into rows of this many tokens, the seq_len of runs: they"
            " then need no plan, and no row lies in two chunks.",
            metavar="TOKENS",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Lay documents that are alike in this together: length, an attribute, a leaf or a"
            " .npy file with one number per document. Each value is a group, or say --edges or"
            " --quantiles.",
            metavar="NAME",
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(help="With --by: the numbers at which groups begin.", metavar="A,B,..."),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(help="With --by: the shares of documents below.", metavar="A,B,..."),
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            help="With --by: numbers of documents from tables (repeatable).",
            metavar="NAME=FILES[,SETTING=VALUE]...",
        ),
    ] = None,
    memory: MemoryOption = None,
    part_bytes: Annotated[
        int, typer.Option(help="Approximate stored bytes in a part.", metavar="BYTES")
    ] = 256 << 20,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cost, and do nothing.")
    ] = False,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="With --by: write only the documents that are in another group than in OUTPUT, as"
            " its next snapshot.",
        ),
    ] = False,
    repair: RepairOption = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete the contents of OUTPUT and start over.")
    ] = False,
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Copy a token cache with its documents shuffled, so that reading it block by block trains like
    a full shuffle.

    All leaves move with their documents. Filters and hold-outs still refer to documents by their
    numbers in CACHE. If it is interrupted, run the same command again to resume. The result is the
    same, bit for bit, for any memory, engine and workers.

    With `--by`, documents of a group lie together, shuffled among each other, as the buckets of a
    run need it: each bucket then reads chunks of its own. When their numbers have changed,
    `--update` moves those that are in another group now, and writes nothing else.

    For example:

        headrace cache reshuffle cache shuffled

        headrace cache reshuffle gs://b/cache gs://b/shuffled --seed 1 --memory 16GiB --engine ray

        headrace cache reshuffle levanter-cache/train shuffled --dry-run

        headrace cache reshuffle cache shuffled --split 4096

        headrace cache reshuffle cache packed --pack 4096

        headrace cache reshuffle cache grouped --by quality --edges 0.3,0.7

        headrace cache reshuffle cache grouped --by topic --attributes 'topic=topics/*.parquet'

        headrace cache reshuffle cache grouped --by topic --attributes topic=new.parquet --update
    """
    from headrace.ingest.part_builder import Work
    from headrace.ingest.reshuffle import as_copied, copy_shuffled, move_documents, stored_groups
    from headrace.ingest.shuffle_plan import ReshuffleConfig, sizes_of
    from headrace.store import files

    files.check_writable(output)
    source = as_copied(cache_at(cache, format), output)
    # a repair lays documents where they were, whatever has become of their numbers
    groups = stored_groups(source, output) if repair else None
    groups = groups or _grouping(source, by, edges, quantiles, attributes or [])
    how = ReshuffleConfig(seed, unit, memory_bytes(memory), part_bytes, split, groups, pack)
    work = Work(engine, workers)
    if update:
        _refuse_beside_update(groups, dry_run, repair)
        with kept_when_interrupted():
            moved = move_documents(source, output, how, work, restart=restart)
        say_json(moved.to_dict()) if as_json else say(_moved(moved))
        return
    sizes = sizes_of(source, how)
    if dry_run:
        say_json(sizes.cost.to_dict()) if as_json else say(cost_in_words(sizes.cost))
        return
    say(cost_in_words(sizes.cost), err=True)
    if repair:
        repair_parts(output)
    with kept_when_interrupted():
        report = copy_shuffled(sizes, output, work, restart=restart)
    say_json(report.to_dict()) if as_json else say(_summary(report, cache))


def _refuse_beside_update(groups: Grouping | None, dry_run: bool, repair: bool) -> None:
    """Raises ConfigError for what does not go with ``--update``."""
    if groups is None:
        raise _without_by("--update", True)
    if dry_run or repair:
        flag = "--dry-run" if dry_run else "--repair"
        cure = "Leave one of the two out."
        raise ConfigError("does not go with --update", field=flag, value=True, cure=cure)


def _without_by(flag: str, value: object) -> ConfigError:
    cure = "Say by what: --by NAME, or leave it out."
    return ConfigError("has no effect without --by", field=flag, value=value, cure=cure)


def _grouping(
    cache: TokenCache,
    by: str | None,
    edges: str | None,
    quantiles: str | None,
    attributes: Sequence[str],
) -> Grouping | None:
    """The groups of documents that options ask for; None: none.

    Raises:
        ConfigError: options that do not go together; numbers that there are not, or that make too
            many groups.
    """
    from headrace.data.buckets import BucketsConfig, buckets_of
    from headrace.data.document_numbers import DocumentNumbers
    from headrace.ingest.shuffle_plan import Grouping

    cuts = {"--edges": edges, "--quantiles": quantiles}
    options = [(flag, text) for flag, text in cuts.items() if text is not None]
    options += [("--attributes", text) for text in attributes]
    if by is None:
        if options:
            raise _without_by(*options[0])
        return None
    words = ["--by", by, *(word for option in options for word in option)]
    bounds = parse_list("--edges", edges, float, "0.3,0.7")
    shares = parse_list("--quantiles", quantiles, float, "0.3,0.7")
    try:
        numbers = DocumentNumbers(cache, parse_attributes(attributes))
        if bounds is None and shares is None:  # a group begins at each value but the least
            bounds = _values(numbers, by)[1:]
        config = BucketsConfig(by, edges=bounds, quantiles=shares)
        of_document = buckets_of(numbers, config, "reshuffle")
    except ConfigError as error:
        # named by a field, as in a config: here it is an option
        path = error.field or ""
        _, is_attribute, name = path.partition(".attributes.")
        option = f"--attributes {name}" if is_attribute else f"--{path.rpartition('.')[2]}"
        value = dict(options).get(option, error.value)
        raise error.but(field=option, value=value) from error
    return Grouping(of_document, tuple(words))


def _values(numbers: DocumentNumbers, by: str) -> list[float]:
    """The different values of a number of documents, ascending.

    Raises:
        ConfigError: there are more than can be groups, or only one.
    """
    import numpy as np

    from headrace.data.buckets import MOST_BUCKETS

    values = np.zeros(0)
    for chunk in numbers.chunks(by, "by"):
        values = np.union1d(values, chunk)
        if values.size > MOST_BUCKETS:
            problem = f"has more than {MOST_BUCKETS} different values"
            cure = "Say where to cut: --edges 0.3,0.7, or --quantiles 0.25,0.5,0.75."
            raise ConfigError(problem, field="by", value=by, cure=cure)
    if values.size < 2:
        cure = "Leave --by out, or name another number."
        raise ConfigError("is the same for all", field="by", value=by, cure=cure)
    return values.tolist()


def _moved(report: MoveReport) -> str:
    of = f"of {format_count(report.documents, 'document')}"
    if not report.moved:
        return f"{report.path}: none {of} is in another group; snapshot {report.snapshot} stays."
    return (
        f"{report.path}: {report.moved:,} {of} moved, {report.tokens:,} tokens, in"
        f" {report.seconds:.1f} s.\nNew runs use snapshot {report.snapshot}; those that have begun"
        " stay with theirs."
    )


def _summary(report: ReshuffleReport, cache: str) -> str:
    cut = f" in {report.pieces:,} pieces" if report.pieces > report.documents else ""
    what = f"{format_count(report.documents, 'document')}{cut}, {report.tokens:,} tokens"
    if not report.parts_built:
        return f"{report.path} is already finished: {what}, shuffled with seed {report.seed}."
    reused = f"; {report.parts_reused:,} were already there" if report.parts_reused else ""
    return (
        f"Shuffled {cache} with seed {report.seed}: {report.path}, {what},"
        f" {format_count(report.parts_built, 'part')} in {report.seconds:.1f} s{reused}.\n"
        f"Next: {command_line('cache inspect', report.path)}"
    )
