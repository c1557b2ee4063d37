"""Rows of a step as JSON values, and as a preview: where each comes from, and its text.

Price: reading the rows' own tokens, columns and ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.data.columns import MASK
from headrace.data.provenance import (
    StepRows,
    read_columns_of_spans,
    read_spans,
    removed_spans,
    spans_of_rows,
)
from headrace.errors import redact
from headrace.ingest.tokenize import TokenizerConfig, cache_tokenizer, decode
from headrace.store.cache import TokenCache

if TYPE_CHECKING:
    from headrace.ingest.tokenize import Tokenizer

_ID_LEAF = "id"
_SHOWN_FILES = 2
_SHOWN_VALUES = 4
_READS = 16


def described_rows(
    rows: StepRows,
    places: Sequence[int],
    id_leaf: str = _ID_LEAF,
    tokenizer: str | None = None,
    of_config: TokenizerConfig | None = None,
) -> list[dict[str, Any]]:
    """Rows as JSON values, with the text of each span; ``tokenizer``, or else the one that the
    config names, is for caches that do not keep theirs.
    """
    spans = spans_of_rows(rows, np.unique(np.asarray(places, np.int64)))
    tokens = read_spans(rows, spans)
    columns = read_columns_of_spans(rows, spans)
    decoders = {
        number: cache_tokenizer(rows.caches[number]) for number in set(spans.source.tolist())
    }
    without = [number for number, decoder in decoders.items() if decoder is None]
    if tokenizer is not None:
        without = without or [*decoders]  # refused: each has its own
    elif of_config is not None:
        tokenizer = of_config.path
    if tokenizer is not None:
        decoders |= {number: cache_tokenizer(rows.caches[number], tokenizer) for number in without}
    ids = {
        number: document_ids(cache, spans.document[spans.source == number].tolist(), id_leaf)
        for number, cache in enumerate(rows.caches)
        if number in decoders
    }
    removed = removed_spans(rows, spans)
    originals = lru_cache(None)(lambda source, document: rows.caches[source].original(document))

    @lru_cache(None)
    def tokens_of(source: int, document: int) -> int:
        cache = rows.caches[source]
        return sum(int(cache.lengths(k, k + 1)[0]) for k in cache.pieces_of(document))

    spans_of_row: dict[int, list[dict[str, Any]]] = {}
    for k, row in enumerate(spans.row.tolist()):
        source = int(spans.source[k])
        document = int(spans.document[k])
        original = originals(source, document)
        one: dict[str, Any] = {
            "column": int(spans.column[k]),
            "tokens": int(spans.size[k]),
            "part": original.part,
            "files": original.files,
            "document": original.number,
            "offset": original.offset + int(spans.offset[k]),
            "document_tokens": tokens_of(source, document),
            "first_token": int(spans.token[k]),
            **({"id": ids[source][document]} if ids[source] else {}),
            "text": decode(decoders[source], tokens[k]),
        }
        mask = columns[k].pop(MASK, None)
        if removed[k]:  # the batch does not contain it
            one |= {"removed": True, "text": ""}
        elif mask is not None:
            mask = mask != 0
            one["trained_tokens"] = int(mask.sum())
            one["runs"] = trained_runs(decoders[source], tokens[k], mask)
        if columns[k] and not removed[k]:
            one["columns"] = {name: described_column(values) for name, values in columns[k].items()}
        spans_of_row.setdefault(row, []).append(one)
    return [_row(rows, row, spans_of_row[row]) for row in places]


def described_column(values: np.ndarray) -> dict[str, Any]:
    """A column of a span as JSON values: shape, range, mean, and the values of the first tokens."""
    return {
        "shape": list(values.shape),
        "min": values.min().item(),
        "mean": round(float(values.mean()), 6),
        "max": values.max().item(),
        "first": values[:_SHOWN_VALUES].tolist(),
    }


def _row(rows: StepRows, place: int, spans: list[dict[str, Any]]) -> dict[str, Any]:
    source = int(rows.source[place])
    return {
        "row": place,
        "example": int(rows.example[place]),
        "component": rows.names[int(rows.component[place])],
        "draw": int(rows.ordinal[place]),
        "epoch": int(rows.epoch[place]),
        "cache": redact(rows.caches[source].path),
        "row_of_source": int(rows.row[place]),
        "padding": rows.seq_len - sum(one["tokens"] for one in spans),
        "spans": spans,
    }


def document_ids(
    cache: TokenCache, documents: Sequence[int], leaf: str = _ID_LEAF
) -> dict[int, Any]:
    """The ids of documents, if the cache keeps them."""
    if leaf not in cache.leaves:
        return {}
    numbers = sorted(set(documents))
    id_leaf = cache.leaf(leaf)
    with ThreadPoolExecutor(_READS) as pool:
        return {
            d: value_of(cache, leaf, v)
            for d, v in zip(numbers, pool.map(id_leaf.document, numbers), strict=True)
        }


def value_of(cache: TokenCache, name: str, values: np.ndarray) -> Any:
    """Values of a leaf in readable form: bytes that hold text are decoded."""
    leaf = cache.leaf(name)
    if leaf.kind == "fixed":
        return values[0].item()
    if leaf.dtype.name != "uint8":
        return values.tolist()
    dtype = cache.ledger.metadata.get("source", {}).get("leaves", {}).get(name, {}).get("dtype")
    if dtype not in (None, "text"):
        return values.tolist()
    try:
        return values.tobytes().decode()
    except UnicodeDecodeError:
        return values.tolist()


def trained_runs(
    tokenizer: Tokenizer | None, ids: np.ndarray, mask: np.ndarray
) -> list[tuple[str, bool]]:
    """The text of ids in pieces, each with whether it is trained on."""
    bounds = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), int(ids.size)]
    return [(decode(tokenizer, ids[x:y]), bool(mask[x])) for x, y in pairwise(bounds) if y > x]


def one_of_files(files: Sequence[str]) -> str:
    """``from FILE``, or from one of several, the first of them named."""
    distinct = list(dict.fromkeys(files))
    if len(distinct) < 2:
        return f"from {distinct[0]}" if distinct else ""
    more = ", ..." if len(distinct) > _SHOWN_FILES else ""
    return f"from one of {len(distinct):,} files: {', '.join(distinct[:_SHOWN_FILES])}{more}"


@dataclass(frozen=True)
class PreviewSpan:
    """A run of tokens of one document.

    Attributes:
        document: Its number in the cache.
        files: The files that the part of the cache with this document was built from.
        offset: Tokens of the document before the span.
        tokens: Tokens of the span.
        text: Their text, or their ids if there is no tokenizer. Empty if the document was removed.
    """

    document: int
    files: tuple[str, ...]
    offset: int
    tokens: int
    text: str


@dataclass(frozen=True)
class PreviewRow:
    """One example: its number, its component and cache, and its spans from left to right."""

    example: int
    component: str
    cache: str
    spans: tuple[PreviewSpan, ...]

    @property
    def text(self) -> str:
        """The text of the whole row."""
        return "".join(span.text for span in self.spans)


class Preview(tuple[PreviewRow, ...]):
    """The rows that :func:`preview` returns. Printing it shows the beginning of each span."""

    shown_chars: int = 200

    def __repr__(self) -> str:
        lines: list[str] = []
        for row in self:
            lines.append(f"example {row.example:,}: {row.component or row.cache}")
            for span in row.spans:
                where = (
                    f"  document {span.document:,}, {span.tokens:,} tokens from {span.offset:,}: "
                )
                more = "..." if len(span.text) > self.shown_chars else ""
                lines.append(where + repr(span.text[: self.shown_chars]) + more)
        return "\n".join(lines)


def preview(rows: StepRows) -> Preview:
    """Rows of a dataset, decoded.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> rows = preview(dataset.rows_of_examples(np.array([0])))
        >>> rows[0].example, sum(span.tokens for span in rows[0].spans)
        (0, 8)
    """
    return Preview(
        PreviewRow(
            row["example"], row["component"], row["cache"], tuple(map(_preview_span, row["spans"]))
        )
        for row in described_rows(rows, range(len(rows)))
    )


def _preview_span(span: dict[str, Any]) -> PreviewSpan:
    files = tuple(str(file["path"]) for file in span["files"])
    return PreviewSpan(span["document"], files, span["offset"], span["tokens"], span["text"])
