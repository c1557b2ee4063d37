"""Write ``docs/quickstart.ipynb``, the quickstart as a notebook: the page's text, its code and its
commands as cells.

uv run scripts/make_notebook.py           write it
uv run scripts/make_notebook.py --check   exit 1 if the page has changed since
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "quickstart.md"
NOTEBOOK = DOCS / "quickstart.ipynb"
_FENCE = re.compile(
    r"^```(python|bash|sh|yaml)(?: title=\"([^\"]+)\")?\n(.*?)^```\n", re.MULTILINE | re.DOTALL
)


def notebook_of(page: str) -> nbformat.NotebookNode:
    """The notebook of a page: blocks of Python and of shell commands run; a YAML file is written
    under its title.

    Args:
        page: Markdown.

    Returns:
        The notebook, whose cells are numbered, so that the same page gives the same file.
    """
    cells: list[nbformat.NotebookNode] = []
    at = 0
    for fence in _FENCE.finditer(page):
        language, title, code = fence.groups()
        source = _cell(language, title, code.rstrip())
        if source is None:
            continue
        _add_text(cells, page[at : fence.start()])
        cells.append(new_code_cell(source, id=f"cell-{len(cells)}"))
        at = fence.end()
    _add_text(cells, page[at:])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def _cell(language: str, title: str | None, code: str) -> str | None:
    if language == "python":
        return code
    if language == "yaml":
        return f"%%writefile {title}\n{code}" if title else None
    if "pip install" in code:
        return None  # what has to be there before a notebook is opened
    return f"%%bash\n{code}"


def _add_text(cells: list[nbformat.NotebookNode], text: str) -> None:
    if text.strip():
        cells.append(new_markdown_cell(text.strip(), id=f"cell-{len(cells)}"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    written = nbformat.writes(notebook_of(PAGE.read_text())) + "\n"
    if parser.parse_args().check:
        current = NOTEBOOK.read_text() if NOTEBOOK.exists() else ""
        if current != written:
            print(
                f"{NOTEBOOK.name} is not what {PAGE.name} says: uv run scripts/make_notebook.py",
                file=sys.stderr,
            )
        return int(current != written)
    NOTEBOOK.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
