"""``build_cache``: from source files to a finished token cache; interrupted at any moment, continued by the same call.

What lies on disk decides what is left to do, and nothing else::

    ledger.json, finished: false   written first: the plan (which file goes into which part), tokenizer, layout
    tokenizer.json                 a copy of the tokenizer's file, so that the cache can be decoded anywhere
    parts/00000/...  part.json     one folder a part; its record is its last write
    ledger.json, finished: true    written last: the same, with the table of parts

The invariant: whatever was killed, however often, the finished folder is the same, bit for bit, as that of one
uninterrupted build, whatever engine built it with however many workers. A setting that would change it (tokenizer,
special tokens, layout, files) is refused on a folder that was started with another, with the difference shown. So is a
source file that changed after its part was built; one that changed before is read as it is now. One builder at a time
works on a folder (:mod:`headrace.store.lease`).

Price of resuming: one small read a part, and what was done of one part (64 MiB of text) is done again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.errors import CacheError, ConfigError, SourceError, redact
from headrace.ingest.chat_template import find_template
from headrace.ingest.documents import with_mask_settled
from headrace.ingest.engine import BuildJob
from headrace.ingest.engines import Engine, check_engine, run_on
from headrace.ingest.kinds import LOSS_MASK, NEEDS_TEMPLATE, make_kind
from headrace.ingest.plan import DEFAULT_PART_BYTES, PartTask, plan_parts, source_records, tasks_from_records
from headrace.ingest.progress import show_progress
from headrace.ingest.readers.registry import described, split_file
from headrace.ingest.resume import changed_sources, check_same_build
from headrace.ingest.same_tokenizer import FILE_NAME
from headrace.ingest.schedule import ATTEMPTS_FOLDER
from headrace.ingest.source import Kind, SourceConfig, SourceFile
from headrace.ingest.source_hash import content_hashes, with_hashes
from headrace.ingest.tokenize import Tokenizer, TokenizerConfig, load_tokenizer, tokenizer_folder
from headrace.store import files
from headrace.store.layout import DEFAULT_CHUNK, DEFAULT_SHARD_CHUNKS, CacheLayout, Compression
from headrace.store.lease import Lease, is_lease, lease
from headrace.store.ledger import (
    LEDGER_NAME,
    PART_RECORD_NAME,
    Ledger,
    PartRecord,
    part_folder,
    read_ledger,
    read_part_record,
    write_ledger,
)
from headrace.store.wire import Wire, wire

INGEST_VERSION = 3
"""Changes when the same input would give other tokens or another layout: a build is not resumed across it."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did.

    Attributes:
        path: The cache.
        documents: Documents in the cache. Empty ones are kept (they consist of their special tokens alone).
        tokens: Tokens in the cache, special tokens included.
        text_bytes: Bytes of text (UTF-8) that they stand for.
        skipped_lines: Bad lines left out (``on_bad_line="skip"``).
        first_skipped: Where and why the first of them.
        empty_documents: How many documents have no text.
        ignored_records: Records of a crawl that hold no plain text, by their type.
        trained_tokens: Tokens that are trained on, by their mask; None if documents have none.
        untrained_documents: Documents with a mask none of whose tokens is trained on. They are kept.
        parts_built: Parts that this call built.
        parts_reused: Parts that were there already.
        tokens_built: Tokens of the parts that this call built.
        bytes_built: Bytes of text of the parts that this call built.
        requests: Requests over HTTP that this call took, its workers' included: listing, reading, writing; 0 if all
            lies here. (Of this process whatever it did meanwhile; not those of workers that were lost.)
        failed_requests: Those among them that a store did not answer, or with 408, 429 or 5xx; all were repeated.
        seconds: Time of this call.
        left_out_files: Files in the given folders that are of no format that is taken from them, by their endings.
    """

    path: str
    documents: int
    tokens: int
    text_bytes: int
    skipped_lines: int
    first_skipped: str
    empty_documents: int
    ignored_records: dict[str, int]
    trained_tokens: int | None
    untrained_documents: int
    parts_built: int
    parts_reused: int
    tokens_built: int
    bytes_built: int
    requests: int
    failed_requests: int
    seconds: float
    left_out_files: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def build_cache(
    source: SourceConfig,
    tokenizer: TokenizerConfig,
    output: str,
    *,
    dtype: str | None = None,
    chunk_tokens: int = DEFAULT_CHUNK,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    compression: Compression = "none",
    part_bytes: int = DEFAULT_PART_BYTES,
    engine: Engine = "auto",
    workers: int | None = None,
    hash_sources: bool = False,
    restart: bool = False,
    progress: bool = True,
) -> BuildReport:
    """Builds a token cache, or finishes one that was begun with the same arguments.

    Args:
        source: Where the documents come from.
        tokenizer: How they become ids.
        output: Folder or URL of the cache.
        dtype: Name of the stored dtype; the narrowest that holds the vocabulary if None.
        chunk_tokens: Tokens in a chunk, the unit of reading.
        shard_chunks: Chunks in a file.
        compression: ``none`` or ``zstd``.
        part_bytes: Source bytes in a part, the unit of work and of resuming.
        engine: Who builds the parts: ``pool``, worker processes of this machine; ``inline``, this process; ``ray``, a
            Ray cluster (``RAY_ADDRESS``, or one started here); ``auto``, a pool unless there is too little to do. No
            effect on the result.
        workers: How many at once; as many as there are cores and memory for if None. No effect on the result.
        hash_sources: Keep a hash of each source file in the ledger, and tell by it whether a file has changed.
        restart: Delete what is there and begin anew.
        progress: Show a bar, if stderr is a terminal.

    Returns:
        What was done. If the cache is finished already, nothing was, and ``parts_built`` is 0.

    Raises:
        SourceError: the source is missing, empty, unreadable, bad in a line, or changed.
        ConfigError: a setting is not usable, or is not the one that the folder was begun with.
        CacheError: the output cannot be written, holds something else, or is being built by another process.
    """
    began, before = time.monotonic(), wire()
    output = str(output)
    if output.startswith(("http://", "https://")):
        raise ConfigError(
            "can be read from, not written to", field="output", value=output, cure="Use a local path, gs:// or s3://."
        )
    check_engine(engine, workers)
    loaded = load_tokenizer(tokenizer)
    layout = CacheLayout(dtype or loaded.dtype.name, chunk_tokens, shard_chunks, compression)
    layout.check_vocabulary(loaded.vocab_size)
    left_out: Counter[str] = Counter()
    listed = [described(f) for f in source.files(left_out)]
    kind = source.kind_of(listed)
    source = with_mask_settled(source, kind, listed)
    template = _template(source, kind, tokenizer)
    leaves = [spec.to_json() for spec in make_kind(source, kind, loaded, template).specs]
    tasks = plan_parts(listed, part_bytes, split_file)
    wanted = _planned(source, loaded, layout, part_bytes, tasks, leaves, template)
    if hash_sources:
        wanted = replace(wanted, sources=with_hashes(wanted.sources, content_hashes(listed)))
    work = _Work(source, {f.shown_path: f for f in listed}, loaded, output, kind, template, engine, workers)
    try:
        begun = read_ledger(output)
        if begun is None:
            _check_vacant(output)
        with lease(output) as held:
            done = _build(work, wanted, restart, progress, held)
    except OSError as error:  # sources raise SourceError, so this is the output
        raise CacheError(
            f"cannot be written ({error.strerror or error})",
            field="output",
            value=output,
            cure="Check permissions and free space, then run the same command again: finished parts are kept.",
        ) from error
    spent = sum(work.sent, wire() - before)
    took = time.monotonic() - began
    others = dict(sorted(left_out.items()))
    return replace(done, requests=spent.requests, failed_requests=spent.failed, seconds=took, left_out_files=others)


@dataclass(frozen=True)
class _Work:
    """What a build has in hand, besides what its ledger says; ``sent``: the requests of its workers."""

    source: SourceConfig
    listed: dict[str, SourceFile]
    tokenizer: Tokenizer
    output: str
    kind: Kind
    template: dict[str, Any] | None
    engine: Engine
    workers: int | None
    sent: list[Wire] = field(default_factory=list[Wire])


def _template(source: SourceConfig, kind: Kind, tokenizer: TokenizerConfig) -> dict[str, Any] | None:
    """The chat template, where one is needed; prompts and pairs may be plain texts, which need none."""
    if kind not in NEEDS_TEMPLATE:
        return None
    try:
        return find_template(source.chat, tokenizer_folder(tokenizer))
    except ConfigError:
        if kind == "chat" or source.chat.template is not None:
            raise
        return None


def _planned(
    source: SourceConfig,
    tokenizer: Tokenizer,
    layout: CacheLayout,
    part_bytes: int,
    tasks: Sequence[PartTask],
    leaves: list[dict[str, Any]],
    template: dict[str, Any] | None,
) -> Ledger:
    settings = {k: v for k, v in asdict(source).items() if k != "paths"}
    return Ledger(
        finished=False,
        tokenizer=tokenizer.record(),
        layout=layout.to_json(),
        sources=source_records(tasks),
        leaves=leaves,
        metadata={
            "paths": [redact(str(p)) for p in source.paths],
            "source": settings,
            "template": template,
            "part_bytes": part_bytes,
            "ingest_version": INGEST_VERSION,
        },
    )


def _build(work: _Work, wanted: Ledger, restart: bool, progress: bool, held: Lease) -> BuildReport:
    output = work.output
    begun = read_ledger(output)
    if files.is_local(output):  # what a kill within an atomic write left; object stores have no such thing
        for name in (LEDGER_NAME, FILE_NAME):
            left = files.join(output, f"{name}.tmp")
            if files.exists(left):
                files.remove_tree(left)
    if begun is not None and restart:
        _clear(output, begun)
        begun = None
    if files.exists(files.join(output, ATTEMPTS_FOLDER)):  # a builder was killed while a part was built twice
        files.remove_tree(files.join(output, ATTEMPTS_FOLDER))
    ledger, tasks, done = _begin(output, wanted, begun, work.listed)
    content = work.tokenizer.content
    if content is not None and not files.exists(files.join(output, FILE_NAME)):
        files.write_atomic(files.join(output, FILE_NAME), content)
    job = BuildJob(output, work.source, ledger.tokenizer, CacheLayout(**ledger.layout), work.kind, work.template)
    missing = [t for t in tasks if t.name not in done]
    built: dict[str, PartRecord] = {}
    with (
        show_progress(missing, progress) as report,
        closing(
            run_on(work.engine, job, missing, work.tokenizer, report, work.workers, work.sent.append)
        ) as finished_parts,
    ):
        for record in finished_parts:
            built[record.name] = record
            held.check()
    records = [built.get(t.name) or done[t.name] for t in tasks]
    result = _report(output, records, built)
    if result.documents == 0:
        why = (
            f"; {result.skipped_lines} lines were skipped, first: {result.first_skipped}"
            if result.skipped_lines
            else ""
        )
        if result.ignored_records:
            why += "; of no text are " + ", ".join(f"{n} {what}" for what, n in result.ignored_records.items())
        raise SourceError(
            f"is an empty source: it holds no documents{why}",
            field=", ".join(ledger.metadata["paths"]),
            cure="Check paths, format and text field, then build with --restart.",
        )
    if result.trained_tokens == 0:
        raise SourceError(
            f"trains on nothing: of {result.documents:,} documents no token is marked",
            field=", ".join(ledger.metadata["paths"]),
            cure="Check --mask and --mask-role against the roles of messages (or the loss_mask of records), then build"
            " with --restart.",
        )
    if not ledger.finished:
        write_ledger(output, ledger.complete(records))
    return result


def _begin(
    output: str, wanted: Ledger, begun: Ledger | None, listed: dict[str, SourceFile]
) -> tuple[Ledger, list[PartTask], dict[str, PartRecord]]:
    """The ledger to work on, its plan, and the parts that are complete already."""
    if begun is None:
        write_ledger(output, wanted)
        return wanted, tasks_from_records(wanted.sources, listed), {}
    check_same_build(output, begun, wanted)
    names = sorted({str(s["part"]) for s in begun.sources})
    done = {name: record for name in names if (record := read_part_record(output, name)) is not None}
    sources = changed_sources(output, begun.sources, wanted.sources, done)
    ledger = begun
    if sources != begun.sources or (begun.finished and len(done) < len(names)):
        ledger = replace(begun, finished=False, parts=[], sources=sources)
        write_ledger(output, ledger)
    return ledger, tasks_from_records(sources, listed), done


def _check_vacant(output: str) -> None:
    """Nothing of anybody else's is ever mixed up with a cache, or deleted."""
    # The ledger is the first write; a build killed within it leaves its temporary file, or an empty folder.
    others = [name for name in _names_in(output) if name != f"{LEDGER_NAME}.tmp" and not is_lease(name)]
    if others:
        raise CacheError(
            f"holds other things than a token cache ({', '.join(others[:4])}{', ...' if len(others) > 4 else ''})",
            field="output",
            value=output,
            cure="Choose a folder that is new or empty.",
        )


def _names_in(output: str) -> list[str]:
    fs, path = files.filesystem(output)
    if not fs.exists(path):
        return []
    if not fs.isdir(path):
        raise CacheError("is a file", field="output", value=output, cure="Choose a folder that is new or empty.")
    return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in fs.ls(path, detail=False))


def _clear(output: str, begun: Ledger) -> None:
    """Deletes a cache, ledger last: killed within it, what is left is an unfinished cache, not a broken one."""
    if begun.finished:
        write_ledger(output, replace(begun, finished=False, parts=[]))
    for name in {str(s["part"]) for s in begun.sources}:  # a part without its record is never taken for complete
        files.remove_tree(files.join(part_folder(output, name), PART_RECORD_NAME))
    files.remove_tree(files.join(output, "parts"))
    for name in (ATTEMPTS_FOLDER, FILE_NAME, LEDGER_NAME):
        files.remove_tree(files.join(output, name))


def _report(output: str, records: Sequence[PartRecord], built: dict[str, PartRecord]) -> BuildReport:
    """What was done, but for what it took."""

    def total(key: str) -> int:
        return sum(int(r.extra.get(key, 0)) for r in records)

    ignored: Counter[str] = Counter()
    for record in records:
        ignored.update(record.extra["ignored"])
    return BuildReport(
        path=output,
        documents=sum(r.documents for r in records),
        tokens=sum(r.tokens for r in records),
        text_bytes=total("text_bytes"),
        skipped_lines=total("skipped_lines"),
        first_skipped=next((str(r.extra["first_skipped"]) for r in records if r.extra["first_skipped"]), ""),
        empty_documents=total("empty_documents"),
        ignored_records=dict(sorted(ignored.items())),
        trained_tokens=total("trained_tokens") if any(LOSS_MASK.name in r.leaves for r in records) else None,
        untrained_documents=total("untrained_documents"),
        parts_built=len(built),
        parts_reused=len(records) - len(built),
        tokens_built=sum(r.tokens for r in built.values()),
        bytes_built=sum(int(r.extra["text_bytes"]) for r in built.values()),
        requests=0,
        failed_requests=0,
        seconds=0.0,
    )
