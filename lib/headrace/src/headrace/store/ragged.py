"""Writing one part of a ragged store: documents of any length as ``data`` + ``offsets``, for each leaf.

``<root>/parts/<name>/input_ids/data`` holds the tokens of all documents end to end; ``offsets`` (int64, documents + 1
values) where each begins and ends: ``offsets[0] = 0`` and document i is ``data[offsets[i]:offsets[i+1]]``. Other leaves
lie beside it in the same form; a leaf with one value a document needs no offsets and has ``data`` alone. A part is an
idempotent unit of work: written from the start or not at all, by one writer, the same bytes for the same input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from headrace.errors import CacheError, ConfigError
from headrace.store import files
from headrace.store.array import ArrayWriter
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.ledger import LeafRecord, PartRecord, part_folder, write_part_record

LEAF = TOKENS

LeafValues: TypeAlias = "tuple[np.ndarray, np.ndarray | None]"
"""Values of some documents end to end, and how many each has (int64); None if each has one."""


def data_url(root: str, part: str, leaf: str = LEAF) -> str:
    """Folder of the array with a leaf's elements."""
    return files.join(part_folder(root, part), leaf, "data")


def offsets_url(root: str, part: str, leaf: str = LEAF) -> str:
    """Folder of the array with a leaf's offsets."""
    return files.join(part_folder(root, part), leaf, "offsets")


class PartWriter:
    """Writes one part. Whatever an interrupted writer of the same part left is deleted first.

    Memory: one shard of each leaf, and 8 bytes a document for each ragged leaf.

    Args:
        root: Folder or URL of the cache.
        name: Name of the part, e.g. ``"00017"``.
        layout: Layout of the token leaf.
        leaves: Leaves beside the tokens.

    Raises:
        CacheError: the store cannot be written.
        ConfigError: two leaves have the same name, or the layout is none of tokens.
    """

    def __init__(self, root: str, name: str, layout: CacheLayout, leaves: Sequence[LeafSpec] = ()) -> None:
        layout.check_tokens()
        names = [spec.name for spec in leaves]
        if len(set(names)) < len(names):
            raise ConfigError("names a leaf twice", field="leaves", value=names, cure="Give each its own name.")
        self.root, self.name, self.layout = root, name, layout
        files.remove_tree(part_folder(root, name))
        self._tokens = _LeafWriter(root, name, LEAF, layout, ragged=True)
        self._leaves = {
            spec.name: _LeafWriter(root, name, spec.name, layout.leaf(spec), ragged=spec.kind == "ragged")
            for spec in leaves
        }
        self._documents = 0

    def append(self, tokens: np.ndarray, lengths: np.ndarray, leaves: Mapping[str, LeafValues] | None = None) -> None:
        """Adds documents.

        Args:
            tokens: Integer array ``[total]``, the documents end to end.
            lengths: Integer array ``[documents]``; zeros are empty documents.
            leaves: For each other leaf by name: its values, the documents end to end, and an integer array
                ``[documents]`` of how many each has; None instead of it for a leaf with one value a document.

        Raises:
            CacheError: lengths do not add up, a value does not fit the dtype, or a leaf is missing or unknown.
        """
        given = {} if leaves is None else leaves
        if given.keys() != self._leaves.keys():
            raise CacheError(
                f"has the leaves {sorted(self._leaves)}, but {sorted(given)} were given", field="part", value=self.name
            )
        # All is checked before anything is written.
        checked = [(self._tokens, *self._tokens.checked(tokens, lengths, len(lengths)))]
        for name, (values, counts) in given.items():
            writer = self._leaves[name]
            checked.append((writer, *writer.checked(values, counts, len(lengths))))
        for writer, stored, counts in checked:
            writer.append(stored, counts)
        self._documents += len(lengths)

    def close(self, **extra: Any) -> PartRecord:
        """Writes what is left, then the part's record, which makes the part complete.

        Args:
            **extra: JSON values to keep in the record.
        """
        tokens = self._tokens.close()
        leaves = {name: writer.close() for name, writer in self._leaves.items()}
        record = PartRecord(self.name, self._documents, tokens.elements, tokens.digest, extra=extra, leaves=leaves)
        write_part_record(self.root, record)
        return record

    def abort(self) -> None:
        """Deletes what was written so far."""
        files.remove_tree(part_folder(self.root, self.name))


class _LeafWriter:
    """Writes the arrays of one leaf of one part."""

    def __init__(self, root: str, part: str, leaf: str, layout: CacheLayout, *, ragged: bool) -> None:
        self._part, self._leaf, self._layout = part, leaf, layout
        self._offsets_url = offsets_url(root, part, leaf)
        self._data = ArrayWriter(data_url(root, part, leaf), layout)
        self._lengths: list[np.ndarray] | None = [np.zeros(1, np.int64)] if ragged else None
        self._digest = hashlib.sha256()

    def checked(
        self, values: np.ndarray, lengths: np.ndarray | None, documents: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Values as they are stored, and a copy of the lengths.

        Raises:
            CacheError: they cannot be values of so many documents.
        """
        what = "tokens" if self._leaf == LEAF else f"values of leaf {self._leaf}"
        if lengths is not None:
            lengths = np.array(lengths, np.int64)  # a copy: it is kept until the part is closed
        if (lengths is None) != (self._lengths is None):
            said = "no lengths were given" if lengths is None else "lengths were given for one value a document"
            raise CacheError(f"{what}: {said}", field="part", value=self._part)
        if lengths is not None and (int(lengths.sum()) != values.size or (lengths.size and int(lengths.min()) < 0)):
            raise CacheError(
                f"lengths add up to {int(lengths.sum())}, not to the {values.size} {what}",
                field="part",
                value=self._part,
            )
        given = values.size if lengths is None else lengths.size
        if given != documents:
            raise CacheError(f"{what} are of {given} documents, not {documents}", field="part", value=self._part)
        self._check_range(values, what)
        return np.ascontiguousarray(values, np.dtype(self._layout.dtype).newbyteorder("<")), lengths

    def append(self, stored: np.ndarray, lengths: np.ndarray | None) -> None:
        """Adds what :meth:`checked` gave."""
        self._digest.update(stored.data)
        self._data.append(stored)
        if self._lengths is not None and lengths is not None:
            self._lengths.append(lengths)

    def close(self) -> LeafRecord:
        self._data.close()
        if self._lengths is not None:
            offsets = np.cumsum(np.concatenate(self._lengths))
            writer = ArrayWriter(self._offsets_url, self._layout.offsets())
            writer.append(offsets)
            writer.close()
            self._digest.update(offsets.astype("<i8").data)
        return LeafRecord(self._data.length, f"sha256:{self._digest.hexdigest()}")

    def _check_range(self, values: np.ndarray, what: str) -> None:
        dtype = np.dtype(self._layout.dtype)
        if not values.size or dtype.kind == "f":
            return
        # Nobody's id is negative; values of other leaves may be.
        low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        low = 0 if self._leaf == LEAF else low
        if values.dtype.kind not in "iub" or int(values.max()) > high or int(values.min()) < low:
            found = "an id" if self._leaf == LEAF else f"a value of leaf {self._leaf}"
            raise CacheError(
                f"holds {found} outside {low} .. {high}",
                field="part",
                value=self._part,
                cure="The tokenizer's vocab_size is wrong, or the dtype too narrow: leave layout.dtype out."
                if self._leaf == LEAF
                else f"Give the leaf a wider dtype than {dtype.name}.",
            )
