"""Redirects of web servers: the answer of another host is used only if the policy allows that host.

fsspec's client follows redirects by itself, so an untrusted server could make this machine request
any reachable address, such as a cloud's metadata service, and use the answer as a source. The hook
below is called before each redirect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from fsspec.config import conf as fsspec_config

from headrace.errors import ConfigError
from headrace.store import retry

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")  # a name or an address


def is_allowed(source: str, target: str, allowed: tuple[str, ...]) -> bool:
    """Whether a server at an address may redirect to another: to itself, also from http to https,
    or to one of the hosts ``allowed`` or a subdomain of these. Another port is another server.

    Example:
        >>> is_allowed("http://data.org/a", "https://data.org/b", ())
        True
        >>> is_allowed("http://data.org/a", "http://data.org:8080/b", ())
        False
        >>> is_allowed("http://data.org/a", "https://cdn.hf.co/b", ("hf.co",))
        True
        >>> is_allowed("http://data.org/a", "https://not-hf.co/b", ("hf.co",))
        False
    """
    old = urlsplit(source)
    new = urlsplit(target)
    host = new.hostname or ""
    # Without a port, each scheme has its own: from http to https alone, both change.
    if host == old.hostname and new.port == old.port and new.scheme in (old.scheme, "https"):
        return True
    return any(
        name == "*" or host == name.lower() or host.endswith("." + name.lower()) for name in allowed
    )


def allow(hosts: Sequence[str]) -> None:
    """Also allows redirects to these hosts, from now on, in this process and in the workers that it
    starts.

    Raises:
        ConfigError: one is not the name of a host.
    """
    for host in hosts:
        if host != "*" and not _HOST.fullmatch(host):
            cure = "Give the host alone: cdn.example.org, not its URL; * is any."
            raise ConfigError(
                "must be the name of a host", field="redirect_host", value=host, cure=cure
            )
    policy = retry.policy()
    retry.use_policy(replace(policy, redirect_hosts=(*policy.redirect_hosts, *hosts)))


def client_options(headers: Mapping[str, str]) -> dict[str, Any]:
    """Options of aiohttp's client: those that the user set for fsspec, these headers, and what
    makes it ask :func:`is_allowed`. It drops a login where a redirect leaves the server.
    """
    options = fsspec_config.get("http", {}).get("client_kwargs", {})
    return {
        "timeout": client_timeout(),
        **options,
        "headers": {**options.get("headers", {}), **headers},
        "trace_configs": [*options.get("trace_configs", []), _check()],
    }


def client_timeout() -> Any:
    """The setting of aiohttp by which an answer that does not come, or not on, is given up."""
    import aiohttp  # fsspec's clients import it too

    seconds = retry.policy().timeout_s
    return aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)


@cache
def _check() -> Any:
    import aiohttp

    async def check(
        session: object, context: SimpleNamespace, event: aiohttp.TraceRequestRedirectParams
    ) -> None:
        location = event.response.headers.get("Location") or event.response.headers.get("URI") or ""
        target = event.url.join(type(event.url)(location))
        if not is_allowed(str(event.url), str(target), retry.policy().redirect_hosts):
            raise ConfigError(
                f"sends elsewhere, to the host {target.host}"
                + (f" and port {target.explicit_port}" if target.explicit_port else ""),
                field="path",
                value=str(event.url.with_query(None)),
                cure=f"If that is right, allow it: --redirect-host {target.host}, or in Python"
                f" headrace.store.use_policy(RetryPolicy(redirect_hosts=({target.host!r},))).",
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(check)
    return trace
