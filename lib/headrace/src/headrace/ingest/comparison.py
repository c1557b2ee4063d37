"""Selects documents of a part that both a faster encoder and ``tokenizers`` encode, to compare the
ids.

These are the first documents of each part, where a new kind of text would show, and then one in
1,024, selected by the part's name, so that a resumed or repeated build compares the same ones. Of a
document of more than 64 Ki characters, its beginning is encoded separately and compared. A
difference stops the part, which is built again with ``tokenizers``.

Price: ``tokenizers`` takes about a thousand times as long for a document as everything else, so one
in 1,024 costs 5% to 10% of a build, and the first documents (at most 32 KiB if documents are
shorter) 30 ms per part.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from headrace.ingest.documents import Document
from headrace.ingest.kinds.kind import DocumentKind, EncodedBatch
from headrace.ingest.records import BadRecordError

FIRST_DOCUMENTS = 8
FIRST_BYTES = 32 << 10
ONE_IN = 1024
MOST_CHARS = 1 << 16


class EncodersDifferError(Exception):
    """Two encoders gave different ids for a document.

    Attributes:
        part: Name of the part.
        place: The document.
    """

    def __init__(self, part: str, place: str) -> None:
        super().__init__(part, place)
        self.part = part
        self.place = place


def compared_indices(part: str, first: int, sizes: Sequence[int]) -> list[int]:
    """Indices of the documents to compare, among consecutive ones.

    Args:
        part: Name of the part.
        first: Number of documents of the part before these.
        sizes: Bytes of each.

    Example:
        >>> compared_indices("00000", 0, [100] * 9)  # the first eight
        [0, 1, 2, 3, 4, 5, 6, 7]
        >>> len(compared_indices("00000", 1024, [100] * 4096))  # one in 1,024
        4
    """
    indices = set[int]()
    if first == 0:
        total = np.cumsum(sizes[:FIRST_DOCUMENTS])
        indices.update(range(max(min(1, len(sizes)), int((total <= FIRST_BYTES).sum()))))
    for stretch in range(first // ONE_IN, (first + len(sizes) - 1) // ONE_IN + 1 if sizes else 0):
        index = stretch * ONE_IN + zlib.crc32(f"{part}:{stretch}".encode()) % ONE_IN - first
        if 0 <= index < len(sizes):
            indices.add(index)
    return sorted(indices)


def first_difference(
    indices: Sequence[int],
    documents: Sequence[Document],
    encoded: EncodedBatch,
    kinds: tuple[DocumentKind, DocumentKind],
) -> int | None:
    """The first document for which ``tokenizers`` gives different ids; None if there is none.

    Args:
        indices: Indices of the documents to compare.
        documents: Documents of one part.
        encoded: The result of the faster encoder.
        kinds: The kind with the faster encoder, and with ``tokenizers``.
    """
    faster, plain = kinds
    stops = np.cumsum(encoded.lengths)
    for index in indices:
        document = documents[index]
        ids = encoded.tokens[stops[index] - encoded.lengths[index] : stops[index]]
        try:
            if len(document.text) > MOST_CHARS:
                document = document._replace(text=document.text[:MOST_CHARS])
                ids = faster.encode([document]).tokens
            if not np.array_equal(ids, plain.encode([document]).tokens):
                return index
        except BadRecordError:
            return index
    return None
