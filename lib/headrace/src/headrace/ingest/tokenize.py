"""Text to token ids: any file of Hugging Face ``tokenizers``, bytes, or ids that are ready; with
the special tokens around documents.

**Policy.** The file's own post-processor, truncation and padding are disabled, and each document
becomes ``[bos] ids [eos]`` exactly as the config says. (Otherwise, caches that lost their BOS, or
were cut to 512 tokens by a setting in the file, are noticed weeks later.) ``auto`` looks for the
usual names among the tokenizer's special tokens and, only if there is no unique match, in a
``tokenizer_config.json`` next to the tokenizer (chat models declare their end of *turn* there,
which is not what ends a document). It never guesses: without a unique answer, there is an error
that lists the candidates. Names of special tokens in a text are read as such, as is usual, unless
the source says ``special_tokens_in_text: text`` or ``error``.

**Encoding.** Invariant: the ids of a document, and where a long one is cut, depend only on the
document, the tokenizer and the policy; not on its batch or the number of cores.

Price: besides encoding itself, 20 ns per token to fetch the ids into an array (about 2% of encoding
with a BPE of 8 thousand). Encoding uses about 115 bytes of memory per byte of text and runs one
text on one core, so long texts are encoded in pieces: 200 MB as one document take 1.5 GB, not 23,
on all cores. A cut, one in 256 Ki characters, costs three encodings of at most 1024 characters:
under 1%.

**Caches.** Records decide whether a cache has the tokenizer that a config names; no token is read.
headrace's own caches record a fingerprint, and keep a copy of the file. Levanter's record only a
name, which says little, because machines have the same tokenizer under different paths; there, a
named tokenizer is accepted unless the cache has ids outside its vocabulary, or ends its documents
with another token. Caches that Marin tokenized record nothing; there, the first document is read.
"""

from __future__ import annotations

import abc
import copy
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import tokenizers
from msgspec import structs

from headrace.errors import CacheCorruptError, ConfigError, did_you_mean
from headrace.ingest.choices import SpecialTokensInText, TokenizerEngine
from headrace.ingest.cut_points import PIECE_CHARS, cut_points
from headrace.ingest.hub import SCHEME as HUB
from headrace.ingest.hub import find_hub_tokenizer
from headrace.ingest.records import BadRecordError, one_line, sizes_of
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import token_dtype
from headrace.store.layouts import NAMED_ONLY, UNNAMED, VOCABULARY_SAID, WHOLE_FILES
from headrace.store.ledger import (
    TOKENIZER_NAME,
    canonical_tokenizer,
    fingerprint_of,
    tokenizer_content,
)
from headrace.store.location import Location

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
Encoder: TypeAlias = Callable[[Sequence[str]], list[np.ndarray]]
"""The ids of each text, uint32, without added special tokens."""
THREADS_VARIABLE = "RAYON_NUM_THREADS"
"""The variable by which the tokenizers library is told how many threads to use."""


@dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer, and the special tokens around each document.

    Attributes:
        path: ``bytes``, a ``tokenizer.json`` (path or URL), or a folder that contains one;
            ``hf://OWNER/NAME`` on the Hugging Face Hub (:mod:`headrace.ingest.hub`); ``ids:N`` for
            token ids below N without a tokenizer.
        bos: Token before each document: ``none`` (or None), ``auto``, or the token itself.
        eos: Token after each document: ``auto`` (the usual end-of-text token among the special
            ones), ``none`` (or None), or the token itself, e.g. ``"<|im_end|>"``; for ``ids:N``,
            the id that already ends documents.
        engine: Which library encodes when a cache is built: ``tokenizers``; ``gigatoken``, tens of
            times faster; ``auto``: gigatoken if it is installed, supports the tokenizer, and there
            is enough to do. No effect on the result, or on the tokenizer's record in the cache.

    Example:
        >>> load_tokenizer(TokenizerConfig("bytes")).eos_id
        256
    """

    path: str = "bytes"
    bos: str | None = None
    eos: str | None = "auto"
    engine: TokenizerEngine = "auto"

    def __post_init__(self) -> None:
        if not self.path or not isinstance(self.path, str):
            raise ConfigError(
                "is no path",
                field="path",
                value=self.path,
                cure="Give a tokenizer.json, or `bytes`.",
            )
        for name in ("bos", "eos"):
            if not isinstance(value := getattr(self, name), str | None):
                cure = "Give the token itself, such as '<eos>', not its id; or 'none'."
                raise ConfigError("is not a token", field=name, value=value, cure=cure)


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
        file = None if self.content is None else TOKENIZER_NAME
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
            cure="Use the one it was built with (a copy is"
            f" {files.join(cache, TOKENIZER_NAME)}), or build it again.",
        )


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


def batch_chars() -> int:
    """Characters to encode at once: enough to keep all cores busy, few enough to limit memory (0.25
    Mi per core).
    """
    return max(2, min(64, encoding_threads())) << 18


def cores() -> int:
    """Cores that this process may use."""
    # Not every system reports which cores are ours.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoding_threads() -> int:
    """Threads that encode in this process: one per core, unless the environment sets fewer (a
    worker's share).
    """
    text = os.environ.get(THREADS_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) > 0 else cores()


class _Piece(NamedTuple):
    """A document, or a piece of a long one."""

    document: int
    text: str
    opens: bool
    closes: bool


class FileTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library.

    Attributes:
        encoder: The function that encodes texts.
        rules: Its content, the same bytes for the same content.

    Raises:
        ConfigError: it is not a tokenizer, or does not have the tokens that the policy names.
    """

    def __init__(
        self,
        content: bytes,
        path: str,
        bos: str | None = None,
        eos: str | None = "auto",
        folder: str | None = None,
    ) -> None:
        # It is on by default; setting it stops the library from warning at each later fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self.path = path
        self.folder = folder
        self.content = content
        self.encoder: Encoder = self.encode_plain
        self.rules, self._tokenizer, unknown = _parse(content, path)
        self.vocab_size = (
            max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        )
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = [str(token.content) for _, token in sorted(added.items()) if token.special]
        declared = {} if folder is None else declared_tokens(folder)
        self.bos, self.bos_id = resolve_special(
            "bos", bos, self.special, BOS_NAMES, self.id_of, declared.get("bos_token")
        )
        self.eos, self.eos_id = resolve_special(
            "eos", eos, self.special, EOS_NAMES, self.id_of, declared.get("eos_token")
        )
        self.fingerprint = fingerprint_of(self.rules, self.bos_id, self.eos_id)
        refused = [
            i for i, token in added.items() if token.special or i in (self.bos_id, self.eos_id)
        ]
        self._refused = np.zeros(self.vocab_size, np.bool_)
        self._refused[np.array([i for i in refused if i != unknown], np.int64)] = True

    @property
    def template_bos(self) -> tuple[str, int] | None:
        """The token, and its id, that the file's own template puts before a text; a build puts
        ``bos`` there.
        """
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a", add_special_tokens=True).ids
        if framed[: len(plain)] == plain:
            return None
        return str(self._tokenizer.id_to_token(framed[0])), framed[0]

    def reading_special(self, special_tokens_in_text: SpecialTokensInText) -> FileTokenizer:
        if special_tokens_in_text == self.special_tokens_in_text:
            return self
        other = copy.copy(self)
        other.special_tokens_in_text = special_tokens_in_text
        if "text" in (special_tokens_in_text, self.special_tokens_in_text):
            other._tokenizer = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
            other._tokenizer.encode_special_tokens = special_tokens_in_text == "text"
            other.encoder = other.encode_plain
        return other

    def encoding_with(self, encoder: Encoder) -> FileTokenizer:
        """This tokenizer, with a function that gives the same ids as :meth:`encode_plain`."""
        other = copy.copy(self)
        other.encoder = encoder
        return other

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        arrays = [np.zeros(0, np.uint32)]
        lengths = [0] * len(texts)
        opening, closing = self.frame
        with _refusals():
            for group in self._groups(texts):
                for piece, encoded in zip(
                    group, self.encoder([p.text for p in group]), strict=True
                ):
                    self._check_special(encoded)
                    framed = [
                        opening if piece.opens else opening[:0],
                        encoded,
                        closing if piece.closes else closing[:0],
                    ]
                    arrays += framed
                    lengths[piece.document] += sum(map(len, framed))
        return np.concatenate(arrays, dtype=self.dtype, casting="unsafe"), np.array(
            lengths, np.int64
        )

    def encode_plain(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, uint32, by ``tokenizers``, without added special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        # The library hands out lists of ints; an array is the fastest way out of one (5 ns an id;
        # numpy 13).
        return [np.frombuffer(array("I", e.ids), np.uint32) for e in encodings]

    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        with _refusals():
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        placed = [
            Placed(np.array(e.ids, np.int64), np.array(e.offsets, np.int64).reshape(-1, 2))
            for e in encodings
        ]
        for one in placed:
            self._check_special(one.ids)
        return placed

    def id_of(self, token: str) -> int | None:
        return cast("int | None", self._tokenizer.token_to_id(token))

    def decode(self, ids: Iterable[int]) -> str:
        with _panics_as_errors():
            return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def _groups(self, texts: Sequence[str]) -> Iterator[list[_Piece]]:
        """The texts, long ones in pieces, in groups that are encoded at once, which limits the
        memory.
        """
        limit = batch_chars()
        group: list[_Piece] = []
        chars = 0
        for document, text in enumerate(texts):
            stops = (
                [*cut_points(text, self._plain_ids), len(text)]
                if len(text) > PIECE_CHARS
                else [len(text)]
            )
            start = 0
            for stop in stops:
                group.append(_Piece(document, text[start:stop], start == 0, stop == len(text)))
                chars += stop - start
                start = stop
                if chars >= limit:
                    yield group
                    group = []
                    chars = 0
        if group:
            yield group

    def _check_special(self, ids: np.ndarray) -> None:
        """Refuses ids of a text that contain special tokens, unless the setting allows it."""
        if self.special_tokens_in_text == "token" or not (hits := self._refused[ids]).any():
            return
        token = self._tokenizer.id_to_token(int(ids[int(hits.argmax())]))
        if self.special_tokens_in_text == "error":
            cure = (
                "If it is meant as text, pass --special-tokens-in-text text; if as the token,"
                " token."
            )
            raise BadRecordError(f"spells out the special token {token!r}", cure)
        cure = "Leave such records out: --on-bad-line skip."
        raise BadRecordError(
            f"has no other tokens than the special {token!r} for what it spells out", cure
        )

    def _plain_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Converts a panic of the library's Rust code, which arrives as a BaseException."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # its class has no name to import
            raise
        raise RuntimeError(f"the tokenizers library panicked: {one_line(error)}") from error


@contextmanager
def _refusals() -> Iterator[None]:
    """Converts errors of the library during encoding to a :class:`BadRecordError`."""
    try:
        with _panics_as_errors():
            yield
    except BadRecordError:
        raise
    except Exception as error:
        raise BadRecordError(f"cannot be encoded by this tokenizer ({one_line(error)})") from error


def _unknown_id(model: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> int | None:
    """The id for unknown text: a special token by name, which may occur in texts without special
    tokens.
    """
    if model.get("unk_id") is not None:  # Unigram
        return int(model["unk_id"])
    return None if model.get("unk_token") is None else tokenizer.token_to_id(model["unk_token"])


@lru_cache(maxsize=1)
def _parse(content: bytes, path: str) -> tuple[bytes, tokenizers.Tokenizer, int | None]:
    """The rules, what the library makes of them, and the id for unknown text. A build asks for its
    tokenizer twice, of its file and of the cache's copy, and parsing takes a second.
    """
    try:
        data = tokenizer_content(content)
        rules = canonical_tokenizer(data)
        with _panics_as_errors():
            tokenizer = tokenizers.Tokenizer.from_str(rules.decode())
        return rules, tokenizer, _unknown_id(data.get("model") or {}, tokenizer)
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"is not a file of the tokenizers library ({error})",
            field="tokenizer",
            value=path,
            cure="Give a tokenizer.json, a folder that holds one, or `bytes`.",
        ) from error


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of a config.

    Raises:
        ConfigError: the file does not exist or is not a tokenizer, or the policy names a token that
            it does not have.

    Example:
        >>> tokenizer = load_tokenizer(TokenizerConfig("bytes"))
        >>> tokenizer.encode_batch(["hi", ""])
        (array([104, 105, 256, 256], dtype=uint16), array([3, 1]))
        >>> tokenizer.decode([104, 105, 256])
        'hi<eos>'
    """
    if config.path == "bytes":
        return ByteTokenizer(bos=config.bos, eos=config.eos)
    if config.path.startswith(IDS):
        return IdsTokenizer(config.path, config.eos)
    content, folder, path = _read_tokenizer(config.path)
    return FileTokenizer(content, path, config.bos, config.eos, folder)


def _read_tokenizer(path: str) -> tuple[bytes, str | None, str]:
    """The file's bytes, its folder if more may be asked for there, and its name for a cache."""
    location = Location.parse(path)
    candidates = [(path, None)]
    if not location.query:
        candidates = [
            (files.join(path, TOKENIZER_NAME), path),
            (path, os.path.dirname(path) or "."),
        ]
    try:
        for url, folder in candidates:
            is_none = path.startswith(HUB) or (
                url == path and files.is_local(url) and os.path.isdir(url)
            )
            content = None if is_none else files.read_bytes(url)
            if content is not None:
                return content, folder, location.shown
    except OSError as error:
        raise ConfigError(f"cannot be read ({error})", field="tokenizer", value=path) from error
    hub = find_hub_tokenizer(path)
    if hub is not None:
        return *_read_tokenizer(hub.folder)[:2], hub.path
    there = "is a folder without tokenizer.json" if files.exists(path) else "does not exist"
    raise ConfigError(
        there,
        field="tokenizer",
        value=path,
        cure="Give a tokenizer.json, a folder that holds one, a model of the Hugging Face hub"
        " (hf://OWNER/NAME), or `bytes`.",
    )


def recorded_config(record: Mapping[str, Any]) -> TokenizerConfig:
    """The config of the tokenizer in a ledger, by its original path."""
    return TokenizerConfig(record["path"], record["bos"] or "none", record["eos"] or "none")


def recorded_tokenizer(root: str, record: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a cache was built with, from the cache alone.

    Raises:
        CacheCorruptError: the cache's copy of the tokenizer is missing or differs.
    """
    config = recorded_config(record)
    url = files.join(root, record["file"] or record["path"])
    if record["file"] is None:
        tokenizer = load_tokenizer(config)
    else:
        content = files.read_bytes(url)
        if content is None:
            cure = "Copy the cache again, with all its files."
            raise CacheCorruptError("is missing", field="tokenizer", value=url, cure=cure)
        tokenizer = FileTokenizer(content, config.path, config.bos, config.eos)
    if tokenizer.fingerprint != record["fingerprint"]:
        raise CacheCorruptError(
            "is not the tokenizer that the cache was built with", field="tokenizer", value=url
        )
    return tokenizer


def cache_tokenizer(cache: TokenCache, instead: str | None = None) -> Tokenizer | None:
    """The tokenizer that a cache was built with, if it has a copy, or the one named ``instead``.
    None for a cache of token ids.

    Raises:
        ConfigError: ``instead`` is not a tokenizer, or differs from the cache's own.
        CacheCorruptError: the copy is missing or damaged.
    """
    record = cache.ledger.tokenizer
    if record.get("path") == "bytes" or record.get("file") is not None:
        if instead not in (None, record["path"]):
            problem = (
                f"does not decode {cache.path}, which has a tokenizer of its own, {record['path']}"
            )
            raise ConfigError(problem, field="--tokenizer", value=instead, cure="Leave it out.")
        return recorded_tokenizer(cache.path, record)
    if instead is not None:
        for bos, eos in (("auto", "auto"), ("none", "auto")):
            with suppress(ConfigError):  # it has no such token
                return load_tokenizer(TokenizerConfig(instead, bos, eos))
        return load_tokenizer(TokenizerConfig(instead, "none", "none"))
    return None


def decode(tokenizer: Tokenizer | None, ids: np.ndarray) -> str:
    """The text of ids; without a tokenizer the ids themselves."""
    return " ".join(map(str, ids.tolist())) if tokenizer is None else tokenizer.decode(ids.tolist())


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
