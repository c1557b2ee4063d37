"""Docstrings say each argument on a line of its own, so that ``help()`` shows them as a list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Reference")
_TITLE = re.compile(rf"^({'|'.join(_SECTIONS)}):(?P<rest>.*)$")
_OF_NAMES = re.compile(r"(?:^|(?<=[.;] ))([A-Za-z_]\w*)(?:, \w+)*(?: and \w+)?: ")
_OF_ERRORS = re.compile(
    r"(?:^|(?<=[.;] ))(\w*(?:Error|Exception|Exit|Interrupt|Iteration))(?:, \w+)*: "
)
_ENTRIES = {"Args": _OF_NAMES, "Attributes": _OF_NAMES, "Raises": _OF_ERRORS}
"""How an entry of a section begins, at the start of a line or behind another."""
_FILES = sorted((Path(__file__).parents[1] / "lib").rglob("*.py"))
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _names(node: _Documented) -> set[str]:
    """The arguments of a function, or the fields of a class and the arguments of its constructor."""
    if not isinstance(node, ast.ClassDef):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {one.arg for one in every if one is not None}
    names: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            names |= _names(part)
    return names


def _faults(docstring: str, names: set[str]) -> Iterator[str]:
    """Lines that hold a title and its text, more than one entry, or an entry where its neighbours' text goes."""
    section = ""
    for line in docstring.splitlines():
        if title := _TITLE.match(line):
            section = title[1]
            if title["rest"].strip() and section != "Reference":
                yield line
            continue
        if line.strip() and not line.startswith(" "):
            # A paragraph ends a section, unless it is an entry that lost its place.
            entry = _OF_NAMES.match(line)
            section = section if entry and entry[1] in names else ""
        entries = _ENTRIES.get(section)
        if entries is None or not line.strip():
            continue
        later = [found for found in entries.finditer(line.strip()) if found.start() > 0]
        runs_on = [found for found in later if section == "Raises" or found[1] in names]
        level = len(line) - len(line.lstrip())
        begins = entries.match(line.strip()) or line.lstrip().startswith(("(", "*", ">>>"))
        if runs_on or level < 4 or (level == 4 and not begins):
            yield line


@pytest.mark.parametrize(
    "text",
    [
        "Args: a: One.",
        "Args:\n    a: One. b: Two.",
        "Args:\na: One.",
        "Args:\n    a: One,\n    of several.",
        "Raises:\n    ConfigError: one. CacheError: two.",
    ],
)
def test_what_runs_together_is_found(text: str) -> None:
    assert list(_faults(text, {"a", "b"}))


def test_each_argument_has_a_line() -> None:
    found: list[str] = []
    for path in _FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
                found += [
                    f"{path.name}: {node.name}: {line}" for line in _faults(text, _names(node))
                ]
    assert found == []
