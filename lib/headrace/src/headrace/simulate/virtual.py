"""Caches that do not exist, of a given size: enough to plan with, nothing to read."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import LeafRecord, Ledger, PartRecord

_PART_TOKENS = 1 << 40


def virtual_cache(
    name: str,
    tokens: int,
    *,
    vocab_size: int = 1 << 17,
    layout: CacheLayout | None = None,
    eos_id: int | None = 0,
    mask: str | None = None,
) -> TokenCache:
    """A cache that does not exist, of the given size: enough to plan with, nothing to read.

    ``mask`` names a leaf that says which tokens are trained on.

    Example:
        >>> virtual_cache("web", 10**12).num_tokens
        1000000000000
    """
    if tokens < 1:
        raise ConfigError("must be at least 1", field=f"tokens of {name}", value=tokens)
    layout = layout or CacheLayout("uint32" if vocab_size > 1 << 16 else "uint16")
    sizes = [min(_PART_TOKENS, tokens - at) for at in range(0, tokens, _PART_TOKENS)]
    parts = [
        PartRecord(
            f"{k:05d}",
            max(size // 1000, 1),
            size,
            f"virtual:{name}:{k}",
            leaves={} if mask is None else {mask: LeafRecord(size, f"virtual:{name}:{k}:{mask}")},
        )
        for k, size in enumerate(sizes)
    ]
    leaves = [] if mask is None else [{"name": mask, "dtype": "uint8", "kind": "ragged"}]
    tokenizer = {"path": "virtual", "file": None, "fingerprint": "virtual", "vocab_size": vocab_size}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": eos_id}
    return TokenCache(f"/virtual/{name}", Ledger(True, tokenizer, layout.to_json(), parts=parts, leaves=leaves))
