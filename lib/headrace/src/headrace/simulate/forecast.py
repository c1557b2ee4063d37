"""The forecast: what was looked at, the quality of the order, and the reads for each number of hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.data.batch_order import RowOrder
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.supply import require_steps
from headrace.errors import ConfigError
from headrace.index.schedule import MAX_STEP, BatchSchedule
from headrace.simulate.looks import LEAST_STEPS, Look, Stretch, all_steps, sampled, stretches
from headrace.simulate.quality import WINDOWS, Quality
from headrace.simulate.replay import Windows, replay
from headrace.simulate.walk import Watch, walk_to

DEFAULT_ROWS = 1 << 20
MAX_REPLAYED = 64
"""Hosts that are replayed, at most, if their memory does not hold all that they use."""
LAST_STEP = MAX_STEP - (1 << 10)
"""Steps from here on are not looked at: the loader plans some way ahead, and there are 2**40."""


@dataclass(frozen=True)
class Prices:
    """What a store charges.

    Attributes:
        per_1000_reads: Money for a thousand requests.
        per_gib: Money for each GiB that leaves the store (0 within a region).

    Raises:
        ConfigError: a price that is negative or not finite.
    """

    per_1000_reads: float = 0.0004
    per_gib: float = 0.0

    def __post_init__(self) -> None:
        for field in ("per_1000_reads", "per_gib"):
            check_price(field, getattr(self, field))


@dataclass(frozen=True)
class HostForecast:
    """Reads for one number of hosts. Figures a step are means over the steps looked at, after the cold start; if these
    are a sample, each window counts for the steps that it stands for.

    Attributes:
        hosts: Number of hosts.
        block_fetches: Block reads of all hosts in all steps looked at, the cold start included: the sum of what the
            loaders count as ``block_fetches`` for these steps.
        hosts_replayed: Hosts that this was counted for; if not all, ``block_fetches`` is projected from them.
        reads_per_step: Block reads of a host in a step, mean over hosts.
        reads_per_step_busiest: The same of the host that reads most.
        bytes_per_step: Bytes that a host reads in a step, mean over hosts.
        reads_per_block: Reads of each stored block in an epoch, over all hosts; 1 is the least that there can be,
            unless memory holds blocks from one epoch to the next. Of a run that is looked at whole: all its
            reads, the cold start included, over the blocks that it uses, as often as it passes over them. Of a sample:
            reads after the cold start over blocks' worth of rows. :attr:`Forecast.notes` say where the steps are too
            few to tell.
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
        steps: Steps looked at.
        exact: Whether these are all steps of the run and every host was replayed: ``block_fetches`` is then what the
            loaders will count. The means leave out the cold start in any case: the steps until each block that the
            order has open was met once, and of a sample the first quarter of each window at least.
        looks: The windows of steps: one if the steps follow each other, else one for each stretch of equal batches.
        batch_size: Rows of a batch, the largest that was looked at.
        block_bytes: Bytes of a block in memory, the largest.
        distinct_blocks: Blocks in a batch, mean.
        variance_ratio: ``VR_w`` for w of 1, 8 and 64 batches as far as there are steps: variance of the mean over w
            rows of a value that is the same in a block, over that of independent rows. 1 is a full shuffle.
        by_hosts: Reads, one for each number of hosts.
        notes: What the figures do not tell, in sentences.
    """

    first_step: int
    steps: int
    exact: bool
    looks: tuple[Look, ...]
    batch_size: int
    block_bytes: int
    distinct_blocks: float
    variance_ratio: dict[str, float]
    by_hosts: tuple[HostForecast, ...]
    notes: tuple[str, ...] = ()

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
    watch: Watch | None = None,
) -> Forecast:
    """Forecasts the reads of a run.

    Args:
        dataset: What is loaded.
        schedule: Batch sizes. All are looked at, through their changes if all steps are.
        hosts: Numbers of hosts to forecast for.
        cache_bytes: Memory for blocks on a host; None: as much as it wants.
        num_steps: Steps of the run; None: all, for a finite dataset, else as many as ``max_rows`` allows.
        first_step: Where to begin to look.
        row_order: As in the loader.
        prices: Of the store.
        max_rows: Rows that are looked at, at most, but two batches of each size.
        watch: Told how far a policy that counts examples one by one has come.

    Raises:
        ConfigError: an argument that can be of no run, no step to look at, more hosts than rows, a cache that does not
            hold one batch, limits of the components that end the mixture before ``num_steps``.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8).shuffle(0)
        >>> forecast = simulate(dataset, BatchSchedule({0: 2, 3: 4}), hosts=[1], num_steps=6)
        >>> forecast.exact, forecast.steps, forecast.by_hosts[0].block_fetches
        (True, 6, 10)
    """
    _check(cache_bytes, num_steps, first_step, max_rows)
    told: Watch = watch if watch is not None else lambda done, total: None
    if num_steps is not None:
        if _bounded(dataset):
            walk_to(dataset, schedule, num_steps, told)
        require_steps(dataset, num_steps)
    ends = None if not dataset.length else int(schedule.step_of(np.asarray([dataset.length - 1]))[0]) + 1
    total = min((step for step in (num_steps, ends) if step is not None), default=None)
    if total is not None and first_step >= total:
        cure = f"The run has {total:,} steps: give one below {total:,}."
        raise ConfigError("leaves no whole step to look at", field="first_step", value=first_step, cure=cure)
    size = schedule.rows_at(first_step)[1]
    for number in hosts:
        if not 1 <= number <= size:
            raise ConfigError(f"must be 1 to the {size} rows of a batch", field="hosts", value=number)
    stop = _affordable(schedule, first_step, max_rows) if total is None else min(total, LAST_STEP)
    run = stretches(dataset, schedule, first_step, stop)
    whole = total is None or stop - first_step <= LEAST_STEPS or sum(s.rows for s in run) <= max_rows
    looks = [all_steps(run, sample=total is None)] if whole else sampled(run, max_rows)
    seen: list[_Seen] = []
    for look in looks:
        walk_to(dataset, schedule, look.first_step, told)
        seen.append(_Seen.of(look, Windows(dataset, schedule, look.first_step, ends, row_order), run))
    if not any(one.parts for one in seen):
        raise ConfigError("leaves no whole step to look at", field="first_step", value=first_step)
    block_bytes = seen[0].windows.space.slot_bytes
    used = seen[0].windows.distinct(stop) if whole and total is not None else None
    found: list[HostForecast] = []
    for number in hosts:
        try:
            found.append(_of_hosts(seen, number, cache_bytes, block_bytes, prices or Prices(), used))
        except ConfigError as error:
            raise ConfigError(
                error.problem, field="cache_bytes", value=cache_bytes, cure=f"A block takes {block_bytes} bytes."
            ) from error
    return Forecast(
        first_step=first_step,
        steps=sum(look.stop_step - look.first_step for look in looks),
        exact=whole and first_step == 0 and stop == total and all(h.hosts_replayed == h.hosts for h in found),
        looks=tuple(looks),
        batch_size=max(look.batch_size for look in looks),
        block_bytes=block_bytes,
        distinct_blocks=_mean([(q.distinct_blocks, weight) for one in seen for q, weight in one.parts]),
        variance_ratio=_variance(seen),
        by_hosts=tuple(found),
        notes=_notes(seen, run, schedule, total, max(hosts, default=1)),
    )


def check_price(field: str, value: float) -> None:
    """Raises ConfigError unless ``value`` can be a price."""
    if not math.isfinite(value) or value < 0:
        raise ConfigError("is no price", field=field, value=value, cure="Give 0 or more, in your money.")


def _check(cache_bytes: int | None, num_steps: int | None, first_step: int, max_rows: int) -> None:
    """Raises ConfigError for arguments that can be of no run."""
    if cache_bytes is not None and cache_bytes < 1:
        cure = "Give the bytes that a host has for blocks, or None for as many as it wants."
        raise ConfigError("is no memory", field="cache_bytes", value=cache_bytes, cure=cure)
    if num_steps is not None and not 1 <= num_steps < LAST_STEP:
        raise ConfigError("is no number of steps", field="num_steps", value=num_steps, cure="Give 1 to 2**40.")
    if not 0 <= first_step < LAST_STEP:
        cure = "Steps count from 0, and there are 2**40 of them."
        raise ConfigError("is no step that can be looked at", field="first_step", value=first_step, cure=cure)
    if max_rows < 1:
        raise ConfigError("leaves nothing to look at", field="max_rows", value=max_rows, cure="Give 1 or more.")


def _bounded(dataset: PlannedDataset) -> bool:
    """Whether it has to be counted whether limits let the run end."""
    served = dataset.phase_at(0)[0]
    return isinstance(served, MixtureDataset) and any(limit is not None for limit in served.limits.values())


def _affordable(schedule: BatchSchedule, first_step: int, max_rows: int) -> int:
    """One past the last of as many whole steps as there are rows for, but two at least."""
    last = int(schedule.step_of(np.asarray([schedule.rows_at(first_step)[0] + max_rows]))[0])
    return min(max(last, first_step + LEAST_STEPS), LAST_STEP)


@dataclass(frozen=True)
class _Seen:
    """A look, the windows that it goes over, and the quality of its stretches with the steps that each stands for."""

    look: Look
    windows: Windows
    parts: tuple[tuple[Quality, float], ...]

    @property
    def blocks_worth(self) -> float:
        """Blocks' worth of data in all of its full batches."""
        return sum(quality.blocks_per_step * quality.steps for quality, _ in self.parts)

    @classmethod
    def of(cls, look: Look, windows: Windows, run: Sequence[Stretch]) -> _Seen:
        inside = [s for s in run if s.first_step < look.stop_step and s.stop_step > look.first_step]
        steps = look.stop_step - look.counted_from
        parts: list[tuple[Quality, float]] = []
        for s in inside:
            first, stop = max(s.first_step, look.first_step), min(s.stop_step, look.stop_step)
            table = windows.table(first, stop, s.batch_size)
            if table.size:
                counted = max(stop - max(first, look.counted_from), 0)
                quality = Quality.of(table, s.batch_size, s.seq_len, windows.space)
                parts.append((quality, look.stands_for * counted / steps))
        return cls(look, windows, tuple(parts))


def _of_hosts(
    seen: Sequence[_Seen], hosts: int, cache_bytes: int | None, block_bytes: int, prices: Prices, used: int | None
) -> HostForecast:
    """``used``: different blocks of a run that is looked at whole; None: it is not."""
    slots = None if cache_bytes is None else cache_bytes // block_bytes
    rates: list[tuple[float, float]] = []
    busiest: list[tuple[float, float]] = []
    fetches, replayed, most, held = 0, hosts, 0.0, 0
    for one in seen:
        look = one.look
        found = replay(one.windows, hosts, look.stop_step - look.first_step, slots, MAX_REPLAYED)
        count = found.by_host.size
        reads = found.by_step[look.counted_from - look.first_step :] * (hosts / count)
        rates.append((float(reads.mean()), look.stands_for))
        share = float(found.by_host.max() / max(found.by_host.mean(), 1e-12))
        busiest.append((float(reads.mean()) * share, look.stands_for))
        fetches += round(int(found.by_host.sum()) * hosts / count)
        replayed, most, held = min(replayed, count), max(most, float(reads.max())), max(held, found.held)
    rate = _mean(rates)
    wanted = _mean([(q.blocks_per_step, weight) for one in seen for q, weight in one.parts])
    read_bytes = _mean([(q.read_bytes, q.blocks_per_step * weight) for one in seen for q, weight in one.parts])
    requests = _mean([(q.requests, q.blocks_per_step * weight) for one in seen for q, weight in one.parts])
    cold = seen[0].windows.cold_start(hosts)
    money = rate * (requests * prices.per_1000_reads / 1000 + read_bytes / 2**30 * prices.per_gib)
    return HostForecast(
        hosts=hosts,
        block_fetches=fetches,
        hosts_replayed=replayed,
        reads_per_step=rate / hosts,
        reads_per_step_busiest=_mean(busiest) / hosts,
        bytes_per_step=rate / hosts * read_bytes,
        reads_per_block=rate / wanted if used is None else fetches / max(used, seen[0].blocks_worth),
        resident_bytes=held * block_bytes,
        cold_start_reads=cold,
        cold_start_bytes=round(cold * read_bytes),
        burst=most / rate if rate else 0.0,
        cost_per_1000_steps=1000 * money,
    )


def _mean(values: Sequence[tuple[float, float]]) -> float:
    """Mean of values with their weights; the plain mean if none has any (steps that count but are no full batches)."""
    total = sum(weight for _, weight in values)
    return sum(v * weight for v, weight in values) / total if total else sum(v for v, _ in values) / len(values)


def _variance(seen: Sequence[_Seen]) -> dict[str, float]:
    found = {
        w: [(q.variance[w], weight) for one in seen for q, weight in one.parts if w in q.variance] for w in WINDOWS
    }
    return {f"{w} batches" if w > 1 else "1 batch": _mean(values) for w, values in found.items() if values}


def _notes(
    seen: Sequence[_Seen], run: Sequence[Stretch], schedule: BatchSchedule, total: int | None, hosts: int
) -> tuple[str, ...]:
    """What the figures do not tell."""
    notes: list[str] = []
    for look in (one.look for one in seen):
        own = [s for s in run if s.first_step < look.stop_step and s.stop_step > look.counted_from]
        counted = look.stop_step - look.counted_from
        if look.stop_step - look.first_step <= own[0].cold_steps and look.counted_from > own[0].first_step:
            notes.append(
                f"Steps {look.first_step:,} to {look.stop_step - 1:,} are all cold start, which takes"
                f" {own[0].cold_steps:,} steps: reads are far above those of later steps."
            )
            continue
        life = sum(s.block_life * s.steps for s in own) / sum(s.steps for s in own)
        ended = len(seen) > 1 and look.stop_step == own[-1].stop_step  # more rows would not show more of this stretch
        if counted < life and not ended:
            notes.append(
                f"A block is in use for about {life:,.0f} steps from step {look.first_step:,} on, and {counted:,} were"
                " counted: reads a block are of these steps, and may differ over an epoch."
            )
    if notes and (total is None or len(seen) > 1 or seen[-1].look.stop_step < total):
        notes.append("Raise max_rows to look at more steps.")
    if 1 < len(seen) < len(run):
        notes.append(f"{len(seen)} of {len(run)} stretches of equal batches were looked at.")
    last = seen[-1].look.stop_step
    later = [step for step, _ in schedule.points if step >= last]
    if total is None and later:
        notes.append(
            f"No end of the run is known, and only steps below {last:,} were looked at: the batch size changes at step"
            f" {later[0]:,}. Say how many steps it has."
        )
    fewest = min(s.batch_size for s in run)
    if hosts > fewest:
        notes.append(f"Some batches have {fewest:,} rows, fewer than {hosts:,} hosts: some hosts have none.")
    return tuple(notes)
