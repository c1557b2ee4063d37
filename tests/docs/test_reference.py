"""The reference names every command, field and rule that there is, and shows errors as they are."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.analysis.check import findings
from headrace.cli.application import application
from headrace.config import ComponentConfig, LmDataConfig, load_config
from headrace.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
CONFIG, CLI = ((DOCS / f"{name}.md").read_text() for name in ("config", "cli"))


def first_cells(text: str) -> set[str]:
    """Names in the first column of a page's tables."""
    return {
        name
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }


@pytest.mark.parametrize("node", [LmDataConfig, ComponentConfig])
def test_every_field_is_in_the_reference(node: type[Any]):
    described = set(re.findall(r"^ {8}(\w+): ", node.__doc__ or "", re.MULTILINE))
    assert {field.name for field in dataclasses.fields(node)} <= described


def test_every_rule_is_in_the_table_of_its_module():
    calls = [
        n
        for n in ast.walk(ast.parse(Path(findings.__file__).read_text()))
        if isinstance(n, ast.Call)
    ]
    made = [
        n.args[1]
        for n in calls
        if isinstance(n.func, ast.Name) and n.func.id in ("Finding", "_rule")
    ]
    rules = {n.value for n in made if isinstance(n, ast.Constant)}
    assert len(rules) > 10
    rows = (findings.__doc__ or "").partition("what they find\n")[2].splitlines()
    first_column = " ".join(row[:44] for row in rows)
    assert rules <= set(re.findall(r"\w+", first_column))


def test_every_command_has_its_row():
    group: Any = typer.main.get_command(application())
    for name in group.commands:
        found = group.get_command(None, name)
        for command in (
            [f"{name} {inner}" for inner in found.commands]
            if hasattr(found, "commands")
            else [name]
        ):
            assert command in first_cells(CLI), command


@pytest.mark.parametrize(
    "text",
    [
        "stages: [{weights: {web: 1}}, {stpe: 50, weights: {web: 1}}]",
        "shuffle: {strands: 8, window_blocks: 4}",
    ],
)
def test_errors_are_as_shown(tmp_path: Path, text: str):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "c.yaml")).plan()
    assert f"\nerror {caught.value}\n" in CONFIG
