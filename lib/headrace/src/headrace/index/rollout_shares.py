"""How many rollouts each environment of a mixture gets: its share, and at least one.

Reference: Megatron-RL's weighted multi-task agent rounds in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from headrace.errors import ConfigError
from headrace.index.apportion import largest_remainder
from headrace.index.sample_numbers import checked_costs, checked_count


def rollout_shares(weights: Sequence[float] | np.ndarray, total: int) -> list[int]:
    """``total`` rollouts by weight: largest remainder, then whoever has a weight but no rollout takes one.

    It is taken from the environment that is furthest above its share, the first of equals.

    Args:
        weights: Not negative, at least one positive.
        total: Rollouts; at least as many as positive weights.

    Raises:
        ConfigError: a weight that is negative or not finite, no positive one, or fewer rollouts than environments with
            a weight.

    Example:
        >>> rollout_shares([0.98, 0.01, 0.01], 8)
        [6, 1, 1]
    """
    numbers, total = checked_costs(weights, field="weights"), checked_count("total", total, 0)
    counts = largest_remainder(numbers, total)
    weighted = [k for k, w in enumerate(numbers) if w > 0]
    if total < len(weighted):
        raise ConfigError(
            f"are fewer than the {len(weighted)} environments with a weight",
            field="total",
            value=total,
            cure=f"Ask for at least {len(weighted)} rollouts.",
        )
    whole = sum(Fraction(w) for w in numbers)
    share = [Fraction(w) / whole * total for w in numbers]
    for k in weighted:
        if counts[k] == 0:
            givers = [j for j in weighted if counts[j] > 1]
            counts[max(givers, key=lambda j: (counts[j] - share[j], -j))] -= 1
            counts[k] = 1
    return counts
