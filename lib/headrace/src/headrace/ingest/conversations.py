"""Conversations of records in one form, whatever program or file format they come from.

A message is a mapping with a ``role``. Before any template sees it, :func:`read_messages`

1. drops fields that are null: tables give every message all fields that one of them has;
2. renames what ShareGPT (``from``, ``value``) and the former API of functions (``function_call``) have;
3. joins parts of text to a text, and refuses pictures and other parts;
4. reads the arguments of tool calls that are JSON in a string.

So the same conversation gives the same tokens from JSON lines, Parquet, Arrow and a saved dataset. A null within a
list, or within arguments that are a string, is kept: there it is what somebody wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from headrace.ingest.records import BadRecordError, type_name

Message: TypeAlias = Mapping[str, Any]

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
TRAINING_MARKS = ("trainable", "train", "loss", "weight")
"""Fields of a message that say whether it is trained on: true or false, or 1 or 0."""
_SAYS_NOTHING = {"role", "content", "name", *TRAINING_MARKS}
"""Fields of a message that are no content."""
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


def read_messages(value: Any, field: str) -> list[dict[str, Any]]:
    """A conversation, or JSON of one, in the form of most templates; its texts are strings, or None beside tool calls.

    Raises:
        BadRecordError: it is none; names the message's place.

    Example:
        >>> read_messages([{"from": "human", "value": "Hi"}], "conversations")
        [{'role': 'user', 'content': 'Hi'}]
        >>> read_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": None}], "messages")
        [{'role': 'user', 'content': 'Hi'}]
    """
    value = _parsed(value, field)
    if not isinstance(value, list) or not value:
        raise BadRecordError(
            f"holds no list of messages in field {field!r}",
            'Messages are [{"role": "user", "content": "..."}, ...].',
        )
    return [_message(one, f"{field}[{i}]") for i, one in enumerate(value)]


def read_tools(value: Any, field: str) -> list[Any] | None:
    """The tools of a record, which may be JSON in strings; None if there are none.

    Raises:
        BadRecordError: they are no list of objects.
    """
    tools = _parsed(value, field)
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise BadRecordError(f"holds a {type_name(tools)} in field {field!r}, not a list of tools")
    read = [without_nulls(_parsed(tool, f"{field}[{i}]")) for i, tool in enumerate(tools)]
    for i, tool in enumerate(read):
        if not isinstance(tool, dict):
            raise BadRecordError(f"holds a {type_name(tool)} in {field}[{i}], not a tool")
    return read or None


def read_variables(value: Any, field: str) -> dict[str, Any]:
    """The variables that a record gives to the template.

    Raises:
        BadRecordError: it is no object, or names what the build itself gives.
    """
    variables = without_nulls(_parsed(value, field))
    if variables is None:
        return {}
    if not isinstance(variables, dict):
        raise BadRecordError(
            f"holds a {type_name(variables)} in field {field!r}, not an object of variables"
        )
    for name in _OF_THE_BUILD:
        if name in variables:
            raise BadRecordError(
                f"has {name!r} in field {field!r}, which comes from a field of its own",
                "Move it out of the object.",
            )
    return variables


def training_mark(message: Message, place: str) -> bool | None:
    """Whether a message is to be trained on; None if it does not say so.

    Raises:
        BadRecordError: it says something else than yes or no.

    Example:
        >>> training_mark({"role": "assistant", "content": "Hi", "weight": 0}, "messages[1]")
        False
    """
    marks = {name: message[name] for name in TRAINING_MARKS if name in message}
    for name, mark in marks.items():
        if mark not in (0, 1):
            raise BadRecordError(
                f"holds {json.dumps(mark)} in {place}.{name}, which says whether the message is trained on",
                "Write true or false, or 1 or 0.",
            )
    return all(marks.values()) if marks else None


def with_texts_for_nulls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with an empty text in place of none."""
    return [m | {"content": ""} if m.get("content", "") is None else m for m in messages]


def with_arguments_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of tool calls as JSON in a string, which some templates expect."""
    return [
        m | {"tool_calls": _texts(m["tool_calls"])} if "tool_calls" in m else m for m in messages
    ]


def with_text_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each text as a list of one part, for templates that read nothing else."""
    return [
        m | {"content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def _message(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRecordError(f"holds a {type_name(value)} in {place}, not a message with a role")
    message: dict[str, Any] = without_nulls(value)
    if "role" not in message and "from" in message:
        message = _from_sharegpt(message)
    if not isinstance(message.get("role"), str):
        has = ", ".join(map(repr, message))
        raise BadRecordError(
            f"holds a message without a role in {place} (it has {has})",
            'Messages are {"role": "user", "content": "..."}.',
        )
    if "function_call" in message and "tool_calls" not in message:
        call = message.pop("function_call")
        message["tool_calls"] = [{"type": "function", "function": call}]
    if message["role"] == "function":
        message["role"] = "tool"
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], f"{place}.tool_calls")
        if not message["tool_calls"]:
            del message["tool_calls"]
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(
            _text_of(part, f"{place}.content[{i}]") for i, part in enumerate(content)
        )
    elif content is None:
        if not message.keys() - _SAYS_NOTHING:
            raise BadRecordError(
                f"holds a message without content in {place}", 'An empty text is "content": "".'
            )
        message["content"] = None
    elif not isinstance(content, str):
        raise BadRecordError(
            f"holds a {type_name(content)} in {place}.content, not a text",
            "Write it as a string.",
        )
    return message


def _from_sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    role = message.pop("from")
    content = message.pop("value", None)
    if role == "function_call":
        call = _json_object(content)
        if call is None:
            return {"role": "assistant", "content": content, **message}
        return {"role": "assistant", "function_call": call, **message}
    if isinstance(role, str):
        role = _SHAREGPT_ROLES.get(role, role)
    return {"role": role, "content": content, **message}


def _text_of(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else type_name(part)
    text = part.get("text") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise BadRecordError(
            f"holds a part of type {kind!r} in {place}, and only text is read",
            "Leave such parts out of the record, or encode them with the model's processor and build --kind tokens.",
        )
    return text


def _tool_calls(value: Any, place: str) -> list[Any]:
    calls = _parsed(value, place)
    if not isinstance(calls, list):
        raise BadRecordError(f"holds a {type_name(calls)} in {place}, not a list of calls")
    return [_with_arguments(call) for call in calls]


def _with_arguments(call: Any) -> Any:
    """A call with its arguments as an object, if they are one."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _with_arguments(call["function"])}
    arguments = call.get("arguments")
    parsed = {} if arguments == "" else _json_object(arguments)
    return call if parsed is None else {**call, "arguments": parsed}


def _texts(calls: list[Any]) -> list[Any]:
    texts: list[Any] = []
    for call in calls:
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            call = {**call, "function": _texts([call["function"]])[0]}
        elif isinstance(call, dict) and isinstance(call.get("arguments"), dict | list):
            call = {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        texts.append(call)
    return texts


def _json_object(text: Any) -> dict[str, Any] | None:
    """The object that a string holds as JSON; None if it holds something else."""
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parsed(value: Any, field: str) -> Any:
    """A JSON value, or the one that a string holds."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRecordError(
            f"holds a string in field {field!r} that is no JSON ({error})"
        ) from None
