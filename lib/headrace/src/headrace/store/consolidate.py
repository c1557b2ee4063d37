"""Copying a cache of many parts, of any form, into one part.

Reading does not need it: a table joins the parts, and a read within one part costs the same in a
cache of one part or of a thousand. It is useful for fewer files, rows that continue across the ends
of parts (each part drops the last tokens that fill no row), other chunks or another dtype, and a
copy of a Levanter cache with checksums and digests.

Invariant: the same documents in the same order, bit-identical to the part that a build of all
sources as one part would have written. Its fingerprint is that of such a build: equal for copies of
all caches of the same documents, however they were divided, and different from that of the
original, because its rows of tokens differ.

If interrupted, it continues with the first missing shard file; for the digest, earlier ones are
read from the source again, but not written. Price: one pass over the cache, memory of about three
shards (100 MB by default).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from msgspec import structs

from headrace.errors import CacheError
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.grouped import TABLES, table_url
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.leaf import CacheLeaf, fitting
from headrace.store.lease import check_vacant, lease
from headrace.store.ledger import (
    Ledger,
    read_ledger,
    summed,
    write_ledger,
    write_part_record,
)
from headrace.store.ledger_table import LeafRecord, PartRecord
from headrace.store.memory import return_freed_memory
from headrace.store.ragged import LeafWriter, data_url
from headrace.store.snapshots import copy_removed

PART = "00000"
_ORIGIN = "consolidated_from"


def consolidate(
    cache: TokenCache,
    output: str,
    *,
    layout: CacheLayout | None = None,
    tokenizer: tuple[Mapping[str, Any], bytes | None] | None = None,
    advance: Callable[[int], None] | None = None,
) -> TokenCache:
    """Copies a cache into one part, or finishes an interrupted copy.

    Args:
        cache: The cache to copy.
        output: Folder or URL: new, empty, or with an interrupted copy.
        layout: Layout of the tokens; default: that of the cache, or the standard one for caches of
            other programs.
        tokenizer: Record and file of the tokenizer, for a cache without its own; recorded with
            ``stated: true``.
        advance: Called with the number of tokens and values copied since its last call.

    Returns:
        The copy. If it was already finished, nothing is done.

    Raises:
        CacheError: the output contains something else, cannot be written or is being written.
        ConfigError: documents moved to other groups, or the cache was appended to after it was
            shuffled.
        ReadError: the cache is damaged.

    Example:
        >>> import tempfile
        >>> import headrace.testing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     copy = consolidate(headrace.testing.tiny_cache(documents=20, parts=3), folder)
        ...     (len(copy.parts), copy.num_documents)
        (1, 20)
    """
    cache.check_unmoved()
    cache.check_one_numbering()
    copy = _consolidated(cache, output, layout, tokenizer, advance)
    copy_removed(cache.removed(), copy.path, copy.as_member)
    return copy


def _consolidated(
    cache: TokenCache,
    output: str,
    layout: CacheLayout | None,
    tokenizer: tuple[Mapping[str, Any], bytes | None] | None,
    advance: Callable[[int], None] | None,
) -> TokenCache:
    return_freed_memory()
    if layout is None:
        layout = (
            cache.layout if cache.layout.compression != "other" else CacheLayout(cache.dtype.name)
        )
    planned = _start_ledger(cache, layout)
    if tokenizer is not None:
        planned = structs.replace(planned, tokenizer={**tokenizer[0], "stated": True})
    with lease(output) as held_lease:
        old_ledger = read_ledger(output)
        if old_ledger is None:
            check_vacant(output)
            write_ledger(output, planned)
        elif _identity(old_ledger) != _identity(planned):
            raise CacheError(
                "holds another cache",
                field="output",
                value=output,
                cure="Choose a folder that is new or empty.",
            )
        elif old_ledger.finished:
            return TokenCache.open_member(output)
        name = planned.tokenizer.get("file")
        tokenizer_file = files.join(cache.path, str(name))
        if (
            name is not None
            and (content := tokenizer[1] if tokenizer else files.read_bytes(tokenizer_file))
            is not None
        ):
            files.write_atomic(files.join(output, name), content)

        def moved(elements: int) -> None:
            held_lease.check()
            if advance is not None:
                advance(elements)

        for name in TABLES:  # of a store in groups
            if (table := files.read_bytes(table_url(cache.path, name))) is not None:
                files.write_atomic(table_url(output, name), table)
        records = {
            name: _copy_leaf(cache.leaf(name), output, layout, moved)
            for name in (TOKENS, *cache.leaves)
        }
        tokens = records.pop(TOKENS)
        extra = summed([part.extra for part in cache.whole_ledger.parts])
        record = PartRecord(
            PART, cache.num_documents, tokens.elements, tokens.digest, extra, records
        )
        write_part_record(output, record)
        write_ledger(output, planned.complete([record]))
    return TokenCache.open_member(output)


def _start_ledger(cache: TokenCache, layout: CacheLayout) -> Ledger:
    source = cache.whole_ledger
    came_from = {"fingerprint": cache.fingerprint, "parts": len(cache.parts)}
    return structs.replace(
        source,
        finished=False,
        layout=layout.to_dict(),
        sources=[{**s, "part": PART} for s in source.sources],
        parts=[],
        metadata={**source.metadata, _ORIGIN: came_from},
    )


def _identity(ledger: Ledger) -> tuple[Any, ...]:
    """The values on which two calls for one output must agree."""
    return ledger.metadata.get(_ORIGIN), ledger.layout, ledger.tokenizer.get("fingerprint")


def _copy_leaf(
    leaf: CacheLeaf, output: str, layout: CacheLayout, advance: Callable[[int], None]
) -> LeafRecord:
    stored = (
        layout
        if leaf.name == TOKENS
        else layout.leaf(LeafSpec(leaf.name, leaf.dtype.name, leaf.kind, leaf.width))
    )
    size = leaf.num_elements, leaf.num_documents
    ragged = leaf.kind == "ragged"
    writer = LeafWriter(output, PART, leaf.name, stored, ragged=ragged, size=size)
    dtype = np.dtype(stored.dtype)
    for block in leaf.blocks():
        writer.append(fitting(block, dtype, data_url(output, PART, leaf.name)))
        advance(block.size)
    return writer.close(chain([np.zeros(1, np.int64)], leaf.ends()))
