"""Braids read smoothly: evenly spread cells, each host its own blocks, no bursts."""

import math

import numpy as np
import pytest

from headrace.order.braid import BraidShuffle, lattice_step


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 10, 64, 97, 142, 512, 1000, 1024, 4096, 5040])
def test_lattice_spreads_every_run(m: int) -> None:
    """Of any run of w draws, a stretch of x * m cells gets x * w, give or take a few."""
    g = lattice_step(m)
    assert math.gcd(g, m) == 1
    points = np.arange(2 * m) * g % m
    for w in {w for w in (1, 2, 3, m // 7, m // 3, m // 2, m - 1) if 1 <= w <= m}:
        for start in (0, m // 9, m // 5, m // 2):
            run = np.sort(points[start : start + w])
            # star discrepancy in draws: counts below each point against its share
            off = np.abs(np.arange(1, w + 1) - (run + 0.5) / m * w).max(initial=0.0)
            assert off <= 1.0 + 0.35 * math.log(m + 1)


def test_each_host_reads_its_own_blocks() -> None:
    """Rows of a batch stay on their hosts: each block is read by one, but for those at the borders
    of strands.
    """
    n = 64 * 64 * 32
    block = 32
    strands = 64
    hosts = 8
    m = BraidShuffle(n + 5, io_block_size=block, strands=strands, seed=3)
    i = np.arange(n)
    rows = m(i)
    where = m.locality(i)
    order = np.argsort((i // 64) + where, kind="stable")
    host = (np.arange(n) % 64) * hosts // 64
    pairs = np.unique(rows[order] // block * hosts + host)
    assert len(pairs) / (n / block) < 1.02


def test_blocks_change_evenly() -> None:
    """In each round, about strands / block strands go on to their next block; never all at once."""
    for n in (256 * 64 * 64, 256 * 64 * 64 + 17, 256 * 64 * 65 - 100):
        m = BraidShuffle(n, io_block_size=64, strands=256, seed=1)
        i = np.arange(n // 256 * 256)
        block = m(i) // 64
        strand = (m.locality(i) * 256).astype(int)  # laps of one draw for each strand
        by_strand = block[np.argsort(strand, kind="stable")].reshape(256, -1)
        changes = (np.diff(by_strand, axis=1) != 0).sum(0)
        assert changes.mean() == pytest.approx(256 / 64, rel=0.1)
        assert changes[:-1].max() <= 3 * 256 / 64
