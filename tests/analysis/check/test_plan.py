"""What a config resolves to is what its dataset does; declared sizes stand in for caches until
there are any.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.analysis import simulate
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.check.sizes import planned_caches
from headrace.analysis.simulate.forecast import RunSteps
from headrace.cli.application import application
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset
from headrace.errors import ConfigError
from headrace.mix import StageConfig
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.pack import PackingConfig
from headrace.store.layouts import FormatConfig
from headrace.testing import tiny_cache, write_cache
from headrace_levanter.caches import CHUNK, SHARD_CHUNKS


def virtual(**changes) -> LmDataConfig:
    """Three sources that are not there: 1.0, 0.3 and 0.1 million tokens."""
    own = changes.pop("own", {})
    sizes = {"a": 1_000_000, "b": 300_000, "c": 100_000}
    components = {
        n: ComponentConfig(f"no/{n}", **{"expected_tokens": s, **own.get(n, {})})
        for n, s in sizes.items()
    }
    return LmDataConfig(
        **{"components": components, "seq_len": 128, "batch_size": 16, "num_steps": 200, **changes}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"own": {"a": {"weight": 5}, "b": {"weight": {"linear": {0: 0, 150: 3}}}}},
        {"stages": [StageConfig({"a": 3, "b": 1}, step=0), StageConfig({"c": 1}, step=77)]},
        {"seq_len": {0: 64, 100: 128}},
        {"batch_size": {0: 8, 50: 16}},
        {"max_epochs": 0.4},
        {"shuffle": BlockShuffleConfig(window_blocks=2)},
        {"own": {"a": {"shuffle": True}, "b": {"shuffle": False}, "c": {"shuffle": 10}}},
    ],
)
def test_rows_and_epochs_are_those_of_the_dataset(changes):
    config = virtual(**changes)
    plan = RunPlan.of(config, max_rows=2048)
    dataset = config.with_caches(planned_caches(config).caches).dataset()
    drawn = np.zeros(3, np.int64)
    tokens = np.zeros(3)
    for step in range(plan.steps or 0):
        mixture = dataset.at_step(step)[0]
        assert isinstance(mixture, MixtureDataset)
        counts = mixture.draws.counts_at(step)
        drawn = drawn + counts
        tokens = tokens + counts * mixture.seq_len
    assert plan.steps == 200
    assert [c.drawn_rows for c in plan.components] == drawn.tolist()
    assert plan.tokens == tokens.sum()
    last = dataset.at_step(plan.steps - 1)[0]
    assert isinstance(last, MixtureDataset)
    passes = [last.tokens_of_pass(c.name) or 0 for c in plan.components]
    assert [c.epochs for c in plan.components] == pytest.approx((tokens / passes).tolist())
    json.dumps(plan.to_dict())


def test_the_forecast_is_that_of_simulate():
    config = virtual()
    plan = RunPlan.of(config, hosts=[1, 4])
    dataset = config.with_caches(planned_caches(config).caches).dataset()
    assert plan.forecast == simulate(
        dataset,
        dataset.batch_schedule,
        hosts=[1, 4],
        cache_bytes=config.prefetch_bytes,
        steps=RunSteps(num_steps=200),
    )


def test_orders_are_named_with_what_they_keep_open():
    own = {
        "a": {"shuffle": BraidShuffleConfig(strands=9)},
        "b": {"shuffle": BlockShuffleConfig(4, 3)},
    }
    a, b, c = RunPlan.of(virtual(own={**own, "c": {"shuffle": True}})).components
    assert [(x.shuffle, x.strands, x.block_rows) for x in (a, b, c)] == [
        ("braid", 3, 512),
        ("block", 0, 4),
        ("full", 0, 0),
    ]
    assert b.open_bytes == 3 * 4 * 128 * 4
    assert c.open_bytes == c.rows * 128 * 4
    assert RunPlan.of(virtual()).components[0].chunk_tokens == 65536
    of_levanter = virtual(own={"a": {"format": FormatConfig("levanter")}})
    assert [c.chunk_tokens for c in RunPlan.of(of_levanter).components] == [262144, 65536, 65536]


def test_the_indices_of_future_caches_of_levanter_are_requested():
    """All of two and a half files: the description of the array, and an index of each."""
    tokens = 5 * CHUNK * SHARD_CHUNKS // 2

    def index_requests(of_format: FormatConfig | None) -> int:
        config = LmDataConfig(
            {"web": ComponentConfig("-", expected_tokens=tokens, format=of_format)},
            seq_len=CHUNK,
            batch_size=64,
            num_steps=tokens // CHUNK // 64,
        )
        return RunPlan.of(config).forecast.by_hosts[0].index_requests

    assert index_requests(FormatConfig("levanter")) == 1 + 3
    assert index_requests(None) == 0


def test_the_first_batch_touches_the_chunks_that_its_rows_lie_in():
    plan = RunPlan.of(virtual(own={n: {"shuffle": False} for n in "abc"}))
    assert plan.first_batch[0] == 3  # the first rows of each source
    assert plan.first_batch[1] == 3 * 65536 * 4


def test_a_cache_that_is_there_counts_and_what_is_given_counts_more(tmp_path):
    cache = tiny_cache(tmp_path / "a", documents=200)
    config = LmDataConfig(
        {
            "a": ComponentConfig(cache.path, expected_tokens=1e9),
            "b": ComponentConfig("no/b", expected_tokens=1e6),
        },
        seq_len=16,
        split_documents=True,  # the end-of-text token of the one that is there is taken for both
    )
    config = replace(config, num_steps=3)
    a, b = RunPlan.of(config).components
    assert (a.tokens, a.exists, a.declared_tokens) == (cache.num_tokens, True, 10**9)
    assert (b.tokens, b.exists) == (10**6, False)
    a, _ = RunPlan.of(config, look=False).components
    assert (a.tokens, a.exists) == (10**9, False)


def test_a_run_without_an_end_has_no_epochs():
    plan = RunPlan.of(virtual(num_steps=None))
    assert plan.steps is None
    assert plan.tokens is None
    assert {c.epochs for c in plan.components} == {None}


def test_a_run_that_its_sources_end(tmp_path):
    plan = RunPlan.of(virtual(num_steps=None, stop_strategy="first_exhausted"))
    assert plan.steps is not None
    assert plan.ends_early is None
    late = RunPlan.of(virtual(num_steps=10_000, stop_strategy="first_exhausted"))
    assert (late.steps, late.ends_early) == (plan.steps, plan.steps)


def test_packs_of_what_is_not_there_are_planned_as_streams():
    plan = RunPlan.of(
        virtual(own={n: {"packing": PackingConfig()} for n in "abc"}, split_documents=True)
    )
    assert plan.planned.unpacked == ("a", "b", "c")
    assert plan.original.components["a"].packing == PackingConfig()
    assert plan.tokens == 200 * 16 * 128


def test_memory_that_does_not_hold_a_batch_is_said():
    plan = RunPlan.of(virtual(prefetch_bytes=1 << 18), hosts=[1])
    assert plan.forecast is None
    assert plan.refused


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (virtual(own={"a": {"expected_tokens": 0}}), "components.a.expected_tokens = 0"),
        (LmDataConfig({}), "components = {}: needs at least one source"),
    ],
)
def test_what_cannot_be_planned(config, problem):
    with pytest.raises(ConfigError, match=problem):
        RunPlan.of(config)


def test_a_source_without_cache_and_size_is_named_with_both_cures():
    with pytest.raises(ConfigError, match=r"no/a.*expected_tokens.*headrace build"):
        RunPlan.of(virtual(own={"a": {"expected_tokens": None}}))


def test_the_effective_batch_of_packed_rows(tmp_path):
    """Eight rows of 16 tokens with three documents of 5 each; of rows that are not packed there is
    no such number.
    """
    write_cache(str(tmp_path / "a"), [[np.arange(1, 6) for _ in range(60)]])
    packed = ComponentConfig(str(tmp_path / "a"), packing=PackingConfig(algorithm="next_fit"))
    config = LmDataConfig({"a": packed}, seq_len=16, batch_size=8, num_steps=4)
    plan = RunPlan.of(config, hosts=(1,))
    assert (plan.components[0].row_documents, plan.components[0].row_fill) == (3.0, 15 / 16)
    assert plan.effective_batch == (24, 120)
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    shown = (
        CliRunner().invoke(application(), ["config", "check", str(tmp_path / "run.yaml")]).output
    )
    assert "A batch of 8 packed rows holds about 24 documents and 120 tokens." in shown
    plain = LmDataConfig(
        {"a": ComponentConfig(str(tmp_path / "a"))}, seq_len=16, batch_size=8, num_steps=4
    )
    assert RunPlan.of(plain, hosts=(1,)).effective_batch is None
