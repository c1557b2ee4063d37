"""Differences of JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from headrace.config.writing import FREE_FIELDS


class Difference(NamedTuple):
    """A value that differs between two JSON documents: its path, and both values as JSON."""

    path: str
    old: str
    new: str


def differences(old: Any, new: Any, absent: str = "nothing") -> list[str]:
    """:func:`differing_values`, as ``path: old -> new``.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}})
        ['a.c: 2 -> 3', 'a.d: nothing -> 4']
        >>> differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
        ['a[1].b: 2 -> 3']
    """
    return [f"{d.path}: {d.old} -> {d.new}" for d in differing_values(old, new, absent=absent)]


def differing_values(
    old: Any, new: Any, path: str = "", absent: str = "nothing"
) -> list[Difference]:
    """Differing values of two JSON documents; a missing value is written as ``absent``."""
    if isinstance(old, dict) and isinstance(new, dict):
        differences: list[Difference] = []
        for key in [*old, *(k for k in new if k not in old)]:
            at = f"{path}.{key}" if path else str(key)
            if key in old and key in new:
                differences += differing_values(old[key], new[key], at, absent)
            else:
                sides = [_short(side[key]) if key in side else absent for side in (old, new)]
                differences.append(Difference(at, *sides))
        return differences
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for k, pair in pairs for d in differing_values(*pair, f"{path}[{k}]", absent)]
    return [] if old == new else [Difference(path, _short(old), _short(new))]


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """:func:`differences` of the fields of two configs.

    Left out are fields that may change at any time, and snapshots of caches, which a run keeps if
    its config does not set them.

    Example:
        >>> config_differences(
        ...     {"components": {"a": 1, "b": 1}}, {"components": {"b": 1, "a": 1}, "seed": 1}
        ... )
        ['seed: not set -> 1']
    """
    of_run, edited = (
        {name: _without_snapshots(fields[name]) for name in fields if name not in FREE_FIELDS}
        for fields in (old, new)
    )
    return differences(of_run, edited, absent="not set")


def _without_snapshots(value: Any) -> Any:
    """A field without the snapshots of components."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: _without_snapshots(inner) for name, inner in fields.items() if name != "snapshot"}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
