"""What a run will read, on any number of hosts, before it is started.

The order is a pure function, so nothing has to be guessed: the steps of a run are planned as the loader plans them, and
for each host the loader's own rule of what stays in memory (index/residency.py) is replayed, so that the block fetches
are those of the loader, to the block. Long runs are looked at through one window of consecutive steps, as many as the
row budget allows; of very many hosts whose memory does not hold all they use, evenly spread ones are replayed. The
result says so. No token is read: ledgers are enough, or just the sizes of sources that do not exist yet
(:func:`virtual_cache`).

Price: about 2 us a row of the steps that are looked at, and where memory is short 50 us a step of a host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import PlannedDataset
from headrace.data.supply import require_steps
from headrace.errors import ConfigError
from headrace.feed.block_cache import slot_bytes
from headrace.feed.plan import BlockSpace, RowOrder, global_rows, stored_blocks
from headrace.index.reads import forecast_reads
from headrace.index.residency import Residency, WindowUses, window_steps, window_uses
from headrace.index.schedule import BatchSchedule
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout
from headrace.store.ledger import Ledger, PartRecord

DEFAULT_ROWS = 1 << 20
MAX_REPLAYED = 64
"""Hosts that are replayed, at most, if their memory does not hold all that they use."""
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
        block_fetches: Block reads of all hosts in all steps looked at, the cold start included: the sum of what the
            loaders count as ``block_fetches`` for these steps.
        hosts_replayed: Hosts that this was counted for; if not all, ``block_fetches`` is projected from them.
        reads_per_step: Block reads of a host in a step, mean over hosts.
        reads_per_step_busiest: The same of the host that reads most.
        bytes_per_step: Bytes that a host reads in a step, mean over hosts.
        reads_per_block: Reads of each stored block in an epoch, over all hosts; 1 is the least that there can be.
        resident_bytes: Bytes of blocks that a host has to hold at its peak to read each once while it is in use, but no
            more than its memory.
        cold_start_reads: Reads of the busiest host before the first batch.
        cold_start_bytes: Bytes of them.
        burst: Most reads of all hosts together in one step over the mean, after the cold start.
        cost_per_1000_steps: Money for the reads of all hosts in a thousand steps.
    """

    hosts: int
    block_fetches: int
    hosts_replayed: int
    reads_per_step: float
    reads_per_step_busiest: float
    bytes_per_step: float
    reads_per_block: float
    resident_bytes: int
    cold_start_reads: int
    cold_start_bytes: int
    burst: float
    cost_per_1000_steps: float


@dataclass(frozen=True)
class Forecast:
    """What was looked at, the quality of the order, and the reads for each number of hosts.

    Attributes:
        first_step: First step looked at.
        steps: Steps looked at, one after the other.
        exact: Whether these are all steps of the run and every host was replayed: ``block_fetches`` is then what the
            loaders will count. The means leave out the first quarter of the steps, the cold start, in any case.
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
    if total is not None:
        require_steps(dataset, total)
    ends = None if not dataset.length else int(schedule.step_of(np.asarray([dataset.length - 1]))[0]) + 1
    total = ends if total is None else total if ends is None else min(total, ends)
    size = schedule.rows_at(first_step)[1]
    steps = max(max_rows // size, 2) if total is None else min(total - first_step, max(max_rows // size, 2))
    if steps < 1:
        raise ConfigError("leaves no whole step to look at", field="first_step", value=first_step)
    sizes = schedule.size_at(np.arange(first_step, first_step + steps))
    if (sizes != size).any():
        steps = int(np.argmax(sizes != size))
    for number in hosts:
        if not 1 <= number <= size:
            raise ConfigError(f"must be 1 to the {size} rows of a batch", field="hosts", value=number)
    until = dataset.phase_at(first_step)[1]
    steps = steps if until is None else min(steps, until - first_step)
    windows = _Windows(dataset, schedule, first_step, ends, row_order)
    blocks = windows.table(steps, size)
    phase, space = dataset.phase_at(first_step)[0], windows.space
    block_bytes = slot_bytes(space)
    chunk_bytes = space.chunk * np.asarray([a.dtype.itemsize for a in space.arrays])
    array = space.array_of(blocks.ravel())
    blocks_per_use = phase.seq_len / space.chunk[array]  # of caches with other chunks: the mean over what is used
    rows_per_block = blocks.size / float(blocks_per_use.sum())
    read_bytes = float((chunk_bytes[array] * blocks_per_use).sum() / blocks_per_use.sum())
    slots = None if cache_bytes is None else cache_bytes // block_bytes
    found: list[HostForecast] = []
    for number in hosts:
        try:
            fetches = _replay(windows, number, steps, slots)
        except ConfigError as error:
            raise ConfigError(
                error.problem, field="cache_bytes", value=cache_bytes, cure=f"A block takes {block_bytes} bytes."
            ) from error
        found.append(_of_hosts(fetches, number, blocks, slots, rows_per_block, size, block_bytes, read_bytes, prices))
    return Forecast(
        first_step=first_step,
        steps=steps,
        exact=total is not None
        and first_step == 0
        and steps == total
        and all(h.hosts_replayed == h.hosts for h in found),
        batch_size=size,
        block_bytes=block_bytes,
        distinct_blocks=_mean_distinct(blocks),
        variance_ratio={
            f"{w} batches" if w > 1 else "1 batch": variance_ratio(blocks[:, :: blocks.shape[1] // size], w)
            for w in (1, 8, 64)
            if blocks.shape[0] >= 2 * w
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


@dataclass(frozen=True)
class _Window:
    """Uses of blocks of a window of steps, by all hosts; rows in the loader's order."""

    first_step: int
    steps: int
    step: Int64[np.ndarray, " u"]  # counted from the first
    place: Int64[np.ndarray, " u"]  # of the row in its batch
    size: Int64[np.ndarray, " u"]  # of the batch
    block: Int64[np.ndarray, " u"]

    def of_hosts(self, hosts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps and blocks sorted by host, and the bounds of each host."""
        host = self.place * hosts // self.size
        order = np.argsort(host, kind="stable")
        return self.step[order], self.block[order], np.searchsorted(host[order], np.arange(hosts + 1))


class _Windows:
    """The windows in which the loader plans a run, planned when they are asked for."""

    def __init__(
        self,
        dataset: PlannedDataset,
        schedule: BatchSchedule,
        first_step: int,
        stop_step: int | None,
        row_order: RowOrder,
    ) -> None:
        self.dataset, self.schedule = dataset, schedule
        self.row_order: RowOrder = row_order
        self.space = BlockSpace(dataset.sources)
        self.first_step, self.stop_step = first_step, stop_step
        self._planned: list[_Window] = []

    def __getitem__(self, number: int) -> _Window:
        while number >= len(self._planned):
            last = self._planned[-1] if self._planned else None
            step = self.first_step if last is None else last.first_step + last.steps
            steps = window_steps(len(self._planned))
            self._planned.append(
                self._plan(step, steps if self.stop_step is None else min(steps, self.stop_step - step))
            )
        return self._planned[number]

    def until(self, step: int) -> list[_Window]:
        """The windows that hold the steps before ``step``."""
        number = 0
        while self[number].first_step + self[number].steps < step:
            number += 1
        return self._planned[: number + 1]

    def table(self, steps: int, size: int) -> Int64[np.ndarray, "steps uses"]:
        """Blocks of each full batch; rows that lie in several blocks count for each."""
        stop = self.first_step + steps
        windows = self.until(stop)
        step = np.concatenate([w.step + w.first_step for w in windows])
        row, block = (
            ((step - self.first_step) * size + np.concatenate([w.place for w in windows])),
            [w.block for w in windows],
        )
        inside = step < stop
        owner, found = row[inside], np.concatenate(block)[inside]
        full = owner.size and int(owner[-1] + 1) // size
        inside = owner < full * size
        owner, found = owner[inside], found[inside]
        if not full:
            raise ConfigError("leaves no whole step to look at", field="first_step", value=self.first_step)
        uses = np.bincount(owner, minlength=full * size)
        if uses.max() == 1:
            return found.reshape(full, size)
        # pad every row to the same number of blocks by naming its last one again
        width = int(uses.max())
        first = np.cumsum(uses) - uses
        table = found[first[:, None] + np.minimum(np.arange(width), uses[:, None] - 1)]
        return table.reshape(full, size * width)

    def _plan(self, first_step: int, steps: int) -> _Window:
        dataset, steps, sizes, valid, rows = global_rows(self.dataset, self.schedule, first_step, steps, self.row_order)
        owner, block = stored_blocks(dataset.sources, self.space, rows)
        step = np.repeat(np.arange(steps), valid)[owner]
        place = owner - (np.cumsum(valid) - valid)[step]
        return _Window(first_step, steps, step, place, sizes[step], block)


@dataclass(frozen=True)
class _Fetches:
    """Block fetches of each step and of each host that was replayed."""

    by_step: Int64[np.ndarray, " steps"]
    by_host: Int64[np.ndarray, " replayed"]


def _replay(windows: _Windows, hosts: int, steps: int, slots: int | None) -> _Fetches:
    """What the loaders fetch in the first ``steps`` steps."""
    stop = windows.first_step + steps
    looked = windows.until(stop)
    parts = [w.of_hosts(hosts) for w in looked]
    by_step = np.zeros((hosts, steps), np.int64)
    short: list[int] = []
    for host in range(hosts):
        step = np.concatenate(
            [s[b[host] : b[host + 1]] + w.first_step for w, (s, _, b) in zip(looked, parts, strict=True)]
        )
        block = np.concatenate([x[b[host] : b[host + 1]] for _, x, b in parts])
        block, step = block[step < stop], step[step < stop]
        distinct, first = np.unique(block, return_index=True)
        if slots is None or distinct.size <= slots:  # nothing ever makes room: each block is read at its first use
            by_step[host] = np.bincount(step[first] - windows.first_step, minlength=steps)
        else:
            short.append(host)
    chosen = (
        short if len(short) <= MAX_REPLAYED else [short[k * len(short) // MAX_REPLAYED] for k in range(MAX_REPLAYED)]
    )
    for host in chosen:
        by_step[host] = _replay_host(windows, hosts, host, steps, slots or 0)
    by_step = by_step[chosen] if len(chosen) < len(short) else by_step
    return _Fetches(by_step.sum(axis=0), by_step.sum(axis=1))


def _replay_host(windows: _Windows, hosts: int, host: int, steps: int, slots: int) -> Int64[np.ndarray, " steps"]:
    """Fetches of each step of one host, decided as its loader decides them."""
    memory = Residency(slots, windows.first_step, windows.stop_step)
    found = np.zeros(steps, np.int64)
    number = 0
    for k in range(steps):
        while memory.wants_window:
            memory.extend(_host_uses(windows[number], hosts, host))
            number += 1
        found[k] = len(memory.decide().blocks)
    return found


def _host_uses(window: _Window, hosts: int, host: int) -> WindowUses:
    mine = window.place * hosts // window.size == host
    return window_uses(window.first_step, window.steps, window.block[mine], window.step[mine])[0]


def _of_hosts(
    fetches: _Fetches,
    hosts: int,
    blocks: np.ndarray,
    slots: int | None,
    rows_per_block: float,
    size: int,
    block_bytes: int,
    read_bytes: float,
    prices: Prices | None,
) -> HostForecast:
    prices = prices or Prices()
    steps, replayed = fetches.by_step.size, fetches.by_host.size
    warm = min(max(steps // 4, 1), steps - 1)  # the first blocks are used up by then, if there are steps enough
    reads = fetches.by_step[warm:] * (hosts / replayed)
    rate = float(reads.mean())
    busiest = float(fetches.by_host.max() / max(fetches.by_host.mean(), 1e-12))
    cold = _cold_start(blocks[0], hosts)
    money = rate * (prices.per_1000_reads / 1000 + read_bytes / 2**30 * prices.per_gib)
    held = int(forecast_reads(blocks, hosts).peak_blocks.max())
    return HostForecast(
        hosts=hosts,
        block_fetches=round(int(fetches.by_host.sum()) * hosts / replayed),
        hosts_replayed=replayed,
        reads_per_step=rate / hosts,
        reads_per_step_busiest=rate / hosts * busiest,
        bytes_per_step=rate / hosts * read_bytes,
        reads_per_block=rate * rows_per_block / size,
        resident_bytes=(held if slots is None else min(held, slots)) * block_bytes,
        cold_start_reads=cold,
        cold_start_bytes=round(cold * read_bytes),
        burst=float(reads.max() / rate) if rate else 0.0,
        cost_per_1000_steps=1000 * money,
    )


def _cold_start(first: np.ndarray, hosts: int) -> int:
    host = np.arange(first.size) * hosts // first.size
    return max(np.unique(first[host == h]).size for h in range(hosts))


def _mean_distinct(blocks: np.ndarray) -> float:
    return float(np.mean((np.diff(np.sort(blocks, axis=1), axis=1, prepend=-1) != 0).sum(axis=1)))
