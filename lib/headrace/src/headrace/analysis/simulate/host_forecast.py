"""The reads of a run on a number of hosts, with and without row exchange, over all windows
examined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.analysis.simulate.looks import Look, Stretch
from headrace.analysis.simulate.replay import Quality, Windows, replay
from headrace.data.budgets import OpenBytes
from headrace.errors import ConfigError, format_count
from headrace.feed.exchange import WORTH_IT
from headrace.mix.schedule import ExchangeSetting

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
            check_price(field, getattr(self, field))


def check_price(field: str, value: float) -> None:
    """Raises ConfigError unless ``value`` can be a price."""
    if not math.isfinite(value) or value < 0:
        raise ConfigError(
            "is no price", field=field, value=value, cure="Give 0 or more, in your money."
        )


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
    blocks_held: int
    moved: float
    index_requests: int

    @classmethod
    def of(cls, seen: Sequence[Seen], hosts: int, slots: int | None, *, exchange: bool) -> _Reads:
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

        return cls(
            fetches=sum(round(int(o.by_host.sum()) * hosts / o.by_host.size) for o in of_looks),
            replayed=min(one.by_host.size for one in of_looks),
            rate=mean(rates),
            busiest=mean(rate * float(share) for rate, share in zip(rates, shares, strict=True)),
            most=max(float(reads.max()) for reads in counted_reads),
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
    reads = _Reads.of(seen, hosts, slots, exchange=False)
    parts = [part for one in seen for part in one.parts]
    blocks_per_step = weighted_mean([(q.blocks_per_step, weight) for q, weight in parts])
    of_blocks = [(q, q.blocks_per_step * weight) for q, weight in parts]
    read_bytes = weighted_mean([(q.read_bytes, weight) for q, weight in of_blocks])
    requests = weighted_mean([(q.requests, weight) for q, weight in of_blocks])
    cold = windows.cold_start(hosts)
    money = reads.rate * (
        requests * prices.per_1000_reads / 1000 + read_bytes / 2**30 * prices.per_gib
    )
    caches = dict.fromkeys(windows.dataset.caches())
    lists = {snapshot.path for cache in caches for snapshot in cache.snapshots}
    opening = sum(cache.opening_requests(hosts) for cache in caches) + len(lists)
    opening += windows.dataset.opening_requests(hosts)

    def per_block(these: _Reads) -> float:
        return (
            these.rate / blocks_per_step
            if used is None
            else these.fetches / max(used, seen[0].blocks_worth)
        )

    exchange: ExchangeForecast | None = None
    with suppress(ConfigError):
        if hosts > 1:
            apart = _Reads.of(seen, hosts, slots, exchange=True)
            exchange = ExchangeForecast(
                block_fetches=apart.fetches,
                reads_per_step=apart.rate / hosts,
                reads_per_step_busiest=apart.busiest / hosts,
                reads_per_block=per_block(apart),
                resident_bytes=apart.blocks_held * block_bytes,
                moved_rows=apart.moved,
                worth_it=per_block(reads) > WORTH_IT * per_block(apart),
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
        reads_per_block=per_block(reads),
        resident_bytes=reads.blocks_held * block_bytes,
        cold_start_reads=cold,
        cold_start_bytes=round(cold * read_bytes),
        burst=reads.most / reads.rate if reads.rate else 0.0,
        cost_per_1000_steps=1000 * money,
        open_bytes=open_bytes.needed(1 / hosts),
        refused=cache_bytes is not None and open_bytes.refused(cache_bytes, 1 / hosts),
        exchange=exchange,
    )


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
