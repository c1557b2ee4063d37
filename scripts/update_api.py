"""Write docs/api.md and docs/api/ from the public names: a page a package, one entry a name of its
``__all__``. The search ranks these pages low: guides answer questions, and entries are looked up.

uv run scripts/update_api.py           write the pages
uv run scripts/update_api.py --check   exit 1 when the pages are not what would be written
"""

import ast
import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("headrace", "headrace_posttrain", "headrace_compat", "headrace_levanter")
MODULES = ("errors", "metrics")  # public, and no packages
OPENING = """# API

`from headrace import load_config` has what most programs need; the rest is imported from its package, as in
`from headrace.mix import StageConfig`. What is not on these pages is not public and may change without notice.

<!-- Written by scripts/update_api.py. -->

| package | what it has |
| --- | --- |"""
LOW = """---
search: {boost: 0.01}
---
"""


def public_names() -> dict[str, dict[str, str]]:
    """Public package -> name -> module that defines it."""
    packages = {}
    stubs = [
        (stub, ".".join((name, *stub.parent.relative_to(folder).parts)))
        for name in PACKAGES
        if (folder := Path(importlib.import_module(name).__file__ or "").parent)
        for stub in sorted(folder.rglob("__init__.pyi"))
    ]
    for stub, package in stubs:
        imports = [
            node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)
        ]
        packages[package] = {
            alias.name: f"{package}.{node.module}" for node in imports for alias in node.names
        }
    for module in (importlib.import_module(f"headrace.{name}") for name in MODULES):
        homes = {name: getattr(module, name).__module__ for name in module.__all__}
        packages[module.__name__] = homes
    return {package: dict(sorted(packages[package].items())) for package in sorted(packages)}


def pages() -> dict[Path, str]:
    """Path -> text: the list of packages, and a page for each. A name has its full entry where it
    is met first.
    """
    index = [LOW + OPENING]
    texts: dict[Path, str] = {}
    shown = set[str]()
    for package, names in public_names().items():
        first_line = (
            (importlib.import_module(package).__doc__ or "")
            .partition("\n\n")[0]
            .replace("\n", " ")
            .strip()
        )
        first_line = re.sub(r":[a-z]+:(`)", r"\1", first_line)
        index.append(f"| [`{package}`](api/{package}.md) | {first_line} |")
        lines = [f"{LOW}# {package}\n\n{first_line}\n"]
        for name, module in names.items():
            path = f"{module}.{name}"
            lines.append(f"- [`{name}`][{path}]" if path in shown else f"::: {path}")
            shown.add(path)
        texts[DOCS / "api" / f"{package}.md"] = "\n".join(lines) + "\n"
    return {DOCS / "api.md": "\n".join(index) + "\n", **texts}


def written() -> dict[Path, str]:
    """Path -> text of the pages that are there."""
    paths = [DOCS / "api.md", *sorted((DOCS / "api").glob("*.md"))]
    return {path: path.read_text() for path in paths if path.exists()}


def main() -> int:
    """Writes or checks the pages."""
    if sys.argv[1:] != ["--check"]:
        (DOCS / "api").mkdir(exist_ok=True)
        for path in written().keys() - pages().keys():
            path.unlink()
        for path, text in pages().items():
            path.write_text(text)
    if written() == pages():
        return 0
    print("docs/api is out of date: uv run scripts/update_api.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
