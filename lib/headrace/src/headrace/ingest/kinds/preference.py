"""Two answers to one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.ingest.chat_template import (
    Given,
)
from headrace.ingest.conversations import (
    from_json,
    prompt_of_dialogues,
)
from headrace.ingest.documents import Document
from headrace.ingest.kinds.kind import CHOSEN, LOSS_MASK, PROMPT_LENGTH
from headrace.ingest.kinds.marked import MarkedKind, turns_of
from headrace.ingest.records import (
    BadRecordError,
    Fields,
    cure_of_shape,
    string_of,
    type_name,
)


class PreferenceKind(MarkedKind):
    """Two answers to one prompt: two documents."""

    own_leaves = (LOSS_MASK, PROMPT_LENGTH, CHOSEN)

    def _documents(self, record: Fields) -> Sequence[Document]:
        prompt = from_json(self._field(record, "prompt"))
        chosen = from_json(self._field(record, "chosen"))
        rejected = from_json(self._field(record, "rejected"))
        are_texts = isinstance(chosen, str) and isinstance(rejected, str)
        if are_texts and not isinstance(prompt, list | dict) and self._keeps_texts(record):
            return self._text_pair(record, prompt, chosen, rejected)
        if not are_texts and not (
            isinstance(chosen, list | dict) and isinstance(rejected, list | dict)
        ):
            raise BadRecordError(
                f"holds a {type_name(chosen)} and a {type_name(rejected)} to choose from, not two"
                " texts or two lists of messages"
            )
        answers = [
            turns_of(answer, "assistant", self._field_name(name))
            for name, answer in (("chosen", chosen), ("rejected", rejected))
        ]
        extras = self._template_extras(record)
        turns = None if prompt is None else turns_of(prompt, "user", self._field_name("prompt"))
        if turns is None or all(
            a[0]["role"] != "assistant" for a in answers
        ):  # they hold their prompt themselves
            shared = next(
                (i for i, (a, b) in enumerate(zip(*answers, strict=False)) if a != b),
                min(map(len, answers)),
            )
            self._check_prompt_is_in(answers[0][:shared], turns or [])
            turns = answers[0][:shared]
            answers = [a[shared:] for a in answers]
        if not turns or not all(answers):
            raise BadRecordError(
                "holds answers that share no prompt, or no answer after it",
                cure_of_shape("prompt", record)
                or "Name the field of the prompt: --field prompt=FIELD.",
            )
        turns = self._with_system(record, turns)
        question = self._chat().render(turns, extras, ask=True)
        return tuple(
            self._answer(record, question, [*turns, *answer], label, extras)
            for label, answer in zip((1, 0), answers, strict=True)
        )

    def _check_prompt_is_in(self, shared: list[Any], prompt: list[Any]) -> None:
        """Raises BadRecordError if the turns that both answers begin with lack a text of the
        prompt.
        """
        texts = {str(turn["content"]).strip() for turn in shared}
        for turn in prompt:
            if str(turn["content"]).strip() not in texts:
                field = self._field_name("prompt")
                raise BadRecordError(
                    f"has words in field {field!r} that the answers, which hold their prompt"
                    " themselves, do not have",
                    self._cure_of("prompt"),
                )

    def _text_pair(
        self, record: Fields, prompt: Any, chosen: str, rejected: str
    ) -> tuple[Document, ...]:
        """Two texts after a prompt, which dialogues that are one text hold themselves."""
        if prompt is None:
            prompt = prompt_of_dialogues(chosen, rejected)
            chosen = chosen.removeprefix(prompt)
            rejected = rejected.removeprefix(prompt)
        prompt = string_of(prompt, self._field_name("prompt"), self._cure_of("prompt"))
        if (
            prompt
            and "prompt" in self.optional
            and chosen.startswith(prompt)
            and rejected.startswith(prompt)
        ):
            raise BadRecordError(
                "has a prompt, and both answers begin with it: whether it comes before them cannot"
                " be told",
                "Say --field prompt=prompt if it does, or --field prompt=none if the answers hold"
                " it.",
            )
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if not answer and self.tokenizer.eos_id is None:
                raise BadRecordError(
                    f"holds an empty answer in field {self._field_name(name)!r}",
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
            for label, answer in ((1, chosen), (0, rejected))
        )

    def _answer(
        self, record: Fields, question: str, messages: list[Any], label: int, given: Given
    ) -> Document:
        chat = self._chat()
        text, spans = chat.render_marked(messages, given)
        if not text.startswith(question):
            raise BadRecordError(
                "its prompt is rendered otherwise with an answer than alone, so they cannot be"
                " parted"
            )
        cut = len(question)
        name = "chosen" if label else "rejected"
        if not (chat.has_marks and self.config.chat.mask == "generation"):
            spans = ((cut, len(text)),)
        marks = self._training_marks(messages, name)
        spans = self._without_masked(spans, messages, marks, given)
        answer_spans = tuple((max(a, cut), b) for a, b in spans if b > cut)
        if not answer_spans:
            # Its probability would be 1 whatever the model says, so the pair would compare the
            # other answer alone.
            raise BadRecordError(
                f"holds an answer in field {self._field_name(name)!r} of which nothing is trained"
                " on",
                "Answers of pairs are compared whole: leave weight: 0 and the like out of them.",
            )
        unused = self._unwritten(messages, text, given, name)
        return self._document(record, text, answer_spans, cut=cut, label=label, unused=unused)
