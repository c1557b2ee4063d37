"""The JSON schema of a config dataclass, for editors: names, types, choices, defaults and what each field means.

Everything is read off the dataclasses and their docstrings; what types alone do not say (weights, blends, numbers by
step, names that are checked as text) stands here, in one table each. The invariant, held by tests: a config that loads
is valid (but for texts written as numbers), and a key that does not exist is not. What only the dataclasses check
(bounds, sums, two places for one thing) is left to them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Union, cast, get_args

from headrace.index.limits import STOP_STRATEGIES
from headrace.index.packing.spec import Algorithm
from headrace.index.policies import POLICIES

Schema = dict[str, Any]

_NUMBER: Schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[+-]?[0-9._]+([eE][+-]?[0-9]+)?$"}]}
"""YAML 1.1 reads 1e10 as text; both are read as a number."""
_STEP = "^[0-9][0-9_]*$"
_POINTS: Schema = {
    "anyOf": [
        {"type": "object", "patternProperties": {_STEP: _NUMBER}, "additionalProperties": False, "minProperties": 1},
        {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}, "minItems": 1},
    ]
}
_WEIGHT: Schema = {
    "description": "A number, or a function of the global step.",
    "anyOf": [
        _NUMBER,
        {
            "type": "object",
            "properties": {"step": _POINTS, "linear": _POINTS, "scale": _NUMBER},
            "additionalProperties": False,
            "oneOf": [{"required": ["step"]}, {"required": ["linear"]}],
        },
    ],
}
_BLEND: Schema = {
    "description": "Weights by name; an entry may be a blend of others: {weight: 3, blend: {cc: 1, wiki: 2}}.",
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"$ref": "#/$defs/Weight"},
            {
                "type": "object",
                "properties": {"weight": {"$ref": "#/$defs/Weight"}, "blend": {"$ref": "#/$defs/Blend"}},
                "additionalProperties": False,
                "minProperties": 1,
            },
        ]
    },
}
_RULE: Schema = {
    "description": "Weights that follow from the sizes of the sources.",
    "anyOf": [
        {
            "type": "object",
            "properties": {"temperature": _NUMBER},
            "required": ["temperature"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "unimax": {
                    "anyOf": [
                        _NUMBER,
                        {
                            "type": "object",
                            "properties": {"max_epochs": _NUMBER, "tokens": _NUMBER},
                            "additionalProperties": False,
                        },
                    ]
                }
            },
            "required": ["unimax"],
            "additionalProperties": False,
        },
    ],
}
_EXTRA_DEFS = {"Weight": _WEIGHT, "Blend": _BLEND, "SizeRule": _RULE}
_MIXTURE: Schema = {"anyOf": [{"$ref": "#/$defs/Blend"}, {"$ref": "#/$defs/SizeRule"}]}
_FIELDS: dict[tuple[str, str], Schema] = {
    ("ComponentConfig", "weight"): {"anyOf": [{"$ref": "#/$defs/Weight"}, {"type": "null"}]},
    ("LmDataConfig", "weights"): {"anyOf": [*_MIXTURE["anyOf"], {"type": "null"}]},
    ("StageConfig", "weights"): _MIXTURE,
    ("AmendmentConfig", "add"): {"$ref": "#/$defs/Blend"},
    ("AmendmentConfig", "weights"): {"$ref": "#/$defs/Blend"},
    ("LmDataConfig", "stop_strategy"): {"enum": [*STOP_STRATEGIES]},
    ("LmDataConfig", "policy"): {"enum": [*POLICIES]},
    ("LmDataConfig", "row_order"): {"enum": ["locality", "stream"]},
    ("PackingConfig", "algorithm"): {"enum": [*get_args(Algorithm)]},
    ("PackingConfig", "long"): {"enum": ["split", "truncate", "drop", "error"]},
    ("BlockShuffleConfig", "perm_type"): {"enum": ["feistel", "linear"]},
}
"""Fields whose annotation says less than what they take."""


def json_schema(cls: type[Any]) -> Schema:
    """The schema of a config dataclass and all that it holds.

    Args:
        cls: The dataclass, for example :class:`~headrace.config.LmDataConfig`.

    Returns:
        A JSON schema (draft 2020-12) with one definition for each dataclass.

    Example:
        >>> from headrace.index.validation_config import ValidationConfig
        >>> schema = json_schema(ValidationConfig)
        >>> schema["$defs"]["ValidationConfig"]["properties"]["by"]["enum"]
        ['blocks', 'documents']
    """
    definitions: dict[str, Schema] = {}
    _define(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headrace {cls.__name__}",
        "$ref": f"#/$defs/{cls.__name__}",
        "$defs": {**definitions, **_EXTRA_DEFS},
    }


def _define(cls: type[Any], definitions: dict[str, Schema]) -> Schema:
    """A reference to a dataclass; its definition is added if it is not there."""
    name = cls.__name__
    if name not in definitions:
        definitions[name] = {}  # a dataclass may hold itself
        hints, texts = typing.get_type_hints(cls), attribute_texts(cls)
        properties = {
            f.name: {
                **_described(_FIELDS.get((name, f.name)) or _schema(hints[f.name], definitions), texts.get(f.name)),
                **_default(f),
            }
            for f in dataclasses.fields(cls)
        }
        definitions[name] = {
            "type": "object",
            "description": _summary(cls),
            "properties": properties,
            "additionalProperties": False,
            "required": [f.name for f in dataclasses.fields(cls) if _is_required(f)],
        }
    return {"$ref": f"#/$defs/{name}"}


def _schema(hint: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _define(cast("type[Any]", hint), definitions)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in arguments]}
    if origin is typing.Literal:
        return {"enum": [*arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        values = _schema(arguments[1], definitions)
        if arguments[0] is int:
            return {"type": "object", "patternProperties": {_STEP: values}, "additionalProperties": False}
        return {"type": "object", "additionalProperties": values}
    if hint is float:
        return _NUMBER
    plain = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
    return {"type": plain[hint]} if hint in plain else {}


def _described(schema: Schema, text: str | None) -> Schema:
    return schema if text is None else {**schema, "description": text}


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _default(f: dataclasses.Field[Any]) -> Schema:
    if f.default_factory is not dataclasses.MISSING:
        made = f.default_factory()
        return {"default": _plain(made)}
    return {} if f.default is dataclasses.MISSING else {"default": _plain(f.default)}


def _plain(value: Any) -> Any:
    """A default as JSON."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    return value


def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """What a dataclass's docstring says of each of its fields, as plain text.

    Example:
        >>> from headrace.index.validation_config import ValidationConfig
        >>> attribute_texts(ValidationConfig)["one_in"]
        'Of so many blocks or documents, one is held out; default 100.'
    """
    found: dict[str, str] = {}
    flags = re.MULTILINE | re.DOTALL
    section = re.search(r"^Attributes:\n(.*?)(?=^\w+:|\Z)", inspect.cleandoc(cls.__doc__ or ""), flags)
    for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", section[1] if section else "", flags):
        found[name] = _unmarked(" ".join(text.split()))
    return found


def _summary(cls: type[Any]) -> str:
    return _unmarked(" ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()))


def _unmarked(text: str) -> str:
    """Text without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "`")
