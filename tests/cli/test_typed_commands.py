"""Commands that are printed as advice work when they are typed into a shell as printed, whatever
the names of the files are; and none is put together by hand.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import headrace as package
from headrace.cli.application import COMMANDS, application
from headrace.errors import HeadraceError, command_line
from headrace.run import RunLock
from headrace.store import TokenCache, open_cache, verify
from headrace.store.ledger import LEDGER_NAME
from headrace.store.ledger_table import TABLE_NAME
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

Run = Callable[..., Any]
LIBRARY = Path(package.__file__).parents[3]
NAMES = sorted(COMMANDS.keys() - {"demo"}, key=len, reverse=True)  # of commands that take values
NAMED = re.compile(rf"headrace ({'|'.join(NAMES)})\b")
VALUE = "\0"
AWKWARD = [
    "plain",
    "two words",
    "it's",
    'a "quote"',
    "$HOME",
    "a;true",
    "-dash",
    "--repair",
    "a&b|c",
    "(é)*[0]",
    "#1",
]


def hand_made(source: str) -> Iterator[int]:
    """Lines on which a command is put together with values."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            pieces = node.values
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else VALUE for p in pieces)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            if isinstance(node.left, ast.Constant):
                text = f"{node.left.value}{VALUE}" if str(node.left.value).endswith(" ") else ""
        elif isinstance(node, ast.List | ast.Tuple):
            words = [one.value if isinstance(one, ast.Constant) else VALUE for one in node.elts]
            text = " ".join(map(str, words))
        # within a line, and not behind what ends the command: a backquote, a comma, a full stop
        if any(
            VALUE in re.split(r"[\n`,]|\. |; ", text[m.end() :])[0] for m in NAMED.finditer(text)
        ):
            yield node.lineno


@pytest.mark.parametrize(
    ("line", "is_hand_made"),
    [
        ('f"Next: headrace cache verify {path} --repair"', True),
        ('"Next: headrace cache verify " + path', True),
        ('["headrace", "run", "amend", folder]', True),
        ('f"Next: " f"headrace build SOURCE -o {path}"', True),
        ('f"Type headrace cache verify. {why}"', False),
        ('f"{why}: headrace run amend RUN CONFIG"', False),
        ('command_line("cache verify", path)', False),
    ],
)
def test_the_search_finds_commands_that_are_made_by_hand(line: str, is_hand_made: bool):
    assert bool(list(hand_made(line))) == is_hand_made


def test_no_command_with_a_value_is_made_by_hand():
    found = [
        f"{path.relative_to(LIBRARY)}:{line}: use headrace.errors.command_line"
        for path in sorted(LIBRARY.glob("*/src/**/*.py"))
        for line in hand_made(path.read_text())
    ]
    assert len(list(LIBRARY.glob("*/src/**/*.py"))) > 300
    assert not found, "\n".join(found)


def shell_words(line: str) -> list[str]:
    """What a shell hands to headrace for a line that is typed into it."""
    function = 'headrace() { printf "%s\\0" "$@"; }\n'
    done = subprocess.run(["bash", "-c", function + line], capture_output=True, check=True)
    assert not done.stderr, done.stderr
    return os.fsdecode(done.stdout).split("\0")[:-1]


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), max_size=9)
)
def test_a_shell_reads_what_was_meant(values: list[str]):
    line = command_line("cache verify", *values, output=values, deep=True, json=None, by=False)
    words = shell_words(line)
    assert words[:2] == ["cache", "verify"]
    typed = words[2 : 2 + len(values)]
    assert [one.removeprefix("./") if one[2:3] == "-" else one for one in typed] == values
    assert not any(one.startswith("-") for one in typed)
    options = [word for value in values for word in ("--output", value)]
    assert words[2 + len(values) :] == [*options, "--deep"]


@pytest.fixture
def typed(headrace: Run) -> Callable[..., Any]:
    """Runs the last command in a text as a shell would, with words in place of its placeholders."""

    def run(text: str, **placeholders: str) -> Any:
        commands = [
            line[line.index("headrace ") :] for line in text.splitlines() if NAMED.search(line)
        ]
        words = shell_words(commands[-1])
        return headrace(*(placeholders.get(word, word) for word in words))

    return run


@pytest.fixture(params=AWKWARD)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a folder, with a cache, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_cache(Path(request.param).absolute(), [random_documents(30)])
    return request.param


def test_a_build_says_what_is_next(headrace: Run, typed: Run, folder: str):
    Path("in").mkdir()
    Path(f"in/{folder}.txt").write_text("A text of some words. " * 9)
    made = f"{folder}-2"
    built = headrace("build", "in", "-t", "bytes", "-o", made)
    assert (built.code, typed(built.out).code) == (0, 0), built
    assert json.loads(headrace("cache", "inspect", "--json", "--", made).out)["documents"] == 1
    shuffled = headrace("cache", "reshuffle", "--", made, f"{folder}-3")
    assert (shuffled.code, typed(shuffled.out).code) == (0, 0), shuffled


def test_what_is_next_after_an_append_is_about_the_whole(headrace: Run, typed: Run, folder: str):
    for name in ("1", "2"):
        Path(f"{name}.txt").write_text(f"A text of some words, {name}. " * 9)
    made, config = f"{folder}-2", "run.yaml"
    assert headrace("build", "1.txt", "-t", "bytes", "-o", made).code == 0
    plan = {"seq_len": 8, "batch_size": 1, "num_steps": 9, "components": {"a": {"cache": made}}}
    Path(config).write_text(json.dumps(plan))
    package.open_run("run", package.load_config(config), 2)
    done = headrace("build", "2.txt", "-o", made, "--append")
    shown = typed(done.out.partition("\nNew runs")[0])
    assert (shown.code, "documents  2 " in shown.out) == (0, True), shown  # of both parts
    assert "Snapshots" in shown.out
    moved = typed(done.out, RUN="run", CONFIG=config)
    assert moved.code == 0, moved.err
    lock = RunLock.load("run")
    assert lock is not None
    assert lock.config is not None
    assert lock.config["amendments"][-1]["caches"] == {"a": 2}


def test_a_damaged_table_is_written_anew(typed: Run, folder: str):
    table = Path(folder, TABLE_NAME)
    written = table.read_bytes()
    table.write_bytes(written[:-9] + b"123456789")
    (problem,) = [found.problem for found in verify(folder).damages]
    assert typed(problem).code == 0
    assert table.read_bytes() == written
    table.write_bytes(b"nonsense")
    with pytest.raises(HeadraceError) as caught:
        open_cache(folder)
    assert typed(str(caught.value)).code == 0
    assert table.read_bytes() == written


def test_a_damaged_part_is_built_again(headrace: Run, typed: Run, folder: str):
    source = f"{folder}.txt"
    Path(source).write_text("A text of some words. " * 9)
    made = f"{folder}-2"
    assert headrace("build", "-t", "bytes", "-o", made, "--", source).code == 0
    chunk = next(path for path in Path(made).rglob("data/c/0"))
    whole = chunk.read_bytes()
    chunk.write_bytes(bytes(len(whole)))
    found = headrace("cache", "verify", "--deep", "--", made)
    assert found.code == 1
    assert typed(found.out).code == 0, found.out
    assert chunk.read_bytes() == whole


def test_a_cache_that_is_missing_or_unfinished(headrace: Run, typed: Run, folder: str):
    Path("in.txt").write_text("A text of some words. " * 9)
    missing = f"{folder}-2"
    for opened in (open_cache, TokenCache.open_member):
        with pytest.raises(HeadraceError) as caught:
            opened(missing)
        assert typed(str(caught.value), SOURCE="in.txt", FILE="bytes").code == 0
        assert open_cache(missing).num_documents == 1
        for path in sorted(Path(missing).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        Path(missing).rmdir()
    Path("run.yaml").write_text(
        json.dumps({"seq_len": 8, "batch_size": 1, "components": {"a": {"cache": missing}}})
    )
    said = headrace("config", "check", "run.yaml", "num_steps=2").err
    assert typed(said, SOURCE="in.txt", FILE="bytes").code == 0, said
    Path(folder, TABLE_NAME).unlink()
    ledger = Path(folder, LEDGER_NAME)
    ledger.write_text(re.sub(r'"finished": ?true', '"finished":false', ledger.read_text()))


def test_a_snapshot_that_is_not_there(headrace: Run, typed: Run, folder: str):
    Path("run.yaml").write_text(
        json.dumps(
            {
                "seq_len": 8,
                "batch_size": 1,
                "components": {"a": {"cache": folder, "snapshot": 7}},
            }
        )
    )
    said = headrace("config", "check", "run.yaml", "num_steps=2").err
    assert "is not a snapshot of" in said
    shown = typed(said)
    assert (shown.code, "30" in shown.out) == (0, True), said


def test_documents_to_remove_that_are_not_named_or_not_there(
    headrace: Run, typed: Run, folder: str
):
    said = headrace("cache", "remove", "--", folder).err
    refused = typed(said)  # its numbers are examples
    assert "ID = '4711': is not a document: " in refused.err
    found = typed(refused.err, ID="7")
    assert "has no leaf" in found.err, found
    assert headrace("cache", "remove", "--", folder, "17").code == 0


def test_a_run_is_amended_as_it_is_printed(headrace: Run, typed: Run, folder: str):
    config = f"{folder}.yaml"
    write_cache(Path(f"{folder}-b").absolute(), [random_documents(30, seed=1)])
    caches = {"a": {"cache": folder}, "b": {"cache": f"{folder}-b"}}
    plan = {"seq_len": 8, "batch_size": 1, "num_steps": 9, "components": caches}
    Path(config).write_text(json.dumps(plan))
    run = f"{folder}-run"
    package.open_run(run, package.load_config(config))
    changed = ["components.a.weight=2"]
    compared = headrace("run", "diff", "--step", "3", "--", run, config, *changed)
    assert (compared.code, typed(compared.out).code) == (1, 0), compared
    assert headrace("run", "diff", "--", run, config, *changed).code == 0
    # What is said of a config that differs leads to a command that says the steps that are done.
    with pytest.raises(HeadraceError) as caught:
        package.open_run(run, package.load_config(config, ["components.a.weight=3"]))
    Path(config).write_text(json.dumps({**plan, "weights": {"a": 3, "b": 1}}))
    refused = typed(str(caught.value), CONFIG=config)
    assert refused.code == 2
    assert typed(refused.err).code == 0, refused.err


def test_a_config_named_as_a_cache(headrace: Run, typed: Run, folder: str):
    config = f"{folder}.yaml"
    plan = {"seq_len": 8, "batch_size": 1, "num_steps": 9, "components": {"a": {"cache": folder}}}
    Path(config).write_text(json.dumps(plan))
    said = headrace("cache", "inspect", "--", config).err
    assert typed(said).code == 0, said


def test_losses_measured_by_the_command_that_is_printed(typed: Run, folder: str):
    from headrace.analysis.excess import SourceExcess

    assert typed(SourceExcess(0.5, 2.0).cure(folder), OUTPUT="copy").code == 0
    assert np.array_equal(*(np.sort(_documents(path)) for path in (folder, "copy")))


def _documents(path: str) -> np.ndarray:
    return open_cache(path).lengths()


def made(source: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line, name and options of each command that is made of its words."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "command_line":
            continue
        name = node.args[0]
        if isinstance(name, ast.Constant):
            options = [f"--{k.arg.replace('_', '-')}" for k in node.keywords if k.arg]
            yield node.lineno, str(name.value), options


def test_commands_that_are_printed_have_their_options():
    wrong: list[str] = []
    for path in sorted(LIBRARY.glob("*/src/**/*.py")):
        for line, name, options in made(path.read_text()):
            command: Any = typer.main.get_command(application())
            for word in name.split():
                command = command.get_command(None, word)
            known = {option for one in command.params for option in one.opts}
            wrong += [f"{path}:{line} {option}" for option in options if option not in known]
    assert wrong == []
