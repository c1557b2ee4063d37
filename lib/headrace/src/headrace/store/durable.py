"""What is on a local disk when the power fails: files synced before they are renamed, folders after.

A file system may keep the name of a file whose bytes never came to the disk, or the bytes and no name: it owes nothing
that ``fsync`` was not called for, neither of the file nor of the folder that has its name. So everything here returns
only when what it did would survive, and the order of two calls is their order on the disk:

- :func:`write_file`: the bytes, then the name, then the folder. Under that name lie the old bytes or the new ones.
- :func:`rename`, :func:`remove`: the folders after it.
- :func:`make_folder`: the folder that has the new one's name, up to the first that was there.
- :func:`sync_folders`: all folders of a tree whose files were written by something else. TensorStore syncs each file
  and the folder that it lies in, not the folders that it makes.

Price: two to three calls of ``fsync`` a file: 0.1 to 10 ms each, by the disk. File systems that cannot sync a folder
(some network ones) are passed over: they have no such state of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


def free_bytes(path: Path) -> str:
    """The free space where a file is or would be, in words."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return f"{shutil.disk_usage(there).free:,} bytes are free at {there}"


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_folders(root: Path, *, below: Path) -> None:
    """Waits until the names in a folder, in all below it and in those above it up to ``below`` are on the disk."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))
    for folder in root.parents:
        if folder.is_relative_to(below):
            sync_folder(folder)


def sync_file(path: Path) -> None:
    """Waits until the bytes of a file are on the disk, whoever wrote them."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing."""
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def write_file(path: Path, pieces: Sequence[bytes | memoryview], *, temporary: Path) -> None:
    """Writes a file by way of another one beside it, so that no crash leaves half of it."""
    make_folder(path.parent)
    with temporary.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    rename(temporary, path)


def rename(source: Path, target: Path) -> None:
    """Gives a file, or a folder, another name; a file that has that name is replaced."""
    os.replace(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def remove(path: Path) -> None:
    """Deletes a folder and all in it, or a file, if it is there."""
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)
