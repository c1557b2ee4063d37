"""Hold-out: two sides that are a partition, drawn block by block, for every awkward length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.holdout import TrainSplit, ValidationSplit, held_out
from headrace.testing.caches import check_order


def sides(n: int, one_in: int, block: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    train = TrainSplit(n, one_in=one_in, block=block, seed=seed)
    validation = ValidationSplit(n, one_in=one_in, block=block, seed=seed)
    return train(np.arange(len(train))), validation(np.arange(len(validation)))


@given(
    one_in=st.integers(2, 12),
    block=st.integers(1, 7),
    extra=st.integers(0, 400),
    seed=st.integers(0, 9),
)
def test_the_sides_are_a_partition_of_the_rows(one_in, block, extra, seed):
    n = one_in * block + extra
    train, validation = sides(n, one_in, block, seed)
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(n))
    assert (np.diff(train) > 0).all()  # stored order
    assert (np.diff(validation) > 0).all()
    blocks = np.unique(validation // block)
    assert blocks.tolist() == held_out(n // block, one_in, seed).tolist()  # whole blocks ...
    assert np.array_equal(
        blocks // one_in, np.arange(n // block // one_in)
    )  # ... one of each full group


def test_the_sides_are_a_partition_for_every_short_length():
    for n in range(6, 400):
        train, validation = sides(n, 3, 2)
        assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(n))


@given(one_in=st.integers(2, 9), block=st.integers(1, 5), n=st.integers(45, 300))
def test_the_maps_keep_their_promises(one_in, block, n):
    check_order(TrainSplit(n, one_in=one_in, block=block, seed=1))
    check_order(ValidationSplit(n, one_in=one_in, block=block, seed=1))


def test_the_split_is_the_same_in_every_epoch():
    train = TrainSplit(100, one_in=4, block=3, seed=1)
    i = np.arange(len(train))
    assert np.array_equal(train.at(i, np.full_like(i, 7)), train(i))


@given(
    one_in=st.integers(2, 9),
    block=st.integers(1, 5),
    n=st.integers(45, 300),
    more=st.integers(1, 300),
)
def test_full_groups_stay_when_the_corpus_grows(one_in, block, n, more):
    before = sides(n, one_in, block)[1]
    after = sides(n + more, one_in, block)[1]
    assert after[: before.size].tolist() == before.tolist()


def test_a_trillion_rows_need_no_table():
    n = 10**12 + 7
    train = TrainSplit(n, one_in=100, block=16, seed=3)
    validation = ValidationSplit(n, one_in=100, block=16, seed=3)
    assert len(train) + len(validation) == n
    i = np.random.default_rng(0).integers(0, len(validation), 1000)
    held = np.unique(validation(i))
    near = np.unique(
        np.clip(
            np.concatenate([train(np.minimum(i * 99 + d, len(train) - 1)) for d in (-1, 0, 1)]),
            0,
            n,
        )
    )
    assert np.intersect1d(held, near).size == 0


def test_members_are_drawn_evenly():
    drawn = held_out(64_000, 16, seed=5) % 16
    counts = np.bincount(drawn, minlength=16)
    assert ((counts - 250) ** 2 / 250).sum() < 37.7  # chi-square, 15 degrees of freedom, p = 0.001
    assert held_out(64_000, 16, seed=6).tolist() != held_out(64_000, 16, seed=5).tolist()


def test_the_split_is_pinned():
    assert held_out(80, 8, seed=0).tolist() == [0, 15, 17, 31, 38, 42, 48, 59, 71, 74]
    assert held_out(30, 3, seed=12345).tolist() == [2, 3, 6, 9, 14, 16, 20, 23, 26, 27]


@pytest.mark.parametrize(
    ("n", "one_in", "block", "field"),
    [(100, 1, 4, "one_in"), (100, 26, 4, "one_in"), (100, 10, 0, "io_block_size")],
)
def test_a_split_that_cannot_be_is_refused(n, one_in, block, field):
    for split in (TrainSplit, ValidationSplit):
        with pytest.raises(ConfigError) as caught:
            split(n, one_in=one_in, block=block, seed=0)
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="is more than the 9 documents that there are"):
        held_out(9, 10, 0, what="documents")
    with pytest.raises(ConfigError, match="a seed is an integer"):
        held_out(10, 10, "x")  # pyright: ignore[reportArgumentType]
