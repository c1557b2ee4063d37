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

from headrace.config_places import expected, placed, wrong_type
from headrace.errors import ConfigError, HeadraceError, did_you_mean
from headrace.index.whole import whole_number
from headrace.store import files

T = TypeVar("T")


def read_mapping(path: str, *, foreign: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        path: The file.
        foreign: Whether another program wrote it: values of its own Python classes are read as their text or parts.

    Raises:
        ConfigError: there is no such file, or it is not a YAML mapping; the line is named.
    """
    try:
        raw = files.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror or error})", field="config", value=path) from error
    if raw is None:
        raise ConfigError("does not exist", field="config", value=path, cure="Give the path of a YAML file.")
    value = _yaml(raw.decode(errors="replace"), path, _ForeignLoader if foreign else _Loader)
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
    raw = cast("Mapping[str, Any]", _with_whole_numbers(cls, raw, ""))
    try:
        return draccus.decode(cls, dict(raw))
    except HeadraceError as error:
        raise placed(cls, raw, error) from None
    except (DecodingError, ParsingError) as error:
        own = _own_error(error)
        if own is not None:
            raise placed(cls, raw, own) from None
        raise wrong_type(cls, raw, error) from error


def _own_error(error: BaseException) -> HeadraceError | None:
    """What our own checks raised, where draccus has wrapped it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HeadraceError):
        cause = cause.__cause__
    return cause


def dump(config: Any) -> str:
    """A config dataclass as YAML."""
    stream = io.StringIO()
    draccus.dump(config, stream, sort_keys=False)  # the order of components is part of the run
    return stream.getvalue()


def _yaml(text: str, where: str, loader: type[_Loader] | None = None) -> Any:
    try:
        return yaml.load(text, Loader=loader or _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, and the like
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"is not YAML ({problem}{line})", field="config", value=where) from error


def _check_keys(cls: Any, raw: Any, path: str) -> None:
    """Walks the types and the raw values side by side and refuses keys that no dataclass there has."""
    _check_kind(cls, raw, path)
    if isinstance(raw, list) and typing.get_origin(cls) is list:
        for number, value in enumerate(cast("list[Any]", raw)):
            _check_keys(typing.get_args(cls)[0], value, f"{path}[{number}]")
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
        _check_keys(_alternative(arguments, values, path), raw, path)


def _with_whole_numbers(hint: Any, value: Any, path: str) -> Any:
    """The values with ``1e9`` as an int where a whole number is meant: YAML 1.1 reads it as text."""
    if isinstance(value, str | float):
        return whole_number(value) if _means_whole(hint) else value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, list):
        of = next((typing.get_args(one)[0] for one in (hint, *arguments) if typing.get_origin(one) is list), Any)
        return [_with_whole_numbers(of, one, f"{path}[{k}]") for k, one in enumerate(cast("list[Any]", value))]
    if not isinstance(value, Mapping):
        return value
    values = cast("Mapping[Any, Any]", value)
    if origin in (Union, types.UnionType):
        return _with_whole_numbers(_alternative(arguments, values, path), values, path)
    if not dataclasses.is_dataclass(hint) and origin is not dict:
        return value
    hints = typing.get_type_hints(hint) if origin is not dict else {}
    found: dict[Any, Any] = {}
    for name, one in values.items():
        key = name if hints else _with_whole_numbers(arguments[0], name, path)
        if key in found:
            raise ConfigError(f"names {key!r} twice", field=path, value=value, cure="Write each number once.")
        found[key] = _with_whole_numbers(hints.get(name) or arguments[1], one, f"{path}.{name}" if path else str(name))
    return found


def _means_whole(hint: Any) -> bool:
    """Whether an int may stand there, and neither a text nor a float."""
    union = typing.get_origin(hint) in (Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    return int in kinds and not {str, float, Any}.intersection(kinds)


def _check_kind(cls: Any, raw: Any, path: str) -> None:
    """Refuses a missing value, and anything but a list or a mapping where one must stand."""
    if raw is None:
        if not _admits_none(cls):
            raise ConfigError("has no value", field=path, cure=f"Give {expected(cls)}, or leave the name out.")
    elif typing.get_origin(cls) is list and not isinstance(raw, list):
        raise ConfigError("is not a list", field=path, value=raw, cure=f"Write [{raw}].")
    elif (dataclasses.is_dataclass(cls) or typing.get_origin(cls) is dict) and not isinstance(raw, Mapping):
        raise ConfigError("is not a mapping", field=path, value=raw, cure=f"Give {expected(cls)}.")


def _alternative(types_: Sequence[Any], values: Mapping[str, Any], path: str) -> Any:
    """The one type of a union that a mapping means: by its ``kind``, or because only it has these keys."""
    plain = [t for t in types_ if typing.get_origin(t) is dict]
    classes = [t for t in types_ if dataclasses.is_dataclass(t)]
    if len(plain) + len(classes) <= 1 or plain:
        return (plain or classes or [None])[0]
    kinds = {str(getattr(c, "kind", "")): c for c in classes}
    if "kind" in values:
        if str(values["kind"]) not in kinds:
            cure = did_you_mean(str(values["kind"]), kinds)
            raise ConfigError(
                "is not one of those that there are", field=f"{path}.kind", value=values["kind"], cure=cure
            )
        return kinds[str(values["kind"])]
    names = {kind: {f.name for f in dataclasses.fields(c)} for kind, c in kinds.items()}
    for key in values:
        if not any(key in fields for fields in names.values()):
            cure = did_you_mean(str(key), set[str]().union(*names.values()))
            raise ConfigError("is not a field here", field=f"{path}.{key}", value=values[key], cure=cure)
    fitting = [kind for kind, fields in names.items() if fields >= set(values)]
    if len(fitting) != 1:
        problem = "mixes fields of several kinds" if not fitting else f"can mean {' or '.join(fitting)}"
        raise ConfigError(problem, field=path, value=dict(values), cure=f"Say which: kind: {' or kind: '.join(kinds)}.")
    return kinds[fitting[0]]


def _admits_none(hint: Any) -> bool:
    return hint is Any or hint is None or type(None) in typing.get_args(hint)


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # "<<: *other": keys that stand here too win, as everywhere
                continue
            key = self.construct_object(key_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            if isinstance(key, str | int) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            if isinstance(key, str | int):
                seen.add(key)
        return cast("dict[Any, Any]", super().construct_mapping(node, deep))


class _ForeignLoader(_Loader):
    """Reads what it has no class for as plain values; nothing is imported or called."""


def _plain_value(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(cast("yaml.ScalarNode", node))


_ForeignLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain_value)
