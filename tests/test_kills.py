"""Every command that writes may be killed before any of its operations on files: the same command,
run again, ends as an unbroken one does, and no file stays that an unbroken one does not leave.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.config import load_config
from headrace.run import open_run

KILLS = 20
TEXTS = [json.dumps({"text": f"line {n} " * (n % 7 + 1), "id": str(n)}) for n in range(60)]
BUILD = "build ../in/a.jsonl --tokenizer bytes --chunk-tokens 64 --output out"
SWEEP = "config sweep ../in/mixed.yaml --arms 12 --steps 8 --output"
COMMANDS = {
    "build": [f"{BUILD} --part-bytes 1000"],
    "shuffled": [f"{BUILD} --shuffle 1"],
    "append": [f"{BUILD} ", "build ../in/b.jsonl --append --output out"],
    "restart": [f"{BUILD} --part-bytes 1000", f"{BUILD} --part-bytes 2000 --restart"],
    "reshuffle": ["cache reshuffle ../in/cache out"],
    "consolidate": ["cache consolidate ../in/cache out"],
    "to-levanter": ["cache convert ../in/cache out"],
    "to-levanter-shards": ["cache convert ../in/cache out --form sharded"],
    "to-headrace": ["cache convert ../in/levanter out --layout headrace"],
    "remove": [BUILD, "cache remove out 3 5"],
    "pack": [BUILD, "cache pack ../in/packed.yaml"],
    "repair": [BUILD, "damage out/parts/00000/input_ids/data/c/0", "cache verify out --repair"],
    "report": ["run report ../in/run.yaml num_steps=4 --output page.html"],
    "simulate": ["config simulate ../in/run.yaml num_steps=4 --csv out.csv"],
    "show": ["config show ../in/run.yaml --output full.yaml"],
    "icc": [BUILD, "cache inspect out --icc --save --seq-len 8 --block 4 --batch-size 2"],
    "init": ["init ../in/texts --output out"],
    "init-append": [
        "copy ../in/texts texts",
        "init texts --output out",
        "copy ../in/more texts/books",
        "init texts --output out --append",
    ],
    "split": ["cache reshuffle ../in/cache out --split 16"],
    "record": ["copy ../in/levanter out", "cache verify out --record"],
    "attributes": ["copy ../in/cache cache", "config check ../in/scored.yaml num_steps=2"],
    "sweep": [f"{SWEEP} sweep"],
    "fit": ["config fit ../in/filled.csv --output weights.yaml"],
    "translate": ["config from-levanter ../in/theirs.yaml --output ours.yaml"],
    "amend": ["copy ../in/run run", "run amend run ../in/edited.yaml --step 8"],
}
"""The last line of each is killed; those before it prepare the folder."""

# Reads lines [folder, command, number of the operation before which it is killed]. Each runs in a
# fork of a process that has imported what commands before it needed, which takes longer than most
# of them work. Its operations on files are counted by an audit hook: what Python opens for writing,
# renames, deletes, makes and syncs, and each piece that TensorStore writes.
SERVER = """
import contextlib, importlib, json, os, signal, sys
from dataclasses import replace
from headrace.cli import main
from headrace.store import files, ragged

KINDS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}

def run(folder, words, kill_at):
    os.chdir(folder)
    seen = []
    def count(kind):
        seen.append(kind)
        if len(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    def audit(event, values):
        if event in KINDS:
            count(event)
        elif event == "open" and isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR):
            if isinstance(values[0], (str, bytes, os.PathLike)) and "/dev/" not in str(values[0]):
                count("open")
    for module, name in ((os, "fsync"), (ragged.ArrayWriter, "_flush")):
        original = getattr(module, name)
        def counted(*given, original=original, name=name, **named):
            count(name)
            return original(*given, **named)
        setattr(module, name, counted)
    sys.addaudithook(audit)
    sys.argv = ["headrace", *words]
    code = 0
    try:
        main()
    except SystemExit as left:
        code = left.code or 0
    with os.fdopen(report, "w") as answer:
        json.dump([code, seen, [*sys.modules]], answer)
    os._exit(0)

def prepare_demo():
    # Little text, which is read once, and a small model.
    global is_prepared
    import headrace.demo.run
    from headrace.demo import corpus, settings
    texts = corpus.standard_library(60_000)
    corpus.standard_library = lambda max_chars: texts
    settings.QUICK = replace(settings.QUICK, vocab_size=400, seq_len=32, dim=16)
    is_prepared = True

is_prepared = False
for line in sys.stdin:
    folder, words, kill_at = json.loads(line)
    if words[0] == "demo" and not is_prepared:
        prepare_demo()
    read, report = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with open(os.path.join(folder, "..", "log"), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        run(folder, words, kill_at)
    os.close(report)
    with os.fdopen(read) as answer:  # first: more than a pipe holds would keep the child waiting
        said = answer.read()
    _, status = os.waitpid(child, 0)
    code, seen, modules = json.loads(said) if said else (-os.WTERMSIG(status), [], [])
    print(json.dumps([code, seen]), flush=True)
    for name in modules:
        with contextlib.suppress(ImportError):  # a module that another has put there
            importlib.import_module(name)
"""


class Server:
    """Runs commands in forks, and kills them."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
        )

    def run(self, folder: Path, line: str, kill_at: int = -1) -> tuple[int, list[str]]:
        name, *words = line.split()
        if name == "damage":
            path = folder / words[0]
            path.write_bytes(bytes(path.stat().st_size))
            return 0, []
        if name == "copy":
            shutil.copytree(folder / words[0], folder / words[1], dirs_exist_ok=True)
            return 0, []
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps([str(folder), [name, *words], kill_at]), file=self._process.stdin, flush=True
        )
        return tuple(json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.communicate()  # which closes both pipes


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory, server):
    """Sources, caches and a config, in ``in``; no command writes there."""
    root = tmp_path_factory.mktemp("kills")
    inner = root / "in"
    inner.mkdir()
    (inner / "a.jsonl").write_text("\n".join(TEXTS))
    (inner / "b.jsonl").write_text("\n".join(TEXTS[:20]))
    for name in ("books", "web"):
        (inner / "texts" / name).mkdir(parents=True)
        (inner / "texts" / name / "a.txt").write_text("some words " * 200)
    packed = {"components": {"a": {"cache": "out", "packing": {}}}, "seq_len": 32}
    (inner / "packed.yaml").write_text(json.dumps(packed))
    (inner / "run.yaml").write_text(
        json.dumps({"components": {"a": {"cache": "../in/cache"}}, "seq_len": 16, "batch_size": 2})
    )
    build = BUILD.replace("--output out", "--output cache --part-bytes 1000")
    assert server.run(inner, build)[0] == 0
    assert server.run(inner, "cache convert ../in/cache levanter")[0] == 0
    write_more(inner, server)
    return root


JOB = """
import sys
from headrace.config import load_config
from headrace.run import open_run
for line in sys.stdin:
    config, folder = line.split()
    run = open_run(folder, load_config(config))
    with run.loader() as loader, loader.iter_from_step() as batches:
        next(batches)
        print("trains", flush=True)
        sys.stdin.readline()
    print("has ended", flush=True)
"""
"""Trains a run from each line of its input until the next one."""


@pytest.fixture(scope="module")
def job():
    with subprocess.Popen(
        [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


def say(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(line, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def write_more(inner: Path, server: Server) -> None:
    """What only some commands read: texts that come later, tables, a run, the losses of a sweep."""
    (inner / "more").mkdir()
    (inner / "more" / "b.txt").write_text("other words " * 200)
    np.save(inner / "scores.npy", np.arange(60) % 7)
    scored = {"cache": "cache", "attributes": {"score": "../in/scores.npy"}, "where": "score > 2"}
    mixed = {name: {"cache": str(inner / "cache"), "weight": 1} for name in "ab"}
    edited = {**mixed, "b": {**mixed["b"], "weight": 2}}
    for name, components in {"scored": {"a": scored}, "mixed": mixed, "edited": edited}.items():
        config = {"components": components, "seq_len": 16, "batch_size": 8, "num_steps": 160}
        (inner / f"{name}.yaml").write_text(json.dumps(config))
        (inner / f"long-{name}.yaml").write_text(json.dumps(config | {"num_steps": 3000}))
    (inner / "theirs.yaml").write_text("components: {web: {cache_dir: gs://b/web}}")
    for run, config in (("run", "mixed"), ("long", "long-mixed")):
        with load_config(str(inner / f"{config}.yaml")).loader() as loader:
            open_run(str(inner / run), loader).state(4)
    assert server.run(inner, f"{SWEEP} sweep")[0] == 0
    first, *arms = (inner / "sweep" / "results.csv").read_text().splitlines()
    filled = [f"{arm}{1 + (float(arm.split(',')[1]) - 0.3) ** 2}" for arm in arms]
    (inner / "filled.csv").write_text("\n".join([first, *filled]))


def _content(path: Path) -> bytes:
    """The content of a file, without the minute in which a report was written."""
    return re.sub(rb"Written [-0-9: ]+ UTC", b"", path.read_bytes())


def files_in(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): _content(path) if path.is_file() else None
        for path in folder.rglob("*")
    }


def chosen(kinds: list[str], count: int) -> list[int]:
    """Numbers of operations: the first and the last of each kind, and others between them."""
    numbers = {kinds.index(kind) + 1 for kind in kinds}
    numbers |= {len(kinds) - kinds[::-1].index(kind) for kind in kinds}
    numbers |= {1 + n * (len(kinds) - 1) // max(count - 1, 1) for n in range(count)}
    return sorted(numbers)


@pytest.mark.parametrize(
    "kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize(
    "name",
    # a fit imports scikit-learn, anew for each kill
    [pytest.param(name, marks=pytest.mark.slow if name == "fit" else ()) for name in COMMANDS],
)
def test_a_killed_command_is_run_again(root, server, name, kills):
    *before, command = COMMANDS[name]
    prepared, unbroken, broken = (root / f"{name}-{what}" for what in ("new", "whole", "case"))
    for folder in (prepared, unbroken, broken):
        shutil.rmtree(folder, ignore_errors=True)
    prepared.mkdir()
    for line in before:
        assert server.run(prepared, line)[0] == 0
    shutil.copytree(prepared, unbroken)
    code, kinds = server.run(unbroken, command)
    assert code == 0, (root / "log").read_text()[-2000:]
    wanted = files_in(unbroken)
    numbers = chosen(kinds, kills)
    for number in numbers if kills == KILLS else numbers[:: max(len(numbers) // 4, 1)]:
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(prepared, broken)
        assert server.run(broken, command, number)[0] == -9
        if name == "init" and files_in(broken) == wanted:
            continue  # which it refuses to overwrite
        code, _ = server.run(broken, command)
        at = f"killed before operation {number} of {len(kinds)} ({kinds[number - 1]})"
        assert code == 0, (at, (root / "log").read_text()[-2000:])
        left = files_in(broken)
        assert sorted(left) == sorted(wanted), at
        assert [path for path in wanted if left[path] != wanted[path]] == [], at


LIVE = "run amend run ../in/long-edited.yaml --step 900 --live --wait"


def amend_live(root: Path, server: Server, job: subprocess.Popen[str], name: str, kill_at: int):
    """Asks a job for a change, killed before an operation, and again; the operations, and what is
    left when the job has ended.
    """
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "in" / "long", folder / "run")
    lease, request = (folder / "run" / name for name in ("lease.json", "request.json"))
    assert say(job, f"{root}/in/long-mixed.yaml {folder}/run") == "trains"
    wait_until(lease.exists)
    if kill_at > 0:
        assert server.run(folder, f"{LIVE} 3", kill_at)[0] == -9
    code, kinds = server.run(folder, f"{LIVE} 60")
    assert code == 0, (kill_at, (root / "log").read_text()[-2000:])
    wait_until(lambda: not request.exists())  # the job removes what the killed one left
    assert say(job, "end") == "has ended"
    wait_until(lambda: not lease.exists())
    return kinds, files_in(folder)


@pytest.mark.parametrize(
    "kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_killed_request_to_a_job_is_made_again(root, server, job, kills):
    kinds, wanted = amend_live(root, server, job, "live-whole", 0)
    numbers = chosen(kinds, kills)
    for number in numbers if kills == KILLS else numbers[:: max(len(numbers) // 2, 1)]:
        _, left = amend_live(root, server, job, "live-case", number)
        assert left == wanted, f"killed before operation {number} of {len(kinds)}"


DEMO = "demo --quick --steps 20 --output out"
# Files with times in them; the ledgers have those of the texts.
TIMED = {"metrics.jsonl", "summary.json", "report.html", "host-00000.jsonl"}
TIMED |= {"ledger.json", "ledger.bin"}


def trained(folder: Path) -> list[tuple[int, float, str]]:
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    return [(e["step"], e["loss"], e["digest"]) for e in map(json.loads, lines)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_demo_is_run_again(root, server):
    unbroken, broken = root / "demo-whole", root / "demo-case"
    unbroken.mkdir()
    code, kinds = server.run(unbroken, DEMO)
    assert code == 0, (root / "log").read_text()[-2000:]
    wanted = files_in(unbroken)
    for number in chosen(kinds, 3):  # and more: the first and the last of each kind
        at = f"killed before operation {number} of {len(kinds)} ({kinds[number - 1]})"
        shutil.rmtree(broken, ignore_errors=True)
        broken.mkdir()
        assert server.run(broken, DEMO, number)[0] == -9, at
        assert server.run(broken, DEMO)[0] == 0, (at, (root / "log").read_text()[-2000:])
        left = files_in(broken)
        assert sorted(left) == sorted(wanted), at
        others = {path for path in wanted if left[path] != wanted[path]}
        assert {Path(path).name for path in others} <= TIMED, at
        assert trained(broken) == trained(unbroken), at
