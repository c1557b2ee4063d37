"""Megatron-LM's blends, which reproduce its sequences, and its counts: sizes with a surplus,
rounded splits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError
from headrace.mix.plan import Plan, PolicyKind
from headrace.mix.schedule import BatchSchedule, Weight
from headrace.mix.shares import UNLIMITED, sum_of_weights
from headrace_compat.constant_weights import constant_weights, equal_weights, stage_weights
from headrace_compat.sequence import SequencePolicy


class _LargestShortfall(SequencePolicy[tuple[int, ...]]):
    """Example s goes to the component with the largest ``weight * max(s, 1) - drawn``, the first on
    a tie.

    In float64, operation by operation as in Megatron-LM; but a component without supply is never
    drawn, not even on a tie at zero. The state is the number of examples drawn.
    """

    def __init__(
        self,
        weights: np.ndarray,
        supply: Int64[np.ndarray, " d"],
        batch: BatchSchedule,
        ends_after: int | None = None,
    ) -> None:
        self._weights: Float64[np.ndarray, " d"] = weights / weights.sum()
        self._supply = supply
        super().__init__(len(weights), batch, ends_after)

    def initial_state(self) -> tuple[int, ...]:
        return (0,) * len(self._weights)

    def walk(self, state: tuple[int, ...], first: int, n: int) -> tuple[list[int], tuple[int, ...]]:
        counts = np.array(state, np.float64)
        spent = np.where(counts >= self._supply, -np.inf, 0.0)
        drawn: list[int] = []
        for s in range(first, first + n):
            k = int((self._weights * float(max(s, 1)) - counts + spent).argmax())
            counts[k] += 1
            drawn.append(k)
            if counts[k] >= self._supply[k]:
                spent[k] = -np.inf
        return drawn, tuple(int(c) for c in counts)

    def supply(self) -> Int64[np.ndarray, " d"]:
        return self._supply.copy()


class GreedyBlend(_LargestShortfall):
    """``greedy``: the largest shortfall first, over constant weights.

    Raises:
        ConfigError: no weights, all zero, or a schedule.

    Example:
        >>> GreedyBlend([0.5, 0.3, 0.2], BatchSchedule(5)).sequence(0, 10)
        array([0, 1, 2, 0, 1, 0, 2, 0, 1, 0], dtype=int32)
    """

    name = "greedy"
    follows_sizes = False

    def __init__(self, weights: Sequence[float | Weight], batch: BatchSchedule) -> None:
        values = np.array(constant_weights(weights, "greedy"))
        super().__init__(values, np.where(values > 0, UNLIMITED, 0), batch)


class ExhaustiveBlend(_LargestShortfall):
    """``exhaustive``: greedy in proportion to the sizes, until every example is used; used-up
    components drop out.

    A size of zero is allowed (the original loops forever on it). The last step may have fewer
    examples than its batch.

    Raises:
        ConfigError: no sizes, a negative one, or all are zero.

    Example:
        >>> ExhaustiveBlend([3, 0, 2], BatchSchedule(5)).sequence(0, 99)
        array([0, 2, 0, 2, 0], dtype=int32)
    """

    name = "exhaustive"

    def __init__(self, sizes: Sequence[int], batch: BatchSchedule) -> None:
        if not sizes or min(sizes) < 0 or sum(sizes) == 0:
            raise ConfigError(
                "must hold at least one example, none negative", field="sizes", value=list(sizes)
            )
        supply = np.array(sizes, np.int64)
        super().__init__(supply, supply, batch, int(supply.sum()))


class Greedy(PolicyKind):
    """``policy: greedy``."""

    def make(self, plan: Plan) -> GreedyBlend:
        return GreedyBlend(stage_weights(plan, "greedy"), plan.batch)


class Exhaustive(PolicyKind):
    """``policy: exhaustive``."""

    ends_with_data = True

    def make(self, plan: Plan) -> ExhaustiveBlend:
        equal_weights(plan, "exhaustive")
        sizes = [size for size in plan.sizes if size is not None]
        if len(sizes) < len(plan.sizes):
            cure = "Leave out repeat()."
            raise ConfigError(
                "needs components with an end", field="policy", value="exhaustive", cure=cure
            )
        return ExhaustiveBlend(sizes, plan.batch)


def megatron_sizes(
    weights: Sequence[float], targets: Sequence[int], surplus: float = 0.005
) -> list[list[int]]:
    """``[dataset][split]`` samples that Megatron-LM requests, ``ceil(ceil(target * weight) * (1 +
    surplus))``.

    The surplus ensures that rounding in the blend never exhausts a dataset.

    Raises:
        ConfigError: a negative weight, or no positive weight.

    Example:
        >>> megatron_sizes([0.5, 0.3, 0.2], [1000, 100, 10])
        [[503, 51, 6], [302, 31, 4], [201, 21, 3]]
    """
    total = sum_of_weights(weights)
    return [
        [math.ceil(math.ceil(t * (w / total)) * (1 + surplus)) for t in targets] for w in weights
    ]


def megatron_splits(split: str) -> list[tuple[float, float] | None]:
    """Fractions of the documents at which a split such as ``"969,30,1"`` begins and ends; None for
    an empty one.

    Raises:
        ConfigError: no numbers, a negative one, or all zero.

    Example:
        >>> megatron_splits("99,1,0")
        [(0.0, 0.99), (0.99, 1.0), None]
    """
    try:
        parts = [float(x) for x in split.split(",")]
    except ValueError:
        raise ConfigError(
            "is not a list of numbers", field="split", value=split, cure='E.g. "969,30,1".'
        ) from None
    parts += [0.0] * (3 - len(parts))
    total = sum_of_weights(parts, "split")
    ends = 0.0
    spans = list[tuple[float, float] | None]()
    for part in parts:
        begin = ends
        ends = ends + part / total
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
