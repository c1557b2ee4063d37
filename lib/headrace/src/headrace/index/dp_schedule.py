"""Which rank trains on which samples of a step, in which micro-batches: the schedules of slime and Megatron-LM.

Invariant: all ranks have the same number of micro-batches in a step, and no micro-batch exceeds the cap unless it is a
single sample that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.errors import ConfigError
from headrace.index.balance import Bins, capped_partitions, first_fit, karmarkar_karp, next_fit, split_bins
from headrace.index.sample_numbers import check_one_each, checked_costs, checked_count, checked_tokens


@dataclass(frozen=True)
class DpSchedule:
    """Samples of some steps, by rank.

    Attributes:
        samples: Samples of each rank, in the order in which it trains on them.
        micro_batches: Of each rank, places in its ``samples``; the steps' micro-batches one after the other.
        num_micro_batches: Micro-batches of a rank in each step.
        batch_sizes: Rollouts of each step.
        dropped: Samples at the end that fill no step.
    """

    samples: list[list[int]]
    micro_batches: list[Bins]
    num_micro_batches: list[int]
    batch_sizes: list[int]
    dropped: list[int]


def dp_schedule(
    tokens: Sequence[int] | np.ndarray,
    rollout_ids: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
    ranks: int,
    max_tokens: int | None = None,
    micro_batch_size: int | None = None,
    costs: Sequence[float] | np.ndarray | None = None,
    balance_ranks: bool = False,
    balance_costs: bool = False,
    multiple: int = 1,
) -> DpSchedule:
    """Steps of ``batch_size`` rollouts, cut into micro-batches and dealt to ranks, as slime does.

    Samples of one rollout stay in one step. Micro-batches are packed first-fit in the order of arrival, or with
    ``balance_costs`` by cost; here the cap holds then, too (slime's may exceed it).

    Args:
        tokens: Tokens of each sample.
        rollout_ids: Rollout that each sample belongs to, in order of arrival.
        batch_size: Rollouts of a step.
        ranks: Data-parallel ranks.
        max_tokens: Tokens of a micro-batch, all context-parallel ranks together.
        micro_batch_size: Samples of a micro-batch, instead of ``max_tokens``.
        costs: Cost of each sample; None: its tokens.
        balance_ranks: Whether ranks get micro-batches of equal cost rather than every ``ranks``-th.
        balance_costs: Whether micro-batches are of equal cost rather than full.
        multiple: Micro-batches of a rank in a step are a multiple of this (interleaved pipelines).

    Raises:
        ConfigError: a size is missing, both are given, or there are too few samples for all ranks; not one rollout or
            cost a sample; a count below 1.

    Example:
        >>> schedule = dp_schedule([3, 5, 4, 6, 2], [0, 1, 2, 3, 4], batch_size=4, ranks=2, max_tokens=8)
        >>> schedule.samples, schedule.micro_batches, schedule.dropped
        ([[1, 3], [2, 0]], [[[0], [1]], [[0], [1]]], [4])
    """
    if (max_tokens is None) == (micro_batch_size is None):
        raise ConfigError("give one of max_tokens and micro_batch_size", field="max_tokens", value=max_tokens)
    ranks, multiple = checked_count("ranks", ranks), checked_count("multiple", multiple)
    batch_size = checked_count("batch_size", batch_size)
    if max_tokens is not None:
        max_tokens = checked_count("max_tokens", max_tokens)
    if micro_batch_size is not None:
        micro_batch_size = checked_count("micro_batch_size", micro_batch_size)
    lengths = checked_tokens(tokens).tolist()
    values = lengths if costs is None else checked_costs(costs, len(lengths))
    check_one_each("rollout_ids", len(rollout_ids), len(lengths))
    steps, dropped = _steps(rollout_ids, batch_size)
    samples: list[list[int]] = [[] for _ in range(ranks)]
    batches: list[Bins] = [[] for _ in range(ranks)]
    counts: list[int] = []
    for step in steps:
        sizes = [lengths[i] for i in step]
        if max_tokens is None:
            assert micro_batch_size is not None
            bins = [list(range(a, min(a + micro_batch_size, len(step)))) for a in range(0, len(step), micro_batch_size)]
        elif balance_costs:
            bins = capped_partitions([values[i] for i in step], sizes, max_tokens, multiple=ranks * multiple)
        else:
            bins = first_fit(sizes, max_tokens)
        bins = split_bins(sizes, bins, -(-len(bins) // (ranks * multiple)) * ranks * multiple)
        counts.append(len(bins) // ranks)
        if balance_ranks:
            owned = karmarkar_karp([sum(values[step[i]] for i in b) for b in bins], ranks, equal_size=True)
        else:
            owned = [list(range(r, len(bins), ranks)) for r in range(ranks)]
        for rank, mine in enumerate(owned):
            for b in mine:
                at = len(samples[rank])
                samples[rank] += [step[i] for i in bins[b]]
                batches[rank].append(list(range(at, len(samples[rank]))))
    return DpSchedule(samples, batches, counts, [batch_size] * len(steps), dropped)


def dp_balanced_packing(
    tokens: Sequence[int] | np.ndarray, max_tokens: int, *, ranks: int, copies: int = 1, multiple: int = 1
) -> list[Bins]:
    """Packs for every micro-batch and rank: next-fit in order of arrival, as Megatron-LM's balanced scheduler does.

    Where packs do not divide evenly, the last sample of the last pack that has several becomes a pack of its own, until
    they do.

    Args:
        tokens: Tokens of each sample.
        max_tokens: Tokens of a pack, all context-parallel ranks together.
        ranks: Data-parallel ranks.
        copies: Context-parallel ranks: so many neighbours get the same pack.
        multiple: Packs of a rank are a multiple of this (interleaved pipelines).

    Returns:
        Samples, by micro-batch and rank.

    Raises:
        ConfigError: there are fewer samples than packs needed; a count below 1.

    Example:
        >>> dp_balanced_packing([5, 9, 3, 3, 7, 2, 8, 1], 10, ranks=2)
        [[[0], [1]], [[2, 3], [4, 5]], [[6], [7]]]
    """
    ranks, multiple = checked_count("ranks", ranks), checked_count("multiple", multiple)
    copies = checked_count("copies", copies)
    bins = next_fit(tokens, max_tokens)
    wanted = -(-len(bins) // (ranks * multiple)) * ranks * multiple
    if len(tokens) < wanted:
        raise ConfigError(
            f"are not enough: {wanted} packs are needed for {ranks} ranks",
            field="samples",
            value=len(tokens),
            cure="Give more samples a step, or use fewer ranks.",
        )
    first_packs = len(bins)
    while len(bins) < wanted:
        at = max(k for k in range(first_packs) if len(bins[k]) > 1)
        bins.append([bins[at].pop()])
    return [[bins[m + r] for r in range(ranks) for _ in range(copies)] for m in range(0, len(bins), ranks)]


def _steps(rollout_ids: Sequence[int] | np.ndarray, batch_size: int) -> tuple[list[list[int]], list[int]]:
    """Samples of each full step of so many rollouts, in order of arrival, and those that are left."""
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_ids.tolist() if isinstance(rollout_ids, np.ndarray) else rollout_ids):
        rollouts.setdefault(rollout, []).append(sample)
    groups = list(rollouts.values())
    full = len(groups) // batch_size * batch_size
    steps = [sorted(i for g in groups[a : a + batch_size] for i in g) for a in range(0, full, batch_size)]
    return steps, sorted(i for g in groups[full:] for i in g)
