"""Datasets that are mixed in Python share strands as the components of a config do: same order,
same open memory.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.analysis import virtual_cache
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PlannedDataset, TokenSeqDataset
from headrace.data.budgets import OpenBytes
from headrace.errors import ConfigError
from headrace.mix import Blend, Stage

SEQ_LEN = 64


def mix_by_config(sizes, weights, batch, seed) -> MixtureDataset:
    components = {name: ComponentConfig("-", weight) for name, weight in weights.items()}
    config = LmDataConfig(components, seq_len=SEQ_LEN, batch_size=batch, seed=seed)
    dataset = config.dataset({name: virtual_cache(name, size) for name, size in sizes.items()})
    assert isinstance(dataset, MixtureDataset)
    return dataset


def open_parts(sizes) -> dict[str, TokenSeqDataset]:
    return {
        name: TokenSeqDataset(virtual_cache(name, size), SEQ_LEN, name=name)
        for name, size in sizes.items()
    }


def check_equal(one: MixtureDataset, other: MixtureDataset, steps: list[int]) -> None:
    size = one.batch_schedule.max_size
    for step in steps:
        rows = np.arange(step * size, step * size + size)
        located = one.locate(rows)
        again = other.locate(rows)
        assert [x.tolist() for x in located] == [x.tolist() for x in again]
    assert OpenBytes.of(one) == OpenBytes.of(other)
    assert one.describe() == other.describe()


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(SEQ_LEN, 10**9), st.sampled_from([0.1, 1.0, 7.0])),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([8, 32, {0: 16, 5: 64}]),
    st.integers(0, 5),
)
def test_datasets_mixed_in_python_have_the_order_of_a_config(parts, batch, seed):
    sizes = {f"part{k}": size for k, (size, _) in enumerate(parts)}
    weights = {f"part{k}": weight for k, (_, weight) in enumerate(parts)}
    shuffled = {name: part.braid_shuffle(seed=seed) for name, part in open_parts(sizes).items()}
    mixed = MixtureDataset(shuffled, weights, batch)
    check_equal(mixed, mix_by_config(sizes, weights, batch, seed), [0, 7, 10**6])


def test_200_parts_open_the_memory_of_one_batch_budget():
    sizes = {f"part{k}": 10**8 // (k + 1) for k in range(200)}
    weights = {name: float(size) for name, size in sizes.items()}
    parts = open_parts(sizes)
    mixed = MixtureDataset(
        {n: part.braid_shuffle(seed=0) for n, part in parts.items()}, weights, 128
    )
    check_equal(mixed, mix_by_config(sizes, weights, 128, 0), [0, 1000])
    alone = MixtureDataset(
        {n: part.braid_shuffle(seed=0, batch_size=128) for n, part in parts.items()}, weights, 128
    )
    assert OpenBytes.of(mixed).needed() * 5 < OpenBytes.of(alone).needed()
    assert (
        sum(order.strands for part in mixed.components if (order := part.shuffle_order()))
        <= 8 * 128 + 200
    )


def test_shares_of_all_stages_count_and_others_stay_as_they_are():
    parts = open_parts({"a": 10**7, "b": 10**7, "c": 10**7})
    shuffled = {
        "a": parts["a"].braid_shuffle(seed=1).repeat(3),
        "b": parts["b"].braid_shuffle(seed=1, io_block_size=4),
        "c": parts["c"].braid_shuffle(seed=1, strands=5),
    }
    stages = [Stage(0, Blend({"a": 1, "b": 1})), Stage(50, Blend({"a": 3, "b": 1, "c": 4}))]
    mixed = MixtureDataset(shuffled, stages, 16)
    orders = [part.shuffle_order() for part in mixed.components]
    assert [order.strands for order in orders if order] == [64, 64, 5]
    assert [order.io_block_size for order in orders if order][1] == 4
    assert len(np.unique(mixed.components[0].locate(np.arange(len(parts["a"]))).row)) == len(
        parts["a"]
    )


def test_until_it_is_mixed_a_dataset_has_a_length_and_no_order():
    part = open_parts({"a": 10**6})["a"].braid_shuffle(seed=0)
    assert len(part) == 10**6 // SEQ_LEN
    assert len(part.take(10)) == 10
    few = cast(PlannedDataset, part.take(10))
    for ask in (
        part.describe,
        few.open_window,
        lambda: few.locate(np.arange(3)),
        lambda: few.read([0]),
    ):
        with pytest.raises(
            ConfigError, match=r"Mix or load it, or give braid_shuffle the batch_size\."
        ) as error:
            ask()
        assert error.value.field == "batch_size"


def test_a_part_without_weight_is_refused_by_name():
    parts = {
        n: part.braid_shuffle(seed=0) for n, part in open_parts({"a": 10**6, "b": 10**6}).items()
    }
    with pytest.raises(ConfigError) as error:
        MixtureDataset(parts, [Stage(0, Blend({"a": 1}))], 8)
    assert error.value.field == "components.b"
