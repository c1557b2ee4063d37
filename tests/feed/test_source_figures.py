"""Rows, tokens, epochs and weight of each source while a run trains: what ``run where`` says of the
same step.
"""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import DataLoader, RunLog, TokenSeqDataset, load_config, open_run
from headrace.feed import LogStats, prometheus, tensorboard, wandb_run
from headrace.run import where
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

NAMES = ("a", "b", "c")
RAMP = {"linear": {0: 1, 30: 3}}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a ramp": {"components": {"a": {"weight": RAMP}}},
    "packed": {"components": {"a": {"packing": {}}, "b": {"packing": {"algorithm": "next_fit"}}}},
    "packed, by content": {"components": {"a": {"packing": {}}}, "unit": "content_tokens"},
    "stages": {
        "stages": [{"weights": {"a": 1, "b": 1}}, {"weights": {"c": 1, "a": 2}, "step": 9}],
    },
    "amended": {
        "components": {"c": {}},
        "amendments": [{"step": 7, "add": {"c": 2}, "weights": {"a": 3}}],
    },
    "longer rows": {"seq_len": {0: 16, 10: 32}},
    "limited": {"components": {"a": {"max_epochs": 1}}},
    "held out": {"validation": {"one_in": 10}},
    "a filter": {"components": {"a": {"remove": "removed.txt"}}},
}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate(NAMES):
        write_cache(folder / name, [random_documents(80, seed=seed)])
    (folder / "removed.txt").write_text("1\n5\n6\n")
    return folder


def config_of(caches, kind):
    fields = dict(KINDS[kind])
    own = fields.pop("components", {})
    components = {n: {"cache": f"{caches}/{n}", **own.get(n, {})} for n in NAMES}
    if "remove" in components["a"]:
        components["a"]["remove"] = f"{caches}/removed.txt"
    path = caches / "run.yaml"
    base = {"seq_len": 16, "batch_size": 8, "num_steps": 30, "components": components}
    path.write_text(yaml.safe_dump({**base, **fields}, sort_keys=False))
    return load_config(str(path))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 29), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_they_are_those_of_where_at_the_step_that_is_reached(caches, kind, first, steps):
    config = config_of(caches, kind)
    steps = min(steps, 30 - first)
    with config.loader() as loader, loader.iter_from_step(first) as batches:
        for _ in range(steps):
            next(batches)
        stats = loader.stats()
    assert stats.step == first + steps
    assert dict(stats.sources) == where(config, first + steps).sources
    assert sum(source.rows for source in stats.sources.values()) == 8 * (first + steps)


def test_the_latest_iteration_counts_and_a_snapshot_stays_what_it_was(caches):
    config = config_of(caches, "a ramp")
    with config.loader() as loader:
        before = loader.stats()
        for first in (20, 3):
            with loader.iter_from_step(first) as batches:
                next(batches)
                next(batches)
        assert (before.step, loader.stats().step) == (0, 5)
        assert dict(loader.stats(all_hosts=True).sources) == where(config, 5).sources
        assert dict(before.sources) == where(config, 0).sources


def test_an_amended_run_goes_on_with_its_figures(caches, tmp_path):
    with config_of(caches, "plain").loader() as loader:
        open_run(tmp_path, loader).state(5)
    path = caches / "run.yaml"
    amended = yaml.safe_load(path.read_text())
    amended["amendments"] = [{"step": 6, "drop": ["a"]}]
    path.write_text(yaml.safe_dump(amended, sort_keys=False))
    config = load_config(str(path))
    run = open_run(tmp_path, config)
    with run.loader() as loader:
        with loader.iter_from_step(5) as batches:
            for _ in range(6):
                next(batches)
        sources = loader.stats().sources
        assert dict(sources) == where(config, 11).sources
        assert (sources["a"].rows, sources["a"].weight) == (where(config, 6).sources["a"].rows, 0)


def test_a_dataset_that_is_no_mixture_has_none(caches):
    with DataLoader(TokenSeqDataset(f"{caches}/a", seq_len=16), batch_size=8) as loader:
        assert dict(loader.stats().sources) == {}
        assert loader.stats().figures_of_sources() == {}


def test_every_log_has_them(caches, tmp_path):
    tensorboardx = pytest.importorskip("tensorboardX")
    client = pytest.importorskip("prometheus_client")
    config = config_of(caches, "plain")
    logged = {}
    run = SimpleNamespace(log=lambda figures, step: logged.update({step: figures}))
    registry = client.CollectorRegistry()
    added = {}
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: added.update({(name, step): value}), flush=lambda: None
    )
    assert tensorboardx
    with config.loader() as loader, RunLog(loader, tmp_path, every=1) as log:
        writers = tensorboard(writer), wandb_run(run), prometheus(registry, {"host": "0"})
        curves = LogStats(loader, *writers, every=1, sources_every=10)
        with loader.iter_from_step(0) as batches:
            for step in range(15):
                next(batches)
                curves(step)
                log(step)
    last = where(config, 11).sources  # at step 10, eleven are done
    for name, source in last.items():
        for figure, value in source.figures().items():
            assert logged[10][f"data/sources/{name}/{figure}"] == value
            assert added[f"data/sources/{name}/{figure}", 10] == value
            labels = {"host": "0", "source": name}
            assert registry.get_sample_value(f"headrace_data_sources_{figure}", labels) == value
    assert not any("sources/" in name for name in logged[9])
    lines = [
        json.loads(line) for line in (tmp_path / "stats/host-00000.jsonl").read_text().splitlines()
    ]
    written = [line for line in lines if line["kind"] == "sources"]
    assert [line["steps_done"] for line in written] == [1, 11, 15]
    final = where(config, 15).sources
    assert written[-1]["sources"] == {name: source.figures() for name, source in final.items()}
