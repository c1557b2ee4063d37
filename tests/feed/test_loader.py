"""The loader: every step is a pure function of (dataset, schedule, step), on any mesh, from any
step, in any order.

Rows are held against ``dataset.read`` here and against walks over documents in tests/data and
tests/feed/test_reader. One mixture of everything serves most tests: three sources of different
dtype, chunk, codec and number of parts.
"""

import asyncio
import gc
import json
import os
import weakref
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.adapters.host_batches import HostBatches
from headrace.batch import PackedBatch
from headrace.data import AsyncDataset, MixtureDataset, PackedTokenDataset, TokenSeqDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed import DataLoader
from headrace.mix import BatchSchedule
from headrace.store import CacheLayout
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

GOLDEN = Path(__file__).parents[1] / "golden" / "mixture_order.json"
EOS = 255
STEPS = 30
BATCH = {0: 8, 20: 16}
LAYOUTS = {
    "a": CacheLayout("uint8", 64, 3),
    "b": CacheLayout("uint16", 50, 2, "zstd"),
    "c": CacheLayout("uint32", 7, 8),
}
LEAVES = (
    "tokens",
    "labels",
    "token_weights",
    "position_ids",
    "segment_ids",
    "cu_seqlens",
    "source_id",
    "valid",
    "token_mask",
)


def documents(seed):
    """Documents by arithmetic of our own: what they hold must never change, the pinned order is
    that of these.
    """
    return [
        np.append((np.arange((k * 7 + seed) % 23) * 31 + k * 5 + seed) % 255, EOS)
        for k in range(60)
    ]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    found = {}
    for seed, (name, layout) in enumerate(LAYOUTS.items()):
        every = documents(seed)
        parts = [every[p :: seed + 1] for p in range(seed + 1)]
        mask = (lambda ids: ids % 3 > 0) if name == "b" else None
        cache = write_cache(root / name, parts, eos_id=EOS, layout=layout, mask=mask)
        found[name] = TokenSeqDataset(cache, 16, split_documents=True, name=name)
    return found


@pytest.fixture(scope="module")
def mixture(sources):
    shuffled = {
        "a": sources["a"].braid_shuffle(seed=3, strands=4),
        "b": sources["b"].block_shuffle(window_blocks=3, seed=4),
        "c": sources["c"].shuffle(5),
    }
    return MixtureDataset(shuffled, {"a": 2, "b": {"linear": {0: 0, 15: 2}}, "c": 0.5}, BATCH)


def mesh(n, names=("data",), shape=None):
    return Mesh(np.array(jax.devices()[:n]).reshape(shape or (n,)), names)


def host(batch):
    """The batch with its arrays on the host: all that is derived from them is numpy
    from here on.
    """
    return jax.tree.map(np.asarray, batch)


def equal(one, other):
    one = host(one)
    other = host(other)
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in LEAVES)


def rows_in(batch):
    batch = host(batch)
    return sorted(
        (s, *t)
        for s, t in zip(
            batch.source_id[batch.valid].tolist(), batch.tokens[batch.valid].tolist(), strict=True
        )
    )


def read_step(dataset, schedule, step):
    first, size = BatchSchedule(schedule).rows_at(step)
    stop = first + size if dataset.length is None else min(first + size, dataset.length)
    return dataset.read(np.arange(first, stop))


@pytest.mark.parametrize("row_order", ["locality", "stream"])
def test_iterating_is_asking_for_every_step_on_any_number_of_devices(mixture, row_order):
    loaders = [DataLoader(mixture, mesh=mesh(n), row_order=row_order) for n in (1, 2, 4, 8)]
    with loaders[0].iter_from_step(0) as batches:
        reference = [host(next(batches)) for _ in range(STEPS)]
    for step, batch in enumerate(reference):
        wanted = read_step(mixture, BATCH, step)
        if row_order == "stream":
            assert equal(batch, wanted)
        assert rows_in(batch) == rows_in(wanted)
    for loader in loaders[1:]:
        with loader.iter_from_step(0) as batches:
            for batch, other in zip(reference, batches, strict=False):
                assert equal(batch, other)
                assert isinstance(other.token_ids, jax.Array)
                assert other.token_ids.sharding.is_equivalent_to(loader.placement.sharding, 2)
        for step in (0, 7, 19, 20, STEPS - 1):
            assert equal(loader.batch_at(step), reference[step])


def test_an_iteration_keeps_its_loader(mixture):
    """A run steers the loaders that there are, also one that only its batches refer to."""
    loader = DataLoader(mixture, mixture.batch_schedule)
    there = weakref.ref(loader)
    batches = loader.iter_from_step(0)
    next(batches)
    del loader
    gc.collect()
    assert there() is not None
    batches.close()
    del batches
    gc.collect()
    assert there() is None


def test_any_step_is_a_good_step_to_resume_from(mixture):
    loader = DataLoader(mixture, mesh=mesh(2))
    with loader.iter_from_step(0) as batches:
        uninterrupted = [host(next(batches)) for _ in range(STEPS)]
    for step in (1, 13, 19, 20, 21, STEPS - 1):
        with DataLoader(mixture, mesh=mesh(4)).iter_from_step(step) as batches:
            assert equal(next(batches), uninterrupted[step])
            if step + 1 < STEPS:
                assert equal(next(batches), uninterrupted[step + 1])


@pytest.mark.parametrize("budget", [1 << 30, 12_000])
def test_a_tight_budget_changes_nothing_but_the_number_of_reads(mixture, budget):
    loader = DataLoader(mixture, mesh=mesh(1), prefetch_bytes=budget)
    with (
        loader.iter_from_step(0) as batches,
        DataLoader(mixture, mesh=mesh(1)).iter_from_step(0) as reference,
    ):
        for _ in range(STEPS):
            assert equal(next(batches), next(reference))
            assert loader.stats().resident_bytes <= budget


def test_meshes_of_two_axes_and_sharded_sequences(mixture):
    reference = DataLoader(mixture, mesh=mesh(1)).batch_at(21)
    square = mesh(8, ("data", "model"), (4, 2))
    for options in (
        {"mesh": square},
        {"mesh": square, "batch_axis": ("data", "model")},
        {"sharding": NamedSharding(square, PartitionSpec("data", "model"))},
        {"sharding": NamedSharding(square, PartitionSpec(None, "data"))},
        {"sharding": NamedSharding(square, PartitionSpec())},
    ):
        loader = DataLoader(mixture, **options)
        batch = loader.batch_at(21)
        assert equal(batch, reference)
        assert batch.token_ids.sharding.is_equivalent_to(loader.placement.sharding, 2)
        assert batch.valid.sharding.is_equivalent_to(loader.placement.rows_sharding, 1)


def test_the_rest_is_derived_on_the_devices_in_the_batches_sharding(mixture):
    loader = DataLoader(mixture, mesh=mesh(4))
    batch = loader.batch_at(3)
    derived = eqx.filter_jit(lambda b: {n: getattr(b, n) for n in LEAVES})(batch)
    on_host = host(batch)
    for name in LEAVES:
        assert np.array_equal(derived[name], getattr(on_host, name)), name
    assert derived["labels"].sharding.is_equivalent_to(loader.placement.sharding, 2)


def test_the_last_batch_is_padded(sources):
    """Padding has no weight, and nobody's tokens."""
    dataset = sources["c"].shuffle(1)
    n = len(dataset)
    assert n % 8
    for count in (1, 8):
        loader = DataLoader(dataset, batch_size=8, mesh=mesh(count), row_order="stream")
        assert loader.num_steps == -(-n // 8)
        batches = [host(b) for b in loader.iter_from_step(0)]
        assert len(batches) == loader.num_steps
        wanted = dataset.read(np.arange(n))
        assert np.array_equal(np.concatenate([b.tokens for b in batches])[:n], wanted.tokens)
        assert np.array_equal(
            np.concatenate([b.token_weights for b in batches])[:n], wanted.token_weights
        )
        last = batches[-1]
        assert last.valid.tolist() == [k < n % 8 for k in range(8)]
        assert last.token_weights[n % 8 :].sum() == 0
        assert last.tokens[n % 8 :].sum() == 0
        assert equal(loader.batch_at(len(batches) - 1), last)


def test_a_finished_run_resumes_to_nothing(sources):
    loader = DataLoader(sources["a"].take(20), batch_size=8)
    assert loader.num_steps == 3
    assert list(loader.iter_from_step(3)) == []
    assert len(list(loader.iter_from_step(2))) == 1
    assert DataLoader(sources["a"].take(0), batch_size=8).num_steps == 0
    assert list(DataLoader(sources["a"].take(0), batch_size=8)) == []


@pytest.mark.parametrize("step", [-1, 3, 10**9])
def test_steps_that_are_not_there(sources, step):
    loader = DataLoader(sources["a"].take(20), batch_size=8)
    for ask in (loader.batch_at, loader.iter_from_step):
        with pytest.raises(IndexOutOfRangeError, match="is not a step of this loader") as caught:
            ask(step if ask == loader.batch_at or step != 3 else 4)
        assert caught.value.field == "step"
        assert caught.value.cure == "Steps run from 0 to 2."


def test_steps_of_any_integer_type(mixture):
    """A step that comes out of a checkpoint may be numpy's or jax's."""
    loader = DataLoader(mixture, mesh=mesh(1))
    reference = loader.batch_at(5)
    for step in (np.int32(5), np.asarray(5), jax.numpy.asarray(5)):
        assert equal(loader.batch_at(step), reference)
    for step in (5.0, "5", None):
        with pytest.raises(ConfigError, match="must be a whole number"):
            loader.batch_at(step)


def test_a_training_step_may_donate_the_batch(mixture):
    """Nothing of a batch is shared with the next one."""

    @eqx.filter_jit(donate="all")
    def step(batch):
        return batch.token_ids + 1, ~batch.valid, batch.source_id + 1

    loader = DataLoader(mixture, mesh=mesh(2))
    with (
        loader.iter_from_step(0) as batches,
        DataLoader(mixture, mesh=mesh(2)).iter_from_step(0) as untouched,
    ):
        for _ in range(4):
            expected = host(next(untouched))
            tokens, invalid, _ = step(next(batches))
            assert np.array_equal(tokens, expected.token_ids + 1)
            assert not np.asarray(invalid).any()


def test_the_order_of_a_fixed_mixture_is_pinned(mixture):
    """Changing it is a release note and a new version of the order; HEADRACE_UPDATE_GOLDEN=1 writes
    the file.
    """
    found = {}
    for row_order in ("stream", "locality"):
        loader = DataLoader(mixture, mesh=mesh(8), row_order=row_order)
        found[row_order] = {}
        for step in (0, 1, 14, 19, 20, 1000):
            batch = host(loader.batch_at(step))
            begins = [".".join(map(str, row[:4])) for row in batch.tokens.tolist()]
            found[row_order][str(step)] = [
                f"{s}:{b}" for s, b in zip(batch.source_id, begins, strict=True)
            ]
    if os.environ.get("HEADRACE_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())


def test_steps_may_be_asked_for_backwards(mixture):
    loader = DataLoader(mixture, mesh=mesh(1))
    forwards = [host(loader.batch_at(step)) for step in range(10)]
    for step in reversed(range(10)):
        assert equal(loader.batch_at(step), forwards[step])


class Squares(AsyncDataset[dict]):
    """No store and no PackedBatch: a dict of arrays."""

    def __init__(self, n, order=None):
        self.n = n
        self.order = order

    @property
    def length(self):
        return self.n

    async def get_batch(self, indices):
        await asyncio.sleep(0)
        return {"number": indices, "square": np.stack([indices**2] * 3, axis=1).astype(np.float32)}

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return {"squares": self.n}


def test_any_dataset_can_be_loaded():
    loader = DataLoader(Squares(24), batch_size={0: 8, 1: 16}, mesh=mesh(4))
    batches = list(loader)
    assert [b["number"].tolist() for b in batches] == [list(range(8)), list(range(8, 24))]
    assert batches[1]["square"].shape == (16, 3)
    assert batches[1]["square"].sharding.is_equivalent_to(loader.placement.sharding, 2)
    assert loader.batch_at(1)["number"].tolist() == list(range(8, 24))
    assert loader.stats().reads.examples_requested == 24


def test_what_cannot_mark_padding_is_not_padded():
    loader = DataLoader(Squares(20), batch_size=8, mesh=mesh(4))
    with pytest.raises(ConfigError, match="its last batch, step 2, only to 4 of 8 rows") as caught:
        next(loader.iter_from_step(0))  # not after two of three batches
    assert caught.value.field == "dataset"
    assert 'last_batch="drop"' in (caught.value.cure or "")


@pytest.mark.parametrize(
    "fn", [lambda b: {"total": b["number"].sum()}, lambda b: {"few": b["number"][:3]}]
)
def test_functions_that_lose_rows_are_named(fn):
    with pytest.raises(ConfigError, match="does not run over the rows of a batch") as caught:
        next(DataLoader(Squares(24).map(fn), batch_size=8, mesh=mesh(4)).iter_from_step(0))
    assert "must give one entry a row" in (caught.value.cure or "")


class Own(AsyncDataset):
    """A dataset of the user's own, which does not say where its rows lie."""

    def __init__(self, dataset):
        self.base = dataset

    @property
    def length(self):
        return self.base.length

    async def get_batch(self, indices):
        return await self.base.get_batch(indices)

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return self.base.describe()


def test_datasets_of_ones_own_are_loaded_with_padding(sources):
    dataset = sources["a"].take(20)
    own = Own(dataset).map(reverse)
    loader, plain = (DataLoader(d, 8, mesh=mesh(4), row_order="stream") for d in (own, dataset))
    assert loader.num_steps == 3
    on_host = [batch for _, batch in HostBatches(own, 8).from_step()]
    for batch, other, third in zip(map(host, loader), map(host, plain), on_host, strict=True):
        assert np.array_equal(batch.valid, other.valid)
        assert np.array_equal(batch.tokens[batch.valid], other.tokens[other.valid, ::-1])
        assert batch.token_weights[~batch.valid].sum() == 0
        assert equal(batch, third)


def reverse(batch):
    return PackedBatch(batch.token_ids[:, ::-1], batch.source_id, eos_id=batch.eos_id)


def twice(batch):
    return {
        "twice": batch.token_ids.astype(np.int32) * 2,
        "first": batch.token_ids[:, 0],
        "of": batch.source_id,
    }


@pytest.mark.parametrize("row_order", ["locality", "stream"])
def test_functions_get_what_a_loader_without_them_gives(mixture, row_order):
    plain = DataLoader(mixture, mesh=mesh(2), row_order=row_order)
    with plain.iter_from_step(3) as batches:
        wanted = [host(next(batches)) for _ in range(STEPS)]
    for shape, names in (((4,), ("data",)), ((2, 4), ("data", "seq")), ((1, 8), ("data", "seq"))):
        sharding = NamedSharding(mesh(int(np.prod(shape)), names, shape), PartitionSpec(*names))
        loader = DataLoader(mixture.map(reverse).map(twice), sharding=sharding, row_order=row_order)
        assert loader.schedule == BatchSchedule(BATCH)
        with loader.iter_from_step(3) as batches:
            found = [host(next(batches)) for _ in range(STEPS)]
        for batch, other in zip(found, wanted, strict=True):
            assert np.array_equal(batch["twice"], other.tokens[:, ::-1] * 2)
            assert np.array_equal(batch["first"], other.tokens[:, -1])
            assert np.array_equal(batch["of"], other.source_id)
        assert np.array_equal(loader.batch_at(20)["twice"], wanted[17].tokens[:, ::-1] * 2)
    with pytest.raises(ConfigError, match="differs from the mixture's"):
        DataLoader(mixture.map(reverse), batch_size=8)
    on_host = HostBatches(mixture.map(reverse), row_order=row_order).from_step(3)
    assert all(
        np.array_equal(b.tokens, w.tokens[:, ::-1])
        for (_, b), w in zip(on_host, wanted, strict=False)
    )
    on_host.close()


def test_what_functions_leave_of_a_batch_stays_as_it_was(sources):
    """Segments, masks and padding pass through, also where devices hold parts of rows."""
    dataset = sources["b"].take(20)
    for spec in (("data",), ("data", "seq")):
        sharding = NamedSharding(mesh(8, ("data", "seq"), (4, 2)), PartitionSpec(*spec))
        mapped, plain = (
            DataLoader(d, 8, sharding=sharding) for d in (dataset.map(lambda batch: batch), dataset)
        )
        assert len(pairs := list(zip(mapped, plain, strict=True))) == 3
        assert all(equal(one, other) for one, other in pairs)
        assert mapped.stats().reads == plain.stats().reads  # each block once
    bare = DataLoader(dataset.map(lambda batch: batch.token_ids), 8, mesh=mesh(4))
    with pytest.raises(ConfigError, match="only to 4 of 8 rows"):
        next(iter(bare))
    assert (
        len(list(DataLoader(dataset.take(16).map(lambda batch: batch.token_ids), 8, mesh=mesh(4))))
        == 2
    )


def test_an_error_in_a_function_reaches_the_caller(sources):
    def fails(batch):
        raise ValueError("no such word")

    with pytest.raises(ValueError, match="no such word"):
        next(iter(DataLoader(sources["a"].map(fails), 8)))

    def forgets(batch):
        batch.token_ids.sum()

    with pytest.raises(ConfigError, match="gives no arrays") as caught:
        next(iter(DataLoader(sources["a"].map(forgets), 8)))
    assert "forgets" in (caught.value.field or "")


@pytest.mark.parametrize("options", [{"sharding": PartitionSpec("data")}, {"mesh": "data"}])
def test_what_is_no_mesh_is_named(sources, options):
    (field,) = options
    with pytest.raises(ConfigError) as caught:
        DataLoader(sources["a"], 8, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field", "cure"),
    [
        ({"batch_size": 6}, "batch_size", "Use 4 or 8, or another mesh."),
        ({"batch_size": {0: 8, 9: 3}}, "batch_size", "Use 4, or another mesh."),
        ({"batch_size": 0}, "batch_size", "Write a number of examples"),
        ({"batch_size": None}, "batch_size", "Give the number of rows of the global batch."),
        ({"batch_axis": "dta"}, "batch_axis", "Did you mean 'data'?"),
        ({"row_order": "local"}, "row_order", "Use 'locality' or 'stream'."),
    ],
)
def test_bad_loaders(sources, options, field, cure):
    with pytest.raises(ConfigError) as caught:
        DataLoader(sources["a"], **({"batch_size": 8, "mesh": mesh(4)} | options))
    assert caught.value.field == field
    assert cure in (caught.value.cure or "")


def test_bad_shardings_and_mixtures_with_another_batch(sources, mixture):
    four = mesh(4)
    with pytest.raises(ConfigError, match="cannot be combined with mesh"):
        DataLoader(sources["a"], 8, mesh=four, sharding=NamedSharding(four, PartitionSpec("data")))
    with pytest.raises(ConfigError, match="is not divisible") as caught:
        DataLoader(
            TokenSeqDataset(tiny_cache(), 10),
            8,
            sharding=NamedSharding(four, PartitionSpec(None, "data")),
        )
    assert caught.value.field == "seq_len"
    with pytest.raises(
        ConfigError, match=r"differs from the mixture's BatchSchedule\(\{0: 8, 20: 16\}\)"
    ):
        DataLoader(mixture, batch_size=8)
    assert DataLoader(mixture, batch_size=BATCH).schedule == BatchSchedule(BATCH)


def test_a_budget_too_small_for_a_batch_reaches_the_consumer(sources):
    loader = DataLoader(sources["c"].shuffle(0), batch_size=8, mesh=mesh(1), prefetch_bytes=64)
    for ask in (lambda: loader.batch_at(0), lambda: next(loader.iter_from_step(0))):
        with pytest.raises(ConfigError, match="is less than the blocks of one batch") as caught:
            ask()
        assert caught.value.field == "prefetch_bytes"


def test_the_description_is_that_of_the_batches(sources, mixture):
    """Devices, hosts and budgets change nothing; whatever changes a batch does."""
    plain = DataLoader(mixture, mesh=mesh(1))
    same = DataLoader(mixture, mesh=mesh(8), prefetch_bytes=1 << 20)
    assert plain.describe() == same.describe()
    assert json.loads(json.dumps(plain.describe()))["order_version"] >= 1
    others = [
        DataLoader(mixture, row_order="stream"),
        DataLoader(sources["a"], 8),
        DataLoader(sources["a"], 16),
        DataLoader(sources["a"].shuffle(0), 16),
    ]
    described = [json.dumps(loader.describe(), sort_keys=True) for loader in (plain, *others)]
    assert len(set(described)) == len(described)


def test_tokens_travel_in_the_stores_dtype(tmp_path):
    for dtype in ("uint8", "uint16", "uint32"):
        cache = write_cache(
            tmp_path / dtype, [random_documents(30)], layout=CacheLayout(dtype, 64, 2)
        )
        batch = DataLoader(TokenSeqDataset(cache, 16), 8, mesh=mesh(2)).batch_at(0)
        assert batch.token_ids.dtype == dtype
        assert batch.tokens.dtype == np.int32


@pytest.mark.parametrize("budget", [0, -1, "1GiB", 1e9, True, None])
def test_a_budget_is_a_number_of_bytes(mixture, budget):
    for make in (DataLoader, HostBatches):
        with pytest.raises(
            ConfigError,
            match=r"prefetch_bytes = .*: must be a positive number of bytes\. E\.g\. 1073741824",
        ):
            make(mixture, prefetch_bytes=budget)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_batches_larger_than_a_cache_hold_the_same_rows(tmp_path, dtype):
    """They are stored past the caches; rows are of odd lengths, and documents leave gaps between
    them.
    """
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 60_000, size, dtype=dtype) for size in rng.integers(1, 5000, 3000)]
    masked = {"vocab_size": 60_000, "layout": CacheLayout(dtype), "mask": lambda ids: ids % 3 > 0}
    dataset = PackedTokenDataset(write_cache(tmp_path / "c", [texts], **masked), 6007).shuffle(1)
    wanted = host(dataset.read(np.arange(len(dataset))))
    steps = 0
    for batch in DataLoader(dataset, batch_size=128, mesh=mesh(1), row_order="stream"):
        rows = slice(128 * steps, min(128 * (steps + 1), len(dataset)))
        for name in ("tokens", "token_mask", "segment_lengths"):
            values = np.asarray(getattr(batch, name))
            assert np.array_equal(values[: rows.stop - rows.start], getattr(wanted, name)[rows]), (
                steps,
                name,
            )
            assert not values[rows.stop - rows.start :].any()
        steps += 1
    assert steps > 8


def test_iterations_that_nobody_asks_about_take_no_memory():
    loader = DataLoader(TokenSeqDataset(tiny_cache(), 16), 8)
    for _ in range(20):
        with loader.iter_from_step(0) as batches:
            next(batches)
    assert len(loader._counted) < 5  # what stats() would sum up
    assert loader.stats().batches >= 20
