"""Preference pairs as weighted pairs: the same batch and the same loss as everything else.

A pair is two examples that stay together: the even one is chosen, the odd one is rejected. Its loss is the unified
loss with a positive weight on the tokens of the one and a negative weight on those of the other.

DPO is of that form: with m = beta * ((log p_c - log q_c) - (log p_r - log q_r)), where p is the policy and q the
reference, the gradient of ``-log sigmoid(m)`` is that of ``-w * (log p_c - log p_r)`` for ``w = beta * sigmoid(-m)``
held fixed. :func:`dpo_weights` gives w; divide by the number of pairs (``denominator=pairs``).

:class:`PreferenceDataset` reads the pairs of a cache (``headrace build --kind preference``), packed as units by a
static plan; :func:`pack_pairs` packs pairs that are in memory.

Price: DPO needs the log probabilities of both sides before the step: one forward pass of policy and reference each.

Reference: Rafailov et al., "Direct preference optimization", arXiv:2305.18290, equation 7.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float32, Float64, Int64

from headrace.data.batch import PackedBatch
from headrace.data.dataset import PlannedDataset
from headrace.data.examples import Example, pack_examples
from headrace.data.rows import Rows, RowSource, masks_of
from headrace.errors import ConfigError
from headrace.index.remap import IndexMap
from headrace.metrics import ReadStats
from headrace.store.cache import TokenCache


def dpo_weights(
    chosen: Float64[np.ndarray, " p"],
    rejected: Float64[np.ndarray, " p"],
    reference_chosen: Float64[np.ndarray, " p"],
    reference_rejected: Float64[np.ndarray, " p"],
    *,
    beta: float = 0.1,
) -> Float32[np.ndarray, " p"]:
    """The weight of each pair: what DPO's gradient multiplies both sides with.

    Args:
        chosen: Sum of the policy's log probabilities over each chosen answer.
        rejected: Over each rejected answer.
        reference_chosen: The reference model's.
        reference_rejected: The reference model's.
        beta: Strength of the pull to the reference.

    Example:
        >>> dpo_weights(np.array([-1.0]), np.array([-1.0]), np.array([-2.0]), np.array([-2.0])).tolist()
        [0.05000000074505806]
    """
    margin = beta * ((np.asarray(chosen) - reference_chosen) - (np.asarray(rejected) - reference_rejected))
    return (beta / (1.0 + np.exp(np.clip(margin, -500, 500)))).astype(np.float32)


def pair_examples(
    pairs: Sequence[tuple[Example, Example]], weights: float | Float32[np.ndarray, " p"] = 1.0
) -> list[Example]:
    """Chosen and rejected examples in turn, with weights of opposite signs, each pair one group.

    Args:
        pairs: (chosen, rejected), each with its mask.
        weights: Weight of each pair, or one for all; not negative.

    Raises:
        ConfigError: there is not one weight a pair, or one is negative.
    """
    strength = np.broadcast_to(np.asarray(weights, np.float32), (len(pairs),)) if np.ndim(weights) == 0 else weights
    if len(np.atleast_1d(strength)) != len(pairs) or (np.asarray(strength) < 0).any():
        raise ConfigError(f"must be one for each of {len(pairs)} pairs, from 0 on", field="weights", value=weights)
    return [
        dataclasses.replace(side, weights=sign * float(weight), group=number)
        for number, (pair, weight) in enumerate(zip(pairs, np.asarray(strength), strict=True))
        for side, sign in zip(pair, (1.0, -1.0), strict=True)
    ]


def pairs_of_rows(rows: Sequence[Example], chosen: Sequence[int] | None = None) -> list[tuple[Example, Example]]:
    """Pairs of rows that alternate, as a cache of preferences and tinker's data hold them.

    Args:
        rows: Chosen, rejected, chosen, rejected, ...
        chosen: The cache's leaf ``chosen`` of each row, checked if it is given.

    Raises:
        ConfigError: the rows are odd in number, or two neighbours are not (chosen, rejected).

    Example:
        >>> rows = [Example(np.array([1, i])) for i in range(4)]
        >>> [(int(a.tokens[1]), int(b.tokens[1])) for a, b in pairs_of_rows(rows)]
        [(0, 1), (2, 3)]
    """
    if len(rows) % 2:
        raise ConfigError(
            "are an odd number of preference rows",
            field="rows",
            value=len(rows),
            cure="Rows alternate: chosen, rejected. Take them two at a time.",
        )
    wrong = [] if chosen is None else np.flatnonzero(np.asarray(chosen) != np.tile([1, 0], len(rows) // 2)).tolist()
    if wrong:
        raise ConfigError(
            "is out of turn: even rows are chosen, odd ones are rejected", field=f"rows[{wrong[0]}]", value=wrong[0]
        )
    return list(zip(rows[::2], rows[1::2], strict=True))


def pack_pairs(
    pairs: Sequence[tuple[Example, Example]],
    seq_len: int,
    weights: float | Float32[np.ndarray, " p"] = 1.0,
    *,
    rows: int | None = None,
    multiple: int = 1,
) -> PackedBatch:
    """A batch of pairs, both sides of each in one row, the chosen one first.

    Raises:
        ConfigError: a pair is longer than a row; weights as in :func:`pair_examples`.

    Example:
        >>> pair = Example(np.array([1, 2])), Example(np.array([1, 3]))
        >>> pack_pairs([pair], 6).token_weights.tolist()
        [[1.0, 0.0, -1.0, 0.0, 0.0, 0.0]]
    """
    return pack_examples(pair_examples(pairs, weights), seq_len, unit=2, rows=rows, multiple=multiple)


class PreferenceDataset(PlannedDataset):
    """Rows of pairs: of each pair the chosen answer weighs 1 and the rejected one -1, and both are one group.

    To train by DPO, give batches ``weights``: what :func:`dpo_weights` says of each pair, at all of its tokens.

    Args:
        rows: Rows of caches of pairs that never part them: ``PackedTokenDataset(cache, seq_len, unit=2, long="drop")``,
            shuffled, or a mixture of such.
        caches: The cache of each of its sources, in their order.

    Raises:
        ConfigError: the rows are not of pairs, or do not say which tokens are the answers'; the documents of a cache
            are not chosen and rejected in turn.
    """

    def __init__(self, rows: PlannedDataset, caches: Sequence[TokenCache]) -> None:
        for source in rows.sources:
            if getattr(source, "unit", 1) != 2:
                raise ConfigError(
                    "are not rows of pairs", field="rows", value=source.name, cure="Pack the cache with unit=2."
                )
            if None in masks_of(source):
                raise ConfigError(
                    "do not say which tokens are trained on",
                    field="rows",
                    value=source.name,
                    cure="Build the cache with --kind preference, which writes the leaf loss_mask.",
                )
        for cache in caches:
            _check_turns(cache)
        self.rows, self.caches = rows, tuple(caches)

    @property
    def length(self) -> int | None:
        return self.rows.length

    @property
    def sources(self) -> Sequence[RowSource]:
        return self.rows.sources

    @property
    def seq_len(self) -> int:
        return self.rows.seq_len

    @property
    def eos_id(self) -> int | None:
        return self.rows.eos_id

    @property
    def pairs(self) -> bool:
        return True

    @property
    def read_stats(self) -> ReadStats:
        return self.rows.read_stats

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        return self.rows.locate(indices, epoch)

    def describe(self) -> dict[str, Any]:
        return {"pairs": self.rows.describe()}

    def reordered(self, order: IndexMap) -> PreferenceDataset:
        return PreferenceDataset(self.rows.reordered(order), self.caches)

    def default_io_block_size(self) -> int:
        return self.rows.default_io_block_size()

    def block_aligned(self, io_block_size: int) -> PreferenceDataset:
        return PreferenceDataset(cast(PlannedDataset, self.rows.block_aligned(io_block_size)), self.caches)

    def full_blocks(self, io_block_size: int) -> int:
        return self.rows.full_blocks(io_block_size)

    def check_stored_order(self) -> None:
        self.rows.check_stored_order()


def _check_turns(cache: TokenCache) -> None:
    """The leaf ``chosen`` of a cache, if it has one, must be 1 and 0 in turn."""
    if "chosen" not in cache.leaves:
        return
    at = 0
    for block in cache.leaf("chosen").blocks():
        wrong = np.flatnonzero(block.reshape(-1) != (np.arange(at, at + block.size) + 1) % 2)
        if wrong.size:
            number = at + int(wrong[0])
            raise ConfigError(
                "is out of turn: even documents are chosen, odd ones are rejected",
                field=f"chosen[{number}]",
                value=int(block.reshape(-1)[wrong[0]]),
            )
        at += block.size
