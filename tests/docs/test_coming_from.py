"""docs/coming_from: each page runs as printed, on files as the other system writes them."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "coming_from").glob("*.md"))
_SPEC = importlib.util.spec_from_file_location("test_pages", Path(__file__).with_name("test_pages.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
RUNNER = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(RUNNER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, native_shards: ModuleType) -> Path:
    """Megatron-LM's and nmoe's files."""
    root, rng = tmp_path_factory.mktemp("coming_from"), np.random.default_rng(0)
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
