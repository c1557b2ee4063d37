"""Lists a path: one file, or the files of a folder, a glob or a URL, each with its size and
version.

Price: one ``stat`` (or one listing entry) per file; nothing is opened here.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from fsspec.utils import glob_translate

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.store import files, remote, retry
from headrace.store.location import Location

_VERSION_KEYS = (
    "etag",
    "ETag",
    "md5Hash",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)
_SPECIAL = re.compile(r"[*?\[{]")
_ESCAPED = re.compile(r"\[([*?\[{])\]")
_MAX_EXPANSIONS = 100_000
_MAX_PAGES = 10_000  # folders of a web server that are listed: each takes a request
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """An existing file."""

    path: str
    size: int | None
    version: str


Info: TypeAlias = dict[str, Any]
"""What a file system says of a file."""
Listing: TypeAlias = "tuple[Literal['files', 'folder'], Iterable[Entry]]"


def expand_braces(pattern: str) -> list[str]:
    """Expands braces as in a shell; ``{`` without a choice is kept, and so is ``[{]``, the escape
    of a glob.

    Raises:
        ConfigError: there are more than 100,000.

    Example:
        >>> expand_braces("a/{x,y{1,2}}.txt")
        ['a/x.txt', 'a/y1.txt', 'a/y2.txt']
        >>> expand_braces("shard-{08..10}.jsonl")
        ['shard-08.jsonl', 'shard-09.jsonl', 'shard-10.jsonl']
        >>> expand_braces("[{]a,b}.txt")
        ['[{]a,b}.txt']
    """
    patterns: list[str] = []
    waiting = [pattern]
    while waiting:
        path = waiting.pop()
        choices = _first_brace(path)
        if choices is None:
            patterns.append(path)
        else:
            prefix, options, suffix = choices
            waiting += [prefix + option + suffix for option in reversed(options)]
        if len(patterns) + len(waiting) > _MAX_EXPANSIONS:
            raise ConfigError(
                f"stands for more than {_MAX_EXPANSIONS:,} paths",
                field="source",
                value=pattern,
                cure="Use a glob.",
            )
    return patterns


def _first_brace(path: str) -> tuple[str, list[str], str] | None:
    """The text before the first braces with a choice, the choices, and the text after."""
    for opening in (m.start() for m in re.finditer(r"(?<!\[)\{|\{(?!\])", path)):
        depth = 0
        commas = [opening]
        for at in range(opening, len(path)):
            depth += {"{": 1, "}": -1}.get(path[at], 0)
            if path[at] == "," and depth == 1:
                commas.append(at)
            if depth == 0:
                options = [path[a + 1 : b] for a, b in zip(commas, [*commas[1:], at], strict=True)]
                numbers = _number_range(options[0]) if len(options) == 1 else None
                if len(options) > 1 or numbers is not None:
                    return path[:opening], numbers or options, path[at + 1 :]
                break
    return None


def _number_range(text: str) -> list[str] | None:
    match = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2])
    if abs(last - first) >= _MAX_EXPANSIONS:
        raise ConfigError(
            f"stands for more than {_MAX_EXPANSIONS:,} paths", field="source", value=f"{{{text}}}"
        )
    width = max(len(match[1]), len(match[2])) if "0" in (match[1][0], match[2][0]) else 0
    step = 1 if last >= first else -1
    return [f"{n:0{width}d}" for n in range(first, last + step, step)]


def kept_literal(path: str) -> str:
    """A pattern in which the first folders that exist by just their name are escaped: they are
    meant literally.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.mkdir(f"{folder}/[v1]")
        ...     kept_literal(f"{folder}/[v1]/*.txt").removeprefix(folder)
        '/[[]v1]/*.txt'
    """
    steps = file_name(path).split("/")
    query = path[len(file_name(path)) :]
    for k, step in enumerate(steps):
        if not _SPECIAL.search(step):
            continue
        if not files.exists("/".join(steps[: k + 1]) + query):
            break
        steps[k] = escaped(step)
    return "/".join(steps) + query


def escaped(name: str) -> str:
    """The pattern that matches a name and nothing else.

    Example:
        >>> escaped("[v1]{a}?")
        '[[]v1][{]a}[?]'
    """
    return _SPECIAL.sub(r"[\g<0>]", name)


def _unescaped(pattern: str) -> str | None:
    """The name that a pattern stands for; None if there may be others."""
    plain = _ESCAPED.sub("", pattern)
    return None if glob.has_magic(plain) else _ESCAPED.sub(r"\1", pattern)


def has_magic(path: str) -> bool:
    """Whether a path is a pattern. In a web address ``?`` begins the query."""
    return glob.has_magic(path.split("?")[0] if files.is_web(path) else path)


def file_name(path: str) -> str:
    """The path without the query of a web address, for its extension."""
    return path.split("?")[0] if files.is_web(path) else path


def escape_undecodable(path: str) -> str:
    r"""A path, of which bytes that are not UTF-8 are spelled out.

    Example:
        >>> print(escape_undecodable(os.fsdecode(b"caf\xe9.txt")))
        caf\xe9.txt
    """
    return os.fsencode(path).decode(errors="backslashreplace")


def list_path(path: str) -> Listing | None:
    """The files at a path; None if there is nothing.

    Raises:
        SourceError: it cannot be listed, or is not a regular file.
        ConfigError: no installed package can open such paths.
    """
    return _list_local(path) if files.is_local(path) else _list_remote(path)


def stat_file(path: str) -> tuple[int | None, str]:
    """Current size and version of a file, as an :class:`Entry`.

    Raises:
        FileNotFoundError: it is gone.
    """
    if files.is_local(path):
        entry = _local_entry(path)
    else:
        fs, inner = remote.filesystem(path)
        fs.invalidate_cache()
        entry = _remote_entry(
            path, retry.with_retries(lambda: fs.info(inner), remote.transient, path)
        )
    return entry.size, entry.version


def nearby(path: str) -> str:
    """The cure for a path that does not exist."""
    if has_magic(path):
        return (
            "The pattern matches no file. Write [*], [?], [[] and [{] for these letters in a name."
        )
    if not files.is_local(path):
        return "Check the URL."
    if re.fullmatch(r"[\w.]+:\w+", path):
        return "If it is a Python function, add --format python, and its folder to PYTHONPATH."
    parent = os.path.dirname(os.path.normpath(path)) or "."
    if not os.path.isdir(parent):
        return f"There is no folder {parent!r} either."
    return did_you_mean(os.path.basename(path), os.listdir(parent))


def _list_local(path: str) -> Listing | None:
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
    """Files below a folder, also through links; a folder that is reachable twice is walked once."""
    visited = {os.path.realpath(folder)}
    for parent, folders, names in os.walk(folder, followlinks=True):
        fresh = {
            os.path.realpath(os.path.join(parent, f)): f
            for f in sorted(folders)[::-1]
            if not f.startswith(".")
        }
        folders[:] = [f for real, f in fresh.items() if real not in visited]
        visited.update(fresh)
        yield from (os.path.join(parent, n) for n in names if not n.startswith("."))


def _local_entry(path: str) -> Entry:
    if os.path.islink(path) and not os.path.exists(path):
        cure = "Restore that file, or delete the link."
        raise SourceError(
            f"is a link to {os.readlink(path)!r}, which does not exist", field=path, cure=cure
        )
    status = os.stat(path)
    if not os.path.isfile(path):
        raise SourceError(
            "is not a regular file",
            field=path,
            cure="A build may be resumed, so it needs files, not pipes.",
        )
    return Entry(path, status.st_size, f"mtime:{status.st_mtime_ns}")


def _list_remote(url: str) -> Listing | None:
    fs, path = remote.filesystem(url)
    try:
        with remote.client_errors(url):
            return retry.with_retries(lambda: _ask_remote(fs, path, url), remote.transient, url)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot be listed ({error})", field="source", value=url) from error


def _ask_remote(fs: Any, path: str, url: str) -> Listing | None:
    if has_magic(url) and not fs.exists(path):
        infos = list(_matching(fs, path, url))
        return ("files", list(_remote_entries(fs, infos, url))) if infos else None
    if fs.isdir(path):
        return "folder", list(_remote_entries(fs, _below(fs, path, url), url))
    return "files", [_remote_entry(url, fs.info(path))]


def _matching(fs: Any, pattern: str, url: str) -> Iterator[Info]:
    """What a pattern matches, among the listings of the folders that it may match in."""
    steps: list[str] = []
    for step in pattern.split("/")[:-1]:
        name = _unescaped(step)
        if name is None:
            break
        steps.append(name)
    root = "/".join(steps)
    depth = None if "**" in pattern else pattern.count("/") - len(steps) + 1
    matches = re.compile(glob_translate(pattern)).match
    return (info for info in _below(fs, root, url, depth) if matches(info["name"]))


def _below(fs: Any, folder: str, url: str, depth: int | None = None) -> Iterable[Info]:
    """The files below a folder, to a limited depth."""
    on_web = files.is_web(url)
    if depth is None and not on_web:
        return fs.find(folder, detail=True).values()
    return _pages(fs, folder, depth, on_web=on_web)


def _pages(fs: Any, root: str, depth: int | None, *, on_web: bool) -> Iterator[Info]:
    """Files in the listings of a server below a folder, to a limited depth. A page of a web server
    may name anything, so entries outside the folder are left out, and the number of requests is
    limited.
    """
    waiting = [(root, 1)]
    folders = 0
    while waiting:
        folders += 1
        if folders > _MAX_PAGES:
            cure = "Name the files, or the folders below it."
            raise SourceError(
                f"has more than {_MAX_PAGES:,} folders", field="source", value=root, cure=cure
            )
        folder, layer = waiting.pop()
        for info in _within_folder(folder, fs.ls(folder, detail=True), on_web=on_web):
            if info["type"] == "directory":
                waiting += [(info["name"], layer + 1)] if layer != depth else []
            else:
                yield info


def _within_folder(folder: str, infos: Iterable[Info], *, on_web: bool) -> list[Info]:
    """Entries of a listing that are below its folder; others are left out, and logged."""
    root = folder.rstrip("/") + "/" if folder else ""
    entries: list[Info] = []
    others: list[str] = []
    for info in infos:
        name = str(info["name"])
        inner = name[len(root) :]
        steps = re.split(r"[/\\]", unquote(inner).split("?")[0]) if on_web else []
        if name.startswith(root) and not {".", ".."}.intersection(steps):
            entries += [info] if inner.strip("/") else []
        elif name.rstrip("/") != root.rstrip("/"):
            others.append(name)
    if others:
        logger.warning(
            "%s: %d names of its listing lie outside it, and are left out: %s",
            folder,
            len(others),
            others[0],
        )
    return entries


def _remote_entries(fs: Any, infos: Iterable[Info], url: str) -> Iterator[Entry]:
    location = Location.parse(url)
    for info in infos:
        name = str(info["name"])
        is_folder = info["type"] != "file" or (name.endswith("/") and not info.get("size"))
        if is_folder or os.path.basename(name).startswith("."):
            continue
        if info.get("size") is None:  # a listing of web pages: ask for each
            info = fs.info(name)
        entry_url = (
            f"{location.scheme}://{name}" if location.is_bucket else fs.unstrip_protocol(name)
        )
        yield _remote_entry(entry_url, info)


def _remote_entry(url: str, info: Info) -> Entry:
    size = info.get("size")
    version = next(
        (f"{key.lower()}:{_plain(info[key])}" for key in _VERSION_KEYS if info.get(key)), ""
    )
    return Entry(url, None if size is None else int(size), version)


def _plain(value: Any) -> Any:
    # Some file systems tell a time as a date when asked for a file and as a number when asked for a
    # folder.
    return value.timestamp() if isinstance(value, datetime) else value
