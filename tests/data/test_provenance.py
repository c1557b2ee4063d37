"""Provenance: the documents that it names are, token by token, what the loader delivers."""

import dataclasses
import itertools
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PackedTokenDataset, PlannedDataset, TokenSeqDataset
from headrace.data.dataset import rows_of_step
from headrace.data.documents import DocumentFilter
from headrace.data.phased import Continued
from headrace.data.provenance import documents_at, read_spans, spans_of_rows
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed import DataLoader
from headrace.mix import AmendmentConfig, BatchSchedule, StageConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.store import TokenCache
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import CountingArray, with_arrays

STEPS = 40
SIZES = {"a": [5200, 900], "b": [1700, 0, 300, 700]}
SHUFFLES = [
    BraidShuffleConfig(),
    BraidShuffleConfig(strands=7),
    BlockShuffleConfig(window_blocks=3),
    40,
    True,
    False,
]
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> dict[str, TokenCache]:
    """Every token is a number of its own; documents of up to 60 tokens, empty ones among them."""
    rng = np.random.default_rng(0)
    at = 0
    made = {}
    for name, sizes in SIZES.items():
        parts = []
        for size in sizes:
            cuts = np.sort([0, 0, size, size, *rng.integers(0, size + 1, size // 30).tolist()])
            cuts = np.sort(np.concatenate([cuts, cuts[:: max(cuts.size // 4, 1)]])) + at
            parts.append([np.arange(x, y) for x, y in itertools.pairwise(cuts.tolist())])
            at += size
        made[name] = write_cache(tmp_path_factory.mktemp(name) / "c", parts, vocab_size=1 << 20)
    return made


@pytest.fixture(scope="module")
def removed(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("filter") / "gone.txt"
    path.write_text("\n".join(map(str, range(0, 90, 7))))
    return str(path)


def check(
    dataset: PlannedDataset, schedule: BatchSchedule, step: int, row_order: str = "locality"
) -> None:
    """Spans put together are the batch, and every span lies within its document."""
    given_ = None if hasattr(dataset, "batch_schedule") else schedule
    mesh = Mesh(np.array(jax.devices()[:1]), "data")
    delivered = DataLoader(dataset, given_, mesh=mesh, row_order=row_order).batch_at(step)
    rows = rows_of_step(dataset, schedule, step, row_order)
    spans = spans_of_rows(rows)
    assert len(rows) == int(np.asarray(delivered.valid).sum())
    assert np.array_equal(rows.source, np.asarray(delivered.source_id)[: len(rows)])
    rebuilt = np.zeros((rows.batch_size, rows.seq_len), np.int64)
    covered = np.zeros_like(rebuilt)
    read = read_spans(rows, spans)
    for k, tokens in enumerate(read):
        one = {f.name: int(getattr(spans, f.name)[k]) for f in dataclasses.fields(spans)}
        cache = rows.caches[one["source"]]
        document = cache.document(one["document"])
        assert document.size == one["length"]
        cut = document[one["offset"] : one["offset"] + one["size"]]
        assert cut.size == one["size"] > 0
        assert np.array_equal(cut, tokens)
        assert np.array_equal(cut, cache.tokens(one["token"], one["token"] + one["size"]))
        here = np.s_[one["row"], one["column"] : one["column"] + one["size"]]
        rebuilt[here] = cut
        covered[here] += 1
    assert covered.max(initial=0) <= 1
    if delivered.segment_lengths is None:
        assert (covered[: len(rows)] == 1).all()
    else:
        assert np.array_equal(covered, np.asarray(delivered.segment_ids) >= 0)
    assert np.array_equal(rebuilt[: len(rows)], np.asarray(delivered.tokens)[: len(rows)])
    order = np.lexsort((spans.column, spans.row))
    assert np.array_equal(order, np.arange(len(spans)))


@st.composite
def runs(draw: st.DrawFn, removed: str) -> LmDataConfig:
    cut = draw(st.integers(1, STEPS - 5))
    remove = draw(st.sampled_from([None, removed]))
    weight = draw(st.sampled_from([1.0, 3.0]))
    given_ = {
        "components": {"a": ComponentConfig("-", remove=remove), "b": ComponentConfig("-")},
        "stages": [
            StageConfig(
                {"a": 1.0, "b": draw(st.sampled_from([weight, {"linear": {0: 0.0, 30: 2.0}}]))}
            )
        ],
        "amendments": [AmendmentConfig(cut + 3, weights={"b": 7.0})] if draw(st.booleans()) else [],
        "seq_len": {
            0: 16,
            **({cut: draw(st.sampled_from([8, 24, 64]))} if draw(st.booleans()) else {}),
        },
        "batch_size": {0: draw(st.integers(1, 40)), **({cut: 5} if draw(st.booleans()) else {})},
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.sampled_from(SHUFFLES)),
        "row_order": draw(st.sampled_from(["locality", "stream"])),
        "validation": draw(
            st.sampled_from(
                [None, ValidationConfig(3, seed=1), ValidationConfig(6, by="documents")]
            )
        ),
    }
    return LmDataConfig(**given_)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_a_step_is_made_of_is_what_is_delivered(caches, removed, data):
    run = data.draw(runs(removed))
    try:
        dataset = run.with_caches(dict(caches)).dataset()
    except ConfigError:  # a full shuffle, which does not go with phases
        reject()
    steps = data.draw(st.lists(st.integers(0, STEPS), min_size=1, max_size=3))
    for step in steps:
        check(dataset, dataset.batch_schedule, step, run.row_order)


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=3),
    seq_len=st.integers(2, 20),
    algorithm=st.sampled_from(["bfd", "wrap", "windowed", "next_fit"]),
    batch=st.integers(3, 9),
)
def test_packed_rows_name_their_documents(lengths, seq_len, algorithm, batch):
    rng = np.random.default_rng(0)
    parts = [[rng.integers(1, 256, n) for n in part] for part in lengths]
    if not sum(map(sum, lengths)):
        return
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        dataset = PackedTokenDataset(write_cache(root, parts), seq_len, algorithm=algorithm)
        schedule = BatchSchedule(batch)
        for step in range(-(-len(dataset) // batch)):
            check(dataset, schedule, step)


@pytest.mark.parametrize("order", ["shuffle", "block", "slice", "stored", "filtered"])
def test_datasets_that_mix_nothing(order):
    cache = tiny_cache(documents=60, parts=2)
    removed = DocumentFilter([0, 5, 6, 59]) if order == "filtered" else None
    dataset = TokenSeqDataset(cache, 8, removed=removed)
    made = {
        "shuffle": lambda: dataset.shuffle(seed=1),
        "block": lambda: dataset.block_shuffle(seed=1, io_block_size=4).repeat(3),
        "slice": lambda: dataset.shuffle(seed=2).slice(5, 50).repeat(2),
    }.get(order, lambda: dataset)()
    schedule = BatchSchedule(7)
    last = int(schedule.step_of(np.array([len(made) - 1]))[0])
    for step in (0, 3, last):
        check(made, schedule, step)
    with pytest.raises(IndexOutOfRangeError, match=f"run from 0 to {last}"):
        rows_of_step(made, schedule, last + 1)
    with pytest.raises(IndexOutOfRangeError):
        rows_of_step(made, schedule, -1)


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_the_last_step_of_a_mixture_that_ends(caches, stop):
    parts = {n: TokenSeqDataset(c, 64, name=n).shuffle(seed=0) for n, c in caches.items()}
    mixture = MixtureDataset(parts, {"a": 1, "b": 1}, 7, stop_strategy=stop)
    last = int(mixture.batch_schedule.step_of(np.array([len(mixture) - 1]))[0])
    for step in (last - 1, last):
        check(mixture, mixture.batch_schedule, step)
    with pytest.raises(IndexOutOfRangeError, match=f"run from 0 to {last}"):
        rows_of_step(mixture, mixture.batch_schedule, last + 1)


def test_epochs_and_draws_count_up(caches):
    run = LmDataConfig(
        {n: ComponentConfig("-") for n in "ab"}, seq_len={0: 16, 60: 32}, batch_size=8
    )
    dataset = run.with_caches(dict(caches)).dataset()
    assert rows_of_step(dataset, dataset.batch_schedule, 0).names == ("a", "b")
    seen: dict[int, list[tuple[int, int, int, int]]] = {0: [], 1: []}
    for step in range(160):
        rows = rows_of_step(dataset, dataset.batch_schedule, step)
        for d, ordinal, epoch, row in zip(
            rows.component, rows.ordinal, rows.epoch, rows.row, strict=True
        ):
            seen[int(d)].append((int(ordinal), int(epoch), rows.seq_len, int(row)))
    for found in seen.values():
        found.sort()
        assert [ordinal for ordinal, *_ in found] == list(range(len(found)))
        epochs = [epoch for _, epoch, *_ in found]
        assert epochs == sorted(epochs)
        assert sorted(set(epochs)) == list(range(epochs[-1] + 1))
    assert seen[1][-1][1] > 1


def test_no_token_comes_twice_in_an_epoch(caches):
    run = LmDataConfig(
        {n: ComponentConfig("-") for n in "ab"}, seq_len={0: 16, 20: 32}, batch_size=8
    )
    run = dataclasses.replace(run, shuffle=BraidShuffleConfig(strands=2))
    dataset = run.with_caches(dict(caches)).dataset()
    drawn: dict[tuple[int, int], list[np.ndarray]] = {}
    for step in range(160):
        rows = rows_of_step(dataset, dataset.batch_schedule, step)
        spans = spans_of_rows(rows)
        for row, tokens in zip(spans.row.tolist(), read_spans(rows, spans), strict=True):
            drawn.setdefault((int(rows.component[row]), int(rows.epoch[row])), []).append(tokens)
    assert max(epoch for _, epoch in drawn) > 2
    late, _ = dataset.at_step(20)
    assert isinstance(late, MixtureDataset)
    for part in late.components:  # an epoch goes on behind the change
        assert isinstance(part, Continued)
        assert part.rest
    for key, tokens in drawn.items():
        every = np.concatenate(tokens)
        assert np.unique(every).size == every.size, key


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    chunk=st.sampled_from([1, 2, 3, 7, 100]),
)
def test_documents_are_found_among_chunks_of_offsets(lengths, chunk):
    bounds = np.cumsum([0, *lengths])
    if not bounds[-1]:
        return
    offsets = _Held(bounds, chunk)
    at = np.arange(bounds[-1])
    assert np.array_equal(documents_at(offsets, at), np.repeat(np.arange(len(lengths)), lengths))
    assert documents_at(offsets, at[::-1]).tolist() == documents_at(offsets, at)[::-1].tolist()
    assert offsets.largest <= chunk


class _Held:
    """Offsets in memory, in chunks."""

    def __init__(self, values: np.ndarray, chunk: int) -> None:
        self.values = values
        self.chunk_elements = chunk
        self.length = values.size
        self.largest = 0

    def read(self, start: int, stop: int):
        assert 0 <= start < stop <= self.length
        self.largest = max(self.largest, stop - start)
        return _Done(self.values[start:stop])


class _Done:
    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def result(self) -> np.ndarray:
        return self.values


def test_no_token_is_read_to_name_documents():
    cache = with_arrays(tiny_cache(documents=200), CountingArray)
    dataset = TokenSeqDataset(cache, 8).shuffle(seed=0)
    spans = spans_of_rows(rows_of_step(dataset, BatchSchedule(16), 2))
    assert int(spans.size.sum()) == 128
    data = cache.parts[0].data
    assert isinstance(data, CountingArray)
    assert data.reads == 0


def test_some_rows_only():
    dataset = TokenSeqDataset(tiny_cache(documents=200), 32).shuffle(seed=0)
    rows = rows_of_step(dataset, BatchSchedule(16), 2)
    every = spans_of_rows(rows)
    some = spans_of_rows(rows, np.array([9, 3]))
    kept = every[np.isin(every.row, [3, 9])]
    assert all(
        np.array_equal(getattr(kept, f.name), getattr(some, f.name))
        for f in dataclasses.fields(some)
    )
    assert len(spans_of_rows(rows, np.array([], np.int64))) == 0


def test_a_mixture_is_one_of_many_sources(caches):
    parts = {n: TokenSeqDataset(c, 16, name=n).shuffle(seed=0) for n, c in caches.items()}
    mixture = MixtureDataset(parts, {"a": 1, "b": 2}, 6)
    rows = rows_of_step(mixture, mixture.batch_schedule, 5)
    assert [
        rows.caches[s] is caches[rows.names[c]]
        for s, c in zip(rows.source, rows.component, strict=True)
    ] == [True] * 6
    check(mixture, mixture.batch_schedule, 5)
