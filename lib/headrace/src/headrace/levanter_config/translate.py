"""A data config of Levanter's, or a whole training config, as a config of headrace's.

Translated is what decides the batches: sources, weights, shuffles, lengths, ends. No order is the same bit for bit:
Levanter's follows from keys of jax. Whatever has no counterpart becomes a note, and nothing is guessed without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import ConfigError, did_you_mean
from headrace.levanter_config.fields import (
    COMPONENTS,
    DATA,
    EARLIER,
    LATER,
    SHUFFLE,
    TRAINING,
    check_known,
    chosen,
    mapping_at,
    points,
)
from headrace.levanter_config.notes import Translation
from headrace.levanter_config.sources import Sizes, component, concat

_SHUFFLE = {"io_block_size": 256, "window_blocks": 512, "perm_type": "feistel"}


def translate(raw: Mapping[str, Any], *, sizes: Sizes | None = None) -> Translation:
    """Translates a config.

    Args:
        raw: What Levanter's YAML holds: a data config, or a training config with one under ``data``.
        sizes: Tells the tokens of the cache at a path, or None; used where sizes decide. None: nothing is looked up.

    Raises:
        ConfigError: a field or kind that Levanter does not have, or a value that it would not read.

    Example:
        >>> found = translate({"components": {"a": {"cache_dir": "gs://b/a"}}, "shuffle": True})
        >>> found.config["components"], found.config["shuffle"]
        ({'a': {'cache': 'gs://b/a/train', 'weight': 1.0}}, True)
    """
    into = Translation()
    data, prefix = _run(into, raw)
    check_known(data, (*DATA, *LATER, *EARLIER), prefix.rstrip("."))
    data = {name: value for name, value in data.items() if value is not None or name == "cache_dir"}
    into.differs(
        f"{prefix}components",
        "the order is another one: Levanter's cannot be reproduced to the row, and is the same in every epoch",
    )
    parts = _components(into, data, prefix, sizes or (lambda path: None))
    _weights(into, data, prefix, parts)
    into.config["shuffle"] = _shuffle(into, data, prefix)
    into.config["split_documents"] = bool(data.get("block_cross_document_attention", True))
    if into.config["split_documents"]:
        into.differs(
            f"{prefix}block_cross_document_attention",
            "documents are kept apart in labels, too: the last token of one does not predict the first of the next",
        )
    _pack_all_or_none(into, prefix)
    into.config["stop_strategy"] = str(data.get("stop_strategy", "restart"))
    _tokenizer(into, data, prefix, sizes or (lambda path: None))
    _limits(into, data, prefix)
    _without_counterpart(into, data, prefix)
    return into


def _run(into: Translation, raw: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The data config, and what a training config says of lengths, batches and steps."""
    given = mapping_at(raw, "config")
    if not isinstance(given.get("data"), Mapping):
        unknown = [name for name in given if name in TRAINING]
        if unknown:
            raise ConfigError("is missing", field="data", cure=f"There is {unknown[0]}, but no data config beside it.")
        into.differs("train_seq_len", "not in a data config: set seq_len, batch_size and num_steps as the trainer has")
        return given, ""
    trainer = mapping_at(given.get("trainer") or {}, "trainer")
    model = mapping_at(given.get("model") or {}, "model")
    length = given.get("train_seq_len") or model.get("max_seq_len") or model.get("seq_len")
    if length is None:
        into.differs("train_seq_len", "not said, so it is the model's own: set seq_len")
    else:
        into.config["seq_len"] = int(length)
    batch = trainer.get("train_batch_size")
    if isinstance(batch, list):
        into.config["batch_size"] = dict(points(cast("list[Any]", batch), "trainer.train_batch_size"))
    elif batch is not None:
        into.config["batch_size"] = int(batch)
    else:
        into.differs("trainer.train_batch_size", "not said, so it is Levanter's default: set batch_size")
    if trainer.get("num_train_steps") is not None:
        into.config["num_steps"] = int(trainer["num_train_steps"])
    seed = given.get("data_seed")
    into.config["seed"] = int(trainer.get("seed") or 0) if seed is None else int(seed)
    return mapping_at(given["data"], "data"), "data."


def _components(into: Translation, data: Mapping[str, Any], prefix: str, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Writes the components; gives the parts that Levanter's became, with the share of its weight that each gets."""
    name_of = "components" if "components" in data or "configs" not in data else "configs"
    raw = mapping_at(data.get(name_of) or {}, f"{prefix}{name_of}")
    shared = {"cache_dir": data.get("cache_dir", "cache/"), "chat_template": data.get("chat_template")}
    weights = _stages_of(data, raw, prefix)
    found: dict[str, dict[str, Any]] = {}
    parts: dict[str, dict[str, float]] = {}
    for name, value in raw.items():
        path = f"{prefix}{name_of}.{name}"
        if not any(stage.get(name, 0) for _, stage in weights):
            into.missing(path, "has no weight, so Levanter evaluates on it alone; evaluation stays with Levanter")
            continue
        fields = _of_earlier(value, path) if name_of == "configs" else mapping_at(value, path)
        if str(fields.get("type", "cached")) == "concat":
            _, fields = chosen(fields, COMPONENTS, "cached", path)
            children = mapping_at(fields.get("children") or {}, f"{path}.children")
            made, parts[name] = concat(into, name, children, sizes=sizes, path=path, **shared)
            found |= made
            continue
        one = component(into, name, fields, path=path, **shared)
        if one is not None:
            found[name], parts[name] = one, {name: 1.0}
    into.config["components"] = found
    return parts


def _of_earlier(value: object, path: str) -> dict[str, Any]:
    """A component as releases before 0.2 wrote it: the source's fields beside the cache's."""
    fields = mapping_at(value, path)
    own = {k: fields.pop(k) for k in ("cache_dir", "format", "tags", "pack", "flat_cache") if k in fields}
    if not fields:
        return own
    return {"source": {"type": "hf" if "id" in fields else "url", **fields}, **own}


def _stages_of(data: Mapping[str, Any], raw: Mapping[str, Any], prefix: str) -> list[tuple[int, dict[str, float]]]:
    """Weights from each step on, as floats."""
    given, path = data.get("train_weights"), f"{prefix}train_weights"
    pairs = (
        points(given, path) if isinstance(given, list) else [(0, dict.fromkeys(raw, 1.0) if given is None else given)]
    )
    stages: list[tuple[int, dict[str, float]]] = []
    for number, (step, weights) in enumerate(pairs):
        at = f"{path}[{number}]" if isinstance(given, list) else path
        named = mapping_at(weights, at)
        for name, weight in named.items():
            if name not in raw:
                raise ConfigError("is not a component", field=f"{at}.{name}", cure=did_you_mean(name, raw))
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise ConfigError("is not a number", field=f"{at}.{name}", value=weight)
        stages.append((step, {name: float(weight) for name, weight in named.items() if weight}))
    return stages


def _weights(into: Translation, data: Mapping[str, Any], prefix: str, parts: Mapping[str, Mapping[str, float]]) -> None:
    raw = mapping_at(data.get("components") or data.get("configs") or {}, "components")
    stages = [
        (step, {part: w * share for n, w in weights.items() for part, share in parts.get(n, {}).items()})
        for step, weights in _stages_of(data, raw, prefix)
    ]
    if len(stages) == 1:
        for name, weight in stages[0][1].items():
            into.config["components"][name]["weight"] = weight
    elif stages:
        into.config["stages"] = [{"step": step, "weights": weights} for step, weights in stages]
    block = data.get("mixture_block_size", 2048)
    into.differs(
        f"{prefix}mixture_block_size",
        f"not needed: counts are exact at every step, where Levanter's are in each {block} rows"
        + (", and stages begin at any step" if len(stages) > 1 else ""),
    )


def _shuffle(into: Translation, data: Mapping[str, Any], prefix: str) -> Any:
    path, given = f"{prefix}shuffle", data.get("shuffle", _SHUFFLE)
    if isinstance(given, bool | int):
        if given and data.get("permutation_type", "feistel") != "feistel":
            into.missing(f"{prefix}permutation_type", f"full shuffles are Feistel's, not {data['permutation_type']!r}")
        if given is True:
            into.differs(path, "a full shuffle reads a chunk for each row; leave shuffle out to mix as well for less")
        return given
    fields = mapping_at(given, path)
    check_known(fields, SHUFFLE, path)
    into.differs(
        path,
        "kept as a block shuffle, of which every host reads every block; leave shuffle out for the braided one, which"
        " reads each block about once on any number of hosts",
    )
    return {"kind": "block", **{name: fields.get(name, default) for name, default in _SHUFFLE.items()}}


def _pack_all_or_none(into: Translation, prefix: str) -> None:
    """Where documents are kept apart, batches are packed as a whole: what was not gets packs without padding."""
    components = into.config["components"]
    plain = [name for name, one in components.items() if "packing" not in one]
    if not into.config["split_documents"] or not 0 < len(plain) < len(components):
        return
    for name in plain:
        components[name]["packing"] = {"algorithm": "wrap"}
        into.differs(
            f"{prefix}components.{name}.pack", "packed end to end, as others are packed: a batch is packed as a whole"
        )


def _tokenizer(into: Translation, data: Mapping[str, Any], prefix: str, sizes: Sizes) -> None:
    """The tokenizer, if there is something to build with it; caches that exist know their own."""
    components = into.config["components"].values()
    name, path = str(data.get("tokenizer", "gpt2")), f"{prefix}tokenizer"
    if not all("source" in one and sizes(one["cache"]) is None for one in components) or not components:
        into.differs(path, f"not set ({name}): that of the caches is taken, which must be one")
        return
    if name == "passthrough":
        size = data.get("vocab_size")
        if not isinstance(size, int):
            cure = "Levanter asks for it, too."
            raise ConfigError(
                "is needed with a passthrough tokenizer", field=f"{prefix}vocab_size", value=size, cure=cure
            )
        into.config["tokenizer"] = {"path": f"ids:{size}", "bos": "none", "eos": "none"}
        return
    eos = "auto" if data.get("enforce_eos", True) else "none"
    into.config["tokenizer"] = {"path": name, "bos": "auto", "eos": eos}
    into.differs(path, f"names of models are not looked up: give the path of its tokenizer.json in place of {name!r}")
    if eos == "none":
        into.differs(f"{prefix}enforce_eos", "no token after documents, also where the tokenizer would add one itself")


def _limits(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    """Sizes that Levanter cuts sources to."""
    length, batch = into.config.get("seq_len"), into.config.get("batch_size")
    first = batch if isinstance(batch, int) else next(iter(batch.values())) if isinstance(batch, dict) else None
    for name, batches in mapping_at(data.get("max_train_batches") or {}, f"{prefix}max_train_batches").items():
        tokens = f" (here {batches * first * length:,})" if first and length else ""
        into.missing(
            f"{prefix}max_train_batches.{name}",
            f"the first {batches} batches of rows, again and again: components.{name}.max_tokens{tokens} bounds what is"
            " drawn of it in the whole run, and repeats nothing; or build a smaller cache",
        )
    held = mapping_at(data.get("num_validation_sequences") or {}, f"{prefix}num_validation_sequences")
    for name, rows in held.items():
        into.missing(
            f"{prefix}num_validation_sequences.{name}",
            f"{rows} rows held out of this component alone: validation: {{one_in: N}} holds one block in N out of every"
            " component, disjoint by construction; the whole component is trained on unless you set it",
        )
    if held and "shuffle_before_trainval_split" in data:
        into.differs(
            f"{prefix}shuffle_before_trainval_split", "blocks are held out by a keyed hash, which keeps reads local"
        )
    if data.get("target_budget") is not None or data.get("experiment_budget") is not None:
        into.missing(
            f"{prefix}experiment_budget",
            "simulated epochs (each source cut to experiment_budget / target_budget of its rows): build smaller caches,"
            " or leave documents out with components.NAME.remove",
        )


def _without_counterpart(into: Translation, data: Mapping[str, Any], prefix: str) -> None:
    for name, text in (
        ("cache_options", "not needed: parts of a build are sized by --part-bytes"),
        ("auto_build_caches", "caches are built when build_caches() is called, never by opening them"),
    ):
        if name in data:
            into.differs(f"{prefix}{name}", text)
    if data.get("cache_catalog"):
        into.missing(f"{prefix}cache_catalog", "a ledger is read for each cache")
    if data.get("prior_context_phases"):
        into.missing(
            f"{prefix}prior_context_phases",
            "write the lengths of all phases as seq_len: {0: 4096, STEP: 32768}: sources then go on where they stopped",
        )
    if data.get("chat_template") and not any("source" in one for one in into.config["components"].values()):
        into.differs(f"{prefix}chat_template", "used when conversations are tokenized; these caches are built already")
