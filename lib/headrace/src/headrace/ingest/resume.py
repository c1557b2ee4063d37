"""What was begun in a folder: whether a build may go on there with the current settings and source
files; and how it is deleted (:func:`clear`).

Old and new settings must agree in everything that affects the result. Paths may be written
differently (``corpus`` or ``corpus/*.jsonl``) as long as they name the same files; the location of
the tokenizer's file may differ as long as it is the same tokenizer. What happens to bad lines may
change while no complete part had one; so may what is read of records, where the records of complete
parts are read alike.

The ledger stores size and version (etag, modification time) of every source file, at no cost. On
request it also stores a hash, for sources with unreliable modification times: a file that was
copied or touched is then the same, and one that was changed without a new time stamp is not. For
this, every file is read once more, a few at a time.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import msgspec
from msgspec import structs

from headrace.errors import (
    HeadraceError,
    PlanMismatchError,
    SourceError,
    format_count,
    format_some,
)
from headrace.ingest.part_builder import SourceRecord
from headrace.ingest.records import ANY, MAX_RECORD_BYTES, TEXT, SourceFile, parse_leaf
from headrace.ingest.source import FIELDS, NOTHING, SourceConfig
from headrace.store import files
from headrace.store.grouped import TABLES
from headrace.store.lease import remove_tree
from headrace.store.ledger import (
    ATTEMPTS_FOLDER,
    LEDGER_NAME,
    PART_RECORD_NAME,
    TOKENIZER_NAME,
    Ledger,
    part_folder,
    read_ledger,
    read_part_record,
    write_ledger,
)
from headrace.store.ledger_table import TABLE_NAME, PartRecord
from headrace.store.snapshots import cache_of_member, remove_snapshots

_MOST_LISTED = 4

_AT_ONCE = 4

_BLOCK = 1 << 20
RUNS_FOLDER = "runs"
"""Folder of the documents of a shuffle on their way."""
PLAIN_FOLDER = "unshuffled"
"""Folder in the output where ``headrace build --shuffle`` keeps the plain cache until it is
done.
"""


def check_same_build(
    output: str, begun: Ledger, wanted: Ledger, complete: Collection[PartRecord]
) -> None:
    """Refuses to continue a build with settings that would make other parts than those that are
    ``complete``.

    Raises:
        PlanMismatchError: they differ; names every difference.
        SourceError: bad lines are no longer skipped, but some were.
    """
    skipped = [record for record in complete if record.extra.get("skipped_lines")]
    rules = [dict(ledger.metadata.get("source", {})) for ledger in (begun, wanted)]
    if skipped and [rule.get("on_bad_line") for rule in rules] == ["skip", "error"]:
        count = sum(int(record.extra["skipped_lines"]) for record in skipped)
        raise SourceError(
            f"{format_count(count, 'bad line')} of {output} skipped so far, the first:"
            f" {skipped[0].extra['first_skipped']}",
            field="on_bad_line",
            value="error",
            cure='Keep to --on-bad-line skip (in Python: on_bad_line="skip"),'
            " or correct the file and pass --restart.",
        )
    changes = differences(begun, wanted, complete)
    if changes:
        raise PlanMismatchError(
            "was begun with other settings: " + "; ".join(changes),
            field="output",
            value=output,
            cure=cure_of_begun(output),
        )


def cure_of_begun(output: str) -> str:
    """The cure if a build was started with other settings; when appending, the output stays the
    same.
    """
    other = "" if cache_of_member(output) else " choose another output,"
    return (
        f"Give the settings that it was begun with,{other} or pass --restart to delete it and start"
        " over."
    )


def complete_parts(output: str, begun: Ledger) -> dict[str, PartRecord]:
    """The records of the parts that are complete, by name."""
    names = sorted({str(source["part"]) for source in begun.sources})
    records = {name: read_part_record(output, name) for name in names}
    return {name: record for name, record in records.items() if record is not None}


def began_in_vain(output: str, begun: Ledger, wanted: Ledger) -> bool:
    """Whether no document would be lost by starting over: a build with other settings failed before
    its first one, for example because of a wrong text field, or all parts are complete and empty.
    """
    names = dict.fromkeys(str(source["part"]) for source in begun.sources)
    records = (read_part_record(output, name) for name in names)
    differs = bool(differences(begun, wanted))
    are_empty = (differs if record is None else not record.documents for record in records)
    return bool(names) and all(are_empty)


def clear(output: str, begun: Ledger) -> None:
    """Deletes a cache, ledger last: after a kill, it is an unfinished cache, not a broken one."""
    if begun.finished:
        write_ledger(output, structs.replace(begun, finished=False, parts=[]))
    # a part without its record is never taken for complete
    for name in {str(source["part"]) for source in begun.sources}:
        remove_tree(files.join(part_folder(output, name), PART_RECORD_NAME))
    remove_snapshots(output)
    tables = [f"{name}.bin" for name in TABLES]
    folders = ("parts", RUNS_FOLDER, PLAIN_FOLDER, ATTEMPTS_FOLDER)
    for name in (*folders, TOKENIZER_NAME, TABLE_NAME, *tables, LEDGER_NAME):
        remove_tree(files.join(output, name))


def differences(begun: Ledger, wanted: Ledger, complete: Collection[PartRecord] = ()) -> list[str]:
    """Differences between two plans, one phrase each; empty if a build of one, of which these parts
    are ``complete``, can continue with the other.
    """
    changes = differing_tokenizers(begun.tokenizer, wanted.tokenizer)
    changes += differing_values(begun.layout, wanted.layout)
    old_source = dict(begun.metadata.get("source", {}))
    new_source = dict(wanted.metadata["source"])
    rules: list[str] = []
    if not any(record.extra.get("skipped_lines") for record in complete):
        rules = _widened_rules(old_source, new_source)
        old_source |= _read_alike(old_source, new_source, complete)
    changes += differing_values(
        {key: value for key, value in old_source.items() if key not in rules},
        {key: value for key, value in new_source.items() if key not in rules},
    )
    if begun.metadata.get("template") != wanted.metadata.get("template"):
        changes.append("the chat template differs")
    numbers = ("part_bytes", "ingest_version")
    changes += differing_values(
        {k: begun.metadata.get(k) for k in numbers}, {k: wanted.metadata[k] for k in numbers}
    )
    old_paths, now = ([str(s["path"]) for s in ledger.sources] for ledger in (begun, wanted))
    for what, paths in (
        ("added", set(now) - set(old_paths)),
        ("missing", set(old_paths) - set(now)),
    ):
        if paths:
            some = format_some(sorted(paths), _MOST_LISTED)
            changes.append(f"{format_count(len(paths), 'source file')} {what} ({some})")
    return changes


def _widened_rules(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings on bad lines under which every part that had none stays as it is.

    Such a part has only records that the old rules accepted, so a rule may change if it accepts
    them still.
    """
    widened = ["on_bad_line"]
    if new.get("max_record_bytes", MAX_RECORD_BYTES) >= old.get(
        "max_record_bytes", MAX_RECORD_BYTES
    ):
        widened.append("max_record_bytes")
    if old.get("special_tokens_in_text") == "error":
        widened.append("special_tokens_in_text")
    return widened


def _read_alike(
    old: Mapping[str, Any], new: Mapping[str, Any], complete: Collection[PartRecord]
) -> dict[str, Any]:
    """The old ``fields`` and ``leaves``, changed as the new ones are where that makes no difference
    to complete parts that had no bad line.

    An optional field that is ignored now makes none if their records lack it, and a leaf of texts
    that may be anything now makes none at all.
    """
    fields = dict(old.get("fields", {}))
    leaves = dict(old.get("leaves", {}))
    present = {field for record in complete for field in record.extra.get("optional_fields", ())}
    present |= {leaf["field"] for leaf in leaves.values()}
    usual = {name: field for names in FIELDS.values() for name, field in names.items()}
    for name, field in new.get("fields", {}).items():
        if field == NOTHING and name not in fields and usual[name] not in present:
            fields[name] = field
    for name, leaf in new.get("leaves", {}).items():
        if leaf == {**leaves.get(name, {}), "dtype": ANY} and leaves[name]["dtype"] == TEXT:
            leaves[name] = leaf
    return {"fields": fields, "leaves": leaves}


_READING = (
    r"--(?:field|leaf|text-field|kind|format|chat-template|chat-variable|mask|mask-role|eos|bos)"
    r" (?:'[^']*'|\S*[^\s.,;:)])"
)
"""An option, within a cure, that says how records are read."""


def with_restart(output: str, fault: HeadraceError) -> HeadraceError:
    """A fault of a source of this build, with ``--restart`` behind the options of its cure that
    would change parts which are complete.
    """
    cure = fault.cure or ""
    if "--restart" in cure or not re.search(_READING, cure):
        return fault
    ledger = read_ledger(output)
    complete = [] if ledger is None else complete_parts(output, ledger).values()
    if ledger is None or not any(record.documents for record in complete):
        return fault

    def followed(options: re.Match[str]) -> str:
        source = _with_options(ledger.metadata["source"], options[0].split())
        is_kept = source is not None and not differences(
            ledger,
            structs.replace(ledger, metadata={**ledger.metadata, "source": source}),
            complete,
        )
        return options[0] if is_kept else f"{options[0]} --restart"

    cure = re.sub(f"{_READING}(?: {_READING})*", followed, cure)
    return fault.but(cure=cure)


def _with_options(source: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any] | None:
    """The settings of a source with other fields and leaves; None if the options are others."""
    fields = dict(source["fields"])
    leaves = dict(source["leaves"])
    for option, value in zip(options[::2], options[1::2], strict=False):
        if option == "--field":
            name, _, fields[name] = value.partition("=")
        elif option == "--leaf":
            name, leaf = parse_leaf(value)
            leaves[name] = {key: one for key, one in asdict(leaf).items() if one is not None}
        else:
            return None
    return {**source, "fields": fields, "leaves": leaves}


def source_of(ledger: Ledger) -> SourceConfig:
    """The source that a cache was built from."""
    settings = {**ledger.metadata["source"], "paths": ledger.metadata["paths"]}
    return msgspec.convert(settings, SourceConfig)


def changed_sources(
    output: str,
    begun: Sequence[SourceRecord],
    now: Sequence[SourceRecord],
    done: Collection[str],
) -> list[SourceRecord]:
    """The plan of an interrupted build with the current source files.

    Returns:
        The records of ``begun``, in the same parts, with current sizes, versions and hashes.

    Raises:
        SourceError: a file changed after its part was completed.
    """
    current = {str(s["path"]): s for s in now}
    updated = [as_now(s, current[s["path"]]) for s in begun]
    stale = [s for s in begun if is_changed(s, current[s["path"]]) and s["part"] in done]
    if stale:
        parts = sorted({str(s["part"]) for s in stale})
        raise SourceError(
            "changed after its part was built",
            field=format_some(sorted({str(s["path"]) for s in stale}), _MOST_LISTED),
            cure="To build everything anew pass --restart; to rebuild only what changed, run the"
            f" same command again after: {_deletion(files.join(output, 'parts'), parts)}",
        )
    return updated


def _deletion(folder: str, names: Sequence[str]) -> str:
    """The command that deletes these folders within a folder."""
    if files.is_local(folder):
        return f"rm -r {shlex.join(files.join(folder, name) for name in names)}"
    program = (
        f"import fsspec; fs, root = fsspec.url_to_fs({folder!r});"
        f" [fs.rm(root + '/' + name, recursive=True) for name in {' '.join(names)!r}.split()]"
    )
    return f"python -c {shlex.quote(program)}"


def differing_tokenizers(begun: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Differences between the tokenizers of two ledgers, one phrase each; empty if they are the
    same.

    Example:
        >>> differing_tokenizers({"fingerprint": "a"}, {"fingerprint": "a"})
        []
    """
    if begun["fingerprint"] == wanted["fingerprint"]:
        return []
    changes = differing_values(begun, wanted, ("bos", "eos", "vocab_size"))
    if not changes:
        changes = [
            f"tokenizer {begun['path']!r} there, {wanted['path']!r} now (their contents differ)"
        ]
    elif begun["path"] != wanted["path"]:
        changes.insert(0, f"tokenizer {begun['path']!r} there, {wanted['path']!r} now")
    return changes


def differing_values(
    begun: Mapping[str, Any], wanted: Mapping[str, Any], keys: Collection[str] | None = None
) -> list[str]:
    """The keys that differ (of some, or of all), one phrase each.

    Example:
        >>> differing_values({"a": 1, "b": 2}, {"a": 1, "b": None})
        ['b 2 there, none now']
    """
    keys = sorted({*begun, *wanted}) if keys is None else keys
    values = {
        k: ["none" if v is None else repr(v) for v in (begun.get(k), wanted.get(k))] for k in keys
    }
    return [
        f"{k} {there} there, {now} now"
        for k, (there, now) in values.items()
        if begun.get(k) != wanted.get(k)
    ]


def with_hashes(
    records: Iterable[SourceRecord], listed: Iterable[SourceFile]
) -> list[SourceRecord]:
    """Source records of a ledger, with the SHA-256 of each file's stored bytes. Datasets of a hub
    have no file to hash.

    Raises:
        SourceError: a file cannot be read.
    """
    some = [f for f in listed if not f.path.startswith("hf://")]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-hash") as pool:
        hashes = dict(zip((f.shown_path for f in some), pool.map(_hash, some), strict=True))
    return [{**r, "sha256": hashes[r["path"]]} if r["path"] in hashes else r for r in records]


def is_changed(old: SourceRecord, new: SourceRecord) -> bool:
    """Whether a source file differs from its record: by hash if both have one, else by size and
    version.

    Example:
        >>> touched = {"size": 1, "version": "mtime:2", "sha256": "x"}
        >>> is_changed({"size": 1, "version": "mtime:1", "sha256": "x"}, touched)
        False
        >>> is_changed({"size": 1, "version": "mtime:1"}, touched)
        True
    """
    if "sha256" in old and "sha256" in new:
        return bool(old["sha256"] != new["sha256"])
    return bool((old["size"], old.get("version")) != (new["size"], new["version"]))


def as_now(old: SourceRecord, new: SourceRecord) -> SourceRecord:
    """The record of a file in its part, with current size, version and hash.

    Example:
        >>> as_now(
        ...     {"part": "0", "size": 1, "version": "a", "sha256": "x"},
        ...     {"size": 2, "version": "b", "part": "1"},
        ... )
        {'part': '0', 'size': 2, 'version': 'b'}
    """
    record = {**old, **{key: new[key] for key in ("size", "version", "sha256") if key in new}}
    if "sha256" not in new and is_changed(old, new):
        record.pop("sha256", None)  # what it is now was not hashed
    return record


def _hash(file: SourceFile) -> str:
    digest = hashlib.sha256()
    try:
        with files.open_read(file.path) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise SourceError(
            f"cannot be read ({error.strerror or error})", field=file.shown_path
        ) from error
    return digest.hexdigest()
