"""A corpus of six clearly different sources, taken from what is installed, as caches sorted by
source.

Nothing is downloaded: Python's modules, their docstrings, their tests, C headers, the readmes of
installed packages and tables of characters. ``sorted`` is one cache in which the sources stand one
behind the other, each sorted by name: the hard case for an order, since a source is a stretch of
thousands of neighbouring rows. Each source is a cache of its own as well, for mixtures.

Invariant: the text follows from the Python installation, its packages (``readmes``) and
:class:`CorpusSpec`. Files are ranked by a hash of their names and taken up to a cap.
``Corpus.fingerprint`` names the tokens, and stands in every record: with other packages it is
another corpus, of the same kind.

Price: 3 s on one core for six sources of 700,000 characters each; nothing where it is there
already.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from email import message_from_string
from importlib import metadata
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from headrace import SourceConfig, TokenizerConfig, build_cache, open_cache
from headrace.demo.corpus import END_OF_TEXT, Document, text_file, train_bpe, write_jsonl
from headrace.errors import CacheMissingError, CacheUnfinishedError, SourceError

SORTED = "sorted"
RECIPE = 1
"""Changes when the same spec would give other text."""
_LONGEST = 40_000  # characters: no document may fill a source by itself
_TEST_PARTS = frozenset({"test", "tests", "idle_test"})
_NO_CODE = frozenset(
    {"site-packages", "dist-packages", "encodings", "pydoc_data", "lib2to3", *_TEST_PARTS}
)

Text = tuple[str, Callable[[], str]]
"""Name of a document, and how to get its text."""


@dataclass(frozen=True)
class CorpusSpec:
    """How much text, and in which chunks.

    Attributes:
        chars_per_source: Cap on the characters of each source.
        vocab_size: Entries of the byte-level BPE that is trained on all sources.
        chunk_tokens: Tokens in a stored chunk.
    """

    chars_per_source: int
    vocab_size: int
    chunk_tokens: int


@dataclass(frozen=True)
class Corpus:
    """Caches of one spec.

    Attributes:
        root: Their folder.
        names: Sources, in the order in which ``sorted`` holds them.
        documents: Documents of each source.
    """

    root: Path
    names: tuple[str, ...]
    documents: tuple[int, ...]

    def path(self, name: str = SORTED) -> str:
        """The cache of a source, or ``sorted``."""
        return str(self.root / "caches" / name)

    @property
    def tokenizer(self) -> TokenizerConfig:
        """The tokenizer of all caches."""
        return TokenizerConfig(str(self.root / "tokenizer.json"), eos=END_OF_TEXT)

    @property
    def fingerprint(self) -> str:
        """Names the tokens of ``sorted``."""
        return open_cache(self.path()).fingerprint

    def source_of_tokens(self, positions: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Number of the source that holds each token of ``sorted``."""
        ends = np.cumsum(open_cache(self.path()).lengths())
        last = np.cumsum(self.documents) - 1
        return np.searchsorted(ends[last], positions, side="right")

    def describe(self) -> dict[str, object]:
        """What stands in a record: sizes by source, and the fingerprint."""
        ends = np.cumsum(open_cache(self.path()).lengths())
        tokens = np.diff(ends[np.cumsum(self.documents) - 1], prepend=0)
        sizes = {
            name: {"documents": documents, "tokens": int(size)}
            for name, documents, size in zip(self.names, self.documents, tokens, strict=True)
        }
        return {"fingerprint": self.fingerprint, "tokens": int(ends[-1]), "sources": sizes}


def prepare_corpus(
    spec: CorpusSpec,
    root: Path,
    *,
    each_source: bool = False,
    sources: Callable[[], Mapping[str, Iterable[Text]]] | None = None,
) -> Corpus:
    """Makes the caches of a spec, or finds them; an interrupted call is continued by the next.

    Args:
        spec: How much text.
        root: Folder for the corpora of all specs.
        each_source: Whether each source gets a cache of its own, too.
        sources: All texts of each source, instead of the six; each needs a root of its own.

    Raises:
        SourceError: this Python has no text of some source.
    """
    digest = hashlib.sha256(json.dumps([RECIPE, asdict(spec)]).encode()).hexdigest()[:12]
    folder = root.resolve() / f"corpus-{digest}"
    record = folder / "corpus.json"
    if not record.exists():
        _write_text(spec, folder, (sources or _sources)())
    said = json.loads(record.read_text())
    corpus = Corpus(folder, tuple(said["names"]), tuple(said["documents"]))
    for name in (SORTED, *(corpus.names if each_source else ())):
        try:
            open_cache(corpus.path(name))  # wherever the folder lay when it was built
        except (CacheMissingError, CacheUnfinishedError):
            build_cache(
                SourceConfig([str(text_file(folder, name))]),
                corpus.tokenizer,
                corpus.path(name),
                chunk_tokens=spec.chunk_tokens,
                engine="inline",
                progress=False,
            )
    return corpus


def _write_text(spec: CorpusSpec, folder: Path, texts_of: Mapping[str, Iterable[Text]]) -> None:
    """Texts, tokenizer, and last the record that says that they are whole."""
    sources = {name: _taken(texts, spec.chars_per_source) for name, texts in texts_of.items()}
    for name, documents in sources.items():
        if not documents:
            raise SourceError("has no text in this Python installation", field="source", value=name)
        write_jsonl(documents, text_file(folder, name))
    write_jsonl([d for documents in sources.values() for d in documents], text_file(folder, SORTED))
    train_bpe(
        [text_file(folder, name) for name in sources],
        folder / "tokenizer.json",
        vocab_size=spec.vocab_size,
        chars_per_text=200_000,
    )
    said = {"names": [*sources], "documents": [len(documents) for documents in sources.values()]}
    (folder / "corpus.json").write_text(json.dumps(said) + "\n")


def _sources() -> dict[str, Iterator[Text]]:
    """All texts of each source, by name of the source."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = [
        p for p in _python_files(library) if _NO_CODE.isdisjoint(p.relative_to(library).parts)
    ]
    packages = Path(sysconfig.get_path("purelib"))
    tests = [p for p in _python_files(packages / "numpy") if not _TEST_PARTS.isdisjoint(p.parts)]
    headers = [
        *Path(sysconfig.get_path("include")).rglob("*.h"),
        *(packages / "numpy").rglob("*.h"),
    ]
    return {
        "code": ((p.relative_to(library).as_posix(), lambda p=p: read_text(p)) for p in modules),
        "docs": (
            (p.relative_to(library).as_posix(), lambda p=p: _docstrings(read_text(p)))
            for p in modules
        ),
        "headers": (("/".join(p.parts[-3:]), lambda p=p: read_text(p)) for p in headers),
        "readmes": ((d.name, lambda d=d: _readme(d)) for d in metadata.distributions() if d.name),
        "tables": (
            (p.name, lambda p=p: read_text(p)) for p in (library / "encodings").glob("*.py")
        ),
        "tests": ((p.relative_to(packages).as_posix(), lambda p=p: read_text(p)) for p in tests),
    }


def _python_files(root: Path) -> list[Path]:
    """Python files below ``root``; packages that are installed there are not looked through."""
    found: list[Path] = []
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and path.name not in ("site-packages", "dist-packages", "__pycache__"):
            found += _python_files(path)
        elif path.suffix == ".py":
            found.append(path)
    return found


def _taken(texts: Iterable[Text], most: int) -> list[Document]:
    """Documents of at most ``most`` characters in all, ranked by a hash of their names, then sorted
    by name.
    """
    taken: dict[str, Document] = {}
    for name, text_of in sorted(texts, key=lambda t: hashlib.sha256(t[0].encode()).digest()):
        text = text_of()[: min(_LONGEST, most)]
        if text.strip() and name not in taken:
            taken[name] = Document(name, text)
            most -= len(text)
        if most <= 0:
            break
    return [taken[name] for name in sorted(taken)]


def read_text(path: Path) -> str:
    """A file's text; nothing of what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (
        UnicodeDecodeError,
        OSError,
    ):  # the library tests its decoders with files that are no text
        return ""


def _readme(package: metadata.Distribution) -> str:
    """What follows the head of a package's METADATA."""
    return str(message_from_string(package.read_text("METADATA") or "").get_payload() or "")


def _docstrings(code: str) -> str:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return ""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, described))
    return "\n\n".join(text for text in found if text)
