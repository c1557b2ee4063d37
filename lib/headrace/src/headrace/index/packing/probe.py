"""Whether lengths may be planned with: they must not depend on the order in which samples are looked at.

Reference: CoordExp probes sixteen samples forward and backward, and in another epoch, before it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError

_PROBES = 16

LengthOf = Callable[[Int64[np.ndarray, " n"], int], Sequence[int] | np.ndarray]
"""Lengths of samples in an epoch, measured in the order given."""


def probe_indices(samples: int, probes: int = _PROBES) -> list[int]:
    """Samples spread evenly over all, the first and the last among them.

    Example:
        >>> probe_indices(100)
        [0, 6, 12, 18, 24, 30, 36, 42, 48, 54, 60, 66, 72, 78, 84, 99]
    """
    if samples <= probes:
        return list(range(samples))
    step = samples // probes
    return [*(k * step for k in range(probes - 1)), samples - 1]


def check_lengths_are_fixed(length_of: LengthOf, samples: int, *, epochs: Sequence[int] = (0, 1)) -> None:
    """Raises ConfigError if lengths change with the order of looking or with the epoch.

    Args:
        length_of: Measures lengths, as they are trained on.
        samples: Number of samples.
        epochs: Epochs to compare.

    Raises:
        ConfigError: a sample has two lengths; the sample and both are named.

    Example:
        >>> check_lengths_are_fixed(lambda samples, epoch: samples % 7 + 1, 100)
    """
    forward = np.array(probe_indices(samples), np.int64)
    wanted = np.asarray(length_of(forward, epochs[0]))
    for epoch in epochs:
        for order in (forward, forward[::-1]):
            found = np.asarray(length_of(order, epoch))
            found = found if order is forward else found[::-1]
            wrong = np.flatnonzero(found != wanted)
            if wrong.size:
                at = int(wrong[0])
                raise ConfigError(
                    f"has {wanted[at]} tokens at first, and {found[at]} when looked at"
                    f" {'again' if order is forward else 'in another order'} in epoch {epoch}",
                    field=f"samples[{forward[at]}]",
                    cure="A static plan needs samples that are always the same: turn off random preprocessing and"
                    " per-epoch resampling, or do not pack statically.",
                )
