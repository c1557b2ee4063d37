"""The interface of tokenizers, the special tokens around a document, and the tokenizers that need
no file.

The policy of special tokens comes from a config, and is resolved to ids of a vocabulary. ``auto``
looks for the usual names among the tokenizer's special tokens and, only if there is no unique
match, in a ``tokenizer_config.json`` next to the tokenizer (chat models declare their end of *turn*
there, which is not what ends a document). It never guesses: without a unique answer, there is an
error that lists the candidates.

Records decide whether a cache has the tokenizer that a config names; no token is read. headrace's
own caches record a fingerprint. Levanter's record only a name, which says little, because machines
have the same tokenizer under different paths; there, a named tokenizer is accepted unless the cache
has ids outside its vocabulary, or ends its documents with another token. Caches that Marin
tokenized record nothing; there, the first document is read.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from headrace.errors import ConfigError, did_you_mean
from headrace.ingest.choices import SpecialTokensInText
from headrace.ingest.records import sizes_of
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import token_dtype
from headrace.store.layouts import NAMED_ONLY, UNNAMED, VOCABULARY_SAID, WHOLE_FILES
from headrace.store.ledger import fingerprint_of

FILE_NAME = "tokenizer.json"
"""Name of a tokenizer's file, in its folder and in a cache."""
IDS = "ids:"
"""Prefix before the size of the vocabulary if there is no tokenizer."""
EOS_NAMES = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|eos|>",
    "<|EOS|>",
    "<EOS>",
    "[EOS]",
    "<end_of_text>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
)
BOS_NAMES = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|bos|>",
    "<BOS>",
    "[BOS]",
    "<｜begin▁of▁sentence｜>",
)

Encoded: TypeAlias = tuple[np.ndarray, np.ndarray]


class Placed(NamedTuple):
    """Ids of a text and their positions in it.

    Attributes:
        ids: int64 ``[n]``.
        spans: int64 ``[n, 2]``: the first character of each, and one past its last. Ids that are
            bytes of one character have the same span.
    """

    ids: np.ndarray
    spans: np.ndarray


class Tokenizer(abc.ABC):
    """Encodes texts to ids, with the policy's special tokens, and back.

    Attributes:
        path: Where it came from.
        folder: Where files may lie beside its own; None if none may.
        vocab_size: One more than the largest id.
        bos: Token before each document, or None. ``bos_id`` is its id.
        eos: Token after each document, or None. ``eos_id`` is its id.
        special: Its special tokens.
        content: Its file; None if it needs none. A cache keeps a copy, so that it can be read
            anywhere.
        fingerprint: ``sha256:`` of everything that determines the ids: vocabulary, rules, policy;
            not the path.
        special_tokens_in_text: What to do with names of special tokens in a text. Not part of the
            fingerprint, because the vocabulary is the same.
    """

    path: str
    folder: str | None = None
    vocab_size: int
    bos: str | None
    eos: str | None
    bos_id: int | None
    eos_id: int | None
    special: Sequence[str]
    fingerprint: str
    content: bytes | None = None
    special_tokens_in_text: SpecialTokensInText = "token"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest dtype that holds the vocabulary."""
        return token_dtype(self.vocab_size)

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids before and after each document, none or one each, in ``dtype``."""
        opening = [] if self.bos_id is None else [self.bos_id]
        closing = [] if self.eos_id is None else [self.eos_id]
        return np.array(opening, self.dtype), np.array(closing, self.dtype)

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        """Ids of documents.

        Returns:
            ids: ``dtype[total]``, all documents end to end, special tokens included.
            lengths: int64 ``[len(texts)]``, the number of ids of each document.

        Raises:
            BadRecordError: one of them cannot be encoded (it is not named).
        """

    @abc.abstractmethod
    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        """Ids of texts, without added special tokens, and their positions in the text."""

    @abc.abstractmethod
    def id_of(self, token: str) -> int | None:
        """Id of a token as it is spelled; None if there is no such token."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens are spelled out."""

    def reading_special(self, special_tokens_in_text: SpecialTokensInText) -> Tokenizer:
        """This tokenizer, with another setting for names of special tokens in a text. Tokenizers
        without a file never read a text as such a token, so nothing changes.
        """
        return self

    def record(self) -> dict[str, Any]:
        """The record for the ledger: with the cache's copy of the file, enough to restore this
        tokenizer.
        """
        file = None if self.content is None else FILE_NAME
        keys = ("fingerprint", "vocab_size", "bos", "bos_id", "eos", "eos_id")
        return {"path": self.path, "file": file, **{key: getattr(self, key) for key in keys}}

    def check_same(self, record: Mapping[str, Any], cache: str) -> None:
        """Refuses a cache that was built with another tokenizer or other special tokens or, if it
        records only a name, cannot have been built with this one; ``record`` is its
        ``ledger.tokenizer``.

        Raises:
            ConfigError: they differ.
        """
        own_record = self.record()
        if record["fingerprint"] == own_record["fingerprint"]:
            return
        if named_only(record):
            _check_plausible(own_record, record, cache)
            return
        keys = ("path", "vocab_size", "bos", "eos")
        changed = [
            f"{k} {record.get(k)!r} there, {own_record[k]!r} here"
            for k in keys
            if record.get(k) != own_record[k]
        ]
        raise ConfigError(
            f"is not the tokenizer of {cache}"
            f" ({'; '.join(changed) or 'another file of the same name and size'})",
            field="tokenizer",
            value=own_record["path"],
            cure=f"Use the one it was built with (a copy is {files.join(cache, FILE_NAME)}), or"
            " build it again.",
        )


def declared_tokens(folder: str) -> dict[str, str]:
    """The special tokens in a ``tokenizer_config.json`` next to the tokenizer, if there is one."""
    content = files.read_bytes(files.join(folder, "tokenizer_config.json"))
    if content is None:
        return {}
    try:
        return special_tokens_of(dict(json.loads(content)))
    except (ValueError, TypeError):
        # it only ever settles a doubt; without it the doubt is an error that says what to do
        return {}


def special_tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of a ``tokenizer_config.json``, by their roles.

    Example:
        >>> special_tokens_of({"eos_token": {"content": "</s>"}, "bos_token": None})
        {'eos_token': '</s>'}
    """
    tokens: dict[str, str] = {}
    for role, token in config.items():
        name = token.get("content") if isinstance(token, dict) else token
        if role.endswith("_token") and isinstance(name, str):
            tokens[role] = name
    return tokens


def resolve_special(
    role: str,
    token: str | None,
    special: list[str],
    usual: Sequence[str],
    find: Callable[[str], int | None],
    declared: str | None = None,
) -> tuple[str | None, int | None]:
    """The policy's token and its id.

    ``wanted`` is ``none`` or None, ``auto``, or a token; ``auto`` knows the ``usual`` names, and
    what a file beside the tokenizer has ``declared``. ``role`` is for messages.

    Raises:
        ConfigError: there is no such token, or ``auto`` finds none or several.

    Example:
        >>> resolve_special(
        ...     "eos", "auto", ["<pad>", "</s>"], EOS_NAMES, {"<pad>": 0, "</s>": 1}.get
        ... )
        ('</s>', 1)
    """
    if token is None or token == "none":
        return None, None
    if token == "auto":
        candidates = [t for t in special if t in usual]
        if len(candidates) != 1 and declared is not None and find(declared) is not None:
            candidates = [declared]
        if len(candidates) != 1:
            listed = ", ".join(repr(t) for t in (candidates or special)[:16])
            problem = (
                f"finds several: {listed}"
                if candidates
                else f"finds none (special tokens: {listed or 'no one'})"
            )
            raise ConfigError(
                problem, field=role, value="auto", cure=f"Choose: --{role} TOKEN, or --{role} none."
            )
        token = candidates[0]
    token_id = find(token)
    if token_id is None:
        raise ConfigError(
            "is not a token of this tokenizer",
            field=role,
            value=token,
            cure=did_you_mean(token, special),
        )
    return token, int(token_id)


class ByteTokenizer(Tokenizer):
    """The 256 byte values of UTF-8, then ``<eos>`` 256 and ``<bos>`` 257. Always available, without
    a file.
    """

    SPECIAL: dict[str, int] = {"<eos>": 256, "<bos>": 257}  # noqa: RUF012 (a constant)

    def __init__(self, bos: str | None = None, eos: str | None = "auto") -> None:
        self.path = "bytes"
        self.vocab_size = 258
        self.special = list(self.SPECIAL)
        self.bos, self.bos_id = resolve_special("bos", bos, self.special, ("<bos>",), self.id_of)
        self.eos, self.eos_id = resolve_special("eos", eos, self.special, ("<eos>",), self.id_of)
        self.fingerprint = fingerprint_of(b"bytes", self.bos_id, self.eos_id)

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        opening, closing = self.frame
        documents = [
            np.concatenate([opening, np.frombuffer(text.encode(), np.uint8), closing])
            for text in texts
        ]
        return np.concatenate([opening[:0], *documents]), sizes_of(documents)

    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        encodings: list[Placed] = []
        for text in texts:
            ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
            character = np.cumsum((ids & 0xC0) != 0x80) - 1
            encodings.append(Placed(ids, np.stack([character, character + 1], axis=1)))
        return encodings

    def id_of(self, token: str) -> int | None:
        return self.SPECIAL.get(token)

    def decode(self, ids: Iterable[int]) -> str:
        names = {token_id: token for token, token_id in self.SPECIAL.items()}
        pieces: list[str] = []
        for is_text, run in groupby(ids, lambda token_id: token_id < 256):
            if is_text:
                pieces.append(bytes(run).decode(errors="replace"))
            else:
                pieces += [names.get(token_id, "\ufffd") for token_id in run]
        return "".join(pieces)


class IdsTokenizer(Tokenizer):
    """No tokenizer: ids of a vocabulary of which only the size is known, and ``eos``, the id that
    ends documents, if given. Adds and encodes nothing.

    Raises:
        ConfigError: the size is missing; ``eos`` is not an id below it.

    Example:
        >>> IdsTokenizer("ids:50257").decode([7, 8])
        '<7><8>'
    """

    def __init__(self, path: str, eos: str | None = None) -> None:
        size = path.removeprefix(IDS)
        if not size.isdecimal() or not 1 <= int(size) <= 1 << 32:
            raise ConfigError(
                "says no size", field="tokenizer", value=path, cure="Write e.g. ids:50257."
            )
        self.path = path
        self.vocab_size = int(size)
        self.bos = self.bos_id = None
        self.eos = None if eos in ("auto", "none") else eos
        self.eos_id = None if self.eos is None else self.id_of(self.eos)
        if self.eos is not None and self.eos_id is None:
            cure = f"Give the id that ends documents: a number below {size}."
            raise ConfigError("is no id", field="tokenizer.eos", value=eos, cure=cure)
        self.special = ()
        self.fingerprint = fingerprint_of(path.encode(), None, self.eos_id)

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        raise self._no_text()

    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        raise self._no_text()

    def id_of(self, token: str) -> int | None:
        return int(token) if token.isdecimal() and int(token) < self.vocab_size else None

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(f"<{i}>" for i in ids)

    def _no_text(self) -> ConfigError:
        return ConfigError(
            "encodes no text",
            field="tokenizer",
            value=self.path,
            cure="Give a tokenizer.json, or sources of ids.",
        )


def named_only(record: Mapping[str, Any]) -> bool:
    """Whether a cache records only a name of its tokenizer."""
    return str(record.get("fingerprint")).startswith(NAMED_ONLY)


def name_tokenizer(cache: TokenCache, tokenizer: Tokenizer) -> None:
    """If the ledger of an open cache does not name its tokenizer, sets the size of this one, and
    its end of text if the first document ends with it. A cache of blocks gets the end of text in
    any case: nothing else tells its documents.
    """
    record = cache.ledger.tokenizer
    if not named_only(record) or not cache.num_documents:
        return
    is_unnamed = record.get("path") == UNNAMED
    knows_none = cache.ledger.metadata.get(WHOLE_FILES, False) or cache.block_tokens is not None
    of_blocks = record.get("eos_id") is None and knows_none
    if not is_unnamed and not of_blocks:
        return
    ends = of_blocks or _ends_first(cache, tokenizer)
    names = (*(("path", "vocab_size") if is_unnamed else ()), *(("eos", "eos_id") if ends else ()))
    named = tokenizer.record()
    cache.ledger = structs.replace(
        cache.ledger, tokenizer={**record, **{name: named[name] for name in names}}
    )


def _ends_first(cache: TokenCache, tokenizer: Tokenizer) -> bool:
    end = int(cache.lengths(0, 1)[0])
    return end > 0 and int(cache.tokens(end - 1, end)[0]) == tokenizer.eos_id


def check_one_tokenizer(records: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Refuses caches with different tokenizers; arguments: component, path and ``ledger.tokenizer``
    of each cache.

    Raises:
        ConfigError: two differ.
    """
    first_name, _, first = records[0]
    for name, path, record in records:
        if record.get("fingerprint") == first.get("fingerprint"):
            continue
        cure = (
            "Caches of one mixture need one tokenizer and one EOS policy: build one of them again."
        )
        if named_only(record) or named_only(first):
            cure = (
                "Caches of other systems keep at most the name of theirs. If it is one, say so:"
                " tokenizer: {path: FILE}."
            )
        raise ConfigError(
            f"was built with another tokenizer than {first_name!r}",
            field=f"components.{name}.cache",
            value=path,
            cure=cure,
        )


def _check_plausible(mine: Mapping[str, Any], record: Mapping[str, Any], cache: str) -> None:
    vocabulary = record.get(VOCABULARY_SAID)
    ends = (record.get("eos_id"), mine.get("eos_id"))
    wrong: list[str] = []
    if vocabulary is not None and int(vocabulary) > int(mine["vocab_size"]):
        wrong.append(f"{vocabulary:,} ids there, {mine['vocab_size']:,} here")
    if None not in ends and ends[0] != ends[1]:
        observed = f"documents end with {mine['eos']!r}, id {ends[1]} here"
        wrong.append(f"its first document ends with id {ends[0]}, {observed}")
    if wrong:
        raise ConfigError(
            f"cannot be the tokenizer of {cache} ({'; '.join(wrong)})",
            field="tokenizer",
            value=mine["path"],
            cure=f"Name the one that it was built with ({record.get('path')!r}); with eos: none"
            " ends are not compared.",
        )
