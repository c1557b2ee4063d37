"""Records: mappings of fields, with their row, that every container returns; and the fields that
are stored as leaves.

A **container** is a file format (JSONL, Parquet, WARC, ...); a **record** is its content, the same
for all containers; a **kind** (:mod:`headrace.ingest.kinds`) converts records to documents.
Containers and kinds do not depend on each other, so each new one works with all of the others.

Invariant: the records of a file and their rows depend only on the file, and the slices of a file,
read in order, give the same records as the whole. Price of a leaf: a look-up and a small array per
document, about 1 us.
"""

from __future__ import annotations

import abc
import importlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from headrace.errors import (
    ConfigError,
    HeadraceError,
    SourceError,
    did_you_mean,
    install_command,
    redact,
)
from headrace.ingest.choices import FileCompression, Format
from headrace.store import files
from headrace.store.files import open_source
from headrace.store.layout import LeafSpec
from headrace.store.ragged import LeafValues

Fields: TypeAlias = Mapping[str, Any]

TEXT = "text"
ANY = "any"
_LEAF_CURE = "Check the field of this leaf, or leave such records out."
NAMED_FILE = "<FILE>"
"""Stands for the record's file in the commands of a cure."""
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""What files in UTF-16 begin with."""


class BadRecordError(Exception):
    """One record that cannot be used; the policy (``on_bad_line``) decides what happens. Commands
    in its cure say :data:`NAMED_FILE` for the file.
    """

    def __init__(self, problem: str, cure: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.cure = cure


class MissingFieldError(BadRecordError):
    """A record lacks a field that is read.

    Args:
        field: The field.
        present: The fields that it has.
        cure: What to type, unless they are those of another usual kind of records.

    Attributes:
        is_usual: Whether they are; the cure says with which options they are read.
    """

    def __init__(self, field: str, present: Sequence[str], cure: str) -> None:
        names = [repr(name) for name in present][:12]
        has = "it has " + ", ".join(names) if names else "the object is empty"
        by_shape = cure_of_shape(field, present)
        super().__init__(f"has no field {field!r} ({has})", by_shape or cure)
        self.is_usual = bool(by_shape)


class EndOfHeadError(Exception):
    """A stream that gives only the beginning of its file has no more to give, and
    the file goes on.
    """


Row: TypeAlias = "tuple[int, Fields | BadRecordError]"


@dataclass(frozen=True)
class Slice:
    """A run of a file's units (bytes, row groups, rows, ..., depending on the container), read as
    if it were a file.

    Attributes:
        start: First unit.
        stop: One past the last; None: to the end of the file, whatever its length then.
        num_bytes: Stored bytes in it, about.
    """

    start: int
    stop: int | None
    num_bytes: int


def slices_of(bounds: Sequence[int], sizes: Iterable[int]) -> list[Slice]:
    """Slices between bounds; the last goes to the end of the file, whatever its length then.

    Example:
        >>> slices_of([0, 2, 5], [7, 9])
        [Slice(start=0, stop=2, num_bytes=7), Slice(start=2, stop=None, num_bytes=9)]
    """
    stops = [*bounds[1:-1], None]
    return [Slice(*one) for one in zip(bounds[:-1], stops, sizes, strict=False)]


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus, or a slice of one, as it was when it was listed.

    Attributes:
        path: As the user wrote its folder (relative stays relative), or a URL.
        format: File format.
        compression: Compression of the file.
        size: Stored bytes; None if unknown.
        version: Changes when the content does: ``mtime:<ns>`` or an etag; empty if unknown.
        part: The slice; None for the whole file.
    """

    path: str
    format: Format
    compression: FileCompression = "none"
    size: int | None = None
    version: str = ""
    part: Slice | None = None

    @property
    def num_bytes(self) -> int | None:
        """Approximate stored bytes of the file or the slice; None if unknown."""
        return self.size if self.part is None else self.part.num_bytes

    @property
    def shown_path(self) -> str:
        """The path without credentials, for messages and ledgers."""
        return redact(self.path)

    def named_in(self, cure: str) -> str:
        """A cure of :class:`BadRecordError` whose commands name the file, if they can read it."""
        is_plain = self.compression == "none" and files.is_local(self.path)
        return cure.replace(NAMED_FILE, shlex.quote(self.path) if is_plain else "FILE")


MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True)
class Columns:
    """What is read of records.

    Attributes:
        names: Fields (dotted paths).
        optional: Those of them that a record may lack.
        cures: What to type if one does not exist, by its name.
        max_record_bytes: A larger record is a bad one, if records are read as a whole.
    """

    names: Sequence[str] = ()
    optional: AbstractSet[str] = frozenset()
    cures: Mapping[str, str] = field(default_factory=dict[str, str])
    max_record_bytes: int = MAX_RECORD_BYTES


class Reader(abc.ABC):
    """Iterates over the records of one file, or of a slice of it, once.

    Attributes:
        file: The file or the slice.
        path: Its path.
        columns: What is read of the records.
        stored_bytes: Bytes of the file consumed so far, as stored (for progress).
        ignored: Ignored records, by type (``text/html``).
        unread: Columns of a table that are not read.
        open_stream: Opens the file; one who reads only its beginning opens less.
    """

    unit: ClassVar[str] = "row"
    unpacks: ClassVar[bool] = False
    """Whether files may be compressed."""

    def __init__(self, file: SourceFile, columns: Columns) -> None:
        self.file = file
        self.path = file.path
        self.columns = columns
        self.stored_bytes = 0
        self.ignored: Counter[str] = Counter()
        self.unread: list[str] = []
        self.open_stream: Callable[[], IO[bytes]] = partial(open_source, file.path)

    def too_long(self) -> BadRecordError:
        """The error for a record of more than ``max_record_bytes``."""
        cure = "If it is meant to be so long, pass a larger --max-record-bytes."
        return BadRecordError(f"has more than {self.columns.max_record_bytes:,} bytes", cure)

    def only_field(self, usual: str) -> str:
        """The name of the field of records that have just one."""
        return self.columns.names[0] if self.columns.names else usual

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """The records in order, each with its row; an error instead of a bad one.

        Raises:
            SourceError: the file cannot be read.
        """

    @classmethod
    def split(cls, file: SourceFile, target_bytes: int) -> list[Slice]:
        """Slices of a file of more than ``target_bytes``, each of about as many; none if it is read
        as a whole.
        """
        return []

    @classmethod
    def described(cls, file: SourceFile) -> SourceFile:
        """A listed file, with what its listing does not know of its size and version."""
        return file

    @classmethod
    def stat(cls, file: SourceFile) -> tuple[int | None, str]:
        """Current size and version of a file.

        Raises:
            FileNotFoundError: it is gone.
        """
        return files.stat_file(file.path)

    def units(self, count: int) -> range:
        """The units of the file to read, of ``count``."""
        part = self.file.part or Slice(0, None, 0)
        return range(part.start, count if part.stop is None else min(part.stop, count))

    def columns_of(self, present: Sequence[str]) -> list[str]:
        """The columns of a table to read.

        Raises:
            SourceError: a requested one is missing.
        """
        cures = self.columns.cures
        for column in self.columns.names:
            if (
                column not in self.columns.optional
                and column not in present
                and column.split(".")[0] not in present
            ):
                raise SourceError(
                    f"has no column {column!r} (it has {', '.join(map(repr, present[:12]))})",
                    field=self.path,
                    cure=cure_of_shape(column, present)
                    or f"{did_you_mean(column, present)} {cures.get(column, '')}".strip(),
                )
        top_level = {c if c in present else c.split(".")[0] for c in self.columns.names}
        self.unread = [name for name in present if name not in top_level]
        return [name for name in present if name in top_level]

    def describe_row(self, row: int) -> str:
        """A row for a message, e.g. ``corpus/a.jsonl, line 7``."""
        return f"{self.path}, {self.unit} {row}"


def good_records(reader: Reader) -> Iterator[Fields]:
    """The records that are not bad, as far as the file can be read."""
    with suppress(EndOfHeadError, SourceError):
        for _, record in reader:
            if not isinstance(record, BadRecordError):
                yield record


@contextmanager
def reading(path: str, *known: type[Exception], what: str = "file") -> Iterator[None]:
    """Converts errors while ``path`` is read to a
    :class:`~headrace.errors.SourceError` about it.
    """
    try:
        yield
    except (HeadraceError, BadRecordError, EndOfHeadError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise SourceError(
            "is gone since it was listed", field=path, cure="Restore it and run the command again."
        ) from error
    except known as error:
        raise SourceError(
            f"is no {what}, or a damaged one ({one_line(error)})",
            field=path,
            cure="Fetch or write the file again, then run the same command: finished parts are"
            " kept.",
        ) from error
    except Exception as error:  # fsspec's filesystems raise errors of their client libraries
        raise SourceError(
            f"cannot be read ({type(error).__name__}: {one_line(error)})",
            field=path,
            cure="Run the same command again when it can: finished parts are kept.",
        ) from error


def import_extra(module: str, extra: str, path: str) -> Any:
    """Imports a package that comes with an extra.

    Raises:
        ConfigError: it is not installed; names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"needs the package {module.split('.')[0]} to be read",
            field=path,
            cure=install_command(f"headrace[{extra}]"),
        ) from error


def one_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


_Shape: TypeAlias = tuple[tuple[str, ...], str]
"""Fields of usual records, and the options that read them."""


def _shapes(*records: str) -> tuple[_Shape, ...]:
    """Shapes of records, of which each name is read from a field: ``answer=output``."""
    shapes: list[_Shape] = []
    for reads in map(str.split, records):
        fields = tuple(one.partition("=")[2].partition(".")[0] for one in reads)
        shapes.append((fields, " ".join(f"--field {one}" for one in reads)))
    return tuple(shapes)


_CONVERSATIONS = _shapes(
    "messages=conversations",
    "messages=conversation",
    "messages=dialog",
    "messages=dialogue",
    "messages=turns",
    "question=instruction context=input answer=output",
    "question=instruction answer=output",
    "question=instruction context=context answer=response",
    "question=instruction answer=response",
    "question=prompt answer=completion",
    "question=prompt answer=response",
    "question=question answer=answer",
    "question=question answer=response",
    "question=problem answer=solution",
    "question=query answer=response",
    "question=query answer=answer",
    "question=input answer=output",
)
_SYSTEMS = ("system_prompt", "system_message", "sys_prompt")
"""Usual names of the system message of a conversation, besides ``system``, which is read."""
_KINDS: tuple[_Shape, ...] = (
    (("input_ids",), "--kind tokens"),
    (("chosen", "rejected"), "--kind preference"),
    (("messages",), "--kind chat"),
    *((shape, f"--kind chat {options}") for shape, options in _CONVERSATIONS),
    (("text",), "--kind text"),
)
_OTHER_SHAPES: dict[str, tuple[_Shape, ...]] = {
    "messages": (*_CONVERSATIONS, *(one for one in _KINDS if "--kind chat" not in one[1])),
    "chosen": (
        *_shapes(
            "chosen=response_chosen rejected=response_rejected",
            "prompt=input.messages chosen=preferred_output rejected=non_preferred_output",
            "chosen=accepted rejected=rejected",
        ),
        *_KINDS,
    ),
    "prompt": _shapes(
        "prompt=question",
        "prompt=instruction",
        "prompt=problem",
        "prompt=query",
        "prompt=messages",
        "prompt=conversations",
        "prompt=input",
    ),
    "input_ids": (
        *_shapes(
            "question=prompt_ids answer=completion_ids",
            "question=prompt_ids answer=response_ids",
            "tokens=tokens",
            "tokens=token_ids",
            "tokens=ids",
            "tokens=inputs",
        ),
        *_KINDS,
    ),
    "text": tuple(one for one in _KINDS if one[0] != ("text",)),
}
"""By the field that is missing: other usual records."""


def cure_of_shape(missing: str, names: Iterable[str]) -> str:
    """The options that read records with these fields, if they are usual ones and lack the usual
    field of a kind.

    Example:
        >>> cure_of_shape("messages", ["id", "prompt", "completion"])
        'Say --field question=prompt --field answer=completion.'
        >>> cure_of_shape("messages", ["system_prompt", "question", "response"])
        'Say --field question=question --field answer=response --field system=system_prompt.'
    """
    shapes = _OTHER_SHAPES.get(missing, ())
    present = set(names)
    fitting = (options for shape, options in shapes if present.issuperset(shape))
    options = next(fitting, None)
    if options is None:
        return ""
    system = next((name for name in _SYSTEMS if name in present), None)
    if system is not None and (missing == "messages" or "--kind chat" in options):
        options += f" --field system={system}"
    return f"Say {options}."


def lookup(record: Fields, field: str, cure: str = "") -> Any:
    """The value of a field; ``a.b`` is field b of field a, unless a field is called ``a.b``.

    Raises:
        MissingFieldError: there is none.

    Example:
        >>> lookup({"meta": {"id": 7}}, "meta.id"), lookup({"meta.id": 8}, "meta.id")
        (7, 8)
    """
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            inner = value if isinstance(value, Mapping) else record
            raise MissingFieldError(field, list(inner), cure)
        value = value[name]
    return value


def containers_of(columns: Iterable[str]) -> set[str]:
    """The fields that others are within, and that are not read whole.

    Example:
        >>> sorted(containers_of(["id", "a.b.c"]))
        ['a', 'a.b']
    """
    names = set(columns)
    parts = [name.split(".") for name in names]
    return {".".join(one[:depth]) for one in parts for depth in range(1, len(one))} - names


def names_in(
    record: Mapping[str, Any], containers: Collection[str], path: str = ""
) -> Iterator[str]:
    """The fields of a record: of its containers, those within them.

    Example:
        >>> list(names_in({"a": {"b": 1, "c": {"d": 2}}, "e": {"f": 3}}, {"a"}))
        ['a.b', 'a.c', 'e']
    """
    for name, value in record.items():
        field = f"{path}{name}"
        if field in containers and isinstance(value, Mapping):
            yield from names_in(value, containers, f"{field}.")
        else:
            yield field


class FieldValue(NamedTuple):
    """What a record holds in a field.

    Attributes:
        value: The value; None if there is none.
        field: The field, or the place within it, such as ``messages[3]``.
        cure: What to type if records cannot be used because of it.
        name: What it is read as.
    """

    value: Any
    field: str
    cure: str = ""
    name: str = ""

    def __str__(self) -> str:
        """Where it is, for messages."""
        return self.field if "[" in self.field else f"field {self.field!r}"

    def inner(self, name: str, value: Any) -> FieldValue:
        """What a field within it holds."""
        return FieldValue(value, f"{self.field}.{name}", self.cure)

    def elements(self) -> list[FieldValue]:
        """The elements of a list."""
        elements = enumerate(self.value)
        return [FieldValue(one, f"{self.field}[{i}]", self.cure) for i, one in elements]

    def bad(self, problem: str, cure: str = "") -> BadRecordError:
        """An error about it; its own cure stands behind another."""
        return BadRecordError(problem, f"{cure} {self.cure}".strip())

    def is_not(self, wanted: str, cure: str = "") -> BadRecordError:
        """The error about a value of another type."""
        return self.bad(f"holds a {type_name(self.value)} in {self}, not {wanted}", cure)

    def text(self) -> str:
        """A value that must be a string; otherwise raises BadRecordError."""
        if not isinstance(self.value, str):
            raise self.is_not("a string")
        return self.value

    def numbers(self, dtype: str, *, bools: bool = True) -> np.ndarray:
        """A list of numbers as an array ``[n]`` of a dtype that holds every one of them; ``bools``:
        true is 1.

        Raises:
            BadRecordError: it is not a list of such numbers.
        """
        value = self.value
        if not is_list(value):
            raise self.is_not("a list of numbers")
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise self.bad(f"holds something else than numbers in {self} ({error})") from None
        target = np.dtype(dtype)
        if array.size == 0:
            return np.zeros(0, target)
        if not bools and (
            array.dtype.kind == "b"
            or (not isinstance(value, np.ndarray) and bool in set(map(type, value)))
        ):
            raise self.bad(f"holds true or false in {self}, which are no numbers here")
        kinds = "iubf" if target.kind == "f" else "iub"
        if array.ndim != 1 or array.dtype.kind not in kinds:
            wanted = "numbers" if "f" in kinds else "integers"
            raise self.bad(f"holds something else than {wanted} in {self}")
        if target.kind != "f":
            limits: Any = np.iinfo(target) if target.kind != "b" else None
            low, high = (0, 1) if limits is None else (int(limits.min), int(limits.max))
            if int(array.min()) < low or int(array.max()) > high:
                raise self.bad(f"holds a number outside {low} .. {high} in {self}")
            return array.astype(target)
        with np.errstate(over="ignore"):
            floats = array.astype(target)
        if np.isinf(floats).any() and np.isfinite(array[np.isinf(floats)]).any():
            most = float(np.finfo(target).max)
            raise self.bad(f"holds a number beyond {most:.3g} in {self}")
        return floats


@dataclass(frozen=True)
class FieldRead:
    """How a value of a record is read.

    Attributes:
        name: What it is read as.
        field: Its field.
        is_optional: Whether records may lack it.
        cure: What to type if records cannot be used because of what they have for it.
    """

    name: str
    field: str
    is_optional: bool
    cure: str

    def of(self, record: Fields) -> FieldValue:
        """The value of a record.

        Raises:
            BadRecordError: it lacks the field, and that is not optional.
        """
        value = None
        if not self.is_optional or self.field in record:
            value = lookup(record, self.field, self.cure)
        elif "." in self.field:
            with suppress(BadRecordError):
                value = lookup(record, self.field)
        return FieldValue(value, self.field, self.cure, self.name)


def with_texts_for_bytes(value: Any) -> Any:
    """A value of a table in which bytes are the text that they encode, within lists and objects,
    too.

    Raises:
        BadRecordError: they are not UTF-8.

    Example:
        >>> with_texts_for_bytes({"messages": [{"content": "é".encode()}]})
        {'messages': [{'content': 'é'}]}
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadRecordError(not_utf8(error, "value").problem) from None
    if isinstance(value, list | tuple):
        return [with_texts_for_bytes(one) for one in value]
    if isinstance(value, dict):
        return {name: with_texts_for_bytes(one) for name, one in value.items()}
    return value


def utf8_length(text: str) -> int:
    """Bytes of ``text`` in UTF-8; refuses lone surrogates, which no tokenizer accepts."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        problem = (
            f"holds half a character ({code}, a lone surrogate, at character {error.start + 1} of"
            " the text)"
        )
        raise BadRecordError(problem, "It stands for no Unicode text.") from None


def not_utf8(error: UnicodeDecodeError, what: str) -> BadRecordError:
    """The error for bytes that are not UTF-8."""
    problem = (
        f"is not UTF-8 (byte 0x{error.object[error.start]:02x} at byte {error.start} of the {what})"
    )
    encoding = "utf-16" if error.object.startswith(_UTF16_MARKS) else "latin1"
    converted = f"{NAMED_FILE}.new"
    command = f"iconv -f {encoding} -t utf-8 {NAMED_FILE} > {converted}"
    command += f" && mv {converted} {NAMED_FILE}"
    cure = f"Convert the file to UTF-8 (e.g. {command})."
    return BadRecordError(problem, cure)


def type_name(value: Any) -> str:
    """The JSON name of a value's type."""
    if isinstance(value, np.ndarray):
        return "list"
    names = {
        type(None): "null",
        dict: "object",
        list: "list",
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
    }
    return names.get(type(value), type(value).__name__)


@dataclass(frozen=True)
class LeafConfig:
    """A leaf that is filled from a field of each record.

    Attributes:
        field: The field; ``a.b`` is field b within a.
        dtype: ``text`` (kept as UTF-8 bytes), ``any`` (as text; what is no string as JSON writes
            it, and nothing where the field is absent or null), or the dtype of a number or of a
            list of numbers, e.g. ``float32``.
        kind: ``fixed``: one number per document; ``ragged``: a list; ``auto``: ragged for text and
            values per token, else fixed.
        width: For token ids, the number of values per id: a list of numbers (1), or a list of
            lists. None: not values of tokens.

    Example:
        >>> LeafConfig("meta.score", "float32").spec("score")
        LeafSpec(name='score', dtype='float32', kind='fixed', width=None)
    """

    field: str
    dtype: str = TEXT
    kind: Literal["auto", "fixed", "ragged"] = "auto"
    width: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None and (self.kind == "fixed" or self.is_text):
            cure = "Leave it out, or give the numbers of tokens: {dtype: float32, width: 1}."
            raise ConfigError(
                "cannot be of a text or of one value per document",
                field="width",
                value=self.width,
                cure=cure,
            )

    @property
    def is_text(self) -> bool:
        """Whether it is stored as UTF-8."""
        return self.dtype in (TEXT, ANY)

    def typed(self, name: str, field: str | None = None) -> str:
        """As it is typed on the command line, from which :func:`parse_leaf` makes it again; with
        another field, if one is given.

        Example:
            >>> LeafConfig("a", "int32", width=8).typed("topk")
            'topk=a:int32:token:8'
        """
        kind = "" if self.kind == "auto" else f":{self.kind}"
        if self.width is not None:
            kind = f":token:{self.width}"
        return f"{name}={field or self.field}:{self.dtype}{kind}"

    def spec(self, name: str) -> LeafSpec:
        """The leaf's specification for the store.

        Raises:
            ConfigError: the dtype or the kind is invalid.
        """
        if self.is_text:
            if self.kind == "fixed":
                raise ConfigError(
                    "a text is no single value",
                    field=f"leaves.{name}",
                    value=self.kind,
                    cure="Say ragged.",
                )
            return LeafSpec(name, "uint8", "ragged")
        if self.width is not None:
            return LeafSpec(name, self.dtype, "ragged", self.width)
        return LeafSpec(name, self.dtype, "fixed" if self.kind == "auto" else self.kind)

    def read(self, name: str) -> FieldRead:
        """How the field is read for the leaf of this name."""
        cure = f"Choose the field: --leaf {self.typed(name, 'FIELD')}."
        if self.is_text:
            cure = (
                "Keep values of any type, and none where it is absent:"
                f" --leaf {name}={self.field}:{ANY}."
            )
        return FieldRead(name, self.field, self.dtype == ANY, cure)

    def values(self, field_value: FieldValue) -> np.ndarray:
        """The values of one document, of what its record holds: ``[n]``, in the leaf's dtype; n is
        1 if it is fixed.

        Raises:
            BadRecordError: it is of another type.
        """
        if self.is_text:
            text = _as_text(field_value.value) if self.dtype == ANY else field_value.text()
            utf8_length(text)
            return np.frombuffer(text.encode(), np.uint8)
        if self.kind == "ragged" or self.width is not None:
            return _flat(field_value, self.width or 1).numbers(self.dtype)
        if is_list(field_value.value):
            of_tokens = replace(self, kind="auto", width=1).typed(field_value.name)
            of_document = replace(self, kind="ragged").typed(field_value.name)
            cure = (
                f"If it has one for each token: --leaf {of_tokens}; a list of its own for each"
                f" document: --leaf {of_document}."
            )
            raise field_value._replace(cure=cure).is_not("one number")
        return FieldValue([field_value.value], self.field, field_value.cure).numbers(self.dtype)


def parse_leaf(text: str) -> tuple[str, LeafConfig]:
    """Parses a leaf from the command line: ``NAME=FIELD[:DTYPE[:KIND]]`` or
    ``NAME=FIELD:DTYPE:token[:WIDTH]``.

    Raises:
        ConfigError: it is none.

    Example:
        >>> parse_leaf("score=meta.score:float32")
        ('score', LeafConfig(field='meta.score', dtype='float32', kind='auto', width=None))
        >>> parse_leaf("topk=teacher_ids:int32:token:8")[1].spec("topk")
        LeafSpec(name='topk', dtype='int32', kind='ragged', width=8)
    """
    name, equals, rest = text.partition("=")
    field, *more = rest.split(":")
    if not (name and equals and field) or len(more) > 3:
        raise ConfigError(
            "is no leaf",
            field="leaf",
            value=text,
            cure="Write NAME=FIELD or NAME=FIELD:DTYPE, e.g. id=meta.id:text.",
        )
    if more[1:] and more[1] not in ("fixed", "ragged", "token"):
        raise ConfigError(
            "is no kind of leaf", field="leaf", value=text, cure="Say fixed, ragged or token."
        )
    of_tokens = more[1:2] == ["token"]
    if more[2:] and not (of_tokens and more[2].isdecimal()):
        cure = f"Write {name}={field}:{more[0]}:token:8 for 8 numbers of each token."
        raise ConfigError("is no leaf", field="leaf", value=text, cure=cure)
    if of_tokens:
        return name, LeafConfig(field, more[0], width=int(more[2]) if more[2:] else 1)
    return name, LeafConfig(field, *more)  # pyright: ignore[reportArgumentType] (checked above)


def _as_text(value: Any) -> str:
    """A value as text, whatever it is; null as none."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a table's date, decimal number or the like
        return str(value)


def _flat(field_value: FieldValue, width: int) -> FieldValue:
    """Flattens a list with ``width`` numbers per token; with one number it is already flat."""
    rows = field_value.value
    if width == 1 or not is_list(rows) or not len(rows):
        return field_value
    if any(not is_list(row) or len(row) != width for row in rows):
        problem = f"has not {width} numbers for each token in {field_value}"
        raise BadRecordError(problem, _LEAF_CURE)
    return field_value._replace(value=np.concatenate([np.asarray(row) for row in rows]))


def is_list(value: Any) -> bool:
    """Whether a value of a record is a list, or the array of one."""
    return isinstance(value, np.ndarray | list | tuple)


def joined(spec: LeafSpec, values: Sequence[np.ndarray]) -> LeafValues:
    """Values of several documents end to end, in the form of the store."""
    data = np.concatenate(values) if values else np.zeros(0, spec.dtype)
    if spec.kind == "fixed":
        return data, None
    return data, sizes_of(values)


def sizes_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The size of each array, int64."""
    return np.array([array.size for array in arrays], np.int64)
