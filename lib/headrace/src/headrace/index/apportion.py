"""Whole numbers from shares, in the ways of the systems that users come from: quotas, sample counts, splits.

Reference: nmoe's quotas are Hamilton's method (largest remainder). Megatron-LM rounds counts up twice with a surplus,
and cuts splits at rounded fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.errors import ConfigError


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """``total`` things in proportion to ``weights``: each share rounded down, then one more to the largest remainders.

    Args:
        weights: Not negative, at least one positive.
        total: How many, not negative.

    Returns:
        Whole numbers that sum to ``total``; on equal remainders the first gets it.

    Raises:
        ConfigError: a negative weight or total, or no positive weight.

    Example:
        >>> largest_remainder([0.5, 0.3, 0.2], 1_000_000 // 1024)
        [488, 293, 195]
    """
    if total < 0:
        raise ConfigError("must not be negative", field="total", value=total)
    sum_of_weights = _total(weights)
    exact = [w / sum_of_weights * total for w in weights]
    counts = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda d: counts[d] - exact[d])  # stable: the first of equals first
    for d in by_remainder[: total - sum(counts)]:
        counts[d] += 1
    return counts


def megatron_sizes(weights: Sequence[float], targets: Sequence[int], surplus: float = 0.005) -> list[list[int]]:
    """Samples that Megatron-LM asks of each dataset for each split, with its surplus.

    Args:
        weights: Weights of the datasets, normalised here.
        targets: Samples wanted of the blend for each split.
        surplus: What is added to each, so that rounding in the blend never runs a dataset dry.

    Returns:
        ``[dataset][split]`` counts, ``ceil(ceil(target * weight) * (1 + surplus))``.

    Raises:
        ConfigError: a negative weight, or no positive weight.

    Example:
        >>> megatron_sizes([0.5, 0.3, 0.2], [1000, 100, 10])
        [[503, 51, 6], [302, 31, 4], [201, 21, 3]]
    """
    total = _total(weights)
    return [[math.ceil(math.ceil(t * (w / total)) * (1 + surplus)) for t in targets] for w in weights]


def megatron_splits(split: str) -> list[tuple[float, float] | None]:
    """Fractions of the documents at which a split such as ``"969,30,1"`` begins and ends; None for an empty one.

    Raises:
        ConfigError: no numbers, a negative one, or all zero.

    Example:
        >>> megatron_splits("99,1,0")
        [(0.0, 0.99), (0.99, 1.0), None]
    """
    try:
        parts = [float(x) for x in split.split(",")]
    except ValueError:
        raise ConfigError("is not a list of numbers", field="split", value=split, cure='E.g. "969,30,1".') from None
    parts += [0.0] * (3 - len(parts))
    total = _total(parts, "split")
    ends, spans = 0.0, list[tuple[float, float] | None]()
    for part in parts:
        begin, ends = ends, ends + part / total
        spans.append((begin, ends) if part else None)
    return spans


def split_documents(split: str, documents: int) -> list[range]:
    """Documents of each split: the fractions of :func:`megatron_splits`, rounded half to even.

    Example:
        >>> split_documents("969,30,1", 1000)
        [range(0, 969), range(969, 999), range(999, 1000)]
    """
    return [
        range(round(span[0] * documents), round(span[1] * documents)) if span else range(0)
        for span in megatron_splits(split)
    ]


def _total(weights: Sequence[float], field: str = "weights") -> float:
    if not len(weights) or not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):  # also arrays
        raise ConfigError("must be finite and not negative, one of them positive", field=field, value=list(weights))
    return math.fsum(weights)
