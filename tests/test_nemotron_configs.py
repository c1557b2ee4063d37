"""The Nemotron configs plan as their README says, without a cache or a network, and are what
Levanter's says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.analysis.check.sizes import planned_caches
from headrace.config import LmDataConfig, load_config
from headrace.config.parsing import decode
from headrace.data import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace_levanter.translation.translate import translate

FOLDER = Path(__file__).resolve().parent.parent / "experiments" / "nemotron"


def loaded(name: str, *settings: str) -> LmDataConfig:
    return load_config(str(FOLDER / f"{name}.yaml"), settings)


def test_pretraining_reads_each_chunk_once_on_any_number_of_hosts():
    plan = RunPlan.of(loaded("pretrain"), look=False, hosts=[64, 256])
    assert plan.tokens == 150_000 * 8192 * 4096
    assert all(0.45 < (c.epochs or 0) < 0.84 for c in plan.components)
    assert plan.first_batch[0] == 8192
    assert plan.forecast is not None
    assert plan.settled
    assert [h.reads_per_block for h in plan.forecast.by_hosts] == pytest.approx([1, 1], abs=0.05)
    assert plan.open_bytes.needed(1 / 256) < 300e6
    assert [f.rule for f in findings(plan)] == ["cache_missing"]


def test_cooling_down_is_a_stage_with_a_nested_blend():
    config = loaded("cooldown")
    dataset = config.with_caches(planned_caches(config, look=False).caches).dataset()
    assert isinstance(dataset, MixtureDataset)
    assert dataset.length == (20_000 * 4096 + 100_000 * 8192)
    shares = dict(
        zip(dataset.names, dataset.weights_at(np.array([119_999]))[0].tolist(), strict=True)
    )
    assert sum(
        shares[n] for n in ("dolmino_math", "finemath_3_plus", "stackexchange", "wikipedia")
    ) == pytest.approx(0.3)
    before = dict(
        zip(dataset.names, dataset.weights_at(np.array([109_999]))[0].tolist(), strict=True)
    )
    assert before["wikipedia"] == 0


@pytest.mark.slow
def test_longer_rows_take_the_same_tokens_a_step():
    config = loaded("long_context")
    dataset = config.with_caches(planned_caches(config, look=False).caches).dataset()
    assert isinstance(dataset, PhasedDataset)
    assert dataset.seq_lens == (4096, 16384, 65536)
    for step in (0, 100_000, 110_000):
        assert (
            dataset.batch_schedule.rows_at(step)[1] * dataset.at_step(step)[0].seq_len
            == 8192 * 4096
        )


def test_levanters_config_is_the_same_mixture():
    found = translate(yaml.safe_load((FOLDER / "levanter.yaml").read_text()))
    theirs = decode(LmDataConfig, found.config)
    ours = loaded("pretrain")
    for config in (theirs, ours):
        assert (config.seq_len, config.batch_size, config.num_steps) == (4096, 8192, 150_000)
    assert {n: (c.cache, c.weight) for n, c in theirs.components.items()} == {
        n: (c.cache, c.weight) for n, c in ours.components.items()
    }
    assert [note for note in found.notes if note.kind == "missing"] == []
