"""The tables of a store that was grouped when it was written: ``places.bin`` and ``numbers.bin``
(:mod:`headrace.order.document_shuffle`), in its folder beside the ledger, which has their digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Integer

from headrace.errors import CacheCorruptError
from headrace.order.document_shuffle import DocumentGroups
from headrace.store import files
from headrace.store.vectors import PiecedVector, write_vector

TABLES = ("places", "numbers")
"""What the tables hold, and the names of their files."""
_BLOCK = 1 << 20  # numbers
_WHAT = "table"
_CURE = "Run the headrace cache reshuffle command of this store again, or restore the file."


def table_url(root: str, name: str) -> str:
    """The file of a table."""
    return files.join(root, f"{name}.bin")


def write_tables(
    root: str, groups: DocumentGroups, documents: int, stored: int
) -> dict[str, dict[str, Any]]:
    """Writes the tables of a store, which may have some of the documents only, those with the first
    places; returns their records for its ledger.
    """
    tables = zip(TABLES, (groups.place_of, groups.number_at), (documents, stored), strict=True)
    return {
        name: write_vector(table_url(root, name), table, _WHAT, size)
        for name, table, size in tables
    }


def open_tables(root: str, records: Mapping[str, Mapping[str, Any]]) -> DocumentGroups:
    """The groups of a store, whose tables are read in pieces as they are asked.

    Raises:
        CacheCorruptError: a table is missing or damaged; also later, when it is asked.
    """
    try:
        tables = [
            PiecedVector(table_url(root, name), records[name], _WHAT, _CURE) for name in TABLES
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CacheCorruptError(
            f"does not say where its documents lie ({error})",
            field="ledger",
            value=root,
            cure=_CURE,
        ) from error
    return DocumentGroups(*tables)


def numbers_of_places(
    root: str, records: Mapping[str, Mapping[str, Any]]
) -> Integer[np.ndarray, " stored"]:
    """The document at each place of a store, from either of its tables.

    Raises:
        CacheCorruptError: both are damaged.
    """
    try:
        return PiecedVector(table_url(root, "numbers"), records["numbers"], _WHAT).loaded()
    except CacheCorruptError:
        cure = "Restore it, or numbers.bin beside it; or write the store to another folder."
        place_of = PiecedVector(table_url(root, "places"), records["places"], _WHAT, cure).loaded()
    number_at = np.empty(int(records["numbers"]["length"]), place_of.dtype)
    numbers = np.flatnonzero(place_of < number_at.size)  # the others are in another member
    number_at[place_of[numbers]] = numbers
    return number_at


def table_problems(
    root: str, records: Mapping[str, Mapping[str, Any]], documents: int
) -> list[tuple[str, str]]:
    """What is wrong with the tables of a store, read whole: (file, problem) pairs."""
    try:
        groups = open_tables(root, records)
        for first in range(0, documents, _BLOCK):
            stored = np.arange(first, min(first + _BLOCK, documents))
            originals = groups.originals(stored)
            if (groups.stored_at(originals) != stored).any():
                return [(table_url(root, "places"), "contradicts numbers.bin")]
    except CacheCorruptError as error:
        return [(str(error.value), error.problem)]
    except IndexError:
        return [(table_url(root, "numbers"), "names documents that there are not")]
    return []
