"""Where in a config a wrong value stands, however deep: its path, and what may stand there.

draccus says which field of the outermost union did not fit; dataclasses that check themselves do not know where they
are. Here the types and the plain values are walked side by side, down to the value that is wrong.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union, cast

import draccus
from draccus.utils import DecodingError, ParsingError

from headrace.errors import ConfigError, HeadraceError

_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


def wrong_type(cls: type[Any], raw: Mapping[str, Any], error: Exception) -> ConfigError:
    """The error for a value that does not fit its type.

    Args:
        cls: The config's dataclass.
        raw: Plain values.
        error: What draccus raised.
    """
    found = _misfit(cls, raw, "")
    if found is None:  # draccus knows more than is known here
        return ConfigError(" ".join(str(error).replace("`", "").split()), field="config")
    path, value, hint = found
    return ConfigError("is of the wrong type", field=path, value=value, cure=f"Give {expected(hint)}.")


def placed(cls: type[Any], raw: Mapping[str, Any], error: HeadraceError) -> HeadraceError:
    """The error that a dataclass within a config raised, with the whole path of its field.

    Args:
        cls: The config's dataclass.
        raw: Plain values.
        error: What the dataclass raised about itself.
    """
    place = _refusing(cls, raw, "")
    own = error.field or ""
    if not place or own.startswith(place):
        return error
    field = f"{place}.{own.rpartition('.')[2]}" if own else place
    given = {} if error.value is None else {"value": error.value}
    return type(error)(error.problem, field=field, cure=error.cure, **given)


def _parts(hint: Any, value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """Types, values and paths of what lies directly in a value, as far as its type says."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for one in arguments:
            if dataclasses.is_dataclass(one) and isinstance(value, Mapping):
                names = {f.name for f in dataclasses.fields(one)}
                if names >= {str(k) for k in cast("Mapping[Any, Any]", value)}:
                    yield from _parts(one, value, path)
                    return
            elif typing.get_origin(one) in (dict, list) and isinstance(value, typing.get_origin(one) or object):
                yield from _parts(one, value, path)
                return
    elif dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        hints = typing.get_type_hints(hint)
        for name, inner in cast("Mapping[str, Any]", value).items():
            yield hints.get(name, Any), inner, f"{path}.{name}" if path else name
    elif origin is list and isinstance(value, list):
        for number, inner in enumerate(cast("list[Any]", value)):
            yield arguments[0], inner, f"{path}[{number}]"
    elif origin is dict and isinstance(value, Mapping):
        for name, inner in cast("Mapping[Any, Any]", value).items():
            yield arguments[1], inner, f"{path}.{name}"


def _misfit(hint: Any, value: Any, path: str) -> tuple[str, Any, Any] | None:
    """Path, value and type of the first value that does not fit, the deepest that can be told."""
    inside = [*_parts(hint, value, path)]
    for inner_hint, inner, at in inside:
        found = _misfit(inner_hint, inner, at)
        if found is not None:
            return found
    return None if inside or _fits(hint, value) else (path, value, hint)


_FITS: dict[Any, Callable[[Any], bool]] = {
    bool: lambda v: isinstance(v, bool),
    int: lambda v: isinstance(v, int) and not isinstance(v, bool),
    float: lambda v: (isinstance(v, int | float) and not isinstance(v, bool)) or _is_number(v),
    str: lambda v: not isinstance(v, list | dict),
    type(None): lambda v: v is None,
}


def _is_number(value: object) -> bool:
    return isinstance(value, str) and (_NUMBER.fullmatch(value) is not None or value in ("inf", "nan"))


def _fits(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(one, value) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if dataclasses.is_dataclass(hint) or origin is dict:
        return isinstance(value, Mapping)
    if origin is list:
        return isinstance(value, list)
    return hint not in _FITS or _FITS[hint](value)


def _refusing(hint: Any, value: Any, path: str) -> str:
    """Path of the innermost dataclass that refuses its values; empty if only the outermost does."""
    for inner_hint, inner, at in _parts(hint, value, path):
        for one in _classes(inner_hint):
            if _refuses(one, inner):
                return _refusing(one, inner, at) or at
    return ""


def _classes(hint: Any) -> Iterator[Any]:
    """What in a type may hold dataclasses."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        for one in typing.get_args(hint):
            yield from _classes(one)
    elif dataclasses.is_dataclass(hint) or typing.get_origin(hint) in (dict, list):
        yield hint


def _refuses(hint: Any, value: Any) -> bool:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            return False
        values = cast("Mapping[str, Any]", value)
        if not {f.name for f in dataclasses.fields(hint)} >= set(values) or not all(
            _fits(typing.get_type_hints(hint)[name], inner) for name, inner in values.items()
        ):
            return False  # another member of a union is meant
        try:
            draccus.decode(cast("type[Any]", hint), dict(values))
        except (HeadraceError, DecodingError, ParsingError):
            return True
        return False
    return any(_refuses(one, inner) for h, inner, _ in _parts(hint, value, "") for one in _classes(h))


_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


def expected(hint: Any) -> str:
    """What may stand where a type is expected, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(a) for a in arguments if a is not type(None)))
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if dataclasses.is_dataclass(hint):
        return f"a mapping with {', '.join(f.name for f in dataclasses.fields(hint))}"
    return _EXPECTED.get(origin or hint, "a mapping" if origin is dict else "a value")
