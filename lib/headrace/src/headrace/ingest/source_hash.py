"""What is in source files, as a hash: on request, for sources whose modification times mean nothing.

The ledger keeps size and version (etag, modification time) of every source file, which costs nothing. With a hash as
well, a file that was copied or touched counts as the same, and one that was changed within its time stamp as another.
Price: every source file is read once more, a few at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.errors import SourceError
from headrace.ingest.source import SourceFile
from headrace.store import files

_AT_ONCE = 4
_BLOCK = 1 << 20


def content_hashes(listed: Iterable[SourceFile]) -> dict[str, str]:
    """SHA-256 of each file's stored bytes, by the path that the ledger shows. Data sets of a hub have no file to hash.

    Raises:
        SourceError: a file cannot be read.
    """
    some = [f for f in listed if not f.path.startswith("hf://")]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-hash") as pool:
        return dict(zip((f.shown_path for f in some), pool.map(_hash, some), strict=True))


def with_hashes(records: Iterable[dict[str, Any]], hashes: dict[str, str]) -> list[dict[str, Any]]:
    """Source records of a ledger, with the hash of those files that have one.

    Example:
        >>> with_hashes([{"path": "a"}, {"path": "hf://b"}], {"a": "1"})
        [{'path': 'a', 'sha256': '1'}, {'path': 'hf://b'}]
    """
    return [{**r, "sha256": hashes[r["path"]]} if r["path"] in hashes else r for r in records]


def is_changed(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a source file is another than the one recorded: by its hash if both have one, else by size and version.

    Example:
        >>> touched = {"size": 1, "version": "mtime:2", "sha256": "x"}
        >>> is_changed({"size": 1, "version": "mtime:1", "sha256": "x"}, touched)
        False
        >>> is_changed({"size": 1, "version": "mtime:1"}, touched)
        True
    """
    if "sha256" in old and "sha256" in new:
        return bool(old["sha256"] != new["sha256"])
    return bool((old["size"], old["version"]) != (new["size"], new["version"]))


def as_now(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The record of a file in its part, with its size, version and hash of now.

    Example:
        >>> as_now({"part": "0", "size": 1, "version": "a", "sha256": "x"}, {"size": 2, "version": "b", "part": "1"})
        {'part': '0', 'size': 2, 'version': 'b'}
    """
    record = {**old, "size": new["size"], "version": new["version"]}
    if "sha256" in new:
        record["sha256"] = new["sha256"]
    elif is_changed(old, new):
        record.pop("sha256", None)  # what it is now was not hashed
    return record


def _hash(file: SourceFile) -> str:
    digest = hashlib.sha256()
    try:
        with files.open_read(file.path) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror or error})", field=file.shown_path) from error
    return digest.hexdigest()
