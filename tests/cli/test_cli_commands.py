"""The command line as a whole: every command has examples that parse, JSON, one-line errors and its
status.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.formatting
import pytest
import typer

from headrace.cli import exits
from headrace.cli.application import application
from headrace.config import LmDataConfig
from headrace.testing import tiny_cache

GROUP: Any = typer.main.get_command(application())


def commands_of(group: Any) -> dict[str, Any]:
    return {name: group.get_command(None, name) for name in group.commands}


GROUPS: dict[str, Any] = {"": GROUP} | {
    name: command for name, command in commands_of(GROUP).items() if hasattr(command, "commands")
}
LEAVES: dict[str, Any] = {
    f"{prefix} {name}".strip(): command
    for prefix, group in GROUPS.items()
    for name, command in commands_of(group).items()
    if name not in GROUPS
}
WITHOUT_JSON = {
    "demo",
    "init",
}  # a picture and a model; a script; JSON in any case
HEAVY = (
    *(
        "jax",
        "numpy",
        "tensorstore",
        "draccus",
        "tokenizers",
        "gigatoken",
        "pyarrow",
        "fsspec",
        "yaml",
        "optax",
    ),
    *("matplotlib", "ray", "rich", "pydantic"),
)
"""What takes tens of milliseconds or more to import."""


def options(command: Any) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


def examples(command: Any) -> list[str]:
    lines = (line.strip() for line in (command.callback.__doc__ or "").splitlines())
    return [line for line in lines if line.startswith("headrace ")]


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_says_what_it_does_with_examples(name):
    command = LEAVES[name]
    summary = (command.callback.__doc__ or "").split("\n\n")[0]
    assert summary.strip().endswith(".")
    assert examples(command), "no example"
    for parameter in command.params:
        assert parameter.help or "--help" in parameter.opts, f"{parameter.name} has no help"


@pytest.mark.parametrize("name", LEAVES)
def test_help_fits_eighty_columns(headrace, monkeypatch, name):
    monkeypatch.setattr(click.formatting, "FORCED_WIDTH", 80)
    assert max(map(len, headrace(*name.split(), "--help").out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "example"), [(n, e) for n, c in LEAVES.items() for e in examples(c)]
)
def test_every_example_parses(name, example):
    words = shlex.split(example.partition(" > ")[0])[1:]
    prefix = name.split()
    assert words[: len(prefix)] == prefix
    LEAVES[name].make_context(name, words[len(prefix) :])


@pytest.mark.parametrize("name", LEAVES)
def test_names_are_consistent(name):
    assert ("--json" in options(LEAVES[name])) == (name not in WITHOUT_JSON)
    for option in options(LEAVES[name]):
        if option.startswith("--"):
            assert option == option.lower().replace("_", "-")
    for wrong, right in {"--num-steps": "--steps", "--out": "--output"}.items():
        assert wrong not in options(LEAVES[name]), f"say {right}"


@pytest.mark.parametrize(
    ("command", "said", "unused"),
    [
        ("--version", "headrace 0.3", (*HEAVY, "typer")),
        ("--help", "Groups of commands:", HEAVY),
        ("config", "", HEAVY),
        *((f"{name} --help", f"Usage: headrace {name}", HEAVY) for name in LEAVES),
    ],
)
def test_an_answer_imports_nothing_heavy(command, said, unused):
    """Counted in modules and not in seconds, which depend on what else the machine does."""
    program = (
        f"import sys; sys.argv = ['headrace', *{command.split()}]\nfrom headrace.cli import main\n"
    )
    program += (
        f"try: main()\nfinally: print([m for m in {unused} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(said) or said in done.stdout
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_what_is_imported_is_noticed():
    """The instrument of the test above, on a command that does need something."""
    program = (
        "import sys, headrace; headrace.open_cache; print([m for m in ('jax', 'numpy') if m in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['numpy']"


def test_import_headrace_imports_nothing_heavy():
    program = (
        f"import sys, headrace; print([m for m in {(*HEAVY, 'typer', 'asyncio')} if m in"
        " sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_help_of_a_command_of_many_options_describes_them_all_by_theme(headrace):
    text = headrace("build", "--help").out
    words = " ".join(text.split())
    command = LEAVES["build"]
    for parameter in command.params:
        assert parameter.opts[0] == "--help" or " ".join(parameter.help.split()) in words
    assert all(" ".join(example.split()) in words for example in examples(command))
    for theme in ("Arguments:", "Options:", "Encoding:", "Conversations:", "Storage:"):
        assert theme in text.splitlines()


def test_the_help_has_no_type_of_python(headrace):
    for name in LEAVES:
        text = headrace(*name.split(), "--help").out
        assert not re.search(r"<(str|int|float|bool|path|list)|\{[A-Z]", text), name
        assert "[[" not in text, name


def test_the_help_says_in_full_what_each_command_does(headrace):
    for prefix, group in GROUPS.items():
        words = " ".join(headrace(*prefix.split(), "--help").out.split())
        for name, command in commands_of(group).items():
            summary = " ".join((command.help or "").split("\n\n")[0].split())
            assert f"{name} {summary}".rstrip(".") in words


def test_the_help_names_the_commands_of_each_group(headrace):
    words = " ".join(headrace("--help").out.split())
    for prefix, group in GROUPS.items():
        assert not prefix or f": {', '.join(group.commands)}." in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["biuld"], "Did you mean 'build'"),
        (["config", "chek"], "Did you mean 'check'"),
        (["config", "simulate"], "Missing argument 'CONFIG'"),
        (["config", "simulate", "x.yaml", "--max-rwos", "3"], "--max-rows"),
        (["build", "x", "-o", "y", "-t", "bytes", "--format", "josnl"], "jsonl"),
        (["config", "check", "nope.yaml"], "does not exist. Give the path of a YAML file."),
        (["cache", "verify", "nope"], "nope"),
        (["run", "tree", "x.yaml", "--step", "3"], "No such option"),
    ],
)
def test_mistakes_get_one_line_and_status_2(headrace, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("seq_len: 8\n")
    done = headrace(*arguments)
    assert done.code == exits.REFUSED
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""


def test_no_command_shows_the_help(headrace):
    for arguments in ((), ("config",)):
        done = headrace(*arguments)
        assert done.code == exits.REFUSED
        assert "Usage:" in done.out + done.err


def fail(with_: BaseException):
    def raising(*args, **kwargs):
        raise with_

    return raising


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            RuntimeError("the wheel\nstands still"),
            exits.UNEXPECTED,
            "RuntimeError: the wheel stands still",
        ),
        (
            OSError(28, "No space left on device", "cache"),
            exits.REFUSED,
            "cache: No space left on device",
        ),
        (RuntimeError("s3://id:secret@bucket/a"), exits.UNEXPECTED, "s3://***@bucket/a"),
        (KeyboardInterrupt(), exits.INTERRUPTED, ""),
    ],
)
def test_what_nobody_foresaw_is_one_line_too(headrace, monkeypatch, error, status, said):
    monkeypatch.setattr("headrace.config.lm_data.load_config", fail(error))
    done = headrace("config", "show", "x.yaml")
    assert done.code == status
    assert said in done.err
    assert "Traceback" not in done.err
    assert "secret" not in done.err


@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_shows_where_an_error_comes_from(headrace, monkeypatch, how):
    monkeypatch.setenv(exits.DEBUG, "1" if how == "environment" else "0")
    monkeypatch.setattr("headrace.config.lm_data.load_config", fail(RuntimeError("here")))
    done = headrace(*(["--debug"] if how == "option" else []), "config", "show", "x.yaml")
    assert done.code == exits.UNEXPECTED
    assert "Traceback" in done.err
    assert "in raising" in done.err


def test_a_reader_that_leaves_is_no_error(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(LmDataConfig().to_yaml())
    command = f"{shlex.quote(sys.executable)} -m headrace config show --schema | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout == '{\n  "$sche'
    assert done.stderr == ""


@pytest.mark.parametrize("name", [name for name in LEAVES if name not in WITHOUT_JSON])
def test_with_json_a_refusal_ends_with_a_line_of_errors_and_has_no_output(
    headrace, tmp_path, monkeypatch, name
):
    """What the examples read is not there."""
    monkeypatch.chdir(tmp_path)
    refused = 0
    for example in examples(LEAVES[name]):
        done = headrace(*shlex.split(example.partition(" > ")[0])[1:], "--json")
        if done.code in (0, 1):
            assert done.err == ""
            continue
        refused += 1
        assert (done.code, done.out) == (2, ""), done
        assert done.err.splitlines()[-1].startswith("error "), done
    assert refused


ONE_AFTER_THE_OTHER = """
import json, sys
from headrace.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["headrace", *arguments]
    try:
        main()
    except SystemExit as left:
        assert not left.code, (arguments, left.code)
    for stream in (sys.stdout, sys.stderr):
        print(end="\\0", file=stream, flush=True)
"""
"""A process that runs commands, and writes a zero byte behind what each writes."""


def one_after_the_other(commands: list[list[str]]) -> list[str]:
    return [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)]


def test_nothing_but_the_result_is_printed_without_a_terminal(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("water to the wheel\n" * 400)
    cache = str(tmp_path / "cache")
    commands = [
        ["build", str(text), "-o", cache, "-t", "bytes", "--engine", "inline"],
        ["cache", "verify", cache, "--deep"],
        ["cache", "consolidate", cache, str(tmp_path / "copy")],
        ["cache", "diff", cache, cache],
        ["cache", "inspect", cache],
    ]
    process = one_after_the_other([[*command, "--json"] for command in commands])
    done = subprocess.run(process, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "\0" * len(commands)
    for result in done.stdout.split("\0")[:-1]:
        json.loads(result)


def test_commands_that_take_long_show_that_they_work_on_a_terminal_alone(tmp_path):
    cache = tiny_cache(tmp_path / "cache", documents=300).path
    config = str(tmp_path / "run.yaml")
    Path(config).write_text(
        f"{{seq_len: 8, batch_size: 4, num_steps: 9, components: {{a: {cache}}}}}"
    )
    commands = [
        ["cache", "pack", config, "components.a.packing={}"],
        ["cache", "inspect", "--icc", cache, "--seq-len", "8"],
        ["run", "where", config],
        ["run", "report", config, "-o", str(tmp_path / "page.html")],
        ["cache", "diff", cache, cache],
        ["cache", "remove", cache, "1"],
        ["config", "simulate", config],
        ["config", "check", config],
        ["run", "cat", config, "--row", "0"],
    ]
    process = one_after_the_other(commands)
    terminal, end = pty.openpty()
    with subprocess.Popen(process, stdin=end, stdout=subprocess.DEVNULL, stderr=end) as showing:
        os.close(end)
        written = b""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while chunk := os.read(terminal, 1 << 16):
                written += chunk
    os.close(terminal)
    assert showing.returncode == 0, written
    for command, shown in zip(commands, written.split(b"\0")[:-1], strict=True):
        assert b" so far" in shown, command  # before it is known how much there is to do
        if {*command}.intersection(("pack", "--icc", "report", "simulate", "check")):
            assert b"% " in shown, command
    done = subprocess.run(process, capture_output=True, text=True, check=False)
    assert done.stderr == "\0" * len(commands)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(headrace, monkeypatch, shell):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    script = headrace("--completion").out
    assert "_HEADRACE_COMPLETE" in script
    if shutil.which(shell):
        assert (
            subprocess.run([shell, "-n", "-c", script], capture_output=True, check=False).returncode
            == 0
        )


def completed(words: str) -> list[str]:
    """What bash is offered after these words."""
    environment = {**os.environ, "_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    program = [Path(sys.executable).parent / "headrace"]
    return subprocess.run(
        program, capture_output=True, text=True, env=environment, check=True
    ).stdout.split()


def test_commands_options_and_choices_are_completed():
    assert set(completed("headrace c")) == {"cache", "config"}
    assert {"consolidate", "convert"} == set(completed("headrace cache con"))
    assert "from-levanter" in completed("headrace config f")
    assert "--steps" in completed("headrace config sweep --st")
    assert completed("headrace cache convert a b --layout l") == ["levanter"]


def test_one_of_something_is_in_the_singular(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "run.yaml").write_text(
        "{seq_len: 2, batch_size: 1, num_steps: 1, components: {a: a}}"
    )
    commands = [
        "build a.txt -o a -t bytes",
        "build a.txt -o a -t bytes",
        "cache inspect a",
        "cache verify a --deep",
        "cache diff a a",
        "cache consolidate a b",
        "cache convert a c --layout levanter",
        "cache pack run.yaml components.a.packing={}",
        "config check run.yaml",
        "config simulate run.yaml",
        "run cat run.yaml",
        "run where run.yaml --step 1",
        "cache remove b 0",
        "cache inspect b",
    ]
    for command in commands:
        done = headrace(*command.split())
        assert done.code in (0, 1), done.err
        nouns = "documents|tokens|parts|packs|rows|steps|hosts|files|batches|blocks"
        plurals = re.findall(rf"(?<![\d,.])1 (?:[a-z]+ )?(?:{nouns})\b", done.out)
        assert not plurals, command
