"""What a change of row length begins with: blocks that no row has touched, against orders walked
row by row.
"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix.phases import RowsOfBlocks, phase_block, untouched_blocks
from headrace.mix.schedule import phase_lengths
from headrace.order import Order
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.order import Identity, Slice
from headrace.order.permutation import Feistel
from headrace.testing.caches import check_order


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, int]:
    """An order over some rows, and its block."""
    n = draw(st.integers(1, 900))
    block = draw(st.integers(1, 20))
    seed = draw(st.integers(0, 5))
    kind = draw(
        st.sampled_from(["braid", "braid", "braid with laps", "block", "linear", "era", "none"])
    )
    if kind.startswith("braid"):
        strands = draw(st.integers(1, min(n, 50)))
        lap = draw(st.floats(0.05, strands)) if kind == "braid with laps" else None
        try:
            return BraidShuffle(n, io_block_size=block, strands=strands, seed=seed, lap=lap), block
        except ConfigError:  # a whole lap that does not divide the strands
            return BraidShuffle(n, io_block_size=block, strands=strands, seed=seed), block
    if kind in ("block", "linear"):
        perm_type = "linear" if kind == "linear" else "feistel"
        windows = draw(st.integers(1, 8))
        shuffle = BlockShuffle(
            n, io_block_size=block, window_blocks=windows, seed=seed, perm_type=perm_type
        )
        return shuffle, block
    return (
        EraShuffle(n, era_length=draw(st.integers(1, 60)), seed=seed)
        if kind == "era"
        else Identity(n)
    ), block


def left_of(order: Order, block: int, blocks: int, drawn: int, epoch: int) -> np.ndarray:
    left = untouched_blocks(
        order, drawn=drawn, epoch=epoch, blocks=blocks, block_behind=lambda row: -(-row // block)
    )
    assert left.rows == blocks
    check_order(left)
    return left(np.arange(len(left)))


@given(orders(), st.integers(0, 3), st.floats(0, 1), st.integers(0, 3))
def test_blocks_that_are_left_were_not_touched(drawn_order, epoch, share, tails):
    order, block = drawn_order
    blocks = max(
        len(order) // block - tails, 0
    )  # rows of the ends of parts may make up blocks behind the full ones
    drawn = int(share * len(order))
    i = np.arange(drawn)
    touched = np.unique(order.at(i, np.full_like(i, epoch)) // block)
    left = left_of(order, block, blocks, drawn, epoch)
    assert np.unique(left).size == left.size
    assert np.intersect1d(left, touched).size == 0
    lost = (
        blocks - left.size - (touched < blocks).sum()
    )  # blocks that no row touched, and that are not left
    if isinstance(order, BraidShuffle):
        assert lost <= order.strands
    elif isinstance(order, BlockShuffle):
        assert lost <= order.window_blocks
    elif isinstance(order, EraShuffle):
        assert lost <= order.era_length // block + 2
    else:
        assert lost == 0
    if drawn == 0:
        assert sorted(left.tolist()) == list(range(blocks))


@given(
    n=st.integers(2000, 20_000),
    block=st.integers(4, 32),
    strands=st.integers(2, 24),
    lap=st.floats(0.1, 24),
    share=st.floats(0, 1),
)
def test_a_braid_leaves_all_but_about_a_block_a_strand(n, block, strands, lap, share):
    assume(lap <= strands and round(lap * 2**20) % 2**20)  # a whole lap has to divide the strands
    order = BraidShuffle(n, io_block_size=block, strands=strands, seed=3, lap=lap)
    drawn = int(share * n)
    left = left_of(order, block, n // block, drawn, 1)
    assert (n // block - left.size) * block - drawn <= 2 * strands * block


def test_a_braid_of_a_trillion_rows_takes_a_table_of_strands():
    order = BraidShuffle(10**12, io_block_size=16, strands=4096, seed=0, lap=512)
    touched = order.touched_blocks(10**11 + 7, 5)
    assert touched.start.size <= 3 * 4096
    skipped = touched.total * 16 - (10**11 + 7)
    assert 0 < skipped < 1.5 * 4096 * 16


def test_blocks_come_in_the_sequence_of_the_order():
    order = BlockShuffle(1000, io_block_size=10, window_blocks=4, seed=0)
    left = left_of(order, 10, 100, 400, 0)
    later = order(np.arange(400, 1000)).reshape(-1, 40) // 10
    assert [set(left[k : k + 4].tolist()) for k in range(0, 60, 4)] == [
        set(row.tolist()) for row in later
    ]
    assert left_of(Identity(1000), 10, 100, 401, 0).tolist() == list(range(41, 100))


def test_a_full_shuffle_touches_every_block_with_its_first_draw():
    order = Feistel(103, 0)
    assert left_of(order, 10, 10, 0, 0).tolist() == list(range(10))
    assert left_of(order, 10, 10, 1, 0).size == 0


@given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 9), st.integers(0, 9))
def test_rows_of_blocks(blocks, skip, block, more):
    named = Slice(blocks + skip, skip)
    rows = RowsOfBlocks(named, block=block, n=(blocks + skip) * block + more)
    check_order(rows)
    assert rows(np.arange(len(rows))).tolist() == list(range(skip * block, (skip + blocks) * block))
    with pytest.raises(ConfigError, match="are more than"):
        RowsOfBlocks(named, block=block, n=(blocks + skip) * block - 1)


@given(
    chunk=st.integers(1, 5000),
    lengths=st.lists(st.integers(2, 3000), min_size=1, max_size=4),
)
def test_a_block_holds_a_row_of_each_phase_and_whole_rows_of_the_first(chunk, lengths):
    block = phase_block(chunk, lengths)
    assert block >= max(lengths)
    assert block % lengths[0] == 0
    unit = max(chunk // lengths[0], 1) * lengths[0]
    assert block % unit == 0
    if max(lengths) <= unit and all(unit % n == 0 for n in lengths):
        assert block == unit  # what the first phase would have alone
    smallest = -(-max(lengths) // unit) * unit
    assert max(block % n / block for n in lengths) <= max(
        max(smallest % n / smallest for n in lengths), 0.01
    )


def test_a_block_that_the_user_gives():
    assert phase_block(65_536, [4096, 32_768], rows=8) == 32_768
    with pytest.raises(ConfigError, match="Give at least 8") as caught:
        phase_block(65_536, [4096, 32_768], rows=7)
    assert (caught.value.field, caught.value.value) == ("io_block_size", 7)


@pytest.mark.parametrize(
    "seq_len",
    [
        {},
        {1: 8},
        {0: 8, 5: 16, 3: 32},
        {0: 1},
        {0: 8, 5: True},
        {0: 8, 5: 8.5},
        1,
        True,
        {0: 8, 1 << 50: 9},
    ],
)
def test_lengths_that_make_no_sense_are_refused(seq_len):
    with pytest.raises(ConfigError) as caught:
        phase_lengths(seq_len)
    assert (caught.value.field or "").startswith("seq_len")


def test_neighbours_of_one_length_are_one_phase():
    assert phase_lengths({0: 8, 3: 8, 5: 16, 9: 16, 12: 8}) == ((0, 8), (5, 16), (12, 8))
    assert phase_lengths(8) == ((0, 8),)
