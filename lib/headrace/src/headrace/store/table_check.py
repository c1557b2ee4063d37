"""Compares ``ledger.bin`` with ``ledger.json`` and the arrays, and writes it anew if it is missing
or differs.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import CacheCorruptError
from headrace.store import files
from headrace.store.ledger import LEDGER_NAME, chunk_names, table_of, whole_state
from headrace.store.ledger_table import PAGE_BYTES, TABLE_NAME, ChunkNames, from_page, parse_table


def table_problem(root: str, *, mend: bool = False) -> str:
    """The problem of the ``ledger.bin`` of a finished cache, compared byte for byte; empty if there
    is none, or the cache is not finished. ``mend``: rewrites it.

    Raises the same errors as :func:`~headrace.store.ledger.read_ledger`.
    """
    url = files.join(root, TABLE_NAME)
    state = whole_state(root)
    if state is None or state.ledger is None or not state.finished:
        return ""
    raw = files.read_bytes(url)
    names = chunk_names(root, state.ledger)
    # an array may be damaged, which is told where it is looked at
    if raw is not None and not names.checksums.size:
        names = _own_names(url, raw) or names
    table = table_of(state.ledger, state.name, names)
    if raw == table:
        return ""
    if mend:
        files.write_atomic(url, table)
    problem = "is missing" if raw is None else f"is not what {LEDGER_NAME} and the arrays say"
    return f"{problem}: headrace cache verify {root} --repair writes it anew"


def _own_names(url: str, raw: bytes) -> ChunkNames | None:
    """The checksums that a table lists; None if it does not, or is damaged."""
    try:
        table = parse_table(url, raw)
        if not table.chunks:
            return None
        begin, end = table.chunk_place
        pages = enumerate(range(begin, end, PAGE_BYTES))
        pages_read = [from_page(page, raw[at : min(at + PAGE_BYTES, end)]) for page, at in pages]
        return ChunkNames(np.concatenate(pages_read), table.described)
    except (CacheCorruptError, ValueError):
        return None
