"""Small caches of random or given documents."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout, LeafSpec, token_dtype
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter


def random_documents(documents: int, *, vocab_size: int = 256, max_tokens: int = 50, seed: int = 0) -> list[np.ndarray]:
    """Documents of random lengths, empty ones included, each ended by token ``vocab_size - 1``.

    Example:
        >>> [int(d[-1]) for d in random_documents(3, vocab_size=8)]
        [7, 7, 7]
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, max_tokens + 1, documents)
    return [np.append(rng.integers(0, vocab_size - 1, n), vocab_size - 1) for n in lengths]


def write_cache(
    path: str | Path,
    parts: list[list[np.ndarray]],
    *,
    vocab_size: int = 256,
    eos_id: int | None = None,
    layout: CacheLayout | None = None,
    mask: Callable[[np.ndarray], np.ndarray] | None = None,
) -> TokenCache:
    """Writes documents, given as one list for each part, as a finished cache and opens it.

    ``mask`` says which tokens of a document are trained on; the cache then has a leaf ``loss_mask``.
    """
    root = str(path)
    layout = layout or CacheLayout(token_dtype(vocab_size).name, chunk_elements=256, shard_chunks=4)
    tokenizer: dict[str, Any] = {"path": "testing", "file": None, "fingerprint": "testing", "vocab_size": vocab_size}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": eos_id}
    leaves = [] if mask is None else [LeafSpec("loss_mask", "uint8", "ragged")]
    records = []
    for number, documents in enumerate(parts):
        writer = PartWriter(root, f"{number:05d}", layout, leaves)
        for document in documents:
            size = np.array([document.size])
            masks = {} if mask is None else {"loss_mask": (mask(document).astype(np.uint8), size)}
            writer.append(document, size, masks)
        records.append(writer.close())
    said = [{"name": leaf.name, "dtype": leaf.dtype, "kind": leaf.kind} for leaf in leaves]
    write_ledger(root, Ledger(False, tokenizer, layout.to_json(), leaves=said).complete(records))
    return TokenCache.open(root)


def tiny_cache(
    path: str | Path | None = None, *, documents: int = 100, parts: int = 1, vocab_size: int = 256, seed: int = 0
) -> TokenCache:
    """A small finished cache of random documents; if no path is given, in a temporary folder for as long as the process
    runs.

    Example:
        >>> tiny_cache(documents=3).num_documents
        3
    """
    every = random_documents(documents, vocab_size=vocab_size, seed=seed)
    split = [list(every[p::parts]) for p in range(parts)]
    root = path
    if root is None:
        root = tempfile.mkdtemp(prefix="headrace-tiny-cache-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
    return write_cache(root, split, vocab_size=vocab_size, eos_id=vocab_size - 1)
