"""Deleting, by whoever can prove that it may: nothing but what lies below an output that a lease is
held for.

1. What is to be deleted is listed, by its exact keys. If there is nothing, nothing is asked.
2. A lease must say that the output is ours: one that this process holds for a folder above, or, in
   a worker, the file of the lease that the process which sent it holds. A lease that was lost
   proves nothing.
3. Each key is compared with the location before it is deleted
   (:func:`headrace.store.files.delete_keys`).

Price: none in the process that holds the lease; in a worker one small read for each folder between
what is deleted and its output.
"""

from __future__ import annotations

from headrace.errors import CacheError
from headrace.store import durable, files
from headrace.store.lease import LEASE_NAME, LeaseRecord, held_roots, is_gone
from headrace.store.location import Location


def remove_tree(url: str) -> None:
    """Deletes a folder with its content, or a file, if it exists.

    Raises:
        CacheError: no lease says that it may be deleted, or it cannot be.

    Example:
        >>> import pathlib, tempfile
        >>> from headrace.store.lease import lease
        >>> with tempfile.TemporaryDirectory() as folder, lease(folder):
        ...     _ = pathlib.Path(folder, "a").write_text("a")
        ...     remove_tree(f"{folder}/a")
        ...     files.names_in(folder)
        ['lease.json']
    """
    if not _is_there(url):
        return
    _prove(url)
    try:
        if files.is_local(url):
            durable.remove(files.local_path(url))
        else:
            files.delete_keys(url)
    except OSError as error:
        problem = f"cannot be deleted ({error.strerror or error})"
        raise CacheError(problem, field="file", value=url, cure="Check its permissions.") from error


def _is_there(url: str) -> bool:
    if files.is_local(url):
        path = files.local_path(url)
        return path.exists() or path.is_symlink()
    return files.exists(url)


def _prove(url: str) -> None:
    location = Location.parse(files.absolute(url))
    for root, check in held_roots():
        if location.is_below(root):
            check()
            return
    for folder in location.folders_above():
        record = LeaseRecord.from_bytes(files.read_bytes(str(folder / LEASE_NAME)) or b"")
        if record is not None and not is_gone(record):
            return
    cure = f"Delete it yourself, if nobody needs it, and run the same command again: {url}"
    problem = "is in the way, and no lease says that it may be deleted"
    raise CacheError(problem, field="file", value=url, cure=cure)
