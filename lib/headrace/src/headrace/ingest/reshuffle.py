"""``cache reshuffle``: a copy of a cache with its documents, and all their leaves, in shuffled
order.

In a shuffled store, neighbouring documents are unrelated, so an order that reads it block by block
trains like a full shuffle (measured: docs/order.md). Only the files on disk determine what is left
to do::

    ledger.json, finished: false   the plan: parts, and the runs and slices that follow from
                                   the memory
    runs/                          documents on their way (:mod:`headrace.ingest.shuffle_parts`)
    parts/00000/...  part.json     one folder a part; its record is its last write
    ledger.json, finished: true    written last, when runs/ is gone

Documents may be cut at multiples of a length; then the pieces are what is shuffled, and numbers
remain those of whole documents (:mod:`headrace.order.document_shuffle`).

Documents may be packed into rows (:mod:`headrace.ingest.pack_order`), with a table of where they
lie.

Documents may be divided into groups, such as the buckets of a run. Then each group has parts of its
own, and what reads one group reads no chunk of another; two tables say where documents lie
(:mod:`headrace.store.grouped`).

Invariant: the order is a function of (pieces of the original, seed, unit, groups), and each part
has a fixed range of positions. The finished folder is therefore bit-identical with any memory,
engine and workers, and after any kill. Shuffling a shuffled cache again gives the same as shuffling
its original.

Price: the cache is read and written twice; until the end, twice the cache on disk.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from msgspec import structs

from headrace.errors import CacheError, ConfigError, PlanMismatchError, command_line, redact
from headrace.ingest.choices import Engine
from headrace.ingest.part_builder import Work
from headrace.ingest.resume import RUNS_FOLDER, clear, cure_of_begun, differing_values
from headrace.ingest.shuffle_parts import (
    ShufflePlan,
    ShuffleTask,
    run_name,
)
from headrace.ingest.shuffle_plan import (
    STAYS,
    Grouping,
    ReshuffleConfig,
    ShuffleSizes,
    cut_runs_and_slices,
    sizes_of,
)
from headrace.numbers import in_bytes
from headrace.order.document_shuffle import DocumentPieces
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.grouped import (
    numbers_of_places,
    open_tables,
    table_problems,
    write_tables,
)
from headrace.store.joined import open_cache
from headrace.store.layouts import as_option
from headrace.store.lease import Lease, remove_tree, sole_builder
from headrace.store.ledger import (
    GROUPED,
    SHUFFLED,
    Ledger,
    ShuffleRecord,
    read_ledger,
    read_part_record,
    shuffle_record,
    summed,
    write_ledger,
)
from headrace.store.ledger_table import PartRecord
from headrace.store.snapshots import add_appended, copy_removed, member_path

_RUNS = "runs"
_SETTINGS = ("seed", "unit", "part_bytes", "split", "pack", "groups_digest")
_DOCUMENTS = 1 << 20  # that are looked up together


@dataclass(frozen=True)
class ReshuffleReport:
    """The result: ``parts_built`` and ``runs_dealt`` by this call; ``parts_reused`` already
    existed. ``pieces``: what the documents were cut into.
    """

    path: str
    documents: int
    pieces: int
    tokens: int
    seed: int
    unit: int
    parts_built: int
    parts_reused: int
    runs_dealt: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def reshuffle(
    cache: TokenCache | str | Path,
    output: str,
    how: ReshuffleConfig,
    *,
    engine: Engine = "auto",
    workers: int | None = None,
    restart: bool = False,
    progress: bool = True,
) -> ReshuffleReport:
    """Writes a copy of a cache, headrace's or Levanter's, with its documents shuffled; or finishes
    an interrupted one.

    Args:
        cache: The cache to shuffle: open, or its path.
        output: Folder or URL: new, empty, or with an interrupted copy.
        how: Seed and limits.
        engine: As for :func:`~headrace.ingest.build.build_cache`. No effect on the result.
        workers: Number of workers; None: as many as cores and memory allow. No effect on the
            result.
        restart: Delete existing content and start over.
        progress: Show bars if stderr is a terminal.

    Returns:
        A report. If the copy was already finished, nothing is done.

    Raises:
        ConfigError: the memory is too little for the shards of the cache, or another value is
            invalid.
        PlanMismatchError: the output was started from another cache, or with other settings.
        CacheError: the output contains something else, is being written, has no room, or cannot be
            written.
        ReadError: the cache is damaged.

    Example:
        >>> import tempfile
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = reshuffle(cache, folder, ReshuffleConfig(seed=7), progress=False)
        ...     copy = open_cache(folder)
        ...     bool((copy.document(int(copy.stored_at([3])[0])) == cache.document(3)).all())
        True
    """
    cache = cache if isinstance(cache, TokenCache) else open_cache(cache)
    return copy_shuffled(
        sizes_of(cache, how), str(output), Work(engine, workers, progress), restart=restart
    )


def copy_shuffled(
    sizes: ShuffleSizes, output: str, work: Work, *, restart: bool
) -> ReshuffleReport:
    """Writes a copy of a cache with these sizes, or finishes it; see :func:`reshuffle`."""
    files.check_writable(output)
    cache = sizes.cache
    cache.check_unmoved()
    cache.check_one_numbering()
    report = _written(sizes, output, work, restart)
    copy = TokenCache.open_member(output)
    if not copy.are_moved:
        copy_removed(cache.removed(), copy.path, copy.as_member)
    return report


def as_copied(cache: TokenCache, output: str) -> TokenCache:
    """The cache as it was when a store was made of it, which may have been before documents were
    appended; itself if there is no such store, or it was made of another.
    """
    record = _record_of(output)
    number = cache.snapshots[0].number
    while record is not None and cache.original_fingerprint != record.fingerprint and number > 1:
        number -= 1
        earlier = open_cache(cache.path, number)
        if earlier.original_fingerprint == record.fingerprint:
            return earlier
    return cache


def stored_groups(cache: TokenCache, output: str) -> Grouping | None:
    """The groups with which a store was written, of its own tables: numbers of documents may be
    others by now. None: it has no groups, or does not know them yet.

    Args:
        cache: The cache of which the store is a copy.
        output: Folder or URL of the store, finished or not.

    Raises:
        CacheCorruptError: both tables are damaged.
    """
    record = _record_of(output)
    if record is None or not (record.groups and record.tables):
        return None
    pieces = DocumentPieces.uncut(cache.num_originals)
    if record.split:
        pieces = DocumentPieces.parse(record.documents, record.pieces)
    number_at = numbers_of_places(output, record.tables)
    ends = np.cumsum(record.groups)
    group = np.full(cache.num_originals, STAYS, np.uint8)
    grouped = 0
    for first in range(0, number_at.size, _DOCUMENTS):
        documents = pieces.documents_of(number_at[first : first + _DOCUMENTS].astype(np.int64))
        documents = documents[group[documents] == STAYS]  # not further pieces of one
        _, at = np.unique(documents, return_index=True)
        documents = documents[np.sort(at)]
        nth = np.arange(grouped, grouped + documents.size)
        group[documents] = np.searchsorted(ends, nth, side="right")
        grouped += documents.size
    return Grouping(cache.in_stored_order(group), tuple(record.by), record.moved)


def _record_of(output: str) -> ShuffleRecord | None:
    ledger = read_ledger(output)
    return None if ledger is None else shuffle_record(ledger, output)


@dataclass(frozen=True)
class MoveReport:
    """The result of :func:`move_documents`: the ``snapshot`` of the store with them, how many
    ``moved``, and their tokens.
    """

    path: str
    snapshot: int
    documents: int
    moved: int
    tokens: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def move_documents(
    cache: TokenCache,
    output: str,
    how: ReshuffleConfig,
    work: Work,
    *,
    restart: bool = False,
) -> MoveReport:
    """Moves the documents of a store in groups that are in other groups now: its next snapshot has
    them in parts of their own, and nothing else is written. Documents keep their numbers, and
    earlier snapshots stay as they are.

    Args:
        cache: The cache of which the store is a copy.
        output: Folder or URL of the store.
        how: The groups as they are now, and limits. Seed, unit and size of parts are those of the
            store.
        work: What does the work.
        restart: Start over what was interrupted.

    Raises:
        ConfigError: there is no store in groups, or one of another cache, or its documents are cut.
        PlanMismatchError: what was interrupted had other groups.
        CacheError: as for :func:`reshuffle`.

    Example:
        >>> import tempfile
        >>> import headrace.testing
        >>> from headrace.ingest.shuffle_plan import Grouping
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> group = np.arange(20, dtype=np.uint8) % 2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     how = ReshuffleConfig(7, groups=Grouping(group))
        ...     _ = reshuffle(cache, folder, how, progress=False)
        ...     group[:3] = 0
        ...     how = ReshuffleConfig(7, groups=Grouping(group))
        ...     moved = move_documents(cache, folder, how, Work(progress=False))
        ...     moved.snapshot, moved.moved, open_cache(folder).stored_at([1]).tolist()
        (2, 1, [20])
    """
    began = time.monotonic()
    store = _store_of(cache, output, how)
    record = store.members[0].recorded_shuffle
    assert record is not None
    assert how.groups is not None
    of_place = np.concatenate([_groups_of_places(member) for member in store.members])
    group = np.empty(cache.num_documents, np.uint8)
    shared = np.zeros(STAYS**2, np.int64)  # documents, by group as it is now and as it was
    for numbers in _blocks(group.size):
        group[numbers] = of_place[store.stored_at(cache.originals(numbers))]
        pair = how.groups.of_document[numbers].astype(np.int64) * STAYS + group[numbers]
        shared += np.bincount(pair, minlength=shared.size)
    place_of_group = _places_of_groups(shared.reshape(STAYS, STAYS))
    moved = 0
    for numbers in _blocks(group.size):
        new_group = place_of_group[how.groups.of_document[numbers]]
        moves = group[numbers] != new_group
        group[numbers] = np.where(moves, new_group, STAYS)
        moved += int(np.count_nonzero(moves))
    snapshot = store.snapshots[0].number
    if not moved:
        return MoveReport(output, snapshot, group.size, 0, 0, time.monotonic() - began)
    groups = Grouping(group, how.groups.by, moved=True)
    how = replace(
        how, seed=record.seed, unit=record.unit, part_bytes=record.part_bytes, groups=groups
    )
    number = len(store.members)
    folder = member_path(output, number)
    _written(sizes_of(cache, how), folder, work, restart)
    member = TokenCache.open_member(folder).as_member
    history = add_appended(output, store.members[0].as_member, number, member)
    seconds = time.monotonic() - began
    return MoveReport(output, history.newest, group.size, moved, member.tokens, seconds)


def _blocks(documents: int) -> Iterator[Int64[np.ndarray, " n"]]:
    for first in range(0, documents, _DOCUMENTS):
        yield np.arange(first, min(first + _DOCUMENTS, documents))


def _places_of_groups(shared: Int64[np.ndarray, "now before"]) -> UInt8[np.ndarray, " now"]:
    """For each group, the one among those before in whose place it stays, so that few documents
    move: a group that is new, or none any more, does not move those behind it. The most documents
    in common are served first.

    Example:
        >>> _places_of_groups(np.array([[0, 9, 1], [0, 0, 8], [7, 2, 0]])).tolist()
        [1, 2, 0]
    """
    stays_at = np.full(len(shared), STAYS, np.uint8)
    is_used = np.zeros(len(shared), bool)
    for pair in np.argsort(-shared, axis=None, kind="stable").tolist():
        group, old_group = divmod(pair, len(shared))
        if stays_at[group] == STAYS and not is_used[old_group]:
            stays_at[group] = old_group
            is_used[old_group] = True
    return stays_at


def _store_of(cache: TokenCache, output: str, how: ReshuffleConfig) -> TokenCache:
    """The newest snapshot of a store in groups that was made of a cache, with uncut documents."""
    refused = partial(ConfigError, field="output", value=output)
    if read_ledger(output) is None:
        raise refused("holds no store yet", cure="Write it first: leave --update out.")
    store = open_cache(output)
    record = store.members[0].recorded_shuffle
    if record is None or not record.groups or record.split or how.cut:
        by = () if how.groups is None else how.groups.by
        command = command_line("cache reshuffle", cache.path, f"{output}-grouped")
        cure = f"Write one beside it: {' '.join([command, *map(shlex.quote, by)])}"
        raise refused("is no store in groups of whole documents", cure=cure)
    if record.fingerprint != cache.original_fingerprint:
        raise refused(
            f"is not a copy of {cache.path}", cure=f"Name the cache it was made of: {record.cache}."
        )
    return store


def _groups_of_places(member: TokenCache) -> UInt8[np.ndarray, " documents"]:
    """The group in which each document of a member lies."""
    record = member.recorded_shuffle
    if record is None or not record.groups:  # appended, and of no group
        return np.full(member.num_documents, STAYS, np.uint8)
    return np.repeat(np.arange(len(record.groups), dtype=np.uint8), record.groups)


def _written(sizes: ShuffleSizes, output: str, work: Work, restart: bool) -> ReshuffleReport:
    """Writes a copy, or finishes it."""
    path = sizes.cache.path
    _check_apart(path, output)
    with sole_builder(output) as (held_lease, old_ledger):
        if old_ledger is not None and restart:
            clear_shuffled(output, old_ledger)
            old_ledger = None
        return Reshuffling(sizes, output, redact(path), work, held_lease, old_ledger).run()


def _check_apart(cache: str, output: str) -> None:
    """Raises CacheError if the cache is in the output, where a restart would delete it."""
    source, target = (
        PurePath(os.path.realpath(_absolute(p)) if files.is_local(p) else p)
        for p in (cache, output)
    )
    if source.is_relative_to(target):
        cure = "Choose a folder that is new or empty."
        raise CacheError(
            "holds the cache that is to be shuffled", field="output", value=output, cure=cure
        )


def clear_shuffled(output: str, begun: Ledger) -> None:
    """Deletes a shuffled cache, finished or not.

    Raises:
        CacheError: it was not shuffled here.
    """
    if SHUFFLED not in begun.metadata:
        cure = "Choose a folder that is new or empty, or delete it yourself."
        raise CacheError(
            "holds a cache that was not shuffled here", field="output", value=output, cure=cure
        )
    clear(output, begun)


@dataclass(frozen=True)
class Reshuffling:
    """A shuffle whose output is leased: see :func:`reshuffle`.

    Attributes:
        sizes: Its parts.
        output: Folder or URL of the shuffled cache.
        origin: The cache's name in the ledger; None if the cache is deleted afterwards and its
            source files are named instead.
        work: What does the work.
        held_lease: The lease.
        old_ledger: What was there before.
    """

    sizes: ShuffleSizes
    output: str
    origin: str | None
    work: Work
    held_lease: Lease
    old_ledger: Ledger | None

    def run(self) -> ReshuffleReport:
        """Does what is left to do."""
        began = time.monotonic()
        output = self.output
        cache = self.sizes.cache
        planned = _start_ledger(self.sizes, self.origin)
        if self.old_ledger is not None:
            check_begun(output, self.old_ledger, planned.metadata[SHUFFLED], _SETTINGS)
        names = [str(s["part"]) for s in planned.sources]
        records = {
            name: record for name in names if (record := read_part_record(output, name)) is not None
        }
        reused = len(records)
        dealt = 0
        if reused < len(names):
            dealt = self._build(planned, records)
        if reused < len(names) or not self._is_finished():
            remove_tree(files.join(output, RUNS_FOLDER))
            name = planned.tokenizer.get("file")
            if name and (content := files.read_bytes(files.join(cache.path, name))) is not None:
                files.write_atomic(files.join(output, name), content)
            shuffled = planned.metadata[SHUFFLED] | self._write_tables()
            parts = [records[name] for name in names]
            write_ledger(output, planned.complete(parts, **{SHUFFLED: shuffled}))
        shuffle = self.sizes.shuffle
        return ReshuffleReport(
            output,
            cache.num_originals,
            shuffle.documents,
            cache.num_tokens,
            shuffle.seed,
            shuffle.unit,
            len(names) - reused,
            reused,
            dealt,
            time.monotonic() - began,
        )

    def _is_finished(self) -> bool:
        if self.old_ledger is None or not self.old_ledger.finished:
            return False
        tables = self.old_ledger.metadata[SHUFFLED].get("tables", {})
        return not tables or not table_problems(self.output, tables, self.sizes.stored_documents)

    def _write_tables(self) -> dict[str, Any]:
        """Writes where documents lie, if it cannot be computed; what the ledger says of it."""
        sizes = self.sizes
        if sizes.tables is None:
            return {}
        documents = max(sizes.shuffle.documents, sizes.stored_documents)
        return {
            "tables": write_tables(self.output, sizes.tables, documents, sizes.stored_documents)
        }

    def _build(self, planned: Ledger, records: dict[str, PartRecord]) -> int:
        """Writes the missing parts, and adds their records; returns the number of runs that were
        dealt.
        """
        sizes = self.sizes
        plan = self._planned(planned)
        edges = sizes.edges.tolist()
        shares = np.diff(sizes.edges) * sizes.value_bytes // sizes.stored_documents
        parts = [
            ShuffleTask(str(s["part"]), a, b, int(share))
            for s, a, b, share in zip(
                planned.sources, edges[:-1], edges[1:], shares.tolist(), strict=True
            )
        ]
        parts = [task for task in parts if task.name not in records]
        share = sizes.value_bytes / sizes.shuffle.documents
        bounds = plan.runs.tolist()
        runs = [
            ShuffleTask(run_name(k), a, b, int(share * (b - a)))
            for k, (a, b) in enumerate(itertools.pairwise(bounds))
            if read_part_record(plan.runs_root, run_name(k)) is None
        ]
        _check_room(self.output, sum(t.stored_bytes for t in (*runs, *parts)))
        paths = [sizes.cache.path]
        self.work.build("dealing", plan, runs, paths, self.held_lease)
        ordering = replace(plan, deals=False)
        records |= self.work.build("ordering", ordering, parts, paths, self.held_lease)[0]
        return len(runs)

    def _planned(self, planned: Ledger) -> ShufflePlan:
        """The existing plan if it is for the same memory; else a new one, and the runs of the old
        one are deleted. If headrace chooses the memory, that of an interrupted shuffle is kept.
        """
        recorded = {} if self.old_ledger is None else self.old_ledger.metadata.get(_RUNS, {})
        sizes = self.sizes
        cache = sizes.cache
        memory = sizes.how.memory or recorded.get("memory") or sizes.memory
        if recorded.get("memory") != memory:
            runs, slices = cut_runs_and_slices(sizes, memory)
            recorded = {"memory": memory, "runs": runs, "slices": slices}
            remove_tree(files.join(self.output, RUNS_FOLDER))
            metadata = {**planned.metadata, _RUNS: recorded}
            # A repair that is killed goes on with the groups of the tables that there are.
            tables = self.old_ledger and self.old_ledger.metadata[SHUFFLED].get("tables")
            if tables:
                metadata[SHUFFLED] = {**planned.metadata[SHUFFLED], "tables": tables}
            write_ledger(self.output, structs.replace(planned, metadata=metadata))
        tables = self._write_tables()  # workers read them
        order = open_tables(self.output, tables["tables"]) if tables else sizes.shuffle
        return ShufflePlan(
            deals=True,
            cache=_absolute(cache.path),
            output=_absolute(self.output),
            pieces=sizes.pieces,
            split=sizes.split,
            shuffle=order,
            earlier=sizes.earlier,
            layout=sizes.layout,
            columns=sizes.columns,
            leaves=cache.leaf_specs,
            runs=np.asarray(recorded["runs"], np.int64),
            slices=np.asarray(recorded["slices"], np.int64),
            memory=memory,
            counters=self._counters(),
            snapshot=cache.snapshots[0].number,
            settings=cache.settings,
            pack=sizes.how.pack,
        )

    def _counters(self) -> dict[str, Any]:
        """What was counted when the cache was built; documents that moved were counted there."""
        parts = self.sizes.cache.whole_ledger.parts
        groups = self.sizes.how.groups
        return summed(part.extra for part in parts) if groups is None or not groups.moved else {}


def _absolute(path: str) -> str:
    """The path for workers in other folders."""
    return str(files.local_path(path).absolute()) if files.is_local(path) else path


def _settings(sizes: ShuffleSizes) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "seed": sizes.shuffle.seed,
        "unit": sizes.shuffle.unit,
        "part_bytes": sizes.how.part_bytes,
    }
    if (read := sizes.cache.settings) is not None:
        settings["format"] = as_option(read)
    if (groups := sizes.how.groups) is not None:
        documents = np.bincount(groups.of_document)[:STAYS].tolist()
        settings |= {"groups": documents, "groups_digest": groups.digest, "by": [*groups.by]}
        settings |= {"moved": True} if groups.moved else {}
    if sizes.how.cut is not None:
        pieces = sizes.pieces
        settings |= {"split": sizes.split, "documents": pieces.documents, "pieces": pieces.record()}
    if (packs := sizes.packs) is not None:
        settings |= {
            "pack": sizes.how.pack,
            "padding": packs.padding,
            "max_documents": packs.max_documents,
        }
    return settings


def _start_ledger(sizes: ShuffleSizes, origin: str | None) -> Ledger:
    source = sizes.cache.whole_ledger
    original: dict[str, Any] = source.metadata.get(SHUFFLED) or {
        "fingerprint": sizes.cache.fingerprint,
        "parts": [[part.name, part.documents] for part in source.parts],
        "sources": list(source.sources),
    }
    original = {key: value for key, value in original.items() if key not in GROUPED}
    version = str(original["fingerprint"])
    path = ", ".join(map(str, source.metadata.get("paths", []))) if origin is None else origin
    names = [f"{k:05d}" for k in range(sizes.edges.size - 1)]
    return structs.replace(
        source,
        finished=False,
        layout=sizes.layout.to_dict(),
        sources=[{"path": path, "size": None, "version": version, "part": name} for name in names],
        parts=[],
        metadata={**source.metadata, SHUFFLED: {**original, **_settings(sizes), "cache": origin}},
    )


def check_begun(
    output: str, old_ledger: Ledger, wanted: Mapping[str, Any], keys: Collection[str]
) -> dict[str, Any]:
    """What the ledger says of a shuffle that was begun with these settings.

    Raises:
        CacheError: it is of another cache.
        PlanMismatchError: some settings are others.
    """
    recorded = old_ledger.metadata.get(SHUFFLED)
    if recorded is None:
        raise holds_another(output)
    different = differing_values(recorded, wanted, keys)
    if "fingerprint" in wanted and recorded["fingerprint"] != wanted["fingerprint"]:
        different.append("another cache was shuffled")
    if different:
        raise PlanMismatchError(
            f"was begun with other settings: {'; '.join(different)}",
            field="output",
            value=output,
            cure=cure_of_begun(output),
        )
    return recorded


def holds_another(output: str) -> CacheError:
    """The error about an output with another cache."""
    cure = "Choose a folder that is new or empty."
    return CacheError("holds another cache", field="output", value=output, cure=cure)


def _check_room(output: str, needed: int) -> None:
    """Raises CacheError if a local disk has no room for this many bytes."""
    if not files.is_local(output):
        return
    free = shutil.disk_usage(files.local_path(output)).free
    if needed > free:
        raise CacheError(
            f"needs about {in_bytes(needed)} while it is being made, and {in_bytes(free)} are free",
            field="output",
            value=output,
            cure="Free some space, or choose an output on another disk.",
        )
