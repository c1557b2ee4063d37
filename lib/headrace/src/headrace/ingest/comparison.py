"""Which documents of a part are encoded twice, by a faster encoder and by ``tokenizers``, and what a difference does.

The first documents of each part, as a new kind of text would show there, and one of every 1,024 after them, at places
that the part's name decides: so a resumed or repeated build compares the same ones. Of a document of more than 64 Ki
characters its beginning is compared, encoded by itself. A difference stops the part; it is built again with
``tokenizers`` alone.

Price: ``tokenizers`` takes about a thousand times as long for a document as all else, so one in 1,024 costs 5% to 10%
of a build, and the first documents, at most 32 KiB where documents are shorter, 30 ms a part.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from headrace.ingest.documents import Document
from headrace.ingest.kinds import DocumentKind, EncodedBatch
from headrace.ingest.records import BadRecordError

FIRST_DOCUMENTS = 8
FIRST_BYTES = 32 << 10
ONE_IN = 1024
MOST_CHARS = 1 << 16


class EncodersDifferError(Exception):
    """Two encoders gave a document other ids.

    Attributes:
        part: Name of the part.
        place: Which document.
    """

    def __init__(self, part: str, place: str) -> None:
        super().__init__(part, place)
        self.part, self.place = part, place


def compared_indices(part: str, first: int, sizes: Sequence[int]) -> list[int]:
    """Which of some documents in a row to compare.

    Args:
        part: Name of the part.
        first: How many documents of the part are before these.
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
    """Which document ``tokenizers`` gives other ids; None if it gives all the same.

    Args:
        indices: Which of the documents to compare.
        documents: Documents of one part.
        encoded: What the faster encoder made of them.
        kinds: What encodes with the faster encoder, and with ``tokenizers``.
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
