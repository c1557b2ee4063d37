"""Files that are changed while a loader has them mapped: an error that names the file, and no wrong
batch.
"""

import itertools
import os
import shutil
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.data.dataset import BatchOrder
from headrace.errors import ReadError
from headrace.feed import mapped_files
from headrace.feed.mapped_files import MappedFiles
from headrace.feed.placement import Placement
from headrace.feed.reader import DEFAULT_GROUPING, Grouping, PlannedReader
from headrace.mix import BatchSchedule
from headrace.store import CacheLayout, open_cache, open_replicas
from headrace.store.mapped import MappedFile
from headrace.testing import write_cache

HERE = Placement(NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data")))
TOKENS = np.arange(4000) % 251
BATCH = 4


@pytest.fixture(autouse=True)
def always_look(monkeypatch):
    monkeypatch.setattr(mapped_files, "LOOK_S", 0.0)


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "c", [[TOKENS]], layout=CacheLayout("uint8", 64, 8))


def batches_of(cache, max_bytes=1 << 20, **options):
    order = BatchOrder(TokenSeqDataset(cache, 16).shuffle(1).repeat(), BatchSchedule(BATCH))
    return PlannedReader(order, HERE, max_bytes, grouping=Grouping(0), **options).batches(0, 200)


def assert_equal(batches, expected):
    for batch, rows in zip(batches, expected, strict=True):
        assert np.array_equal(batch.tokens, rows)


def shards(cache):
    return sorted(Path(cache.parts[0].data.url).glob("c/*"))


@pytest.mark.parametrize("seed", range(25))
def test_what_is_written_over_is_named_before_a_batch_is_made_of_it(cache, seed):
    random = np.random.default_rng(seed)
    expected = [
        batch.tokens for batch in batches_of(open_cache(cache.path), mapping=False)
    ]  # it keeps what it read
    path = shards(cache)[int(random.integers(len(shards(cache))))]
    found = batches_of(cache, [1 << 20, 2048][seed % 2])
    steps = int(random.integers(1, 70))
    assert_equal(itertools.islice(found, steps), expected[:steps])
    if random.random() < 0.5:
        os.truncate(path, int(random.integers(0, path.stat().st_size)))
    else:
        with path.open("r+b") as file:
            file.seek(int(random.integers(4)) * 68 + int(random.integers(64)))
            file.write(bytes([252]))
        os.utime(path, ns=(0, int(random.integers(1 << 40))))
    with pytest.raises(ReadError) as raised:
        assert_equal(found, expected[steps:])
    assert str(path.parent.parent) in str(raised.value)
    assert "headrace cache verify" in str(raised.value) or "copied whole" in str(raised.value)


def overwrite_keeping_its_time(path):
    """As ``cp --preserve`` does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(bytes([252]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_every_reader_of_a_file_that_was_written_over_is_told(cache):
    """The first one finds the damage, and the chunk is no longer sound: that is no reason for
    others to go on.
    """
    readers = [batches_of(cache) for _ in range(3)]
    for found in readers:
        list(itertools.islice(found, 70))  # more than an epoch: all chunks are sound
    overwrite_keeping_its_time(shards(cache)[1])
    for found in readers:
        with pytest.raises(ReadError, match="was changed while it was mapped"):
            list(found)


@pytest.mark.parametrize(("step_s", "least"), [(0.0001, 2), (0.1, 190)])
def test_looks_take_a_hundredth_of_the_time(cache, monkeypatch, step_s, least):
    """Before each copy and before each delivery, if steps take long enough."""
    clock = [100.0]
    busy = [0.0]

    def again(file):
        looks.setdefault(file.path, []).append(clock[0])
        busy[0] += 2e-5
        return again_as_it_is(file)

    looks = {}
    again_as_it_is = MappedFile.again
    monkeypatch.setattr(mapped_files, "LOOK_S", 0.5)
    monkeypatch.setattr(MappedFile, "again", again)
    monkeypatch.setattr(mapped_files.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(mapped_files.time, "thread_time", lambda: busy[0])
    found = batches_of(cache)
    for _ in range(100):
        next(found)
        clock[0] += step_s
    assert sorted(looks) == [str(path) for path in shards(cache)]
    assert len(looks) == 8
    assert min(map(len, looks.values())) >= least
    assert busy[0] <= (clock[0] - 100 + 0.5) / 100 + 8 * 2e-5


def test_a_chunk_that_another_reader_found_damaged_is_never_taken_from_a_slot_without_data(
    tmp_path,
):
    """This reader counts the chunk among those it holds, and its file among none that the window
    uses.
    """
    cache = write_cache(
        tmp_path / "c", [[np.arange(40_000) % 251]], layout=CacheLayout("uint8", 64, 1)
    )
    order = BatchOrder(TokenSeqDataset(cache, 16).repeat(), BatchSchedule(BATCH))
    found = PlannedReader(order, HERE, 1 << 20, grouping=Grouping(0)).batches(0, 700)
    list(itertools.islice(found, 400))
    overwrite_keeping_its_time(Path(cache.parts[0].data.url, "c", "5"))
    with pytest.raises(ReadError, match="was changed while it was mapped"):
        next(PlannedReader(order, HERE, 1 << 20, grouping=Grouping(0)).batches(5, 6))
    with pytest.raises(ReadError, match="was changed while it was mapped"):
        list(found)


def test_what_is_read_instead_of_damaged_chunks_is_held_no_longer_than_it_is_used(
    tmp_path, monkeypatch
):
    cache = write_cache(
        tmp_path / "c", [[np.arange(40_000) % 251]], layout=CacheLayout("uint8", 64, 8)
    )
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    for path in shards(cache):
        content = np.fromfile(path, np.uint8)
        content[: content.size - 132 : 68] ^= (
            1  # the first byte of each chunk; the shard's index is at the end
        )
        content.tofile(path)
    read = []
    replace = mapped_files.MappedFiles.replace

    def noted(files, block, memory):
        read.append(weakref.ref(memory))
        replace(files, block, memory)

    monkeypatch.setattr(mapped_files.MappedFiles, "replace", noted)
    healed = batches_in_order(open_replicas([str(tmp_path / "c"), str(tmp_path / "copy")]))
    most = 0
    for batch, expected in zip(
        healed, batches_in_order(open_cache(tmp_path / "copy")), strict=True
    ):
        assert np.array_equal(batch.tokens, expected.tokens)
        most = max(most, sum(memory() is not None for memory in read))
    assert len(read) == 620
    assert most < 300  # those of three windows of 64 steps


def batches_in_order(cache):
    order = BatchOrder(TokenSeqDataset(cache, 16), BatchSchedule(BATCH))
    return PlannedReader(order, HERE, 1 << 20, grouping=Grouping(0)).batches(0, 620)


def test_what_was_put_back_is_served_again(cache):
    expected = [batch.tokens for batch in batches_of(cache, mapping=False)]
    path = shards(cache)[1]
    content = path.read_bytes()
    found = batches_of(cache)
    list(itertools.islice(found, 70))
    overwrite_keeping_its_time(path)
    with pytest.raises(ReadError, match="was changed while it was mapped"):
        list(found)
    with path.open("r+b") as file:
        file.write(content)
    assert_equal(batches_of(cache), expected)


def test_what_only_looks_changed_goes_on(cache):
    expected = [batch.tokens for batch in batches_of(cache, mapping=False)]
    for number, path in enumerate(shards(cache)):
        found = batches_of(cache)
        next(found)
        if number % 3 == 0:
            path.touch()
        elif number % 3 == 1:
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        else:
            path.rename(path.with_suffix(".away"))
        assert_equal(found, expected[1:])
        if number % 3 == 2:
            path.with_suffix(".away").rename(path)


def test_what_is_mapped_leaves_the_page_tables_now_and_then(cache, monkeypatch):
    monkeypatch.setattr(mapped_files, "SWEEP_BYTES", 1000)
    expected = [batch.tokens for batch in batches_of(cache, mapping=False)]
    assert_equal(batches_of(cache, 2048), expected)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_what_an_earlier_loader_found_sound_is_looked_at_by_the_next(cache, monkeypatch, damage):
    monkeypatch.setattr(mapped_files, "LOOK_S", 1e9)
    next(batches_of(cache))
    for path in shards(cache):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(0) if damage == "cut" else file.write(bytes(size))
    with pytest.raises(ReadError, match="was changed while it was mapped"):
        next(batches_of(cache))


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
@pytest.mark.parametrize("look", range(1, 24))
@pytest.mark.parametrize("grouping", [Grouping(0), DEFAULT_GROUPING], ids=["steps", "groups"])
def test_what_changes_between_a_look_and_the_copy_is_not_delivered(
    cache, monkeypatch, grouping, look, damage
):
    """Nor does it end the process. Looks that see no change stand for those that
    are not due yet.
    """
    order = BatchOrder(TokenSeqDataset(cache, 16).shuffle(1).repeat(), BatchSchedule(BATCH))
    expected = [batch.tokens for batch in batches_of(cache, mapping=False)]
    check_files = MappedFiles.check_files
    looks = itertools.count(1)

    def look_then_write(self, window):
        check_files(self, window)
        if next(looks) == look:
            for path in shards(cache):
                with path.open("r+b") as file:
                    file.truncate(0) if damage == "cut" else file.write(bytes(path.stat().st_size))
            if damage == "cut":
                monkeypatch.setattr(MappedFile, "again", lambda file: file)

    monkeypatch.setattr(MappedFiles, "check_files", look_then_write)
    delivered = []
    with pytest.raises(ReadError, match="was changed while it was mapped"):
        delivered.extend(PlannedReader(order, HERE, 1 << 20, grouping=grouping).batches(0, 200))
    assert_equal(delivered, expected[: len(delivered)])


def test_a_file_that_is_cut_before_its_chunks_are_copied_is_named(cache, tmp_path):
    other = write_cache(
        tmp_path / "d", [[TOKENS]], layout=CacheLayout("uint16", 64, 8)
    )  # of two dtypes: converted
    both = {name: TokenSeqDataset(one, 16) for name, one in {"a": cache, "b": other}.items()}
    mixture = MixtureDataset(both, {"a": 1, "b": 1}, BatchSchedule(BATCH))
    found = PlannedReader(
        BatchOrder(mixture, BatchSchedule(BATCH)), HERE, 2048, grouping=Grouping(0)
    ).batches(0, 60)
    next(found)
    os.truncate(shards(cache)[0], 100)
    with pytest.raises(ReadError) as raised:
        list(found)
    assert str(cache.parts[0].data.url) in str(raised.value)
