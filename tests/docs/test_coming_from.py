"""Pages of those who come from other systems run as printed, on files as that
system writes them.
"""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import headrace.adapters

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "coming_from").glob("*.md"))


def other_tests(path: str) -> ModuleType:
    """A module of tests, for what it has besides them."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNNER = other_tests("docs/test_pages.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, native_shards: ModuleType) -> Path:
    """Megatron-LM's and nmoe's files."""
    root = tmp_path_factory.mktemp("coming_from")
    rng = np.random.default_rng(0)
    for name in ("web", "code", "math"):
        texts = [rng.integers(1, 50304, n) for n in rng.integers(5, 300, 150)]
        native_shards.write_megatron(root / "corpora" / f"{name}_text_document", texts)
        for number in range(3):
            native_shards.write_nmoe(root / "shards" / name / f"{number:05}", texts[number::3])
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_printed(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    assert RUNNER.run(page) > 0


def test_the_page_of_other_loaders_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("grain", reason="Grain has no wheel for this Python")
    if not importlib.util.find_spec("torch"):
        modules = other_tests("adapters/test_torch.py").stand_in()
        modules["torch.utils.data"].DataLoader = lambda batches, batch_size: batches
        for name, module in {**modules, "headrace.adapters.torch": ModuleType("torch")}.items():
            monkeypatch.setitem(sys.modules, name, module)
        del sys.modules[
            "headrace.adapters.torch"
        ]  # imported below over the stand-in, and forgotten with it
    monkeypatch.chdir(tmp_path)
    RUNNER.run(DOCS / "quickstart.md")
    loaded = set(vars(headrace.adapters))
    try:
        assert RUNNER.run(DOCS / "coming_from.md") == 3
    finally:  # what was made over the stand-in is not kept
        for name in set(vars(headrace.adapters)) - loaded:
            delattr(headrace.adapters, name)


def test_each_system_has_a_page():
    assert [page.stem for page in PAGES] == [
        "coordexp",
        "megatron",
        "nanomoe",
        "nanoschnack",
        "nmoe",
        "slime",
        "tinker",
    ]
    listed = (DOCS / "coming_from.md").read_text()
    for page in PAGES:
        assert f"](coming_from/{page.name})" in listed
        for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
