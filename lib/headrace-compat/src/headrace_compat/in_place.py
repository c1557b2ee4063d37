"""What formats of plain token files share: the files of a path, their ledger, their fingerprint.

A file of tokens becomes a part of the cache. Nothing is copied, and nothing is written beside the
files. The fingerprint is of headers, sizes and samples of the content, which is all that can be
read of terabytes at every start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from headrace.errors import CacheError, CacheMissingError, ConfigError
from headrace.ingest.source import list_path
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import TOKEN_DTYPES, TOKENS
from headrace.store.layouts import FORMAT, LIMITS, MAX_VOCABULARY, WHOLE_FILES, FormatConfig, Layout
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger
from headrace.store.ledger_table import LeafRecord, PartRecord
from headrace.store.plain import PlainArray, corrupt, file_size, plain_layout

FINGERPRINTED = (
    "the fingerprint is of headers, sizes and samples, not of all tokens and ends of documents"
)
NO_CHECKSUMS = (
    "there are no checksums: flipped bits are not seen, nor other ends of documents that still rise"
)
_FILES_AT_ONCE = 16
_SAMPLE_BYTES = 4096
_FEW_IDS = 32  # fewer say nothing of their dtype
_HIGH_HALVES = 16  # the upper halves of ids of 4 bytes are below: vocabularies have less than 2**20
T = TypeVar("T")


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens, which becomes a part.

    Attributes:
        path: Its path or URL.
        size: Its bytes.
        dtype: Dtype of the tokens.
        first_byte: Where they begin.
        tokens: How many there are.
        offsets: Where its documents end: ``documents + 1`` elements.
        digest: Digest of its headers, its size, and samples.
        leaves: Arrays with a number for each token, by name.
        piece: Number of the piece of a file with several parts; None: the part is the whole file.
        limits: What this file cannot promise, though others of its format may.
    """

    path: str
    size: int
    dtype: str
    first_byte: int
    tokens: int
    offsets: StoredArray
    digest: str
    leaves: Mapping[str, StoredArray] = field(default_factory=dict[str, StoredArray])
    piece: int | None = None
    limits: tuple[str, ...] = ()

    @property
    def documents(self) -> int:
        return self.offsets.length - 1


class FileStore(Layout):
    """A store of token files.

    Args:
        name: Name of the format.
        path: What the user named.
        token_files: The files, in order.
        settings: How they are read.
        limits: What the format cannot promise.
        whole_files: Whether each file counts as one document.

    Raises:
        CacheMissingError: there are no files.
        ConfigError: their dtypes differ, from each other or from the settings.
    """

    def __init__(
        self,
        name: str,
        path: str,
        token_files: Sequence[TokenFile],
        settings: FormatConfig,
        limits: Sequence[str] = (NO_CHECKSUMS, FINGERPRINTED),
        *,
        whole_files: bool = False,
    ) -> None:
        if not token_files:
            raise CacheMissingError(
                f"holds no files of the format {name}",
                field="cache",
                value=path,
                cure="Name a file, a folder or a pattern that has some.",
            )
        self.files = tuple(token_files)
        dtype = self.files[0].dtype
        self._check_dtypes(dtype, settings)
        ids = min(settings.vocab_size or MAX_VOCABULARY, int(np.iinfo(dtype).max) + 1)
        if settings.eos_id is not None and not 0 <= settings.eos_id < ids:
            raise ConfigError(
                f"is no id of {path}, which lie in 0 .. {ids - 1}",
                field="format.eos_id",
                value=settings.eos_id,
                cure="Give the token that ends documents, or leave it out.",
            )
        self._check_leaves()
        self._check_signed_ids(settings)
        sources = {file.path: file.size for file in self.files}
        short_names = dict(zip(sources, _part_names([*sources]), strict=True))
        own_limits = dict.fromkeys(limit for file in self.files for limit in file.limits)
        self.ledger = Ledger(
            finished=True,
            tokenizer=settings.tokenizer(dtype),
            layout=plain_layout(dtype).to_dict(),
            leaves=[
                {"name": leaf, "dtype": array.dtype.name, "kind": "ragged", "width": 1}
                for leaf, array in self.files[0].leaves.items()
            ],
            sources=[
                {"path": path, "size": size, "part": short_names[path]}
                for path, size in sources.items()
            ],
            parts=[_record(file, short_names[file.path]) for file in self.files],
            metadata={FORMAT: name, LIMITS: [*limits, *own_limits], WHOLE_FILES: whole_files},
            code_version=name,
        )

    def part(self, name: str, number: int) -> LeafPart:
        file = self.files[number]
        if name != TOKENS:
            return LeafPart(file.documents, file.leaves[name], file.offsets)
        data = PlainArray(file.path, file.tokens, file.dtype, file.first_byte, file.size)
        return LeafPart(file.documents, data, file.offsets)

    def _check_signed_ids(self, settings: FormatConfig) -> None:
        """Looks at the first ids of each file whose dtype holds what is no id."""
        firsts = {file.path: file for file in reversed(self.files)}
        for file in firsts.values():
            itemsize = np.dtype(file.dtype).itemsize
            if np.dtype(file.dtype).kind == "i" and file.tokens:
                stop = file.first_byte + min(file.tokens * itemsize, _SAMPLE_BYTES)
                raw = read_exactly(file.path, file.first_byte, stop)
                check_sample(file.path, raw, file.dtype, settings)

    def _check_leaves(self) -> None:
        first = self.files[0]
        first_dtypes = {name: array.dtype for name, array in first.leaves.items()}
        for file in self.files:
            if {name: array.dtype for name, array in file.leaves.items()} != first_dtypes:
                raise ConfigError(
                    f"has other columns than {first.path}: {', '.join(file.leaves) or 'none'}",
                    field="cache",
                    value=file.path,
                    cure="Make two components of them.",
                )

    def _check_dtypes(self, dtype: str, settings: FormatConfig) -> None:
        for file in self.files:
            if file.dtype not in TOKEN_DTYPES:
                cure = f"Write it anew as one of {', '.join(TOKEN_DTYPES)}, or build a cache of it."
                problem = f"holds {file.dtype}, which is no dtype of tokens"
                raise CacheError(problem, field="file", value=file.path, cure=cure)
            if settings.dtype not in (None, file.dtype):
                raise ConfigError(
                    f"is not the dtype of {file.path}, which holds {file.dtype}",
                    field="format.dtype",
                    value=settings.dtype,
                    cure=f"Leave it out, or write {file.dtype}.",
                )
            if file.dtype != dtype:
                raise ConfigError(
                    f"holds {file.dtype}, and {self.files[0].path} holds {dtype}",
                    field="cache",
                    value=file.path,
                    cure="Make two components of them.",
                )


def token_paths(path: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files with these endings that a path names: one file, those of a folder, or those that a
    pattern matches; in order of their names. A single file need not exist.
    """
    if files.has_magic(path) and not (files.is_local(path) and files.exists(path)):
        listed = list_path(path)
        paths = [] if listed is None else [entry.path for entry in listed[1]]
        return sorted(one for one in paths if one.endswith(suffixes))
    if path.endswith(suffixes):
        return [path]
    return [files.join(path, name) for name in files.names_in(path) if name.endswith(suffixes)]


def read_exactly(url: str, start: int, stop: int) -> bytes:
    """Bytes of a file. Raises CacheCorruptError if it is shorter, CacheError if it cannot be
    read.
    """
    try:
        raw = files.read_range(url, start, stop)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(url) from None
    if len(raw) != stop - start:
        raise corrupt(url, f"ends at byte {start + len(raw):,}, before byte {stop:,}")
    return raw


def size_of(url: str) -> int:
    """Bytes of a file. Raises CacheMissingError if there is none."""
    try:
        return file_size(url)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(url) from None


def missing_file(url: str) -> CacheMissingError:
    """The error for a file that is not there."""
    cure = (
        "Copy it, too: the files belong together. Or name only those to read: a pattern or a list."
    )
    return CacheMissingError("is missing", field="file", value=url, cure=cure)


def begins_with(url: str, magic: bytes) -> bool:
    """Whether there is a file that begins with these bytes."""
    try:
        return files.read_range(url, 0, len(magic)) == magic
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def digest_of(name: str, url: str, size: int, first_byte: int, *headers: bytes) -> str:
    """A digest of headers, the size, and the first and the last bytes of the tokens."""
    digest = hashlib.sha256(repr((size, first_byte)).encode())
    for header in headers:
        digest.update(hashlib.sha256(header).digest())
    for start in sorted({first_byte, max(size - _SAMPLE_BYTES, first_byte)}):
        digest.update(read_exactly(url, start, min(start + _SAMPLE_BYTES, size)))
    return f"{name}:{digest.hexdigest()}"


def check_sample(url: str, raw: bytes, dtype: str, settings: FormatConfig) -> None:
    """Raises CacheCorruptError if the first tokens of a file without a header look as if they had
    another dtype than was said, or lie outside the vocabulary that was said.
    """
    itemsize = np.dtype(dtype).itemsize
    ids = np.frombuffer(raw[: len(raw) // itemsize * itemsize], dtype).astype(np.int64)
    if not ids.size:
        return
    largest = int(ids.max())
    cure = "Write the dtype of the file in format.dtype, or its vocabulary in format.vocab_size."
    if int(ids.min()) < 0 or largest >= (settings.vocab_size or MAX_VOCABULARY):
        wrong = largest if int(ids.min()) >= 0 else int(ids.min())
        limit = settings.vocab_size or MAX_VOCABULARY
        raise corrupt(url, f"has the id {wrong}, read as {dtype}, of a vocabulary of {limit}", cure)
    high = ids[1::2]
    is_wider = itemsize == 2 and ids.size >= _FEW_IDS and high.max() < _HIGH_HALVES
    if is_wider and ids[::2].max() >= _HIGH_HALVES:
        raise corrupt(url, f"looks like ids of 4 bytes, read as {dtype}", cure)
    if itemsize == 4 and ids.size >= _FEW_IDS and np.median(ids) >= _HIGH_HALVES << 16:
        raise corrupt(url, f"looks like ids of 2 bytes, read as {dtype}", cure)


def read_all(read: Callable[[str], T], paths: Iterable[str]) -> list[T]:
    """What a function reads of each file, 16 at a time."""
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="headrace-open") as pool:
        return [*pool.map(read, paths)]


def _record(file: TokenFile, name: str) -> PartRecord:
    """The record of a part."""
    leaves = {leaf: LeafRecord(file.tokens, file.digest) for leaf in file.leaves}
    part = name if file.piece is None else f"{name}/{file.piece}"
    return PartRecord(part, file.documents, file.tokens, file.digest, leaves=leaves)


def _part_names(paths: Sequence[str]) -> list[str]:
    """Short names of files: what is left without the folders that all share."""
    steps = [path.split("/") for path in paths]
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == steps[0][shared] for one in steps):
        shared += 1
    return ["/".join(one[shared:]) for one in steps]


def check_rising(url: str, ends: np.ndarray, tokens: int) -> None:
    """Raises CacheCorruptError unless ends of documents rise, and lie within the tokens."""
    if ends.size and (ends[0] < 0 or ends[-1] > tokens or (np.diff(ends) < 0).any()):
        raise corrupt(url, f"has documents that overlap, or lie outside its {tokens:,} tokens")
