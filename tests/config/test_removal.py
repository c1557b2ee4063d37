"""Tombstones in configs: of caches of every kind, the documents that they name are gone, and no
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.analysis.check.plan import plan_run
from headrace.config import ComponentConfig, LmDataConfig
from headrace.config.removal import components_as_begun
from headrace.data.buckets import BucketsConfig
from headrace.data.provenance import removed_spans, rows_of_step, spans_of_rows
from headrace.errors import ConfigError
from headrace.ingest import reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.mix import AmendmentConfig
from headrace.order.intervals import Intervals
from headrace.pack import PackingConfig
from headrace.run import open_run
from headrace.store import TokenCache
from headrace.store.joined import JoinedCache
from headrace.store.tombstones import remove_documents
from headrace.testing import tiny_cache
from headrace_levanter.export import write_levanter

GONE = [0, 7, 8, 31, 59]


def one_cache(folder: Path) -> ComponentConfig:
    return ComponentConfig(tiny_cache(folder / "c", documents=60, parts=3).path)


def levanter(folder: Path) -> ComponentConfig:
    write_levanter(tiny_cache(folder / "c", documents=60), str(folder / "theirs"))
    return ComponentConfig(str(folder / "theirs"))


def shuffled(folder: Path) -> ComponentConfig:
    cache = tiny_cache(folder / "c", documents=60, parts=2)
    reshuffle(
        cache, str(folder / "shuffled"), ReshuffleConfig(seed=1), engine="inline", progress=False
    )
    return ComponentConfig(str(folder / "shuffled"))


def joined(folder: Path) -> ComponentConfig:
    return ComponentConfig(
        [tiny_cache(folder / name, documents=20, seed=n).path for n, name in enumerate("abc")]
    )


def bucketed(folder: Path) -> ComponentConfig:
    buckets = BucketsConfig("length", edges=[20], weights=[1, 2])
    return dataclasses.replace(one_cache(folder), buckets=buckets)


def in_units(folder: Path) -> ComponentConfig:
    return dataclasses.replace(one_cache(folder), packing=PackingConfig(unit=2, long="drop"))


def remove(component: ComponentConfig, documents: list[int]) -> list[int]:
    """Removes documents of a component, of several caches those of each; gives the generation of
    each cache.
    """
    generations = []
    first = 0
    for path in component.caches:
        cache = TokenCache.open(path)
        own = [n - first for n in documents if 0 <= n - first < cache.num_documents]
        generations.append(
            len(remove_documents(cache, Intervals.of_numbers(np.array(own, np.int64)))[0])
        )
        first += cache.num_documents
    return generations


@pytest.mark.parametrize("kind", [one_cache, levanter, shuffled, joined, bucketed, in_units])
def test_caches_of_every_kind(tmp_path, kind: Callable[[Path], ComponentConfig]):
    component = kind(tmp_path)
    config = LmDataConfig({"web": component}, seq_len=16 if kind is bucketed else 64, batch_size=4)
    generations = remove(component, GONE)
    amended = dataclasses.replace(
        config,
        components={"web": dataclasses.replace(component, tombstones=0)},
        amendments=[AmendmentConfig(3, remove={"web": generations})],
    )
    dataset = amended.dataset()
    whole = config.dataset()
    gone = (
        sorted({m for n in GONE for m in (n // 2 * 2, n // 2 * 2 + 1)})
        if kind is in_units
        else GONE
    )
    for step in range(9):
        for run, begins in ((dataset, 3), (whole, 0)):
            rows = rows_of_step(run, run.batch_schedule, step)
            spans = spans_of_rows(rows)
            caches = [rows.caches[source] for source in spans.source.tolist()]
            originals = [
                int(c.originals([n])[0])
                for c, n in zip(caches, spans.document.tolist(), strict=True)
            ]
            removed = removed_spans(rows, spans)
            assert removed.tolist() == [step >= begins and number in gone for number in originals]
            batch = run.at_step(step)[0].read(rows.example)
            for k in np.flatnonzero(removed).tolist():
                columns = slice(int(spans.column[k]), int(spans.column[k] + spans.size[k]))
                assert not np.asarray(batch.token_mask)[spans.row[k], columns].any()
                assert not np.asarray(batch.tokens)[spans.row[k], columns].any()


def test_components_over_one_cache_may_begin_with_different_generations(tmp_path):
    component = one_cache(tmp_path)
    remove(component, [3])
    remove(component, [4])
    parts = {str(n): dataclasses.replace(component, tombstones=n) for n in range(3)}
    dataset = LmDataConfig(parts, seq_len=16, batch_size=8).dataset()
    recorded = dataset.describe()["tombstones"]
    assert {n: [one["documents"] for one in of.values()] for n, of in recorded.items()} == {
        "1": [1],
        "2": [2],
    }


def test_newer_generations_by_hand_and_by_name(tmp_path):
    config = LmDataConfig({"web": one_cache(tmp_path)}, seq_len=16, batch_size=8)
    assert "tombstones" not in config.dataset().describe()
    assert components_as_begun(config.components, {})["web"].tombstones is None
    remove(config.components["web"], [3])
    assert "tombstones" not in config.as_begun(None, {"web": []}).dataset().describe()
    two = dataclasses.replace(
        config, components={"web": ComponentConfig([str(tmp_path / "c")], tombstones=[1, 1])}
    )
    with pytest.raises(ConfigError, match="Give one for each"):
        two.dataset()


def test_joined_caches_are_counted_each(tmp_path):
    component = joined(tmp_path)
    assert isinstance(LmDataConfig({"a": component}, seq_len=16).open_caches()["a"], JoinedCache)
    assert remove(component, [25]) == [0, 1, 0]
    with pytest.raises(ConfigError, match="gives 1 generations, and the component has 3 caches"):
        LmDataConfig({"a": dataclasses.replace(component, tombstones=1)}, seq_len=16).dataset()


def test_a_source_of_which_nothing_is_left_is_refused_where_it_is_drawn(tmp_path):
    """By the loader and by config check; not by a run that began before, nor where an amendment
    drops the source.
    """
    web = one_cache(tmp_path)
    book = ComponentConfig(tiny_cache(tmp_path / "book", documents=40, seed=1).path)
    ids = np.arange(60)
    np.save(tmp_path / "some.npy", ids[:20])
    half = dataclasses.replace(web, remove=str(tmp_path / "some.npy"))
    runs = [
        LmDataConfig({"web": one, "book": book}, seq_len=16, batch_size=8, num_steps=9)
        for one in (web, half)
    ]
    for config in runs:
        with config.loader() as begun:
            open_run(str(tmp_path / f"run{runs.index(config)}"), begun)
    remove(web, ids[20:].tolist())
    for config in runs:
        with config.loader() as loader:
            if config is runs[0]:
                assert loader.batch_at(0).tokens.shape == (8, 16)
                continue
            with pytest.raises(ConfigError, match="all documents of 'web' are removed") as caught:
                loader.batch_at(0)
        assert (caught.value.field, caught.value.value) == ("components.web.tombstones", [1])
        with pytest.raises(ConfigError, match="all documents of 'web' are removed"):
            plan_run(config)
        with config.loader() as loader:  # as it began
            open_run(str(tmp_path / f"run{runs.index(config)}"), loader, 3)
            assert loader.batch_at(3).tokens.shape == (8, 16)
    cured = {"web": dataclasses.replace(half, tombstones=0), "book": book}
    plan_run(dataclasses.replace(runs[1], components=cured))
    amended = dataclasses.replace(
        runs[1], components=cured, amendments=[AmendmentConfig(5, remove={"web": 1})]
    )
    with amended.loader() as loader:
        loader.batch_at(4)
        with pytest.raises(ConfigError, match="leaves nothing") as caught:
            loader.batch_at(5)
        assert caught.value.field == "amendments[0].remove.web"
        assert "drop: [web]" in str(caught.value.cure)
    dropped = AmendmentConfig(5, remove={"web": 1}, drop=["web"])
    with dataclasses.replace(amended, amendments=[dropped]).loader() as loader:
        assert (np.asarray(loader.batch_at(5).source_id) == 1).all()
