"""Changing a run as the pages print it: what ``headrace run diff`` says is pasted, and
the run goes on.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import load_config, open_run
from headrace.cli.init import PROGRAM
from headrace.demo import train as program
from headrace.errors import ConfigError, PlanMismatchError
from headrace.run import LoaderState, RunManifest
from headrace.testing import random_documents, write_cache

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
            "amendments": [{"step": 60, "add": {"new": {"weight": 2, "blend": {"math": 1, "law": 1}}}}],
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
            "stages": [{"weights": BLEND, "step": 0}, {"weights": {**BLEND, "math": 2}, "step": 60}],
        },
    ),
    "two, one after the other": (
        {"components": OWN},
        {
            "components": {**OWN, "law": {}, "math": {}},
            "amendments": [*ADD, {"step": 70, "add": {"law": 1}, "weights": {"math": 1}}],
        },
    ),
}  # fmt: skip


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
    with load_config(str(path)).loader() as loader:
        state = open_run(folder, loader, 0).state(20)
        first = tokens(loader, (0, 19, 59))
    reached = {"state": state, "step": 20, "folder": None}[says]
    batches = []
    for order in (None, random, random):
        path.write_text(config_text(caches, after, order))
        with load_config(str(path)).loader() as loader:
            manifest = open_run(folder, loader, reached)
            batches.append(tokens(loader, (0, 19, 59, 60, 85)))
        assert [h["until_step"] for h in manifest.history] == [60]
    assert all(np.array_equal(a, b) for a, b in zip(first, batches[0][:3], strict=True))
    assert all(
        np.array_equal(a, b) for one in batches for a, b in zip(one, batches[0], strict=True)
    )
    with load_config(str(path)).loader() as loader, pytest.raises(PlanMismatchError):
        open_run(folder, loader, LoaderState(20, "0" * 32))


@pytest.mark.parametrize(
    ("old", "new", "restore"),
    [
        ("weight: 3", "weight: 2", True),
        ("docs: {", "math: {cache: caches/math, weight: 2}\n  docs: {", False),
        (
            "docs: {",
            "math: {cache: caches/math, weight: {linear: {0: 1, 90: 3}}}\n  docs: {",
            False,
        ),
    ],
)
@pytest.mark.parametrize("declared", [False, True])
def test_what_is_printed_can_be_pasted(
    headrace, caches, tmp_path, monkeypatch, old, new, restore, declared
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(caches, "caches")
    path = Path("run.yaml")
    began = HEAD + (
        "components:\n  code: {cache: caches/code, weight: 3}\n  docs: {cache: caches/docs,"
        " weight: 1}\n"
    )
    path.write_text(began)
    with load_config("run.yaml").loader() as loader:
        open_run("runs/1", loader).state(20)
    if declared:
        began += "  law: {cache: caches/law}\n"
        began += "amendments:\n- {step: 40, add: {law: 1}}\n"
        path.write_text(began)
        with load_config("run.yaml").loader() as loader:
            open_run("runs/1", loader)
    path.write_text(began.replace(old, new))
    done = headrace("run", "diff", "runs/1", "run.yaml")
    assert done.code == 1
    assert done.out.count("amendments:") == 1
    assert ("restore the mixture" in done.out) == restore
    printed = done.out[done.out.index("amendments:") :]
    edited = began if restore else began.replace(old, new)
    path.write_text(edited.split("amendments:")[0] + printed)
    with load_config("run.yaml").loader() as loader:
        manifest = open_run("runs/1", loader)
    assert headrace("run", "diff", "runs/1", "run.yaml").code == 0
    assert manifest.history[-1]["until_step"] == (41 if declared else 20)
    assert RunManifest.load("runs/1") == manifest


def test_a_source_that_is_there_is_not_added(caches):
    fields = {"components": {**OWN, "math": {"weight": 5}}, "amendments": ADD}
    path = Path(caches / "run.yaml")
    path.write_text(config_text(caches, fields))
    with pytest.raises(ConfigError) as caught:
        load_config(str(path)).resolved_stages()
    assert caught.value.field == "amendments[0].add.math"
    assert "components.math.weight" in (caught.value.cure or "")


def test_the_past_is_not_changed_whoever_says_how_far_it_goes(caches, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(config_text(caches, {"components": OWN}))
    with load_config(str(path)).loader() as loader:
        state = open_run(tmp_path, loader).state(70)
    path.write_text(config_text(caches, WAYS["a component without a weight"][1]))
    for reached in (None, 70, state):
        with (
            load_config(str(path)).loader() as loader,
            pytest.raises(PlanMismatchError, match="70 steps are done") as caught,
        ):
            open_run(tmp_path, loader, reached)
        assert (caught.value.field, caught.value.value) == ("amendments.step", 60)
    with load_config(str(path)).loader() as loader:  # back to an earlier checkpoint
        assert open_run(tmp_path, loader, 60).history[0]["until_step"] == 60


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
    done = headrace("run", "diff", "runs/1", "run.yaml")
    printed = fences[-1][2]
    assert done.out == printed
    path.write_text(path.read_text().replace("weight: 2", "weight: 3"))
    path.write_text(path.read_text() + printed[printed.index("amendments:") :])
    exec(compile(resume, "quickstart.md", "exec"), names)
    with load_config("run.yaml").loader() as loader:
        assert open_run("runs/1", loader).history[0]["until_step"] == 20


@pytest.mark.slow
def test_a_killed_program_goes_on_with_another_source(headrace, caches, tmp_path, monkeypatch):
    """The train.py of ``init``: killed, then a source is added and a weight changed as ``headrace
    cache diff`` says.
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
    done = headrace("run", "diff", "runs/1", "run.yaml")
    path.write_text(began.replace("  docs:", math) + done.out[done.out.index("amendments:") :])
    resumed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumes from" in resumed.stdout
    manifest = RunManifest.load("runs/1")
    assert manifest is not None
    assert manifest.history[0]["until_step"] >= 15
