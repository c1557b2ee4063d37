"""How long documents are and how full packs: histograms, from offsets and plans; no token is read.

Price: at most a million lengths of each cache, in 16 evenly spaced runs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from headrace.store.cache import TokenCache

MAX_LOOKED = 1 << 20
_RUNS = 16
_BINS_AN_OCTAVE = 2
_FILL_BINS = 20


@dataclass(frozen=True)
class Lengths:
    """Lengths of the documents of a cache, in tokens.

    Attributes:
        looked: Documents that were looked at.
        of: Documents that there are.
        mean: Tokens of a document.
        median: The length that half of them reach.
        longest: The longest that was seen.
        edge: Borders of the bins, in tokens.
        documents: Share of documents in each bin.
        tokens: Share of tokens in each bin.
    """

    looked: int
    of: int
    mean: float
    median: float
    longest: int
    edge: Float64[np.ndarray, " b+1"]
    documents: Float64[np.ndarray, " b"]
    tokens: Float64[np.ndarray, " b"]


def document_lengths(cache: TokenCache) -> Lengths:
    """Lengths of all documents of a cache, or of a sample of a million.

    Example:
        >>> import headrace.testing
        >>> found = document_lengths(headrace.testing.tiny_cache(documents=100))
        >>> found.looked, round(float(found.documents.sum()), 6), round(float(found.tokens.sum()), 6)
        (100, 1.0, 1.0)
    """
    total = cache.num_documents
    if total <= MAX_LOOKED:
        lengths = cache.lengths(0, total)
    else:
        run = MAX_LOOKED // _RUNS
        starts = np.linspace(0, total - run, _RUNS).astype(np.int64).tolist()
        with ThreadPoolExecutor(_RUNS) as pool:
            lengths = np.concatenate(list(pool.map(lambda start: cache.lengths(start, start + run), starts)))
    return lengths_of(lengths, total)


def lengths_of(lengths: Int64[np.ndarray, " n"], total: int) -> Lengths:
    """Figures and histogram of lengths, two bins an octave; ``total`` is the number that there are."""
    longest = int(lengths.max(initial=0))
    edge = 2.0 ** (np.arange(0, _BINS_AN_OCTAVE * (int(longest).bit_length() + 1) + 1) / _BINS_AN_OCTAVE)
    edge = np.unique(np.concatenate([[0.0], np.floor(edge)]))
    documents = np.histogram(lengths, edge)[0]
    tokens = np.histogram(lengths, edge, weights=lengths.astype(np.float64))[0]
    used = np.flatnonzero(documents)
    inside = slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 0)
    return Lengths(
        looked=lengths.size,
        of=total,
        mean=float(lengths.mean()) if lengths.size else 0.0,
        median=float(np.median(lengths)) if lengths.size else 0.0,
        longest=longest,
        edge=edge[inside.start : inside.stop + 1],
        documents=documents[inside] / max(lengths.size, 1),
        tokens=tokens[inside] / max(float(tokens.sum()), 1.0),
    )


@dataclass(frozen=True)
class Fill:
    """How full the packs of a component are.

    Attributes:
        packs: How many there are.
        mean: Share of their places that hold a token.
        worst: The same of the emptiest.
        share: Share of packs in each of 20 bins of equal width, from empty to full.
        algorithm: How they were packed.
    """

    packs: int
    mean: float
    worst: float
    share: Float64[np.ndarray, " 20"]
    algorithm: str


def pack_fill(lengths: Int64[np.ndarray, " p"], seq_len: int, algorithm: str) -> Fill:
    """Fill of packs that hold so many tokens of ``seq_len`` places.

    Example:
        >>> found = pack_fill(np.array([8, 8, 4]), 8, "windowed")
        >>> round(found.mean, 3), found.worst, found.share.nonzero()[0].tolist()
        (0.833, 0.5, [10, 19])
    """
    fill = lengths / seq_len
    bins = np.minimum((fill * _FILL_BINS).astype(np.int64), _FILL_BINS - 1)
    share = np.bincount(bins, minlength=_FILL_BINS) / max(lengths.size, 1)
    return Fill(lengths.size, float(fill.mean()), float(fill.min()), share, algorithm)
