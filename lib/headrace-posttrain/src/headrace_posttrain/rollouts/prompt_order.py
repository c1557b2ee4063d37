"""The order of prompts: a pure function of a position, so that resuming needs one number.

Position p belongs to pass p // n over the prompts, and each pass has its own order: 10 us per
position, no memory. The orders of slime and tinker, for runs that have to reproduce them, use
Python's generator and hold all prompts. :func:`rollout_shares` rounds like Megatron-RL's multi-task
agent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from headrace.batch.sample_numbers import checked_costs, checked_count
from headrace.errors import ConfigError, check_not_negative
from headrace.mix.shares import largest_remainder
from headrace.order.permutation import permute
from headrace.order.seeds import derive_keys


class PromptOrder:
    """Which of ``length`` prompts is sampled at a position; raises ConfigError if there are none.

    Example:
        >>> order = PromptOrder(5, seed=0)
        >>> (
        ...     sorted(order(np.arange(5)).tolist()),
        ...     order(np.arange(5)).tolist() != order(np.arange(5, 10)).tolist(),
        ... )
        ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, length: int, *, seed: int) -> None:
        if length < 1:
            raise ConfigError("must be at least one", field="prompts", value=length)
        self.length = length
        self.seed = seed

    def __call__(self, positions: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Prompts at positions, endlessly from 0 on."""
        positions = np.atleast_1d(np.asarray(positions, np.int64))
        check_not_negative("position", int(positions.min(initial=0)))
        return self._at(*np.divmod(positions, self.length))

    def _at(
        self, epoch: Int64[np.ndarray, " n"], within: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        return permute(within, self.length, derive_keys(self.seed, "prompts", last=epoch))


class SlimeOrder(PromptOrder):
    """slime's order of prompts, one epoch at a time; its default seed is 42 (``--rollout-seed``).

    Example:
        >>> SlimeOrder(10, seed=42)(np.arange(10)).tolist()
        [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]
    """

    def _at(
        self, epoch: Int64[np.ndarray, " n"], within: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        prompts = np.empty_like(within)
        for number in np.unique(epoch).tolist():
            order = list(range(self.length))
            random.Random(self.seed + number).shuffle(order)
            prompts[epoch == number] = np.array(order)[within[epoch == number]]
        return prompts


class ListedOrder(PromptOrder):
    """Prompts in the order of the list, repeated: for lists that have their own order, such as
    :func:`tinker_schedule`'s.

    Example:
        >>> ListedOrder(3, seed=0)(np.arange(5)).tolist()
        [0, 1, 2, 0, 1]
    """

    def _at(
        self, epoch: Int64[np.ndarray, " n"], within: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        return within


PROMPT_ORDERS = {"shuffled": PromptOrder, "slime": SlimeOrder, "listed": ListedOrder}
"""Orders by their names in settings."""


def tinker_schedule(
    sizes: Sequence[int],
    weights: Sequence[float],
    groups_per_batch: int,
    total_batches: int | None = None,
    *,
    seed: int,
) -> list[list[tuple[int, int]]]:
    """Prompts as tinker interleaves sources: (source, group) of each position of each batch.

    The source is drawn by weight and supplies its next group; a source whose groups (``sizes``) are
    used up starts again, in another order. One generator shuffles and draws.

    Args:
        sizes: Groups of each source.
        weights: Weight of each source, above 0.
        groups_per_batch: Groups in a batch.
        total_batches: Batches; None: as many as the source that is used up first has for its share
            of a batch, at least one. (Draws are random, so it may still start again a little before
            the end.)
        seed: Integer seed.

    Raises:
        ConfigError: a source is empty, there is not one weight for each or not all are above 0, or
            a number of batches or groups is below 1.

    Example:
        >>> tinker_schedule([2, 2], [1, 1], 2, 2, seed=7)
        [[(0, 0), (0, 1)], [(1, 1), (0, 1)]]
    """
    if len(weights) != len(sizes) or not sizes:
        raise ConfigError(
            f"must be one for each of {len(sizes)} sources", field="weights", value=list(weights)
        )
    if min(sizes) < 1:
        raise ConfigError(
            "has no groups", field=f"sizes[{list(sizes).index(min(sizes))}]", value=min(sizes)
        )
    for k, weight in enumerate(weights):
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(
                "must be above 0",
                field=f"weights[{k}]",
                value=weight,
                cure="Leave out a source that is not used.",
            )
    groups_per_batch = checked_count("groups_per_batch", groups_per_batch)
    if total_batches is None:
        # What each source supplies to a batch on average says how many batches it lasts. In
        # tinker's order of operations: another one rounds otherwise.
        sum_of_all = sum(weights)
        lasting = [
            int(size / (weight / sum_of_all * groups_per_batch))
            for size, weight in zip(sizes, weights, strict=True)
        ]
        total_batches = max(1, min(lasting))
    total_batches = checked_count("total_batches", total_batches)
    generator = random.Random(seed)
    orders = [list(range(n)) for n in sizes]
    for order in orders:
        generator.shuffle(order)
    cursor = [0] * len(sizes)
    schedule: list[list[tuple[int, int]]] = []
    for _ in range(total_batches):
        batch: list[tuple[int, int]] = []
        for _ in range(groups_per_batch):
            source = generator.choices(range(len(sizes)), weights)[0]
            if cursor[source] == sizes[source]:
                orders[source] = list(range(sizes[source]))
                generator.shuffle(orders[source])
                cursor[source] = 0
            batch.append((source, orders[source][cursor[source]]))
            cursor[source] += 1
        schedule.append(batch)
    return schedule


def rollout_shares(weights: Sequence[float] | np.ndarray, total: int) -> list[int]:
    """``total`` rollouts by weight: largest remainder; then each environment with a weight but no
    rollout takes one.

    It takes it from the environment that is furthest above its share, the first of equals.

    Raises:
        ConfigError: a weight that is negative or not finite, no positive one, or fewer rollouts
            than environments with a weight.

    Example:
        >>> rollout_shares([0.98, 0.01, 0.01], 8)
        [6, 1, 1]
    """
    numbers = checked_costs(weights, field="weights")
    total = checked_count("total", total, 0)
    counts = largest_remainder(numbers, total)
    weighted = [k for k, w in enumerate(numbers) if w > 0]
    if total < len(weighted):
        problem = f"are fewer than the {len(weighted)} environments with a weight"
        raise ConfigError(
            problem, field="total", value=total, cure=f"Ask for at least {len(weighted)} rollouts."
        )
    sum_of_all = sum(Fraction(w) for w in numbers)
    share = [Fraction(w) / sum_of_all * total for w in numbers]
    for k in weighted:
        if counts[k] == 0:
            givers = [j for j in weighted if counts[j] > 1]
            counts[max(givers, key=lambda j: (counts[j] - share[j], -j))] -= 1
            counts[k] = 1
    return counts
