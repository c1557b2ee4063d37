"""Texts."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ingest.documents import Document
from headrace.ingest.kinds.kind import DocumentKind, EncodedBatch
from headrace.ingest.records import (
    Fields,
    string_of,
    utf8_length,
)


class TextKind(DocumentKind):
    """One text, one document."""

    def documents(self, record: Fields) -> Sequence[Document]:
        text = string_of(
            self._field(record, "text"), self._field_name("text"), self._cure_of("text")
        )
        return (Document(text, utf8_length(text), self._leaves(record) if self._asked else ()),)

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        return EncodedBatch(*self.tokenizer.encode_batch([d.text for d in documents]), {})
