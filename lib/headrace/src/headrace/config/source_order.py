"""The order of sources in a resumed run: that of the run, whatever the order of keys in the config.

The numbers of sources, and ties between their weights, follow the order in which a config names
them. A run keeps the order that it began with; sources that were not in it come last, as the config
names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig


def in_order_of_run(config: LmDataConfig, begun: Mapping[str, Any]) -> LmDataConfig:
    """A config with its sources in the order of the fields of a run's config;
    itself if they are.
    """
    fields: dict[str, Any] = {
        "components": in_order_of(config.components, begun.get("components")),
        "weights": in_order_of(config.weights, begun.get("weights")),
    }
    for listed, names in (("stages", ["weights"]), ("amendments", ["add", "weights"])):
        stored: list[Mapping[str, Any]] = begun.get(listed, [])
        fields[listed] = list(getattr(config, listed))
        for number, (entry, stored_entry) in enumerate(zip(fields[listed], stored, strict=False)):
            turned = {
                name: in_order_of(getattr(entry, name), stored_entry.get(name)) for name in names
            }
            fields[listed][number] = replace(entry, **turned)
    was_in_order = all(repr(getattr(config, name)) == repr(fields[name]) for name in fields)
    return config if was_in_order else replace(config, **fields)


def in_order_of(fields: Any, begun: Any) -> Any:
    """A (nested) mapping with the keys of another first, in the order of that, then its others.

    Example:
        >>> in_order_of(
        ...     {"math": 1, "code": {"weight": 1}, "docs": 2}, {"docs": 1, "code": 1, "gone": 1}
        ... )
        {'docs': 2, 'code': {'weight': 1}, 'math': 1}
    """
    if not isinstance(fields, Mapping) or not isinstance(begun, Mapping):
        return fields
    named = cast("Mapping[str, Any]", fields)
    named_before = cast("Mapping[str, Any]", begun)
    names = [name for name in named_before if name in named]
    names += [name for name in named if name not in named_before]
    return {name: in_order_of(named[name], named_before.get(name)) for name in names}
