"""Supervised fine-tuning: what of a conversation is trained on, with media in it.

A conversation is a list of :class:`Message`: the ids of its header (role markers, which are trained on only with
``all_tokens``) and its content, text ids and :class:`Media` that stand for the model's own embeddings. ``train_on``:

===============================  ======================================================================================
``last_assistant_message``       content of the last message whose role is ``assistant``
``last_assistant_turn``          content of the assistant's messages behind the last message of a user
``all_assistant_messages``       content of the assistant's messages
``all_messages``                 content of every message
``all_tokens``                   every token, headers included; media never
``all_user_and_system_messages``  content of messages of users and of the system
``customized``                   content of messages whose ``trainable`` is true
===============================  ======================================================================================

Masks are of tokens, 1 where the token itself is trained on, as ``loss_mask`` in a cache of chats is (headrace.ingest);
packing moves them to the labels. Media count in every length and are never cut: a conversation that is truncated within
one ends before it.

Rows of caches of chats bring their masks along (:mod:`headrace.data.masks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Integer

from headrace.data.examples import Example
from headrace.errors import ConfigError, did_you_mean
from headrace.index.train_on import TURN_MODES, TurnMode, trained_turns

TrainOnWhat: TypeAlias = TurnMode | Literal["all_tokens"]
MODES = (*TURN_MODES, "all_tokens")
MEDIA = "media"
"""Leaf of batches: which of the conversation's media a token stands for, from 1; 0: none."""


@dataclass(frozen=True)
class Media:
    """A picture, a sound: something that the model embeds itself.

    Attributes:
        length: Positions that it takes.
        token: Id that fills them.
    """

    length: int
    token: int = 0


Content: TypeAlias = Sequence[int] | Integer[np.ndarray, " n"] | Media


@dataclass(frozen=True, eq=False)
class Message:
    """One message, as ids.

    Attributes:
        role: ``system``, ``user``, ``assistant``, ``tool``, ...
        content: What it says, in pieces: ids, and media.
        header: Ids before the content that mark whose message it is.
        trainable: Whether it is trained on with ``customized``.
    """

    role: str
    content: Sequence[Content]
    header: Sequence[int] = ()
    trainable: bool | None = None


def trained_messages(messages: Sequence[Message], train_on: TrainOnWhat) -> list[bool]:
    """Whether the content of each message is trained on.

    Raises:
        ConfigError: there is no such mode; ``customized``, and a message does not say whether it is trainable.

    Example:
        >>> chat = [Message("user", [[1]]), Message("assistant", [[2]]), Message("user", [[3]])]
        >>> trained_messages(chat, "all_assistant_messages")
        [False, True, False]
    """
    if train_on not in MODES:
        raise ConfigError("is no mode", field="train_on", value=train_on, cure=did_you_mean(str(train_on), MODES))
    if train_on == "all_tokens":
        return [True] * len(messages)
    return trained_turns([m.role for m in messages], train_on, [m.trainable for m in messages])


def conversation(
    messages: Sequence[Message],
    train_on: TrainOnWhat = "all_assistant_messages",
    *,
    bos: Sequence[int] = (),
    max_length: int | None = None,
) -> Example:
    """A conversation as one sequence.

    Args:
        messages: In order.
        train_on: See the module's table.
        bos: Ids before all messages.
        max_length: Tokens behind this one are cut off; one of a medium takes all of the medium with it.

    Returns:
        An example with its mask and, if there are media, the leaf ``media``. Its mask may be 0 everywhere: see
        :func:`trains`.

    Raises:
        ConfigError: a mode or a length that cannot be; nothing is left.

    Example:
        >>> chat = [Message("user", [[5], Media(2, 9)], [1]), Message("assistant", [[6, 7]], [2])]
        >>> example = conversation(chat)
        >>> example.tokens.tolist(), example.loss_mask.tolist(), example.extras["media"].tolist()
        ([1, 5, 9, 9, 2, 6, 7], [0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0, 0])
    """
    everything = train_on == "all_tokens"
    tokens = [np.asarray(bos, np.int64)]
    mask = [np.full(len(bos), everything, np.uint8)]
    media = [np.zeros(len(bos), np.int32)]
    shown = 0
    for message, trained in zip(messages, trained_messages(messages, train_on), strict=True):
        for place, piece in enumerate([message.header, *message.content]):
            if isinstance(piece, Media):
                if piece.length < 1:
                    raise ConfigError("must be at least 1", field="Media.length", value=piece.length)
                shown += 1
                ids, counted, number = np.full(piece.length, piece.token, np.int64), False, shown
            else:
                ids, counted, number = np.asarray(piece, np.int64), everything or (trained and place > 0), 0
            tokens.append(ids)
            mask.append(np.full(ids.size, counted, np.uint8))
            media.append(np.full(ids.size, number, np.int32))
    ids, marks, numbers = np.concatenate(tokens), np.concatenate(mask), np.concatenate(media)
    keep = _kept(numbers, max_length)
    if keep == 0:
        raise ConfigError("leaves nothing of the conversation", field="max_length", value=max_length)
    extras = {MEDIA: numbers[:keep]} if shown else {}
    return Example(ids[:keep], loss_mask=marks[:keep], extras=extras)


def _kept(media: np.ndarray, max_length: int | None) -> int:
    """Tokens that a length leaves: the cut never goes through a medium."""
    if max_length is None or max_length >= media.size:
        return int(media.size)
    keep = max(max_length, 0)
    if keep > 0 and media[keep] != 0 and media[keep - 1] == media[keep]:
        return int(np.argmax(media == media[keep]))
    return keep


def trains(example: Example) -> bool:
    """Whether anything of an example is trained on: the first token is no label.

    Example:
        >>> trains(Example(np.array([1, 2]), loss_mask=np.array([1, 0])))
        False
    """
    return example.length > 1 if example.loss_mask is None else bool(example.loss_mask[1:].any())
