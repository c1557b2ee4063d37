"""Which turns of a conversation are trained on, by mode; the modes are tinker's ``TrainOnWhat``.

===============================  ======================================================================================
``last_assistant_message``       the last turn whose role is ``assistant``
``last_assistant_turn``          the assistant's turns behind the last one of a user
``all_assistant_messages``       the assistant's turns
``all_messages``                 every turn
``all_user_and_system_messages``  turns of users and of the system
``customized``                   turns that say that they are ``trainable``
===============================  ======================================================================================
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


def trained_turns(roles: Sequence[str], mode: str, trainable: Sequence[bool | None] = ()) -> list[bool]:
    """Whether each turn is trained on.

    Args:
        roles: Role of each turn.
        mode: One of :data:`TURN_MODES`.
        trainable: With ``customized``, what each turn says.

    Raises:
        ConfigError: there is no such mode; ``customized``, and a turn does not say whether it is trainable.

    Example:
        >>> trained_turns(["user", "assistant", "tool", "assistant", "user"], "last_assistant_message")
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
        asked = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        return [is_one and i > asked for i, is_one in enumerate(assistant)]
    if mode != "customized":
        raise ConfigError("is no mode", field="train_on", value=mode, cure=did_you_mean(mode, TURN_MODES))
    for i, said in enumerate(trainable):
        if said is None:
            raise ConfigError("does not say whether it is trained on", field=f"messages[{i}].trainable", value=None)
    return [bool(said) for said in trainable]
