"""Masks of caches: the leaf that says of each token whether it is trained on.

Chats have one (``headrace build --kind chat`` writes ``loss_mask``, Levanter's builder ``assistant_masks``): 1 for what
the assistant says. Rows of such a cache carry it wherever they go: through packing, shuffles, mixtures and the planned
reads of a loader, to :attr:`headrace.data.batch.PackedBatch.token_mask`. Tokens of caches without one all count.

Price: one byte a token more to read and to hand to the devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ConfigError, did_you_mean
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache

MASKS = ("loss_mask", "assistant_masks")
"""Leaves that ``auto`` looks for: headrace's own, and that of Levanter's chats."""


def mask_leaf(cache: TokenCache, loss_mask: str, field: str = "loss_mask") -> str | None:
    """The leaf that says which tokens are trained on; None: all are.

    Args:
        cache: The cache.
        loss_mask: ``auto``: one of :data:`MASKS`, if the cache has it; ``none``: all tokens; or the name of a leaf.
        field: What errors call it.

    Raises:
        ConfigError: the cache has no such leaf.

    Example:
        >>> import headrace.testing
        >>> mask_leaf(headrace.testing.tiny_cache(documents=5), "auto") is None
        True
    """
    if loss_mask == "none":
        return None
    known = cache.leaves
    if loss_mask == "auto":
        return next((name for name in MASKS if name in known), None)
    if loss_mask not in known:
        raise ConfigError(
            f"is not a leaf of {cache.path}",
            field=field,
            value=loss_mask,
            cure=did_you_mean(loss_mask, [*known, "auto", "none"]),
        )
    return loss_mask


def mask_arrays(cache: TokenCache, leaf: str | None) -> Sequence[StoredArray] | None:
    """The mask of each part of a cache; None for ``leaf=None``.

    Raises:
        ConfigError: the leaf has not one number a token, or lies in other chunks than the tokens.
    """
    if leaf is None:
        return None
    found = cache.leaf(leaf)
    field = f"leaf {leaf!r} of {cache.path}"
    masks, tokens = [p.data for p in found.parts], [p.data for p in cache.parts]
    one_each = found.kind == "ragged" and [a.length for a in masks] == [a.length for a in tokens]
    if not one_each or found.dtype.kind not in "iub":
        raise ConfigError(
            "has not one number a token",
            field=field,
            value=sum(a.length for a in masks),
            cure="Name another leaf as loss_mask, or none.",
        )
    for mask, of in zip(masks, tokens, strict=True):
        if mask.chunk_elements != of.chunk_elements:
            raise ConfigError(
                f"lies in chunks of {mask.chunk_elements} elements, the tokens in chunks of {of.chunk_elements}",
                field=field,
                cure="Build the cache again, as chunks of tokens and of their mask are read together; or set loss_mask:"
                " none.",
            )
    return masks
