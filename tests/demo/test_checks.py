"""The demo's checks can fail: each is shown a run in which its claim does not hold."""

import io

import numpy as np
import pytest
from rich.console import Console

from headrace.demo import checks
from headrace.demo.screen import Screen, StepLog, StepRecord

STEPS = 40
WEIGHTS = {"a": 1.0, "b": {"linear": {0: 0.0, STEPS - 1: 1.0}}}


def fair_rows():
    share = np.linspace(0, 1, STEPS)
    share = share / (1 + share)
    b = np.diff(np.round(np.cumsum(16 * share)), prepend=0).astype(int)
    return np.stack([16 - b, b], axis=1)


def run_log(tmp_path, losses=None, rows=None, wait_s=0.0):
    losses = np.linspace(8, 4, STEPS) if losses is None else losses
    rows = fair_rows() if rows is None else rows
    console = Console(file=io.StringIO(), width=200)
    with Screen(console).training(STEPS) as line:
        log = StepLog(tmp_path / "metrics.jsonl", WEIGHTS, STEPS, line)
        for step in range(STEPS):
            devices = 4 if step < STEPS // 2 else 2
            waited = (
                wait_s if step not in (0, STEPS // 2) else 100.0
            )  # what comes while compiling does not count
            counts = {"a": int(rows[step, 0]), "b": int(rows[step, 1])}
            log.add(
                StepRecord(
                    step,
                    float(losses[step]),
                    devices,
                    waited,
                    1.0,
                    100,
                    counts,
                    0.1,
                    f"digest {step}",
                )
            )
    return log


def test_all_is_well(tmp_path):
    log = run_log(tmp_path)
    assert checks.loss_falls(log).passed
    assert checks.same_batches(log, log.digests).passed
    assert checks.exact_mixture(log).passed
    assert checks.never_waits(log, 1000).passed


def test_a_loss_that_rises(tmp_path):
    assert not checks.loss_falls(run_log(tmp_path, losses=np.linspace(4, 4.1, STEPS))).passed


@pytest.mark.parametrize("step", [0, STEPS // 2, STEPS - 1])
def test_one_other_batch(tmp_path, step):
    log = run_log(tmp_path)
    digests = log.digests
    digests[step] = "another"
    check = checks.same_batches(log, digests)
    assert not check.passed
    assert check.decides
    assert f"{STEPS - 1} of {STEPS}" in check.figure


def test_one_row_from_the_other_source(tmp_path):
    rows = fair_rows()
    rows[7] += (1, -1)
    rows[9] += (1, -1)
    log = run_log(tmp_path, rows=rows)
    assert log.worst_deviation > 1
    assert not checks.exact_mixture(log).passed


def test_deviation_is_that_of_the_definition(tmp_path):
    log = run_log(tmp_path)
    worst = 0.0
    for step in range(STEPS):
        b = [(s / (STEPS - 1)) / (1 + s / (STEPS - 1)) for s in range(step + 1)]
        worst = max(worst, abs(fair_rows()[: step + 1, 1].sum() - 16 * sum(b)))
    assert log.worst_deviation == pytest.approx(worst)


def test_waiting_is_told_with_a_known_delay_and_does_not_decide(tmp_path):
    log = run_log(tmp_path, wait_s=0.25)
    assert log.waiting_share == pytest.approx(0.2)
    assert log.tokens_per_s == pytest.approx(80)
    check = checks.never_waits(log, 1000)
    assert not check.passed
    assert not check.decides
