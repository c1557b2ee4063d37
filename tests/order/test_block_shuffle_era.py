"""Era shuffle: every era is permuted within itself, the last may be short."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.block_shuffle import EraShuffle

FAMILIES = ["feistel", "linear"]


@pytest.mark.parametrize("perm_type", FAMILIES)
@pytest.mark.parametrize("era_length", [1, 2, 7, 64, 100, 299, 300, 1000])
def test_bijection_for_every_short_length(era_length, perm_type):
    for n in range(301):
        m = EraShuffle(n, era_length=era_length, seed=n, perm_type=perm_type)
        assert np.array_equal(np.sort(m(np.arange(n))), np.arange(n)), n


def test_in_range_and_injective_on_long_lengths():
    rng = np.random.default_rng(0)
    for n in [(1 << k) + d for k in (16, 31, 32, 40, 53, 61) for d in (-1, 0, 1)] + [1 << 62]:
        i = np.unique(np.concatenate([rng.integers(0, n, 2000), [0, n - 1]]))
        for era_length in (10_000, 1 << 33):
            image = EraShuffle(n, era_length=era_length, seed=1)(i)
            assert np.unique(image).size == i.size
            assert np.array_equal(image // era_length, i // era_length)
            assert image.min() >= 0
            assert image.max() < n


@given(
    n=st.integers(1, 3000),
    era_length=st.integers(1, 200),
    seed=st.integers(0, 9),
    perm_type=st.sampled_from(FAMILIES),
    data=st.data(),
)
def test_eras_stay_apart_and_batched_equals_one_by_one(n, era_length, seed, perm_type, data):
    m = EraShuffle(n, era_length=era_length, seed=seed, perm_type=perm_type)
    rows = m(np.arange(n))
    assert np.array_equal(np.sort(rows), np.arange(n))
    assert np.array_equal(rows // era_length, np.arange(n) // era_length)
    i = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=10)), np.int64)
    epoch = np.array(
        data.draw(st.lists(st.integers(0, 5), min_size=i.size, max_size=i.size)), np.int64
    )
    assert m.at(i, epoch).tolist() == [
        int(m.at(i[k : k + 1], epoch[k : k + 1])[0]) for k in range(i.size)
    ]


def test_every_epoch_seed_and_era_has_its_own_order():
    def order(seed: int, epoch: int) -> np.ndarray:
        return EraShuffle(1000, era_length=50, seed=seed).at(np.arange(1000), np.full(1000, epoch))

    orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1)]
    for k, one in enumerate(orders):
        for other in orders[:k]:
            assert (one == other).mean() < 0.05
    assert len({tuple(one % 50) for one in orders[0].reshape(20, 50)}) == 20


def test_pinned_orders():
    """Changing one is a release note and a new ORDER_VERSION."""
    pinned = {
        "feistel": [0, 3, 1, 2, 4, 6, 7, 9, 8, 5, 10, 12, 11],
        "linear": [2, 4, 1, 0, 3, 8, 5, 9, 7, 6, 11, 12, 10],
    }
    for perm_type, order in pinned.items():
        assert (
            EraShuffle(13, era_length=5, seed=0, perm_type=perm_type)(np.arange(13)).tolist()
            == order
        )


@pytest.mark.parametrize(
    "bad", [{"era_length": 0}, {"era_length": -1}, {"perm_type": "x"}, {"seed": 1.5}]
)
def test_bad_arguments(bad):
    with pytest.raises(ConfigError) as caught:
        EraShuffle(10, **({"era_length": 2, "seed": 0} | bad))
    assert caught.value.field == next(iter(bad))
