"""From files to documents: a container's reader gives the records of a file, and a kind makes
documents of them, and ids of documents.

- :func:`reader_of` finds the reader of a file's format, :func:`split_file` cuts a large file.
- :class:`DocumentKind` is what every kind does, :class:`TextKind` the simplest. The others are in
  :mod:`headrace.ingest.kinds`; :func:`make_kind` makes that of a source.
- :class:`DocumentReader` reads the documents of one file. Errors name file and row, and nothing is
  dropped silently: the policy (``on_bad_line``) either stops the build or counts.

Price: that of the container's reader; memory is bounded by one document.
"""

from __future__ import annotations

import abc
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headrace import extensions
from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.ingest.chat_template import ChatTemplate, find_template
from headrace.ingest.choices import FORMATS, Kind
from headrace.ingest.fim import content_keys, fill_in_middle
from headrace.ingest.records import (
    BadRecordError,
    Columns,
    Fields,
    FieldValue,
    Reader,
    SourceFile,
    containers_of,
    joined,
    names_in,
    utf8_length,
)
from headrace.ingest.source import ChatConfig, SourceConfig
from headrace.ingest.tokenize import Tokenizer
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

_KINDS: dict[Kind, str] = {
    "text": "headrace.ingest.documents:TextKind",
    "tokens": "headrace.ingest.kinds.token_ids:TokensKind",
    "chat": "headrace.ingest.kinds.marked:ChatKind",
    "preference": "headrace.ingest.kinds.marked:PreferenceKind",
    "prompts": "headrace.ingest.kinds.marked:PromptsKind",
}
"""What records become: the class of each kind, which is imported where a source has it."""
LOSS_MASK = LeafSpec("loss_mask", "uint8", "ragged")
PROMPT_LENGTH = LeafSpec("prompt_length", "int32", "fixed")
CHOSEN = LeafSpec("chosen", "uint8", "fixed")
MIN_SLICE_BYTES = 1 << 20
"""Smallest useful slice: a reader reads this much at once."""
MOST_UNUSED_NAMES = 256
"""Names of unused fields that are counted one by one; records may be keyed by ids."""
OTHER_FIELDS = "(others)"
_MOST_SHAPES = 1024


def reader_of(file: SourceFile) -> type[Reader]:
    """The reader of a file's format.

    Raises:
        ConfigError: its package is not installed, or the file is compressed, which the format does
            not support.
    """
    name = FORMATS[file.format].reader
    reader: type[Reader] = (
        extensions.load_extension(extensions.READERS, file.format, "format")
        if name is None
        else pkgutil.resolve_name(name)
    )
    if file.compression != "none" and not reader.unpacks:
        raise ConfigError(
            f"is a {file.format} file packed with {file.compression}",
            field=file.path,
            cure="Unpack it first.",
        )
    return reader


def open_reader(file: SourceFile, columns: Columns) -> Reader:
    """The reader of some fields of a file or slice; errors as for :func:`reader_of`."""
    return reader_of(file)(file, columns)


def split_file(file: SourceFile, target_bytes: int) -> list[SourceFile]:
    """The slices of a file that is larger than ``target_bytes`` (1 MiB at least), in order; or the
    file.

    Depends only on the file and on ``target_bytes``. Opens large files of formats with an internal
    index.
    """
    target_bytes = max(target_bytes, MIN_SLICE_BYTES)
    if file.size is not None and file.size <= target_bytes:
        return [file]
    slices = reader_of(file).split(file, target_bytes)
    return [replace(file, part=s) for s in slices] if len(slices) > 1 else [file]


def described(file: SourceFile) -> SourceFile:
    """A listed file, completed with the size of a dataset or the version of an index."""
    return reader_of(file).described(file)


class Document(NamedTuple):
    """One document, before it is encoded.

    Attributes:
        text: Its text; empty if it consists of ids.
        num_bytes: Length of the text in UTF-8, or of the ids.
        leaves: Values of the requested leaves, in order.
        spans: Characters ``start .. stop`` that are trained on, increasing; None if the kind has no
            masks.
        cut: Characters of a prompt, which is encoded separately from what follows; 0 if there is
            none.
        framed: Whether the special tokens of the policy are added around it (a prompt has none
            after it).
        ids: Its ids, if the source has them.
        mask: Its mask, if the source has it: uint8 ``[len(ids)]``.
        label: Label from the kind: 1 for the chosen one of a pair.
        unused: Fields of the record that the kind reads, and that the chat template left out.
    """

    text: str
    num_bytes: int
    leaves: tuple[np.ndarray, ...] = ()
    spans: tuple[tuple[int, int], ...] | None = None
    cut: int = 0
    framed: tuple[bool, bool] = (False, False)
    ids: np.ndarray | None = None
    mask: np.ndarray | None = None
    label: int = 0
    unused: tuple[str, ...] = ()


class EncodedBatch(NamedTuple):
    """Documents in the form of a part: ids end to end, int64 lengths ``[documents]``, values of
    each leaf.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    leaves: dict[str, LeafValues]


class DocumentKind(abc.ABC):
    """Converts records to documents, and documents to ids."""

    own_leaves: tuple[LeafSpec, ...] = ()

    def __init__(
        self, config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> None:
        _check_special_tokens(config, kind)
        self.config = config
        self.template = template
        # Text of a template is trusted: there, the record's strings are checked in advance.
        self.tokenizer = tokenizer.reading_special(
            config.special_tokens_in_text if kind == "text" else "token"
        )
        self.kind: Kind = kind
        self.columns = config.columns(kind)
        self.reads = config.reads(kind)
        self._asked = tuple(leaf.spec(name) for name, leaf in config.leaves.items())
        self._leaf_reads = [(leaf, leaf.read(name)) for name, leaf in config.leaves.items()]
        for name, leaf in config.leaves.items():
            if leaf.width is not None and (kind != "tokens" or config.fim is not None):
                what = (
                    "tokens that move for filling in the middle"
                    if kind == "tokens"
                    else f"documents of kind {kind}"
                )
                problem = f"has values for tokens, and {what} are not those that they belong to"
                cure = (
                    "Keep such values of ready ids (--kind tokens), without --fim-prefix and the"
                    " like."
                )
                raise ConfigError(problem, field=f"leaves.{name}", value=leaf.field, cure=cure)
        self._fim = (
            None if config.fim is None else fill_in_middle(config, config.fim, kind, tokenizer)
        )

    @property
    def specs(self) -> list[LeafSpec]:
        return [*self.own_leaves, *self._asked]

    @abc.abstractmethod
    def documents(self, record: Fields) -> Sequence[Document]:
        """The documents of a record.

        Raises:
            BadRecordError: it cannot be used.
        """

    @abc.abstractmethod
    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        """Ids and the kind's own leaves."""

    def encode(self, documents: Sequence[Document]) -> EncodedBatch:
        """Ids and leaves of some documents, each independent of the others."""
        encoded = self._encode(documents)
        if self._fim is not None:
            keys = content_keys(encoded.tokens, encoded.lengths)
            tokens, lengths = self._fim(encoded.tokens, encoded.lengths, keys)
            encoded = EncodedBatch(tokens, lengths, encoded.leaves)
        for i, spec in enumerate(self._asked):
            encoded.leaves[spec.name] = joined(spec, [d.leaves[i] for d in documents])
        return encoded

    def _leaves(self, record: Fields) -> tuple[np.ndarray, ...]:
        return tuple(leaf.values(read.of(record)) for leaf, read in self._leaf_reads)

    def _read(self, record: Fields, name: str) -> FieldValue:
        """What a record holds for the kind under a name."""
        read = self.reads.get(name)
        return FieldValue(None, name, name=name) if read is None else read.of(record)

    def is_required(self, name: str) -> bool:
        """Whether every record has a value."""
        return name in self.reads and not self.reads[name].is_optional


class TextKind(DocumentKind):
    """One text, one document."""

    def documents(self, record: Fields) -> Sequence[Document]:
        text = record.get(self.reads["text"].field)
        if not isinstance(text, str):  # within another field, or no text
            text = self._read(record, "text").text()
        return (Document(text, utf8_length(text), self._leaves(record) if self._asked else ()),)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        return EncodedBatch(*self.tokenizer.encode_batch([d.text for d in documents]), {})


def _check_special_tokens(config: SourceConfig, kind: Kind) -> None:
    setting = config.special_tokens_in_text
    if kind == "text" or setting == "token" or (kind != "tokens" and setting == "error"):
        return
    cure = (
        "Leave it out."
        if kind == "tokens"
        else "Say error, with --on-bad-line skip to leave such records out."
    )
    problem = f"is not for documents of kind {kind!r}"
    raise ConfigError(problem, field="special_tokens_in_text", value=setting, cure=cure)


def make_kind(
    config: SourceConfig, kind: Kind, tokenizer: Tokenizer, template: dict[str, Any] | None
) -> DocumentKind:
    """Makes the kind of a source.

    Raises:
        ConfigError: the mask needs marks that the template does not have, or there is no template.
    """
    chat = None
    if template is not None:
        chat = ChatTemplate(template, config.chat.variables, config.max_record_bytes)
        _check_variables(config.chat, chat)
    elif kind == "chat":
        raise ConfigError("is needed for conversations", field="chat.template", value=None)
    marks_are_missing = chat is not None and not chat.has_marks
    if kind == "chat" and config.chat.mask == "generation" and marks_are_missing:
        raise ConfigError(
            "does not mark the model's text with {% generation %}, so what to train on cannot be"
            " told",
            field="chat.template",
            cure="Choose by roles: --mask roles --mask-role assistant (each turn of a role is"
            " rendered apart), or train"
            " on everything: --mask all.",
        )
    made_of: type[DocumentKind] = pkgutil.resolve_name(_KINDS[kind])
    return made_of(config, kind, tokenizer, chat)


def template_of(source: SourceConfig, kind: Kind, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The chat template, if one is needed; prompts and pairs may be plain texts,
    which need none.
    """
    if kind not in ("chat", "preference", "prompts"):
        return None
    try:
        return find_template(source.chat, tokenizer.folder)
    except ConfigError:
        if kind == "chat" or source.chat.template is not None:
            raise
        return None


def _check_variables(config: ChatConfig, chat: ChatTemplate) -> None:
    """Raises ConfigError if the template does not read a variable that it is given."""
    for name, value in config.variables.items():
        if name not in chat.variables_read:
            raise ConfigError(
                "is no variable of the chat template",
                field=f"chat.variables.{name}",
                value=value,
                cure=f"{did_you_mean(name, chat.variables_read)} Or leave it out.",
            )


class DocumentReader:
    """Iterates over the documents of one file or slice, once; ``row`` is that of
    the last document.
    """

    def __init__(self, file: SourceFile, kind: DocumentKind) -> None:
        self.file = file
        self._kind = kind
        self.row = 0
        self.skipped_lines = 0
        self.first_skipped: tuple[int, str] | None = None
        self._reader: Reader = open_reader(file, kind.columns)
        self.ignored = self._reader.ignored
        self._ended = False
        # Rows by the fields they have: a tuple of names counts as fast as a number.
        self._shapes: Counter[tuple[str, ...]] = Counter()
        self._unused: Counter[str] = Counter()
        self._optional_fields: set[str] = set()
        self._rows = 0
        self._containers = containers_of(kind.columns.names)

    @property
    def stored_bytes(self) -> int:
        size = self.file.num_bytes
        if size is None:
            return self._reader.stored_bytes
        return size if self._ended else min(size, self._reader.stored_bytes)

    def unused_fields(self) -> Counter[str]:
        """Fields of the records so far from which nothing was read, with their
        number of records.
        """
        self._count_shapes()
        return self._unused + Counter(dict.fromkeys(self._reader.unread, self._rows))

    def optional_fields(self) -> set[str]:
        """The fields that a record may lack and that some so far have."""
        self._count_shapes()
        return self._optional_fields - {leaf.field for leaf in self._kind.config.leaves.values()}

    def __iter__(self) -> Iterator[Document]:
        """The documents, in order.

        Raises:
            SourceError: the file cannot be read, a record is bad (unless skipped), or the file
                changed since it was listed.
        """
        try:
            for row, record in self._reader:
                try:
                    if isinstance(record, BadRecordError):
                        raise record
                    documents = self._kind.documents(record)
                except BadRecordError as bad:
                    self.skipped_lines += 1
                    self.first_skipped = self.first_skipped or (row, self.refusal(row, bad))
                    continue
                self.row = row
                self._note_fields(record)
                self._count_unused({name for one in documents for name in one.unused}, 1)
                yield from documents
        except SourceError:
            # if the file is being written, report that and not the incomplete line
            self._check_unchanged()
            raise
        self._check_unchanged()
        self._ended = True

    def _note_fields(self, record: Fields) -> None:
        self._rows += 1
        self._shapes[tuple(names_in(record, self._containers))] += 1
        if len(self._shapes) >= _MOST_SHAPES:
            self._count_shapes()

    def _count_shapes(self) -> None:
        used = self._containers.union(self._kind.columns.names)
        for shape, rows in self._shapes.items():
            self._count_unused([name for name in shape if name not in used], rows)
            self._optional_fields.update(self._kind.columns.optional & set(shape))
        self._shapes.clear()

    def _count_unused(self, names: Iterable[str], rows: int) -> None:
        for name in names:
            is_listed = name in self._unused or len(self._unused) < MOST_UNUSED_NAMES
            self._unused[name if is_listed else OTHER_FIELDS] += rows

    def refusal(self, row: int, bad: BadRecordError) -> str:
        """The problem of a row's record, if such records are skipped; otherwise raises it."""
        if self._kind.config.on_bad_line == "error":
            raise refused(bad, self.describe_row(row), self.file)
        return f"{self.describe_row(row)}: {bad.problem}"

    def describe_row(self, row: int) -> str:
        """A row for a message, with the file."""
        return self._reader.describe_row(row)

    def _check_unchanged(self) -> None:
        try:
            now = self._reader.stat(self.file)
        except Exception:  # noqa: BLE001 (clients raise what they like)
            # gone or unreachable after it was read completely: its content matched the listing
            return
        if now != (self.file.size, self.file.version):
            raise SourceError(
                "changed while the cache was being built",
                field=self.file.path,
                cure="Run the same command again when nothing writes to it any more.",
            )


def refused(bad: BadRecordError, place: str, file: SourceFile) -> SourceError:
    """The error about a bad record, if such records are not skipped."""
    cure = (
        f"{file.named_in(bad.cure)} Or leave such lines out: --on-bad-line skip"
        ' (in Python: on_bad_line="skip"); finished parts are kept.'
    )
    return SourceError(bad.problem, field=place, cure=cure.strip())
