"""A config whose rows change their length."""

import dataclasses
import itertools

import numpy as np
import pytest

from headrace.analysis import simulate
from headrace.analysis.simulate.forecast import RunSteps
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.data.dataset import BatchOrder
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError
from headrace.feed.reader import Grouping, PlannedReader
from headrace.mix import StageConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.order.residency import Residency
from headrace.run import RunLock
from headrace.store import TokenCache
from headrace.testing import write_cache

CHUNK = 256


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> dict[str, TokenCache]:
    made: dict[str, TokenCache] = {}
    for name, size in (("a", 40_000), ("b", 9_999)):
        cuts = np.unique(
            [0, size, *np.random.default_rng(size).integers(0, size, size // 40).tolist()]
        ).tolist()
        documents = [np.arange(x, y) for x, y in itertools.pairwise(cuts)]
        path = tmp_path_factory.mktemp(name) / "c"
        made[name] = write_cache(path, [documents[:100], documents[100:]], vocab_size=1 << 20)
    return made


def config(caches: dict[str, TokenCache], **changes) -> LmDataConfig:
    components = {
        "a": ComponentConfig(caches["a"].path, weight=3),
        "b": ComponentConfig(caches["b"].path),
    }
    plain = LmDataConfig(components, seq_len={0: 16, 30: 128}, batch_size={0: 16, 30: 8})
    return dataclasses.replace(plain, **changes)


def rows(settings: LmDataConfig, step: int) -> np.ndarray:
    dataset = settings.dataset()
    begin, size = dataset.batch_schedule.rows_at(step)
    return dataset.read(np.arange(begin, begin + size)).tokens


@pytest.mark.parametrize("split", [None, ValidationConfig(8), ValidationConfig(8, by="documents")])
def test_the_run_begins_as_it_would_without_phases(caches, split):
    phased = config(caches, validation=split)
    plain = config(caches, validation=split, seq_len=16)
    for step in (0, 11, 29):
        assert np.array_equal(rows(phased, step), rows(plain, step))
    assert rows(phased, 30).shape == (8, 128)
    assert phased.phases == ((0, 16), (30, 128))
    assert plain.phases == ((0, 16),)


@pytest.mark.parametrize("by", ["blocks", "documents"])
def test_validation_is_the_same_tokens_in_all_phases(caches, by):
    phased = config(caches, validation=ValidationConfig(8, by=by), seq_len={0: 16, 30: 128, 80: 32})
    short, long = (phased.validation_datasets(seq_len=n) for n in (None, 128))
    dataset = phased.dataset()
    assert isinstance(dataset, PhasedDataset)
    for number, name in enumerate(("a", "b")):
        held = short[name].read(np.arange(len(short[name]))).tokens
        held_long = long[name].read(np.arange(len(long[name]))).tokens
        assert held_long.shape[1] == 128
        if by == "blocks":
            assert np.array_equal(np.sort(held.ravel()), np.sort(held_long.ravel()))
        for step in range(0, 400, 3):
            begin, size = dataset.batch_schedule.rows_at(step)
            batch = dataset.read(np.arange(begin, begin + size))
            met = np.asarray(batch.tokens)[np.asarray(batch.source_id) == number]
            assert np.intersect1d(met, held).size == 0
            assert np.intersect1d(met, held_long).size == 0


def test_the_loader_and_the_forecast_follow_the_phases(caches):
    settings = config(caches)
    with settings.loader() as loader:
        with loader.iter_from_step(28) as batches:
            shapes = [next(batches).tokens.shape for _ in range(5)]
        assert shapes == [(16, 16), (16, 16), (8, 128), (8, 128), (8, 128)]
    dataset = settings.dataset()
    schedule = dataset.batch_schedule
    before, after = (
        simulate(dataset, schedule, hosts=[1, 2], steps=RunSteps(first_step=s, num_steps=60))
        for s in (0, 30)
    )
    assert (before.steps, before.batch_size, before.exact) == (60, 16, True)
    assert (after.first_step, after.steps, after.batch_size) == (30, 30, 8)


def test_the_fingerprint_knows_the_phases(caches):
    lengths = [16, {0: 16, 30: 128}, {0: 16, 31: 128}, {0: 16, 30: 64}, {0: 16, 30: 128, 90: 16}]
    prints = {RunLock.of(config(caches, seq_len=n).loader()).fingerprint for n in lengths}
    assert len(prints) == len(lengths)
    same = [
        RunLock.of(config(caches, seq_len=n).loader()).fingerprint
        for n in (16, {0: 16}, {0: 16, 9: 16})
    ]
    assert len(set(same)) == 1


def test_it_can_be_written_as_yaml(caches, tmp_path):
    (tmp_path / "run.yaml").write_text("seq_len: {0: 4096, 10000: 32768}\n")
    settings = load_config(str(tmp_path / "run.yaml"))
    assert settings.phases == ((0, 4096), (10_000, 32_768))
    (tmp_path / "again.yaml").write_text(settings.to_yaml())
    assert load_config(str(tmp_path / "again.yaml")) == settings


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seq_len": {1: 16}}, "seq_len"),
        ({"seq_len": {0: 16, 30: 1}}, "seq_len[30]"),
        ({"stop_strategy": "first_exhausted"}, "stop_strategy"),
        (
            {
                "stages": [StageConfig({"a": 1, "b": 1}, tokens=1000), StageConfig({"a": 1})],
                "policy": "swrr",
            },
            "policy",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_when_it_is_written(caches, changes, field):
    with pytest.raises(ConfigError) as caught:
        config(caches, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shuffle": BraidShuffleConfig(io_block_size=7)}, "shuffle.io_block_size"),
        ({"shuffle": BlockShuffleConfig(io_block_size=7)}, "shuffle.io_block_size"),
        ({"validation": ValidationConfig(8, io_block_size=3)}, "validation.io_block_size"),
        ({"policy": "exhaustive"}, "policy"),
    ],
)
def test_what_does_not_go_together_is_refused_when_it_is_opened(caches, changes, field):
    if "policy" in changes:
        changes = {**changes, "components": {n: ComponentConfig(c.path) for n, c in caches.items()}}
    with pytest.raises(ConfigError) as caught:
        config(caches, **changes).dataset()
    assert caught.value.field == field


def test_memory_is_checked_in_every_phase(caches):
    assert config(caches, prefetch_bytes=1 << 20).dataset().seq_lens == (16, 128)
    config(caches, prefetch_bytes=1 << 20).loader().close()
    with pytest.raises(ConfigError, match="keeps open on this host"):
        config(caches, shuffle=BraidShuffleConfig(strands=60), prefetch_bytes=20_000).loader()


def test_stages_by_tokens_end_where_their_tokens_are_used_up_whatever_the_phases(caches):
    stages = [StageConfig({"a": 1}, tokens=10_000), StageConfig({"b": 1}, tokens=3000)]
    run = config(
        caches, stages=stages, components={n: ComponentConfig(c.path) for n, c in caches.items()}
    )
    first = [stage.first_step for stage in run.plan().stages]
    assert first == [0, 33]  # 30 steps of 256 tokens, then 3 of 1024
    assert run.run_steps == 36
    assert run.dataset().length == 30 * 16 + 6 * 8


def test_budgets_count_tokens_over_phases(caches):
    settings = config(
        caches, components={"a": ComponentConfig(caches["a"].path, max_tokens=20_000)}
    )
    dataset = settings.dataset()
    assert dataset.length is not None
    last = int(dataset.batch_schedule.step_of(np.array([dataset.length - 1]))[0])
    seen = [rows(settings, step) for step in range(last)]
    assert 20_000 - 9 * 128 <= sum(batch.size for batch in seen) <= 20_000


@pytest.mark.parametrize("first_step", [0, 30])
@pytest.mark.parametrize("slots", [40, 70])
def test_what_a_phase_reads_is_forecast_to_the_block(caches, first_step, slots):
    """The last steps of a phase are decided with the next one in view, and both are forecast in one
    go.
    """
    dataset = config(caches).dataset()
    schedule = dataset.batch_schedule
    memory = slots * 1024
    forecast = simulate(
        dataset,
        schedule,
        hosts=[1],
        cache_bytes=memory,
        steps=RunSteps(first_step=first_step, num_steps=60),
    )
    assert forecast.steps == 60 - first_step
    source = PlannedReader(
        BatchOrder(dataset, schedule), AllRows(), memory, grouping=Grouping(0), mapping=False
    )
    batches = source.batches(first_step, None)
    with pytest.MonkeyPatch.context() as patch:
        decide = Residency.decide
        found = {}

        def recorded(self, pieces=None):
            decision = decide(self, pieces)
            found[decision.step] = len(decision.blocks)
            return decision

        patch.setattr(Residency, "decide", recorded)
        for _ in range(first_step, 60):
            next(batches)
    fetched = sum(found[step] for step in range(first_step, 60))
    assert forecast.by_hosts[0].block_fetches == fetched


class AllRows:
    def local_rows(self, size):
        return np.arange(size)

    def local_columns(self, seq_len):
        return 0, seq_len
