"""A run is changed while it trains: from a step on that no host has planned."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.errors import ConfigError, HeadraceError, PlanMismatchError
from headrace.mix import AmendmentConfig
from headrace.run.run import amend_run
from headrace.run.steering import REQUEST_NAME, Request, _Mail, _Mailbox, ask
from headrace.store.lease import LEASE_NAME
from headrace.testing import tiny_cache

PROGRAM = Path(__file__).with_name("steered.py")
config_of: Callable[[Path, int], LmDataConfig] = runpy.run_path(str(PROGRAM))["config_of"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed, name in enumerate("abc"):
        tiny_cache(tmp_path / name, documents=120 + 40 * seed, parts=1 + seed, seed=seed)
    return tmp_path


def test_batches_are_those_of_a_run_that_had_all_of_it_from_the_start(root: Path):
    config = config_of(root, 700)
    run = open_run(root / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        given = [next(batches) for _ in range(20)]
        begins = run.earliest_step()
        assert begins == len(given) + 224
        with pytest.raises(
            PlanMismatchError, match=f"Give step {begins} or a later one"
        ) as refused:
            run.amend(len(given), weights={"a": 9})
        assert (refused.value.field, refused.value.value) == ("step", len(given))
        with pytest.raises(PlanMismatchError, match="is not in the mixture"):
            run.amend(begins + 20, weights={"x": 9})
        # two changes before the first of them is reached, one with a source that is new
        first = run.amend(begins + 20, skip=[[begins + 21, begins + 40]], weights={"a": 9})
        assert first is run
        new = {"c": ComponentConfig(str(root / "c"))}
        run.amend(begins + 90, add={"c": 3}, drop=["b"], components=new)
        given += [next(batches) for _ in range(300)]
        run.amend(run.earliest_step() + 1, weights={"c": 1, "a": 1})
        given += [*batches]
    assert len(given) == 700
    resumed = open_run(root / "run", config, run.state(650))
    assert resumed.fingerprint == run.fingerprint
    assert run.config is not None
    declared = replace(config, components=run.config.components, amendments=run.config.amendments)
    with declared.loader() as loader, resumed.loader() as again:
        for step in range(0, 700, 7):
            assert (loader.batch_at(step).tokens == given[step].tokens).all(), step
            assert (again.batch_at(step).tokens == given[step].tokens).all(), step


@pytest.mark.parametrize("prefetch_bytes", [1 << 16, 1 << 30])
def test_the_earliest_step_is_accepted_at_once(root: Path, prefetch_bytes: int):
    config = replace(config_of(root, 700), prefetch_bytes=prefetch_bytes)
    run = open_run(root / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        for _ in range(400):
            next(batches)
            step = run.earliest_step()
            assert loader.hold_plans(step), step
            loader.go_on()
        run.amend(run.earliest_step(), weights={"a": 9})


def test_a_run_that_goes_back_keeps_its_changes_and_takes_earlier_ones(root: Path):
    config = config_of(root, 500)
    run = open_run(root / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        run.amend(300, weights={"a": 9}, skip=[[310, 320]])
        given = [*batches]
    later = run.state(400)
    back = open_run(root / "run", config, run.state(100))
    with back.loader() as loader:
        for step in (100, 299, 300, 315, 499):
            assert (loader.batch_at(step).tokens == given[step].tokens).all(), step
    changed = back.amend(200, weights={"b": 2}, done=100)
    assert changed.config is not None
    assert [one.step for one in changed.config.amendments] == [200, 300]
    with changed.loader() as loader:
        assert (loader.batch_at(199).tokens == given[199].tokens).all()
        assert any((loader.batch_at(s).tokens != given[s].tokens).any() for s in range(200, 210))
    with pytest.raises(PlanMismatchError, match="belongs to another run"):
        open_run(root / "run", config, later)


def test_a_change_in_the_middle_of_a_wait_is_not_lost(root: Path):
    """The lock is written before anything changes; what is refused leaves no trace."""
    run = open_run(root / "run", config_of(root, 600))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        before = (root / "run" / "lock.json").read_bytes()
        with pytest.raises(PlanMismatchError, match="can be changed is"):
            run.amend(1, skip=[[1, 5]])
        assert (root / "run" / "lock.json").read_bytes() == before
        run.amend(400, skip=[[400, 405]])
        assert b'"skip"' in (root / "run" / "lock.json").read_bytes()
        assert run.history[-1]["until_step"] == 400


def test_a_lock_that_another_process_changed_is_kept(root: Path, caplog: pytest.LogCaptureFixture):
    config = config_of(root, 900)
    run = open_run(root / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        elsewhere = Request.of(AmendmentConfig(800, weights={"a": 9}), {})
        amend_run(run.folder, run.lock, elsewhere.applied(config), done=1)
        before = (root / "run" / "lock.json").read_bytes()
        with pytest.raises(PlanMismatchError, match="another process changed it"):
            run.amend(700, weights={"a": 5})
        assert (root / "run" / "lock.json").read_bytes() == before
        assert "is not amended" in caplog.text
        next(batches)


def test_a_run_that_is_opened_twice_is_changed_once_for_both(root: Path):
    config = config_of(root, 900)
    run = open_run(root / "run", config)
    other = open_run(root / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        given = [next(batches) for _ in range(3)]
        assert other.amend(other.earliest_step(), weights={"a": 9}) is other
        assert other.lock == run.lock
        with other.loader() as second, second.iter_from_step() as again:
            for step, batch in enumerate(again):
                given += [next(batches)] if step >= len(given) else []
                assert (batch.tokens == given[step].tokens).all(), step
                if step == 100:
                    run.amend(run.earliest_step(), skip=[[400, 410]])
    assert other.lock == run.lock
    with open_run(root / "run", config, 500).loader() as loader:
        assert (loader.batch_at(600).tokens == given[600].tokens).all()


def test_wrong_changes_are_refused_and_the_run_goes_on(root: Path):
    run = open_run(root / "run", config_of(root, 900))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        run.amend(400, weights={"a": 9}, skip=[[400, 420]])
        before = (root / "run" / "lock.json").read_bytes()
        for change in (
            {"skip": [[405, 410]], "step": 410},  # before its own step
            {"skip": [[500, 520], [510, 530]], "step": 500},
            {"skip": [[2000, 2010]], "step": 500},  # after the end
            {"weights": {"a": -1}, "step": 500},
            {"weights": {"a": float("nan")}, "step": 500},
            {"drop": ["a", "b"], "step": 500},
            {"add": {"c": 1}, "step": 500},  # no component
            {"caches": {"a": 9}, "step": 500},  # no such snapshot
            {"step": 500},  # nothing
            {"weights": {"a": 1}, "step": 10**7},  # after the end
        ):
            with pytest.raises(HeadraceError):
                run.amend(**{"step": 400, **change})
            assert (root / "run" / "lock.json").read_bytes() == before, change
        assert sum(1 for _ in batches) == 899


def test_another_process_asks_and_gets_an_answer(root: Path):
    run = open_run(root / "run", config_of(root, 4000))
    folder = str(root / "run")
    asked = Request.of(AmendmentConfig(3000, weights={"a": 5}), {})
    late = Request.of(AmendmentConfig(1, weights={"a": 6}), {})
    with (
        ThreadPoolExecutor(1) as others,
        run.loader() as loader,
        loader.iter_from_step() as batches,
    ):
        next(batches)
        others.submit(ask, folder, asked, 600).result()
        assert run.config is not None
        assert [one.step for one in run.config.amendments] == [3000]
        with pytest.raises(PlanMismatchError, match="is planned already"):
            others.submit(ask, folder, late, 600).result()
    assert not (root / "run" / REQUEST_NAME).exists()
    with pytest.raises(PlanMismatchError, match="gave no answer"):
        ask(folder, asked, 0)
    assert not (root / "run" / REQUEST_NAME).exists()


def files_of(folder: Path) -> dict[Path, bytes]:
    """What is in a run's folder, but for its lease, which goes soon after the last iteration."""
    return {path: path.read_bytes() for path in folder.iterdir() if path.name != "lease.json"}


def test_a_reader_writes_nothing_and_answers_nobody(root: Path):
    config = config_of(root, 4000)
    folder = root / "run"
    reader = open_run(folder, config, 0, trains=False)
    asked = Request.of(AmendmentConfig(3000, weights={"a": 5}), {})
    with (
        ThreadPoolExecutor(1) as others,
        reader.loader() as evaluation,
        evaluation.iter_from_step() as read,
    ):
        next(read)
        reader.state(10)
        assert not folder.exists()
        run = open_run(folder, config)
        assert run.fingerprint == reader.fingerprint
        with run.loader() as loader, loader.iter_from_step() as batches:
            next(batches)
            others.submit(ask, str(folder), asked, 600).result()
        before = files_of(folder)
        later = open_run(folder, config, 3100, trains=False)
        assert later.fingerprint == run.fingerprint != reader.fingerprint
        with pytest.raises(ConfigError, match="only the job that trains") as refused:
            later.amend(3500, weights={"a": 2})
        assert (refused.value.field, refused.value.value) == ("trains", str(folder))
        assert files_of(folder) == before


EVALUATION = """
import runpy, sys
from pathlib import Path
from headrace import open_run
root = Path(sys.argv[1])
config = runpy.run_path(sys.argv[2])["config_of"](root, 4000)
with open_run(root / "run", config).loader() as loader, loader.iter_from_step() as batches:
    next(batches)
    sys.stdin.readline()
"""


def test_a_job_says_that_another_one_has_the_lease_and_changed_the_run(
    root: Path, caplog: pytest.LogCaptureFixture
):
    """Such as an evaluation that does not say that it only reads."""
    config = config_of(root, 4000)
    typed = [sys.executable, "-c", EVALUATION, str(root), str(PROGRAM)]
    with subprocess.Popen(typed, stdin=subprocess.PIPE, text=True) as evaluation:
        wait_for(lambda: (root / "run" / LEASE_NAME).exists())
        run = open_run(root / "run", config)
        with run.loader() as loader, loader.iter_from_step() as batches:
            next(batches)
            wait_for(lambda: f"process {evaluation.pid}" in caplog.text)
            assert "This job answers no headrace run amend" in caplog.text
            assert "trains=False" in caplog.text
            ask(run.folder, Request.of(AmendmentConfig(3000, weights={"a": 5}), {}), 600)
            wait_for(lambda: "Another job changed the run" in caplog.text)
        evaluation.communicate("\n")
    assert open_run(root / "run", config).fingerprint != run.fingerprint


ENDING = """
import os, runpy, shutil, sys, tempfile
from pathlib import Path
from headrace import open_run
folder = Path(tempfile.mkdtemp())
os.chdir(folder)
config = runpy.run_path(sys.argv[2])["config_of"](Path(sys.argv[1]), 4000)
loader = open_run("run", config).loader()
batches = loader.iter_from_step()
next(batches)
while not Path("run/lease.json").exists():
    pass
os.chdir("/")
shutil.rmtree(folder)
"""


def test_a_job_that_ends_without_its_folder_says_nothing(root: Path):
    """Such as a test, whose folder is deleted before its process ends."""
    typed = [sys.executable, "-c", ENDING, str(root), str(PROGRAM)]
    done = subprocess.run(typed, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_job_that_changes_its_working_folder_answers(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(root)
    run = open_run("run", config_of(root, 4000))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        monkeypatch.chdir(tmp_path / "elsewhere")
        ask(str(root / "run"), Request.of(AmendmentConfig(3000, weights={"a": 5}), {}), 600)
        assert run.config is not None
        assert run.config.amendments[-1].weights == {"a": 5}
    assert not files_of(tmp_path / "elsewhere")


def wait_for(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.05)


def test_several_processes_ask_at_once_and_each_gets_its_own_answer(root: Path):
    run = open_run(root / "run", config_of(root, 4000))
    steps = [3000, 3004, 3002, 3003, 3001, 1]  # in any order, but the last is planned already
    requests = [Request.of(AmendmentConfig(step, weights={"a": step}), {}) for step in steps]
    with (
        ThreadPoolExecutor(len(steps)) as others,
        run.loader() as loader,
        loader.iter_from_step() as batches,
    ):
        next(batches)
        asked = [others.submit(ask, run.folder, request, 600) for request in requests]
        errors = [one.exception() for one in asked]
    assert errors[:-1] == [None] * 5
    assert isinstance(errors[-1], PlanMismatchError)
    assert run.config is not None
    amended = [(one.step, one.weights) for one in run.config.amendments]
    assert amended == [(step, {"a": step}) for step in range(3000, 3005)]
    assert not (root / "run" / REQUEST_NAME).exists()


def test_what_comes_in_later_is_not_altered_before(root: Path):
    """The order of a source depends on the shares with which it comes in."""
    run = open_run(root / "run", config_of(root, 4000))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        new = {"c": ComponentConfig(str(root / "c"))}
        run.amend(3000, add={"c": 1}, components=new)
        with pytest.raises(PlanMismatchError, match="Give step 3001 or a later one") as refused:
            run.amend(2900, weights={"a": 50})
        assert (refused.value.field, refused.value.value) == ("step", 2900)
        run.amend(3001, weights={"a": 50})


def test_a_request_that_is_withdrawn_is_not_carried_out(root: Path):
    config = config_of(root, 4000)
    run = open_run(root / "run", config)
    asked = Request.of(AmendmentConfig(3000, weights={"a": 5}), {})
    with pytest.raises(PlanMismatchError, match="gave no answer"):
        ask(run.folder, asked, 0)
    killed = _Mail(asked, until=0.0)  # by somebody who was killed long ago
    assert _Mailbox(run.folder).put(killed)
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        ask(run.folder, Request.of(AmendmentConfig(3500, weights={"a": 7}), {}), 600)
    assert run.config is not None
    assert [one.step for one in run.config.amendments] == [3500]


def check_rows(root: Path, steps: int) -> LmDataConfig:
    """All rows that any host had are those of a run with the lock's config from the start."""
    config = config_of(root, steps)
    run = open_run(root / "run", config)
    assert run.config is not None
    declared = replace(config, components=run.config.components, amendments=run.config.amendments)
    files = [np.load(path) for path in sorted(root.glob("rows-*.npz"))]
    seen: dict[int, int] = {}
    with declared.loader() as loader:
        for step in range(steps):
            whole = np.asarray(loader.batch_at(step).token_ids)
            for rows in files:
                for first in range(0, 8, 2):
                    if (name := f"{step}/{first}") in rows:
                        assert (rows[name] == whole[first : first + 2]).all(), name
                        seen[step] = seen.get(step, 0) + 1
    assert all(seen[step] >= 4 for step in range(steps))
    return declared


def changes_of(config: LmDataConfig) -> int:
    """How many changes of weights were made; a skip that came with one may stand by itself."""
    return sum(one.changes_mixture for one in config.amendments)


@pytest.mark.slow
def test_two_hosts_agree(root: Path, start_hosts):
    hosts = start_hosts(PROGRAM, root, 2, 300, 3)
    errors = [host.communicate()[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], errors
    assert changes_of(check_rows(root, 300)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "steps", "said"),
    [
        ("own_loader_first", [300], ["AGREED"]),
        ("a_cache_grows", [], ["REFUSED", "would make another run on each host"] * 2),
        ("loader_during_the_vote", [300], ["AGREED"]),
        ("iteration_while_it_settles", [300], ["AGREED"]),
        ("decision_while_it_settles", [300, *range(320, 500, 20)], ["AGREED"]),
        ("answer_of_an_earlier_request", [300], ["AGREED", "changes nothing", "changes nothing"]),
        ("old_loader_is_kept", [300], ["AGREED"]),
        ("asked_by_one_at_the_end", [300], ["AGREED"]),
        ("host_that_left", [300], ["AGREED", "AGREED", "AGREED"]),
        ("host_that_fails", [], ["is odd (host 1)", "no such disk (host 1)"] * 2),
        ("change_while_hosts_come_to_another", [250, 484], ["AGREED", "AGREED"]),
    ],
)
def test_hosts_that_are_not_alike_go_on_with_one_run(
    root: Path, case: str, steps: list[int], said: list[str], start_hosts
):
    program = PROGRAM.with_name("steered_apart.py")
    cases = [one.__name__ for one in runpy.run_path(str(program))["CASES"]]
    hosts = start_hosts(program, root, 2, cases.index(case))
    printed = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], printed
    text = "".join(out for out, _ in printed)
    for part in said:
        assert part in text, printed
        text = text.replace(part, "", 1)
    assert "AGREED" not in text
    run = check_rows(root, 500)
    assert [one.step for one in run.amendments] == steps
    if case == "loader_during_the_vote":
        with run.loader() as loader:
            whole = np.asarray(loader.batch_at(300).token_ids)
        for number in range(2):
            late = np.load(root / f"late-{number}.npy")
            assert (late == whole[4 * number : 4 * number + 2]).all()


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)]
)
def test_four_hosts_are_changed_and_killed_and_resumed_on_others(
    root: Path, seed: int, start_hosts
):
    steps = 1500
    chosen = np.random.default_rng(seed)
    for hosts in (4, 2, 4, 1, 2, 4):
        started = start_hosts(PROGRAM, root, hosts, steps, 50)
        reached = int(chosen.integers(4, 8))
        victim = started[int(chosen.integers(0, hosts))]
        assert victim.stdout is not None
        for _ in range(reached):
            if not victim.stdout.readline():
                break
        if hosts != 4 or victim is not started[-1]:
            victim.send_signal(signal.SIGKILL)
        for host in started:
            if host.poll() is None:
                host.send_signal(signal.SIGKILL)
        for host in started:
            host.communicate()
    last = start_hosts(PROGRAM, root, 2, steps, 50)
    errors = [host.communicate()[1] for host in last]
    assert [host.returncode for host in last] == [0, 0], errors
    assert changes_of(check_rows(root, steps)) == 50
