"""Converts configs of earlier releases of Levanter to the current form.

There were three forms before ``data: {components: ...}``: one source with its fields in ``data``
itself; ``configs``, whose values mix the fields of source and cache; and the supervised trainers'
``supervised_data`` with ``chat_train_urls``, ``mixture_weights`` and a tokenizer at the top of the
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace_levanter.translation.fields import SOURCES, mapping_at, number_at, points
from headrace_levanter.translation.notes import Translation

_CACHE = ("cache_dir", "format", "tags", "pack", "flat_cache", "split")
_OF_SOURCE = (
    "id",
    "name",
    "revision",
    "stream",
    "splits",
    "train_urls",
    "validation_urls",
    "text_key",
    "plaintext",
)
_NEITHER = ("shuffle_buffer_size", "rows_per_chunk", "ignore_token_id", "seq_len")
_SUPERVISED = ("supervised_data", "dpo_data", "chat_train_urls")


def of_today(into: Translation, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A config with its data in the current form.

    Args:
        into: Receives the notes.
        raw: Content of the YAML: a training config, or only a data config.

    Raises:
        ConfigError: ``data`` is a text, as in examples whose scripts make their data in Python.
    """
    config = mapping_at(raw, "config")
    if any(name in config for name in _SUPERVISED):
        return _of_supervised(into, config)
    if isinstance(config.get("data"), str):
        raise ConfigError(
            "is the name of a data set whose examples a script makes in Python",
            field="data",
            value=config["data"],
            cure="Write the conversations as JSON lines, and use the file as a component's source"
            " with kind: chat.",
        )
    if isinstance(config.get("data"), Mapping):
        return {**config, "data": _data_of_today(into, mapping_at(config["data"], "data"), "data.")}
    return _data_of_today(into, config, "")


def component_of_today(value: object, path: str) -> dict[str, Any]:
    """Converts a component that mixes the fields of source and cache."""
    fields = mapping_at(value, path)
    if "source" in fields or "type" in fields:
        return fields
    component = {name: fields.pop(name) for name in _CACHE if name in fields}
    if not fields:
        return component
    text_key = fields.pop("text_key", None)
    if text_key is not None and "format" not in component:
        component["format"] = {"type": "text", "text_key": text_key}
    fields = {name: value for name, value in fields.items() if value is not None}
    return {"source": {"type": "hf" if "id" in fields else "url", **fields}, **component}


def _data_of_today(into: Translation, data: dict[str, Any], prefix: str) -> dict[str, Any]:
    for name in _NEITHER:
        if name in data:
            into.differs(
                f"{prefix}{name}",
                f"a setting of an earlier release ({data.pop(name)}), which has no effect now",
            )
    if str(data.get("stop_strategy", "")).endswith("_strategy"):
        data["stop_strategy"] = str(data["stop_strategy"]).removesuffix("_strategy").lower()
    if "configs" in data and "components" not in data:
        components = mapping_at(data.pop("configs") or {}, f"{prefix}configs")
        data["components"] = {
            n: component_of_today(v, f"{prefix}configs.{n}") for n, v in components.items()
        }
    single = {name: data.pop(name) for name in _OF_SOURCE if name in data}
    if not single.keys() & {"id", "train_urls", "validation_urls"}:
        return _unnested(into, data | single, prefix)
    if "components" in data:
        raise ConfigError(
            "stands beside components",
            field=f"{prefix}{next(iter(single))}",
            cure="Make it a separate component, with a source.",
        )
    into.differs(
        f"{prefix}components",
        "one source in the form of an earlier release: it became the component 'data'",
    )
    one = component_of_today(
        {**single, "cache_dir": data.get("cache_dir", "cache/")}, prefix.rstrip(".") or "data"
    )
    if "format" in data:
        one["format"] = data.pop("format")
    return {**data, "components": {"data": one}}


def _unnested(into: Translation, data: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Converts a nested mixture to components of the outer one, with products of weights."""
    components = mapping_at(data.get("components") or {}, f"{prefix}components")
    nested = {
        n
        for n, c in components.items()
        if isinstance(c, Mapping) and c.keys() & {"components", "configs"}
    }
    if not nested:
        return data
    as_now: dict[str, Any] = {}
    shares: dict[str, dict[str, float]] = {}
    for name, value in components.items():
        path = f"{prefix}components.{name}"
        if name not in nested:
            as_now[name] = value
            shares[name] = {name: 1.0}
            continue
        inner = _data_of_today(into, mapping_at(value, path), f"{path}.")
        children = mapping_at(inner["components"], f"{path}.components")
        if inner.get("cache_dir"):
            for child, one in children.items():
                children[child] = {
                    "cache_dir": f"{inner['cache_dir']}/{child}",
                    **mapping_at(one, f"{path}.{child}"),
                }
        weights = inner.get("train_weights") or dict.fromkeys(children, 1.0)
        if not isinstance(weights, Mapping):
            raise ConfigError(
                "changes during the run within another mixture",
                field=f"{path}.train_weights",
                cure="Write the products of both weights in the outer train_weights.",
            )
        weights = {
            child: number_at(weight, f"{path}.train_weights.{child}")
            for child, weight in weights.items()
        }
        total = sum(weights.values())
        shares[name] = {
            f"{name}/{child}": weight / total for child, weight in weights.items() if weight
        }
        as_now |= {f"{name}/{child}": one for child, one in children.items()}
        into.differs(
            path, f"a mixture within the mixture: its {len(children)} components share its weight"
        )
    weights = data.get("train_weights")
    weights_path = f"{prefix}train_weights"
    if isinstance(weights, list):
        weights = [
            [step, _spread(entry, shares, weights_path)]
            for step, entry in points(weights, weights_path)
        ]
    else:
        weights = _spread(weights or dict.fromkeys(components, 1.0), shares, weights_path)
    return {**data, "components": as_now, "train_weights": weights}


def _spread(
    weights: object, shares: Mapping[str, Mapping[str, float]], path: str
) -> dict[str, float]:
    return {
        part: number_at(weight, f"{path}.{name}") * share
        for name, weight in mapping_at(weights, path).items()
        for part, share in shares.get(name, {name: 1.0}).items()
    }


def _of_supervised(into: Translation, config: dict[str, Any]) -> dict[str, Any]:
    """Converts the config of a supervised or preference trainer to that of ``train_lm``."""
    key = next((name for name in _SUPERVISED[:2] if name in config), "chat_train_urls")
    raw = mapping_at(config.pop(key, None) or {}, key) if key != "chat_train_urls" else {}
    urls = config.pop("chat_train_urls", None)
    messages = config.pop("messages_field", "messages")
    many = bool(raw) and all(isinstance(value, Mapping) for value in raw.values())
    parts = (
        raw
        if many
        else {str(raw.get("name", "data")): {**raw, **({"train_urls": urls} if urls else {})}}
    )
    data: dict[str, Any] = {
        name: config.pop(name)
        for name in ("mixture_block_size", "stop_strategy", "tokenizer")
        if name in config
    }
    weights = config.pop("mixture_weights", None)
    if weights is not None:
        data["train_weights"] = weights
    pairs = key == "dpo_data"
    data["components"] = {
        n: _supervised_part(mapping_at(v, f"{key}.{n}"), messages, pairs) for n, v in parts.items()
    }
    into.differs(
        key,
        "became data.components; the caches that its trainer wrote have other fields, so they are"
        " built anew, in the folder train within cache_dir",
    )
    for name in ("max_seq_len", "max_tune_length"):
        if name in config:
            config.setdefault("train_seq_len", config.pop(name))
    return {**config, "data": data}


def _supervised_part(fields: dict[str, Any], messages: str, pairs: bool) -> dict[str, Any]:
    part = {name: fields[name] for name in ("cache_dir", "tags", "format") if name in fields}
    dataset = fields.get("id") or fields.get("hf_dataset_name")
    if dataset is not None:
        part["source"] = {"type": "hf", "id": dataset}
    else:
        part["source"] = {"type": "url"} | {
            n: fields[n] for n in SOURCES["url"][-2:] if n in fields
        }
    if "format" in part:
        return part
    if "input_field" in fields or "output_field" in fields:
        keys = {
            "input_key": fields.get("input_field", "input"),
            "target_key": fields.get("output_field", "target"),
        }
        return part | {"format": {"type": "supervised", **keys}}
    return part | {
        "format": {"type": "preference_chat"}
        if pairs
        else {"type": "chat", "messages_field": messages}
    }
