"""``pack_groups``: makes the batch of a step from its groups; and ``Patience``: logs what a step
waits for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import numpy as np

from headrace.batch.balance import Bins, costs_of, micro_batches
from headrace.batch.examples import Example, pack_examples
from headrace.batch.packed_batch import PackedBatch
from headrace_posttrain.ranks.rank_balance import level_ranks
from headrace_posttrain.rollouts.advantages import group_advantages, resolve
from headrace_posttrain.rollouts.groups import ScoredGroup
from headrace_posttrain.rollouts.settings import RLSettings

logger = logging.getLogger(__name__)
_SAY_AFTER_S = 10.0


def pack_groups(
    groups: Sequence[ScoredGroup], settings: RLSettings, *, oldest: int | None
) -> PackedBatch:
    """Completions of all groups, weighted with their advantages, in rows.

    Args:
        groups: Those of the step.
        settings: Advantages, rows and ranks.
        oldest: Tokens that an older policy sampled are not trained on; None: all are.
    """
    rewards = np.concatenate([g.rewards for g in groups])
    sizes = [len(g.tokens) for g in groups]
    numbers = np.repeat(np.arange(len(groups)), sizes)
    advantages = group_advantages(rewards, numbers, resolve(settings.advantages)).values
    of_groups = np.split(advantages, np.cumsum(sizes)[:-1])
    examples = [
        example
        for number, (group, values) in enumerate(zip(groups, of_groups, strict=True))
        for example in group.examples(values, number, oldest=oldest)
    ]
    return pack_examples(
        examples,
        settings.seq_len,
        rows=settings.rows,
        multiple=settings.multiple,
        max_segments=settings.max_segments,
        bins=_balanced(examples, settings),
    )


def _balanced(examples: Sequence[Example], settings: RLSettings) -> Bins | None:
    """The content of each row, distributed to ranks; None: rows are filled one after the other."""
    if settings.ranks == 1 and settings.costs is None:
        return None
    lengths = [example.length for example in examples]
    multiple = (
        settings.multiple // math.gcd(settings.multiple, settings.ranks)
        if settings.rows is None
        else 1
    )
    costs = costs_of(settings.costs, np.asarray(lengths))
    ranks = micro_batches(
        lengths, settings.seq_len, ranks=settings.ranks, costs=costs, multiple=multiple
    )
    ranks = level_ranks(ranks, costs, lengths, settings.seq_len)
    height = len(ranks[0]) if settings.rows is None else settings.rows // settings.ranks
    if len(ranks[0]) > height:  # equal costs take more rows than there are
        return None
    return [row for of_rank in ranks for row in [*of_rank, *[[]] * (height - len(of_rank))]]


class Patience:
    """Logs, less and less often, what is waited for."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._say_at_s = _SAY_AFTER_S

    def say(self, message: str, *values: object) -> None:
        """Logs it, if it is time."""
        if time.monotonic() - self._begin > self._say_at_s:
            logger.warning(f"{message} (%d s)", *values, self._say_at_s)
            self._say_at_s *= 2
