"""Text to token ids: any file of Hugging Face ``tokenizers``, or bytes; and which special tokens stand around a
document.

The policy is explicit and ours: the file's own post-processor, truncation and padding are switched off, and each
document becomes ``[bos] ids [eos]`` exactly as the config says. (Caches that lost their BOS, or were cut to 512
tokens by a setting in the file, are found out weeks later.) Special tokens that a text spells out are read as such,
as everywhere in the field.

The invariant: the ids of a document depend on nothing but the document, the tokenizer and the policy; not on its
batch, not on the number of cores.

Price: besides encoding itself 20 ns a token to fetch the ids into an array (about 2% of encoding with a BPE of 8
thousand). Encoding holds about 115 bytes of memory a byte of text, so long texts are encoded in pieces (see
:mod:`headrace.ingest.pieces`): 200 MB as one document take 1.5 GB, not 23.
"""

from __future__ import annotations

import abc
import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import tokenizers

from headrace.errors import CacheCorruptError, ConfigError
from headrace.ingest.pieces import PIECE_CHARS, batch_chars, cut_points
from headrace.ingest.same_tokenizer import FILE_NAME, check_same_record
from headrace.ingest.special_tokens import BOS_NAMES, EOS_NAMES, declared_tokens, resolve_special
from headrace.store import files
from headrace.store.layout import token_dtype

IDS = "ids:"
"""What stands before the size of the vocabulary where there is no tokenizer."""

Encoded: TypeAlias = tuple[np.ndarray, np.ndarray]


class Placed(NamedTuple):
    """Ids of a text and their places in it.

    Attributes:
        ids: int64 ``[n]``.
        places: int64 ``[n, 2]``: the first character of each, and one past its last. Ids that are bytes of one
            character have the same place.
    """

    ids: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer, and which special tokens around each document.

    Attributes:
        path: ``bytes``, a ``tokenizer.json`` (path or URL), or a folder that holds one; ``ids:N`` for ready ids below
            N whose tokenizer is not at hand.
        bos: Token before each document: ``none`` (or None), ``auto``, or the token itself.
        eos: Token after each document: ``auto`` (the usual end-of-text token among the special ones), ``none`` (or
            None), or the token itself, e.g. ``"<|im_end|>"``.
    """

    path: str = "bytes"
    bos: str | None = None
    eos: str | None = "auto"


class Tokenizer(abc.ABC):
    """Encodes texts to ids, with the policy's special tokens, and back.

    Attributes:
        path: Where it came from.
        vocab_size: One more than the largest id.
        bos: Token before each document, or None. ``bos_id`` is its id.
        eos: Token after each document, or None. ``eos_id`` is its id.
        special: Its special tokens.
        fingerprint: ``sha256:`` of all that decides the ids: vocabulary, rules, policy. Not of the path.
    """

    path: str
    vocab_size: int
    bos: str | None
    eos: str | None
    bos_id: int | None
    eos_id: int | None
    special: Sequence[str]
    fingerprint: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest dtype that holds the vocabulary."""
        return token_dtype(self.vocab_size)

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        """Ids of documents.

        Args:
            texts: The documents, valid Unicode.

        Returns:
            ids: ``dtype[total]``, all documents end to end, special tokens included.
            lengths: int64 ``[len(texts)]``, how many of them are each document's.
        """

    @abc.abstractmethod
    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        """Ids of texts, no special tokens added, and where in the text each lies.

        Args:
            texts: Valid Unicode, each short enough to be encoded as a whole.
        """

    @abc.abstractmethod
    def id_of(self, token: str) -> int | None:
        """Id of a token as it is spelled; None if there is no such token."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens are spelled out."""

    @property
    def content(self) -> bytes | None:
        """The tokenizer's file; None if it needs none. A cache keeps a copy, so that it can be read anywhere."""
        return None

    def record(self) -> dict[str, Any]:
        """What the ledger keeps: with the cache's copy of the file enough to make this tokenizer again."""
        return {
            "path": self.path,
            "file": None if self.content is None else FILE_NAME,
            "fingerprint": self.fingerprint,
            "vocab_size": self.vocab_size,
            "bos": self.bos,
            "bos_id": self.bos_id,
            "eos": self.eos,
            "eos_id": self.eos_id,
        }

    def check_same(self, record: dict[str, Any], cache: str) -> None:
        """Refuses a cache that was built with another tokenizer or other special tokens.

        Of a cache that does not keep its tokenizer (Levanter's name it only) this one is believed to be it, unless the
        cache has ids that this one does not have, or ends its documents with another token.

        Args:
            record: ``ledger.tokenizer`` of the cache.
            cache: Its path, for the message.

        Raises:
            ConfigError: they differ.
        """
        check_same_record(self.record(), record, cache)


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of a config.

    Raises:
        ConfigError: there is no such file, it is no tokenizer, or the policy names a token that it does not have.

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
        return IdsTokenizer(config.path)
    content, folder = _read_tokenizer(config.path)
    return FileTokenizer(content, config.path, bos=config.bos, eos=config.eos, declared=declared_tokens(folder))


def tokenizer_folder(config: TokenizerConfig) -> str | None:
    """Where a tokenizer's files lie; None if it has none."""
    if config.path == "bytes" or config.path.startswith(IDS):
        return None
    return os.path.dirname(config.path) or "." if config.path.endswith(".json") else config.path


def recorded_tokenizer(root: str, record: dict[str, Any]) -> Tokenizer:
    """The tokenizer that a cache was built with, from the cache alone.

    Args:
        root: The cache.
        record: Its ``ledger.tokenizer``.

    Raises:
        CacheCorruptError: the cache's copy of the tokenizer is missing or another one.
    """
    bos, eos = record["bos"] or "none", record["eos"] or "none"
    url = files.join(root, record["file"] or record["path"])
    if record["file"] is None:
        ready = str(record["path"]).startswith(IDS)
        tokenizer: Tokenizer = IdsTokenizer(record["path"]) if ready else ByteTokenizer(bos=bos, eos=eos)
    else:
        content = files.read_bytes(url)
        if content is None:
            cure = "Copy the cache again, with all its files."
            raise CacheCorruptError("is missing", field="tokenizer", value=url, cure=cure)
        tokenizer = FileTokenizer(content, record["path"], bos=bos, eos=eos)
    if tokenizer.fingerprint != record["fingerprint"]:
        raise CacheCorruptError("is not the tokenizer that the cache was built with", field="tokenizer", value=url)
    return tokenizer


class ByteTokenizer(Tokenizer):
    """The 256 byte values of UTF-8, then ``<eos>`` 256 and ``<bos>`` 257. Always there, needs no file."""

    SPECIAL: dict[str, int] = {"<eos>": 256, "<bos>": 257}  # noqa: RUF012 (a constant)

    def __init__(self, bos: str | None = None, eos: str | None = "auto") -> None:
        self.path = "bytes"
        self.vocab_size = 258
        self.special = list(self.SPECIAL)
        self.bos, self.bos_id = resolve_special("bos", bos, self.special, ("<bos>",), self.id_of)
        self.eos, self.eos_id = resolve_special("eos", eos, self.special, ("<eos>",), self.id_of)
        self.fingerprint = _fingerprint(b"bytes", self.bos_id, self.eos_id)

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        raw = [t.encode() for t in texts]
        lengths = np.fromiter(map(len, raw), np.int64, len(raw))
        before, after = int(self.bos_id is not None), int(self.eos_id is not None)
        framed = lengths + (before + after)
        stops = np.cumsum(framed)
        ids = np.empty(int(framed.sum()), self.dtype)
        text = np.ones(ids.size, np.bool_)
        for special, places in ((self.bos_id, stops - framed), (self.eos_id, stops - 1)):
            if special is not None:
                ids[places] = special
                text[places] = False
        ids[text] = np.frombuffer(b"".join(raw), np.uint8)
        return ids, framed

    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        found: list[Placed] = []
        for text in texts:
            ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
            character = np.cumsum((ids & 0xC0) != 0x80) - 1
            found.append(Placed(ids, np.stack([character, character + 1], axis=1)))
        return found

    def id_of(self, token: str) -> int | None:
        return self.SPECIAL.get(token)

    def decode(self, ids: Iterable[int]) -> str:
        array = np.fromiter(ids, np.int64)
        names = {v: k for k, v in self.SPECIAL.items()}
        cuts = np.flatnonzero(array > 255).tolist()
        pieces: list[str] = []
        start = 0
        for cut in [*cuts, array.size]:
            pieces.append(array[start:cut].astype(np.uint8).tobytes().decode(errors="replace"))
            if cut < array.size:
                pieces.append(names.get(int(array[cut]), "\ufffd"))
            start = cut + 1
        return "".join(pieces)


class IdsTokenizer(Tokenizer):
    """No tokenizer at all: ready ids of a vocabulary whose size is all that is known. Adds nothing, encodes nothing.

    Args:
        path: ``ids:`` and the size of the vocabulary.

    Raises:
        ConfigError: it says no size.

    Example:
        >>> IdsTokenizer("ids:50257").decode([7, 8])
        '<7><8>'
    """

    def __init__(self, path: str) -> None:
        size = path.removeprefix(IDS)
        if not size.isdecimal() or not 1 <= int(size) <= 1 << 32:
            raise ConfigError("says no size", field="tokenizer", value=path, cure="Write e.g. ids:50257.")
        self.path, self.vocab_size = path, int(size)
        self.bos = self.eos = self.bos_id = self.eos_id = None
        self.special = ()
        self.fingerprint = _fingerprint(path.encode(), None, None)

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
            "encodes no text", field="tokenizer", value=self.path, cure="Give a tokenizer.json, or sources of ids."
        )


class _Piece(NamedTuple):
    """A document, or a piece of a long one."""

    document: int
    text: str
    opens: bool
    closes: bool


class FileTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library.

    Args:
        content: The ``tokenizer.json``.
        path: Where it came from, for messages and the ledger.
        bos: As in :class:`TokenizerConfig`.
        eos: As in :class:`TokenizerConfig`.
        declared: ``bos`` and ``eos`` that a file beside it declares; ``auto`` asks it when the usual names give no
            answer.

    Raises:
        ConfigError: it is no tokenizer, or has not the tokens that the policy names.
    """

    def __init__(
        self,
        content: bytes,
        path: str,
        bos: str | None = None,
        eos: str | None = "auto",
        declared: dict[str, str] | None = None,
    ) -> None:
        # Set or not, it is on by default; set, the library does not warn each time that a process forks later.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self.path = path
        self._content = content
        canonical, self._tokenizer = _parse(content, path)
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = [str(token.content) for _, token in sorted(added.items()) if token.special]
        declared = declared or {}
        self.bos, self.bos_id = resolve_special("bos", bos, self.special, BOS_NAMES, self.id_of, declared.get("bos"))
        self.eos, self.eos_id = resolve_special("eos", eos, self.special, EOS_NAMES, self.id_of, declared.get("eos"))
        self.fingerprint = _fingerprint(canonical, self.bos_id, self.eos_id)

    @property
    def content(self) -> bytes | None:
        return self._content

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        # The library hands out lists of ints; array.fromlist is the fastest way out of one (5 ns an id; numpy 13).
        ids = array("I")
        stops = np.zeros(len(texts) + 1, np.int64)
        for group in self._groups(texts):
            encodings = self._tokenizer.encode_batch_fast([p.text for p in group], add_special_tokens=False)
            for piece, encoding in zip(group, encodings, strict=True):
                if piece.opens and self.bos_id is not None:
                    ids.append(self.bos_id)
                ids.fromlist(encoding.ids)
                if piece.closes and self.eos_id is not None:
                    ids.append(self.eos_id)
                if piece.closes:
                    stops[piece.document + 1] = len(ids)
        return np.frombuffer(ids, np.uint32).astype(self.dtype), np.diff(stops)

    def encode_with_places(self, texts: Sequence[str]) -> list[Placed]:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Placed(np.array(e.ids, np.int64), np.array(e.offsets, np.int64).reshape(-1, 2)) for e in encodings]

    def id_of(self, token: str) -> int | None:
        return cast("int | None", self._tokenizer.token_to_id(token))

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def _groups(self, texts: Sequence[str]) -> Iterator[list[_Piece]]:
        """The texts, long ones in pieces, in groups that are encoded at once: what bounds the memory."""
        limit = batch_chars()
        group: list[_Piece] = []
        chars = 0
        for document, text in enumerate(texts):
            stops = [*cut_points(text, self._plain_ids), len(text)] if len(text) > PIECE_CHARS else [len(text)]
            start = 0
            for stop in stops:
                group.append(_Piece(document, text[start:stop], start == 0, stop == len(text)))
                chars += stop - start
                start = stop
                if chars >= limit:
                    yield group
                    group, chars = [], 0
        if group:
            yield group

    def _plain_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _fingerprint(canonical: bytes, bos_id: int | None, eos_id: int | None) -> str:
    policy = json.dumps({"bos_id": bos_id, "eos_id": eos_id}).encode()
    return "sha256:" + hashlib.sha256(canonical + b"\n" + policy).hexdigest()


def _parse(content: bytes, path: str) -> tuple[bytes, tokenizers.Tokenizer]:
    try:
        data = json.loads(content)
        # Both change what is encoded, unasked, or nothing at all: off, and no part of the fingerprint.
        data |= {"truncation": None, "padding": None}
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return canonical.encode(), tokenizers.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(
            f"is not a file of the tokenizers library ({error})",
            field="tokenizer",
            value=path,
            cure="Give a tokenizer.json, a folder that holds one, or `bytes`.",
        ) from error


def _read_tokenizer(path: str) -> tuple[bytes, str]:
    """The file's bytes and its folder."""
    try:
        for url, folder in ((files.join(path, FILE_NAME), path), (path, os.path.dirname(path))):
            content = None if url == path and files.is_local(url) and os.path.isdir(url) else files.read_bytes(url)
            if content is not None:
                return content, folder
    except OSError as error:
        raise ConfigError(f"cannot be read ({error})", field="tokenizer", value=path) from error
    there = "is a folder without tokenizer.json" if files.exists(path) else "does not exist"
    raise ConfigError(
        there,
        field="tokenizer",
        value=path,
        cure="Give a tokenizer.json, a folder that holds one, or `bytes`. Names of models are not looked up:"
        " download the model's tokenizer.json first.",
    )
