"""``level_ranks``: moves or swaps samples between ranks, one at a time, until the ranks' costs are
as equal as possible.

Karmarkar and Karp's method makes micro-batches of equal cost if the cap on tokens allows it; when
they are dealt to ranks, their remaining differences add up, to a third of a rank's cost at worst.
So the most costly rank gives a sample to another rank, or swaps it for a cheaper one, whichever
brings the two closest, as long as both still fit into as many micro-batches as before. With few
samples all assignments are tried.

Price: a few milliseconds for a step of a thousand samples; nothing if ranks are equal to a
thousandth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.batch.balance import Bins, cheapest_with_room, first_fit
from headrace.batch.sample_numbers import checked_costs, checked_tokens

_ENOUGH = 1.001  # times the mean
_MOST_EXCHANGES = 64
_MOST_TRIES = 16
_FEW_SAMPLES = 12
_MOST_NODES = 20_000
_UNITS = 2**40  # of the largest cost: sums are then exact, and identical on every machine

_Fit = Callable[[list[int]], Bins | None]


def level_ranks(
    ranks: Sequence[Bins],
    costs: Sequence[Any] | np.ndarray,
    tokens: Sequence[int] | np.ndarray,
    max_tokens: int,
) -> list[Bins]:
    """Exchanges samples between ranks so that the most costly rank costs less.

    Args:
        ranks: Samples by rank and micro-batch, as from
            :func:`~headrace.batch.balance.micro_batches`.
        costs: Cost of each sample.
        tokens: Tokens of each sample.
        max_tokens: Most tokens in a micro-batch.

    Returns:
        Equally many micro-batches of each rank, the most costly first; ``ranks`` itself if nothing
        can be gained.

    Example:
        >>> ranks = [[[0], [3]], [[1], [2]]]  # they cost 12 and 6
        >>> level_ranks(ranks, [8, 3, 3, 4], [2, 1, 1, 1], 2)  # 7 and 11
        [[[3], [1]], [[0], [2]]]
    """
    sizes = checked_tokens(tokens).tolist()
    sample_costs = np.asarray(checked_costs(costs), np.float64)
    units = np.floor(
        sample_costs / max(float(sample_costs.max(initial=0.0)), 1e-300) * _UNITS
    ).astype(np.int64)
    height = len(ranks[0])
    bins = [list(of_rank) for of_rank in ranks]

    def fit(samples: list[int]) -> Bins | None:
        return _fit(samples, units, sizes, max_tokens, height)

    for _ in range(_MOST_EXCHANGES):
        load = [sum(int(units[b].sum()) for b in of_rank) for of_rank in bins]
        if max(load) * len(load) <= _ENOUGH * sum(load):
            return bins
        better = _exchanged(bins, load, units, fit)
        if better is None:
            break
        bins = better
    return _searched(bins, units, fit) if len(sizes) <= _FEW_SAMPLES else bins


def _exchanged(
    bins: list[Bins], load: list[int], units: Int64[np.ndarray, " n"], fit: _Fit
) -> list[Bins] | None:
    """The bins after the best exchange of the costliest rank with another; None if no exchange that
    fits is better.
    """
    samples = [sorted(i for b in of_rank for i in b) for of_rank in bins]
    heavy = load.index(max(load))
    others = [r for r in range(len(bins)) if r != heavy]
    candidates = [
        (r, i) for r in others for i in (-1, *samples[r])
    ]  # -1: nothing is given in return
    back = np.array([0 if i < 0 else int(units[i]) for _, i in candidates])
    less = units[samples[heavy]][:, None] - back
    new_load = np.maximum(
        load[heavy] - less, np.array([load[r] for r, _ in candidates]) + less
    ).ravel()
    tries = min(_MOST_TRIES, new_load.size)
    chosen = np.flatnonzero(
        (new_load <= np.partition(new_load, tries - 1)[tries - 1]) & (new_load < load[heavy])
    )
    for at in chosen[np.argsort(new_load[chosen], kind="stable")][:tries].tolist():
        sent = samples[heavy][at // len(candidates)]
        (rank, received) = candidates[at % len(candidates)]
        came = set() if received < 0 else {received}
        new_own = fit(sorted({*samples[heavy]} - {sent} | came))
        other = fit(sorted({*samples[rank], sent} - came))
        if new_own is not None and other is not None:
            changed = {heavy: new_own, rank: other}
            return [changed.get(r, of_rank) for r, of_rank in enumerate(bins)]
    return None


def _searched(bins: list[Bins], units: Int64[np.ndarray, " n"], fit: _Fit) -> list[Bins]:
    """The best assignment, or the best found by a bounded search; the costliest samples are placed
    first.
    """
    order = sorted(
        (i for of_rank in bins for b in of_rank for i in b), key=lambda i: (-int(units[i]), i)
    )
    best = bins
    most = max(sum(int(units[b].sum()) for b in of_rank) for of_rank in bins)
    chosen: list[list[int]] = [[] for _ in bins]
    load = [0] * len(bins)
    nodes = 0

    def assign_from(depth: int) -> None:
        nonlocal best, most, nodes
        nodes += 1
        if depth == len(order):
            fitted = [fit(sorted(samples)) for samples in chosen]
            if all(of_rank is not None for of_rank in fitted):
                best = [of_rank or [] for of_rank in fitted]
                most = max(load)
            return
        sample = order[depth]
        first_empty = next((r for r, samples in enumerate(chosen) if not samples), len(chosen))
        for rank in range(min(first_empty + 1, len(chosen))):  # empty ranks are all equivalent
            if load[rank] + int(units[sample]) < most and nodes < _MOST_NODES:
                chosen[rank].append(sample)
                load[rank] += int(units[sample])
                assign_from(depth + 1)
                load[rank] -= int(units[sample])
                chosen[rank].pop()

    assign_from(0)
    return best


def _fit(
    samples: list[int], units: Int64[np.ndarray, " n"], sizes: list[int], cap: int, height: int
) -> Bins | None:
    """Samples in this many micro-batches of nearly equal cost, none empty or above the cap; None if
    none was found.
    """
    if len(samples) < height:
        return None
    tokens = [sizes[i] for i in samples]
    bins = cheapest_with_room(units[samples].tolist(), tokens, cap, height)
    if bins is None:  # then as full as possible
        order = sorted(range(len(samples)), key=lambda k: (-tokens[k], k))
        bins = [[order[k] for k in b] for b in first_fit([tokens[k] for k in order], cap)]
        while len(bins) < height:
            bins.append([max(bins, key=len).pop()])
        if len(bins) > height:
            return None
    filled_bins = [sorted(samples[k] for k in b) for b in bins]
    return sorted(filled_bins, key=lambda b: (-int(units[b].sum()), b))
