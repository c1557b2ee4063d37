"""Which files a corpus is made of: paths, folders, globs and URLs, resolved to one sorted list of files.

The list is a pure function of what lies at the given paths: sorted by path, whatever the order of the arguments or of
the file system, so that the same corpus gives the same cache on every machine. Each file comes with its size and a
version (modification time, or an object store's etag), by which a resumed build knows that it still reads the same
text.

Price: one ``stat`` (or one listing entry) a file; nothing is opened here.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.store import files

Format: TypeAlias = Literal["jsonl", "text"]
Compression: TypeAlias = Literal["none", "gzip", "zstd"]

JSONL_EXTENSIONS = (".jsonl", ".ndjson", ".json")
TEXT_EXTENSIONS = (".txt", ".text", ".md", ".rst")
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_UNREADABLE = (".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z")
_VERSION_KEYS = ("etag", "ETag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created")


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus, as it was when it was listed.

    Attributes:
        path: As the user spelled its folder (relative stays relative), or a URL.
        format: What it holds.
        compression: How it is stored.
        size: Stored bytes; None if the server does not say.
        version: Changes when the content does: ``mtime:<ns>`` or an etag; empty if the server says neither.
    """

    path: str
    format: Format
    compression: Compression = "none"
    size: int | None = None
    version: str = ""


@dataclass(frozen=True)
class SourceConfig:
    """Where the documents come from.

    Attributes:
        paths: Files, folders (searched recursively, hidden files left out), globs (``**`` too) or URLs.
        format: ``jsonl`` (one object a line), ``text`` (one file is one document), or ``auto``: by file name.
        text_field: The field of a JSONL object that holds the text.
        on_bad_line: ``error`` names file and line; ``skip`` leaves the line (or the undecodable text file) out and
            counts it.
        extensions: File name endings to take from folders, e.g. ``[".py"]``; empty for the usual ones of the format.
            Endings that are not those of JSONL files are read as text. ``.gz`` and ``.zst`` may always follow.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> SourceConfig(["corpus"], format="jsonl").text_field
        'text'
    """

    paths: list[str]
    format: Literal["auto", "jsonl", "text"] = "auto"
    text_field: str = "text"
    on_bad_line: Literal["error", "skip"] = "error"
    extensions: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        if isinstance(self.paths, str) or not self.paths:
            raise ConfigError(
                "must be a list of at least one path",
                field="paths",
                value=self.paths,
                cure="Give files, folders or globs.",
            )
        for name, value, known in (
            ("format", self.format, ["auto", "jsonl", "text"]),
            ("on_bad_line", self.on_bad_line, ["error", "skip"]),
        ):
            if value not in known:
                raise ConfigError(
                    "is not a known choice", field=name, value=value, cure=did_you_mean(str(value), known)
                )
        for extension in self.extensions:
            if not extension.startswith("."):
                raise ConfigError(
                    "must begin with a dot", field="extensions", value=extension, cure=f"Write '.{extension}'."
                )

    def files(self) -> list[SourceFile]:
        """The files of the corpus, sorted by path.

        Raises:
            SourceError: a path is missing, matches nothing, is given twice, or is of no known format; or all files
                are empty.
        """
        found = sorted((f for path in self.paths for f in self._expand(str(path))), key=lambda f: f.path)
        for one, next_one in itertools.pairwise(found):
            if one.path == next_one.path:
                raise SourceError(
                    "is named twice by the given paths, so its documents would be in the cache twice",
                    field=one.path,
                    cure="Give each file once; to see a source more often, give it a higher weight when training.",
                )
        if all(f.size == 0 for f in found):
            raise SourceError(
                "is an empty source: "
                + ("its one file has" if len(found) == 1 else f"all its {len(found)} files have")
                + " no bytes",
                field=", ".join(str(p) for p in self.paths),
                cure="Check the paths.",
            )
        return found

    def source_file(self, path: str, size: int | None, version: str) -> SourceFile:
        """A listed file, with format and compression read off its name.

        Raises:
            SourceError: the name says nothing and no format is set, or names a packing that is not read.
        """
        if path.lower().endswith(_UNREADABLE):
            raise SourceError(
                "is packed in a way that is not read", field=path, cure="Unpack it, or pack it again as .gz or .zst."
            )
        kind = self._classify(path)
        if kind is None:
            raise SourceError(
                "has a name that does not tell its format",
                field=path,
                cure="Say what it holds: --format jsonl (one object a line) or --format text (one document).",
            )
        return SourceFile(path, kind[0], kind[1], size, version)

    def _classify(self, path: str) -> tuple[Format, Compression] | None:
        stem, compression = _split_compression(path)
        extension = os.path.splitext(stem)[1].lower()
        if self.format != "auto":
            return self.format, compression
        if extension in JSONL_EXTENSIONS:
            return "jsonl", compression
        if extension in TEXT_EXTENSIONS or extension in self.extensions:
            return "text", compression
        return None

    def _expand(self, path: str) -> Iterator[SourceFile]:
        listing = _list_local(path) if files.is_local(path) else _list_remote(path)
        if listing is None:
            raise SourceError("does not exist", field="source", value=path, cure=_nearby(path))
        kind, entries = listing
        if kind == "folder":
            entries = list(entries)
            taken = [e for e in entries if self._wanted(e.path)]
            if not taken:
                raise SourceError(
                    f"is a folder without {self._wanted_names()} files ({_endings(e.path for e in entries)})",
                    field="source",
                    value=path,
                    cure="Choose others with --extension (e.g. --extension .py), or name the files with a glob.",
                )
            entries = taken
        for entry in entries:
            yield self.source_file(entry.path, entry.size, entry.version)

    def _wanted(self, path: str) -> bool:
        stem, _ = _split_compression(path)
        return os.path.splitext(stem)[1].lower() in self._wanted_extensions()

    def _wanted_extensions(self) -> tuple[str, ...]:
        if self.extensions:
            return tuple(self.extensions)
        return {"jsonl": JSONL_EXTENSIONS, "text": TEXT_EXTENSIONS, "auto": JSONL_EXTENSIONS + TEXT_EXTENSIONS}[
            self.format
        ]

    def _wanted_names(self) -> str:
        return ", ".join(self._wanted_extensions())


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int | None
    version: str


_Listing: TypeAlias = "tuple[Literal['files', 'folder'], Iterable[_Entry]]"


def stat_file(path: str) -> tuple[int | None, str]:
    """Size and version of a file as it is now, in the terms of :class:`SourceFile`.

    Raises:
        FileNotFoundError: it is gone.
    """
    if files.is_local(path):
        entry = _local_entry(path)
    else:
        fs, inner = files.filesystem(path)
        fs.invalidate_cache()
        entry = _remote_entry(path, fs.info(inner))
    return entry.size, entry.version


def _list_local(path: str) -> _Listing | None:
    # The spelling of the user is kept (relative stays relative): it ends up in the ledger.
    local = os.path.normpath(files.local_path(path))
    if os.path.isdir(local):
        return "folder", (_local_entry(p) for p in _walk(local))
    if os.path.exists(local):
        return "files", [_local_entry(local)]
    if glob.has_magic(local):
        matches = [p for p in glob.iglob(local, recursive=True) if os.path.isfile(p)]
        if matches:
            return "files", (_local_entry(p) for p in matches)
    return None


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        yield from (os.path.join(parent, n) for n in names if not n.startswith("."))


def _local_entry(path: str) -> _Entry:
    status = os.stat(path)
    if not os.path.isfile(path):
        raise SourceError(
            "is not a regular file", field=path, cure="A build may be resumed, so it needs files, not pipes."
        )
    return _Entry(path, status.st_size, f"mtime:{status.st_mtime_ns}")


def _list_remote(url: str) -> _Listing | None:
    fs, path = files.filesystem(url)
    try:
        with files.client_errors(url):
            if glob.has_magic(path):
                infos = list(fs.glob(path, detail=True).values())
                return ("files", _remote_entries(fs, infos)) if infos else None
            if fs.isdir(path):
                return "folder", _remote_entries(fs, fs.find(path, detail=True).values())
            return "files", [_remote_entry(url, fs.info(path))]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot be listed ({error})", field="source", value=url) from error


def _remote_entries(fs: Any, infos: Iterable[dict[str, Any]]) -> Iterator[_Entry]:
    for info in infos:
        if info["type"] == "file" and not os.path.basename(info["name"]).startswith("."):
            if info.get("size") is None:  # a listing of web pages: ask for each
                info = fs.info(info["name"])
            yield _remote_entry(fs.unstrip_protocol(info["name"]), info)


def _remote_entry(url: str, info: dict[str, Any]) -> _Entry:
    size = info.get("size")
    version = next((f"{key.lower()}:{_plain(info[key])}" for key in _VERSION_KEYS if info.get(key)), "")
    return _Entry(url, None if size is None else int(size), version)


def _plain(value: Any) -> Any:
    # Some file systems tell a time as a date when asked for a file and as a number when asked for a folder.
    return value.timestamp() if isinstance(value, datetime) else value


def _split_compression(path: str) -> tuple[str, Compression]:
    stem, extension = os.path.splitext(path)
    compression = _COMPRESSIONS.get(extension.lower())
    return (stem, compression) if compression else (path, "none")


def _endings(paths: Iterable[str]) -> str:
    endings = sorted({os.path.splitext(p)[1] or os.path.basename(p) for p in paths})
    if not endings:
        return "it is empty"
    return "it has " + ", ".join(endings[:8]) + (", ..." if len(endings) > 8 else "")


def _nearby(path: str) -> str:
    if glob.has_magic(path):
        return "The pattern matches no file."
    if not files.is_local(path):
        return "Check the URL."
    parent = os.path.dirname(os.path.normpath(path)) or "."
    if not os.path.isdir(parent):
        return f"There is no folder {parent!r} either."
    return did_you_mean(os.path.basename(path), os.listdir(parent))
