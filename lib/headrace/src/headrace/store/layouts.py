"""Stores of other systems, read where they lie: one class for each format, which other packages
bring.

A class of ``headrace.layouts`` (:mod:`headrace.extensions`) recognises what is at a path, lists its
parts in a ledger, as if headrace had written them, and opens the arrays of a part. All that a cache
can do follows from that. :class:`~headrace.store.plain.PlainArray` reads plain files of numbers.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from headrace import extensions
from headrace.errors import CacheMissingError, ConfigError, check_choice, check_whole
from headrace.store.array import StoredArray
from headrace.store.layout import TOKEN_DTYPES, CacheLayout
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger

NAMED_ONLY = "levanter:"
"""Begins the fingerprint of a tokenizer of which a cache has at most the name, and no copy."""
UNNAMED = "unknown"
"""Path of the tokenizer of a cache that does not even name it."""
VOCABULARY_SAID = "vocab_size_said"
"""Where a tokenizer's record has the size of the vocabulary, if somebody said it."""
MAX_VOCABULARY = 1 << 32
FORMAT = "format"
"""Metadata of a store of another system: the name of its format."""
LIMITS = "limits"
"""Metadata of such a store: sentences on what its format cannot promise."""
WHOLE_FILES = "whole_files"
"""Metadata of such a store: whether each file counts as one document, because it is not known where
documents end.
"""


@dataclass(frozen=True)
class FormatConfig:
    """How the files of another system are read, where they do not say it themselves. In a config,
    the name is enough: ``format: megatron``.

    Attributes:
        name: Name of the format; None: found out.
        dtype: Dtype of the tokens in files without a header.
        eos_id: Token that ends documents.
        vocab_size: Number of ids.
        index: Folder or URL for where documents end, if finding it takes a pass over the files.

    Raises:
        ConfigError: there is no such format or dtype; its package is not installed.

    Example:
        >>> FormatConfig("npy", dtype="uint32").dtype
        'uint32'
    """

    SHORTHAND: ClassVar[str] = "name"

    name: str | None = None
    dtype: str | None = None
    eos_id: int | None = None
    vocab_size: int | None = None
    index: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_choice("format.name", self.name, extensions.names_of(extensions.LAYOUTS))
        if self.dtype is not None:
            check_choice("format.dtype", self.dtype, TOKEN_DTYPES, "is not a dtype of tokens")
        for field in ("eos_id", "vocab_size"):
            if (value := getattr(self, field)) is not None:
                check_whole(f"format.{field}", value)
        if self.vocab_size is not None and not 1 <= self.vocab_size <= MAX_VOCABULARY:
            raise ConfigError(
                "must lie in 1 .. 2**32", field="format.vocab_size", value=self.vocab_size
            )

    def layout(self) -> type[Layout]:
        """The class of the format."""
        assert self.name is not None
        return extensions.load_extension(extensions.LAYOUTS, self.name, "format.name")

    def tokenizer(self, dtype: str) -> dict[str, Any]:
        """The record of a tokenizer of which nothing is known but what this says.

        Example:
            >>> FormatConfig(eos_id=0).tokenizer("uint16")["vocab_size"]
            65536
        """
        facts = [UNNAMED, self.vocab_size, self.eos_id]
        return named_tokenizer(UNNAMED, facts, dtype, self.vocab_size, self.eos_id)


def named_tokenizer(
    name: str,
    facts: Sequence[Any],
    dtype: str,
    vocab_size: int | None,
    eos_id: int | None,
    bos_id: int | None = None,
) -> dict[str, Any]:
    """The record of a tokenizer of which there is no copy.

    Args:
        name: Its path.
        facts: What is known of it, by which it is told from others.
        dtype: Dtype of the tokens, which limits the ids.
        vocab_size: Number of ids, if it is known.
        eos_id: Token that ends documents.
        bos_id: Token that begins documents.
    """
    limit = min(int(np.iinfo(dtype).max) + 1, MAX_VOCABULARY)
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return {
        "path": name,
        "file": None,
        "fingerprint": f"{NAMED_ONLY}{digest}",
        "vocab_size": vocab_size or limit,
        **({VOCABULARY_SAID: vocab_size} if vocab_size else {}),
        "bos": None if bos_id is None else f"<{bos_id}>",
        "bos_id": bos_id,
        "eos": None if eos_id is None else f"<{eos_id}>",
        "eos_id": eos_id,
    }


class Layout(abc.ABC):
    """A store in another system's format, opened. Nothing is ever written to it.

    Attributes:
        ledger: Its parts, as headrace writes them.
        planned: Chunks of a store that does not exist yet; None: as headrace's own have them.
    """

    planned: ClassVar[CacheLayout | None] = None

    ledger: Ledger

    @classmethod
    @abc.abstractmethod
    def is_at(cls, path: str) -> bool:
        """Whether there is a store of this format at a path: looks at names, and at most reads the
        beginning of a file.
        """

    @classmethod
    @abc.abstractmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        """Opens the store.

        Raises:
            CacheMissingError: there is none.
            CacheError: it cannot be read, or contradicts itself.
            ConfigError: a setting is missing, or does not fit.
        """

    @abc.abstractmethod
    def part(self, name: str, number: int) -> LeafPart:
        """The arrays of a leaf in a part, by its number."""

    def limits(self) -> Sequence[str]:
        """Sentences on what no check can find in this store."""
        return tuple(self.ledger.metadata.get(LIMITS, ()))

    def recorder(self) -> ChecksumRecorder:
        """Takes checksums of this store, which has none.

        Raises:
            ConfigError: this format has no place for them.
        """
        raise ConfigError(
            "is not possible for this format, which has no place for checksums",
            field="--record",
            cure="Leave it out.",
        )


class ChecksumRecorder(abc.ABC):
    """Takes the checksums of a store while all of it is read."""

    @abc.abstractmethod
    def add(self, array: StoredArray, values: np.ndarray) -> None:
        """Takes those of the next whole chunks of an array; arrays are read side by side."""

    @abc.abstractmethod
    def write(self, arrays: Sequence[StoredArray]) -> str:
        """Writes those of all arrays of the store, and returns where.

        Raises:
            CacheError: they could not be written.
            ConfigError: nothing can be written there.
        """


def find_layout(path: str) -> type[Layout] | None:
    """The format of what is at a path; None if no installed package knows it."""
    for name in extensions.installed_names(extensions.LAYOUTS):
        layout = FormatConfig(name).layout()
        if layout.is_at(path):
            return layout
    return None


def open_layout(path: str, settings: FormatConfig | None) -> Layout | None:
    """The store of another system at a path; None if there is none and the settings name none.

    Raises:
        CacheMissingError: there is none of the format that the settings name.
        CacheError: it cannot be opened.
        ConfigError: the settings do not fit.
    """
    settings = settings or FormatConfig()
    if settings.name is None:
        layout = find_layout(path)
        return None if layout is None else layout.open(path, settings)
    layout = settings.layout()
    if not layout.is_at(path):
        other = find_layout(path)
        names = extensions.installed_names(extensions.LAYOUTS)
        name = next((n for n in names if other and FormatConfig(n).layout() is other), None)
        cure = "Check the path." if name is None else f"It looks like {name}: leave format out."
        problem = f"holds no files of the format {settings.name}"
        raise CacheMissingError(problem, field="cache", value=path, cure=cure)
    return layout.open(path, settings)


def as_option(settings: Any) -> str:
    """Settings as the command line has them: the first field, and others that are not as usual.

    Example:
        >>> as_option(FormatConfig("levanter", eos_id=0))
        'levanter,eos_id=0'
    """
    first, *others = fields(settings)
    values = [(one.name, getattr(settings, one.name), one.default) for one in others]
    changed = [f"{name}={value}" for name, value, usual in values if value != usual]
    return ",".join([getattr(settings, first.name) or "", *changed])
