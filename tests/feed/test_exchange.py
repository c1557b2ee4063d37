"""Rows read for other hosts: whoever reads them, batch k is batch k.

Hosts are made up: each reads its part with a reader of its own, and what the devices would do with
the pools is done with numpy here. The program of the devices is held against numpy too; real
processes: tests/feed/test_loader_meshes.py.
"""

import logging
import os
import tempfile
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import headrace.testing
from headrace.data import AsyncDataset, MixtureDataset, TokenSeqDataset
from headrace.data.columns import ColumnConfig
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.feed import exchange as module
from headrace.feed.exchange import Look, RowExchange
from headrace.feed.plan import RunRows, plan_window
from headrace.feed.pooled_rows import PooledRows, exchange_rows, holders_of, row_shards
from headrace.feed.reader import Grouping, MappedReader, PlannedReader
from headrace.metrics import IterationStats
from headrace.mix import BatchSchedule
from headrace.store import CacheLayout
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
SEQ_LEN = 6
LEAVES = {
    LeafSpec("topk", "int16", width=3): lambda ids: np.asarray(ids)[:, None] + np.arange(3),
    LeafSpec("score", "float32", "fixed"): lambda ids: np.asarray(ids[:1]) / 4,
}
COLUMNS = {"topk": ColumnConfig("topk", 7), "score": ColumnConfig("score", 0.5)}
NAMES = ("tokens", "token_ids", "source_id", "token_mask")


class Host:
    """The process that holds some shards of each batch, and some columns of each row."""

    def __init__(self, holders, number, columns=(0, SEQ_LEN)):
        self.holders = holders
        self.number = number
        self.columns = columns

    def local_columns(self, seq_len):
        return self.columns

    def local_rows(self, size):
        shards = np.repeat(np.arange(self.holders.size), size // self.holders.size)
        return np.flatnonzero(self.holders[shards] == self.number)


def sources(root, count, seed, masked):
    for k in range(count):
        rng = np.random.default_rng(seed + k)
        tokens = [rng.integers(0, 200, rng.integers(1, 20)) for _ in range(40)]
        layout = CacheLayout(
            ["uint8", "uint16"][(seed + k) % 2], chunk_elements=[12, 16, 30][k % 3], shard_chunks=2
        )
        mask = (lambda ids: np.asarray(ids) % 3 != 1) if masked and k % 2 else None
        leaves = LEAVES if masked and k % 2 else {}
        cache = write_cache(
            f"{root}/{k}", [tokens], eos_id=255, layout=layout, mask=mask, leaves=leaves
        )
        yield (
            f"s{k}",
            TokenSeqDataset(cache, SEQ_LEN, name=f"s{k}", columns=COLUMNS if masked else None),
        )


def ramp(root, holders, seed=0, count=3, masked=True, ends=True):
    """Braids whose shares change all the time."""
    braids = {
        name: d.braid_shuffle(strands=4, seed=seed)
        for name, d in sources(root, count, seed, masked)
    }
    weights = {name: {"linear": {0: 1 + k, 12: 4 - k}} for k, name in enumerate(braids)}
    n = holders.size
    how = {"stop_strategy": "first_exhausted"} if ends else {}
    return MixtureDataset(braids, weights, {0: 2 * n, 5: 3 * n}, **how)


def batches_of(dataset, host, exchange, first, steps, group, row_order="locality"):
    stats = IterationStats()
    order = BatchOrder(dataset, row_order=row_order)
    reader = PlannedReader(order, host, 1 << 20, stats, Grouping(group), exchange=exchange)
    return list(reader.batches(first, steps)), stats.reads


def arrays_of(read):
    host = read.arrays if isinstance(read, PooledRows) else read
    extras = getattr(host, "extras", None) or {}
    return {n: x for n in NAMES if (x := getattr(host, n, None)) is not None} | extras


def put_together(parts, holders):
    """What the devices make of the arrays of all hosts for a step, by name of the array; and the
    size of the batch.
    """
    n = holders.size
    size = parts[0].batch_size if hasattr(parts[0], "batch_size") else 0
    if not isinstance(parts[0], PooledRows):
        whole: dict[str, np.ndarray] = {}
        for number, part in enumerate(parts):
            for name, array in arrays_of(part).items():
                whole.setdefault(name, np.zeros((size, *array.shape[1:]), array.dtype))
                whole[name][Host(holders, number).local_rows(size)] = array
        return whole
    whole = {}
    index = np.empty(size, np.int64)
    for number, part in enumerate(parts):
        index[Host(holders, number).local_rows(size)] = part.origin
        for name, array in arrays_of(part).items():
            whole.setdefault(name, np.zeros((part.array_size, *array.shape[1:]), array.dtype))
            whole[name][Host(holders, number).local_rows(part.array_size)] = array
    share = size // n
    each = parts[0].array_size // n
    for name, array in whole.items():
        of_shards = array.reshape(n, each, *array.shape[1:])
        pools = of_shards[:, share:].reshape(-1, *array.shape[1:])
        rows = [
            np.concatenate([of_shards[k, :share], pools])[index[k * share :][:share]]
            for k in range(n)
        ]
        whole[name] = np.concatenate(rows)
    return whole


@given(data=st.data())
def test_batches_do_not_depend_on_who_reads_their_rows(data):
    holders = np.asarray(
        data.draw(st.permutations([0, 0, 1, 1, 2]) | st.just([0, 1]) | st.just([1, 0, 2]))
    )
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        dataset = ramp(root, holders, data.draw(st.integers(0, 9)), masked=data.draw(st.booleans()))
        row_order = data.draw(st.sampled_from(["locality", "locality", "stream"]))
        first = data.draw(st.integers(0, 3))
        steps = DataLoader(dataset, row_order=row_order, **one_device()).num_steps
        columns = data.draw(st.sampled_from([(0, SEQ_LEN), (2, 5)]))
        group = data.draw(st.sampled_from([0, 2]))
        hosts = [Host(holders, number, columns) for number in range(holders.max() + 1)]
        plain = [
            batches_of(dataset, h, None, first, steps, 0, row_order=row_order)[0] for h in hosts
        ]
        apart = [
            batches_of(dataset, h, RowExchange(holders, "on"), first, steps, group, row_order)
            for h in hosts
        ]
        assert any(isinstance(b, PooledRows) for b in apart[0][0])
        assert sum(stats.exchanged_examples for _, stats in apart) > 0
        for k in range(steps - first):
            expected, found = (
                put_together([b[k] for b in x], holders) for x in (plain, [b for b, _ in apart])
            )
            assert expected.keys() == found.keys()
            for name, array in expected.items():
                assert array.dtype == found[name].dtype
                assert np.array_equal(array, found[name]), (k, name)


def one_device():
    return {"mesh": Mesh(np.asarray(jax.devices()[:1]), ("data",))}


def test_each_block_is_read_by_one_host(tmp_path):
    """Blocks are open for long, shares change: without the exchange many are read on both sides of
    a border.
    """
    holders = np.arange(4)
    tokens = [np.arange(20 * 16 * SEQ_LEN - 1) % 200]
    layout = CacheLayout("uint8", chunk_elements=16 * SEQ_LEN)
    braids = {}
    for k, name in enumerate("abc"):
        cache = write_cache(tmp_path / name, [tokens] * 2, eos_id=255, layout=layout)
        braids[name] = TokenSeqDataset(cache, SEQ_LEN, split_documents=True).braid_shuffle(
            strands=20, lap=5, seed=k, io_block_size=16
        )
    weights = {"a": {"linear": {0: 1, 40: 3}}, "b": {"linear": {0: 3, 40: 1}}, "c": 1.3}
    dataset = MixtureDataset(braids, weights, 16)
    hosts = [Host(holders, number) for number in range(4)]
    for first, setting, bars in (
        (0, "on", (1.0, 1.1)),
        (0, "auto", (1.0, 1.1)),
        (7, "auto", (1.0, 1.1)),  # of a run that is resumed
        (0, None, (1.3, 4.0)),
    ):
        run = RunRows(dataset, dataset.batch_schedule, "locality")
        alone = plan_window(run, Host(holders * 0, 0), first, 60)
        used = alone.uses.blocks.size
        reads = [
            batches_of(dataset, h, setting and RowExchange(holders, setting), first, first + 60, 0)[
                1
            ]
            for h in hosts
        ]
        assert bars[0] <= sum(r.block_fetches for r in reads) / used <= bars[1]
        assert sum(r.examples_requested for r in reads) == 60 * 16
        assert (sum(r.exchanged_examples for r in reads) > 0) == (setting is not None)
        assert all(r.exchanged_bytes == r.exchanged_examples * SEQ_LEN for r in reads)


def test_functions_see_rows_where_they_are_read_and_padding_as_ever(tmp_path):
    """A function is called once for each row, on the host that reads it; its arrays are what is
    exchanged.
    """
    holders = np.arange(3)
    seen = []
    dataset = ramp(tmp_path, holders)

    def function(batch):
        padding = batch.source_id < 0
        assert (batch.token_ids[padding] == 0).all()
        seen.append(int((~padding).sum()))
        return replace(batch, token_ids=(batch.token_ids + 3).astype(np.int32))

    def mapped(host, exchange):
        stats = IterationStats()
        order = BatchOrder(dataset.map(function))
        planned = PlannedReader(order, host, 1 << 20, stats, Grouping(0), exchange=exchange)
        return list(MappedReader(planned, order, stats).batches(0, steps))

    steps = DataLoader(dataset, **one_device()).num_steps
    hosts = [Host(holders, number) for number in range(3)]
    plain = [mapped(h, None) for h in hosts]
    rows = sum(seen)
    seen = []
    apart = [mapped(h, RowExchange(holders, "on")) for h in hosts]
    assert sum(seen) == rows == dataset.length
    found = {}
    for k in range(steps):
        found = put_together([b[k] for b in apart], holders)
        for name, array in found.items():
            whole = np.concatenate([arrays_of(b[k])[name] for b in plain])
            assert array.dtype == whole.dtype
            assert np.array_equal(array, whole), (k, name)
    assert (found["source_id"] == -1).any()


def test_rows_for_which_pools_have_no_room_are_read_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POOL_BYTES", 0)
    holders = np.arange(3)
    dataset = ramp(tmp_path, holders, ends=False)
    hosts = [Host(holders, number) for number in range(3)]
    plain = [batches_of(dataset, h, None, 0, 12, 0, row_order="stream")[0] for h in hosts]
    apart = [
        batches_of(dataset, h, RowExchange(holders, "on"), 0, 12, 0, row_order="stream")
        for h in hosts
    ]
    assert all(b.array_size == b.batch_size + 3 for b in apart[0][0])  # one row each
    sent = sum(stats.exchanged_examples for _, stats in apart)
    assert 12 < sent <= 3 * 12
    for k in range(12):
        expected, found = (
            put_together([b[k] for b in x], holders) for x in (plain, [b for b, _ in apart])
        )
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def windows_of(drift, count=12):
    """Windows of 64 steps of 32 rows: 32 strands of 8 rows a block, whose rows move by ``drift``
    places a step.
    """
    sizes = np.full(64, 32)
    for number in range(count):
        steps = np.arange(64) + 64 * number
        strand = np.tile(np.arange(32), (64, 1))
        shift = np.rint(4 * np.sin(steps * drift)).astype(int)
        strand = np.sort(np.clip(strand + shift[:, None], 0, 31), axis=1)
        block = (strand + 32 * (steps // 16)[:, None]).ravel()
        uses = np.arange(block.size), block
        nowhere = np.zeros(block.size, bool)
        yield Look(sizes, sizes, strand.ravel() / 32, lambda uses=uses: uses, nowhere)


def arranged_by(exchange, windows):
    """All windows, arranged one by one; what is ahead of one are those from it on."""
    return [
        exchange.arrange(window, lambda number=number: iter(windows[number:]), row_bytes=8)
        for number, window in enumerate(windows)
    ]


def test_auto_turns_on_where_blocks_are_read_often(caplog):
    with caplog.at_level(logging.INFO):
        steady = arranged_by(RowExchange(np.arange(4), "auto"), list(windows_of(0.0)))
        assert steady == [None] * 12
        assert caplog.messages == []
        drifting = list(windows_of(0.3))
        arranged = arranged_by(RowExchange(np.arange(4), "auto"), drifting)
    assert None not in arranged
    resumed = arranged_by(RowExchange(np.arange(4), "auto"), drifting[5:])
    assert None not in resumed
    assert "auto turns it on" in caplog.messages[0]


def test_auto_stays_off_where_hosts_would_share_blocks_all_the_same():
    """Each row is in a block of its own choice, so that no borders keep blocks apart."""
    rng = np.random.default_rng(0)
    sizes = np.full(64, 32)
    windows: list[Look] = []
    for _ in range(12):
        locality = np.sort(rng.random((64, 32)), axis=1).ravel()
        uses = np.arange(locality.size), rng.integers(0, 500, locality.size)
        nowhere = np.zeros(locality.size, bool)
        windows.append(Look(sizes, sizes, locality, lambda uses=uses: uses, nowhere))
    assert arranged_by(RowExchange(np.arange(4), "auto"), windows) == [None] * 12


@pytest.mark.parametrize("hosts", [3, 8])
def test_hosts_keep_a_source_of_few_blocks_once_between_them(tmp_path, hosts):
    """All rows of each are permuted, so every host draws from every block."""
    holders = np.arange(hosts)
    layout = CacheLayout("uint16", chunk_elements=4 * SEQ_LEN)
    rng = np.random.default_rng(0)
    small = {
        name: TokenSeqDataset(
            write_cache(tmp_path / name, [[rng.integers(0, 99, 40 * SEQ_LEN)]], layout=layout),
            SEQ_LEN,
        ).braid_shuffle(strands=40, seed=0, io_block_size=4)
        for name in ("a", "b", "c")
    }
    tokens = [[np.full(96 * 4 * hosts * SEQ_LEN, 7)]]
    large = TokenSeqDataset(write_cache(tmp_path / "large", tokens, layout=layout), SEQ_LEN)
    braid = large.braid_shuffle(strands=4 * hosts, seed=0, io_block_size=4)
    few = MixtureDataset(small, dict.fromkeys(small, 1), 12 * hosts)
    one_in_nine = MixtureDataset(
        {"large": braid, **small}, {"large": 24, **dict.fromkeys(small, 1)}, 9 * hosts
    )
    assert few.everywhere.all()
    assert one_in_nine.everywhere.tolist() == [False, True, True, True]

    def read(dataset, setting):
        exchanges = [setting and RowExchange(holders, setting) for _ in holders]
        hosts_read = [
            batches_of(dataset, Host(holders, number), exchange, 0, 40, 0)
            for number, exchange in enumerate(exchanges)
        ]
        return sum(stats.block_fetches for _, stats in hosts_read)

    assert read(few, "on") == 3 * 10  # ten blocks each
    plain, apart = (
        [
            batches_of(few, Host(holders, number), exchange, 0, 5, 0)[0]
            for number, exchange in enumerate(exchanges)
        ]
        for exchanges in ([None] * hosts, [RowExchange(holders, "on") for _ in holders])
    )
    for step in range(5):
        expected = put_together([batches[step] for batches in plain], holders)
        exchanged = put_together([batches[step] for batches in apart], holders)
        assert all(np.array_equal(expected[name], exchanged[name]) for name in expected)
    assert read(few, None) == read(few, "auto") == 3 * 10 * hosts
    reads = read(one_in_nine, "on")
    assert reads <= 3 * 10 + 8 * 40 * hosts / 4 + 4 * hosts < read(one_in_nine, None)


def test_pools_grow_in_few_sizes():
    sizes = [module._rounded(n) for n in range(200)]
    assert sizes[:10] == [0, 1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(n <= size <= max(1.5 * n, n + 1) for n, size in enumerate(sizes))
    assert len(set(sizes)) < 20


MESHES = [
    ({"data": 8}, PartitionSpec("data")),
    ({"data": 4, "model": 2}, PartitionSpec("data")),
    ({"model": 2, "data": 4}, PartitionSpec("data")),
    ({"data": 4, "seq": 2}, PartitionSpec("data", "seq")),
    ({"seq": 2, "data": 4}, PartitionSpec("data", "seq")),
    ({"data": 2, "fsdp": 2, "model": 2}, PartitionSpec(("fsdp", "data"))),
    ({"data": 2, "fsdp": 2, "seq": 2}, PartitionSpec(("data", "fsdp"), "seq")),
]


@pytest.mark.parametrize(("shape", "spec"), MESHES)
def test_devices_put_rows_in_their_places(shape, spec):
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(*shape.values()), tuple(shape))
    rows = NamedSharding(mesh, PartitionSpec(*spec[:1]))
    whole = NamedSharding(mesh, spec)
    n = row_shards(rows)
    share = 3
    pool = 2
    rng = np.random.default_rng(0)
    arrays = {
        "tokens": rng.integers(0, 60000, (n * (share + pool), 4)).astype(np.uint16),
        "mask": rng.integers(0, 2, (n * (share + pool), 4)).astype(np.uint8),
        "source": rng.integers(-1, 9, n * (share + pool)).astype(np.int32),
        "flag": rng.integers(0, 2, n * (share + pool)).astype(bool),
        "extra": rng.normal(size=(n * (share + pool), 2, 3)).astype(np.float32),
    }
    index = rng.integers(0, share + n * pool, n * share).astype(np.int32)
    shardings = {name: whole if name in ("tokens", "mask") else rows for name in arrays}
    placed = {name: jax.device_put(a, shardings[name]) for name, a in arrays.items()}
    found = exchange_rows(
        PooledRows(placed, jax.device_put(index, rows), n * share, n * (share + pool))
    )
    for name, array in arrays.items():
        of_shards = array.reshape(n, share + pool, *array.shape[1:])
        pools = of_shards[:, share:].reshape(-1, *array.shape[1:])
        expected = [
            np.concatenate([of_shards[k, :share], pools])[index[k * share :][:share]]
            for k in range(n)
        ]
        assert found[name].dtype == array.dtype
        assert found[name].sharding.is_equivalent_to(shardings[name], array.ndim)
        assert np.array_equal(np.asarray(found[name]), np.concatenate(expected)), name


class Device:
    def __init__(self, process):
        self.process_index = process


class Sharding:
    """The little that is asked of a sharding of rows: which device holds which of them."""

    def __init__(self, held):
        self.held = held
        self.mesh = type("mesh", (), {"shape": {"data": max(k for k, _ in held) + 1}})
        self.spec = PartitionSpec("data")

    def devices_indices_map(self, shape):
        return {
            Device(p): (slice(k, k + 1) if shape[0] > 1 else slice(None),) for k, p in self.held
        }


@pytest.mark.parametrize(
    ("held", "numbers"),
    [
        ([(0, 0), (1, 0), (2, 1), (3, 1)], [0, 0, 1, 1]),
        ([(0, 0), (1, 1), (2, 0), (3, 1)], [0, 1, 0, 1]),  # processes take turns
        ([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 0]),  # every process holds every row
        ([(0, 0), (0, 1), (1, 2), (1, 3)], [0, 1]),  # each row in two processes
        ([(0, 0), (0, 1), (1, 1), (1, 0)], [0, 1]),  # in both, but not of the same columns
        ([(0, 3)], [0]),
    ],
)
def test_shards_are_of_one_holder_if_the_same_processes_hold_them(held, numbers):
    assert holders_of(Sharding(held)).tolist() == numbers


class Own(AsyncDataset):
    """A dataset of the user's own, which does not say where its rows lie."""

    @property
    def length(self):
        return 8

    async def get_batch(self, indices):
        return np.asarray(indices)

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return {}


def test_bad_settings():
    dataset = TokenSeqDataset(headrace.testing.tiny_cache(), 8)
    with pytest.raises(
        ConfigError, match=r"row_exchange = 'onn': is not one of those\. Did you mean 'on'"
    ):
        DataLoader(dataset, 8, row_exchange="onn")
    with pytest.raises(
        ConfigError,
        match=r"needs stored blocks, and Own reads its rows itself\. Use 'auto' or 'off'",
    ):
        DataLoader(Own(), 8, row_exchange="on")
    assert DataLoader(Own(), 8).row_exchange == "auto"


def test_one_process_has_nobody_to_exchange_rows_with():
    loader = DataLoader(
        TokenSeqDataset(headrace.testing.tiny_cache(), 8).shuffle(0), 8, row_exchange="on"
    )
    assert loader.placement.rows_sharding.mesh.size == 8
    with loader.iter_from_step(0) as batches:
        assert (next(batches).tokens == loader.batch_at(0).tokens).all()
    assert loader.stats().reads.exchanged_examples == 0
    assert (
        loader.describe()
        == DataLoader(loader.dataset, BatchSchedule(8), row_exchange="off").describe()
    )
