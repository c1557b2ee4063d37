"""What orders keep open is one figure: that of loaders, ``config check``, ``config simulate``,
reports and errors; and what a run reads is what was forecast.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.analysis import simulate
from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.simulate.forecast import RunSteps
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.budgets import OpenBytes
from headrace.data.mixture import mixture_of
from headrace.errors import ConfigError
from headrace.order import BlockShuffleConfig, BraidShuffleConfig
from headrace.order.shuffle_config import ShuffleConfig
from headrace.testing import tiny_cache, write_cache

STEPS = 40
SEQ_LEN = 16
CHUNK_ROWS = 256 // SEQ_LEN  # of the kit's caches
SHUFFLES: dict[str, ShuffleConfig] = {
    "none": False,
    "full": True,
    "era": 40,
    "block": BlockShuffleConfig(window_blocks=3, cache_windows=2),
    "braid": BraidShuffleConfig(strands=7),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("caches")
    return {
        n: tiny_cache(folder / n, documents=documents, seed=documents).path
        for n, documents in SIZES.items()
    }


SIZES = {"a": 400, "b": 150}


def rows_open(kind: str, rows: int, strands: int) -> int:
    """Rows that each kind of order draws from at a time, as its definition has it."""
    return {
        "none": CHUNK_ROWS,
        "full": rows,
        "era": 40,
        "block": 2 * 3 * CHUNK_ROWS,
        "braid": min(strands * CHUNK_ROWS, rows),
    }[kind]


@st.composite
def runs(draw: st.DrawFn) -> tuple[LmDataConfig, dict[str, str]]:
    kinds = {name: draw(st.sampled_from([*SHUFFLES])) for name in SIZES}
    number = st.sampled_from([0.2, 1.0, 5.0])
    config = LmDataConfig(
        {
            name: ComponentConfig("-", draw(number), shuffle=SHUFFLES[kind])
            for name, kind in kinds.items()
        },
        seq_len=SEQ_LEN,
        batch_size=draw(st.sampled_from([8, 16, {0: 8, 11: 16}])),
        num_steps=STEPS,
        seed=draw(st.integers(0, 3)),
        row_order=draw(st.sampled_from(["locality", "stream"])),
        prefetch_bytes=draw(st.sampled_from([8_500, 20_000, 1 << 20])),
    )
    return config, kinds


def placed(config: LmDataConfig, paths: dict[str, str]) -> LmDataConfig:
    components = {n: dataclasses.replace(c, cache=paths[n]) for n, c in config.components.items()}
    return dataclasses.replace(config, components=components)


def check_agreement(config: LmDataConfig) -> OpenBytes:
    """The figure and the verdict of all who give them; the reads of a loader that starts."""
    dataset = config.dataset()
    memory = config.prefetch_bytes
    figure = OpenBytes.of(dataset)
    plan = RunPlan.of(config, hosts=[1, 2])
    assert plan.open_bytes == figure
    assert sum(c.open_bytes * c.held_windows for c in plan.components) == figure.needed()
    forecast = simulate(
        dataset,
        dataset.batch_schedule,
        hosts=[1, 2],
        cache_bytes=memory,
        steps=RunSteps(num_steps=STEPS),
        row_order=config.row_order,
    )
    for host in forecast.by_hosts:
        assert (
            host.open_bytes
            == plan.open_bytes.needed(1 / host.hosts)
            == figure.needed(1 / host.hosts)
        )
        assert host.refused == figure.refused(memory, 1 / host.hosts)
    rules = {f.rule: f for f in findings(plan)}
    alone = forecast.by_hosts[0]
    assert any("on 1 host " in note for note in forecast.notes) == (alone.open_bytes > memory)
    if alone.refused:
        assert f"{figure.window_bytes():,} on 1 host" in rules["no_memory"].problem
        assert f"{figure.window_bytes():,} bytes" in forecast.notes[0]
        with pytest.raises(ConfigError, match=f"the {figure.window_bytes():,} bytes") as error:
            config.loader()
        assert error.value.field == "prefetch_bytes"
        enough = int(str(error.value.cure).split()[3])
        assert not figure.refused(enough)
        return figure
    assert "no_memory" not in rules
    if alone.open_bytes > memory:
        assert "little_memory" in rules
    with config.loader() as loader:
        assert sum(1 for _ in loader) == STEPS
        assert loader.stats().reads.block_fetches == alone.block_fetches
    return figure


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(run=runs())
def test_forecast_check_and_loader_agree(paths, run):
    config, kinds = run
    config = placed(config, paths)
    figure = check_agreement(config)
    mixture = mixture_of(config.dataset().at_step(0)[0])
    assert mixture is not None
    sizes = {**figure.windows, **figure.others}
    assert set(figure.windows) == {
        name for name, kind in kinds.items() if kind in ("block", "braid")
    }
    for name, component in zip(mixture.names, mixture.components, strict=True):
        order = component.shuffle_order()
        rows = component.rows_of_pass
        assert rows is not None
        strands = 0 if order is None else order.strands
        assert sizes[name] == rows_open(kinds[name], rows, strands) * component.row_bytes


@pytest.mark.parametrize("kind", ["full", "era", "block", "braid"])
def test_a_budget_that_is_too_small_is_said_everywhere(kind, tmp_path):
    """920 rows of 256 bytes are 235,520: all that the four orders draw from, and
    more than 40,000.
    """
    tokens = np.zeros(920 * 128, np.int64)
    path = write_cache(tmp_path / "c", [[tokens]], vocab_size=1 << 10).path
    shuffle: ShuffleConfig = {
        "full": True,
        "era": 920,
        "block": BlockShuffleConfig(window_blocks=460),
        "braid": BraidShuffleConfig(strands=464),
    }[kind]
    config = LmDataConfig(
        {"a": ComponentConfig(path)},
        seq_len=128,
        batch_size=8,
        num_steps=STEPS,
        shuffle=shuffle,
        prefetch_bytes=40_000,
    )
    figure = check_agreement(config)
    assert (figure.needed(), figure.refused(40_000)) == (235_520, kind in ("block", "braid"))


def test_of_phases_the_one_that_needs_most_counts(paths):
    config = LmDataConfig(
        {"a": ComponentConfig(paths["a"])},
        seq_len={0: 16, 5: 64},
        batch_size=8,
        num_steps=20,
        shuffle=BraidShuffleConfig(strands=7),
    )
    dataset = config.dataset()
    phases = [OpenBytes.of(phase).needed() for _, phase in dataset.phases]
    assert len(phases) == 2
    assert OpenBytes.of(dataset).needed() == max(phases) > 0
    assert dataset.open_windows(10) == dataset.at_step(10)[0].open_windows(10)


def test_hosts_that_exchange_rows_share_what_each_would_keep(paths):
    """Sources of few blocks, all of whose rows are permuted."""
    config = LmDataConfig(
        {name: ComponentConfig(path) for name, path in paths.items()},
        seq_len=SEQ_LEN,
        batch_size=8,
        num_steps=STEPS,
        shuffle=BraidShuffleConfig(strands=200),
        prefetch_bytes=1 << 20,
    )
    needed = OpenBytes.of(config.dataset()).window_bytes(1 / 4)
    config = dataclasses.replace(config, prefetch_bytes=needed // 2)
    (finding,) = (f for f in findings(RunPlan.of(config, hosts=[4])) if f.rule == "no_memory")
    assert finding.cure.endswith("or set row_exchange: on.")
    with pytest.raises(ConfigError, match="row_exchange: on"):
        OpenBytes.of(config.dataset()).check(config.prefetch_bytes, 1 / 4)
    cured = dataclasses.replace(config, row_exchange="on")
    plan = RunPlan.of(cured, hosts=[4])
    assert "no_memory" not in {f.rule for f in findings(plan)}
    assert not plan.open_bytes.everywhere
    plan.open_bytes.check(cured.prefetch_bytes, 1 / 4)
    assert plan.forecast.by_hosts[0].open_bytes <= cured.prefetch_bytes
    # One host has nobody to share with
    (finding,) = (f for f in findings(RunPlan.of(config, hosts=[1])) if f.rule == "no_memory")
    assert "row_exchange" not in finding.cure
