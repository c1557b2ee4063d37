"""The ledger: what a cache is made of, and whether it is complete.

``<root>/ledger.json`` is written twice: when a build starts (``finished: false``, with all that must be the same for
the build to be resumed) and, as the very last write of a build, with ``finished: true`` and the table of parts. A cache
is complete when its ledger says so. Each part has a record of its own, ``parts/<name>/part.json``, the last write of
that part.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.errors import CacheCorruptError, CacheError
from headrace.store import durable, files

LEDGER_NAME = "ledger.json"
PART_RECORD_NAME = "part.json"
FORMAT_VERSION = 1
T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=msgspec.Struct)
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z"

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=_NAME)]
"""A folder's name: a ledger may come from anywhere, and nothing outside its cache is read or deleted for it."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**56)]
SHUFFLED = "shuffled"
"""Metadata of a cache whose documents were shuffled when it was written: ``seed``, ``unit``, ``part_bytes``, the path
of the ``cache`` that was read, and of the one that numbers of documents belong to (that cache or, if it was shuffled
itself, its original) the ``fingerprint``, the ``parts`` with their documents, and the ``sources``.
"""


class ShuffleRecord(msgspec.Struct, frozen=True):
    """What :data:`SHUFFLED` holds."""

    seed: int
    unit: Annotated[int, msgspec.Meta(ge=1, le=2**56)]
    part_bytes: Count
    fingerprint: str
    parts: list[tuple[str, Count]]
    sources: list[dict[str, Any]]
    cache: str | None = None


class LeafRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of a finished part, beside the tokens. ``digest``: ``sha256:`` and the hex digest of its values, as
    stored, followed, if it is ragged, by its offsets.
    """

    elements: Count
    digest: str


class PartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished part.

    Attributes:
        name: Folder below ``parts/``.
        documents: Number of documents.
        tokens: Number of tokens.
        digest: ``sha256:`` and the hex digest of the part's tokens (as stored) followed by its offsets.
        extra: Counters of whoever wrote it (skipped lines, source fingerprints, ...), JSON values.
        leaves: Its other leaves, by name.
    """

    name: Name
    documents: Count
    tokens: Count
    digest: str
    extra: dict[str, Any] = {}
    leaves: dict[Name, LeafRecord] = {}


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cache is made of.

    Attributes:
        finished: Whether the build completed.
        tokenizer: JSON record of the tokenizer and its policy, with ``vocab_size`` and ``fingerprint``.
        layout: JSON form of :class:`~headrace.store.layout.CacheLayout`.
        sources: JSON record of each source file: name, size, fingerprint.
        parts: Finished parts, in order. Empty until the build is finished.
        metadata: Anything else worth keeping (command, counters, versions).
        leaves: JSON form of the :class:`~headrace.store.layout.LeafSpec` of each leaf beside the tokens.
        code_version: Release of headrace that the cache was begun with; empty in ledgers older than this field.
        format_version: Version of this file.
        digest: Of the file, with nothing in this place: ``sha256:`` and the hex digest. For reading and writing alone;
            files older than this field have none.
    """

    finished: bool
    tokenizer: dict[str, Any]
    layout: dict[str, Any]
    sources: list[dict[str, Any]] = []
    parts: list[PartRecord] = []
    metadata: dict[str, Any] = {}
    leaves: list[dict[str, Any]] = []
    code_version: str = msgspec.field(default_factory=lambda: version("headrace"))
    format_version: int = FORMAT_VERSION
    digest: str = ""

    def complete(self, parts: list[PartRecord], **metadata: Any) -> Ledger:
        """This ledger, finished, with its table of parts."""
        return replace(self, finished=True, parts=parts, metadata={**self.metadata, **metadata})


def shuffle_record(ledger: Ledger, root: str) -> ShuffleRecord | None:
    """How documents of a cache were shuffled; None if they were not. Raises CacheCorruptError if it does not say."""
    recorded = ledger.metadata.get(SHUFFLED)
    try:
        return None if recorded is None else msgspec.convert(recorded, ShuffleRecord)
    except msgspec.ValidationError as error:
        cure = "Shuffle the original again, or restore the file."
        problem = f"does not say how the cache was shuffled ({error})"
        raise CacheCorruptError(problem, field="ledger", value=files.join(root, LEDGER_NAME), cure=cure) from error


class _Head(msgspec.Struct):
    """What has to be known of a ledger before the rest can be."""

    format_version: Any = None
    code_version: str = ""


def prepare_types(*forms: Any) -> None:
    """Has msgspec work types out now, in the thread that imports their module: it does so where a type is first used,
    and the process dies where two threads do it at once (msgspec 0.22).
    """
    for form in forms:
        msgspec.json.Decoder(form)


prepare_types(Ledger, ShuffleRecord, _Head)


def read_ledger(root: str) -> Ledger | None:
    """The ledger of a cache; None if there is none.

    Raises:
        CacheCorruptError: the file is not a ledger of a version that this release reads, or not as it was written.
        CacheError: the file cannot be read.
    """
    url = files.join(root, LEDGER_NAME)
    return _read(url, lambda raw: _parse_ledger(raw, url))


def _parse_ledger(raw: bytes, url: str) -> Ledger:
    cure = "Build the cache again, or restore the file."
    head = _decoded(raw, _Head, url, "ledger", cure, "ledger")
    if head.format_version != FORMAT_VERSION:
        version_cure = "Use the release that wrote it, or build the cache again."
        problem = f"has format_version {head.format_version!r}; this release reads {FORMAT_VERSION}"
        raise CacheCorruptError(problem, field="ledger", value=url, cure=version_cure)
    ledger = _decoded(raw, Ledger, url, "ledger", cure, "ledger")
    if ledger.digest and ledger.digest != _digest(raw.replace(_digest_line(ledger.digest), _digest_line(""), 1)):
        problem = "is not as it was written: its digest is of another text"
        raise CacheCorruptError(problem, field="ledger", value=url, cure=cure)
    return replace(ledger, code_version=head.code_version, digest="")


def has_digest(root: str) -> bool:
    """Whether the ledger of a cache has a digest of itself: those of older releases have none."""
    return b'\n "digest": "sha256:' in (files.read_bytes(files.join(root, LEDGER_NAME)) or b"")


def write_ledger(root: str, ledger: Ledger) -> None:
    """Writes the ledger atomically. The same ledger gives the same bytes."""
    raw = _dump(replace(ledger, digest=""))
    raw = raw.replace(_digest_line(""), _digest_line(_digest(raw)), 1)
    files.write_atomic(files.join(root, LEDGER_NAME), raw)


def part_folder(root: str, name: str) -> str:
    """Folder of a part. Raises CacheCorruptError for a name that would lead out of the cache."""
    if not re.match(_NAME, name):
        cure = "Build the cache again, or restore its ledger."
        raise CacheCorruptError(
            f"has a part named {name!r}, which is no folder's name", field="cache", value=root, cure=cure
        )
    return files.join(root, "parts", name)


def read_part_record(root: str, name: str) -> PartRecord | None:
    """The record of a part; None unless the part is complete. Raises CacheCorruptError if the file is no record."""
    url = files.join(part_folder(root, name), PART_RECORD_NAME)
    cure = "Delete it and build again."
    return _read(url, lambda raw: _decoded(raw, PartRecord, url, "part's record", cure))


def write_part_record(root: str, record: PartRecord) -> None:
    """Marks a part as complete, on the disk too. Must be the part's last write."""
    if files.is_local(root):
        durable.sync_folders(files.local_path(part_folder(root, record.name)), below=files.local_path(root))
    files.write_atomic(files.join(part_folder(root, record.name), PART_RECORD_NAME), _dump(record))


def tokenizer_content(content: bytes) -> dict[str, Any]:
    """What a ``tokenizer.json`` holds, less what cuts and pads: that changes what is encoded, unasked, or nothing.

    Raises:
        ValueError: it is no JSON object.
    """
    held = json.loads(content)
    if not isinstance(held, dict):
        raise ValueError("it is no JSON object")
    return {**held, "truncation": None, "padding": None}


def canonical_tokenizer(content: dict[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint_of(canonical: bytes, bos_id: int | None, eos_id: int | None) -> str:
    """The fingerprint of a tokenizer: of a text that tells it from others, and of its policy."""
    policy = json.dumps({"bos_id": bos_id, "eos_id": eos_id}).encode()
    return "sha256:" + hashlib.sha256(canonical + b"\n" + policy).hexdigest()


def _dump(record: msgspec.Struct) -> bytes:
    return (json.dumps(msgspec.to_builtins(record), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _digest(raw: bytes) -> str:
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def _digest_line(digest: str) -> bytes:
    return f'\n "digest": "{digest}"'.encode()


def _read(url: str, parse: Callable[[bytes], T]) -> T | None:
    try:
        return files.read_as(url, parse)
    except OSError as error:
        raise CacheError(
            f"cannot be read ({error.strerror or error})", field="file", value=url, cure="Check its permissions."
        ) from error


def _decoded(raw: bytes, form: type[RecordT], url: str, what: str, cure: str, field: str = "file") -> RecordT:
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CacheCorruptError(f"is not a {what} ({error})", field=field, value=url, cure=cure) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cure = "Build the cache again, or restore the file."
        raise CacheCorruptError(f"is not JSON ({error})", field="file", value=url, cure=cure) from error
