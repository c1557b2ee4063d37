"""Figures of the program's own in a run's log, and on the page: over restarts, cuts
and nonsense.
"""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.feed import LogStats, RunLog
from headrace.report.facts import gather
from headrace.report.page import render
from headrace.report.run_records import MAX_POINTS, parse_records, read_records
from headrace.report.run_sections import figures_section


def line(kind, **fields):
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


START = line("start", version=1, host=0, hosts=1, time=0.0, config=None)


def figures(step, **values):
    return line("figures", step=step, time=0.0, figures=values)


def test_figures_of_a_run_without_a_loader_reach_the_log_and_the_page(tmp_path):
    with RunLog(None, tmp_path, every=10) as log:
        for step in range(5):
            log(
                step,
                rollout={"reward_mean": step / 10, "retries": 0},
                train={"kl": np.float32(0.5)},
            )
    records = read_records(str(tmp_path))
    steps, rewards = records.figures["rollout/reward_mean"]
    assert (steps.tolist(), rewards.tolist()) == ([0, 1, 2, 3, 4], [0.0, 0.1, 0.2, 0.3, 0.4])
    assert sorted(records.figures) == ["rollout/retries", "rollout/reward_mean", "train/kl"]
    assert records.last_step == 4
    page = render(gather(str(tmp_path)))
    assert "Logged: rollouts and losses" in page
    assert "rollout/reward_mean" in page


def test_writers_get_figures_at_every_call_and_counters_when_they_are_due():
    from headrace import DataLoader, TokenSeqDataset
    from headrace.testing import tiny_cache

    got = []
    loader = DataLoader(TokenSeqDataset(tiny_cache(), seq_len=8), batch_size=8)
    log = LogStats(loader, lambda step, values: got.append((step, dict(values))), every=3)
    for step in range(4):
        log(step, rollout={"reward_mean": 1})
    assert [values["rollout/reward_mean"] for _, values in got] == [1.0] * 4
    assert [step for step, values in got if "data/batches" in values] == [0, 3]
    got.clear()
    LogStats(None, lambda step, values: got.append((step, dict(values))))(7)
    assert got == []


@pytest.mark.parametrize("value", [np.zeros(2), "much", None, 10**400, []])
def test_what_is_not_one_number_is_named(tmp_path, value):
    with RunLog(None, tmp_path) as log, pytest.raises(ConfigError, match="train/kl"):
        log(0, train={"kl": value})


def test_figures_without_a_name_are_named_and_arrays_of_one_number_are_numbers(tmp_path):
    unnamed: Any = 3.0
    with RunLog(None, tmp_path) as log:
        with pytest.raises(
            ConfigError, match=r"train = 'float': are no figures\. Give them by name: train="
        ):
            log(0, train=unnamed)
        log(1, train={"a": jnp.ones((1,)), "b": jnp.bfloat16(1.5), "c": True, "d": float("nan")})
    found = {
        name: values.tolist() for name, (_, values) in read_records(str(tmp_path)).figures.items()
    }
    assert str(found) == "{'train/a': [1.0], 'train/b': [1.5], 'train/c': [1.0], 'train/d': [nan]}"


def test_steps_that_were_done_again_count_once():
    text = START + b"".join(figures(s, a=1.0) for s in range(6))
    text += START + b"".join(figures(s, a=2.0) for s in (3, 4)) + figures(4, b=5.0)
    found = parse_records([text]).figures
    assert (found["a"][0].tolist(), found["a"][1].tolist()) == (
        [0, 1, 2, 3, 4],
        [1.0, 1.0, 1.0, 2.0, 2.0],
    )
    assert found["b"][0].tolist() == [4]


def test_very_many_steps_are_thinned_and_the_last_is_kept():
    text = START + b"".join(figures(s, a=float(s)) for s in range(3 * MAX_POINTS + 7))
    steps, _ = parse_records([text]).figures["a"]
    assert steps.size <= MAX_POINTS + 1
    assert steps[-1] == 3 * MAX_POINTS + 6


NONSENSE = st.one_of(
    st.none(), st.text(max_size=4), st.integers(), st.floats(), st.lists(st.integers(), max_size=2)
)


@given(st.dictionaries(st.text(max_size=8), NONSENSE, max_size=4), st.integers(0, 99))
def test_nonsense_is_left_out_and_never_an_error(values, step):
    found = parse_records([START + figures(step, **values) + figures(step + 1, a=1.0)])
    assert {"a"} <= set(found.figures) <= {"a", *values}
    html = "".join(part["html"] for part in figures_section(found.figures).parts())
    assert html.count("<tr>") == len(found.figures) + 1


def test_figures_that_are_zero_throughout_have_a_row_and_no_chart():
    found = parse_records(
        [START + figures(0, **{"r/zero": 0.0, "r/x_mean": 1.0, "r/x_max": 2.0, "r/a_share": 0.5})]
    )
    section = figures_section(found.figures)
    assert [figure["series"][0]["name"] for figure in section.figures().values()] == [
        "r/a_share",
        "r/x_max",
    ]
    assert "r/zero" in section.parts()[-1]["html"]
