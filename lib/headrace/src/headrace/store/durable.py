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

import contextlib
import errno
import fcntl
import glob
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_OLD_S = 24 * 3600
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


class TemporaryFile:
    """A new file beside a path, which takes its place once it is complete.

    A link or another file that has its name is removed, never followed. It is locked for as long as
    it is open, which tells the rest of a writer that was killed from a file that is being written:

    - By default its name is ``NAME.tmp``: who wants to write the same file waits, and the rest of a
      killed writer is overwritten.
    - With ``shared``, several processes may write the same bytes at a time, each under a name of
      its own. Each deletes what killed ones have left: of this machine, or older than a day, as
      some network filesystems keep locks within one machine.

    Args:
        path: What it is to become; its folder is made.
        shared: Whether others may write the same file meanwhile.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> file = TemporaryFile(path)
        >>> _ = file.content.write(b"all of it")
        >>> path.exists(), file.keep(), path.read_bytes()
        (False, None, b'all of it')
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        make_folder(path.parent)
        self._path = path
        host = re.sub(r"\W", "-", socket.gethostname())[:20]
        suffix = f".{host}.{uuid.uuid4().hex[:8]}" if shared else ""
        self._name = path.with_name(f"{path.name}{suffix}.tmp")
        if shared:
            _sweep(path, host)
        self.content = _opened_alone(self._name)

    def keep(self) -> None:
        """Puts it into its place, durably."""
        self.content.flush()
        os.fsync(self.content.fileno())
        rename(self._name, self._path)
        self.content.close()

    def discard(self) -> None:
        """Deletes it."""
        self._name.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk has no room for what closing writes
            self.content.close()


def _opened_alone(name: Path) -> IO[bytes]:
    """A new or emptied file, locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            file = os.open(name, flags, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            name.unlink(missing_ok=True)  # a link, or a pipe: not ours
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file)
        try:
            # Who had the lock before may have moved or deleted the file.
            is_there = os.path.samestat(status, os.stat(name, follow_symlinks=False))
        except FileNotFoundError:
            is_there = False
        if is_there and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            os.ftruncate(file, 0)
            return os.fdopen(file, "wb")
        os.close(file)
        if is_there:  # another name of some file
            name.unlink(missing_ok=True)


def _sweep(path: Path, host: str) -> None:
    """Deletes what killed writers of a shared file have left."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        try:
            is_ours = leftover.name.startswith(f"{path.name}.{host}.")
            if is_ours or time.time() - leftover.lstat().st_mtime > _OLD_S:
                file = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink(missing_ok=True)
                finally:
                    os.close(file)
        except OSError:  # its writer lives, or it is not ours to delete
            continue


def write_file(path: Path, pieces: Sequence[bytes | memoryview], *, shared: bool = False) -> None:
    """Writes a :class:`TemporaryFile` and puts it into its place, so that no crash leaves half of
    it.
    """
    file = TemporaryFile(path, shared=shared)
    try:
        file.content.writelines(pieces)
        file.keep()
    except BaseException:
        file.discard()
        raise


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
