"""One host reads a cache's ledger, list of snapshots and filter results, and shares them with all
others.

The first process that opens a cache in a store over HTTP claims it in the key-value store of JAX's
coordination service, reads the ledger, and leaves there what it read; the others take that. So
opening a cache costs a fixed number of requests per job, whatever the number of hosts and parts. No
process depends on another: one that finds a claim, but no data within the time in which a store
must have answered, reads the ledger itself. So do all if the process with the claim failed. Caches
on local disks, Levanter's caches and caches without ``ledger.bin`` are read by each host.

A host verifies what it takes against the digests in the file, just as it verifies what it reads
from a store. Price: process 0, which holds the key-value store, sends each host everything that
opening reads, compressed: about 10 bytes a part.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headrace.data.saved_filters import ReadOnce
from headrace.store import files, retry
from headrace.store.files import ReadForAll

T = TypeVar("T")
_FOLDER = "headrace/ledgers"
_PIECE_BYTES = 1 << 20
_WORK_S = 3600.0  # time limit for one process to work out a filter
_LOG = logging.getLogger(__name__)


def jax_service() -> Any | None:
    """What JAX knows of its coordination service in this process. It has no public name, so this is
    the one place that imports it; None: the process does not use JAX.
    """
    if "jax" not in sys.modules:
        return None
    from jax._src.distributed import global_state  # pyright: ignore[reportMissingTypeStubs]

    return global_state


def coordination_client() -> Any | None:
    """JAX's client of its coordination service; None: the processes were not connected by it."""
    return getattr(jax_service(), "client", None)


def job_reader() -> ReadForAll:
    """What reads ledgers and lists of snapshots for a run: one for all of the processes that
    ``jax.distributed.initialize`` connected, if any.

    Example:
        >>> job_reader() is files.read_here
        True
    """
    client = coordination_client()
    return files.read_here if client is None else SharedLedgers(client)


def filter_reader(filter_file: str) -> ReadOnce | None:
    """The function that works out, or reads, which documents a filter leaves out of a run's caches.
    It is shared in the same way, and the others wait while one process works; None: each process
    does it.
    """
    client = coordination_client()
    return None if client is None else partial(SharedLedgers(client).filter, filter_file)


class SharedLedgers:
    """Reads each ledger once per job.

    Args:
        client: JAX's client of its coordination service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(
        self,
        url: str,
        parse: Callable[[bytes], T],
        read: Callable[[], tuple[T | None, bytes | None]] | None = None,
    ) -> T | None:
        """What one process reads for all: a :class:`~headrace.store.files.ReadForAll`."""

        def read_file() -> tuple[T | None, bytes | None]:
            return files.read_as(url, lambda raw: (parse(raw), raw)) or (None, b"")

        return self._read_once(url, parse, read or read_file)

    def filter(self, filter_file: str, root: str, read: Callable[[str], bytes]) -> bytes:
        """The result of ``read`` for a cache's folder and a filter, the same for all processes; it
        may be empty.
        """

        def read_filter() -> tuple[bytes, bytes | None]:
            raw = read(root)
            return raw, raw or None

        what = f"/filter/{hashlib.sha256(filter_file.encode()).hexdigest()[:32]}"
        return self._read_once(root, bytes, read_filter, what, _WORK_S) or b""

    def _read_once(
        self,
        url: str,
        parse: Callable[[bytes], T],
        read: Callable[[], tuple[T | None, bytes | None]],
        what: str = "",
        wait_s: float | None = None,
    ) -> T | None:
        if files.is_local(url):
            return read()[0]
        key = f"{_FOLDER}/{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:32]}{what}"
        try:
            self._client.key_value_set(f"{key}/claimed", "")
        except Exception:  # noqa: BLE001  # another process has claimed it; other causes show below
            raw = self._take(url, key, wait_s)
            if raw is None:
                return read()[0]
            return parse(raw) if raw else None  # nothing: there is no such file
        packed = b""
        try:
            value, raw = read()
            packed = b"" if raw is None else zlib.compress(raw, 1)
            return value
        finally:
            self._leave(
                key, [packed[at : at + _PIECE_BYTES] for at in range(0, len(packed), _PIECE_BYTES)]
            )

    def _leave(self, key: str, pieces: list[bytes]) -> None:
        """Leaves data for the others; without pieces, they read it themselves."""
        try:
            for number, piece in enumerate(pieces):
                self._client.key_value_set_bytes(f"{key}/{number}", piece)
            self._client.key_value_set(f"{key}/pieces", str(len(pieces)))
        except Exception as error:  # noqa: BLE001  # JAX's errors have no common base
            _LOG.warning("ledgers are not shared: %s", error)

    def _take(self, root: str, key: str, wait_s: float | None) -> bytes | None:
        """What another process read; None if it left nothing."""
        timeout_ms = round(1000 * (wait_s or retry.policy().deadline_s))
        try:
            count = int(self._client.blocking_key_value_get(f"{key}/pieces", timeout_ms))
            numbers = range(count)
            pieces = [
                self._client.blocking_key_value_get_bytes(f"{key}/{number}", timeout_ms)
                for number in numbers
            ]
            return zlib.decompress(b"".join(pieces)) if pieces else None
        except Exception as error:  # noqa: BLE001  # JAX's errors have no common base
            _LOG.warning(
                "%s: its ledger or filter is read here, as the process that opened it first has"
                " left none: %s",
                root,
                error,
            )
            return None
