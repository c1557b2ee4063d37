"""Parameters of braids: how many strands each component gets, from one memory budget for the whole
job (:func:`resolve_strands`), and what follows from them, checked and prepared, one vector per
parameter, one element per component (:func:`braid_spec`).

A strand keeps one block open. The budget counts open blocks over **all** hosts together, by default
K = 8 x the batch size: any 8 successive batches then come from different strands, and VR_w <= 1 up
to w = 8 B. How it is shared out:

1. Component d's lap (see braid) is its usual number of rows in one batch, B x its share, even if
   that is not a whole number: the rows of a batch then stay on their hosts.
2. Its depth, the strands of each cell, is what makes its strands about K x its largest share.
3. Its strands are lap x depth, rounded up; at most one for each example.

With pencil and paper: batches of 8, 64 strands, shares 0.75 and 0.25. Laps are 6 and 2 rows; both
get depth 8, so 48 and 16 strands:

    >>> plan = resolve_strands(np.array([1000, 1000]), np.array([0.75, 0.25]), batch_size=8)
    >>> plan.laps.tolist(), plan.strands.tolist()
    ([6.0, 2.0], [48, 16])

For weights that change all the time, no lap fits, and whole numbers are the better choice. Blocks
are read 1.06 times per epoch on 64 hosts with 20 components if laps fit, 2.2 times if they do not
(scripts/bench/bench_braid_reads.py).

**On a shuffled store**, the rows of a block have nothing in common, and several may be in a batch:
any order of blocks that is keyed by epoch trains like a full shuffle. There the hosts ask for
strands, not the batch: ``K = max(4 x the most hosts, the blocks that a batch uses up, 5 x the
components)``, and never more than the rows of a batch. The front passes over the store a whole
number of times in a batch, so that laps fit: K is rounded up to a batch divided by that number.

    >>> plan = resolve_strands(
    ...     np.array([10**6]), np.ones(1), batch_size=1000, hosts=64, block_rows=32
    ... )
    >>> plan.strands.tolist(), plan.laps.round(2).tolist()  # three passes a batch
    ([334], [333.33])

The result is resolved once and stored in the run's lock: it is part of the order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from headrace.errors import ConfigError, check_at_least
from headrace.order.order import MAX_LENGTH
from headrace.order.seeds import fold

MAX_STRANDS = 1 << 22
MAX_BLOCK = 1 << 31
LAP_BITS = 20
"""The smallest lap is 2**-20 of a row."""
GOLDEN32 = np.uint64(0x9E3779B9)
"""2**32 / phi: multiples modulo 2**32 are evenly spread. Strand k changes blocks k of these after
the first one.
"""
_EDGE = 2.0**-10  # localities below belong to the rows that come and go
# What a child key is for; native/braid.c uses others. Vectors: numpy warns of overflow, which
# hashing needs, for scalars
BLOCK, _CELL = (np.array([k], np.uint64) for k in (2, 4))
FEW_BLOCKS = 64
"""A source of at most this many blocks, and no more blocks than strands, is fully shuffled."""
_LOW32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


BATCHES_OPEN = 8
"""Default budget: this many batches' worth of examples each have their own open block."""
MAX_HOSTS = 256
"""Default of the most hosts that read a shuffled store: 1,024 strands."""
STRANDS_A_HOST = 4
STRANDS_A_COMPONENT = 5


@dataclasses.dataclass(frozen=True, eq=False)
class StrandPlan:
    """Strands of each component."""

    strands: Int64[np.ndarray, " d"]  # at least 1, at most the component's examples
    laps: Float64[np.ndarray, " d"]  # draws; divides ``strands`` if it is a whole number

    def open_bytes(self, block_bytes: Int64[np.ndarray, " d"] | int) -> int:
        """Bytes of the blocks that are open at a time, over all hosts together."""
        return int((self.strands * np.asarray(block_bytes, np.int64)).sum())


def resolve_strands(
    lengths: Int64[np.ndarray, " d"],
    shares: Float64[np.ndarray, " d"],
    *,
    batch_size: int,
    strands: int | None = None,
    budget_bytes: int | None = None,
    block_bytes: Int64[np.ndarray, " d"] | int | None = None,
    usual_shares: Float64[np.ndarray, " d"] | None = None,
    hosts: int | None = None,
    block_rows: Int64[np.ndarray, " d"] | int = 1,
    sources: int = 1,
) -> StrandPlan:
    """Strands and laps of every component.

    Args:
        lengths: Examples of each component, at least 1.
        shares: Largest share of a batch that each component ever gets, in [0, 1].
        batch_size: Examples in a batch (the largest, if it changes).
        strands: Open blocks for the whole job; None for ``8 * batch_size``, fewer if the corpus is
            small.
        budget_bytes: Instead of ``strands``: bytes of open blocks for the whole job. Needs
            ``block_bytes``.
        block_bytes: Bytes of a block in memory.
        usual_shares: Shares during most of the run, if weights change only at a few steps: laps fit
            these. None: ``shares`` if they add up to one, which means that they never change; else
            no lap fits.
        hosts: The most hosts that a run will have, for components in shuffled stores; None: the
            stores are plain, or ``strands`` or ``budget_bytes`` is given.
        block_rows: Examples in a block, with ``hosts``.
        sources: Components of the run, of which these may be some, with ``hosts``.

    Returns:
        At least one strand per component, never more than it has examples. Totals equal ``strands``
        up to rounding to whole batches; a byte budget is never exceeded.

    Raises:
        ConfigError: more strands than examples; a size below 1; a budget too small for one block
            per component.

    Example:
        >>> plan = resolve_strands(
        ...     np.array([10**6, 10**6, 5]), np.array([0.7, 0.29, 0.01]), batch_size=128
        ... )
        >>> plan.strands.tolist(), plan.laps.round(2).tolist()
        ([717, 297, 3], [89.6, 37.12, 1.28])
    """
    lengths = np.asarray(lengths, np.int64)
    shares = np.asarray(shares, np.float64)
    _check(lengths, shares, batch_size, strands)
    if usual_shares is None:
        usual = shares if shares.sum() <= 1.0 + 1e-6 else None
    else:
        usual = np.asarray(usual_shares, np.float64)
        if (
            usual.shape != shares.shape
            or not (usual <= shares + 1e-9).all()
            or not (usual >= 0).all()
        ):
            raise ConfigError(
                "above the largest shares", field="usual_shares", value=usual.tolist()
            )

    def split(total: float) -> StrandPlan:
        # With a budget below one batch, the front passes several times a batch
        base = min(batch_size, total)
        if usual is None:
            return _whole_laps(lengths, shares, base, total)
        return _fitting_laps(lengths, shares, usual, base, total)

    if hosts is not None:
        used = batch_size * float((shares / block_rows).sum() / max(shares.sum(), 1e-9))
        least = max(STRANDS_A_HOST * hosts, used, STRANDS_A_COMPONENT * sources)
        return split(batch_size / max(batch_size // least, 1))
    if budget_bytes is None:
        return split(BATCHES_OPEN * batch_size if strands is None else strands)
    return _within_bytes(split, lengths, strands, budget_bytes, block_bytes)


def _check(lengths: np.ndarray, shares: np.ndarray, batch_size: int, strands: int | None) -> None:
    if lengths.ndim != 1 or lengths.shape != shares.shape:
        raise ConfigError(
            f"one for each of the {lengths.size} components", field="shares", value=shares.tolist()
        )
    check_not_empty(lengths)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ConfigError("must lie in 0 .. 1", field="shares", value=shares.tolist())
    for name, value in (("batch_size", batch_size), ("strands", strands)):
        check_at_least(name, value)
    total = int(lengths.sum())
    if strands is not None and strands > total:
        raise ConfigError(
            f"more strands than the {total} examples",
            field="strands",
            value=strands,
            cure=f"Give at most {total}, or leave it out.",
        )


def check_not_empty(lengths: np.ndarray) -> None:
    """Raises ConfigError for a component without examples."""
    if (lengths < 1).any():
        raise ConfigError(
            "cannot be mixed: it is empty",
            field=f"component {int(lengths.argmin())}",
            cure="Leave it out.",
        )


def _whole_laps(lengths: np.ndarray, shares: np.ndarray, base: float, total: float) -> StrandPlan:
    """Laps of whole rows, in proportion to the shares; cells as deep as the share asks."""
    laps = np.minimum(np.maximum(apportion(shares, base), 1), lengths)
    depth = np.maximum(np.rint(total * shares / laps).astype(np.int64), 1)
    return StrandPlan(laps * np.minimum(depth, lengths // laps), laps.astype(np.float64))


def _fitting_laps(
    lengths: np.ndarray, shares: np.ndarray, usual: np.ndarray, base: float, total: float
) -> StrandPlan:
    """Depth strands for each row of a lap, counted in units of 2**-bits rows."""
    # 1. Laps
    bits = lap_bits(base * usual)
    one = 1 << bits
    units = np.maximum(np.rint(base * usual * one).astype(np.int64), one >> LAP_BITS)
    laps = -(-units // one)
    # 2. Depths. At constant weights, all components have the same, without rounding anything
    target = np.where(
        usual == shares, int(total // base), np.rint(total * shares * one / units).astype(np.int64)
    )
    depth = np.maximum(np.minimum(target, lengths // laps), 1)
    # 3. The last, partial row is rounded up, so that laps * depth <= strands
    strands = -(-units * depth >> bits)
    short = strands > lengths  # less than one batch: every example a strand
    return StrandPlan(np.where(short, lengths, strands), np.where(short, lengths, units / one))


def apportion(shares: Float64[np.ndarray, " d"], total: float) -> Int64[np.ndarray, " d"]:
    """Whole numbers near ``total * shares`` whose sum is ``total * sum(shares)`` rounded (largest
    remainders).

    Example:
        >>> apportion(np.array([0.5, 0.3, 0.2]), 7).tolist()
        [4, 2, 1]
    """
    exact = total * shares
    # A share that float64 leaves just below a whole number must not lose it
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainder = int(np.rint(exact.sum())) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[: max(remainder, 0)]] += 1
    return counts


def _within_bytes(
    split: Callable[[int], StrandPlan],
    lengths: np.ndarray,
    strands: int | None,
    budget_bytes: int,
    block_bytes: np.ndarray | int | None,
) -> StrandPlan:
    """The largest plan that fits."""
    if strands is not None:
        raise ConfigError(
            "is given beside strands",
            field="budget_bytes",
            value=budget_bytes,
            cure="Give one of them.",
        )
    if block_bytes is None:
        raise ConfigError(
            "needs the bytes of a block",
            field="budget_bytes",
            value=budget_bytes,
            cure="Give block_bytes.",
        )
    sizes = np.broadcast_to(np.asarray(block_bytes, np.int64), lengths.shape)
    least = int(sizes.sum())
    if budget_bytes < least:
        raise ConfigError(
            f"does not hold one block of each of the {lengths.size} components",
            field="budget_bytes",
            value=budget_bytes,
            cure=f"Give at least {least} bytes.",
        )
    # Bytes grow with the total, up to rounding: bisect for the largest one that fits
    low = 1
    high = int(lengths.sum())
    best = StrandPlan(np.ones_like(lengths), np.ones(lengths.shape))
    while low <= high:
        middle = (low + high) // 2
        plan = split(middle)
        if plan.open_bytes(sizes) <= budget_bytes:
            best = plan
            low = middle + 1
        else:
            high = middle - 1
    return best


class BraidSpec(NamedTuple):
    """Parameters of one braid, or of many: vectors of one length (1 broadcasts). Made by
    :func:`braid_spec`.

    All uint64 but corner, low and pitch, which are float64.
    """

    n: np.ndarray
    block: np.ndarray
    part: np.ndarray  # rows of a block that are permuted among each other
    full_blocks: np.ndarray
    part_step: np.ndarray  # lattice steps inside a part, and inside the partial one at the end
    tail_step: np.ndarray
    cells: np.ndarray  # whole rows of a lap: floor(lap)
    depth: np.ndarray  # strands of a cell, taken in turn by successive laps
    regular: np.ndarray  # cells * depth
    extra: np.ndarray  # strands for the extra draw of a lap that is not a whole number; at least 1
    extra_step: np.ndarray  # lattice step over these
    bits: np.ndarray  # laps are counted in 2**-bits of a row
    period: np.ndarray  # draws of 2**bits laps
    begin: np.ndarray  # n modulo period
    first: np.ndarray  # cells that come and go: 1 if the lap is not a whole number, else 0
    ring: np.ndarray  # the other cells, at least 1
    step: np.ndarray  # lattice step and shift over the ring
    shift: np.ndarray
    key: np.ndarray
    spread: np.ndarray  # of the first strand; see GOLDEN32
    corner: np.ndarray  # where in its cell the component sits, so that components do not tie
    low: np.ndarray  # locality of the start of the ring
    pitch: np.ndarray  # locality from cell to cell
    permuted: np.ndarray  # uint64: 1 if there are so few blocks that all rows are permuted, else 0


def braid_spec(
    n: Int64[np.ndarray, " d"] | int,
    *,
    io_block_size: Int64[np.ndarray, " d"] | int,
    strands: Int64[np.ndarray, " d"] | int,
    lap: Float64[np.ndarray, " d"] | float | None = None,
    key: UInt64[np.ndarray, " d"] | int,
    first_strand: Int64[np.ndarray, " d"] | int = 0,
    part: Int64[np.ndarray, " d"] | int | None = None,
) -> BraidSpec:
    """Checks and prepares the parameters of ``d`` braids (scalars: of one).

    They are those of :class:`~headrace.order.braid.shuffle.BraidShuffle`, with a 64-bit key instead
    of the seed; at most 2**22 strands, and laps of 2**-20 draws or more.

    Raises:
        ConfigError: a size below 1, more strands than examples, a lap that does not fit the
            strands.
    """
    part = io_block_size if part is None else part
    lengths, blocks, parts, counts, laps, firsts, keys = np.broadcast_arrays(
        *map(
            np.atleast_1d,
            (n, io_block_size, part, strands, strands if lap is None else lap, first_strand),
        ),
        np.atleast_1d(np.asarray(key, np.uint64)),
    )
    _check_sizes(lengths, blocks, counts, laps)
    if (parts < 1).any() or (blocks % np.maximum(parts, 1)).any():
        raise ConfigError(
            "must divide io_block_size", field="part", value=int(parts.min()), cure="Leave it out."
        )
    # A block larger than the corpus is the corpus, so there is always a full block.
    blocks = np.minimum(blocks, np.maximum(lengths, 1))
    parts = np.minimum(parts, blocks)
    bits, period = _periods(laps, counts)
    cells = period >> bits
    fraction = period & ((1 << bits) - 1)
    depth = (counts << bits) // period
    extra = counts - cells * depth
    bad = np.flatnonzero((fraction == 0) & (extra > 0))
    if bad.size:
        raise _undivided(int(cells[bad[0]]), int(counts[bad[0]]))
    first = ((fraction > 0) & (cells > 0)).astype(np.int64)
    ring = np.maximum(cells - first, 1)
    corner_bits = fold(keys := np.ascontiguousarray(keys), _CELL)
    integers = {
        "n": lengths,
        "block": blocks,
        "part": parts,
        "full_blocks": lengths // blocks,
        "part_step": np.array([lattice_step(int(m)) for m in parts]),
        "tail_step": np.array([lattice_step(int(m)) for m in lengths % parts]),
        "cells": cells,
        "depth": depth,
        "regular": cells * depth,
        "extra": np.maximum(extra, 1),
        "extra_step": np.array([lattice_step(int(m)) for m in np.maximum(extra, 1)]),
        "bits": bits,
        "period": period,
        "begin": lengths % period,
        "first": first,
        "ring": ring,
        "step": np.array([lattice_step(int(m)) for m in ring]),
    }
    low = np.where(fraction > 0, _EDGE, 0.0)
    return BraidSpec(
        **{name: values.astype(np.uint64) for name, values in integers.items()},
        shift=((corner_bits & _LOW32) * ring.astype(np.uint64)) >> _S32,
        key=keys,
        spread=(firsts.astype(np.uint64) * GOLDEN32) & _LOW32,
        corner=(corner_bits >> np.uint64(44)).astype(np.float64) / 2.0**20,
        low=low,
        pitch=(1.0 - low) / ring,
        permuted=(-(-lengths // parts) <= np.minimum(counts, FEW_BLOCKS)).astype(np.uint64),
    )


def lap_bits(laps: Float64[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
    """Binary digits with which laps are counted: as many as 64 bits allow, 20 for the longest lap,
    29 for one of 4 rows.

    An error of the lap adds up over the batches of a run, and rows that drift across the border of
    two batches move all later rows across the borders of hosts. With 20 digits for all, 200
    components on 64 hosts read 1.12 times what they need at the start and 1.44 times after a
    million steps.

    Example:
        >>> lap_bits(np.array([0.3, 4.0, 2.0**22])).tolist()
        [30, 29, 20]
    """
    # Laps < 2**exponent, and draws of a period, shifted by the places, below 2**63.
    _, exponent = np.frexp(laps)
    return np.clip((62 - exponent.astype(np.int64)) // 2, LAP_BITS, 30)


def _periods(laps: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Binary places of each lap, and draws of ``2**bits`` laps."""
    bits = lap_bits(laps)
    period = np.rint(laps * (1 << bits)).astype(np.int64)
    is_whole = (period & ((1 << bits) - 1) == 0) & (counts % np.maximum(period >> bits, 1) > 0)
    # Laps that are whole only in these.
    return bits, period + np.sign(laps - np.rint(laps)).astype(np.int64) * is_whole


def _undivided(lap: int, strands: int) -> ConfigError:
    cure = f"Give strands: {-(-strands // lap) * lap}."
    return ConfigError(f"does not divide the {strands} strands", field="lap", value=lap, cure=cure)


def _check_sizes(
    lengths: np.ndarray, blocks: np.ndarray, counts: np.ndarray, laps: np.ndarray
) -> None:
    for name, values in (("io_block_size", blocks), ("strands", counts)):
        if (values < 1).any():
            raise ConfigError(
                "must be at least 1", field=name, value=int(values.min()), cure="Count in examples."
            )
    if (lengths < 0).any() or (lengths > MAX_LENGTH).any():
        raise ConfigError("must lie in 0 .. 2**62", field="length", value=int(lengths.max()))
    if (blocks > MAX_BLOCK).any():
        raise ConfigError("must be at most 2**31", field="io_block_size", value=int(blocks.max()))
    bad = np.flatnonzero((counts > np.maximum(lengths, 1)) | (counts > MAX_STRANDS))
    if bad.size:
        have = int(counts[bad[0]])
        of = int(lengths[bad[0]])
        raise ConfigError(
            f"more strands than the {of} examples"
            if have > of
            else f"more than {MAX_STRANDS} strands",
            field="strands",
            value=have,
            cure=f"Give at most {min(max(of, 1), MAX_STRANDS)}, or leave strands out to have them"
            " chosen.",
        )
    bad = np.flatnonzero(~((laps >= 2.0**-LAP_BITS) & (laps <= counts)))
    if bad.size:
        raise ConfigError(
            f"must lie in 2**-{LAP_BITS} .. {int(counts[bad[0]])}, the number of strands",
            field="lap",
            value=float(laps[bad[0]]),
            cure="Give the rows that the component has in one batch.",
        )


@functools.lru_cache(maxsize=4096)
def lattice_step(m: int) -> int:
    """A step g, coprime to m, such that any run of ``0, g, 2 g, ...`` modulo m is evenly spread
    over ``range(m)``.

    Near ``m / phi``, the number whose continued fraction ``g / m`` has the smallest sum of partial
    quotients: that sum bounds the discrepancy of every run (Niederreiter, "Random number generation
    and quasi-Monte Carlo methods", 1992, chapter 3; phi itself, all of whose quotients are 1, is
    the best irrational step).

    Example:
        >>> lattice_step(8), lattice_step(13), lattice_step(1)
        (5, 8, 1)
    """
    if m <= 2:
        return 1
    centre = round(m * (math.sqrt(5.0) - 1.0) / 2.0)
    near = [g for g in range(max(1, centre - 48), min(m, centre + 49)) if math.gcd(g, m) == 1]
    return min(near, key=lambda g: (_quotient_sum(g, m), abs(g - centre))) if near else 1


def _quotient_sum(g: int, m: int) -> int:
    total = 0
    while g:
        total += m // g
        g, m = m % g, g
    return total
