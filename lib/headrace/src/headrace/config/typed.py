"""Checks the field types of configs made in Python; YAML is checked as it is read."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Union, cast

from headrace.config.parsing import Slot, fields_of
from headrace.errors import ConfigError, did_you_mean

_SCALARS: dict[Any, tuple[type, ...]] = {
    int: (Integral,),
    float: (Real,),
    str: (str,),
    bool: (bool,),
}


def check_fields(config: Any, path: str = "") -> None:
    """Raises ConfigError for a field of a dataclass, or of one nested in it, whose value is not of
    the declared type.

    Example:
        >>> from headrace import ComponentConfig
        >>> check_fields(ComponentConfig("caches/web", max_epochs="1"), "components.web.")
        Traceback (most recent call last):
        headrace.errors.ConfigError: components.web.max_epochs = '1': is of the wrong
            type. Give a number.
    """
    for name, field in fields_of(type(config)).items():
        _check(field.slot, getattr(config, name), f"{path}{name}")


def _check(slot: Slot, value: Any, path: str) -> None:
    if slot.form is dict and isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            _check(slot.parts[1], item, f"{path}.{key}")
    elif slot.form is Union and (value is not None or not slot.optional):
        members = [part for part in slot.parts if _fits(part, value)]
        if not members:
            raise _wrong_type(slot, value, path)
        _check(members[0], value, path)
    elif not _fits(slot, value):
        raise _wrong_type(slot, value, path)
    elif dataclasses.is_dataclass(slot.form) and value is not None:
        check_fields(value, f"{path}.")


def _fits(slot: Slot, value: Any) -> bool:
    """Whether a value is of a type, ignoring the contents of lists and mappings."""
    if slot.form is Any or (value is None and slot.optional):
        return True
    if slot.form is typing.Literal:
        return value in slot.choices
    if slot.form in _SCALARS:
        return isinstance(value, _SCALARS[slot.form]) and (
            slot.form is bool or not isinstance(value, bool)
        )
    forms: dict[Any, Any] = {list: (list, tuple), dict: Mapping, Union: object}
    return isinstance(value, forms.get(slot.form, slot.form))


def _wrong_type(slot: Slot, value: Any, path: str) -> ConfigError:
    if slot.choices and isinstance(value, str):
        return ConfigError(
            "is not one of those", field=path, value=value, cure=did_you_mean(value, slot.choices)
        )
    is_class = dataclasses.is_dataclass(slot.form)
    cure = f"Give a {slot.form.__name__}." if is_class else f"Give {slot.expected}."
    return ConfigError("is of the wrong type", field=path, value=value, cure=cure)
