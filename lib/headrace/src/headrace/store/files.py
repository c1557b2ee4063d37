"""Small files by path or URL: ledgers, part records, source text. Arrays go through TensorStore (array.py) instead.

Local paths, ``gs://``, ``s3://``, ``http(s)://`` and every other protocol that fsspec knows. A write is atomic: rename
on local disk, one PUT on object stores; a reader sees the old bytes or the new ones, never a part of them. What goes
over the wire is asked for again as :mod:`headrace.store.retry` says, on top of what the client library does itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import fsspec
from fsspec.asyn import sync
from fsspec.core import split_protocol, url_to_fs

from headrace.errors import CacheError, ConfigError, HeadraceError
from headrace.store import retry
from headrace.store.credentials import asked_as
from headrace.store.wire import watch

_EXTRA_OF_PROTOCOL = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


def is_local(url: str) -> bool:
    """Whether ``url`` is a path of this machine (no scheme, or ``file://``)."""
    protocol, _ = split_protocol(url)
    return protocol in (None, "file", "local")


def local_path(url: str) -> Path:
    """The local path of a plain path or ``file://`` URL."""
    return Path(split_protocol(url)[1]).expanduser()


def join(root: str, *parts: str) -> str:
    """``root/part/part``, with single slashes, for paths and URLs alike.

    Example:
        >>> join("gs://bucket/cache/", "ledger.json"), join("/", "tmp", "a")
        ('gs://bucket/cache/ledger.json', '/tmp/a')
    """
    return "/".join([root.rstrip("/") if root else ".", *(p.strip("/") for p in parts)])


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of ``url`` and the path on it.

    Raises:
        ConfigError: the scheme is unknown, or its package is not installed (the extra to install is named).
    """
    try:
        # Listings are not kept: TensorStore writes into the same folders, and other machines do.
        fs, path = cast("tuple[Any, str]", url_to_fs(url, use_listings_cache=False))
    except ImportError as error:
        scheme = split_protocol(url)[0] or ""
        extra = _EXTRA_OF_PROTOCOL.get(scheme)
        cure = f"pip install 'headrace[{extra}]'" if extra else f"Install the package that fsspec names: {error}"
        raise ConfigError(f"nothing here can open {scheme}:// paths", field="path", value=url, cure=cure) from error
    except ValueError as error:
        raise ConfigError(
            "has a scheme that fsspec does not know",
            field="path",
            value=url,
            cure="Use a local path, gs://, s3:// or https://.",
        ) from error
    watch(fs)
    return fs, path


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Turns what clients of stores raise into a :class:`CacheError` about ``url``.

    FileNotFoundError and headrace's own errors pass through; so does any OSError about a local path: they are said
    elsewhere.
    """
    try:
        yield
    except (FileNotFoundError, HeadraceError):
        raise
    except PermissionError as error:
        if is_local(url):
            raise
        raise _refused(url, error) from error
    except Exception as error:  # botocore, google.auth and aiohttp have no common base
        if is_local(url) and isinstance(error, OSError):
            raise
        if _refuses(error):
            raise _refused(url, error) from error
        raise CacheError(
            f"cannot be reached ({type(error).__name__}: {error})",
            field="path",
            value=url,
            cure="Check the address, the network and the credentials of this machine.",
        ) from error


def _refused(url: str, error: Exception) -> CacheError:
    return CacheError(
        f"may not be used ({error}), asked as {asked_as(url)}",
        field="path",
        value=url,
        cure="Give that user the permission, or use another credential.",
    )


def _status(error: BaseException | None) -> int | None:
    """The HTTP status behind an error of a client library, if it tells one."""
    while error is not None:
        response = getattr(error, "response", None)  # botocore's
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        for status in (getattr(error, "status", None), meta.get("HTTPStatusCode")):
            if isinstance(status, int) and status >= 100:
                return status
        # aiohttp's errors have a status, and a code that warns when it is read; gcsfs's have a code alone.
        code = None if hasattr(error, "status") else getattr(error, "code", None)
        if isinstance(code, int) and code >= 100:
            return code
        error = error.__cause__
    return None


def _refuses(error: Exception) -> bool:
    return _status(error) in (401, 403) or str(error).startswith("Forbidden:")  # gcsfs tells no status then


_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError, HeadraceError)


def transient(error: Exception) -> bool:
    """Whether another try may help: 408, 429, 5xx, no answer in time, a broken connection, a cut answer."""
    names = {c.__name__ for c in type(error).__mro__}  # of aiohttp and botocore, which need not be installed
    status = None if "ClientPayloadError" in names else _status(error)  # of a cut answer aiohttp says 400
    if status is not None:
        return status in (408, 429) or status >= 500
    if isinstance(error, _FINAL) or _refuses(error):
        return False
    return isinstance(error, OSError) or bool(names & {"ClientError", "HTTPClientError", "FSTimeoutError"})


def _asked(url: str, method: str, *args: Any, **options: Any) -> Any:
    """One call of a filesystem that is no local disk: in time, with retries, with errors about ``url``."""
    fs, path = filesystem(url)
    call = getattr(fs, f"_{method}", None) if getattr(fs, "async_impl", False) else None

    def ask() -> Any:
        if call is None:
            return getattr(fs, method)(path, *args, **options)
        return sync(fs.loop, cast("Callable[..., Any]", call), path, *args, timeout=retry.policy().timeout_s, **options)

    with client_errors(url):
        return retry.with_retries(ask, transient)


def open_read(url: str) -> IO[bytes]:
    """``url`` opened for reading bytes. FileNotFoundError passes through.

    Raises:
        CacheError: the store cannot be reached, or refuses.
    """
    if is_local(url):
        return local_path(url).open("rb")
    fs, path = filesystem(url)
    with client_errors(url):
        try:
            return cast("IO[bytes]", fs.open(path, "rb"))
        except FileNotFoundError:
            _asked(url, "cat_file", start=0, end=1)  # fsspec says so of web servers that it cannot reach, too
            raise


def read_bytes(url: str) -> bytes | None:
    """The content of ``url``; None if there is no such file.

    Raises:
        CacheError: the store cannot be reached, or refuses.
    """
    try:
        return local_path(url).read_bytes() if is_local(url) else cast("bytes", _asked(url, "cat_file"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_atomic(url: str, data: bytes, *, writer: str = "") -> None:
    """Writes ``data`` to ``url`` so that no reader, and no crash, ever leaves half of it.

    Args:
        url: The file.
        data: Its bytes.
        writer: Name of this writer among those that may write the file at the same time; with one at a time, none.

    Raises:
        CacheError: the place cannot be written (permissions, disk full, ...).
    """
    try:
        if not is_local(url):
            _asked(url, "pipe_file", data)
            return
        path = local_path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        # One fixed name: what a killed writer left is overwritten by the next one, so nothing stray stays behind.
        temporary = path.with_name(f"{path.name}{writer}.tmp")
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise CacheError(
            f"cannot be written ({error.strerror or error})",
            field="file",
            value=url,
            cure="Check permissions and free space, then run the same command again: finished work is kept.",
        ) from error


def exists(url: str) -> bool:
    """Whether there is a file or folder at ``url``.

    Raises:
        CacheError: the store cannot be reached, or refuses.
    """
    if is_local(url):
        return local_path(url).exists()
    try:
        if split_protocol(url)[0] in ("http", "https"):  # fsspec's own answer hides why not
            _asked(url, "cat_file", start=0, end=1)
        else:
            _asked(url, "info")
    except FileNotFoundError:
        return False
    return True


def remove_tree(url: str) -> None:
    """Deletes a folder and all in it, or a file; nothing happens if it is not there.

    Raises:
        CacheError: it cannot be deleted.
    """
    try:
        if not is_local(url):
            if exists(url):
                fs, path = filesystem(url)
                with client_errors(url):
                    fs.rm(path, recursive=True)
            return
        path = local_path(url)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(
            f"cannot be deleted ({error.strerror or error})", field="file", value=url, cure="Check its permissions."
        ) from error


def tree_bytes(url: str) -> int:
    """Sum of the sizes of all files below ``url``, in bytes."""
    fs, path = filesystem(url)
    if not exists(url):
        return 0
    with client_errors(url):
        return int(fs.du(path))


def fsspec_open(url: str, compression: str | None) -> Any:
    """An fsspec open file (a context manager) that decompresses on the way (``"gzip"``, ``"zstd"`` or None)."""
    return fsspec.open(url, "rb", compression=compression)
