"""Repairs a finished cache: rebuilds damaged parts from their sources, and touches nothing else.

Each part is built in a separate folder with the settings of its build, and replaces the damaged one
only if it matches the ledger: the same documents, tokens and digests. A repair therefore restores
the original cache, bit for bit, or leaves the damage and says why: a source is missing or has
changed; the cache is shuffled (its own command distributes all documents again); an older release
tokenized differently; or the source is a function, because code that a ledger names is not run.

The ledger is never written, so an interrupted repair leaves parts that are damaged or missing,
which :func:`~headrace.store.verify.verify` finds and the same call repairs. Price: that of building
the damaged parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.errors import CacheError, HeadraceError, SourceError
from headrace.ingest.build import INGEST_VERSION
from headrace.ingest.documents import described
from headrace.ingest.part_builder import BuildJob, PartBuilder, PartTask, tasks_from_records
from headrace.ingest.records import SourceFile
from headrace.ingest.resume import source_of
from headrace.ingest.schedule import publish
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import load_tokenizer, recorded_config
from headrace.pack.saved_plans import PLANS_FOLDER
from headrace.store import files
from headrace.store.layout import ATTRIBUTES_FOLDER, FILTERS_FOLDER, CacheLayout
from headrace.store.lease import Lease, end_lease_of_gone, lease, remove_tree
from headrace.store.ledger import (
    ATTEMPTS_FOLDER,
    PART_RECORD_NAME,
    SHUFFLED,
    Ledger,
    part_folder,
    read_ledger,
    table_problem,
    write_part_record,
)
from headrace.store.ledger_table import TABLE_NAME, PartRecord
from headrace.store.verify import Damage


@dataclass(frozen=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        rebuilt: Parts that were rebuilt.
        restored: Files that were rewritten from the ledger or the sources.
        dropped: Pack plans, filters and attributes that were deleted; they are made again when they
            are needed.
        left: Remaining damage, by part (or file), with the reason.
    """

    rebuilt: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def repair(path: str, damages: Sequence[Damage]) -> RepairReport:
    """Repairs what a deep check found, as far as sources exist.

    Args:
        path: Folder or URL of a finished cache that headrace built.
        damages: From :func:`~headrace.store.verify.verify` with ``deep=True``.

    Raises:
        CacheError: it cannot be written, is being built, or is not finished.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace import SourceConfig, TokenizerConfig, build_cache
        >>> from headrace.store import verify
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.txt").write_text("hello")
        ...     source, cache = SourceConfig([f"{folder}/a.txt"]), f"{folder}/cache"
        ...     _ = build_cache(source, TokenizerConfig("bytes"), cache, progress=False)
        ...     pathlib.Path(cache, "parts/00000/input_ids/data/c/0").unlink()
        ...     done = repair(cache, verify(cache, deep=True).damages)
        ...     done.rebuilt, verify(cache, deep=True).damages
        (['00000'], [])
    """
    if not damages:
        _end_killed(path)
        return RepairReport()
    with lease(path) as held_lease:
        ledger = read_ledger(path)
        if ledger is None or not ledger.finished:
            cure = "Run the command that builds it again: it goes on where it was."
            raise CacheError(
                "is not a finished cache of headrace", field="cache", value=path, cure=cure
            )
        table = files.join(path, TABLE_NAME)
        repair = _Repair(path, ledger, [d for d in damages if d.file != table], held_lease)
        # a table alone is written from the ledger, and needs neither sources nor their tokenizer
        if repair.damages:
            repair.run()
        report = repair.report
        problem = table_problem(path, mend=not report.left)
        if any(d.file == table for d in damages):
            report.left.update({table: problem} if report.left else {})
            report.restored.extend([] if report.left else [table])
    return report


def _end_killed(path: str) -> None:
    """Deletes what a repair has left that was killed once all was sound."""
    attempts = files.join(path, ATTEMPTS_FOLDER)
    if files.is_local(path) and files.exists(attempts):
        with lease(path):
            remove_tree(attempts)
    end_lease_of_gone(path)


@dataclass(frozen=True)
class _Repair:
    """The repair of everything but ``ledger.bin``, which describes the result."""

    path: str
    ledger: Ledger
    damages: Sequence[Damage]
    lease: Lease
    report: RepairReport = field(default_factory=RepairReport)

    def run(self) -> None:
        damaged = dict.fromkeys(d.part for d in self.damages if d.part)
        for name in list(damaged):
            record = files.join(part_folder(self.path, name), PART_RECORD_NAME)
            if all(d.file == record for d in self.damages if d.part == name):
                write_part_record(self.path, self._record(name))
                self.report.restored.append(record)
                del damaged[name]
        self._drop_plans()
        why_no_tokenizer = self._restore_tokenizer()
        mended = (*self.report.restored, *self.report.dropped, *self.report.left)
        for damage in self.damages:
            if not damage.part and not damage.file.startswith(mended):
                self.report.left[damage.file] = damage.problem
        if why := self._why_not() or why_no_tokenizer:
            self.report.left.update(dict.fromkeys(damaged, why))
        else:
            self._rebuild(list(damaged))

    def _record(self, name: str) -> PartRecord:
        return next(record for record in self.ledger.parts if record.name == name)

    def _why_not(self) -> str:
        """Why no single part can be rebuilt; empty if it can."""
        metadata = self.ledger.metadata
        if SHUFFLED in metadata:
            return "its documents were shuffled, and are dealt again as a whole"
        if metadata.get("source", {}).get("format") == "python":
            return (
                "its source is a function: only its own build runs what a config names, not what a"
                " ledger does"
            )
        if "paths" not in metadata or "source" not in metadata:
            return "its ledger does not say what it was built from"
        if metadata.get("ingest_version") != INGEST_VERSION:
            return "a release that tokenized otherwise built it"
        return ""

    def _drop_plans(self) -> None:
        """Deletes damaged pack plans, filters and attributes: made again when they are needed."""
        for folder in (PLANS_FOLDER, FILTERS_FOLDER, ATTRIBUTES_FOLDER):
            root = files.join(self.path, folder) + "/"
            inner = [d.file[len(root) :] for d in self.damages if d.file.startswith(root)]
            for name in sorted({path.split("/")[0] for path in inner}):
                remove_tree(root + name)
                self.report.dropped.append(root + name)

    def _restore_tokenizer(self) -> str:
        """Restores the cache's copy of its tokenizer, if it is damaged and the original is the
        same; returns why there is none, if there is none.
        """
        record = self.ledger.tokenizer
        url = files.join(self.path, str(record.get("file")))
        is_gone = "its tokenizer is gone"
        if not any(d.file == url for d in self.damages):
            return "" if record.get("fingerprint") else is_gone
        try:
            original = load_tokenizer(recorded_config(record))
        except HeadraceError as error:
            self.report.left[url] = f"{record['path']} {error.problem}"
            return is_gone
        if original.content is None or original.fingerprint != record["fingerprint"]:
            self.report.left[url] = f"{record['path']} is another tokenizer now"
            return is_gone
        files.write_atomic(url, original.content)
        self.report.restored.append(url)
        return ""

    def _rebuild(self, names: Sequence[str]) -> None:
        ledger = self.ledger
        source = source_of(ledger)
        listed = _listed(source)
        attempts = files.join(self.path, ATTEMPTS_FOLDER)
        remove_tree(attempts)
        layout = msgspec.convert(ledger.layout, CacheLayout)
        kind = source.kind_of(listed.values())
        template = ledger.metadata.get("template")
        job = BuildJob(self.path, source, ledger.tokenizer, layout, kind, template)
        build = job.part_builder()
        for name in names:
            records = [record for record in ledger.sources if str(record.get("part")) == name]
            lost = [str(record["path"]) for record in records if record["path"] not in listed]
            if lost or not records:
                why = "the ledger names no source of it"
                self.report.left[name] = f"{', '.join(lost)} cannot be read" if lost else why
                continue
            (task,) = tasks_from_records(records, listed)
            why = self._build(build, task, files.join(attempts, f"repair-{name}"))
            self.lease.check()
            if why:
                self.report.left[name] = why
            else:
                self.report.rebuilt.append(name)
        remove_tree(attempts)

    def _build(self, build: PartBuilder, task: PartTask, root: str) -> str:
        """Rebuilds a part and moves it into place; returns why it does not match the original, if
        it does not.
        """
        try:
            built_part = build(task, root, lambda _: None)
        except SourceError as error:
            return str(error)
        recorded = self._record(task.name)
        if msgspec.structs.replace(built_part, extra=recorded.extra) != recorded:
            paths = ", ".join(dict.fromkeys(f.shown_path for f in task.files))
            return f"{paths} changed after the cache was built"
        write_part_record(root, recorded)
        publish(root, self.path, task.name)
        return ""


def _listed(source: SourceConfig) -> Mapping[str, SourceFile]:
    """The existing source files, by their path in the ledger."""
    source_files: dict[str, SourceFile] = {}
    for path in source.paths:
        try:
            source_files |= {
                f.shown_path: described(f) for f in replace(source, paths=[path]).files()
            }
        except SourceError:
            continue  # what is not there is said of the parts that need it
    return source_files
