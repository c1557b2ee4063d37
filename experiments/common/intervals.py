"""The share of a variance that is between blocks, with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError

_Z_975 = 1.959963984540054


@dataclass(frozen=True)
class BlockShare:
    """The share of a variance that is between blocks.

    Attributes:
        icc: Variance between blocks / total variance. 0: rows of a block differ as much as any; 1:
            they are equal. May come out slightly below 0.
        low: Lower end of its 95 % confidence interval.
        high: Upper end.
        between: Variance between blocks, in squares of the value.
        within: Variance within blocks.
        blocks: Blocks seen.
        rows: Rows seen.
    """

    icc: float
    low: float
    high: float
    between: float
    within: float
    blocks: int
    rows: int


def between_block_share(
    values: Float64[np.ndarray, " n"], block: Int64[np.ndarray, " n"]
) -> BlockShare:
    """ICC(1) by one-way analysis of variance, for blocks of any sizes.

    The interval is a jackknife of log F over blocks, so values need not be normal.

    Args:
        values: One value per row, for example its loss.
        block: The block of each row, any numbers.

    Raises:
        ConfigError: values that are not finite, lengths that differ, fewer than three blocks, no
            block with two rows.

    Example:
        >>> between_block_share(
        ...     np.array([1.0, 1.1, 5.0, 5.1, 9.0, 9.1]), np.array([0, 0, 1, 1, 2, 2])
        ... ).icc > 0.99
        True
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ConfigError("are not one finite number per row", field="values", value=values.shape)
    block = np.asarray(block)
    if block.shape != values.shape:
        raise ConfigError(f"has {block.size} entries for {values.size} values", field="block")
    _, member, size = np.unique(block, return_inverse=True, return_counts=True)
    k = size.size
    n = values.size
    if k < 3 or n == k:
        raise ConfigError(
            f"{k} with {n} rows in all are too few to tell what lies between and what within",
            field="blocks",
            cure="Give three blocks or more, and two rows of some.",
        )
    centred = values - values.mean()
    mean = np.bincount(member, centred, k) / size
    inner = np.bincount(member, np.square(centred - mean[member]), k)
    mean_between, mean_within, rows = _mean_squares(size, mean, inner)
    between = float((mean_between - mean_within) / rows)
    within_blocks = float(mean_within)
    if between + within_blocks <= 0.0:  # all values equal
        return BlockShare(0.0, 0.0, 0.0, 0.0, 0.0, k, n)
    icc = between / (between + within_blocks)
    without = _without_each(size, mean, inner)
    if within_blocks == 0.0 or not np.isfinite(without).all():
        return BlockShare(icc, icc, icc, between, within_blocks, k, n)
    spread = _Z_975 * float(np.sqrt((k - 1) * np.var(without)))
    low, high = (
        _share_of(mean_between / mean_within * np.exp(sign * spread), rows) for sign in (-1, 1)
    )
    return BlockShare(icc, low, high, between, within_blocks, k, n)


def _mean_squares(
    size: np.ndarray, mean: np.ndarray, inner: np.ndarray
) -> tuple[float, float, float]:
    """Mean squares between and within blocks, the effective rows per block, and the means of
    centred values.
    """
    k = size.size
    n = float(size.sum())
    outer = float((size * np.square(mean)).sum() - np.square((size * mean).sum()) / n)
    return (
        outer / (k - 1),
        float(inner.sum()) / (n - k),
        (n - float(np.square(size).sum()) / n) / (k - 1),
    )


def _without_each(
    size: np.ndarray, mean: np.ndarray, inner: np.ndarray
) -> Float64[np.ndarray, " k"]:
    """Logarithm of F with each block left out in turn; not finite if nothing within or between
    blocks remains.
    """
    k = size.size
    n = float(size.sum())
    remaining = n - size
    outer = (size * np.square(mean)).sum() - size * np.square(mean)
    outer = outer - np.square((size * mean).sum() - size * mean) / remaining
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log((outer / (k - 2)) / ((inner.sum() - inner) / (remaining - (k - 1))))


def _share_of(f: float, rows: float) -> float:
    return float((f - 1) / (f - 1 + rows))
