"""Which host reads which block when: an exact forecast from an order, without reading anything.

Give it the block of every row of every step, rows in the order in which the loader lays them out; of H hosts and a
batch of B rows, host ``r H // B`` holds row r. Because the future of an order is known, a host can keep a block exactly
as long as it will need it: it drops a block that is not used again within a *horizon* of steps. The forecast starts
with the look-ahead as the horizon and halves it until the kept blocks fit in the cache.

Price: one sort of all rows, about 0.1 us a row.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError


@dataclasses.dataclass(frozen=True, eq=False)
class ReadForecast:
    """What the hosts read.

    Attributes:
        reads: int64[steps]: blocks read in each step, over all hosts. A high peak: reads come in bursts.
        reads_by_host: int64[hosts].
        peak_blocks: int64[hosts]: most blocks that a host holds at a time.
        horizon: Steps for which a block is kept that will be used again.
        rows: Rows in all steps together.
    """

    reads: Int64[np.ndarray, " steps"]
    reads_by_host: Int64[np.ndarray, " hosts"]
    peak_blocks: Int64[np.ndarray, " hosts"]
    horizon: int
    rows: int

    def reads_per_block(self, block: float) -> float:
        """Reads per block per epoch: 1 if each block of ``block`` rows is read once, H if every host reads each.

        Example:
            >>> forecast_reads(np.array([[0, 1], [1, 0]]), hosts=2).reads_per_block(2)
            2.0
        """
        return float(self.reads.sum()) * block / self.rows

    def burst(self, skip: int) -> float:
        """Most reads in one step over the mean, the first ``skip`` steps (the cold start) left out."""
        later = self.reads[skip:]
        return float(later.max() / later.mean()) if later.any() else 0.0


def in_row_order(
    blocks: Int64[np.ndarray, "steps batch"], locality: Float64[np.ndarray, "steps batch"]
) -> Int64[np.ndarray, "steps batch"]:
    """Blocks of each step sorted by locality, ties in stream order: as the loader lays rows out.

    Example:
        >>> in_row_order(np.array([[7, 8, 9]]), np.array([[0.5, 0.1, 0.5]]))
        array([[8, 7, 9]])
    """
    return np.take_along_axis(blocks, np.argsort(locality, axis=1, kind="stable"), axis=1)


def forecast_reads(
    blocks: Int64[np.ndarray, "steps batch"],
    hosts: int,
    cache_blocks: int | None = None,
    look_ahead: int | None = None,
) -> ReadForecast:
    """Reads of ``hosts`` hosts over the steps of ``blocks``.

    Args:
        blocks: Block of each row of each step, from 0 on; give a block of another component or epoch another number.
        hosts: Number of hosts, each with an equal part of a batch's rows (as equal as whole rows allow).
        cache_blocks: Most blocks that a host may hold; None for as many as it wants.
        look_ahead: Steps that a host looks ahead, the longest horizon; None for all.

    Raises:
        ConfigError: no host; a cache too small for the rows of one step; more rows than a forecast can number.

    Example:
        >>> f = forecast_reads(np.array([[0, 1], [0, 1], [2, 1]]), hosts=2)
        >>> f.reads.tolist(), f.peak_blocks.tolist()
        ([2, 0, 1], [1, 1])
    """
    if hosts < 1:
        raise ConfigError("must be at least 1", field="hosts", value=hosts)
    steps, batch = blocks.shape
    number = int(blocks.max(initial=0)) + 1
    bits = max(steps - 1, 1).bit_length()
    if (hosts * number) >> (63 - bits):
        raise ConfigError("too many to forecast at once", field="steps", value=steps, cure="Sample fewer steps.")
    host = np.arange(batch) * hosts // max(batch, 1)
    use = host * number + blocks
    use <<= bits
    use += np.arange(steps)[:, None]
    use = np.sort(use.ravel())
    use = use[np.diff(use, prepend=-1) != 0]
    step, holder = use & ((1 << bits) - 1), use >> bits
    gap = np.where(np.diff(holder, prepend=-1) == 0, np.diff(step, prepend=0), steps + 1)
    holder //= number
    horizon = steps if look_ahead is None else min(look_ahead, steps)
    while True:
        reads, last = _kept(gap, horizon)
        peak = _peaks(holder[reads], step[reads], step[last], hosts, steps)
        if cache_blocks is None or peak.max(initial=0) <= cache_blocks:
            break
        if horizon == 0:
            raise ConfigError(
                f"a step's rows lie in {int(peak.max())} blocks", field="cache_blocks", value=cache_blocks
            )
        horizon //= 2
    return ReadForecast(
        reads=np.bincount(step[reads], minlength=steps),
        reads_by_host=np.bincount(holder[reads], minlength=hosts),
        peak_blocks=peak,
        horizon=horizon,
        rows=blocks.size,
    )


def _kept(gap: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last use of each stay in the cache."""
    reads = np.flatnonzero(gap > horizon)
    return reads, np.append(reads[1:], gap.size)[: reads.size] - 1


def _peaks(holder: np.ndarray, first: np.ndarray, last: np.ndarray, hosts: int, steps: int) -> np.ndarray:
    change = np.bincount(holder * (steps + 1) + first, minlength=hosts * (steps + 1))
    change -= np.bincount(holder * (steps + 1) + last + 1, minlength=hosts * (steps + 1))
    return change.reshape(hosts, steps + 1).cumsum(axis=1).max(axis=1, initial=0)
