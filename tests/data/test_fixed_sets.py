"""Sets before orders: whatever selects rows selects the same ones in every epoch, in any
composition.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PackedTokenDataset, TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.order import SubsetConfig, ValidationConfig
from headrace.order.compose import Compose
from headrace.order.intervals import Intervals
from headrace.order.order import Slice
from headrace.order.permutation import Feistel
from headrace.pack import PackingConfig
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

EPOCHS = 3


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    documents = random_documents(300, seed=4, max_tokens=14)
    parts = [documents[:120], documents[120:130], documents[130:]]
    folder = tmp_path_factory.mktemp("sets")
    return [
        write_cache(folder / name, parts, eos_id=0, layout=CacheLayout("uint16", 32, 2))
        for name in "ab"
    ]


@st.composite
def stored(draw):
    """A dataset in stored order, cut or packed, with documents left out or not."""
    removed = draw(st.lists(st.integers(0, 299), max_size=20))
    documents = DocumentFilter(Intervals.of_numbers(np.array(removed, np.int64)))
    return draw(st.sampled_from([TokenSeqDataset, PackedTokenDataset])), documents


ends = st.none() | st.integers(-150, 150)
seeds = st.integers(0, 3)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("slice"), ends, ends),
        st.tuples(st.just("take"), st.integers(1, 150)),
        st.tuples(st.just("shuffle"), seeds),
        st.tuples(st.just("era"), st.integers(1, 30), seeds),
        st.tuples(st.just("block"), st.integers(1, 9), st.integers(1, 5), seeds),
        st.tuples(st.just("braid"), st.integers(1, 9), st.sampled_from([None, 1, 4]), seeds),
        st.tuples(st.just("repeat"), st.integers(1, 3)),
        st.tuples(st.just("split"), st.integers(2, 5), st.booleans()),
        st.tuples(st.just("compose"), ends, ends, seeds),
    ),
    max_size=5,
)


def rows_of(dataset, indices=None, epoch=None):
    indices = np.arange(len(dataset)) if indices is None else indices
    return dataset.locate(indices, epoch).row.tolist()


SHUFFLES = {
    "shuffle": lambda d, seed: d.shuffle(seed),
    "era": lambda d, era, seed: d.era_shuffle(era, seed=seed),
    "block": lambda d, block, window, seed: d.block_shuffle(
        io_block_size=block, window_blocks=window, seed=seed
    ),
    "braid": lambda d, block, strands, seed: d.braid_shuffle(
        io_block_size=block, strands=strands and min(strands, len(d)), seed=seed
    ),
}


def shuffled_slice(d, start, stop, seed):
    """A slice, shuffled, twice; with an order of one's own."""
    cut = Slice(len(d), start, stop)
    if not len(cut):
        return d.take(0)
    return d.reordered(Compose(cut, Feistel(len(cut), seed))).repeat(2)


SELECTIONS = {
    "slice": (lambda d, *ends: d.slice(*ends), lambda rows, *ends: rows[slice(*ends)]),
    "take": (lambda d, n: d.take(n), lambda rows, n: rows[:n]),
    "repeat": (lambda d, epochs: d.repeat(epochs), lambda rows, epochs: rows * epochs),
    "compose": (shuffled_slice, lambda rows, *a: rows[slice(*a[:2])] * 2),
}


def apply(dataset, operation):
    """The dataset after the operation. Its rows are compared with those that it means, in its first
    epoch.
    """
    name, *a = operation
    pending = dataset.pending_order is not None
    before = None if pending else rows_of(dataset)
    if name == "split":
        try:
            sides = dataset.holdout(a[0], io_block_size=2)
        except ConfigError:
            return dataset  # not in stored order, or too small
        train, validation = (Counter(rows_of(side)) for side in sides)
        assert train + validation == Counter(before)
        return sides[a[1]]
    if name in SHUFFLES:
        result = SHUFFLES[name](dataset, *a)
        meant = before
    else:
        operate, of_list = SELECTIONS[name]
        result = operate(dataset, *a)
        meant = None if before is None else of_list(before, *a)
    if meant is not None and result.pending_order is None:
        assert Counter(rows_of(result)) == Counter(meant)
    return result


def epochs_of(mixture, count, rows):
    """Rows of each epoch of the first component."""
    found = []
    first = 0
    while len(found) < count * rows:
        examples = np.arange(first, first + 64)
        component = mixture.explain(examples).component
        found += mixture.locate(examples[component == 0]).row.tolist()
        first += 64
    return [found[n * rows : (n + 1) * rows] for n in range(count)]


@given(stored(), operations)
def test_every_epoch_has_the_rows_of_the_first(caches, kind, listed):
    dataset_of, removed = kind
    dataset = dataset_of(caches[0], 16, removed=removed)
    for operation in listed:
        if len(dataset) == 0:
            break
        dataset = apply(dataset, operation)
    if len(dataset) == 0:
        return
    n = len(dataset)
    other = TokenSeqDataset(caches[1], 16).shuffle(0)
    mixed = MixtureDataset({"a": dataset, "b": other}, {"a": 3, "b": 1}, batch_size=8)
    epochs = epochs_of(mixed, EPOCHS, n)
    assert [Counter(rows) for rows in epochs] == [Counter(epochs[0])] * EPOCHS
    if dataset.pending_order is None:
        assert epochs[0] == rows_of(dataset)
        repeated = dataset.repeat()
        assert [row for rows in epochs for row in rows] == rows_of(repeated, np.arange(EPOCHS * n))


@given(
    stored(),
    operations,
    st.integers(0, 200),
    st.sampled_from(["shuffle", "block", "pending braid", "braid", "twice"]),
)
def test_two_parts_of_a_shuffle_never_meet(caches, kind, listed, cut, shuffle):
    """However each of them is ordered, mixed and loaded afterwards."""
    dataset_of, removed = kind
    dataset = dataset_of(caches[0], 16, removed=removed)
    n = len(dataset)
    shuffled = {
        "shuffle": lambda: dataset.shuffle(0),
        "block": lambda: dataset.block_shuffle(io_block_size=2, window_blocks=3, seed=0),
        "pending braid": lambda: dataset.braid_shuffle(io_block_size=2, seed=0),
        "braid": lambda: dataset.braid_shuffle(io_block_size=2, seed=0, strands=4),
        "twice": lambda: dataset.shuffle(0).braid_shuffle(io_block_size=2, seed=0),
    }[shuffle]()
    cut = 1 + cut % (n - 1)
    rows = []
    for number, part in enumerate((shuffled.take(cut), shuffled.slice(cut, n))):
        size = len(part)
        for operation in listed[number::2]:
            if operation[0] in SHUFFLES:
                part = apply(part, operation)
        other = TokenSeqDataset(caches[1], 16).braid_shuffle(seed=0)
        mixed = MixtureDataset(
            {f"part{number}": part, "b": other}, {f"part{number}": 1, "b": number}, 4
        )
        epochs = epochs_of(mixed, EPOCHS, size)
        assert all(set(epoch) == set(epochs[0]) for epoch in epochs)
        assert len(set(epochs[0])) == size
        rows.append(set(epochs[0]))
    assert not rows[0] & rows[1]
    assert len(rows[0] | rows[1]) == n


def test_what_is_taken_has_another_order_in_each_epoch(caches):
    dataset = TokenSeqDataset(caches[0], 16)
    taken = dataset.shuffle(0).take(100)
    rows = np.array(rows_of(taken.repeat(3), np.arange(300))).reshape(3, 100)
    assert rows[0].tolist() == rows_of(dataset.shuffle(0))[:100]
    assert all(sorted(epoch) == sorted(rows[0].tolist()) for epoch in rows.tolist())
    assert np.mean(rows[:-1] == rows[1:]) < 0.05
    stored_part = dataset.take(100).repeat(2)  # nothing shuffles it
    assert rows_of(stored_part, np.arange(200)) == [*range(100)] * 2


def test_a_part_of_a_repeated_dataset_is_as_long_as_it_says(caches):
    dataset = TokenSeqDataset(caches[0], 16).braid_shuffle(seed=0, strands=4)
    few = dataset.take(10).repeat()
    assert few.rows_of_pass == 10  # pyright: ignore
    mixed = MixtureDataset({"a": few}, {"a": 1}, batch_size=5)
    assert rows_of(mixed, np.arange(10)) == rows_of(dataset)[:10]
    assert set(rows_of(mixed, np.arange(50))) == set(rows_of(dataset)[:10])


@pytest.mark.parametrize("by", ["blocks", "documents"])
@pytest.mark.parametrize("packing", [None, PackingConfig()])
@pytest.mark.parametrize("shuffle", [True, 7, None])
def test_the_parts_of_a_config_stay_what_they_are(caches, by, packing, shuffle):
    component = ComponentConfig(caches[0].path, packing=packing, subset=SubsetConfig(fraction=0.7))
    changes = {} if shuffle is None else {"shuffle": shuffle}
    config = LmDataConfig(
        {"a": component, "b": ComponentConfig(caches[1].path)},
        seq_len=16,
        batch_size=4,
        validation=ValidationConfig(5, by=by),
        **changes,
    )
    mixture = config.dataset()
    n = mixture.components[0].rows_of_pass  # pyright: ignore
    epochs = epochs_of(mixture, EPOCHS, n)
    assert len(set(epochs[0])) == n
    assert all(set(rows) == set(epochs[0]) for rows in epochs)
    if by == "blocks":  # the sides of a split by documents number their rows each for itself
        assert not set(rows_of(config.validation_datasets()["a"])) & set(epochs[0])
