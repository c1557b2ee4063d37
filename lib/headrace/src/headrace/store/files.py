"""Small files by path or URL: ledgers, part records, source text. Arrays go through TensorStore
(array.py) instead.

Local paths, ``gs://``, ``s3://``, ``http(s)://`` and ``az://`` (read-only), and every other
protocol that fsspec supports. A write is atomic: a rename on a local disk, one PUT in an object
store; a reader sees the old bytes or the new ones, never a part of them. Requests are retried as in
:mod:`headrace.store.retry`; where no status came, in addition to the client library's own retries.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, cast
from urllib.request import getproxies

from fsspec import filesystem as fsspec_client
from fsspec import get_filesystem_class
from fsspec.asyn import sync
from fsspec.config import conf as fsspec_config
from fsspec.core import url_to_fs
from fsspec.exceptions import FSTimeoutError

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    ConfigError,
    HeadraceError,
    install_command,
)
from headrace.store import azure, durable, logins, reach, redirects, retry
from headrace.store.location import Location

T = TypeVar("T")
_MOST_DELETED = 500  # objects in one request
_EXTRA_OF_SCHEME = {"gs": "gcs", "s3": "s3"}


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


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of ``url`` and the path on it.

    Raises:
        ConfigError: the scheme is unknown, its package is not installed (names the extra to
            install), or a client would change the name.
        CacheError: see :func:`headrace.store.reach.check`.
    """
    location = Location.parse(url)
    location.check()
    try:
        # A package that is missing is named first; then a server that does not answer, before a
        # client looks for its credentials, which may take a minute.
        if location.scheme != "az":
            get_filesystem_class(location.scheme)
        reach.check(retry.store_of(url), partial(_server, location))
        # Listings are not cached: TensorStore and other machines write into the same folders.
        if location.scheme == "az":
            fs = azure.filesystem(location.bucket)
            path = location.on_fsspec()
        elif location.is_bucket:  # a key may contain what fsspec would parse in a URL
            fs = _bucket_client(location.scheme)
            path = location.on_fsspec()
        else:
            options: dict[str, Any] = {}
            if location.is_web:
                options = {"client_kwargs": redirects.client_options(logins.header(location))}
            fs, path = cast("tuple[Any, str]", url_to_fs(url, use_listings_cache=False, **options))
    except ImportError as error:
        extra = _EXTRA_OF_SCHEME.get(location.scheme)
        cure = (
            install_command(f"headrace[{extra}]")
            if extra
            else f"Install the package that fsspec names: {error}"
        )
        raise ConfigError(
            f"nothing here can open {location.scheme}:// paths", field="path", value=url, cure=cure
        ) from error
    except ValueError as error:
        cure = "Use a local path, gs://, s3://, az:// or https://."
        raise ConfigError(
            "has a scheme that fsspec does not know", field="path", value=url, cure=cure
        ) from error
    retry.watch(fs)
    return fs, path


def _bucket_client(scheme: str) -> Any:
    """The client of S3 or GCS, which gives up an answer that does not come as the policy says, if
    fsspec's own settings do not say otherwise.
    """
    settings = fsspec_config.get(scheme, {})
    if scheme == "gs":
        options = {"requests_timeout": settings.get("requests_timeout", redirects.client_timeout())}
    else:
        timeouts = dict.fromkeys(("connect_timeout", "read_timeout"), retry.policy().timeout_s)
        options = {"config_kwargs": timeouts | settings.get("config_kwargs", {})}
    return fsspec_client(scheme, use_listings_cache=False, **options)


def _server(location: Location) -> str | None:
    """Where the client of a location connects to; None if that is not known: behind a proxy, or
    with settings of fsspec that may name another.
    """
    settings = fsspec_config.get(location.scheme, {})
    if getproxies().keys() - {"no"} or any("listings" not in name for name in settings):
        return None
    if location.is_web:
        return location.text
    if location.scheme == "gs":
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "default")
        return "https://storage.googleapis.com" if emulator in ("", "default") else emulator
    if location.scheme == "s3":
        fs = _bucket_client("s3")
        retry.watch(fs)
        return fs.connect().meta.endpoint_url
    return azure.address(os.environ) if location.scheme == "az" else None


def asked_as(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """The credential of a request for ``url``, in words: its name, never its content.

    Example:
        >>> asked_as("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "AKIA..."})
        'the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY'
    """
    location = Location.parse(url)
    if location.scheme == "s3":
        return _asked_s3_as(environment)
    if location.scheme == "gs":
        return _asked_gcs_as(environment)
    if location.scheme == "az":
        return azure.asked_as(environment)
    if location.is_web:
        file = logins.file(environment)
        return (
            f"the login for {location.host} in {file}"
            if logins.header(location, environment)
            else f"nobody ({file} has no login for {location.host})"
        )
    return f"the user {_user()} of this machine"


def _asked_s3_as(environment: Mapping[str, str]) -> str:
    if environment.get("AWS_ACCESS_KEY_ID"):
        return "the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if profile := environment.get("AWS_PROFILE"):
        return f"the profile {profile!r} named in AWS_PROFILE"
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    return (
        f"the default profile of {file}"
        if file.exists()
        else "the role of this machine, or nobody if it has none"
    )


def _asked_gcs_as(environment: Mapping[str, str]) -> str:
    if environment.get("STORAGE_EMULATOR_HOST", "default") not in ("", "default"):
        return "nobody (STORAGE_EMULATOR_HOST is set)"
    if environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return "the key file named in GOOGLE_APPLICATION_CREDENTIALS"
    folder = Path(environment.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    file = folder / "application_default_credentials.json"
    return (
        f"the login kept in {file}"
        if file.exists()
        else "the role of this machine, or nobody if it has none"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for this number, as in many containers
        return str(os.getuid())


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Converts errors of store clients to a :class:`CacheError` about ``url``. FileNotFoundError,
    headrace's own errors and any OSError about a local path pass through: they are handled
    elsewhere.
    """
    try:
        yield
    except FileNotFoundError as error:
        # fsspec says so of whatever a web server's answer led to.
        if isinstance(error.__cause__, HeadraceError):
            raise error.__cause__ from None
        raise
    except HeadraceError:
        raise
    except Exception as error:  # botocore, google.auth and aiohttp have no common base
        if is_local(url) and isinstance(error, OSError):
            raise
        given_up = retry.tried(error)
        lasting = f"; {given_up}" if given_up else ""
        first_line = str(error).partition("\n")[0]  # obstore's go on for a page
        problem = f"cannot be reached ({type(error).__name__}: {first_line}{lasting})"
        cure = "Check the address, the network and the credentials of this machine."
        if _refuses(error):
            problem = f"may not be used ({first_line}), asked as {asked_as(url)}"
            cure = "Give that user the permission, or use another credential."
        raise CacheError(problem, field="path", value=url, cure=cure) from error


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of a client library's error, if it has one."""
    while error is not None:
        response = getattr(error, "response", None)  # botocore's
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        for status in (getattr(error, "status", None), meta.get("HTTPStatusCode")):
            if isinstance(status, int) and status >= 100:
                return status
        # aiohttp's errors have a status, and a code that warns when it is read; gcsfs's have a code
        # alone.
        code = None if hasattr(error, "status") else getattr(error, "code", None)
        if isinstance(code, int) and code >= 100:
            return code
        status = azure.status_of(error)
        if status is not None:
            return status
        error = error.__cause__
    return None


def _refuses(error: Exception) -> bool:
    # gcsfs tells no status where it says "Forbidden:".
    return (
        isinstance(error, PermissionError)
        or _status(error) in (401, 403)
        or str(error).startswith("Forbidden:")
    )


_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError, HeadraceError)
_PASSING = {
    "ClientError",
    "HTTPClientError",
    "FSTimeoutError",
    "FlexibleChecksumError",
    "ChecksumError",
    "GenericError",  # obstore's
}


def transient(error: Exception) -> bool:
    """Whether a retry may help: 408, 429, 5xx, no answer in time, a broken connection, a truncated
    answer, or one without a body.
    """
    if isinstance(error, retry.FailedAnswerError):
        return True
    # Of aiohttp, botocore and obstore, which need not be installed.
    names = {c.__name__ for c in type(error).__mro__}
    # Of a cut answer aiohttp says 400.
    status = None if "ClientPayloadError" in names else _status(error)
    if status is not None:
        return retry.fails(status)
    if isinstance(error, _FINAL) or _refuses(error):
        return False
    return isinstance(error, OSError) or bool(names & _PASSING)


def _call(url: str, method: str, *args: Any, timed: bool = True, **options: Any) -> Any:
    """One call of a remote filesystem: with retries, errors about ``url``, and a timeout if it is
    ``timed``: what takes many requests is not.
    """

    def ask() -> Any:
        fs, path = filesystem(url)
        call = getattr(fs, f"_{method}", None) if getattr(fs, "async_impl", False) else None
        if call is None:
            return getattr(fs, method)(path, *args, **options)
        timeout_s = retry.policy().timeout_s if timed else None
        try:
            return sync(
                fs.loop,
                cast("Callable[..., Any]", call),
                path,
                *args,
                timeout=timeout_s,
                **options,
            )
        except FSTimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def refused(error: Exception) -> bool:
        if _refuses(error):
            # The next has a client, and credentials, of its own.
            filesystem(url)[0].clear_instance_cache()
        return _refuses(error)

    with client_errors(url):
        return retry.with_retries(
            lambda: retry.with_retries(ask, transient, url),
            refused,
            url,
            retry.policy().refused_attempts,
        )


def open_read(url: str) -> IO[bytes]:
    """Opens ``url`` for reading bytes; raises FileNotFoundError, or CacheError if the store cannot
    be reached.
    """
    if is_local(url):
        return local_path(url).open("rb")
    fs, path = filesystem(url)
    with client_errors(url):
        try:
            return cast("IO[bytes]", fs.open(path, "rb"))
        except FileNotFoundError:
            # fsspec says so of web servers that it cannot reach, too.
            _call(url, "cat_file", start=0, end=1)
            raise


def read_bytes(url: str) -> bytes | None:
    """The content of ``url``; None if there is no such file. Raises CacheError if the store cannot
    be reached.
    """
    try:
        return (
            local_path(url).read_bytes() if is_local(url) else cast("bytes", _call(url, "cat_file"))
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
    return f"{reason}: {missing}{durable.free_bytes(local_path(url))}"


def read_range(url: str, start: int, stop: int) -> bytes:
    """Bytes ``start .. stop`` of a file; fewer if it is shorter. Raises FileNotFoundError, or
    CacheError if the store cannot be reached.
    """
    if is_local(url):
        with local_path(url).open("rb") as file:
            file.seek(start)
            # No room is made for more than there is, whoever says how much that is.
            return file.read(max(min(stop, os.fstat(file.fileno()).st_size) - start, 0))
    return cast("bytes", _call(url, "cat_file", start=start, end=stop)) if stop > start else b""


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
            _call(url, "pipe_file", b"".join(pieces))
            return
        durable.write_file(local_path(url), pieces, shared=shared)
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
        _call(url, "cat_file", start=0, end=1) if is_web(url) else _call(url, "info")
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
        _, path = filesystem(folder)
        entries: list[str] = _call(folder, "ls", detail=False, timed=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    start = f"{path.rstrip('/')}/"
    inside = {entry[len(start) :].strip("/") for entry in entries if entry.startswith(start)}
    return sorted(inside - {""})


def sizes_below(folder: str) -> dict[str, int]:
    """Bytes of each file below a remote folder, at any depth, by the path that its filesystem has
    for it. The folder itself, which object stores may have as an empty object, counts as a file
    below it.
    """
    _, path = filesystem(folder)
    start = f"{path.rstrip('/')}/"
    entries: dict[str, dict[str, Any]]
    try:
        entries = _call(folder, "find", detail=True, timed=False)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        name: int(about.get("size") or 0)
        for name, about in entries.items()
        if name.startswith(start)
    }


def tree_bytes(url: str) -> int:
    """Sum of the sizes of all files below ``url``, in bytes."""
    if not is_local(url):
        return sum(sizes_below(url).values())
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


def delete_keys(url: str) -> None:
    """Deletes a remote file, or all files below a remote folder, one key after the other. Use
    :func:`headrace.store.lease.remove_tree`, which proves first that they may be deleted.
    """
    fs, path = filesystem(url)
    keys = [*sizes_below(url)]
    if is_file(url):
        keys.append(path)
    for key in keys:
        # A client library that took a key for a pattern or a version would delete more than this.
        if key != path and not key.startswith(f"{path}/"):
            cure = "Nothing of this listing was deleted. Check what answers at this address."
            raise CacheError(f"is listed with {key!r}", field="file", value=url, cure=cure)
    with client_errors(url):
        for at in range(0, len(keys), _MOST_DELETED):
            _delete(fs, keys[at : at + _MOST_DELETED], url)


def info(url: str) -> dict[str, Any]:
    """What a remote filesystem says of a file or folder: its ``size``, ``type`` and more. Raises
    FileNotFoundError.
    """
    return cast("dict[str, Any]", _call(url, "info"))


def is_file(url: str) -> bool:
    """Whether there is a file at ``url``."""
    if is_local(url):
        return local_path(url).is_file()
    try:
        return info(url)["type"] == "file"
    except FileNotFoundError:
        return False


def _delete(fs: Any, keys: Sequence[str], url: str) -> None:
    """Deletes objects of a filesystem by their exact names."""
    if not getattr(fs, "async_impl", False):
        for key in keys:
            fs.rm_file(key)
        return

    async def delete() -> None:
        if hasattr(fs, "_bulk_delete"):  # S3: a thousand in one request
            await fs._bulk_delete(list(keys))
            return
        answers = await asyncio.gather(*(fs._rm_file(key) for key in keys), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, FileNotFoundError):
                raise answer

    retry.with_retries(lambda: sync(fs.loop, delete), transient, url)


def open_source(path: str) -> IO[bytes]:
    """Opens a source file for reading; remote ones are read with retries (:class:`PatientFile`)."""
    return (
        open_read(path)
        if is_local(path)
        else cast("IO[bytes]", PatientFile(lambda: open_read(path), path))
    )


def _may_pass(error: Exception) -> bool:
    # What the functions above raise tells the client's error as its cause.
    cause = error.__cause__
    return transient(
        cause if isinstance(error, CacheError) and isinstance(cause, Exception) else error
    )


class SeekableFile(io.RawIOBase):
    """A file that only keeps its place: subclasses say where it ends, and read from ``_at`` on."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0

    def _find_end(self) -> int:
        """The size in bytes; called when a place is counted from the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += self._find_end()
        elif whence == io.SEEK_CUR:
            offset += self._at
        self._at = max(0, offset)
        return self._at


class PatientFile(SeekableFile):
    """A file that is opened again, at the same position, if a read fails (503, a dropped
    connection), as in the policy of :mod:`headrace.store.retry`. What is read does not depend on
    failures.
    """

    def __init__(self, open_file: Callable[[], IO[bytes]], url: str) -> None:
        super().__init__()
        self._open = open_file
        self._url = url
        self._file: IO[bytes] | None = None
        self._size: int | None = None
        self._retried(lambda _: None)  # a file that is not there is noticed when it is opened

    def _find_end(self) -> int:
        if self._size is None:
            self._size = self._retried(lambda file: file.seek(0, io.SEEK_END))
        return self._size

    def read(self, size: int = -1) -> bytes:
        at = self._at

        def read(file: IO[bytes]) -> bytes:
            if file.tell() != at:
                file.seek(at)
            return file.read(size)

        data = self._retried(read)
        self._at = at + len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read(-1)

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()

    def _retried(self, work: Callable[[IO[bytes]], T]) -> T:
        def attempt() -> T:
            try:
                return work(self._inner())
            except BaseException:
                self._drop()
                raise

        return retry.with_retries(attempt, _may_pass, self._url)

    def _inner(self) -> IO[bytes]:
        if self._file is None:
            self._file = self._open()
        return self._file

    def _drop(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            with suppress(Exception):  # it is given up because it is broken
                file.close()
