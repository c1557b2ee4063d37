"""The clients of what is far away: fsspec's for small files, TensorStore's for arrays.

Callers go through :mod:`headrace.store.files`, which does what is on this machine itself. Requests
of small files are retried as in :mod:`headrace.store.retry`; where no status came, in addition to
the client library's own retries (:func:`call`).

Both clients must reach the same server as the same user. These variables do that; Google's and
Amazon's own servers need none.

======================================  ============================================================
``GOOGLE_APPLICATION_CREDENTIALS``      key file for ``gs://``; otherwise what ``gcloud auth
                                        application-default`` left
``STORAGE_EMULATOR_HOST``               another GCS server (fake-gcs-server, ...), read before the
                                        first use of GCS in a process; nobody is logged in there
``AWS_ACCESS_KEY_ID``,                  keys for ``s3://``; otherwise the profile or the role of the
                                        machine
``AWS_SECRET_ACCESS_KEY``
``AWS_ENDPOINT_URL_S3``,                another S3 server (MinIO, Ceph, R2, ...), read whenever an
                                        array is opened
``AWS_ENDPOINT_URL``
``AWS_REGION``, ``AWS_DEFAULT_REGION``  its region, if it cares; ``us-east-1`` if not set
``AWS_PROFILE``, ``AWS_CONFIG_FILE``    a profile's ``endpoint_url`` and ``region``, where the
                                        variables above are not set; a server must know its buckets
                                        by path (``HOST/BUCKET``)
======================================  ============================================================
"""

from __future__ import annotations

import asyncio
import getpass
import importlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.request import getproxies

from fsspec import filesystem as fsspec_client
from fsspec import get_filesystem_class
from fsspec.asyn import sync
from fsspec.config import conf as fsspec_config
from fsspec.core import url_to_fs
from fsspec.exceptions import FSTimeoutError

from headrace.errors import CacheError, ConfigError, HeadraceError, install_command
from headrace.store import azure, logins, reach, redirects, retry
from headrace.store.failures import reason
from headrace.store.location import Location

T = TypeVar("T")
_MOST_DELETED = 500  # objects in one request
_EXTRA_OF_SCHEME = {"gs": "gcs", "s3": "s3"}
_VERSION_KEYS = (
    "etag",
    "ETag",
    "md5Hash",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)


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
        if Location.parse(url).is_local and isinstance(error, OSError):
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


def call(url: str, method: str, *args: Any, timed: bool = True, **options: Any) -> Any:
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


def info(url: str) -> dict[str, Any]:
    """What a remote filesystem says of a file or folder: its ``size``, ``type`` and more. Raises
    FileNotFoundError.
    """
    return cast("dict[str, Any]", call(url, "info"))


def is_file(url: str) -> bool:
    """Whether there is a remote file at ``url``."""
    try:
        return info(url)["type"] == "file"
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Entry:
    """An existing file."""

    path: str
    size: int | None
    version: str


def entry_of(url: str, about: Mapping[str, Any]) -> Entry:
    """A file, from what its filesystem says of it."""
    size = about.get("size")
    version = next(
        (f"{key.lower()}:{_plain(about[key])}" for key in _VERSION_KEYS if about.get(key)), ""
    )
    return Entry(url, None if size is None else int(size), version)


def _plain(value: Any) -> Any:
    # Some file systems tell a time as a date when asked for a file and as a number when asked for a
    # folder.
    return value.timestamp() if isinstance(value, datetime) else value


def current_entry(url: str) -> Entry:
    """A remote file as it is now. Raises FileNotFoundError."""
    fs, path = filesystem(url)
    fs.invalidate_cache()
    return entry_of(url, retry.with_retries(lambda: fs.info(path), transient, url))


def sizes_below(folder: str) -> dict[str, int]:
    """Bytes of each file below a remote folder, at any depth, by the path that its filesystem has
    for it. The folder itself, which object stores may have as an empty object, counts as a file
    below it.
    """
    _, path = filesystem(folder)
    start = f"{path.rstrip('/')}/"
    entries: dict[str, dict[str, Any]]
    try:
        entries = call(folder, "find", detail=True, timed=False)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        name: int(about.get("size") or 0)
        for name, about in entries.items()
        if name.startswith(start)
    }


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


def _may_pass(error: Exception) -> bool:
    # What the functions above raise tells the client's error as its cause.
    cause = error.__cause__
    return transient(
        cause if isinstance(error, CacheError) and isinstance(cause, Exception) else error
    )


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


def with_server(spec: dict[str, Any], location: Location) -> dict[str, Any]:
    """TensorStore's key-value store of a remote location, with the server and the login that the
    variables in the module's docstring name.

    Raises:
        ConfigError: TensorStore cannot address buckets as the user's profile says.
    """
    # Read once, at the first request of the process: a connection without data for this long is
    # broken.
    os.environ.setdefault(
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(max(round(retry.policy().timeout_s), 1))
    )
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    if spec["driver"] == "gcs":
        _follow_gcs_emulator()
    if spec["driver"] == "http":
        headers = logins.header(location)
        if headers:
            spec["headers"] = [f"{name}: {value}" for name, value in headers.items()]
    if spec["driver"] == "s3":
        spec |= _s3_server(spec["bucket"], _s3_profile(*map(os.environ.get, _PROFILE_VARIABLES)))
        if os.environ.get("AWS_ACCESS_KEY_ID"):  # do not ask profiles and metadata servers first
            spec["aws_credentials"] = {"type": "environment"}
    return spec


_PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE")


@lru_cache(maxsize=16)
def _s3_profile(*_environment: str | None) -> dict[str, Any]:
    """The profile of the user's AWS config, which fsspec's client follows too; empty if there is
    none.
    """
    try:
        session: Any = importlib.import_module("botocore.session").Session()
        errors: Any = importlib.import_module("botocore.exceptions")
    except ImportError:
        return {}
    try:
        return dict(session.get_scoped_config())
    except errors.BotoCoreError:  # no such profile, as fsspec's client will tell
        return {}


def _s3_server(bucket: str, profile: Mapping[str, Any]) -> dict[str, Any]:
    """Where TensorStore finds a bucket on a server other than Amazon's: always below its name.

    Raises:
        ConfigError: the profile wants the bucket in the host name, as fsspec's client does then.
            The arrays and the ledger of a cache would be at different keys, because TensorStore
            adds the bucket to the path anyway.
    """
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = named or profile.get("endpoint_url")
    if not endpoint:
        return {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    server_variables = {
        "endpoint": endpoint.rstrip("/"),
        "aws_region": region or profile.get("region") or "us-east-1",
    }
    settings = profile.get("s3")
    if isinstance(settings, dict) and settings.get("addressing_style") == "virtual":
        raise ConfigError(
            f"cannot be used for caches on {server_variables['endpoint']}: TensorStore asks other"
            f" servers than Amazon's for {server_variables['endpoint']}/{bucket}",
            field="s3.addressing_style",
            value="virtual",
            cure="Write addressing_style = path in the profile. If the server refuses that, keep"
            " caches on a local disk, or in another store; sources may stay there.",
        )
    return server_variables


def _follow_gcs_emulator() -> None:
    """Sets TensorStore's own variables from ``STORAGE_EMULATOR_HOST``; it reads them once, at its
    first use of GCS.
    """
    host = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if host not in ("", "default"):
        url = host if host.startswith(("http://", "https://")) else f"http://{host}"
        os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", url.rstrip("/"))
        os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulator")


def store_error(error: Exception, url: str, shards: str = "") -> OSError:
    """The problem, with the shard file and the credential if they matter and are not named yet."""
    message = reason(error)
    if shards and "shard file" not in message:
        message = f"{message}, {shards}"
    if "PERMISSION_DENIED" in message or "UNAUTHENTICATED" in message:
        message = f"{message}, asked as {asked_as(url)}"
    failure = OSError(message)
    failure.__cause__ = error
    return failure
