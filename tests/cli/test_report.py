"""``headrace run report``: files, JSON, errors. The page itself: tests/report."""

import html
import json
import re
import shlex

import pytest

from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.feed import RunLog
from headrace.run import open_run
from headrace.testing import tiny_cache


@pytest.fixture
def config_file(tmp_path):
    parts = {
        n: ComponentConfig(tiny_cache(tmp_path / n, seed=k).path, weight=k + 1)
        for k, n in enumerate("ab")
    }
    path = tmp_path / "run.yaml"
    path.write_text(LmDataConfig(parts, seq_len=16, batch_size=8, num_steps=20).to_yaml())
    return path


def test_a_page_for_a_config_and_for_a_run(headrace, config_file, tmp_path):
    from headrace.config import load_config

    page = tmp_path / "plan.html"
    done = headrace("run", "report", str(config_file), "--output", str(page))
    assert done.code == 0, done.err
    assert str(page) in done.out.replace("\n", "")
    assert page.read_text().startswith("<!doctype html>")
    config = load_config(str(config_file))
    run = tmp_path / "run"
    with config.loader() as loader, RunLog(loader, run, config=config) as log:
        open_run(str(run), loader, 0)
        for step, _ in enumerate(loader):
            log(step)
    done = headrace("run", "report", str(run), "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["measured"]["last_step"] == 19
    assert said["fingerprint"]["config"] == said["fingerprint"]["run"]
    assert said["plan"]["steps"] == 20
    assert {"mixture", "waits"} <= set(said["figures"])
    assert not (tmp_path / "report.html").exists()
    assert headrace("run", "report", str(run), "--output", str(page)).code == 0
    printed = set(re.findall(r"<code>(headrace run cat .*?)</code>", page.read_text()))
    assert len(printed) >= 3  # the first step, half, the last; and those that stalled
    for command in map(html.unescape, printed):
        done = headrace(*shlex.split(command)[1:], "--json")
        assert done.code == 0, done.err
    *_, last = json.loads(done.out)["rows"]  # of one of these steps; the page has its last row, too
    words = " ".join(last["spans"][0]["text"].split())[:100]
    assert words in html.unescape(page.read_text())


@pytest.mark.parametrize("has_lock", [True, False])
def test_commands_of_a_page_work_or_there_are_none(headrace, config_file, tmp_path, has_lock):
    """Without a lock, a run's folder does not say which rows its steps have."""
    config = load_config(str(config_file))
    run = tmp_path / "run"
    if has_lock:
        open_run(str(run), config, 0)
    with config.loader() as loader, RunLog(loader, run, config=config) as log:
        for step, _ in enumerate(loader):
            log(step)
    page = tmp_path / "page.html"
    assert headrace("run", "report", str(run), "--output", str(page)).code == 0
    printed = set(re.findall(r"<code>(headrace run cat .*?)</code>", page.read_text()))
    assert bool(printed) == has_lock
    for command in map(html.unescape, printed):
        assert headrace(*shlex.split(command)[1:], "--json").code == 0


def test_json_of_a_config_with_settings(headrace, config_file):
    said = json.loads(
        headrace("run", "report", str(config_file), "num_steps=7", "--hosts", "2", "--json").out
    )
    assert said["plan"]["steps"] == 7
    assert [h["hosts"] for h in said["plan"]["unlimited"]["by_hosts"]] == [2]
    assert said["measured"] is None


def test_two_are_compared(headrace, config_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "lr=1.yaml"
    other.write_text(config_file.read_text().replace("seq_len: 16", "seq_len: 8"))
    both = ["run", "report", "run.yaml", "./lr=1.yaml"]
    assert headrace(*both, "-o", "two.html").code == 0
    assert "What differs in the configs" in (tmp_path / "two.html").read_text()
    said = json.loads(headrace(*both, "num_steps=7", "--json").out)
    assert said["config"] == [{"path": "seq_len", "old": "16", "new": "8"}]
    assert [run["plan"]["steps"] for run in said["runs"]] == [7, 7]


def test_a_live_page_says_what_it_waits_for(headrace, config_file, monkeypatch):
    monkeypatch.chdir(config_file.parent)
    monkeypatch.setattr(
        "headrace.report.page.LiveReport.serve", lambda report: report._server.server_close()
    )
    waiting = "There is no run in later yet"
    assert waiting in headrace("run", "report", "later", "--live", "--port", "0").out
    open_run("later", load_config("run.yaml"))
    assert waiting not in headrace("run", "report", "later", "--live", "--port", "0").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("typo",), "is not the folder of a run"),
        (("typo.yaml",), "typo.yaml"),
        (("run.yaml", "batch_sise=3"), "batch_size"),
        (("run.yaml", "run.yaml", "--live"), "--live"),
        (("run.yaml", "run.yaml", "run.yaml"), "is a third run"),
    ],
)
def test_errors_are_one_line_with_the_cure(headrace, config_file, monkeypatch, arguments, said):
    monkeypatch.chdir(config_file.parent)
    done = headrace("run", "report", *arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
