"""Stored arrays that count and delay their reads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.store.array import ArrayFuture, StoredArray
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout


def with_arrays(cache: TokenCache, make: Callable[[str, int, CacheLayout], StoredArray]) -> TokenCache:
    """The same cache, its tokens read through arrays that ``make(url, length, layout)`` gives.

    Example:
        >>> from headrace.testing import tiny_cache
        >>> counted = with_arrays(tiny_cache(), CountingArray)
        >>> _ = counted.tokens(0, 10)
        >>> counted.parts[0].data.reads
        1
    """
    seen = TokenCache(cache.path, cache.ledger)
    seen.parts = tuple(replace(p, data=make(p.data.url, p.data.length, p.data.layout)) for p in cache.parts)
    return seen


class CountingArray(StoredArray):
    """A stored array that counts its reads and the elements read."""

    def __init__(self, url: str, length: int, layout: CacheLayout) -> None:
        super().__init__(url, length, layout)
        self.reads = 0
        self.elements = 0
        self._count_lock = threading.Lock()

    def _count(self, elements: int) -> None:
        with self._count_lock:
            self.reads += 1
            self.elements += elements

    def read(self, start: int, stop: int) -> ArrayFuture:
        self._count(stop - start)
        return super().read(start, stop)

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        self._count(out.size)
        return super().read_into(out, start)


class SlowArray(CountingArray):
    """A stored array whose answers arrive ``latency_s`` after they were asked for; reads in flight overlap."""

    def __init__(self, url: str, length: int, layout: CacheLayout, latency_s: float = 0.03) -> None:
        super().__init__(url, length, layout)
        self.latency_s = latency_s

    def read(self, start: int, stop: int) -> ArrayFuture:
        return _Delayed(super().read(start, stop), time.perf_counter() + self.latency_s)

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        return _Delayed(super().read_into(out, start), time.perf_counter() + self.latency_s)


class _Delayed:
    def __init__(self, future: ArrayFuture, ready_at: float) -> None:
        self._future, self._ready_at = future, ready_at

    def result(self, timeout: float | None = None) -> np.ndarray:
        left = self._ready_at - time.perf_counter()
        if timeout is not None and left > timeout:
            time.sleep(timeout)
            raise TimeoutError
        time.sleep(max(left, 0))
        return self._future.result(timeout)

    def __await__(self) -> Generator[Any, None, np.ndarray]:
        yield from asyncio.sleep(max(self._ready_at - time.perf_counter(), 0)).__await__()
        return (yield from self._future.__await__())
