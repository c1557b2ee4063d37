"""Parameters of braids, checked and prepared: one vector per parameter, one element per component;
and their blocks.

In an epoch, full blocks are in keyed order, and the rows of each are permuted differently; of large
blocks, those of each part, one part after the other.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64, UInt64

from headrace.errors import ConfigError
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
# What a child key is for; table.py uses 1. Vectors: numpy warns of overflow, which hashing needs,
# for scalars
BLOCK, _CELL = (np.array([k], np.uint64) for k in (2, 4))
FEW_BLOCKS = 64
"""A source of at most this many blocks, and no more blocks than strands, is fully shuffled."""
_LOW32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


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

    def take(self, component: Int32[np.ndarray, " m"]) -> BraidSpec:
        """The parameters of each row's component."""
        return BraidSpec(*(field[component] for field in self))


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
    _, exponent = np.frexp(
        laps
    )  # laps < 2**exponent, and draws of a period, shifted by the places, below 2**63
    return np.clip((62 - exponent.astype(np.int64)) // 2, LAP_BITS, 30)


def _periods(laps: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Binary places of each lap, and draws of ``2**bits`` laps."""
    bits = lap_bits(laps)
    period = np.rint(laps * (1 << bits)).astype(np.int64)
    is_whole = (period & ((1 << bits) - 1) == 0) & (counts % np.maximum(period >> bits, 1) > 0)
    return bits, period + np.sign(laps - np.rint(laps)).astype(
        np.int64
    ) * is_whole  # laps that are whole only in these


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
