"""The rows of one source of a config as they are stored: windows of its token stream, or packs of its documents."""

from __future__ import annotations

from typing import Literal

from headrace.data.document_filter import DocumentFilter
from headrace.data.masks import mask_leaf
from headrace.data.packing import PackedTokenDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.index.packing_config import PackingConfig
from headrace.store.cache import TokenCache


def stored_rows(
    cache: TokenCache,
    seq_len: int,
    *,
    name: str,
    split_documents: bool = False,
    packing: PackingConfig | None = None,
    remove: str | None = None,
    remove_not_found: Literal["refuse", "count"] = "refuse",
    loss_mask: str = "auto",
) -> TokenSeqDataset | PackedTokenDataset:
    """Rows of a cache.

    Args:
        cache: The cache.
        seq_len: Tokens in a row.
        name: The component's name.
        split_documents: Whether segments end with documents in rows that are not packed.
        packing: How documents are packed; None: they are not.
        remove: File of documents to leave out.
        remove_not_found: What becomes of numbers in it that no document has.
        loss_mask: Leaf that says which tokens are trained on, ``auto`` or ``none``.

    Raises:
        ConfigError: as the dataset's; the cache is only thought of, and its documents have no lengths to plan with.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> type(stored_rows(cache, 64, name="a", packing=PackingConfig())).__name__
        'PackedTokenDataset'
    """
    loss_mask = mask_leaf(cache, loss_mask, f"components.{name}.loss_mask") or "none"
    removed = None
    if remove is not None:
        field, count = f"components.{name}.remove", remove_not_found == "count"
        removed = DocumentFilter.load(remove, name=field, count_not_found=count)
    if packing is None:
        return TokenSeqDataset(
            cache, seq_len, split_documents=split_documents, name=name, removed=removed, loss_mask=loss_mask
        )
    if cache.ledger.tokenizer.get("fingerprint") == "virtual":
        raise ConfigError(
            "needs the lengths of documents, and the cache does not exist yet",
            field=f"components.{name}.packing",
            cure="Build the cache, or leave packing out of the forecast.",
        )
    return PackedTokenDataset(
        cache,
        seq_len,
        algorithm=packing.algorithm,
        long=packing.long,
        min_fill=packing.min_fill,
        unit=packing.unit,
        removed=removed,
        name=name,
        loss_mask=loss_mask,
        plans=packing.plans,
    )
