"""Supervised fine-tuning: which parts of a conversation, possibly with media, are trained on.

A conversation is a list of :class:`Message`: the ids of its header (role markers, trained on only
with ``all_tokens``) and its content, text ids and :class:`Media`, placeholders for the model's own
embeddings. ``train_on`` is a mode of :mod:`headrace.batch.masks`, which selects whose content is
trained on, or ``all_tokens``: every token including headers, but never media.

Masks are per token, 1 where the token itself is trained on, like ``loss_mask`` in a cache of chats
(headrace.ingest); packing shifts them to labels. Media count in every length and are never cut:
truncation within one ends the conversation before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Integer

from headrace.batch.examples import Example
from headrace.batch.masks import TURN_MODES, TurnMode, trained_turns
from headrace.errors import ConfigError, check_at_least, check_choice

TrainOnWhat: TypeAlias = TurnMode | Literal["all_tokens"]
"""Which turns of a conversation are trained on: a mode of
:func:`~headrace.batch.masks.trained_turns`, or ``"all_tokens"``: every token including headers.
"""
MODES = (*TURN_MODES, "all_tokens")
MEDIA = "media"
"""Leaf of batches: number of the conversation's medium that a token represents, from 1; 0: none."""


@dataclass(frozen=True)
class Media:
    """A picture, a sound: something that the model embeds itself.

    Attributes:
        length: Positions it takes.
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
        content: Its content in pieces: ids, and media.
        header: Ids before the content that mark the role.
        trainable: Whether it is trained on with ``customized``.
    """

    role: str
    content: Sequence[Content]
    header: Sequence[int] = ()
    trainable: bool | None = None


def conversation(
    messages: Sequence[Message],
    train_on: TrainOnWhat = "all_assistant_messages",
    *,
    bos: Sequence[int] = (),
    max_length: int | None = None,
) -> Example:
    """Converts a conversation to one sequence.

    Args:
        messages: In order.
        train_on: See the module.
        bos: Ids before all messages.
        max_length: Tokens after this many are cut off; cutting into a medium removes all of it.

    Returns:
        An example with its mask, which may be 0 everywhere, and, if there are media, the leaf
        ``media``.

    Raises:
        ConfigError: no such mode; an invalid length; nothing is left.

    Example:
        >>> chat = [Message("user", [[5], Media(2, 9)], [1]), Message("assistant", [[6, 7]], [2])]
        >>> example = conversation(chat)
        >>> example.tokens.tolist(), example.loss_mask.tolist(), example.extras["media"].tolist()
        ([1, 5, 9, 9, 2, 6, 7], [0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0, 0])
    """
    check_choice("train_on", train_on, MODES, "is no mode")
    everything = train_on == "all_tokens"
    mode = "all_messages" if everything else train_on
    trained_of = trained_turns([m.role for m in messages], mode, [m.trainable for m in messages])
    tokens = [np.asarray(bos, np.int64)]
    mask = [np.full(len(bos), everything, np.uint8)]
    media = [np.zeros(len(bos), np.int32)]
    media_count = 0
    for message, trained in zip(messages, trained_of, strict=True):
        for index, piece in enumerate([message.header, *message.content]):
            if isinstance(piece, Media):
                check_at_least("Media.length", piece.length)
                media_count += 1
                ids = np.full(piece.length, piece.token, np.int64)
                is_counted = False
                number = media_count
            else:
                ids = np.asarray(piece, np.int64)
                is_counted = everything or (trained and index > 0)
                number = 0
            tokens.append(ids)
            mask.append(np.full(ids.size, is_counted, np.uint8))
            media.append(np.full(ids.size, number, np.int32))
    ids = np.concatenate(tokens)
    marks = np.concatenate(mask)
    numbers = np.concatenate(media)
    keep = _count_kept(numbers, max_length)
    if keep == 0:
        raise ConfigError(
            "leaves nothing of the conversation", field="max_length", value=max_length
        )
    extras = {MEDIA: numbers[:keep]} if media_count else {}
    return Example(ids[:keep], loss_mask=marks[:keep], extras=extras)


def _count_kept(media: np.ndarray, max_length: int | None) -> int:
    """Tokens that remain under a length limit; the cut never splits a medium."""
    if max_length is None or max_length >= media.size:
        return int(media.size)
    keep = max(max_length, 0)
    if keep > 0 and media[keep] != 0 and media[keep - 1] == media[keep]:
        return int(np.argmax(media == media[keep]))
    return keep
