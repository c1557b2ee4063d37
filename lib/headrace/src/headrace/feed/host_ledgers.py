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
from headrace.feed.host_board import coordination_client
from headrace.store import files, retry
from headrace.store.cache import ReadLedger
from headrace.store.joined import ReadGroup
from headrace.store.ledger import Ledger, ledger_of_table, open_ledger
from headrace.store.ledger_table import TABLE_NAME, ColumnTable, parse_table
from headrace.store.snapshots import read_group, read_history

T = TypeVar("T")
_FOLDER = "headrace/ledgers"
_PIECE_BYTES = 1 << 20
_WORK_S = 3600.0  # time limit for one process to work out a filter
_LOG = logging.getLogger(__name__)


def ledger_reader() -> ReadLedger:
    """The function that reads ledgers for a run, shared by the processes that
    ``jax.distributed.initialize`` connected, if any.

    Example:
        >>> ledger_reader() is open_ledger
        True
    """
    client = coordination_client() if "jax" in sys.modules else None
    return open_ledger if client is None else SharedLedgers(client)


def history_reader() -> Callable[[str], bytes]:
    """The function that reads the snapshots of caches for a run, shared in the same way.

    Example:
        >>> history_reader() is read_history
        True
    """
    client = coordination_client() if "jax" in sys.modules else None
    return read_history if client is None else SharedLedgers(client).history


def group_reader() -> ReadGroup:
    """The function that reads ledgers of several members of a cache for a run, shared in the same
    way.

    Example:
        >>> group_reader() is read_group
        True
    """
    client = coordination_client() if "jax" in sys.modules else None
    return read_group if client is None else SharedLedgers(client).group


def filter_reader(filter_file: str) -> ReadOnce | None:
    """The function that works out, or reads, which documents a filter leaves out of a run's caches.
    It is shared in the same way, and the others wait while one process works; None: each process
    does it.
    """
    client = coordination_client() if "jax" in sys.modules else None
    return None if client is None else partial(SharedLedgers(client).filter, filter_file)


class SharedLedgers:
    """Reads each ledger once per job.

    Args:
        client: JAX's client of its coordination service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(self, root: str) -> Ledger | None:
        """The ledger of a cache. Raises the same errors as
        :func:`~headrace.store.ledger.open_ledger`.
        """

        def unpack(raw: bytes) -> Ledger:
            return ledger_of_table(root, parse_table(files.join(root, TABLE_NAME), raw))

        return self._read_once(root, "", open_ledger, _packed_table, unpack)

    def history(self, root: str) -> bytes:
        """The result of :func:`~headrace.store.snapshots.read_history`, the same for all
        processes.
        """
        return self._read_once(root, "/snapshots", read_history, zlib.compress, bytes)

    def group(self, url: str) -> bytes:
        """The result of :func:`~headrace.store.snapshots.read_group`, the same for all
        processes.
        """
        return self._read_once(url, "/group", read_group, zlib.compress, bytes)

    def filter(self, filter_file: str, root: str, read: Callable[[str], bytes]) -> bytes:
        """The result of ``read`` for a cache's folder and a filter, the same for all processes; it
        may be empty.
        """
        name = f"/filter/{hashlib.sha256(filter_file.encode()).hexdigest()[:32]}"
        return self._read_once(
            root, name, read, lambda raw: raw and zlib.compress(raw), bytes, _WORK_S
        )

    def _read_once(
        self,
        root: str,
        what: str,
        read: Callable[[str], T],
        pack: Callable[[T], bytes],
        unpack: Callable[[bytes], T],
        wait_s: float | None = None,
    ) -> T:
        """What one process reads for all. ``pack`` returns compressed bytes, empty if the others
        have to read themselves.
        """
        if files.is_local(root):
            return read(root)
        key = f"{_FOLDER}/{hashlib.sha256(root.rstrip('/').encode()).hexdigest()[:32]}{what}"
        try:
            self._client.key_value_set(f"{key}/claimed", "")
        except Exception:  # noqa: BLE001  # another process has claimed it; other causes show below
            raw = self._take(root, key, wait_s)
            return read(root) if raw is None else unpack(raw)
        packed = b""
        try:
            value = read(root)
            packed = pack(value)
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


def _packed_table(ledger: Ledger | None) -> bytes:
    """The table of a ledger, for others to take; empty if there is none."""
    return (
        ledger.parts.packed()
        if ledger is not None and isinstance(ledger.parts, ColumnTable)
        else b""
    )
