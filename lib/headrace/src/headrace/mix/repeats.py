"""Weights by the number of passes: ``{repeat: 2}`` means twice as many passes as ``{repeat: 1}``.

Such a weight is a number or a schedule, times the rows of the source: the rows drawn from it while
a source with ``{repeat: 1}`` is drawn once, whatever their sizes. A group whose sources all repeat
may itself ``repeat``: it is then drawn as if its sources were in its place, each that many times
more often.

Invariant: over any steps without limits, the passes over two sources of one blend are in the ratio
of their repeats, to within a row of each. Price: the datasets are opened for their number of rows,
only if a weight repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.errors import ConfigError, did_you_mean
from headrace.mix.schedule import weight_from_config

REPEAT = "repeat"


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
        _repeat_of(value) is not None or repeats_somewhere(blend_of(value))
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


def blend_of(value: object) -> Mapping[str, Any]:
    """The blend of a group; empty for a weight."""
    blend: object = (
        cast("Mapping[str, Any]", value).get("blend") if isinstance(value, Mapping) else None
    )
    return cast("Mapping[str, Any]", blend) if isinstance(blend, Mapping) else {}


def _repeat_of(value: object) -> Any:
    """The repeats of a weight, or of a group's weight; None: there are none."""
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    return _repeat_of(fields.get("weight")) if blend_of(fields) else fields.get(REPEAT)
