"""Docstrings say each argument on a line of its own, so that ``help()`` and the API pages show them
as a list.
"""

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
_CONSTRUCTORS = ("__init__", "__new__")
_VALUES = ("None", "True", "False")
"""What begins like an entry, but says what a value of the argument above means."""
_ANY = "**"
"""Stands among the names of what takes further ones: by keyword, or as the class that it inherits
from does.
"""
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _names(node: _Documented) -> set[str]:
    """The arguments of a function, or the fields of a class and the arguments of
    its constructor.
    """
    if not isinstance(node, ast.ClassDef):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        names = {one.arg for one in every if one is not None}
        return names if given.kwarg is None else names | {_ANY}
    names: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        if isinstance(part, ast.FunctionDef) and part.name in _CONSTRUCTORS:
            names |= _names(part)
    inherits = not any(getattr(part, "name", "") in _CONSTRUCTORS for part in node.body)
    return names | {_ANY} if inherits and node.bases else names


def _faults(docstring: str, names: set[str]) -> Iterator[str]:
    """Lines that hold a title and its text, more than one entry, or an entry where its neighbours'
    text goes.
    """
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
        entry = entries.match(line.strip())
        if entry is None:
            begins = line.lstrip().startswith(("(", "*", ">>>"))
        elif section != "Args":
            begins = entry[1] not in _VALUES
        else:
            begins = entry[1] in names or (_ANY in names and entry[1] not in _VALUES)
        if runs_on or level < 4 or (level == 4 and not begins):
            yield line


@pytest.mark.parametrize(
    "text",
    [
        "Args: a: One.",
        "Args:\n    a: One. b: Two.",
        "Args:\na: One.",
        "Args:\n    a: One,\n    of several.",
        "Args:\n    a: One of several;\n    None: the first.",
        "Returns: One.",
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
    assert "\n".join(found) == ""
