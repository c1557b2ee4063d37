"""Commands by their old names: the error says what to type, and that works as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

from headrace import load_config, open_run
from headrace.cli.moved import MOVED
from headrace.testing import tiny_cache

REPOSITORY = Path(__file__).parents[2]
OLD = (
    *("inspect a --samples 1", "inspect run.yaml seed=2", "verify a --deep", "remove a 3"),
    *("reshuffle a 'shuffled a'", "pack a --seq-len 8", "diff a a --json", "diff run run.yaml"),
    *("consolidate a one", "convert a theirs --layout levanter", "icc a --seq-len 8 --save"),
    *("simulate run.yaml --hosts 1,2", "config schema -o schema.json", "where run.yaml --step 3"),
    *("cat run.yaml --step 1 --row 0", "cat a", "cat a --json --id-leaf name", "cat run"),
    *("report run.yaml -o page.html", "completion fish"),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache, a config and the folder of a run, where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHELL", "/bin/bash")
    tiny_cache(Path("a"), documents=300)
    Path("run.yaml").write_text("{seq_len: 8, batch_size: 8, num_steps: 9, components: {a: a}}")
    open_run("run", load_config("run.yaml").loader())


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("typed", OLD)
def test_what_is_printed_for_an_old_name_works(headrace, typed):
    refused = headrace(*shlex.split(typed))
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    words = shlex.split(refused.err.partition("Type: ")[2])
    assert words[0] == "headrace"
    done = headrace(*words[1:])
    assert done.code == 0, done.err


def test_every_old_name_is_tried():
    assert {name for name in MOVED for typed in OLD if typed.startswith(f"{name} ")} == {*MOVED}


def test_nothing_that_we_print_or_write_has_an_old_name():
    """A command in a text, by the name that the library, a script or a page gives it."""
    old_names = "|".join(name for name in MOVED if " " not in name)
    typed = re.compile(rf"(?:headrace|{{program}}) (?:{old_names}) +[^\s]")
    files = [
        file
        for folder in ("lib", "scripts", "experiments", "docs")
        for suffix in ("py", "md", "ipynb", "sh")
        for file in (REPOSITORY / folder).rglob(f"*.{suffix}")
    ]
    assert len(files) > 300
    lines = [
        f"{file.relative_to(REPOSITORY)}: {line.strip()}"
        for file in [REPOSITORY / "README.md", *files]
        for line in file.read_text().splitlines()
        if typed.search(line)
    ]
    assert [line for line in lines if not line.startswith("docs/cli.md: A command that")] == []


def test_a_name_that_never_was_is_a_slip(headrace):
    assert "Did you mean 'inspect'?" in headrace("cache", "inspekt", "a").err
