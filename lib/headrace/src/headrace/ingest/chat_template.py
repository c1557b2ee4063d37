"""Chat templates: the Jinja program that comes with a model's tokenizer, run in a sandbox, and the text that it marks.

Templates come with weights from strangers, so they are treated as data: they run in Jinja's immutable sandbox, which
gives them access to messages and nothing else. A template always renders the same text: it has no clock
(``strftime_now`` is not defined; templates that need a date get it from ``variables``). The size of a rendering is
limited (:mod:`headrace.ingest.bounded_jinja`).

``{% generation %} ... {% endgeneration %}`` marks what the model should learn to write. A template without these marks
is rendered turn by turn (:meth:`ChatTemplate.spans_of_turns`): the text added by message i is its turn, and the text
that ``add_generation_prompt`` adds before it is its header, which is given to the model.

Price: 20 to 100 us per rendering; masks by roles render twice per turn.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, install_command
from headrace.ingest.records import MAX_RECORD_BYTES, BadRecordError, one_line
from headrace.ingest.source import ChatConfig
from headrace.store import files

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
# Two code points that Unicode sets aside for a program's own use; they never leave this module.
_OPEN = "\ufdd0"
_CLOSE = "\ufdd1"
_MARKS = re.compile(f"[{_OPEN}{_CLOSE}]")
_GENERATION = re.compile(r"\{%-?\+?\s*generation\b")

Message = Mapping[str, Any]
Spans = tuple[tuple[int, int], ...]


def find_template(config: ChatConfig, tokenizer_folder: str | None) -> dict[str, Any]:
    """The template of a build, and the special tokens that it may name, as JSON values for the ledger.

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
            cure=f"Put {TEMPLATE_FILE} or {_CONFIG_FILE} beside the tokenizer.json, or pass --chat-template FILE.",
        )
    names = {
        k: v.get("content") if isinstance(v, dict) else v
        for k, v in beside.items()
        if k.endswith("_token")
    }
    return {"text": text, "tokens": {k: v for k, v in sorted(names.items()) if isinstance(v, str)}}


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


class ChatTemplate:
    """A compiled template.

    Raises:
        ConfigError: it is not a valid template, or Jinja is not installed.

    Example:
        >>> chat = ChatTemplate({"text": "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}"
        ...                              "{% endgeneration %}{% endfor %}", "tokens": {}}, {})
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
            bounded: Any = importlib.import_module("headrace.ingest.bounded_jinja")
            jinja: Any = importlib.import_module("jinja2")
        except ImportError as error:
            raise ConfigError(
                "needs the package jinja2",
                field="chat.template",
                cure=install_command("headrace[chat]"),
            ) from error
        self._jinja = jinja
        environment = bounded.BoundedEnvironment(
            min(max_record_bytes, bounded.MAX_RENDER),
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_generation_extension(), "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.bound_filters()
        self._begin = environment.begin
        environment.globals["raise_exception"] = self._refuse
        self._variables = {**record["tokens"], **variables}
        self.has_marks = bool(_GENERATION.search(record["text"]))
        try:
            self._template = environment.from_string(record["text"])
        except jinja.TemplateError as error:
            raise ConfigError(
                f"is no Jinja template ({one_line(error)})", field="chat.template"
            ) from error

    def render(self, messages: Sequence[Message], tools: Any = None, *, ask: bool = False) -> str:
        """The text of a conversation.

        Raises:
            BadRecordError: the template refuses it.
        """
        return _MARKS.sub("", self._render(messages, tools, ask))

    def render_marked(self, messages: Sequence[Message], tools: Any = None) -> tuple[str, Spans]:
        """The text of a conversation, and the characters that the template marks as the model's own.

        Raises:
            BadRecordError: the template refuses it.
        """
        raw = self._render(messages, tools, False)
        text = []
        spans = []
        at = 0
        start = 0
        for piece in re.split(f"([{_OPEN}{_CLOSE}])", raw):
            if piece == _OPEN:
                start = at
            elif piece == _CLOSE:
                if at > start:
                    spans.append((start, at))
            else:
                text.append(piece)
                at += len(piece)
        return "".join(text), tuple(spans)

    def spans_of_turns(
        self, messages: Sequence[Message], wanted: Sequence[bool], tools: Any = None
    ) -> tuple[str, Spans]:
        """The text of a conversation, and the characters that the selected turns add to it.

        Raises:
            BadRecordError: the template refuses it, or does not render turns one after the other.
        """
        text = self.render(messages, tools)
        spans: list[tuple[int, int]] = []
        for i, message in enumerate(messages):
            if not wanted[i]:
                continue
            earlier_turns = (
                self.render(messages[:i], tools, ask=message["role"] == "assistant") if i else ""
            )
            upto = text if i == len(messages) - 1 else self.render(messages[: i + 1], tools)
            if not (text.startswith(upto) and upto.startswith(earlier_turns)):
                raise BadRecordError(
                    f"its turn {i + 1} ({message['role']}) is rendered otherwise alone than with what follows, so which"
                    " text is whose cannot be told",
                    "Mark the model's text in the template: {% generation %} ... {% endgeneration %}.",
                )
            if len(upto) > len(earlier_turns):
                spans.append((len(earlier_turns), len(upto)))
        return text, tuple(spans)

    def _render(self, messages: Sequence[Message], tools: Any, ask: bool) -> str:
        self._begin()
        try:
            text: str = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=ask, **self._variables
            )
        except BadRecordError:
            raise
        except Exception as error:  # noqa: BLE001 (a template may do anything that Jinja's language can)
            raise BadRecordError(
                f"the chat template fails on it ({type(error).__name__}: {one_line(error)})"
            ) from None
        return text

    @staticmethod
    def _refuse(message: str) -> None:
        raise BadRecordError(f"the chat template refuses it ({message})")


def check_messages(value: Any, field: str) -> list[Message]:
    """A conversation: a list of mappings with a ``role``.

    Raises:
        BadRecordError: it is none.
    """
    if not isinstance(value, list) or not value:
        raise BadRecordError(f"holds no list of messages in field {field!r}")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            has = (
                f"it has {', '.join(map(repr, message))}"
                if isinstance(message, dict)
                else type(message).__name__
            )
            raise BadRecordError(
                f"holds a message without a role in field {field!r} ({has})",
                'Messages are {"role": "user", "content": "..."}.',
            )
        content = message.get("content")
        if isinstance(content, str) and _MARKS.search(content):
            raise BadRecordError(
                "holds a character that Unicode sets aside for programs (U+FDD0 or U+FDD1)"
            )
    return value


def _to_json(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any
) -> str:
    # Jinja's own filter escapes <, > and & for web pages, which models have never seen.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _generation_extension() -> Any:
    """The Jinja tag ``{% generation %}``: its body, between two marks."""
    nodes: Any = importlib.import_module("jinja2.nodes")
    extensions: Any = importlib.import_module("jinja2.ext")

    class Generation(extensions.Extension):  # type: ignore[misc]
        tags = {"generation"}  # noqa: RUF012 (Jinja's way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # Inside a loop, a macro or a filter alike, the marks go where the text goes.
            marked = [
                nodes.Output([nodes.TemplateData(_OPEN)]),
                *body,
                nodes.Output([nodes.TemplateData(_CLOSE)]),
            ]
            return (
                [node.set_lineno(line) for node in marked[:1]]
                + body
                + [marked[-1].set_lineno(line)]
            )

    return Generation
