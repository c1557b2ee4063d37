"""Names of Levanter's fields, and functions that read their values from YAML.

Tests compare the names with the installed Levanter, so they find new fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.errors import ConfigError, check_choice, did_you_mean
from headrace.mix.schedule import whole_number

DATA = (
    "tokenizer",
    "vocab_size",
    "cache_dir",
    "cache_options",
    "enforce_eos",
    "auto_build_caches",
    "chat_template",
    "shuffle",
    "permutation_type",
    "block_cross_document_attention",
    "components",
    "train_weights",
    "stop_strategy",
    "target_budget",
    "experiment_budget",
    "mixture_block_size",
    "max_train_batches",
    "num_validation_sequences",
    "shuffle_before_trainval_split",
    "cache_catalog",
    "prior_context_phases",
)
"""Fields of ``LmDataConfig``."""
OF_EARLIER_RELEASES = ("configs", "id", "train_urls", "validation_urls")
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "cached": ("source", "cache_dir", "format", "pack", "tags", "split", "flat_cache"),
    "direct": ("datasets", "tags"),
    "concat": ("children", "tags"),
}
SOURCES: Mapping[str, tuple[str, ...]] = {
    "hf": ("tags", "cache_dir", "format", "id", "name", "revision", "stream", "splits"),
    "url": ("tags", "cache_dir", "format", "train_urls", "validation_urls"),
}
_CHAT = (
    "chat_template",
    "system_prompt",
    "chat_template_kwargs",
    "pack",
    "mask_user_turns",
    "slice_strategy",
)
FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": ("text_key",),
    "chat": ("messages_field", *_CHAT),
    "prebuilt": ("input_ids_key", "loss_weights_key", "loss_weight_transform"),
    "preference_chat": ("chosen_field", "rejected_field", *_CHAT),
}
SHUFFLE = ("io_block_size", "window_blocks", "perm_type")
TRAINING = ("data", "trainer", "model", "train_seq_len", "optimizer", "data_seed")
"""Fields of a training config, which distinguish it from a data config."""


def mapping_at(value: object, path: str) -> dict[str, Any]:
    """Reads a mapping; raises ConfigError, with its path, if it is not one."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            "is not a mapping", field=path, value=value, cure="Is it a config of Levanter's?"
        )
    return {str(k): v for k, v in cast("Mapping[object, Any]", value).items()}


def chosen(
    value: object, choices: Mapping[str, tuple[str, ...]], default: str, path: str
) -> tuple[str, dict[str, Any]]:
    """Reads the kind, from ``type``, and the fields of a value.

    Raises:
        ConfigError: a kind or a field that Levanter does not have; the nearest name is given.
    """
    fields = mapping_at(value, path)
    kind = str(fields.pop("type", default))
    check_choice(f"{path}.type", kind, choices, "is not a kind of Levanter's")
    check_known(fields, choices[kind], path)
    return kind, fields


def check_known(fields: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    """Raises ConfigError for a field that Levanter does not have."""
    for name in fields:
        if name not in known:
            at = f"{path}.{name}" if path else name
            raise ConfigError(
                "is not a field of Levanter's",
                field=at,
                value=fields[name],
                cure=did_you_mean(name, known),
            )


def number_at(value: object, path: str) -> float:
    """Reads a number; raises ConfigError, with its path, if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError("is not a number", field=path, value=value)
    return float(value)


def whole_at(value: object, path: str) -> int:
    """Reads a whole number, including those that YAML reads as text, such as ``1e4``; raises
    ConfigError otherwise.
    """
    number = int(value) if isinstance(value, str) and value.isdecimal() else whole_number(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigError("is not a whole number", field=path, value=value)
    return number


def flag_at(value: object, path: str) -> bool:
    """Reads true or false, with or without quotes, as Levanter does; raises
    ConfigError otherwise.
    """
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise ConfigError("is neither true nor false", field=path, value=value)
    return flag


def texts_at(value: object, path: str) -> list[str]:
    """Reads a list of texts; None gives an empty list. Raises ConfigError for a single text."""
    if value is not None and not isinstance(value, list):
        raise ConfigError("is not a list", field=path, value=value, cure=f"Write [{value}].")
    return [str(one) for one in cast("list[Any]", value or [])]


def points(value: object, path: str) -> list[tuple[int, Any]]:
    """Reads a schedule in Levanter's form: ``[[step, value], ...]`` or ``[{start: step, value:
    value}, ...]``.

    Example:
        >>> points([[0, 32], {"start": 100, "value": 64}], "train_batch_size")
        [(0, 32), (100, 64)]
    """
    pairs: list[tuple[int, Any]] = []
    for number, entry in enumerate(cast("Sequence[Any]", value)):
        at = f"{path}[{number}]"
        if isinstance(entry, Mapping):
            fields = mapping_at(entry, at)
            pair = (fields.get("start"), fields.get("value"))
        else:
            pair = (
                tuple(entry)
                if isinstance(entry, list | tuple) and len(cast("list[Any]", entry)) == 2
                else ()
            )
        if len(pair) != 2 or not isinstance(pair[0], int):
            raise ConfigError(
                "is not a step and a value", field=at, value=entry, cure="Write [1000, value]."
            )
        pairs.append((pair[0], pair[1]))
    return pairs
