"""From YAML and flags to config dataclasses, with errors that name the path and the nearest key.

draccus turns plain values into dataclasses and back; what stands here is around it: dotted overrides (also into dicts,
which draccus's own flags do not reach), unknown keys found before decoding, and its errors said as ours.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Union, cast

import draccus
import yaml
from draccus.utils import DecodingError, ParsingError

from headrace.errors import ConfigError, HeadraceError, did_you_mean
from headrace.store import files

T = TypeVar("T")


def read_mapping(path: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: there is no such file, or it is not a YAML mapping; the line is named.
    """
    raw = files.read_bytes(path)
    if raw is None:
        raise ConfigError("does not exist", field="config", value=path, cure="Give the path of a YAML file.")
    value = _yaml(raw.decode(errors="replace"), path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError("is not a mapping of names to values", field="config", value=path)
    return cast("dict[str, Any]", value)


def with_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``config`` with dotted settings applied, left to right.

    Args:
        config: Names and values, nested.
        overrides: ``a.b=1``, or ``--a.b=1``, or the two items ``--a.b`` and ``1``.

    Raises:
        ConfigError: a setting has no value, or goes into something that is not a mapping.

    Example:
        >>> with_overrides({"a": {"b": 1}}, ["--a.b", "2", "c=[1, 2]"])
        {'a': {'b': 2}, 'c': [1, 2]}
    """
    result = copy.deepcopy(dict(config))
    items = list(overrides)
    while items:
        item = items.pop(0)
        name, equals, text = item.removeprefix("--").partition("=")
        if not equals and item.startswith("--") and items and not items[0].startswith("--"):
            text, equals = items.pop(0), "="
        if not equals or not name:
            raise ConfigError("is not a setting", field="override", value=item, cure="Write name.of.field=value.")
        *parents, last = name.split(".")
        target = result
        for depth, parent in enumerate(parents):
            child = target.setdefault(parent, {})
            if not isinstance(child, dict):
                raise ConfigError(
                    f"goes into {'.'.join(parents[: depth + 1])}, which is {child!r} and not a mapping",
                    field="override",
                    value=item,
                )
            target = cast("dict[str, Any]", child)
        target[last] = _yaml(text, name)
    return result


def decode(cls: type[T], raw: Mapping[str, Any]) -> T:
    """``raw`` as a config dataclass.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that the dataclass refuses.
    """
    _check_keys(cls, raw, "")
    try:
        return draccus.decode(cls, dict(raw))
    except HeadraceError:
        raise
    except (DecodingError, ParsingError) as error:
        cause: BaseException | None = error
        while cause is not None:  # draccus wraps what our own checks raised
            if isinstance(cause, HeadraceError):
                raise cause from None
            cause = cause.__cause__
        raise ConfigError(_sentence(error), field="config", cure="Compare with `headrace config --help`.") from error


def dump(config: Any) -> str:
    """A config dataclass as YAML."""
    stream = io.StringIO()
    draccus.dump(config, stream)
    return stream.getvalue()


def _yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "is not YAML"
        raise ConfigError(f"is not YAML ({problem}{line})", field="config", value=where) from error


def _check_keys(cls: Any, raw: Any, path: str) -> None:
    """Walks the types and the raw values side by side and refuses keys that no dataclass there has."""
    if not isinstance(raw, Mapping):
        return
    values = cast("Mapping[str, Any]", raw)
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        known = [f.name for f in dataclasses.fields(cls)]
        for key, value in values.items():
            at = f"{path}.{key}" if path else str(key)
            if key not in known:
                raise ConfigError("is not a field here", field=at, value=value, cure=did_you_mean(str(key), known))
            _check_keys(hints[key], value, at)
        for f in dataclasses.fields(cls):
            required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            if required and f.name not in values:
                raise ConfigError("is missing", field=f"{path}.{f.name}" if path else f.name, cure="It has no default.")
        return
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin is dict and len(arguments) == 2:
        for key, value in values.items():
            _check_keys(arguments[1], value, f"{path}.{key}")
    elif origin in (Union, types.UnionType):
        accepts_mapping = [a for a in arguments if dataclasses.is_dataclass(a) or typing.get_origin(a) is dict]
        if len(accepts_mapping) == 1:
            _check_keys(accepts_mapping[0], raw, path)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).replace("`", "").split())


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            if isinstance(key, str | int) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            if isinstance(key, str | int):
                seen.add(key)
        return cast("dict[Any, Any]", super().construct_mapping(node, deep))
