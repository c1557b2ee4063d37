"""The order in which prompts are sampled: a pure function of a position, so that resuming needs one number.

Position p belongs to pass p // n over the prompts, and each pass has an order of its own. Beside headrace's own order
stand slime's and tinker's, for runs that have to repeat one of theirs; both are made of Python's generator.

Price: headrace's own, 10 us a position, no memory. slime's and tinker's hold an order of all prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.permutation import permute
from headrace.index.seeds import derive_keys


class PromptOrder:
    """Which prompt is sampled at a position.

    Args:
        length: Number of prompts.
        seed: Chooses the order.

    Raises:
        ConfigError: there are no prompts.

    Example:
        >>> order = PromptOrder(5, seed=0)
        >>> sorted(order(np.arange(5)).tolist()), order(np.arange(5)).tolist() != order(np.arange(5, 10)).tolist()
        ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, length: int, *, seed: int) -> None:
        if length < 1:
            raise ConfigError("must be at least one", field="prompts", value=length)
        self.length, self.seed = length, seed

    def __call__(self, positions: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Prompts at positions, from 0 on without end."""
        positions = np.atleast_1d(np.asarray(positions, np.int64))
        if positions.size and positions.min() < 0:
            raise ConfigError("must not be negative", field="position", value=int(positions.min()))
        epoch, within = np.divmod(positions, self.length)
        return permute(within, self.length, derive_keys(self.seed, "prompts", last=epoch))


def slime_order(length: int, *, seed: int = 42, epoch: int = 0) -> list[int]:
    """The order of prompts of an epoch that slime has.

    Example:
        >>> slime_order(10)
        [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]
    """
    order = list(range(length))
    random.Random(seed + epoch).shuffle(order)
    return order


def tinker_schedule(
    sizes: Sequence[int], weights: Sequence[float], groups_per_batch: int, total_batches: int, *, seed: int
) -> list[list[tuple[int, int]]]:
    """Sources of prompts as tinker interleaves them: a source for each place of a batch, by weight; its next group.

    Args:
        sizes: Groups of each source.
        weights: How often each is drawn, relatively.
        groups_per_batch: Places of a batch.
        total_batches: Batches.
        seed: Of the one generator that shuffles and draws.

    Returns:
        (source, group) of each place of each batch. A source that is through begins again, in another order.

    Raises:
        ConfigError: a source is empty, or there is not one weight for each.

    Example:
        >>> tinker_schedule([2, 2], [1, 1], 2, 2, seed=7)
        [[(0, 0), (0, 1)], [(1, 1), (0, 1)]]
    """
    if len(weights) != len(sizes) or not sizes:
        raise ConfigError(f"must be one for each of {len(sizes)} sources", field="weights", value=list(weights))
    if min(sizes) < 1:
        raise ConfigError("has no groups", field=f"sizes[{list(sizes).index(min(sizes))}]", value=min(sizes))
    generator = random.Random(seed)
    orders = [list(range(n)) for n in sizes]
    for order in orders:
        generator.shuffle(order)
    taken = [0] * len(sizes)
    names = range(len(sizes))
    schedule: list[list[tuple[int, int]]] = []
    for _ in range(total_batches):
        batch: list[tuple[int, int]] = []
        for _ in range(groups_per_batch):
            source = generator.choices(names, weights)[0]
            if taken[source] == sizes[source]:
                orders[source] = list(range(sizes[source]))
                generator.shuffle(orders[source])
                taken[source] = 0
            batch.append((source, orders[source][taken[source]]))
            taken[source] += 1
        schedule.append(batch)
    return schedule
