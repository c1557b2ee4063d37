"""``headrace run where``: what it says of a step is what the loader does up to there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.config import load_config
from headrace.data.dataset import rows_of_step
from headrace.errors import IndexOutOfRangeError
from headrace.run import RunLock, where
from headrace.testing import tiny_cache, write_cache

PLANS = {
    "scheduled": ["components.a.weight={linear: {0: 3, 20: 1}}", "batch_size={0: 4, 7: 8}"],
    "stages": ["stages=[{weights: {a: 1}}, {step: 9, name: anneal, weights: {a: 1, b: 3}}]"],
    "phases": ["seq_len={0: 8, 6: 16}", "components.a.weight=2"],
    "budget": ["components.a.max_epochs=2", "components.b.max_epochs=1"],
    "smooth": ["policy=swrr"],
    "held out": ["validation={one_in: 8}", "num_steps=30"],
}


@pytest.fixture(scope="module")
def caches():
    return {name: tiny_cache(documents=60, seed=s) for s, name in enumerate("ab")}


def config_of(plan):
    base = ["seq_len=8", "batch_size=4", "components.a={cache: x}", "components.b={cache: x}"]
    return load_config(overrides=[*base, *PLANS[plan]])


@pytest.mark.parametrize("plan", PLANS)
@settings(max_examples=8)
@given(step=st.integers(0, 30))
def test_it_says_what_the_loader_does(caches, plan, step):
    config = config_of(plan)
    dataset = config.with_caches(caches).dataset()
    rows = Counter()
    tokens = Counter()
    for done in range(step):
        taken = rows_of_step(dataset, dataset.batch_schedule, done)
        length = dataset.at_step(done)[0].seq_len
        for number, count in zip(*np.unique(taken.component, return_counts=True), strict=True):
            rows["ab"[number]] += int(count)
            tokens["ab"[number]] += int(count) * length
    here = where(config.with_caches(caches), step)
    assert {n: s.rows for n, s in here.sources.items()} == {n: rows[n] for n in "ab"}
    assert {n: s.tokens for n, s in here.sources.items()} == {n: tokens[n] for n in "ab"}
    assert (here.rows, here.tokens) == (rows.total(), tokens.total())
    after = rows_of_step(dataset, dataset.batch_schedule, step) if step != here.num_steps else None
    for number, (_, source) in enumerate(here.sources.items()):
        mine = np.zeros(0, bool) if after is None else after.component == number
        assert source.rows_in_step == mine.sum()
        if after is not None and mine.any():
            assert source.epoch == after.epoch[mine].min()
        assert source.epochs is None or source.epochs >= 0
    assert sum(s.weight for s in here.sources.values()) == pytest.approx(1)
    assert here.to_dict() == json.loads(json.dumps(here.to_dict()))


def test_the_end_of_a_run_and_what_is_behind_it(caches):
    config = config_of("budget")
    last = where(config.with_caches(caches), 0).num_steps
    assert last is not None
    here = where(config.with_caches(caches), last)
    assert here.rows == len(config.with_caches(caches).dataset())
    assert {n: s.epochs for n, s in here.sources.items()} == pytest.approx(
        {"a": 2.0, "b": 1.0}, abs=0.03
    )
    assert all(s.rows_in_step == 0 for s in here.sources.values())
    for step in (last + 1, -1):
        with pytest.raises(IndexOutOfRangeError, match="not a step of this run"):
            where(config.with_caches(caches), step)


def test_stages_and_fingerprint(caches):
    config = config_of("stages")
    first = where(config.with_caches(caches), 8)
    second = where(config.with_caches(caches), 9)
    assert (first.stage, first.stage_step, first.sources["b"].weight) == (0, 0, 0)
    assert (second.stage, second.stage_name, second.stage_step, second.sources["b"].weight) == (
        1,
        "anneal",
        9,
        0.75,
    )
    from headrace.feed import DataLoader

    assert (
        first.fingerprint
        == RunLock.of(
            DataLoader(
                config.with_caches(caches).dataset(),
                mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)),
            )
        ).fingerprint
    )


def test_as_a_user_types_it(tmp_path: Path):
    tiny_cache(tmp_path / "web")
    (tmp_path / "run.yaml").write_text(
        "seq_len: 8\nbatch_size: 4\ncomponents: {web: {cache: web}}\n"
    )

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace", "run", "where", "run.yaml", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    found = json.loads(run("--step", "1000", "--json").stdout)
    assert (found["step"], found["tokens"], found["sources"]["web"]["rows"]) == (1000, 32_000, 4000)
    table = run("--step", "1000")
    assert table.returncode == 0
    assert "32,000 tokens in 4,000 rows" in table.stdout
    wrong = run("num_steps=5", "--step", "6")
    assert wrong.returncode != 0
    assert "Give 0 to 5" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_weights_and_shares_are_both_of_what_the_run_counts(tmp_path):
    """Rows of ``a`` are 18 of 32 full: half of the tokens are .64 of the rows."""
    sizes = {"a": 18, "b": 32}
    caches = {
        n: write_cache(tmp_path / n, [[np.ones(size, int)] * 100], vocab_size=9)
        for n, size in sizes.items()
    }
    packed = [f"components.{n}={{cache: x, packing: {{}}}}" for n in sizes]
    for unit, share in (("content_tokens", 0.5), ("examples", 0.5)):
        config = load_config(overrides=["seq_len=32", "batch_size=8", f"unit={unit}", *packed])
        here = where(config.with_caches(caches), 100)
        assert [source.weight for source in here.sources.values()] == [share, share]
        assert abs(here.sources["a"].share - share) < 0.001
        assert here.sources["a"].rows == (512 if unit == "content_tokens" else 400)
