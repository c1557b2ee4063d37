"""``Example``: one sequence with its per-token data; and batches made of examples.

In an example all data is per **token**, as it is recorded: the mask tells which tokens are trained
on, log probabilities are the tokens' own. In a batch all data is per **label**: position i holds
the data of the token at i + 1, and the last position of a segment holds nothing. Only
:func:`pack_examples` converts one into the other, so nothing is shifted twice.

Examples that belong together (the two answers of a preference pair) are one *unit* and are never
separated by packing. Price: a few numpy calls a batch; examples are iterated once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer

from headrace.batch.balance import Bins
from headrace.batch.packed_batch import PackedBatch
from headrace.batch.sample_numbers import checked_count
from headrace.errors import ConfigError
from headrace.pack.plan import plan_packs

ROUNDING = 1e-4
"""A log-softmax in low precision may give this much more than 0."""


@dataclass(frozen=True, eq=False)
class Example:
    """One sequence of n tokens, on the host. Lists are converted to arrays.

    Attributes:
        tokens: Token ids.
        loss_mask: 1 where the token itself is trained on; None: everywhere.
        weights: Weight of each token's loss, for example its advantage, or one number for all;
            None: 1.
        log_probs: Log probability of each token under the policy that sampled it; 0 for tokens that
            were not sampled.
        reward: Its reward.
        group: Number of its group.
        policy_version: Version of the policy that sampled each token; -1 for tokens that were not
            sampled.
        extras: Further per-token values, ``[n, ...]`` each, for example which picture a token
            stands for.

    Raises:
        ConfigError: a value has more or fewer entries than tokens; no tokens; ids, a mask or
            versions that are not integers; a weight, log probability or reward that is not finite;
            a log probability above 0.

    Example:
        >>> Example(np.array([5, 6, 7]), loss_mask=[0, 1, 1]).length
        3
    """

    tokens: Integer[np.ndarray, " n"]
    loss_mask: Integer[np.ndarray, " n"] | None = None
    weights: Float32[np.ndarray, " n"] | float | None = None
    log_probs: Float32[np.ndarray, " n"] | None = None
    reward: float | None = None
    group: int | None = None
    policy_version: Int32[np.ndarray, " n"] | None = None
    extras: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def __post_init__(self) -> None:
        tokens = _array("tokens", self.tokens)
        if tokens.ndim != 1 or tokens.size == 0:
            raise ConfigError(
                "must be a row of at least one token", field="tokens", value=tokens.shape
            )
        if tokens.dtype.kind not in "iu":
            raise ConfigError(
                "must be integers", field="tokens", value=tokens.dtype.name, cure="Give token ids."
            )
        object.__setattr__(self, "tokens", tokens)
        for name, dtype, empty in _OF_TOKENS:
            if getattr(self, name) is None:
                continue
            values = _array(name, getattr(self, name))
            one_for_all = name == "weights" and values.ndim == 0
            if not one_for_all:
                _check_length(name, values, tokens.size, ndim=1)
            _check_values(name, values, dtype, f"Give {empty} where there is none.")
            if name == "log_probs":
                check_log_probs(name, values)
            object.__setattr__(self, name, values.item() if one_for_all else values)
        extras = {name: _array(name, values) for name, values in self.extras.items()}
        for name, values in extras.items():
            _check_length(name, values, tokens.size)
        object.__setattr__(self, "extras", extras)
        for name, _, dtype in _OF_SEGMENTS:
            if (number := getattr(self, name)) is not None:
                _check_values(name, _array(name, number), dtype, "Give None where there is none.")

    @property
    def length(self) -> int:
        """Tokens."""
        return int(self.tokens.size)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind in "OUS":
        raise ConfigError(
            "must be numbers", field=name, value=values, cure="Give an array, or a list of numbers."
        )
    return array


def _check_length(name: str, values: np.ndarray, tokens: int, ndim: int | None = None) -> None:
    if values.ndim != (ndim or max(values.ndim, 1)):
        raise ConfigError(
            f"must be one value for each of {tokens} tokens", field=name, value=values.shape
        )
    if len(values) != tokens:
        raise ConfigError(
            f"is {'longer' if len(values) > tokens else 'shorter'} than the {tokens} tokens",
            field=name,
            value=len(values),
            cure="One value for each token, the prompt included.",
        )


def _check_values(name: str, values: np.ndarray, dtype: np.dtype[Any], cure: str) -> None:
    """Raises ConfigError unless a batch can hold the values: integers in range, or
    finite numbers.
    """
    is_integer = dtype.kind in "iu"
    if np.can_cast(values.dtype, dtype) and (is_integer or np.isfinite(values).all()):
        return
    exact = values.astype(np.float64)
    limits = np.iinfo(dtype) if is_integer else np.finfo(dtype)
    good = (exact >= limits.min) & (exact <= limits.max)  # NaN is in no range
    if is_integer:
        good &= exact == np.floor(exact)
    if not good.all():
        at = int(np.argmin(good))
        raise ConfigError(
            f"must be a whole number from {limits.min} to {limits.max}"
            if is_integer
            else "must be finite",
            field=f"{name}[{at}]" if values.ndim else name,
            value=values.reshape(-1)[at].item(),
            cure=cure,
        )


def check_log_probs(field: str, values: np.ndarray) -> None:
    """Raises ConfigError unless the values are log probabilities: finite, and at most 0 but for
    :data:`ROUNDING`.

    Example:
        >>> check_log_probs("log_probs", np.array([-0.5, 0.2]))
        Traceback (most recent call last):
        headrace.errors.ConfigError: log_probs[1] = 0.2: is no log probability: these are finite and
            at most 0. Give natural logarithms of probabilities, e.g. np.log(0.5), as the policy
            that sampled has them; 0 for tokens that were not sampled.
    """
    wrong = np.flatnonzero(~np.isfinite(values) | (values > ROUNDING))
    if wrong.size:
        at = int(wrong[0])
        raise ConfigError(
            "is no log probability: these are finite and at most 0",
            field=f"{field}[{at}]",
            value=float(values[at]),
            cure="Give natural logarithms of probabilities, e.g. np.log(0.5), as the policy that"
            " sampled has them; 0 for tokens that were not sampled.",
        )


def pack_examples(
    examples: Sequence[Example],
    seq_len: int,
    *,
    unit: int = 1,
    rows: int | None = None,
    multiple: int = 1,
    max_segments: int | None = None,
    bins: Bins | None = None,
) -> PackedBatch:
    """Packs examples into a batch by best fit decreasing, each example a segment.

    The same examples give the same batch. Leaves that no example has are omitted; an example that
    lacks a leaf of others gets the neutral value (mask 1, weight 1, log probability 0, reward 0,
    version -1, extras 0).

    Args:
        examples: What to pack.
        seq_len: Tokens in a row.
        unit: This many neighbours are one unit (2 for pairs): they stay in one row, in order.
        rows: Rows of the batch, padded with empty ones; None: as many as needed.
        multiple: In that case, the number of rows is a multiple of this.
        max_segments: Width of ``segment_lengths``, for batches of one shape; None: as wide as is
            needed.
        bins: Examples of each row, in order, as :func:`~headrace.batch.balance.micro_batches`
            returns them for a rank; None: best fit.

    Raises:
        ConfigError: a unit is longer than a row or incomplete; more rows or segments are needed
            than allowed; a length or count below 1; extras of one name with different shapes.

    Example:
        >>> batch = pack_examples([Example(np.array([1, 2, 3])), Example(np.array([4, 5]))], 6)
        >>> batch.tokens.tolist(), batch.labels.tolist()
        ([[1, 2, 3, 4, 5, 0]], [[2, 3, 0, 5, 0, 0]])
        >>> batch.segment_ids.tolist()
        [[0, 0, 0, 1, 1, -1]]
    """
    seq_len = checked_count("seq_len", seq_len)
    unit = checked_count("unit", unit)
    multiple = checked_count("multiple", multiple)
    rows = None if rows is None else checked_count("rows", rows, 0)
    max_segments = None if max_segments is None else checked_count("max_segments", max_segments)
    order, row_of = (
        _placed(examples, seq_len, unit) if bins is None else _in_bins(examples, seq_len, bins)
    )
    needed = int(row_of.max(initial=-1)) + 1
    height = -(-max(needed, 1) // multiple) * multiple if rows is None else rows
    if needed > height:
        raise ConfigError(
            f"are too few for {len(examples)} examples, which need {needed}",
            field="rows",
            value=rows,
            cure=f"Give at least {needed} rows, or longer ones.",
        )
    sorted_examples = [examples[i] for i in order]
    length = np.array([e.length for e in sorted_examples], np.int64)
    segment_counts = np.bincount(row_of, minlength=height)
    column = np.arange(order.size) - np.repeat(
        np.cumsum(segment_counts) - segment_counts, segment_counts
    )
    width = max(int(segment_counts.max(initial=0)), 1) if max_segments is None else max_segments
    if segment_counts.max(initial=0) > width:
        raise ConfigError(
            f"is fewer than the {int(segment_counts.max())} segments of a row",
            field="max_segments",
            value=max_segments,
        )
    segments = np.zeros((height, width), np.int32)
    segments[row_of, column] = length
    begin = (
        row_of * seq_len + (np.cumsum(segments, axis=1, dtype=np.int64) - segments)[row_of, column]
    )
    dtype = np.result_type(*{e.tokens.dtype for e in examples}) if examples else np.dtype(np.int32)
    shape = height, seq_len
    batch = PackedBatch(
        token_ids=_laid([e.tokens for e in sorted_examples], begin, length, shape, dtype),
        source_id=np.where(segment_counts > 0, 0, -1).astype(np.int32),
        segment_lengths=segments,
    )
    return dataclasses.replace(
        batch, **_leaves(sorted_examples, begin, length, shape, (row_of, column), segments)
    )


def _placed(
    examples: Sequence[Example], seq_len: int, unit: int
) -> tuple[Int64[np.ndarray, " n"], np.ndarray]:
    """Examples in the order of the batch, and the row of each."""
    if len(examples) % unit:
        raise ConfigError(
            f"are not whole units of {unit}",
            field="examples",
            value=len(examples),
            cure="Preference rows come in pairs: chosen, rejected." if unit == 2 else None,
        )
    if not examples:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lengths = np.array([e.length for e in examples], np.int64).reshape(-1, unit).sum(axis=1)
    if lengths.max() > seq_len:
        at = int(lengths.argmax())
        named = f"examples[{at}]" if unit == 1 else f"examples[{at * unit}:{at * unit + unit}]"
        raise ConfigError(
            f"has more than the {seq_len} tokens of a row",
            field=named,
            value=int(lengths[at]),
            cure="Truncate it, leave it out, or use longer rows.",
        )
    plan = plan_packs(lengths, seq_len, "bfd", "error")
    order = (plan.items.document.astype(np.int64)[:, None] * unit + np.arange(unit)).reshape(-1)
    return order, np.repeat(np.arange(len(plan)), np.diff(plan.bounds) * unit)


def _in_bins(
    examples: Sequence[Example], seq_len: int, bins: Bins
) -> tuple[Int64[np.ndarray, " n"], np.ndarray]:
    """Examples ordered by bin, and the bin of each."""
    order = np.array([item for row in bins for item in row], np.int64)
    if not np.array_equal(np.sort(order), np.arange(len(examples))):
        cure = "Name each example once."
        raise ConfigError(
            f"are not the {len(examples)} examples", field="bins", value=order.size, cure=cure
        )
    row_of = np.repeat(np.arange(len(bins)), [len(row) for row in bins])
    tokens = np.bincount(row_of, [examples[i].length for i in order], len(bins))
    if tokens.max(initial=0) > seq_len:
        at = int(tokens.argmax())
        cure = f"Cap its tokens, as micro_batches(lengths, {seq_len}) does."
        raise ConfigError(
            f"has more than {seq_len} tokens", field=f"bins[{at}]", value=int(tokens[at]), cure=cure
        )
    return order, row_of


def _laid(
    values: Sequence[Any],
    begin: np.ndarray,
    length: np.ndarray,
    shape: tuple[int, int],
    dtype: Any,
    empty: float = 0,
    *,
    of_labels: int = 0,
) -> np.ndarray:
    """Places the values of each example at its tokens or, with ``of_labels`` = 1, at their labels.
    A scalar applies to all tokens of an example.
    """
    trailing = next((v.shape[1:] for v in values if isinstance(v, np.ndarray)), ())
    out = np.full((shape[0] * shape[1], *trailing), empty, dtype)
    for row, at, tokens in zip(values, begin.tolist(), length.tolist(), strict=True):
        out[at : at + tokens - of_labels] = row[of_labels:] if isinstance(row, np.ndarray) else row
    return out.reshape(*shape, *trailing)


def _leaves(
    examples: Sequence[Example],
    begin: np.ndarray,
    length: np.ndarray,
    shape: tuple[int, int],
    place: tuple[np.ndarray, np.ndarray],
    segments: np.ndarray,
) -> dict[str, Any]:
    """The leaves that any example has, as the batch holds them: a token's data one position before
    it.
    """
    leaves: dict[str, Any] = {}
    for name, dtype, empty in _OF_TOKENS:
        of_examples = [getattr(e, name) for e in examples]
        if any(v is not None for v in of_examples):
            neutral = 1 if name in ("loss_mask", "weights") else empty
            values = [neutral if v is None else v for v in of_examples]
            leaves[name] = _laid(values, begin, length, shape, dtype, empty, of_labels=1)
    for of_segment, name, dtype in _OF_SEGMENTS:
        segment_values = [getattr(e, of_segment) for e in examples]
        if any(v is not None for v in segment_values):
            leaves[name] = np.zeros(segments.shape, dtype)
            leaves[name][place] = [0 if v is None else v for v in segment_values]
    extras = sorted({name for e in examples for name in e.extras})
    if extras:
        of_examples = {name: _extra(examples, name) for name in extras}
        leaves["extras"] = {
            name: _laid(v, begin, length, shape, np.result_type(*{x.dtype for x in v}))
            for name, v in of_examples.items()
        }
    return leaves


_OF_TOKENS = (
    ("loss_mask", np.dtype(np.uint8), 0),
    ("weights", np.dtype(np.float32), 0),
    ("log_probs", np.dtype(np.float32), 0),
    ("policy_version", np.dtype(np.int32), -1),
)
_OF_SEGMENTS = (
    ("reward", "rewards", np.dtype(np.float32)),
    ("group", "group_ids", np.dtype(np.int32)),
)


def _extra(examples: Sequence[Example], name: str) -> list[np.ndarray]:
    like = next(e.extras[name] for e in examples if name in e.extras)
    shapes = {e.extras[name].shape[1:] for e in examples if name in e.extras}
    if len(shapes) > 1:
        raise ConfigError(
            "must be of one shape, in all examples that have it",
            field=name,
            value=sorted(shapes),
            cure="Pad it.",
        )
    return [e.extras.get(name, np.zeros((e.length, *like.shape[1:]), like.dtype)) for e in examples]
