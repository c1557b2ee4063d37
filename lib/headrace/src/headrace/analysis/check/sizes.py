"""Stand-ins for caches that do not exist yet, with the sizes declared in the config.

An existing cache is always used as it is; declared sizes are only compared with it. So a plan made
before the caches are built becomes exact, source by source, as they are built. Price: one request
for each component's ledger, 16 at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from headrace.config.component import ComponentConfig, check_any
from headrace.config.lm_data import LmDataConfig
from headrace.data.columns import DOCUMENT, NO_LEAF
from headrace.errors import CacheError, ConfigError, check_at_least
from headrace.ingest.tokenize import load_tokenizer
from headrace.store.cache import TokenCache
from headrace.store.layout import MASKS, CacheLayout, LeafSpec
from headrace.store.layouts import find_layout
from headrace.store.ledger import SHUFFLED, UNDESCRIBED, Ledger, read_ledger
from headrace.store.ledger_table import LeafRecord, PartRecord
from headrace.store.missing import what_is_there

UNKNOWN_VOCABULARY = 1 << 17
"""Vocabulary size if none is known: that of Llama 3, so that tokens take four bytes."""
_PART_TOKENS = 1 << 40


@dataclass(frozen=True)
class PlannedCaches:
    """Stand-ins for caches that do not exist.

    Attributes:
        caches: By component, with the declared sizes; nothing can be read from them.
        declared: Tokens declared by the config, by component, whether the cache exists or not.
        config: The config to plan with: components to be packed are planned as streams if they have
            no documents yet.
        unpacked: The components planned as streams.
    """

    caches: dict[str, TokenCache]
    declared: dict[str, int]
    config: LmDataConfig
    unpacked: tuple[str, ...] = ()


def planned_caches(config: LmDataConfig, *, look: bool = True) -> PlannedCaches:
    """Makes stand-ins, with the declared sizes, for caches of a config that do not exist yet.

    Args:
        config: The config.
        look: Whether to look for the caches whose sizes are declared; False: they count as missing,
            without a request.

    Raises:
        ConfigError: an invalid size; a cache that does not exist and whose size is unknown, or from
            which documents are to be held out or removed.

    Example:
        >>> from headrace import ComponentConfig
        >>> config = LmDataConfig({"web": ComponentConfig("caches/web", expected_tokens=2e9)})
        >>> planned_caches(config).caches["web"].num_tokens
        2000000000
    """
    check_any(config.components)
    declared = {
        name: _check_tokens(f"components.{name}.expected_tokens", component.expected_tokens)
        for name, component in config.components.items()
        if component.expected_tokens is not None
    }
    names = [name for name in config.components if look or name not in declared]
    with ThreadPoolExecutor(max_workers=16) as pool:
        are_there = pool.map(lambda name: _exists(name, config.components[name]), names)
        there = dict.fromkeys(name for name, exists in zip(names, are_there, strict=True) if exists)
    missing = [name for name in config.components if name not in there]
    for name in missing:
        if name not in declared:
            path = next(path for path in config.components[name].caches if not is_there(path))
            problem, cure = what_is_there(path)
            planned = f"To plan before it is built: components.{name}.expected_tokens=2.5e11. "
            raise ConfigError(
                f"is not a token cache ({problem})",
                field=f"components.{name}.cache",
                value=path,
                cure=(planned if "headrace build" in cure else "") + cure,
            )
    if not missing:
        return PlannedCaches({}, declared, config)
    _refuse_documents(config, missing)
    first = next(iter(there), None)
    existing = None if first is None else config.components[first].caches[0]
    vocabulary, eos_id = _tokens_of(config, existing)
    caches: dict[str, TokenCache] = {}
    for name in missing:
        settings = config.components[name].format
        chunks = None  # of another system's cache: None are those of headrace's
        if settings is not None and settings.name is not None:
            chunks = settings.layout().planned
        caches[name] = virtual_cache(
            name,
            declared[name],
            vocab_size=vocabulary,
            layout=chunks,
            described=chunks is None,
            eos_id=eos_id,
            leaves=_leaves_of(config, name),
        )
    unpacked = tuple(name for name in missing if config.components[name].packing is not None)
    return PlannedCaches(caches, declared, _as_streams(config, unpacked), unpacked)


def virtual_cache(
    name: str,
    tokens: int,
    *,
    vocab_size: int = 1 << 17,
    layout: CacheLayout | None = None,
    eos_id: int | None = 0,
    leaves: Sequence[LeafSpec] = (),
    shuffled: bool = False,
    described: bool = True,
) -> TokenCache:
    """A stand-in for a cache of the given size: enough to plan with, nothing to read.

    ``leaves`` are its leaves besides the tokens; ``shuffled``: its documents are, as ``headrace
    cache reshuffle`` does; ``described``: its ledger tells where chunks lie, as Levanter's do not.

    Example:
        >>> virtual_cache("web", 10**12).num_tokens
        1000000000000
    """
    check_at_least(f"tokens of {name}", tokens)
    layout = layout or CacheLayout("uint32" if vocab_size > 1 << 16 else "uint16")
    sizes = [min(_PART_TOKENS, tokens - at) for at in range(0, tokens, _PART_TOKENS)]
    parts = [
        PartRecord(
            f"{k:05d}",
            max(size // 1000, 1),
            size,
            f"virtual:{name}:{k}",
            leaves={
                one.name: LeafRecord(size * (one.width or 1), f"virtual:{name}:{k}:{one.name}")
                for one in leaves
            },
        )
        for k, size in enumerate(sizes)
    ]
    tokenizer = {
        "path": "virtual",
        "file": None,
        "fingerprint": "virtual",
        "vocab_size": vocab_size,
        "bos": None,
        "bos_id": None,
        "eos": None,
        "eos_id": eos_id,
    }
    metadata: dict[str, Any] = {} if described else {UNDESCRIBED: True}
    if shuffled:
        record = {"seed": 0, "unit": 1, "part_bytes": 1, "fingerprint": ""}
        metadata[SHUFFLED] = {**record, "parts": [], "sources": []}
    ledger = Ledger(
        True,
        tokenizer,
        layout.to_dict(),
        parts=parts,
        metadata=metadata,
        leaves=[one.to_dict() for one in leaves],
    )
    return TokenCache(f"/virtual/{name}", ledger)


def _leaves_of(config: LmDataConfig, name: str) -> list[LeafSpec]:
    """The leaves that training will read from a future cache: mask and columns, as its source
    declares them; undeclared ones are assumed to hold one float per token.
    """
    component = config.components[name]
    declared = {} if component.source is None else component.source.leaves
    mask = _mask_of(component)
    leaves = {} if mask is None else {mask: LeafSpec(mask, "uint8")}
    columns = component.columns or {}
    for column, spec in (config.columns or {}).items():
        leaf = columns.get(column, spec if isinstance(spec, str) else spec.leaf)
        if leaf in declared:
            leaves[leaf] = declared[leaf].spec(leaf)
        elif leaf not in (NO_LEAF, DOCUMENT):
            leaves[leaf] = LeafSpec(leaf, "float32", "ragged", 1)
    return [*leaves.values()]


def _mask_of(component: ComponentConfig) -> str | None:
    """The mask leaf of a future cache."""
    if component.loss_mask not in ("auto", "none"):
        return component.loss_mask
    masked = component.source is not None and component.source.kind in ("chat", "preference")
    return MASKS[0] if masked and component.loss_mask == "auto" else None


def _refuse_documents(config: LmDataConfig, missing: Sequence[str]) -> None:
    """Raises ConfigError if training data depends on documents of caches that do not exist."""
    held_out = config.held_out
    for name in missing:
        split, path = held_out.get(name, (None, ""))
        if split is None or split.by == "blocks":
            continue
        raise ConfigError(
            f"needs to know where documents end, and there is no cache of component {name!r} to"
            " say so",
            field=f"{path}.by",
            value="documents",
            cure=f"Build the cache first, or plan with {path}.by=blocks: as many rows, and the"
            " same reads, about.",
        )
    for name in missing:
        of_buckets = name.rpartition("/")[0] or name
        for field, source in (("remove", name), ("where", name), ("buckets", of_buckets)):
            if (value := getattr(config.components[name], field)) is not None:
                raise ConfigError(
                    "needs to know where documents end, and there is no cache to say so",
                    field=f"components.{source}.{field}",
                    value=value,
                    cure="Build the cache first, or plan without:"
                    f" components.{source}.{field}=null.",
                )


def _as_streams(config: LmDataConfig, names: tuple[str, ...]) -> LmDataConfig:
    """The config with packing off for these components and those that share batches with them."""
    if not names:
        return config
    components = {n: replace(c, packing=None) for n, c in config.components.items()}
    return replace(config, components=components)


def is_there(path: str) -> bool:
    """Whether there is a cache at a path."""
    return read_ledger(path) is not None or find_layout(path) is not None


def _exists(name: str, component: ComponentConfig) -> bool:
    """Whether the caches of a component exist, or a replica of its cache does."""
    failures: list[CacheError] = []

    def is_reached(path: str) -> bool:
        try:
            return is_there(path)
        except CacheError as error:
            failures.append(error)
            return False

    paths = component.caches
    if all(map(is_reached, paths)) or any(map(is_reached, component.replicas or ())):
        return True
    for error in failures:
        raise CacheError(
            error.problem,
            field=f"components.{name}.cache",
            value=paths[0] if len(paths) == 1 else [*paths],
            cure=f"{error.cure or ''} To plan without it: --declared"
            f" components.{name}.expected_tokens=2.5e11".lstrip(),
        ) from error
    return False


def _check_tokens(field: str, tokens: float) -> int:
    if not 1 <= tokens < 1 << 60:
        raise ConfigError(
            "is not a number of tokens", field=field, value=tokens, cure="Write e.g. 2.5e11."
        )
    return int(tokens)


def _tokens_of(config: LmDataConfig, there: str | None) -> tuple[int, int | None]:
    """Vocabulary size and end-of-text token of future caches: those of an existing cache or of the
    config's tokenizer, as far as they are known without building anything.
    """
    if there is not None:
        tokenizer = TokenCache.open_member(there).ledger.tokenizer
        return int(tokenizer["vocab_size"]), tokenizer["eos_id"]
    try:
        own_tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else None
    except ConfigError:  # does not exist yet, like the caches
        own_tokenizer = None
    return (
        (UNKNOWN_VOCABULARY, 0)
        if own_tokenizer is None
        else (own_tokenizer.vocab_size, own_tokenizer.eos_id)
    )
