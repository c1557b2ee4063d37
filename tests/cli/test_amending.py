"""Changing a run: its config is edited, ``headrace run amend`` writes the change into its lock, and
the run goes on.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import ComponentConfig, DataLoader, LmDataConfig, load_config, open_run
from headrace.cli.init import PROGRAM
from headrace.demo import train as program
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix import AmendmentConfig
from headrace.run import LoaderState, RunLock
from headrace.testing import write_cache
from headrace.testing.caches import random_documents, remove

NAMES = ("code", "docs", "math", "law")
HEAD = "seq_len: 8\nbatch_size: 8\nnum_steps: 100\nseed: 0\n"
OWN = {"code": {"weight": 3}, "docs": {"weight": 1}}
PLAIN: dict[str, Any] = {"code": {}, "docs": {}}
BLEND = {"code": 3, "docs": 1}
TREE = {"text": {"weight": 1, "blend": {"docs": 1}}, "code": 3}
ADD = [{"step": 60, "add": {"math": 2}}]

# Ways in which a user adds a source at step 60: the run's fields, and what the edited config has
# beside or in place of them.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a component without a weight": (
        {"components": OWN},
        {"components": {**OWN, "math": {}}, "amendments": ADD},
    ),
    "a component with the weight of the amendment": (
        {"components": OWN},
        {"components": {**OWN, "math": {"weight": 2}}, "amendments": ADD},
    ),
    "a weight of 0, raised by the amendment": (
        {"components": OWN},
        {
            "components": {**OWN, "math": {"weight": 0}},
            "amendments": [{"step": 60, "weights": {"math": 2}}],
        },
    ),
    "a schedule": (
        {"components": OWN},
        {"components": {**OWN, "math": {"weight": {"step": {0: 0, 60: 2}}}}},
    ),
    "a group": (
        {"components": OWN},
        {
            "components": {**OWN, "math": {}, "law": {}},
            "amendments": [
                {"step": 60, "add": {"new": {"weight": 2, "blend": {"math": 1, "law": 1}}}}
            ],
        },
    ),
    "beside weights": (
        {"components": PLAIN, "weights": BLEND},
        {"components": {**PLAIN, "math": {}}, "weights": BLEND, "amendments": ADD},
    ),
    "into a group": (
        {"components": PLAIN, "weights": TREE},
        {
            "components": {**PLAIN, "math": {}},
            "weights": TREE,
            "amendments": [{"step": 60, "weights": {"text": {"blend": {"docs": 1, "math": 1}}}}],
        },
    ),
    "beside stages": (
        {"components": PLAIN, "stages": [{"weights": BLEND, "step": 0}]},
        {
            "components": {**PLAIN, "math": {}},
            "stages": [{"weights": BLEND, "step": 0}],
            "amendments": ADD,
        },
    ),
    "a stage": (
        {"components": PLAIN, "stages": [{"weights": BLEND, "step": 0}]},
        {
            "components": {**PLAIN, "math": {}},
            "stages": [
                {"weights": BLEND, "step": 0},
                {"weights": {**BLEND, "math": 2}, "step": 60},
            ],
        },
    ),
    "two, one after the other": (
        {"components": OWN},
        {
            "components": {**OWN, "law": {}, "math": {}},
            "amendments": [*ADD, {"step": 70, "add": {"law": 1}, "weights": {"math": 1}}],
        },
    ),
}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate(NAMES):
        write_cache(folder / name, [random_documents(60, seed=seed)])
    return folder


def config_text(caches, fields, random=None):
    """The YAML of a config, its sources in an order of their own if ``random`` is given."""
    fields = {
        **fields,
        "components": {n: {"cache": f"{caches}/{n}", **c} for n, c in fields["components"].items()},
    }
    if random is not None:
        fields = turned(fields, random)
    return HEAD + yaml.safe_dump(fields, sort_keys=False)


def turned(value, random):
    """The same with the keys of all mappings in another order."""
    if isinstance(value, list):
        return [turned(inner, random) for inner in value]
    if not isinstance(value, dict):
        return value
    names = list(value)
    if not any(isinstance(name, int) for name in names):  # steps are sorted
        random.shuffle(names)
    return {name: turned(value[name], random) for name in names}


def tokens(loader, steps):
    return [np.asarray(loader.batch_at(step).token_ids) for step in steps]


@given(
    way=st.sampled_from(sorted(WAYS)),
    random=st.randoms(use_true_random=False),
    says=st.sampled_from(["state", "step", "folder"]),
)
@settings(max_examples=30, deadline=None)
def test_a_source_is_added_whatever_the_order_of_keys(caches, tmp_path_factory, way, random, says):
    folder = tmp_path_factory.mktemp("run")
    path = folder / "run.yaml"
    before, after = WAYS[way]
    path.write_text(config_text(caches, before))
    run = open_run(folder, load_config(str(path)), 0)
    state = run.state(20)
    with run.loader() as loader:
        first = tokens(loader, (0, 19, 59))
    reached = {"state": state, "step": 20, "folder": None}[says]
    batches = []
    for order in (None, random, random):
        path.write_text(config_text(caches, after, order))
        run = open_run(folder, load_config(str(path)), reached)
        with run.loader() as loader:
            batches.append(tokens(loader, (0, 19, 59, 60, 85)))
        assert [h["until_step"] for h in run.history] == [60]
    assert all(np.array_equal(a, b) for a, b in zip(first, batches[0][:3], strict=True))
    assert all(
        np.array_equal(a, b) for one in batches for a, b in zip(one, batches[0], strict=True)
    )
    with pytest.raises(PlanMismatchError):
        open_run(folder, load_config(str(path)), LoaderState(20, "0" * 32))


def as_it_is(batch):
    """A function that batches pass through."""
    return batch


@pytest.mark.parametrize("function", [None, as_it_is])
def test_a_run_with_a_function_is_changed_as_one_without(headrace, caches, tmp_path, function):
    # no command knows the function; it takes the run's
    path = tmp_path / "run.yaml"
    path.write_text(config_text(caches, {"components": OWN}))
    folder = str(tmp_path / "run")
    open_run(folder, load_config(str(path)), fn=function).state(10)
    path.write_text(config_text(caches, {"components": {**OWN, "code": {"weight": 1}}}))
    assert "code.weight: 3 -> 1" in headrace("run", "diff", folder, str(path)).out
    with pytest.raises(PlanMismatchError) as refused:
        open_run(folder, load_config(str(path)), fn=function)
    advised = str(refused.value.cure).partition("headrace ")[2].rstrip(".").split()
    done = headrace(*[str(path) if word == "CONFIG" else word for word in advised], "--step", "20")
    assert done.code == 0, done.err + done.out
    assert headrace("run", "diff", folder, str(path)).code == 0
    assert headrace("run", "where", folder, "--step", "30").code == 0
    run = open_run(folder, load_config(str(path)), fn=function)
    assert [h["until_step"] for h in run.history] == [20]
    with pytest.raises(PlanMismatchError, match="another plan"):
        open_run(folder, load_config(str(path)), fn=np.asarray)


WEIGHTED = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from([1, 2, 3.5, {"linear": {0: 1, 90: 3}}]), min_size=1
)
FORMS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "own weights": lambda weights: {"components": {n: {"weight": w} for n, w in weights.items()}},
    "one blend": lambda weights: {"components": {n: {} for n in weights}, "weights": weights},
    "stages": lambda weights: {
        "components": {n: {} for n in weights},
        "stages": [{"weights": weights}, {"step": 70, "weights": dict.fromkeys(weights, 1)}],
        "shuffle": True,  # the size of a braid follows from all stages
    },
}


@given(
    form=st.sampled_from(sorted(FORMS)),
    plans=st.lists(WEIGHTED, min_size=2, max_size=3),
    random=st.randoms(use_true_random=False),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_run_goes_on_as_its_config_was_edited(
    headrace, caches, tmp_path_factory, form, plans, random
):
    """Before the step, every batch stays as it was; from it on, the mixture is the edited one."""
    folder = tmp_path_factory.mktemp("run")
    path = folder / "run.yaml"
    make = FORMS[form]
    path.write_text(config_text(caches, make(plans[0])))
    run = open_run(folder, load_config(str(path)))
    run.state(20)
    with run.loader() as loader:
        first = tokens(loader, range(20))
    for number, weights in enumerate(plans[1:]):
        path.write_text(config_text(caches, make(weights), random))
        done = headrace("run", "amend", str(folder), str(path), "--step", str(20 + 10 * number))
        assert done.code == 0, done.err + done.out
    edited = load_config(str(path))
    assert headrace("run", "diff", str(folder), str(path)).code == 0
    run = open_run(folder, edited)
    with run.loader() as loader:
        assert all(
            np.array_equal(a, b) for a, b in zip(first, tokens(loader, range(20)), strict=True)
        )
    assert run.config is not None
    for step in (40, 69, 70, 95):
        assert shares(run.config, step) == pytest.approx(shares(edited, step))


def shares(config, step):
    """The share of each source at a step."""
    stage = [one for one in config.plan().stages if one.first_step <= step][-1]
    drawn = stage.blend.at(np.array([step]))[0]
    return {name: share for name, share in zip(stage.blend.names, drawn, strict=True) if share}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("weight: 3", "weight: 2"),
        ("docs: {", "math: {cache: caches/math, weight: 2}\n  docs: {"),
        ("docs: {", "math: {cache: caches/math, weight: {linear: {0: 1, 90: 3}}}\n  docs: {"),
        ("  code: {cache: caches/code, weight: 3}\n", ""),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_the_printed_command_makes_the_change(
    headrace, caches, tmp_path, monkeypatch, old, new, declared
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(caches, "caches")
    path = Path("run.yaml")
    began = HEAD + (
        "components:\n  code: {cache: caches/code, weight: 3}\n  docs: {cache: caches/docs,"
        " weight: 1}\n"
    )
    path.write_text(began)
    open_run("runs/1", load_config("run.yaml")).state(20)
    if declared:
        began += "  law: {cache: caches/law}\n"
        began += "amendments:\n- {step: 40, add: {law: 1}}\n"
        path.write_text(began)
        open_run("runs/1", load_config("run.yaml"))
    path.write_text(began.replace(old, new))
    done = headrace("run", "diff", "runs/1", "run.yaml")
    assert done.code == 1
    command = re.search(r"^To make this change: headrace (.*)$", done.out, re.M)
    assert command is not None
    with pytest.raises(PlanMismatchError) as refused:
        open_run("runs/1", load_config("run.yaml"))
    assert command[1].rpartition(" ")[0] in (refused.value.cure or "")
    assert headrace(*command[1].split()).code == 0
    assert path.read_text() == began.replace(old, new)  # the config needs no note of it
    run = open_run("runs/1", load_config("run.yaml"))
    assert run.history[-1]["until_step"] == (41 if declared else 20)
    assert RunLock.load("runs/1") == run.lock
    assert headrace("run", "diff", "runs/1", "run.yaml").code == 0
    again = headrace("run", "amend", "runs/1", "run.yaml")
    assert (again.code, again.out.split()[:3]) == (0, ["the", "same", "run"])


def test_a_later_stage_is_changed_by_the_command_alone(headrace, caches, tmp_path):
    folder = str(tmp_path / "run")
    path = tmp_path / "run.yaml"
    fields = FORMS["stages"]({"code": 1, "docs": 1})
    path.write_text(config_text(caches, fields))
    open_run(folder, load_config(str(path))).state(20)
    later = {"step": 70, "weights": {"code": 5, "docs": 1}}
    path.write_text(config_text(caches, {**fields, "stages": [fields["stages"][0], later]}))
    edited = load_config(str(path))
    with pytest.raises(PlanMismatchError, match="has another config"):
        open_run(folder, edited)
    assert headrace("run", "amend", folder, str(path)).code == 0
    assert [h["until_step"] for h in open_run(folder, edited).history] == [70]


def test_an_amendment_of_which_no_step_is_done_is_changed(headrace, caches, tmp_path):
    folder = str(tmp_path / "run")
    path = tmp_path / "run.yaml"
    args = ("run", "amend", folder, str(path))
    path.write_text(config_text(caches, {"components": OWN}))
    run = open_run(folder, load_config(str(path)))
    run.state(20)
    with run.loader() as loader:
        first = tokens(loader, range(40))
    for changed in ({"code": {"weight": 9}}, {"math": {"weight": 2}}, {"code": {"weight": 2}}):
        path.write_text(config_text(caches, {"components": {**OWN, **changed}}))
        assert headrace(*args).code == 0
        run = open_run(folder, load_config(str(path)))
        assert run.config is not None
        assert [one.step for one in run.config.amendments] == [20]
        for step in (20, 30):
            assert shares(run.config, step) == pytest.approx(shares(load_config(str(path)), step))
        assert {h["until_step"] for h in run.history} == {20}
    path.write_text(config_text(caches, {"components": OWN}))  # back to what it was
    assert headrace(*args).code == 0
    run = open_run(folder, load_config(str(path)))
    with run.loader() as loader:
        now = tokens(loader, range(40))
    assert all(np.array_equal(a, b) for a, b in zip(first, now, strict=True))


@pytest.mark.parametrize("options", [[], ["--newest-caches"], ["--step", "30"]])
def test_before_a_first_checkpoint_both_commands_offer_the_same(
    headrace, caches, tmp_path, monkeypatch, options
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(caches, "caches")
    began = HEAD + "components: {code: {cache: caches/code, weight: 3}, docs: caches/docs}\n"
    path = Path("run.yaml")
    path.write_text(began)
    open_run("runs/1", load_config("run.yaml"))
    remove("caches/docs", 5)
    path.write_text(began.replace("weight: 3", "weight: 2"))
    shown = headrace("run", "diff", "runs/1", "run.yaml", *options)
    offered = re.search(r"^To make this change: headrace (.*)$", shown.out, re.M)
    refused = headrace("run", "amend", "runs/1", "run.yaml", *options)
    assert offered is not None
    assert refused.err.rstrip().endswith(f" {offered[1]}")
    assert ("--newest-caches" in offered[1]) == ("--newest-caches" in options)
    assert headrace(*offered[1].split()).code == 0
    assert headrace("run", "diff", "runs/1", "run.yaml").code == 0


def test_weights_that_replace_learned_ones_are_said_to(headrace, caches, tmp_path):
    folder = str(tmp_path / "run")
    path = tmp_path / "run.yaml"
    path.write_text(config_text(caches, {"components": OWN}))
    run = open_run(folder, load_config(str(path)))
    args = (folder, str(path), "components.code.weight=9", "--step=20")
    said = "These weights take the place of those that the run has learned."
    assert said not in headrace("run", "diff", *args).out
    learned = {name: 1 / len(OWN) for name in OWN}
    run.reweigh(AmendmentConfig(10, weights=learned, measured={"sums": {}}))
    assert said in headrace("run", "diff", *args).out


def test_what_is_done_is_not_amended(headrace, caches, tmp_path):
    folder = str(tmp_path / "run")
    path = tmp_path / "run.yaml"
    path.write_text(config_text(caches, {"components": OWN}))
    run = open_run(folder, load_config(str(path)))
    path.write_text(config_text(caches, {"components": {**OWN, "code": {"weight": 2}}}))
    args = ("run", "amend", folder, str(path))
    before = RunLock.load(folder)
    assert "knows of no checkpoint" in headrace(*args).err
    run.state(70)
    done = headrace(*args, "--step", "60")
    assert (done.code, RunLock.load(folder)) == (2, before)
    assert "70 steps are done" in done.err
    cure = re.search(r"--step 60 --going-back", done.err)
    assert cure is not None
    assert headrace(*args, *cure[0].split()).code == 0
    refused = headrace(*args, "seed=3")
    assert (refused.code, "seed: not set -> 3" in refused.out) == (1, True)
    assert "is not the folder of a run" in headrace("run", "amend", str(tmp_path), str(path)).err


def test_a_run_is_amended_in_python(caches, tmp_path):
    math = ComponentConfig(f"{caches}/math")
    components = {n: ComponentConfig(f"{caches}/{n}") for n in ("code", "docs")}
    config = LmDataConfig(components, seq_len=8, batch_size=8)
    run = open_run(tmp_path, config)
    with run.loader() as loader:
        first = tokens(loader, range(30))
    run.state(10)
    amended = run.amend(20, add={"math": 1}, drop=["docs"], components={"math": math})
    for resumed in (amended, open_run(tmp_path, config)):
        with resumed.loader() as loader:
            now = tokens(loader, range(30))
        assert all(np.array_equal(a, b) for a, b in zip(first[:20], now, strict=False))
        assert not np.array_equal(first[20], now[20])
        assert [h["until_step"] for h in resumed.history] == [20]
    with pytest.raises(PlanMismatchError, match="10 steps are done"):
        run.amend(5, weights={"code": 2})
    with (
        DataLoader(config.dataset()) as loader,
        pytest.raises(ConfigError, match=r"without a config, and has no amend\(\)"),
    ):
        open_run(tmp_path / "other", loader).amend(5, weights={"code": 2})


def test_a_source_that_is_there_is_not_added(caches):
    fields = {"components": {**OWN, "math": {"weight": 5}}, "amendments": ADD}
    path = Path(caches / "run.yaml")
    path.write_text(config_text(caches, fields))
    with pytest.raises(ConfigError) as caught:
        load_config(str(path)).plan()
    assert caught.value.field == "amendments[0].add.math"
    assert "components.math.weight" in (caught.value.cure or "")


def test_the_past_is_not_changed_whoever_says_how_far_it_goes(caches, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(config_text(caches, {"components": OWN}))
    state = open_run(tmp_path, load_config(str(path))).state(70)
    path.write_text(config_text(caches, WAYS["a component without a weight"][1]))
    edited = load_config(str(path))
    for reached in (None, 70, state):
        with pytest.raises(PlanMismatchError, match="70 steps are done") as caught:
            open_run(tmp_path, edited, reached)
        assert (caught.value.field, caught.value.value) == ("amendments.step", 60)
    # back to an earlier checkpoint
    assert open_run(tmp_path, edited, 60).history[0]["until_step"] == 60


def test_the_quickstart_s_last_instruction_works_as_printed(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    names: dict[str, object] = {}
    resume = ""
    fences = re.findall(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", page, re.M | re.S)
    for language, title, code in fences:
        if language == "python":
            exec(compile(code, "quickstart.md", "exec"), names)
            resume = code if "LoaderState" in code else ""
        elif language == "bash" and "build" in code:
            for line in code.splitlines():
                assert headrace(*line.split()[1:]).code == 0
        elif title:
            Path(title).write_text(code)
    path = Path("run.yaml")
    path.write_text(path.read_text().replace("weight: 3", "weight: 2"))
    command, printed = fences[-2][2], fences[-1][2]
    while Path("runs/1/lease.json").exists():  # of this process, whose iteration has just ended
        time.sleep(0.01)
    done = headrace(*command.split()[1:])
    assert done.out == printed
    exec(compile(resume, "quickstart.md", "exec"), names)
    assert open_run("runs/1", load_config("run.yaml")).history[0]["until_step"] == 20


@pytest.mark.slow
def test_a_killed_program_goes_on_with_another_source(headrace, caches, tmp_path, monkeypatch):
    """The train.py of ``init``: killed, then a source is added and a weight changed by ``headrace
    run amend``.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(caches, "caches")
    shutil.copy(program.__file__, PROGRAM)
    path = Path("run.yaml")
    began = HEAD.replace("100", "40") + (
        "components:\n  code: {cache: caches/code, weight: 3}\n  docs: {cache: caches/docs}\n"
    )
    path.write_text(began)
    command = [sys.executable, PROGRAM, "--save-every", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step     20"):
                process.send_signal(signal.SIGKILL)
    math = "  math: {cache: caches/math, weight: 2}\n  docs:"
    path.write_text(began.replace("  docs:", math).replace("weight: 3", "weight: 1"))
    assert headrace("run", "amend", "runs/1", "run.yaml").code == 0
    resumed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumes from" in resumed.stdout
    lock = RunLock.load("runs/1")
    assert lock is not None
    assert lock.history[0]["until_step"] >= 15


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config and two runs of it."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("web", "code")):
        write_cache(tmp_path / name, [random_documents(30, seed=seed)])
    Path("run.yaml").write_text(f"{HEAD}components: {{web: web, code: code}}\n")
    for name in ("7b", "7c"):
        open_run(f"runs/{name}", load_config("run.yaml"))
    return tmp_path


@pytest.mark.parametrize("command", ["amend", "diff"])
@pytest.mark.parametrize(
    ("typo", "said"), [("wbe", "Did you mean 'web'?"), ("x", "Known names: 'code', 'web'.")]
)
def test_a_source_that_the_run_does_not_have_is_told_from_its_names(
    headrace, begun, command, typo, said
):
    done = headrace("run", command, "runs/7b", "run.yaml", f"components.{typo}.weight=2")
    assert done.code == 2
    assert done.err.startswith(f"error components.{typo}.cache: is missing.")
    assert f"another name in place of {typo!r}. {said}" in done.err


@pytest.mark.parametrize(
    "change", [("--weights", "wbe=2"), ("--drop", "wbe"), ("--caches", "wbe=2")]
)
def test_a_job_is_not_asked_for_what_its_run_does_not_have(headrace, begun, change):
    # Whoever asked would have waited: no job runs.
    done = headrace("run", "amend", "runs/7b", "--step", "5", "--wait", "1e5", *change)
    assert (done.code, "Did you mean 'web'?" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    "command",
    [
        "where {} --step 3",
        "cat {} --step 3",
        "tree {}",
        "tree run.yaml --like {}",
        "diff {} run.yaml",
        "amend {} run.yaml",
        "amend {} --step 5 --weights web=2",
        "report {} --json",
        "report runs/7b {} --json",
        "blame {} --steps 1:2",
    ],
)
@pytest.mark.parametrize("typed", ["runs/7bb", "rnus/7b", "runs", "./runs/7b/x"])
def test_a_folder_without_a_run_names_the_runs_near_it(headrace, begun, command, typed):
    done = headrace("run", *command.format(typed).split())
    assert done.code == 2
    meant = re.findall(r"'([^']+)'", done.err.partition("open_run")[2])
    assert {os.path.normpath(one) for one in meant} <= {"runs/7b", "runs/7c"}
    assert meant, done.err
    # ... and one of these is what works in its place; no job answers, and no losses are logged
    again = headrace("run", *command.format(meant[0]).split(), *["--wait", ".1"] * ("5" in command))
    assert again.code in (0, 1) or "gave no answer" in again.err or "blame" in command, again.err


def test_a_folder_with_no_run_near_it(headrace, tmp_path):
    done = headrace("run", "tree", f"{tmp_path}/nothing/here")
    assert (done.code, "is not the folder of a run" in done.err) == (2, True)
    assert done.err.endswith("or a config (.yaml).\n")


@pytest.mark.parametrize("target", [["runs/7b"], ["./runs/7b", "batch_size=8"]])
def test_a_run_is_at_its_last_checkpoint(headrace, begun, target):
    at = lambda *typed: headrace("run", "where", *typed, "--json").out  # noqa: E731
    assert at(*target) == at(*target, "--step", "0")
    open_run("runs/7b", load_config("run.yaml"), 7)
    assert at(*target) == at(*target, "--step", "7") != at(*target, "--step", "0")
    assert at("run.yaml") == at("run.yaml", "--step", "0")


def test_what_was_typed_behind_a_config_is_to_be_written_into_it(headrace, begun):
    """The run goes on with the config as it is: without it the job would be refused."""
    open_run("runs/7b", load_config("run.yaml"), 7)
    done = headrace("run", "amend", "runs/7b", "run.yaml", "components.web={cache: web, weight: 2}")
    written = re.search(r"Write components\.(.*)=(\{.*\}) into run\.yaml, too\.", done.out)
    assert written is not None, done.out
    with pytest.raises(PlanMismatchError, match="the run has another config"):
        open_run("runs/7b", load_config("run.yaml"))
    Path("run.yaml").write_text(f"{HEAD}components:\n  {written[1]}: {written[2]}\n  code: code\n")
    assert open_run("runs/7b", load_config("run.yaml")).state(8).step == 8
    edited = Path("run.yaml").read_text().replace("weight: 2", "weight: 3")
    Path("run.yaml").write_text(edited)
    assert "Write " not in headrace("run", "amend", "runs/7b", "run.yaml").out


@pytest.mark.parametrize(
    "command",
    ["where {}", "cat {} --step 3", "tree {}", "diff {} my/run.yaml", "amend {} my/run.yaml"],
)
def test_a_run_that_is_named_from_another_folder_says_where_its_caches_are(
    headrace, begun, monkeypatch, tmp_path_factory, command
):
    open_run("runs/7b", load_config("run.yaml"), 2)
    remove("web", 3)
    assert headrace("run", "amend", "runs/7b", "run.yaml", "--newest-caches").code == 0
    above = tmp_path_factory.mktemp("above")
    begun.rename(above / "my")
    monkeypatch.chdir(above)
    done = headrace("run", *command.format("my/runs/7b").split())
    assert done.code == 2
    assert "is not a token cache (there is no such folder)" in done.err
    folder = done.err.rstrip().rpartition("relative to the current folder: cd ")[2]
    monkeypatch.chdir(folder)
    again = headrace("run", *command.format("runs/7b").replace("my/", "").split())
    assert again.code == 0, again.err
