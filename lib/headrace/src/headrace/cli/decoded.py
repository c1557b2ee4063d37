"""Documents of a cache, decoded: their text, what of it is trained on, and what else is kept of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from headrace.ingest.tokenize import Tokenizer
    from headrace.store.cache import TokenCache

ID_LEAF = "id"
_HEAD_IDS, _TAIL_IDS = 240, 40
_READS = 16


@dataclass(frozen=True)
class Sample:
    """A document, decoded.

    Attributes:
        document: Its number.
        tokens: Its length, special tokens included.
        bos: The special token that it begins with, or None.
        text: Its text; of a long one the beginning.
        left_out: Tokens not shown between ``text`` and ``tail``.
        tail: The end of a long one.
        eos: The special token that it ends with, or None.
        trained_tokens: Its tokens that are trained on; None if the cache does not say.
        runs: ``text`` in runs, each with whether it is trained on; empty if the cache does not say.
        tail_runs: The same of ``tail``.
        leaves: What else is kept of it, by leaf: a text, a number or a list of numbers.
    """

    document: int
    tokens: int
    bos: str | None
    text: str
    left_out: int
    tail: str
    eos: str | None
    trained_tokens: int | None = None
    runs: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    tail_runs: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    leaves: dict[str, Any] = field(default_factory=dict[str, Any])


def tokenizer_of(cache: TokenCache, instead: str | None = None) -> Tokenizer | None:
    """The tokenizer that a cache was built with, if it has a copy; a cache may be made of ready ids.

    Args:
        cache: The cache.
        instead: A tokenizer to take for it.

    Raises:
        ConfigError: ``instead`` is none.
        CacheCorruptError: the copy is missing or damaged.
    """
    from headrace.errors import ConfigError
    from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer, recorded_tokenizer

    if instead is not None:
        for bos, eos in (("auto", "auto"), ("none", "auto")):
            with suppress(ConfigError):  # it has no such token
                return load_tokenizer(TokenizerConfig(instead, bos, eos))
        return load_tokenizer(TokenizerConfig(instead, "none", "none"))
    record = cache.ledger.tokenizer
    known = record.get("path") == "bytes" or record.get("file") is not None
    return recorded_tokenizer(cache.path, record) if known else None


def decode(tokenizer: Tokenizer | None, ids: np.ndarray) -> str:
    """The text of ids; without a tokenizer the ids themselves."""
    return " ".join(map(str, ids.tolist())) if tokenizer is None else tokenizer.decode(ids.tolist())


def sample(cache: TokenCache, tokenizer: Tokenizer | None, document: int, *, whole: bool = False) -> Sample:
    """Decodes a document (without a tokenizer: spells its ids); if it is long its two ends, unless ``whole``."""
    ids = cache.document(document)
    first, last = 0, int(ids.size)
    bos = eos = None
    if tokenizer is not None:
        if last and tokenizer.bos_id is not None and int(ids[0]) == tokenizer.bos_id:
            bos, first = tokenizer.bos, 1
        if last > first and tokenizer.eos_id is not None and int(ids[-1]) == tokenizer.eos_id:
            eos, last = tokenizer.eos, last - 1
    left_out = 0 if whole else max(0, last - first - _HEAD_IDS - _TAIL_IDS)
    cut, resume = (first + _HEAD_IDS, last - _TAIL_IDS) if left_out else (last, last)
    mask = _mask(cache, document, int(ids.size))
    head, tail = (decode(tokenizer, ids[a:b]) for a, b in ((first, cut), (resume, last)))
    runs: list[list[tuple[str, bool]]] = [[], []]
    if mask is not None:
        runs = [trained_runs(tokenizer, ids[a:b], mask[a:b]) for a, b in ((first, cut), (resume, last))]
    trained = None if mask is None else int(mask.sum())
    values = leaf_values(cache, document)
    return Sample(document, int(ids.size), bos, head, left_out, tail, eos, trained, runs[0], runs[1], values)


def trained_runs(tokenizer: Tokenizer | None, ids: np.ndarray, mask: np.ndarray) -> list[tuple[str, bool]]:
    """The text of ids in runs, each with whether it is trained on."""
    import numpy as np

    places = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), int(ids.size)]
    return [(decode(tokenizer, ids[x:y]), bool(mask[x])) for x, y in pairwise(places) if y > x]


def leaf_values(cache: TokenCache, document: int) -> dict[str, Any]:
    """What is kept of a document beside tokens and masks: texts, numbers, lists of numbers."""
    from headrace.data.masks import MASKS

    return {
        name: value_of(cache, name, cache.leaf(name).document(document)) for name in cache.leaves if name not in MASKS
    }


def document_ids(cache: TokenCache, documents: Sequence[int], leaf: str = ID_LEAF) -> dict[int, Any]:
    """The ids of documents, if the cache keeps them."""
    if leaf not in cache.leaves:
        return {}
    wanted, held = sorted(set(documents)), cache.leaf(leaf)
    with ThreadPoolExecutor(_READS) as pool:
        return {d: value_of(cache, leaf, v) for d, v in zip(wanted, pool.map(held.document, wanted), strict=True)}


def value_of(cache: TokenCache, name: str, values: np.ndarray) -> Any:
    """Values of a leaf as one reads them: bytes that are meant as text are text."""
    leaf = cache.leaf(name)
    if leaf.kind == "fixed":
        return values[0].item()
    if leaf.dtype.name != "uint8":
        return values.tolist()
    said = cache.ledger.metadata.get("source", {}).get("leaves", {}).get(name, {}).get("dtype")
    if said not in (None, "text"):
        return values.tolist()
    try:
        return values.tobytes().decode()
    except UnicodeDecodeError:
        return values.tolist()


def drawn(documents: int, count: int, seed: int) -> list[int]:
    """Numbers of ``count`` documents (all, if there are fewer), drawn without repeating."""
    import numpy as np

    from headrace.index.permutation import Feistel

    if documents == 0:
        return []
    return sorted(Feistel(documents, seed=seed)(np.arange(min(count, documents))).tolist())


def _mask(cache: TokenCache, document: int, tokens: int) -> np.ndarray | None:
    """Which tokens of a document are trained on; None if the cache does not say of each."""
    from headrace.data.masks import MASKS

    for name in MASKS:
        if name in cache.leaves:
            values = cache.leaf(name).document(document)
            if values.size == tokens:
                return values != 0
    return None
