"""Datasets seen through index maps: Python's own lists are the oracle; batched
equals one by one.
"""

import asyncio
import functools
import itertools
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import AsyncDataset, TokenSeqDataset
from headrace.data.async_dataset import MappedDataset
from headrace.data.dataset import ReorderedDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.compose import FixedSet
from headrace.order.order import Slice
from headrace.order.permutation import Feistel
from headrace.store import CacheLayout
from headrace.testing import tiny_cache, write_cache

SEQ_LEN = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """101 rows in three parts; the first token of row r is r, so that rows tell who they are."""
    rows = [np.full(SEQ_LEN, r) for r in range(101)]
    parts = [rows[:40], rows[40:41], rows[41:]]
    cache = write_cache(
        tmp_path_factory.mktemp("rows"), parts, eos_id=0, layout=CacheLayout("uint8", 32, 2)
    )
    return TokenSeqDataset(cache, SEQ_LEN)


def rows_of(dataset, indices=None):
    indices = np.arange(len(dataset)) if indices is None else indices
    return dataset.read(indices).tokens[:, 0].tolist()


def test_rows_are_those_stored(dataset):
    assert rows_of(dataset) == list(range(101))
    assert rows_of(dataset, [5, 5, 100, 0]) == [5, 5, 100, 0]


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("slice"), st.none() | st.integers(-60, 60), st.none() | st.integers(-60, 60)
        ),
        st.tuples(st.just("take"), st.integers(0, 150)),
        st.tuples(st.just("shuffle"), st.integers(0, 3)),
        st.tuples(st.just("era"), st.integers(1, 30), st.integers(0, 3)),
        st.tuples(st.just("block"), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3)),
        st.tuples(st.just("repeat"), st.integers(1, 3)),
    ),
    max_size=5,
)


def apply(dataset, listed, operation):
    """The operation on the dataset, and in plain Python on the list of its rows, pass by pass."""
    name, *a = operation
    n = len(dataset)
    if name in ("slice", "take"):
        cut = Slice(n, *a) if name == "slice" else Slice(n, 0, a[0])
        result = dataset.slice(*a) if name == "slice" else dataset.take(*a)
        if dataset.shuffle_order() is None or len(cut) == n:
            return result, lambda epoch: listed(epoch)[cut.start : cut.start + len(cut)]
        fixed = FixedSet(cut, dataset.open_window().rows)
        return result, _permuted(lambda _: listed(0), fixed)
    if name == "shuffle":
        return dataset.shuffle(a[0]), _permuted(listed, Feistel(n, a[0]))
    if name == "era":
        return dataset.era_shuffle(a[0], seed=a[1]), _permuted(
            listed, EraShuffle(n, era_length=a[0], seed=a[1])
        )
    if name == "block":
        order = BlockShuffle(n, io_block_size=a[0], window_blocks=a[1], seed=a[2])
        base = dataset.block_aligned(a[0])
        aligned = listed if base is dataset else _permuted(listed, base.order)
        return dataset.block_shuffle(io_block_size=a[0], window_blocks=a[1], seed=a[2]), _permuted(
            aligned, order
        )
    return dataset.repeat(a[0]), lambda epoch: [
        row for p in range(a[0]) for row in listed(epoch * a[0] + p)
    ]


def _permuted(listed, order):
    def permuted(epoch):
        rows = listed(epoch)
        return [
            rows[i] for i in order.at(np.arange(len(order)), np.full(len(order), epoch)).tolist()
        ]

    return permuted


@given(operations=operations)
def test_operations_are_those_of_lists(dataset, operations):
    listed = lambda epoch: list(range(101))  # noqa: E731
    for operation in operations:
        if operation[0] == "repeat" and len(dataset) == 0:
            continue
        dataset, listed = apply(dataset, listed, operation)
    wanted = listed(0)
    assert len(dataset) == len(wanted)
    assert rows_of(dataset) == wanted
    picks = np.arange(len(wanted))[::-3]
    assert rows_of(dataset, picks) == [wanted[i] for i in picks]
    if wanted:
        assert rows_of(dataset, [len(wanted) // 2]) == [wanted[len(wanted) // 2]]
        for bad in (-1, len(wanted)):
            with pytest.raises(IndexOutOfRangeError):
                dataset.read([bad])


def test_shuffles_hold_every_row_once(dataset):
    shuffled = [
        dataset.shuffle(1),
        dataset.shuffle(1, perm_type="linear"),
        dataset.block_shuffle(window_blocks=2, seed=1),
        dataset.era_shuffle(10, seed=1),
        dataset.braid_shuffle(seed=1, strands=5),
        dataset.braid_shuffle(seed=1, batch_size=2),
    ]
    for order in shuffled:
        assert sorted(rows_of(order)) == list(range(101))
        assert rows_of(order) != list(range(101))


def test_blocks_of_a_shuffle_are_stored_chunks(dataset):
    """32 elements a chunk, 4 a row: by default blocks of 8 rows, none of them across two parts."""
    assert dataset.default_io_block_size() == 8
    order = dataset.block_shuffle(window_blocks=1, seed=3)
    blocks = np.array(rows_of(order))[: 96 - 8].reshape(-1, 8)
    starts = {*range(0, 40, 8), *range(41, 97, 8)}
    assert {int(b.min()) for b in blocks} == starts - ({*starts} - {int(b.min()) for b in blocks})
    assert all(int(b.max() - b.min()) == 7 and int(b.min()) in starts for b in blocks)


def test_repeats_are_other_orders(dataset):
    rows = np.array(rows_of(dataset.shuffle(0).repeat(3))).reshape(3, 101)
    assert len({tuple(r) for r in rows.tolist()}) == 3
    assert np.array_equal(np.sort(rows, axis=1), np.tile(np.arange(101), (3, 1)))
    forever = dataset.shuffle(0).repeat()
    assert not forever.is_finite()
    assert rows_of(forever, np.arange(303)) == rows.ravel().tolist()
    assert len(rows_of(forever, [10**12])) == 1


def test_what_has_no_end_is_not_cut(dataset):
    forever = dataset.repeat()
    for operation in (forever.shuffle, forever.take, forever.repeat, lambda n: len(forever)):
        with pytest.raises(ConfigError, match="needs a dataset with an end") as caught:
            operation(3)
        assert "before repeat()" in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (lambda d: d.take(-1), "n"),
        (lambda d: d.repeat(0), "epochs"),
        (lambda d: d.take(0).repeat(), "repeat"),
        (lambda d: d.era_shuffle(0, seed=0), "era_length"),
        (lambda d: d.block_shuffle(window_blocks=0, seed=0), "window_blocks"),
        (lambda d: d.shuffle(0.5), "seed"),
        (lambda d: d.shuffle(0, perm_type="feistl"), "perm_type"),
        (lambda d: d.braid_shuffle(seed=0).read([0]), "batch_size"),
        (lambda d: d.braid_shuffle(seed=0).shuffle(0).read([0]), "batch_size"),
        (lambda d: d.braid_shuffle(seed=0, first_strand=3), "first_strand"),
        (lambda d: Numbers(5).braid_shuffle(seed=0), "io_block_size"),
        (lambda d: ReorderedDataset(d, Slice(102)), "order"),
        (lambda d: Numbers(5).block_shuffle(seed=0), "io_block_size"),
    ],
)
def test_bad_operations_name_the_field(dataset, operation, field):
    with pytest.raises(ConfigError) as caught:
        operation(dataset)
    assert caught.value.field == field


class Numbers(AsyncDataset[np.ndarray]):
    """A dataset that is no store: rows are their own numbers."""

    def __init__(self, n, order=None):
        self.n = n
        self.order = order

    @property
    def length(self):
        return len(self.order) if self.order is not None else self.n

    async def get_batch(self, indices):
        await asyncio.sleep(0)
        return (indices if self.order is None else self.order(indices))[:, None]

    def reordered(self, order):
        return Numbers(self.n, order)

    def describe(self):
        return {"numbers": self.n}


def test_any_dataset_has_the_operations():
    numbers = Numbers(10)
    assert numbers.slice(2, 5).read(np.arange(3)).ravel().tolist() == [2, 3, 4]
    assert sorted(numbers.shuffle(1).read(np.arange(10)).ravel().tolist()) == list(range(10))
    assert numbers.map(np.negative).read([3, 4]).ravel().tolist() == [-3, -4]
    assert asyncio.run(numbers.async_len()) == len(numbers) == 10


def test_map_commutes_with_orders(dataset):
    doubled = dataset.map(lambda batch: batch.tokens * 2)
    assert isinstance(doubled, MappedDataset)
    for one, other in (
        (doubled.shuffle(3), dataset.shuffle(3)),
        (
            doubled.block_shuffle(window_blocks=3, seed=1),
            dataset.block_shuffle(window_blocks=3, seed=1),
        ),
        (doubled.slice(3, 9), dataset.slice(3, 9)),
        (doubled.repeat(2), dataset.repeat(2)),
    ):
        i = np.arange(len(other))
        assert np.array_equal(one.read(i), other.read(i).tokens * 2)
        assert len(one) == len(other)


def test_read_works_where_an_event_loop_runs_already(dataset):
    """As in a notebook."""

    async def notebook():
        return dataset.read([7]).tokens[0, 0], (await dataset.get_batch(np.array([8]))).tokens[0, 0]

    before = threading.active_count()
    assert asyncio.run(notebook()) == (7, 8)
    assert threading.active_count() == before


def test_no_rows_is_an_empty_batch(dataset):
    batch = dataset.read([])
    assert batch.tokens.shape == (0, SEQ_LEN)
    assert batch.source_id.shape == batch.valid.shape == (0,)


def test_descriptions_tell_datasets_apart(dataset, tmp_path):
    other = TokenSeqDataset(
        write_cache(tmp_path, [[np.arange(50)]], layout=CacheLayout("uint8", 32, 2)), SEQ_LEN
    )
    datasets = [
        dataset,
        other,
        TokenSeqDataset(dataset.cache, 5),
        TokenSeqDataset(dataset.cache, SEQ_LEN, split_documents=True),
        dataset.shuffle(0),
        dataset.shuffle(1),
        dataset.shuffle(0, perm_type="linear"),
        dataset.era_shuffle(7, seed=0),
        dataset.era_shuffle(8, seed=0),
        dataset.block_shuffle(window_blocks=7, seed=0),
        dataset.block_shuffle(window_blocks=7, io_block_size=3, seed=0),
        dataset.braid_shuffle(seed=0, strands=4),
        dataset.braid_shuffle(seed=0, strands=5),
        dataset.slice(3),
        dataset.slice(4),
        dataset.take(3),
        dataset.repeat(2),
        dataset.repeat(),
        dataset.shuffle(0).repeat(),
        dataset.slice(1).shuffle(0),
        dataset.map(np.negative),
        dataset.map(functools.partial(np.add, 1)),
        dataset.map(functools.partial(np.add, 2)),
        dataset.map(functools.partial(np.add, np.arange(3000))),
        dataset.map(functools.partial(np.add, np.arange(3000) * [[1], [2]])),
        dataset.map(
            functools.partial(np.add, np.where(np.arange(3000) == 1500, 0, np.arange(3000)))
        ),
    ]
    described = [json.dumps(d.describe(), sort_keys=True) for d in datasets]
    assert len(set(described)) == len(described)


class Identity:
    def __call__(self, batch):
        return batch


def test_descriptions_hold_no_addresses(dataset):
    """The fingerprint of a run must be the same in the next process."""
    named = [
        functools.partial(np.clip, a_min=0, a_max=3),
        Identity(),
        Identity().__call__,
        len,
        lambda batch: batch,
    ]
    named.append(functools.partial(dict, of=[{"and": Identity()}, np.random.default_rng(0)]))
    described = [str(dataset.map(fn).describe()["map"]) for fn in named]
    assert not any("0x" in name for name in described)
    assert described[0] == "numpy.clip(a_max=3, a_min=0)"
    assert described[1].endswith(".Identity")


def test_a_shuffle_that_repeats_has_another_order_in_each_pass(dataset):
    at = np.arange(3 * len(dataset))
    epoch, place = np.divmod(at, len(dataset))
    repeated = dataset.shuffle(5).repeat(3)
    assert (len(repeated), repeated.rows_of_pass) == (at.size, len(dataset))
    rows, locality = Feistel(len(dataset), 5).resolve(place, epoch)
    located = repeated.locate(at)
    assert np.array_equal(located.row, rows)
    assert np.array_equal(located.locality, locality)
    assert np.array_equal(repeated.passes(at), epoch)
    assert dataset.shuffle(5).repeat().length is None


def test_functions_leave_what_is_planned_below_them(dataset):
    mapped = dataset.shuffle(1).map(str).map(len)
    assert mapped.functions == (str, len)
    assert mapped.planned is mapped.base.base
    assert (dataset.functions, dataset.planned) == ((), dataset)


@given(st.integers(0, 40), st.slices(30))
def test_a_dataset_is_indexed_like_a_list(index, part):
    dataset = TokenSeqDataset(tiny_cache(), seq_len=8).shuffle(seed=1).take(30)
    rows = dataset.read(np.arange(30)).tokens
    assert np.array_equal(dataset[part].tokens, rows[part])
    if index < 30:
        assert np.array_equal(dataset[index].tokens, rows[index : index + 1])
        assert np.array_equal(dataset[-index - 1].tokens, rows[29 - index : 30 - index])
    else:
        for wrong in (index, -index - 1):
            with pytest.raises(IndexOutOfRangeError):
                dataset[wrong]


def test_a_dataset_is_iterated_like_a_list():
    dataset = TokenSeqDataset(tiny_cache(), seq_len=8)
    rows = dataset.read(np.arange(len(dataset))).tokens
    assert np.array_equal(np.concatenate([batch.tokens for batch in dataset]), rows)
    endless = dataset.repeat()
    assert np.array_equal(
        np.concatenate([b.tokens for b in itertools.islice(endless, 3)]), rows[:3]
    )
    assert np.array_equal(endless[2:9:3].tokens, rows[2:9:3])
    assert endless[len(dataset) + 2].tokens.shape == (1, 8)
    for from_the_end in (slice(3, None), slice(-3, 5), slice(None, -1), -1):
        with pytest.raises(ConfigError, match="needs a dataset with an end"):
            endless[from_the_end]
