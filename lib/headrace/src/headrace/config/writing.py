"""From config dataclasses to YAML, and to the plain values of the fields that a user gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import redact

CONFIG_SUFFIXES = (".yaml", ".yml")
"""Endings of its files."""
FREE_FIELDS = ("num_steps", "prefetch_bytes", "row_exchange", "micro_batches")
"""Fields of a run's config on which no batch depends: they may change at any step."""
_GONE_FIELDS = ("cache_catalog",)
"""Such fields that earlier releases had."""


def dump(config: Any) -> str:
    """A config dataclass as YAML; what grants access in addresses is masked."""
    import yaml

    # the order of components is part of the run
    return redact(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))


def given_fields(config: Any) -> dict[str, Any]:
    """The fields of a config that differ from the defaults, as plain values that :func:`decode`
    reads back.

    Example:
        >>> from headrace.config.component import ComponentConfig
        >>> given_fields(ComponentConfig("caches/web", weight=3))
        {'cache': 'caches/web', 'weight': 3}
    """
    fields_set: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        factory = field.default_factory
        if value != (field.default if factory is dataclasses.MISSING else factory()):
            fields_set[field.name] = _plain(value)
    return fields_set


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = getattr(value, "kind", None)  # which of a union it is
        return given_fields(value) | ({} if kind is None else {"kind": kind})
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in cast("list[Any]", value)]
    # What is written for others to read: the signature in a presigned address is not.
    return redact(value) if isinstance(value, str) else whole_if_it_is(value)


def whole_if_it_is(value: Any) -> Any:
    """3 for 3.0, as a user writes it; other values unchanged.

    Example:
        >>> whole_if_it_is(3.0), whole_if_it_is(0.5), whole_if_it_is("a")
        (3, 0.5, 'a')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def without_gone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an earlier release recorded of a run, without those that no batch depended on
    and that are gone.

    Example:
        >>> without_gone({"seq_len": 8, "cache_catalog": None})
        {'seq_len': 8}
    """
    return {name: value for name, value in recorded.items() if name not in _GONE_FIELDS}
