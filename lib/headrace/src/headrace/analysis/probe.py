"""Whether a corpus needs shuffling, judged from its cached tokens: how similar neighbouring rows
are.

Each row gets a value: its loss under the user's model or, without one, under the token frequencies
of the sample (a unigram model), which distinguishes sources, languages and formats. From these
values follow the share of the variance between blocks (:mod:`headrace.analysis.icc`) and, for
headrace's orders, how much noisier their batches are than those of a full shuffle.

What it cannot see: similarity that does not show in the value (two sources of equal loss), and
similarity over more than 64 blocks beyond its share; for orders that preserve the stored order at
large (none, era) the noise is then a lower bound. Price: at most 4,096 blocks are read, 536 MB of
uint16 tokens; a few passes over them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Float64, Integer

from headrace.analysis.icc import batch_noise, nested_shares
from headrace.data.dataset import PlannedDataset
from headrace.errors import CacheError, ConfigError, check_at_least, command_line
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.order import Identity, Order
from headrace.order.permutation import Feistel
from headrace.order.shuffle_config import resolve_strands
from headrace.progress import track
from headrace.store import files
from headrace.store.cache import TokenCache

PROBE_NAME = "icc.json"
"""File in the cache's folder in which ``headrace cache inspect CACHE --icc --save`` saves its
result.
"""
DEFAULT_BLOCKS = 4096
_GROWTH = 4
_LEVELS = 3
_LEAST_UNITS = 8
_ROWS_AT_ONCE = 1024
_STAND_IN_ROWS = 1 << 18


class _Saved(msgspec.Struct):
    """The part of a saved probe that forecasts need."""

    fingerprint: str
    seq_len: Annotated[int, msgspec.Meta(ge=1)]
    nested: dict[int, Annotated[float, msgspec.Meta(ge=0, le=1)]]


@dataclass(frozen=True)
class ShuffleProbe:
    """The result of a probe.

    Attributes:
        value: Kind of value: ``unigram loss`` or ``given losses``.
        rows: Rows sampled.
        of_rows: Rows of the cache.
        block: Rows in a block.
        nested: Share contributed by each neighbourhood length, by its rows.
        batch_size: Examples in a batch, for ``noise``.
        noise: Variance of batch means relative to a full shuffle, by order.
    """

    value: str
    rows: int
    of_rows: int
    block: int
    nested: dict[int, float]
    batch_size: int
    noise: dict[str, float]

    @property
    def icc(self) -> float:
        """Share of the variance between blocks."""
        return sum(self.nested.values())

    @property
    def needs_shuffling(self) -> bool:
        """Whether batches in stored order are noisier by more than a tenth."""
        return self.noise["none"] > 1.1

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "icc": self.icc, "needs_shuffling": self.needs_shuffling}


def probe_cache(
    cache: TokenCache,
    seq_len: int,
    *,
    batch_size: int = 512,
    block: int | None = None,
    losses: Float64[np.ndarray, " n"] | None = None,
    max_blocks: int = DEFAULT_BLOCKS,
) -> ShuffleProbe:
    """Examines evenly spaced stretches of 64 blocks, or all of a small cache.

    Args:
        cache: The cache.
        seq_len: Tokens in a row.
        batch_size: Examples in a batch.
        block: Rows in a block; None: one stored chunk.
        losses: Loss of each row in stored order, from a model; None: under the sample's token
            frequencies.
        max_blocks: Most blocks to read.

    Raises:
        ConfigError: too few rows; a size out of range; a wrong number of losses.
        ReadError: stored bytes are missing or damaged.

    Example:
        >>> import headrace.testing
        >>> found = probe_cache(
        ...     headrace.testing.tiny_cache(documents=2000), seq_len=8, batch_size=16, block=16
        ... )
        >>> found.rows, found.needs_shuffling  # random tokens
        (6659, False)
    """
    for name, size in (
        ("seq_len", seq_len),
        ("batch_size", batch_size),
        ("max_blocks", max_blocks),
    ):
        check_at_least(name, size, cure="Leave it out for the default.")
    check_at_least("block", block, 2, "Leave it out for one stored chunk.")
    rows = cache.num_tokens // seq_len
    block = max(cache.layout.chunk_elements // seq_len, 1) if block is None else block
    units = neighbourhoods(rows, block)
    if losses is None:
        tokens = _sample(cache, seq_len, units[-1], max_blocks * block)
        values = unigram_losses(tokens)
        value = "unigram loss"
    else:
        if losses.shape != (rows,):
            raise ConfigError(
                f"has shape {losses.shape}, and {cache.path} has {rows:,} rows of {seq_len} tokens",
                field="losses",
                cure="Give one loss per row, in stored order.",
            )
        values = np.asarray(losses, np.float64)
        value = "given losses"
    nested = nested_shares(values, units)
    stand_in = min(rows, _STAND_IN_ROWS)
    noise = {
        name: batch_noise(make(stand_in)(np.arange(stand_in)), batch_size, nested)
        for name, make in usual_orders(block, batch_size).items()
    }
    return ShuffleProbe(value, values.size, rows, block, nested, batch_size, noise)


def save_probe(cache: TokenCache, seq_len: int, probe: ShuffleProbe) -> str:
    """Saves the result of a probe of rows of ``seq_len`` tokens for later forecasts; returns its
    path. ConfigError beside files of another system.
    """
    cache.check_own_folder("Leave out --save, and give --icc NAME=SHARE to forecasts.")
    url = files.join(cache.path, PROBE_NAME)
    record = {"fingerprint": cache.fingerprint, "seq_len": seq_len, **probe.to_dict()}
    files.write_atomic(url, json.dumps(record, indent=1).encode() + b"\n")
    return url


def saved_shares(dataset: PlannedDataset) -> dict[int, float]:
    """The shares of the variance by neighbourhood length that :func:`save_probe` saved for a
    dataset's cache; empty if the cache was not probed or has changed. For joined caches, the
    token-weighted mean, if all were probed.

    Raises:
        CacheError: a file cannot be read or is damaged.
    """
    shares: dict[int, float] = {}
    caches = [one for cache in dataset.caches() for one in cache.members]
    for cache in caches:
        url = files.join(cache.path, PROBE_NAME)
        raw = files.read_bytes(url)
        if raw is None:
            return {}
        try:
            record = msgspec.json.decode(raw, type=_Saved)
        except msgspec.MsgspecError as error:
            command = command_line("cache inspect", cache.path, icc=True, save=True)
            cure = f"Measure again: {command}"
            raise CacheError(
                f"is not as it was written ({error})", field=PROBE_NAME, value=url, cure=cure
            ) from error
        if record.fingerprint != cache.fingerprint:
            return {}
        part = cache.num_tokens / max(sum(one.num_tokens for one in caches), 1)
        for unit, share in record.nested.items():
            rows = max(unit * record.seq_len // dataset.seq_len, 1)
            shares[rows] = shares.get(rows, 0.0) + share * part
    return shares


def neighbourhoods(rows: int, block: int) -> tuple[int, ...]:
    """Rows in a block and in 4, 16 and 64 blocks, as far as there are eight of the largest.

    Raises:
        ConfigError: fewer than eight blocks, or blocks of one row.

    Example:
        >>> neighbourhoods(10_000, 16)
        (16, 64, 256, 1024)
    """
    if block < 2 or rows // block < _LEAST_UNITS:
        most = rows // _LEAST_UNITS
        cure = (
            f"Give a block of {most:,} rows, or fewer."
            if most > 1
            else "Give shorter rows, or a larger cache."
        )
        problem = (
            f"must be at least 2 rows, and {_LEAST_UNITS} blocks of the {rows:,} rows that there"
            " are"
        )
        raise ConfigError(problem, field="block", value=block, cure=cure)
    sizes = [block * _GROWTH**level for level in range(_LEVELS + 1)]
    return tuple(size for size in sizes if rows // size >= _LEAST_UNITS)


def unigram_losses(tokens: Integer[np.ndarray, "n seq"]) -> Float64[np.ndarray, " n"]:
    """For each row, the mean of ``-log`` frequency of its tokens among all given tokens, in nats.

    Example:
        >>> unigram_losses(np.array([[0, 0], [0, 1]])).round(3).tolist()
        [0.288, 0.837]
    """
    some = [tokens[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(tokens), _ROWS_AT_ONCE)]
    counts = np.zeros(int(tokens.max(initial=0)) + 1, np.int64)
    for rows in track(some, "counting tokens", len(some)):
        counts += np.bincount(rows.reshape(-1), minlength=counts.size)
    with np.errstate(divide="ignore"):  # absent ids are never looked up
        nats = -np.log(counts / tokens.size)
    losses = [nats[rows].mean(axis=1) for rows in track(some, "weighing rows", len(some))]
    return np.concatenate([np.zeros(0), *losses])


def usual_orders(block: int, batch_size: int) -> dict[str, Callable[[int], Order]]:
    """Orders of ``n`` rows by name, the cheapest in reads first."""

    def braid(n: int) -> Order:
        plan = resolve_strands(np.array([n]), np.ones(1), batch_size=batch_size)
        return BraidShuffle(
            n, io_block_size=block, strands=int(plan.strands[0]), lap=float(plan.laps[0]), seed=0
        )

    def window(blocks: int) -> Callable[[int], Order]:
        return lambda n: BlockShuffle(n, io_block_size=block, window_blocks=blocks, seed=0)

    return {
        "none": lambda n: Identity(n),
        "era of 8 blocks": lambda n: EraShuffle(n, era_length=8 * block, seed=0),
        "block, 8 blocks": window(8),
        "block, 32 blocks": window(32),
        "block, 512 blocks": window(512),
        "braid (default)": braid,
        "full": lambda n: Feistel(n, 0),
    }


def _sample(
    cache: TokenCache, seq_len: int, stretch: int, most: int
) -> Integer[np.ndarray, "n seq"]:
    """Rows of evenly spaced stretches, at most ``most`` but at least two stretches; or all rows."""
    rows = cache.num_tokens // seq_len
    if rows <= most:
        return cache.tokens(0, rows * seq_len).reshape(rows, seq_len)
    units = min(max(most // stretch, _LEAST_UNITS), rows // stretch)
    first = np.linspace(0, rows - stretch, units).astype(np.int64)
    stretches = track(first.tolist(), "reading blocks", units)
    parts = [cache.tokens(row * seq_len, (row + stretch) * seq_len) for row in stretches]
    return np.concatenate(parts).reshape(-1, seq_len)
