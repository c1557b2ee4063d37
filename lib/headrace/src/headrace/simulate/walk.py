"""Policies that count examples one by one are walked to where the forecast looks, with someone watching.

Price: 2 to 6 us an example; nothing for policies that reach any step at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.index.interleave import ExhaustiveBlend, GreedyBlend, SequencePolicy
from headrace.index.least_consumed import LeastConsumedPlan
from headrace.index.schedule import BatchSchedule

COUNTED_POLICIES = ("greedy", "exhaustive", "least_consumed")
"""Policies that are walked example by example, by name."""
EXAMPLE_S = 4e-6
"""Seconds that an example takes, about."""
_STRIDE = 1 << 16
Watch: TypeAlias = Callable[[int, int], None]
"""Is told how many examples have been counted, and of how many."""


def walk_to(dataset: PlannedDataset, schedule: BatchSchedule, step: int, watch: Watch) -> None:
    """Counts to the first example of ``step``, if the policy counts; later questions begin there.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> mixture = MixtureDataset({"a": dataset, "b": dataset}, {"a": 3, "b": 1}, batch_size=100, policy="greedy")
        >>> walk_to(mixture, mixture.batch_schedule, 1000, lambda done, total: print(done, total))
        65536 100000
        100000 100000
    """
    served = dataset.phase_at(step)[0]
    policy = served.draws.policy if isinstance(served, MixtureDataset) else None
    if not isinstance(policy, SequencePolicy) or not isinstance(
        policy, GreedyBlend | ExhaustiveBlend | LeastConsumedPlan
    ):
        return
    total = schedule.rows_at(step)[0]
    for done in (*range(_STRIDE, total, _STRIDE), total):
        policy.counts_before(done)
        watch(done, total)
