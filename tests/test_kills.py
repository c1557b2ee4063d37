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
    "pack": [BUILD, "cache pack out --seq-len 32"],
    "repair": [BUILD, "damage out/parts/00000/input_ids/data/c/0", "cache verify out --repair"],
    "report": ["run report ../in/run.yaml --steps 4 --output page.html"],
    "simulate": ["config simulate ../in/run.yaml --steps 4 --csv out.csv"],
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
    "attributes": ["copy ../in/cache cache", "config check ../in/scored.yaml --steps 2"],
    "sweep": [f"{SWEEP} sweep"],
    "fit": ["config fit ../in/filled.csv --output weights.yaml"],
    "translate": ["config from-levanter ../in/theirs.yaml --output ours.yaml"],
    "amend": ["copy ../in/run run", "run amend run ../in/edited.yaml --step 8"],
}
"""The last line of each is killed; those before it prepare the folder."""

# Reads lines [folder, command, number of the operation before which it is killed]. Each runs in a
# fork of a process that has imported what commands need, and its operations on files are counted
# by an audit hook: what Python opens for writing, renames, deletes, makes and syncs, and each piece
# that TensorStore writes.
SERVER = """
import json, os, signal, sys
import headrace.cli.application, headrace.ingest, headrace.report, headrace.config, headrace.analysis
from headrace.cli import main
from headrace.store import durable, ragged

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
    for module, name in ((os, "fsync"), (ragged.ShardWriter, "write")):
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
    os.write(report, json.dumps([code, seen]).encode())
    os._exit(0)

for line in sys.stdin:
    folder, words, kill_at = json.loads(line)
    read, report = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with open(os.path.join(folder, "..", "log"), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        run(folder, words, kill_at)
    os.close(report)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        said = answer.read()
    print(said or json.dumps([-os.WTERMSIG(status), []]), flush=True)
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
    (inner / "run.yaml").write_text(
        json.dumps({"components": {"a": {"cache": "../in/cache"}}, "seq_len": 16, "batch_size": 2})
    )
    build = BUILD.replace("--output out", "--output cache --part-bytes 1000")
    assert server.run(inner, build)[0] == 0
    assert server.run(inner, "cache convert ../in/cache levanter")[0] == 0
    write_more(inner, server)
    return root


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
    (inner / "theirs.yaml").write_text("components: {web: {cache_dir: gs://b/web}}")
    with load_config(str(inner / "mixed.yaml")).loader() as loader:
        open_run(str(inner / "run"), loader).state(4)
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
