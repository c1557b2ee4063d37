"""Small caches of random or given documents, arrays that count and delay their reads, and a check
of orders.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.order.intervals import Intervals
from headrace.order.order import Order
from headrace.store.array import ArrayFuture, StoredArray
from headrace.store.cache import TokenCache
from headrace.store.joined import open_cache
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec, token_dtype
from headrace.store.leaf import LeafPart
from headrace.store.lease import owning
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.store.snapshots import add_appended, history_of, member_path, remove_documents


def random_documents(
    documents: int, *, vocab_size: int = 256, max_tokens: int = 50, seed: int = 0
) -> list[np.ndarray]:
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
    leaves: Mapping[LeafSpec, Callable[[np.ndarray], np.ndarray]] | None = None,
) -> TokenCache:
    """Writes documents, given as one list for each part, as a finished cache and opens it.

    ``mask`` returns which tokens of a document are trained on; the cache then has a leaf
    ``loss_mask``. ``leaves`` are functions that return the values of other leaves for a document,
    ``[n]`` or ``[n, K]``.

    Example:
        >>> score = {LeafSpec("score", "float32", "fixed"): lambda tokens: tokens[:1] / 10}
        >>> cache = write_cache(tempfile.mkdtemp(), [[np.array([3, 5])]], leaves=score)
        >>> cache.leaf("score").document(0).tolist()
        [0.30000001192092896]
    """
    root = str(path)
    layout = layout or CacheLayout(token_dtype(vocab_size).name, chunk_elements=256, shard_chunks=4)
    tokenizer: dict[str, Any] = {
        "path": "testing",
        "file": None,
        "fingerprint": "testing",
        "vocab_size": vocab_size,
    }
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": eos_id}
    masks = {} if mask is None else {LeafSpec("loss_mask", "uint8", "ragged"): mask}
    masks |= leaves or {}
    records = []
    with owning(root):
        for number, documents in enumerate(parts):
            writer = PartWriter(root, f"{number:05d}", layout, [*masks])
            if len(documents):
                lengths = np.array([document.size for document in documents])
                values = {spec.name: _values_of(documents, spec, of) for spec, of in masks.items()}
                writer.append(np.concatenate(documents), lengths, values)
            records.append(writer.close())
    specs = [spec.to_dict() for spec in masks]
    write_ledger(root, Ledger(False, tokenizer, layout.to_dict(), leaves=specs).complete(records))
    return TokenCache.open_member(root)


def _values_of(
    documents: list[np.ndarray], spec: LeafSpec, values_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray | None]:
    values = [
        np.asarray(values_of(document)).reshape(-1).astype(spec.dtype) for document in documents
    ]
    return np.concatenate(values), None if spec.kind == "fixed" else np.array(
        [piece.size for piece in values]
    )


def tiny_cache(
    path: str | Path | None = None,
    *,
    documents: int = 100,
    parts: int = 1,
    vocab_size: int = 256,
    seed: int = 0,
) -> TokenCache:
    """A small finished cache of random documents; without a path, in a temporary folder that lasts
    as long as the process.

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


def grow(path: str | Path, documents: int, seed: int = 0) -> TokenCache:
    """Appends a cache of random documents to a finished one, and opens the new snapshot.

    Example:
        >>> grow(tiny_cache(documents=3).path, 4).num_documents
        7
    """
    built = TokenCache.open_member(path).as_member
    number = len(history_of(str(path)).members)
    parts = [random_documents(documents, seed=seed)]
    appended = write_cache(member_path(str(path), number), parts)
    add_appended(str(path), built, number, appended.as_member)
    return open_cache(path)


def remove(path: str | Path, *numbers: int) -> int:
    """Removes documents from a finished cache; returns the number of its newest snapshot.

    Example:
        >>> remove(tiny_cache().path, 3, 4)
        2
    """
    documents = Intervals.of_numbers(np.array(numbers, np.int64))
    built = TokenCache.open_member(path).as_member
    return remove_documents(str(path), built, documents)[0].newest


def with_arrays(
    cache: TokenCache, make: Callable[[str, int, CacheLayout], StoredArray]
) -> TokenCache:
    """The same cache, with tokens read through the arrays that ``make(url, length, layout)``
    returns.

    Example:
        >>> counted = with_arrays(tiny_cache(), CountingArray)
        >>> _ = counted.tokens(0, 10)
        >>> counted.parts[0].data.reads
        1
    """

    def open_part(name: str, number: int) -> LeafPart:
        part = cache.leaf(name).parts[number]
        return (
            replace(part, data=make(part.data.url, part.data.length, part.data.layout))
            if name == TOKENS
            else part
        )

    return TokenCache(cache.path, cache.ledger, open_part)


class CountingArray(StoredArray):
    """A stored array that counts its reads and the elements read."""

    def __init__(self, url: str, length: int, layout: CacheLayout) -> None:
        super().__init__(url, length, layout)
        self.reads = 0
        self.elements = 0
        self._count_lock = threading.Lock()

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        with self._count_lock:
            self.reads += 1
            self.elements += out.size
        return super().read_into(out, start)


class SlowArray(CountingArray):
    """A stored array whose reads take ``latency_s``; concurrent reads overlap."""

    def __init__(self, url: str, length: int, layout: CacheLayout, latency_s: float = 0.03) -> None:
        super().__init__(url, length, layout)
        self.latency_s = latency_s

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        return _Delayed(super().read_into(out, start), time.perf_counter() + self.latency_s)


class _Delayed:
    def __init__(self, future: ArrayFuture, ready_at: float) -> None:
        self._future = future
        self._ready_at = ready_at

    def result(self, timeout: float | None = None) -> np.ndarray:
        seconds = self._ready_at - time.perf_counter()
        if timeout is not None and seconds > timeout:
            time.sleep(timeout)
            raise TimeoutError
        time.sleep(max(seconds, 0))
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        yield from asyncio.sleep(max(self._ready_at - time.perf_counter(), 0)).__await__()
        return (yield from self._future.__await__())


def check_order(index_map: Order, *, sample: int = 10_000, seed: int = 0) -> None:
    """Raises AssertionError unless an order is correct: range, bijection, batched equals one by
    one, locality.

    Orders of more than ``sample`` positions are checked on a random sample.

    Example:
        >>> from headrace.order.permutation import Feistel
        >>> check_order(Feistel(1000, seed=3))
    """
    n = len(index_map)
    rng = np.random.default_rng(seed)
    i = np.arange(n) if n <= sample else np.unique(rng.integers(0, n, sample))
    rows = index_map(i)
    assert (rows.dtype, rows.shape) == (np.int64, i.shape)
    assert rows.size == 0 or (rows.min() >= 0 and rows.max() < index_map.rows), "row out of range"
    if index_map.bijective:
        assert np.unique(rows).size == rows.size, "two positions share a row"
        assert n > sample or np.array_equal(np.sort(rows), np.arange(index_map.rows)), (
            "a row is missing"
        )
    few = i[rng.integers(0, i.size, min(i.size, 20))] if i.size else i
    one_by_one = np.array([index_map(np.array([j]))[0] for j in few], np.int64)
    assert np.array_equal(index_map(few), one_by_one), "batched differs from one by one"
    locality = index_map.locality(i)
    assert locality.shape == i.shape
    assert i.size == 0 or (locality.min() >= 0 and locality.max() < 1), "locality outside [0, 1)"
