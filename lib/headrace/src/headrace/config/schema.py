"""The JSON schema of a config dataclass, for editors: names, types, choices, defaults and the
meaning of each field.

Everything comes from the slots of :mod:`headrace.config.parsing` and from docstrings; what types
alone do not express (weights, blends, numbers by step, names checked as strings) is defined here,
in one table each. Invariant, checked by tests: a config that loads is valid, and an unknown key is
not. What only the dataclasses check (bounds, sums, one thing set in two places) is left to them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, Literal, Union, get_args

from headrace.config.parsing import Slot, fields_of, shorthand_of
from headrace.mix.plan import policy_names
from headrace.mix.schedule import ExchangeSetting

Schema = dict[str, Any]


def _object(properties: Schema, **more: Any) -> Schema:
    """A mapping with these keys and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _by_step(values: Schema, **more: Any) -> Schema:
    return {
        "type": "object",
        "patternProperties": {r"^[0-9][0-9_]*(\.[0-9_]*)?([eE][+]?[0-9]+)?$": values},
        "additionalProperties": False,
        **more,
    }


def _one_of(*schemas: Schema, **more: Any) -> Schema:
    return {"anyOf": [*schemas], **more}


_WRITTEN = {"type": "string", "pattern": r"^\s*[+-]?[0-9._]+([eE][+-]?[0-9]+)?\s*$"}
_NUMBER = _one_of({"type": "number"}, _WRITTEN)
_WHOLE_NUMBER = _one_of({"type": "integer"}, _WRITTEN)
"""YAML 1.1 reads 1e10 as a string; either is accepted as a number."""
_PAIR: Schema = {"type": "array", "minItems": 2, "maxItems": 2}
_POINTS = _one_of(
    _by_step(_NUMBER, minProperties=1), {"type": "array", "items": _PAIR, "minItems": 1}
)
_SCHEDULE = _one_of(
    _NUMBER,
    _object(
        {"step": _POINTS, "linear": _POINTS, "cosine": _POINTS, "scale": _NUMBER},
        oneOf=[{"required": ["step"]}, {"required": ["linear"]}, {"required": ["cosine"]}],
    ),
    description="A number, or a function of the global step.",
)
_WEIGHT = _one_of(
    {"$ref": "#/$defs/Schedule"},
    _object({"repeat": {"$ref": "#/$defs/Schedule"}}, required=["repeat"]),
    description="A schedule, or how many passes are made in the time of one of {repeat: 1}.",
)
_GROUP = _object(
    {"weight": {"$ref": "#/$defs/Weight"}, "blend": {"$ref": "#/$defs/Blend"}}, minProperties=1
)
_BLEND: Schema = {
    "description": "Weights by name; an entry may be a blend of others: {weight: 3, blend: {cc: 1,"
    " wiki: 2}}.",
    "type": "object",
    "additionalProperties": _one_of({"$ref": "#/$defs/Weight"}, _GROUP),
}
_RULE = _one_of(
    _object({"temperature": _NUMBER}, required=["temperature"]),
    _object(
        {"unimax": _one_of(_NUMBER, _object({"max_epochs": _NUMBER, "tokens": _NUMBER}))},
        required=["unimax"],
    ),
    description="Weights that follow from the sizes of the sources.",
)
_EXTRA_DEFS = {"Schedule": _SCHEDULE, "Weight": _WEIGHT, "Blend": _BLEND, "SizeRule": _RULE}
_MIXTURE = ({"$ref": "#/$defs/Blend"}, {"$ref": "#/$defs/SizeRule"})
_FIELDS: dict[tuple[str, str], Schema] = {
    ("ComponentConfig", "weight"): _one_of({"$ref": "#/$defs/Weight"}, {"type": "null"}),
    ("LmDataConfig", "weights"): _one_of(*_MIXTURE, {"type": "null"}),
    ("StageConfig", "weights"): _one_of(*_MIXTURE),
    ("AmendmentConfig", "add"): {"$ref": "#/$defs/Blend"},
    ("AmendmentConfig", "weights"): {"$ref": "#/$defs/Blend"},
    ("LmDataConfig", "policy"): {"enum": policy_names()},
    ("LmDataConfig", "row_exchange"): {"enum": [*get_args(ExchangeSetting), True, False, None]},
}
"""Fields whose annotation says less than they accept."""


def json_schema(cls: type[Any]) -> Schema:
    """The schema of a config dataclass and everything in it.

    Args:
        cls: The dataclass, for example :class:`~headrace.config.lm_data.LmDataConfig`.

    Returns:
        A JSON schema (draft 2020-12) with one definition for each dataclass.

    Example:
        >>> from headrace.order import ValidationConfig
        >>> schema = json_schema(ValidationConfig)
        >>> schema["$defs"]["ValidationConfig"]["properties"]["by"]["enum"]
        ['blocks', 'documents']
    """
    definitions: dict[str, Schema] = {}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"headrace {cls.__name__}",
        **_define(cls, definitions),
        "$defs": {**definitions, **_EXTRA_DEFS},
    }


def _define(cls: type[Any], definitions: dict[str, Schema]) -> Schema:
    """A reference to a dataclass; its definition is added if missing."""
    name = cls.__name__
    fields = fields_of(cls)
    if name not in definitions:
        definitions[name] = {}  # a dataclass may contain itself
        texts = attribute_texts(cls)
        properties = {
            key: {
                **(_FIELDS.get((name, key)) or _schema(field.slot, definitions)),
                **({"description": texts[key]} if key in texts else {}),
                **({} if field.required else {"default": _default(field.declared)}),
            }
            for key, field in fields.items()
        }
        required = [key for key, field in fields.items() if field.required]
        summary = _unmarked(" ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()))
        definitions[name] = _object(properties, description=summary, required=required)
    return {"$ref": f"#/$defs/{name}"}


def _schema(slot: Slot, definitions: dict[str, Schema]) -> Schema:
    if isinstance(slot.form, type) and dataclasses.is_dataclass(slot.form):
        full = _define(slot.form, definitions)
        short = shorthand_of(slot)
        return (
            full
            if short is None
            else _one_of(full, _schema(fields_of(slot.form)[short].slot, definitions))
        )
    parts = [_schema(part, definitions) for part in slot.parts]
    if slot.form is Union:
        return {"anyOf": [*parts, *([{"type": "null"}] if slot.optional else [])]}
    if slot.form is dict:
        return (
            _by_step(parts[1])
            if slot.parts[0].form is int
            else {"type": "object", "additionalProperties": parts[1]}
        )
    if slot.form is list:
        return {"type": "array", "items": parts[0]}
    if slot.form is Literal:
        return {"enum": [*slot.choices]}
    plain: dict[Any, Schema] = {
        bool: {"enum": [True, False, "true", "false"]},
        int: _WHOLE_NUMBER,
        str: {"type": ["string", "number"]},
    }
    return {**plain, float: _NUMBER, Any: {}}[slot.form]


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field as JSON."""
    default = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    return (
        dataclasses.asdict(default)
        if dataclasses.is_dataclass(default) and not isinstance(default, type)
        else default
    )


def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """What a dataclass's docstring says about each field, as plain text.

    Example:
        >>> from headrace.order import ValidationConfig
        >>> attribute_texts(ValidationConfig)["one_in"]
        'One block or document in this many is held out; default 100.'
    """
    texts: dict[str, str] = {}
    flags = re.MULTILINE | re.DOTALL
    section = re.search(
        r"^Attributes:\n(.*?)(?=^\w+:|\Z)", inspect.cleandoc(cls.__doc__ or ""), flags
    )
    for name, text in re.findall(
        r"^    (\w+): (.*?)(?=^    \w|\Z)", section[1] if section else "", flags
    ):
        texts[name] = _unmarked(" ".join(text.split()))
    return texts


def _unmarked(text: str) -> str:
    """Text without reStructuredText markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "`")
