"""What a chat template leaves out of a conversation.

Templates know the roles and fields of their own model, and write nothing for others: a ``tool``
message, the field ``reasoning_content`` or the arguments of calls are gone without an error. To
find that out, a conversation is rendered once more with another word in place of each text, all of
them different: fields whose words do not arrive were left out. Fields without text, such as
numbers, count as read if the template names them.

Price: one more rendering for each shape of conversation (roles and fields), not for each
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.ingest.conversations import TRAINING_MARKS, Message

_LABELS = ("role", "name", "id", "tool_call_id")
"""Fields that say whose or which a message is: a message of which only these arrive is lost."""


class Probe(NamedTuple):
    """A conversation with other words.

    Attributes:
        messages: The messages with a word of its own in place of each text.
        words: For each message the words by the field that they stand in.
    """

    messages: list[dict[str, Any]]
    words: list[dict[str, list[str]]]


class LeftOut(NamedTuple):
    """What a template leaves out of a conversation.

    Attributes:
        fields: For each message the fields that do not arrive.
        lost: The messages of which nothing that they say arrives.
    """

    fields: list[list[str]]
    lost: list[int]


def shape_of(value: Any) -> Hashable:
    """What decides which fields of messages a template reads: their roles and fields, without the
    texts.

    Example:
        >>> shape_of([{"role": "user", "content": "Hi"}, {"role": "tool", "content": ""}])
        (('role', 'user', 'content', True), ('role', 'tool', 'content', False))
    """
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    if isinstance(value, Mapping):
        shape: list[Hashable] = []
        for name, one in value.items():
            shape += [name, one if name == "role" and isinstance(one, str) else shape_of(one)]
        return tuple(shape)
    if isinstance(value, list | tuple):
        return tuple([shape_of(one) for one in value])
    return type(value)


def probe_of(messages: Sequence[Message]) -> Probe:
    """The conversation with another word in place of each text.

    Example:
        >>> probe_of([{"role": "user", "content": "Hi"}])
        Probe(messages=[{'role': 'user', 'content': 'headrace0z'}],
            words=[{'content': ['headrace0z']}])
    """
    probes: list[dict[str, Any]] = []
    words: list[dict[str, list[str]]] = []
    count = 0

    def next_word(field: str) -> str:
        nonlocal count
        word = f"headrace{count}z"
        words[-1].setdefault(field, []).append(word)
        count += 1
        return word

    for message in messages:
        words.append({})
        probe = dict(message)
        for field, value in message.items():
            if field == "tool_calls":
                probe[field] = [_probe_call(call, next_word) for call in value]
            elif _is_spoken(field, value):
                probe[field] = next_word(field)
        probes.append(probe)
    return Probe(probes, words)


def _is_spoken(field: str, value: Any) -> bool:
    """Whether a field of a message is a text that a template may write. Templates check the form of
    ids.
    """
    is_label = field == "role" or field.endswith("id")
    return isinstance(value, str) and bool(value.strip()) and not is_label


def left_out(probe: Probe, text: str, names: Collection[str]) -> LeftOut:
    """What the rendering of a probe lacks.

    Args:
        probe: The probe.
        text: What the template made of it.
        names: The template's own names, see :func:`~headrace.ingest.bounded_jinja.names_in`.
    """
    text = text.lower()
    fields: list[list[str]] = []
    lost: list[int] = []
    for i, (message, words) in enumerate(zip(probe.messages, probe.words, strict=True)):
        arrives = {field: all(word in text for word in own) for field, own in words.items()}
        silent = [field for field, is_there in arrives.items() if not is_there]
        own_fields = message.keys() - {"role", "content", "tool_calls"} - set(TRAINING_MARKS)
        silent += [name for name in own_fields if name not in arrives and name not in names]
        fields.append(sorted(silent))
        spoken = {field for field in arrives if field not in _LABELS}
        if spoken and not any(word in text for field in spoken for word in words[field]):
            lost.append(i)
    return LeftOut(fields, lost)


def _probe_call(call: Any, next_word: Callable[[str], str]) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _probe_call(call["function"], next_word)}
    probe = dict(call)
    if isinstance(call.get("name"), str):
        probe["name"] = next_word("tool_calls[].name")
    if call.get("arguments"):
        probe["arguments"] = {"headrace": next_word("tool_calls[].arguments")}
    return probe
