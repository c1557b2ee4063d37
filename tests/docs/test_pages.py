"""The code of every page runs as printed: python blocks in order, `headrace` commands, YAML files
by their title.
"""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.application import application

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "quickstart",
    "index",
    "how_to",
    "order",
    "mixing",
    "mixture_search",
    "steering",
    "multi_host",
    "object_stores",
    "config",
    "cli",
    "report",
    "metrics",
    "columns",
    "buckets",
    "attributes",
    "rollouts",
)
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the quickstart makes texts, caches and a config, which the other pages use."""
    return tmp_path_factory.mktemp("docs")


@pytest.mark.parametrize("page", [*PAGES, pytest.param("losses", marks=pytest.mark.slow)])
def test_a_page_runs_as_printed(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(folder)
    if page != "quickstart" and not (folder / "run.yaml").exists():
        run(DOCS / "quickstart.md")
    assert run(DOCS / f"{page}.md") > 0


def run(page: Path) -> int:
    """Runs a page's blocks in order; how many there were."""
    names: dict[str, object] = {}
    printed = ""
    blocks = _FENCE.findall(page.read_text())
    for language, title, code in blocks:
        if language == "python":
            exec(compile(code, f"{page.name}", "exec"), names)
        elif language == "bash":
            for line in code.splitlines():
                done = CliRunner().invoke(application(), shlex.split(line, comments=True)[1:])
                assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
                printed = done.output
        elif language == "text" and page.stem == "steering":
            assert printed.startswith(code.partition(",")[0])
            assert code.partition("\n")[0].partition(")")[0] in printed
        elif language == "yaml" and title:
            Path(title).write_text(code)
    return len(blocks)
