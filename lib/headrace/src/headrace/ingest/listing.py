"""Patterns of paths, and what stores far away list: a file, or the files of a folder or of a
pattern, each with its size and version.

Price: one listing entry per file; nothing is opened here.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from fsspec.utils import glob_translate

from headrace.errors import ConfigError, SourceError
from headrace.store import files, remote, retry
from headrace.store.location import Location
from headrace.store.remote import Entry, entry_of

_SPECIAL = re.compile(r"[*?\[{]")
_ESCAPED = re.compile(r"\[([*?\[{])\]")
_MAX_EXPANSIONS = 100_000
_MAX_PAGES = 10_000  # folders of a web server that are listed: each takes a request
logger = logging.getLogger(__name__)


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
    steps = files.file_name(path).split("/")
    query = path[len(files.file_name(path)) :]
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


def list_remote(url: str) -> Listing | None:
    """The files at a URL; None if there is nothing. Raises SourceError if it cannot be listed."""
    fs, path = remote.filesystem(url)
    try:
        with remote.client_errors(url):
            return retry.with_retries(lambda: _ask_remote(fs, path, url), remote.transient, url)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot be listed ({error})", field="source", value=url) from error


def _ask_remote(fs: Any, path: str, url: str) -> Listing | None:
    if files.has_magic(url) and not fs.exists(path):
        infos = list(_matching(fs, path, url))
        return ("files", list(_remote_entries(fs, infos, url))) if infos else None
    if fs.isdir(path):
        return "folder", list(_remote_entries(fs, _below(fs, path, url), url))
    return "files", [entry_of(url, fs.info(path))]


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
        yield entry_of(entry_url, info)
