"""Finds texts in a folder and groups them into sources: the first step of ``headrace init``."""

from __future__ import annotations

import codecs
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.errors import SourceError
from headrace.ingest.choices import FORMATS, OnBadLine
from headrace.ingest.first_look import open_head
from headrace.ingest.records import BadRecordError, Columns, Fields, good_records, lookup
from headrace.ingest.source import (
    HF_SCHEME,
    OF_SAVED_DATASET,
    OF_SPLITS,
    SEPARATED,
    USUAL_ENDINGS,
    SourceConfig,
    endings_in_words,
    escape_undecodable,
    list_path,
    split_compression,
)
from headrace.store import files
from headrace.store.remote import Entry

MOST_SOURCES = 20
"""Largest number of subfolders that become a source each; more of them become one source."""
USUAL_TEXT_FIELDS = ("text", "content")
"""Fields that are looked for in the records of a source, in this order."""
_HEAD = 4096
_HEADS = 5
_WITH_FIELDS = {e for one in FORMATS.values() if one.holds == "fields" for e in one.endings}
_OF_RECORDS = {e for name, one in FORMATS.items() if name != "text" for e in one.endings}
_OF_OTHER_FORMATS = {e for one in FORMATS.values() if not one.in_folders for e in one.endings}


@dataclass(frozen=True)
class FoundSource:
    """A source found in a folder.

    Attributes:
        name: Name of the component: that of the folder, reduced to letters, digits, ``_`` and
            ``-``.
        paths: Paths for :class:`~headrace.ingest.source.SourceConfig`.
        endings: Extensions of its files.
        files: Number of files.
        bytes: Their stored size.
        left_out: Other files, by extension; ``empty .txt`` if none has a byte.
        with_fields: Some files whose records have named fields.
        largest: The largest of its files that are one document each; None: it has none.
    """

    name: str
    paths: list[str]
    endings: list[str]
    files: int
    bytes: int
    left_out: Counter[str]
    with_fields: list[Entry]
    largest: Entry | None

    def config(
        self, text_fields: Sequence[str] = (), on_bad_line: OnBadLine = "error"
    ) -> SourceConfig:
        """The config of the source. Its text field is the first of ``text_fields`` and
        :data:`USUAL_TEXT_FIELDS` that holds text in the first good record of some files, or
        ``text`` if none does.
        """
        config = SourceConfig(self.paths, on_bad_line=on_bad_line, extensions=self.endings)
        names = list(dict.fromkeys((*text_fields, *USUAL_TEXT_FIELDS)))
        for entry in self.with_fields:
            file = config.source_file(entry.path, entry.size, entry.version)
            record = next(good_records(open_head(file, Columns(names, frozenset(names)))), {})
            for name in names:
                if _has_text(record, name):
                    return replace(config, text_field=name)
        return config


def survey(folder: str) -> list[FoundSource]:
    """The sources of a folder: one for each subfolder and one for the files next to them; last,
    without files, those that hold no text. A dataset that ``datasets`` saved there is one source,
    also as ``hf://./FOLDER``. Files count as text if they have a usual extension, or
    if most of the first with their extension are UTF-8 and the extension is not one of token ids.

    Price: one listing, and 4 KiB each of some files for each unusual extension.

    Raises:
        SourceError: there is no such folder, or no text in it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Path(root, "code").mkdir()
        ...     for name in ("code/a.py", "code/b.py", "notes.md"):
        ...         _ = Path(root, name).write_text("some text")
        ...     sources = survey(root)
        >>> [
        ...     (source.name, source.endings, source.files)
        ...     for source in sources
        ...     if source.name == "code"
        ... ]
        [('code', ['.py'], 2)]
    """
    if os.path.isdir(folder.removeprefix(HF_SCHEME)):
        folder = folder.removeprefix(HF_SCHEME)
    root = (
        os.path.normpath(files.local_path(folder)) if files.is_local(folder) else folder.rstrip("/")
    )
    listing = list_path(root)
    if listing is None or listing[0] != "folder":
        problem = "does not exist" if listing is None else "is a file"
        raise SourceError(
            problem, field="folder", value=folder, cure="Give a folder that holds texts."
        )
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in listing[1]:
        first, _, rest = entry.path.removeprefix(root).removeprefix("/").partition("/")
        groups[first if rest else ""].append(entry)
    beside = {os.path.basename(entry.path) for entry in groups.get("", [])}
    is_saved = beside >= OF_SAVED_DATASET or OF_SPLITS in beside
    if is_saved or len(groups) > MOST_SOURCES:
        entries = [entry for those in groups.values() for entry in those]
        sources = [_source(_own_name(root), root, entries)]
    else:
        names = groups.keys() | _folders_of(root)
        sources = [
            _source(name or _own_name(root), name and f"{root}/{name}", groups[name])
            for name in sorted(names)
        ]
    left_out = sum((source.left_out for source in sources), Counter[str]())
    if not any(source.files for source in sources):
        cure = "Give a folder of text, JSONL, Parquet or other files that `headrace build` reads."
        problem = f"holds no text ({endings_in_words(left_out)})"
        raise SourceError(problem, field="folder", value=folder, cure=cure)
    return _named_apart(sorted(sources, key=lambda source: not source.files))


def _source(name: str, path: str, entries: Sequence[Entry]) -> FoundSource:
    """The source of a folder; without a path, of the files themselves."""
    by_ending: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_ending[_ending(entry.path)].append(entry)
    endings = sorted(ending for ending, those in by_ending.items() if _is_taken(ending, those))
    left_out = Counter({e: len(those) for e, those in by_ending.items() if e not in endings})
    chosen = [entry for ending in endings for entry in by_ending[ending]]
    if all(entry.size == 0 for entry in chosen):
        left_out += Counter({f"empty {ending}": len(by_ending[ending]) for ending in endings})
        chosen = []
    paths = [path] if path else [entry.path for entry in chosen]
    safe = re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", name)).strip("-") or "text"
    size = sum(entry.size or 0 for entry in chosen)
    with_fields = [entry for entry in chosen if entry.size and _ending(entry.path) in _WITH_FIELDS]
    texts = [entry for entry in chosen if _ending(entry.path) not in _OF_RECORDS]
    largest = max(texts, key=lambda entry: entry.size or 0, default=None)
    return FoundSource(
        safe, paths, endings, len(chosen), size, left_out, with_fields[:_HEADS], largest
    )


def _named_apart(sources: list[FoundSource]) -> list[FoundSource]:
    """Makes names of sources unique: of two folders ``a b`` and ``a-b``, the second becomes
    ``a-b-2``.
    """
    counts: Counter[str] = Counter()
    result: list[FoundSource] = []
    for source in sources:
        counts[source.name] += 1
        name = source.name if counts[source.name] == 1 else f"{source.name}-{counts[source.name]}"
        result.append(replace(source, name=name))
    return result


def _folders_of(root: str) -> set[str]:
    """Names of the folders in a local folder, also of those without a file; buckets have none."""
    if not files.is_local(root):
        return set()
    return {one.name for one in os.scandir(root) if one.is_dir() and not one.name.startswith(".")}


def _own_name(root: str) -> str:
    return (
        os.path.basename(os.path.abspath(root)) if files.is_local(root) else root.rpartition("/")[2]
    )


def _ending(path: str) -> str:
    """The extension of a file without ``.gz`` and ``.zst``; its name if it has none."""
    stem, _ = split_compression(path)
    return escape_undecodable(os.path.splitext(stem)[1].lower() or os.path.basename(stem))


def _is_taken(ending: str, entries: Sequence[Entry]) -> bool:
    """Whether files with an extension are read as text."""
    if ending in USUAL_ENDINGS:
        return True
    is_known = ending in _OF_OTHER_FORMATS or ending in SEPARATED
    return ending.startswith(".") and not is_known and _is_text(entries)


def _is_text(entries: Sequence[Entry]) -> bool:
    """Whether most of the first files that are not empty, and not compressed, begin with UTF-8."""
    plain = sorted(
        entry.path for entry in entries if entry.size and split_compression(entry.path)[1] == "none"
    )
    heads = [files.read_range(path, 0, _HEAD) for path in plain[:_HEADS]]
    return 2 * sum(map(_begins_with_text, heads)) > len(heads)


def _has_text(record: Fields, field: str) -> bool:
    try:
        return isinstance(lookup(record, field), str)
    except BadRecordError:
        return False


def _begins_with_text(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
