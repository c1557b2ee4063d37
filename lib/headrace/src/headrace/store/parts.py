"""The parts of a cache: the record of one, and the table of all, with a column for each field.

A table is a sequence of records that are created on access, so a cache of a million parts opens
without creating objects per part. Code that needs a number for every part uses a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, TypeAlias, overload

import msgspec
import numpy as np
from jaxtyping import Int64

from headrace.errors import CacheCorruptError

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z"
LARGEST_COUNT = 2**56
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
"""Valid folder names: a ledger may come from anywhere, and must not lead outside its cache."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]


class LeafRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of a finished part other than the tokens. ``digest``: ``sha256:`` and the hex digest
    of its stored values followed, if it is ragged, by its offsets.
    """

    elements: Count
    digest: str


class PartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished part.

    Attributes:
        name: Folder below ``parts/``.
        documents: Number of documents.
        tokens: Number of tokens.
        digest: ``sha256:`` and the hex digest of the part's tokens (as stored) followed by its
            offsets.
        extra: Counters of its writer (skipped lines, source fingerprints, ...), JSON values. Empty
            in a table of columns: they are in ``ledger.json``.
        leaves: Its other leaves, by name.
    """

    name: Name
    documents: Count
    tokens: Count
    digest: str
    extra: dict[str, Any] = {}
    leaves: dict[Name, LeafRecord] = {}


class PartTable(Sequence[PartRecord]):
    """Parts, in order; here over a list of records.

    Example:
        >>> table = PartTable([PartRecord("a", 2, 10, ""), PartRecord("b", 3, 20, "")])
        >>> table.tokens.tolist(), table[1].name
        ([10, 20], 'b')
    """

    def __init__(self, records: Sequence[PartRecord]) -> None:
        self._records = records

    @classmethod
    def of(cls, parts: Sequence[PartRecord]) -> PartTable:
        """Converts parts to a table."""
        return parts if isinstance(parts, PartTable) else cls(parts)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> PartRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[PartRecord]: ...
    def __getitem__(self, index: int | slice) -> PartRecord | list[PartRecord]:
        numbers = range(len(self))[index]
        return (
            self.record(numbers) if isinstance(numbers, int) else [self.record(k) for k in numbers]
        )

    def record(self, number: int) -> PartRecord:
        """A part by its number."""
        return self._records[number]

    @cached_property
    def documents(self) -> Int64[np.ndarray, " parts"]:
        """Documents of each part."""
        return np.fromiter((part.documents for part in self._records), np.int64, len(self))

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " parts"]:
        """Tokens of each part."""
        return np.fromiter((part.tokens for part in self._records), np.int64, len(self))

    def name(self, number: int) -> str:
        """Folder of a part."""
        return self._records[number].name

    def digest(self, number: int, leaf: str | None = None) -> str:
        """Digest of the tokens of a part, or of another leaf."""
        record = self._records[number]
        return record.digest if leaf is None else record.leaves[leaf].digest

    def leaf_elements(self, leaf: str) -> Int64[np.ndarray, " parts"]:
        """Values of a leaf in each part. Raises CacheCorruptError for a part without it."""
        for part in self._records:
            if leaf not in part.leaves:
                raise CacheCorruptError(
                    f"has no record of leaf {leaf}", field="part", value=part.name
                )
        return np.fromiter(
            (part.leaves[leaf].elements for part in self._records), np.int64, len(self)
        )

    def digest_lines(self) -> bytes:
        """A line for each part: the digest of its tokens, and name and digest of
        each other leaf.
        """
        return "\n".join(
            part.digest
            + "".join(f" {name}={leaf.digest}" for name, leaf in sorted(part.leaves.items()))
            for part in self
        ).encode()

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the content: tokens, documents, other leaves, and the borders of parts, which
        rows of tokens never cross. Chunks, codecs and counters are not part of it.
        """
        return fingerprint_of_lines(self.digest_lines())


def fingerprint_of_lines(lines: bytes) -> str:
    """The fingerprint of parts, from their :meth:`PartTable.digest_lines`."""
    return "sha256:" + hashlib.sha256(lines).hexdigest()
