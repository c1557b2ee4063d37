"""Partitions of equal cost: distributes samples over ranks and micro-batches so that no rank waits
for another.

Costs are tokens or a function of tokens, such as FLOPs (:class:`TransformerCost`), which grow
faster. A cap on tokens is hard, as memory does not average out. These functions handle the samples
of one step, some thousands.

Reference: Karmarkar, Karp, "The differencing method of set partitioning", 1982. slime and verl use
it; ties are broken as theirs are, so that partitions are equal to theirs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from headrace.batch.sample_numbers import checked_costs, checked_count, checked_tokens
from headrace.errors import ConfigError

Bins = list[list[int]]
Costs: TypeAlias = (
    Sequence[Any]
    | np.ndarray
    | Callable[[Int64[np.ndarray, " n"]], Sequence[Any] | np.ndarray]
    | None
)
"""Cost of each sample, or a function from tokens to costs, such as :meth:`TransformerCost.flops`;
None: tokens.
"""


@dataclass(frozen=True)
class TransformerCost:
    """A dense decoder with grouped queries and gated feed-forward layers.

    Attributes:
        hidden_size: Width.
        num_layers: Layers.
        num_heads: Query heads.
        head_size: Channels per head.
        num_kv_heads: Key/value heads.
        ffn_size: Width of the feed-forward layers.
        vocab_size: Size of the vocabulary.

    Example:
        >>> model = TransformerCost(1024, 12, 16, 64, 4, 4096, 32000)
        >>> float(model.flops(np.array([1000]))[0])
        455016448000.0
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    head_size: int
    num_kv_heads: int
    ffn_size: int
    vocab_size: int

    def flops(self, lengths: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """FLOPs of the forward pass with causal attention within each document.

        Args:
            lengths: Tokens of each document.
        """
        n = np.asarray(lengths, np.float64)
        queries = self.num_heads * self.head_size
        keys = self.num_kv_heads * self.head_size
        weights = self.hidden_size * (2 * queries + 2 * keys + 3 * self.ffn_size)
        attention = 2 * queries * n  # scores and values; causal attention needs half of them
        return n * (
            self.num_layers * (2 * weights + attention) + 2 * self.hidden_size * self.vocab_size
        )


def costs_of(costs: Costs, sizes: Int64[np.ndarray, " n"]) -> list[Any]:
    """Cost of each sample; ConfigError unless there is one for each, finite and from 0 up."""
    if costs is None:
        return sizes.tolist()
    return checked_costs(costs(sizes) if callable(costs) else costs, sizes.size)


class _Differences:
    """Sets that become ``parts`` partitions, largest first, empty ones omitted; two are merged
    until one is left.

    The differencing method: items begin as partitions of their own, all other sets empty. The two
    whose sets differ most in cost are merged, the largest set of one with the smallest of the
    other, so that what one has too much of the other lacks. With 8, 7, 6 and 5 for two partitions:
    (8, -) and (7, -) become (8, 7), a spread of 1; (6, -) and (5, -) become (6, 5); and these
    (8 + 5, 7 + 6).
    """

    __slots__ = ("parts", "sets", "spread")

    def __init__(self, sets: list[tuple[Any, int, list[int]]], parts: int) -> None:
        # by sum, number of items, items
        self.sets = sorted(sets, reverse=True)
        self.parts = parts
        self.spread = self.sets[0][0] - (self.sets[-1][0] if len(sets) == parts else 0)

    def __lt__(self, other: _Differences) -> bool:
        return self.spread > other.spread or (
            self.spread == other.spread and self.sets[0] > other.sets[0]
        )

    def merged(self, other: _Differences) -> _Differences:
        """Merges the largest set of one with the smallest of the other, and so on."""
        alone = self.parts - len(other.sets)
        smallest = other.sets[::-1]
        pairs = [
            (a[0] + b[0], a[1] + b[1], a[2] + b[2])  # of sums, numbers and items
            for a, b in zip(self.sets[alone:], smallest, strict=False)
        ]
        return _Differences([*self.sets[:alone], *pairs, *smallest[len(pairs) :]], self.parts)


def karmarkar_karp(costs: Sequence[Any] | np.ndarray, k: int, *, equal_size: bool = False) -> Bins:
    """``k`` partitions of nearly equal cost, by the largest differencing method.

    Args:
        costs: Cost of each item: tokens or FLOPs.
        k: Number of partitions.
        equal_size: Whether all get the same number of items; the total must then be a multiple of
            ``k``.

    Returns:
        Items of each partition, ascending; the most costly partition first.

    Raises:
        ConfigError: fewer items than partitions, a number that does not divide, or costs that are
            not finite and from 0 up.

    Example:
        >>> karmarkar_karp([10, 9, 8, 7, 6, 5, 4, 3], 4)
        [[1, 6], [2, 5], [3, 4], [0, 7]]
    """
    values = checked_costs(costs)
    k = checked_parts(len(values), k)
    if equal_size and len(values) % k:
        problem = f"do not divide into {k} partitions of equal size"
        raise ConfigError(problem, field="items", value=len(values), cure="Add or drop some.")
    return _differenced(values, k, equal_size)


def _differenced(values: list[Any], k: int, equal_size: bool = False) -> Bins:
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    each = k if equal_size else 1
    heap: list[_Differences] = []
    for at in range(0, len(order), each):
        heapq.heappush(heap, _Differences([(values[i], 1, [i]) for i in order[at : at + each]], k))
    while len(heap) > 1:
        first = heapq.heappop(heap)
        second = heapq.heappop(heap)
        heapq.heappush(heap, first.merged(second))
    sets = heap[0].sets
    return [sorted(items) for _, _, items in sets] + [[] for _ in range(k - len(sets))]


def first_fit(tokens: Sequence[int] | np.ndarray, max_tokens: int) -> Bins:
    """Bins of at most ``max_tokens``, each item in the first that has room, in order. A larger item
    is a bin by itself.

    Raises:
        ConfigError: a cap below 1, or tokens that are not whole numbers from 0 up.

    Example:
        >>> first_fit([10, 9, 8, 7, 6, 5, 4, 3], 10)
        [[0], [1], [2], [3, 7], [4, 6], [5]]
    """
    sizes = checked_tokens(tokens)
    max_tokens = checked_count("max_tokens", max_tokens)
    space = np.zeros(sizes.size, np.int64)
    bins: Bins = []
    for item, size in enumerate(sizes.tolist()):
        fits = space[: len(bins)] >= size
        at = int(np.argmax(fits)) if fits.any() else len(bins)
        if at == len(bins):
            bins.append([])
            space[at] = max_tokens
        bins[at].append(item)
        space[at] -= size
    return bins


def capped_partitions(
    costs: Sequence[Any] | np.ndarray,
    tokens: Sequence[int] | np.ndarray,
    max_tokens: int,
    *,
    multiple: int = 1,
) -> Bins:
    """The fewest partitions of nearly equal cost with at most ``max_tokens`` each.

    Uses Karmarkar-Karp if its result respects the cap; otherwise places the most costly item first,
    in the cheapest partition that has room.

    Args:
        costs: Cost of each item.
        tokens: Tokens of each item.
        max_tokens: Tokens of a partition, at most.
        multiple: The number of partitions is a multiple of this.

    Raises:
        ConfigError: an item is larger than the cap, there are fewer items than partitions, or costs
            and items differ in number.

    Example:
        >>> capped_partitions([9, 4, 4, 1], [3, 2, 2, 1], 5, multiple=2)
        [[1, 2, 3], [0]]
    """
    sizes = checked_tokens(tokens)
    values = checked_costs(costs, sizes.size)
    max_tokens = checked_count("max_tokens", max_tokens)
    multiple = checked_count("multiple", multiple)
    if sizes.size and int(sizes.max()) > max_tokens:
        raise ConfigError(
            f"exceeds the {max_tokens} tokens of a micro-batch",
            field=f"tokens[{int(sizes.argmax())}]",
            value=int(sizes.max()),
            cure="Raise max_tokens, or truncate such samples.",
        )
    least = -(-int(sizes.sum()) // max_tokens)
    k = max(-(-least // multiple), 1) * multiple
    while True:
        checked_parts(sizes.size, k)
        partitions = _differenced(values, k)
        if max(int(sizes[b].sum()) for b in partitions) <= max_tokens:
            return partitions
        partitions = cheapest_with_room(values, sizes.tolist(), max_tokens, k)
        if partitions is not None:
            return partitions
        k += multiple


def micro_batches(
    tokens: Sequence[int] | np.ndarray,
    max_tokens: int,
    *,
    ranks: int = 1,
    costs: Costs = None,
    multiple: int = 1,
) -> list[Bins]:
    """Micro-batches of every rank: equally many each, none above the cap, the most costly first.

    Micro-batches at the same position have about the same cost on all ranks, and so have the ranks'
    sums. With the most costly first, a step that does not fit into memory fails at once.

    Args:
        tokens: Tokens of each sample of the step.
        max_tokens: Tokens of a micro-batch, at most.
        ranks: Data-parallel ranks.
        costs: Cost of each sample, or a function from their tokens to costs; None: their tokens.
        multiple: The number of micro-batches per rank is a multiple of this (pipeline stages).

    Returns:
        Samples, by rank and micro-batch.

    Raises:
        ConfigError: a sample is larger than the cap; there are fewer samples than micro-batches;
            costs and samples differ in number; a count is below 1.

    Example:
        >>> micro_batches([5, 4, 3, 2, 1, 1], 6, ranks=2)
        [[[0], [3, 5]], [[1], [2, 4]]]
    """
    ranks = checked_count("ranks", ranks)
    multiple = checked_count("multiple", multiple)
    sizes = checked_tokens(tokens)
    values = costs_of(costs, sizes)
    bins = capped_partitions(values, sizes, max_tokens, multiple=ranks * multiple)
    cost = [sum(values[i] for i in b) for b in bins]
    order = sorted(range(len(bins)), key=lambda b: (-cost[b], bins[b]))
    result: list[Bins] = [[] for _ in range(ranks)]
    total = [0] * ranks
    for at in range(0, len(order), ranks):
        by_need = sorted(range(ranks), key=lambda r: (total[r], r))
        for rank, b in zip(by_need, order[at : at + ranks], strict=True):
            result[rank].append(bins[b])
            total[rank] += cost[b]
    return result


def cheapest_with_room(values: list[Any], sizes: list[int], max_tokens: int, k: int) -> Bins | None:
    """``k`` partitions: costliest item first, into the cheapest with room; None if an item or a
    partition is left.
    """
    bins: Bins = [[] for _ in range(k)]
    load: list[Any] = [0] * k
    room = [max_tokens] * k
    for item in sorted(range(len(sizes)), key=lambda i: (-values[i], -sizes[i], i)):
        at = min(
            (b for b in range(k) if room[b] >= sizes[item]),
            key=lambda b: (load[b], len(bins[b]), b),
            default=None,
        )
        if at is None:
            return None
        bins[at].append(item)
        load[at] += values[item]
        room[at] -= sizes[item]
    return [sorted(b) for b in bins] if all(bins) else None


def checked_parts(items: int, parts: int) -> int:
    """The number of partitions; ConfigError if there are fewer items."""
    parts = checked_count("partitions", parts)
    if items < parts:
        raise ConfigError(
            f"cannot be filled with {items} samples",
            field="partitions",
            value=parts,
            cure="Give more samples, or use fewer ranks.",
        )
    return parts
