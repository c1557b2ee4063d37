"""The forecast counts what a loader really reads, and holds at sizes that no disk here has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.component_config import ComponentConfig
from headrace.config import LmDataConfig
from headrace.data.mixture import MixtureDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.feed import read_ahead
from headrace.feed.reader import PlannedReader
from headrace.index.residency import Residency
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats, Stopwatch
from headrace.simulate import Prices, simulate, variance_ratio, virtual_cache
from headrace.store.layout import CacheLayout
from headrace.testing import random_documents, write_cache

CHUNK, SEQ = 64, 16


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    layout = CacheLayout("uint16", chunk_elements=CHUNK, shard_chunks=8)
    documents = random_documents(400, seed=1)
    return write_cache(tmp_path_factory.mktemp("simulated"), [documents[:200], documents[200:]], layout=layout)


ORDERS = {
    "none": lambda d: d,
    "full": lambda d: d.shuffle(0),
    "block": lambda d: d.block_shuffle(window_blocks=8, seed=0),
    "braid": lambda d: d.braid_shuffle(batch_size=8, seed=0),
}


class Host:
    """Host ``number`` of ``hosts``, each with an equal run of a batch's rows."""

    def __init__(self, number, hosts):
        self.number, self.hosts = number, hosts

    def local_rows(self, size):
        return np.arange(self.number * size // self.hosts, (self.number + 1) * size // self.hosts)

    def local_columns(self, seq_len):
        return 0, seq_len


def fetched_by(dataset, schedule, number, hosts, cache_bytes, row_order="locality", first_step=0, stop_step=None):
    """What the reader of a host counts, all steps read."""
    stats = ReadStats()
    source = PlannedReader(
        dataset, schedule, Host(number, hosts), row_order, cache_bytes, stats, Stopwatch(), number % 3
    )
    steps = sum(1 for _ in source.batches(first_step, stop_step))
    return stats.block_fetches, steps


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("row_order", ["locality", "stream"])
def test_hosts_read_what_was_forecast_to_the_block(cache, shuffle, row_order):
    """Whatever the number of hosts and the memory, the padded last batch included."""
    dataset = ORDERS[shuffle](TokenSeqDataset(cache, SEQ))
    schedule = BatchSchedule(8)
    assert len(dataset) % 8
    stop = -(-len(dataset) // 8)
    everything = sum(-(-p.record.tokens // CHUNK) for p in cache.parts)
    for slots in (8, 13, 40, everything):
        memory = slots * CHUNK * 2
        forecast = simulate(dataset, schedule, hosts=[1, 2, 4], cache_bytes=memory, row_order=row_order)
        assert forecast.exact
        assert forecast.steps == stop
        for h in forecast.by_hosts:
            found = [fetched_by(dataset, schedule, n, h.hosts, memory, row_order, 0, stop) for n in range(h.hosts)]
            assert h.block_fetches == sum(f for f, _ in found)
            assert {s for _, s in found} == {stop}
            assert h.hosts_replayed == h.hosts
            assert h.resident_bytes <= memory
    assert forecast.by_hosts[0].block_fetches == everything  # all fits: nothing is read twice


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    layout = CacheLayout("uint8", chunk_elements=100, shard_chunks=4, compression="zstd")
    return write_cache(tmp_path_factory.mktemp("other"), [random_documents(150, seed=5)], layout=layout)


@pytest.mark.parametrize("slots", [12, 20, 300])
def test_mixtures_over_epochs_are_forecast_to_the_block(cache, other, slots, monkeypatch):
    """A run without end: what its loader has decided to fetch for the steps looked at, read ahead beyond them."""
    decided = []

    class Recording(Residency):
        def decide(self, pieces=None):
            decision = super().decide(pieces)
            decided.append((decision.step, len(decision.blocks)))
            return decision

    monkeypatch.setattr(read_ahead, "Residency", Recording)
    sources = {
        "a": TokenSeqDataset(cache, SEQ).braid_shuffle(seed=1, strands=12, batch_size=None),
        "b": TokenSeqDataset(other, SEQ).block_shuffle(window_blocks=4, seed=2),
        "c": TokenSeqDataset(cache, SEQ).shuffle(3),
    }
    mixture = MixtureDataset(sources, {"a": 3, "b": {"linear": {0: 0, 90: 2}}, "c": 0.3}, {0: 8, 500: 16})
    memory = slots * CHUNK * 2
    for first_step in (0, 37):
        forecast = simulate(
            mixture,
            mixture.batch_schedule,
            hosts=[1, 2],
            cache_bytes=memory,
            num_steps=300,
            first_step=first_step,
        )
        assert forecast.exact == (first_step == 0)
        for h in forecast.by_hosts:
            decided.clear()
            for number in range(h.hosts):
                stats = ReadStats()
                host = Host(number, h.hosts)
                source = PlannedReader(mixture, mixture.batch_schedule, host, "locality", memory, stats, Stopwatch(), 0)
                for step, _ in zip(range(first_step, 300), source.batches(first_step, None), strict=False):
                    assert step < 300
            assert h.block_fetches == sum(count for step, count in decided if step < 300)


def test_very_many_hosts_are_sampled_and_it_is_said(monkeypatch):
    monkeypatch.setattr("headrace.simulate.MAX_REPLAYED", 8)
    config = big(3)
    dataset = config.dataset({name: virtual_cache(name, 10**11) for name in config.components})
    schedule = dataset.batch_schedule
    forecast = simulate(dataset, schedule, hosts=[64], cache_bytes=8 << 18, max_rows=1 << 15)
    (many,) = forecast.by_hosts
    assert many.hosts_replayed == 8
    assert not forecast.exact
    monkeypatch.setattr("headrace.simulate.MAX_REPLAYED", 64)
    (every,) = simulate(dataset, schedule, hosts=[64], cache_bytes=8 << 18, max_rows=1 << 15).by_hosts
    assert every.hosts_replayed == 64
    assert many.block_fetches == pytest.approx(every.block_fetches, rel=0.1)


def test_rows_in_several_blocks_count_for_each(cache):
    dataset = TokenSeqDataset(cache, 100)  # chunks of 64: rows lie in two or three
    forecast = simulate(dataset, BatchSchedule(4), hosts=[1, 2])
    assert forecast.distinct_blocks > 4
    assert [h.hosts for h in forecast.by_hosts] == [1, 2]


def big(components: int, **changes: object) -> LmDataConfig:
    names = [f"c{k}" for k in range(components)]
    weights = {name: ComponentConfig("nowhere", 1 / (k + 1)) for k, name in enumerate(names)}
    return LmDataConfig(weights, seq_len=4096, batch_size=256, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("components", [1, 20])
def test_a_trillion_tokens_on_many_hosts(components):
    config = big(components)
    caches = {name: virtual_cache(name, 10**12 // (k + 1)) for k, name in enumerate(config.components)}
    dataset = config.dataset(caches)
    forecast = simulate(dataset, dataset.batch_schedule, hosts=[1, 8, 64], max_rows=1 << 17)
    assert not forecast.exact
    assert forecast.variance_ratio["8 batches"] < 1.1
    one, eight, many = forecast.by_hosts
    assert one.reads_per_block < 1.05
    assert eight.reads_per_block < 1.15
    assert many.reads_per_block < 1.8
    assert many.resident_bytes < one.resident_bytes / 16
    assert all(h.burst < 4 for h in forecast.by_hosts)


def test_prices_and_caches():
    config = big(1)
    dataset = config.dataset({"c0": virtual_cache("c0", 10**10)})
    schedule = dataset.batch_schedule
    dear = simulate(dataset, schedule, hosts=[1], prices=Prices(1.0, 2.0), max_rows=1 << 16).by_hosts[0]
    gib = dear.bytes_per_step / 2**30
    assert dear.cost_per_1000_steps == pytest.approx(1000 * (dear.reads_per_step / 1000 + 2 * gib))
    small = simulate(dataset, schedule, hosts=[1], cache_bytes=300 << 18, max_rows=1 << 16).by_hosts[0]
    assert small.reads_per_block > 5 * dear.reads_per_block
    assert small.resident_bytes <= 300 << 18


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=12), st.integers(1, 4))
def test_variance_ratio_against_its_definition(blocks, window):
    table = np.asarray(blocks)
    if len(table) < window:
        return
    windows = [table[k : k + window].ravel() for k in range(0, len(table) - window + 1, window)]
    wanted = np.mean([(np.unique(w, return_counts=True)[1] ** 2).sum() / w.size for w in windows])
    assert variance_ratio(table, window) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("hosts", "extra", "said"),
    [
        ([0], {}, "hosts"),
        ([9], {}, "hosts"),
        ([1], {"cache_bytes": 1}, "cache_bytes"),
        ([1], {"num_steps": 0}, "step"),
    ],
)
def test_bad_questions(cache, hosts, extra, said):
    with pytest.raises(ConfigError, match=said):
        simulate(TokenSeqDataset(cache, SEQ), BatchSchedule(8), hosts=hosts, **extra)


def test_an_unknown_source_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'c0'"):
        big(1).dataset({"c00": virtual_cache("c00", 10**9)})


def test_limits_that_end_the_run_too_early_are_named():
    config = big(2, max_epochs=1.0)
    dataset = config.dataset({name: virtual_cache(name, 10**8) for name in config.components})
    with pytest.raises(ConfigError, match=r"lower num_steps to 190"):
        simulate(dataset, dataset.batch_schedule, hosts=[1], num_steps=1000)


def test_caches_with_other_chunks_are_read_once_too():
    config = big(2)
    small = CacheLayout("uint32", chunk_elements=8192)
    caches = {"c0": virtual_cache("c0", 10**10), "c1": virtual_cache("c1", 10**10, layout=small)}
    dataset = config.dataset(caches)
    forecast = simulate(dataset, dataset.batch_schedule, hosts=[1], max_rows=1 << 17).by_hosts[0]
    assert 0.9 < forecast.reads_per_block < 1.1
    assert forecast.bytes_per_step == pytest.approx(256 * 4096 * 4, rel=0.1)
