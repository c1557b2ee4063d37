"""Translates Levanter's components, sources and formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from headrace.errors import ConfigError
from headrace_levanter.translation.fields import (
    COMPONENTS,
    FORMATS,
    SOURCES,
    chosen,
    flag_at,
    texts_at,
    whole_at,
)
from headrace_levanter.translation.notes import Translation

_TEXT = {
    "text_key": "text",
    "type": "text",
}  # Levanter writes it for every source, but nothing reads it


def component(
    into: Translation,
    name: str,
    raw: object,
    *,
    cache_dir: str | None,
    chat_template: str | None,
    path: str,
) -> dict[str, Any] | None:
    """Translates one cached component; None for one made in Python."""
    kind, fields = chosen(raw, COMPONENTS, "cached", path)
    if kind == "direct":
        into.missing(
            f"{path}.datasets",
            "datasets made in Python cannot be in a config: write them to a cache (headrace build"
            " --format python), or mix them with headrace.MixtureDataset",
        )
        return None
    base = fields.get("cache_dir")
    if base is None:
        base = None if cache_dir is None else _join(cache_dir, name)
    if base is None:
        into.missing(
            f"{path}.cache_dir", "neither it nor the config's cache_dir names the cache: fill it in"
        )
        base = f"CACHE-OF-{name}"
    if fields.get("tags"):
        into.missing(f"{path}.tags", f"evaluation by tags {fields['tags']} stays with Levanter")
    if fields.get("split", "validation") != "validation":
        into.missing(
            f"{path}.split", f"evaluation on the split {fields['split']!r} stays with Levanter"
        )
    flat = flag_at(fields.get("flat_cache", False), f"{path}.flat_cache")
    result: dict[str, Any] = {"cache": base if flat else _join(base, "train")}
    form, options = chosen(fields.get("format") or {}, FORMATS, "text", f"{path}.format")
    if "mask_user_turns" in options:
        options["mask_user_turns"] = flag_at(
            options["mask_user_turns"], f"{path}.format.mask_user_turns"
        )
    if form == "chat" and not options.get("mask_user_turns", True):
        result["loss_mask"] = "none"  # Levanter's caches have the mask nevertheless
    if fields.get("source") is not None:
        source = _source(into, fields["source"], f"{path}.source")
        source |= _format(into, form, options, chat_template, f"{path}.format")
        result["source"] = source
    elif form != "text":
        _format(into, form, options, chat_template, f"{path}.format")
    pack = next(
        (p for p in (fields.get("pack"), options.get("pack")) if p is not None), form == "chat"
    )
    if pack or form == "chat":  # a chat that is not packed is padded to a row of its own
        result["packing"] = _packing(pack, options, path)
        into.differs(
            f"{path}.pack",
            "neighbours are packed into rows as in Levanter, where a dropped document also ends"
            " its row; algorithm: windowed fills rows better, without a limit of documents per row",
        )
    return result


def _packing(pack: bool | int | str, said: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Translates ``pack``, the number of documents that may share a row (64 by default), and
    ``slice_strategy``, which sets what happens to documents longer than a row.
    """
    strategy = str(said.get("slice_strategy", "left"))
    field_path = f"{path}.format.slice_strategy"
    policies = {"left": "truncate", "right": "truncate_start", "raise": "error", "drop": "drop"}
    if strategy not in policies:
        raise ConfigError(
            "is not a choice of Levanter's",
            field=field_path,
            value=strategy,
            cure="Use left, right, raise or drop.",
        )
    if not pack or pack == "pad":
        return {"algorithm": "next_fit", "long": "error", "max_documents": 1}
    most = 64 if pack is True else whole_at(pack, f"{path}.pack")
    return {"algorithm": "next_fit", "long": policies[strategy], "max_documents": most}


def _source(into: Translation, raw: object, path: str) -> dict[str, Any]:
    kind, fields = chosen(raw, SOURCES, "url", path)
    for name in ("tags", "cache_dir", "format"):
        if fields.get(name) and fields[name] != _TEXT:
            into.missing(
                f"{path}.{name}", "Levanter uses the component's own, and so does this config"
            )
    if kind == "url":
        if fields.get("validation_urls"):
            into.missing(
                f"{path}.validation_urls",
                "a separate validation split: build a cache of these files, and evaluate on it; or"
                " hold out part of the training data with validation: {one_in: 100}",
            )
        return {"paths": texts_at(fields.get("train_urls"), f"{path}.train_urls"), "format": "auto"}
    splits = fields.get("splits")
    if splits is not None and "train" not in splits:
        into.missing(f"{path}.splits", f"{splits} has no train: there is nothing to train on")
    query = {"name": fields.get("name"), "split": "train", "revision": fields.get("revision")}
    if fields.get("id") is None:
        raise ConfigError(
            "is missing",
            field=f"{path}.id",
            cure="Give the name of the data set on the hub, which Levanter needs, too.",
        )
    if flag_at(fields.get("stream", True), f"{path}.stream"):
        query["streaming"] = "true"
    return {
        "paths": [f"hf://{fields.get('id')}?{urlencode({k: v for k, v in query.items() if v})}"],
        "format": "hf",
    }


def _format(
    into: Translation, form: str, said: Mapping[str, Any], chat_template: str | None, path: str
) -> dict[str, Any]:
    """Translates the settings that describe the records of a source."""
    if form == "text":
        return {"text_field": said.get("text_key", "text")}
    if form == "prebuilt":
        if said.get("loss_weight_transform") is not None:
            text = "apply it to the weights before they are written"
            into.missing(f"{path}.loss_weight_transform", text, decides=True)
        fields = {"tokens": said.get("input_ids_key", "input_ids")}
        if said.get("loss_weights_key"):
            fields["loss_mask"] = said["loss_weights_key"]
            into.differs(
                f"{path}.loss_weights_key",
                "a mask of 0 and 1 is kept and used, other weights are refused; from an existing"
                " cache, no leaf of weights is read",
                decides=True,
            )
        return {"kind": "tokens", "fields": fields}
    _of_chats(into, said, path)
    template = said.get("chat_template") or chat_template
    chat: dict[str, Any] = {"mask": "generation" if said.get("mask_user_turns", True) else "all"}
    if template:
        chat["template"] = template
    if form == "chat":
        return {
            "kind": "chat",
            "fields": {"messages": said.get("messages_field", "messages")},
            "chat": chat,
        }
    if said.get("slice_strategy", "raise") != "raise":
        into.differs(
            f"{path}.slice_strategy", "pairs that are too long are handled when rows are packed"
        )
    into.differs(
        path,
        "chosen and rejected answers alternate as documents: with packing {unit: 2, long: drop},"
        " the rejected ones have weight -1; you provide the loss"
        " (headrace_posttrain.preference_loss)",
    )
    pair = {name: said.get(f"{name}_field", name) for name in ("chosen", "rejected")}
    return {"kind": "preference", "fields": pair, "chat": chat}


def _of_chats(into: Translation, said: Mapping[str, Any], path: str) -> None:
    if said.get("system_prompt"):
        into.missing(
            f"{path}.system_prompt",
            f"a separate field for the system turn ({said['system_prompt']!r}): put it into the"
            " messages",
        )
    if said.get("chat_template_kwargs", "chat_template_kwargs") is not None:
        into.differs(
            f"{path}.chat_template_kwargs",
            "template variables of single records are not read: chat.variables applies to all"
            " records",
        )


def concat(
    into: Translation,
    name: str,
    children: Mapping[str, object],
    *,
    cache_dir: str | None,
    chat_template: str | None,
    path: str,
) -> dict[str, Any] | None:
    """Translates a concatenation to one component over the caches of its children; None if it has
    none.
    """
    parts: list[dict[str, Any]] = []
    for child, raw in children.items():
        child_path = f"{path}.children.{child}"
        part = component(
            into,
            f"{name}/{child}",
            raw,
            cache_dir=cache_dir,
            chat_template=chat_template,
            path=child_path,
        )
        if part is not None:
            parts.append(part)
    if not parts:
        into.missing(path, "has no children: there is nothing to train on")
        return None
    if any("source" in part for part in parts):
        into.missing(
            path,
            "caches of several sources: build each separately with headrace build SOURCE -o CACHE",
        )
    alike = [
        {key: value for key, value in part.items() if key not in ("cache", "source")}
        for part in parts
    ]
    if any(one != alike[0] for one in alike):
        text = (
            "its children are packed or masked differently, but here all are treated like"
            f" {next(iter(children))!r}:"
        )
        text += " make each a separate component, with its share of the weight"
        into.missing(path, text, decides=True)
    into.differs(
        path, f"one component over {len(parts)} caches, whose rows are numbered consecutively"
    )
    return {"cache": [part["cache"] for part in parts], **alike[0]}


def _join(*parts: str) -> str:
    return "/".join([*(p.rstrip("/") for p in parts[:-1]), parts[-1]])
