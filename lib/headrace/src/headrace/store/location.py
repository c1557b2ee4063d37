"""A location: a path of this machine, or a bucket and an opaque key, or an address of a web server.

Every reader and writer takes its spec from a :class:`Location`: TensorStore
(:meth:`Location.kvstore`), fsspec (:meth:`Location.on_fsspec`), and whoever joins, compares or
lists names. A text is parsed in one place only, here:

- ``gs://BUCKET/KEY``, ``s3://BUCKET/KEY``, ``az://CONTAINER/KEY``: the key is what was typed,
  letter by letter. ``#``, ``?``, ``%20``, ``[`` and ``{`` mean nothing in it. Azure is read-only.
- ``http://HOST/PATH?QUERY``: a web address, as in a browser. A query, such as a signature, is of
  one file: a folder has none. What grants access is nowhere shown (:attr:`Location.shown`).
- anything without a scheme, or with ``file://``: a local path, letter by letter.

Invariant: a name that a client library would change on its way to the store is refused before
anything is asked of it or written (:meth:`Location.check`, :meth:`Location.check_arrays`). Neither
library keeps every key: TensorStore sends keys to S3 as they are, so that a server sees ``a%20b``
as ``a b`` and the rest behind ``#`` or ``?`` not at all; on a local disk it takes a backslash for a
slash. So these are refused:

- everywhere: a line break, a step ``.`` or ``..``, a slash at the beginning, more than 1,024 bytes;
- as a cache: other control characters, ``//``, no key at all, more than 824 bytes; on S3 also a
  space, ``#``, ``?`` and ``%``, on Azure a backslash;
- on S3, ``?versionId=``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from headrace.errors import WEB_LOGINS, ConfigError, check_no_login, redact

MOST_KEY_BYTES = 1024
"""Of a key in S3 and in GCS."""
INNER_BYTES = 200
"""Kept free below an output for the names of its own files."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_SCHEMES = {"gcs": "gs", "s3a": "s3", "local": "file"}  # other names of one scheme
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|arn:.*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CHANGED_BY_CLIENTS = {
    "s3": re.compile(r"[\x00-\x20\x7f#?%]"),
    "gs": _CONTROL,
    "az": re.compile(r"[\x00-\x1f\x7f\\]"),
}
"""What TensorStore, or obstore, does not send as it is."""
_NO_STEPS = {"", ".", ".."}
"""Between two slashes, these mean nothing in a bucket."""
_LEGAL_IN_WEB_PATHS = "%/:@!$&'()*+,;=~"


@dataclass(frozen=True)
class Location:
    """Where a file or a folder is.

    Attributes:
        scheme: ``file``, ``gs``, ``s3``, ``az``, ``http``, ``https``, or another one of fsspec's.
        bucket: The bucket, or the host of a web server with its port; empty for local paths.
        key: The key, the path on the web server, or the local path.
        query: The query of a web address, with its ``?``; else empty.
        text: As it was typed.

    Example:
        >>> place = Location.parse("s3://bucket/run#1/a%20b")
        >>> (place.bucket, place.key, str(place / "ledger.json"))
        ('bucket', 'run#1/a%20b', 's3://bucket/run#1/a%20b/ledger.json')
        >>> Location.parse("https://host/a.jsonl?sig=0a1b").shown
        'https://host/a.jsonl?sig=***'
    """

    scheme: str
    bucket: str
    key: str
    query: str = ""
    text: str = ""

    @staticmethod
    def parse(text: str) -> Location:
        """The location that a text names. What cannot be used is told by :meth:`check`.

        Raises:
            ConfigError: it has a login, such as a password: no location has, so none can be shown.
        """
        return _parsed(str(text))

    def __str__(self) -> str:
        return self.text

    @property
    def shown(self) -> str:
        """The text as it may be shown and written: the values of a web address's query, such as a
        signature, are masked.
        """
        return redact(self.text)

    @property
    def host(self) -> str:
        """The name of a web server, without its port."""
        return urlsplit(f"//{self.bucket}").hostname or ""

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return self.scheme == "file"

    @property
    def is_web(self) -> bool:
        """Whether it is on a web server, which is read-only."""
        return self.scheme in ("http", "https")

    @property
    def is_bucket(self) -> bool:
        """Whether its key is opaque: in S3, GCS or Azure."""
        return self.scheme in ("gs", "s3", "az")

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there: on a web server or in Azure."""
        return self.is_web or self.scheme == "az"

    @property
    def writable(self) -> str:
        """What a command that writes has to name: this location or, where nothing can be written,
        its original or a copy, which probably has the same name.

        Example:
            >>> there = Location.parse("https://host/caches/web/")
            >>> there.writable + there.about_writable
            'web (where web is the original of https://host/caches/web/, or a copy)'
        """
        if not self.is_read_only:
            return self.text
        return self.key.rstrip("/").rpartition("/")[2] or "CACHE"

    @property
    def about_writable(self) -> str:
        """What stands behind such a command; empty if it names this location."""
        if not self.is_read_only:
            return ""
        return f" (where {self.writable} is the original of {self.shown}, or a copy)"

    def absolute(self) -> str:
        """The text, independent of the working folder; a local path without ``..``, which
        TensorStore refuses.
        """
        if not self.is_local:
            return self.text
        path = self.key if self.key.startswith("/") else str(self.path().absolute())
        return str(Path(path).resolve()) if ".." in path.split("/") else path

    def path(self) -> Path:
        """The local path; ``~`` is the home folder, unless there is no such user."""
        return Path(os.path.expanduser(self.key))

    def __truediv__(self, part: str) -> Location:
        """The file or folder of this name, or of these names with slashes between them, below this
        one.

        Raises:
            ConfigError: it is a web address with a query.
        """
        self.check_folder()
        return _parsed(f"{self.text.rstrip('/') if self.text else '.'}/{part.strip('/')}")

    def up(self) -> tuple[Location, str]:
        """The folder above it, and its name there."""
        folder, _, name = self.text.rstrip("/").rpartition("/")
        return _parsed(folder), name

    def folders_above(self) -> Iterator[Location]:
        """The folders above it, from the innermost on, of a local path or within a bucket."""
        if self.is_local:
            for folder in self.path().absolute().parents:
                yield _parsed(str(folder))
        if self.is_bucket:
            steps = self.key.rstrip("/").split("/")
            for count in range(len(steps) - 1, 0, -1):
                yield _parsed("/".join([f"{self.scheme}://{self.bucket}", *steps[:count]]))

    def identity(self) -> tuple[str, str, str]:
        """Equal for two spellings of one folder, as far as that can be told without looking."""
        if self.is_local:
            return self.scheme, "", os.path.abspath(self.path())
        return self.scheme, self.bucket, self.key.rstrip("/")

    def is_below(self, folder: Location) -> bool:
        """Whether it lies strictly below a folder: a whole bucket is no output, so nothing is below
        it.

        Example:
            >>> Location.parse("s3://b/run#1").is_below(Location.parse("s3://b/run"))
            False
            >>> Location.parse("s3://b/run/#1").is_below(Location.parse("s3://b/run/"))
            True
        """
        scheme, bucket, key = self.identity()
        above = folder.identity()
        return (scheme, bucket) == above[:2] and above[2] != "" and key.startswith(f"{above[2]}/")

    def check(self, field: str = "path") -> None:
        """Raises ConfigError for a name that no client takes to the store as it is."""
        if self.is_web:
            self._check_web(field)
        if self.is_bucket:
            self._check_bucket(field)
            self._check_key(field)

    def check_scheme(self, field: str = "path") -> None:
        """Raises ConfigError for a scheme under which no client reads or writes arrays."""
        if not (self.is_local or self.is_web or self.is_bucket):
            cure = "Use a local path, gs://, s3://, az:// or https://."
            raise self._refused(
                field, "has a scheme that token caches cannot be stored under", cure
            )

    def check_folder(self, field: str = "path") -> None:
        """Raises ConfigError for what cannot be a folder's address: one with a query, which is of
        one file.
        """
        if self.query:
            problem = "has a query, and is a folder"
            cure = (
                f"Leave it out, and let the server ask for a login instead: {WEB_LOGINS}. Or mount"
                " the folder, or copy it."
            )
            raise self._refused(field, problem, cure)

    def _check_web(self, field: str) -> None:
        if "#" in self.key + self.query:
            cure = f"Write %23 for #: {self.text.replace('#', '%23')}."
            raise self._refused(field, "has a #, and nothing behind it reaches a web server", cure)

    def _check_bucket(self, field: str) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            cure = f"Write {self.scheme}://BUCKET/KEY."
            raise self._refused(field, "names no bucket", cure)

    def _check_key(self, field: str) -> None:
        try:
            size = len(self.key.encode())
        except UnicodeEncodeError:
            cure = "Rename it: keys are UTF-8."
            raise self._refused(field, "has a key that is not UTF-8", cure) from None
        if size > MOST_KEY_BYTES:
            cure = f"Choose a name of at most {MOST_KEY_BYTES:,} bytes."
            raise self._refused(field, f"has a key of {size:,} bytes", cure)
        steps = self.key.split("/")
        if {".", ".."}.intersection(steps):
            cure = f"Write {self._tidied(_NO_STEPS)}, if that is what you mean."
            raise self._refused(field, "has a step . or .., which means nothing in a bucket", cure)
        if self.key.startswith("/"):
            cure = f"Write {self._tidied({''})}, if that is what you mean."
            raise self._refused(field, "has a key that begins with a slash", cure)
        if self.scheme == "s3" and "?versionId=" in self.key:
            cure = (
                f"Copy the object to another key, such as {self._plain()}: the client would read"
                " another one."
            )
            raise self._refused(field, "has ?versionId= in its key", cure)
        if "\n" in self.key or "\r" in self.key:
            cure = f"Copy the object to a key without line breaks, such as {self._plain()}."
            raise self._refused(field, "has a line break in its key", cure)

    def check_arrays(self, field: str = "path") -> None:
        """Raises ConfigError for a folder that a cache's arrays cannot be read from
        or written to.
        """
        self.check_scheme(field)
        # Before the rest: the name that is proposed here has none of its faults either.
        if self.is_bucket:
            self._check_bucket(field)
            self._check_letters(field)
        self.check_folder(field)
        self.check(field)
        if self.is_local and "\\" in self.absolute():
            plain = self.text.replace("\\", "-")
            cure = f"Choose another folder, such as {plain}."
            if plain == self.text:
                cure = "Choose a folder that is not below it."
            problem = "has a backslash in its path, which TensorStore takes for a slash"
            raise self._refused(field, problem, cure)
        if self.is_bucket and "//" in self.key:
            cure = f"Write {self._tidied({''})}, if that is what you mean."
            raise self._refused(field, "has two slashes in its key", cure)

    def _check_letters(self, field: str) -> None:
        changed_letter = _CHANGED_BY_CLIENTS[self.scheme].search(self.key)
        if changed_letter:
            cure = f"Choose another folder, such as {self._plain()}."
            problem = (
                f"has {changed_letter[0]!r} in its key, which would not reach"
                f" {_NAMES[self.scheme]} as it is"
            )
            raise self._refused(field, problem, cure)

    def check_output(self, field: str = "output") -> None:
        """Raises ConfigError for a folder that nothing may be written to, before anything is
        written.
        """
        self._check_writable(field)
        if self.is_local and "\0" in self.key:
            raise self._refused(field, "has a zero byte in its name", "Choose another name.")
        self.check_arrays(field)
        if not self.is_bucket:
            return
        if not self.key.strip("/"):
            cure = f"Name a folder in it: {self.scheme}://{self.bucket}/NAME."
            raise self._refused(field, "is a whole bucket", cure)
        size = len(self.key.encode())
        if size > MOST_KEY_BYTES - INNER_BYTES:
            cure = (
                f"Choose a name of at most {MOST_KEY_BYTES - INNER_BYTES} bytes: what is written"
                " has longer keys."
            )
            raise self._refused(field, f"has a key of {size:,} bytes", cure)

    def check_output_file(self, field: str = "file") -> None:
        """Raises ConfigError for a file that cannot be written under just this name."""
        self._check_writable(field)
        if self.is_bucket and (not self.key or self.key.endswith("/")):
            cure = f"Name a file: {self.text.rstrip('/')}/NAME."
            raise self._refused(field, "names a folder, not a file", cure)
        self.check(field)

    def _check_writable(self, field: str) -> None:
        if self.is_read_only:
            cure = "Use a local path, gs:// or s3://."
            if not self.is_web:
                cure = f"{cure[:-1]}, and copy what is written to Azure."
            raise self._refused(field, "can be read from, not written to", cure)

    def on_fsspec(self) -> str:
        """The path on a filesystem of fsspec, without what libraries parse in a URL."""
        return f"{self.bucket}/{self.key}".rstrip("/") if self.is_bucket else self.text

    def kvstore(self) -> dict[str, Any]:
        """TensorStore's key-value store for this folder, without what depends on the environment;
        with the driver ``az``, that of :mod:`headrace.store.azure`.

        Raises:
            ConfigError: TensorStore has no driver for the scheme, or would change the key.
        """
        self.check_arrays()
        if self.is_local:
            return {"driver": "file", "path": f"{self.absolute()}/"}
        folder = self.key.rstrip("/") + "/" if self.key.strip("/") else ""
        if self.scheme == "gs":
            return {"driver": "gcs", "bucket": self.bucket, "path": folder}
        if self.scheme in ("s3", "az"):
            return {"driver": self.scheme, "bucket": self.bucket, "path": folder}
        return {
            "driver": "http",
            "base_url": f"{self.scheme}://{self.bucket}",
            "path": "/" + quote(folder, safe=_LEGAL_IN_WEB_PATHS),
        }

    def _plain(self) -> str:
        """A name like this one that every client takes to the store as it is."""
        letters = _CHANGED_BY_CLIENTS[self.scheme].sub("-", self.key)
        # What is not UTF-8 becomes a question mark.
        spelled = letters.encode(errors="replace").decode()
        steps = [step for step in spelled.replace("?", "-").split("/") if step not in _NO_STEPS]
        return f"{self.scheme}://{self.bucket}/{'/'.join(steps) or 'NAME'}"

    def _tidied(self, without: set[str]) -> str:
        steps = [step for step in self.key.split("/") if step not in without]
        return f"{self.scheme}://{self.bucket}/{'/'.join(steps) or 'NAME'}"

    def _refused(self, field: str, problem: str, cure: str) -> ConfigError:
        return ConfigError(problem, field=field, value=self.text, cure=cure)


_NAMES = {"s3": "S3", "gs": "GCS", "az": "Azure"}


@lru_cache(maxsize=512)
def _parsed(text: str) -> Location:
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Location("file", "", text, text=text)
    check_no_login(text, "path")
    scheme = match[1].lower()
    scheme = _SCHEMES.get(scheme, scheme)
    rest = match[2]
    if scheme == "file":
        return Location("file", "", rest, text=text)
    bucket, _, key = rest.partition("/")
    query = ""
    if scheme in ("http", "https"):
        bucket = re.split(r"[/?#]", rest, maxsplit=1)[0]
        key, mark, after_mark = rest[len(bucket) :].removeprefix("/").partition("?")
        query = mark + after_mark
    return Location(scheme, bucket, key, query, text)
