"""The forecast counts what a loader really reads, and holds at sizes that no disk here has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.feed.loader import DataLoader
from headrace.index.schedule import BatchSchedule
from headrace.simulate import Prices, simulate, variance_ratio, virtual_cache
from headrace.store.layout import CacheLayout
from headrace.testing import random_documents, write_cache

CHUNK, SEQ = 64, 16


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    layout = CacheLayout("uint16", chunk_elements=CHUNK, shard_chunks=8)
    documents = random_documents(400, seed=1)
    return write_cache(tmp_path_factory.mktemp("simulated"), [documents[:200], documents[200:]], layout=layout)


@pytest.mark.parametrize("shuffle", ["none", "full", "block", "braid"])
def test_one_host_reads_what_was_forecast(cache, shuffle):
    base = TokenSeqDataset(cache, SEQ)
    dataset = {
        "none": lambda: base,
        "full": lambda: base.shuffle(0),
        "block": lambda: base.block_shuffle(window_blocks=8, seed=0),
        "braid": lambda: base.braid_shuffle(batch_size=8, seed=0),
    }[shuffle]()
    steps = len(dataset) // 8
    forecast = simulate(dataset, BatchSchedule(8), hosts=[1], num_steps=steps)
    assert forecast.exact
    with DataLoader(dataset, 8) as loader, loader.iter_from_step(0) as batches:
        for _ in range(steps):
            next(batches)
        read = loader.stats().reads.block_fetches
    blocks = sum(-(-p.record.tokens // CHUNK) for p in cache.parts)
    assert read <= blocks  # everything fits, so nothing is read twice
    warm = max(steps // 4, 1)
    assert forecast.by_hosts[0].reads_per_step * (steps - warm) <= read


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
        ([1], {"cache_bytes": 1}, "cache_blocks"),
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
    with pytest.raises(ConfigError, match=r"enough for \d+ steps"):
        simulate(dataset, dataset.batch_schedule, hosts=[1], num_steps=1000)


def test_caches_with_other_chunks_are_read_once_too():
    config = big(2)
    small = CacheLayout("uint32", chunk_elements=8192)
    caches = {"c0": virtual_cache("c0", 10**10), "c1": virtual_cache("c1", 10**10, layout=small)}
    dataset = config.dataset(caches)
    forecast = simulate(dataset, dataset.batch_schedule, hosts=[1], max_rows=1 << 17).by_hosts[0]
    assert 0.9 < forecast.reads_per_block < 1.1
    assert forecast.bytes_per_step == pytest.approx(256 * 4096 * 4, rel=0.1)
