"""Removed documents in configs: of caches of every kind, they are gone, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.analysis.check.plan import RunPlan
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.buckets import BucketsConfig
from headrace.data.dataset import rows_of_step
from headrace.data.provenance import removed_spans, spans_of_rows
from headrace.errors import ConfigError
from headrace.ingest import reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.mix import AmendmentConfig
from headrace.pack import PackingConfig
from headrace.run import open_run
from headrace.store import open_cache
from headrace.testing import tiny_cache
from headrace.testing.caches import grow, remove
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
    return replace(one_cache(folder), buckets=buckets)


def in_units(folder: Path) -> ComponentConfig:
    return replace(one_cache(folder), packing=PackingConfig(unit=2, long="drop"))


def removed_from(component: ComponentConfig, documents: list[int]) -> list[int]:
    """Removes documents of a component, of several caches those of each; gives the snapshot of each
    cache.
    """
    snapshots: list[int] = []
    first = 0
    for path in component.caches:
        last = first + open_cache(path).num_documents
        snapshots.append(remove(path, *(n - first for n in documents if first <= n < last)))
        first = last
    return snapshots


@pytest.mark.parametrize("kind", [one_cache, levanter, shuffled, joined, bucketed, in_units])
def test_caches_of_every_kind(tmp_path, kind: Callable[[Path], ComponentConfig]):
    component = kind(tmp_path)
    config = LmDataConfig({"web": component}, seq_len=16 if kind is bucketed else 64, batch_size=4)
    snapshots = removed_from(component, GONE)
    amended = replace(
        config,
        components={"web": replace(component, snapshot=[1] * len(component.caches))},
        amendments=[AmendmentConfig(3, caches={"web": snapshots})],
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


def test_components_over_one_cache_may_begin_with_different_snapshots(tmp_path):
    component = one_cache(tmp_path)
    remove(component.caches[0], 3)
    remove(component.caches[0], 4)
    parts = {str(n): replace(component, snapshot=n) for n in (1, 2, 3)}
    dataset = LmDataConfig(parts, seq_len=16, batch_size=8).dataset()
    recorded = dataset.describe()["removed"]
    assert {n: [one["documents"] for one in of.values()] for n, of in recorded.items()} == {
        "2": [1],
        "3": [2],
    }


def test_buckets_lose_documents_and_gain_none(tmp_path):
    component = bucketed(tmp_path)
    remove(component.caches[0], 3, 4)
    grow(component.caches[0], 5)
    config = LmDataConfig({"web": replace(component, snapshot=1)}, seq_len=16, batch_size=4)
    removing = replace(config, amendments=[AmendmentConfig(3, caches={"web": 2})])
    assert removing.dataset().describe()["removed"]
    with pytest.raises(
        ConfigError, match=r"with components.web/.*\{cache: .*, snapshot: 3, after: 1\}"
    ):
        replace(config, amendments=[AmendmentConfig(3, caches={"web": 3})]).dataset()


def test_a_source_of_which_nothing_is_left_is_refused_where_it_is_drawn(tmp_path):
    """By the loader and by config check; not by a run that began before, nor where an amendment
    drops the source.
    """
    web = one_cache(tmp_path)
    book = ComponentConfig(tiny_cache(tmp_path / "book", documents=40, seed=1).path)
    ids = np.arange(60)
    np.save(tmp_path / "some.npy", ids[:20])
    half = replace(web, remove=str(tmp_path / "some.npy"))
    runs = [
        LmDataConfig({"web": one, "book": book}, seq_len=16, batch_size=8, num_steps=9)
        for one in (web, half)
    ]
    for config in runs:
        open_run(str(tmp_path / f"run{runs.index(config)}"), config)
    removed_from(web, ids[20:].tolist())
    for config in runs:
        with config.loader() as loader:
            if config is runs[0]:
                assert loader.batch_at(0).tokens.shape == (8, 16)
                continue
            with pytest.raises(ConfigError, match="all documents of 'web' are removed") as caught:
                loader.batch_at(0)
        assert (caught.value.field, caught.value.value) == ("components.web.snapshot", [2])
        with pytest.raises(ConfigError, match="all documents of 'web' are removed"):
            RunPlan.of(config).to_dict()
        run = open_run(str(tmp_path / f"run{runs.index(config)}"), config, 3)  # as it began
        with run.loader() as loader:
            assert loader.batch_at(3).tokens.shape == (8, 16)
    cured = {"web": replace(half, snapshot=1), "book": book}
    RunPlan.of(replace(runs[1], components=cured)).to_dict()
    amended = replace(runs[1], components=cured, amendments=[AmendmentConfig(5, caches={"web": 2})])
    with amended.loader() as loader:
        loader.batch_at(4)
        with pytest.raises(ConfigError, match="leaves nothing") as caught:
            loader.batch_at(5)
        assert caught.value.field == "amendments[0].caches.web"
        assert "drop: [web]" in str(caught.value.cure)
    dropped = AmendmentConfig(5, caches={"web": 2}, drop=["web"])
    with replace(amended, amendments=[dropped]).loader() as loader:
        assert (np.asarray(loader.batch_at(5).source_id) == 1).all()
