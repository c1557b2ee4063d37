"""The page on the design names only files, classes and functions that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "README.md"
SOURCES = sorted(ROOT.glob("lib/*/src/*"))
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"[\w/.-]+\.(py|c)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# What is no name of the code: files that headrace writes, commands, fields, and what is Python's
# own
_OTHER = re.compile(
    r"\w+\.(json|bin|toml|yaml)|os\.fork|spawn|forkserver|next|report|format_version"
)


def test_what_the_page_names_exists():
    assert missing_names(PAGE.read_text()) == []


def test_both_walks_name_a_file_at_each_hop():
    hops = [line for line in PAGE.read_text().splitlines() if line.count("|") == 4]
    walks = [line for line in hops if ".py`" in line]
    assert len(walks) >= 25


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`store/cache.py` `TokenCache.document`", []),
        ("`store/invented.py`", ["store/invented.py"]),
        ("`native/invented.c`", ["native/invented.c"]),
        ("`store/cache.py` `TokenCache.invented`", ["store/cache.py: TokenCache.invented"]),
        ("`store/cache.py`, `Invented`", ["store/cache.py: Invented"]),
        ("`native/gather.c` `copy_pieces`", []),
        ("`native/gather.c` `copy_nothing`", ["native/gather.c: copy_nothing"]),
        # a name belongs to the file before it, and to no file of another paragraph or row
        ("`feed/plan.py` `TokenCache`", ["feed/plan.py: TokenCache"]),
        ("`feed/plan.py`\n\n`TokenCache`", []),
        ("| `feed/plan.py` |\n| `TokenCache` |", []),
        ("`Invented`", ["Invented"]),
        ("`lib/headrace`", []),
        ("`lib/invented`", ["lib/invented"]),
        ("`[a b]`, `x > 1`, `ledger.bin`", []),
    ],
)
def test_an_invented_name_is_missed(text: str, missing: list[str]):
    assert missing_names(text) == missing


def missing_names(text: str) -> list[str]:
    """What a page names in backticks and does not exist. A name belongs to the file before it in
    its paragraph, or row of a table; one without a file may be anywhere.
    """
    missing: list[str] = []
    for block in re.split(r"\n\n|\n(?=[|-])", _FENCE.sub("", text)):
        file = None
        for span in _SPAN.findall(block):
            if _FILE.fullmatch(span):
                file = span
                if path_of(file) is None:
                    missing.append(file)
            elif span.startswith("lib/"):
                if not (ROOT / span).is_dir():
                    missing.append(span)
            elif _NAME.fullmatch(span) and not _OTHER.fullmatch(span):
                if file is None:
                    if span not in all_names():
                        missing.append(span)
                elif (path := path_of(file)) is not None and span not in names_in(path):
                    missing.append(f"{file}: {span}")
    return missing


def path_of(file: str) -> Path | None:
    """A file from the root of the repository, or from the core's sources; None if there is none."""
    for folder in (ROOT, ROOT / "lib/headrace/src/headrace"):
        if (folder / file).is_file():
            return folder / file
    return None


@cache
def names_in(path: Path) -> frozenset[str]:
    """Classes and functions of a file; methods as ``Class.method``."""
    text = path.read_text()
    if path.suffix == ".c":
        return frozenset(re.findall(r"^[^\s/#].*?\b(\w+)\([^;]*\{", text, re.MULTILINE))
    return frozenset(defined_in(ast.parse(text)))


def defined_in(node: ast.AST, prefix: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from defined_in(child, f"{prefix}{child.name}.")


@cache
def all_names() -> frozenset[str]:
    files = [path for folder in SOURCES for path in folder.rglob("*.py")]
    return frozenset[str]().union(*map(names_in, files))
