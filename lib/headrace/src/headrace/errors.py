"""All exceptions that headrace raises deliberately, as one small tree.

::

    HeadraceError
    ├── ConfigError              a value that a user wrote: names the field, the value and the cure
    │   └── PlanMismatchError    a resumed run whose resolved config is not the one it started with
    ├── IndexOutOfRangeError     an index outside a dataset or an order (also an IndexError)
    ├── SourceError              input text that cannot be read: names the file and the line
    ├── CacheError               a token cache that cannot be used
    │   ├── CacheMissingError    nothing is there
    │   ├── CacheUnfinishedError a build was interrupted: says how to finish it
    │   └── CacheCorruptError    stored bytes differ from what was written: names array and chunk
    ├── ReadError                a read that failed: names array, chunk and step
    └── HostError                another host of the job failed, left or died: names it

The command line prints ``str(error)`` and exits with status 2; in Python, catch the class that you
need.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import operator
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, Self

__all__ = [
    "CacheCorruptError",
    "CacheError",
    "CacheMissingError",
    "CacheUnfinishedError",
    "ConfigError",
    "HeadraceError",
    "HostError",
    "IndexOutOfRangeError",
    "PlanMismatchError",
    "ReadError",
    "SourceError",
]

_NOTHING = object()
# User and password before a host, also a password with a raw "@" or "/" in it. A colon before a
# port, in an address of IPv6 or in a name of Amazon's (arn:) begins no password, and in hf://, "@"
# comes before a revision.
_LOGIN = re.compile(
    r"(?<!hf://)(?<=://)(?!arn:)"
    r"(?:[^/?#\s@:\['\",]*:(?!\d*(?:[/?#\s'\",;)\]]|$))\S*|[^/?#\s'\",]*)@"
)
_QUERY = re.compile(  # without what ends a clause
    r"(\w+)(://[^\s?'\"]*\?)([^\s#'\"]+?)(?=[;,:.)\]}]*(?:[\s'\"#]|$))"
)
_SHOWN_IN_QUERIES = {
    "download",
    "page",
    "part",
    "raw",
    "ref",
    "revision",
    "version",
    "x-amz-algorithm",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
}


def install_command(package: str) -> str:
    """The command that installs a package into this environment. Environments made by uv have no
    pip.

    Example:
        >>> install_command("headrace[gcs]").endswith("pip install 'headrace[gcs]'")
        True
    """
    pip = "pip"
    if importlib.util.find_spec("pip") is None:
        uv = os.environ.get("UV")  # set by ``uv run``
        pip = (
            "uv pip"
            if uv is None or shutil.which("uv")
            else f"{shlex.quote(os.path.relpath(uv))} pip"
        )
    return f"{pip} install {shlex.quote(package)}"


def command_line(name: str, *values: object, **options: object) -> str:
    """A command of headrace as it is typed into a shell, where it means what it says whatever is
    in the names of its files.

    An option that is True has no value, and one that is None or False is left out; a list gives
    its option several times, and a tuple is an option of several words.

    Example:
        >>> command_line("cache verify", "my cache", repair=True)
        "headrace cache verify 'my cache' --repair"
        >>> command_line("build", "-a.txt", output="c", extension=[".c", ".h"])
        'headrace build ./-a.txt --output c --extension .c --extension .h'
    """
    words = ["headrace", *name.split()]
    # A value with a dash would be read as an option; behind an option it is read as its value.
    words += [f"./{value}" if value.startswith("-") else value for value in map(str, values)]
    for option, setting in options.items():
        for one in setting if isinstance(setting, list) else [setting]:
            if one is None or one is False:
                continue
            typed = one if isinstance(one, tuple) else () if one is True else (one,)
            words += [f"--{option.replace('_', '-')}", *map(str, typed)]
    return shlex.join(words)


def of_another_version(number: object, own: int) -> str:
    """The problem of a file whose format number is not the one that this version of headrace reads
    and writes.

    Example:
        >>> of_another_version(7, 2)
        'was written by another version of headrace: its format is 7, and this one reads 2'
    """
    return (
        f"was written by another version of headrace: its format is {number!r}, and this one reads"
        f" {own}"
    )


def redact(text: str) -> str:
    """The text as it may be shown or written: without the logins of its URLs, and without the
    values of their queries, but for those of a few names that grant nothing.

    Example:
        >>> redact("s3://id:secret@bucket/a and https://host/a?X-Amz-Signature=0a1b&part=3")
        's3://***@bucket/a and https://host/a?X-Amz-Signature=***&part=3'
    """
    if "://" not in text:
        return text
    return _QUERY.sub(_masked, _LOGIN.sub("***@", text))


def _masked(found: re.Match[str]) -> str:
    scheme, start, query = found.groups()
    if scheme == "hf":  # where it chooses a part of a dataset
        return found[0]
    pieces: list[str] = []
    for piece in re.split(r"(&(?:amp;)?)", query):
        name, equals, value = piece.partition("=")
        if equals and name.lower() not in _SHOWN_IN_QUERIES:
            value = "***"
        elif not equals and scheme.startswith("http") and not piece.startswith("&"):
            name = "***"  # in other schemes, "?" may be a letter of a name
        pieces.append(name + equals + value)
    return f"{scheme}{start}{''.join(pieces)}"


def printable(text: str) -> str:
    r"""Text with control characters replaced: a document, or the name of a file, must not move the
    cursor of a terminal.

    Example:
        >>> printable("a\tb\x1b[2J\x9b")
        'a\tb␛[2J�'
    """
    return _ACTING.sub(lambda found: _shown_control(found[0]), text)


def _shown_control(character: str) -> str:
    return chr(0x2400 + ord(character)) if character < " " else "\ufffd"


# Controls but line ends and tabs, and what turns the direction of text
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def check_no_login(text: str, field: str) -> None:
    """Raises ConfigError for a text with a URL that has a login, such as a password, before its
    host: it would be seen by whoever sees the text.

    Example:
        >>> check_no_login("https://me:secret@host/text", "cache")
        Traceback (most recent call last):
        headrace.errors.ConfigError: cache = 'https://***@host/text': has a login in its address. \
Write it without: logins of web servers are read from ~/.netrc or the file that NETRC names, in \
lines of machine HOST login USER password PASSWORD.
    """
    if "://" not in text or _LOGIN.search(text) is None:
        return
    scheme = re.split(r"\W", text[: text.index("://")])[-1]
    raise ConfigError(
        "has a login in its address",
        field=field,
        value=text,
        cure=f"Write it without: {_LOGINS.get(scheme, _LOGINS['http'])}.",
    )


WEB_LOGINS = (
    "logins of web servers are read from ~/.netrc or the file that NETRC names, in lines of machine"
    " HOST login USER password PASSWORD"
)
_LOGINS = {
    "http": WEB_LOGINS,
    "s3": "keys are read from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the profile that"
    " AWS_PROFILE names",
    "gs": "the key file is the one that GOOGLE_APPLICATION_CREDENTIALS names",
    "az": "the account and its key are read from AZURE_STORAGE_ACCOUNT_NAME and"
    " AZURE_STORAGE_ACCOUNT_KEY, a signature from AZURE_STORAGE_SAS_TOKEN",
}


class HeadraceError(Exception):
    """Base class of all errors of headrace. The message never contains credentials of a URL
    (:func:`redact`), nor what moves a terminal's cursor (:func:`printable`).

    Args:
        problem: What is wrong, as one sentence without the field's name.
        field: The config field, argument or file that it is about.
        value: The value found there.
        cure: What to do or to type next.

    Example:
        >>> print(HeadraceError("must be positive", field="seq_len", value=-1, cure="Try 2048."))
        seq_len = -1: must be positive. Try 2048.
    """

    def __init__(
        self,
        problem: str,
        *,
        field: str | None = None,
        value: object = _NOTHING,
        cure: str | None = None,
    ) -> None:
        self.problem = problem
        self.field = field
        self.value = None if value is _NOTHING else value
        self._has_value = value is not _NOTHING
        self.cure = cure
        subject = field or ""
        if value is not _NOTHING:
            subject = f"{subject} = {value!r}" if subject else repr(value)
        message = f"{subject}: {problem}" if subject else problem
        if cure:
            message = f"{message.rstrip('.')}. {cure}"
        super().__init__(printable(redact(message)))

    def but(self, **changes: Any) -> Self:
        """The same error with another field, value or cure.

        Example:
            >>> print(ConfigError("must be positive", field="rate", value=-1).but(field="--rate"))
            --rate = -1: must be positive
        """
        about: dict[str, Any] = {"field": self.field, "cure": self.cure}
        if self._has_value:
            about["value"] = self.value
        return type(self)(self.problem, **about | changes)


class ConfigError(HeadraceError):
    """A value in a config, a flag or an argument is not usable."""


@contextlib.contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Within it, the fields of config errors begin with a place, as a user writes it.

    Example:
        >>> try:
        ...     with errors_at("components.web."):
        ...         raise ConfigError("is no share", field="missing", value=2)
        ... except ConfigError as error:
        ...     error.field
        'components.web.missing'
    """
    try:
        yield
    except ConfigError as error:
        raise error.but(field=f"{place}{error.field}") from error


class PlanMismatchError(ConfigError):
    """A run is resumed with a config that resolves to another plan than the one it started with."""


class IndexOutOfRangeError(HeadraceError, IndexError):
    """An index is outside a dataset or order."""


class SourceError(HeadraceError):
    """Input text cannot be read; ``field`` is the file (and line).

    Args:
        problem: As for HeadraceError, like the keywords.
        faults: The errors about the single files, if the error is about several.
        about: Field, value and cure.
    """

    def __init__(self, problem: str, *, faults: Sequence[HeadraceError] = (), **about: Any) -> None:
        super().__init__(problem, **about)
        self.faults = tuple(faults)


class CacheError(HeadraceError):
    """A token cache cannot be used."""


class CacheMissingError(CacheError):
    """No token cache at that path."""


class CacheUnfinishedError(CacheError):
    """The build of a token cache was not finished."""


class CacheCorruptError(CacheError):
    """Stored bytes differ from what was written."""


class ReadError(HeadraceError):
    """A read failed; array, chunk and step are named."""


class HostError(HeadraceError):
    """Another host of the job cannot continue, so this one cannot either.

    Attributes:
        process: Index of the process at fault.
    """

    process: int = -1


def format_count(count: int, noun: str) -> str:
    """A number and what it counts.

    Example:
        >>> format_count(1, "host"), format_count(2000, "row")
        ('1 host', '2,000 rows')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_some(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> format_some(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known names, for the ``cure`` of an error.

    Example:
        >>> did_you_mean("sufle", ["shuffle", "seq_len"])
        "Did you mean 'shuffle'?"
        >>> did_you_mean("x", ["shuffle", "seq_len"])
        "Known names: 'seq_len', 'shuffle'."
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not names:
        return "There are none."
    listed = ", ".join(repr(n) for n in names[:12])
    return f"Known names: {listed}" + ("." if len(names) <= 12 else ", ...")


def check_at_least(
    field: str, value: float | None, least: int = 1, cure: str | None = None
) -> None:
    """Raises ConfigError if a number is below ``least``; None passes.

    Example:
        >>> check_at_least("hosts", 4)
        >>> check_at_least("seq_len", 1, 2, "E.g. 2048 tokens.")
        Traceback (most recent call last):
        headrace.errors.ConfigError: seq_len = 1: must be at least 2. E.g. 2048 tokens.
    """
    if value is not None and value < least:
        raise ConfigError(f"must be at least {least}", field=field, value=value, cure=cure)


def check_not_negative(field: str, value: float | None) -> None:
    """Raises ConfigError unless a number is 0 or more; None passes."""
    if value is not None and not value >= 0:
        raise ConfigError("must not be negative", field=field, value=value)


def check_path(field: str, value: object, cure: str) -> None:
    """Raises ConfigError unless a value is a path: a text that is not empty, or a path of Python's.

    Example:
        >>> check_path("output", None, "Give a folder.")
        Traceback (most recent call last):
        headrace.errors.ConfigError: output = None: is not a path. Give a folder.
    """
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ConfigError("is not a path", field=field, value=value, cure=cure)


def check_whole(field: str, value: object) -> None:
    """Raises ConfigError unless a value is an integer (Python's or numpy's); None passes."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise ConfigError("must be a whole number", field=field, value=value, cure="Give an int.")


def as_whole(field: str, value: Any) -> int:
    """A value of any integer type, for example from a checkpoint, as an int; ConfigError if it is
    not an integer.

    Example:
        >>> as_whole("step", "3")
        Traceback (most recent call last):
        headrace.errors.ConfigError: step = '3': must be a whole number. Give an int.
    """
    with contextlib.suppress(TypeError):
        if not isinstance(value, bool):
            return operator.index(value)
    raise ConfigError("must be a whole number", field=field, value=value, cure="Give an int.")


def check_choice(
    field: str, value: object, choices: Collection[str], problem: str = "is not one of those"
) -> None:
    """Raises ConfigError unless a value is one of the choices; names the nearest.

    Example:
        >>> check_choice("engine", "prcesses", ["thread", "processes"], "is no engine")
        Traceback (most recent call last):
        headrace.errors.ConfigError: engine = 'prcesses': is no engine. Did you mean 'processes'?
    """
    if value not in choices:
        raise ConfigError(problem, field=field, value=value, cure=did_you_mean(str(value), choices))
