"""The forecast: what was looked at, the quality of the order, and the reads for each number of
hosts, with and without row exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.analysis.simulate.looks import (
    LEAST_STEPS,
    Look,
    Stretch,
    all_steps,
    sampled,
    stretches,
    walk_to,
)
from headrace.analysis.simulate.replay import VARIANCE_WINDOWS, Quality, Windows, replay
from headrace.data.budgets import OpenBytes
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import mixture_of, require_steps
from headrace.errors import ConfigError, format_count
from headrace.feed.exchange import WORTH_IT
from headrace.mix.policy import Watch
from headrace.mix.schedule import (
    MAX_STEP,
    BatchSchedule,
    DataEnd,
    ExchangeSetting,
    RowOrder,
    check_some_batch,
    data_end,
)

DEFAULT_ROWS = 1 << 18
"""Rows that all commands examine: half a second, whatever the run."""
LAST_STEP = MAX_STEP - (1 << 10)
"""Steps from here on are not examined: the loader plans some way ahead, and there are 2**40."""
MAX_REPLAYED = 64
"""Most hosts to replay if their memory does not hold all that they use."""


@dataclass(frozen=True)
class Prices:
    """Prices of a store.

    Attributes:
        per_1000_reads: Price of a thousand requests.
        per_gib: Price of each GiB that leaves the store (0 within a region).

    Raises:
        ConfigError: a price that is negative or not finite.
    """

    per_1000_reads: float = 0.0004
    per_gib: float = 0.0

    def __post_init__(self) -> None:
        for field in ("per_1000_reads", "per_gib"):
            value = getattr(self, field)
            if not math.isfinite(value) or value < 0:
                cure = "Give 0 or more, in your money."
                raise ConfigError("is no price", field=field, value=value, cure=cure)


@dataclass(frozen=True)
class ExchangeForecast:
    """Reads of the same hosts if they exchange rows from the first step on; fields as in
    :class:`HostForecast`.

    Attributes:
        moved_rows: Rows of a batch that one host reads for another, mean over the windows examined.
        worth_it: Whether ``row_exchange: auto`` turns it on: without it, ``reads_per_block`` is
            more than 1.05 times as high.
    """

    block_fetches: int
    reads_per_step: float
    reads_per_step_busiest: float
    reads_per_block: float
    resident_bytes: int
    moved_rows: float
    worth_it: bool


@dataclass(frozen=True)
class HostForecast:
    """Reads for one number of hosts. Per-step figures are means over the steps examined, after the
    cold start; in a sample, each window is weighted by the steps it represents.

    Attributes:
        hosts: Number of hosts.
        block_fetches: Block reads of all hosts in all steps examined, including the cold start: the
            sum of the loaders' ``block_fetches`` for these steps.
        requests: HTTP requests of all hosts in these steps: for blocks, ``index_requests`` and
            ``opening_requests``; without retries and hedges.
        index_requests: Requests for ``zarr.json`` and the indices of files: none for uncompressed
            caches of headrace. Under ``split_documents`` also those for the stored ends of
            documents, which each host reads once for each part that it meets.
        opening_requests: Requests that open the caches: each cache is opened by one host for all,
            as in runs under ``jax.distributed``; a cache without ``ledger.bin`` by every host.
        hosts_replayed: Hosts that were replayed; if not all, ``block_fetches`` is extrapolated from
            them.
        reads_per_step: Block reads of a host per step, mean over hosts.
        reads_per_step_busiest: The same for the host that reads most.
        bytes_per_step: Bytes that a host reads per step, mean over hosts.
        reads_per_block: Reads of each stored block per epoch, over all hosts; 1 is the minimum,
            unless memory holds blocks from one epoch to the next. For a run examined whole: all its
            reads, including the cold start, over the blocks it uses, counted once per pass. For a
            sample: reads after the cold start over blocks' worth of rows. :attr:`Forecast.notes`
            tell if the steps are too few.
        resident_bytes: Bytes of blocks that a host must hold at its peak to read each once while in
            use, limited to its memory.
        cold_start_reads: Reads of the busiest host before the first batch.
        cold_start_bytes: Their bytes.
        burst: Most reads of all hosts together in one step, relative to the mean, after the cold
            start.
        cost_per_1000_steps: Price of the reads of all hosts in a thousand steps.
        open_bytes: Bytes that the orders of the run draw from at a time on a host; see
            :mod:`headrace.data.budgets`.
        refused: Whether the loader refuses to start with this much memory.
        exchange: The same with row exchange, which the figures above exclude; None: for one host,
            or if the rows that a host owns do not fit in its memory.
    """

    hosts: int
    block_fetches: int
    requests: int
    index_requests: int
    opening_requests: int
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
    open_bytes: int
    refused: bool
    exchange: ExchangeForecast | None = None

    def reads_with(self, setting: ExchangeSetting) -> float:
        """Reads per block per epoch under ``row_exchange``."""
        there = self.exchange
        if there is None or setting == "off" or (setting == "auto" and not there.worth_it):
            return self.reads_per_block
        return there.reads_per_block

    def describe_exchange(self, setting: ExchangeSetting, batch_size: int) -> str | None:
        """What ``row_exchange`` does for these hosts, in a sentence; None: nothing to report."""
        there = self.exchange
        if there is None or not round(there.moved_rows) or (not there.worth_it and setting != "on"):
            return None
        does = {"auto": "auto turns it on", "on": "on", "off": "off; auto would turn it on"}[
            setting
        ]
        return (
            f"{format_count(self.hosts, 'host')}: row_exchange: {does}. A block is read"
            f" {there.reads_per_block:.2f}"
            f" times per epoch with it, {self.reads_per_block:.2f} times without; "
            f"{there.moved_rows:,.0f} of {batch_size:,} rows move."
        )


@dataclass(frozen=True)
class RunSteps:
    """Which steps of a run to examine.

    Attributes:
        first_step: First step to examine.
        num_steps: Steps of the run; None: all, for a finite dataset, otherwise as many as
            ``max_rows`` allows.
        max_rows: Most rows to examine, but at least two batches of each size.

    Raises:
        ConfigError: a number out of range.
    """

    first_step: int = 0
    num_steps: int | None = None
    max_rows: int = DEFAULT_ROWS

    def __post_init__(self) -> None:
        if self.num_steps is not None and not 1 <= self.num_steps < LAST_STEP:
            raise ConfigError(
                "is no number of steps",
                field="num_steps",
                value=self.num_steps,
                cure="Give 1 to 2**40.",
            )
        if not 0 <= self.first_step < LAST_STEP:
            cure = "Steps count from 0, and there are 2**40 of them."
            raise ConfigError(
                "is no step that can be looked at",
                field="first_step",
                value=self.first_step,
                cure=cure,
            )
        if self.max_rows < 1:
            raise ConfigError(
                "leaves nothing to look at",
                field="max_rows",
                value=self.max_rows,
                cure="Give 1 or more.",
            )


@dataclass(frozen=True)
class Forecast:
    """What was looked at, the quality of the order, and the reads for each number of hosts.

    Attributes:
        first_step: First step examined.
        steps: Steps examined.
        exact: Whether these are all steps of the run and every host was replayed; ``block_fetches``
            then equals what the loaders will count. Means always exclude the cold start: the steps
            until each block that the order has open was met once, and in a sample at least the
            first quarter of each window.
        looks: The windows of steps: one if the steps are consecutive, else one for each stretch of
            equal batches.
        batch_size: Rows of a batch, the largest examined.
        block_bytes: Bytes of a block in memory, the largest.
        distinct_blocks: Blocks in a batch, mean.
        variance_ratio: ``VR_w`` for w of 1, 8 and 64 batches as far as there are steps: variance of
            the mean over w rows of a value that is constant in a block, relative to rows drawn at
            random. 1 is a full shuffle.
        by_hosts: Reads, one entry for each number of hosts.
        notes: Caveats, in sentences.
        data_end: How the data end, if the run goes on to there.
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
    data_end: DataEnd | None = None

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return asdict(self)


def simulate(
    dataset: PlannedDataset,
    schedule: BatchSchedule,
    *,
    hosts: Sequence[int],
    steps: RunSteps | None = None,
    cache_bytes: int | None = None,
    row_order: RowOrder = "locality",
    row_exchange: ExchangeSetting = "auto",
    prices: Prices | None = None,
    watch: Watch | None = None,
) -> Forecast:
    """Forecasts the reads of a run.

    Args:
        dataset: The dataset to load.
        schedule: Batch sizes. All sizes are examined, including transitions if all steps are.
        hosts: Numbers of hosts to forecast for.
        steps: Which steps to examine; None: all, or as many as :data:`DEFAULT_ROWS` allow.
        cache_bytes: Memory for blocks per host; None: unlimited.
        row_order: As in the loader.
        row_exchange: As in the loader; memory depends on it.
        prices: Prices of the store.
        watch: Called with the progress of a policy that counts examples one by one.

    Raises:
        ConfigError: an argument out of range; no step to examine; more hosts than rows; memory that
            does not hold one batch; limits of components that end the mixture before ``num_steps``.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8).shuffle(0)
        >>> forecast = simulate(
        ...     dataset, BatchSchedule({0: 2, 3: 4}), hosts=[1], steps=RunSteps(num_steps=6)
        ... )
        >>> forecast.exact, forecast.steps, forecast.by_hosts[0].block_fetches
        (True, 6, 10)
    """
    steps = steps or RunSteps()
    if steps.num_steps is not None:
        _check_end(dataset, steps.num_steps, watch)
    examination = examine(
        dataset,
        schedule,
        hosts=hosts,
        steps=steps,
        row_order=row_order,
        row_exchange=row_exchange,
        watch=watch,
    )
    return examination.forecast(cache_bytes, prices)


@dataclass(frozen=True)
class Examination:
    """Steps of a run that were examined: what any forecast of its reads is made from.

    Attributes:
        dataset: The dataset.
        schedule: Its batches.
        hosts: Numbers of hosts to forecast for.
        run: Stretches of equal batches, from the first step examined to the last of the run.
        examined: What was examined.
        end: How the data end.
        total: Steps of the run; None: no known end.
        is_complete: Whether all steps from the first one on were examined.
    """

    dataset: PlannedDataset
    schedule: BatchSchedule
    hosts: Sequence[int]
    run: Sequence[Stretch]
    examined: Sequence[Seen]
    end: DataEnd | None
    total: int | None
    is_complete: bool

    @property
    def steps(self) -> int:
        """Steps examined."""
        return sum(one.look.stop_step - one.look.first_step for one in self.examined)

    def forecast(self, cache_bytes: int | None = None, prices: Prices | None = None) -> Forecast:
        """The reads of the run; arguments and errors as for :func:`simulate`."""
        if cache_bytes is not None and cache_bytes < 1:
            cure = "Give the bytes that a host has for blocks, or None for as many as it wants."
            raise ConfigError("is no memory", field="cache_bytes", value=cache_bytes, cure=cure)
        looks = [one.look for one in self.examined]
        windows = self.examined[0].windows
        block_bytes = windows.space.slot_bytes
        examined_to_end = self.is_complete and self.total is not None
        used = windows.distinct(looks[-1].stop_step) if examined_to_end else None
        forecasts: list[HostForecast] = []
        for number in self.hosts:
            try:
                forecasts.append(
                    forecast_hosts(self.examined, number, cache_bytes, prices or Prices(), used)
                )
            except ConfigError as error:
                raise ConfigError(
                    error.problem,
                    field="cache_bytes",
                    value=cache_bytes,
                    cure=f"A block takes {block_bytes} bytes.",
                ) from error
        open_bytes = OpenBytes.of(self.dataset, windows.row_exchange)
        shortages = (open_bytes.shortage(cache_bytes, number) for number in self.hosts)
        ends_here = self.end is not None and self.end.rows and self.end.num_steps == self.total
        return Forecast(
            first_step=looks[0].first_step,
            steps=self.steps,
            exact=self.is_complete
            and looks[0].first_step == 0
            and looks[-1].stop_step == self.total
            and all(h.hosts_replayed == h.hosts for h in forecasts),
            looks=tuple(looks),
            batch_size=max(look.batch_size for look in looks),
            block_bytes=block_bytes,
            distinct_blocks=weighted_mean(
                [(q.distinct_blocks, weight) for one in self.examined for q, weight in one.parts]
            ),
            variance_ratio=_variance(self.examined),
            by_hosts=tuple(forecasts),
            notes=(
                *(note for note in shortages if note),
                *_notes(self),
            ),
            data_end=self.end if ends_here else None,
        )


def examine(
    dataset: PlannedDataset,
    schedule: BatchSchedule,
    *,
    hosts: Sequence[int],
    steps: RunSteps,
    row_order: RowOrder = "locality",
    row_exchange: ExchangeSetting = "auto",
    watch: Watch | None = None,
) -> Examination:
    """Examines steps of a run; arguments and errors as for :func:`simulate`."""
    batch_rows = schedule.rows_at(steps.first_step)[1]
    for number in hosts:
        if not 1 <= number <= batch_rows:
            cure = f"Give 1 to {batch_rows}, the rows of a batch."
            raise ConfigError("cannot share a batch", field="hosts", value=number, cure=cure)
    # 1. Where the run ends.
    first_step = steps.first_step
    check_some_batch(schedule, dataset.length)
    end = data_end(schedule, dataset.length)
    ends = None if end is None or not end.rows else end.num_steps
    total = min((step for step in (steps.num_steps, ends) if step is not None), default=None)
    if total is not None and first_step >= total:
        cure = f"The run has {total:,} steps: give one below {total:,}."
        raise ConfigError(
            "leaves no whole step to look at", field="first_step", value=first_step, cure=cure
        )
    # 2. Which steps are looked at: all, if there are few enough rows.
    affordable = _affordable(schedule, first_step, steps.max_rows)
    stop = affordable if total is None else min(total, LAST_STEP)
    run = stretches(dataset, schedule, first_step, stop)
    is_complete = (
        total is None
        or stop - first_step <= LEAST_STEPS
        or sum(s.rows for s in run) <= steps.max_rows
    )
    looks = [all_steps(run, sample=total is None)] if is_complete else sampled(run, steps.max_rows)
    # 3. What they read.
    examined: list[Seen] = []
    for look in looks:
        walk_to(dataset, look.first_step, watch)
        windows = Windows(dataset, schedule, look.first_step, ends, row_order, row_exchange)
        examined.append(Seen.of(look, windows, run))
    if not any(one.parts for one in examined):
        if end is not None and 0 < end.rows < run[0].batch_size:
            raise ConfigError(
                f"is more than the {format_count(end.rows, 'row')} that the data have: the only"
                " batch is not full",
                field="batch_size",
                value=run[0].batch_size,
                cure=f"Write batch_size: {end.rows}, or leave max_epochs out, so that the data"
                " repeat.",
            )
        raise ConfigError("leaves no whole step to look at", field="first_step", value=first_step)
    return Examination(dataset, schedule, hosts, run, examined, end, total, is_complete)


def _check_end(dataset: PlannedDataset, num_steps: int, watch: Watch | None) -> None:
    """Raises ConfigError if the run ends before this many steps; limits of components require
    counting.
    """
    mixture = mixture_of(dataset.at_step(0)[0])
    if mixture is not None and any(limit is not None for limit in mixture.limits.values()):
        walk_to(dataset, num_steps, watch)
    require_steps(dataset, num_steps)


def _affordable(schedule: BatchSchedule, first_step: int, max_rows: int) -> int:
    """One past the last of as many whole steps as there are rows for, but at least two."""
    last = int(schedule.step_of(np.asarray([schedule.rows_at(first_step)[0] + max_rows]))[0])
    return min(max(last, first_step + LEAST_STEPS), LAST_STEP)


def _variance(seen: Sequence[Seen]) -> dict[str, float]:
    variances = {
        w: [(q.variance[w], weight) for one in seen for q, weight in one.parts if w in q.variance]
        for w in VARIANCE_WINDOWS
    }
    return {
        f"{w} batches" if w > 1 else "1 batch": weighted_mean(values)
        for w, values in variances.items()
        if values
    }


def _notes(examination: Examination) -> list[str]:
    """Caveats of the figures."""
    seen = examination.examined
    run = examination.run
    total = examination.total
    notes: list[str] = []
    for look in (one.look for one in seen):
        overlapping = [
            s for s in run if s.first_step < look.stop_step and s.stop_step > look.counted_from
        ]
        steps = look.stop_step - look.counted_from
        if (
            look.stop_step - look.first_step <= overlapping[0].cold_steps
            and look.counted_from > overlapping[0].first_step
        ):
            notes.append(
                f"Steps {look.first_step:,} to {look.stop_step - 1:,} are all cold start, which"
                " takes"
                f" {overlapping[0].cold_steps:,} steps: reads are far above those of later steps."
            )
            continue
        life = sum(s.block_life * s.steps for s in overlapping) / sum(s.steps for s in overlapping)
        # More rows would not reveal more of this stretch.
        ended = len(seen) > 1 and look.stop_step == overlapping[-1].stop_step
        if steps < life and not ended:
            notes.append(
                f"A block is in use for about {life:,.0f} steps from step {look.first_step:,} on,"
                f" and {steps:,} were"
                " counted: reads per block hold for these steps, and may differ over an epoch."
            )
    if notes and (total is None or len(seen) > 1 or seen[-1].look.stop_step < total):
        notes.append("Raise max_rows to look at more steps.")
    if 1 < len(seen) < len(run):
        notes.append(f"{len(seen)} of {len(run)} stretches of equal batches were looked at.")
    last = seen[-1].look.stop_step
    later = [step for step, _ in examination.schedule.points if step >= last]
    if total is None and later:
        notes.append(
            f"No end of the run is known, and only steps below {last:,} were looked at: the batch"
            f" size changes at step {later[0]:,}. Say how many steps it has."
        )
    fewest = min(s.batch_size for s in run)
    hosts = max(examination.hosts, default=1)
    if hosts > fewest:
        notes.append(
            f"Some batches have {fewest:,} rows, fewer than {hosts:,} hosts: some hosts have none."
        )
    return notes


@dataclass(frozen=True)
class Seen:
    """A look, its windows, and the quality of its stretches with the steps that each represents."""

    look: Look
    windows: Windows
    parts: tuple[tuple[Quality, float], ...]

    @property
    def blocks_worth(self) -> float:
        """Data in all of its full batches, in blocks."""
        return sum(quality.blocks_per_step * quality.steps for quality, _ in self.parts)

    @classmethod
    def of(cls, look: Look, windows: Windows, run: Sequence[Stretch]) -> Seen:
        inside = [s for s in run if s.first_step < look.stop_step and s.stop_step > look.first_step]
        steps = look.stop_step - look.counted_from
        parts: list[tuple[Quality, float]] = []
        for s in inside:
            first = max(s.first_step, look.first_step)
            stop = min(s.stop_step, look.stop_step)
            table = windows.table(first, stop, s.batch_size)
            if table.size:
                counted_steps = max(stop - max(first, look.counted_from), 0)
                quality = Quality.of(table, s.batch_size, s.seq_len, windows.space, windows.alike)
                parts.append((quality, look.stands_for * counted_steps / steps))
        return cls(look, windows, tuple(parts))


@dataclass(frozen=True)
class _Reads:
    """Reads of a number of hosts, over all looks."""

    fetches: int
    replayed: int
    rate: float  # of all hosts, per step
    busiest: float
    most: float
    per_block: float  # per epoch
    blocks_held: int
    moved: float
    index_requests: int

    @classmethod
    def of(
        cls,
        seen: Sequence[Seen],
        hosts: int,
        slots: int | None,
        used: int | None,
        *,
        exchange: bool,
    ) -> _Reads:
        """``used``: distinct blocks of a run examined whole; None otherwise."""
        looks = [one.look for one in seen]
        steps = [look.stop_step - look.first_step for look in looks]
        of_looks = [
            replay(one.windows, hosts, count, slots, MAX_REPLAYED, exchange=exchange)
            for one, count in zip(seen, steps, strict=True)
        ]
        # The steps that count, as if all hosts had been replayed.
        counted_reads = [
            one.by_step[look.counted_from - look.first_step :] * (hosts / one.by_host.size)
            for one, look in zip(of_looks, looks, strict=True)
        ]
        rates = [float(reads.mean()) for reads in counted_reads]
        shares = [one.by_host.max() / max(one.by_host.mean(), 1e-12) for one in of_looks]
        weights = [look.stands_for for look in looks]

        def mean(values: Iterable[float]) -> float:
            return weighted_mean([*zip(values, weights, strict=True)])

        fetches = sum(round(int(o.by_host.sum()) * hosts / o.by_host.size) for o in of_looks)
        rate = mean(rates)
        if used is None:
            parts = [part for one in seen for part in one.parts]
            per_block = rate / weighted_mean([(q.blocks_per_step, weight) for q, weight in parts])
        else:
            per_block = fetches / max(used, seen[0].blocks_worth)
        return cls(
            fetches=fetches,
            replayed=min(one.by_host.size for one in of_looks),
            rate=rate,
            busiest=mean(rate * float(share) for rate, share in zip(rates, shares, strict=True)),
            most=max(float(reads.max()) for reads in counted_reads),
            per_block=per_block,
            blocks_held=max(one.blocks_held for one in of_looks),
            moved=mean(one.moved for one in of_looks),
            index_requests=sum(one.index_requests for one in of_looks),
        )


def forecast_hosts(
    seen: Sequence[Seen], hosts: int, cache_bytes: int | None, prices: Prices, used: int | None
) -> HostForecast:
    """``used``: distinct blocks of a run examined whole; None otherwise."""
    windows = seen[0].windows
    open_bytes = OpenBytes.of(windows.dataset, windows.row_exchange)
    block_bytes = windows.space.slot_bytes
    slots = None if cache_bytes is None else cache_bytes // block_bytes
    reads = _Reads.of(seen, hosts, slots, used, exchange=False)
    # What a block takes, in the mean over the blocks that are read
    of_blocks = [(q, q.blocks_per_step * weight) for one in seen for q, weight in one.parts]
    read_bytes = weighted_mean([(q.read_bytes, weight) for q, weight in of_blocks])
    requests = weighted_mean([(q.requests, weight) for q, weight in of_blocks])
    cold = windows.cold_start(hosts)
    opening = _opening_requests(windows.dataset, hosts)
    block_price = requests * prices.per_1000_reads / 1000 + read_bytes / 2**30 * prices.per_gib
    exchange: ExchangeForecast | None = None
    with suppress(ConfigError):  # the blocks that a host owns do not fit in its memory
        if hosts > 1:
            owned = _Reads.of(seen, hosts, slots, used, exchange=True)
            exchange = ExchangeForecast(
                block_fetches=owned.fetches,
                reads_per_step=owned.rate / hosts,
                reads_per_step_busiest=owned.busiest / hosts,
                reads_per_block=owned.per_block,
                resident_bytes=owned.blocks_held * block_bytes,
                moved_rows=owned.moved,
                worth_it=reads.per_block > WORTH_IT * owned.per_block,
            )
    return HostForecast(
        hosts=hosts,
        block_fetches=reads.fetches,
        requests=round(reads.fetches * requests) + reads.index_requests + opening,
        index_requests=reads.index_requests,
        opening_requests=opening,
        hosts_replayed=reads.replayed,
        reads_per_step=reads.rate / hosts,
        reads_per_step_busiest=reads.busiest / hosts,
        bytes_per_step=reads.rate / hosts * read_bytes,
        reads_per_block=reads.per_block,
        resident_bytes=reads.blocks_held * block_bytes,
        cold_start_reads=cold,
        cold_start_bytes=round(cold * read_bytes),
        burst=reads.most / reads.rate if reads.rate else 0.0,
        cost_per_1000_steps=1000 * (reads.rate * block_price),
        open_bytes=open_bytes.needed(1 / hosts),
        refused=cache_bytes is not None and open_bytes.refused(cache_bytes, 1 / hosts),
        exchange=exchange,
    )


def _opening_requests(dataset: PlannedDataset, hosts: int) -> int:
    """Requests of all hosts that open the caches: each once, and the lists of their snapshots."""
    caches = dict.fromkeys(dataset.caches())
    lists = {snapshot.path for cache in caches for snapshot in cache.snapshots}
    of_caches = sum(cache.opening_requests(hosts) for cache in caches)
    return of_caches + len(lists) + dataset.opening_requests(hosts)


def weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    """Weighted mean; the plain mean if all weights are 0 (steps that count but are not full
    batches).
    """
    total = sum(weight for _, weight in values)
    return (
        sum(v * weight for v, weight in values) / total
        if total
        else sum(v for v, _ in values) / len(values)
    )
