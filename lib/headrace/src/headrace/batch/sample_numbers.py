"""Validates the inputs of partitions, one number for each sample and counts, once on entry.

A missing or surplus number would leave a sample in no partition; a non-finite one cannot be sorted.
Price: some numpy passes over the numbers of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError

_INT64 = float(2**63)


def checked_count(field: str, value: Any, least: int = 1) -> int:
    """An integer of at least ``least``, as an int; ConfigError otherwise.

    Example:
        >>> checked_count("ranks", np.int64(8)), checked_count("max_tokens", 4096.0)
        (8, 4096)
    """
    try:
        count = int(value)
        good = bool(count == value) and count >= least
    except (TypeError, ValueError, OverflowError):  # None, a string, NaN, infinity
        count = 0
        good = False
    if not good:
        raise ConfigError(
            f"must be a whole number, at least {least}", field=field, value=value, cure="E.g. 8."
        )
    return count


def checked_tokens(
    tokens: Sequence[int] | np.ndarray, field: str = "tokens"
) -> Int64[np.ndarray, " n"]:
    """Tokens of each sample: non-negative integers; ConfigError otherwise.

    Example:
        >>> checked_tokens([3, 5.0]).tolist()
        [3, 5]
    """
    array, exact = _checked_numbers(tokens, field)
    wrong = np.flatnonzero((exact != np.floor(exact)) | (exact >= _INT64))
    if wrong.size:
        raise _refused("must be whole", field, array, int(wrong[0]))
    return array.astype(np.int64)


def checked_costs(
    costs: Sequence[Any] | np.ndarray, samples: int | None = None, field: str = "costs"
) -> list[Any]:
    """Cost of each sample (``None``: any number of them), finite and non-negative; ConfigError
    otherwise.

    They are Python numbers, whose sums are exact for integers.

    Example:
        >>> checked_costs(np.array([1.5, 2.0]), 2)
        [1.5, 2.0]
    """
    array, _ = _checked_numbers(costs, field)
    if samples is not None:
        check_one_each(field, array.size, samples)
    return array.tolist()


def check_one_each(field: str, count: int, samples: int) -> None:
    """Raises ConfigError unless there is one of these per sample."""
    if count != samples:
        fewer = "fewer" if count < samples else "more"
        raise ConfigError(
            f"are {fewer} than the {samples} samples",
            field=field,
            value=count,
            cure="Give one for each.",
        )


def _checked_numbers(
    values: Sequence[Any] | np.ndarray, field: str
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers unchanged, and as floats."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":  # O: integers over 64 bits, fractions
            raise TypeError
        exact = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            "must be a row of numbers", field=field, value=values, cure="E.g. [5, 3]."
        ) from None
    if exact.ndim != 1:
        raise ConfigError(
            "must be the shape of a row of numbers",
            field=field,
            value=exact.shape,
            cure="E.g. [5, 3].",
        )
    wrong = np.flatnonzero(~(np.isfinite(exact) & (exact >= 0)))
    if wrong.size:
        raise _refused("must be finite and not negative", field, array, int(wrong[0]))
    return array, exact


def _refused(problem: str, field: str, found: np.ndarray, at: int) -> ConfigError:
    return ConfigError(
        problem, field=field, value=found[at : at + 1].tolist()[0], cure=f"Look at {field}[{at}]."
    )
