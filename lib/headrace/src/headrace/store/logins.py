"""Logins of web servers, from the file that curl and others read them from: ``~/.netrc``, or the
one that ``NETRC`` names.

A line of it reads ``machine HOST login USER password PASSWORD``. Addresses have no login (
:func:`headrace.errors.check_no_login`): they are shown, logged and written, and this file is not.
"""

from __future__ import annotations

import base64
import netrc
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from headrace.errors import ConfigError
from headrace.store.location import Location


def file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file with the logins."""
    return Path(environment.get("NETRC") or "~/.netrc").expanduser()


def header(location: Location, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The header with the login of a web server; empty if the file names none for it.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = file(environment)
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError:
        return {}
    login = _logins(path, changed_ns).get(location.host)
    if login is None:
        return {}
    pair = base64.b64encode(":".join(login).encode()).decode()
    return {"Authorization": f"Basic {pair}"}


@lru_cache(maxsize=1)
def _logins(path: Path, _changed_ns: int) -> dict[str, tuple[str, str]]:
    """User and password of each host. Its ``default`` is for no host in particular, so not for
    ours.
    """
    try:
        hosts = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"line {error.lineno}"
        cure = "Write lines of machine HOST login USER password PASSWORD."
        raise ConfigError(
            f"cannot be read ({reason})", field="NETRC", value=str(path), cure=cure
        ) from None
    return {
        host: (user, password)
        for host, (user, _, password) in hosts.items()
        if host != "default" and user and password
    }
