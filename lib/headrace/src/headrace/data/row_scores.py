"""Scores of rows: the mean of what a number says of the documents in a row, by their tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from headrace.data.dataset import PlannedDataset
from headrace.data.document_numbers import DocumentNumbers
from headrace.errors import ConfigError
from headrace.order.intervals import chunks_of, cut_ranges, starts

_CHUNK = 1 << 13  # rows that are located together


def row_scores(
    dataset: PlannedDataset, numbers: DocumentNumbers, name: str, field: str
) -> Float64[np.ndarray, " rows"]:
    """The score of each row of a component.

    No row's score depends on other rows, so one document of a huge score blurs no others. Price: 24
    bytes a document meanwhile, and about 0.1 us a document.

    Args:
        dataset: The rows.
        numbers: Numbers of the documents of their cache.
        name: Which number.
        field: Its place in the config, for errors.

    Raises:
        ConfigError: as :meth:`DocumentNumbers.chunks`; the cache does not exist yet.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> cache = headrace.testing.tiny_cache(documents=3)
        >>> rows = TokenSeqDataset(cache, seq_len=22)
        >>> cache.lengths().tolist()
        [44, 33, 27]
        >>> row_scores(rows, DocumentNumbers(cache), "length", "by").round(1).tolist()
        [44.0, 44.0, 33.0, 30.0]
    """
    cache = numbers.cache
    if cache.ledger.tokenizer.get("fingerprint") == "virtual":
        raise ConfigError(
            "needs the documents of a cache that does not exist yet",
            field=field,
            value=name,
            cure="Build the cache, or leave shuffle out of the forecast.",
        )
    score = np.concatenate([np.zeros(0), *numbers.chunks(name, field)]).astype(np.float64)
    begin = starts(cache.lengths())
    (source,) = dataset.sources
    scores = np.empty(len(dataset))
    for at, stop in chunks_of(len(dataset), _CHUNK):
        rows = dataset.locate(np.arange(at, stop)).row
        pieces = source.content(rows)
        start = source.first_token[pieces.array] + pieces.start
        cuts = cut_ranges(start, start + pieces.size, begin[:-1], begin[1:])
        row = pieces.row[cuts.range]
        document = cuts.section
        tokens = cuts.stop - cuts.start
        share = tokens / np.maximum(np.bincount(row, tokens, minlength=rows.size), 1)[row]
        # Around the score of its first document, a row of equal scores has exactly this one
        around = np.zeros(rows.size)
        around[row[::-1]] = score[document[::-1]]
        differences = (score[document] - around[row]) * share
        scores[at:stop] = around + np.bincount(row, differences, minlength=rows.size)
    return scores
