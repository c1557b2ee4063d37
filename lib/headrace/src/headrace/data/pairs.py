"""Preference pairs: which documents of a cache are chosen and rejected answers, and that rows keep
them together.

A cache with the leaf ``chosen`` knows which of its answers is rejected. Its documents are pairs
everywhere: packed by twos, with weight -1 for the rejected side, and refused where rows would part
them. ``pairs: false`` is the word with which both answers are trained on as ordinary text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import numpy as np
from jaxtyping import UInt8

from headrace.errors import ConfigError
from headrace.store.cache import TokenCache

CHOSEN = "chosen"
"""Leaf that marks the chosen documents."""
_checked: WeakSet[TokenCache] = WeakSet()


def is_of_pairs(cache: TokenCache, said: bool | None) -> bool:
    """Whether the documents of a cache are preference pairs: as ``said``, or None: as the cache
    says.

    Example:
        >>> import headrace.testing
        >>> is_of_pairs(headrace.testing.tiny_cache(documents=6), None)
        False
    """
    if not isinstance(said, bool | None):
        raise ConfigError(
            "is neither true nor false", field="pairs", value=said, cure="Give True or False."
        )
    return CHOSEN in cache.leaves if said is None else said


def check_pairs(cache: TokenCache, unit: int, mask: str | None) -> None:
    """Raises ConfigError unless the documents of a cache of pairs are alternately chosen and
    rejected, are packed in units of two, and have a ``mask`` for the tokens of the answers.
    """
    if unit != 2:
        raise ConfigError(
            f"parts the two answers of each pair of {cache.path}",
            field="unit",
            value=unit,
            cure="Leave it out: pairs are packed in units of 2. Or train on both answers as on"
            " text: pairs: false.",
        )
    if mask is None:
        raise ConfigError(
            "says that all tokens are trained on, those of the prompts too",
            field="loss_mask",
            value="none",
            cure="Leave it out (headrace build --kind preference writes the mask of the answers)."
            " Or train on both answers as on text: pairs: false.",
        )
    if cache not in _checked:
        _check_turns(cache)
        _checked.add(cache)


def refuse_pairs_in_a_stream(cache: TokenCache, said: bool | None) -> None:
    """Raises ConfigError if the documents of a cache are pairs: rows that are cut from a stream
    part them.
    """
    if is_of_pairs(cache, said):
        raise ConfigError(
            f"is missing, and {cache.path} holds preference pairs: rows of a stream would train on"
            " rejected answers as on chosen ones",
            field="packing",
            cure="Pack them, which keeps pairs together (packing: {}; in Python"
            " PackedTokenDataset). Or train on both"
            " answers as on text: pairs: false.",
        )


def refuse_parted_buckets(
    cache: TokenCache, of_document: UInt8[np.ndarray, " n"], path: str, by: str
) -> None:
    """Raises ConfigError if the two answers of a pair lie in different buckets.

    Args:
        cache: A cache of pairs.
        of_document: The bucket of each document.
        path: Path of the buckets in the config.
        by: What divides the documents.
    """
    pairs = of_document[: of_document.size // 2 * 2].reshape(-1, 2)
    parted = int((pairs[:, 0] != pairs[:, 1]).sum())
    if parted:
        raise ConfigError(
            f"parts {parted:,} of {len(pairs):,} preference pairs of {cache.path}: their answers"
            " lie in different buckets",
            field=f"{path}.by",
            value=by,
            cure="Divide by a number that both answers of a pair have (a file: scores.npy). Or"
            " train on both answers as on text: pairs: false, beside buckets.",
        )


_FIELDS = {
    "packing": "packing",
    "unit": "packing.unit",
    "long": "packing.long",
    "algorithm": "packing.algorithm",
    "loss_mask": "loss_mask",
}
"""Fields of a component, by the name of the argument that errors of a dataset name."""


@contextmanager
def pairs_of_component(name: str) -> Iterator[None]:
    """Errors about preference pairs and how they are packed name fields of this component of a
    config.
    """
    try:
        yield
    except ConfigError as error:
        path = f"components.{name}"
        field = str(error.field)
        if field not in _FIELDS and not field.startswith("chosen["):
            raise
        named = f"{path}.{_FIELDS[field]}" if field in _FIELDS else f"{field} of {path}.cache"
        cure = (error.cure or "").replace("packing: {}", f"{path}.packing: {{}}")
        cure = cure.replace("pairs: false", f"{path}.pairs: false")
        raise error.but(field=named, cure=cure) from error


def _check_turns(cache: TokenCache) -> None:
    """Raises ConfigError unless the leaf ``chosen`` of a cache, if there is one, alternates between
    1 and 0.
    """
    if CHOSEN not in cache.leaves:
        return
    at = 0
    for block in cache.leaf(CHOSEN).blocks():
        wrong = np.flatnonzero(block.reshape(-1) != (np.arange(at, at + block.size) + 1) % 2)
        if wrong.size:
            number = at + int(wrong[0])
            raise ConfigError(
                f"is out of turn in {cache.path}: even documents are chosen, odd ones are rejected",
                field=f"chosen[{number}]",
                value=int(block.reshape(-1)[wrong[0]]),
                cure="Build the cache with --kind preference. Or train on its documents as on"
                " text: pairs: false.",
            )
        at += block.size
