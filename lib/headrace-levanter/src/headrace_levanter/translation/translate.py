"""Translates a Levanter data config, or a whole training config, to a headrace config.

It translates what determines the batches: sources, weights, shuffles, lengths and ends. No order is
the same bit for bit, because Levanter's depends on jax keys. Whatever has no counterpart, or is
guessed, becomes a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from headrace.errors import ConfigError, did_you_mean
from headrace_levanter.translation.fields import (
    COMPONENTS,
    DATA,
    OF_EARLIER_RELEASES,
    SHUFFLE,
    TRAINING,
    check_known,
    chosen,
    flag_at,
    mapping_at,
    number_at,
    points,
    whole_at,
)
from headrace_levanter.translation.notes import Translation
from headrace_levanter.translation.sources import component, concat

Sizes: TypeAlias = Callable[[str], int | None]
"""Returns the tokens of the cache at a path; None if there is none."""
WHICH_ROWS = (
    "as many rows as in Levanter, which takes the first of its shuffled order: without a shuffle"
    " the same rows, otherwise stored chunks selected by a keyed hash"
)
_SHUFFLE = {"io_block_size": 256, "window_blocks": 512, "perm_type": "feistel"}


def translate(raw: Mapping[str, Any], *, sizes: Sizes | None = None) -> Translation:
    """Translates a config.

    Args:
        raw: Content of Levanter's YAML: a data config, or a training config with one under
            ``data``.
        sizes: Looks up the tokens of a cache, where they make a difference. None: nothing is looked
            up.

    Raises:
        ConfigError: a field or kind that Levanter does not have, or a value that it cannot read.

    Example:
        >>> found = translate({"components": {"a": {"cache_dir": "gs://b/a"}}, "shuffle": True})
        >>> found.config["components"], found.config["shuffle"]
        ({'a': {'cache': 'gs://b/a/train', 'weight': 1.0}}, True)
    """
    into = Translation()
    data, prefix = _run(into, mapping_at(raw, "config"))
    for name in OF_EARLIER_RELEASES:
        if name in data:
            raise ConfigError(
                "is a field of earlier releases of Levanter",
                field=f"{prefix}{name}",
                cure="Write components, each with its source, as the supported release reads them.",
            )
    check_known(data, DATA, prefix.rstrip("."))
    data = {name: value for name, value in data.items() if value is not None or name == "cache_dir"}
    into.differs(
        f"{prefix}components",
        "the order differs: Levanter's cannot be reproduced exactly, and is the same in every"
        " epoch",
    )
    _components(into, data, prefix)
    _weights(into, data, prefix)
    into.config["shuffle"] = _shuffle(into, data, prefix)
    into.config["split_documents"] = _keeps_documents_apart(into, data, prefix)
    if into.config["split_documents"]:
        into.differs(
            f"{prefix}block_cross_document_attention",
            "labels do not cross documents either: the last token of one does not predict the"
            " first of the next",
        )
    _pack_all_or_none(into, prefix)
    into.config["stop_strategy"] = str(data.get("stop_strategy", "restart"))
    _tokenizer(into, data, prefix, sizes or (lambda path: None))
    _limits(into, data, prefix)
    _without_counterpart(into, data, prefix)
    return into


def _run(into: Translation, fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The data config; translates lengths, batches and steps of a training config."""
    if not isinstance(fields.get("data"), Mapping):
        others = [
            name for name in fields if name in (*TRAINING, "type")
        ]  # a type: a model or an optimizer
        if others:
            raise ConfigError(
                "is missing",
                field="data",
                cure=f"There is {others[0]}, but no data config beside it.",
            )
        into.differs(
            "train_seq_len",
            "not in a data config: set seq_len, batch_size and num_steps as in the trainer",
        )
        return fields, ""
    trainer = mapping_at(fields.get("trainer") or {}, "trainer")
    model = mapping_at(fields.get("model") or {}, "model")
    length = fields.get("train_seq_len") or model.get("max_seq_len") or model.get("seq_len")
    if length is None:
        into.differs("train_seq_len", "not set, so it is the model's: set seq_len")
    else:
        into.config["seq_len"] = whole_at(length, "train_seq_len")
    batch = trainer.get("train_batch_size")
    if isinstance(batch, list):
        into.config["batch_size"] = dict(
            points(cast("list[Any]", batch), "trainer.train_batch_size")
        )
    elif (
        batch is not None and (rows := whole_at(batch, "trainer.train_batch_size")) > 0
    ):  # -1: rows per device
        into.config["batch_size"] = rows
    else:
        into.differs(
            "trainer.train_batch_size", "not set in rows: set batch_size as in the trainer"
        )
    if trainer.get("num_train_steps") is not None:
        into.config["num_steps"] = whole_at(trainer["num_train_steps"], "trainer.num_train_steps")
    if fraction := fields.get("validation_split_fraction"):
        into.config["validation"] = {"fraction": number_at(fraction, "validation_split_fraction")}
        into.differs(
            "validation_split_fraction",
            "whole blocks of each component, selected by a keyed hash; Levanter evaluates",
        )
    seed = fields.get("data_seed")
    into.config["seed"] = whole_at(
        trainer.get("seed") or 0 if seed is None else seed, "data_seed or trainer.seed"
    )
    return mapping_at(fields["data"], "data"), "data."


def _components(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    raw = mapping_at(data.get("components") or {}, f"{prefix}components")
    shared = {
        "cache_dir": data.get("cache_dir", "cache/"),
        "chat_template": data.get("chat_template"),
    }
    weights = stages_of(data, raw, prefix)
    components = into.config["components"] = {}
    for name, value in raw.items():
        path = f"{prefix}components.{name}"
        if not any(stage.get(name, 0) for _, stage in weights):
            into.missing(
                path,
                "has no weight, so Levanter only evaluates on it; evaluation stays with Levanter",
            )
            continue
        fields = mapping_at(value, path)
        if str(fields.get("type", "cached")) == "concat":
            _, fields = chosen(fields, COMPONENTS, "cached", path)
            children = mapping_at(fields.get("children") or {}, f"{path}.children")
            part = concat(into, name, children, path=path, **shared)
        else:
            part = component(into, name, fields, path=path, **shared)
        if part is not None:
            components[name] = part
    if not raw:
        into.missing(
            f"{prefix}components", "names no source, so it is unknown what Levanter trains on"
        )


def stages_of(
    data: Mapping[str, Any], raw: Mapping[str, Any], prefix: str
) -> list[tuple[int, dict[str, float]]]:
    """First step and weights, as floats, of each stage."""
    by_step = data.get("train_weights")
    path = f"{prefix}train_weights"
    pairs = (
        points(by_step, path)
        if isinstance(by_step, list)
        else [(0, dict.fromkeys(raw, 1.0) if by_step is None else by_step)]
    )
    stages: list[tuple[int, dict[str, float]]] = []
    for number, (step, weights) in enumerate(pairs):
        at = f"{path}[{number}]" if isinstance(by_step, list) else path
        named = mapping_at(weights, at)
        for name, weight in named.items():
            if name not in raw:
                raise ConfigError(
                    "is not a component",
                    field=f"{at}.{name}",
                    value=weight,
                    cure=did_you_mean(name, raw),
                )
            named[name] = number_at(weight, f"{at}.{name}")
        step = (
            step if stages else 0
        )  # Levanter's first stage applies from the start, whatever its step
        stages.append((step, {name: weight for name, weight in named.items() if weight}))
    return stages


def _weights(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    raw = mapping_at(data.get("components") or {}, "components")
    end = into.config.get("num_steps")
    stages: list[tuple[int, dict[str, float]]] = []
    for step, weights in stages_of(data, raw, prefix):
        if end is not None and step >= end:
            into.differs(
                f"{prefix}train_weights",
                f"the stage from step {step} on is left out: the run ends at {end}",
            )
            continue
        stages.append(
            (step, {name: w for name, w in weights.items() if name in into.config["components"]})
        )
    if len(stages) == 1:
        for name, weight in stages[0][1].items():
            into.config["components"][name]["weight"] = weight
    elif stages:
        into.config["stages"] = [{"step": step, "weights": weights} for step, weights in stages]
    block = data.get("mixture_block_size", 2048)
    into.differs(
        f"{prefix}mixture_block_size",
        f"not needed: counts are exact at every step, Levanter's in each {block} rows"
        + (", and stages begin at any step" if len(stages) > 1 else ""),
    )


def _keeps_documents_apart(into: Translation, data: Mapping[str, Any], prefix: str) -> bool:
    """Whether attention ends with a document, which Levanter finds by packs and by end-of-text
    tokens.
    """
    apart = flag_at(
        data.get("block_cross_document_attention", True), f"{prefix}block_cross_document_attention"
    )
    has_boundaries = data.get("tokenizer") != "passthrough" or any(
        "packing" in c for c in into.config["components"].values()
    )
    return apart and has_boundaries


def _shuffle(into: Translation, data: Mapping[str, Any], prefix: str) -> Any:
    path = f"{prefix}shuffle"
    shuffle = data.get("shuffle", _SHUFFLE)
    if isinstance(shuffle, bool | int):
        if shuffle and data.get("permutation_type", "feistel") != "feistel":
            into.missing(
                f"{prefix}permutation_type",
                f"full shuffles use Feistel, not {data['permutation_type']!r}",
            )
        if shuffle is True:
            into.differs(
                path,
                "a full shuffle reads a chunk for each row; leave shuffle out to read each chunk"
                " about once",
            )
        return shuffle
    fields = mapping_at(shuffle, path)
    check_known(fields, SHUFFLE, path)
    into.differs(
        path,
        "kept as a block shuffle, with which every host reads every block; leave shuffle out for"
        " the braid, which reads each block about once on any number of hosts",
    )
    return {
        "kind": "block",
        **{name: fields.get(name, default) for name, default in _SHUFFLE.items()},
    }


def _pack_all_or_none(into: Translation, prefix: str) -> None:
    """If documents are kept apart, packs all components or none; streams get packs
    without padding.
    """
    components = into.config["components"]
    plain = [name for name, one in components.items() if "packing" not in one]
    if not into.config["split_documents"] or not 0 < len(plain) < len(components):
        return
    for name in plain:
        components[name]["packing"] = {"algorithm": "wrap"}
        into.differs(
            f"{prefix}components.{name}.pack",
            "packed end to end, because other components are packed and a batch must be packed as"
            " a whole",
        )


def _tokenizer(into: Translation, data: Mapping[str, Any], prefix: str, sizes: Sizes) -> None:
    """Translates the tokenizer, if a cache must be built; existing caches record theirs."""
    components = into.config["components"].values()
    name = str(data.get("tokenizer", "gpt2"))
    path = f"{prefix}tokenizer"
    if (
        not all("source" in one and sizes(one["cache"]) is None for one in components)
        or not components
    ):
        into.differs(
            path,
            f"not set ({name}): the tokenizer of the caches is used, which must be the same for"
            " all",
        )
        return
    if name == "passthrough":
        size = data.get("vocab_size")
        if not isinstance(size, int):
            cure = "Give the number of ids, which Levanter needs, too."
            raise ConfigError(
                "is needed with a passthrough tokenizer",
                field=f"{prefix}vocab_size",
                value=size,
                cure=cure,
            )
        into.config["tokenizer"] = {"path": f"ids:{size}", "bos": "none", "eos": "none"}
        return
    eos = "auto" if flag_at(data.get("enforce_eos", True), f"{prefix}enforce_eos") else "none"
    into.config["tokenizer"] = {"path": name, "bos": "auto", "eos": eos}
    if eos == "none":
        into.differs(
            f"{prefix}enforce_eos",
            "no token after documents, even if the tokenizer itself would add one",
        )


def _budget(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    """Translates simulated epoching: each source is reduced to the ratio of the two budgets."""
    experiment, target = (
        whole_at(data[f"{name}_budget"], f"{prefix}{name}_budget")
        for name in ("experiment", "target")
    )
    path = f"{prefix}experiment_budget"
    fraction = experiment / max(target, 1)
    if not 0 < experiment <= target:
        raise ConfigError(
            f"must be positive and at most the target_budget of {target}",
            field=path,
            value=experiment,
            cure="Write the tokens of this run, and as target_budget those of the run that it"
            " simulates.",
        )
    if data.get("max_train_batches") or data.get("num_validation_sequences"):
        raise ConfigError(
            "cannot be combined with max_train_batches or num_validation_sequences, as in Levanter",
            field=path,
            value=experiment,
            cure="Keep one of them.",
        )
    if experiment < target:
        into.config["subset"] = {"fraction": fraction, **_subset_choice(into)}
        into.differs(path, f"a subset of {fraction:.6g} of each source, repeated; {WHICH_ROWS}")


def _subset_choice(into: Translation) -> dict[str, Any]:
    """Selects the rows of a subset: the first in stored order, as in Levanter, otherwise some drawn
    by the seed.
    """
    if into.config["shuffle"] is False:
        return {"by": "start"}
    return {"seed": into.config["seed"]} if into.config.get("seed") else {}


def _limits(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    """Translates Levanter's limits on the sizes of sources."""
    batch = into.config.get("batch_size")
    first = (
        batch
        if isinstance(batch, int)
        else next(iter(batch.values()))
        if isinstance(batch, dict)
        else None
    )
    budgets = [data.get(name) for name in ("experiment_budget", "target_budget")]
    cut_rows = mapping_at(data.get("max_train_batches") or {}, f"{prefix}max_train_batches")
    if None not in budgets:
        _budget(into, data, prefix)
    elif any(budget is not None for budget in budgets):
        name = "experiment_budget" if budgets[1] is None else "target_budget"
        into.differs(
            f"{prefix}{name}", "has no effect in Levanter without the other budget; left out"
        )
    for name, batches in cut_rows.items():
        path = f"{prefix}max_train_batches.{name}"
        rows = whole_at(batches, path) * (first or 0)
        if name not in into.config["components"]:
            into.differs(path, f"{name!r} is not a component trained on; left out, as in Levanter")
        elif first is None:
            into.missing(
                path,
                f"{batches} batches of rows: set components.{name}.subset: {{rows: BATCHES x"
                " BATCH}",
            )
        else:
            into.config["components"][name]["subset"] = {"rows": rows, **_subset_choice(into)}
            into.differs(path, f"a subset of {rows:,} rows, repeated; {WHICH_ROWS}")
    held_out = mapping_at(
        data.get("num_validation_sequences") or {}, f"{prefix}num_validation_sequences"
    )
    for name, rows in held_out.items():
        path = f"{prefix}num_validation_sequences.{name}"
        number = whole_at(rows, path)
        if name not in into.config["components"]:
            into.differs(path, f"{name!r} is not a component trained on; left out")
        elif number > 0:
            into.config["components"][name]["validation"] = number
            into.differs(
                path,
                f"{number:,} rows are held out, in blocks that a keyed hash selects; Levanter"
                " takes the last of a shuffled order, so losses on them are those of other rows",
            )
    if held_out and "shuffle_before_trainval_split" in data:
        into.differs(
            f"{prefix}shuffle_before_trainval_split",
            "blocks to hold out are selected by a keyed hash, which keeps reads local",
        )


def _without_counterpart(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    for name, text in (
        ("cache_options", "not needed: --part-bytes sets the size of parts"),
        ("auto_build_caches", "only build_caches() builds caches; opening them never does"),
    ):
        if name in data:
            into.differs(f"{prefix}{name}", text)
    if data.get("cache_catalog"):
        into.differs(
            f"{prefix}cache_catalog",
            "not needed: ledgers are read in the folders named here; if it names another folder for"
            " a component, Levanter reads that one",
        )
    if data.get("prior_context_phases"):
        into.missing(
            f"{prefix}prior_context_phases",
            "write the lengths of all phases as seq_len: {0: 4096, STEP: 32768}; sources continue"
            " where they stopped",
            decides=True,
        )
    if data.get("chat_template") and not any(
        "source" in one for one in into.config["components"].values()
    ):
        into.differs(
            f"{prefix}chat_template",
            "used when conversations are tokenized; these caches are already built",
        )
