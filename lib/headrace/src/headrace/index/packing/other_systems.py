"""Packing as other systems do it, item by item equal, for those who come from there and compare.

ms-swift packs samples in groups of 1000 that arrive at a process, and carries the last pack over: its plan depends on
the number of processes, which :func:`~headrace.index.packing.plan.plan_packs` does not. CoordExp's plans are
``plan_packs(..., "bfd" or "wfd", "error")``, whose ``json_checksum`` is CoordExp's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from headrace.errors import ConfigError
from headrace.index.balance import next_fit
from headrace.index.packing.fit_decreasing import fit_decreasing, stable_order
from headrace.index.packing.items import check_lengths

Bins = list[list[int]]


def matched_groups(
    lengths: Sequence[int],
    capacity: int,
    *,
    strategy: Literal["binpack", "sequential"] = "binpack",
    fit: Literal["best", "worst"] = "worst",
    finished: bool = True,
) -> tuple[Bins, list[int]]:
    """ms-swift's packs of one group of samples.

    Args:
        lengths: Tokens of each sample, at most ``capacity``.
        capacity: Tokens of a pack.
        strategy: ``binpack``, or ``sequential`` for next fit.
        fit: How ``binpack`` chooses: ``best`` up to version 1.5.2 of ``binpacking``, ``worst`` since 2.0.
        finished: Whether no samples follow; otherwise the last pack is carried over.

    Returns:
        Samples of each pack, in the order in which they were put there; and the samples that are carried.

    Raises:
        ConfigError: a sample is longer than a pack.

    Example:
        >>> matched_groups([4, 8, 1, 4, 2, 1], 10)
        ([[1, 4], [0, 3, 2, 5]], [])
    """
    sizes = check_lengths(lengths)
    if sizes.size and int(sizes.max()) > capacity:
        at = int(sizes.argmax())
        raise ConfigError(f"is longer than a pack of {capacity} tokens", field=f"lengths[{at}]", value=int(sizes[at]))
    if strategy == "sequential":
        packs = next_fit(sizes, capacity)
    else:
        order = stable_order(sizes.max(initial=0) - sizes)
        bin_of = fit_decreasing(sizes, capacity, worst=fit == "worst")[order]
        by_bin = order[stable_order(bin_of)]
        ends = np.cumsum(np.bincount(bin_of)).tolist() if sizes.size else []
        packs = [by_bin[a:b].tolist() for a, b in zip([0, *ends[:-1]], ends, strict=False)]
    return (packs, []) if finished or not packs else (packs[:-1], packs[-1])


def rl_bins(lengths: Sequence[int], bin_size: int, *, max_sequences: int = 16, multiple: int = 1) -> tuple[Bins, Bins]:
    """Megatron-RL's bins of rollouts: the longest first, each bin closed by the first rollout that does not fit.

    Args:
        lengths: Tokens of each rollout.
        bin_size: Tokens of a bin.
        max_sequences: Rollouts of a bin, at most.
        multiple: A rollout takes a multiple of so many tokens.

    Returns:
        Rollouts of each bin; and where each begins in it, with the end of the last.

    Raises:
        ConfigError: a rollout is longer than a bin.

    Example:
        >>> rl_bins([3, 7, 2, 5, 5, 1], 8)
        ([[1], [3], [4, 0], [2, 5]], [[0, 7], [0, 5], [0, 5, 8], [0, 2, 3]])
    """
    sizes = check_lengths(lengths)
    slots = -(-sizes // multiple) * multiple
    if slots.size and int(slots.max()) > bin_size:
        at = int(slots.argmax())
        raise ConfigError(f"does not fit a bin of {bin_size} tokens", field=f"lengths[{at}]", value=int(sizes[at]))
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
