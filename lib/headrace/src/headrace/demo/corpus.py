"""Real text that is on every machine: Python's own standard library, as the three sources of the
demo.

``code`` are its modules, ``tests`` its test files, ``docs`` the docstrings of its modules and the
topics of ``help()``. Nothing is downloaded. If a distribution omits the test files (as Debian
does), those of installed packages are used, and ``Source.origin`` says so.

Invariant: the text is a pure function of the Python installation and ``max_chars``: files are
ranked by a hash of their names and used up to the cap, so the sample is spread over the whole
library.

Price: reading and parsing 14 million characters takes 3 s on one core.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import json
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.errors import SourceError
from headrace.store.files import write_atomic

END_OF_TEXT = "<|endoftext|>"

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
# Other packages, tables, and the topics that ``docs`` uses as text.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "encodings", "pydoc_data"})
_FEW_TESTS = 1_000_000  # characters; below this, test files of installed packages are added
_PACKAGES_WITH_TESTS = (
    "numpy",
    "matplotlib",
    "pandas",
    "scipy",
)  # numpy, the first, is always there


@dataclass(frozen=True)
class Document:
    """One document: where it comes from, and its text (never blank)."""

    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """The documents of one source, sorted by name, and where they come from."""

    documents: tuple[Document, ...]
    origin: str

    @property
    def chars(self) -> int:
        """Characters of all documents."""
        return sum(len(document.text) for document in self.documents)


def standard_library(max_chars: int = 8_000_000) -> dict[str, Source]:
    """Reads the sources ``code``, ``docs`` and ``tests`` from this Python's standard library.

    Args:
        max_chars: Cap on the characters of each source.

    Returns:
        The three sources by name.

    Raises:
        SourceError: This Python has no source files (a frozen or zipped installation), or no test
            files anywhere.
    """
    root = Path(sysconfig.get_path("stdlib"))
    python = python_version()
    modules, test_files = _python_files(root)
    if not modules:
        raise SourceError(
            "holds no Python source files",
            field="standard library",
            value=str(root),
            cure="Run the demo with an ordinary (not frozen) CPython.",
        )

    code = _capped(modules, max_chars)
    docs = _capped([*_docstrings(modules), *_help_topics()], max_chars)
    tests_origin = f"test files of {python}"
    if sum(len(document.text) for document in test_files) < _FEW_TESTS:
        test_files, packages = _installed_tests()
        tests_origin = f"test files of {packages} ({python} comes without its own here)"
    if not test_files:
        raise SourceError(
            "no test files, neither of Python nor of an installed package",
            field="tests",
            cure="Install numpy from its wheel: it ships its tests.",
        )
    return {
        "code": Source(code, f"modules of {python}"),
        "docs": Source(docs, f"docstrings and help() topics of {python}"),
        "tests": Source(_capped(test_files, max_chars), tests_origin),
    }


def python_version() -> str:
    """The Python that the text is taken from, e.g. ``CPython 3.11.7``."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def text_file(folder: Path, source: str) -> Path:
    """The file of a source in a folder of texts."""
    return folder / f"{source}.jsonl.gz"


def write_jsonl(documents: Iterable[Document], path: Path) -> None:
    """Writes documents as gzipped JSON lines ``{"name": ..., "text": ...}``; equal documents give
    equal bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as lines,
    ):
        for document in documents:
            lines.write(json.dumps(asdict(document)).encode() + b"\n")


def read_jsonl(path: Path) -> tuple[Document, ...]:
    """Reads what :func:`write_jsonl` wrote."""
    with gzip.open(path, "rb") as lines:
        return tuple(Document(**json.loads(line)) for line in lines)


def train_bpe(
    texts: Iterable[Path], path: Path, *, vocab_size: int, chars_per_text: int = 1_500_000
) -> None:
    """Trains a byte-level BPE on a sample of every text and writes it as a ``tokenizer.json``,
    unless it is there.

    Args:
        texts: Files of :func:`write_jsonl`; each counts the same, whatever its size.
        path: The file to write.
        vocab_size: Entries of the vocabulary, with the 256 bytes and ``<|endoftext|>``.
        chars_per_text: Characters to take from each text.
    """
    if path.exists():
        return
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = (
        document.text for text in texts for document in _capped(read_jsonl(text), chars_per_text)
    )
    tokenizer.train_from_iterator(sample, trainer)
    write_atomic(str(path), tokenizer.to_str().encode())


def _python_files(root: Path) -> tuple[list[Document], list[Document]]:
    """All Python files under ``root`` that are UTF-8 text: (modules, test files),
    sorted by name.
    """
    modules: list[Document] = []
    tests: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _SKIPPED_FOLDERS.intersection(name.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (
            UnicodeDecodeError,
            OSError,
        ):  # the library tests its decoders with files that are not text
            continue
        if text.strip():
            is_test = not _TEST_FOLDERS.isdisjoint(name.parts)
            (tests if is_test else modules).append(Document(name.as_posix(), text))
    return modules, tests


def _installed_tests() -> tuple[list[Document], str]:
    """Test files of the first installed packages that have enough of them, and the names of these
    packages.
    """
    documents: list[Document] = []
    packages: list[str] = []
    for package in _PACKAGES_WITH_TESTS:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            _, tests = _python_files(Path(folder))
            documents += [
                Document(f"{package}/{document.name}", document.text) for document in tests
            ]
            packages += [package] if tests else []
        if sum(len(document.text) for document in documents) >= _FEW_TESTS:
            break
    return documents, " and ".join(packages)


def _docstrings(modules: Iterable[Document]) -> Iterator[Document]:
    """One document per module: its docstrings, each under the qualified name of its object."""
    for module in modules:
        try:
            tree = ast.parse(module.text)
        except (SyntaxError, ValueError):  # the library contains grammars of other Python versions
            continue
        dotted = module.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        sections = [f"{name}\n\n{docstring}\n" for name, docstring in _described(tree, dotted)]
        if sections:
            yield Document(dotted, "\n".join(sections))


def _described(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of a module and of the classes and functions in it, in the order
    of the file.
    """
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node)
        if docstring:
            yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _described(child, f"{name}.{child.name}")


def _help_topics() -> Iterator[Document]:
    """The topics of ``help()``; a Python that was built without them has none."""
    try:
        from pydoc_data.topics import topics  # not in every distribution, hence not at the top
    except ImportError:
        return
    for name, text in topics.items():
        if text.strip():
            yield Document(f"help({name!r})", text)


def _capped(documents: Iterable[Document], max_chars: int) -> tuple[Document, ...]:
    """Documents of at most ``max_chars`` characters in all, chosen by a hash of their names and
    sorted by name.
    """
    room = max_chars
    chosen: list[Document] = []
    for document in sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest()):
        if len(document.text) <= room:
            room -= len(document.text)
            chosen.append(document)
    return tuple(sorted(chosen, key=lambda d: d.name))
