"""Limits on epochs, tokens, shares and steps, and where they end a mixture.

Impossible values are refused when the config is read, under their name there, before any data is
opened. A source is limited by ``max_epochs`` (passes over it) and by a budget in examples; the
others share exactly what it cannot supply. A largest share limits it at each step
(:mod:`headrace.mix.shares`). A stop strategy says what the end of a source means for the mixture,
with the names of ``datasets`` and Levanter:

* ``restart``: nothing, sources start over in a new order; the mixture ends only if limits end it;
* ``first_exhausted``: the mixture ends before the first example that some source does not have;
* ``all_exhausted``: it ends once every source was used up at least once; smaller ones start over
  until then.

A source is used up after one pass, or at its limit if that comes first: limits never make a source
last longer. ``all_exhausted`` does not wait for a source that is no longer drawn because its weight
is 0 from some step on.

**The last batch** is the same for whatever brings the end about (:class:`DataEnd`): a dataset that
is read once, limits that leave too few rows for a step, or a stop strategy. The rows up to there
seldom fill it. With 154 rows and batches of 8, 19 steps are full and 2 rows are left:

=========  =====  ==================================================================================
pad        20     every row once; 6 rows of the last batch are empty: ``valid`` is False, their
                  weights are 0
drop       19     the 2 rows are in no batch
fill       20     every row once, and 6 rows again: those with which the data began, in their order
=========  =====  ==================================================================================

``fill`` and ``drop`` are the alignment of pack plans
(:meth:`~headrace.pack.plan.PackPlan.aligned_plan`) with the batch in the place of the ranks: ``rows
+ rows[:missing]``, around again if there are fewer rows than that; ``rows[:full]``. If the length
of rows changes during the run, ``fill`` repeats rows of the last length.

A run that stops earlier, at ``num_steps``, has no such batch. No other batch depends on
``last_batch``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, check_choice, did_you_mean, format_count
from headrace.mix.draws import Draws
from headrace.mix.schedule import MAX_STEP, BatchSchedule
from headrace.mix.shares import UNLIMITED

STOP_STRATEGIES = ("restart", "first_exhausted", "all_exhausted")


def check_epochs(path: str, value: float | None) -> None:
    """Raises ConfigError unless the number of passes is finite and above 0, or None."""
    if value is not None and (
        isinstance(value, bool | str) or not (math.isfinite(value) and value > 0)
    ):
        cure = "Passes over the source, e.g. 1.5."
        raise ConfigError("must be finite and above 0", field=path, value=value, cure=cure)


def check_tokens(path: str, value: float | None, row_tokens: int | None = None) -> None:
    """Raises ConfigError unless tokens are a whole number of at least 1 (or ``row_tokens``), or
    None.
    """
    if value is None:
        return
    if isinstance(value, bool) or value < 1 or value != int(value):
        raise ConfigError(
            "must be a whole number of at least 1", field=path, value=value, cure="In tokens."
        )
    if row_tokens is not None and value < row_tokens:
        cure = f"Give at least {row_tokens} tokens."
        raise ConfigError(
            f"holds no row of {row_tokens} tokens", field=path, value=value, cure=cure
        )


def check_steps(path: str, value: int | None, least: int = 1) -> None:
    """Raises ConfigError unless a step or a number of steps is between ``least`` and 2**40, or
    None.
    """
    if value is not None and (isinstance(value, bool) or not least <= value <= MAX_STEP):
        problem = f"must be a whole number from {least} to 2**40"
        raise ConfigError(problem, field=path, value=value, cure="Count in steps.")


def step_after_tokens(
    first: int, tokens: int, batch: BatchSchedule, phases: Sequence[tuple[int, int]]
) -> int:
    """The step before which this many tokens (at least 1) were delivered since the step ``first``,
    rounded up.

    Example:
        >>> step_after_tokens(0, 1000, BatchSchedule(8), [(0, 16)])  # 7.8 steps of 128 tokens
        8
        >>> step_after_tokens(
        ...     0, 1000, BatchSchedule(8), [(0, 16), (5, 32)]
        ... )  # 5 of 128 tokens, 1.4 of 256
        7
    """
    ends = [*(begin for begin, _ in phases[1:]), None]
    for (begin, length), end in zip(phases, ends, strict=True):
        start = max(first, begin)
        if end is not None and end <= start:
            continue
        row = batch.rows_at(start)[0]
        step = int(batch.step_of(np.asarray([row - (-tokens // length) - 1]))[0]) + 1
        if end is None or step <= end:
            return step
        tokens -= (batch.rows_at(end)[0] - row) * length
    raise AssertionError("the last phase has no end")


def tokens_of_steps(steps: int, batch: BatchSchedule, phases: Sequence[tuple[int, int]]) -> int:
    """Tokens of the first ``steps`` steps.

    Example:
        >>> tokens_of_steps(7, BatchSchedule(8), [(0, 16), (5, 32)])
        1152
    """
    bounds = [*(min(begin, steps) for begin, _ in phases), steps]
    rows = [batch.rows_at(step)[0] for step in bounds]
    return sum(
        (end - first) * length
        for (first, end), (_, length) in zip(pairwise(rows), phases, strict=True)
    )


def check_component_budgets(
    path: str,
    max_epochs: float | None,
    max_tokens: int | None,
    max_share: float | None,
    row_tokens: int,
) -> None:
    """Raises ConfigError for a limit of a component that cannot be met; ``path`` is the
    component's.
    """
    check_epochs(f"{path}.max_epochs", max_epochs)
    check_tokens(f"{path}.max_tokens", max_tokens, row_tokens)
    if max_share is not None and not 0 < max_share <= 1:
        cure = "A part of each batch, e.g. 0.25."
        raise ConfigError(
            "must lie above 0 and be at most 1",
            field=f"{path}.max_share",
            value=max_share,
            cure=cure,
        )


def tightest_bounds(
    epochs: Mapping[str, float],
    tokens: Mapping[str, int],
    sizes: Mapping[str, int],
    own: Collection[str] = (),
) -> dict[str, tuple[str, float]]:
    """Field in the config, and value, of the limit that applies to each component: passes or
    tokens.

    ``own`` are the components whose passes are set under their own name, not for all.

    Example:
        >>> tightest_bounds({"a": 2, "b": 3}, {"b": 100}, {"a": 50, "b": 50})
        {'a': ('max_epochs', 2), 'b': ('components.b.max_tokens', 100)}
    """
    bounds: dict[str, tuple[str, float]] = {
        name: (f"components.{name}.max_epochs" if name in own else "max_epochs", most)
        for name, most in epochs.items()
    }
    for name, most in tokens.items():
        if name not in epochs or most < epochs[name] * sizes[name]:
            bounds[name] = (f"components.{name}.max_tokens", most)
    return bounds


def phase_lengths(seq_len: int | Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """First step and row length of each phase; neighbours differ in length.

    ``seq_len`` are the tokens of a row, or ``{first step: tokens}`` beginning at step 0, in the
    order of steps.

    Raises:
        ConfigError: no phase at step 0, steps out of order, a length below 2.

    Example:
        >>> phase_lengths(2048), phase_lengths({0: 4096, 1000: 4096, 10_000: 32_768})
        (((0, 2048),), ((0, 4096), (10000, 32768)))
    """
    points = [*seq_len.items()] if isinstance(seq_len, Mapping) else [(0, seq_len)]
    cure = "Write a number of tokens, or {0: 4096, 10000: 32768}."
    if not points or points[0][0] != 0:
        raise ConfigError("must begin at step 0", field="seq_len", value=seq_len, cure=cure)
    for (first_length, _), (next_length, _) in pairwise(points):
        if not first_length < next_length <= MAX_STEP:
            raise ConfigError(
                "names its steps out of order", field="seq_len", value=seq_len, cure=cure
            )
    for step, length in points:
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 2:
            where = f"seq_len[{step}]" if isinstance(seq_len, Mapping) else "seq_len"
            raise ConfigError(
                "must be a whole number of at least 2", field=where, value=length, cure=cure
            )
    return tuple(
        (int(s), int(n)) for k, (s, n) in enumerate(points) if k == 0 or n != points[k - 1][1]
    )


def example_limits(
    sizes: Mapping[str, int | None],
    max_epochs: float | Mapping[str, float] | None = None,
    budgets: Mapping[str, int] | None = None,
) -> dict[str, int | None]:
    """Largest number of examples of each source in the run: the smaller of its epochs and its
    budget; None: unlimited.

    Args:
        sizes: Examples of each source, None for one without an end; limits are in their order.
        max_epochs: Passes over each source, one number for all or by name; may be a fraction. None:
            no bound.
        budgets: Examples of each source, by name.

    Raises:
        ConfigError: an unknown source; an epoch count or budget that is negative or not finite;
            epochs of an endless source, or so few that they contain no example.

    Example:
        >>> example_limits(
        ...     {"web": 1000, "docs": 10}, max_epochs={"docs": 2.5}, budgets={"web": 600}
        ... )
        {'web': 600, 'docs': 25}
    """
    by_name = isinstance(max_epochs, Mapping)
    epochs = max_epochs if by_name else dict.fromkeys(sizes, max_epochs)
    limits: dict[str, int | None] = dict.fromkeys(sizes)
    for field, settings in (("max_epochs", epochs), ("budgets", budgets or {})):
        for name, value in settings.items():
            if name not in sizes:
                raise ConfigError(
                    "names no source", field=f"{field}.{name}", cure=did_you_mean(name, sizes)
                )
            if value is None:
                continue
            if field == "max_epochs":
                bound = _rows_of_epochs(name, sizes[name], value, by_name=by_name)
            elif isinstance(value, bool | str) or not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    "must be finite and not negative", field=f"{field}.{name}", value=value
                )
            else:
                bound = math.floor(value)
            limit = limits[name]
            limits[name] = bound if limit is None else min(limit, bound)
    return limits


def _rows_of_epochs(name: str, size: int | None, epochs: float, *, by_name: bool) -> int:
    """Examples in a number of passes over a source; ``by_name``: whether the number was given for
    it alone.
    """
    check_epochs(f"max_epochs.{name}" if by_name else "max_epochs", epochs)
    if size is None:
        raise ConfigError(
            "bounds a component without an end", field=f"max_epochs.{name}", cure="Leave it out."
        )
    rows = math.floor(size * epochs)
    if size and rows == 0:
        raise ConfigError(
            f"holds no row: component {name!r} has {size}",
            field=f"components.{name}.max_epochs" if by_name else "max_epochs",
            value=epochs,
            cure=f"Give at least {1.01 / size:.3g}.",
        )
    return rows


def mixture_length(
    draws: Draws, sizes: Sequence[int | None], stop: str, limits: Sequence[int | None] | None = None
) -> int | None:
    """Examples of a mixture under one of the ``STOP_STRATEGIES``; None if there is no end.

    Args:
        draws: The mixture.
        sizes: Examples of each component, None for an endless one.
        stop: The strategy.
        limits: Most examples of each component, as ``draws`` has them; None: no limits.

    Raises:
        ConfigError: unknown strategy; not one size a component.

    Example:
        >>> from headrace.mix import Blend, Stage
        >>> from headrace.mix.stages import Stages
        >>> stages = [Stage(0, Blend({"a": 3, "b": 1}))]  # a a b a | a a b a | ...
        >>> d = Draws(Stages("ab", stages, BatchSchedule(4)))
        >>> [mixture_length(d, [10, 4], s) for s in STOP_STRATEGIES]
        [None, 13, 15]
    """
    check_choice("stop", stop, STOP_STRATEGIES, "is no stop strategy")
    if len(sizes) != draws.components:
        raise ConfigError(
            f"needs one entry for each of {draws.components} components", field="sizes", value=sizes
        )
    supply = draws.policy.supply()
    ends: list[int | None] = [] if supply.max() >= UNLIMITED else [int(supply.sum())]
    if stop == "first_exhausted":
        for d, (size, limit) in enumerate(zip(sizes, limits or [None] * len(sizes), strict=True)):
            if limit is not None and (size is None or limit < size):
                ends.append(
                    _end_of(draws, d, limit)
                )  # it is skipped from then on: there are no further examples
            elif size is not None:
                ends.append(draws.index_of(d, size))
    elif stop == "all_exhausted":
        drawn = [None if rows >= UNLIMITED else int(rows) for rows in supply]
        most = [[n for n in pair if n is not None] for pair in zip(sizes, drawn, strict=True)]
        used_up = [_end_of(draws, d, min(rows)) if rows else None for d, rows in enumerate(most)]
        if None not in used_up:
            ends.append(max(filter(None, used_up), default=0))
    return min((end for end in ends if end is not None), default=None)


def _end_of(draws: Draws, component: int, size: int) -> int | None:
    """Examples of the mixture up to the last of a component's first ``size``; None if it never has
    that many.
    """
    if size == 0:
        return 0
    last = draws.index_of(component, size - 1)
    return None if last is None else last + 1


@dataclass(frozen=True)
class DataEnd:
    """How finite data end.

    Attributes:
        rows: Rows of the data.
        num_steps: Steps that deliver them.
        padded_rows: Empty rows of the last batch.
        dropped_rows: Rows at the end that are in no batch.
        filled_rows: Rows of the last batch that were delivered before.
    """

    rows: int
    num_steps: int
    padded_rows: int = 0
    dropped_rows: int = 0
    filled_rows: int = 0

    def __str__(self) -> str:
        """What becomes of the last batch, as a sentence; empty if the data fill it.

        Example:
            >>> str(DataEnd(154, 20, padded_rows=6))
            'The data end after 154 rows: 6 rows of the last batch are empty (last_batch: pad).'
        """
        last = {
            "pad": (self.padded_rows, "of the last batch are empty"),
            "drop": (self.dropped_rows, "at the end are in no batch"),
            "fill": (self.filled_rows, "of the last batch are the first ones again"),
        }
        for name, (rows, what) in last.items():
            if rows:
                row_count = format_count(rows, "row")
                return (
                    f"The data end after {self.rows:,} rows: {row_count} {what} (last_batch:"
                    f" {name})."
                )
        return ""


def data_end(schedule: BatchSchedule, length: int | None) -> DataEnd | None:
    """The end of data of ``length`` rows in these batches; None if they have no end.

    Example:
        >>> data_end(BatchSchedule(8), 154)
        DataEnd(rows=154, num_steps=20, padded_rows=6, dropped_rows=0, filled_rows=0)
        >>> data_end(BatchSchedule(8, last_batch="drop"), 154)
        DataEnd(rows=154, num_steps=19, padded_rows=0, dropped_rows=2, filled_rows=0)
    """
    if length is None:
        return None
    if length == 0:
        return DataEnd(0, 0)
    last = int(schedule.step_of(np.asarray([length - 1]))[0])
    first, size = schedule.rows_at(last)
    later_rows = length - first
    missing = size - later_rows
    if missing == 0 or schedule.last_batch == "pad":
        return DataEnd(length, last + 1, padded_rows=missing)
    if schedule.last_batch == "drop":
        return DataEnd(length, last, dropped_rows=later_rows)
    return DataEnd(length, last + 1, filled_rows=missing)


def check_some_batch(schedule: BatchSchedule, length: int | None) -> None:
    """Raises ConfigError if dropping the last batch leaves none."""
    end = data_end(schedule, length)
    if end is not None and end.dropped_rows == end.rows > 0:
        raise ConfigError(
            f"leaves no batch: the data have {end.rows} rows, and a batch {schedule.rows_at(0)[1]}",
            field="last_batch",
            value="drop",
            cure="Use last_batch: pad or last_batch: fill, or a smaller batch_size.",
        )


def held_rows(
    schedule: BatchSchedule, length: int | None, steps: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """How many rows of each step hold data, repeated ones included; 0 behind the end."""
    sizes = schedule.size_at(steps)
    end = data_end(schedule, length)
    if end is None:
        return sizes
    rows = end.rows + end.filled_rows - end.dropped_rows
    return np.clip(rows - schedule.offset_at(steps), 0, sizes)


def repeated_from(
    indices: Int64[np.ndarray, " n"], length: int | None, begin: int = 0
) -> Int64[np.ndarray, " n"]:
    """Examples by which rows behind the end are filled: those from ``begin`` on, again.

    Example:
        >>> repeated_from(np.arange(8, 14), 10), repeated_from(np.arange(8, 14), 10, begin=8)
        (array([8, 9, 0, 1, 2, 3]), array([8, 9, 8, 9, 8, 9]))
    """
    if length is None or indices.size == 0 or int(indices.max()) < length:
        return indices
    return np.where(indices < length, indices, begin + (indices - length) % (length - begin))
