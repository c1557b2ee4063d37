"""Compiled braids: many in one call, from several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.braid import LAP_BITS, BraidShuffle, BraidSpec, BraidTable, braid_spec
from headrace.order.order import MAX_LENGTH


def check_equal(
    spec: BraidSpec,
    component: np.ndarray,
    ordinal: np.ndarray,
    first_epoch: np.ndarray | None = None,
):
    """Draws of many braids are those of each alone, which test_shuffle.py compares with the
    definition.
    """
    rows, localities = BraidTable(spec)(component, ordinal, first_epoch)
    for number in np.unique(component).tolist():
        some = component == number
        alone = BraidTable(BraidSpec(*(field[[number]] for field in spec)))
        epoch = None if first_epoch is None else first_epoch[some]
        expected = alone(None, ordinal[some], epoch)
        np.testing.assert_array_equal(rows[some], expected[0])
        np.testing.assert_array_equal(localities[some], expected[1])


@st.composite
def braids(draw: st.DrawFn) -> dict[str, int | float]:
    n = draw(st.one_of(st.integers(1, 200), st.integers(1, 10**6), st.integers(1, MAX_LENGTH)))
    strands = draw(st.integers(1, min(n, draw(st.sampled_from([4, 500, 1 << 22])))))
    lap = draw(st.one_of(st.just(float(strands)), st.floats(2.0**-LAP_BITS, strands)))
    if lap == int(lap) and strands % int(lap):
        lap = float(strands)
    block = draw(st.one_of(st.integers(1, 80), st.integers(1, 1 << 31)))
    key = draw(st.integers(0, (1 << 64) - 1))
    first = draw(st.integers(0, 1 << 22))
    names = ("n", "io_block_size", "strands", "lap", "key", "first_strand")
    return dict(zip(names, (n, block, strands, lap, key, first), strict=True))


@given(st.lists(braids(), min_size=1, max_size=5), st.integers(0, 300), st.data())
def test_rows_of_any_braids_in_any_order(
    parameters: list[dict[str, int | float]], count: int, data: st.DataObject
):
    keys = np.array([one.pop("key") for one in parameters], np.uint64)
    spec = braid_spec(
        **{name: np.array([one[name] for one in parameters]) for name in parameters[0]}, key=keys
    )
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    component = random.integers(0, len(parameters), count)
    n = spec.n.astype(np.int64)[component]
    anywhere = random.integers(0, np.minimum(n, 1 << 60) * 3, count)
    late = np.maximum(
        n - 1 - random.integers(0, 40, count), 0
    )  # the last draws of an epoch have rules of their own
    ordinal = np.where(random.random(count) < 0.5, anywhere, late)
    first_epoch = random.integers(0, 5, count) if data.draw(st.booleans()) else None
    check_equal(spec, component, ordinal, first_epoch)


def some_spec(count: int = 200, rows: int = 10_000) -> BraidSpec:
    numbers = np.arange(count)
    return braid_spec(
        rows + numbers,
        io_block_size=16,
        strands=8,
        lap=1.7,
        key=numbers.astype(np.uint64),
        first_strand=8 * numbers,
    )


@pytest.mark.parametrize("count", [1, 100, 8192, 20_000])
def test_a_window_of_200_components(count: int):
    k = np.arange(count)
    check_equal(some_spec(), k % 200, 9_000 + k // 200)


def test_a_whole_epoch_and_the_next_one_are_permutations():
    shuffle = BraidShuffle(10_007, io_block_size=32, strands=100, lap=7.3, seed=1)
    rows = BraidTable(shuffle._spec)(None, np.arange(2 * 10_007), None)[0].reshape(2, -1)
    assert np.array_equal(np.sort(rows, axis=1), np.tile(np.arange(10_007), (2, 1)))
    assert not np.array_equal(*rows)


def test_threads_do_not_disturb_each_other():
    spec = some_spec()
    k = np.arange(40_000)
    table = BraidTable(spec)
    alone = [table((k + shift) % 200, k * 7, None)[0] for shift in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = list(
            threads.map(lambda shift: table((k + shift) % 200, k * 7, None)[0], range(4))
        )
    assert all(map(np.array_equal, alone, together))


def test_many_components_share_what_is_kept_of_epochs():
    spec = some_spec(5000, 100)
    k = np.random.default_rng(0).integers(0, 5000, 3000)
    check_equal(spec, k, np.arange(3000))
    check_equal(spec, k[:1], np.arange(1))


def test_shapes_are_broadcast_and_components_checked():
    shuffle = BraidShuffle(1000, io_block_size=16, strands=8, seed=0)
    table = BraidTable(some_spec(2, 1000))
    one = BraidTable(shuffle._spec)(None, np.arange(12), np.array([3]))
    assert np.array_equal(one[0], shuffle.at(np.arange(12), np.full(12, 3)))
    square = BraidTable(shuffle._spec)(None, np.arange(12).reshape(3, 4), None)
    assert np.array_equal(square[0], shuffle(np.arange(12)).reshape(3, 4))
    same = table(np.array([1]), np.arange(12), None)
    assert np.array_equal(same[0], table(np.full(12, 1), np.arange(12), None)[0])
    assert table(np.zeros(0, np.int32), np.zeros(0, np.int64), None)[0].shape == (0,)
    for component in (-1, 2, 10**9):
        with pytest.raises(IndexError, match="of 2"):
            table(np.array([0, component]), np.arange(2), None)


def test_an_empty_braid_divides_by_nothing():
    shuffle = BraidShuffle(0, io_block_size=4, strands=1, seed=0)
    assert shuffle(np.zeros(0, np.int64)).size == 0
    with pytest.raises(IndexError):
        shuffle.at(np.zeros(1, np.int64), np.zeros(1, np.int64))
