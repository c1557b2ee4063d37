"""Describes what is at a path where a cache was expected, and what to type next."""

from __future__ import annotations

from difflib import get_close_matches

from headrace.errors import CacheMissingError, ConfigError, command_line, install_command
from headrace.store import files
from headrace.store.ledger import LEDGER_NAME
from headrace.store.location import Location

LEVANTERS_LEDGER = "shard_ledger.json"
"""What tells a cache of Levanter's, which ``headrace[levanter]`` reads."""
_LOOKED_REMOTE = 16
_NAME = "cache"


def no_cache(path: str) -> CacheMissingError:
    """The error for a path without a cache."""
    problem, cure = what_is_there(path)
    problem = f"is not a token cache ({problem})"
    return CacheMissingError(problem, field="cache", value=path, cure=cure)


def what_is_there(path: str) -> tuple[str, str]:
    """Describes the content of a path without a cache, as far as possible, and what to do: for
    text, the build command with a new output folder.

    Example:
        >>> what_is_there("caches/web")[1]
        'Build one: headrace build SOURCE --tokenizer FILE --output caches/web'
    """
    if not path.strip():
        return "it is an empty text", "Give the folder of a cache."
    try:
        Location.parse(path).kvstore()
    except ConfigError as error:
        return error.problem, error.cure or ""
    if not files.exists(path):
        scheme, slash, rest = path.partition(":/")
        if slash and not rest.startswith("/") and scheme.isalnum():
            return "there is no such folder", f"URLs have two slashes: {scheme}://{rest}."
        return "there is no such folder", _like(path) + build_cure("SOURCE", path)
    if files.exists(files.join(path, LEVANTERS_LEDGER)):
        return "it is a cache of Levanter's", install_command("headrace[levanter]")
    if inside := _caches_in(path):
        names = ", ".join(files.join(path, name) for name in inside[:8])
        return "caches lie in this folder", f"Name one of them: {names}."
    output = _beside(path)
    if not files.is_local(path):
        return "there is no ledger.json", build_cure(path, output)
    root = files.local_path(path)
    if root.is_file():
        output = f"{path.removesuffix(''.join(root.suffixes))}-cache"
        cure = "Name one of the caches in it." if root.suffix in (".yaml", ".yml") else ""
        return "it is a file", cure or build_cure(path, output)
    if (root / "lock.json").exists():
        return "it is the folder of a run", "Name a cache of its config."
    text = path if any(root.iterdir()) else "SOURCE"
    return "the folder holds no ledger.json", build_cure(text, output)


def _caches_in(folder: str) -> list[str]:
    """Names of the caches in a folder, of its first names only where each look is a request."""
    # Pages of some web servers name themselves, in another order of their lines.
    names = [name for name in files.names_in(folder) if "?" not in name]
    ledgers = (LEDGER_NAME, LEVANTERS_LEDGER)
    return [
        name
        for name in (names if files.is_local(folder) else names[:_LOOKED_REMOTE])
        if any(files.exists(files.join(folder, name, ledger)) for ledger in ledgers)
    ]


def _like(path: str) -> str:
    """The cache beside a path whose name is nearly the same, if it is on this machine."""
    if not files.is_local(path):
        return ""
    folder = files.local_path(path)
    close = get_close_matches(folder.name, _caches_in(str(folder.parent)), n=1)
    return f"Did you mean {str(folder.with_name(close[0]))!r}? " if close else ""


def build_cure(text: str, output: str) -> str:
    """The command that builds a cache at a path. Where nothing can be written, and in a whole
    bucket or below the text itself, it is built on this machine, to be copied there.

    Example:
        >>> build_cure("SOURCE", "https://host/web")
        'Build one: headrace build SOURCE --tokenizer FILE --output web, and copy it to \
https://host/web'
    """
    there = Location.parse(output)
    if there.is_bucket and not there.key.strip("/"):
        there = there / _NAME
    is_within = there.text.startswith(f"{text.rstrip('/')}/")
    if not there.is_read_only and not is_within:
        return f"Build one: {command_line('build', text, tokenizer='FILE', output=there.text)}"
    name = there.key.rpartition("/")[2] or _NAME
    command = command_line("build", text, tokenizer="FILE", output=name)
    return f"Build one: {command}, and copy it to {there.shown}"


def _beside(path: str) -> str:
    """Where a cache of the text at a path may be: beside it, or within a whole bucket or server."""
    folder = path.rstrip("/")
    return f"{folder}-cache" if Location.parse(path).key.strip("/") else f"{folder}/{_NAME}"
