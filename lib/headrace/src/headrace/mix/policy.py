"""``MixingPolicy``: which component each row of each step comes from. The interface of all
policies, with defaults.

A policy is pure: any step, any number of times, gives the same result. Subclasses implement
``starts_at``, ``components_at`` and ``supply``; the other methods have defaults that work for any
policy. Ordinals count over the whole run: ``starts_at`` says where those of a step begin, and
:mod:`headrace.mix.draws` makes of them epochs, skipped steps and the end of the data. A policy that
always draws alike, whatever the sizes of components, sets ``follows_sizes = False``: then it is not
made anew where rows change their length.

An **anchor** is the exact state of a policy before a step, as JSON: it saves another process from
counting up to that step (2 us per step for ``quota``, 2 us per example for the others). It only
saves time. :mod:`headrace.run.anchors` stores anchors with their run; an anchor that is damaged or
of another mixture is refused.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import UNLIMITED

Anchor: TypeAlias = dict[str, Any]
"""JSON values: whole numbers, texts and lists of them."""
StepTable: TypeAlias = tuple[Int32[np.ndarray, " b"], Int64[np.ndarray, " b"]]
"""Component and ordinal of each row of some steps, in stream order."""
Watch: TypeAlias = Callable[[int, int], None]
"""Receives the number of counted examples, and their total."""


class MixingPolicy(abc.ABC):
    """Which component each row of each step comes from.

    Methods with a step raise IndexOutOfRangeError if the mixture ends before it.

    Attributes:
        name: Its name in plans of runs.
        follows_sizes: Whether its draws depend on the sizes of the components or on the length of a
            row, so that the draws of a run change with them.
        components: Number of components D.
        batch: Examples per step.
        ends_after: Examples after which it ends by its own rule; None: only limits end it.

    Example:
        >>> class Alternate(MixingPolicy):
        ...     name, components, batch = "alternate", 2, BatchSchedule(4)
        ...
        ...     def starts_at(self, step):
        ...         return np.full(2, 2 * step)
        ...
        ...     def components_at(self, step):
        ...         return np.array([0, 1, 0, 1], np.int32)
        ...
        ...     def supply(self):
        ...         return np.full(2, 1 << 62)
        >>> Alternate().counts_at(3), Alternate().describe()
        (array([2, 2]), {'policy': 'alternate'})
    """

    name: ClassVar[str]
    follows_sizes: ClassVar[bool] = True
    components: int
    batch: BatchSchedule
    ends_after: int | None = None

    @abc.abstractmethod
    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""

    @abc.abstractmethod
    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order."""

    @abc.abstractmethod
    def supply(self) -> Int64[np.ndarray, " d"]:
        """Examples of each component in the whole run, ``UNLIMITED`` (2**62) for endless ones."""

    def check_limits(self, step: int) -> None:
        """Raises IndexOutOfRangeError if limits leave too few examples for the steps before
        ``step``.
        """
        self.starts_at(step)

    def counts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in ``step``."""
        return np.bincount(self.components_at(step), minlength=self.components)

    def tables_between(self, first: int, stop: int) -> StepTable | None:
        """Component and ordinal of each row of the steps ``first .. stop``, all of one size, in
        stream order; None if this is not faster than step by step.
        """
        return None

    def anchor_at(self, step: int) -> Anchor | None:
        """The state near ``step``, as JSON values; None if there is none to save."""
        return None

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """Continues from the result of :meth:`anchor_at` of an equal policy.

        Raises:
            ConfigError: it is damaged, or of another policy as far as that can be seen.
        """
        raise refused(f"is not one of {type(self).__name__}")

    def walk_to(self, step: int, watch: Watch) -> None:
        """Counts up to ``step`` if examples are counted one by one, reporting to ``watch``; later
        calls start there.
        """
        return

    def describe(self) -> dict[str, Any]:
        """What distinguishes it from other policies over equal stages, sizes and limits, as JSON
        values: its settings, too, or a run could go on with others.

        They stand beside what the dataset says of itself (``names``, ``components``, ``stages``,
        ``batch_size``, ``limits``, ``stop_strategy``), whose names they must not have.
        """
        return {"policy": self.name}


def anchor_integer(
    anchor: Mapping[str, object], name: str, *, multiple: int = 1, most: int = UNLIMITED
) -> int:
    """A whole number of an anchor, 0 to ``most``; raises ConfigError otherwise, as do the following
    functions.
    """
    value = anchor.get(name)
    if type(value) is not int or not 0 <= value <= most or value % multiple:
        raise refused(f"has no {name!r} that can be")
    return value


def anchor_integers(
    anchor: Mapping[str, object], name: str, n: int, *, signed: bool = False, padded: bool = False
) -> Int64[np.ndarray, " n"]:
    """``n`` whole numbers of an anchor; ``padded``: missing ones at the end are 0.

    Example:
        >>> anchor_integers({"drawn": [3, 4]}, "drawn", 2)
        array([3, 4])
    """
    values = cast(object, anchor.get(name))
    if padded and isinstance(values, list):
        values = [*cast(list[object], values), *[0] * (n - len(cast(list[object], values)))]
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
    return ConfigError(
        problem,
        field="anchor",
        cure="Leave it out (or delete the file): the state is walked to again.",
    )
