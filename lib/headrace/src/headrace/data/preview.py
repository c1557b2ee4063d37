"""The text of examples, span by span, with the documents that they come from."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.data.provenance import StepRows, read_spans, removed_spans, spans_of_rows
from headrace.ingest.tokenize import cache_tokenizer, decode


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
    """Decodes rows of a dataset. Reads their tokens and the offsets of nearby documents.

    Example:
        >>> import headrace.testing
        >>> import numpy as np
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> rows = preview(dataset.rows_of_examples(np.array([0])))
        >>> rows[0].example, sum(span.tokens for span in rows[0].spans)
        (0, 8)
    """
    spans = spans_of_rows(rows)
    texts = [
        "" if removed else decode(cache_tokenizer(rows.caches[source]), tokens)
        for source, tokens, removed in zip(
            spans.source.tolist(), read_spans(rows, spans), removed_spans(rows, spans), strict=True
        )
    ]
    of_row: list[list[PreviewSpan]] = [[] for _ in range(len(rows))]
    for k, text in enumerate(texts):
        original = rows.caches[int(spans.source[k])].original(int(spans.document[k]))
        files = tuple(str(file["path"]) for file in original.files)
        span = PreviewSpan(original.number, files, int(spans.offset[k]), int(spans.size[k]), text)
        of_row[int(spans.row[k])].append(span)
    return Preview(
        PreviewRow(
            int(rows.example[k]),
            rows.names[int(rows.component[k])],
            rows.caches[int(rows.source[k])].path,
            tuple(of_row[k]),
        )
        for k in range(len(rows))
    )
