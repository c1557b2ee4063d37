"""``headrace run amend`` of a running job, and ``headrace run blame``."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import yaml

from headrace import ComponentConfig, LmDataConfig, RunLog, load_config, open_run
from headrace.errors import PlanMismatchError
from headrace.report.blame import blame
from headrace.run import Run, steering
from headrace.run.steering import ask
from headrace.store.lease import LEASE_NAME
from headrace.testing import tiny_cache
from headrace.testing.caches import remove

Headrace = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> LmDataConfig:
    for seed, name in enumerate("ab"):
        tiny_cache(tmp_path / name, seed=seed)
    components = {name: ComponentConfig(str(tmp_path / name)) for name in "ab"}
    return LmDataConfig(components, seq_len=8, batch_size=8, num_steps=3000)


@pytest.fixture
def job(config: LmDataConfig, tmp_path: Path) -> Iterator[Run]:
    """A run whose loader is under way."""
    run = open_run(tmp_path / "run", config)
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        yield run


def test_a_job_that_has_planned_to_its_end_is_stopped_first(
    headrace: Headrace, config: LmDataConfig, tmp_path: Path
):
    (tmp_path / "run.yaml").write_text(replace(config, num_steps=2).to_yaml())
    run = open_run(tmp_path / "run", load_config(str(tmp_path / "run.yaml")))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        refused = headrace("run", "amend", run.folder, "--step", "1", "--weights", "a=9").err
        run.state(1)
    assert "the config ends the run at 2" in refused
    assert "Give step" not in refused
    text = (tmp_path / "run.yaml").read_text()
    edited = yaml.safe_load(text) | {"num_steps": 4}
    edited["components"]["a"]["weight"] = 9
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(edited))
    while (tmp_path / "run" / LEASE_NAME).exists():
        time.sleep(0.05)
    command = shlex.split(refused.partition("then: headrace ")[2].splitlines()[0])
    done = headrace(*(str(tmp_path / "run.yaml") if x == "CONFIG" else x for x in command))
    assert done.code == 0, done.err


def test_a_running_job_is_changed(headrace: Headrace, job: Run):
    headrace("run", "amend", job.folder, "--step", "900", "--weights", "a=2,b=.5")
    said = headrace("run", "amend", job.folder, "--skip", "1000:1010", "--drop", "b").out
    assert "From step 1,000 on" in said
    assert job.config is not None
    weighed, skipped = job.config.amendments
    assert (weighed.step, weighed.weights) == (900, {"a": 2.0, "b": 0.5})
    assert (skipped.step, skipped.skip, skipped.drop) == (1000, [[1000, 1010]], ["b"])
    # a second change at a step is joined with the first
    said = headrace("run", "amend", job.folder, "--step", "1000", "--weights", "a=3").out
    assert "From step 1,000 on" in said
    assert job.config.amendments[1:] == [replace(skipped, weights={"a": 3})]
    refused = headrace("run", "amend", job.folder, "--step", "2", "--weights", "a=9")
    assert "is planned already" in refused.err
    step = int(refused.err.split("Give step ")[1].split()[0])
    # the cure works as it is typed
    headrace("run", "amend", job.folder, "--step", str(step + 5), "--weights", "a=9")
    unknown = headrace("run", "amend", job.folder, "--step", "2000", "--weights", "zz=9").err
    assert "weights.zz: is not in the mixture" in " ".join(unknown.split())


@pytest.fixture
def written(config: LmDataConfig, tmp_path: Path) -> str:
    """The config in a file."""
    fields = {name: {"cache": part.cache} for name, part in config.components.items()}
    path = tmp_path / "run.yaml"
    layout = {"seq_len": 8, "batch_size": 8, "num_steps": 3000}
    path.write_text(json.dumps({"components": fields, **layout}))
    return str(path)


def test_a_lock_is_not_changed_under_a_running_job(
    headrace: Headrace, written: str, tmp_path: Path
):
    config = load_config(written)
    run = open_run(tmp_path / "run", config)
    amend = ("run", "amend", run.folder, written, "components.a.weight=5")
    begun = run.fingerprint
    with run.loader() as loader, loader.iter_from_step(1) as batches:
        next(batches)
        wait_for(tmp_path / "run" / LEASE_NAME)
        evaluated = open_run(run.folder, config)
        with evaluated.loader() as other, other.iter_from_step() as evaluation:
            next(evaluation)
            refused = headrace(*amend, "--step", "900").err
            assert open_run(run.folder, config).fingerprint == begun
            # the cure works as it is typed, and the job that has the lease takes it
            cure = refused.split("as it runs: headrace ")[1]
            assert headrace(*cure.replace(" N ", " 900 ").split()).code == 0
        assert run.fingerprint == evaluated.fingerprint != begun


JOB = """
import sys
from headrace import load_config, open_run
config = load_config(sys.argv[2])
with open_run(sys.argv[1], config).loader() as loader, loader.iter_from_step() as batches:
    next(batches)
    sys.stdin.read()
"""


def test_a_killed_job_hinders_nobody(headrace: Headrace, written: str, tmp_path: Path):
    folder = str(tmp_path / "run")
    with Popen([sys.executable, "-c", JOB, folder, written], stdin=PIPE) as job:
        wait_for(tmp_path / "run" / LEASE_NAME)
        amend = ("run", "amend", folder, written, "components.b.weight=3", "--step", "9")
        assert "is being written by process" in headrace(*amend, "--going-back").err
        job.kill()
    assert (tmp_path / "run" / LEASE_NAME).exists()
    assert headrace(*amend, "--going-back").code == 0
    assert not (tmp_path / "run" / LEASE_NAME).exists()


def test_a_job_is_refused_a_change_of_its_last_steps(config: LmDataConfig, tmp_path: Path):
    short = open_run(tmp_path / "short", replace(config, num_steps=20))
    with short.loader() as loader:
        batches = loader.iter_from_step()
        for _ in range(15):
            next(batches)
        with pytest.raises(PlanMismatchError, match="is planned already"):
            short.amend(18, weights={"a": 9})
        assert len([*batches]) == 5
    assert short.amend(18, weights={"a": 9}, done=15).fingerprint != short.fingerprint


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def asks_twice(*request: Any) -> None:
    """As if a command that was killed had asked for the same before."""
    ask(*request)
    ask(*request)


def test_a_running_job_goes_on_as_its_config_was_edited(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    caches = {name: tiny_cache(tmp_path / name, seed=seed).path for seed, name in enumerate("abc")}
    fields: dict[str, Any] = {
        "components": {name: {"cache": caches[name]} for name in "ab"},
        **{"seq_len": 8, "batch_size": 8, "num_steps": 1500},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(fields))
    run = open_run(tmp_path / "run", load_config(str(path)))
    amend = ("run", "amend", run.folder, str(path))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        assert "the same run" in headrace(*amend, "--step", "900", "--live").out
        fields["components"] = {
            "c": {"cache": caches["c"], "weight": 3},
            "a": {"cache": caches["a"]},
        }
        path.write_text(json.dumps(fields))
        assert "--step N" in headrace(*amend, "--live").err
        planned = headrace(*amend, "--step", "5", "--live").err
        step = planned.split("Give step ")[1].split()[0]  # the cure works as it is typed
        assert "the job goes on with it" in headrace(*amend, "--step", step, "--live").out
        skipped = ("--skip", "1400:1450", "--json")
        assert json.loads(headrace("run", "amend", run.folder, *skipped).out)["first_step"] == 1400
        tree = " ".join(headrace("run", "tree", run.folder).out.split())
        assert f"from step {int(step):,} (amendment 0): a 1, c 3" in tree
        # it would change the order of c, which depends on its share when it comes in
        early = headrace(*amend, "components.a.weight=7", "--step", step, "--live").err
        assert f"Give --step {int(step) + 1} or a later one" in early
        remove(tmp_path / "a", 3, 4)
        typed = ("--caches", "a=2", "--step", "1000", "--json")
        said = json.loads(headrace("run", "amend", run.folder, *typed).out)
        assert said["amendment"] == {"step": 1000, "caches": {"a": 2}}
        at_1100 = ("--step", "1100", "--live")
        for weight in (2, 7, 5):  # the last word is that of the run
            assert headrace(*amend, f"components.a.weight={weight}", *at_1100).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(steering, "ask", asks_twice)
            asked_before = headrace(*amend, "components.a.weight=4", *at_1100)
        assert "goes on so already" in asked_before.out
        assert headrace(*amend, "components.a.weight=5", *at_1100).code == 0
        twice = headrace(*amend, "components.a.weight=7", "--step", "1050", "--live").err
        stopped = twice.split("Stop the job, then: headrace ")[1].split()
        seed = headrace(*amend, "seed=7", "--step", "1200", "--live")
        assert "A run cannot make these changes" in seed.out
        given = [*batches]
    assert run.config is not None
    changed, skipping, moved, weighed = run.config.amendments  # as they were asked for
    assert skipping.skip == [[1400, 1450]]
    assert (changed.add, changed.drop, moved.caches) == ({"c": 3}, ["b"], {"a": 2})
    assert (weighed.step, weighed.weights) == (1100, {"a": 5})
    again = open_run(run.folder, load_config(str(path), ["components.a.weight=5"]), 1050)
    assert again.fingerprint == run.fingerprint
    with again.loader() as resumed:
        for at in (1, int(step), 1000, 1400):
            assert (resumed.batch_at(at).tokens == given[at - 1].tokens).all(), at
    again.state(1050)
    while Path(run.folder, LEASE_NAME).exists():  # until its thread sees that nobody iterates
        time.sleep(0.01)
    assert headrace(*stopped).code == 0
    last = open_run(run.folder, load_config(str(path), ["components.a.weight=7"])).config
    assert last is not None
    assert [one.weights for one in last.amendments[-2:]] == [{}, {"a": 7}]


@pytest.mark.parametrize(
    ("typed", "cure"),
    [
        (["--weights", "a=2"], "--step N"),
        (["--step", "9", "--caches", "a=new"], "--caches web=3,code=2"),
        (["--step", "9", "--live"], "--weights web=2,code=1, --skip 1200:1400, --drop NAME"),
        ([], "or edit the run's config and name it"),
        (["--step", "9", "--weights", "a"], "--weights web=2,code=1"),
        (["--step", "9", "--skip", "9"], "--skip 1200:1400"),
        (["--skip", "40:30"], "--skip 1200:1400"),
        (["--step", "9", "--weights", "a=nan"], "must be finite"),
        (["--step", "9", "--weights", "a=inf"], "must be finite"),
        (["--step", "9", "--weights", "a=-1"], "not negative"),
        (["--step", "9", "--weights", "=1"], "--weights web=2,code=1"),
        (["--step", "9", "--weights", "a=1,a=2"], "Write each name once"),
        (["--step", "9"], "is asked for no change"),
        (["--step", "9", "--weights", "a=2", "--wait", "0"], "/run CONFIG"),
        (["--skip", "9:10", "--wait", "0"], "waiting 0 s for one. To change it without a job"),
        (["--step", "9", "--weights", "a=2", "--wait", "nan"], "--wait 60"),
        (["--skip", "40:50", "--skip", "45:60"], "--skip[1] = [45, 60]"),
        (["--skip", "9:10", "--newest-caches"], "--newest-caches: is given without a config"),
        (["--skip", "9:10", "--going-back"], "--going-back: is given without a config"),
        (["run.yaml", "--step", "9", "--live", "--going-back"], "stop the job"),
    ],
)
def test_what_is_typed_wrong_is_refused(
    headrace: Headrace, config: LmDataConfig, tmp_path: Path, typed: list[str], cure: str
):
    folder = open_run(tmp_path / "run", config).folder
    assert cure in headrace("run", "amend", folder, *typed).err


def test_a_loss_that_is_no_number_comes_first(config: LmDataConfig):
    logged = {
        step: {"loss_by_source/a": 2 + step % 3 / 10, "loss_by_source/b": 1.5 + step % 4 / 10}
        for step in range(30)
    }
    logged[20]["loss_by_source/b"] = math.nan  # an earlier one hides nothing
    logged[25] = {"loss_by_source/a": 99.0, "loss_by_source/b": 1.6}
    first, second = blame(config.dataset(), range(24, 27), logged)
    assert (first.source, first.loss, second.usual) == ("a", 99.0, pytest.approx(1.7))
    logged[25]["loss_by_source/b"] = math.nan
    first, second = blame(config.dataset(), range(24, 27), logged)
    assert (first.source, second.source, second.loss) == ("b", "a", 99.0)


@pytest.mark.parametrize("logged", ["loss_by_source", "row_loss", "nothing"])
def test_the_most_unusual_loss_comes_first(
    headrace: Headrace, config: LmDataConfig, tmp_path: Path, logged: str
):
    run = open_run(tmp_path / "run", config)
    losses: dict[str, dict[str, float]] = {}
    source = ""
    with (
        run.loader() as loader,
        RunLog(loader, run.folder, config=config) as log,
        loader.iter_from_step() as batches,
    ):
        for step, batch in zip(range(30), batches, strict=False):
            if logged == "loss_by_source":
                worse = 5.0 * (step == 25)
                losses = {logged: {"a": 2 + step % 3 / 10, "b": 1.5 + step % 4 / 10 + worse}}
            elif logged == "row_loss":
                of_rows = {str(row): 2 + row / 100 for row in range(8)}
                losses = {logged: of_rows | ({"3": 9.0} if step == 25 else {})}
            log(step, **losses)
            if step == 25:
                source = "ab"[int(batch.source_id[3])]
    said = headrace("run", "blame", run.folder, "--steps", "24:27").out
    suspects = json.loads(headrace("run", "blame", run.folder, "--steps", "24:27", "--json").out)
    first = suspects["suspects"][0]
    if logged == "loss_by_source":
        assert (first["source"], first["steps"], first["row"]) == ("b", [24, 25, 26], None)
        assert first["loss"] == pytest.approx(6.6)
        assert "standard deviations" in said
    elif logged == "row_loss":
        assert (first["source"], first["steps"], first["row"]) == (source, [25], 3)
    else:
        assert "No losses of these steps were logged" in said
    per_row = 8 if logged == "row_loss" else None
    total = sum(one["tokens"] for one in suspects["suspects"])
    assert total == 3 * 8 * 8
    assert len(suspects["suspects"]) == (3 * per_row if per_row else 2)
    assert all(one["documents"] for one in suspects["suspects"])
