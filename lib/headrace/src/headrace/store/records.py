"""Sealed records: one way to write a small file, and one way to read it or to refuse it.

A record is two texts of JSON. The first, one line, is the seal: the ``kind`` of the file, the
``version`` of its format, what it is ``of`` (the fingerprint of a cache; empty if it is of none)
and a ``digest`` of these three and the content. The content is one line, or indented if people are
to read it. docs/formats.md has the fields of every kind.

Invariants: a reader sees the file as it was before a write or as it is after it, also after a power
cut; equal contents make equal bytes; a byte that changes is noticed. Price: a write is one file
that is synced and renamed, a read is one request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import CacheCorruptError, of_another_version
from headrace.store import files

ContentT = TypeVar("ContentT")


class _Seal(msgspec.Struct):
    kind: str
    version: Any
    of: str
    digest: str


@dataclass(frozen=True)
class RecordKind(Generic[ContentT]):
    """A kind of record.

    Attributes:
        name: Its name, which errors give as their field.
        version: The version of the content.
        content: The type of the content.
        indented: Whether the content has a line for each field.

    Example:
        >>> notes = RecordKind("notes", 1, list[str])
        >>> raw = notes.encode(["a", "b"], of="sha256:12")
        >>> notes.decode(raw, "notes.json", of="sha256:12")
        ['a', 'b']
        >>> notes.decode(raw.replace(b"a", b"e"), "notes.json", cure="Write it again.")
        Traceback (most recent call last):
        headrace.errors.CacheCorruptError: notes = 'notes.json': is damaged: its digest is not that
            of what it holds. Write it again.
    """

    name: str
    version: int
    content: type[ContentT]
    indented: bool = False

    def __post_init__(self) -> None:
        # msgspec resolves types at their first use, and the process dies if two threads do so at
        # once (msgspec 0.22).
        msgspec.json.Decoder(self.content)
        msgspec.json.Decoder(_Seal)

    def encode(self, content: ContentT, of: str = "") -> bytes:
        """The bytes of a record."""
        text = msgspec.json.encode(content)
        if self.indented:
            text = msgspec.json.format(text, indent=1)
        seal = _Seal(self.name, self.version, of, _digest(self.name, self.version, of, text))
        return msgspec.json.encode(seal) + b"\n" + text + b"\n"

    def decode(
        self, raw: bytes, url: str, of: str | None = None, cure: str | None = None
    ) -> ContentT:
        """The content of a record.

        Args:
            raw: Its bytes.
            url: The file, for errors.
            of: What it must be of; None: anything.
            cure: What to do if it is refused.

        Raises:
            CacheCorruptError: it is damaged, of another kind or version, or of something else.
        """

        def refused(problem: str) -> CacheCorruptError:
            return CacheCorruptError(problem, field=self.name, value=url, cure=cure)

        head, _, rest = raw.partition(b"\n")
        text = rest.removesuffix(b"\n")
        try:
            seal = msgspec.json.decode(head, type=_Seal)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise refused(f"is damaged: it has no seal ({error})") from error
        if seal.kind != self.name:
            raise refused(f"is a file of another kind: {seal.kind!r}")
        if seal.version != self.version:
            raise refused(of_another_version(seal.version, self.version))
        is_whole = raw == head + b"\n" + text + b"\n"
        if not is_whole or seal.digest != _digest(seal.kind, seal.version, seal.of, text):
            raise refused("is damaged: its digest is not that of what it holds")
        if of is not None and seal.of != of:
            raise refused(f"is of another cache: it names {seal.of}, and this one is {of}")
        try:
            return msgspec.json.decode(text, type=self.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise refused(f"cannot be used ({error})") from error


def _digest(kind: str, version: int, of: str, text: bytes) -> str:
    sealed = f"{kind}\n{version}\n{of}\n".encode() + text
    return f"sha256:{hashlib.sha256(sealed).hexdigest()}"


def write_record(
    url: str, kind: RecordKind[ContentT], content: ContentT, of: str = "", *, shared: bool = False
) -> None:
    """Writes a record, atomically; ``shared`` as for :func:`~headrace.store.files.write_atomic`.

    Raises:
        CacheError: it cannot be written.
    """
    files.write_atomic(url, kind.encode(content, of), shared=shared)


def read_record(
    url: str, kind: RecordKind[ContentT], of: str | None = None, cure: str | None = None
) -> ContentT | None:
    """The content of a record, None if there is no such file. What a store delivers damaged is
    requested again.

    Raises:
        CacheCorruptError: as for :meth:`RecordKind.decode`.
        CacheError: it cannot be read.

    Example:
        >>> import tempfile
        >>> notes = RecordKind("notes", 1, list[str])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_record(f"{folder}/notes.json", notes, ["a"])
        ...     (
        ...         read_record(f"{folder}/notes.json", notes),
        ...         read_record(f"{folder}/none.json", notes),
        ...     )
        (['a'], None)
    """
    parse: Callable[[bytes], ContentT] = lambda raw: kind.decode(raw, url, of, cure)  # noqa: E731
    return files.read_as(url, parse)
