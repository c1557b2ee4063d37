"""Datasets that are mixed in Python share strands as the components of a config do: same order,
same open memory.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.analysis.check.sizes import virtual_cache
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PlannedDataset, TokenSeqDataset
from headrace.data.budgets import OpenBytes
from headrace.errors import ConfigError
from headrace.mix.blend import Blend
from headrace.mix.stages import Stage
from headrace.order import BraidShuffleConfig, Order
from headrace.order.shuffle_config import resolve_strands
from headrace.store.joined import JoinedCache

SEQ_LEN = 64


def mix_by_config(sizes, weights, batch, seed) -> MixtureDataset:
    components = {name: ComponentConfig("-", weight) for name, weight in weights.items()}
    config = LmDataConfig(components, seq_len=SEQ_LEN, batch_size=batch, seed=seed)
    dataset = config.with_caches(
        {name: virtual_cache(name, size) for name, size in sizes.items()}
    ).dataset()
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


PINNED = [[677481, 494082, 908831], [350409, 704480, 1523018], [826302, 703449, 168423]]
PINNED_SECOND = [[677481, 494082, 908831], [350409, 704480, 1523018], [826302, 703449, 168423]]


def mix_shuffled(
    batch: int | dict[int, int], parts: dict[str, tuple[int, bool]], **fields: Any
) -> MixtureDataset:
    """A mixture by config; each component has a weight, and may lie in a shuffled store."""
    components = {name: ComponentConfig("-", weight) for name, (weight, _) in parts.items()}
    config = LmDataConfig(components, seq_len=SEQ_LEN, batch_size=batch, **fields)
    caches = {
        name: virtual_cache(name, 10**8, shuffled=shuffled) for name, (_, shuffled) in parts.items()
    }
    dataset = config.with_caches(caches).dataset()
    assert isinstance(dataset, MixtureDataset)
    return dataset


def orders_of(mixture: MixtureDataset) -> list[Order]:
    return [order for part in mixture.components if (order := part.shuffle_order()) is not None]


@pytest.mark.parametrize(
    ("batch", "max_hosts", "strands"),
    [
        (1024, 256, 1024),  # 4 x the hosts
        (1024, 64, 256),
        (1000, 64, 334),  # 3 passes in a batch
        (64, 256, 64),  # no more than the rows of a batch
        (8192, 1, 8),  # the blocks that a batch uses up, of 1,024 rows each
    ],
)
def test_the_hosts_ask_for_strands_in_a_shuffled_store(batch, max_hosts, strands):
    (order,) = orders_of(mix_shuffled(batch, {"a": (1, True)}, max_hosts=max_hosts))
    assert order.strands == strands
    passes = batch / order.describe()["lap"]  # of the front over the store, in a batch
    assert passes == pytest.approx(round(passes))


def test_rows_of_shuffled_stores_beside_a_plain_one_are_pinned():
    parts = {"a": (3, True), "b": (1, True), "plain": (1, False)}
    mixture = mix_shuffled(1000, parts, max_hosts=10, seed=3)
    # 25 passes in a batch over 40 strands, as if the plain one had such strands too
    assert [order.strands for order in orders_of(mixture)] == [24, 8, 1600]
    assert [order.describe()["lap"] for order in orders_of(mixture)] == [24, 8, 200]
    rows = [part.locate(np.arange(3)).row.tolist() for part in mixture.components]
    assert rows == PINNED
    second = np.ones(3, np.int64)
    again = [part.locate(np.arange(3), second).row.tolist() for part in mixture.components]
    assert again == PINNED_SECOND  # other blocks in the second epoch


def test_components_ask_for_five_strands_each_on_average():
    parts = {f"part{k}": (1, True) for k in range(100)}
    orders = orders_of(mix_shuffled(4096, parts, max_hosts=8))
    assert sum(order.strands for order in orders) == pytest.approx(4096 // (4096 // 500), abs=100)
    assert min(order.strands for order in orders) >= 5


def test_strands_that_are_written_or_not_from_hosts_are_kept():
    parts = {"a": (3, True), "b": (1, True)}
    plain = {name: (weight, False) for name, (weight, _) in parts.items()}
    for fields in ({"shuffle": BraidShuffleConfig(strands=200)}, {"max_hosts": None}):
        kept, other = (orders_of(mix_shuffled(64, each, **fields)) for each in (parts, plain))
        assert [order.describe() for order in kept] == [order.describe() for order in other]


@settings(max_examples=20)
@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 2000), st.integers(1, 50))
def test_strands_lie_between_those_that_hosts_need_and_a_batch(batch, hosts, block, sources):
    plan = resolve_strands(
        np.array([10**9]),
        np.ones(1),
        batch_size=batch,
        hosts=hosts,
        block_rows=block,
        sources=sources,
    )
    strands = int(plan.strands[0])
    least = max(4 * hosts, batch / block, 5 * sources)
    assert min(batch, least) <= strands <= batch
    passes = batch / plan.laps[0]  # of the front over the store, in a batch
    assert passes == pytest.approx(round(passes))
    assert strands < 2 * least + 1 or strands == batch


def test_datasets_in_shuffled_stores_that_are_mixed_in_python_have_the_order_of_a_config():
    parts = {"a": (3, True), "b": (1, False)}
    stored = {
        name: TokenSeqDataset(virtual_cache(name, 10**8, shuffled=shuffled), SEQ_LEN, name=name)
        for name, (_, shuffled) in parts.items()
    }
    shuffled = {n: part.braid_shuffle(seed=0, max_hosts=4) for n, part in stored.items()}
    mixed = MixtureDataset(shuffled, {n: w for n, (w, _) in parts.items()}, 64)
    check_equal(mixed, mix_shuffled(64, parts, max_hosts=4), [0, 7, 1000])
    alone = stored["a"].braid_shuffle(seed=0, batch_size=64, max_hosts=4)
    order = cast(PlannedDataset, alone).shuffle_order()
    assert order is not None
    assert order.strands == 16


def test_several_caches_that_are_read_as_one_are_not_a_shuffled_store():
    one = virtual_cache("one", 10**6, shuffled=True)
    assert TokenSeqDataset(one, SEQ_LEN).in_shuffled_store
    both = JoinedCache([one, virtual_cache("two", 10**6, shuffled=True)])
    assert not TokenSeqDataset(both, SEQ_LEN).in_shuffled_store
    mixture = mix_shuffled(8, {"a": (1, True)})
    assert mixture.components[0].in_shuffled_store
    assert not mixture.in_shuffled_store
