"""What packages of other people bring by entry points: installed as pip leaves them, used from
configs and commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import re
from typing import Annotated

import typer

from headrace.ingest.records import Reader
from headrace_compat.nmoe import Swrr


class Turns(Swrr):
    pass


class Paragraphs(Reader):
    def __iter__(self):
        with self.open_stream() as stream:
            for row, text in enumerate(re.split("\\n\\n", stream.read().decode())):
                yield row, {self.only_field("text"): text}


def build_parts(job, tasks, workers, report):
    build = job.part_builder()
    for task in tasks:
        print("builds", task.name)
        yield build(task, job.root, report)


def greet(name: Annotated[str, typer.Argument(help="Whom.")]) -> None:
    \"\"\"Greets.\"\"\"
    print(f"hello, {name}")
"""
ENTRY_POINTS = """
[headrace.policies]
turns = other:Turns
broken = other:Missing

[headrace.commands]
greet = other:greet

[headrace.readers]
paragraphs = other:Paragraphs

[headrace.engines]
mine = other:build_parts
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages with one of somebody else's."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "other.py").write_text(CODE)
    install(site, "other-package", ENTRY_POINTS)
    return site


def install(site: Path, name: str, points: str) -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def drawn_by(site: Path, *policies: str) -> subprocess.CompletedProcess[str]:
    """Which sources a mixture draws from, a line for each policy."""
    return run(
        site,
        "-c",
        "import headrace.testing as t\n"
        "from headrace import MixtureDataset, TokenSeqDataset\n"
        "rows = {name: TokenSeqDataset(t.tiny_cache(documents=50), 16) for name in 'ab'}\n"
        f"for policy in {policies}:\n"
        "    mixture = MixtureDataset(rows, {'a': 5, 'b': 2}, batch_size=4, policy=policy)\n"
        "    print(mixture.read(range(16)).source_id.tolist())",
    )


def test_a_policy_of_another_package_draws(site: Path):
    drawn = drawn_by(site, "turns", "swrr", "quota")
    assert drawn.returncode == 0, drawn.stderr
    theirs, same, other = drawn.stdout.splitlines()
    assert theirs == same != other


def test_a_command_of_another_package_runs_and_is_listed(site: Path):
    headrace = "-m", "headrace"
    assert run(site, *headrace, "greet", "you").stdout == "hello, you\n"
    listed = run(site, *headrace, "--help").stdout
    assert "greet" in listed


def test_a_format_and_an_engine_of_another_package_build(site: Path, tmp_path: Path):
    (tmp_path / "a.par").write_text("one\n\ntwo\n\nthree")
    output = str(tmp_path / "cache")
    build = "-m", "headrace", "build", str(tmp_path / "a.par"), "-o", output, "-t", "bytes"
    built = run(site, *build, "--format", "paragraphs", "--engine", "mine")
    assert built.returncode == 0, built.stderr
    assert "builds 00000" in built.stdout
    assert "3 documents" in built.stdout
    unknown = run(site, *build, "--format", "paragraph")
    assert unknown.returncode == 2
    assert "'paragraphs'" in unknown.stderr


def test_what_cannot_be_imported_names_its_package(site: Path):
    error = drawn_by(site, "broken").stderr.splitlines()[-1]
    assert "policy = 'broken': cannot be imported from the package other-package" in error
    assert "pip install --force-reinstall other-package" in error


def test_a_name_that_two_packages_bring_is_refused(site: Path):
    install(site, "rival", "[headrace.policies]\nturns = rival:Turns\n")
    error = drawn_by(site, "turns").stderr.splitlines()[-1]
    assert "policy = 'turns': is brought by several packages: other-package, rival" in error
    assert "pip uninstall rival" in error


def test_an_unknown_name_lists_those_of_other_packages(site: Path):
    assert "'turns'" in drawn_by(site, "unheard").stderr.splitlines()[-1]
