"""The ledger: what a cache is made of, and whether it is complete.

``<root>/ledger.json`` is written twice: when a build starts (``finished: false``, with all that must be the same for
the build to be resumed) and, as the very last write of a build, with ``finished: true`` and the table of parts. A cache
is complete when its ledger says so. Each part has a record of its own, ``parts/<name>/part.json``, the last write of
that part.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from headrace.errors import CacheCorruptError, CacheError
from headrace.store import files

LEDGER_NAME = "ledger.json"
PART_RECORD_NAME = "part.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class LeafRecord:
    """A leaf of a finished part, beside the tokens.

    Attributes:
        elements: Number of its values.
        digest: ``sha256:`` and the hex digest of its values (as stored) followed, if it is ragged, by its offsets.
    """

    elements: int
    digest: str


@dataclass(frozen=True)
class PartRecord:
    """One finished part.

    Attributes:
        name: Folder below ``parts/``.
        documents: Number of documents.
        tokens: Number of tokens.
        digest: ``sha256:`` and the hex digest of the part's tokens (as stored) followed by its offsets.
        extra: Counters of whoever wrote it (skipped lines, source fingerprints, ...), JSON values.
        leaves: Its other leaves, by name.
    """

    name: str
    documents: int
    tokens: int
    digest: str
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    leaves: dict[str, LeafRecord] = field(default_factory=dict[str, LeafRecord])

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PartRecord:
        """The record that ``asdict`` of it gave.

        Raises:
            TypeError: it is none.
        """
        record = cls(**data)
        leaves: dict[str, Any] = data.get("leaves", {})
        return replace(record, leaves={name: LeafRecord(**leaf) for name, leaf in leaves.items()})


@dataclass(frozen=True)
class Ledger:
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
    """

    finished: bool
    tokenizer: dict[str, Any]
    layout: dict[str, Any]
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    parts: list[PartRecord] = field(default_factory=list[PartRecord])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    leaves: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    code_version: str = field(default_factory=lambda: version("headrace"))
    format_version: int = FORMAT_VERSION

    def complete(self, parts: list[PartRecord], **metadata: Any) -> Ledger:
        """This ledger, finished, with its table of parts."""
        return replace(self, finished=True, parts=parts, metadata={**self.metadata, **metadata})


def read_ledger(root: str) -> Ledger | None:
    """The ledger of a cache; None if there is none.

    Raises:
        CacheCorruptError: the file is not a ledger of a version that this release reads.
        CacheError: the file cannot be read.
    """
    data = _read_json(files.join(root, LEDGER_NAME))
    if data is None:
        return None
    url = files.join(root, LEDGER_NAME)
    if data.get("format_version") != FORMAT_VERSION:
        raise CacheCorruptError(
            f"has format_version {data.get('format_version')!r}; this release reads {FORMAT_VERSION}",
            field="ledger",
            value=url,
            cure="Use the release that wrote it, or build the cache again.",
        )
    try:
        parts = [PartRecord.from_json(p) for p in data.pop("parts")]
        data.setdefault("code_version", "")
        return Ledger(parts=parts, **data)
    except (TypeError, KeyError, AttributeError) as error:
        raise CacheCorruptError(
            f"is not a ledger ({error})", field="ledger", value=url, cure="Build the cache again, or restore the file."
        ) from error


def write_ledger(root: str, ledger: Ledger) -> None:
    """Writes the ledger atomically. The same ledger gives the same bytes."""
    files.write_atomic(files.join(root, LEDGER_NAME), _dump(asdict(ledger)))


def part_folder(root: str, name: str) -> str:
    """Folder of a part."""
    return files.join(root, "parts", name)


def read_part_record(root: str, name: str) -> PartRecord | None:
    """The record of a part; None unless the part is complete.

    Raises:
        CacheCorruptError: the file is not a record.
    """
    url = files.join(part_folder(root, name), PART_RECORD_NAME)
    data = _read_json(url)
    try:
        return None if data is None else PartRecord.from_json(data)
    except (TypeError, AttributeError) as error:
        raise CacheCorruptError(
            f"is not a part's record ({error})", field="file", value=url, cure="Delete it and build again."
        ) from error


def write_part_record(root: str, record: PartRecord) -> None:
    """Marks a part as complete. Must be the part's last write."""
    files.write_atomic(files.join(part_folder(root, record.name), PART_RECORD_NAME), _dump(asdict(record)))


def _dump(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _read_json(url: str) -> dict[str, Any] | None:
    try:
        raw = files.read_bytes(url)
    except OSError as error:
        raise CacheError(
            f"cannot be read ({error.strerror or error})", field="file", value=url, cure="Check its permissions."
        ) from error
    if raw is None:
        return None
    try:
        return dict(json.loads(raw))
    except (ValueError, TypeError) as error:
        raise CacheCorruptError(
            f"is not JSON ({error})", field="file", value=url, cure="Build the cache again, or restore the file."
        ) from error
