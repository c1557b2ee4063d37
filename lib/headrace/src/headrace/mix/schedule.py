"""Weights, batch sizes and row lengths as pure functions of the **global step**, and how data end
in batches.

A :class:`Weight` is a number, or a schedule over steps: ``step`` (the last point at or before the
step) or ``linear`` (interpolated, held constant outside its points). Because it depends only on the
global step, a resumed run, a run on other hosts and a simulation have the same weights, and
prefetching does not delay them. Megatron-Energon's unmerged schedules have the same three kinds;
their x axis is a batch counter of each worker.

Invariants: weights are finite and never negative; the same step gives the same bits on every
machine (elementwise IEEE operations only). Price: about 30 ns per step and weight in blocks of 4096
steps.

Blends of many weights, and their normalisation, are in :mod:`headrace.mix.blend`.

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

import bisect
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, check_choice, did_you_mean, format_count

Steps: TypeAlias = Int64[np.ndarray, " n"]
RowOrder: TypeAlias = Literal["locality", "stream"]
"""Order of the rows within a batch."""
ExchangeSetting: TypeAlias = Literal["auto", "on", "off"]
"""Whether hosts exchange rows; see :mod:`headrace.feed.exchange`."""
LastBatch: TypeAlias = Literal["pad", "drop", "fill"]
"""What becomes of a last batch that the data do not fill; see above."""
WeightUnit: TypeAlias = Literal["examples", "tokens", "content_tokens", "trained_tokens"]
"""What weights, budgets and sizes count; see :mod:`headrace.data.row_tokens`."""
CountedTokens: TypeAlias = Literal["content", "trained"]
"""The tokens that are counted individually."""

MAX_WEIGHT = 1e100
MIN_WEIGHT = float(np.finfo(np.float64).smallest_normal)
"""Smallest weight, times its scale, that is not 0: below it float64 loses bits, and in the end the
weight.
"""
MAX_STEP = 1 << 40
MAX_BATCH = 1 << 18
_SCIENTIFIC = re.compile(r"[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][+-]?\d{1,3}")
_MOST_DIGITS = 100
_INTEGER = re.compile(r"[0-9][0-9_]*")
_KINDS = ("step", "linear", "cosine")
_COSINE_PIECES = 64
_CURE = "Write a number, or step: {0: 1.0, 1000: 0.5}, or linear: {0: 1.0, 1000: 0.0}."


@dataclass(frozen=True)
class Weight:
    """A non-negative function of the global step.

    Args:
        kind: ``"constant"`` (one point, its step is ignored), ``"step"`` or ``"linear"``.
        points: ``(step, weight)`` pairs, steps strictly rising from 0 on.
        scale: Factor on all values.
        path: Its path in the config, for errors; not part of its identity.

    Raises:
        ConfigError: no point, a step that is negative or not rising, a weight or scale that is
            negative, infinite, not a number, or above 1e100; a weight that times its scale is below
            2.3e-308 and not 0.

    Example:
        A ramp before, in and after its points; a step before, at and after its points:

        >>> ramp = Weight("linear", ((10, 4.0), (14, 0.0)))
        >>> ramp.at(np.array([0, 10, 11, 13, 14, 99]))
        array([4., 4., 3., 1., 0., 0.])
        >>> Weight("step", ((5, 2.0), (50, 7.0))).at(np.array([0, 5, 49, 50, 51]))
        array([2., 2., 2., 7., 7.])
    """

    kind: Literal["constant", "step", "linear"]
    points: tuple[tuple[int, float], ...]
    scale: float = 1.0
    path: str = field(default="weight", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "step", "linear"):
            raise ConfigError(
                "is not a kind of weight", field=self.path, value=self.kind, cure=_CURE
            )
        if self.kind == "constant" and len(self.points) == 1:
            object.__setattr__(self, "points", ((0, self.points[0][1]),))
        if not self.points or (self.kind == "constant" and len(self.points) != 1):
            raise ConfigError(
                "needs at least one point", field=self.path, value=self.points, cure=_CURE
            )
        object.__setattr__(self, "scale", _number(self.scale, f"{self.path}.scale"))
        clean = tuple(
            (_step(s, self.path), _number(w, f"{self.path}[{s}]")) for s, w in self.points
        )
        _check_rising(clean, self.path, [step for step, _ in clean])
        for _, weight in clean:
            if weight > 0 and self.scale > 0 and weight * self.scale < MIN_WEIGHT:
                spelled = weight if self.scale == 1.0 else f"{weight:g} x {self.scale:g}"
                problem = "is too small to count, and is not 0"
                raise ConfigError(
                    problem,
                    field=self.path,
                    value=spelled,
                    cure="Weights are relative: use a larger one.",
                )
        object.__setattr__(self, "points", clean)

    @property
    def is_scheduled(self) -> bool:
        """Whether it was written as a schedule (even one with a single point)."""
        return self.kind != "constant"

    @property
    def breaks(self) -> tuple[int, ...]:
        """Steps at which it may bend or jump; between two of them it is a straight line."""
        return tuple(s for s, _ in self.points) if self.is_scheduled else ()

    def at(self, steps: Steps) -> Float64[np.ndarray, " n"]:
        """Values at ``steps``, which are global and not negative."""
        return Curves([self]).at(steps)[:, 0]

    def piece(self, step: int) -> tuple[int, int, float, float]:
        """The straight piece that holds at ``step``: its first and last step and the values there,
        without ``scale``.

        Example:
            >>> Weight("linear", ((10, 4.0), (14, 0.0))).piece(12)
            (10, 14, 4.0, 0.0)
        """
        low = max(bisect.bisect_right(self.points, (step, math.inf)) - 1, 0)
        (x, y), last = self.points[low], low == len(self.points) - 1
        if self.kind != "linear" or last or step < x:
            return x, x + 1, y, y
        return x, self.points[low + 1][0], y, self.points[low + 1][1]

    def settles_at(self, last: int) -> int:
        """The step from which on it keeps the value that it has at ``last``, up to there.

        Example:
            >>> [
            ...     Weight("linear", ((10, 4.0), (14, 0.0))).settles_at(last)
            ...     for last in (9, 12, 14, 99)
            ... ]
            [0, 12, 14, 14]
        """
        begin, _, low, high = self.piece(last)
        return last if low != high else begin if begin <= last else 0

    def scaled(self, factor: float) -> Weight:
        """This weight times a constant.

        Example:
            >>> weight_from_config({"linear": {0: 4, 4: 0}}).scaled(0.25).at(np.array([0, 2, 5]))
            array([1. , 0.5, 0. ])
        """
        return Weight(
            self.kind, self.points, self.scale * _number(factor, f"{self.path}.scale"), self.path
        )

    def to_config(self) -> float | dict[str, object]:
        """The plain value that :func:`weight_from_config` reads back to an equal weight.

        Example:
            >>> weight_from_config({"step": {"0": 1, "10": 2}, "scale": 3}).to_config()
            {'step': {0: 1.0, 10: 2.0}, 'scale': 3.0}
        """
        if not self.is_scheduled:
            return self.points[0][1] * self.scale
        config: dict[str, object] = {self.kind: dict(self.points)}
        return config if self.scale == 1.0 else {**config, "scale": self.scale}


class Curves:
    """D weights evaluated together: one matrix operation for each stretch between break points."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        self._weights = tuple(weights)
        self._scales = np.array([w.scale for w in weights])
        self.breaks = np.unique(np.array([b for w in weights for b in w.breaks], np.int64))
        """Steps at which some weight may bend or jump, ascending."""
        self._latest: tuple[int, Float64[np.ndarray, "4 d"]] = (-1, np.empty((4, 0)))

    def at(self, steps: Steps) -> Float64[np.ndarray, "n d"]:
        """Values of all weights at ``steps``, bit-identical for a step whatever the other steps."""
        steps = np.asarray(steps, np.int64)
        segments = np.searchsorted(self.breaks, steps, side="right")
        if steps.size == 0 or int(segments.min()) == int(segments.max()):
            return self._stretch(steps)
        out = np.empty((len(steps), len(self._weights)))
        for segment in np.unique(segments):
            rows = np.flatnonzero(segments == segment)
            out[rows] = self._stretch(steps[rows])
        return out

    def _pieces(self, step: int) -> Float64[np.ndarray, "4 d"]:
        """Each weight's straight piece at ``step``; the latest is kept, as steps are mostly asked
        in a row.
        """
        segment = bisect.bisect_right(self.breaks, step)
        latest = self._latest  # one read: another thread may replace it
        if latest[0] != segment:
            pieces = np.array(
                [w.piece(step) for w in self._weights]
            ).T  # steps up to 2**40 are exact in float64
            latest = self._latest = (segment, np.ascontiguousarray(pieces))
        return latest[1]

    def lines_at(self, step: int) -> Float64[np.ndarray, "5 d"]:
        """The straight piece of each weight at ``step``: its first and last step, its values there,
        and the scale.
        """
        pieces = np.vstack([self._pieces(step), self._scales])
        first, last, low, high, _ = pieces
        moves = low != high
        if moves.any():  # what does not change does so from any step to any other
            first[~moves] = first[moves][0]
            last[~moves] = last[moves][0]
        return pieces

    def _stretch(self, steps: Steps) -> Float64[np.ndarray, "n d"]:
        """Values at steps with no break point between any two of them."""
        first, last, low, high = self._pieces(int(steps[0]) if steps.size else 0)
        values = (steps[:, None] - first) / (last - first)
        values *= high - low
        values += low
        values *= self._scales
        return values


def weight_from_config(obj: object, path: str = "weight") -> Weight:
    """Read a weight as users write it at a ``path`` of the config.

    It is a number; or a mapping with one of ``step``, ``linear``, ``cosine`` (a mapping step ->
    weight, or a list of pairs sorted by step; YAML may give the steps as strings) and optionally
    ``scale``; or a :class:`Weight`. A cosine becomes straight pieces (:func:`cosine_points`).

    Raises:
        ConfigError: it is none of these; see :class:`Weight` for refused values.

    Example:
        >>> weight_from_config({"stepp": {0: 1}}, "weights.docs")
        Traceback (most recent call last):
        headrace.errors.ConfigError: weights.docs = {'stepp': {0: 1}}: unknown key
            'stepp'. Did you mean 'step'?
    """
    if isinstance(obj, Weight):
        return obj
    if not isinstance(obj, Mapping):
        if isinstance(obj, str) and obj.replace(".", "", 1).isdigit():  # a number in quotes
            raise ConfigError("is not a weight", field=path, value=obj, cure=_CURE)
        return Weight("constant", ((0, _number(obj, path)),), path=path)
    keys = {str(k): v for k, v in cast(Mapping[object, object], obj).items()}
    for key in keys:
        if key not in (*_KINDS, "scale"):
            cure = did_you_mean(key, (*_KINDS, "scale"))
            cure = f"Write {{step: {obj}}} or {{linear: {obj}}}." if key.isdecimal() else cure
            raise ConfigError(f"unknown key {key!r}", field=path, value=obj, cure=cure)
    kinds = [kind for kind in _KINDS if kind in keys]
    if len(kinds) != 1:
        problem = f"has both {' and '.join(kinds)}" if kinds else "has neither step nor linear"
        raise ConfigError(problem, field=path, value=obj, cure=_CURE)
    points = sorted_points(keys[kinds[0]], f"{path}.{kinds[0]}")
    if kinds[0] == "cosine":
        points = cosine_points(points)
    return Weight(
        "step" if kinds[0] == "step" else "linear",
        points,
        _number(keys.get("scale", 1.0), path),
        path,
    )


def written_steps(obj: object) -> list[int]:
    """The steps that a weight names as users write it: of a cosine, not those of its pieces.

    Example:
        >>> written_steps({"cosine": {0: 1.0, 1000: 3.0}}), written_steps(2.0)
        ([0, 1000], [])
    """
    weight = weight_from_config(obj)
    if isinstance(obj, Mapping) and "cosine" in obj:
        points = sorted_points(cast("Mapping[str, object]", obj)["cosine"], weight.path)
        return [step for step, _ in points]
    return [*weight.breaks]


def cosine_points(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Straight pieces that follow half a cosine from each point to the next.

    Quotas count steps exactly where weights are straight lines, so a curve is drawn by 64 lines
    between two points. They differ from it by less than 0.02 % of the difference of the weights.

    1. Between two points, take steps at each 64th of the way, rounded down to whole steps.
    2. At the share x of the way, the curve has gone sin(pi x / 2)^2 of the difference.
    3. Beyond the middle it is the same, seen from the other end.

    The sine is summed up from its series, by additions and multiplications alone: a library's sine
    may differ in the last bit from machine to machine.

    Args:
        points: ``(step, weight)`` pairs, steps rising.

    Example:
        >>> curve = Weight("linear", cosine_points([(0, 1.0), (1000, 3.0)]))
        >>> curve.at(np.array([0, 250, 500, 750, 1000])).round(2).tolist()
        [1.0, 1.29, 2.0, 2.71, 3.0]
    """
    pieces: list[tuple[int, float]] = []
    for (first, low), (last, high) in itertools.pairwise(points):
        steps = {first + (last - first) * part // _COSINE_PIECES for part in range(_COSINE_PIECES)}
        for step in sorted(steps):
            share = (step - first) / (last - first)
            covered = _sine_squared(share) if share <= 0.5 else 1.0 - _sine_squared(1.0 - share)
            pieces.append((step, low + covered * (high - low)))
    return (*pieces, points[-1])


def _sine_squared(share: float) -> float:
    """The square of sin(pi/2 share), for shares up to a half, where 9 terms give all bits."""
    angle = share * (math.pi / 2)
    term = angle
    sine = angle
    for power in range(3, 19, 2):
        term = -term * angle * angle / (power * (power - 1))
        sine += term
    return sine * sine


def sorted_points(obj: object, path: str) -> tuple[tuple[int, float], ...]:
    """``(step, value)`` pairs of a mapping or of a list of pairs, sorted by step (YAML keeps the
    order of mappings).

    Raises:
        ConfigError: neither of the two, empty, a step is not a whole number, or steps that do not
            rise.
    """
    if isinstance(obj, Mapping):
        mapping = cast(Mapping[object, float], obj)
        points = [(_step(k, path), v) for k, v in mapping.items()]
    elif isinstance(obj, list | tuple):
        rows = cast(Iterable[object], obj)
        points: list[tuple[int, float]] = []
        for row in rows:
            if not isinstance(row, list | tuple) or len(cast(tuple[object, ...], row)) != 2:
                raise ConfigError("is not a [step, weight] pair", field=path, value=row, cure=_CURE)
            step, value = cast(tuple[object, float], row)
            points.append((_step(step, path), value))
    else:
        raise ConfigError("must map steps to values", field=path, value=obj, cure=_CURE)
    if not points:
        raise ConfigError("needs at least one point", field=path, value=obj, cure=_CURE)
    _check_rising(points, path, obj)
    return tuple(points)


def _check_rising(points: Sequence[tuple[int, float]], path: str, value: object) -> None:
    for (step, _), (next_step, _) in itertools.pairwise(points):
        if next_step <= step:
            cure = "Sort the points by step and name each step once."
            raise ConfigError(
                f"has step {next_step} after step {step}", field=path, value=value, cure=cure
            )


def compose_weights(outer: Weight, inner: Weight) -> Weight:
    """The product of a weight and one further down on the same path of a nested blend.

    Raises:
        ConfigError: both are schedules, whose product would be ambiguous.

    Example:
        >>> compose_weights(
        ...     weight_from_config(0.5), weight_from_config({"step": {0: 2}})
        ... ).to_config()
        {'step': {0: 2.0}, 'scale': 0.5}
    """
    if outer.is_scheduled and inner.is_scheduled:
        problem = f"is a schedule, and so is {inner.path} on the same path"
        cure = f"Make one of {outer.path} and {inner.path} a plain number."
        raise ConfigError(problem, field=outer.path, value=outer.to_config(), cure=cure)
    if inner.is_scheduled:
        return inner.scaled(outer.points[0][1] * outer.scale)
    return outer.scaled(inner.points[0][1] * inner.scale)


class BatchSchedule:
    """Examples per step, constant or changing at given steps; and the closed form between steps and
    example indices.

    Args:
        sizes: A number of examples, or ``{first step: examples}`` (or a sorted list of pairs) that
            starts at step 0.
        last_batch: What becomes of a last batch that finite data do not fill: ``pad``, ``drop`` or
            ``fill``; None: that of ``sizes`` if it is a BatchSchedule, else ``pad``. Two schedules
            of the same sizes are equal.

    Raises:
        ConfigError: empty, not starting at step 0, unsorted, or a size outside 1 .. 2**18; no such
            ``last_batch``.

    Example:
        >>> b = BatchSchedule({0: 32, 1000: 64})
        >>> b.size_at(np.array([0, 999, 1000])), b.offset_at(np.array([1, 1000, 1001]))
        (array([32, 32, 64]), array([   32, 32000, 32064]))
        >>> b.step_of(np.array([31, 32, 32063, 32064])), b.rows_at(1001)
        (array([   0,    1, 1000, 1001]), (32064, 64))
    """

    def __init__(
        self,
        sizes: int | Mapping[int, int] | Iterable[tuple[int, int]] | BatchSchedule,
        *,
        last_batch: LastBatch | None = None,
    ) -> None:
        if last_batch is None:
            last_batch = sizes.last_batch if isinstance(sizes, BatchSchedule) else "pad"
        check_choice("last_batch", last_batch, get_args(LastBatch))
        self.last_batch: LastBatch = last_batch
        name = "batch_size"
        cure = "Write a number of examples, or {0: 32, 1000: 64}."
        if isinstance(sizes, BatchSchedule):
            points: tuple[tuple[int, float], ...] = tuple(sizes.points)
        elif isinstance(sizes, int | np.integer) and not isinstance(sizes, bool):
            points = ((0, int(sizes)),)
        elif isinstance(sizes, Mapping) or (
            isinstance(sizes, list | tuple) and not np.isscalar(next(iter(sizes), 0))
        ):
            points = sorted_points(sizes, name) if sizes else ()
        else:
            raise ConfigError("is not a batch size", field=name, value=sizes, cure=cure)
        if not points or points[0][0] != 0:
            raise ConfigError("must start at step 0", field=name, value=sizes, cure=cure)
        for _, size in points:
            is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
            if not is_integer or not 1 <= size <= MAX_BATCH:
                raise ConfigError(
                    "must be a whole number from 1 to 2**18", field=name, value=size, cure=cure
                )
        self.points: tuple[tuple[int, int], ...] = tuple((s, int(b)) for s, b in points)
        self._starts = np.array([s for s, _ in self.points], np.int64)
        self._sizes = np.array([b for _, b in self.points], np.int64)
        self._offsets = np.concatenate(
            [[0], np.cumsum(np.diff(self._starts) * self._sizes[:-1])]
        ).astype(np.int64)
        self.max_size = int(self._sizes.max())
        """The largest batch of any step, in examples."""
        self.unique_sizes: tuple[int, ...] = tuple(sorted({b for _, b in self.points}))
        """All sizes that occur, ascending: a training step is compiled for each."""

    def __eq__(self, other: object) -> bool:
        return self.points == other.points if isinstance(other, BatchSchedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.points)

    def __repr__(self) -> str:
        return f"BatchSchedule({self.to_config()!r})"

    def to_config(self) -> int | dict[int, int]:
        """The plain value that gives an equal schedule when read back."""
        return self.points[0][1] if len(self.points) == 1 else dict(self.points)

    def _segment(self, steps: Steps) -> Steps:
        return np.searchsorted(self._starts, steps, side="right") - 1

    def size_at(self, steps: Steps) -> Int64[np.ndarray, " n"]:
        """Examples in each of ``steps``."""
        return self._sizes[self._segment(np.asarray(steps, np.int64))]

    def offset_at(self, steps: Steps) -> Int64[np.ndarray, " n"]:
        """Examples before each of ``steps``: the global index of a step's first example."""
        steps = np.asarray(steps, np.int64)
        segment = self._segment(steps)
        return self._offsets[segment] + (steps - self._starts[segment]) * self._sizes[segment]

    def step_of(self, index: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The step that holds each global example index."""
        index = np.asarray(index, np.int64)
        segment = np.searchsorted(self._offsets, index, side="right") - 1
        return self._starts[segment] + (index - self._offsets[segment]) // self._sizes[segment]

    def rows_at(self, step: int) -> tuple[int, int]:
        """First example index and size of one step."""
        at = np.array([step], np.int64)
        return int(self.offset_at(at)[0]), int(self.size_at(at)[0])

    def seen_from(self, step: int) -> BatchSchedule:
        """The batches from a step on, as those of steps from 0 on."""
        later = {first - step: size for first, size in self.points if first > step}
        return BatchSchedule({0: self.rows_at(step)[1], **later})


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
    for (first_length, _), (next_length, _) in itertools.pairwise(points):
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
        for (first, end), (_, length) in zip(itertools.pairwise(rows), phases, strict=True)
    )


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


def whole_number(value: object) -> object:
    """Converts a text with an exponent, or a float, to an int if it is one; other values are
    returned unchanged.

    Example:
        >>> [whole_number(v) for v in ("1e9", "1.5e9", 2e9, "1e-3", "1.5", 1.5, "12", True)]
        [1000000000, 1500000000, 2000000000, '1e-3', '1.5', 1.5, '12', True]
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        number = Decimal(value.replace("_", ""))
        if number.adjusted() < _MOST_DIGITS and number == number.to_integral_value():
            return int(number)
    return value


def _step(value: object, path: str) -> int:
    value = (
        int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else whole_number(value)
    )
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not 0 <= value <= MAX_STEP
    ):
        raise ConfigError(
            "is not a step",
            field=path,
            value=value,
            cure="Steps are whole numbers from 0 to 2**40.",
        )
    return int(value)


def _number(value: object, path: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            raise ConfigError("is not a weight", field=path, value=value, cure=_CURE) from None
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ConfigError("is not a weight", field=path, value=value, cure=_CURE)
    number = float(value)
    if not math.isfinite(number) or not 0 <= number <= MAX_WEIGHT:
        problem = (
            "must be finite and not negative"
            if number < 0 or not math.isfinite(number)
            else "is above 1e100"
        )
        raise ConfigError(
            problem,
            field=path,
            value=value,
            cure="Weights are relative: any scale from 0 up will do.",
        )
    return number
