"""The public names: one list, one lazy table, one block for type checkers; they agree, and all of them load."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).read_text()


def typed_imports() -> dict[str, str]:
    """Name -> module, as the TYPE_CHECKING block has it."""
    found = {}
    for node in ast.parse(SOURCE).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                found |= {alias.name: statement.module for alias in statement.names}
    return found


def test_the_three_lists_agree():
    assert headrace.__all__ == sorted(headrace.__all__)
    assert set(headrace.__all__) == set(headrace._HOMES)
    assert typed_imports() == headrace._HOMES
    assert dir(headrace) == sorted(headrace.__all__)


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_name_loads_from_its_home(name):
    found = getattr(headrace, name)
    assert found is getattr(importlib.import_module(headrace._HOMES[name]), name)
    assert found.__module__ == headrace._HOMES[name]  # its home is where it is defined
    assert found.__doc__


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'Dataloader'"):
        _ = headrace.Dataloader
    assert not hasattr(headrace, "nothing")


def test_importing_the_package_loads_neither_jax_nor_tensorstore():
    heavy = ("jax", "tensorstore", "numpy", "equinox", "tokenizers")
    program = f"import sys, headrace; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_config_can_be_written_without_jax():
    program = "import sys; from headrace import LmDataConfig, load_config; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"
