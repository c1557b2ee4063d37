"""The parts of a build: which files make which part, who builds them, and how one is built.

**The plan.** A part is the unit of work and of resuming: consecutive files of about ``part_bytes``
stored bytes, or a slice of a larger one, converted to one part of the cache by one worker. The plan
is a pure function of the list of files, their sizes and where they can be cut, fixed before
anything is tokenized. It is written into the ledger, so that every worker and every later run of
the command uses the same one. The last slice of a file ends where the file ends.

Price: a killed build loses at most one part (default 64 MiB of text, some seconds); the largest
corpus has some thousands of parts, so the ledger stays small and opening a cache stays fast.

**Workers.** :class:`Work` has the parts built: in this process, by worker processes of this
machine, on a Ray cluster or in a Zephyr pipeline. A shuffle has its own parts built by it, too.

**A part** is built by a pipeline in one process::

    reader thread            encoder threads (3)            caller's thread
    files -> documents  ->   encode_batch (all cores,   ->  PartWriter -> part.json
             in batches      without the interpreter lock)

A worker process or a remote task runs the same :class:`PartBuilder`, and every part is
bit-identical, whichever worker builds it, however often, and with whatever other parts.

Memory is bounded in bytes, not in documents: a batch ends with the document that reaches its limit,
at most ``QUEUE_BATCHES`` batches wait, and three are being encoded. A larger document exceeds this
limit.

Where a faster encoder encodes, ``tokenizers`` encodes some documents, too, and the ids are
compared: the first of each part, where a new kind of text would show, and then one in 1,024,
selected by the part's name, so that a resumed or repeated build compares the same ones. Of a
document of more than 64 Ki characters, its beginning is encoded separately and compared. A
difference stops the part, which is built again with ``tokenizers``. ``tokenizers`` takes about a
thousand times as long for a document as everything else, so one in 1,024 costs 5% to 10% of a
build, and the first documents (at most 32 KiB if documents are shorter) 30 ms per part.

Price: a thread switch and a few queue operations per batch (0.5 MiB of text on two cores): under
0.1%.
"""

from __future__ import annotations

import logging
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, field, replace
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np

from headrace import extensions, progress
from headrace.errors import ConfigError, check_at_least, check_choice, check_whole, install_command
from headrace.ingest import gigatoken_encoder
from headrace.ingest.choices import TOKENIZER_ENGINES, Engine, Kind, TokenizerEngine
from headrace.ingest.code_points import Ranges
from headrace.ingest.documents import (
    LOSS_MASK,
    Document,
    DocumentKind,
    DocumentReader,
    EncodedBatch,
    make_kind,
)
from headrace.ingest.pool import PoolWorkers, workers_for
from headrace.ingest.progress import NO_PROGRESS, EncoderCounts, Progress, Report
from headrace.ingest.ray_workers import RayWorkers
from headrace.ingest.records import BadRecordError, Slice, SourceFile
from headrace.ingest.schedule import Job, Scheduler, Task
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import (
    FileTokenizer,
    Tokenizer,
    batch_chars,
    encoding_threads,
    recorded_tokenizer,
)
from headrace.metrics import Sums
from headrace.numbers import in_bytes, short
from headrace.store.ahead import ItemsAhead
from headrace.store.layout import CacheLayout
from headrace.store.lease import Lease
from headrace.store.ledger_table import PartRecord
from headrace.store.ragged import PartWriter
from headrace.store.retry import RetryPolicy, policy

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
SourceRecord: TypeAlias = dict[str, Any]
"""A file or slice in the ledger: its path, size, version and part, its slice and its hash."""
DEFAULT_PART_BYTES = 64 << 20
MAX_PARTS = 4096
# a corpus has as many, if it has as many of _LEAST_BYTES: work for all cores, little to do again
_FEW_PARTS = 16
_LEAST_BYTES = 1 << 20
POOL_FROM_BYTES = 32 << 20
"""Less than this is built faster than worker processes start."""
_ONLY_HERE = ("memory://", "local-memory://")
FROM_BYTES = 64 << 20
"""With less to read, comparing code points for ``gigatoken`` costs more time than it saves."""
WORKER_BYTES = 512 << 20
ENCODERS = 3
QUEUE_BATCHES = 4
FIRST_DOCUMENTS = 8
FIRST_BYTES = 32 << 10
ONE_IN = 1024
MOST_CHARS = 1 << 16


@dataclass(frozen=True)
class PartTask:
    """One idempotent unit of work: these files, in this order, become this part."""

    name: str
    files: tuple[SourceFile, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of its files as stored; files of unknown size count 0."""
        return sum(f.num_bytes or 0 for f in self.files)

    @property
    def has_known_size(self) -> bool:
        """Whether the sizes of all files are known."""
        return all(f.num_bytes is not None for f in self.files)


def plan_parts(
    files: Sequence[SourceFile],
    part_bytes: int = DEFAULT_PART_BYTES,
    split: Callable[[SourceFile, int], list[SourceFile]] | None = None,
) -> list[PartTask]:
    """Cuts the list of files into parts.

    Args:
        files: Files in the order of their documents.
        part_bytes: Approximate stored bytes in a part: a part ends with the file or slice that
            reaches it. Larger for corpora that would have more than 4096 parts; smaller, down to 1
            MiB, for those with fewer than 16.
        split: Cuts a file that is larger than a number of bytes into slices; None: files stay
            whole. Compressed files are cut if the resulting parts are at least a sixteenth of the
            corpus.

    Raises:
        ConfigError: ``part_bytes`` is below 1.

    Example:
        >>> files = [SourceFile(f"{i}.txt", "text", size=40) for i in range(5)]
        >>> [(t.name, len(t.files)) for t in plan_parts(files, part_bytes=80)]
        [('00000', 2), ('00001', 2), ('00002', 1)]
    """
    check_at_least("part_bytes", part_bytes, cure="Count in bytes.")
    # A file of unknown size counts as something, but does not make a part.
    weights = [part_bytes // 16 if f.size is None else f.size for f in files]
    few = max(_LEAST_BYTES, sum(weights) // _FEW_PARTS)
    target = max(min(part_bytes, few), -(-sum(weights) // (MAX_PARTS - 1)))
    tasks: list[PartTask] = []
    members: list[SourceFile] = []
    filled = 0
    packed = max(
        target, few
    )  # cutting a compressed file costs unpacking, so it is only done if there are few parts
    slices = [
        s
        for f in files
        for s in ([f] if split is None else split(f, target if f.compression == "none" else packed))
    ]
    for number, file in enumerate(slices, start=1):
        members.append(file)
        filled += part_bytes // 16 if file.num_bytes is None else file.num_bytes
        if filled >= target or number == len(slices):
            tasks.append(PartTask(f"{len(tasks):05d}", tuple(members)))
            members = []
            filled = 0
    return tasks


def source_records(tasks: Sequence[PartTask]) -> list[SourceRecord]:
    """The plan as JSON for the ledger: one record per file or slice, with its part. Paths have no
    credentials.
    """
    records: list[SourceRecord] = []
    for task in tasks:
        for file in task.files:
            record: SourceRecord = {
                "path": file.shown_path,
                "size": file.size,
                "version": file.version,
                "part": task.name,
            }
            if file.part is not None:
                record["slice"] = list(astuple(file.part))
            records.append(record)
    return records


def tasks_from_records(
    records: Sequence[SourceRecord], listed: Mapping[str, SourceFile]
) -> list[PartTask]:
    """The plan from the records of :func:`source_records`, with the files as listed now."""
    return [
        PartTask(name, tuple(_listed_file(record, listed) for record in group))
        for name, group in groupby(records, key=lambda r: str(r["part"]))
    ]


def _listed_file(record: SourceRecord, listed: Mapping[str, SourceFile]) -> SourceFile:
    part = Slice(*record["slice"]) if "slice" in record else None
    return replace(listed[record["path"]], part=part)


@dataclass(frozen=True)
class Work:
    """How parts are built.

    Attributes:
        engine: What builds them; ``auto``: a pool, unless there is too little to do for one.
        workers: Number of workers; None: as many as fit.
        progress: Whether a bar is shown, if stderr is a terminal.

    Raises:
        ConfigError: the engine is unknown, or the number of workers invalid.
    """

    engine: Engine = "auto"
    workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(Engine), "is no engine")
        check_whole("workers", self.workers)
        check_at_least("workers", self.workers, cure="Leave it out: one a core.")

    def build(
        self, what: str, job: Job, tasks: Sequence[Task], paths: Iterable[str], held: Lease
    ) -> tuple[dict[str, PartRecord], Progress]:
        """Builds parts while the lease is held.

        Args:
            what: What is done, for the bar.
            job: What the parts have in common.
            tasks: The parts.
            paths: All paths to be read.
            held: Checked after each part.

        Returns:
            The records of the parts, by name, and the costs of the workers.
        """
        records: dict[str, PartRecord] = {}
        costs = NO_PROGRESS
        engine = self._engine_for(job, tasks, paths)
        total = sum(task.stored_bytes for task in tasks)
        with show_progress(total, what, show=self.progress and bool(tasks)) as move_bar:

            def report(done: Progress) -> None:
                nonlocal costs
                costs += Progress(encoder=done.encoder, wire=done.wire)
                move_bar(done)

            with closing(run_tasks(engine, job, tasks, self.workers, report)) as finished:
                for record in finished:
                    records[record.name] = record
                    held.check()
        return records, costs

    def _engine_for(self, job: Job, tasks: Sequence[Task], paths: Iterable[str]) -> Engine:
        if self.engine != "auto":
            return self.engine
        if any(path.startswith(_ONLY_HERE) for path in (job.root, *paths)):
            return "inline"  # what no other process sees
        is_known = all(task.has_known_size for task in tasks)
        is_little = is_known and sum(task.stored_bytes for task in tasks) < POOL_FROM_BYTES
        if is_little or (self.workers or workers_for(job, len(tasks))) == 1:
            return "inline"
        return "pool"


@contextmanager
def show_progress(total: int, what: str, *, show: bool = True) -> Iterator[Report]:
    """A bar over ``total`` stored bytes on stderr, if that is a terminal, and the function that
    moves it and shows the mean rates since it was made.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda _: None
        return

    so_far = NO_PROGRESS
    began = time.monotonic()
    with progress.bar() as bar:
        task = bar.add_task(what, total=total or None, rate="")

        def report(done: Progress) -> None:
            nonlocal so_far
            so_far += done
            seconds = max(time.monotonic() - began, 1e-9)
            tokens = short(so_far.tokens / seconds)
            text_bytes = in_bytes(so_far.text_bytes / seconds)
            rate = f"{tokens} tokens/s  {text_bytes}/s"
            bar.update(task, advance=done.stored_bytes, rate=rate)

        yield report


def run_tasks(
    engine: Engine, job: Job, tasks: Sequence[Task], workers: int | None, report: Report
) -> Generator[PartRecord]:
    """Builds parts with an engine that is not ``auto``; yields the record of each when it is
    complete, in any order.
    """
    if not tasks:
        return
    if engine == "inline":
        build = job.part_builder()
        for task in tasks:
            yield build(task, job.root, report)
        return
    if workers is not None and workers > len(tasks):
        parts = "1 part is" if len(tasks) == 1 else f"{len(tasks)} parts are"
        _log.warning(
            "%d of %d workers have nothing to do: %s to be built",
            workers - len(tasks),
            workers,
            parts,
        )
    if engine not in ("pool", "ray"):
        build_parts = extensions.load_extension(extensions.ENGINES, engine, "engine")
        yield from build_parts(job, tasks, workers, report)
        return
    pool = (
        RayWorkers(job, workers)
        if engine == "ray"
        else PoolWorkers(job, workers or workers_for(job, len(tasks)))
    )
    yield from Scheduler(job, tasks, pool, report).run()


def check_tokenizer_engine(engine: TokenizerEngine, tokenizer: Tokenizer, kind: Kind) -> None:
    """Refuses an engine that cannot encode.

    Raises:
        ConfigError: there is no such engine; or it is ``gigatoken``, which is not installed or does
            not cover these documents.
    """
    check_choice("tokenizer.engine", engine, TOKENIZER_ENGINES, "is no engine")
    if (
        engine != gigatoken_encoder.PACKAGE
        or (reason := gigatoken_encoder.why_not(tokenizer, kind)) is None
    ):
        return
    cure = "Say tokenizers, or auto, which takes whichever fits."
    cure = cure if gigatoken_encoder.is_installed() else install_command("headrace[gigatoken]")
    raise ConfigError(
        f"cannot be used: {reason}", field="tokenizer.engine", value=engine, cure=cure
    )


class Encoding(NamedTuple):
    """The encoder of a build.

    Attributes:
        engine: ``gigatoken`` or ``tokenizers``; empty if there is nothing to encode.
        reason: Why not ``gigatoken``; empty if that does not apply.
        code_points: Those that ``tokenizers`` encodes instead of ``gigatoken``; None: it encodes
            all.
    """

    engine: str
    reason: str = ""
    code_points: Ranges | None = None

    def report(self) -> dict[str, Any]:
        """Its fields of a build's report."""
        differing = sum(stop - start for start, stop in self.code_points or ())
        return {
            "tokenizer_engine": self.engine,
            "engine_reason": self.reason,
            "differing_code_points": differing,
        }


def plan_encoding(
    engine: TokenizerEngine, tokenizer: Tokenizer, kind: Kind, sizes: Sequence[int]
) -> Encoding:
    """Chooses the encoder for parts with this many bytes to read, after
    :func:`check_tokenizer_engine`.
    """
    if not sizes or kind == "tokens":
        return Encoding("")
    little = engine == "auto" and sum(sizes) < FROM_BYTES
    if engine == "tokenizers" or little or not isinstance(tokenizer, FileTokenizer):
        return Encoding("tokenizers")
    if engine == "auto" and (reason := gigatoken_encoder.why_not(tokenizer, kind)) is not None:
        _log.info(f"encoding with tokenizers: {reason}")
        return Encoding("tokenizers", reason)
    return Encoding(
        gigatoken_encoder.PACKAGE, code_points=gigatoken_encoder.code_points_of(tokenizer)
    )


@dataclass(frozen=True)
class BuildJob:
    """What all parts of a build have in common. Can be pickled: everything that a worker needs
    besides its task, except the tokenizer, which is read from the cache's copy.

    ``code_points`` are those that ``tokenizers`` encodes if ``gigatoken`` encodes the rest; None:
    it encodes all.
    """

    root: str
    source: SourceConfig
    tokenizer: dict[str, Any]
    layout: CacheLayout
    kind: Kind = "text"
    template: dict[str, Any] | None = None
    retries: RetryPolicy = field(default_factory=policy)
    code_points: Ranges | None = None

    @property
    def worker_bytes(self) -> int:
        """Memory of a worker: one that reads and encodes, and two shards of each leaf."""
        bytes_each = np.dtype(self.layout.dtype).itemsize + 2 * len(self.source.leaves) + 1
        return WORKER_BYTES + 2 * self.layout.shard_elements * bytes_each

    def part_builder(self) -> PartBuilder:
        """Builds parts with the cache's copy of the tokenizer, which exists when the first part is
        started.
        """
        return PartBuilder(self, recorded_tokenizer(self.root, self.tokenizer))


_TOTALS = (
    "empty_documents",
    "skipped_lines",
    "text_bytes",
    "trained_tokens",
    "untrained_documents",
)


@dataclass
class _Counts(Sums):
    """Counters of a part's record besides documents and tokens. ``skipped``: some bad lines, each
    with the file of the part, the row, and the problem.
    """

    totals: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    unused_fields: Counter[str] = field(default_factory=Counter)
    optional_fields: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[int, int, str]] = field(default_factory=list)

    def add_skipped(self, lines: int, file: int, first: tuple[int, str] | None) -> None:
        """Adds bad lines of a file of the part."""
        self.totals["skipped_lines"] += lines
        if first is not None:
            self.skipped.append((file, *first))

    def add_encoded(self, documents: Sequence[Document], encoded: EncodedBatch) -> None:
        self.totals["text_bytes"] += sum(d.num_bytes for d in documents)
        self.totals["empty_documents"] += sum(not d.num_bytes for d in documents)
        if LOSS_MASK.name in encoded.leaves:
            mask = encoded.leaves[LOSS_MASK.name][0]
            so_far = np.append(0, np.cumsum(mask, dtype=np.int64))
            trained = np.diff(so_far[np.append(0, np.cumsum(encoded.lengths))])
            self.totals["trained_tokens"] += int(trained.sum())
            self.totals["untrained_documents"] += int(
                ((trained == 0) & (encoded.lengths > 0)).sum()
            )

    def to_dict(self) -> dict[str, Any]:
        """The counters for the part's record; without lists of fields that are empty."""
        facts: dict[str, Any] = {name: self.totals[name] for name in _TOTALS}
        _, _, first_problem = min(self.skipped, default=(0, 0, ""))
        facts |= {"first_skipped": first_problem, "ignored": self.ignored}
        if self.unused_fields:
            facts["unused_fields"] = self.unused_fields
        if self.optional_fields:
            facts["optional_fields"] = sorted(self.optional_fields)
        return facts


@dataclass
class _Batch:
    """Documents of a part in the pipeline, with file number, row and reader of each; those of a
    record stay together. ``counts`` cover what was read since the previous batch.
    """

    part: str
    first: int = 0
    documents: list[Document] = field(default_factory=list)
    origins: list[tuple[int, int, DocumentReader]] = field(default_factory=list)
    counts: _Counts = field(default_factory=_Counts)
    weight: int = 0
    stored_bytes: int = 0
    compared: int = 0

    def encoded(
        self, kind: DocumentKind, plain: DocumentKind | None
    ) -> tuple[_Batch, EncodedBatch]:
        """The batch with its ids, without records that the tokenizer cannot encode; compares some
        with ``plain``.

        Raises:
            SourceError: it cannot encode one, and such records are not skipped.
            EncodersDifferError: the two kinds give different ids for one of the compared documents.
        """
        try:
            encoded = kind.encode(self.documents)
        except BadRecordError:  # which one is found by encoding each alone
            pairs = zip(self.origins, self.documents, strict=True)
            self.origins = []
            self.documents = []
            for origin, group in groupby(pairs, key=lambda pair: pair[0]):
                self._keep_if_encoded(kind, origin, [document for _, document in group])
            encoded = kind.encode(self.documents)
        if plain is not None:
            self._compare(encoded, kind, plain)
        self.counts.add_encoded(self.documents, encoded)
        return self, encoded

    def _keep_if_encoded(
        self, kind: DocumentKind, origin: tuple[int, int, DocumentReader], record: list[Document]
    ) -> None:
        try:
            kind.encode(record)
        except BadRecordError as bad:
            file, row, reader = origin
            self.counts.add_skipped(1, file, (row, reader.refusal(row, bad)))
        else:
            self.documents += record
            self.origins += [origin] * len(record)

    def _compare(self, encoded: EncodedBatch, kind: DocumentKind, plain: DocumentKind) -> None:
        indices = compared_indices(self.part, self.first, [d.num_bytes for d in self.documents])
        differing = first_difference(indices, self.documents, encoded, (kind, plain))
        if differing is not None:
            _, row, reader = self.origins[differing]
            raise EncodersDifferError(reader.describe_row(row))
        self.compared = len(indices)


class PartBuilder:
    """Builds the parts of a job, each from its start.

    Args:
        job: The job.
        tokenizer: Its tokenizer.
        batch_bytes: Bytes of text in a batch; None: as many as keep all cores busy.
    """

    def __init__(self, job: BuildJob, tokenizer: Tokenizer, batch_bytes: int | None = None) -> None:
        self._job = job
        self._limit = batch_bytes or batch_chars()
        self._encoder: gigatoken_encoder.GigatokenEncoder | None = None
        self._plain = make_kind(job.source, job.kind, tokenizer, job.template)
        self._kind = self._plain
        if job.code_points is not None and isinstance(tokenizer, FileTokenizer):
            self._encoder = gigatoken_encoder.GigatokenEncoder(tokenizer, job.code_points)
            faster = tokenizer.encoding_with(self._encoder)
            self._kind = make_kind(job.source, job.kind, faster, job.template)

    def __call__(self, task: PartTask, root: str, report: Report) -> PartRecord:
        """Builds a part below ``root``; one in which the faster encoder differs from ``tokenizers``
        again, with the latter.

        Raises:
            SourceError: a file cannot be read.
            CacheError: the cache cannot be written.
        """
        if self._encoder is None:
            return self._build(task, root, report, self._plain)
        moved = NO_PROGRESS

        def note(progress: Progress) -> None:
            nonlocal moved
            moved += progress
            report(progress)

        try:
            return self._build(task, root, note, self._kind, self._plain)
        except EncodersDifferError as error:
            document = str(error)
            _log.warning(
                f"gigatoken and tokenizers differ at {document}: part {task.name} takes tokenizers"
            )
            report(-moved + Progress(encoder=EncoderCounts(differences=(document,))))
            return self._build(task, root, report, self._plain)

    def _build(
        self,
        task: PartTask,
        root: str,
        report: Report,
        kind: DocumentKind,
        plain: DocumentKind | None = None,
    ) -> PartRecord:
        reading = ItemsAhead(
            _batches(kind, task, self._limit),
            weigh=lambda b: b.weight,
            capacity=QUEUE_BATCHES * self._limit,
        )
        # A worker with one core encodes with one thread: more would only wait for the same core.
        encoders = ENCODERS if encoding_threads() > 1 else 1
        pool = ThreadPoolExecutor(encoders, thread_name_prefix="headrace-encode")
        batches = _map_ahead(pool, lambda batch: batch.encoded(kind, plain), reading, 2 * encoders)
        counts = _Counts()
        try:
            first_batch = next(batches)  # a file that cannot be read leaves no folder
            writer = PartWriter(root, task.name, self._job.layout, kind.specs)
            for batch, encoded in chain([first_batch], batches):
                writer.append(*encoded)
                counts += batch.counts
                encoder_counts = EncoderCounts()
                if self._encoder is not None:
                    encoder_counts = self._encoder.take_counts(batch.compared)
                report(
                    Progress(
                        len(batch.documents),
                        int(encoded.tokens.size),
                        batch.counts.totals["text_bytes"],
                        batch.stored_bytes,
                        encoder_counts,
                    )
                )
        finally:
            reading.close()
            pool.shutdown(wait=True, cancel_futures=True)
        return writer.close(**counts.to_dict())


def _batches(kind: DocumentKind, task: PartTask, limit: int) -> Iterator[_Batch]:
    """All documents of a part, in order, in batches of about ``limit`` bytes."""
    batch = _Batch(task.name)
    for number, file in enumerate(task.files):
        reader = DocumentReader(file, kind)
        consumed = 0
        for document in reader:
            origin = number, reader.row, reader
            full = batch.weight >= limit or len(batch.documents) >= max(1, limit // 64)
            if full and origin != batch.origins[-1]:
                batch.stored_bytes += reader.stored_bytes - consumed
                consumed = reader.stored_bytes
                yield batch
                batch = _Batch(task.name, batch.first + len(batch.documents))
            batch.documents.append(document)
            batch.origins.append(origin)
            batch.weight += document.num_bytes + sum(v.nbytes for v in document.leaves)
        batch.stored_bytes += reader.stored_bytes - consumed
        batch.counts.add_skipped(reader.skipped_lines, number, reader.first_skipped)
        batch.counts.ignored.update(reader.ignored)
        batch.counts.unused_fields.update(reader.unused_fields())
        batch.counts.optional_fields.update(reader.optional_fields())
    yield batch


def _map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], ahead: int
) -> Iterator[R]:
    """``map`` on a pool: results in order, with little more in flight than the pool can process."""
    pending: deque[Future[R]] = deque()
    stream = iter(items)
    failure: Exception | None = None
    while failure is None:
        try:
            pending.append(pool.submit(function, next(stream)))
        except Exception as error:  # noqa: BLE001
            # the end, or the reader's; what it read before is still written
            failure = error
        while len(pending) > (ahead if failure is None else 0):
            yield pending.popleft().result()
    if not isinstance(failure, StopIteration):
        raise failure


class EncodersDifferError(Exception):
    """Two encoders gave different ids for the document that is named."""


def compared_indices(part: str, first: int, sizes: Sequence[int]) -> list[int]:
    """Indices of the documents to compare, among consecutive ones.

    Args:
        part: Name of the part.
        first: Number of documents of the part before these.
        sizes: Bytes of each.

    Example:
        >>> compared_indices("00000", 0, [100] * 9)  # the first eight
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> len(compared_indices("00000", 1024, [100] * 4096))  # one in 1,024
        4
    """
    indices = set[int]()
    if first == 0:
        total = np.cumsum(sizes[:FIRST_DOCUMENTS])
        indices.update(range(max(min(1, len(sizes)), int((total <= FIRST_BYTES).sum()))))
    for stretch in range(first // ONE_IN, (first + len(sizes) - 1) // ONE_IN + 1 if sizes else 0):
        index = stretch * ONE_IN + zlib.crc32(f"{part}:{stretch}".encode()) % ONE_IN - first
        if 0 <= index < len(sizes):
            indices.add(index)
    return sorted(indices)


def first_difference(
    indices: Sequence[int],
    documents: Sequence[Document],
    encoded: EncodedBatch,
    kinds: tuple[DocumentKind, DocumentKind],
) -> int | None:
    """The first document for which ``tokenizers`` gives different ids; None if there is none.

    Args:
        indices: Indices of the documents to compare.
        documents: Documents of one part.
        encoded: The result of the faster encoder.
        kinds: The kind with the faster encoder, and with ``tokenizers``.
    """
    faster, plain = kinds
    stops = np.cumsum(encoded.lengths)
    for index in indices:
        document = documents[index]
        ids = encoded.tokens[stops[index] - encoded.lengths[index] : stops[index]]
        try:
            if len(document.text) > MOST_CHARS:
                document = document._replace(text=document.text[:MOST_CHARS])
                ids = faster.encode([document]).tokens
            if not np.array_equal(ids, plain.encode([document]).tokens):
                return index
        except BadRecordError:
            return index
    return None
