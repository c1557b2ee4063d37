"""Assigns the samples of a step to ranks and micro-batches, by the rules of slime, Megatron-LM and
ms-swift.

Invariant: all ranks have the same number of micro-batches in a step, and no micro-batch exceeds the
cap unless it is a single sample that does.

ms-swift packs samples in groups of 1000 that arrive at a process, and carries the last pack over,
so its plan depends on the number of processes; :func:`~headrace.pack.plan.plan_packs` does not.
CoordExp's plans are ``plan_packs(..., "bfd" or "wfd", "error")``, whose ``json_checksum`` is
CoordExp's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.batch.balance import (
    Bins,
    Costs,
    capped_partitions,
    costs_of,
    first_fit,
    karmarkar_karp,
)
from headrace.batch.sample_numbers import check_one_each, checked_count, checked_tokens
from headrace.errors import ConfigError
from headrace.pack.fit_decreasing import fit_decreasing, stable_order
from headrace.pack.items import check_lengths
from headrace_posttrain.ranks.bins import next_fit, split_bins


@dataclass(frozen=True)
class DpSchedule:
    """Samples of some steps, by rank.

    Attributes:
        samples: Samples of each rank, in the order in which it trains on them.
        micro_batches: For each rank, positions in its ``samples``; the micro-batches of all steps
            in order.
        num_micro_batches: Micro-batches per rank in each step.
        batch_sizes: Rollouts of each step.
        dropped: Samples at the end that do not fill a step.
    """

    samples: list[list[int]]
    micro_batches: list[Bins]
    num_micro_batches: list[int]
    batch_sizes: list[int]
    dropped: list[int]


@dataclass(frozen=True)
class Balance:
    """What to balance, and by which cost.

    Attributes:
        costs: Cost of each sample, or a function from their tokens to costs; None: their tokens.
        ranks: Whether ranks get micro-batches of equal cost rather than every ``ranks``-th.
        micro_batches: Whether micro-batches have equal cost rather than being full.
        capped: Whether those of equal cost still respect the cap; slime's do not
            (``balance_by_flops``).
    """

    costs: Costs = None
    ranks: bool = False
    micro_batches: bool = False
    capped: bool = True


def dp_schedule(
    tokens: Sequence[int] | np.ndarray,
    rollout_ids: Sequence[int] | np.ndarray,
    *,
    batch_size: int,
    ranks: int,
    max_tokens: int | None = None,
    micro_batch_size: int | None = None,
    balance: Balance | None = None,
    multiple: int = 1,
) -> DpSchedule:
    """Steps of ``batch_size`` rollouts, cut into micro-batches and assigned to ranks, as in slime.

    Samples of one rollout stay in one step. Micro-batches are packed first-fit in the order of
    arrival, or with ``Balance.micro_batches`` by cost, under the cap unless ``Balance.capped`` is
    False.

    Args:
        tokens: Tokens of each sample.
        rollout_ids: Rollout of each sample, in order of arrival.
        batch_size: Rollouts per step.
        ranks: Data-parallel ranks.
        max_tokens: Tokens per micro-batch, over all context-parallel ranks.
        micro_batch_size: Samples per micro-batch, instead of ``max_tokens``.
        balance: What to balance; None: nothing.
        multiple: The number of micro-batches per rank and step is a multiple of this (interleaved
            pipelines).

    Raises:
        ConfigError: no size or both sizes are given; too few samples for all ranks; not one rollout
            or cost per sample; a count below 1.

    Example:
        >>> schedule = dp_schedule(
        ...     [3, 5, 4, 6, 2], [0, 1, 2, 3, 4], batch_size=4, ranks=2, max_tokens=8
        ... )
        >>> schedule.samples, schedule.micro_batches, schedule.dropped
        ([[1, 3], [2, 0]], [[[0], [1]], [[0], [1]]], [4])
    """
    if (max_tokens is None) == (micro_batch_size is None):
        raise ConfigError(
            "give one of max_tokens and micro_batch_size", field="max_tokens", value=max_tokens
        )
    ranks = checked_count("ranks", ranks)
    multiple = checked_count("multiple", multiple)
    batch_size = checked_count("batch_size", batch_size)
    if max_tokens is not None:
        max_tokens = checked_count("max_tokens", max_tokens)
    if micro_batch_size is not None:
        micro_batch_size = checked_count("micro_batch_size", micro_batch_size)
    balance = balance or Balance()
    checked = checked_tokens(tokens)
    lengths = checked.tolist()
    values = costs_of(balance.costs, checked)
    check_one_each("rollout_ids", len(rollout_ids), len(lengths))
    steps, dropped = _steps(rollout_ids, batch_size)
    samples: list[list[int]] = [[] for _ in range(ranks)]
    batches: list[Bins] = [[] for _ in range(ranks)]
    counts: list[int] = []
    for step in steps:
        sizes = [lengths[i] for i in step]
        if max_tokens is None:
            assert micro_batch_size is not None
            bins = [
                list(range(a, min(a + micro_batch_size, len(step))))
                for a in range(0, len(step), micro_batch_size)
            ]
        elif balance.micro_batches and not balance.capped:
            number = -(-sum(sizes) // max_tokens)
            costs = [values[i] for i in step]
            bins = (
                karmarkar_karp(costs, number)
                if number < len(step)
                else [[i] for i in range(len(step))]
            )
        elif balance.micro_batches:
            bins = capped_partitions(
                [values[i] for i in step], sizes, max_tokens, multiple=ranks * multiple
            )
        else:
            bins = first_fit(sizes, max_tokens)
        bins = split_bins(sizes, bins, -(-len(bins) // (ranks * multiple)) * ranks * multiple)
        counts.append(len(bins) // ranks)
        if balance.ranks:
            owned = karmarkar_karp(
                [sum(values[step[i]] for i in b) for b in bins], ranks, equal_size=True
            )
        else:
            owned = [list(range(r, len(bins), ranks)) for r in range(ranks)]
        for rank, own_bins in enumerate(owned):
            for b in own_bins:
                at = len(samples[rank])
                samples[rank] += [step[i] for i in bins[b]]
                batches[rank].append(list(range(at, len(samples[rank]))))
    return DpSchedule(samples, batches, counts, [batch_size] * len(steps), dropped)


def dp_balanced_packing(
    tokens: Sequence[int] | np.ndarray,
    max_tokens: int,
    *,
    ranks: int,
    copies: int = 1,
    multiple: int = 1,
) -> list[Bins]:
    """Packs for every micro-batch and rank: next fit in order of arrival, as in Megatron-LM's
    balanced scheduler.

    If packs do not divide evenly, the last sample of the last pack with several becomes a pack of
    its own, until they do.

    Args:
        tokens: Tokens of each sample.
        max_tokens: Tokens per pack, over all context-parallel ranks.
        ranks: Data-parallel ranks.
        copies: Context-parallel ranks: this many neighbours get the same pack.
        multiple: The number of packs per rank is a multiple of this (interleaved pipelines).

    Returns:
        Samples, by micro-batch and rank.

    Raises:
        ConfigError: there are fewer samples than packs needed; a count below 1.

    Example:
        >>> dp_balanced_packing([5, 9, 3, 3, 7, 2, 8, 1], 10, ranks=2)
        [[[0], [1]], [[2, 3], [4, 5]], [[6], [7]]]
    """
    ranks = checked_count("ranks", ranks)
    multiple = checked_count("multiple", multiple)
    copies = checked_count("copies", copies)
    bins = next_fit(tokens, max_tokens)
    target = -(-len(bins) // (ranks * multiple)) * ranks * multiple
    if len(tokens) < target:
        raise ConfigError(
            f"are not enough: {target} packs are needed for {ranks} ranks",
            field="samples",
            value=len(tokens),
            cure="Give more samples a step, or use fewer ranks.",
        )
    first_packs = len(bins)
    while len(bins) < target:
        at = max(k for k in range(first_packs) if len(bins[k]) > 1)
        bins.append([bins[at].pop()])
    return [
        [bins[m + r] for r in range(ranks) for _ in range(copies)]
        for m in range(0, len(bins), ranks)
    ]


def _steps(
    rollout_ids: Sequence[int] | np.ndarray, batch_size: int
) -> tuple[list[list[int]], list[int]]:
    """Samples of each full step of this many rollouts, rollout by rollout, and the samples left
    over.
    """
    rollouts: dict[int, list[int]] = {}
    for sample, rollout in enumerate(
        rollout_ids.tolist() if isinstance(rollout_ids, np.ndarray) else rollout_ids
    ):
        rollouts.setdefault(rollout, []).append(sample)
    groups = list(rollouts.values())
    full = len(groups) // batch_size * batch_size
    steps = [[i for g in groups[a : a + batch_size] for i in g] for a in range(0, full, batch_size)]
    return steps, sorted(i for g in groups[full:] for i in g)


def matched_groups(
    lengths: Sequence[int],
    capacity: int,
    *,
    strategy: Literal["binpack", "sequential"] = "binpack",
    fit: Literal["best", "worst"] = "worst",
    finished: bool = True,
) -> tuple[Bins, list[int]]:
    """ms-swift's packs of one group of samples, and the samples carried over: the last pack, unless
    ``finished``.

    ``binpack`` is best fit up to ``binpacking`` 1.5.2 and worst fit since 2.0; ``sequential`` is
    next fit. A sample longer than a pack is a ConfigError.

    Example:
        >>> matched_groups([4, 8, 1, 4, 2, 1], 10)
        ([[1, 4], [0, 3, 2, 5]], [])
    """
    sizes = check_lengths(lengths)
    if sizes.size and int(sizes.max()) > capacity:
        at = int(sizes.argmax())
        raise ConfigError(
            f"is longer than a pack of {capacity} tokens",
            field=f"lengths[{at}]",
            value=int(sizes[at]),
        )
    if strategy == "sequential":
        packs = next_fit(sizes, capacity)
    else:
        order = stable_order(sizes.max(initial=0) - sizes)
        bin_of = fit_decreasing(sizes, capacity, worst=fit == "worst")[order]
        by_bin = order[stable_order(bin_of)]
        ends = np.cumsum(np.bincount(bin_of)).tolist() if sizes.size else []
        packs = [by_bin[a:b].tolist() for a, b in zip([0, *ends[:-1]], ends, strict=False)]
    return (packs, []) if finished or not packs else (packs[:-1], packs[-1])


def rl_bins(
    lengths: Sequence[int], bin_size: int, *, max_sequences: int = 16, multiple: int = 1
) -> tuple[Bins, Bins]:
    """Megatron-RL's bins of rollouts: longest first; the first rollout that does not fit closes a
    bin.

    A rollout takes a multiple of ``multiple`` tokens; one longer than a bin is a ConfigError.
    Returns the rollouts of each bin, and where each begins in it, followed by the end of the last.

    Example:
        >>> rl_bins([3, 7, 2, 5, 5, 1], 8)
        ([[1], [3], [4, 0], [2, 5]], [[0, 7], [0, 5], [0, 5, 8], [0, 2, 3]])
    """
    sizes = check_lengths(lengths)
    slots = -(-sizes // multiple) * multiple
    if slots.size and int(slots.max()) > bin_size:
        at = int(slots.argmax())
        raise ConfigError(
            f"does not fit a bin of {bin_size} tokens", field=f"lengths[{at}]", value=int(sizes[at])
        )
    bins: Bins = []
    starts: Bins = []
    for item in stable_order(sizes.max(initial=0) - sizes).tolist():
        slot = int(slots[item])
        if not bins or starts[-1][-1] + slot > bin_size or len(bins[-1]) == max_sequences:
            bins.append([])
            starts.append([0])
        bins[-1].append(item)
        starts[-1].append(starts[-1][-1] + slot)
    return bins, starts
