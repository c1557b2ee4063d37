"""Conversations of records in one form, whatever program or file format they come from.

A message is a mapping with a ``role``. Before any template sees it, :func:`read_messages`

1. drops fields that are null: tables give every message all fields that one of them has;
2. renames what ShareGPT (``from``, ``value``) and the former API of functions (``function_call``)
   have, and reads dialogues that are one text (``Human: ... Assistant: ...``) and objects of lists;
3. joins parts of text to a text, and refuses pictures and other parts;
4. reads the arguments of tool calls that are JSON in a string.

So the same conversation gives the same tokens from JSON lines, Parquet, Arrow and a saved dataset.
A null within a list, or within arguments that are a string, is kept: there it is what somebody
wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from headrace.ingest.records import BadRecordError, FieldValue, type_name

Message: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = list[dict[str, Any]]
"""A conversation in the form of most templates."""
Call: TypeAlias = dict[str, Any]
"""A call of a tool."""

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_CALLING_ROLES = ("function_call", "tool_call")
_DIALOGUE = re.compile(r"\s*Human:")
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}
_LAST_ANSWER = "\n\nAssistant:"
_TEXT_PARTS = ("text", "input_text", "output_text")
TRAINING_MARKS = ("trainable", "train", "loss", "weight")
"""Fields of a message that say whether it is trained on: true or false, or 1 or 0."""
_SAYS_NOTHING = {"role", "content", "name", *TRAINING_MARKS}
"""Fields of a message that are no content."""
_A_MESSAGE = 'Messages are {"role": "user", "content": "..."}.'
_OF_THE_BUILD = ("messages", "tools", "documents", "add_generation_prompt")


def without_nulls(value: Any) -> Any:
    """A JSON value without the fields of objects that are null, at any depth.

    Example:
        >>> without_nulls({"a": None, "b": [{"c": None, "d": 0}, None]})
        {'b': [{'d': 0}, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(one) for one in value]
    return value


def read_messages(conversation: FieldValue) -> Messages:
    """A conversation, or JSON of one, in the form of most templates; its texts are strings, or None
    beside tool calls.

    Raises:
        BadRecordError: it is none; names the message's place.

    Example:
        >>> read_messages(FieldValue([{"from": "human", "value": "Hi"}], "conversations"))
        [{'role': 'user', 'content': 'Hi'}]
        >>> parts = [{"type": "text", "text": "Hi"}]
        >>> read_messages(
        ...     FieldValue([{"role": "user", "content": parts, "name": None}], "messages")
        ... )
        [{'role': 'user', 'content': 'Hi'}]
    """
    value, field, *_ = conversation
    if isinstance(value, str) and _DIALOGUE.match(value):
        value = _turns_of_dialogue(value)
    cure = f"If it is plain text: --kind text --text-field {field}."
    value = _parsed(FieldValue(value, field, cure)).value
    if isinstance(value, Mapping):
        value = _listed(value)
    if not isinstance(value, list) or not value:
        raise BadRecordError(
            f"holds no list of messages in field {field!r}",
            'Messages are [{"role": "user", "content": "..."}, ...].',
        )
    return [_message(one) for one in FieldValue(value, field).elements()]


def fields_of_parts(value: Any) -> set[str]:
    """Names of the fields of text parts in messages, of which the text alone is read.

    Example:
        >>> part = {"type": "text", "text": "Hi", "citations": [1], "cache_control": None}
        >>> fields_of_parts([{"role": "user", "content": [part]}])
        {'citations'}
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = _json(value)
    if isinstance(value, Mapping):
        value = _listed(value)
    messages = value if isinstance(value, list) else []
    contents = [
        message.get("content", message.get("value", message.get("text")))
        for message in messages
        if isinstance(message, Mapping)
    ]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    names = {
        name
        for part in parts
        if isinstance(part, Mapping)
        for name, one in part.items()
        if one is not None
    }
    return names - {"type", "text"}


def from_json(field_value: FieldValue) -> FieldValue:
    """Messages that are JSON in a string; any other value, such as a text, as it is.

    Example:
        >>> from_json(FieldValue('[{"role": "user", "content": "Hi"}]', "prompt")).value
        [{'role': 'user', 'content': 'Hi'}]
        >>> from_json(FieldValue("[1]", "prompt")).value
        '[1]'
    """
    value = field_value.value
    messages = _json(value) if isinstance(value, str) and value.lstrip()[:1] == "[" else None
    if not isinstance(messages, list) or not messages:
        return field_value
    is_conversation = all(isinstance(m, dict) and ("role" in m or "from" in m) for m in messages)
    return field_value._replace(value=messages) if is_conversation else field_value


def read_tools(tools: FieldValue) -> list[Any] | None:
    """The tools (or the documents) of a record, which may be JSON in strings; None if there are
    none.

    Raises:
        BadRecordError: they are no list of objects.

    Example:
        >>> read_tools(FieldValue('{"name": "f", "description": null}', "tools"))
        [{'name': 'f'}]
    """
    if tools.name == "tools":
        tools = tools._replace(
            cure='Tools are [{"type": "function", "function": ...}, ...]; leave them unused:'
            " --field tools=none; a text of theirs may be the system message:"
            f" --field tools=none --field system={tools.field}."
        )
    tools = _parsed(tools)
    if tools.value is None:
        return None
    if isinstance(tools.value, Mapping):
        tools = tools._replace(value=[tools.value])
    if not isinstance(tools.value, list):
        raise tools.is_not(f"a list of {tools.name}")
    return [_object(one, "an object") for one in tools.elements()] or None


def read_variables(variables: FieldValue) -> dict[str, Any]:
    """The variables that a record gives to the template.

    Raises:
        BadRecordError: it is no object, or names what the build itself gives.
    """
    variables = _parsed(variables)
    if variables.value is None:
        return {}
    values = _object(variables, "an object of variables")
    for name in _OF_THE_BUILD:
        if name in values:
            raise variables.bad(
                f"has {name!r} in {variables}, which comes from a field of its own",
                "Move it out of the object.",
            )
    return values


def training_marks(messages: Iterable[Message], field: str) -> list[bool | None]:
    """Whether each message of a field is to be trained on; None if it does not say so.

    Raises:
        BadRecordError: one says something else than yes or no.

    Example:
        >>> training_marks([{"role": "assistant", "content": "Hi", "weight": 0}], "messages")
        [False]
    """
    return [_training_mark(one, f"{field}[{i}]") for i, one in enumerate(messages)]


def _training_mark(message: Message, place: str) -> bool | None:
    marks = {name: message[name] for name in TRAINING_MARKS if name in message}
    for name, mark in marks.items():
        if mark not in (0, 1):
            raise BadRecordError(
                f"holds {json.dumps(mark)} in {place}.{name}, which says whether the message is"
                " trained on",
                "Write true or false, or 1 or 0.",
            )
    return all(marks.values()) if marks else None


def with_texts_for_nulls(messages: Messages) -> Messages:
    """The messages with an empty text in place of none."""
    return [m | {"content": ""} if m.get("content", "") is None else m for m in messages]


def prompt_of_dialogues(chosen: str, rejected: str) -> str:
    r"""What two dialogues that are one text each have in common: all but their last answers; empty
    if they are none.

    Raises:
        BadRecordError: they differ before their last answers.

    Example:
        >>> prompt_of_dialogues("\n\nHuman: Hi\n\nAssistant: Yes", "\n\nHuman: Hi\n\nAssistant: No")
        '\n\nHuman: Hi\n\nAssistant:'
    """
    if not (_DIALOGUE.match(chosen) and _DIALOGUE.match(rejected)):
        return ""
    prompts = {text[: text.rfind(_LAST_ANSWER) + len(_LAST_ANSWER)] for text in (chosen, rejected)}
    if len(prompts) > 1 or _LAST_ANSWER not in chosen:
        raise BadRecordError(
            "holds two dialogues that differ before their last answers",
            "Cut both after the same question.",
        )
    return prompts.pop()


def with_arguments_as_text(messages: Messages) -> Messages:
    """The messages with the arguments of tool calls as JSON in a string, which some templates
    expect.
    """

    def as_text(arguments: Any) -> Any:
        if isinstance(arguments, dict | list):
            return json.dumps(arguments, ensure_ascii=False)
        return arguments

    return _with_calls(messages, lambda call: _with_arguments(call, as_text))


def with_plain_arguments(messages: Messages, *, keep_objects: bool) -> Messages:
    """The messages with a word in place of what is no text or number in arguments of tool calls,
    but for objects if they are kept.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict) and keep_objects:
            return {name: plain(one) for name, one in value.items()}
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        return value if is_plain else "headrace"

    def plain_arguments(arguments: Any) -> Any:
        if isinstance(arguments, dict):
            return {name: plain(one) for name, one in arguments.items()}
        return arguments

    return _with_calls(messages, lambda call: _with_arguments(call, plain_arguments))


def arguments_of(messages: Iterable[Message]) -> list[Any]:
    """The arguments of all tool calls."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    functions = [call.get("function", call) for call in calls]
    return [one["arguments"] for one in functions if isinstance(one, dict) and "arguments" in one]


def with_wrapped_calls(messages: Messages) -> Messages:
    """The messages with each call as ``{"type": "function", "function": ...}``, which some
    templates expect.
    """
    return _with_calls(messages, _wrapped)


def _with_calls(messages: Messages, change: Callable[[Call], Call]) -> Messages:
    """The messages with each of their calls changed."""
    return [
        m | {"tool_calls": [change(call) for call in m["tool_calls"]]} if "tool_calls" in m else m
        for m in messages
    ]


def _with_arguments(call: Call, change: Callable[[Any], Any]) -> Call:
    """A call with its arguments changed, which may be within its ``function``."""
    if isinstance(call.get("function"), dict):
        return call | {"function": _with_arguments(call["function"], change)}
    return call | {"arguments": change(call["arguments"])} if "arguments" in call else call


def _wrapped(call: Call) -> Call:
    return call if "function" in call else {"type": "function", "function": call}


def with_text_parts(messages: Messages) -> Messages:
    """The messages with each text as a list of one part, for templates that read nothing else."""
    return [
        m | {"content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def _message(field_value: FieldValue) -> dict[str, Any]:
    if not isinstance(field_value.value, Mapping):
        cure = f"{_A_MESSAGE} Texts without roles, such as prompts, are a record each."
        raise field_value.is_not("a message with a role", cure)
    message: dict[str, Any] = without_nulls(field_value.value)
    if "role" not in message and "from" in message:
        message = _from_sharegpt(message, field_value.field)
    if not isinstance(message.get("role"), str):
        has = ", ".join(map(repr, message))
        raise BadRecordError(
            f"holds a message without a role in {field_value.field} (it has {has})", _A_MESSAGE
        )
    if "function_call" in message and "tool_calls" not in message:
        call = message.pop("function_call")
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(field_value.inner("tool_calls", message["tool_calls"]))
        if not message["tool_calls"]:
            del message["tool_calls"]
    message["content"] = _content(message, field_value)
    return message


def _content(message: dict[str, Any], field_value: FieldValue) -> str | None:
    """What a message says, as one text; None if it says something in other fields only."""
    for name in ("value", "text"):
        if name in message and "content" not in message:
            message["content"] = message.pop(name)
    content = field_value.inner("content", message.get("content"))
    if isinstance(content.value, list):
        return "".join(map(_text_of, content.elements()))
    if content.value is None and not message.keys() - _SAYS_NOTHING:
        raise BadRecordError(
            f"holds a message without content in {field_value.field}",
            'An empty text is "content": "".',
        )
    if not isinstance(content.value, str | None):
        raise content.is_not("a text", "Write it as a string.")
    return content.value


def _turns_of_dialogue(text: str) -> list[dict[str, str]]:
    """The messages of a dialogue that is one text, with a blank line before each speaker."""
    pieces = re.split(r"(?:^|\n\n)(Human|Assistant):", text.strip())
    return [
        {"role": _SPEAKERS[speaker], "content": turn.strip()}
        for speaker, turn in zip(pieces[1::2], pieces[2::2], strict=True)
    ]


def _listed(value: Mapping[str, Any]) -> Any:
    """The messages of an object of lists, as some tables have them; an object with texts is one
    message.
    """
    columns = list(value.values())
    if not all(isinstance(column, list) for column in columns):
        return [value]
    if len({len(column) for column in columns}) != 1:
        return value
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def _from_sharegpt(message: dict[str, Any], place: str) -> dict[str, Any]:
    role = message.pop("from")
    content = message.pop("value", None)
    if role in _CALLING_ROLES:
        calls = _json(content)
        if isinstance(calls, dict):
            calls = [calls]
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadRecordError(
                f"holds a {role} that is no JSON object in {place}",
                'Calls are {"name": "f", "arguments": {...}}.',
            )
        return {"role": "assistant", "tool_calls": [_wrapped(call) for call in calls], **message}
    if isinstance(role, str):
        role = _SHAREGPT_ROLES.get(role, role)
    return {"role": role, "content": content, **message}


def _text_of(field_value: FieldValue) -> str:
    part = field_value.value
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else type_name(part)
    text = part.get("text") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise BadRecordError(
            f"holds a part of type {kind!r} in {field_value.field}, and only text is read",
            "Leave such parts out of the record, or encode them with the model's processor and"
            " build --kind tokens.",
        )
    return text


def _tool_calls(field_value: FieldValue) -> list[Call]:
    calls = _parsed(field_value)
    if not isinstance(calls.value, list):
        raise calls.is_not("a list of calls")
    cure = 'Calls are {"type": "function", "function": {"name": "f", "arguments": {...}}}.'
    elements = calls._replace(cure=cure).elements()
    return [_with_read_arguments(_object(call, "a call")) for call in elements]


def _with_read_arguments(call: Call) -> Call:
    """A call with its arguments as an object or a list, if they are one; none if there are none."""
    if isinstance(call.get("function"), dict):
        return call | {"function": _with_read_arguments(call["function"])}
    if "name" not in call:
        return call
    arguments = call.get("arguments", "")
    parsed = {} if arguments == "" else _json(arguments)
    return call | {"arguments": parsed} if isinstance(parsed, dict | list) else call


def _json(text: Any) -> Any:
    """The value that a string holds as JSON; None if it holds none."""
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(field_value: FieldValue, wanted: str) -> dict[str, Any]:
    """An object, or JSON of one, without what is null in it."""
    field_value = _parsed(field_value)
    if not isinstance(field_value.value, Mapping):
        raise field_value.is_not(wanted)
    return without_nulls(field_value.value)


def _parsed(field_value: FieldValue) -> FieldValue:
    """A JSON value, or the one that a string holds; None in place of an empty string."""
    if not isinstance(field_value.value, str):
        return field_value
    try:
        return field_value._replace(
            value=json.loads(field_value.value) if field_value.value.strip() else None
        )
    except (ValueError, RecursionError) as error:
        problem = f"holds a string in {field_value} that is no JSON ({error})"
        raise field_value.bad(problem) from None
