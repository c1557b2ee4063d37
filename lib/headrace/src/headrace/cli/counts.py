"""Lengths of documents and frequencies of tokens, of small caches counted, of huge ones sampled.

Price: at most 4 Mi lengths and 4 Mi tokens are read, in 64 evenly spaced runs, whatever the cache holds: a second on a
local disk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from headrace.ingest.tokenize import Tokenizer
    from headrace.store.cache import TokenCache

MAX_COUNTED = 1 << 22
WINDOWS = 64
_MAX_VOCABULARY = 1 << 24
_READS = 16
_MOST_FREQUENT = 10


@dataclass(frozen=True)
class LengthStatistics:
    """How long documents are, in tokens.

    Attributes:
        documents: Documents that were looked at.
        of: Documents in the cache; if more, a sample was: evenly spaced runs.
        mean: Tokens in a document on average.
        quantiles: Name (``min``, ``p5``, ... ``max``) to tokens.
        histogram: First length, last length, documents, tokens; for each power of two, empty ends left out.
    """

    documents: int
    of: int
    mean: float
    quantiles: dict[str, int]
    histogram: list[tuple[int, int, int, int]]


def length_statistics(cache: TokenCache) -> LengthStatistics:
    """Lengths of all documents, or of a sample of some millions of them; reads offsets, no tokens."""
    import numpy as np

    lengths = _looked_at(cache.lengths, cache.num_documents)
    names = {"min": 0.0, "p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
    values = np.quantile(lengths, list(names.values()), method="lower").astype(int).tolist() if lengths.size else []
    mean = float(lengths.mean()) if lengths.size else 0.0
    quantiles = dict(zip(names, values, strict=bool(values)))
    return LengthStatistics(int(lengths.size), cache.num_documents, mean, quantiles, histogram(lengths))


def histogram(lengths: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Documents and tokens by power of two of the length.

    Args:
        lengths: int64 ``[n]``.

    Returns:
        ``(first length, last length, documents, tokens)`` a bin: 0, 1, 2 to 3, 4 to 7, ...

    Example:
        >>> import numpy as np
        >>> histogram(np.array([1, 2, 3, 3, 9]))
        [(1, 1, 1, 1), (2, 3, 3, 8), (4, 7, 0, 0), (8, 15, 1, 9)]
    """
    import numpy as np

    # Exact up to 2**53: frexp gives the number of bits.
    bits = np.frexp(lengths.astype(np.float64))[1]
    documents = np.bincount(bits)
    tokens = np.bincount(bits, weights=lengths).astype(np.int64)
    first = int(np.flatnonzero(documents)[0]) if documents.any() else 0
    return [
        ((1 << b) >> 1, max((1 << b) - 1, 0), int(documents[b]), int(tokens[b])) for b in range(first, documents.size)
    ]


@dataclass(frozen=True)
class TokenStatistics:
    """How often tokens come.

    Attributes:
        tokens: Tokens that were looked at.
        of: Tokens in the cache; if more, a sample was: evenly spaced runs.
        distinct: Different ids among them.
        vocab_size: Ids that there are; None if the cache does not know.
        never_seen: Ids of the vocabulary that are not among them.
        outside: Tokens whose id is not in the vocabulary.
        most_frequent: Id, its text (its number without a tokenizer) and how often, the most frequent first.
    """

    tokens: int
    of: int
    distinct: int
    vocab_size: int | None
    never_seen: int | None
    outside: int
    most_frequent: list[tuple[int, str, int]]


def token_statistics(cache: TokenCache, tokenizer: Tokenizer | None) -> TokenStatistics:
    """Frequencies of all tokens, or of a sample of some millions of them.

    Example:
        >>> import headrace.testing
        >>> found = token_statistics(headrace.testing.tiny_cache(documents=500), None)
        >>> found.most_frequent[0][0], found.never_seen, found.outside  # the end of text; none is missing
        (255, 0, 0)
    """
    import numpy as np

    from headrace.cli.decoded import decode

    tokens = _looked_at(cache.tokens, cache.num_tokens)
    ids, counts = np.unique(tokens, return_counts=True)
    known = cache.vocab_size if cache.vocab_size <= _MAX_VOCABULARY else None
    inside = np.ones(ids.size, bool) if known is None else (ids >= 0) & (ids < known)
    most = np.lexsort((ids, -counts))[:_MOST_FREQUENT]
    return TokenStatistics(
        tokens=int(tokens.size),
        of=cache.num_tokens,
        distinct=int(ids.size),
        vocab_size=known,
        never_seen=None if known is None else known - int(inside.sum()),
        outside=int(counts[~inside].sum()),
        most_frequent=[(int(ids[k]), decode(tokenizer, ids[k : k + 1]), int(counts[k])) for k in most.tolist()],
    )


def _looked_at(read: Callable[[int, int], np.ndarray], total: int) -> np.ndarray:
    """All values, or of more than can be looked at evenly spaced runs."""
    import numpy as np

    if total <= MAX_COUNTED:
        return read(0, total)
    size = MAX_COUNTED // WINDOWS
    starts = np.linspace(0, total - size, WINDOWS).astype(np.int64).tolist()
    with ThreadPoolExecutor(_READS) as pool:
        return np.concatenate(list(pool.map(lambda start: read(start, start + size), starts)))
