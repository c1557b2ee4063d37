"""Checks of what others wrote against the promises of headrace's interfaces."""

from __future__ import annotations

import numpy as np

from headrace.index.remap import IndexMap


def check_index_map(index_map: IndexMap, *, sample: int = 10_000, seed: int = 0) -> None:
    """Raises AssertionError unless the map keeps its promises: range, bijection, batched equals one by one, locality.

    Maps of more than ``sample`` positions are checked on a random sample.

    Example:
        >>> from headrace.index.permutation import Feistel
        >>> check_index_map(Feistel(1000, seed=3))
    """
    n = len(index_map)
    rng = np.random.default_rng(seed)
    i = np.arange(n) if n <= sample else np.unique(rng.integers(0, n, sample))
    rows = index_map(i)
    assert (rows.dtype, rows.shape) == (np.int64, i.shape)
    assert rows.size == 0 or (rows.min() >= 0 and rows.max() < index_map.rows), "row out of range"
    if index_map.bijective:
        assert np.unique(rows).size == rows.size, "two positions share a row"
        assert n > sample or np.array_equal(np.sort(rows), np.arange(index_map.rows)), "a row is missing"
    few = i[rng.integers(0, i.size, min(i.size, 20))] if i.size else i
    one_by_one = np.array([index_map(np.array([j]))[0] for j in few], np.int64)
    assert np.array_equal(index_map(few), one_by_one), "batched differs from one by one"
    locality = index_map.locality(i)
    assert locality.shape == i.shape
    assert i.size == 0 or (locality.min() >= 0 and locality.max() < 1), "locality outside [0, 1)"
