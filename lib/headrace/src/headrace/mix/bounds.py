"""Shares within bounds: a least and a greatest share for each source.

:func:`within` scales all weights by one factor and cuts each at its bounds, with the factor at
which the result sums to 1. The ratio of two sources that are not at a bound stays as it was.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from headrace.errors import ConfigError

_SMALLEST = 1e-12
_HALVINGS = 64
"""From factors of 1e-12 to 1e12 to the last bit of a double."""


def bounded_shares(
    weights: Float64[np.ndarray, "*n d"],
    least: Float64[np.ndarray, " d"],
    most: Float64[np.ndarray, " d"],
) -> Float64[np.ndarray, "*n d"]:
    """Shares in proportion to weights, as far as bounds allow.

    Args:
        weights: Not negative; they need not sum to 1.
        least: Least share of each source.
        most: Greatest share of each source, at or above ``least``.

    Returns:
        Shares that sum to 1.

    Raises:
        ConfigError: no shares are within the bounds.

    Example:
        >>> third = np.full(3, 1 / 3)
        >>> bounded_shares(np.array([8.0, 1.0, 1.0]), third / 10, np.array([0.6, 1.0, 1.0]))
        array([0.6, 0.2, 0.2])
    """
    if least.sum() > 1 + 1e-9:
        problem = f"sum to {least.sum():.4g}, more than 1"
        raise ConfigError(problem, field="least", cure="Lower some of the least shares.")
    if most.sum() < 1 - 1e-9:
        problem = f"sum to {most.sum():.4g}, less than 1"
        raise ConfigError(problem, field="most", cure="Raise some of the greatest shares.")
    if (crossed := least > most).any():
        source = int(crossed.argmax())
        problem = f"is above the greatest share {most[source]:.4g} of the source"
        cure = "Lower the least share, or raise the greatest."
        raise ConfigError(problem, field="least", value=float(least[source]), cure=cure)
    weights = np.maximum(weights / weights.sum(axis=-1, keepdims=True), _SMALLEST)
    # The sum rises with the factor: halve the interval of its logarithm.
    low = np.full((*weights.shape[:-1], 1), _SMALLEST)
    high = 1 / low
    for _ in range(_HALVINGS):
        factor = np.sqrt(low * high)
        is_low = (factor * weights).clip(least, most).sum(axis=-1, keepdims=True) < 1
        low = np.where(is_low, factor, low)
        high = np.where(is_low, high, factor)
    shares = (high * weights).clip(least, most)
    return shares / shares.sum(axis=-1, keepdims=True)
