"""Scores of rows: the mean of what a number says of the documents in a row, by their tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from headrace.data.dataset import PlannedDataset
from headrace.data.document_numbers import DocumentNumbers
from headrace.errors import ConfigError
from headrace.order.rising import starts

_CHUNK = 1 << 16  # rows that are located together


def row_scores(
    dataset: PlannedDataset, numbers: DocumentNumbers, name: str, field: str
) -> Float64[np.ndarray, " rows"]:
    """The score of each row of a component.

    Sums of ``score x tokens`` from the first document on say what any range of tokens has. Price:
    32 bytes a document meanwhile, and about 1 us a row.

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
    lengths = cache.lengths()
    begin = starts(lengths)
    sum_before = np.cumsum(score * lengths) - score * lengths

    def sum_to(token: np.ndarray) -> np.ndarray:
        document = np.searchsorted(begin[:-1], token, side="right") - 1
        return sum_before[document] + (token - begin[document]) * score[document]

    first_token = starts(cache.part_tokens)
    (source,) = dataset.sources
    scores = np.empty(len(dataset))
    for first in range(0, len(dataset), _CHUNK):
        rows = dataset.locate(np.arange(first, min(first + _CHUNK, len(dataset)))).row
        pieces = source.pieces(rows)
        start = first_token[pieces.array] + pieces.start
        sums = np.bincount(
            pieces.row, sum_to(start + pieces.size) - sum_to(start), minlength=rows.size
        )
        tokens = np.bincount(pieces.row, pieces.size, minlength=rows.size)
        scores[first : first + rows.size] = sums / np.maximum(tokens, 1)
    return scores
