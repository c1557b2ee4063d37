"""Opening caches: a snapshot of one, or those of all components of a run; and several as one.

Documents, tokens and parts of a :class:`JoinedCache` are numbered across its caches; nothing is
copied. Rows never cross two caches, just as they never cross two parts.

How a cache is opened, step by step; the comments below have the same numbers:

1. **Which members?** A snapshot says it: the built cache, and what was appended up to then
   (:mod:`headrace.store.snapshots`). Members are opened 16 at a time.
2. **Members of a group together.** A remote cache that was appended to often has files with the
   ledgers of 8 members, or 64. Who finds none opens them one by one.
3. **One member**: its ledger, which :mod:`headrace.store.ledger` reads and checks, makes a
   :class:`~headrace.store.cache.TokenCache`. A folder without one may hold another system's files
   (:mod:`headrace.store.layouts`). If the cache has replicas, the first that answers is taken.
4. **Is it the right one?** The list of snapshots has the fingerprint of each member.
5. **Join** the members, and the caches of a component that has several.

Price: that of opening each cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from msgspec.structs import replace

from headrace.errors import CacheError, CacheMissingError, ConfigError, errors_at
from headrace.order.intervals import Intervals, starts
from headrace.store import files
from headrace.store.cache import OriginalDocument, TokenCache
from headrace.store.files import ReadForAll
from headrace.store.layouts import FormatConfig
from headrace.store.leaf import ArrayList, LeafPart, MadeList
from headrace.store.ledger import (
    LaterSources,
    Ledger,
    check_first,
    ledger_of_table,
)
from headrace.store.ledger_table import TABLE_NAME, ColumnTable, PartRecord, PartTable
from headrace.store.replicas import open_replicas
from headrace.store.snapshots import (
    History,
    Snapshot,
    check_member,
    choose_snapshot,
    group_path,
    groups_of,
    history_of,
    member_path,
    read_group,
)


class JoinedCache(TokenCache):
    """Caches in the order given. Parts are named by cache and part.

    Args:
        caches: At least one; all with the same dtype, chunks and leaves.
        snapshots: The snapshots whose members these are; None: each is a cache by itself.

    Attributes:
        members: The caches.
        path: Path of the first that is not empty; plans are saved in its folder.

    Raises:
        ConfigError: a cache is named twice, or differs from the first.

    Example:
        >>> from headrace.testing import tiny_cache
        >>> a, b = tiny_cache(seed=1), tiny_cache(seed=2)
        >>> both = JoinedCache([a, b])
        >>> both.num_tokens == a.num_tokens + b.num_tokens
        True
        >>> bool((both.document(a.num_documents) == b.document(0)).all())
        True
    """

    def __init__(
        self, caches: Sequence[TokenCache], snapshots: Sequence[Snapshot] | None = None
    ) -> None:
        first = next((c for c in caches if c.ledger.parts), caches[0])
        self._members = tuple(caches)
        for number, cache in enumerate(caches):
            if cache.ledger.parts:
                _check_like(cache, first, number)
        paths = [cache.path for cache in caches if cache.ledger.parts]
        if twice := [path for number, path in enumerate(paths) if path in paths[:number]]:
            raise ConfigError(
                "is named twice", field="cache", value=twice[0], cure="Name each cache once."
            )
        self._joined = _JoinedTable(self._members)
        joined = replace(first.ledger, parts=self._joined, sources=LaterSources(self._sources))
        super().__init__(first.path, joined, self._member_part)
        self.snapshots = (
            tuple(one for cache in caches for one in cache.snapshots)
            if snapshots is None
            else tuple(snapshots)
        )

    @property
    def members(self) -> Sequence[TokenCache]:
        return self._members

    @property
    def recorded_shuffle(self) -> None:
        """None: each member has its own shuffle."""
        return None

    @property
    def is_shuffled(self) -> bool:
        return any(cache.is_shuffled for cache in self._members)

    @property
    def are_cut(self) -> bool:
        return any(cache.are_cut for cache in self._members)

    @property
    def num_originals(self) -> int:
        return int(self._first_originals[-1])

    @property
    def _first_originals(self) -> Int64[np.ndarray, " m1"]:
        return starts([cache.num_originals for cache in self._members])

    @property
    def _first_stored(self) -> Int64[np.ndarray, " m1"]:
        return starts([cache.num_documents for cache in self._members])

    @cached_property
    def _moved_from(self) -> dict[int, list[int]]:
        """The members with documents that moved, by the member in which these were first."""
        moved: dict[int, list[int]] = {}
        first = 0
        for snapshot in self.snapshots:
            later = range(first + 1, min(first + len(snapshot.members), len(self._members)))
            moved[first] = [number for number in later if self._members[number].are_moved]
            first = later.stop
        return moved

    @cached_property
    def moved_away(self) -> Intervals:
        away = [
            Intervals(cache.moved_away.start + first, cache.moved_away.stop + first)
            for cache, first in zip(self._members, self._first_stored.tolist(), strict=False)
        ]
        for first, moved in self._moved_from.items():
            for earlier, member in enumerate(moved):
                cache = self._members[member]
                originals = cache.originals(np.arange(cache.num_documents))
                positions = self._stored_at(first, originals, moved[:earlier])
                away.append(Intervals.of_numbers(positions))
        return Intervals.union(away)

    def stored_at(self, originals: np.ndarray | Sequence[int]) -> np.ndarray:
        def stored_in(number: int, some: np.ndarray) -> np.ndarray:
            return self._stored_at(number, some, self._moved_from.get(number, []))

        return self._by_member(originals, self._first_originals, stored_in)

    def _stored_at(
        self, number: int, originals: Int64[np.ndarray, " n"], moved: Sequence[int]
    ) -> Int64[np.ndarray, " m"]:
        """Stored positions of documents of a member, of which some are in later members."""
        first_stored = self._first_stored
        positions = self._members[number].stored_at(originals) + first_stored[number]
        for later in moved:
            cache = self._members[later]
            of_later = cache.stored_at(originals)
            is_there = of_later < cache.num_documents
            positions[is_there] = of_later[is_there] + first_stored[later]
        return positions

    def originals(self, stored: np.ndarray | Sequence[int]) -> np.ndarray:
        def originals_in(number: int, some: np.ndarray) -> np.ndarray:
            return self._members[number].originals(some) + self._first_number(number)

        return self._by_member(stored, self._first_stored, originals_in)

    def _first_number(self, member: int) -> int:
        """The number of the first document of a member; of one with documents that moved, that of
        the member in which they were first.
        """
        first = (first for first, moved in self._moved_from.items() if member in moved)
        return int(self._first_originals[next(first, member)])

    def original(self, place: int) -> OriginalDocument:
        first = self._first_stored
        number = int(np.searchsorted(first, place, side="right")) - 1
        cache = self._members[number]
        one = cache.original(place - int(first[number]))
        part = _part_name(cache, one.part)
        records = [{**file, "part": part} for file in one.files]
        whole_number = self._first_number(number) + one.number
        return replace_fields(one, number=whole_number, part=part, files=records)

    def check_unit(self, unit: int) -> None:
        for cache in self._members:
            cache.check_unit(unit)

    def _by_member(
        self,
        numbers: np.ndarray | Sequence[int],
        first: Int64[np.ndarray, " m1"],
        move: Callable[[int, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Maps numbers within the member that they belong to, neighbours in one member together."""
        numbers = np.asarray(numbers, np.int64)
        member = np.searchsorted(first[1:-1], numbers, side="right")
        borders = np.flatnonzero(np.diff(member)) + 1
        moved = [np.zeros(0, np.int64)]
        for number, some in zip(
            member[np.append(0, borders)[: numbers.size]].tolist(),
            np.split(numbers, borders),
            strict=False,
        ):
            moved.append(move(number, some - first[number]))
        return np.concatenate(moved)

    def opening_requests(self, hosts: int) -> int:
        return sum(cache.opening_requests(hosts) for cache in self._members)

    @property
    def whole_ledger(self) -> Ledger:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ledger of the first member, with the parts and the sources of all."""
        ledgers = [(cache, cache.whole_ledger) for cache in self._members]
        parts = [
            replace(part, name=_part_name(cache, part.name))
            for cache, ledger in ledgers
            for part in ledger.parts
        ]
        return replace(ledgers[0][1], parts=parts, sources=self.ledger.sources)

    def _sources(self) -> list[dict[str, Any]]:
        return [
            {**record, "part": _part_name(cache, str(record.get("part")))}
            for cache in self._members
            for record in cache.ledger.sources
        ]

    def _arrays(self, name: str, parts: MadeList[LeafPart]) -> ArrayList:
        return ArrayList.join(
            [cache.leaf(name).arrays for cache in self._members if cache.ledger.parts]
        )

    def _member_part(self, name: str, number: int) -> LeafPart:
        member, index = self._joined.locate(number)
        return self._members[member].leaf(name).parts.once(index)


class _JoinedTable(PartTable):
    """The parts of several caches, cache by cache."""

    def __init__(self, caches: Sequence[TokenCache]) -> None:
        self._caches = caches
        self._tables = [PartTable.of(cache.ledger.parts) for cache in caches]
        self._first = np.cumsum([0, *(len(table) for table in self._tables)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """The cache of a part, and its number there."""
        cache = int(np.searchsorted(self._first, number, side="right")) - 1
        return cache, number - int(self._first[cache])

    def item(self, number: int) -> PartRecord:
        cache, index = self.locate(number)
        record = self._tables[cache][index]
        return replace(record, name=_part_name(self._caches[cache], record.name))

    @cached_property
    def documents(self) -> Int64[np.ndarray, " parts"]:
        return np.concatenate([table.documents for table in self._tables])

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " parts"]:
        return np.concatenate([table.tokens for table in self._tables])

    def digest_lines(self) -> bytes:
        return b"\n".join(table.digest_lines() for table in self._tables if len(table))


def _part_name(cache: TokenCache, part: str) -> str:
    return files.join(cache.path, part) if part else cache.path


def _check_like(cache: TokenCache, first: TokenCache, number: int) -> None:
    expected = _shape(first)
    for name, value in _shape(cache).items():
        if value != expected[name]:
            cure = "Make it a component of its own, or build it again like the others."
            problem = (
                f"cannot be joined to {first.path}: its {name} is {value}, not {expected[name]}"
            )
            raise ConfigError(problem, field=f"cache[{number}]", value=cache.path, cure=cure)


def _shape(cache: TokenCache) -> dict[str, Any]:
    """What caches that are joined have in common."""
    return {
        "dtype": cache.layout.dtype,
        "chunk of tokens": cache.layout.chunk_elements,
        "leaves": {spec.name: spec.to_dict() for spec in cache.leaf_specs},
    }


def open_cache(
    path: str | Path,
    snapshot: int | None = None,
    *,
    settings: FormatConfig | None = None,
) -> TokenCache:
    """Opens a cache with all that was appended to it, less what was removed from it
    (:mod:`headrace.store.snapshots`): headrace's own, or a store of another system
    (:mod:`headrace.store.layouts`).

    Args:
        path: Its folder or URL (``gs://``, ``s3://``, ``https://``); of other systems also a file,
            a prefix or a pattern.
        snapshot: The number of the snapshot; None: the newest.
        settings: How another system's files are read.

    Raises:
        CacheMissingError: there is no cache.
        CacheUnfinishedError: its build was interrupted.
        CacheCorruptError: its ledger is invalid, or of another version.
        CacheError: its ledger, or that of what was appended, cannot be read.
        ConfigError: there is no such snapshot.

    Example:
        >>> from headrace.testing import tiny_cache
        >>> open_cache(tiny_cache().path).snapshots[0].number
        1
    """
    if not isinstance(path, str | Path):
        cure = "Give the folder of a cache."
        raise ConfigError("is not a path", field="cache", value=path, cure=cure)
    path = str(path)
    # 1. Snapshot 1 is the cache as it was built, which no list says anything of.
    history = History() if snapshot == 1 else history_of(path)
    chosen = choose_snapshot(path, snapshot, history)
    return _joined([_opened(chosen, settings=settings)], [chosen])


def _opened(
    snapshot: Snapshot,
    replicas: Sequence[str] = (),
    settings: FormatConfig | None = None,
    once: ReadForAll = files.read_here,
) -> list[TokenCache]:
    """The members of a snapshot of a cache with one or several locations."""
    together: dict[int, TokenCache] = {}

    # 2. All that opening reads of these members is in one file.
    def open_group(group: range) -> None:
        url = group_path(files.absolute(snapshot.path), group)
        for number, raw in zip(group, read_group(url, once), strict=False):
            path = member_path(snapshot.path, number)
            root = files.absolute(path)
            if raw:
                table = ColumnTable(files.join(root, TABLE_NAME), raw)
                # Opening a cache takes two requests and `reads` more. Here all of a group take two:
                # for its file, and to see that the last member's arrays are those of its ledger.
                table.reads = 0 if number == group[-1] else -2
                if number == group[-1]:
                    check_first(root, table)
                together[number] = TokenCache(path, ledger_of_table(root, table))

    def opened(number: int) -> TokenCache:
        # 3. Of a member without a folder, it is said which run can do without.
        paths = [member_path(root, number) for root in (snapshot.path, *replicas)]
        try:
            if number in together:
                member = together[number]
            elif replicas:
                member = open_replicas(paths)
            else:
                member = TokenCache.open_member(paths[0], once=once, settings=settings)
        except CacheMissingError as error:
            if number == 0:
                raise
            cure = (
                "Restore its folder; a run that is to do without has components.NAME.snapshot:"
                f" {snapshot.history.snapshot_of(number) - 1}."
            )
            raise error.but(cure=cure) from error
        # 4. Somebody may have built another cache in its folder.
        check_member(snapshot, number, member.fingerprint, member.path)
        return member

    with ThreadPoolExecutor(max_workers=16) as pool:  # a cache may have been appended to often
        if not (replicas or files.is_local(snapshot.path)):
            appended = range(max(snapshot.members[0], 1), snapshot.members[-1] + 1)
            groups = [group for group in groups_of(appended) if len(group) > 1]
            deque(pool.map(open_group, groups), maxlen=0)
        return [*pool.map(opened, snapshot.members)]


def _joined(groups: Sequence[Sequence[TokenCache]], snapshots: Sequence[Snapshot]) -> TokenCache:
    """The members of several snapshots as one cache."""
    # 5. A single one is itself, so that its numbers and names are those of its folder.
    members = [member for group in groups for member in group]
    if members[1:]:
        return JoinedCache(members, snapshots)
    members[0].snapshots = tuple(snapshots)
    return members[0]


def open_components(
    snapshots: Mapping[str, Sequence[Snapshot]],
    replicas: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, FormatConfig] | None = None,
    once: ReadForAll = files.read_here,
) -> dict[str, TokenCache]:
    """The caches of components, by name, those of several paths or members joined; 16 are opened at
    a time.

    Args:
        snapshots: What each component has, a snapshot of each of its caches.
        replicas: Other locations of a cache, by its path; see
            :func:`~headrace.store.replicas.open_replicas`.
        settings: How another system's files are read, by component.
        once: How ledgers are read, as for :meth:`TokenCache.open_member`; not used for a cache with
            replicas.

    Raises:
        CacheError: one cannot be opened; reports the first in order.
        ConfigError: caches cannot be joined; names the component.
    """

    def open_all(name: str, snapshot: Snapshot) -> list[TokenCache]:
        with errors_at(f"components.{name}."):
            of_path = (replicas or {}).get(snapshot.path, ())
            return _opened(snapshot, of_path, (settings or {}).get(name), once)

    with ThreadPoolExecutor(max_workers=16) as pool:
        opening = {
            name: [pool.submit(open_all, name, one) for one in several]
            for name, several in snapshots.items()
        }
        groups = {name: [one.result() for one in several] for name, several in opening.items()}
    caches: dict[str, TokenCache] = {}
    for name, several in snapshots.items():
        with errors_at(f"components.{name}."):
            caches[name] = _joined(groups[name], several)
    return caches


def history_problem(root: str, settings: FormatConfig | None = None) -> tuple[int, str]:
    """How many members of a cache can be used, and the problem of the list of its snapshots; empty
    if there is none. ``settings``: how another system's files are read.

    Example:
        >>> import headrace.testing
        >>> history_problem(headrace.testing.tiny_cache().path)
        (1, '')
    """
    try:
        built = TokenCache.open_member(root, settings=settings)
    except CacheError:  # whoever looks at the cache itself says what is wrong with it
        return 1, ""
    try:
        history = history_of(root, built.fingerprint)
    except CacheError as error:
        return 1, error.problem
    snapshot = Snapshot(root, history, history.newest)
    for number, path in enumerate(snapshot.paths[1:], start=1):
        try:
            check_member(snapshot, number, TokenCache.open_member(path).fingerprint, path)
        except CacheError as error:
            return number, f"names {path}, which {error.problem}"
    return len(snapshot.members), ""
