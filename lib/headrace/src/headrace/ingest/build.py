"""``build_cache``: from source files to a finished token cache; interrupted at any moment,
continued by the same call.

Only the files on disk determine what is left to do::

    ledger.json, finished: false   written first: the plan (which file goes into which part),
                                   tokenizer, layout
    tokenizer.json                 a copy of the tokenizer's file, so that the cache can be
                                   decoded anywhere
    parts/00000/...  part.json     one folder a part; its record is its last write
    ledger.json, finished: true    written last: the same, with the table of parts

Invariant: whatever was killed, however often, the finished folder is bit-identical to that of one
uninterrupted build, on any engine and with any number of workers. A setting that would change it
(tokenizer, special tokens, layout, files) is refused for a folder that was started with another,
and the error shows the difference. So is a source file that changed after its part was built; one
that changed before is read in its current state. One builder at a time works on a folder
(:mod:`headrace.store.lease`).

Price of resuming: one small read per part, and repeating the work on one part (64 MiB of text).

A build that also shuffles makes the same parts as building and then shuffling (``how``): the plain
cache is built in ``unshuffled/`` in the output folder, shuffled into the output
(:mod:`headrace.ingest.reshuffle`), and deleted. Each of the three steps can be resumed. Price: on
the output's disk, temporarily three times the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import structs

from headrace.errors import (
    ConfigError,
    SourceError,
    check_at_least,
    check_path,
    check_whole,
    format_count,
    redact,
)
from headrace.ingest.choices import Engine, TokenizerEngine
from headrace.ingest.documents import LOSS_MASK, split_file
from headrace.ingest.first_look import Input, refuse_faults
from headrace.ingest.part_builder import (
    DEFAULT_PART_BYTES,
    BuildJob,
    PartTask,
    Work,
    check_tokenizer_engine,
    plan_encoding,
    plan_parts,
    source_records,
    tasks_from_records,
)
from headrace.ingest.progress import EncoderCounts
from headrace.ingest.records import MAX_RECORD_BYTES
from headrace.ingest.reshuffle import Reshuffling, check_begun, clear_shuffled, holds_another
from headrace.ingest.resume import (
    PLAIN_FOLDER,
    began_in_vain,
    changed_sources,
    check_same_build,
    clear,
    complete_parts,
    is_changed,
    with_hashes,
    with_restart,
)
from headrace.ingest.shuffle_plan import ReshuffleConfig, ReshuffleCost, sizes_of
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import DEFAULT_CHUNK, DEFAULT_SHARD_CHUNKS, CacheLayout, Compression
from headrace.store.lease import Lease, remove_tree, sole_builder
from headrace.store.ledger import TOKENIZER_NAME, Ledger, is_finished, summed, write_ledger
from headrace.store.ledger_table import PartRecord
from headrace.store.retry import Wire, wire

_COUNTED = ("text_bytes", "skipped_lines", "empty_documents", "untrained_documents")
INGEST_VERSION = 4
"""Increased when the same input would give other tokens or another layout: builds cannot be resumed
across versions.
"""


@dataclass(frozen=True)
class BuildReport:
    """The result of a build.

    Attributes:
        path: The cache.
        documents: Documents in the cache. Empty ones are kept (they consist only of their special
            tokens).
        tokens: Tokens in the cache, special tokens included.
        text_bytes: Bytes of text (UTF-8) that they stand for.
        skipped_lines: Bad lines left out (``on_bad_line="skip"``).
        first_skipped: Position and reason of the first of them.
        empty_documents: How many documents have no text.
        ignored_records: Records of a crawl without plain text, by type.
        unused_fields: Fields of records from which nothing was read, with the number of records
            that have them (of tables: of rows).
        trained_tokens: Tokens that are trained on, by their mask; None if documents have none.
        untrained_documents: Documents with a mask but no trained token. They are kept.
        parts_built: Parts that this call built.
        parts_reused: Parts that already existed.
        tokens_built: Tokens of the parts that this call built.
        bytes_built: Bytes of text of the parts that this call built.
        requests: Requests over HTTP of this call and its workers: listing, reading, writing; 0 if
            everything is local. (Includes other requests of this process in the meantime; not those
            of lost workers.)
        failed_requests: Those without an answer, or with 408, 429 or 5xx; all were repeated.
        seconds: Time of this call.
        left_out_files: Skipped files in the given folders, by extension.
        tokenizer_engine: The library that encoded, ``gigatoken`` or ``tokenizers``; empty if no
            part was built.
        engine_reason: Why ``auto`` did not use ``gigatoken``.
        differing_code_points: Number of code points on which the two differ.
        encoded: Counters of ``gigatoken``, and of comparisons.
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
    requests: int = 0
    failed_requests: int = 0
    seconds: float = 0.0
    left_out_files: dict[str, int] = field(default_factory=dict)
    tokenizer_engine: str = ""
    engine_reason: str = ""
    differing_code_points: int = 0
    encoded: EncoderCounts = field(default_factory=EncoderCounts)
    unused_fields: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class BuildOptions(TypedDict, total=False):
    """Options of :func:`build_cache`.

    Attributes:
        how: How documents are shuffled when all are built; None, the default: they keep their
            order.
        part_bytes: Source bytes in a part, the unit of work and of resuming; 64 MiB by default.
        engine: What builds the parts: ``pool``, worker processes of this machine; ``inline``, this
            process; ``ray``, a Ray cluster (``RAY_ADDRESS``, or one started here); ``zephyr``, a
            pipeline of Marin's Zephyr (on the current Fray client's cluster, or in threads here);
            ``auto``, the default, a pool unless there is too little to do. No effect on the result.
        workers: Number of workers; None, the default: as many as cores and memory allow. No effect
            on the result.
        restart: Delete existing content and start over.
        dtype: Name of the stored dtype; None, the default: the narrowest that holds the vocabulary.
        chunk_tokens: Tokens in a chunk, the unit of reading; 65,536 by default.
        shard_chunks: Chunks in a file; 256 by default.
        compression: ``none``, the default, or ``zstd``.
        hash_sources: Store a hash of each source file in the ledger, and use it to detect changes.
        progress: Show a bar if stderr is a terminal (the default).
        first_look: Try the first records of all files before anything is built, and name all bad
            files in one error (the default); see :mod:`headrace.ingest.first_look`. False: the
            build stops at the first bad file.
    """

    how: ReshuffleConfig | None
    part_bytes: int
    engine: Engine
    workers: int | None
    restart: bool
    dtype: str | None
    chunk_tokens: int
    shard_chunks: int
    compression: Compression
    hash_sources: bool
    progress: bool
    first_look: bool


def build_cache(
    source: SourceConfig,
    tokenizer: TokenizerConfig,
    output: str,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Builds a token cache, or finishes an interrupted build with the same arguments.

    Args:
        source: Where the documents come from.
        tokenizer: How they become ids.
        output: Folder or URL of the cache.
        options: By keyword: see :class:`BuildOptions`.

    Returns:
        A report. If the cache was already finished, nothing is done and ``parts_built`` is 0.

    Raises:
        SourceError: the source is missing, empty, unreadable, bad in a line, or changed; if several
            files are bad from the start, it names them all, and nothing was built.
        ConfigError: a setting is invalid, or differs from the one with which the folder was
            started.
        CacheError: the output cannot be written, contains something else, or is being written by
            another process.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace import SourceConfig, TokenizerConfig
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "greeting.txt").write_text("hello")
        ...     source = SourceConfig([f"{folder}/greeting.txt"])
        ...     report = build_cache(
        ...         source, TokenizerConfig("bytes"), f"{folder}/cache", progress=False
        ...     )
        >>> report.documents, report.tokens  # five bytes and the end of the text
        (1, 6)

        Shuffled with a seed:

        >>> from headrace.ingest import ReshuffleConfig
        >>> from headrace.store import open_cache
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.txt", "b.txt"):
        ...         _ = pathlib.Path(folder, name).write_text(name)
        ...     source, cache = SourceConfig([f"{folder}/*.txt"]), f"{folder}/cache"
        ...     how = ReshuffleConfig(7)
        ...     _ = build_cache(source, TokenizerConfig("bytes"), cache, how=how, progress=False)
        ...     open_cache(cache).shuffle
        DocumentShuffle(documents=2, seed=7, unit=1)
    """
    return plan_build(source, tokenizer, output, **options).build()


@dataclass(frozen=True)
class BuildPlan:
    """What a build is to make and how, before anything is written.

    Attributes:
        output: The cache.
        inputs: What it reads.
        ledger: Its first ledger.
        tokenizer_engine: The encoder that was asked for.
        work: What builds the parts.
        restart: Whether existing content is deleted.
        how: How documents are shuffled when all are built.
        began: When planning began.
        wire_before: Requests of this process until then.
    """

    output: str
    inputs: Input
    ledger: Ledger
    tokenizer_engine: TokenizerEngine
    work: Work
    restart: bool
    how: ReshuffleConfig | None
    began: float
    wire_before: Wire

    @property
    def root(self) -> str:
        """Where the plain cache is built."""
        return _root(self.output, self.how)

    def build(self, announce: Callable[[ReshuffleCost], None] | None = None) -> BuildReport:
        """Does what is left to do; see :func:`build_cache`. ``announce`` is called with the cost of
        a shuffle, once the plain cache is built.
        """
        report = self._build() if self.how is None else self._build_shuffled(self.how, announce)
        return replace(report, path=self.output, seconds=time.monotonic() - self.began)

    def _build(self) -> BuildReport:
        """Builds the plain cache."""
        root = self.root
        with _with_restart_in_cures(root), sole_builder(root) as (held_lease, old_ledger):
            if old_ledger is not None and (
                self.restart or began_in_vain(root, old_ledger, self.ledger)
            ):
                clear(root, old_ledger)
                old_ledger = None
            report = self._build_missing(old_ledger, held_lease)
        wire_here = wire() - self.wire_before
        return replace(
            report,
            requests=report.requests + wire_here.requests,
            failed_requests=report.failed_requests + wire_here.failed,
            left_out_files=dict(sorted(self.inputs.left_out.items())),
        )

    def _build_shuffled(
        self, how: ReshuffleConfig, announce: Callable[[ReshuffleCost], None] | None
    ) -> BuildReport:
        """Builds the plain cache, shuffles it, and deletes it; its report."""
        output = self.output
        plain = self.root
        with sole_builder(output, but=PLAIN_FOLDER) as (held_lease, old_ledger):
            if old_ledger is not None and self.restart:
                clear_shuffled(output, old_ledger)
                old_ledger = None
            if old_ledger is not None:
                self._check_shuffled(old_ledger, how)
            if old_ledger is None or not old_ledger.finished:
                report = self._build()
                sizes = sizes_of(TokenCache.open_member(plain), how)
                if announce is not None:
                    announce(sizes.cost)
                Reshuffling(sizes, output, None, self.work, held_lease, old_ledger).run()
            else:
                report = report_of(output, old_ledger.parts, {})
            remove_tree(plain)
        return report

    def _check_shuffled(self, old_ledger: Ledger, how: ReshuffleConfig) -> None:
        """Raises PlanMismatchError if the interrupted build has other settings, SourceError if a
        source has changed.
        """
        output = self.output
        shuffled = check_begun(output, old_ledger, {"seed": how.seed}, ("seed",))
        if shuffled["cache"] is not None:
            raise holds_another(output)
        sources = shuffled["sources"]
        plain_ledger = structs.replace(old_ledger, sources=sources)
        check_same_build(output, plain_ledger, self.ledger, old_ledger.parts)
        current = {str(s["path"]): s for s in self.ledger.sources}
        changed = [str(s["path"]) for s in sources if is_changed(s, current[str(s["path"])])]
        if changed:
            cure = "To build everything anew pass --restart."
            raise SourceError("changed after the cache was built", field=changed[0], cure=cure)

    def _build_missing(self, old_ledger: Ledger | None, held_lease: Lease) -> BuildReport:
        """Builds what is missing, as the only builder of the folder."""
        root = self.root
        inputs = self.inputs
        ledger, tasks, finished = self._begin(old_ledger)
        tokenizer_file = files.join(root, TOKENIZER_NAME)
        content = inputs.tokenizer.content
        if content is not None and files.read_bytes(tokenizer_file) != content:
            files.write_atomic(tokenizer_file, content)
        missing = [task for task in tasks if task.name not in finished]
        encoding = plan_encoding(
            self.tokenizer_engine,
            inputs.tokenizer,
            inputs.kind,
            [task.stored_bytes for task in missing],
        )
        job = BuildJob(
            root,
            inputs.source,
            ledger.tokenizer,
            msgspec.convert(ledger.layout, CacheLayout),
            inputs.kind,
            inputs.template,
            code_points=encoding.code_points,
        )
        what = f"building {root.rstrip('/').rpartition('/')[2]}"
        paths = (file.path for task in missing for file in task.files)
        built, costs = self.work.build(what, job, missing, paths, held_lease)
        records = [built.get(task.name) or finished[task.name] for task in tasks]
        report = replace(
            report_of(root, records, built),
            **encoding.report(),
            requests=costs.wire.requests,
            failed_requests=costs.wire.failed,
            encoded=costs.encoder,
        )
        _refuse_empty(report, ledger)
        if not ledger.finished:
            write_ledger(root, ledger.complete(records))
        return report

    def _begin(
        self, old_ledger: Ledger | None
    ) -> tuple[Ledger, list[PartTask], dict[str, PartRecord]]:
        """The ledger to work on, its tasks, and the parts that are already complete."""
        root = self.root
        planned = self.ledger
        listed = {file.shown_path: file for file in self.inputs.listed}
        if old_ledger is None:
            write_ledger(root, planned)
            return planned, tasks_from_records(planned.sources, listed), {}
        names = {str(s["part"]) for s in old_ledger.sources}
        records = complete_parts(root, old_ledger)
        check_same_build(root, old_ledger, planned, records.values())
        sources = changed_sources(root, old_ledger.sources, planned.sources, records)
        ledger = old_ledger
        if not ledger.finished or sources != ledger.sources or len(records) < len(names):
            # The parts that are still to be built follow the rules on bad lines that hold now.
            metadata = {**ledger.metadata, "source": planned.metadata["source"]}
            ledger = structs.replace(
                ledger, finished=False, parts=[], sources=sources, metadata=metadata
            )
        if ledger != old_ledger:
            write_ledger(root, ledger)
        return ledger, tasks_from_records(sources, listed), records


def _root(output: str, how: ReshuffleConfig | None) -> str:
    """Where the plain cache is built."""
    return output if how is None else files.join(output, PLAIN_FOLDER)


@contextmanager
def _with_restart_in_cures(output: str) -> Iterator[None]:
    """Faults of sources say where their cures need ``--restart``."""
    try:
        yield
    except SourceError as error:
        refuse_faults([with_restart(output, fault) for fault in error.faults or [error]])
        raise


def plan_build(
    source: SourceConfig,
    tokenizer: TokenizerConfig,
    output: str,
    *,
    how: ReshuffleConfig | None = None,
    part_bytes: int = DEFAULT_PART_BYTES,
    engine: Engine = "auto",
    workers: int | None = None,
    restart: bool = False,
    dtype: str | None = None,
    chunk_tokens: int = DEFAULT_CHUNK,
    shard_chunks: int = DEFAULT_SHARD_CHUNKS,
    compression: Compression = "none",
    hash_sources: bool = False,
    progress: bool = True,
    first_look: bool = True,
) -> BuildPlan:
    """The plan of a build, with the arguments of :func:`build_cache`.

    Raises:
        SourceError: the first look finds files that cannot be built from.
    """
    began = time.monotonic()
    wire_before = wire()
    check_path("output", output, "Give the folder or URL of the cache.")
    output = str(output)
    files.check_writable(output)
    work = Work(engine, workers, progress)
    if not isinstance(source, SourceConfig):
        raise ConfigError(
            "is not a source", field="source", value=source, cure="Give SourceConfig([PATH])."
        )
    if not isinstance(tokenizer, TokenizerConfig):
        cure = (
            f"Give TokenizerConfig({tokenizer!r})."
            if isinstance(tokenizer, str)
            else "Give TokenizerConfig(PATH)."
        )
        raise ConfigError(
            "is not a tokenizer's config", field="tokenizer", value=tokenizer, cure=cure
        )
    check_whole("chunk_tokens", chunk_tokens)
    check_at_least("chunk_tokens", chunk_tokens, cure=f"Leave it out for {DEFAULT_CHUNK:,}.")
    root = _root(output, how)
    with _with_restart_in_cures(root):
        loaded = load_tokenizer(tokenizer)
        layout = CacheLayout(dtype or loaded.dtype.name, chunk_tokens, shard_chunks, compression)
        layout.check_vocabulary(loaded.vocab_size)
        inputs = Input.of(source, loaded)
        check_tokenizer_engine(tokenizer.engine, inputs.tokenizer, inputs.kind)
        # nothing is read of the files for a finished cache
        if first_look and (restart or not any(map(is_finished, {output, root}))):
            refuse_faults(inputs.faults())
        ledger = _planned(inputs, layout, part_bytes)
        if hash_sources:
            sources = with_hashes(ledger.sources, inputs.listed)
            ledger = structs.replace(ledger, sources=sources)
    return BuildPlan(
        output, inputs, ledger, tokenizer.engine, work, restart, how, began, wire_before
    )


def _planned(inputs: Input, layout: CacheLayout, part_bytes: int) -> Ledger:
    """The unfinished ledger of a build."""
    source = inputs.source
    settings = asdict(source, dict_factory=_without_usual)
    del settings["paths"]
    return Ledger(
        finished=False,
        tokenizer=inputs.tokenizer.record(),
        layout=layout.to_dict(),
        sources=source_records(plan_parts(inputs.listed, part_bytes, split_file)),
        leaves=[spec.to_dict() for spec in inputs.documents().specs],
        metadata={
            "paths": [redact(str(p)) for p in source.paths],
            "source": settings,
            "template": inputs.template,
            "part_bytes": part_bytes,
            "ingest_version": INGEST_VERSION,
        },
    )


def _without_usual(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fields for a ledger: later additions are left out if they have their default."""
    usual = (
        ("width", None),
        ("max_record_bytes", MAX_RECORD_BYTES),
        ("special_tokens_in_text", "token"),
    )
    return dict(pair for pair in fields if pair not in usual)


def _refuse_empty(report: BuildReport, ledger: Ledger) -> None:
    """Raises SourceError if a build has nothing to train on."""
    paths = ", ".join(ledger.metadata["paths"])
    if report.documents == 0:
        why = ""
        if report.skipped_lines:
            lines = format_count(report.skipped_lines, "line")
            why = f"; {lines} skipped, the first: {report.first_skipped}"
        if report.ignored_records:
            ignored = ", ".join(f"{n} {what}" for what, n in report.ignored_records.items())
            why += f"; of no text are {ignored}"
        raise SourceError(
            f"is an empty source: it holds no documents{why}",
            field=paths,
            cure="Check paths, format and text field, then build again.",
        )
    if report.trained_tokens == 0:
        raise SourceError(
            f"trains on nothing: of {report.documents:,} documents no token is marked",
            field=paths,
            cure="Check --mask and --mask-role against the roles of messages (or the loss_mask of"
            " records), then build with --restart.",
        )


def unused_fields_of(counts: Mapping[str, Any]) -> dict[str, int]:
    """Of the counters of all parts: fields from which none read anything, with their number of
    records, by name.
    """
    return dict(sorted(counts.get("unused_fields", {}).items()))


def report_of(
    output: str, records: Sequence[PartRecord], built: dict[str, PartRecord]
) -> BuildReport:
    """The report without its costs."""
    counts = summed(record.extra for record in records)
    has_masks = any(LOSS_MASK.name in record.leaves for record in records)
    return BuildReport(
        path=output,
        documents=sum(record.documents for record in records),
        tokens=sum(record.tokens for record in records),
        **{name: counts.get(name, 0) for name in _COUNTED},
        first_skipped=counts.get("first_skipped", ""),
        ignored_records=dict(sorted(counts.get("ignored", {}).items())),
        trained_tokens=counts.get("trained_tokens", 0) if has_masks else None,
        parts_built=len(built),
        parts_reused=len(records) - len(built),
        tokens_built=sum(record.tokens for record in built.values()),
        bytes_built=sum(int(record.extra["text_bytes"]) for record in built.values()),
        unused_fields=unused_fields_of(counts),
    )
