"""Prompts, which a model continues."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ingest.conversations import (
    from_json,
)
from headrace.ingest.documents import Document
from headrace.ingest.kinds.marked import MarkedKind, turns_of
from headrace.ingest.records import (
    Fields,
)


class PromptsKind(MarkedKind):
    """One prompt, one document: the text that a model continues."""

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt = from_json(self._field(record, "prompt"))
        if isinstance(prompt, str) and self._keeps_texts(record):
            return (self._document(record, prompt, framed=(True, False)),)
        turns = turns_of(prompt, "user", self._field_name("prompt"))
        messages = self._with_system(record, turns)
        extras = self._template_extras(record)
        text = self._chat().render(messages, extras, ask=True)
        unused = self._unwritten(messages, text, extras, "prompt", ask=True)
        return (self._document(record, text, unused=unused),)
