"""The public names: those of the stubs, which load lazily, have docstrings, and are all that pages
and examples use.
"""

import ast
import doctest
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_origin

import pytest

import headrace
from headrace.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "update_api.py"))
PUBLIC: dict[str, dict[str, str]] = SCRIPT["public_names"]()
NAMES = [
    (package, name)
    for package in PUBLIC
    for name in PUBLIC[package]
    if package != "headrace_levanter"
]
TOP = [
    "ComponentConfig",
    "DataLoader",
    "HeadraceError",
    "LmDataConfig",
    "MixtureDataset",
    "PackedBatch",
    "RunLog",
    "SourceConfig",
    "TokenSeqDataset",
    "TokenizerConfig",
    "build_cache",
    "load_config",
    "open_cache",
    "open_run",
]
USERS = [
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    *(ROOT / "examples").rglob("*.py"),
    ROOT / "tests" / "types" / "user_script.py",
]
_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def load(package: str, name: str) -> object:
    """The object of a public name; skips the test where the package that it adapts is not
    installed.

    Levanter warns while it is imported; tests/levanter has the names of ``headrace_levanter``.
    """
    try:
        return getattr(importlib.import_module(package), name)
    except ConfigError as error:
        pytest.skip(str(error))


def private_imports(code: str) -> list[str]:
    """The imports of headrace in some code that are not of public names."""
    private = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [
                alias.name for alias in node.names if alias.name.partition(".")[0] == "headrace"
            ]
            private += [module for module in modules if module not in PUBLIC]
        elif (
            isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "headrace"
        ):
            names = PUBLIC.get(str(node.module), {})
            private += [
                f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names
            ]
    return private


def test_the_top_level_is_short():
    assert dir(headrace) == TOP


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_lists_its_public_names(package):
    assert sorted(importlib.import_module(package).__all__) == list(PUBLIC[package])


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_name_loads_from_its_home(package, name):
    public = load(package, name)
    home = PUBLIC[package][name]
    assert public is getattr(importlib.import_module(home), name)
    if inspect.isclass(public) or inspect.isfunction(public):
        assert public.__module__ == home  # the stub names the module that defines it
        assert public.__doc__


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="Dataloader"):
        _ = headrace.Dataloader  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(headrace, "nothing")


def test_a_function_stays_a_function_when_its_module_is_imported():
    """``headrace.run.where`` is a module and a function of it; the public name is the function."""
    program = """
import headrace.run.where, headrace.analysis.simulate.forecast, headrace_posttrain.ranks.dp_schedule
from headrace.analysis import simulate
from headrace_posttrain import dp_schedule
from headrace.run import where
import headrace.store.verify
print(callable(simulate), callable(dp_schedule), callable(where), callable(headrace.store.verify))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"] * 4


def test_importing_every_package_loads_neither_jax_nor_tensorstore():
    heavy = ("jax", "tensorstore", "numpy", "equinox", "tokenizers")
    packages = [package for package in PUBLIC if package != "headrace.metrics"]
    program = f"import sys, {', '.join(packages)}; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )


def test_a_config_can_be_written_without_jax():
    program = (
        "import sys; from headrace import LmDataConfig, load_config; print('jax' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True
        ).stdout.strip()
        == "False"
    )


def test_the_page_of_the_api_lists_the_public_names():
    assert SCRIPT["written"]() == SCRIPT["pages"](), "uv run scripts/update_api.py"


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_import_only_public_names(path):
    text = path.read_text()
    for code in _FENCE.findall(text) if path.suffix == ".md" else [text]:
        assert private_imports(code) == []


def test_private_imports_are_noticed():
    code = (
        "import headrace.mix, headrace.order.seeds\nfrom headrace.order.order import Order\nfrom"
        " headrace import run"
    )
    assert private_imports(code) == [
        "headrace.order.seeds",
        "headrace.order.order.Order",
        "headrace.run",
    ]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_examples_of_public_names_import_only_public_names(package, name):
    public = load(package, name)
    if get_origin(public) is None and hasattr(public, "__doc__"):
        for test in doctest.DocTestFinder(recurse=False).find(public, name):
            assert private_imports("\n".join(example.source for example in test.examples)) == []


@pytest.mark.parametrize("name", TOP)
def test_every_name_of_the_top_level_has_an_example(name):
    public = getattr(headrace, name)
    methods = (
        [member for _, member in inspect.getmembers(public)] if inspect.isclass(public) else []
    )
    assert any(">>>" in (inspect.getdoc(item) or "") for item in [public, *methods])
