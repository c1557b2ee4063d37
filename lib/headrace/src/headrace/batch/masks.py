"""Which turns of a conversation are trained on.

``headrace build --kind chat`` marks their tokens with 1 in the leaf ``loss_mask``, which rows carry
through packing, shuffles, mixtures and the loader to
:attr:`headrace.batch.packed_batch.PackedBatch.token_mask`
(:meth:`~headrace.store.cache.TokenCache.mask_leaf`). Turns are chosen by mode; the modes are
tinker's ``TrainOnWhat``:

===============================  ===================================================================
``last_assistant_message``       the last turn whose role is ``assistant``
``last_assistant_turn``          the assistant's turns after the user's last one
``all_assistant_messages``       the assistant's turns
``all_messages``                 every turn
``all_user_and_system_messages`` turns of users and of the system
``customized``                   turns marked ``trainable``
===============================  ===================================================================

Price: one more byte per token to read and to transfer to devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from headrace.errors import ConfigError, did_you_mean

TurnMode: TypeAlias = Literal[
    "last_assistant_message",
    "last_assistant_turn",
    "all_assistant_messages",
    "all_messages",
    "all_user_and_system_messages",
    "customized",
]
TURN_MODES: tuple[str, ...] = get_args(TurnMode)


def trained_turns(
    roles: Sequence[str], mode: str, trainable: Sequence[bool | None] = ()
) -> list[bool]:
    """Whether each turn is trained on.

    Args:
        roles: Role of each turn.
        mode: One of :data:`TURN_MODES`.
        trainable: With ``customized``, the mark of each turn.

    Raises:
        ConfigError: no such mode; with ``customized``, a turn is not marked trainable or not.

    Example:
        >>> trained_turns(
        ...     ["user", "assistant", "tool", "assistant", "user"], "last_assistant_message"
        ... )
        [False, False, False, True, False]
    """
    assistant = [role == "assistant" for role in roles]
    if mode == "all_messages":
        return [True] * len(roles)
    if mode == "all_assistant_messages":
        return assistant
    if mode == "all_user_and_system_messages":
        return [role in ("user", "system") for role in roles]
    if mode == "last_assistant_message":
        last = max((i for i, is_one in enumerate(assistant) if is_one), default=-1)
        return [i == last for i in range(len(roles))]
    if mode == "last_assistant_turn":
        last_question = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        return [is_one and i > last_question for i, is_one in enumerate(assistant)]
    if mode != "customized":
        raise ConfigError(
            "is no mode", field="train_on", value=mode, cure=did_you_mean(mode, TURN_MODES)
        )
    for i, is_trained in enumerate(trainable):
        if is_trained is None:
            raise ConfigError(
                "does not say whether it is trained on",
                field=f"messages[{i}].trainable",
                value=None,
            )
    return [bool(is_trained) for is_trained in trainable]
