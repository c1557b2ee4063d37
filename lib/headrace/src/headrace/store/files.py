"""Small files by path or URL: ledgers, part records, source text. Arrays go through TensorStore (array.py) instead.

Local paths, ``gs://``, ``s3://``, ``http(s)://`` and every other protocol that fsspec knows. A write is atomic: rename
on local disk, one PUT on object stores; a reader sees the old bytes or the new ones, never a part of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import fsspec
from fsspec.core import split_protocol, url_to_fs

from headrace.errors import CacheError, ConfigError, HeadraceError

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
    return fs, path


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Turns what clients of object stores raise into a :class:`CacheError` about ``url``.

    OSError, of which FileNotFoundError is one, and headrace's own errors pass through: they are said elsewhere.
    """
    try:
        yield
    except (OSError, HeadraceError):
        raise
    except Exception as error:  # botocore, google.auth and aiohttp have no common base
        raise CacheError(
            f"cannot be reached ({type(error).__name__}: {error})",
            field="path",
            value=url,
            cure="Check the address, the network and the credentials of this machine.",
        ) from error


def open_read(url: str) -> IO[bytes]:
    """``url`` opened for reading bytes. FileNotFoundError passes through."""
    if is_local(url):
        return local_path(url).open("rb")
    fs, path = filesystem(url)
    with client_errors(url):
        return cast("IO[bytes]", fs.open(path, "rb"))


def read_bytes(url: str) -> bytes | None:
    """The content of ``url``; None if there is no such file.

    Raises:
        CacheError: the store cannot be reached.
    """
    try:
        with client_errors(url), open_read(url) as f:
            return f.read()
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
            fs, path = filesystem(url)
            with client_errors(url):
                fs.pipe_file(path, data)
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
    """Whether there is a file or folder at ``url``."""
    if is_local(url):
        return local_path(url).exists()
    fs, path = filesystem(url)
    with client_errors(url):
        return bool(fs.exists(path))


def remove_tree(url: str) -> None:
    """Deletes a folder and all in it, or a file; nothing happens if it is not there.

    Raises:
        CacheError: it cannot be deleted.
    """
    try:
        if not is_local(url):
            fs, path = filesystem(url)
            if fs.exists(path):
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
    return int(fs.du(path)) if fs.exists(path) else 0


def fsspec_open(url: str, compression: str | None) -> Any:
    """An fsspec open file (a context manager) that decompresses on the way (``"gzip"``, ``"zstd"`` or None)."""
    return fsspec.open(url, "rb", compression=compression)
