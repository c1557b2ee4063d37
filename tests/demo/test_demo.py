"""``headrace demo`` as a user runs it: a process of its own, its exit status, what it prints and
what it leaves.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.config import load_config
from headrace.store import open_cache

HEADRACE = str(Path(sys.executable).with_name("headrace"))
pytestmark = pytest.mark.slow


def demo(*arguments, cwd):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(
        [HEADRACE, "demo", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A quick run in the default folder: (working directory, what it printed)."""
    cwd = tmp_path_factory.mktemp("demo")
    done = demo("--quick", cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return cwd, done.stdout


@pytest.fixture(scope="module")
def steps(finished):
    return [
        json.loads(line)
        for line in (finished[0] / "headrace-demo" / "metrics.jsonl").read_text().splitlines()
    ]


def test_it_leaves_what_it_says(finished):
    cwd, _ = finished
    left = {path.name for path in (cwd / "headrace-demo").iterdir()}
    assert left >= {
        "report.html",
        "metrics.jsonl",
        "config.yaml",
        "summary.json",
        "caches",
        "checkpoints",
        "tokenizer.json",
    }
    page = (cwd / "headrace-demo" / "report.html").read_text()
    assert "train/loss" in page
    assert "step 40 of 40" in page
    assert [path.name for path in cwd.iterdir()] == ["headrace-demo"]


def test_it_names_its_folder_first_and_last_and_what_to_type_next(finished):
    lines = finished[1].strip().splitlines()
    assert "headrace-demo/" in lines[0]
    assert any("headrace-demo/" in line for line in lines[-9:])
    assert "headrace cache inspect headrace-demo/caches/docs" in finished[1]
    assert "headrace run cat headrace-demo/config.yaml --step 12 --row 0" in finished[1]


def test_without_a_terminal_it_prints_plain_lines(finished):
    assert "\x1b" not in finished[1]
    assert sum(line.startswith("step ") for line in finished[1].splitlines()) == 10


def test_one_line_a_step_and_a_falling_loss(steps):
    losses = [step["loss"] for step in steps]
    assert [step["step"] for step in steps] == list(range(40))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_it_stopped_and_went_on_with_other_devices(finished, steps):
    assert [step["devices"] for step in steps] == [4] * 20 + [2] * 20
    state = json.loads(
        (finished[0] / "headrace-demo" / "checkpoints" / "step-20" / "data.json").read_text()
    )
    assert state["step"] == 20


def test_loss_goes_on_where_it_stopped(steps):
    # A model or optimizer that came back wrong from the checkpoint would show as a jump.
    losses = np.array([step["loss"] for step in steps])
    assert abs(losses[20:23].mean() - losses[17:20].mean()) < 0.4


def test_the_batches_are_those_of_its_config_without_a_stop(finished, steps, monkeypatch):
    """Not the demo's own check: the written config, loaded here, on the eight devices of this
    process.
    """
    from headrace.demo.checks import digest

    monkeypatch.chdir(finished[0])
    with (
        load_config("headrace-demo/config.yaml").loader() as loader,
        loader.iter_from_step(0) as batches,
    ):
        assert [digest(next(batches)) for _ in steps] == [step["digest"] for step in steps]
    assert len({step["digest"] for step in steps}) == len(steps)


def test_rows_follow_the_schedule(steps):
    rows = np.array([[step["rows"][name] for name in ("code", "docs", "tests")] for step in steps])
    docs = np.linspace(0.1, 2.0, 40)
    wanted = 16 * np.stack([np.ones(40), docs, np.ones(40)], axis=1) / (2 + docs)[:, None]
    assert (rows.sum(axis=1) == 16).all()
    assert np.abs(np.cumsum(rows - wanted, axis=0)).max() < 1


def test_the_summary_says_that_all_was_shown(finished):
    summary = json.loads((finished[0] / "headrace-demo" / "summary.json").read_text())
    assert summary["passed"]
    assert {c["name"] for c in summary["checks"]} >= {"loss falls", "same batches", "exact mixture"}
    assert {"text", "tokenizer", "caches", "train", "check", "report"} <= set(summary["seconds"])


def test_the_caches_can_be_opened(finished):
    for name in ("code", "docs", "tests"):
        cache = open_cache(str(finished[0] / "headrace-demo" / "caches" / name))
        assert cache.num_documents > 10
        assert cache.vocab_size == 1024


def test_a_second_run_keeps_what_is_not_its_own(finished, steps):
    cwd, _ = finished
    folder = cwd / "headrace-demo"
    (folder / "notes.txt").write_text("mine")
    again = demo("--quick", "--steps", "20", cwd=cwd)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (folder / "notes.txt").read_text() == "mine"
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["devices"] for step in metrics] == [4] * 10 + [2] * 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "5"], ["steps = 5", "20 or more"]),
        (["--stepps", "5"], ["--stepps"]),
        (["--output", "full"], ["full", "--output"]),
        (["--output", "full/file"], ["full/file", "--output"]),
    ],
)
def test_what_cannot_be_done_is_one_message_and_touches_nothing(tmp_path, arguments, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    done = demo("--quick", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert all(part in done.stderr for part in said), done.stderr
    assert "Traceback" not in done.stderr
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "full",
        "full/file",
    ]


def test_without_the_extra_it_says_what_to_install(tmp_path):
    script = (
        "import importlib.util as u, sys; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'optax' else find(name, *a);"
        "sys.argv = ['headrace', 'demo']; from headrace.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "optax" in done.stderr
    assert "pip install 'headrace[demo]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
