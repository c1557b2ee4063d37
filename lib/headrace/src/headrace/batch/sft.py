"""Supervised fine-tuning: what of a conversation is trained on, with media in it.

A conversation is a list of :class:`Message`: the ids of its header (role markers, which are trained on only with
``all_tokens``) and its content, text ids and :class:`Media` that stand for the model's own embeddings. ``train_on`` is
a mode of :mod:`headrace.batch.masks`, which says whose content is trained on, or ``all_tokens``: every token, headers
included; media never.

Masks are of tokens, 1 where the token itself is trained on, as ``loss_mask`` in a cache of chats is (headrace.ingest);
packing moves them to the labels. Media count in every length and are never cut: a conversation that is truncated within
one ends before it.
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
"""Which turns of a conversation are trained on: a mode of :func:`~headrace.batch.masks.trained_turns`, or
``"all_tokens"``: every token, headers too."""
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
        train_on: See the module.
        bos: Ids before all messages.
        max_length: Tokens behind this one are cut off; one of a medium takes all of the medium with it.

    Returns:
        An example with its mask, which may be 0 everywhere, and, if there are media, the leaf ``media``.

    Raises:
        ConfigError: a mode or a length that cannot be; nothing is left.

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
                ids, is_counted, number = np.full(piece.length, piece.token, np.int64), False, media_count
            else:
                ids, is_counted, number = np.asarray(piece, np.int64), everything or (trained and index > 0), 0
            tokens.append(ids)
            mask.append(np.full(ids.size, is_counted, np.uint8))
            media.append(np.full(ids.size, number, np.int32))
    ids, marks, numbers = np.concatenate(tokens), np.concatenate(mask), np.concatenate(media)
    keep = _count_kept(numbers, max_length)
    if keep == 0:
        raise ConfigError("leaves nothing of the conversation", field="max_length", value=max_length)
    extras = {MEDIA: numbers[:keep]} if media_count else {}
    return Example(ids[:keep], loss_mask=marks[:keep], extras=extras)


def _count_kept(media: np.ndarray, max_length: int | None) -> int:
    """Tokens that a length leaves: the cut never goes through a medium."""
    if max_length is None or max_length >= media.size:
        return int(media.size)
    keep = max(max_length, 0)
    if keep > 0 and media[keep] != 0 and media[keep - 1] == media[keep]:
        return int(np.argmax(media == media[keep]))
    return keep
