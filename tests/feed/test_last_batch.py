"""The end of the data: one setting, whatever ends them and however they are loaded."""

import dataclasses
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.testing
from headrace import DataLoader, LmDataConfig, MixtureDataset, TokenSeqDataset, load_config
from headrace.adapters.host_batches import HostBatches
from headrace.analysis import simulate
from headrace.analysis.check.plan import RunPlan
from headrace.data import AsyncDataset, PackedTokenDataset
from headrace.errors import ConfigError
from headrace.mix import BatchSchedule

CACHES = {
    "a": headrace.testing.tiny_cache(seed=0, documents=13),
    "b": headrace.testing.tiny_cache(seed=1, documents=9),
}
ENDS = {
    "max_epochs": ["max_epochs=1"],
    "a fraction of an epoch": ["components.a.max_epochs=0.7", "components.b.max_epochs=1.3"],
    "max_tokens": ["components.a.max_tokens=100", "components.b.max_tokens=85"],
    "a share": ["max_epochs=1", "components.b={cache: b, max_share: 0.4}"],
    "first_exhausted": ["stop_strategy=first_exhausted"],
    "all_exhausted": ["stop_strategy=all_exhausted"],
    "exhaustive": ["policy=exhaustive"],
    "least_consumed": ["policy=least_consumed", "max_epochs=1"],
    "packed": ["max_epochs=1", "components.a.packing={long: split}"],
    "stages": [
        "max_epochs=1",
        "stages=[{weights: {a: 3, b: 1}}, {step: 2, weights: {a: 1, b: 1}}]",
    ],
}


def config_of(end: str, last_batch: str, batch_size: object = 8) -> LmDataConfig:
    plain = [f"components.{name}={{cache: {name}}}" for name in CACHES]
    settings = ["seq_len=8", f"batch_size={batch_size}", f"last_batch={last_batch}"]
    return load_config(overrides=[*settings, *plain, *ENDS[end]])


def rows_of(batches) -> list[tuple[int, bytes]]:
    """Source and tokens of all rows that hold data, in order."""
    rows: list[tuple[int, bytes]] = []
    for batch in batches:
        valid = np.asarray(batch.valid)
        sources = np.asarray(batch.source_id)[valid].tolist()
        rows += zip(
            sources, (row.tobytes() for row in np.asarray(batch.tokens)[valid]), strict=True
        )
    return rows


def loaded(config: LmDataConfig) -> tuple[DataLoader, list[list[tuple[int, bytes]]]]:
    loader = DataLoader(config.with_caches(CACHES).dataset(), row_order="stream")
    return loader, [rows_of([batch]) for batch in loader]


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_the_data_is_one_setting(end):
    sizes = {0: 8, 3: 16} if end != "stages" else 8
    (padded, pads), (dropped, drops), (filled, fills) = (
        loaded(config_of(end, how, sizes)) for how in ("pad", "drop", "fill")
    )
    rows = [*chain.from_iterable(pads)]
    schedule = BatchSchedule(sizes)
    last = len(pads) - 1
    first, size = schedule.rows_at(last)
    assert 0 < len(rows) - first <= size
    missing = first + size - len(rows)
    assert missing > 0  # or this shows nothing
    held = size - missing
    assert drops == pads[:-1]
    assert [*chain.from_iterable(fills)] == rows + [rows[k % len(rows)] for k in range(missing)]
    counted = ("rows", "num_steps", "padded_rows", "dropped_rows", "filled_rows")
    for loader, expected in (
        (padded, (len(rows), last + 1, missing, 0, 0)),
        (dropped, (len(rows), last, 0, held, 0)),
        (filled, (len(rows), last + 1, 0, 0, missing)),
    ):
        assert tuple(getattr(loader.data_end, name) for name in counted) == expected
        assert loader.num_steps == expected[1]
        stats = loader.stats().reads
        assert tuple(getattr(stats, name) for name in counted[2:]) == expected[2:]
        assert simulate(loader.dataset, loader.schedule, hosts=[1]).data_end == loader.data_end


@pytest.mark.parametrize(
    "end", ["max_epochs", "max_tokens", "exhaustive", "least_consumed", "packed"]
)
def test_limits_lose_no_row(end):
    """Every row that the limits allow is delivered, once more than was delivered before for each
    pass.
    """
    config = config_of(end, "pad")
    _, batches = loaded(config)
    counts = Counter(source for source, _ in chain.from_iterable(batches))
    trained = config.with_caches(CACHES).train_datasets()
    for number, (name, dataset) in enumerate(trained.items()):
        tokens = config.components[name].max_tokens
        assert counts[number] == (len(dataset) if tokens is None else tokens // 8)


@given(
    n=st.integers(1, 40),
    sizes=st.dictionaries(st.integers(1, 5), st.integers(1, 12), max_size=2),
    first=st.integers(1, 12),
    last_batch=st.sampled_from(["pad", "drop", "fill"]),
    world=st.sampled_from([1, 2, 3]),
)
def test_a_dataset_ends_the_same_in_every_delivery(n, sizes, first, last_batch, world):
    dataset = TokenSeqDataset(CACHES["a"], seq_len=4).shuffle(3).take(n)
    n = len(dataset)
    schedule = BatchSchedule(
        {step: size * world for step, size in sorted({0: first, **sizes}.items())}
    )
    expected = [row.tobytes() for row in np.asarray(dataset.read(np.arange(n)).tokens)]
    steps, rest = 0, n
    while rest >= schedule.rows_at(steps)[1]:
        rest -= schedule.rows_at(steps)[1]
        steps += 1
    missing = (schedule.rows_at(steps)[1] - rest) if rest else 0
    if last_batch == "drop":
        expected = expected[: n - rest]
    elif last_batch == "fill":
        expected = expected + [expected[k % n] for k in range(missing)]
    if not expected:
        with pytest.raises(ConfigError) as refusal:
            HostBatches(dataset, schedule, last_batch=last_batch)
        assert (refusal.value.field, refusal.value.value) == ("last_batch", "drop")
        return
    parts = [
        HostBatches(
            dataset, schedule, rank=r, world=world, row_order="stream", last_batch=last_batch
        )
        for r in range(world)
    ]
    delivered = [[batch for _, batch in part.from_step()] for part in parts]
    rows = [row for batches in zip(*delivered, strict=True) for _, row in rows_of(batches)]
    assert rows == expected
    assert len(delivered[0]) == steps + (missing > 0 and last_batch != "drop")
    counted = [part.read_stats for part in parts]
    assert sum(s.padded_rows for s in counted) == (missing if last_batch == "pad" else 0)
    assert sum(s.filled_rows for s in counted) == (missing if last_batch == "fill" else 0)
    assert sum(s.dropped_rows for s in counted) == (rest if last_batch == "drop" else 0)


class Squares(AsyncDataset[np.ndarray]):
    """A dataset of numbers, which cannot mark padding."""

    @property
    def length(self):
        return 10

    async def get_batch(self, indices):
        return np.asarray(indices) ** 2

    def reordered(self, order):
        raise NotImplementedError

    def describe(self):
        return {"squares": self.length}


def test_a_dataset_that_cannot_mark_padding_is_dropped_or_filled():
    with pytest.raises(ConfigError, match="last_batch") as refusal:
        next(iter(DataLoader(Squares(), 8)))
    assert refusal.value.field == "dataset"
    drop = [np.asarray(b).tolist() for b in DataLoader(Squares(), 8, last_batch="drop")]
    assert drop == [[k * k for k in range(8)]]
    fill = [np.asarray(b).tolist() for b in DataLoader(Squares(), 8, last_batch="fill")]
    assert fill[1] == [64, 81, 0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_packs_are_aligned_as_their_plan_aligns_them(ranks):
    packed = PackedTokenDataset(CACHES["a"], seq_len=16, long="split")
    whole = np.asarray(packed.read(np.arange(len(packed))).tokens)
    for last_batch, drop_last in (("fill", False), ("drop", True)):
        loader = HostBatches(packed, ranks, row_order="stream", last_batch=last_batch)
        rows = np.concatenate([batch.tokens for _, batch in loader.from_step()])
        aligned = packed.plan.aligned_plan(ranks, drop_last=drop_last)
        assert np.array_equal(rows, whole[aligned.packs])
        assert loader.data_end.filled_rows == aligned.pad_needed
        assert loader.data_end.dropped_rows == aligned.dropped


def test_rows_of_the_last_length_fill_the_last_batch():
    settings = ["seq_len={0: 8, 2: 16}", "batch_size=5", "max_epochs=3", "last_batch=fill"]
    settings += ["components.a={cache: a, shuffle: {strands: 2, io_block_size: 4}}"]
    config = load_config(overrides=settings)
    loader = HostBatches(config.with_caches({"a": CACHES["a"]}).dataset(), row_order="stream")
    batches = [rows_of([batch]) for _, batch in loader.from_step()]
    missing = loader.data_end.filled_rows
    assert missing > 0
    long_rows = [*chain.from_iterable(batches[2:])]
    assert long_rows[-missing:] == long_rows[:missing]


def test_a_run_says_what_becomes_of_its_last_batch():
    short = dataclasses.replace(config_of("max_epochs", "drop"), num_steps=2)
    assert (
        DataLoader(short.with_caches(CACHES).dataset()).data_end.dropped_rows == 0
    )  # it stops before
    full = DataLoader(config_of("max_epochs", "pad").with_caches(CACHES).dataset()).num_steps
    for how in ("pad", "fill"):  # the last step is one like any other
        config = dataclasses.replace(config_of("max_epochs", how), num_steps=full)
        assert DataLoader(config.with_caches(CACHES).dataset()).num_steps == full
    dropping = dataclasses.replace(config_of("max_epochs", "drop"), num_steps=full)
    with pytest.raises(ConfigError) as refusal:
        dropping.with_caches(CACHES).dataset()
    assert refusal.value.field == "max_epochs"
    assert f"num_steps to {full - 1}" in (refusal.value.cure or "")


def test_only_filling_changes_a_fingerprint():
    plain, dropped, filled = (
        DataLoader(config_of("max_epochs", how).with_caches(CACHES).dataset()).describe()
        for how in ("pad", "drop", "fill")
    )
    assert plain == dropped
    assert filled == {**plain, "last_batch": "fill"}


def test_the_loader_overrides_the_config():
    dataset = config_of("max_epochs", "drop").with_caches(CACHES).dataset()
    assert DataLoader(dataset).last_batch == "drop"
    assert DataLoader(dataset, 8).last_batch == "drop"
    assert DataLoader(dataset, last_batch="pad").last_batch == "pad"
    mixture = MixtureDataset(
        {"a": TokenSeqDataset(CACHES["a"], seq_len=8)},
        {"a": 1},
        BatchSchedule(8, last_batch="fill"),
        max_epochs=1,
    )
    assert DataLoader(mixture).last_batch == "fill"
    with pytest.raises(ConfigError) as refusal:
        DataLoader(mixture, last_batch="wrap")  # pyright: ignore[reportArgumentType]
    assert (refusal.value.field, refusal.value.value) == ("last_batch", "wrap")


def test_config_check_counts_the_rows_of_the_end(tmp_path):
    paths = {name: cache.path for name, cache in CACHES.items()}
    for how, counter in (("pad", "padded_rows"), ("drop", "dropped_rows"), ("fill", "filled_rows")):
        config = config_of("max_epochs", how)
        components = {
            n: dataclasses.replace(c, cache=paths[n]) for n, c in config.components.items()
        }
        plan = RunPlan.of(dataclasses.replace(config, components=components), hosts=[1])
        end = plan.to_dict()["data_end"]
        assert end[counter] > 0
        assert (
            sum(end[name] for name in ("padded_rows", "dropped_rows", "filled_rows"))
            == end[counter]
        )
