"""Finds documents of a cache by their id, and decodes them: text, mask and other leaves.

Price of a search: it reads all lengths of the id leaf, and the values of documents whose id is as
long as one that is looked for; memory for some ten thousand documents at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.cli.shown import say
from headrace.data.described import trained_runs, value_of
from headrace.errors import ConfigError
from headrace.ingest.tokenize import decode
from headrace.order.intervals import Intervals
from headrace.order.permutation import Feistel
from headrace.store.layout import MASKS

if TYPE_CHECKING:
    from headrace.ingest.tokenize import Tokenizer
    from headrace.store.cache import TokenCache
    from headrace.store.leaf import CacheLeaf

_HEAD_IDS = 240
_TAIL_IDS = 40
_DOCUMENTS = 1 << 16
_VALUES = 1 << 25
_TAIL_BYTES = 8  # of an id, that are compared first


@dataclass(frozen=True)
class Sample:
    """A decoded document; of a long one, both ends. Fields unknown to the cache are
    None or empty.
    """

    document: int
    tokens: int
    bos: str | None
    text: str
    left_out: int  # tokens between text and tail
    tail: str
    eos: str | None
    trained_tokens: int | None = None
    # The text in pieces, each with whether it is trained on.
    runs: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    tail_runs: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    leaves: dict[str, Any] = field(default_factory=dict[str, Any])


def say_undecoded(cache: TokenCache, tokenizer: object) -> None:
    """Says what shows text, where a cache has ids only because it names its tokenizer without a
    copy of it.
    """
    from headrace.ingest.tokenize import named_only

    if tokenizer is None and named_only(cache.ledger.tokenizer):
        path = cache.ledger.tokenizer["path"]
        say(
            f"{cache.path} has no copy of its tokenizer, {path}: --tokenizer FILE shows text",
            err=True,
        )


def sample(
    cache: TokenCache, tokenizer: Tokenizer | None, document: int, *, whole: bool = False
) -> Sample:
    """Decodes the document at a position (without a tokenizer: lists its ids); of a long one only
    both ends, unless ``whole``. The sample has the document's number, which differs from its
    position in a shuffled cache. Where a mask says what is trained on, the tokens of start and end
    are part of the text, as in ``headrace run cat``: the mask marks them as any others.
    """
    ids = cache.document(document)
    mask = _mask(cache, document, int(ids.size))
    first = 0
    last = int(ids.size)
    bos = eos = None
    if tokenizer is not None and mask is None:
        if last and tokenizer.bos_id is not None and int(ids[0]) == tokenizer.bos_id:
            bos = tokenizer.bos
            first = 1
        if last > first and tokenizer.eos_id is not None and int(ids[-1]) == tokenizer.eos_id:
            eos = tokenizer.eos
            last = last - 1
    left_out = 0 if whole else max(0, last - first - _HEAD_IDS - _TAIL_IDS)
    head = slice(first, first + _HEAD_IDS if left_out else last)
    tail = slice(last - _TAIL_IDS if left_out else last, last)

    def runs(part: slice) -> list[tuple[str, bool]]:
        return [] if mask is None else trained_runs(tokenizer, ids[part], mask[part])

    return Sample(
        document=int(cache.originals([document])[0]),
        tokens=int(ids.size),
        bos=bos,
        text=decode(tokenizer, ids[head]),
        left_out=left_out,
        tail=decode(tokenizer, ids[tail]),
        eos=eos,
        trained_tokens=None if mask is None else int(mask.sum()),
        runs=runs(head),
        tail_runs=runs(tail),
        leaves=leaf_values(cache, document),
    )


def leaf_values(cache: TokenCache, document: int) -> dict[str, Any]:
    """The values of a document's leaves other than masks: texts, numbers, lists of numbers."""
    names = (name for name in cache.leaves if name not in MASKS)
    return {name: value_of(cache, name, cache.leaf(name).document(document)) for name in names}


def drawn(documents: Intervals, count: int, seed: int) -> list[int]:
    """Draws ``count`` of these documents (all, if there are fewer) without repetition."""
    if (total := documents.total) == 0:
        return []
    return sorted(
        documents.numbers(Feistel(total, seed=seed)(np.arange(min(count, total)))).tolist()
    )


def _mask(cache: TokenCache, document: int, tokens: int) -> np.ndarray | None:
    """Which tokens of a document are trained on; None if the cache has no mask with a value for
    each.
    """
    for name in MASKS:
        if name in cache.leaves:
            values = cache.leaf(name).document(document)
            if values.size == tokens:
                return values != 0
    return None


def documents_with_ids(
    cache: TokenCache,
    wanted_ids: Collection[str],
    leaf: str,
    advance: Callable[[int], None] | None = None,
    *,
    field: str = "--id",
) -> dict[str, list[int]]:
    """Positions of the documents with some ids: texts, or numbers if the leaf holds numbers; of
    those that any document has. ``field`` names the ids in errors.

    Raises:
        ConfigError: the cache has no such leaf, or the leaf holds no ids.
    """
    if leaf not in cache.leaves:
        others = f"; its leaves are {', '.join(cache.leaves)}" if cache.leaves else ""
        raise ConfigError(
            f"{cache.path} has no leaf of this name to find ids in{others}",
            field="--id-leaf",
            value=leaf,
            cure="Name the leaf that holds them, or build the cache with --leaf id=FIELD.",
        )
    id_leaf = cache.leaf(leaf)
    if id_leaf.kind == "fixed":
        id_of = {_number(text, id_leaf.dtype, leaf, field): text for text in wanted_ids}
    elif id_leaf.dtype.name == "uint8":
        id_of = {text.encode(errors="surrogateescape"): text for text in wanted_ids}
    else:
        raise ConfigError(
            "holds lists of numbers, not ids",
            field="--id-leaf",
            value=leaf,
            cure="Name another leaf.",
        )
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for start, lengths in _stretches(id_leaf):
        for position, value in _matches(id_leaf, id_of.keys(), start, lengths):
            positions[id_of[value]].append(position)
        if advance is not None:
            advance(lengths.size)
    # The padding of packs has zeros where documents have ids.
    of_documents = {text: _without_padding(cache, some) for text, some in positions.items()}
    return {text: some for text, some in of_documents.items() if some}


def _without_padding(cache: TokenCache, positions: list[int]) -> list[int]:
    numbers = cache.originals(positions)
    return [
        position
        for position, number in zip(positions, numbers, strict=True)
        if number < cache.num_originals
    ]


def _number(text: str, dtype: np.dtype[np.generic], leaf: str, field: str) -> bytes:
    """The stored bytes of a number."""
    try:
        return np.array(float(text) if dtype.kind == "f" else int(text), dtype).tobytes()
    except (ValueError, OverflowError):
        cure = f"The leaf {leaf!r} holds numbers ({dtype.name})."
        raise ConfigError("is not a number", field=field, value=text, cure=cure) from None


def _stretches(leaf: CacheLeaf) -> Iterator[tuple[int, np.ndarray]]:
    """Stretches of documents whose values fit into memory together: the first document, and the
    lengths of all.
    """
    for start in range(0, leaf.num_documents, _DOCUMENTS):
        lengths = leaf.lengths(start, min(start + _DOCUMENTS, leaf.num_documents))
        cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // _VALUES)) + 1
        yield from (
            (start + a, lengths[a:b]) for a, b in pairwise([0, *cuts.tolist(), lengths.size])
        )


def _matches(
    leaf: CacheLeaf, wanted_values: Collection[bytes], start: int, lengths: np.ndarray
) -> Iterator[tuple[int, bytes]]:
    """Documents from ``start`` on whose values are among these, with their values.

    1. Only documents that are as long as one of them are looked at.
    2. Of these, only those that end alike: few others do, and one look-up tells it for all.
    3. Those that are left are compared as a whole.
    """
    sizes = lengths * leaf.dtype.itemsize
    right = np.flatnonzero(np.isin(sizes, [len(value) for value in wanted_values]))
    if right.size == 0:
        return
    content = leaf.values(start, start + lengths.size).view(np.uint8)
    ends = np.cumsum(sizes)[right]
    tails = np.zeros(right.size, np.uint64)
    for back in range(min(_TAIL_BYTES, int(sizes[right].max()))):
        has_byte = sizes[right] > back
        tails[has_byte] |= content[ends[has_byte] - 1 - back].astype(np.uint64) << np.uint64(
            8 * back
        )
    wanted_tails = [int.from_bytes(value[-_TAIL_BYTES:], "big") for value in wanted_values]
    alike = np.isin(tails, np.array(wanted_tails, np.uint64))
    for number, end in zip(right[alike].tolist(), ends[alike].tolist(), strict=True):
        value = content[end - int(sizes[number]) : end].tobytes()
        if value in wanted_values:
            yield start + number, value
