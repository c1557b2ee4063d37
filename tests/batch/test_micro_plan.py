"""Where rows go in micro-batches: each once, whole, under the cap, in shapes that lengths do not
change.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import MicroBatchConfig, TransformerCost
from headrace.config import load_config
from headrace.errors import ConfigError

MODEL = TransformerCost(64, 2, 4, 16, 2, 128, 1000)


@st.composite
def steps(draw):
    """Segments of the rows of a step, some of them empty rows; and how they are cut."""
    seq_len = draw(st.integers(1, 70))
    width = draw(st.integers(1, min(seq_len, 5)))
    row = st.lists(st.integers(1, max(seq_len // width, 1)), max_size=width)
    rows = draw(st.lists(row, min_size=1, max_size=40))
    segments = np.zeros((len(rows), width), np.int32)
    for number, lengths in enumerate(rows):
        segments[number, : len(lengths)] = lengths
    balance = draw(st.sampled_from(["none", "tokens", "flops"]))
    max_tokens = seq_len + draw(st.integers(0, 3 * seq_len))
    config = MicroBatchConfig(max_tokens, balance, model=MODEL if balance == "flops" else None)
    return config, segments, seq_len, draw(st.integers(1, 9))


@given(steps())
def test_every_row_is_in_one_micro_batch_whole_and_under_the_cap(step):
    config, segments, seq_len, ways = step
    shape = config.shape(len(segments), seq_len, segments.shape[1], ways)
    plan = config.plan(segments, shape)
    rows = shape.number * shape.rows
    tokens = segments.sum(axis=1)
    taken = np.zeros(rows * shape.places, int)
    for row, place in enumerate(plan.place.tolist()):
        if tokens[row]:
            assert place // shape.places == (place + tokens[row] - 1) // shape.places
            taken[place : place + tokens[row]] += 1
        else:
            assert place == taken.size
    filled = taken.reshape(rows, -1)
    assert taken.max(initial=0) <= 1
    assert taken.sum() == tokens.sum()
    assert (np.diff(filled, axis=1) <= 0).all()  # padding is at the end
    of_micro_batches = filled.reshape(shape.rows, shape.number, -1).sum(axis=(0, 2))
    assert (of_micro_batches > 0).tolist() == [k < plan.filled for k in range(shape.number)]
    numbers = plan.segment[plan.segment >= 0]
    assert sorted(numbers.tolist()) == np.flatnonzero(segments.reshape(-1)).tolist()
    for row in range(rows):
        own = plan.segment[row][plan.segment[row] >= 0]
        assert segments.reshape(-1)[own].sum() == filled[row].sum()
        begins = plan.place[own // segments.shape[1]]
        assert (np.diff(begins) >= 0).all()
        assert (plan.segment[row][: own.size] == own).all()


def test_shapes_do_not_depend_on_lengths_and_full_rows_fill_them():
    config = MicroBatchConfig(256)
    shape = config.shape(batch_size=10, seq_len=100, row_segments=3, ways=2)
    assert shape == (3, 2, 256, 6)
    full = config.plan(np.full((10, 1), 100, np.int32), shape)
    short = config.plan(np.full((10, 3), 5, np.int32), shape)
    assert (full.filled, short.filled) == (3, 1)
    assert full.segment.shape == short.segment.shape


def test_the_most_costly_come_first_and_ranks_cost_alike():
    lengths = np.random.default_rng(0).integers(64, 1024, (128, 1)).astype(np.int32)
    spreads = {}
    for balance in ("none", "flops"):
        config = MicroBatchConfig(
            4096, balance, rows=4, model=MODEL if balance == "flops" else None
        )
        shape = config.shape(128, 1024, 1, ways=2)
        plan = config.plan(lengths, shape)
        flops = np.where(plan.segment >= 0, MODEL.flops(lengths[:, 0])[plan.segment], 0.0).sum(
            axis=1
        )
        table = flops.reshape(4, -1)[:, : plan.filled]
        spreads[balance] = (table.max(axis=0) / table.mean(axis=0)).max()
        if balance == "flops":
            assert (np.diff(table.max(axis=0)) <= 0).all()
    assert spreads["flops"] < 1.02 < spreads["none"]


@pytest.mark.parametrize(
    ("value", "problem", "cured"),
    [
        (
            "{max_tokens: 1000}",
            "max_tokens = 1000: is less than a row of 2048 tokens (seq_len). Give 2048 or more",
            "{max_tokens: 2048}",
        ),
        (
            "{max_tokens: many}",
            "micro_batches.max_tokens = 'many': is of the wrong type",
            "{max_tokens: 8192}",
        ),
        (
            "{max_tokens: 0}",
            "max_tokens = 0: must be a whole number, at least 1",
            "{max_tokens: 8192}",
        ),
        (
            "{max_tokens: 8192, balance: flop}",
            "Did you mean 'flops'?",
            "{max_tokens: 8192, balance: tokens}",
        ),
        (
            "{max_tokens: 8192, rows: 0}",
            "rows = 0: must be a whole number, at least 1",
            "{max_tokens: 8192, rows: 8}",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_cure(value, problem, cured):
    with pytest.raises(ConfigError) as refused:
        load_config(overrides=[f"micro_batches={value}"])
    assert problem in str(refused.value)
    assert load_config(overrides=[f"micro_batches={cured}"]).micro_batches is not None


def test_flops_need_a_model_and_a_model_flops():
    with pytest.raises(ConfigError, match=r"micro_batches\.model: is missing") as refused:
        load_config(overrides=["micro_batches={max_tokens: 4096, balance: flops}"])
    model = str(refused.value).partition("Add model: ")[2].partition(", with your")[0]
    config = load_config(
        overrides=[f"micro_batches={{max_tokens: 4096, balance: flops, model: {model}}}"]
    )
    assert config.micro_batches.model.hidden_size == 2048
    with pytest.raises(ConfigError, match=r"is what balance: flops goes by.*Write balance: flops"):
        load_config(overrides=[f"micro_batches={{max_tokens: 4096, model: {model}}}"])
    with pytest.raises(ConfigError, match="must be a whole number"):
        MicroBatchConfig(4096, "flops", model=TransformerCost(-1, 2, 4, 16, 2, 128, 1000))
