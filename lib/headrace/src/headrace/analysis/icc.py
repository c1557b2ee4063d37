"""How similar neighbouring rows are, and what that means for the batches of an order.

Give each row a value, such as its loss. If rows of one block resemble each other (a book, one
language, one source of a corpus that was written source by source), a part of the variance is
between blocks: the intraclass correlation, ICC (Searle, Casella and McCulloch 1992, *Variance
Components*, chapter 3). An order that puts neighbours into one batch then has batches whose means
vary more than in a full shuffle, by ``1 + ICC (VR - 1)``, with VR from :func:`variance_ratio`. The
loss it costs depends on all the batches in the optimiser's memory: :mod:`headrace.analysis.excess`.
If there is no variance between blocks, any order will do. (Displacement, inversions and rank
correlation cannot tell a good order from one in which every batch is a single block.)

Blocks may resemble their neighbours too, so :func:`nested_shares` examines several lengths at once:
rows in blocks, blocks in stretches of blocks, and so on. Each length has its own share of the
variance and its own VR, and :func:`batch_noise` adds them up.

Invariant: for values that are sums of independent effects of these lengths and of each row,
estimated variances are unbiased (they may come out below 0: read that as 0). Price: a few passes,
50 ns per row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, check_at_least


def nested_shares(values: Float64[np.ndarray, " n"], units: tuple[int, ...]) -> dict[int, float]:
    """The share of the variance contributed by each neighbourhood length.

    Nested analysis of variance with equal sizes: rows in units of ``units[0]``, these in units of
    ``units[1]``, and so on. Rows after the last full unit are left out. The rows' own share is 1
    minus the sum.

    Args:
        values: One value per row, in stored order (or sampled in whole units of the largest size).
        units: Rows per unit, ascending, each a multiple of the one before.

    Returns:
        Shares by unit, negative estimates as 0. The ICC of a unit is its share and those of all
        larger ones.

    Raises:
        ConfigError: sizes that do not nest, fewer than two units of the largest size, values that
            are not finite.

    Example:
        >>> values = np.repeat(
        ...     [0.0, 1.0, 0.0, 1.0], 4
        ... )  # pairs of rows are alike because groups of four are
        >>> nested_shares(values, (2, 4))
        {2: 0.0, 4: 1.0}
    """
    values = _checked(values)
    sizes = (1, *units)
    if any(large % small or large == small for small, large in zip(sizes, units, strict=False)):
        raise ConfigError("do not nest", field="units", value=units, cure="E.g. (16, 64, 256).")
    top = values.size // units[-1]
    if top < 2:
        raise ConfigError(
            f"{top} units of {units[-1]} rows are too few",
            field="values",
            cure="Give more rows, or smaller units.",
        )
    means = values[: top * units[-1]] - values[: top * units[-1]].mean()
    squares: list[float] = []  # mean square at each length, rows first
    for small, large in zip(sizes, units, strict=False):
        above = means.reshape(-1, large // small).mean(axis=1)
        freedom = means.size - above.size
        squares.append(
            small * float(np.square(means - np.repeat(above, large // small)).sum()) / freedom
        )
        means = above
    squares.append(units[-1] * float(np.square(means).sum()) / (top - 1))
    parts = [squares[0], *((squares[k + 1] - squares[k]) / unit for k, unit in enumerate(units))]
    positive = np.maximum(parts, 0.0)
    total = float(positive.sum())
    return {
        unit: float(part) / total if total > 0 else 0.0
        for unit, part in zip(units, positive[1:], strict=True)
    }


def variance_ratio(order: Int64[np.ndarray, " n"], window: int, unit: int) -> float:
    """``VR_w``: variance over windows of the mean of a per-unit value, relative to a full shuffle.

    Rows ``u * unit .. (u + 1) * unit - 1`` of the store are a *correlation unit*: they share a
    value ``g_u`` (think of how hard a document is), independent between units. For windows of
    ``window`` consecutive examples from the start, without the last partial one, let ``c_wu`` be
    the number of rows of unit u in window w. The variance of the windows' means is then, in
    expectation over ``g``, proportional to ``sum_wu (c_wu - window * p_u)**2``, with ``p_u`` the
    share of unit u. This is divided by its expectation under a full shuffle (the hypergeometric
    variance), so no random values are drawn and a full shuffle gives 1 on average.

    Args:
        order: Rows in the order seen, non-negative.
        window: Examples in a window, for example the batch size B, 8 B, 64 B.
        unit: Rows in a correlation unit.

    Returns:
        Non-negative; below 1 where the order spreads units more evenly than chance; NaN with less
        than one window or where a window is the whole order or all rows are of one unit.

    Raises:
        ConfigError: ``window`` or ``unit`` below 1.

    Example:
        >>> n = 64
        >>> round(variance_ratio(np.arange(n), window=8, unit=8), 6)  # each window is one unit
        9.0
        >>> variance_ratio(
        ...     np.arange(n).reshape(8, 8).T.ravel(), window=8, unit=8
        ... )  # one row of each
        0.0
    """
    for name, value in (("window", window), ("unit", unit)):
        check_at_least(name, value, cure="Count in examples.")
    windows = order.size // window
    if windows < 1 or window >= order.size:
        return float("nan")
    of_unit = order // unit
    of_window = np.repeat(np.arange(windows), window)
    return ratio_of_windows(of_unit, np.zeros_like(of_unit), of_window)


def ratio_of_windows(
    block: Int64[np.ndarray, " n"],
    source: Int64[np.ndarray, " n"],
    window: Int64[np.ndarray, " m"],
    alike_pairs: Float64[np.ndarray, " s"] | None = None,
) -> float:
    """The variance of a window's mean of a value that is the same within a block and independent
    between blocks, relative to that of rows drawn at random from the same sources.

    Block b, a share ``q_b`` of all N_s rows of its source, has ``c_wb`` of the ``n_ws`` rows that
    window w draws from source s, of which all windows draw M_s. ``sum (c_wb - n_ws q_b)**2`` is
    divided by its average for rows drawn at random, ``sum_s (1 - sum_b q_b**2) N_s / (N_s - 1) (M_s
    - sum_w n_ws**2 / N_s)``, so few blocks in a source, or changing shares, do not count against
    the order.

    Args:
        block: The block of each row, in the order seen.
        source: Its source.
        window: The window of each row, ascending; rows after the last window count as rows of
            their blocks only.
        alike_pairs: The share of a block's pairs of rows that have the same value, by source; None:
            1 (:mod:`headrace.analysis.long_documents`).

    Returns:
        Non-negative; NaN if every source is one block or one window.
    """
    # 1. Which share of its source each block is.
    rows_of_source = np.maximum(np.bincount(source), 1)
    rows_of_block = np.bincount(block)
    source_of_block = np.zeros(rows_of_block.size, np.int64)
    source_of_block[block] = source
    share = rows_of_block / rows_of_source[source_of_block]
    alike = np.bincount(source_of_block, share**2, rows_of_source.size)  # sum of q_b**2, by source
    # 2. The rows of each source in each window, and of each block, of which only those that occur
    #    are listed: sum (c - n q)**2 = sum c**2 - 2 sum c n q + sum n**2 q**2.
    windows = int(window[-1]) + 1
    in_window = np.bincount(
        window * rows_of_source.size + source[: window.size],
        minlength=windows * rows_of_source.size,
    ).reshape(windows, -1)
    cells = np.sort(window * rows_of_block.size + block[: window.size])
    ends = np.append(np.flatnonzero(np.diff(cells)), cells.size - 1)
    rows_of_cell = np.diff(ends, prepend=-1).astype(float)
    of_block = cells[ends] % rows_of_block.size
    of_window = cells[ends] // rows_of_block.size
    usual = in_window[of_window, source_of_block[of_block]] * share[of_block]
    unlike = rows_of_cell**2 - 2.0 * rows_of_cell * usual
    squares = (in_window.astype(float) ** 2).sum(axis=0)
    scatter = float(unlike.sum() + (squares * alike).sum())
    # 3. The same of rows drawn at random.
    drawn = np.maximum(in_window.sum(axis=0), 1)
    at_random = (
        (1 - alike)
        * rows_of_source
        / np.maximum(rows_of_source - 1, 1)
        * (drawn - squares / rows_of_source)
    )
    total = float(at_random.sum())
    # 4. Less, if not all rows of a block are alike.
    if alike_pairs is not None:
        of_cells = np.bincount(source_of_block[of_block], unlike, minlength=at_random.size)
        excess = of_cells + squares * alike - at_random
        scatter -= float(((1 - alike_pairs[: excess.size]) * excess).sum())
    return max(0.0, scatter / total) if total > 1e-9 else float("nan")


def batch_noise(order: Int64[np.ndarray, " n"], window: int, shares: Mapping[int, float]) -> float:
    """Variance of the means of batches, relative to a full shuffle.

    Args:
        order: Rows in the order seen.
        window: Examples in a batch.
        shares: Share of the variance by neighbourhood length, as from :func:`nested_shares`.

    Returns:
        ``1 + sum share (VR - 1)``: 1 is a full shuffle; 4 means batches as noisy as those of a
            quarter of the size.

    Example:
        >>> noise = batch_noise(np.arange(64), 8, {8: 0.5})
        >>> round(noise, 6)  # every batch is a block; half of the variance is between blocks
        5.0
    """
    noise = 1.0
    for unit, share in shares.items():
        ratio = variance_ratio(order, window, unit) if share > 0 else 1.0
        if np.isfinite(ratio):
            noise += share * (ratio - 1.0)
    return noise


def _checked(values: np.ndarray) -> Float64[np.ndarray, " n"]:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ConfigError(
            "are not one finite number per row",
            field="values",
            value=values.shape,
            cure="Give a vector without NaN.",
        )
    return values
