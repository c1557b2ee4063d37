"""Chat templates: the Jinja program that comes with a model's tokenizer, run in a sandbox, and the
text that it marks.

Templates come with weights from strangers, so they are treated as data: they run in Jinja's
immutable sandbox, which gives them access to messages and nothing else. A template always renders
the same text: it has no clock. ``strftime_now`` is there if ``variables`` fix its date
(``strftime_now: 2025-01-31``), and writes that date.

The size of a rendering is limited (:mod:`headrace.ingest.bounded_jinja`).

``{% generation %} ... {% endgeneration %}`` marks what the model should learn to write. A template
without these marks is rendered turn by turn (:meth:`ChatTemplate.spans_of_turns`): the text added
by message i is its turn, and the text that ``add_generation_prompt`` adds before it is its header,
which is given to the model.

Price: 20 to 100 us per rendering; masks by roles render twice per turn.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.errors import ConfigError, install_command
from headrace.ingest.conversations import (
    Messages,
    arguments_of,
    with_arguments_as_text,
    with_plain_arguments,
    with_text_parts,
    with_texts_for_nulls,
    with_wrapped_calls,
)
from headrace.ingest.records import MAX_RECORD_BYTES, BadRecordError, one_line
from headrace.ingest.source import ChatConfig
from headrace.ingest.template_reading import (
    CLOSE,
    OPEN,
    LeftOut,
    contents_cut,
    left_out,
    markers_of,
    own_texts_of,
    probe_of,
    shape_of,
)
from headrace.ingest.tokenize import special_tokens_of
from headrace.store import files

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
_MARKS = re.compile(f"[{OPEN}{CLOSE}]")
_GENERATION = re.compile(r"\{%-?\+?\s*generation\b")
_CLOCK = "strftime_now"
_MOST_SHAPES = 1024
_OTHER_TEMPLATE = "Mend the record, or give another template: --chat-template FILE."

_PROBE: Messages = [{"role": "user", "content": "headrace"}]
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Given:
    """What a record gives to the template besides its messages.

    Attributes:
        tools: Tools that may be called; None: none.
        documents: Documents to answer from; None: none.
        variables: Further variables, such as ``enable_thinking``.
    """

    tools: list[Any] | None = None
    documents: list[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def find_template(config: ChatConfig, tokenizer_folder: str | None) -> dict[str, Any]:
    """The template of a build, and the special tokens that it may name, as JSON values for the
    ledger.

    Raises:
        ConfigError: there is no template.
    """
    beside: dict[str, Any] = {}
    content = (
        None
        if tokenizer_folder is None
        else files.read_bytes(files.join(tokenizer_folder, _CONFIG_FILE))
    )
    if content is not None:
        try:
            beside = dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"is not JSON ({one_line(error)})", field="tokenizer_config", value=tokenizer_folder
            ) from error
    text = config.template
    if text is not None and "{" not in text:
        raw = files.read_bytes(text)
        if raw is None:
            raise ConfigError(
                "does not exist",
                field="chat.template",
                value=text,
                cure="Give a file or the template.",
            )
        text = _of_file(raw.decode(), text)
    if text is None and tokenizer_folder is not None:
        raw = files.read_bytes(files.join(tokenizer_folder, TEMPLATE_FILE))
        text = _declared(beside.get("chat_template")) if raw is None else raw.decode()
    if text is None:
        raise ConfigError(
            "the tokenizer comes with no chat template",
            field="chat.template",
            value=None,
            cure=f"Put {TEMPLATE_FILE} or {_CONFIG_FILE} beside the tokenizer.json, or pass"
            " --chat-template FILE.",
        )
    return {"text": text, "tokens": dict(sorted(special_tokens_of(beside).items()))}


def _of_file(content: str, path: str) -> str:
    """The template in a file: its whole content, or the one in a ``tokenizer_config.json``."""
    try:
        config = json.loads(content)
    except ValueError:
        return content
    declared = _declared(config.get("chat_template")) if isinstance(config, dict) else None
    if declared is None:
        raise ConfigError(
            "is JSON without a chat_template",
            field="chat.template",
            value=path,
            cure=f"Give the {TEMPLATE_FILE}.",
        )
    return declared


def _declared(value: Any) -> str | None:
    """The template of a config file: its text, or the one named ``default`` of several."""
    if isinstance(value, list):
        return next(
            (
                t.get("template")
                for t in value
                if isinstance(t, dict) and t.get("name") == "default"
            ),
            None,
        )
    return value if isinstance(value, str) else None


class TurnsError(BadRecordError):
    """A turn is rendered otherwise alone than with what follows."""


class ChatTemplate:
    """A compiled template.

    Raises:
        ConfigError: it is not a valid template, or Jinja is not installed.

    Example:
        >>> chat = ChatTemplate(
        ...     {
        ...         "text": "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}"
        ...         "{% endgeneration %}{% endfor %}",
        ...         "tokens": {},
        ...     },
        ...     {},
        ... )
        >>> chat.render_marked([{"role": "user", "content": "hi"}])
        ('[user]hi', ((6, 8),))
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        variables: Mapping[str, str],
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        try:
            self._bounded: Any = importlib.import_module("headrace.ingest.bounded_jinja")
        except ImportError as error:
            raise ConfigError(
                "needs the package jinja2",
                field="chat.template",
                cure=install_command("headrace[chat]"),
            ) from error
        environment = self._bounded.environment_of(max_record_bytes)
        self._begin = environment.begin
        environment.globals["raise_exception"] = self._refuse
        template_variables: dict[str, Any] = dict(variables)
        if _CLOCK in template_variables:
            try:
                template_variables[_CLOCK] = _fixed_clock(template_variables[_CLOCK])
            except BadRecordError as bad:
                field = f"chat.variables.{_CLOCK}"
                raise ConfigError(
                    bad.problem, field=field, value=variables[_CLOCK], cure=bad.cure
                ) from None
        self._variables = {**record["tokens"], **template_variables}
        self.has_marks = bool(_GENERATION.search(record["text"]))
        try:
            compiled = self._bounded.compiled(record["text"], max_record_bytes)
        except self._bounded.TemplateError as error:
            raise ConfigError(
                f"is no Jinja template ({one_line(error)})", field="chat.template"
            ) from error
        self._fields: set[str] = compiled.fields
        self.variables_read: set[str] = compiled.variables
        self._template = compiled.template_in(environment)
        self._markers = markers_of(self._fields)
        self._left_out: dict[Hashable, LeftOut | None] = {}
        self.extras = Given()
        self._takes_parts = not self._shows(_PROBE) and self._shows(with_text_parts(_PROBE))

    def with_extras(self, extras: Given) -> ChatTemplate:
        """This template, with what a record gives to it besides messages."""
        other = copy.copy(self)
        other.extras = extras
        return other

    def render(self, messages: Messages, *, ask: bool = False) -> str:
        """The text of a conversation.

        Raises:
            BadRecordError: the template refuses it.
        """
        return _MARKS.sub("", self._render(messages, ask))

    def render_marked(self, messages: Messages) -> tuple[str, Spans]:
        """The text of a conversation, and the characters that the template marks as the model's
        own.

        Raises:
            BadRecordError: the template refuses it.
        """
        raw = self._render(messages, ask=False)
        text = []
        spans = []
        at = 0
        start = 0
        for piece in re.split(f"([{OPEN}{CLOSE}])", raw):
            if piece == OPEN:
                start = at
            elif piece == CLOSE:
                if at > start:
                    spans.append((start, at))
            else:
                text.append(piece)
                at += len(piece)
        return "".join(text), tuple(spans)

    def left_out(self, messages: Messages, text: str, *, ask: bool = False) -> LeftOut:
        """The fields of messages, and the messages, that the template does not write into their
        text.

        Example:
            >>> chat = ChatTemplate(
            ...     {"text": "{% for m in messages %}{{ m.content }}{% endfor %}", "tokens": {}}, {}
            ... )
            >>> chat.left_out([{"role": "user", "content": "Hi", "name": "Ann"}], "Hi")
            LeftOut(fields=[['name']], lost=[])
        """
        cut = contents_cut(messages, text)
        markers = tuple(
            [(i, *[one for one in self._markers if one in messages[i]["content"]]) for i in cut]
        )
        extras = self.extras
        shape = extras.tools is None, repr(extras.variables), ask, shape_of(messages), markers
        if shape not in self._left_out:
            if len(self._left_out) >= _MOST_SHAPES:
                self._left_out.clear()
            probe = probe_of(messages, cut, self._markers)
            try:
                probe_text = self.render(probe.messages, ask=ask)
                self._left_out[shape] = left_out(probe, probe_text, self._fields)
            except BadRecordError:  # the template checks what texts say
                self._left_out[shape] = None
        missing = self._left_out[shape]
        if missing is None:
            return left_out(own_texts_of(messages), text, self._fields)._replace(lost=[])
        if not missing.lost:
            return missing
        # A template may decide by the text itself: a message is lost if any other makes no
        # difference.
        others = probe_of(messages).messages
        lost = [i for i in missing.lost if self._ignores(messages, i, others[i], ask)]
        return missing._replace(lost=lost)

    def _ignores(self, messages: Messages, i: int, other: dict[str, Any], ask: bool) -> bool:
        """Whether another message in place of message i gives the same text."""
        changed = [*messages[:i], other, *messages[i + 1 :]]
        try:
            return self.render(changed, ask=ask) == self.render(messages, ask=ask)
        except BadRecordError:
            return False

    def spans_without(self, messages: Messages, masked: Sequence[bool]) -> Spans:
        """What the template marks, without the text of some messages: what other words in them
        change.

        Raises:
            BadRecordError: the template refuses it, or marks something else with other words.
        """
        text, spans = self.render_marked(messages)
        others = probe_of(messages).messages
        changed = [
            other if is_masked else message
            for message, other, is_masked in zip(messages, others, masked, strict=True)
        ]
        other_text, other_spans = self.render_marked(changed)
        if len(other_spans) != len(spans):
            raise BadRecordError(
                "has turns that are not trained on, and the template marks another number of texts"
                " with other words in them, so which are theirs cannot be told"
            )
        return tuple(
            (a, b)
            for (a, b), (c, d) in zip(spans, other_spans, strict=True)
            if text[a:b] == other_text[c:d]
        )

    def spans_of_turns(self, messages: Messages, wanted: Sequence[bool]) -> tuple[str, Spans]:
        """The text of a conversation, and the characters that the selected turns add to it.

        Raises:
            TurnsError: the template does not render turns one after the other.
            BadRecordError: it refuses the conversation.
        """
        text = self.render(messages)
        spans: list[tuple[int, int]] = []
        for i, message in enumerate(messages):
            if not wanted[i]:
                continue
            is_answer = message["role"] == "assistant"
            earlier_turns = self.render(messages[:i], ask=is_answer) if i else ""
            upto = text if i == len(messages) - 1 else self.render(messages[: i + 1])
            if not (text.startswith(upto) and upto.startswith(earlier_turns)):
                raise TurnsError(
                    f"its turn {i + 1} ({message['role']}) is rendered otherwise alone than with"
                    " what follows, so which text is whose cannot be told",
                    "Mark the model's text in the template: {% generation %} ... {% endgeneration"
                    " %}.",
                )
            if len(upto) > len(earlier_turns):
                spans.append((len(earlier_turns), len(upto)))
        return text, tuple(spans)

    def _render(self, messages: Messages, ask: bool) -> str:
        """The text of messages, in the first of their forms that the template reads."""
        failures: list[tuple[Messages, BadRecordError]] = []
        for form, of_objects in self._forms([dict(m) for m in messages]):
            try:
                text = self._render_form(form, ask)
            except BadRecordError as error:
                failures.append((form, error))
                continue
            if of_objects is None or self._keeps_arguments(form, of_objects, text, ask):
                return text
            failures = [failure for failure in failures if failure[0] is of_objects]
            break
        first_form, problem = failures[0]
        if isinstance(problem, self._bounded.SpelledError):
            path = self._place_written(self._values(first_form), ask)
            raise BadRecordError(
                f"{problem.problem}{path and f': {path}'}",
                "Write a text there in the record, or write it with {{ value | tojson }} in the"
                " template.",
            ) from None
        raise problem

    def _keeps_arguments(
        self,
        form: Messages,
        of_objects: Messages,
        text: str,
        ask: bool,
    ) -> bool:
        """Whether a text has all arguments of calls, which are texts in its form, or the template
        does not take them as objects either: one that does finds no names in a text.
        """
        spelled = [one for one in arguments_of(form) if isinstance(one, str)]
        if all(one in text or self._bounded.to_json(one)[1:-1] in text for one in spelled):
            return True
        for keep_objects in (True, False):
            plain_form = with_plain_arguments(of_objects, keep_objects=keep_objects)
            try:
                self._render_form(plain_form, ask)
            except BadRecordError:
                continue
            return False
        return True

    def _forms(self, messages: Messages) -> Iterator[tuple[Messages, Messages | None]]:
        """The messages as most templates take them, then with other spellings of what templates
        disagree on; with arguments as texts, also the form that has them as objects.

        Some ask whether a content is none, others add it to a text; some write arguments with
        tojson, others as they are.
        """
        if self._takes_parts:
            messages = with_text_parts(messages)
        yield messages, None
        has_nulls = any(m.get("content", "") is None for m in messages)
        has_calls = any("tool_calls" in m for m in messages)
        if any("function" not in call for m in messages for call in m.get("tool_calls", ())):
            yield from self._forms(with_wrapped_calls(messages))
        # Texts for nulls come later: a template that asks for none would then write no call.
        if has_calls:
            yield with_arguments_as_text(messages), messages
        if has_nulls:
            without_nulls = with_texts_for_nulls(messages)
            yield without_nulls, None
            if has_calls:
                yield with_arguments_as_text(without_nulls), without_nulls

    def _shows(self, messages: Messages) -> bool:
        """Whether the template writes the text of a message of this form."""
        try:
            return _PROBE[0]["content"] in self._render_form(messages, ask=False)
        except BadRecordError:
            return False

    def _render_form(self, messages: Messages, ask: bool) -> str:
        return self._text_of(self._values(messages), ask)

    def _values(self, messages: Messages) -> dict[str, Any]:
        """What the template's variables hold."""
        extras = self.extras
        values = {**self._variables, **extras.variables, "messages": messages}
        values["tools"] = extras.tools
        if _CLOCK in extras.variables:
            values[_CLOCK] = _fixed_clock(extras.variables[_CLOCK])
        if extras.documents is not None:
            values["documents"] = extras.documents
        return values

    def _text_of(self, values: dict[str, Any], ask: bool) -> str:
        self._begin()
        try:
            text: str = self._template.render(values, add_generation_prompt=ask)
        except BadRecordError:
            raise
        except Exception as error:  # noqa: BLE001
            # a template may do anything that Jinja's language can
            cure = _OTHER_TEMPLATE
            if f"'{_CLOCK}' is undefined" in str(error):
                cure = (
                    f"Fix the date that the template writes: --chat-variable {_CLOCK}=2025-01-31."
                )
            raise BadRecordError(
                f"the chat template fails on it ({type(error).__name__}: {one_line(error)})", cure
            ) from None
        return text

    def _place_written(self, values: dict[str, Any], ask: bool) -> str:
        """Where the value is that the template would write as Python spells it; empty if the
        template makes it.
        """
        values = self._bounded.with_stand_ins(values)
        try:
            self._text_of(values, ask)
        except self._bounded.SpelledError as error:
            return _place_of(error.value, values)
        except BadRecordError:
            pass
        return ""

    @staticmethod
    def _refuse(message: str) -> None:
        raise BadRecordError(f"the chat template refuses it ({message})", _OTHER_TEMPLATE)


def _place_of(wanted: Any, value: Any, path: str = "") -> str:
    """Where an object is within others; empty if nowhere."""
    if value is wanted:
        return path
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{path}[{i}]", one) for i, one in enumerate(value)]
    paths = (_place_of(wanted, one, path_within) for path_within, one in pairs)
    return next(filter(None, paths), "")


def refuse_marks(messages: Messages) -> None:
    """Raises BadRecordError if a text contains the characters with which a template's marks are
    found.
    """
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and _MARKS.search(content):
            raise BadRecordError(
                "holds a character that Unicode sets aside for programs (U+FDD0 or U+FDD1)"
            )


def _fixed_clock(date: Any) -> Callable[[str], str]:
    """The template's function ``strftime_now``, which always tells the same date (at midnight)."""
    try:
        moment = datetime.fromisoformat(date)
    except (TypeError, ValueError):
        raise BadRecordError(
            f"is no date for the template's {_CLOCK}", "Write one such as 2025-01-31."
        ) from None

    def strftime_now(pattern: str) -> str:
        # The C library would pad a field to any width that a template asks for.
        if re.search(r"\d{3}", pattern):
            raise BadRecordError("the chat template asks for a date of a huge width")
        return moment.strftime(pattern)

    return strftime_now
