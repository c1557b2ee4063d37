"""Paths and small files: ledgers, part records, source text; and where TensorStore finds arrays.

Local paths, ``gs://``, ``s3://``, ``http(s)://`` and ``az://`` (read-only), and every other
protocol that fsspec supports: what is not on this machine is asked of :mod:`headrace.store.remote`.
A write is atomic: a rename on a local disk, one PUT in an object store; a reader sees the old bytes
or the new ones, never a part of them.

**On local disks**, files are synced before they are renamed, folders afterwards. Without ``fsync``
of the file and of its folder, a file system guarantees neither: after a power cut, a file may have
its name without its bytes, or no name. These functions of a ``Path`` return only when their effect
would survive, and the order of two calls is their order on disk:

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
import fcntl
import glob
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast

from headrace.errors import CacheCorruptError, CacheError, SourceError
from headrace.store import remote, retry
from headrace.store.location import Location

T = TypeVar("T")
_OLD_S = 24 * 3600
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)


def is_local(url: str) -> bool:
    """Whether ``url`` is a path of this machine (no scheme, or ``file://``)."""
    return "://" not in url or Location.parse(url).is_local


def is_web(url: str) -> bool:
    """Whether ``url`` is on a web server, which is read-only."""
    return "://" in url and Location.parse(url).is_web


def local_path(url: str) -> Path:
    """The local path of a plain path or ``file://`` URL."""
    return Location.parse(url).path()


def absolute(url: str) -> str:
    """An absolute path or URL, independent of the working folder; without ``..``, which TensorStore
    refuses.
    """
    return Location.parse(url).absolute()


def join(root: str, *parts: str) -> str:
    """``root/part/part``, with single slashes, for paths and URLs alike. Raises ConfigError for a
    web address with a query, which is of one file.

    Example:
        >>> join("gs://bucket/cache/", "ledger.json"), join("/", "tmp", "a")
        ('gs://bucket/cache/ledger.json', '/tmp/a')
    """
    if "?" in root and is_web(root):
        Location.parse(root).check_folder()
    return "/".join([root.rstrip("/") if root else ".", *(p.strip("/") for p in parts)])


def has_magic(path: str) -> bool:
    """Whether a path is a pattern. In a web address ``?`` begins the query."""
    return glob.has_magic(path.split("?")[0] if is_web(path) else path)


def file_name(path: str) -> str:
    """The path without the query of a web address, for its extension."""
    return path.split("?")[0] if is_web(path) else path


def open_read(url: str) -> IO[bytes]:
    """Opens ``url`` for reading bytes; raises FileNotFoundError, or CacheError if the store cannot
    be reached.
    """
    if is_local(url):
        return local_path(url).open("rb")
    fs, path = remote.filesystem(url)
    with remote.client_errors(url):
        try:
            return cast("IO[bytes]", fs.open(path, "rb"))
        except FileNotFoundError:
            # fsspec says so of web servers that it cannot reach, too.
            remote.call(url, "cat_file", start=0, end=1)
            raise


def read_bytes(url: str) -> bytes | None:
    """The content of ``url``; None if there is no such file. Raises CacheError if the store cannot
    be reached.
    """
    try:
        return (
            local_path(url).read_bytes()
            if is_local(url)
            else cast("bytes", remote.call(url, "cat_file"))
        )
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_as(url: str, parse: Callable[[bytes], T]) -> T | None:
    """The content of ``url``, parsed with ``parse``, or None. If ``parse`` raises
    :class:`CacheCorruptError` for remote content, it is requested again.
    """

    def read() -> T | None:
        raw = read_bytes(url)
        return None if raw is None else parse(raw)

    return read_sound(url, read)


def read_sound(url: str, read: Callable[[], T]) -> T:
    """What ``read`` returns. If it raises :class:`CacheCorruptError` for remote content, it is
    called again.
    """
    if is_local(url):
        return read()
    most = retry.policy().damaged_attempts
    return retry.with_retries(read, lambda error: isinstance(error, CacheCorruptError), url, most)


class ReadForAll(Protocol):
    """Reads a file, parsed with ``parse``: here (:func:`read_here`), or in one process of a job for
    all (:mod:`headrace.feed.host_ledgers`).

    ``read`` replaces :func:`read_as`. It returns the result, and the bytes of which ``parse`` makes
    the same in other processes; None in place of these: each of them has to read by itself.
    """

    def __call__(
        self,
        url: str,
        parse: Callable[[bytes], T],
        read: Callable[[], tuple[T | None, bytes | None]] | None = None,
    ) -> T | None: ...


def read_here(
    url: str,
    parse: Callable[[bytes], T],
    read: Callable[[], tuple[T | None, bytes | None]] | None = None,
) -> T | None:
    """Reads it in this process: a :class:`ReadForAll`."""
    return read_as(url, parse) if read is None else read()[0]


def check_writable(output: str, field: str = "output") -> None:
    """Raises ConfigError for a location that is read-only, or whose name would get changed on its
    way to the store.
    """
    Location.parse(output).check_output(field)


def not_written(output: str, error: OSError) -> CacheError:
    """The message for an output that the system refuses to write."""
    cure = (
        "Check the path, permissions and free space, then run the same command again: finished"
        " parts are kept."
    )
    return CacheError(
        f"cannot be written ({refusal(output, error)})", field="output", value=output, cure=cure
    )


def refusal(url: str, error: OSError, size: int | None = None) -> str:
    """Why the system refused; if the disk is full, with the free space and the ``size`` of what was
    to be written.
    """
    reason = (
        "a file is in the way"
        if error.errno in (errno.EEXIST, errno.ENOTDIR)
        else error.strerror or str(error)
    )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not is_local(url):
        return reason
    missing = "" if size is None else f"{size:,} bytes to write, "
    return f"{reason}: {missing}{free_bytes(local_path(url))}"


def read_range(url: str, start: int, stop: int) -> bytes:
    """Bytes ``start .. stop`` of a file; fewer if it is shorter. Raises FileNotFoundError, or
    CacheError if the store cannot be reached.
    """
    if is_local(url):
        with local_path(url).open("rb") as file:
            file.seek(start)
            # No room is made for more than there is, whoever says how much that is.
            return file.read(max(min(stop, os.fstat(file.fileno()).st_size) - start, 0))
    return (
        cast("bytes", remote.call(url, "cat_file", start=start, end=stop)) if stop > start else b""
    )


def write_atomic(url: str, data: bytes | Sequence[memoryview], *, shared: bool = False) -> None:
    """Writes ``data``, or pieces of it, to ``url`` atomically; after it returns, the file also
    survives a power cut. ``shared``: several processes may write the same bytes at the same time.

    Raises:
        CacheError: the file cannot be written (permissions, disk full, ...).
        ConfigError: it is on a web server, or a client would change its name.
    """
    pieces = [data] if isinstance(data, bytes) else data
    Location.parse(url).check_output_file()
    try:
        if not is_local(url):
            remote.call(url, "pipe_file", b"".join(pieces))
            return
        write_file(local_path(url), pieces, shared=shared)
    except OSError as error:
        why = refusal(url, error, sum(memoryview(piece).nbytes for piece in pieces))
        cure = "Check the path, permissions and free space, then run the same command again."
        raise CacheError(
            f"cannot be written ({why})", field="file", value=url, cure=cure
        ) from error


def exists(url: str) -> bool:
    """Whether there is a file or folder at ``url``. Raises CacheError if the store cannot be
    reached.
    """
    if is_local(url):
        return local_path(url).exists()
    try:
        # fsspec's own answer hides why a web server gave none
        remote.call(url, "cat_file", start=0, end=1) if is_web(url) else remote.call(url, "info")
    except FileNotFoundError:
        return False
    return True


def names_in(folder: str) -> list[str]:
    """Names of files and folders in a folder, in order; empty if there is none.

    Raises:
        CacheError: it cannot be listed.

    Example:
        >>> names_in("nowhere")
        []
    """
    try:
        if is_local(folder):
            return sorted(os.listdir(local_path(folder)))
        _, path = remote.filesystem(folder)
        entries: list[str] = remote.call(folder, "ls", detail=False, timed=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    start = f"{path.rstrip('/')}/"
    inside = {entry[len(start) :].strip("/") for entry in entries if entry.startswith(start)}
    return sorted(inside - {""})


def tree_bytes(url: str) -> int:
    """Sum of the sizes of all files below ``url``, in bytes."""
    if not is_local(url):
        return sum(remote.sizes_below(url).values())
    total = 0
    folders = [str(local_path(url))]
    while folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file():
                    total += entry.stat().st_size
    return total


def is_file(url: str) -> bool:
    """Whether there is a file at ``url``."""
    return local_path(url).is_file() if is_local(url) else remote.is_file(url)


def entry_of(path: str) -> remote.Entry:
    """A file as it is now.

    Raises:
        FileNotFoundError: it is gone.
        SourceError: it is a link to nothing, or not a regular file.
    """
    if not is_local(path):
        return remote.current_entry(path)
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
    return remote.Entry(path, status.st_size, f"mtime:{status.st_mtime_ns}")


def stat_file(path: str) -> tuple[int | None, str]:
    """Current size and version of a file, as :func:`entry_of` says them."""
    entry = entry_of(path)
    return entry.size, entry.version


def open_source(path: str) -> IO[bytes]:
    """Opens a source file for reading; remote ones are read with retries (:class:`PatientFile`)."""
    return (
        open_read(path)
        if is_local(path)
        else cast("IO[bytes]", remote.PatientFile(lambda: open_read(path), path))
    )


def kvstore_spec(url: str) -> dict[str, Any]:
    """TensorStore's key-value store for a path or URL.

    Raises:
        ConfigError: TensorStore has no driver for the scheme, would change the key, or cannot
            address buckets as the user's profile says.

    Example:
        >>> kvstore_spec("gs://bucket/cache/data")
        {'driver': 'gcs', 'bucket': 'bucket', 'path': 'cache/data/'}
    """
    location = Location.parse(url)
    spec = location.kvstore()
    return spec if location.is_local else remote.with_server(spec, location)


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
        with suppress(OSError):  # a full disk has no room for what closing writes
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
        with suppress(OSError):  # a file system without locks
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
