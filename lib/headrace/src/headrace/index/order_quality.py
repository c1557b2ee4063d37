"""How good an order is: the metrics of the blockwise-shuffle study (marin issue 2917), and one that predicts loss.

An *order* is the int64 vector of rows in the order in which a run sees them, usually a permutation of ``range(n)``.

Displacement, inversions and rank correlation say whether the order is spread over the whole corpus. They cannot tell a
good order from one in which every batch is a single block. :func:`variance_ratio` can: it is the variance of a window's
mean when neighbouring rows resemble each other, relative to a full shuffle. With one-pass SGD, excess loss was seen to
follow ``1 + ICC * (VR_B - 1)``, where ICC is the share of the per-example loss variance that lies between blocks.

Price: sorts. All metrics of a million rows take about two seconds.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError


def mean_abs_displacement_norm(order: Int64[np.ndarray, " n"]) -> float:
    """Mean of ``|order[p] - p|`` over ``n - 1``; 1/3 for a full shuffle, 0 for none.

    Example:
        >>> mean_abs_displacement_norm(np.array([2, 1, 0]))
        0.6666666666666666
    """
    n = order.size
    return float(np.abs(order - np.arange(n)).mean() / max(1, n - 1)) if n else 0.0


def inversion_fraction(order: Int64[np.ndarray, " n"]) -> float:
    """Share of pairs that stand in the wrong order, counted exactly; 1/2 for a full shuffle, 0 for none.

    Merge counting by binary digits of the rank: one stable partition a digit, O(n log n), no Python loop over rows.
    Equal elements are never inverted.

    Example:
        >>> inversion_fraction(np.array([2, 1, 0]))
        1.0
        >>> inversion_fraction(np.array([1, 0, 2]))
        0.3333333333333333
    """
    n = order.size
    if n < 2:
        return 0.0
    rank = np.empty(n, np.int64)
    rank[np.argsort(order, kind="stable")] = np.arange(n)
    count = 0
    # Before digit k, rows with equal higher digits stand together, in their original order. Ranks are a permutation, so
    # the group of prefix g starts at row g << (k + 1).
    for k in range(int(n - 1).bit_length() - 1, -1, -1):
        one = (rank >> k) & 1
        group = (rank >> (k + 1)) << (k + 1)
        ones_before = np.cumsum(one) - one
        ones_before -= ones_before[group]
        zeros = one == 0
        count += int(ones_before[zeros].sum())
        place = np.where(zeros, np.arange(n) - ones_before, group + (1 << k) + ones_before)
        moved = np.empty_like(rank)
        moved[place] = rank
        rank = moved
    return count / (n * (n - 1) // 2)


def spearman_rho(order: Int64[np.ndarray, " n"]) -> float:
    """Rank correlation of position and row; 0 for a full shuffle, 1 for none.

    Example:
        >>> spearman_rho(np.array([0, 1, 2])), spearman_rho(np.array([2, 1, 0]))
        (1.0, -1.0)
    """
    n = order.size
    if n < 2:
        return 1.0
    rank = np.empty(n, np.float64)
    rank[np.argsort(order, kind="stable")] = np.arange(n)
    return float(1.0 - 6.0 * np.square(rank - np.arange(n)).sum() / (n * (float(n) * n - 1.0)))


def same_block_transition_rate(order: Int64[np.ndarray, " n"], block: int) -> float:
    """Share of successive rows that come from the same block; about ``block / n`` for a full shuffle.

    The definition of marin's table. Its 0.31 for era and block shuffle is *not* what a good permutation of a 1024-row
    window gives with this definition (127/1023 = 0.124): the surplus is a defect of the multiply-add Feistel rounds
    used there, which leave neighbours together; its 0.0107 for full shuffle, below the expected 0.0155, is the same.
    ``scripts/bench/bench_permutation_quality.py`` measures both.

    Example:
        >>> same_block_transition_rate(np.array([0, 1, 4, 5]), 4)
        0.6666666666666666
    """
    b = order // block
    return float((b[1:] == b[:-1]).mean()) if order.size > 1 else 0.0


def variance_ratio(order: Int64[np.ndarray, " n"], window: int, unit: int) -> float:
    """``VR_w``: variance over windows of the mean of a per-unit value, relative to a full shuffle.

    Rows ``u * unit .. (u + 1) * unit - 1`` of the store are a *correlation unit*: they share a value ``g_u`` (think of
    how hard a document is), independent between units. For windows of ``window`` consecutive examples, counted from the
    start, the last partial one left out, let ``c_wu`` be the number of rows of unit u in window w. The variance of the
    windows' means is then, in expectation over ``g``, proportional to ``sum_wu (c_wu - window * p_u)**2``, with ``p_u``
    the share of unit u. This is divided by its expectation under a full shuffle (the hypergeometric variance), so no
    random values are drawn and a full shuffle gives 1 on average.

    Args:
        order: Rows in the order seen, non-negative.
        window: Examples in a window, e.g. the batch size B, 8 B, 64 B.
        unit: Rows in a correlation unit.

    Returns:
        Non-negative; below 1 where the order spreads units more evenly than chance; NaN with less than one window or
        where a window is the whole order or all rows are of one unit.

    Raises:
        ConfigError: ``window`` or ``unit`` below 1.

    Example:
        >>> n = 64
        >>> variance_ratio(np.arange(n), window=8, unit=8)  # every window is one unit
        9.0
        >>> variance_ratio(np.arange(n).reshape(8, 8).T.ravel(), window=8, unit=8)  # one row of each
        0.0
    """
    for name, value in (("window", window), ("unit", unit)):
        if value < 1:
            raise ConfigError("must be at least 1", field=name, value=value, cure="Count in examples.")
    n = order.size
    windows = n // window
    if windows < 1 or window >= n:
        return float("nan")
    of_unit = order // unit
    units = int(of_unit.max()) + 1
    share = np.bincount(of_unit, minlength=units) / n
    scatter = float(np.square(share).sum())
    if scatter >= 1.0:
        return float("nan")
    covered = windows * window
    cell = np.sort(np.repeat(np.arange(windows), window) * units + of_unit[:covered])
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(first, append=covered).astype(np.float64)
    # sum (c - w p)^2 = sum c^2 - 2 w sum c p + windows w^2 sum p^2, with only the cells that occur listed
    p = share[cell[first] % units]
    measured = np.square(counts).sum() - 2.0 * window * (counts * p).sum() + windows * float(window) ** 2 * scatter
    expected = windows * window * (1.0 - scatter) * (n - window) / (n - 1)
    return max(0.0, float(measured / expected))


def mean_distinct_blocks(order: Int64[np.ndarray, " n"], window: int, block: int) -> float:
    """Mean number of blocks that a window touches (windows as in :func:`variance_ratio`).

    Example:
        >>> mean_distinct_blocks(np.arange(8), window=4, block=2)
        2.0
    """
    windows = order.size // window
    if windows == 0:
        return float("nan")
    b = np.sort((order[: windows * window] // block).reshape(windows, window), axis=1)
    return float((np.diff(b, axis=1) != 0).sum() / windows + 1)


@dataclasses.dataclass(frozen=True)
class OrderQuality:
    """The metrics of one order.

    Attributes:
        mean_abs_displacement_norm: 1/3 for a full shuffle.
        inversion_fraction: 1/2 for a full shuffle.
        spearman_rho: 0 for a full shuffle.
        same_block_transition_rate: High: consecutive examples come from one block.
        variance_ratio: VR_w by window w in examples; 1 for a full shuffle, high: correlated batches.
    """

    mean_abs_displacement_norm: float
    inversion_fraction: float
    spearman_rho: float
    same_block_transition_rate: float
    variance_ratio: dict[int, float]


def measure_order(
    order: Int64[np.ndarray, " n"], *, block: int, windows: tuple[int, ...] = (), unit: int | None = None
) -> OrderQuality:
    """All metrics of ``order``.

    Args:
        order: Rows in the order seen: a permutation of ``range(n)``.
        block: Rows in a stored block.
        windows: Window lengths for VR_w.
        unit: Rows in a correlation unit; None for a block.

    Example:
        >>> measure_order(np.arange(256), block=16, windows=(16,)).variance_ratio
        {16: 17.0}
    """
    return OrderQuality(
        mean_abs_displacement_norm=mean_abs_displacement_norm(order),
        inversion_fraction=inversion_fraction(order),
        spearman_rho=spearman_rho(order),
        same_block_transition_rate=same_block_transition_rate(order, block),
        variance_ratio={w: variance_ratio(order, w, unit or block) for w in windows},
    )


def expected_of_random(n: int, block: int) -> OrderQuality:
    """What a uniformly random permutation of ``range(n)`` gives on average.

    Example:
        >>> round(expected_of_random(8192, 128).same_block_transition_rate, 4)
        0.0155
    """
    sizes = np.full(-(-n // block), block, np.float64)
    if n % block:
        sizes[-1] = n % block
    same = float((sizes * (sizes - 1)).sum() / (float(n) * (n - 1))) if n > 1 else 0.0
    return OrderQuality((n + 1) / (3 * n) if n > 1 else 0.0, 0.5 if n > 1 else 0.0, 0.0, same, {})
