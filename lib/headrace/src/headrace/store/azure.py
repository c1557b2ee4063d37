"""Blobs of Azure, for reading: ``az://CONTAINER/KEY``, through obstore (``headrace[azure]``).

TensorStore has no driver for Azure, so obstore's client takes its place where
:mod:`headrace.store.requests` asks for bytes (:class:`Blobs`), and where
:mod:`headrace.store.remote` reads small files (:func:`filesystem`). It sends each request once:
what is asked again, when and for how long is decided by the callers, as for the other stores. Its
requests are tasks of the loop of :mod:`headrace.store.requests`, and end with it. It would follow
redirects, which Azure does not send; chunks are checked all the same.

The account and its credential come from the environment:

================================================  ==================================================
``AZURE_STORAGE_ACCOUNT_NAME``                    the account
``AZURE_STORAGE_ACCOUNT_KEY``                     its key; or
``AZURE_STORAGE_SAS_TOKEN``                       a signature; or
``AZURE_CLIENT_ID``, ``AZURE_CLIENT_SECRET``,     a service's login; or, with none of these, the
``AZURE_TENANT_ID``                               identity of the machine
``AZURE_STORAGE_USE_EMULATOR``,                   Azurite, and its address
``AZURITE_BLOB_STORAGE_URL``
================================================  ==================================================
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple

from headrace.errors import ConfigError, install_command
from headrace.store import retry

_STATUS = re.compile(r"status code: (\d{3})")
_CAUSE = re.compile(r"- (HTTP error: [\w ]+)")
_TRUE = ("1", "true")
_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


class Answer(NamedTuple):
    """As TensorStore's: ``state`` is ``value`` or ``missing``."""

    state: str
    value: bytes


class Blobs:
    """A folder of a container; answers and errors are as those of TensorStore's key-value stores.

    Args:
        container: The container.
        folder: The folder in it, with a slash at its end; empty: all of it.

    Raises:
        ConfigError: obstore is not installed, or the account is not known.
    """

    def __init__(self, container: str, folder: str) -> None:
        self._obstore = _module("obstore", container)
        try:
            stores = _module("obstore.store", container)
            self._store = stores.from_url(f"az://{container}", **_options())
        except self._obstore.exceptions.BaseError as error:
            raise _no_account(container) from error
        self._folder = folder

    def read(self, key: str, byte_range: slice | None) -> asyncio.Task[Answer]:
        """Starts reading a file, or bytes of it, on the running loop; ``slice(-n, None)``, its last
        n, is two requests.
        """
        answer = asyncio.ensure_future(self._read(self._folder + key, byte_range))
        answer.add_done_callback(retrieve_error)
        return answer

    async def _read(self, key: str, span: slice | None) -> Answer:
        try:
            if span is None:
                answer = await self._sent(self._whole(key))
                return Answer("value", answer.to_bytes())
            start = span.start
            stop = span.stop
            if start < 0:
                about = await self._sent(self._obstore.head_async(self._store, key))
                stop = int(about["size"])
                start += stop
            request = self._obstore.get_range_async(self._store, key, start=start, end=stop)
            answer = await self._sent(request)
            return Answer("value", answer.to_bytes())
        except FileNotFoundError:
            return Answer("missing", b"")

    async def _whole(self, key: str) -> Any:
        answer = await self._obstore.get_async(self._store, key)
        return await answer.bytes_async()

    async def _sent(self, request: Awaitable[Any]) -> Any:
        """The answer to one request. Raises ValueError with one of TensorStore's codes."""
        try:
            answer = await request
        except FileNotFoundError:
            retry.count(retry.Wire(1))
            raise
        except self._obstore.exceptions.BaseError as error:
            status = status_of(error)
            retry.count(retry.Wire(1, status is None or retry.fails(status)))
            raise ValueError(_reason(error, status)) from None  # its text has the whole address
        retry.count(retry.Wire(1))
        return answer


def filesystem(container: str) -> Any:
    """A filesystem of fsspec, by obstore. Raises ConfigError as :class:`Blobs`."""
    Blobs(container, "")  # fsspec's has its store, and that store's errors, at its first request
    return _module("obstore.fsspec", container).FsspecStore("az", **_options())


def asked_as(environment: Mapping[str, str]) -> str:
    """The credential of a request, in words.

    Example:
        >>> asked_as({"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_SAS_TOKEN": "sig=..."})
        "the signature in AZURE_STORAGE_SAS_TOKEN of the account 'me'"
    """
    account = f"of the account {environment.get('AZURE_STORAGE_ACCOUNT_NAME')!r}"
    if environment.get("AZURE_STORAGE_ACCOUNT_KEY"):
        return f"the key in AZURE_STORAGE_ACCOUNT_KEY {account}"
    if environment.get("AZURE_STORAGE_SAS_TOKEN"):
        return f"the signature in AZURE_STORAGE_SAS_TOKEN {account}"
    if environment.get("AZURE_CLIENT_ID"):
        return "the service in AZURE_CLIENT_ID"
    return "the identity of this machine, or nobody if it has none"


def address(environment: Mapping[str, str]) -> str | None:
    """The server of the account; None if it is not named.

    Example:
        >>> address({"AZURE_STORAGE_ACCOUNT_NAME": "me"})
        'https://me.blob.core.windows.net'
    """
    if environment.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE:
        return environment.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000")
    account = environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    return f"https://{account}.blob.core.windows.net" if account else None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of obstore's tells.

    Example:
        >>> status_of(OSError("Server returned non-2xx status code: 503 Service Unavailable"))
        503
    """
    status = _STATUS.search(str(error))
    return None if status is None else int(status[1])


def _reason(error: Exception, status: int | None) -> str:
    if status is not None:
        code = "UNAVAILABLE" if retry.fails(status) else _CODES.get(status, "FAILED_PRECONDITION")
        return f"{code}: [HTTP code {status}]"
    if "InvalidRange" in str(error):
        return "OUT_OF_RANGE: it is shorter than what was asked for"
    cause = _CAUSE.search(str(error))
    return f"UNAVAILABLE: {cause[1] if cause else type(error).__name__}"


def _options() -> dict[str, Any]:
    timeout = f"{retry.policy().timeout_s:g}s"
    is_emulator = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE
    return {
        "client_options": {
            "timeout": timeout,
            "connect_timeout": timeout,
            "allow_http": is_emulator,
        },
        "retry_config": {"max_retries": 0},
    }


def retrieve_error(answer: asyncio.Task[Any]) -> None:
    """Its error is known, even if those who waited for it are gone."""
    if not answer.cancelled():
        answer.exception()


def _module(name: str, container: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "nothing here can open az:// paths",
            field="path",
            value=f"az://{container}",
            cure=install_command("headrace[azure]"),
        ) from error


def _no_account(container: str) -> ConfigError:
    return ConfigError(
        "is in no account that is known here",
        field="path",
        value=f"az://{container}",
        cure="Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another credential.",
    )
