"""Names of Levanter's fields, and how values of them are read from YAML.

Tests hold the names against the Levanter that is installed, so that a field that it gains is found.
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
)
"""Of ``LmDataConfig``, in every release that the seam works with."""
LATER = ("cache_catalog", "prior_context_phases")
"""Of the newest release alone."""
EARLIER = ("configs", "id", "train_urls", "validation_urls")
"""Of earlier releases: components without a source of their own, and one source in the data config itself."""
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "cached": ("source", "cache_dir", "format", "pack", "tags", "split", "flat_cache"),
    "direct": ("datasets", "tags"),
    "concat": ("children", "tags"),
}
SOURCES: Mapping[str, tuple[str, ...]] = {
    "hf": ("tags", "cache_dir", "format", "id", "name", "revision", "stream", "splits"),
    "url": ("tags", "cache_dir", "format", "train_urls", "validation_urls"),
}
FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": ("text_key",),
    "supervised": ("input_key", "target_key"),
    "chat": (
        "messages_field",
        "chat_template",
        "system_prompt",
        "chat_template_kwargs",
        "pack",
        "mask_user_turns",
        "slice_strategy",
    ),
    "prebuilt": ("input_ids_key", "loss_weights_key", "loss_weight_transform"),
    "preference_chat": (
        "chosen_field",
        "rejected_field",
        "chat_template",
        "system_prompt",
        "chat_template_kwargs",
        "pack",
        "mask_user_turns",
        "slice_strategy",
    ),
}
REMOVED_FIELDS = ("supervised",)
"""Formats that the newest release has no more."""
SHUFFLE = ("io_block_size", "window_blocks", "perm_type")
TRAINING = ("data", "trainer", "model", "train_seq_len", "optimizer", "data_seed")
"""Of a training config, by which it is told from a data config."""


def mapping_at(value: object, path: str) -> dict[str, Any]:
    """A mapping. Raises ConfigError, with its path, if it is none."""
    if not isinstance(value, Mapping):
        raise ConfigError("is not a mapping", field=path, value=value, cure="Is it a config of Levanter's?")
    return {str(k): v for k, v in cast("Mapping[object, Any]", value).items()}


def chosen(
    value: object, choices: Mapping[str, tuple[str, ...]], default: str, path: str
) -> tuple[str, dict[str, Any]]:
    """Kind and fields of one of several kinds, told by ``type``.

    Raises:
        ConfigError: a kind or a field that Levanter does not have; the nearest name is given.
    """
    fields = mapping_at(value, path)
    kind = str(fields.pop("type", default))
    check_choice(f"{path}.type", kind, choices, "is none of Levanter's kinds")
    check_known(fields, choices[kind], path)
    return kind, fields


def check_known(fields: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    """Raises ConfigError for a field that Levanter does not have."""
    for name in fields:
        if name not in known:
            at = f"{path}.{name}" if path else name
            raise ConfigError("is no field of Levanter's", field=at, value=fields[name], cure=did_you_mean(name, known))


def number_at(value: object, path: str) -> float:
    """A number. Raises ConfigError, with its path, if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError("is not a number", field=path, value=value)
    return float(value)


def whole_at(value: object, path: str) -> int:
    """A whole number, also one that YAML takes for a text, as ``1e4``. Raises ConfigError if it is none."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else whole_number(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigError("is not a whole number", field=path, value=value)
    return number


def flag_at(value: object, path: str) -> bool:
    """True or false, also in quotes, as Levanter reads it. Raises ConfigError if it is neither."""
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise ConfigError("is neither true nor false", field=path, value=value)
    return flag


def texts_at(value: object, path: str) -> list[str]:
    """A list of texts; none of None. Raises ConfigError for a text alone."""
    if value is not None and not isinstance(value, list):
        raise ConfigError("is not a list", field=path, value=value, cure=f"Write [{value}].")
    return [str(one) for one in cast("list[Any]", value or [])]


def points(value: object, path: str) -> list[tuple[int, Any]]:
    """A schedule as Levanter writes it: ``[[step, value], ...]`` or ``[{start: step, value: value}, ...]``.

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
            pair = tuple(entry) if isinstance(entry, list | tuple) and len(cast("list[Any]", entry)) == 2 else ()
        if len(pair) != 2 or not isinstance(pair[0], int):
            raise ConfigError("is not a step and a value", field=at, value=entry, cure="Write [1000, value].")
        pairs.append((pair[0], pair[1]))
    return pairs
