"""Anchors: the exact state of a draw policy before a step, as JSON, so that another process need not walk there.

Most policies go from step to step; a process that begins at a far step walks there once (2 us a step for ``quota``, 2
us an example for the others). An anchor that was saved near the step saves the walk. It is an accelerator: without it
everything is the same, later. It says nothing about which run it belongs to; whoever keeps it does
(:mod:`headrace.state` keys it by the fingerprint of the run). What can be checked is: an anchor that is damaged or of
another mixture is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.shares import UNLIMITED

Anchor: TypeAlias = dict[str, Any]
"""JSON values: whole numbers, texts and lists of them."""


@runtime_checkable
class Anchored(Protocol):
    """Something with a state that can be saved: a draw policy, ``Draws``, a mixture."""

    def anchor_at(self, step: int) -> Anchor | None:
        """The state near ``step``, as JSON; None if nothing is saved by one."""
        ...

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """Go on from what ``anchor_at`` of an equal one gave."""
        ...


def anchor_integer(
    anchor: Mapping[str, object], name: str, *, multiple: int = 1, least: int = 0, most: int = UNLIMITED
) -> int:
    """A whole number of an anchor, ``least`` to ``most``.

    Raises:
        ConfigError: it is none.
    """
    value = anchor.get(name)
    if type(value) is not int or not least <= value <= most or value % multiple:
        raise refused(f"has no {name!r} that can be")
    return value


def anchor_number(anchor: Mapping[str, object], name: str) -> float:
    """A number of an anchor that is not negative.

    Raises:
        ConfigError: it is none.
    """
    value = anchor.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise refused(f"has no {name!r} that can be")
    return float(value)


def anchor_integers(
    anchor: Mapping[str, object], name: str, n: int, *, signed: bool = False
) -> Int64[np.ndarray, " n"]:
    """``n`` whole numbers of an anchor.

    Raises:
        ConfigError: they are not.

    Example:
        >>> anchor_integers({"drawn": [3, 4]}, "drawn", 2)
        array([3, 4])
    """
    values = cast(object, anchor.get(name))
    if not isinstance(values, list) or len(cast(list[object], values)) != n:
        raise refused(f"has not {n} numbers as {name!r}")
    for value in cast(list[object], values):
        if type(value) is not int or abs(value) > UNLIMITED or (value < 0 and not signed):
            raise refused(f"has no {name!r} that can be")
    return np.array(values, np.int64)


def anchor_sum(values: Int64[np.ndarray, " n"], total: int, name: str) -> None:
    """Raises ConfigError unless the values sum to ``total``."""
    if int(values.sum()) != total:
        raise refused(f"has {name!r} that sum to {int(values.sum())}, not to {total}")


def refused(problem: str) -> ConfigError:
    """The error for an anchor that cannot be used."""
    return ConfigError(problem, field="anchor", cure="Leave it out (or delete the file): the state is walked to again.")
