"""The forecast counts what a loader really reads, and holds at sizes that no disk here has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.analysis import simulate
from headrace.analysis.check.sizes import planned_caches, virtual_cache
from headrace.analysis.simulate import forecast as replaying
from headrace.analysis.simulate.forecast import Prices, RunSteps
from headrace.analysis.simulate.looks import LEAST_STEPS, MAX_STRETCHES, Stretch, all_steps, sampled
from headrace.analysis.simulate.replay import variance_ratio
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.feed import read_ahead
from headrace.feed.reader import Grouping, PlannedReader
from headrace.metrics import IterationStats
from headrace.mix import BatchSchedule
from headrace.order import ValidationConfig
from headrace.order.residency import Residency
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

CHUNK = 64
SEQ = 16


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    layout = CacheLayout("uint16", chunk_elements=CHUNK, shard_chunks=8)
    documents = random_documents(400, seed=1)
    return write_cache(
        tmp_path_factory.mktemp("simulated"), [documents[:200], documents[200:]], layout=layout
    )


ORDERS = {
    "none": lambda d: d,
    "full": lambda d: d.shuffle(0),
    "block": lambda d: d.block_shuffle(window_blocks=8, seed=0),
    "braid": lambda d: d.braid_shuffle(batch_size=8, seed=0),
}


class Host:
    """Host ``number`` of ``hosts``, each with an equal run of a batch's rows."""

    def __init__(self, number, hosts):
        self.number = number
        self.hosts = hosts

    def local_rows(self, size):
        return np.arange(self.number * size // self.hosts, (self.number + 1) * size // self.hosts)

    def local_columns(self, seq_len):
        return 0, seq_len


def fetched_by(
    dataset,
    schedule,
    number,
    hosts,
    cache_bytes,
    row_order="locality",
    first_step=0,
    stop_step=None,
):
    """What the reader of a host counts, all steps read."""
    stats = IterationStats()
    host = Host(number, hosts)
    source = PlannedReader(
        BatchOrder(dataset, schedule, row_order), host, cache_bytes, stats, Grouping(number % 3)
    )
    steps = sum(1 for _ in source.batches(first_step, stop_step))
    return stats.reads.block_fetches, steps


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("row_order", ["locality", "stream"])
def test_hosts_read_what_was_forecast_to_the_block(cache, shuffle, row_order):
    """Whatever the number of hosts and the memory, the padded last batch included."""
    dataset = ORDERS[shuffle](TokenSeqDataset(cache, SEQ))
    schedule = BatchSchedule(8)
    assert len(dataset) % 8
    stop = -(-len(dataset) // 8)
    everything = sum(-(-p.tokens // CHUNK) for p in cache.ledger.parts)
    for slots in (8, 13, 40, everything):
        memory = slots * CHUNK * 2
        forecast = simulate(
            dataset, schedule, hosts=[1, 2, 4], cache_bytes=memory, row_order=row_order
        )
        assert forecast.exact
        assert forecast.steps == stop
        for h in forecast.by_hosts:
            found = [
                fetched_by(dataset, schedule, n, h.hosts, memory, row_order, 0, stop)
                for n in range(h.hosts)
            ]
            assert h.block_fetches == sum(f for f, _ in found)
            assert {s for _, s in found} == {stop}
            assert h.hosts_replayed == h.hosts
            assert h.resident_bytes <= memory
    assert forecast.by_hosts[0].block_fetches == everything  # all fits: nothing is read twice


@pytest.mark.parametrize("shuffle", ORDERS)
def test_a_run_is_forecast_to_the_block_through_changes_of_size(cache, shuffle):
    """Decisions before a change have the steps after it in view, in the forecast as
    in the loader.
    """
    dataset = ORDERS[shuffle](TokenSeqDataset(cache, SEQ))
    schedule = BatchSchedule({0: 8, 5: 12, 40: 4, 41: 20})
    stop = int(schedule.step_of(np.array([len(dataset) - 1]))[0]) + 1
    assert stop > 50
    for slots in (20, 40):
        memory = slots * CHUNK * 2
        forecast = simulate(dataset, schedule, hosts=[1, 2, 4], cache_bytes=memory)
        assert (forecast.exact, forecast.steps, forecast.batch_size) == (True, stop, 20)
        assert len(forecast.looks) == 1
        for h in forecast.by_hosts:
            found = [
                fetched_by(dataset, schedule, n, h.hosts, memory, "locality", 0, stop)
                for n in range(h.hosts)
            ]
            assert h.block_fetches == sum(f for f, _ in found)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    layout = CacheLayout("uint8", chunk_elements=100, shard_chunks=4, compression="zstd")
    return write_cache(
        tmp_path_factory.mktemp("other"), [random_documents(150, seed=5)], layout=layout
    )


@pytest.mark.parametrize("slots", [12, 20, 300])
def test_mixtures_over_epochs_are_forecast_to_the_block(cache, other, slots, monkeypatch):
    """A run without end: what its loader has decided to fetch for the steps looked at, read ahead
    beyond them.
    """
    decided = []

    class Recording(Residency):
        def decide(self, pieces=None):
            decision = super().decide(pieces)
            decided.append((decision.step, len(decision.blocks)))
            return decision

        def decide_rest(self):
            first = self.next_step
            rest = super().decide_rest()
            decided.extend((first + k, len(blocks)) for k, blocks in enumerate(rest or ()))
            return rest

    monkeypatch.setattr(read_ahead, "Residency", Recording)
    sources = {
        "a": TokenSeqDataset(cache, SEQ).braid_shuffle(seed=1, strands=12, batch_size=None),
        "b": TokenSeqDataset(other, SEQ).block_shuffle(window_blocks=4, seed=2),
        "c": TokenSeqDataset(cache, SEQ).shuffle(3),
    }
    mixture = MixtureDataset(
        sources, {"a": 3, "b": {"linear": {0: 0, 90: 2}}, "c": 0.3}, {0: 8, 500: 16}
    )
    memory = slots * CHUNK * 2
    for first_step in (0, 37):
        forecast = simulate(
            mixture,
            mixture.batch_schedule,
            hosts=[1, 2],
            cache_bytes=memory,
            steps=RunSteps(num_steps=300, first_step=first_step),
        )
        assert forecast.exact == (first_step == 0)
        for h in forecast.by_hosts:
            decided.clear()
            for number in range(h.hosts):
                host = Host(number, h.hosts)
                schedule = mixture.batch_schedule
                source = PlannedReader(
                    BatchOrder(mixture, schedule), host, memory, grouping=Grouping(0)
                )
                for step, _ in zip(
                    range(first_step, 300), source.batches(first_step, None), strict=False
                ):
                    assert step < 300
            assert h.block_fetches == sum(count for step, count in decided if step < 300)


def test_very_many_hosts_are_sampled_and_it_is_said(monkeypatch):
    monkeypatch.setattr(replaying, "MAX_REPLAYED", 8)
    config = big(3)
    dataset = config.with_caches(
        {name: virtual_cache(name, 10**11) for name in config.components}
    ).dataset()
    schedule = dataset.batch_schedule
    forecast = simulate(
        dataset, schedule, hosts=[64], cache_bytes=8 << 18, steps=RunSteps(max_rows=1 << 15)
    )
    (many,) = forecast.by_hosts
    assert many.hosts_replayed == 8
    assert not forecast.exact
    monkeypatch.setattr(replaying, "MAX_REPLAYED", 64)
    (every,) = simulate(
        dataset, schedule, hosts=[64], cache_bytes=8 << 18, steps=RunSteps(max_rows=1 << 15)
    ).by_hosts
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
    caches = {
        name: virtual_cache(name, 10**12 // (k + 1)) for k, name in enumerate(config.components)
    }
    dataset = config.with_caches(caches).dataset()
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1, 8, 64], steps=RunSteps(max_rows=1 << 17)
    )
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
    dataset = config.with_caches({"c0": virtual_cache("c0", 10**10)}).dataset()
    schedule = dataset.batch_schedule
    dear = simulate(
        dataset, schedule, hosts=[1], prices=Prices(1.0, 2.0), steps=RunSteps(max_rows=1 << 16)
    ).by_hosts[0]
    gib = dear.bytes_per_step / 2**30
    assert dear.cost_per_1000_steps == pytest.approx(1000 * (dear.reads_per_step / 1000 + 2 * gib))
    small = simulate(
        dataset, schedule, hosts=[1], cache_bytes=300 << 18, steps=RunSteps(max_rows=1 << 16)
    ).by_hosts[0]
    assert small.reads_per_block > 5 * dear.reads_per_block
    assert small.resident_bytes <= 300 << 18


def slow_variance_ratio(blocks: np.ndarray, sources: np.ndarray, window: int) -> float:
    """As its docstring says it, one source, window and block after the other."""
    count = len(blocks) // window
    blocks, sources = (table[: count * window].reshape(count, -1) for table in (blocks, sources))
    scatter = usual = 0.0
    for source in np.unique(sources):
        rows = [blocks[w][sources[w] == source] for w in range(count)]
        every = np.concatenate(rows)
        shares = {b: (every == b).mean() for b in np.unique(every)}
        scatter += sum(((r == b).sum() - r.size * q) ** 2 for r in rows for b, q in shares.items())
        alike = sum(q * q for q in shares.values())
        total = every.size
        usual += (
            (1 - alike) * total / max(total - 1, 1) * (total - sum(r.size**2 for r in rows) / total)
        )
    return scatter / usual if usual > 1e-9 else float("nan")


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=4, max_size=12),
    st.integers(1, 4),
)
def test_variance_ratio_against_its_definition(blocks, window):
    table = np.asarray(blocks)
    expected = slow_variance_ratio(table, table // 3, window)
    assert variance_ratio(table, table // 3, window) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("blocks", [2, 5, 100])
def test_the_variance_ratio_of_random_rows_is_1_for_sources_of_few_blocks_too(blocks):
    """Of two sources, one of which fades away over the run."""
    rng = np.random.default_rng(0)
    sources = (rng.random((80, 16)) < np.linspace(0.2, 1, 80)[:, None]).astype(int)
    tables = [blocks * sources + rng.integers(0, blocks, (80, 16)) for _ in range(300)]
    mean = np.mean([variance_ratio(table, sources, 8) for table in tables])
    assert mean == pytest.approx(1, abs=0.05)


def test_a_small_corpus_that_is_shuffled_as_a_whole_is_no_worse_than_a_full_shuffle(tmp_path):
    documents = [np.arange(200)] * 200
    cache = write_cache(
        tmp_path / "c", [documents], layout=CacheLayout("uint16", chunk_elements=8192)
    )
    dataset = TokenSeqDataset(cache, seq_len=64)
    mixture = MixtureDataset({"a": dataset.braid_shuffle(seed=0)}, {"a": 1}, batch_size=8)
    ratios = simulate(
        mixture, mixture.batch_schedule, hosts=[1], steps=RunSteps(num_steps=2000)
    ).variance_ratio
    assert {window: ratio <= 1.05 for window, ratio in ratios.items()} == dict.fromkeys(
        ratios, True
    )
    assert len(ratios) == 3


@pytest.mark.parametrize(
    ("hosts", "extra", "said"),
    [
        ([0], {}, "hosts"),
        ([9], {}, "hosts"),
        ([1], {"cache_bytes": 1}, "cache_bytes"),
        ([1], {"cache_bytes": -1 << 20}, "cache_bytes = -1048576: is no memory"),
        ([1], {"num_steps": 0}, "num_steps = 0: is no number of steps"),
        ([1], {"num_steps": -4}, "num_steps = -4"),
        ([1], {"first_step": -3}, "first_step = -3: is no step"),
        ([1], {"first_step": 1 << 41}, "first_step = 2199023255552: is no step"),
        ([1], {"first_step": 5, "num_steps": 5}, "The run has 5 steps: give one below 5"),
        ([1], {"max_rows": 0}, "max_rows = 0"),
    ],
)
def test_bad_questions(cache, hosts, extra, said):
    extra = dict(extra)
    cache_bytes = extra.pop("cache_bytes", None)
    with pytest.raises(ConfigError, match=said):
        simulate(
            TokenSeqDataset(cache, SEQ),
            BatchSchedule(8),
            hosts=hosts,
            cache_bytes=cache_bytes,
            steps=RunSteps(**extra),
        )


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_prices_are_money(price):
    for field in ("per_gib", "per_1000_reads"):
        with pytest.raises(ConfigError, match=f"{field} = .*: is no price"):
            Prices(**{field: price})


def test_any_step_that_there_is_can_be_looked_at():
    """Near the last one too, and for a run that no one can wait for."""
    config = big(2)
    dataset = config.with_caches(
        {name: virtual_cache(name, 10**11) for name in config.components}
    ).dataset()
    for first_step in (1 << 39, (1 << 40) - (1 << 10) - 1):
        assert simulate(
            dataset,
            dataset.batch_schedule,
            hosts=[1],
            steps=RunSteps(first_step=first_step, max_rows=1 << 11),
        ).steps


def test_documents_of_caches_to_come_are_not_known():
    sized = {"web": ComponentConfig("nowhere", expected_tokens=1e9)}
    held = LmDataConfig(sized, validation=ValidationConfig(one_in=100, by="documents"))
    with pytest.raises(
        ConfigError,
        match=r"validation.by = 'documents': needs to know where documents end.*by=blocks",
    ):
        planned_caches(held)
    planned_caches(LmDataConfig(sized, validation=ValidationConfig(one_in=100)))
    fields = {"remove": "list.npy", "where": "length > 9"}
    for name, value in fields.items():
        component = replace(ComponentConfig("nowhere", expected_tokens=1e9), **{name: value})
        with pytest.raises(
            ConfigError,
            match=rf"components.a.{name} = '{value}': needs to know.*components.a.{name}=null",
        ):
            planned_caches(LmDataConfig({"a": component}))


def growing(sizes, tokens=10**9, **changes):
    config = LmDataConfig(
        {"a": ComponentConfig("nowhere")}, seq_len=2048, batch_size=sizes, **changes
    )
    return config.with_caches({"a": virtual_cache("a", tokens)}).dataset()


def test_every_batch_size_is_looked_at_in_proportion_to_its_steps():
    dataset = growing({0: 64, 100: 256}, tokens=10**10)
    ask = {"hosts": [1, 8]}
    every = simulate(
        dataset, dataset.batch_schedule, steps=RunSteps(num_steps=2000, max_rows=1 << 20), **ask
    )
    assert every.exact
    assert every.steps == 2000
    assert every.notes == ()
    sample = simulate(
        dataset, dataset.batch_schedule, steps=RunSteps(num_steps=2000, max_rows=1 << 18), **ask
    )
    assert not sample.exact
    assert [(look.first_step, look.stands_for) for look in sample.looks] == [(0, 100), (100, 1900)]
    assert sample.looks[0].counted_from == 32  # 2,048 strands of 64 a batch
    for wanted, found in zip(every.by_hosts, sample.by_hosts, strict=True):
        assert 0.95 < wanted.reads_per_block < 1.2
        assert found.reads_per_block == pytest.approx(wanted.reads_per_block, rel=0.1)
        assert found.reads_per_step == pytest.approx(wanted.reads_per_step, rel=0.1)
        assert found.bytes_per_step == pytest.approx(wanted.bytes_per_step, rel=0.1)
    assert sample.distinct_blocks == pytest.approx(every.distinct_blocks, rel=0.1)


def test_a_whole_epoch_with_all_the_memory_reads_each_block_once():
    dataset = growing({0: 64, 100: 256}, max_epochs=1.0)
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=1 << 20)
    )
    assert forecast.exact
    assert forecast.by_hosts[0].reads_per_block == pytest.approx(1.0, abs=1e-3)


def test_a_stretch_that_is_all_cold_start_is_looked_at_from_before():
    dataset = growing({0: 64, 300: 128, 310: 256})
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(num_steps=5000, max_rows=1 << 18)
    )
    _, short, _ = forecast.looks
    assert (short.first_step, short.counted_from, short.stop_step) == (300 - 32, 300, 310)
    assert forecast.by_hosts[0].reads_per_block < 1.3


def test_too_few_steps_to_tell_are_said():
    dataset = growing(256, num_steps=5000)
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=256 * 8)
    )
    assert "all cold start, which takes 8 steps" in forecast.notes[0]
    assert forecast.notes[1:] == ("Raise max_rows to look at more steps.",)
    (life, _) = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=256 * 100)
    ).notes
    assert "A block is in use for about 256 steps from step 0 on, and 75 were counted" in life
    assert (
        simulate(dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=1 << 18)).notes
        == ()
    )
    full = growing(256, num_steps=5000, shuffle=True)
    (life, _) = simulate(
        full, full.batch_schedule, hosts=[1], steps=RunSteps(max_rows=1 << 16)
    ).notes
    assert "A block is in use for about 1,908 steps" in life


def test_a_run_without_a_known_end_says_what_it_left_out():
    dataset = growing({0: 64, 10_000: 256})
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=1 << 17)
    )
    assert forecast.steps == 2048
    assert forecast.notes == (
        "No end of the run is known, and only steps below 2,048 were looked at: the batch size"
        " changes at step 10,000. Say how many steps it has.",
    )
    small = growing({0: 64, 100: 4})
    notes = simulate(small, small.batch_schedule, hosts=[8], steps=RunSteps(num_steps=120)).notes
    assert any("Some batches have 4 rows, fewer than 8 hosts" in note for note in notes)


stretch = st.tuples(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 4000))


@given(st.lists(stretch, min_size=1, max_size=40), st.integers(0, 99), st.integers(1, 1 << 20))
def test_looks_lie_in_the_run_and_stand_for_all_of_it(drawn, first, max_rows):
    run = []
    step = first
    for steps, size, opened in drawn:
        run.append(Stretch(step, step + steps, size, 2048, opened, 32 * opened))
        step += steps
    looks = sampled(run, max_rows)
    assert len(looks) == min(len(run), MAX_STRETCHES) or len(run) > MAX_STRETCHES >= len(looks)
    assert looks[0].first_step == first
    assert sum(look.stands_for for look in looks) == pytest.approx(step - first)
    for look in looks:
        assert first <= look.first_step <= look.counted_from < look.stop_step <= step
        (own,) = (s for s in run if s.first_step <= look.counted_from < s.stop_step)
        assert look.stop_step <= own.stop_step
        steps = look.stop_step - look.counted_from
        before = look.counted_from - look.first_step
        assert (
            before >= min(own.cold_steps, steps + before - 1)
            or look.first_step < own.first_step
            or own is run[0]
        )
        least = LEAST_STEPS * own.batch_size
        assert steps * own.batch_size <= max(max_rows, least)
    whole = all_steps(run, sample=False)
    assert first == whole.first_step <= whole.counted_from < whole.stop_step == step


@pytest.mark.parametrize("policy", ["greedy", "least_consumed"])
def test_counting_to_a_far_step_is_watched(policy):
    weights = {n: ComponentConfig("nowhere") for n in "ab"}
    config = LmDataConfig(weights, seq_len=2048, batch_size=256, policy=policy)
    dataset = config.with_caches({n: virtual_cache(n, 10**10) for n in "ab"}).dataset()
    told = []
    steps = RunSteps(first_step=1000, max_rows=1 << 12)
    simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=steps, watch=lambda *now: told.append(now)
    )
    assert told == [(65536, 256_000), (131_072, 256_000), (196_608, 256_000), (256_000, 256_000)]


def test_an_unknown_source_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'c0'"):
        big(1).with_caches({"c00": virtual_cache("c00", 10**9)}).dataset()


@pytest.mark.parametrize(("last_batch", "most"), [("pad", 191), ("drop", 190)])
def test_limits_that_end_the_run_too_early_are_named(last_batch, most):
    """48,828 rows are 190 batches of 256 and 188 rows, which fill a batch that is padded."""
    config = big(2, max_epochs=1.0, last_batch=last_batch)
    dataset = config.with_caches(
        {name: virtual_cache(name, 10**8) for name in config.components}
    ).dataset()
    with pytest.raises(ConfigError, match=rf"lower num_steps to {most}\b"):
        simulate(dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(num_steps=1000))
    with pytest.raises(ConfigError):
        simulate(dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(num_steps=most + 1))
    simulate(dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(num_steps=most))


def test_caches_with_other_chunks_are_read_once_too():
    config = big(2)
    small = CacheLayout("uint32", chunk_elements=8192)
    caches = {"c0": virtual_cache("c0", 10**10), "c1": virtual_cache("c1", 10**10, layout=small)}
    dataset = config.with_caches(caches).dataset()
    forecast = simulate(
        dataset, dataset.batch_schedule, hosts=[1], steps=RunSteps(max_rows=1 << 17)
    ).by_hosts[0]
    assert 0.9 < forecast.reads_per_block < 1.1
    assert forecast.bytes_per_step == pytest.approx(256 * 4096 * 4, rel=0.1)
