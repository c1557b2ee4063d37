"""What a chat template leaves out of a conversation.

Templates know the roles and fields of their own model, and write nothing for others: a ``tool``
message, the field ``reasoning_content`` or the arguments of calls are gone without an error. To
find that out, a conversation is rendered once more with another word in place of each text, all of
them different: fields whose words do not arrive were left out. In a content that does not arrive as
it is, each word is replaced alone, but for the template's own texts, by which it may cut, such as
``</think>``.
Fields without text, such as numbers, count as read if the template names or quotes them.

Price: one more rendering for each shape of conversation (roles, fields, and the template's texts in
contents that are cut), not for each conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from headrace.ingest.conversations import TRAINING_MARKS, Message, Messages

# Two code points that Unicode sets aside for a program's own use; they never leave this package.
OPEN = "\ufdd0"
CLOSE = "\ufdd1"
"""What stands around a text that a template marks, while it is rendered."""
_LABELS = ("role", "name", "id", "tool_call_id")
"""Fields that say whose or which a message is: a message of which only these arrive is lost."""
_IN_CALLS = "tool_calls[]."
_WORD_OF_PROBE = re.compile(r"headrace\d+z")


class Probe(NamedTuple):
    """A conversation with other words.

    Attributes:
        messages: The messages with a word of its own in place of each text.
        words: For each message the words by the field that they stand in; none for a field
            without text.
        are_own: Whether the words are those of the conversation itself.
    """

    messages: Messages
    words: list[dict[str, list[str]]]
    are_own: bool = False


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


def contents_cut(messages: Messages, text: str) -> list[int]:
    """The messages whose content is not in a text as it is."""
    cut: list[int] = []
    start = 0
    for i, message in enumerate(messages):
        content = (message.get("content") or "").strip()
        # Where it begins is found much faster than the whole of it, which usually follows.
        start = max(0, text.find(content[:32], start))
        if not text.startswith(content, start) and content not in text:
            cut.append(i)
    return cut


def markers_of(names: Collection[str]) -> list[str]:
    """Those of a template's own texts by which it may cut a content, the longest first.

    Example:
        >>> markers_of({"content", "</think>", ": "})
        ['</think>']
    """
    markers = [name for name in names if re.search(r"\w", name) and re.search(r"[^\w\s]", name)]
    return sorted(markers, key=lambda marker: (-len(marker), marker))


def probe_of(messages: Messages, cut: Collection[int] = (), markers: Sequence[str] = ()) -> Probe:
    """The conversation with another word in place of each text, or of each word between the markers
    of a content that is cut.

    Example:
        >>> probe_of([{"role": "user", "content": "Hi you"}])
        Probe(messages=[{'role': 'user', 'content': 'headrace0z'}],
            words=[{'content': ['headrace0z']}], are_own=False)
        >>> message = {"role": "user", "content": "<b>Hi</b> you"}
        >>> probe_of([message], [0], ["<b>", "</b>"]).messages
        [{'role': 'user', 'content': '<b>headrace0z</b> headrace1z'}]
    """
    numbers = count()
    prober = _Prober(lambda _: f"headrace{next(numbers)}z", markers)
    probes = [prober.message(message, i in cut) for i, message in enumerate(messages)]
    return Probe(probes, prober.words)


def own_texts_of(messages: Messages) -> Probe:
    """The conversation as a probe with its own texts, but for contents: for a template that refuses
    others.
    """
    prober = _Prober(lambda text: text.strip().lower())
    for message in messages:
        prober.message({**message, "content": None}, False)
    return Probe([dict(message) for message in messages], prober.words, are_own=True)


class _Prober:
    """Puts words in place of the texts of messages, and notes them by their fields."""

    def __init__(self, word_for: Callable[[str], str], markers: Sequence[str] = ()) -> None:
        self._word_for = word_for
        self._marker_or_word = re.compile("|".join([*map(re.escape, markers), r"(\w+)"]))
        self.words: list[dict[str, list[str]]] = []

    def message(self, message: Message, is_cut: bool) -> dict[str, Any]:
        """A message with other words."""
        self.words.append({})
        if not is_cut:
            return self._fields(message, "")
        probe = self._fields({**message, "content": None}, "")
        probe["content"] = self._marker_or_word.sub(
            lambda one: self._word("content", one[1]) if one[1] else one[0], message["content"]
        )
        if "content" not in self.words[-1]:  # there is no word in it
            probe["content"] = self._word("content", message["content"])
        return probe

    def _word(self, path: str, text: str) -> str:
        word = self._word_for(text)
        self.words[-1].setdefault(path, []).append(word)
        return word

    def _fields(self, fields: Mapping[str, Any], parent: str) -> dict[str, Any]:
        """The fields of a message, a call or its function; templates check the form of ids."""
        probe = dict(fields)
        for name, value in fields.items():
            path = parent + name
            if path == "tool_calls":
                probe[name] = [self._fields(call, _IN_CALLS) for call in value]
            elif path == f"{_IN_CALLS}function" and isinstance(value, dict):
                probe[name] = self._fields(value, f"{path}.")
            elif parent and name == "arguments":
                if value:
                    first = next(iter(value)) if isinstance(value, Mapping | list) else value
                    probe[name] = {"headrace": self._word(path, str(first))}
            elif name in ("role", *TRAINING_MARKS) or path == f"{_IN_CALLS}type":
                continue
            elif isinstance(value, str) and not name.endswith("id"):
                if value.strip():
                    probe[name] = self._word(path, value)
            elif value is not None:
                self.words[-1].setdefault(path, [])
        return probe


def left_out(probe: Probe, text: str, names: Collection[str]) -> LeftOut:
    """What the rendering of a probe lacks.

    Args:
        probe: The probe.
        text: What the template made of it.
        names: The template's own names, see ``ChatTemplate``.
    """
    text = text.lower()
    # A content that is cut has as many words as it likes, which a set has at once.
    present = text if probe.are_own else set(_WORD_OF_PROBE.findall(text))
    fields: list[list[str]] = []
    lost: list[int] = []
    for i, words in enumerate(probe.words):
        silent: list[str] = []
        is_heard = False
        for path, in_field in words.items():
            arrived = [word for word in in_field if word in present]
            name = path.rpartition(".")[2]
            is_heard |= bool(arrived) and path not in _LABELS
            if not in_field and name not in names and f'"{name.lower()}"' not in text:
                silent.append(path)
            elif len(arrived) < len(in_field):
                silent.append(f"{path} (in part)" if arrived else path)
        fields.append(sorted(silent))
        if not is_heard and any(words[path] for path in words if path not in _LABELS):
            lost.append(i)
    return LeftOut(fields, lost)
