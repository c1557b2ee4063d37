"""Blends: named sources, each with a weight, possibly nested; normalised **at every node and every
step**.

A node's weights are divided by their sum at that step, and a leaf's weight is the product along its
path. Adding a source inside a nested blend therefore does not change what the blend takes of the
whole (the semantics that Megatron-Energon's schedules arrived at). A weight may be zero for a
while; all weights of a node that is in use being zero is a :class:`ConfigError` that names the
first such step, found from the break points without scanning. A blend that is used for a part of
the run only (a stage) is checked for that part.

Invariant: rows of :meth:`Blend.at` are non-negative and sum to 1 (within a few ulp); a leaf with
weight 0 is exactly 0, and one with weight never is, however small the product along its path. Sums
run in a fixed order, so that the bits do not depend on the machine. Price: about 50 ns per step and
leaf.

Also here: weights that follow from the sizes of the sources. ``weights: {temperature: 2}`` in a
config gives each a weight of ``size ** (1 / 2)``: 1 is proportional to size, larger values come
closer to equal shares. ``{unimax: 4}`` gives shares as equal as they can be while no source is seen
more than 4 times in the whole run, so it must know the tokens of the run: ``unimax: {max_epochs: 4,
tokens: 1e10}``, or ``num_steps``. Sizes are the tokens of rows that can be trained on: without what
is held out, filtered, or fills no row.

A single weight may follow from the size of its source: ``{repeat: 2}`` means twice as many passes
as ``{repeat: 1}``. It is a number or a schedule, times the rows of the source: the rows drawn from
it while a source with ``{repeat: 1}`` is drawn once, whatever their sizes. A group whose sources
all repeat may itself ``repeat``: it is then drawn as if its sources were in its place, each that
many times more often. Over any steps without limits, the passes over two sources of one blend are
in the ratio of their repeats, to within a row of each. The datasets are opened for their number of
rows, only if a weight repeats.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, did_you_mean
from headrace.mix.schedule import (
    MAX_STEP,
    MIN_WEIGHT,
    Curves,
    Weight,
    compose_weights,
    weight_from_config,
)

REPEAT = "repeat"

WeightsAt: TypeAlias = Callable[[Int64[np.ndarray, " n"]], Float64[np.ndarray, "n d"]]
"""Vectorised weights: steps -> one row of component weights for each step. Pure, and row by row."""
RULES = ("temperature", "unimax")


class Lines(NamedTuple):
    """Straight lines on which the weights of leaves are, before they are divided by their sum.

    Attributes:
        pieces: Rows of the first and the last step of each, of its values there, and of its scale.
        stop: The first step behind them.
    """

    pieces: Float64[np.ndarray, "5 d"]
    stop: int


LinesAt: TypeAlias = Callable[[int], Lines | None]
"""The lines from a step on; None: weights are not given by lines alone."""


_Entry: TypeAlias = "tuple[str, Weight, _Node | None]"
"""Name and weight of a source, or of a group with the node of its blend."""


@dataclass(frozen=True)
class _Node:
    entries: tuple[_Entry, ...]
    curves: Curves
    path: str


class Blend:
    """Leaf weights of a blend at any steps.

    Args:
        weights: ``{name: weight}``, or for a nested blend ``{name: {"weight": weight, "blend":
            {...}}}``; a weight is whatever :func:`weight_from_config` reads. ``weight`` may be left
            out and is then 1.
        path: Path in the config, for errors.
        num_steps: The step before which its use ends, if known: values for later steps are ignored,
            and the weights of the last step stay.
        first_step: The step from which on it is used; the same for earlier steps.
        may_end: Whether it may lose all its weight at a step, before which its use then has to end
            (:attr:`end`). Its values do not depend on where the use ends.

    Raises:
        ConfigError: empty; unknown keys; schedules twice on one path; a name used by two leaves;
            all weights of a node in use are zero at some step of its use.

    Example:
        >>> b = Blend(
        ...     {
        ...         "web": 1,
        ...         "lib": {"weight": {"linear": {0: 0, 4: 3}}, "blend": {"code": 3, "docs": 1}},
        ...     }
        ... )
        >>> b.names
        ('web', 'code', 'docs')
        >>> b.at(np.array([0, 4]))
        array([[1.    , 0.    , 0.    ],
               [0.25  , 0.5625, 0.1875]])
        >>> Blend({"a": {"step": {0: 1, 10: 0}}, "b": {"step": {0: 1, 7: 0}}})
        Traceback (most recent call last):
        headrace.errors.ConfigError: weights: all weights are zero at step 10.
            Give one of 'a', 'b' a weight there.
        >>> Blend({"a": {"step": {0: 0, 10: 1, 20: 0}}}, first_step=10, num_steps=20).at(
        ...     np.array([10])
        ... )
        array([[1.]])
        >>> Blend({"a": {"linear": {0: 1, 10: 0}}}, may_end=True).end
        10
    """

    def __init__(
        self,
        weights: Mapping[str, object],
        path: str = "weights",
        num_steps: int | None = None,
        first_step: int = 0,
        *,
        may_end: bool = False,
    ) -> None:
        self._root = _read(weights, path, ())
        self.path = path
        """Path in the config, for errors."""
        self.names: tuple[str, ...] = tuple(n for n, _, inner in _entries(self._root) if not inner)
        """Names of the leaves, in the order written: component numbers count along it."""
        for name in self.names:
            if self.names.count(name) > 1:
                raise ConfigError(
                    "names two sources", field=path, value=name, cure="Rename one of them."
                )
        self.breaks: tuple[int, ...] = tuple(
            sorted({step for _, weight, _ in _entries(self._root) for step in weight.breaks})
        )
        """Steps at which some weight may bend or jump."""
        self._use(first_step, num_steps, may_end)

    def _use(self, first: int, stop: int | None, may_end: bool) -> None:
        """Sets the steps of its use, and checks its weights there."""
        self._first = first
        self._last = MAX_STEP if stop is None else max(stop - 1, first)
        self.end: int | None = None
        """The first step at which it has no weight, before which the run has to end; None: it
        always has.
        """
        if may_end and stop is None:
            self.end = self._first_without_weight()
            self._last = MAX_STEP if self.end is None else self.end - 1
        self.at(self.bends(first, self._last + 1))

    def used(self, first: int, stop: int | None) -> Blend:
        """The blend where it is used from another step on, and up to another one (None: as far as
        it has weight).

        Example:
            >>> Blend({"a": {"linear": {0: 1, 10: 0}}}, num_steps=5).used(2, None).end
            10
        """
        other = copy.copy(self)
        other._use(first, stop, may_end=True)
        return other

    def bends(self, first: int, stop: int) -> Int64[np.ndarray, " n"]:
        """``first`` and the break points of the steps ``first .. stop``, which suffice to find
        where a weight is zero.

        Between break points, a weight is constant or linear and not negative, so it is zero at some
        step in between only if it is zero at the first.

        Example:
            >>> Blend({"a": {"linear": {0: 1, 8: 2, 90: 1}}}).bends(5, 90)
            array([5, 8])
        """
        return np.array([first, *(b for b in self.breaks if first < b < stop)], np.int64)

    def _first_without_weight(self) -> int | None:
        """The first step after that of its first use at which all weights of a node in use are
        zero.
        """
        for step in self.bends(self._first, MAX_STEP + 1)[1:].tolist():
            try:
                _evaluate(self._root, np.array([step]), None, [])
            except ConfigError:
                return step
        return None

    def check_ends(self, stop: int | None) -> None:
        """Raises ConfigError if it has no weight at some step before ``stop``, where its use ends
        (None: never).
        """
        if self.end is not None and (stop is None or stop > self.end):
            try:
                _evaluate(self._root, np.array([self.end]), None, [])
            except ConfigError as error:
                cure = (
                    f"{(error.cure or '').rstrip('.')}, or end the run with num_steps: {self.end}."
                )
                raise error.but(cure=cure) from None

    def settles_at(self, last: int) -> int:
        """The step from which on no weight changes up to ``last``: ``last`` itself in the middle of
        a ramp.

        Example:
            >>> [
            ...     Blend({"a": {"linear": {0: 1, 8: 2}}, "b": 1}).settles_at(last)
            ...     for last in (5, 8, 90)
            ... ]
            [5, 8, 8]
        """
        return max(weight.settles_at(last) for _, weight, _ in _entries(self._root))

    @property
    def is_constant(self) -> bool:
        """Whether no weight in it is a schedule."""
        return not self.breaks

    @property
    def flat(self) -> tuple[Weight, ...] | None:
        """The leaves' own weights, if the blend is not nested."""
        entries = self._root.entries
        return (
            None
            if any(inner for _, _, inner in entries)
            else tuple(weight for _, weight, _ in entries)
        )

    def at(self, steps: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n d"]:
        """Weights of all leaves at ``steps``, rows summing to 1; at steps outside its use those of
        its first or last.

        Raises:
            ConfigError: all weights of a node in use are zero at one of the steps.
        """
        steps = np.asarray(steps, np.int64).clip(self._first, self._last)
        parts: list[np.ndarray] = []
        _evaluate(self._root, steps, None, parts)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def lines_at(self, step: int, first: int = 0, last: int = MAX_STEP) -> Lines | None:
        """The lines on which the weights are from a step on, None if blends are nested.

        Args:
            step: The step, counted from ``first``, as those of the lines are.
            first: A step of the blend.
            last: The step whose weights stay.

        Example:
            >>> lines = Blend({"a": {"linear": {10: 1, 20: 2}}, "b": 3}).lines_at(5, first=10)
            >>> lines.pieces.tolist(), lines.stop
            ([[0.0, 0.0], [10.0, 10.0], [1.0, 3.0], [2.0, 3.0], [1.0, 1.0]], 10)
        """
        if self.flat is None:
            return None
        last = min(last, self._last)
        at = min(max(step + first, self._first), last)
        self.at(np.array([at]))  # raises where there is no weight
        curves = self._root.curves
        stop = min([b for b in curves.breaks.tolist() if b > at], default=MAX_STEP + 1)
        pieces = curves.lines_at(at)
        if at != step + first or at == last:
            # Weights stay
            pieces[2:4] = pieces[2] + (at - pieces[0]) / (pieces[1] - pieces[0]) * (
                pieces[3] - pieces[2]
            )
            stop = self._first if step + first < at else MAX_STEP + 1
        elif stop > last:
            stop = last
        pieces[:2] -= first
        return Lines(pieces, stop - first)

    def to_config(self) -> dict[str, object]:
        """The plain value that gives an equal blend when read back."""
        return _config(self._root)


def check_weights(weights: Mapping[str, object], path: str) -> None:
    """Raises ConfigError unless each value is a valid weight of a blend; they may all be zero."""
    _read(weights, path, ())


def _read(obj: object, path: str, above: tuple[Weight, ...]) -> _Node:
    if not isinstance(obj, Mapping) or not obj:
        cure = (
            "Name at least one: {code: {cache: PATH}}."
            if path == "components"
            else "Write {NAME: WEIGHT}."
        )
        raise ConfigError("needs at least one source", field=path, value=obj, cure=cure)
    entries: list[_Entry] = []
    for key, value in cast(Mapping[object, object], obj).items():
        name = str(key)
        entry_path = f"{path}.{key}"
        inner: object = None
        if isinstance(value, Mapping) and ("blend" in value or "weight" in value):
            parts = cast(Mapping[str, object], value)
            for part in parts:
                if part not in ("weight", "blend"):
                    cure = did_you_mean(str(part), ("weight", "blend"))
                    raise ConfigError(
                        f"unknown key {part!r}", field=entry_path, value=value, cure=cure
                    )
            value = parts.get("weight", 1.0)
            inner = parts.get("blend")
        weight = weight_from_config(value, entry_path)
        chain = (*above, Weight(weight.kind, weight.points, weight.scale, entry_path))
        for outer in above:  # not only the parent: a schedule may stand two levels up
            compose_weights(outer, chain[-1])
        entries.append(
            (name, weight, None if inner is None else _read(inner, f"{entry_path}.blend", chain))
        )
    return _Node(tuple(entries), Curves([w for _, w, _ in entries]), path)


def _entries(node: _Node) -> Iterator[_Entry]:
    """All entries below a node, each followed by those below it."""
    for entry in node.entries:
        yield entry
        if entry[2] is not None:
            yield from _entries(entry[2])


def _config(node: _Node) -> dict[str, object]:
    return {
        name: weight.to_config()
        if inner is None
        else {"weight": weight.to_config(), "blend": _config(inner)}
        for name, weight, inner in node.entries
    }


def _evaluate(
    node: _Node, steps: np.ndarray, share: np.ndarray | None, parts: list[np.ndarray]
) -> None:
    """Append the weights of the leaves below ``node``, which has ``share`` of the whole, to
    ``parts``.
    """
    values = node.curves.at(steps)
    total = np.add.accumulate(values, axis=1)[
        :, -1
    ]  # in a fixed order: numpy's sum depends on the vector width
    if not total.all():
        empty = total == 0 if share is None else (total == 0) & (share > 0)
        if empty.any():
            names = ", ".join(repr(name) for name, _, _ in node.entries[:6])
            cure = f"Give one of {names} a weight there."
            raise ConfigError(
                f"all weights are zero at step {int(steps[empty].min())}",
                field=node.path,
                cure=cure,
            )
        total[total == 0] = 1.0
    positive = values > 0
    values /= total[:, None]
    if share is not None:
        values *= share[:, None]
        positive &= share[:, None] > 0
    if (values < MIN_WEIGHT).any():  # a product may vanish, its weight does not
        np.maximum(values, np.where(positive, MIN_WEIGHT, 0.0), out=values)
    if all(inner is None for _, _, inner in node.entries):
        parts.append(values)
        return
    for d, (_, _, inner) in enumerate(node.entries):
        if inner is None:
            parts.append(values[:, d : d + 1])
        else:
            _evaluate(inner, steps, values[:, d], parts)


def _temperature(sizes: Mapping[str, float], tau: float) -> dict[str, float]:
    """Weights proportional to ``size ** (1 / tau)`` (Arivazhagan et al., "Massively multilingual
    neural machine translation in the wild", 2019).
    """
    largest = max(sizes.values())
    raised = {name: (size / largest) ** (1 / tau) for name, size in sizes.items()}
    total = math.fsum(raised.values())
    return {name: r / total for name, r in raised.items()}


def _unimax(sizes: Mapping[str, float], budget: float, max_epochs: float) -> dict[str, float]:
    """Shares of a budget as equal as possible while no source is seen more than ``max_epochs``
    times (Chung et al., "UniMax: fairer and more effective language sampling for large-scale
    multilingual pretraining", ICLR 2023).
    """
    budget_left = budget
    share = {}
    by_size = sorted(sizes, key=lambda name: sizes[name])
    for i, name in enumerate(
        by_size
    ):  # smallest first: what it cannot take is shared by the larger ones
        share[name] = min(budget_left / (len(by_size) - i), sizes[name] * max_epochs)
        budget_left -= share[name]
    return {name: share[name] / budget for name in sizes}


def is_size_rule(weights: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether weights are a rule rather than a blend. A component of that name makes it a blend.

    Example:
        >>> is_size_rule({"temperature": 2}, ["web"]), is_size_rule({"web": 2}, ["web"])
        (True, False)
    """
    return len(weights) == 1 and next(iter(weights)) in RULES and next(iter(weights)) not in names


def refuse_size_rules(
    weights: Mapping[str, Any], names: Collection[str], path: str, *, itself: bool = False
) -> None:
    """Raises ConfigError where a group of a blend is a rule (or, if asked, ``weights`` themselves
    are one).
    """
    if itself and is_size_rule(weights, names):
        problem = "is a rule for all sources, and stands at the top of weights only"
        cure = f"Write weights: {dict(weights)} for all sources, or name: weight lines here."
        raise ConfigError(problem, field=path, value=dict(weights), cure=cure)
    for name, value in weights.items():
        if (blend := blend_of(value)) is not None:
            refuse_size_rules(blend, names, f"{path}.{name}.blend", itself=True)


def weights_of_sizes(
    rule: Mapping[str, Any],
    sizes: Mapping[str, float],
    run_tokens: float | None = None,
    path: str = "weights",
    budget: str = "num_steps",
) -> dict[str, float]:
    """The weights that a rule stands for, rounded to 9 digits, because powers differ in the last
    bit from machine to machine and the weights are part of the run's lock.

    Args:
        rule: ``{"temperature": t}``, ``{"unimax": max_epochs}`` or ``{"unimax": {"max_epochs": e,
            "tokens": n}}``.
        sizes: Tokens of each source.
        run_tokens: Tokens of the whole run, if known.
        path: Path of the rule in the config, for errors.
        budget: The field that determines ``run_tokens``, for errors.

    Raises:
        ConfigError: a value is invalid, or the sources are too small for the run.

    Example:
        >>> weights_of_sizes({"temperature": 2}, {"big": 400, "small": 100})
        {'big': 0.666666667, 'small': 0.333333333}
        >>> weights_of_sizes({"unimax": 2}, {"big": 400, "small": 100}, run_tokens=500)
        {'big': 0.6, 'small': 0.4}
    """
    kind, value = next(iter(rule.items()))
    kind_path = f"{path}.{kind}"
    for name, size in sizes.items():
        if not size > 0:
            raise ConfigError(
                f"needs sizes, and component {name!r} has no row", field=kind_path, value=value
            )
    if kind == "temperature":
        tau = _positive(
            value, kind_path, "1 keeps the proportions of the sizes; larger values level them."
        )
        return _rounded(_temperature(sizes, tau))
    tokens: object = run_tokens
    epochs: object = value
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        for key in fields:
            if key not in ("max_epochs", "tokens"):
                cure = did_you_mean(str(key), ("max_epochs", "tokens"))
                raise ConfigError(
                    "is not a field here", field=f"{kind_path}.{key}", value=fields[key], cure=cure
                )
        epochs = fields.get("max_epochs")
        tokens = fields.get("tokens", run_tokens)
        budget = f"{kind_path}.tokens" if "tokens" in fields else budget
    if tokens is None:
        cure = f"Give {budget}, or write unimax: {{max_epochs: 4, tokens: 1e10}}."
        raise ConfigError(
            "needs to know how many tokens the run has", field=kind_path, value=value, cure=cure
        )
    passes = f"{kind_path}.max_epochs" if isinstance(value, Mapping) else kind_path
    most = _positive(epochs, passes, "Passes over each source, e.g. 4.")
    total_tokens = _positive(tokens, f"{kind_path}.tokens", "Tokens of the whole run.")
    total = math.fsum(sizes.values())
    if most * total < total_tokens * (1 - 1e-9):
        least = math.ceil(total_tokens / total * 1000) / 1000
        raise ConfigError(
            f"cannot be met: all sources, {most:g} times over, hold {most * total:,.0f} tokens,"
            f" and the run has {total_tokens:,.0f}",
            field=passes,
            value=epochs,
            cure=f"Raise it to {least:.12g} or more, or lower {budget}.",
        )
    return _rounded(_unimax(sizes, total_tokens, most))


def _positive(value: object, path: str, cure: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads 1e10 as text
        try:
            value = float(value)
        except ValueError:
            raise ConfigError("is not a number", field=path, value=value, cure=cure) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError("must be a number above 0", field=path, value=value, cure=cure)
    return float(value)


def _rounded(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{weight:.9g}") for name, weight in weights.items()}


def repeats_somewhere(weights: Mapping[str, Any]) -> bool:
    """Whether a weight of a (nested) blend repeats.

    Example:
        >>> (
        ...     repeats_somewhere({"a": {"weight": 1, "blend": {"b": {"repeat": 1}}}}),
        ...     repeats_somewhere({"a": 1}),
        ... )
        (True, False)
    """
    return any(
        _repeat_of(value) is not None or repeats_somewhere(blend_of(value) or {})
        for value in weights.values()
    )


def with_rows(
    weights: Mapping[str, Any], rows: Callable[[], Mapping[str, int]], path: str
) -> dict[str, Any]:
    """A (nested) blend with plain weights instead of those that repeat.

    Args:
        weights: The blend.
        rows: Returns the rows of each source; called only if a weight repeats.
        path: Its path in the config, for errors.

    Raises:
        ConfigError: a blend has weights with and without ``repeat``; a value is not a number.

    Example:
        >>> with_rows(
        ...     {"web": {"repeat": 1}, "books": {"repeat": 4}},
        ...     lambda: {"web": 900, "books": 25},
        ...     "weights",
        ... )
        {'web': 900.0, 'books': 100.0}
    """
    return _resolved(weights, rows(), path) if repeats_somewhere(weights) else dict(weights)


def without_repeats(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A (nested) blend with the repeats as its weights, for checks that do not know the rows.

    Example:
        >>> without_repeats({"a": {"repeat": 2}, "b": {"weight": {"repeat": 1}, "blend": {"c": 1}}})
        {'a': 2, 'b': {'weight': 1, 'blend': {'c': 1}}}
    """
    plain: dict[str, Any] = {}
    for name, value in weights.items():
        repeat = _repeat_of(value)
        blend = blend_of(value)
        if blend:
            plain[name] = {
                **value,
                "blend": without_repeats(blend),
                **({} if repeat is None else {"weight": repeat}),
            }
        else:
            plain[name] = value if repeat is None else repeat
    return plain


def check_weight(weight: object, path: str) -> None:
    """Raises ConfigError unless it is a weight, or one that repeats."""
    repeat = _repeat_of(weight)
    weight_from_config(
        weight if repeat is None else repeat, path if repeat is None else f"{path}.{REPEAT}"
    )


def _resolved(weights: Mapping[str, Any], rows: Mapping[str, int], path: str) -> dict[str, Any]:
    repeating = [_repeat_of(value) is not None for value in weights.values()]
    if any(repeating) and not all(repeating):
        name = [*weights][repeating.index(False)]
        field = f"{path}.{name}.weight" if path == "components" else f"{path}.{name}"
        cure = "Write {repeat: 1}, or give all of them numbers."
        raise ConfigError(
            "stands beside weights that repeat", field=field, value=weights[name], cure=cure
        )
    plain: dict[str, Any] = {}
    for name, value in weights.items():
        entry_path = f"{path}.{name}"
        blend = blend_of(value)
        repeat = _repeat_of(value)
        if blend:
            inner = _resolved(blend, rows, f"{entry_path}.blend")
            of_group = (
                None
                if repeat is None
                else _scaled(repeat, _group_rows(blend, inner, entry_path), entry_path)
            )
            plain[name] = {
                **value,
                "blend": inner,
                **({} if of_group is None else {"weight": of_group}),
            }
        elif repeat is None:
            plain[name] = value
        elif name in rows:
            plain[name] = _scaled(repeat, rows[name], entry_path)
        else:
            raise ConfigError(
                "is not a component", field=entry_path, value=value, cure=did_you_mean(name, rows)
            )
    return plain


def _group_rows(blend: Mapping[str, Any], resolved: Mapping[str, Any], path: str) -> float:
    """Rows that a group is drawn in the time in which a source of ``{repeat: 1}`` is drawn once."""
    if not all(_repeat_of(value) is not None for value in blend.values()):
        cure = "Give the weights of its blend as repeats too, e.g. {repeat: 1}."
        raise ConfigError(
            "repeats, and what is in the group does not", field=path, value=dict(blend), cure=cure
        )
    parts = [value["weight"] if blend_of(value) else value for value in resolved.values()]
    if any(isinstance(part, Mapping) for part in parts):
        cure = "Give one of the two as plain weights."
        raise ConfigError(
            "repeats, and so do schedules in the group", field=path, value=dict(blend), cure=cure
        )
    return sum(float(part) for part in parts)


def _scaled(repeat: Any, rows: float, path: str) -> Any:
    return weight_from_config(repeat, f"{path}.{REPEAT}").scaled(rows).to_config()


def blend_of(value: object) -> Mapping[str, Any] | None:
    """The blend of a group; None for a weight."""
    blend: object = (
        cast("Mapping[str, Any]", value).get("blend") if isinstance(value, Mapping) else None
    )
    return cast("Mapping[str, Any]", blend) if isinstance(blend, Mapping) else None


def _repeat_of(value: object) -> Any:
    """The repeats of a weight, or of a group's weight; None: there are none."""
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    return _repeat_of(fields.get("weight")) if blend_of(fields) else fields.get(REPEAT)
