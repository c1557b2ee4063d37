"""The datakit launch plans as its README says, without a cache or a network, and is what Levanter's
says.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import yaml

from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.check.sizes import planned_caches
from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import decode
from headrace.data.mixture import mixture_of
from headrace_levanter.translation.translate import translate

FOLDER = Path(__file__).resolve().parent.parent / "experiments" / "004_datakit"
STEPS = 16_384
PHASE = 13_056
BATCH = 512
SEQ_LEN = 2048
SHARE = STEPS * BATCH * SEQ_LEN / 10_372_343_704_053


@pytest.fixture(scope="module")
def launch() -> LmDataConfig:
    return load_config(str(FOLDER / "launch.yaml"))


def test_levanters_launch_is_the_same_run(launch):
    found = translate(yaml.safe_load((FOLDER / "levanter.yaml").read_text()))
    theirs = decode(LmDataConfig, found.config)
    for config in (theirs, launch):
        assert (config.seq_len, config.batch_size, config.num_steps) == (SEQ_LEN, BATCH, STEPS)
        assert config.split_documents
        assert config.subset is not None
        assert config.subset.fraction == SHARE
    assert {n: c.cache for n, c in theirs.components.items()} == {
        n: c.cache for n, c in launch.components.items()
    }
    assert [(s.step, s.weights) for s in theirs.stages] == [
        (s.step, s.weights) for s in launch.stages
    ]
    assert len(launch.components) == 168
    assert len(launch.components["tail"].caches) == 33
    missing = {
        note.field.split(".")[2].split("/")[0] for note in found.notes if note.kind == "missing"
    }
    assert missing == {
        "paloma",
        *launch.components,
    }  # what is evaluated on, and tags, stay with Levanter
    assert all("evaluat" in note.text for note in found.notes if note.kind == "missing")


def test_it_is_planned_without_a_cache(launch):
    plan = RunPlan.of(launch, look=False, hosts=[8, 64])
    assert plan.tokens == STEPS * BATCH * SEQ_LEN
    assert not [f for f in findings(plan) if f.level == "problem"]
    assert plan.forecast is not None
    for component in plan.components:
        assert component.rows == int((component.tokens or 0) // SEQ_LEN * SHARE)
    drawn = np.asarray([component.drawn_rows for component in plan.components])
    first, last = (
        np.asarray([stage.weights[n] for n in launch.components]) for stage in launch.stages
    )
    expected = BATCH * (PHASE * first / first.sum() + (STEPS - PHASE) * last / last.sum())
    assert np.abs(drawn - expected).max() < 1
    sources = sum(c.rows for c in plan.components) * SEQ_LEN
    assert sources == pytest.approx(
        STEPS * BATCH * SEQ_LEN, rel=1e-3
    )  # together as long as the run


def test_both_files_are_as_the_script_writes_them(launch, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("run")
    assert script.launch(sizes=script.sizes_of_buckets()) == launch
    assert script.levanter_launch() == yaml.safe_load((FOLDER / "levanter.yaml").read_text())


def test_any_step_has_its_quotas(launch):
    dataset = launch.with_caches(planned_caches(launch, look=False).caches).dataset()
    mixture = mixture_of(dataset)
    assert mixture is not None
    for step in (0, PHASE - 1, PHASE, STEPS - 1):
        counts = mixture.draws.counts_at(step)
        assert counts.sum() == BATCH
        assert np.abs(counts - mixture.weights_at(np.asarray([step]))[0] * BATCH).max() < 2
    rows = dataset.locate(np.arange(BATCH))
    assert np.unique(np.stack([rows.source, rows.row]), axis=1).shape[1] == BATCH
