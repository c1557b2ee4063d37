"""Builds parts from part tasks: one pipeline, in this process.

::

    reader thread            encoder threads (3)            caller's thread
    files -> documents  ->   encode_batch (all cores,   ->  PartWriter -> part.json
             in batches      without the interpreter lock)

The pipeline runs across the borders of parts, so it is filled once, not once per part. It is a
function of its tasks: a worker process or a remote task runs the same :func:`run_parts` on its
tasks, and every part is bit-identical, whichever worker builds it, however often, and with whatever
other parts.

Memory is bounded in bytes, not in documents: a batch ends with the document that reaches its limit,
at most ``QUEUE_BATCHES`` batches wait, and three are being encoded. A larger document exceeds this
limit.

Where a faster encoder encodes, ``tokenizers`` encodes some documents, too, and the ids are compared:
the first of each part, where a new kind of text would show, and then one in 1,024, selected by the
part's name, so that a resumed or repeated build compares the same ones. Of a document of more than
64 Ki characters, its beginning is encoded separately and compared. A difference stops the part,
which is built again with ``tokenizers``. ``tokenizers`` takes about a thousand times as long for a
document as everything else, so one in 1,024 costs 5% to 10% of a build, and the first documents (at
most 32 KiB if documents are shorter) 30 ms per part.

Price: a thread switch and a few queue operations per batch (0.5 MiB of text on two cores): under
0.1%.
"""

from __future__ import annotations

import logging
import sys
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from headrace.ingest.base_tokenizer import Tokenizer
from headrace.ingest.choices import Kind
from headrace.ingest.code_points import Ranges
from headrace.ingest.documents import DocumentReader, make_kind
from headrace.ingest.gigatoken_encoder import GigatokenEncoder, with_gigatoken
from headrace.ingest.kinds.kind import LOSS_MASK, Document, DocumentKind, EncodedBatch
from headrace.ingest.plan import PartTask
from headrace.ingest.progress import NOTHING, EncoderCounts, Progress
from headrace.ingest.records import BadRecordError
from headrace.ingest.schedule import BuildPart
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import (
    FileTokenizer,
    batch_chars,
    encoding_threads,
    recorded_tokenizer,
)
from headrace.store.ahead import ReadAhead
from headrace.store.layout import CacheLayout
from headrace.store.parts import PartRecord
from headrace.store.ragged import PartWriter
from headrace.store.retry import RetryPolicy, policy

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

WORKER_BYTES = 512 << 20
ENCODERS = 3
QUEUE_BATCHES = 4
FIRST_DOCUMENTS = 8
FIRST_BYTES = 32 << 10
ONE_IN = 1024
MOST_CHARS = 1 << 16


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

    def part_builder(self) -> BuildPart:
        """Builds parts with the cache's copy of the tokenizer, which exists when the first part is
        started.
        """
        tokenizer = self.encoding(recorded_tokenizer(self.root, self.tokenizer))

        def build(task: PartTask, root: str, report: Callable[[Progress], None]) -> PartRecord:
            (record,) = run_parts(
                replace(self, root=root), [task], tokenizer=tokenizer, report=report
            )
            return record

        return build

    def encoding(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer with the encoder of this job."""
        if self.code_points is None or not isinstance(tokenizer, FileTokenizer):
            return tokenizer
        return with_gigatoken(tokenizer, self.code_points)


_NONE_SKIPPED = (sys.maxsize, 0, "")


@dataclass
class _Counts:
    """Counters of a part's record besides documents and tokens. ``first_skipped``: the file of the
    part, the row, and the problem.
    """

    empty_documents: int = 0
    skipped_lines: int = 0
    first_skipped: tuple[int, int, str] = _NONE_SKIPPED
    text_bytes: int = 0
    trained_tokens: int = 0
    untrained_documents: int = 0
    ignored: dict[str, int] = field(default_factory=dict[str, int])
    unused_fields: dict[str, int] = field(default_factory=dict[str, int])
    optional_fields: list[str] = field(default_factory=list[str])

    def __iadd__(self, more: _Counts) -> _Counts:
        for name in (
            "empty_documents",
            "skipped_lines",
            "text_bytes",
            "trained_tokens",
            "untrained_documents",
        ):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.first_skipped = min(self.first_skipped, more.first_skipped)
        for what, count in more.ignored.items():
            self.ignored[what] = self.ignored.get(what, 0) + count
        for name, count in more.unused_fields.items():
            self.unused_fields[name] = self.unused_fields.get(name, 0) + count
        self.optional_fields = sorted({*self.optional_fields, *more.optional_fields})
        return self

    def to_dict(self) -> dict[str, Any]:
        """The counters for the part's record; without lists of fields that are empty."""
        facts = vars(self) | {"first_skipped": self.first_skipped[2]}
        for name in ("unused_fields", "optional_fields"):
            if not facts[name]:
                del facts[name]
        return facts

    def add_encoded(self, documents: Sequence[Document], encoded: EncodedBatch) -> None:
        self.text_bytes += sum(d.num_bytes for d in documents)
        self.empty_documents += sum(not d.num_bytes for d in documents)
        if LOSS_MASK.name in encoded.leaves:
            so_far = np.concatenate(
                [[0], np.cumsum(encoded.leaves[LOSS_MASK.name][0], dtype=np.int64)]
            )
            trained = np.diff(so_far[np.concatenate([[0], np.cumsum(encoded.lengths)])])
            self.trained_tokens += int(trained.sum())
            self.untrained_documents += int(((trained == 0) & (encoded.lengths > 0)).sum())


@dataclass
class _Batch:
    """Documents of one part in the pipeline, with file number, row and reader of each; those of a
    record stay together.

    The last batch of a part closes it (and may be empty). ``counts`` cover what was read since the
    previous batch.
    """

    task: PartTask
    counts: _Counts = field(default_factory=_Counts)
    documents: list[Document] = field(default_factory=list[Document])
    origins: list[tuple[int, int, DocumentReader]] = field(
        default_factory=list[tuple[int, int, DocumentReader]]
    )
    weight: int = 0
    stored_bytes: int = 0
    first: int = 0
    closes: bool = False
    compared: int = 0

    def encoded(
        self, kind: DocumentKind, plain: DocumentKind | None = None
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
            pairs = groupby(
                zip(self.origins, self.documents, strict=True), key=lambda pair: pair[0]
            )
            records = [(origin, [document for _, document in group]) for origin, group in pairs]
            accepted = [(o, d) for o, record in records for d in self._accepted(kind, record, *o)]
            self.origins = [o for o, _ in accepted]
            self.documents = [d for _, d in accepted]
            encoded = kind.encode(self.documents)
        if plain is not None:
            self._compare(encoded, kind, plain)
        self.counts.add_encoded(self.documents, encoded)
        return self, encoded

    def _compare(self, encoded: EncodedBatch, kind: DocumentKind, plain: DocumentKind) -> None:
        indices = compared_indices(
            self.task.name, self.first, [d.num_bytes for d in self.documents]
        )
        differing = first_difference(indices, self.documents, encoded, (kind, plain))
        if differing is not None:
            _, row, reader = self.origins[differing]
            raise EncodersDifferError(self.task.name, reader.describe_row(row))
        self.compared = len(indices)

    def _accepted(
        self,
        kind: DocumentKind,
        record: list[Document],
        number: int,
        row: int,
        reader: DocumentReader,
    ) -> list[Document]:
        try:
            kind.encode(record)
        except BadRecordError as bad:
            self.counts += _Counts(0, 1, (number, row, reader.refusal(row, bad)))
            return []
        return record


def run_parts(
    job: BuildJob,
    tasks: Sequence[PartTask],
    *,
    tokenizer: Tokenizer | None = None,
    report: Callable[[Progress], None] | None = None,
    batch_bytes: int | None = None,
) -> Generator[PartRecord]:
    """Builds the parts of ``tasks`` in order, each from its start.

    A part in which a faster encoder differs from ``tokenizers`` is restarted with the latter.

    Yields:
        The record of each part, when it is complete on disk.

    Raises:
        SourceError: a file cannot be read. Earlier parts are complete.
        CacheError: the cache cannot be written.
    """
    tokenizer = tokenizer or job.encoding(recorded_tokenizer(job.root, job.tokenizer))
    kind = make_kind(job.source, job.kind, tokenizer, job.template)
    faster = tokenizer.encoder if isinstance(tokenizer, FileTokenizer) else None
    encoder = faster if isinstance(faster, GigatokenEncoder) else None
    plain = (
        None
        if encoder is None
        else make_kind(job.source, job.kind, encoder.tokenizer, job.template)
    )
    remaining = deque(tasks)
    limit = batch_bytes or batch_chars()
    slow_parts = set[str]()

    def encode(batch: _Batch) -> tuple[_Batch, EncodedBatch]:
        if plain is not None and batch.task.name in slow_parts:
            return batch.encoded(plain)
        return batch.encoded(kind, plain)

    while remaining:
        moved = NOTHING  # in the part that is being built
        try:
            for batch, encoded, record in _encoded_parts(
                job, kind, remaining.copy(), encode, limit
            ):
                advanced = (
                    len(batch.documents),
                    int(encoded.tokens.size),
                    batch.counts.text_bytes,
                    batch.stored_bytes,
                )
                counts = EncoderCounts() if encoder is None else encoder.take_counts(batch.compared)
                moved += Progress(*advanced)
                if report is not None:
                    report(Progress(*advanced, counts))
                if record is not None:
                    remaining.popleft()
                    moved = NOTHING
                    yield record
        except EncodersDifferError as error:
            slow_parts.add(error.part)
            _log.warning(
                f"gigatoken and tokenizers differ at {error.place}: part {error.part} takes"
                " tokenizers"
            )
            if report is not None:
                report(-moved + Progress(0, 0, 0, 0, EncoderCounts(differences=(error.place,))))


def _encoded_parts(
    job: BuildJob,
    kind: DocumentKind,
    tasks: Iterable[PartTask],
    encode: Callable[[_Batch], tuple[_Batch, EncodedBatch]],
    limit: int,
) -> Generator[tuple[_Batch, EncodedBatch, PartRecord | None]]:
    """All batches as they are written, with the record of a part when one completes it."""
    reading = ReadAhead(
        _batches(job.source, kind, tasks, limit),
        weigh=lambda b: b.weight,
        capacity=QUEUE_BATCHES * limit,
    )
    # A worker with one core encodes with one thread: more would only wait for the same core.
    encoders = ENCODERS if encoding_threads() > 1 else 1
    pool = ThreadPoolExecutor(encoders, thread_name_prefix="headrace-encode")
    try:
        writer: PartWriter | None = None
        counts = _Counts()
        for batch, encoded in _map_ahead(pool, encode, reading, 2 * encoders):
            if writer is None:
                writer = PartWriter(job.root, batch.task.name, job.layout, kind.specs)
                counts = _Counts()
            writer.append(*encoded)
            counts += batch.counts
            record = None
            if batch.closes:
                record = writer.close(**counts.to_dict())
                writer = None
            yield batch, encoded, record
    finally:
        reading.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(
    source: SourceConfig, kind: DocumentKind, tasks: Iterable[PartTask], limit: int
) -> Iterator[_Batch]:
    """All documents of all tasks, in order, in batches of about ``limit`` bytes that never span two
    parts.
    """
    for task in tasks:
        batch = _Batch(task)
        for number, file in enumerate(task.files):
            reader = DocumentReader(file, source, kind)
            consumed = 0
            for document in reader:
                origin = number, reader.row, reader
                full = batch.weight >= limit or len(batch.documents) >= max(1, limit // 64)
                if full and origin != batch.origins[-1]:
                    batch.stored_bytes += reader.stored_bytes - consumed
                    consumed = reader.stored_bytes
                    yield batch
                    batch = _Batch(task, first=batch.first + len(batch.documents))
                batch.documents.append(document)
                batch.origins.append(origin)
                batch.weight += document.num_bytes + sum(v.nbytes for v in document.leaves)
            batch.stored_bytes += reader.stored_bytes - consumed
            skipped = (number, *reader.first_skipped) if reader.first_skipped else _NONE_SKIPPED
            batch.counts += _Counts(
                0,
                reader.skipped_lines,
                skipped,
                ignored=dict(reader.ignored),
                unused_fields=dict(reader.unused_fields()),
                optional_fields=sorted(reader.optional_fields()),
            )
        batch.closes = True
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
    """Two encoders gave different ids for a document.

    Attributes:
        part: Name of the part.
        place: The document.
    """

    def __init__(self, part: str, place: str) -> None:
        super().__init__(part, place)
        self.part = part
        self.place = place


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
