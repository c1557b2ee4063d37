"""What the import-linter contract cannot see: what is loaded at run time, and how modules import.

The contract itself is ``[tool.importlinter]`` in pyproject.toml; ``uv run lint-imports`` holds it.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "lib" / "headrace" / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
WITHOUT_JAX = (
    "headrace.errors",
    "headrace.metrics",
    "headrace.order",
    "headrace.mix",
    "headrace.pack",
    "headrace.store",
    "headrace.ingest",
    "headrace.data",
    "headrace.config",
    "headrace.run",
    "headrace.analysis",
    "headrace.report",
    "headrace.cli",
)


def loaded_by(*modules: str) -> set[str]:
    """Top-level packages in a fresh interpreter after importing ``modules``."""
    code = (
        f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in"
        " sys.modules})"
    )
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def imports_of(path: Path) -> list[str]:
    """Full names of the modules that a file imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
    return found


def test_import_headrace_alone_loads_nothing_heavy():
    assert not loaded_by("headrace") & {
        "jax",
        "numpy",
        "tensorstore",
        "equinox",
        "tokenizers",
        "fsspec",
        "typer",
    }


def test_the_order_loads_numpy_only():
    modules = [name for name in MODULES if name.startswith(("headrace.order", "headrace.mix"))]
    assert len(modules) > 5
    assert not loaded_by(*modules) & {
        "jax",
        "equinox",
        "tensorstore",
        "fsspec",
        "draccus",
        "typer",
        "rich",
    }


def test_only_what_feeds_devices_loads_jax():
    modules = [name for name in MODULES if name.startswith(WITHOUT_JAX)]
    assert not loaded_by(*modules) & {"jax", "jaxlib", "equinox", "optax", "matplotlib"}


def test_no_command_but_the_demo_imports_what_loads_jax():
    """With the imports within its functions, on which the test above does not look."""
    imported = {
        name
        for path in (SOURCE / "headrace" / "cli").glob("*.py")
        if path.stem != "demo"
        for name in imports_of(path)
        if name in MODULES
    }
    assert {"headrace.analysis.check.plan", "headrace.report.page"} < imported
    assert not loaded_by(*sorted(imported)) & {"jax", "jaxlib", "equinox"}


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_from_where_a_name_is_defined(name):
    """Not from a package: its public names are loaded lazily, which hides a cycle and what is
    imported.
    """
    if name == "headrace.demo.train":
        return  # a user's program, which `headrace init` copies: it has public names alone
    through_packages = []
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and MODULES.get(node.module or "", Path()).name == "__init__.py"
        ):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            through_packages += [imported for imported in names if imported not in MODULES]
    defined_in_packages = {
        "headrace.cli.main",
        "headrace.__version__",
        "headrace.native.NativeLibrary",
        "headrace.native.native_library",
    }
    assert set(through_packages) <= defined_in_packages


def test_every_module_has_its_place_in_the_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ][0]
    assert contract["exhaustive"]
    placed = {
        name.strip(" ()")
        for line in contract["layers"]
        for name in line.replace(":", "|").split("|")
    }
    placed |= {"", *contract["exhaustive_ignores"]}
    assert {[*name.split("."), ""][1] for name in MODULES} <= placed
