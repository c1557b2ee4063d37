"""The test doubles do what they say: users' tests rely on them, and so do ours."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.order import Order
from headrace.order.order import Identity
from headrace.order.permutation import Feistel
from headrace.store import open_cache
from headrace.testing import tiny_cache
from headrace.testing.caches import (
    CountingArray,
    SlowArray,
    check_order,
    random_documents,
    with_arrays,
)


def test_tiny_caches_are_finished_and_alike(tmp_path):
    one = tiny_cache(documents=20, parts=3)
    other = tiny_cache(tmp_path / "c", documents=20, parts=3)
    assert Path(one.path).is_dir()
    assert one.fingerprint == other.fingerprint == open_cache(tmp_path / "c").fingerprint
    assert one.num_documents == 20
    assert len(one.parts) == 3
    assert tiny_cache(documents=20, seed=1).fingerprint != one.fingerprint


def test_random_documents_include_empty_ones():
    documents = random_documents(200, vocab_size=8, max_tokens=3)
    assert {d.size for d in documents} == {1, 2, 3, 4}
    assert all(d[-1] == 7 and (d[:-1] < 7).all() for d in documents)


def test_counting_arrays_count(tmp_path):
    cache = with_arrays(tiny_cache(tmp_path), CountingArray)
    array = cache.parts[0].data
    assert isinstance(array, CountingArray)
    array.read(0, 10).result()
    array.read_into(np.empty(5, np.uint8), 3).result()
    assert (array.reads, array.elements) == (2, 15)


async def _wait(future):
    return await future


class Clock:
    """Stands in for the module ``time``: stands still, and goes on when somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_slow_arrays_are_slow_together(tmp_path, monkeypatch):
    cache = tiny_cache(tmp_path)
    clock = Clock()
    monkeypatch.setattr("headrace.testing.caches.time", clock)
    slow = (
        with_arrays(cache, lambda url, length, layout: SlowArray(url, length, layout, 0.1))
        .parts[0]
        .data
    )
    futures = [slow.read(k, k + 1) for k in range(10)]
    found = [f.result() for f in futures]
    assert clock.now == pytest.approx(100.1)
    assert np.concatenate(found).tolist() == cache.tokens(0, 10).tolist()
    started = time.perf_counter()
    assert asyncio.run(_wait(slow.read(0, 3))).tolist() == cache.tokens(0, 3).tolist()
    assert time.perf_counter() - started >= 0.1
    late = slow.read(0, 3)
    with pytest.raises(TimeoutError):
        late.result(timeout=0.01)
    assert clock.now == pytest.approx(100.11)


class Broken(Order):
    """A map with one fault."""

    def __init__(self, fault):
        super().__init__(50, 50)
        self.fault = fault
        self.bijective = True

    def at(self, i, epoch):
        if self.fault == "dtype":
            return i.astype(np.int32)
        if self.fault == "range":
            return i + 1
        if self.fault == "bijection":
            return np.where(i == 7, 8, i)
        return (i + 1) % 50 if self.fault == "batch" and i.size > 1 else i

    def resolve(self, i, epoch):
        return self.at(i, epoch), np.ones(i.size) if self.fault == "locality" else np.zeros(i.size)


def test_the_check_of_index_maps_can_fail():
    check_order(Identity(0))
    check_order(Feistel(20_000, 1), sample=500)
    check_order(Broken(None))
    for fault in ("dtype", "range", "bijection", "batch", "locality"):
        with pytest.raises(AssertionError):
            check_order(Broken(fault))
