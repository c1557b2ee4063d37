"""Conversations, pairs and prompts: text of which some characters are trained on."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.batch.masks import trained_turns
from headrace.ingest.chat_template import (
    ChatTemplate,
    Given,
    Spans,
    TurnsError,
    refuse_marks,
)
from headrace.ingest.choices import Mask
from headrace.ingest.conversations import (
    Messages,
    fields_of_parts,
    from_json,
    prompt_of_dialogues,
    read_messages,
    read_tools,
    read_variables,
    training_marks,
)
from headrace.ingest.cut_points import MAX_PIECE_CHARS
from headrace.ingest.documents import (
    CHOSEN,
    LOSS_MASK,
    PROMPT_LENGTH,
    Document,
    DocumentKind,
    EncodedBatch,
)
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    FieldValue,
    cure_of_shape,
    joined,
    sizes_of,
    type_name,
    utf8_length,
)
from headrace.ingest.source import (
    OF_TEMPLATES,
    ChatConfig,
)
from headrace.store.ragged import LeafValues

_OF_MESSAGES = ("messages", "question", "answer", "prompt", "chosen", "rejected")
"""What may hold messages."""


_FOR_TEMPLATES = {
    "system": "a system message",
    "tools": "tools",
    "variables": "variables of the template",
}
"""What a record may have for a template besides messages, in words."""


class MarkedKind(DocumentKind):
    """What chat, preference and prompts have in common: text of which some characters are trained
    on.
    """

    def _encode(self, documents: Sequence[Document]) -> EncodedBatch:
        pieces = [p for d in documents for p in (d.text[: d.cut], d.text[d.cut :])]
        encoded = self.tokenizer.encode_with_places(pieces)
        opening, closing = self.tokenizer.frame
        ids: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        prompts: list[int] = []
        for document, prefix, suffix in zip(documents, encoded[::2], encoded[1::2], strict=True):
            spans = document.spans or ()
            opens = opening if document.framed[0] else opening[:0]
            closes = closing if document.framed[1] else closing[:0]
            ids.append(np.concatenate([opens, prefix.ids, suffix.ids, closes]))
            mask = [
                np.zeros(opens.size, bool),
                marked(prefix.spans, spans),
                marked(suffix.spans + document.cut, spans),
            ]
            masks.append(np.concatenate([*mask, np.ones(closes.size, bool)]).astype(np.uint8))
            prompts.append(opens.size + prefix.ids.size)
        lengths = sizes_of(ids)
        tokens = np.concatenate([opening[:0], *ids]).astype(self.tokenizer.dtype)
        leaves: dict[str, LeafValues] = {}
        if LOSS_MASK in self.own_leaves:
            leaves[LOSS_MASK.name] = joined(LOSS_MASK, masks)
        if PROMPT_LENGTH in self.own_leaves:
            leaves[PROMPT_LENGTH.name] = np.array(prompts, np.int32), None
            leaves[CHOSEN.name] = np.array([d.label for d in documents], np.uint8), None
        return EncodedBatch(tokens, lengths, leaves)

    def documents(self, record: Fields) -> Sequence[Document]:
        if self.config.special_tokens_in_text == "error":
            values = [read.of(record).value for read in self.reads.values()]
            texts = [
                text for value in values for text in (*_strings(value), "".join(_spoken(value)))
            ]
            self.tokenizer.reading_special("error").encode_batch(texts)
        documents = self._documents(record)
        conversations = [self._read(record, name) for name in _OF_MESSAGES]
        unread = [
            f"{one.field}[].content[].{field}"
            for one in conversations
            for field in fields_of_parts(one.value)
        ]
        if unread:
            documents = [one._replace(unused=(*one.unused, *unread)) for one in documents]
        return documents

    @abc.abstractmethod
    def _documents(self, record: Fields) -> Sequence[Document]:
        """The documents of a record, whatever special tokens it contains."""

    def _chat(self, record: Fields) -> ChatTemplate:
        """The template, with what the record gives to it."""
        if self.template is None:
            raise BadRecordError(
                "holds messages, and there is no chat template",
                "Put chat_template.jinja beside the tokenizer.json, or pass --chat-template FILE.",
            )
        return self.template.with_extras(self._template_extras(record))

    def _system(self, record: Fields) -> str:
        """The text of a record's system message; empty if there is none, or nothing in it."""
        system = self._read(record, "system")
        text = system.text() if system.value else ""
        return text if text.strip() else ""

    def _with_system(self, record: Fields, messages: Messages) -> Messages:
        """The messages after the system message of the record, if it has one besides them."""
        text = self._system(record)
        system = {"role": "system", "content": text}
        if not text or messages[0] == system:
            return messages
        if messages[0]["role"] == "system":
            field_value = self._read(record, "system")
            raise field_value.bad(
                f"holds a system message, and another text for it in {field_value}"
            )
        refuse_marks([system])
        return [system, *messages]

    def _keeps_texts(self, record: Fields) -> bool:
        """Whether texts of a record stay as they are. If a field of what templates take besides
        messages is named, they are turns of the template in every record.

        Raises:
            BadRecordError: none is named, and there is something for a template.
        """
        if any(self.is_required(name) for name in OF_TEMPLATES):
            return False
        extras = self._template_extras(record)
        values = {
            "system": self._system(record),
            "tools": extras.tools,
            "variables": extras.variables,
        }
        for name, value in values.items():
            if not value:
                continue
            field = self.reads[name].field
            options = f"--field {name}={field}{'' if self.template else ' --chat-template FILE'}"
            if not self._read(record, "prompt").value:
                prompt = cure_of_shape("prompt", record).removeprefix("Say ").rstrip(".")
                options = f"{prompt} {options}".strip()
            raise BadRecordError(
                f"holds plain texts, and {_FOR_TEMPLATES[name]} for them in field {field!r}",
                f"Say {options} to make turns of them with the chat template: of the system, the"
                f" user and the assistant. Or leave it unused: --field {name}=none.",
            )
        return True

    def _template_extras(self, record: Fields) -> Given:
        """What the record gives to the template besides messages."""
        return Given(
            read_tools(self._read(record, "tools")),
            read_tools(self._read(record, "documents")),
            read_variables(self._read(record, "variables")),
        )

    def _without_masked(
        self,
        spans: Spans,
        messages: Messages,
        marks: Sequence[bool | None],
        chat: ChatTemplate,
    ) -> Spans:
        """The characters that are trained on, without the messages that are marked false."""
        masked = [mark is False for mark in marks]
        if not any(masked):
            return spans
        if chat.has_marks and self.config.chat.mask == "generation":
            return chat.spans_without(messages, masked)
        _, hidden = chat.spans_of_turns(messages, masked)
        return without_spans(spans, hidden)

    def _unwritten(
        self,
        messages: Messages,
        text: str,
        chat: ChatTemplate,
        field: str,
        *,
        ask: bool = False,
    ) -> tuple[str, ...]:
        """The fields of a conversation, and of what is given to the template with it, that the
        template leaves out of its text.

        Raises:
            BadRecordError: it leaves out a message altogether.
        """
        extras = chat.extras
        left_out = chat.left_out(messages, text, ask=ask)
        if left_out.lost:
            first = left_out.lost[0]
            turn = f"turn {first + 1} ({messages[first]['role']}) of field {field!r}"
            raise BadRecordError(
                f"holds words that the chat template leaves out: {turn}",
                "Give a template that writes such turns: --chat-template FILE.",
            )
        names = {f"{field}[].{one}" for silent in left_out.fields for one in silent}
        for optional, value in (("tools", extras.tools), ("documents", extras.documents)):
            if value is not None and optional not in chat.variables_read:
                names.add(self.reads[optional].field)
        for variable in extras.variables.keys() - chat.variables_read:
            names.add(f"{self.reads['variables'].field}.{variable}")
        return tuple(names)

    def _document(
        self, record: Fields, text: str, spans: Spans | None = None, **more: Any
    ) -> Document:
        if len(text) > MAX_PIECE_CHARS:
            raise BadRecordError(
                f"is a {self.kind} document of {len(text):,} characters; at most"
                f" {MAX_PIECE_CHARS:,}",
                "Divide it into several records.",
            )
        return Document(text, utf8_length(text), self._leaves(record), spans, **more)


class PromptsKind(MarkedKind):
    """One prompt, one document: the text that a model continues."""

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt = from_json(self._read(record, "prompt"))
        if isinstance(prompt.value, str) and self._keeps_texts(record):
            return (self._document(record, prompt.value, framed=(True, False)),)
        messages = self._with_system(record, turns_of(prompt, "user"))
        chat = self._chat(record)
        text = chat.render(messages, ask=True)
        unused = self._unwritten(messages, text, chat, prompt.field, ask=True)
        return (self._document(record, text, unused=unused),)


_LAST_ANSWERS: tuple[Mask, ...] = ("last_assistant_turn", "last_assistant_message")
"""Masks for templates that render earlier answers otherwise than the last."""


class ChatKind(MarkedKind):
    """One conversation, one document."""

    own_leaves = (LOSS_MASK,)

    def _documents(self, record: Fields) -> Sequence[Document]:
        messages = self._conversation(record)
        chat = self._chat(record)
        how = self.config.chat
        field = self._read(record, "messages").field
        marks = training_marks(messages, field)
        if how.mask in ("generation", "all"):
            text, spans = chat.render_marked(messages)
            if how.mask == "all":
                spans = ((0, len(text)),)
            spans = self._without_masked(spans, messages, marks, chat)
        else:
            trained_turns = _wanted_turns(messages, marks, how)
            try:
                text, spans = chat.spans_of_turns(messages, trained_turns)
            except TurnsError as bad:
                cure = f"{bad.cure} {self._cure_by_mask(messages, marks, chat)}".strip()
                raise BadRecordError(bad.problem, cure) from None
        unused = self._unwritten(messages, text, chat, field)
        return (self._document(record, text, spans, unused=unused),)

    def _cure_by_mask(
        self, messages: Messages, marks: Sequence[bool | None], chat: ChatTemplate
    ) -> str:
        """The mask of fewer answers that the template renders one after the other; empty if there
        is none.
        """
        if self.config.chat.roles != ["assistant"]:
            return ""
        for mask in _LAST_ANSWERS:
            trained_turns = _wanted_turns(messages, marks, replace(self.config.chat, mask=mask))
            try:
                _, spans = chat.spans_of_turns(messages, trained_turns)
            except BadRecordError:
                continue
            if spans:
                return f"Or train on the last answer alone: --mask {mask}."
        return ""

    def _conversation(self, record: Fields) -> Messages:
        """The messages of a record: its list of them, or its question and its answer."""
        if "messages" in self.reads:
            messages = read_messages(self._read(record, "messages"))
            refuse_marks(messages)
        else:
            label = self._read(record, "label")
            if label.value is False:
                raise BadRecordError(
                    f"holds an answer that was rejected ({label.field}: false),"
                    " which would be trained on",
                    "To train on rejected ones, too, leave the label unused: --field label=none.",
                )
            messages = turns_of(self._read(record, "question"), "user")
            context = self._read(record, "context")
            if context.value:
                messages[-1]["content"] = f"{messages[-1]['content']}\n\n{context.text()}"
            messages += turns_of(self._read(record, "answer"), "assistant")
        return self._with_system(record, messages)


def _wanted_turns(messages: Messages, marks: Sequence[bool | None], how: ChatConfig) -> list[bool]:
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


class PreferenceKind(MarkedKind):
    """Two answers to one prompt: two documents."""

    own_leaves = (LOSS_MASK, PROMPT_LENGTH, CHOSEN)

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt, chosen, rejected = (
            from_json(self._read(record, name)) for name in ("prompt", "chosen", "rejected")
        )
        pair = (chosen, rejected)
        are_texts = all(isinstance(answer.value, str) for answer in pair)
        if are_texts and not isinstance(prompt.value, list | dict) and self._keeps_texts(record):
            return self._text_pair(record, prompt, pair)
        if not are_texts and not all(isinstance(answer.value, list | dict) for answer in pair):
            types = " and a ".join(type_name(answer.value) for answer in pair)
            raise BadRecordError(
                f"holds a {types} to choose from, not two texts or two lists of messages"
            )
        answers = [turns_of(answer, "assistant") for answer in pair]
        turns = None if prompt.value is None else turns_of(prompt, "user")
        if turns is None or all(
            a[0]["role"] != "assistant" for a in answers
        ):  # they hold their prompt themselves
            shared = next(
                (i for i, (a, b) in enumerate(zip(*answers, strict=False)) if a != b),
                min(map(len, answers)),
            )
            _check_prompt_is_in(answers[0][:shared], turns or [], prompt)
            turns = answers[0][:shared]
            answers = [a[shared:] for a in answers]
        if not turns or not all(answers):
            raise BadRecordError(
                "holds answers that share no prompt, or no answer after it",
                cure_of_shape("prompt", record)
                or "Name the field of the prompt: --field prompt=FIELD.",
            )
        turns = self._with_system(record, turns)
        chat = self._chat(record)
        question = chat.render(turns, ask=True)
        return tuple(
            self._answer(record, question, [*turns, *answer], field_value.field, label, chat)
            for field_value, label, answer in zip(pair, (1, 0), answers, strict=True)
        )

    def _text_pair(
        self, record: Fields, prompt_value: FieldValue, pair: Sequence[FieldValue]
    ) -> tuple[Document, ...]:
        """Two texts after a prompt, which dialogues that are one text hold themselves."""
        answers = [answer.text() for answer in pair]
        if prompt_value.value is None:
            prompt = prompt_of_dialogues(*answers)
            answers = [answer.removeprefix(prompt) for answer in answers]
        else:
            prompt = prompt_value.text()
            begin_with_it = prompt and all(answer.startswith(prompt) for answer in answers)
            if begin_with_it and not self.is_required("prompt"):
                raise BadRecordError(
                    "has a prompt, and both answers begin with it: whether it comes before them"
                    " cannot be told",
                    "Say --field prompt=prompt if it does, or --field prompt=none if the answers"
                    " hold it.",
                )
        for field_value, answer in zip(pair, answers, strict=True):
            if not answer and self.tokenizer.eos_id is None:
                raise BadRecordError(
                    f"holds an empty answer in {field_value}",
                    "With an end token after it, it can be compared: --eos auto.",
                )
        return tuple(
            self._document(
                record,
                prompt + answer,
                ((len(prompt), len(prompt) + len(answer)),),
                cut=len(prompt),
                framed=(True, True),
                label=label,
            )
            for label, answer in zip((1, 0), answers, strict=True)
        )

    def _answer(
        self,
        record: Fields,
        question: str,
        messages: Messages,
        field: str,
        label: int,
        chat: ChatTemplate,
    ) -> Document:
        text, spans = chat.render_marked(messages)
        if not text.startswith(question):
            raise BadRecordError(
                "its prompt is rendered otherwise with an answer than alone, so they cannot be"
                " parted"
            )
        cut = len(question)
        if not (chat.has_marks and self.config.chat.mask == "generation"):
            spans = ((cut, len(text)),)
        marks = training_marks(messages, field)
        spans = self._without_masked(spans, messages, marks, chat)
        answer_spans = tuple((max(a, cut), b) for a, b in spans if b > cut)
        if not answer_spans:
            # Its probability would be 1 whatever the model says, so the pair would compare the
            # other answer alone.
            raise BadRecordError(
                f"holds an answer in field {field!r} of which nothing is trained on",
                "Answers of pairs are compared whole: leave weight: 0 and the like out of them.",
            )
        unused = self._unwritten(messages, text, chat, field)
        return self._document(record, text, answer_spans, cut=cut, label=label, unused=unused)


def _check_prompt_is_in(shared: Messages, turns: Messages, prompt: FieldValue) -> None:
    """Raises BadRecordError if the turns that both answers begin with lack a text of the prompt."""
    texts = {str(turn["content"]).strip() for turn in shared}
    for turn in turns:
        if str(turn["content"]).strip() not in texts:
            raise prompt.bad(
                f"has words in {prompt} that the answers, which hold their prompt"
                " themselves, do not have"
            )


def turns_of(field_value: FieldValue, role: str) -> Messages:
    """A text as one message of a role, or messages as they are."""
    field_value = from_json(field_value)
    turns = (
        read_messages(field_value)
        if isinstance(field_value.value, list | dict)
        else [{"role": role, "content": field_value.text()}]
    )
    refuse_marks(turns)
    return turns


def without_spans(spans: Spans, masked: Spans) -> Spans:
    """What is left of increasing spans without the characters of others.

    Example:
        >>> without_spans(((0, 4), (6, 9)), ((2, 3), (5, 7)))
        ((0, 2), (3, 4), (7, 9))
    """
    rest = list(spans)
    for start, stop in masked:
        pieces = [(a, min(b, start)) for a, b in rest] + [(max(a, stop), b) for a, b in rest]
        rest = sorted({(a, b) for a, b in pieces if a < b})
    return tuple(rest)


def _strings(value: Any) -> Iterator[str]:
    """All strings within a JSON value, including names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _strings(pair)


def _spoken(value: Any) -> Iterator[str]:
    """The texts of messages, in order, which a template may join."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _spoken(one)
    elif isinstance(value, dict):
        yield from _spoken(value.get("content", value.get("text")))


def marked(places: np.ndarray, spans: Spans) -> np.ndarray:
    """The tokens with a character within a span.

    Returns:
        bool ``[n]``.

    Example:
        >>> marked(np.array([[0, 2], [2, 3], [3, 6]]), ((2, 4),))
        array([False,  True,  True])
    """
    if not spans or not len(places):
        return np.zeros(len(places), bool)
    starts, stops = np.array(spans, np.int64).T
    nearest = np.searchsorted(stops, places[:, 0], side="right")
    inside = nearest < len(stops)
    return (
        inside
        & (starts[np.minimum(nearest, len(stops) - 1)] < places[:, 1])
        & (places[:, 1] > places[:, 0])
    )
