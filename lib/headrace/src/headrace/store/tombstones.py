"""Tombstones: the documents that were removed from a finished cache, recorded next to the ledger
without changing it.

``<root>/tombstones.json`` has generations, each with the newly removed documents of one removal, as
ranges of numbers. A generation never changes, and generation n means the documents of the first n:
a run that started with some continues with these, whatever is removed later. Numbers are those of
:class:`~headrace.data.documents.DocumentFilter`: for a shuffled cache, those of its original.

Invariants: data and ledger stay bit-identical; a reader, even after a crash, sees the file before a
removal or the file after it; the same removals give the same bytes. Price: one small read per cache
when a run opens it; about 16 bytes per range of documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from headrace.errors import CacheCorruptError, CacheError, ConfigError, of_another_version
from headrace.order.intervals import Intervals
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.lease import lease
from headrace.store.ledger import prepare_types

TOMBSTONES_NAME = "tombstones.json"
_VERSION = 1
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format_version: int
    cache: str  # fingerprint of its content
    generations: list[
        list[tuple[_Number, _Number]]
    ]  # ranges of documents: the first, and one past the last
    digest: str = ""  # of the file, with nothing in this place


prepare_types(_File)


@dataclass(frozen=True)
class Tombstones:
    """The removed documents of a cache.

    Attributes:
        cache: Fingerprint of the cache of the numbers; empty if nothing was removed.
        generations: Documents of each removal, without repeats.

    Example:
        >>> stones = Tombstones(
        ...     "ab", (Intervals.of_numbers(np.array([3, 4])), Intervals.of_numbers(np.array([9])))
        ... )
        >>> stones.documents(1), stones.documents(), len(stones)
        (Intervals(3..5), Intervals(3..5, 9..10), 2)
    """

    cache: str = ""
    generations: tuple[Intervals, ...] = ()

    def __len__(self) -> int:
        """The newest generation; 0: nothing was removed."""
        return len(self.generations)

    def documents(self, generation: int | None = None) -> Intervals:
        """Documents that are removed as of a generation (None: the newest)."""
        return Intervals.union(self.generations[:generation])

    def digest(self, generation: int) -> str:
        """Digest of the documents of a generation: 32 hex digits."""
        return self.documents(generation).digest()[:32]

    def to_bytes(self) -> bytes:
        """The content of the file."""
        generations = [
            [*zip(g.start.tolist(), g.stop.tolist(), strict=True)] for g in self.generations
        ]
        content = _File(_VERSION, self.cache, generations)
        content.digest = _digest(content)
        return msgspec.json.encode(content) + b"\n"


def _digest(content: _File) -> str:
    blank = msgspec.structs.replace(content, digest="")
    return f"sha256:{hashlib.sha256(msgspec.json.encode(blank)).hexdigest()}"


def read_tombstones(root: str) -> bytes:
    """The content of a cache's file, for :func:`parse_tombstones`; empty if there is none."""
    return files.read_bytes(files.join(root, TOMBSTONES_NAME)) or b""


def parse_tombstones(cache: TokenCache, raw: bytes) -> Tombstones:
    """The tombstones of a cache from the content of their file.

    Raises:
        CacheCorruptError: the file is damaged, of another version or of another cache, or names
            unknown documents.
    """
    if not raw:
        return Tombstones()
    url = files.join(files.absolute(cache.path), TOMBSTONES_NAME)
    again = (
        "Restore it; or delete it, and remove the documents again: headrace cache remove"
        f" {cache.path} --file ids.txt."
    )

    def refused(problem: str, cure: str = again) -> CacheCorruptError:
        return CacheCorruptError(problem, field="tombstones", value=url, cure=cure)

    try:
        content = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(
            f"is damaged, so that it is not known which documents are removed ({error})"
        ) from error
    if content.format_version != _VERSION:
        raise refused(of_another_version(content.format_version, _VERSION))
    if content.digest != _digest(content):
        raise refused("is damaged: its digest is not that of what it holds")
    if content.cache != cache.fingerprint:
        raise refused(
            f"is of another cache: it names {content.cache}, and this one is {cache.fingerprint}"
        )
    ends = [np.array(ranges, np.int64).reshape(-1, 2) for ranges in content.generations]
    if (stop := max((int(one.max(initial=0)) for one in ends), default=0)) > cache.num_documents:
        raise refused(f"names document {stop - 1}, and the cache has {cache.num_documents}")
    return Tombstones(content.cache, tuple(Intervals(one[:, 0], one[:, 1]) for one in ends))


def tombstones_of(cache: TokenCache, read: Callable[[str], bytes] = read_tombstones) -> Tombstones:
    """The current tombstones of a cache. Raises the same errors as :func:`parse_tombstones`.

    Example:
        >>> import headrace.testing
        >>> len(tombstones_of(headrace.testing.tiny_cache()))
        0
    """
    return parse_tombstones(cache, read(files.absolute(cache.path)))


def removed_documents(cache: TokenCache) -> Intervals:
    """Documents of a cache, with all its generations, that have tombstones. Raises as
    :func:`parse_tombstones` does.

    Example:
        >>> import headrace.testing
        >>> removed_documents(headrace.testing.tiny_cache()).total
        0
    """
    removed = Intervals.empty()
    first = 0
    for member in cache.members:
        of_member = tombstones_of(member).documents()
        removed = Intervals.union(
            [removed, Intervals(of_member.start + first, of_member.stop + first)]
        )
        first += member.num_documents
    return removed


def remove_documents(cache: TokenCache, documents: Intervals) -> tuple[Tombstones, Intervals]:
    """Adds tombstones for documents: a new generation, unless all of them have tombstones already.

    Args:
        cache: The cache, headrace's own or Levanter's; one generation of it.
        documents: Their numbers, which must exist.

    Returns:
        The new tombstones, and the documents that had none before.

    Raises:
        ConfigError: the location of the cache is read-only.
        CacheError: another process is writing to it, or it cannot be written.
        CacheCorruptError: the existing tombstones are damaged.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=10)
        >>> stones, fresh = remove_documents(cache, Intervals.of_numbers(np.array([3])))
        >>> stones, fresh = remove_documents(cache, Intervals.of_numbers(np.array([3, 4])))
        >>> len(stones), stones.documents(), fresh
        (2, Intervals(3..5), Intervals(4..5))
    """
    root = files.absolute(cache.path)
    if files.is_web(root):
        cure = "Remove documents where the cache is written: a local path, gs:// or s3://."
        raise ConfigError(
            "can be read from, not written to", field="cache", value=cache.path, cure=cure
        )
    with lease(
        root, field="cache", cure="Run the same command again when the other one is done."
    ) as held_lease:
        old = tombstones_of(cache)
        removed = old.documents()
        fresh = Intervals.union([removed, documents]).without(removed)
        if fresh.total == 0:
            return old, fresh
        new = Tombstones(cache.fingerprint, (*old.generations, fresh))
        held_lease.confirm()
        files.write_atomic(files.join(root, TOMBSTONES_NAME), new.to_bytes())
    return new, fresh


def copy_tombstones(cache: TokenCache, copy: TokenCache) -> TokenCache:
    """Copies the tombstones of a cache to a copy of it, unless that has some.

    Returns:
        The copy. Numbers of documents mean the same in both, even if it was shuffled.
    """
    removed = removed_documents(cache)
    if removed.total and not len(tombstones_of(copy)):
        remove_documents(copy, removed)
    return copy


def tombstones_problem(cache: TokenCache) -> str:
    """The problem of the tombstones of a cache; empty if there is none."""
    try:
        tombstones_of(cache)
    except CacheError as error:
        return error.problem
    return ""
