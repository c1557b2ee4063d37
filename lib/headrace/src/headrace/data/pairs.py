"""Checks which documents are the chosen and rejected ones of preference pairs, and that rows keep them together."""

from __future__ import annotations

import logging
from weakref import WeakSet

import numpy as np

from headrace.errors import ConfigError
from headrace.store.cache import TokenCache

CHOSEN = "chosen"
"""Leaf that marks the chosen documents."""
_checked: WeakSet[TokenCache] = WeakSet()
_warned: WeakSet[TokenCache] = WeakSet()


def is_of_pairs(cache: TokenCache, unit: int, said: bool | None, mask: str | None) -> bool:
    """Whether rows of a cache that keep ``unit`` documents together are rows of pairs: as ``said``, or by default if
    ``unit`` is 2 and the cache has the leaf ``chosen``.

    Raises:
        ConfigError: they should be, but are packed one by one, or have no ``mask`` for the answers' tokens; documents
            are not alternately chosen and rejected.

    Example:
        >>> import headrace.testing
        >>> is_of_pairs(headrace.testing.tiny_cache(documents=6), 2, None, None)
        False
    """
    pairs = unit == 2 and CHOSEN in cache.leaves if said is None else said
    if not pairs:
        if said is None:
            warn_of_parted(cache)
        return False
    if unit != 2:
        raise ConfigError(
            "parts the two documents of a pair", field="unit", value=unit, cure="Pack with unit=2."
        )
    if mask is None:
        raise ConfigError(
            "says that all tokens are trained on, those of the prompts too",
            field="loss_mask",
            value="none",
            cure="Build the cache with --kind preference, which writes the leaf loss_mask; or set pairs=False.",
        )
    if cache not in _checked:
        _check_turns(cache)
        _checked.add(cache)
    return True


def warn_of_parted(cache: TokenCache) -> None:
    """Warns, once per cache, if rejected answers are trained on like chosen ones."""
    if CHOSEN in cache.leaves and cache not in _warned:
        _warned.add(cache)
        logging.getLogger(__name__).warning(
            f"{cache.path} holds preference pairs, and its rows part them: rejected answers are trained on as chosen"
            " ones are. Pack them with unit: 2 and long: drop, so that the rejected side weighs -1."
        )


def _check_turns(cache: TokenCache) -> None:
    """Raises ConfigError unless the leaf ``chosen`` of a cache, if there is one, alternates between 1 and 0."""
    if CHOSEN not in cache.leaves:
        return
    at = 0
    for block in cache.leaf(CHOSEN).blocks():
        wrong = np.flatnonzero(block.reshape(-1) != (np.arange(at, at + block.size) + 1) % 2)
        if wrong.size:
            number = at + int(wrong[0])
            raise ConfigError(
                "is out of turn: even documents are chosen, odd ones are rejected",
                field=f"chosen[{number}]",
                value=int(block.reshape(-1)[wrong[0]]),
            )
        at += block.size
