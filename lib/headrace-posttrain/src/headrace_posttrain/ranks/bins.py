"""Bins as other systems make them: of neighbours, and halved until there are enough of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.batch.balance import Bins, checked_parts
from headrace.batch.sample_numbers import checked_count, checked_tokens
from headrace.errors import ConfigError
from headrace.pack import stream
from headrace.pack.items import Items


def next_fit(tokens: Sequence[int] | np.ndarray, max_tokens: int) -> Bins:
    """Bins of at most ``max_tokens`` of neighbours, in order. A larger item is a bin by itself.

    Raises:
        ConfigError: a cap below 1, or tokens that are not whole numbers from 0 up.

    Example:
        >>> next_fit([5, 9, 3, 3, 7, 2], 10)
        [[0], [1], [2, 3], [4, 5]]
    """
    sizes = checked_tokens(tokens)
    max_tokens = checked_count("max_tokens", max_tokens)
    items = Items(np.arange(sizes.size), np.zeros(sizes.size, np.int64), sizes)
    packed, _ = stream.next_fit(items, min(max_tokens, int(sizes.sum())), last=True)
    return [
        pack.tolist()
        for pack in np.split(packed.items.document, np.cumsum(packed.item_counts))[:-1]
    ]


def split_bins(tokens: Sequence[int] | np.ndarray, bins: Bins, count: int) -> Bins:
    """``count`` bins, made by halving the largest bin with several items again and again.

    Among equally large bins, the last is halved. Items go, largest first, to the lighter half (left
    if equal); the right half becomes the last bin. ConfigError: fewer items than ``count``, more
    bins, an item that is none of ``tokens``.

    Example:
        >>> split_bins([10, 9, 8, 7, 6, 5, 4, 3], [[0], [1, 7], [2, 6], [3, 5], [4]], 7)
        [[0], [1, 7], [2], [3], [4], [5], [6]]
    """
    sizes = checked_tokens(tokens).tolist()
    items = [i for b in bins for i in b]
    count = checked_parts(len(items), count)
    if items and not 0 <= min(items) <= max(items) < len(sizes):
        wrong = next(i for i in items if not 0 <= i < len(sizes))
        raise ConfigError(
            f"is none of the {len(sizes)} samples",
            field="bins",
            value=wrong,
            cure="Give its tokens, too.",
        )
    if len(bins) > count:
        raise ConfigError(
            f"are more than the {count} wanted",
            field="bins",
            value=len(bins),
            cure="Bins are halved, never merged.",
        )
    bins = [list(b) for b in bins]
    sums = [sum(sizes[i] for i in b) for b in bins]
    while len(bins) < count:
        at = max((k for k, b in enumerate(bins) if len(b) > 1), key=lambda k: (sums[k], k))
        halves: Bins = [[], []]
        weight = [0, 0]
        for item in sorted(bins[at], key=sizes.__getitem__, reverse=True):
            side = int(weight[1] < weight[0])
            halves[side].append(item)
            weight[side] += sizes[item]
        bins[at] = halves[0]
        sums[at] = weight[0]
        bins.append(halves[1])
        sums.append(weight[1])
    return bins
