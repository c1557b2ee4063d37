"""Snapshots: a cache as it was built, and as it is after each later change.

Building a cache makes its snapshot 1. Each ``headrace build --append`` and each ``headrace cache
remove`` makes the next one, by adding one entry to ``<root>/snapshots.json``: the cache that was
appended, or the documents that were removed. Nothing else of a cache ever changes, so all snapshots
stay readable. Snapshot ``n`` is the built cache with the first ``n - 1`` entries.

A cache that is appended is an ordinary cache in ``<root>/appended/1``, ``2``, and so on. Together
with the built cache, these are the *members* of a snapshot. Documents are numbered through all
members, in the order in which they came, so a document keeps its number in all later snapshots; in
a shuffled member, numbers are those of its original.

A cache that was appended to hundreds of times would take hundreds of requests to open. So whoever
appends member 8, 16, and so on also writes what opening the last 8 members reads, their
``ledger.bin``, to one file; member 64, what opening the last 64 reads; and so on with powers of 8
(:func:`groups_of`). A file is made of 8 smaller ones. Who does not find one opens its members one
by one.

Invariants: members stay bit-identical; a reader, even after a crash, sees the list before a change
or the list after it; the same changes make the same bytes. Price: one small read when a cache is
opened (none for snapshot 1), which grows by about 20 bytes for each range of removed documents and
150 for each appended cache; a request for each group of members, at most 7 of a size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

import msgspec
import numpy as np

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    ConfigError,
    command_line,
)
from headrace.order.intervals import Intervals, starts
from headrace.store import files
from headrace.store.files import ReadForAll, read_here
from headrace.store.lease import lease, remove_tree
from headrace.store.ledger import check_scheme
from headrace.store.ledger_table import TABLE_NAME
from headrace.store.missing import no_cache
from headrace.store.records import RecordKind, write_record

SNAPSHOTS_NAME = "snapshots.json"
APPENDED_FOLDER = "appended"
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cache of which snapshots consist: its fingerprint and its size."""

    fingerprint: str = ""
    documents: _Number = 0
    tokens: _Number = 0


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes the next snapshot: a cache that is appended, or ranges of documents that are
    removed, each its first and one past its last.
    """

    appended: Member | None = None
    removed: tuple[tuple[_Number, _Number], ...] = ()


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The content of ``snapshots.json``.

    Attributes:
        built: The built cache. It is blank while there is no file.
        changes: What made snapshots 2, 3, and so on.

    Example:
        >>> grown = Change(Member("sha256:12", documents=20))
        >>> history = History(Member(documents=40), (grown, Change(removed=((3, 5), (41, 42)))))
        >>> history.newest, history.members_at(2), history.removed_at(3)
        (3, 2, Intervals(3..5, 41..42))
    """

    built: Member = Member()
    changes: tuple[Change, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the newest snapshot."""
        return 1 + len(self.changes)

    @property
    def newest_documents(self) -> int:
        """The newest snapshot with other documents than the one before: not one in which some only
        moved to other groups.
        """
        changes = enumerate(self.changes, start=2)
        others = (n for n, one in changes if one.appended is None or one.appended.documents)
        return max(others, default=1)

    @property
    def members(self) -> list[Member]:
        """The members of the newest snapshot."""
        return [self.built, *(one.appended for one in self.changes if one.appended is not None)]

    def members_at(self, snapshot: int) -> int:
        """How many of the members a snapshot has; snapshot 0, before there was a cache, has
        none.
        """
        appended = sum(one.appended is not None for one in self.changes[: max(snapshot - 1, 0)])
        return appended + (snapshot > 0)

    def snapshot_of(self, member: int) -> int:
        """The number of the snapshot with which a member came."""
        return next(n for n in range(1, self.newest + 1) if self.members_at(n) > member)

    @cached_property
    def first_documents(self) -> list[int]:
        """The first document of each member, and the end of the last."""
        return starts([member.documents for member in self.members]).tolist()

    def removed_at(self, snapshot: int) -> Intervals:
        """The documents that are removed as of a snapshot."""
        removed = [pair for one in self.changes[: snapshot - 1] for pair in one.removed]
        ends = np.array(removed, np.int64).reshape(-1, 2)
        return Intervals(ends[:, 0], ends[:, 1])


_UNCHANGED = History()
_KIND = RecordKind("snapshots", 1, History)
_GROUP_KIND = RecordKind("ledgers", 1, tuple[bytes, ...])
_GROUP = 8  # members, groups of members, and so on that stand in one file
_LARGEST_TABLE = 1 << 16  # bytes of a ``ledger.bin``; of larger ones opening reads only a part


def member_path(root: str, number: int) -> str:
    """The folder of a member: 0 is the built cache.

    Example:
        >>> member_path("caches/web", 0), member_path("caches/web/", 2)
        ('caches/web', 'caches/web/appended/2')
    """
    return root if number == 0 else files.join(root, APPENDED_FOLDER, str(number))


def cache_of_member(path: str) -> str:
    """The cache to which a folder was appended, judging by its name; empty if it was not.

    Example:
        >>> cache_of_member("caches/web/appended/1"), cache_of_member("caches/web")
        ('caches/web', '')
    """
    root, _, last = path.rstrip("/").rpartition(f"/{APPENDED_FOLDER}/")
    return root if last.isdecimal() else ""


def is_listed(path: str) -> bool:
    """Whether a folder was appended to a cache, and the list of its snapshots says so.

    Example:
        >>> is_listed("caches/web/appended/1")
        False
    """
    root = cache_of_member(path)
    if not root:
        return False
    return int(path.rstrip("/").rpartition("/")[2]) < len(history_of(root).members)


def groups_of(members: range) -> list[range]:
    """The groups of which a file may have the ledgers, and single members between them.

    Example:
        >>> groups_of(range(1, 75))
        [range(1, 65), range(65, 73), range(73, 74), range(74, 75)]
    """
    groups: list[range] = []
    first = members.start
    while first < members.stop:
        size = 1
        while (first - 1) % (size * _GROUP) == 0 and first + size * _GROUP <= members.stop:
            size *= _GROUP
        groups.append(range(first, first + size))
        first += size
    return groups


def group_path(root: str, group: range) -> str:
    """The file with the ledgers of a group of members."""
    return files.join(root, APPENDED_FOLDER, "ledgers", f"{group.start}-{group.stop - 1}.json")


def read_group(url: str, once: ReadForAll = read_here) -> tuple[bytes, ...]:
    """The ``ledger.bin`` of each member of a group; empty for one that is too large. None of them
    if there is no file.

    Raises:
        CacheCorruptError: the file is damaged, or of another version.
    """
    cure = "Delete it: it only saves requests."
    return once(url, partial(_GROUP_KIND.decode, url=url, cure=cure)) or ()


def _write_group(root: str, last: int, of: str) -> None:
    """Writes the ledgers of the group that a member completes, if it does."""
    size = 1
    while last % (size * _GROUP) == 0:
        size *= _GROUP
    if size == 1:
        return
    group = range(last - size + 1, last + 1)
    smaller = size // _GROUP
    tables: list[bytes] = []
    for first in group[::smaller]:
        part = range(first, first + smaller)
        url = group_path(root, part)
        tables += read_group(url) if smaller > 1 else ()
        for member in part[len(tables) - (first - group.start) :]:
            raw = files.read_bytes(files.join(member_path(root, member), TABLE_NAME)) or b""
            tables.append(raw if len(raw) <= _LARGEST_TABLE else b"")
    write_record(group_path(root, group), _GROUP_KIND, tuple(tables), of)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a cache, or what it has gained since an earlier one.

    Attributes:
        path: Folder or URL of the cache.
        history: Its changes, which may go on after this snapshot.
        number: The number of the snapshot.
        after: Only members that came after this snapshot; 0: all.

    Example:
        >>> Snapshot("caches/web").paths
        ['caches/web']
    """

    path: str
    history: History = _UNCHANGED
    number: int = 1
    after: int = 0

    @property
    def members(self) -> Sequence[int]:
        """The numbers of its members. What it has gained is further documents: members with
        documents that only moved to other groups, which bring no number, are not among them.
        """
        every = self._all_members
        if not self.after:
            return every
        return [number for number in every if self.history.members[number].documents]

    @property
    def _all_members(self) -> range:
        return range(self.history.members_at(self.after), self.history.members_at(self.number))

    @property
    def paths(self) -> list[str]:
        """The folders of its members."""
        return [member_path(self.path, number) for number in self.members]

    @property
    def changes(self) -> Sequence[Change]:
        """What made it, from the built cache on."""
        return self.history.changes[: self.number - 1]

    def removed(self, snapshot: int | None = None) -> Intervals:
        """The documents of its members that are removed, counted from its first document; as of
        itself, or of a later snapshot.
        """
        removed = self.history.removed_at(max(self.number, snapshot or 0))
        if not removed.total:
            return removed
        first = self.history.first_documents
        members = self._all_members
        return removed.within(first[members.start], first[members.stop])


def history_of(root: str, of: str | None = None, once: ReadForAll = read_here) -> History:
    """The changes of a cache.

    Args:
        root: Folder or URL of the cache.
        of: Fingerprint of the built cache; None: not known yet.
        once: How its file is read.

    Raises:
        CacheCorruptError: the file is damaged, of another version or of another cache, or names
            documents that there are not.
        CacheError: it cannot be read.
    """
    check_scheme(root)
    root = files.absolute(root)
    history = once(files.join(root, SNAPSHOTS_NAME), partial(_parsed, root)) or _UNCHANGED
    if of is not None:
        check_member(Snapshot(root, history), 0, of, root)
    return history


def _parsed(root: str, raw: bytes) -> History:
    url = files.join(root, SNAPSHOTS_NAME)
    history = _KIND.decode(raw, url, cure=_cure(root))
    documents = history.first_documents
    for number, change in enumerate(history.changes, start=2):
        last = max((stop for _, stop in change.removed), default=0)
        if last > (there := documents[history.members_at(number)]):
            problem = f"names document {last - 1}, and snapshot {number} has {there}"
            raise CacheCorruptError(problem, field="snapshots", value=url, cure=_cure(root))
    return history


def _cure(root: str) -> str:
    return (
        f"Restore it; or delete it, append again what {files.join(root, APPENDED_FOLDER)} was built"
        f" from, and remove the documents again: {command_line('cache remove', root, file='FILE')}"
    )


def choose_snapshot(
    path: str, number: int | None, history: History, after: int = 0, field: str = "snapshot"
) -> Snapshot:
    """A snapshot of a cache; None: the newest.

    Raises:
        ConfigError: there is no such snapshot.
    """
    chosen = history.newest if number is None else number
    if not 0 <= after < chosen <= history.newest:
        if not history.changes and not files.exists(path):
            raise no_cache(path)
        cure = f"Give 1 to {history.newest}" if history.changes else "Give 1"
        if after:
            cure = f"Give one after {after}, up to {history.newest}"
        raise ConfigError(
            f"is not a snapshot of {path}, which has {history.newest}",
            field=field,
            value=number,
            cure=f"{cure}, or leave it out; to see them: {command_line('cache inspect', path)}",
        )
    snapshot = Snapshot(path, history, chosen, after)
    if not snapshot.members:
        raise ConfigError(
            f"begins where nothing was appended to {path} up to snapshot {chosen}",
            field=field,
            value=number,
            cure="Name others; what was appended is shown by: "
            + command_line("cache inspect", path),
        )
    return snapshot


def check_member(snapshot: Snapshot, number: int, fingerprint: str, path: str) -> None:
    """Raises CacheCorruptError if a member is not what the list of snapshots says."""
    history = snapshot.history
    if not history.changes or (named := history.members[number].fingerprint) == fingerprint:
        return
    if number == 0:
        url = files.join(files.absolute(snapshot.path), SNAPSHOTS_NAME)
        problem = f"is of another cache: it names {named}, and this one is {fingerprint}"
        raise CacheCorruptError(
            problem, field="snapshots", value=url, cure=_cure(files.absolute(snapshot.path))
        )
    problem = f"is not what was appended: it is {fingerprint}, and {named} was"
    raise CacheCorruptError(problem, field="cache", value=path, cure="Restore its folder.")


def _add_change(
    root: str, built: Member, change: Callable[[History], Change | None], field: str
) -> tuple[History, Change | None]:
    """Adds a snapshot to a cache: ``change`` says which, from the changes so far; None: no new
    one.
    """
    root = files.absolute(root)
    cure = "Run the same command again when the other one is done."
    with lease(root, field=field, cure=cure) as held_lease:
        history = history_of(root, built.fingerprint)
        if not history.changes:  # there is no file yet
            history = History(built)
        if (added := change(history)) is None:
            return history, None
        history = History(history.built, (*history.changes, added))
        held_lease.confirm()
        write_record(files.join(root, SNAPSHOTS_NAME), _KIND, history, built.fingerprint)
    return history, added


def add_appended(root: str, built: Member, number: int, appended: Member) -> History:
    """Adds the snapshot that has one more member, unless there is one.

    Args:
        root: Folder or URL of the cache.
        built: The built cache.
        number: The number of the new member.
        appended: The new member.

    Raises:
        CacheError: another one was appended in the meantime; another process is changing the
            cache; it cannot be written.
        CacheCorruptError: the list of snapshots is damaged.
    """

    def change(history: History) -> Change | None:
        members = history.members
        if members[number : number + 1] == [appended]:
            return None
        if number != len(members):
            problem = (
                f"has {len(members)} caches in one by now, and this was to be number {number + 1}"
            )
            cure = "Run the same command again."
            raise CacheError(problem, field="output", value=root, cure=cure)
        _write_group(files.absolute(root), number, built.fingerprint)
        return Change(appended)

    return _add_change(root, built, change, "output")[0]


def remove_documents(root: str, built: Member, documents: Intervals) -> tuple[History, Intervals]:
    """Adds the snapshot without some documents, unless all of them are removed already.

    Args:
        root: Folder or URL of the cache, headrace's own or Levanter's.
        built: The built cache.
        documents: Their numbers, which must exist.

    Returns:
        All changes, and the documents that were there before.

    Raises:
        ConfigError: the location of the cache is read-only.
        CacheError: another process is changing the cache, or it cannot be written.
        CacheCorruptError: the list of snapshots is damaged.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=10)
        >>> gone = [Intervals.of_numbers(np.array(numbers)) for numbers in ([3], [3, 4])]
        >>> history, fresh = remove_documents(cache.path, cache.as_member, gone[0])
        >>> history, fresh = remove_documents(cache.path, cache.as_member, gone[1])
        >>> history.newest, history.removed_at(3), fresh
        (3, Intervals(3..5), Intervals(4..5))
    """

    def change(history: History) -> Change | None:
        fresh = documents.without(history.removed_at(history.newest))
        pairs = zip(fresh.start.tolist(), fresh.stop.tolist(), strict=True)
        return Change(removed=tuple(pairs)) if fresh.total else None

    history, added = _add_change(root, built, change, "cache")
    if added is None:
        return history, Intervals.empty()
    ends = np.array(added.removed, np.int64)
    return history, Intervals(ends[:, 0], ends[:, 1])


def copy_removed(removed: Intervals, copy: str, built: Member) -> None:
    """Removes documents from a copy of a cache in which they are removed, unless it has been
    changed already. They have the same numbers in both, even if the copy was shuffled.
    """
    if removed.total and not history_of(copy).changes:
        remove_documents(copy, built, removed)


def remove_snapshots(root: str) -> None:
    """Deletes all snapshots but the first of a cache that is rebuilt, their list first."""
    remove_tree(files.join(root, SNAPSHOTS_NAME))
    remove_tree(files.join(root, APPENDED_FOLDER))
