"""Conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.batch.masks import trained_turns
from headrace.ingest.chat_template import (
    Given,
    TurnsError,
)
from headrace.ingest.choices import Mask
from headrace.ingest.conversations import (
    Message,
)
from headrace.ingest.documents import Document
from headrace.ingest.kinds.kind import LOSS_MASK
from headrace.ingest.kinds.marked import MarkedKind, turns_of
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    string_of,
)
from headrace.ingest.source import (
    ChatConfig,
)

_LAST_ANSWERS: tuple[Mask, ...] = ("last_assistant_turn", "last_assistant_message")
"""Masks for templates that render earlier answers otherwise than the last."""


class ChatKind(MarkedKind):
    """One conversation, one document."""

    own_leaves = (LOSS_MASK,)

    def _documents(self, record: Fields) -> Sequence[Document]:
        messages = self._conversation(record)
        extras = self._template_extras(record)
        how = self.config.chat
        chat = self._chat()
        marks = self._training_marks(messages, "messages")
        if how.mask in ("generation", "all"):
            text, spans = chat.render_marked(messages, extras)
            if how.mask == "all":
                spans = ((0, len(text)),)
            spans = self._without_masked(spans, messages, marks, extras)
        else:
            trained_turns = _wanted_turns(messages, marks, how)
            try:
                text, spans = chat.spans_of_turns(messages, trained_turns, extras)
            except TurnsError as bad:
                cure = f"{bad.cure} {self._cure_by_mask(messages, marks, extras)}".strip()
                raise BadRecordError(bad.problem, cure) from None
        unused = self._unwritten(messages, text, extras, "messages")
        return (self._document(record, text, spans, unused=unused),)

    def _cure_by_mask(
        self, messages: Sequence[Message], marks: Sequence[bool | None], given: Given
    ) -> str:
        """The mask of fewer answers that the template renders one after the other; empty if there
        is none.
        """
        if self.config.chat.roles != ["assistant"]:
            return ""
        for mask in _LAST_ANSWERS:
            trained_turns = _wanted_turns(messages, marks, replace(self.config.chat, mask=mask))
            try:
                _, spans = self._chat().spans_of_turns(messages, trained_turns, given)
            except BadRecordError:
                continue
            if spans:
                return f"Or train on the last answer alone: --mask {mask}."
        return ""

    def _conversation(self, record: Fields) -> list[dict[str, Any]]:
        """The messages of a record: its list of them, or its question and its answer."""
        if self.config.field_of("chat", "messages") is not None:
            messages = self._messages(record)
        else:
            if self._field(record, "label") is False:
                raise BadRecordError(
                    f"holds an answer that was rejected ({self._field_name('label')}: false),"
                    " which would be trained on",
                    "To train on rejected ones, too, leave the label unused: --field label=none.",
                )
            context = self._field(record, "context")
            question_turns = turns_of(
                self._field(record, "question"), "user", self._field_name("question")
            )
            if context:
                text = string_of(context, self._field_name("context"))
                question_turns[-1]["content"] = f"{question_turns[-1]['content']}\n\n{text}"
            answer = turns_of(
                self._field(record, "answer"), "assistant", self._field_name("answer")
            )
            messages = [*question_turns, *answer]
        return self._with_system(record, messages)


def _wanted_turns(
    messages: Sequence[Message], marks: Sequence[bool | None], how: ChatConfig
) -> list[bool]:
    """The messages that are trained on: those that the mask chooses, but for the
    ones marked false.
    """
    roles = [str(message["role"]) for message in messages]
    if how.mask == "customized" and None in marks:
        raise BadRecordError(
            "holds a message that does not say whether it is trained on",
            'With mask customized each has "trainable": true or false (or "weight": 1 or 0).',
        )
    chosen = (
        [role in how.roles for role in roles]
        if how.mask == "roles"
        else trained_turns(roles, how.mask, marks)
    )
    return [is_chosen and mark is not False for is_chosen, mark in zip(chosen, marks, strict=True)]
