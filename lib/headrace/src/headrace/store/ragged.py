"""Writing one part of a ragged store: documents of any length as ``data`` + ``offsets``.

``<root>/parts/<name>/input_ids/data`` holds the tokens of all documents end to end; ``offsets`` (int64, documents + 1
values) where each begins and ends: ``offsets[0] = 0`` and document i is ``data[offsets[i]:offsets[i+1]]``. A part is an
idempotent unit of work: written from the start or not at all, by one writer, the same bytes for the same input.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from headrace.errors import CacheError
from headrace.store import files
from headrace.store.array import ArrayWriter
from headrace.store.layout import CacheLayout
from headrace.store.ledger import PartRecord, part_folder, write_part_record

LEAF = "input_ids"


def data_url(root: str, part: str, leaf: str = LEAF) -> str:
    """Folder of the array with a leaf's elements."""
    return files.join(part_folder(root, part), leaf, "data")


def offsets_url(root: str, part: str, leaf: str = LEAF) -> str:
    """Folder of the array with a leaf's offsets."""
    return files.join(part_folder(root, part), leaf, "offsets")


class PartWriter:
    """Writes one part. Whatever an interrupted writer of the same part left is deleted first.

    Memory: one shard of tokens, and 8 bytes a document.

    Args:
        root: Folder or URL of the cache.
        name: Name of the part, e.g. ``"00017"``.
        layout: Layout of the token leaf.

    Raises:
        CacheError: the store cannot be written.
    """

    def __init__(self, root: str, name: str, layout: CacheLayout) -> None:
        self.root, self.name, self.layout = root, name, layout
        files.remove_tree(part_folder(root, name))
        self._data = ArrayWriter(data_url(root, name), layout)
        self._lengths: list[np.ndarray] = []
        self._digest = hashlib.sha256()
        self._max_id = int(np.iinfo(layout.dtype).max)

    def append(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Adds documents.

        Args:
            tokens: Integer array ``[total]``, the documents end to end.
            lengths: Integer array ``[documents]``; zeros are empty documents.

        Raises:
            CacheError: lengths do not add up to the tokens, or an id does not fit the dtype.
        """
        lengths = np.array(lengths, np.int64)  # a copy: it is kept until the part is closed
        if int(lengths.sum()) != tokens.size or (lengths.size and int(lengths.min()) < 0):
            raise CacheError(
                f"lengths add up to {int(lengths.sum())}, not to the {tokens.size} tokens",
                field="part",
                value=self.name,
            )
        if tokens.size and (int(tokens.max()) > self._max_id or int(tokens.min()) < 0):
            raise CacheError(
                f"holds an id outside 0 .. {self._max_id}",
                field="part",
                value=self.name,
                cure="The tokenizer's vocab_size is wrong, or the dtype too narrow: leave layout.dtype out.",
            )
        stored = np.ascontiguousarray(tokens, np.dtype(self.layout.dtype).newbyteorder("<"))
        self._digest.update(stored.data)
        self._data.append(stored)
        self._lengths.append(lengths)

    def close(self, **extra: Any) -> PartRecord:
        """Writes what is left, then the part's record, which makes the part complete.

        Args:
            **extra: JSON values to keep in the record.
        """
        self._data.close()
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        offsets = np.cumsum(lengths)
        writer = ArrayWriter(offsets_url(self.root, self.name), self.layout.offsets())
        writer.append(offsets)
        writer.close()
        self._digest.update(offsets.astype("<i8").data)
        record = PartRecord(
            self.name, offsets.size - 1, self._data.length, f"sha256:{self._digest.hexdigest()}", extra=extra
        )
        write_part_record(self.root, record)
        return record

    def abort(self) -> None:
        """Deletes what was written so far."""
        files.remove_tree(part_folder(self.root, self.name))
