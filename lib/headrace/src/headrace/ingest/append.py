"""``append_cache``: adds new sources to a finished cache, which makes its next snapshot.

They are built in ``appended/N`` in the cache's folder like any cache, with the cache's tokenizer,
layout, leaves and settings for records, and are listed in ``snapshots.json`` when they are
finished; see :mod:`headrace.store.snapshots`.

Invariants: existing data stays bit-identical; after a kill, the same call continues and gives the
result of an uninterrupted one; no source file is in a cache twice. Price: that of building the
new sources, whose files are listed twice.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import msgspec

from headrace.errors import (
    CacheUnfinishedError,
    ConfigError,
    HeadraceError,
    SourceError,
    command_line,
)
from headrace.ingest.build import BuildOptions, BuildPlan, BuildReport, plan_build
from headrace.ingest.documents import reader_of
from headrace.ingest.part_builder import DEFAULT_PART_BYTES, SourceRecord
from headrace.ingest.records import SourceFile
from headrace.ingest.resume import differing_tokenizers, differing_values, is_changed
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer, named_only, recorded_config
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layouts import UNNAMED, find_layout
from headrace.store.ledger import SHUFFLED, Ledger, read_ledger
from headrace.store.missing import what_is_there
from headrace.store.snapshots import add_appended, cache_of_member, history_of, member_path

_FLAGS = {"chunk_elements": "chunk_tokens"}  # the names of layout settings as options


def append_cache(
    paths: Sequence[str],
    output: str,
    *,
    source: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Adds sources to a finished cache, or finishes an interrupted call.

    Args:
        paths: Sources, as for :class:`~headrace.ingest.source.SourceConfig`. None of their files
            may be in the cache.
        output: Folder or URL of the cache, which headrace built.
        source: Fields of :class:`~headrace.ingest.source.SourceConfig` that differ from the
            cache's, for reading the new records.
        tokenizer: Fields of :class:`~headrace.ingest.tokenize.TokenizerConfig`, which must result
            in the cache's tokenizer; None: the cache's.
        options: As for :func:`~headrace.ingest.build.build_cache`. Layout and dtype are those of
            the cache; ``how`` shuffles the new documents among themselves.

    Returns:
        A report with the ``path`` of what was appended. If these sources were appended last,
        nothing is done.

    Raises:
        SourceError: a source file is already in the cache; else as for
            :func:`~headrace.ingest.build.build_cache`.
        ConfigError: there is no cache; it is Levanter's, was itself appended, or was written in
            packs; the sources would result in other columns, another layout or other tokens.
        CacheUnfinishedError: the build of the cache was interrupted.
        CacheError: it cannot be written, or is being written.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace import build_cache, open_cache
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("old", "new"):
        ...         _ = pathlib.Path(folder, f"{name}.txt").write_text(name)
        ...     source, cache = SourceConfig([f"{folder}/old.txt"]), f"{folder}/cache"
        ...     _ = build_cache(source, TokenizerConfig("bytes"), cache, progress=False)
        ...     _ = append_cache([f"{folder}/new.txt"], cache, progress=False)
        ...     open_cache(cache).num_documents
        2
    """
    output = str(output)
    cache = _finished(output)
    ledger = cache.ledger
    if (packs := cache.pack) is not None:
        raise ConfigError(
            "was written in packs, and no run reads others beside them",
            field="output",
            value=output,
            cure=f"Append to {packs.cache}, and pack it anew: {packs.command(f'{output}-2')}",
        )
    built = cache.as_member
    members = len(history_of(output, built.fingerprint).members)
    own_source = {**ledger.metadata.get("source", {}), **(source or {}), "paths": [*paths]}
    reading = msgspec.convert(own_source, SourceConfig)
    encoder = _tokenizer(output, ledger, tokenizer or {})
    layout = ledger.layout
    settings: BuildOptions = {
        "dtype": layout["dtype"],
        "chunk_tokens": layout["chunk_elements"],
        "shard_chunks": layout["shard_chunks"],
        "compression": layout["compression"],
        "part_bytes": ledger.metadata.get("part_bytes", DEFAULT_PART_BYTES),
        **options,
    }
    plan = plan_build(reading, encoder, member_path(output, members), **settings)
    _check_like(output, ledger, plan.ledger)
    number = _number_of(output, members, plan)
    if number < members:  # these sources are already in it: nothing to delete
        plan = replace(plan, output=member_path(output, number), restart=False)
    report = plan.build()
    add_appended(output, built, number, TokenCache.open_member(plan.output).as_member)
    return report


@dataclass(frozen=True)
class Newer:
    """What came to the files of a source since its cache was built, and appended to.

    Attributes:
        added: Files that are not in the cache.
        changed: Paths of files that are in it as they were before.
        renamed: Paths of files that are in it under another name.
        removed: Paths of files that are in it, and nowhere else.
    """

    added: list[SourceFile] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def newer_files(listed: Sequence[SourceFile], output: str) -> Newer:
    """How the files of a source, as they are now, differ from those of a finished cache.

    Raises:
        CacheError: the cache cannot be read.
        ConfigError, CacheUnfinishedError: as for :func:`append_cache`.
    """
    built = _finished(output).as_member
    members = len(history_of(output, built.fingerprint).members)
    records = [one for number in range(members) for one in _files_of(member_path(output, number))]
    record_at, unmatched = _match(listed, records)
    newer = Newer(removed=[str(record["path"]) for record in unmatched])
    for file in listed:
        record = record_at.get(_canonical_path(file.shown_path))
        if record is None:
            newer.added.append(file)
        elif is_changed(record, {"size": file.size, "version": file.version}):
            newer.changed.append(file.path)
        elif os.path.basename(record["path"]) != os.path.basename(file.shown_path):
            newer.renamed.append(file.path)
    return newer


def _match(
    listed: Sequence[SourceFile], records: Iterable[SourceRecord]
) -> tuple[dict[str, SourceRecord], list[SourceRecord]]:
    """Which files are in a cache, whose records these are.

    1. A file is known by its canonical path, whatever it holds now.
    2. Another file is one that moved, if it has the size and the time of one that is not where it
       was. (Nor is one whose recorded path was meant from another folder.)

    Returns:
        The records of the files that are in it, by the canonical paths of these now; and the
        records that no file has.
    """
    missing = _by_path(records)
    now = {_canonical_path(file.shown_path): file for file in listed}
    record_at = {path: missing.pop(path) for path in now if path in missing}
    paths_of_state: defaultdict[tuple[object, object], list[str]] = defaultdict(list)
    for path, record in missing.items():
        # Of a store of another system that was copied, a record has its path and size alone.
        paths_of_state[record["size"], record.get("version")].append(path)
    for path, file in now.items():
        if path in record_at or not file.version:
            continue
        same_state = paths_of_state[file.size, file.version]
        while same_state and path not in record_at:
            earlier_path = same_state.pop()
            if not _is_there(str(missing[earlier_path]["path"]), file):
                record_at[path] = missing.pop(earlier_path)
    return record_at, list(missing.values())


def _is_there(path: str, moved: SourceFile) -> bool:
    """Whether a file at a path has the size and time of one that may have been moved from there."""
    try:
        earlier = reader_of(moved).stat(replace(moved, path=path))
    except Exception:  # noqa: BLE001 (clients raise what they like)
        return False
    return earlier == (moved.size, moved.version)


def encoder_of(output: str) -> TokenizerConfig:
    """The tokenizer of a finished cache; errors as for :func:`newer_files`."""
    return _tokenizer(output, _finished(output).ledger, {})


def _files_of(folder: str) -> list[SourceRecord]:
    """The records of the source files of a cache, or of what was appended to one."""
    ledger = read_ledger(folder)
    if ledger is None:
        return []
    return ledger.metadata.get(SHUFFLED, {}).get("sources", ledger.sources)


def _by_path(records: Iterable[SourceRecord]) -> dict[str, SourceRecord]:
    """The records of source files by the canonical paths of these."""
    return {_canonical_path(str(record["path"])): record for record in records}


def _finished(output: str) -> TokenCache:
    """The finished cache."""
    if root := cache_of_member(output):
        cure = f"Name the cache: --output {shlex.quote(root)} --append."
        raise ConfigError("was appended to a cache", field="output", value=output, cure=cure)
    ledger = read_ledger(output)
    if ledger is None:
        problem = "there is no cache to append to"
        cure = f"Leave out --append. {what_is_there(output)[1]}"
        if find_layout(output) is not None:
            problem = "is a store of another system, to which nothing can be appended"
            command = command_line("cache consolidate", output, "NEW")
            cure = f"Make one of headrace's of it first: {command}"
        raise ConfigError(problem, field="output", value=output, cure=cure)
    if not ledger.finished:
        command = command_line("cache inspect", output)
        cure = f"Finish it first, and then append. What finishes it is shown by: {command}"
        raise CacheUnfinishedError(
            "was not finished building", field="output", value=output, cure=cure
        )
    return TokenCache.open_member(output)


def _tokenizer(output: str, ledger: Ledger, given: Mapping[str, Any]) -> TokenizerConfig:
    """The tokenizer of a cache: its original file, which may have a template next to it, or else
    the cache's copy.

    Raises:
        ConfigError: the given fields change it; or the cache, which was copied from a store of
            another system, keeps only its name.
    """
    record = ledger.tokenizer
    if named_only(record):
        copy = command_line("cache consolidate", output, "NEW", tokenizer="FILE")
        problem = f"keeps only the name of its tokenizer, {record['path']!r}"
        if record["path"] == UNNAMED:
            problem = "keeps no tokenizer, and not the name of one"
        raise ConfigError(
            f"{problem}, so whether what is appended has the same tokens cannot be told",
            field="output",
            value=output,
            cure=f"Copy it with its tokenizer, and append to the copy: {copy}",
        )
    config = replace(recorded_config(record), **given)
    if not _makes(config, record):
        if "path" in given:
            config = TokenizerConfig(**given)
        elif record.get("file"):
            config = replace(config, path=files.join(output, str(record["file"])))
    changes = differing_tokenizers(record, load_tokenizer(config).record())
    _check_same(output, "tokenizer", config.path, changes)
    return config


def _makes(config: TokenizerConfig, record: Mapping[str, Any]) -> bool:
    try:
        return load_tokenizer(config).fingerprint == record["fingerprint"]
    except HeadraceError:
        return False


def _check_like(output: str, ledger: Ledger, wanted: Ledger) -> None:
    """Raises ConfigError unless the build has the layout, columns and template of the cache."""
    for key, value in wanted.layout.items():
        _check_same(
            output,
            _FLAGS.get(key, key),
            value,
            differing_values(ledger.layout, wanted.layout, [key]),
        )
    leaves = [{str(leaf["name"]): leaf for leaf in one.leaves} for one in (ledger, wanted)]
    _check_same(output, "leaf", sorted(leaves[1]), differing_values(*leaves))
    templates = {
        str(template)
        for one in (ledger, wanted)
        if (template := one.metadata.get("template")) is not None
    }
    _check_same(
        output, "chat_template", None, ["the templates differ"] if len(templates) > 1 else []
    )


def _check_same(output: str, field: str, value: object, differences: Sequence[str]) -> None:
    if differences:
        cure = (
            "Leave the setting out: what is appended takes that of the cache. Or build a cache of"
            " its own."
        )
        problem = f"is not that of {output}, to which is appended: {'; '.join(differences)}"
        raise ConfigError(problem, field=field, value=value, cure=cure)


def _canonical_path(path: str) -> str:
    """The canonical path of a source file."""
    url = files.absolute(path)
    return str(files.local_path(url).resolve()) if files.is_local(url) else url


def _number_of(output: str, members: int, plan: BuildPlan) -> int:
    """The number of the member for these sources: the last if it has exactly these, else the next.

    Raises:
        SourceError: a file is already in the cache.
    """
    now = _by_path(plan.ledger.sources)
    folders: dict[str, str] = {}
    for number in reversed(range(members)):
        folder = member_path(output, number)
        records = _files_of(folder)
        earlier = _by_path(records)
        same = now.keys() == earlier.keys() and not any(
            is_changed(earlier[path], now[path]) for path in now
        )
        if 0 < number == members - 1 and same:
            return number
        folders |= dict.fromkeys(_match(plan.inputs.listed, records)[0], folder)
    if folders:
        path = next(path for path in now if path in folders)
        fresh = [str(record["path"]) for name, record in now.items() if name not in folders]
        few = (
            f": {command_line('build', *fresh, output=output, append=True)}"
            if 0 < len(fresh) <= 4
            else "."
        )
        others = f", as {len(folders) - 1} others are" if folders.keys() != {path} else ""
        cure = (
            f"Name only the new files{few}"
            if fresh
            else "Name other files: there is nothing new to append."
        )
        raise SourceError(
            f"is in {folders[path]} already{others}, and no file is stored twice",
            field="sources",
            value=str(now[path]["path"]),
            cure=f"{cure} (One that only has size and time of another, which is gone, is new after:"
            " touch FILE.)",
        )
    return members
