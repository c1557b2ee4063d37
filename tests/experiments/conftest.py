"""Loads an experiment's ``run.py`` and runs it once with ``--quick``; all experiments share one toy
corpus.
"""

import functools
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"

sys.path.insert(0, str(ROOT))  # as run.py does


class Ran(NamedTuple):
    """An experiment that was run with --quick."""

    module: ModuleType
    record: dict[str, Any]
    json: Path
    work: Path


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """``quick("001_shuffle_ablation")``: runs it, once a session."""
    work = tmp_path_factory.mktemp("experiments")

    @functools.cache
    def run(name: str) -> Ran:
        module = load(name)
        written = work / "written" / f"{name}.json"
        return Ran(
            module,
            module.main(["--quick", "--work", str(work), "--json", str(written)]),
            written,
            work,
        )

    return run


def load(name: str) -> ModuleType:
    """The module of an experiment; its folder begins with a number, so that ``import`` cannot name
    it.
    """
    module_name = f"experiment_{name}"
    spec = importlib.util.spec_from_file_location(module_name, EXPERIMENTS / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def committed() -> Callable[[Path], None]:
    """Checks that a README holds the table of results.json, its command and a conclusion."""

    def check(home: Path) -> None:
        from experiments.common.study import markdown, with_table

        record = json.loads((home / "results.json").read_text())
        readme = (home / "README.md").read_text()
        assert (
            with_table(readme, markdown(record["table"]["columns"], record["table"]["rows"]))
            == readme
        )
        assert record["command"] in readme
        assert "--quick" not in record["command"]
        assert "## Conclusion" in readme

    return check
