"""Block shuffle: a bijection whose windows read whole blocks, each block once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.block_shuffle import BlockShuffle

SHAPES = [(1, 1), (1, 4), (3, 1), (4, 3), (7, 2), (16, 16), (300, 2), (1000, 1)]
shapes = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3000),
        "io_block_size": st.integers(1, 100),
        "window_blocks": st.integers(1, 40),
        "seed": st.integers(0, 9),
        "perm_type": st.sampled_from(["feistel", "linear"]),
    }
)


@pytest.mark.parametrize(("block", "window"), SHAPES)
@pytest.mark.parametrize("perm_type", ["feistel", "linear"])
def test_bijection_for_every_short_length(block, window, perm_type):
    for n in range(301):
        m = BlockShuffle(n, io_block_size=block, window_blocks=window, seed=n, perm_type=perm_type)
        assert np.array_equal(np.sort(m(np.arange(n))), np.arange(n)), n


def test_in_range_and_injective_on_long_lengths():
    rng = np.random.default_rng(0)
    for n in [(1 << k) + d for k in (16, 31, 32, 40, 53, 61) for d in (-1, 0, 1)] + [1 << 62]:
        i = np.unique(np.concatenate([rng.integers(0, n, 2000), [0, n - 1]]))
        for block, window in ((16, 8192), (256, 512), (1 << 20, 3)):
            image = BlockShuffle(n, io_block_size=block, window_blocks=window, seed=1)(i)
            assert np.unique(image).size == i.size
            assert image.min() >= 0
            assert image.max() < n


@given(shapes)
def test_windows_take_whole_blocks_and_the_tail_stays_last(arguments):
    m = BlockShuffle(**arguments)
    n = arguments["n"]
    size = arguments["io_block_size"]
    window = arguments["window_blocks"]
    rows = m(np.arange(n))
    blocks = n // size
    assert np.array_equal(np.sort(rows[blocks * size :]), np.arange(blocks * size, n))
    seen: set[int] = set()
    for start in range(0, blocks, window):
        stop = min(start + window, blocks)
        of_window, counts = np.unique(rows[start * size : stop * size] // size, return_counts=True)
        assert of_window.size == stop - start
        assert (counts == size).all()
        assert seen.isdisjoint(of_window.tolist())
        seen.update(of_window.tolist())
    assert seen == set(range(blocks))


@given(shapes, st.data())
def test_batched_equals_one_by_one(arguments, data):
    m = BlockShuffle(**arguments)
    i = np.array(data.draw(st.lists(st.integers(0, len(m) - 1), max_size=10)), np.int64)
    epoch = np.array(
        data.draw(st.lists(st.integers(0, 5), min_size=i.size, max_size=i.size)), np.int64
    )
    assert m.at(i, epoch).tolist() == [
        int(m.at(i[k : k + 1], epoch[k : k + 1])[0]) for k in range(i.size)
    ]


def test_every_epoch_seed_and_window_has_its_own_order():
    def order(seed: int, epoch: int) -> np.ndarray:
        m = BlockShuffle(1003, io_block_size=10, window_blocks=5, seed=seed)
        return m.at(np.arange(1003), np.full(1003, epoch))

    orders = [order(0, 0), order(0, 1), order(0, 2), order(1, 0), order(1, 1)]
    for k, one in enumerate(orders):
        assert np.array_equal(np.sort(one), np.arange(1003))
        for other in orders[:k]:
            assert (one == other).mean() < 0.05
            assert set(one[:50] // 10) != set(other[:50] // 10)  # other blocks in the first window
    inner = [tuple(one % 10) for one in orders[0][:1000].reshape(20, 50)]
    assert len(set(inner)) == 20


def test_windows_of_one_block_keep_blocks_together():
    rows = BlockShuffle(100, io_block_size=10, window_blocks=1, seed=0)(np.arange(100))
    assert (np.ptp(rows.reshape(10, 10) // 10, axis=1) == 0).all()


def test_one_window_over_everything_is_a_full_shuffle():
    rows = BlockShuffle(4096, io_block_size=16, window_blocks=256, seed=0)(np.arange(4096))
    same_block = (rows[:-1] // 16 == rows[1:] // 16).mean()
    assert same_block < 3 * 15 / 4095


def test_locality_lies_in_the_unit_interval():
    m = BlockShuffle(1003, io_block_size=10, window_blocks=5, seed=0)
    locality = m.locality(np.arange(1003))
    assert locality.min() >= 0
    assert locality.max() < 1
    assert np.array_equal(locality, m(np.arange(1003)) / 1003)


def test_pinned_orders():
    """Changing one is a release note and a new ORDER_VERSION."""
    pinned = {
        "feistel": "5 8 22 23 20 6 9 10 7 11 21 4 12 2 24 13 14 15 1 0 3 26 25 27 16 19 17 18 28",
        "linear": "13 22 15 2 1 20 3 12 21 14 23 0 11 8 26 18 27 24 9 17 19 16 25 10 7 4 5 6 28",
    }
    for perm_type, order in pinned.items():
        m = BlockShuffle(29, io_block_size=4, window_blocks=3, seed=0, perm_type=perm_type)
        assert m(np.arange(29)).tolist() == [int(row) for row in order.split()]
    second = BlockShuffle(10, io_block_size=3, window_blocks=2, seed=3).at(
        np.arange(10), np.ones(10, np.int64)
    )
    assert second.tolist() == [1, 0, 2, 4, 3, 5, 7, 8, 6, 9]


@pytest.mark.parametrize(
    "bad",
    [
        {"io_block_size": 0},
        {"window_blocks": 0},
        {"window_blocks": -3},
        {"perm_type": "x"},
        {"seed": "x"},
    ],
)
def test_bad_arguments(bad):
    with pytest.raises(ConfigError) as caught:
        BlockShuffle(10, **({"io_block_size": 2, "window_blocks": 2, "seed": 0} | bad))
    assert caught.value.field == next(iter(bad))
