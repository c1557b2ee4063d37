"""What a run will read, on any number of hosts, before it is started.

The order is a pure function, so nothing has to be guessed: the steps of a run are planned as the loader plans them, and
each host's reads are counted (index/reads.py). Long runs are looked at through windows of consecutive steps, as many as
the row budget allows; the result says which. No token is read: ledgers are enough, or just the sizes of sources that do
not exist yet (:func:`virtual_cache`).

Price: about 2 us a row of the steps that are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.errors import ConfigError
from headrace.feed.plan import BlockSpace, RowOrder, stored_blocks
from headrace.index.limits import require_supply
from headrace.index.reads import ReadForecast, forecast_reads
from headrace.index.schedule import BatchSchedule
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import Ledger, PartRecord

DEFAULT_ROWS = 1 << 20
_PART_TOKENS = 1 << 40


@dataclass(frozen=True)
class Prices:
    """What a store charges.

    Attributes:
        per_1000_reads: Money for a thousand requests.
        per_gib: Money for each GiB that leaves the store (0 within a region).
    """

    per_1000_reads: float = 0.0004
    per_gib: float = 0.0


@dataclass(frozen=True)
class HostForecast:
    """Reads for one number of hosts. Figures a step are means over the steps looked at, after the cold start.

    Attributes:
        hosts: Number of hosts.
        reads_per_step: Block reads of a host in a step, mean over hosts.
        reads_per_step_busiest: The same of the host that reads most.
        bytes_per_step: Bytes that a host reads in a step, mean over hosts.
        reads_per_block: Reads of each stored block in an epoch, over all hosts; 1 is the least that there can be.
        resident_bytes: Blocks that a host holds at its peak, in bytes.
        cold_start_reads: Reads of the busiest host before the first batch.
        cold_start_bytes: Bytes of them.
        burst: Most reads of all hosts together in one step over the mean, after the cold start.
        cost_per_1000_steps: Money for the reads of all hosts in a thousand steps.
        horizon: Steps for which a block is kept that will be used again, as the cache allows.
    """

    hosts: int
    reads_per_step: float
    reads_per_step_busiest: float
    bytes_per_step: float
    reads_per_block: float
    resident_bytes: int
    cold_start_reads: int
    cold_start_bytes: int
    burst: float
    cost_per_1000_steps: float
    horizon: int


@dataclass(frozen=True)
class Forecast:
    """What was looked at, the quality of the order, and the reads for each number of hosts.

    Attributes:
        first_step: First step looked at.
        steps: Steps looked at, one after the other.
        exact: Whether these are all steps of the run.
        batch_size: Rows of a batch, the largest.
        block_bytes: Bytes of a block in memory, the largest.
        distinct_blocks: Blocks in a batch, mean.
        variance_ratio: ``VR_w`` for w of 1, 8 and 64 batches as far as there are steps: variance of the mean over w
            rows of a value that is the same in a block, over that of independent rows. 1 is a full shuffle.
        by_hosts: Reads, one for each number of hosts.
    """

    first_step: int
    steps: int
    exact: bool
    batch_size: int
    block_bytes: int
    distinct_blocks: float
    variance_ratio: dict[str, float]
    by_hosts: tuple[HostForecast, ...]

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return asdict(self)


def simulate(
    dataset: PlannedDataset,
    schedule: BatchSchedule,
    *,
    hosts: Sequence[int],
    cache_bytes: int | None = None,
    num_steps: int | None = None,
    first_step: int = 0,
    row_order: RowOrder = "locality",
    prices: Prices | None = None,
    max_rows: int = DEFAULT_ROWS,
) -> Forecast:
    """Forecasts the reads of a run.

    Args:
        dataset: What is loaded.
        schedule: Batch sizes. Steps of the largest size are looked at.
        hosts: Numbers of hosts to forecast for.
        cache_bytes: Memory for blocks on a host; None: as much as it wants.
        num_steps: Steps of the run; None: all, for a finite dataset, else as many as ``max_rows`` allows.
        first_step: Where to begin to look.
        row_order: As in the loader.
        prices: Of the store.
        max_rows: Rows that are looked at, at most.

    Raises:
        ConfigError: no step to look at, more hosts than rows, a cache that does not hold one batch, limits of the
            components that end the mixture before ``num_steps``.
    """
    total = num_steps
    if total is not None and isinstance(dataset, MixtureDataset):
        require_supply(dataset.draws, total)
    if total is None and dataset.length is not None:
        total = int(schedule.step_of(np.asarray([dataset.length]))[0])
    size = schedule.rows_at(first_step)[1]
    steps = max(max_rows // size, 2) if total is None else min(total - first_step, max(max_rows // size, 2))
    if steps < 1:
        raise ConfigError("leaves no whole step to look at", field="first_step", value=first_step)
    if len(set(schedule.size_at(np.arange(first_step, first_step + steps)).tolist())) > 1:
        steps = int(np.argmax(schedule.size_at(np.arange(first_step, first_step + steps)) != size))
    for number in hosts:
        if not 1 <= number <= size:
            raise ConfigError(f"must be 1 to the {size} rows of a batch", field="hosts", value=number)
    dataset, until = dataset.phase_at(first_step)
    steps = steps if until is None else min(steps, until - first_step)
    space = BlockSpace(dataset.sources)
    blocks = _blocks_of_steps(dataset, space, schedule, first_step, steps, size, row_order)
    chunk_bytes = space.chunk * np.asarray([a.dtype.itemsize for a in space.arrays])
    block_bytes = int(chunk_bytes.max())  # what a block takes in the loader's memory, whose slots are equal
    array = space.array_of(blocks.ravel())
    blocks_per_use = dataset.seq_len / space.chunk[array]  # of caches with other chunks: the mean over what is used
    rows_per_block = blocks.size / float(blocks_per_use.sum())
    read_bytes = float((chunk_bytes[array] * blocks_per_use).sum() / blocks_per_use.sum())
    cache_blocks = None if cache_bytes is None else cache_bytes // block_bytes
    found = [
        _of_hosts(
            forecast_reads(blocks, n, cache_blocks), n, blocks, rows_per_block, size, block_bytes, read_bytes, prices
        )
        for n in hosts
    ]
    return Forecast(
        first_step=first_step,
        steps=steps,
        exact=total is not None and first_step == 0 and steps == total,
        batch_size=size,
        block_bytes=block_bytes,
        distinct_blocks=_mean_distinct(blocks),
        variance_ratio={
            f"{w} batches" if w > 1 else "1 batch": variance_ratio(blocks[:, :: blocks.shape[1] // size], w)
            for w in (1, 8, 64)
            if steps >= 2 * w
        },
        by_hosts=tuple(found),
    )


def variance_ratio(blocks: Int64[np.ndarray, "steps batch"], window: int) -> float:
    """Mean over windows of ``window`` steps of ``sum_b c_b**2 / rows``, where block b gives c_b of the window's rows.

    For a value that is the same within a block and independent between blocks this is the variance of a window's mean
    over that of as many independent rows.

    Example:
        >>> variance_ratio(np.array([[0, 0, 1, 1], [2, 3, 4, 5]]), 1)
        1.5
    """
    steps, batch = blocks.shape
    count = steps // window
    flat = np.sort(blocks[: count * window].reshape(count, window * batch), axis=1)
    run = np.cumsum(np.diff(flat, axis=1, prepend=-1) != 0, axis=1) + np.arange(count)[:, None] * (window * batch + 1)
    sizes = np.bincount(run.ravel())
    return float((sizes.astype(float) ** 2).sum() / (count * window * batch))


def virtual_cache(
    name: str, tokens: int, *, vocab_size: int = 1 << 17, layout: CacheLayout | None = None, eos_id: int | None = 0
) -> TokenCache:
    """A cache that does not exist, of the given size: enough to plan with, nothing to read.

    Example:
        >>> virtual_cache("web", 10**12).num_tokens
        1000000000000
    """
    if tokens < 1:
        raise ConfigError("must be at least 1", field=f"tokens of {name}", value=tokens)
    layout = layout or CacheLayout("uint32" if vocab_size > 1 << 16 else "uint16")
    sizes = [min(_PART_TOKENS, tokens - at) for at in range(0, tokens, _PART_TOKENS)]
    parts = [PartRecord(f"{k:05d}", max(size // 1000, 1), size, f"virtual:{name}:{k}") for k, size in enumerate(sizes)]
    tokenizer = {"path": "virtual", "file": None, "fingerprint": "virtual", "vocab_size": vocab_size}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": eos_id}
    return TokenCache(f"/virtual/{name}", Ledger(True, tokenizer, layout.to_json(), parts=parts))


def _blocks_of_steps(
    dataset: PlannedDataset,
    space: BlockSpace,
    schedule: BatchSchedule,
    first_step: int,
    steps: int,
    size: int,
    row_order: RowOrder,
) -> Int64[np.ndarray, "steps uses"]:
    """Blocks that each step uses, rows in the loader's order; rows that lie in several blocks count for each."""
    begin = schedule.rows_at(first_step)[0]
    rows = dataset.locate(np.arange(begin, begin + steps * size))
    step = np.repeat(np.arange(steps), size)
    if row_order == "locality":
        order = np.lexsort((rows.locality, step))
        rows = type(rows)(*(a[order] for a in rows))
    owner, block = stored_blocks(dataset.sources, space, rows)
    uses = np.bincount(owner, minlength=step.size)
    if uses.max() == 1:
        return block.reshape(steps, size)
    # pad every row to the same number of blocks by naming its last one again
    width = int(uses.max())
    first = np.cumsum(uses) - uses
    table = block[first[:, None] + np.minimum(np.arange(width), uses[:, None] - 1)]
    return table.reshape(steps, size * width)


def _of_hosts(
    forecast: ReadForecast,
    hosts: int,
    blocks: np.ndarray,
    rows_per_block: float,
    size: int,
    block_bytes: int,
    read_bytes: float,
    prices: Prices | None,
) -> HostForecast:
    prices = prices or Prices()
    steps = blocks.shape[0]
    warm = min(
        max(steps // 4, 1), steps - 1
    )  # by then the first blocks have been used up, if the window is long enough
    reads = forecast.reads[warm:]
    rate = float(reads.mean())
    busiest = float(forecast.reads_by_host.max() / max(forecast.reads_by_host.mean(), 1e-12))
    cold = _cold_start(blocks[0], hosts)
    money = rate * (prices.per_1000_reads / 1000 + read_bytes / 2**30 * prices.per_gib)
    return HostForecast(
        hosts=hosts,
        reads_per_step=rate / hosts,
        reads_per_step_busiest=rate / hosts * busiest,
        bytes_per_step=rate / hosts * read_bytes,
        reads_per_block=rate * rows_per_block / size,
        resident_bytes=int(forecast.peak_blocks.max()) * block_bytes,
        cold_start_reads=cold,
        cold_start_bytes=round(cold * read_bytes),
        burst=float(reads.max() / rate) if rate else 0.0,
        cost_per_1000_steps=1000 * money,
        horizon=forecast.horizon,
    )


def _cold_start(first: np.ndarray, hosts: int) -> int:
    host = np.arange(first.size) * hosts // first.size
    return max(np.unique(first[host == h]).size for h in range(hosts))


def _mean_distinct(blocks: np.ndarray) -> float:
    return float(np.mean((np.diff(np.sort(blocks, axis=1), axis=1, prepend=-1) != 0).sum(axis=1)))
