"""What every container hands over: records, one mapping of fields each, with the row that they stand in.

A **container** is how a file is packed (JSONL, Parquet, WARC, ...); a **record** is what it holds, the same for all of
them; a **kind** (:mod:`headrace.ingest.kinds`) makes documents of records. A container knows nothing of kinds, a kind
nothing of containers, so each new one works with all of the others.

The invariant: the records of a file and their rows depend on the file alone, and the slices of a file, read one after
the other, give the same records as the whole.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from headrace.errors import HeadraceError, SourceError, did_you_mean

Fields: TypeAlias = Mapping[str, Any]

UTF8_CURE = "Convert the file to UTF-8 (e.g. iconv -f latin1 -t utf-8)."


class BadRecordError(Exception):
    """One record that cannot be used; the policy (``on_bad_line``) decides what happens.

    Attributes:
        problem: What is wrong, continuing "file, line 7".
        cure: What to do.
    """

    def __init__(self, problem: str, cure: str = "") -> None:
        super().__init__(problem)
        self.problem, self.cure = problem, cure


Row: TypeAlias = "tuple[int, Fields | BadRecordError]"


@dataclass(frozen=True)
class Slice:
    """A run of a file's units (bytes, row groups, rows, ...: the container says which), read as if it were a file.

    Attributes:
        start: First unit.
        stop: One past the last; None: to the end of the file, however long it is then.
        num_bytes: Stored bytes in it, about.
    """

    start: int
    stop: int | None
    num_bytes: int


class Reader(abc.ABC):
    """Iterates over the records of one file, or of a slice of it, once.

    Args:
        path: The file.
        part: The slice; None for the whole file.
        columns: Fields that are asked for (dotted paths); others need not be there.

    Attributes:
        optional: Those of the fields that need not be there either.
        stored_bytes: Bytes of the file consumed so far, as stored (for progress).
        ignored: Records that are of no interest here, by what they are (``text/html``).
    """

    unit: ClassVar[str] = "row"

    def __init__(self, path: str, part: Slice | None, columns: Sequence[str]) -> None:
        self.path, self.part, self.columns = path, part, columns
        self.optional: Collection[str] = ()
        self.stored_bytes = 0
        self.ignored: Counter[str] = Counter()

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """The records in order, each with its row; what is bad about one in its place.

        Raises:
            SourceError: the file cannot be read.
        """

    def columns_of(self, present: Sequence[str]) -> list[str]:
        """Which of the columns of a table to read.

        Raises:
            SourceError: one that is asked for is not there.
        """
        for column in self.columns:
            if column not in self.optional and column not in present and column.split(".")[0] not in present:
                raise SourceError(
                    f"has no column {column!r} (it has {', '.join(map(repr, present[:12]))})",
                    field=self.path,
                    cure=f"{did_you_mean(column, present)} Choose it with --text-field or --field ROLE=NAME.",
                )
        return top_level(self.columns, present)

    def place(self, row: int) -> str:
        """A row for a message, e.g. ``corpus/a.jsonl, line 7``."""
        return f"{self.path}, {self.unit} {row}"


@contextmanager
def reading(path: str, *known: type[Exception], what: str = "file") -> Iterator[None]:
    """Turns whatever goes wrong while ``path`` is read into a :class:`~headrace.errors.SourceError` about it.

    Args:
        path: The file.
        known: Errors that mean that its content is damaged.
        what: What it should be, e.g. ``Parquet file``.
    """
    try:
        yield
    except (HeadraceError, BadRecordError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise SourceError(
            "is gone since it was listed", field=path, cure="Restore it and run the command again."
        ) from error
    except known as error:
        raise SourceError(
            f"is no {what}, or a damaged one ({one_line(error)})",
            field=path,
            cure="Fetch or write the file again, then run the same command: finished parts are kept.",
        ) from error
    except Exception as error:  # fsspec's filesystems raise errors of their client libraries
        raise SourceError(
            f"cannot be read ({type(error).__name__}: {one_line(error)})",
            field=path,
            cure="Run the same command again when it can: finished parts are kept.",
        ) from error


def one_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


def lookup(record: Fields, field: str, cure: str = "") -> Any:
    """The value of a field; ``a.b`` is field b of field a, unless a field is called ``a.b``.

    Raises:
        BadRecordError: there is none.

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
            names = [repr(k) for k in inner][:12]
            has = "it has " + ", ".join(names) if names else "the object is empty"
            raise BadRecordError(f"has no field {field!r} ({has})", cure)
        value = value[name]
    return value


def top_level(columns: Sequence[str], present: Sequence[str]) -> list[str]:
    """Which of the columns that are ``present`` are needed for fields given as dotted paths.

    Example:
        >>> top_level(["meta.id", "text", "a.b"], ["text", "meta", "a.b", "other"])
        ['text', 'meta', 'a.b']
    """
    wanted = {c if c in present else c.split(".")[0] for c in columns}
    return [name for name in present if name in wanted]


def string_of(value: Any, field: str) -> str:
    """A value that must be a string.

    Raises:
        BadRecordError: it is none, or holds half a character.
    """
    if not isinstance(value, str):
        raise BadRecordError(f"holds a {type_name(value)} in field {field!r}, not a string")
    return value


def utf8_length(text: str) -> int:
    """Bytes of ``text`` in UTF-8; refuses half characters (lone surrogates), which no tokenizer takes."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        problem = f"holds half a character ({code}, a lone surrogate, at character {error.start + 1} of the text)"
        raise BadRecordError(problem, "It stands for no Unicode text.") from None


def not_utf8(error: UnicodeDecodeError, what: str) -> BadRecordError:
    """What is wrong with bytes that are not UTF-8."""
    problem = f"is not UTF-8 (byte 0x{error.object[error.start]:02x} at byte {error.start} of the {what})"
    return BadRecordError(problem, UTF8_CURE)


def type_name(value: Any) -> str:
    """What JSON calls a value's type."""
    if isinstance(value, np.ndarray):
        return "list"
    names = {
        type(None): "null", dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"
    }  # fmt: skip
    return names.get(type(value), type(value).__name__)
