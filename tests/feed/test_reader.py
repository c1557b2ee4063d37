"""The heart of feeding: whatever the dataset, the budget, the windows and the number of hosts,
batch k is batch k.

Rows from planned blocks must be those that ``dataset.read`` finds with plain ranged reads, which
tests/data holds against walks over documents. No devices here: a placement is only asked which rows
a host holds.
"""

import os
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.data.columns import MASK
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError, ReadError
from headrace.feed.plan import RunRows, plan_window
from headrace.feed.reader import Grouping, PlannedReader
from headrace.metrics import IterationStats, ReadStats
from headrace.mix import BatchSchedule
from headrace.order import Order
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.caches import CountingArray, random_documents, with_arrays

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Listed(Order):
    """The rows of a list, for orders made up by hand."""

    reorders = True

    def __init__(self, rows):
        super().__init__(len(rows), max(rows) + 1)
        self.listed = np.asarray(rows, np.int64)

    def at(self, i, epoch):
        return self.listed[i]


class Host:
    """Host h of H: which rows of a batch it holds, in one run or in turns; and which part of each
    row.
    """

    def __init__(self, number=0, hosts=1, turns=False, part=0, parts=1):
        self.number = number
        self.hosts = hosts
        self.turns = turns
        self.part = part
        self.parts = parts

    def local_columns(self, seq_len):
        return self.part * seq_len // self.parts, (self.part + 1) * seq_len // self.parts

    def local_rows(self, size):
        if self.turns:
            return np.arange(self.number, size, self.hosts)
        return np.arange(self.number * size // self.hosts, (self.number + 1) * size // self.hosts)


@st.composite
def caches(draw, root, seq_len, counted, dtype=None):
    """A cache of any layout, in which every part may be too short for a row, but not all; mapped,
    or read.
    """
    layout = CacheLayout(
        dtype or draw(st.sampled_from(["uint8", "uint16", "uint32"])),
        chunk_elements=draw(st.sampled_from([3, 16, 50, 64, 200])),
        shard_chunks=draw(st.integers(1, 4)),
        compression=draw(st.sampled_from(["none", "zstd"])),
    )
    seed = draw(st.integers(0, 50))
    sizes = draw(st.lists(st.integers(0, 12), max_size=3))
    parts = [random_documents(n, seed=seed + k) for k, n in enumerate(sizes)]
    parts.append([np.arange(3 * seq_len + 5) % 251])
    mask = trained if not counted and draw(st.booleans()) else None
    cache = write_cache(root, parts, eos_id=255, layout=layout, mask=mask)
    return with_arrays(cache, CountingArray) if counted or draw(st.booleans()) else cache


def trained(tokens):
    """The mask of caches that have one."""
    return np.asarray(tokens) % 3 != 1


@st.composite
def datasets(draw, root, counted=False):
    """A planned dataset of any kind, and its batch schedule."""
    seq_len = draw(st.sampled_from([2, 7, 16, 40]))
    batch = BatchSchedule(draw(st.sampled_from([1, 4, 6, {0: 4, 3: 7}, {0: 6, 2: 2, 5: 3}])))
    sources = []
    for k in range(draw(st.integers(1, 3))):
        dataset = TokenSeqDataset(
            draw(caches(f"{root}/{k}", seq_len, counted)), seq_len, name=str(k)
        )
        kind = draw(st.sampled_from(["stored", "full", "block", "era", "braid", "sliced"]))
        if kind == "full":
            dataset = dataset.shuffle(k)
        elif kind == "block":
            dataset = dataset.block_shuffle(window_blocks=draw(st.integers(1, 4)), seed=k)
        elif kind == "era":
            dataset = dataset.era_shuffle(draw(st.integers(1, 9)), seed=k)
        elif kind == "braid":
            dataset = dataset.braid_shuffle(
                seed=k, strands=draw(st.integers(1, min(5, len(dataset))))
            )
        elif kind == "sliced":
            dataset = dataset.slice(1).shuffle(k).take(5)
        sources.append(dataset)
    if len(sources) > 1 or draw(st.booleans()):
        weights = {str(k): {"linear": {0: 1, 9: k}} if k else 1 for k in range(len(sources))}
        return MixtureDataset(dict(zip(weights, sources, strict=True)), weights, batch), batch
    repeats = draw(st.sampled_from([None, 1, 3]))
    dataset = sources[0].take(draw(st.sampled_from([1, 9, 17, 1000])))
    return (dataset if repeats is None else dataset.repeat(repeats)), batch


def last_step(dataset, batch, most=14):
    """As many steps as there are, the short last one included, but not too many."""
    if dataset.length is None:
        return most
    return min(int(batch.step_of(np.array([dataset.length - 1]))[0]) + 1, most)


def wanted_steps(dataset, batch, steps):
    """Rows of each step by ``dataset.read``: tokens, sources, and how many of them are valid."""
    for step in range(steps):
        first, size = batch.rows_at(step)
        valid = size if dataset.length is None else min(size, dataset.length - first)
        found = dataset.read(np.arange(first, first + valid))
        yield found.tokens, found.source_id, size, found.token_mask


def least_budget(dataset, batch, host, row_order, steps):
    """Bytes of the blocks of the step that needs most of them."""
    run = RunRows(dataset, batch, row_order)
    plans = [plan_window(run, host, step, 1) for step in range(steps)]
    return max(p.uses.blocks.size for p in plans)


def reader(dataset, batch, host, row_order, max_bytes, group=0, stats=None, mapping=True):
    counted = IterationStats()
    counted.reads = stats or counted.reads
    order = BatchOrder(dataset, batch, row_order)
    return PlannedReader(order, host, max_bytes, counted, Grouping(group), mapping=mapping)


def slot_bytes(dataset):
    arrays = [a for s in dataset.sources for a in s.arrays]
    masked = any(MASK in s.columns for s in dataset.sources)
    largest = (
        max(a.chunk_elements * a.dtype.itemsize for a in arrays),
        masked * max(a.chunk_elements for a in arrays),
    )
    return sum((size + 7) // 8 * 8 for size in largest)


def check_batches(data):
    """Any dataset, order, budget, window and number of hosts."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        dataset, batch = data.draw(datasets(root))
        row_order = data.draw(st.sampled_from(["stream", "locality"]))
        hosts = data.draw(st.integers(1, 4))
        turns = data.draw(st.booleans())
        parts = min(data.draw(st.sampled_from([1, 1, 2, 3])), dataset.seq_len)
        steps = last_step(dataset, batch)
        first = data.draw(st.integers(0, steps))
        slack = data.draw(st.sampled_from([0, 1, 3, 1000]))
        mapping = data.draw(st.booleans())
        widest = np.result_type(*(a.dtype for s in dataset.sources for a in s.arrays))
        found = []
        for number, part in np.ndindex(hosts, parts):
            host = Host(number, hosts, turns, part, parts)
            budget = (least_budget(dataset, batch, host, row_order, steps) + slack) * slot_bytes(
                dataset
            )
            stats = ReadStats()
            group = data.draw(st.sampled_from([0, 1, 2]))
            source = reader(dataset, batch, host, row_order, budget, group, stats, mapping)
            mine = []
            for batch_rows in source.batches(first, steps):
                assert (
                    batch_rows.tokens.dtype == widest
                )  # on every host and in every step: one program
                assert source.resident_bytes <= budget
                mine.append(batch_rows)
            found.append(mine)
            assert len(mine) == steps - first
            assert stats.bytes_read >= 0
            read = stats.tensorstore_reads_issued + stats.mapped_blocks
            assert (
                stats.block_fetches <= read <= len(dataset.block_space.kinds) * stats.block_fetches
            )
        for k, (tokens, sources, size, mask) in enumerate(
            list(wanted_steps(dataset, batch, steps))[first:]
        ):
            everything = np.zeros((size, dataset.seq_len), np.int64)
            masks = np.zeros((size, dataset.seq_len), np.uint8)
            source_id = np.full(size, -1)
            for (number, part), mine in zip(np.ndindex(hosts, parts), found, strict=True):
                host = Host(number, hosts, turns, part, parts)
                rows = host.local_rows(size)
                everything[rows, slice(*host.local_columns(dataset.seq_len))] = mine[k].tokens
                source_id[rows] = mine[k].source_id
                assert (mine[k].token_mask is None) == (mask is None)
                if mask is not None:
                    masks[rows, slice(*host.local_columns(dataset.seq_len))] = mine[k].token_mask
                assert mine[k].batch_size == size
                assert mine[k].seq_len == dataset.seq_len
            assert (everything[len(tokens) :] == 0).all()
            pairs = [
                (s, *row)
                for s, row in zip(
                    source_id[: len(tokens)].tolist(), everything.tolist(), strict=False
                )
            ]
            wanted = [(s, *row) for s, row in zip(sources.tolist(), tokens.tolist(), strict=True)]
            if row_order == "locality":
                begin = batch.rows_at(first + k)[0]
                where = dataset.locate(np.arange(begin, begin + len(tokens))).locality
                wanted = [wanted[i] for i in np.argsort(where, kind="stable")]
            assert pairs == wanted
            if mask is not None:
                masked = np.array([MASK in s.columns for s in dataset.sources])[
                    source_id[: len(tokens), None]
                ]
                assert np.array_equal(
                    masks[: len(tokens)] != 0, ~masked | trained(everything[: len(tokens)])
                )
                held = np.c_[everything, masks][: len(tokens)]
                assert sorted(np.c_[tokens, mask].tolist()) == sorted(held.tolist())


@pytest.mark.parametrize("mapping", [True, False])
@pytest.mark.parametrize("dtypes", [("uint8",), ("uint8", "uint16")])
def test_a_host_may_have_no_rows_in_some_steps(tmp_path, dtypes, mapping):
    batch = BatchSchedule({0: 6, 2: 2, 5: 3})
    sources = {}
    for dtype in dtypes:
        cache = write_cache(
            tmp_path / dtype, [[np.arange(400) % 251]], layout=CacheLayout(dtype, chunk_elements=16)
        )
        sources[dtype] = TokenSeqDataset(cache, 5).shuffle(0)
    dataset = MixtureDataset(sources, dict.fromkeys(dtypes, 1), batch)
    for group in (0, 1, 2):
        delivered = []
        for number in range(4):
            host = Host(number, 4, False, 0, 1)
            steps = [
                *reader(dataset, batch, host, "stream", 1 << 20, group, None, mapping).batches(0, 8)
            ]
            delivered.append([rows.tokens for rows in steps])
        for step, (tokens, *_) in enumerate(wanted_steps(dataset, batch, 8)):
            assert np.array_equal(np.concatenate([of_host[step] for of_host in delivered]), tokens)
        assert any(of_host[3].size == 0 for of_host in delivered)


@given(data=st.data())
def test_batches_are_the_rows_that_the_dataset_names(data):
    check_batches(data)


@pytest.mark.fuzz
@given(data=st.data())
def test_batches_are_the_rows_that_the_dataset_names_at_length(data):
    check_batches(data)


@given(data=st.data())
def test_each_block_is_read_once_when_the_budget_allows(data):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        dataset, batch = data.draw(datasets(root, counted=True))
        steps = last_step(dataset, batch)
        arrays = [a for s in dataset.sources for a in s.arrays]
        assert all(isinstance(a, CountingArray) for a in arrays)
        budget = sum(-(-a.length // a.chunk_elements) for a in arrays) * slot_bytes(dataset)
        stats = ReadStats()
        source = reader(
            dataset, batch, Host(), "locality", budget, data.draw(st.sampled_from([0, 1, 2])), stats
        )
        batches = list(source.batches(0, steps))
        run = RunRows(dataset, batch, "locality")
        used = plan_window(run, Host(), 0, steps).uses.blocks.size
        assert stats.block_fetches == used
        assert sum(a.reads for a in arrays) == stats.tensorstore_reads_issued == used
        assert sum(a.elements * a.dtype.itemsize for a in arrays) == stats.bytes_read
        assert stats.examples_requested == sum((b.source_id >= 0).sum() for b in batches)
        assert stats.coalesced_ranges <= stats.unique_examples <= stats.examples_requested


@pytest.fixture(scope="module")
def twelve(tmp_path_factory):
    """Twelve rows of one block each."""
    root = tmp_path_factory.mktemp("twelve")
    cache = write_cache(
        root, [[np.full(4, r) for r in range(12)]], layout=CacheLayout("uint8", 4, 5)
    )
    return TokenSeqDataset(cache, 4)


@settings(max_examples=200)
@given(
    rows=st.lists(st.integers(0, 11), min_size=12, max_size=60),
    size=st.integers(1, 3),
    room=st.integers(3, 12),
    group=st.integers(0, 4),
    mapping=st.booleans(),
)
@example(
    rows=[7] * 8 + [8, 9, 7, 10] + [11, 0, 1, 7] + [2, 3, 4, 5],
    size=2,
    room=8,
    group=0,
    mapping=False,
)  # 7 stays: it is needed later
def test_no_slot_is_reused_while_a_step_needs_it(twelve, rows, size, room, group, mapping):
    dataset = twelve.reordered(Listed(rows))
    source = reader(
        dataset,
        BatchSchedule(size),
        Host(),
        "stream",
        room * 8,
        group,
        mapping=mapping,
    )
    steps = len(rows) // size
    assert [b.tokens[:, 0].tolist() for b in source.batches(0, steps)] == [
        rows[k * size : (k + 1) * size] for k in range(steps)
    ]


def test_slots_are_reused_and_a_block_stays_while_a_later_step_needs_it(tmp_path):
    """Rows 0, 1, 2, ... of one-row blocks in a window that jumps back and forth: room for 6 blocks,
    40 in all.
    """
    cache = write_cache(
        tmp_path, [[np.full(4, r) for r in range(40)]], layout=CacheLayout("uint8", 4, 5)
    )
    dataset = TokenSeqDataset(with_arrays(cache, CountingArray), 4).era_shuffle(8, seed=3).repeat(3)
    stats = ReadStats()
    source = reader(dataset, BatchSchedule(2), Host(), "stream", 6 * 8, 0, stats)
    rows = np.concatenate([b.tokens[:, 0] for b in source.batches(0, 60)])
    assert rows.tolist() == dataset.read(np.arange(120)).tokens[:, 0].tolist()
    # three passes; where one ends and the next begins a few blocks are needed again soon, and stay
    assert 120 - 3 * 8 <= stats.block_fetches < 120
    assert source.resident_bytes == 6 * 8


def test_what_is_needed_soon_is_not_thrown_out_to_make_room(tmp_path):
    """Room for eight: when 8 is fetched, 0, 1 and 2 are the oldest of all, and must stay: they come
    next.
    """
    cache = write_cache(
        tmp_path, [[np.full(4, r) for r in range(10)]], layout=CacheLayout("uint8", 4, 8)
    )
    order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    stats = ReadStats()
    dataset = TokenSeqDataset(cache, 4).reordered(Listed(order))
    source = reader(dataset, BatchSchedule(2), Host(), "stream", 8 * 8, 0, stats)
    assert np.concatenate([b.tokens[:, 0] for b in source.batches(0, 6)]).tolist() == order
    assert (stats.block_fetches, stats.block_hits) == (9, 3)


def test_a_budget_of_less_than_one_batch_says_how_much_is_needed(tmp_path):
    cache = write_cache(
        tmp_path, [[np.full(4, r) for r in range(40)]], layout=CacheLayout("uint8", 4, 5)
    )
    dataset = TokenSeqDataset(cache, 4).shuffle(0)
    with pytest.raises(ConfigError, match="step 0 needs 8 blocks") as caught:
        next(reader(dataset, BatchSchedule(8), Host(), "stream", 7 * 8).batches(0, None))
    assert (caught.value.field, caught.value.value) == ("prefetch_bytes", 56)
    assert caught.value.cure == "Give at least 64; 256 lets reads run ahead."
    batches = list(reader(dataset, BatchSchedule(8), Host(), "stream", 64).batches(0, 5))
    assert (
        np.concatenate([b.tokens[:, 0] for b in batches]).tolist()
        == dataset.read(np.arange(40)).tokens[:, 0].tolist()
    )


@pytest.mark.parametrize(("room", "asked"), [(1000, 20), (16, 20), (8, 12), (4, 8)])
def test_reads_run_ahead_of_the_batches(tmp_path, room, asked):
    """Two batches of two one-row blocks were taken: how many blocks were asked for, with room for
    ``room``.
    """
    stored = write_cache(
        tmp_path, [[np.full(4, r) for r in range(200)]], layout=CacheLayout("uint8", 4, 5)
    )
    cache = with_arrays(stored, CountingArray)
    array = cache.parts[0].data
    assert isinstance(array, CountingArray)
    source = reader(TokenSeqDataset(cache, 4), BatchSchedule(2), Host(), "stream", room * 8)
    batches = source.batches(0, 12)
    assert next(batches).tokens[:, 0].tolist() == [0, 1]
    assert array.reads == 2  # the first batch waits for its own blocks, and for no other
    assert next(batches).tokens[:, 0].tolist() == [2, 3]
    assert source.resident_bytes <= room * 8
    assert array.reads == asked


class SteppedArray(CountingArray):
    """Answers when told to: blocks below ``ready``."""

    ready = 0

    def read_into(self, out, start):
        done = super().read_into(out, start)
        array = self

        class Waiting:
            def result(self, timeout=None):
                if start // array.chunk_elements >= array.ready:
                    raise TimeoutError
                return done.result(timeout)

            def __await__(self):
                raise NotImplementedError

        return Waiting()


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_batch_never_waits_for_the_blocks_of_a_later_one(tmp_path, group):
    stored = write_cache(
        tmp_path, [[np.full(4, r) for r in range(40)]], layout=CacheLayout("uint8", 4, 5)
    )
    cache = with_arrays(stored, SteppedArray)
    array = cache.parts[0].data
    assert isinstance(array, SteppedArray)
    source = reader(TokenSeqDataset(cache, 4), BatchSchedule(2), Host(), "stream", 1 << 20, group)
    batches = source.batches(0, 20)
    for step in range(20):
        array.ready = 2 * step + 2
        assert next(batches).tokens[:, 0].tolist() == [2 * step, 2 * step + 1]


def test_a_lost_shard_fails_the_step_that_needs_it_and_no_other(tmp_path):
    cache = write_cache(
        tmp_path, [[np.full(4, r) for r in range(40)]], layout=CacheLayout("uint8", 8, 2)
    )
    (
        tmp_path / "parts" / "00000" / "input_ids" / "data" / "c" / "3"
    ).unlink()  # rows 12 to 15, chunks 6 and 7
    source = [
        reader(TokenSeqDataset(cache, 4), BatchSchedule(4), Host(), "stream", 1 << 20, 2)
        for _ in range(2)
    ]
    good = []
    with pytest.raises(
        ReadError,
        match=r"chunk 6 cannot be read for step 3 \(NOT_FOUND.*is missing, shard file .*/c/3\)",
    ) as caught:
        good.extend(source[0].batches(0, None))
    assert [b.tokens[0, 0] for b in good] == [0, 4, 8]
    assert caught.value.value == cache.parts[0].data.url
    assert isinstance(caught.value.__cause__, ReadError)
    assert [b.tokens[0, 0] for b in source[1].batches(4, 6)] == [16, 20]


@pytest.mark.parametrize("mapping", [True, False])
def test_a_lost_array_fails_the_step_that_needs_it_and_no_other(tmp_path, mapping):
    cache = write_cache(
        tmp_path, [[np.arange(16)], [np.arange(16, 32)]], layout=CacheLayout("uint8", 8, 2)
    )
    shutil.rmtree(tmp_path / "parts" / "00001" / "input_ids")
    dataset = TokenSeqDataset(cache, 4)
    source = reader(dataset, BatchSchedule(1), Host(), "stream", 1 << 20, 2, mapping=mapping)
    good = []
    with pytest.raises(ReadError, match=r"chunk 0 cannot be read for step 4 "):
        good.extend(source.batches(0, None))
    assert [b.tokens[0, 0] for b in good] == [0, 4, 8, 12]


@pytest.mark.parametrize("mapping", [True, False])
def test_counters_of_a_known_reading(tmp_path, mapping):
    """Two blocks of two rows, batch 4, rows 0 0 1 3: three distinct rows in two runs."""
    cache = write_cache(
        tmp_path, [[np.full(4, r) for r in range(8)]], layout=CacheLayout("uint16", 8, 8)
    )
    stats = ReadStats()
    dataset = TokenSeqDataset(cache, 4).reordered(Listed([0, 0, 1, 3]))
    next(
        reader(dataset, BatchSchedule(4), Host(), "stream", 64, 0, stats, mapping=mapping).batches(
            0, 1
        )
    )
    assert stats == ReadStats(
        examples_requested=4,
        unique_examples=3,
        coalesced_ranges=2,
        block_fetches=2,
        block_hits=0,
        tensorstore_reads_issued=0 if mapping else 2,
        bytes_read=32,
        mapped_blocks=2 if mapping else 0,
        bytes_delivered=32,
        content_tokens=16,
    )
    assert stats.reads_per_example == 0.5


@pytest.mark.parametrize(("every", "said"), [(2, True), (9, False)])
def test_rows_that_nothing_is_trained_on_are_counted(tmp_path, caplog, every, said):
    rows = [np.full(4, r % 251) for r in range(3000)]
    stored = write_cache(
        tmp_path, [rows], layout=CacheLayout("uint8", 64, 8), mask=lambda ids: ids % every > 0
    )
    stats = ReadStats()
    list(
        reader(
            TokenSeqDataset(stored, 4), BatchSchedule(7), Host(), "stream", 1 << 20, 8, stats
        ).batches(0, 429)
    )
    assert stats.untrained_examples == sum(
        r % 251 % every == 0 for r in range(3000)
    )  # the last batch is padded
    messages = [
        r.getMessage()
        for r in caplog.records
        if "hold no token that is trained on" in r.getMessage()
    ]
    assert len(messages) == said
    assert not said or "headrace run cat" in messages[0]


def test_a_host_that_holds_half_of_each_row_reads_half(tmp_path):
    """Rows of 64 tokens in chunks of 8: eight blocks a row, of which four lie on either side."""
    stored = write_cache(
        tmp_path, [[np.arange(64) + r for r in range(40)]], layout=CacheLayout("uint8", 8, 16)
    )
    dataset = TokenSeqDataset(with_arrays(stored, CountingArray), 64).shuffle(0)
    read = []
    tokens = []
    for host in (Host(), Host(part=0, parts=2), Host(part=1, parts=2)):
        stats = ReadStats()
        batches = list(
            reader(dataset, BatchSchedule(4), host, "locality", 1 << 20, 1, stats).batches(0, 10)
        )
        read.append(stats.bytes_read)
        tokens.append(np.concatenate([b.tokens for b in batches]))
    assert read == [40 * 64, 40 * 32, 40 * 32]
    assert np.array_equal(np.concatenate(tokens[1:], axis=1), tokens[0])
