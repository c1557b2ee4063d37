"""One host of a job reads the ledger of a cache from its store, and the others have it from that one.

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
from typing import Any

from headrace.errors import HeadraceError
from headrace.feed.host_board import coordination_client
from headrace.store import files, retry
from headrace.store.cache import ReadLedger
from headrace.store.ledger import Ledger, ledger_of_table, open_ledger
from headrace.store.ledger_table import TABLE_NAME, ColumnTable, parse_table

_FOLDER = "headrace/ledgers"
_PIECE_BYTES = 1 << 20
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


class SharedLedgers:
    """Reads ledgers, each once a job.

    Args:
        client: JAX's client of its coordination service.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __call__(self, root: str) -> Ledger | None:
        """The ledger of a cache. Raises what :func:`~headrace.store.ledger.open_ledger` does."""
        if files.is_local(root):
            return open_ledger(root)
        key = f"{_FOLDER}/{hashlib.sha256(root.rstrip('/').encode()).hexdigest()[:32]}"
        try:
            self._client.key_value_set(f"{key}/claimed", "")
        except Exception:  # noqa: BLE001  # another process has; what else it may be shows below
            table = self._take(root, key)
            return open_ledger(root) if table is None else ledger_of_table(root, table)
        pieces: list[bytes] = []
        try:
            ledger = open_ledger(root)
            if ledger is not None and isinstance(ledger.parts, ColumnTable):
                packed = ledger.parts.packed()
                pieces = [packed[at : at + _PIECE_BYTES] for at in range(0, len(packed), _PIECE_BYTES)]
            return ledger
        finally:
            self._leave(key, pieces)

    def _leave(self, key: str, pieces: list[bytes]) -> None:
        """Leaves what was read, for the others; without pieces they read it themselves."""
        try:
            for number, piece in enumerate(pieces):
                self._client.key_value_set_bytes(f"{key}/{number}", piece)
            self._client.key_value_set(f"{key}/pieces", str(len(pieces)))
        except Exception as error:  # noqa: BLE001  # JAX's errors have no common base
            _LOG.warning("ledgers are not shared: %s", error)

    def _take(self, root: str, key: str) -> ColumnTable | None:
        """What another process read; None if it left nothing."""
        timeout_ms = round(1000 * retry.policy().deadline_s)
        try:
            count = int(self._client.blocking_key_value_get(f"{key}/pieces", timeout_ms))
            numbers = range(count)
            pieces = [self._client.blocking_key_value_get_bytes(f"{key}/{number}", timeout_ms) for number in numbers]
            return parse_table(files.join(root, TABLE_NAME), zlib.decompress(b"".join(pieces))) if pieces else None
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  # likewise
            _LOG.warning(
                "%s: its ledger is read here, as the process that opened it first has left none: %s", root, error
            )
            return None
