"""One host of a job reads a cache's ledger, tombstones and generations, and what a filter leaves out of it, and the
others have them from that one.

The first process that opens a cache on a store over HTTP claims it in the key-value store of JAX's coordination
service, reads ledger and table, and leaves there what it read; the others take that. So opening costs a fixed number of
requests a job, whatever the number of hosts and parts. Nobody depends on anybody: a process that finds a claim but, in
the time in which a store must have answered, nothing else reads the ledger itself, and so do all where the one that
read it failed. Caches on local disks, those of Levanter and those without ``ledger.bin`` are read by each host.

What a host takes is held against the digests in the file, as what it reads from a store is. Price: process 0, which has
the key-value store, sends each host what opening reads, compressed: about 10 bytes a part.
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
from headrace.store.generations import read_generations
from headrace.store.ledger import Ledger, ledger_of_table, open_ledger
from headrace.store.ledger_table import TABLE_NAME, ColumnTable, parse_table
from headrace.store.tombstones import read_tombstones

T = TypeVar("T")
_FOLDER = "headrace/ledgers"
_PIECE_BYTES = 1 << 20
_WORK_S = 3600.0  # that one process may take to work out a filter
_LOG = logging.getLogger(__name__)


def ledger_reader() -> ReadLedger:
    """What reads the ledgers of a run: shared by the processes that ``jax.distributed.initialize`` brought together,
    if it did.

    Example:
        >>> ledger_reader() is open_ledger
        True
    """
    client = coordination_client() if "jax" in sys.modules else None
    return open_ledger if client is None else SharedLedgers(client)


def tombstone_reader() -> Callable[[str], bytes]:
    """What reads the tombstones of caches for a run: shared in the same way.

    Example:
        >>> tombstone_reader() is read_tombstones
        True
    """
    client = coordination_client() if "jax" in sys.modules else None
    return read_tombstones if client is None else SharedLedgers(client).tombstones


def generation_reader() -> Callable[[str], bytes]:
    """What reads the lists of caches' generations for a run: shared in the same way."""
    client = coordination_client() if "jax" in sys.modules else None
    return read_generations if client is None else SharedLedgers(client).generations


def filter_reader(filter_file: str) -> ReadOnce | None:
    """What works out, or reads, what a filter leaves out of the caches of a run: shared in the same way, for as long as
    one process works; None: each does.
    """
    client = coordination_client() if "jax" in sys.modules else None
    return None if client is None else partial(SharedLedgers(client).filter, filter_file)


class SharedLedgers:
    """Reads ledgers, each once a job.

    Args:
        client: JAX's client of its coordination service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(self, root: str) -> Ledger | None:
        """The ledger of a cache. Raises what :func:`~headrace.store.ledger.open_ledger` does."""

        def unpack(raw: bytes) -> Ledger:
            return ledger_of_table(root, parse_table(files.join(root, TABLE_NAME), raw))

        return self._read_once(root, "", open_ledger, _packed_table, unpack)

    def tombstones(self, root: str) -> bytes:
        """What :func:`~headrace.store.tombstones.read_tombstones` gives: to all processes the same."""
        return self._read_once(root, "/tombstones", read_tombstones, zlib.compress, bytes)

    def generations(self, root: str) -> bytes:
        """What :func:`~headrace.store.generations.read_generations` gives: likewise."""
        return self._read_once(root, "/generations", read_generations, zlib.compress, bytes)

    def filter(self, filter_file: str, root: str, read: Callable[[str], bytes]) -> bytes:
        """What ``read`` gives of a cache's folder for a filter: likewise; nothing where that gives nothing."""
        name = f"/filter/{hashlib.sha256(filter_file.encode()).hexdigest()[:32]}"
        return self._read_once(root, name, read, lambda raw: raw and zlib.compress(raw), bytes, _WORK_S)

    def _read_once(
        self,
        root: str,
        what: str,
        read: Callable[[str], T],
        pack: Callable[[T], bytes],
        unpack: Callable[[bytes], T],
        wait_s: float | None = None,
    ) -> T:
        """What one process reads for all. What ``pack`` gives is compressed, and nothing where others have to read."""
        if files.is_local(root):
            return read(root)
        key = f"{_FOLDER}/{hashlib.sha256(root.rstrip('/').encode()).hexdigest()[:32]}{what}"
        try:
            self._client.key_value_set(f"{key}/claimed", "")
        except Exception:  # noqa: BLE001  # another process has; what else it may be shows below
            raw = self._take(root, key, wait_s)
            return read(root) if raw is None else unpack(raw)
        packed = b""
        try:
            value = read(root)
            packed = pack(value)
            return value
        finally:
            self._leave(key, [packed[at : at + _PIECE_BYTES] for at in range(0, len(packed), _PIECE_BYTES)])

    def _leave(self, key: str, pieces: list[bytes]) -> None:
        """Leaves what was read, for the others; without pieces they read it themselves."""
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
            pieces = [self._client.blocking_key_value_get_bytes(f"{key}/{number}", timeout_ms) for number in numbers]
            return zlib.decompress(b"".join(pieces)) if pieces else None
        except Exception as error:  # noqa: BLE001  # likewise
            _LOG.warning(
                "%s: its ledger or filter is read here, as the process that opened it first has left none: %s",
                root,
                error,
            )
            return None


def _packed_table(ledger: Ledger | None) -> bytes:
    """The table that a ledger was read from, for others to take; nothing if there is none."""
    return ledger.parts.packed() if ledger is not None and isinstance(ledger.parts, ColumnTable) else b""
