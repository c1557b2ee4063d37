"""Cuts and joins of index maps: Python's own slicing is the oracle; bounds are
checked at the door.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.order import Order
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.compose import Compose, FixedSet, window_of_part
from headrace.order.order import MAX_LENGTH, Identity, OpenWindow, Repeat, Slice, check_indices
from headrace.order.permutation import Feistel

ends = st.none() | st.integers(-50, 50)


def table(m: Order) -> list[int]:
    return m(np.arange(len(m))).tolist()


def passes_over(order: Order, epochs: int) -> np.ndarray:
    """The rows of passes over an order, ``[epochs, length]``."""
    epoch, place = np.divmod(np.arange(epochs * len(order)), len(order))
    return order.at(place, epoch).reshape(epochs, -1)


@given(n=st.integers(0, 40), start=ends, stop=ends)
def test_slices_are_those_of_python(n, start, stop):
    assert table(Slice(n, start, stop)) == list(range(n))[start:stop]


def test_slices_and_repeats_for_every_short_length():
    for n in range(1, 301):
        base = Feistel(n, 1)
        assert (
            table(Compose(base, Slice(n, n // 3, n // 2 + 1))) == table(base)[n // 3 : n // 2 + 1]
        )
        passes = passes_over(base, 3)
        assert np.array_equal(np.sort(passes, axis=1), np.tile(np.arange(n), (3, 1)))
        assert passes[0].tolist() == table(base)


def test_composed_shuffles_are_bijections_for_every_short_length():
    for n in range(301):
        m = Compose(BlockShuffle(n, io_block_size=7, window_blocks=3, seed=1), Feistel(n, 2))
        assert sorted(table(m)) == list(range(n))


@given(n=st.integers(1, 200), seed=st.integers(0, 5), start=ends, stop=ends)
def test_compose_is_function_composition(n, seed, start, stop):
    outer = EraShuffle(n, era_length=9, seed=seed)
    inner = Slice(n, start, stop)
    m = Compose(outer, inner)
    assert len(m) == len(inner)
    assert m.rows == n
    assert table(m) == outer(inner(np.arange(len(inner)))).tolist()


def test_compose_passes_the_epoch_to_both():
    outer = Feistel(60, 1)
    inner = Feistel(60, 2)
    i = np.arange(60)
    epoch = np.full(60, 3)
    assert np.array_equal(Compose(outer, inner).at(i, epoch), outer.at(inner.at(i, epoch), epoch))


def test_compose_refuses_rows_that_are_not_there():
    with pytest.raises(
        ConfigError, match=r"names up to 11 rows, but the outer map has 10"
    ) as caught:
        Compose(Identity(10), Identity(11))
    assert caught.value.field == "inner"
    assert len(Compose(Identity(10), Identity(3))) == 3


@given(
    n=st.integers(1, 60),
    epochs=st.none() | st.integers(1, 9),
    picks=st.lists(st.integers(0, 9 * 60), max_size=10),
)
def test_repeat_counts_passes(n, epochs, picks):
    m = Repeat(n, epochs)
    i = np.array([p for p in picks if p < len(m)], np.int64)
    assert m(i).tolist() == [p % n for p in i.tolist()]
    for epoch in (0, 2):
        numbers = [p // n + epoch * (epochs or 0) for p in i.tolist()]
        assert m.pass_of(i, np.full_like(i, epoch)).tolist() == numbers


def test_repeat_makes_every_pass_another_order():
    passes = passes_over(Feistel(200, 0), 5)
    assert len({tuple(p) for p in passes.tolist()}) == 5
    assert np.array_equal(np.sort(passes, axis=1), np.tile(np.arange(200), (5, 1)))


def test_repeat_without_end_counts_as_far_as_indices_do():
    m = Repeat(1000)
    assert len(m) == MAX_LENGTH == 2**62
    assert 0 <= int(m(np.array([2**62 - 1]))[0]) < 1000
    assert len(Repeat(2**61, 9)) == MAX_LENGTH


def test_pinned_repeats():
    """Changing one is a release note and a new ORDER_VERSION."""
    assert passes_over(Feistel(6, 3), 3).ravel().tolist() == [
        5,
        3,
        0,
        2,
        1,
        4,
        3,
        0,
        1,
        2,
        5,
        4,
        2,
        5,
        1,
        0,
        4,
        3,
    ]
    shuffle = BlockShuffle(10, io_block_size=3, window_blocks=2, seed=3)
    assert passes_over(shuffle, 2).ravel().tolist() == [
        1,
        4,
        5,
        0,
        3,
        2,
        8,
        7,
        6,
        9,
        1,
        0,
        2,
        4,
        3,
        5,
        7,
        8,
        6,
        9,
    ]


@pytest.mark.parametrize(("epochs", "n"), [(0, 3), (-1, 3), (2, 0)])
def test_bad_repeats(epochs, n):
    with pytest.raises(ConfigError):
        Repeat(n, epochs)


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_lengths_have_limits(n):
    with pytest.raises(ConfigError, match="must lie in"):
        Identity(n)


@pytest.mark.parametrize(
    "indices",
    [
        [-1],
        [10],
        [0, 1, 99],
        np.array([2**63], np.uint64),
        [0.5],
        [True],
        [[0, 1]],
        np.array(3),
        ["1"],
    ],
    ids=str,
)
def test_indices_are_checked_at_the_door(indices):
    with pytest.raises(IndexOutOfRangeError):
        check_indices(indices, 10)
    with pytest.raises(IndexError):  # what a caller who does not know headrace would catch
        Identity(10)(np.asarray(indices))


def test_the_message_names_the_index_and_the_length():
    with pytest.raises(IndexOutOfRangeError, match=r"index = 12: is outside the length of 10"):
        Feistel(10, 0)(np.array([3, 12]))
    with pytest.raises(IndexOutOfRangeError, match=r"index = -1"):
        check_indices([3, -1], None)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_every_integer_dtype_is_taken(dtype):
    rows = Feistel(100, 0)(np.arange(100, dtype=dtype))
    assert rows.dtype == np.int64
    assert np.array_equal(rows, Feistel(100, 0)(np.arange(100)))


def test_no_indices_give_no_rows():
    for m in (
        Identity(0),
        Identity(3),
        Feistel(0, 0),
        Feistel(3, 0),
        Slice(3, 2, 1),
        Repeat(3),
    ):
        rows = m(np.zeros(0, np.int64))
        assert rows.dtype == np.int64
        assert rows.size == 0
    assert check_indices([], 0).dtype == np.int64


def test_locality_is_that_of_the_shuffle():
    i = np.arange(100)
    shuffle = Feistel(100, 1)
    assert np.array_equal(shuffle.locality(i), shuffle(i) / 100)


@given(
    n=st.integers(1, 300),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_resolve_is_rows_and_locality_at_once(n, seed, data):
    for m in (BlockShuffle(n, io_block_size=5, window_blocks=3, seed=seed), Feistel(n, 1)):
        size = data.draw(st.integers(0, min(len(m), 8)))
        i = np.array(
            data.draw(st.lists(st.integers(0, max(len(m) - 1, 0)), min_size=size, max_size=size)),
            np.int64,
        )
        epoch = np.arange(i.size)
        rows, locality = m.resolve(i, epoch)
        assert np.array_equal(rows, m.at(i, epoch))
        assert np.array_equal(locality, m.locality(i, epoch))
        assert ((locality >= 0) & (locality < 1)).all()


def test_maps_that_differ_describe_themselves_differently():
    blocks = {"io_block_size": 4, "window_blocks": 3, "seed": 0}
    maps = [
        Identity(40),
        Identity(41),
        Slice(40, 2, 9),
        Slice(40, 3, 9),
        Slice(40, 3, 10),
        *(
            Feistel(n, seed, family)
            for n in (40, 41)
            for seed in (0, 1)
            for family in ("feistel", "linear")
        ),
        *(
            EraShuffle(40, era_length=e, seed=s, perm_type=t)
            for e in (4, 5)
            for s in (0, 1)
            for t in ("feistel", "linear")
        ),
        BlockShuffle(40, **blocks),
        BlockShuffle(41, **blocks),
        *(BlockShuffle(40, **(blocks | {name: 2})) for name in blocks),
        BlockShuffle(40, **blocks, perm_type="linear"),
        *(Repeat(n, epochs) for n in (40, 41) for epochs in (None, 1, 2)),
        Compose(Feistel(40, 0), Slice(40, 3)),
        Compose(Feistel(40, 1), Slice(40, 3)),
        Compose(Feistel(40, 0), Slice(40, 4)),
        Compose(Identity(40), Compose(Feistel(40, 0), Slice(40, 3))),
    ]
    described = [json.dumps(m.describe(), sort_keys=True) for m in maps]
    assert len(set(described)) == len(maps)
    assert described[0] == json.dumps(Identity(40).describe(), sort_keys=True)


def test_maps_are_complete_and_abstract_or_final():
    with pytest.raises(TypeError):
        Order(3, 3)  # pyright: ignore[reportAbstractUsage]
    assert Slice(10, 2, 5).rows == 10
    assert [m.reorders for m in (Identity(3), Slice(3), Feistel(3, 0), Repeat(3))] == [
        0,
        0,
        1,
        0,
    ]


SHUFFLES = [
    (Feistel(90, 0), "full", OpenWindow(rows=90)),
    (EraShuffle(90, era_length=40, seed=0), "era", OpenWindow(rows=40)),
    (EraShuffle(30, era_length=40, seed=0), "era", OpenWindow(rows=30)),
    (
        BlockShuffle(90, io_block_size=4, window_blocks=3, seed=0, held_windows=2),
        "block",
        OpenWindow(3, 12, 2),
    ),
    (BlockShuffle(90, io_block_size=4, window_blocks=40, seed=0), "block", OpenWindow(40, 90)),
    (BraidShuffle(90, io_block_size=4, strands=5, seed=0), "braid", OpenWindow(5, 20)),
]


@pytest.mark.parametrize(("order", "kind", "window"), SHUFFLES)
def test_shuffles_say_what_they_are(order, kind, window):
    assert (order.kind, order.reorders, order.open_window()) == (kind, True, window)


def selected(shuffle: Order, part: Order, epoch: int) -> np.ndarray:
    """The rows of an epoch of what a part selects from a shuffle."""
    epochs = np.full(len(part), epoch)
    chosen = FixedSet(part, shuffle.open_window().rows).at(np.arange(len(part)), epochs)
    return shuffle.at(chosen, np.zeros_like(epochs))


@given(n=st.integers(1, 60), data=st.data())
def test_a_selection_from_a_shuffle_is_the_same_in_every_epoch(n, data):
    block = data.draw(st.integers(1, 7))
    outer = data.draw(
        st.sampled_from(
            [
                Feistel(n, 1),
                EraShuffle(n, era_length=block, seed=1),
                BlockShuffle(n, io_block_size=block, window_blocks=2, seed=1),
                BraidShuffle(n, io_block_size=block, strands=min(3, n), seed=1),
            ]
        )
    )
    inner = data.draw(
        st.sampled_from(
            [
                Slice(n, data.draw(ends), data.draw(ends)),
                Identity(data.draw(st.integers(0, n))),
                Feistel(data.draw(st.integers(0, n)), 2),
                Compose(Feistel(n, 2), Slice(n, data.draw(ends), data.draw(ends))),
            ]
        )
    )
    first = outer(inner(np.arange(len(inner))))
    for epoch in range(3):
        rows = selected(outer, inner, epoch)
        assert np.array_equal(rows, first) if epoch == 0 else True
        assert np.array_equal(np.sort(rows), np.sort(first))


def test_a_selection_has_another_order_in_each_epoch():
    for outer in (
        Feistel(1000, 0),
        BlockShuffle(1000, io_block_size=8, window_blocks=10, seed=0),
        BraidShuffle(1000, io_block_size=8, strands=10, seed=0),
    ):
        part = Slice(1000, 100, 500)
        epochs = np.stack([selected(outer, part, epoch) for epoch in range(4)])
        assert np.mean(epochs[:-1] == epochs[1:]) < 0.05
        # blocks of the same windows stay together
        near = [np.unique(rows[:100] // 8).size for rows in epochs]
        assert max(near) <= (51 if outer.kind == "full" or outer.strands else 40) * 2


def test_a_selection_that_is_longer_than_the_window_needs_two_of_them():
    window = BlockShuffle(90, io_block_size=4, window_blocks=3, seed=0).open_window()
    assert window_of_part(window, 17) == OpenWindow(3, 12, 2)
    assert window_of_part(window, 12) == OpenWindow(3, 12, 1)


@given(n=st.integers(1, 40), drawn=st.integers(0, 40), era=st.integers(1, 12))
def test_what_an_order_has_touched_lies_before_what_it_says(n, drawn, era):
    drawn = min(drawn, n)
    for order in (Identity(n), EraShuffle(n, era_length=era, seed=0), Feistel(n, 0)):
        touched = order.touched_rows(drawn)
        assert set(order(np.arange(drawn)).tolist()) <= set(range(touched))
        assert drawn <= touched <= n
