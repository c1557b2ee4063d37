"""Durable file operations on local disks: files are synced before they are renamed, folders
afterwards.

Without ``fsync`` of the file and of its folder, a file system guarantees neither: after a power
cut, a file may have its name without its bytes, or no name. The functions here return only when
their effect would survive, and the order of two calls is their order on disk:

- :func:`write_file`: syncs the bytes, then the name, then the folder. The name has the old bytes or
  the new ones.
- :func:`rename`, :func:`remove`: sync the folders afterwards.
- :func:`make_folder`: syncs the parent folders, up to the first that existed.
- :func:`sync_folders`: syncs all folders of a tree whose files were written by something else.
  TensorStore syncs each file and its folder, but not the folders that it makes.

Price: two to three calls of ``fsync`` per file: 0.1 to 10 ms each, depending on the disk. File
systems that cannot sync a folder (some network ones) are skipped.
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
    """Waits until the names in a folder are on disk."""
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
    """Waits until the names in a folder, in its subfolders and in its parents up to ``below`` are
    on disk.
    """
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(Path(folder))
    for folder in root.parents:
        if folder.is_relative_to(below):
            sync_folder(folder)


def sync_file(path: Path) -> None:
    """Waits until the bytes of a file are on disk, whichever process wrote them."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents."""
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def write_file(path: Path, pieces: Sequence[bytes | memoryview], *, temporary: Path) -> None:
    """Writes a file through a temporary one next to it, so that no crash leaves half of it."""
    make_folder(path.parent)
    with temporary.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    rename(temporary, path)


def rename(source: Path, target: Path) -> None:
    """Renames a file or a folder; an existing file is replaced."""
    os.replace(source, target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def remove(path: Path) -> None:
    """Deletes a folder with its content, or a file, if it exists."""
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)
