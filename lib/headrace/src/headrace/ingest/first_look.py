"""The first look: before a build begins its long work, the first records of all files of all
sources are tried.

One error then names every file that cannot be built from, with its fault and the cure: a missing
column, another encoding, no JSON, a template that fails, a damaged archive or table. Without it, a
build would stop at the first such file, after hours, and after its cure at the next one.

Of a file, only its head is read, :data:`HEAD_BYTES`, and :data:`TRIED_RECORDS` records of it
become documents, or more until one is good; nothing is tokenized. A file that becomes bad further
on is not noticed here: ``on_bad_line`` decides what happens then. With ``on_bad_line="skip"``,
bad records pass here, too. But a file whose first records all fail alike does not: no line is to
blame then, but the choice of field, encoding or template, and the whole file would be skipped.
Nor does a source without a single good record, of which nothing would be left, nor a column
beside token ids that may say what is trained on, and of which nothing is known: of one file, all
columns are read, and all of a first record that is longer than the head.

Price: for a file in a bucket, one request; for a table there, one for its end and one or two for
each column. On a local disk, a millisecond or two. At most :data:`MOST_FILES` files of a source, or
:data:`MOST_LOCAL_FILES` of this machine, :data:`AT_ONCE` at a time.
"""

from __future__ import annotations

import io
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from typing import IO, Any, cast

import numpy as np

from headrace.errors import (
    CacheError,
    HeadraceError,
    SourceError,
    did_you_mean,
    format_count,
    format_some,
    redact,
)
from headrace.ingest.choices import Kind
from headrace.ingest.documents import (
    DocumentKind,
    described,
    make_kind,
    open_reader,
    refused,
    template_of,
)
from headrace.ingest.readers.columnar import ColumnarReader
from headrace.ingest.readers.streams import BlockReader, no_lines
from headrace.ingest.records import (
    BadRecordError,
    Columns,
    EndOfHeadError,
    Fields,
    FieldValue,
    MissingFieldError,
    Reader,
    SourceFile,
    containers_of,
    good_records,
    lookup,
    names_in,
)
from headrace.ingest.source import (
    FIELDS,
    NOTHING,
    OF_TOKENIZERS,
    PRE_TOKENIZED,
    TOKEN_MASKS,
    SourceConfig,
)
from headrace.ingest.tokenize import Tokenizer, TokenizerConfig, load_tokenizer
from headrace.store import files, remote

HEAD_BYTES = 1 << 16
"""Stored bytes of a file that are read, from its start."""
TABLE_BYTES = 1 << 22
"""Most bytes that are read of a table: its end, and the first page of each column."""
TRIED_RECORDS = 20
"""Records of a file that become documents."""
MOST_FILES = 1 << 10
"""Files of a source that are looked at; if it has more, so many of them, spread evenly."""
MOST_LOCAL_FILES = 1 << 14
"""The same of a source whose files are all on this machine."""
AT_ONCE = 16
_MOST_RECORDS = 1 << 14  # 64 KiB of packed text may be a thousand times as long
_MOST_NAMED = 20  # files with the same fault


@dataclass(frozen=True)
class Input:
    """What a build reads: the files of a source as they are now, and what their records become.

    Attributes:
        source: The source; which masks its records of ids have is settled.
        kind: What its records become.
        listed: Its files.
        left_out: Extensions of other files in its folders, and how many have them.
        tokenizer: The tokenizer.
        template: The chat template; None if none is needed.
    """

    source: SourceConfig
    kind: Kind
    listed: list[SourceFile]
    left_out: Counter[str]
    tokenizer: Tokenizer
    template: dict[str, Any] | None

    @classmethod
    def of(cls, source: SourceConfig, tokenizer: Tokenizer) -> Input:
        """Lists the files of a source.

        Raises:
            SourceError: a path does not exist, or names no file that can be read; or a column
                beside token ids may say what is trained on, and it is not known how.
            ConfigError: a setting does not fit the files.
        """
        left_out: Counter[str] = Counter()
        listed = [described(file) for file in source.files(left_out)]
        kind = source.kind_of(listed)
        if kind == "tokens":
            source = _with_masks_settled(source, listed)
        template = template_of(source, kind, tokenizer)
        own_tokenizer = tokenizer.reading_special(source.special_tokens_in_text)
        return cls(source, kind, listed, left_out, own_tokenizer, template)

    def documents(self) -> DocumentKind:
        """What makes documents of its records.

        Raises:
            ConfigError: the template or a setting does not fit the kind.
        """
        return make_kind(self.source, self.kind, self.tokenizer, self.template)

    def faults(self) -> list[SourceError]:
        """Looks at its files: an error for each that cannot be built from, in the order of the
        files; one for the source if it holds no record.

        Raises:
            ConfigError: the template or a setting does not fit the kind, or a package is missing.
        """
        kind = self.documents()
        kind_lock = Lock()  # a template renders one conversation at a time
        are_local = all(files.is_local(file.path) for file in self.listed)
        some = _spread(self.listed, MOST_LOCAL_FILES if are_local else MOST_FILES)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-look") as pool:
            trials = list(pool.map(lambda file: _Trial(file, kind, kind_lock), some))
        are_all = len(some) == len(self.listed)
        none_is_good = are_all and all(trial.is_barren for trial in trials)
        faults = [fault for trial in trials if (fault := trial.fault(none_is_good)) is not None]
        if none_is_good and not faults:
            paths = ", ".join(redact(str(path)) for path in self.source.paths)
            cure = "Check paths, format and text field, then build again."
            return [
                SourceError("is an empty source: it holds no documents", field=paths, cure=cure)
            ]
        if are_all:
            return faults
        counts = f"{len(some):,} of the {format_count(len(self.listed), 'file')} of this source"
        note = f"Only {counts} were looked at."
        return [fault.but(cure=f"{fault.cure or ''} {note}".strip()) for fault in faults]


def faults_of_sources(
    sources: Iterable[tuple[SourceConfig, TokenizerConfig]],
) -> list[Sequence[HeadraceError]]:
    """Looks at several sources: for each, an error for each file that it cannot be built from.

    Raises:
        ConfigError: a setting does not fit a source, a tokenizer cannot be loaded, or a package is
            missing.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_bytes("café".encode("latin-1"))
        ...     source = SourceConfig([f"{folder}/a.txt"])
        ...     ((fault,),) = faults_of_sources([(source, TokenizerConfig("bytes"))])
        >>> fault.problem
        'is not UTF-8 (byte 0xe9 at byte 3 of the file)'
    """
    loaded: dict[TokenizerConfig, Tokenizer] = {}
    faults: list[Sequence[HeadraceError]] = []
    for source, tokenizer in sources:
        if tokenizer not in loaded:
            loaded[tokenizer] = load_tokenizer(tokenizer)
        try:
            faults.append(Input.of(source, loaded[tokenizer]).faults())
        except (SourceError, CacheError) as error:  # no file to look at
            faults.append([error])
    return faults


def refuse_faults(faults: Sequence[HeadraceError]) -> None:
    """Raises one error that names all faults, if there are any; files with the same fault are named
    together.

    Raises:
        SourceError: there are faults; ``faults`` of the error lists them.

    Example:
        >>> bad = [
        ...     SourceError("has no column 'text'", field=f"{k}.parquet", cure="Choose one.")
        ...     for k in range(3)
        ... ]
        >>> refuse_faults([*bad, SourceError("is not UTF-8", field="a.txt", cure="Convert it.")])
        Traceback (most recent call last):
        headrace.errors.SourceError: 4 files cannot be built from, and nothing was written:
          0.parquet: has no column 'text'. Choose one.
            the same: 1.parquet, 2.parquet
          a.txt: is not UTF-8. Convert it.
    """
    if len(faults) == 1:
        raise faults[0]
    if not faults:
        return
    lines = [f"{format_count(len(faults), 'file')} cannot be built from, and nothing was written:"]
    for alike in with_same_fault(faults):
        lines.append(f"  {alike[0]}")
        if alike[1:]:
            lines.append(f"    the same: {_named(alike[1:])}")
    raise SourceError("\n".join(lines), faults=faults)


def with_same_fault(faults: Sequence[HeadraceError]) -> list[list[HeadraceError]]:
    """The faults in groups that differ in files and numbers only."""
    groups: defaultdict[str, list[HeadraceError]] = defaultdict(list)
    for fault in faults:
        groups[_without_numbers(fault.problem)].append(fault)
    return list(groups.values())


def in_words(alike: Sequence[HeadraceError]) -> str:
    """The problem of some files with the same fault, in one line.

    Example:
        >>> in_words([SourceError("is not UTF-8", field=name) for name in ("a.txt", "b.txt")])
        'a.txt: is not UTF-8; the same: b.txt'
    """
    problem = f"{alike[0].field}: {alike[0].problem}"
    return f"{problem}; the same: {_named(alike[1:])}" if alike[1:] else problem


def _named(faults: Sequence[HeadraceError]) -> str:
    return format_some([str(fault.field) for fault in faults], _MOST_NAMED)


class _Trial:
    """Tries the records in the head of a file, as far as it can be read.

    Attributes:
        file: The file.
        first_record: Its first record, unless that is bad.
        has_good: Whether one of the tried records is good.
        bad: Those that are bad: of :data:`TRIED_RECORDS`, or more until one is good.
        is_whole: Whether the head is all of the file.

    Raises:
        ConfigError: a package is missing.
    """

    def __init__(self, file: SourceFile, kind: DocumentKind, kind_lock: Lock) -> None:
        self.file = file
        self._kind = kind
        self._kind_lock = kind_lock
        self.first_record: Fields = {}
        self.has_good = False
        self.bad: list[BadRecordError] = []
        self.is_whole = False
        # Place and problem of the first bad record in all of the head; why it cannot be read on.
        self._first_bad: tuple[str, BadRecordError] | None = None
        self._damage: SourceError | None = None
        reader = open_head(file, kind.columns)
        try:
            with _named_by_file(file):
                self._try_records(reader)
        except EndOfHeadError:
            pass
        except SourceError as error:
            self._damage = error

    @property
    def is_barren(self) -> bool:
        """Whether the file has no good record for certain."""
        return self.is_whole and not self.has_good

    def fault(self, none_is_good: bool) -> SourceError | None:
        """The error if the head says that the file cannot be built from; ``none_is_good``: no
        record of the source, so that skipping would leave nothing.
        """
        skips = self._kind.config.on_bad_line == "skip"
        or_else = ""
        if skips and not none_is_good:
            or_else = (
                f"Or leave out the file, or its first {len(self.bad)} records: single ones are"
                " skipped where others beside them are good."
            )
        fault = no_lines(self.file) if self._is_one_list() else self._fault_of_all(or_else)
        if fault is not None or self._first_bad is None:
            return fault or self._damage
        record_place, problem = self._first_bad
        if none_is_good:
            cure = f"{self.file.named_in(problem.cure)} Mend it: the source has no good record."
            return SourceError(problem.problem, field=record_place, cure=cure.strip())
        return self._damage if skips else refused(problem, record_place, self.file)

    def _is_one_list(self) -> bool:
        """Whether the file is one JSON object with its records in a list."""
        if self.file.format != "jsonl" or not self.is_barren or len(self.bad) != 1:
            return False
        problem = self.bad[0]
        if not isinstance(problem, MissingFieldError) or problem.is_usual:
            return False
        lists = [one for one in self.first_record.values() if isinstance(one, list) and one]
        return any(isinstance(one[0], dict) for one in lists)

    def _try_records(self, reader: Reader) -> None:
        """Notes what comes of the records, until one cannot be read."""
        is_stream = isinstance(reader, BlockReader)
        most = _MOST_RECORDS if isinstance(reader, BlockReader | ColumnarReader) else TRIED_RECORDS
        records = iter(reader)
        for number, (row, record) in enumerate(islice(records, most)):
            is_bad = isinstance(record, BadRecordError)
            problem = record if is_bad else None
            # All of the head of a stream is parsed, but few records become documents: that takes
            # longer. If they are all bad, the others are tried until one is good.
            if number < TRIED_RECORDS or not self.has_good:
                problem = self._problem_of(record)
                if problem is None:
                    self.has_good = True
                else:
                    self.bad.append(problem)
            elif not is_stream:
                return
            if number == 0 and not is_bad:
                self.first_record = record
            if self._first_bad is None and problem is not None:
                self._first_bad = reader.describe_row(row), problem
        self.is_whole = next(records, None) is None and not reader.ignored

    def _problem_of(self, record: Fields | BadRecordError) -> BadRecordError | None:
        if isinstance(record, BadRecordError):
            return record
        try:
            with self._kind_lock:
                self._kind.documents(record)
        except BadRecordError as bad:
            return bad
        return None

    def _fault_of_all(self, or_else: str) -> SourceError | None:
        """The error for a file whose first records all fail alike: it blames no line."""
        bad = self.bad
        if self.has_good or len(bad) < 2 or not _are_alike(bad[:TRIED_RECORDS]):
            return None
        cure = (
            self.file.named_in(bad[0].cure)
            or "Choose other fields, another format or kind (--format, --kind)."
        )
        if self._kind.kind == "text" and (name := self._other_text()):
            cure = f"Choose another field: --text-field {shlex.quote(name)}."
        problem = f"each of its first {len(bad)} records fails alike: {bad[0].problem}"
        return SourceError(problem, field=self.file.shown_path, cure=f"{cure} {or_else}".strip())

    def _other_text(self) -> str | None:
        """The field with the longest text of a first record without a text in the configured field;
        None if there is none.
        """
        record = self.first_record
        with suppress(BadRecordError):
            if isinstance(lookup(record, self._kind.config.text_field), str):
                return None
        texts = {name: value for name, value in record.items() if isinstance(value, str)}
        for outer, inner in record.items():
            if isinstance(inner, dict):
                inner_fields = cast("dict[str, Any]", inner).items()
                texts |= {
                    f"{outer}.{name}": one for name, one in inner_fields if isinstance(one, str)
                }
        return max(texts, key=lambda name: len(texts[name]), default=None)


def _with_masks_settled(source: SourceConfig, listed: Sequence[SourceFile]) -> SourceConfig:
    """The source, with the masks that its first record of token ids has, unless they are
    configured.

    Every part is built with the same leaves, so this is decided before the first; a record that
    differs is an error. A file that cannot be read decides nothing: it is named with all others.

    Raises:
        SourceError: nothing is known of a column that may say what is trained on.
    """
    columns = source.columns("tokens")
    files_of_records = (file for file in listed if file.format not in PRE_TOKENIZED)
    first = ((file, records) for file in files_of_records if (records := _first(file, columns)))
    file, records = next(first, (None, []))
    if file is None:
        return source
    _refuse_unknown_columns(source, file, records)
    masks = {
        name: read.field
        for name, read in source.reads("tokens").items()
        if name in TOKEN_MASKS and read.is_optional and records[0].get(read.field) is not None
    }
    return replace(source, fields=source.fields | masks)


def _first(file: SourceFile, columns: Columns) -> list[Fields]:
    """The first good records of a file with all their fields: those in its head, or one that is
    longer than it; none if they cannot be read.
    """
    for open_some, most in ((open_head, TRIED_RECORDS), (open_reader, 1)):
        reader = open_some(file, columns)
        records = list(islice(good_records(reader), most))
        if reader.unread:  # of a table, which columns there are is known once it is open
            names = [*columns.names, *reader.unread]
            optional = columns.optional | set(reader.unread)
            all_columns = replace(columns, names=names, optional=optional)
            records = list(islice(good_records(open_some(file, all_columns)), most))
        if records:
            return records
    return []


def _refuse_unknown_columns(
    source: SourceConfig, file: SourceFile, records: Sequence[Fields]
) -> None:
    """Raises SourceError if the first records of token ids have a number for each id in a column
    that nothing is known of: it may say what is trained on, and without it all is.
    """
    left_unused = {name for name, field in source.fields.items() if field == NOTHING}
    used = set(source.columns("tokens").names)
    containers = containers_of(used)
    present = [set(names_in(record, containers)) for record in records]
    for name in left_unused - FIELDS["tokens"].keys():
        if all(name not in names for names in present):
            raise SourceError(
                f"has no column {name!r} in its first records, which --field {name}=none leaves"
                " unused",
                field=file.shown_path,
                cure=did_you_mean(name, records[0]),
            )
    explained = {*used, *left_unused}
    known_columns = {*FIELDS["tokens"], *OF_TOKENIZERS}
    unknown = [
        name
        for name in names_in(records[0], containers)
        if name not in explained
        and name.split(".")[-1] not in known_columns
        and all(_has_number_for_each_id(r, name, source) for r in records)
    ]
    if not unknown:
        return
    cures = [_cure_of_unknown(name, records) for name in unknown]
    raise SourceError(
        "has a number for each id, and nothing says what it means, in"
        f" {format_count(len(unknown), 'column')}: {', '.join(unknown)}",
        field=file.shown_path,
        cure=f"Say it of each. {'; '.join(cures)}.",
    )


def _cure_of_unknown(name: str, records: Sequence[Fields]) -> str:
    """The options that say what a column with a number for each id means."""
    column = shlex.quote(name)
    if all(np.isin(np.asarray(lookup(record, name)), (0, 1)).all() for record in records):
        return (
            f"{name}: --field loss_mask={column} if 1 marks what is trained on, --field"
            f" prompt_mask={column} if 1 marks what is not, --field {column}=none to leave it"
            " unused"
        )
    leaf = shlex.quote(f"{name.split('.')[-1]}={name}:float32:token")
    return (
        f"{name}: --leaf {leaf} to keep it beside the ids, --field {column}=none to leave it unused"
    )


def _has_number_for_each_id(record: Fields, name: str, source: SourceConfig) -> bool:
    reads = source.reads("tokens")
    parts = ("tokens",) if "tokens" in reads else ("question", "answer")
    try:
        size = sum(len(lookup(record, reads[part].field)) for part in parts if part in reads)
        return 0 < size == FieldValue(lookup(record, name), name).numbers("float64").size
    except (BadRecordError, TypeError):
        return False


@contextmanager
def _named_by_file(file: SourceFile) -> Iterator[None]:
    """Errors of a store, and what would end this program, become errors about the file."""
    try:
        yield
    except CacheError as error:
        cure = f"{error.cure} Then run the same command again."
        problem = f"cannot be read ({error.problem})"
        raise SourceError(problem, field=file.shown_path, cure=cure) from error
    except SystemExit as error:  # of a user's function
        problem = f"ends the program (SystemExit: {error})"
        cure = "Let it raise an error in place of that."
        raise SourceError(problem, field=file.shown_path, cure=cure) from error


def open_head(file: SourceFile, columns: Columns) -> Reader:
    """A reader of the first records of a file, which reads little more than them. If it could read
    on, it ends with EndOfHeadError.
    """
    reader = open_reader(file, columns)
    size = file.size
    if isinstance(reader, BlockReader):
        reader.open_stream = lambda: cast("IO[bytes]", _Head(file.path, size))
    elif isinstance(reader, ColumnarReader) and size is not None:
        reader.open_stream = lambda: cast("IO[bytes]", _TablePieces(file.path, size))
        reader.page_bytes = HEAD_BYTES
    return reader


class _Head(io.RawIOBase):
    """The first bytes of a file, by one request; EndOfHeadError after them if the file goes on."""

    def __init__(self, path: str, size: int | None) -> None:
        super().__init__()
        head = b"" if size == 0 else files.read_range(path, 0, HEAD_BYTES)[:HEAD_BYTES]
        self._stream = io.BytesIO(head)
        self._goes_on = len(head) == HEAD_BYTES != size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        if not data and self._goes_on:
            raise EndOfHeadError
        return data


class _TablePieces(remote.SeekableFile):
    """A table's file, of which only the pieces that are asked for are read, :data:`HEAD_BYTES` at
    least; EndOfHeadError when they would be more than :data:`TABLE_BYTES`.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._path = path
        self._size = size
        self._pieces: list[tuple[int, bytes]] = []
        self._left = TABLE_BYTES

    def _find_end(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        for start, piece in self._pieces:
            if start <= self._at and stop <= start + len(piece):
                break
        else:
            start, piece = self._fetch(self._at, stop)
        data = piece[self._at - start : stop - start]
        self._at += len(data)
        return data

    def _fetch(self, start: int, stop: int) -> tuple[int, bytes]:
        # A few bytes at the end of a table are followed by the bytes before them.
        start = min(start, max(0, self._size - HEAD_BYTES))
        stop = min(max(stop, start + HEAD_BYTES), self._size)
        self._left -= stop - start
        if self._left < 0:
            raise EndOfHeadError
        piece = files.read_range(self._path, start, stop)
        if len(piece) > stop - start:  # of a web server that always sends the whole file
            piece = piece[start:stop]
        self._pieces.append((start, piece))
        return start, piece


def _spread(listed: Sequence[SourceFile], most: int) -> list[SourceFile]:
    """At most so many of the files, spread evenly."""
    count = min(len(listed), most)
    return [listed[i * len(listed) // count] for i in range(count)]


def _are_alike(problems: Sequence[BadRecordError]) -> bool:
    """Whether problems differ in nothing but numbers, and details, which stand in brackets."""
    return len({_without_numbers(bad.problem.partition(" (")[0]) for bad in problems}) == 1


def _without_numbers(problem: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "", problem)
