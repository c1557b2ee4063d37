"""How many strands each component's braid gets, from one memory budget for the whole job.

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
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, check_at_least
from headrace.order.braid.spec import LAP_BITS, lap_bits

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
    if (lengths < 1).any():
        raise ConfigError(
            "cannot be mixed: it is empty",
            field=f"component {int(lengths.argmin())}",
            cure="Leave it out.",
        )
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
