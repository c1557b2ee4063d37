"""Rows by score: in every epoch each row once, step by step, shuffled within a step."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import ScoreShuffleConfig
from headrace.order.score_order import ScoreOrder
from headrace.order.shuffle_config import RowsToOrder


@given(
    scores=st.lists(st.integers(-5, 5), min_size=1, max_size=200),
    steps=st.integers(1, 12),
    block=st.integers(1, 9),
    open_blocks=st.integers(1, 40),
    descending=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_each_step_has_its_share_of_the_rows_by_score(
    scores, steps, block, open_blocks, descending, seed
):
    array = np.array(scores, np.float64)
    settings = {"block": block, "open_blocks": open_blocks, "seed": seed}
    order = ScoreOrder(array, steps=steps, descending=descending, **settings)
    right = np.sort(array)[::-1] if descending else np.sort(array)
    bounds = np.arange(order.steps + 1) * array.size // order.steps
    for epoch in range(3):
        rows = order.at(np.arange(array.size), np.full(array.size, epoch))
        assert sorted(rows.tolist()) == [*range(array.size)]
        for first, stop in pairwise(bounds):
            step_scores = array[rows[first:stop]]
            assert sorted(step_scores.tolist()) == sorted(right[first:stop].tolist())
    backwards = np.arange(array.size)[::-1]
    assert (order(backwards) == order(np.arange(array.size))[::-1]).all()


def test_another_epoch_step_or_seed_shuffles_in_another_way():
    scores = np.tile([0.0, 1.0], 500)
    order = ScoreOrder(scores, steps=2, block=5, open_blocks=40, seed=0)
    i = np.arange(1000)
    first = order.at(i, np.zeros_like(i))
    ranks = [half // 2 for half in np.split(first, 2)]
    assert (ranks[0] != ranks[1]).any()
    assert (first != order.at(i, np.ones_like(i))).any()
    other = ScoreOrder(scores, steps=2, block=5, open_blocks=40, seed=1)
    assert (first != other(i)).any()
    assert order.describe() != other.describe()


def test_as_many_steps_as_rows_sort_them_in_full():
    scores = np.random.default_rng(0).random(1_000_000)
    order = ScoreOrder(scores, steps=10**9, block=64, open_blocks=512, seed=0)
    assert order.steps == scores.size
    assert (order.rows_of_steps == np.argsort(scores)).all()
    first = np.arange(300)
    assert (order(first) == np.argsort(scores)[:300]).all()


def test_scores_are_part_of_the_description():
    of = partial(ScoreOrder, steps=2, block=2, open_blocks=8, seed=0)
    rising = of(np.arange(10.0))
    assert rising.describe() == of(np.arange(10.0) * 7).describe()
    assert rising.describe() != of(-np.arange(10.0)).describe()


@pytest.mark.parametrize(
    ("scores", "reads"),
    [(np.arange(800.0), 1.0), (np.tile(np.arange(8.0), 100), 8.0), (np.zeros(800), 1.0)],
)
def test_blocks_are_read_once_for_each_step_whose_rows_they_have(scores, reads):
    order = ScoreOrder(scores, steps=8, block=20, open_blocks=64, seed=0)
    assert order.block_reads == pytest.approx(reads, rel=0.2)
    # And the rows of the first step come from as many blocks as this says
    blocks = {*(order(np.arange(100)) // 20).tolist()}
    assert len(blocks) == (40 if reads == 8 else 5)


def test_it_mixes_no_more_blocks_than_it_says():
    order = ScoreOrder(np.tile(np.arange(4.0), 5000), steps=4, block=50, open_blocks=32, seed=3)
    window = order.open_window()
    assert window.blocks == 32
    drawn = order(np.arange(window.rows // 4))
    # Each of the 8 ranges of 50 rows that are mixed lies in 4 blocks, or 5 where it begins inside one
    assert len({*(drawn // 50).tolist()}) <= 40


def test_without_scores_it_is_refused():
    with pytest.raises(ConfigError) as refused:
        ScoreShuffleConfig("quality").order(RowsToOrder(10, seed=0, block=2))
    assert refused.value.field == "shuffle.by"
    with pytest.raises(ConfigError) as refused:
        ScoreShuffleConfig("quality", steps=0)
    assert refused.value.field == "shuffle.steps"
