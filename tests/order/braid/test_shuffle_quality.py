"""Braids mix like a full shuffle, at the default budget and far from it."""

import numpy as np
import pytest

from headrace.analysis.icc import variance_ratio
from headrace.order.braid import BraidShuffle


@pytest.mark.parametrize("batch", [128, 1024])
@pytest.mark.parametrize("block", [16, 128])
def test_quality_at_the_default_budget(batch: int, block: int) -> None:
    n = 1 << 20
    m = BraidShuffle(n, io_block_size=block, strands=8 * batch, lap=batch, seed=0)
    order = m(np.arange(n))
    for unit in (block, 128):
        assert variance_ratio(order, batch, unit) <= 1.05
        assert variance_ratio(order, 8 * batch, unit) <= 1.1


def test_quality_with_other_strands_and_an_awkward_length() -> None:
    n = 300_007
    for strands, lap in (
        (1000, 1000),
        (1009, 1009),
        (960, 120),
        (964, 120.4),
        (512, 120.4),
    ):  # the last: long strands
        order = BraidShuffle(n, io_block_size=24, strands=strands, lap=lap, seed=0)(np.arange(n))
        assert variance_ratio(order, 120, 24) <= 1.05
        assert variance_ratio(order, strands, 24) <= 1.1


@pytest.mark.parametrize(
    ("n", "block", "strands", "lap"),
    [
        (1 << 18, 128, 8192, 256),
        (20_000, 128, 1024, 128),
        (1500, 128, 1024, 128),
        (1000, 128, 640, 91.3),
        (700, 32, 512, 512),
    ],
)
def test_quality_where_strands_are_shorter_than_blocks(
    n: int, block: int, strands: int, lap: float
) -> None:
    """Several strands share a block: they are drawn as far apart as can be, also in the last,
    partial lap.
    """
    order = BraidShuffle(n, io_block_size=block, strands=strands, lap=lap, seed=0)(np.arange(n))
    for window in (int(lap) // 4, int(lap), 2 * int(lap)):
        if window <= n // 2:
            assert variance_ratio(order, window, block) <= 1.05


def test_neighbours_in_a_block_are_drawn_apart() -> None:
    """Documents of 4 rows in blocks of 64: fewer rows of one document in 16 rounds than a random
    order would have.
    """
    n = 1 << 18
    order = BraidShuffle(n, io_block_size=64, strands=256, seed=0)(np.arange(n))
    # of the 63 others of its block, 15 are among the next 16 of a strand, and 3 are of its document
    together = variance_ratio(order, 16 * 256, 4) - 1
    assert together < 0.9 * (3 * 15 / 63)


def test_it_looks_like_a_full_shuffle_from_afar() -> None:
    from scipy import stats  # a second of CPU, and each process that collects would spend it

    for seed in range(4):
        order = BraidShuffle(100_003, io_block_size=50, strands=512, lap=64, seed=seed)(
            np.arange(100_003)
        )
        place = np.arange(order.size)
        block = order // 50
        assert np.abs(order - place).mean() / order.size == pytest.approx(1 / 3, abs=0.01)
        assert abs(np.asarray(stats.kendalltau(place, order))[0]) < 0.03  # inversions
        assert abs(np.asarray(stats.spearmanr(place, order))[0]) < 0.05
        assert (block[1:] == block[:-1]).mean() < 0.001
