"""Counters and timers of reading and loading, with their units and what high and low mean.

===========================  =======  ==============================================================
name                         unit     meaning
===========================  =======  ==============================================================
examples_requested           count    rows that batches requested on this host
unique_examples              count    distinct rows among them, per batch; a lower number: rows
                                      repeat within a batch
untrained_examples           count    rows none of whose tokens is trained on by their mask (chats,
                                      loaders of whole rows): a place in a batch for nothing; near
                                      0, or answers are cut off
padded_rows                  count    empty rows of the last batch (``last_batch: pad``), in this
                                      host's part of it
filled_rows                  count    rows of the last batch that were delivered before
                                      (``last_batch: fill``), likewise
dropped_rows                 count    rows that are in no batch (``last_batch: drop``), counted with
                                      the last batch, in this host's part of the one that they would
                                      have been in
coalesced_ranges             count    runs of neighbouring rows, batch by batch; near
                                      examples_requested: no locality
block_fetches                count    stored blocks read or mapped because they were not in memory;
                                      a block is a chunk of tokens and, if there is one, that of
                                      their mask
block_hits                   count    uses of a block that was in memory already
tensorstore_reads_issued     count    read calls to TensorStore (one a block, two if it has a mask;
                                      without a block cache one a range)
bytes_read                   bytes    decoded bytes of those blocks and ranges, read or mapped
mapped_blocks                count    chunks of them that lie in memory-mapped files (local,
                                      uncompressed), and are not read through TensorStore; 0 there:
                                      see headrace.store.mapped
bytes_delivered              bytes    bytes of the rows in the delivered batches
content_tokens               count    tokens of these rows without padding; over examples_requested
                                      times seq_len: the fill of packed rows
micro_batch_places           count    places of the micro-batches of this host, padding included
                                      (``micro_batches``); content_tokens over it: how full they
                                      are; 0: there are none
removed_tokens               count    tokens of these whose documents are removed (``headrace cache
                                      remove``): they are neither read nor trained on
exchanged_examples           count    rows that this host read for others, which got them through
                                      the devices (docs/multi_host.md); over examples_requested:
                                      near 0 while shares do not change
exchanged_bytes              bytes    bytes of these
requests                     count    requests to stores over HTTP by this process since the loader
                                      was made, with the two below; near block_fetches (twice that
                                      with masks); 0: all is local
retries                      count    requests sent again after a failure; near 0, or the store
                                      throttles or breaks
damaged                      count    of these, for answers that were not what was stored; above 0:
                                      something on the way, or the cache itself (headrace cache
                                      verify --deep), is damaged
refused                      count    of these, after a refusal (401, 403) or a redirect; above 0:
                                      look at credentials
replica_switches             count    reads that went on at another replica of their cache; above 0:
                                      the log says which place could not be read, and why
hedges                       count    second requests for late answers; high: the store has a long
                                      tail
reads_per_example            ratio    (tensorstore_reads_issued + mapped_blocks) /
                                      examples_requested; 1: random access
read_amplification           ratio    bytes_read / bytes_delivered; 1, or below if all stays in
                                      memory; high: blocks leave memory before they are used up, or
                                      hosts share them
cache_hit_rate               ratio    block_hits / (block_hits + block_fetches); near 1: each block
                                      serves many rows
queue_occupancy              ratio    ready batches / room for them when the trainer asks; near 1:
                                      the loader is ahead, near 0: the trainer waits
wait_s (p50, p95, p99, max)  seconds  how long the trainer waited for a batch
host_wait_s                  seconds  time in which this host had its batch and waited for others to
                                      have theirs; high: another one is late, that with the lowest
late_hosts                   count    batches for which others were waited for so long that the log
                                      names them
waiting_share                ratio    time waited / time from the first batch to the last; above
                                      0.02 the data holds up training
batches_per_s                1/s      batches / that time: the speed of training
num_stalls                   count    waits far above the usual (StallRule); ``stalls`` has the
                                      last, with their causes
waiting_now_s                seconds  how long the trainer has waited for the batch that is not
                                      there yet; 0: it has one
replayed_batches             count    batches of headspace runs; if not 0, the other figures are of
                                      these runs too
resident_bytes               bytes    stored blocks in memory or in flight; at most prefetch_bytes
                                      an iteration
hosts                        count    processes that the figures are of; see LoaderStats.over_hosts
plan_s, read_s, gather_s,    seconds  where the loader's thread spent its time: planning, waiting
                                      for the store, waiting
map_s, transfer_s                     for rows to be gathered, in functions of ``map``, handing
                                      arrays to the devices
step                         count    steps whose batches the trainer has got; a resumed run goes on
                                      from its step
sources/NAME/rows            rows     of the whole batches (all hosts) before ``step`` that are of
                                      this source, padding left out; with sources/NAME/tokens
                                      computed from the plan when they are read
sources/NAME/tokens          tokens   of these
sources/NAME/epochs          ratio    tokens / tokens of one pass over the source; it is not there
                                      if that is unknown
sources/NAME/weight          ratio    share that ``step`` draws from the source, before limits: 1
                                      over all sources
===========================  =======  ==============================================================
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from headrace.stalls import QueueStats, Stall, StallRule, WaitLog

__all__ = ["LoaderStats", "ReadStats", "SourceAt", "Stall", "StallRule"]

STATS_FOLDER = "stats"
"""Folder of a run in which a :class:`~headrace.feed.run_log.RunLog` writes counters."""


@dataclass
class ReadStats:
    """Counters of reading; see the module's table. Add two with ``+``."""

    examples_requested: int = 0
    unique_examples: int = 0
    coalesced_ranges: int = 0
    block_fetches: int = 0
    block_hits: int = 0
    tensorstore_reads_issued: int = 0
    bytes_read: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    mapped_blocks: int = 0
    bytes_delivered: int = 0
    untrained_examples: int = 0
    exchanged_examples: int = 0
    exchanged_bytes: int = 0
    damaged: int = 0
    refused: int = 0
    replica_switches: int = 0
    content_tokens: int = 0
    micro_batch_places: int = 0
    removed_tokens: int = 0
    padded_rows: int = 0
    filled_rows: int = 0
    dropped_rows: int = 0

    @property
    def reads_per_example(self) -> float:
        return (self.tensorstore_reads_issued + self.mapped_blocks) / max(
            self.examples_requested, 1
        )

    @property
    def cache_hit_rate(self) -> float:
        return self.block_hits / max(self.block_hits + self.block_fetches, 1)

    @property
    def read_amplification(self) -> float:
        return self.bytes_read / max(self.bytes_delivered, 1)

    def __add__(self, other: ReadStats) -> ReadStats:
        return ReadStats(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(ReadStats))
        )

    def __sub__(self, other: ReadStats) -> ReadStats:
        return ReadStats(
            *(getattr(self, f.name) - getattr(other, f.name) for f in fields(ReadStats))
        )

    def to_dict(self) -> dict[str, float]:
        """All counters and ratios by name."""
        ratios = ("reads_per_example", "cache_hit_rate", "read_amplification")
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}


@dataclass(frozen=True)
class SourceAt:
    """One source of a run at a step.

    Attributes:
        weight: Its target share at the step, before budgets, in what the run counts, as ``share``.
        share: Its share of all tokens so far.
        rows_in_step: Its rows in the step's batch; 0 when the run is over.
        rows: Its rows in all earlier steps.
        tokens: Tokens of these.
        epoch: The pass over the source that its next row belongs to, from 0.
        epochs: ``tokens`` over the tokens of one pass; None if the source is never repeated.
    """

    weight: float
    share: float
    rows_in_step: int
    rows: int
    tokens: int
    epoch: int
    epochs: float | None

    def figures(self) -> dict[str, float]:
        """What logs of a run have of it, by name; see the module's table."""
        figures: dict[str, float] = {
            "rows": self.rows,
            "tokens": self.tokens,
            "weight": self.weight,
        }
        if self.epochs is not None:
            figures["epochs"] = self.epochs
        return figures


@dataclass(frozen=True)
class LoaderStats:
    """A snapshot of a loader's counters; see the module's table.

    Attributes:
        sources: The sources of a mixture at ``step``, by name; empty for other datasets, and in
            records.
        stalls: The last stalls, oldest first; each prints as one line. The rest is in the table.
    """

    batches: int
    reads: ReadStats
    wait_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_max_s: float
    waiting_share: float
    queue_occupancy: float
    plan_s: float
    read_s: float
    gather_s: float
    map_s: float
    transfer_s: float
    resident_bytes: int
    batches_per_s: float = 0.0
    num_stalls: int = 0
    waiting_now_s: float = 0.0
    replayed_batches: int = 0
    hosts: int = 1
    host_wait_s: float = 0.0
    late_hosts: int = 0
    step: int = 0
    sources: Mapping[str, SourceAt] = field(default_factory=dict[str, SourceAt])
    stalls: tuple[Stall, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Flat dict of all counters by name, numbers only: without ``stalls`` and ``sources``."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NESTED}
        return {**flat, **self.reads.to_dict()}

    def figures_of_sources(self) -> dict[str, float]:
        """Flat dict of the figures of all sources: ``sources/NAME/rows`` and so on."""
        return {
            f"sources/{name}/{figure}": value
            for name, source in self.sources.items()
            for figure, value in source.figures().items()
        }

    def to_record(self) -> dict[str, Any]:
        """All fields but ``sources``, which follow from the plan, as JSON values, for
        :meth:`from_record`.
        """
        return asdict(replace(self, sources={}))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LoaderStats:
        """The inverse of :meth:`to_record`."""
        rebuilt: dict[str, Any] = dict(record)
        rebuilt["reads"] = ReadStats(**record["reads"])
        rebuilt["stalls"] = tuple(Stall(**stall) for stall in record["stalls"])
        return cls(**rebuilt)

    @classmethod
    def over_hosts(cls, by_host: Mapping[int, LoaderStats]) -> LoaderStats:
        """One snapshot for all hosts of a job.

        Counts of reads, bytes and stalls are summed. Waits, percentiles and seconds are those of
        the host with the largest values, because all hosts wait for the slowest. Shares are means,
        and the speed is that of the slowest host. Steps are the same everywhere, so the number of
        batches is the largest. ``stalls`` has the stalls of all hosts, by step.

        Args:
            by_host: Snapshots by the index of the process.
        """
        all_stats = list(by_host.values())
        stalls = [replace(stall, host=host) for host, s in by_host.items() for stall in s.stalls]
        stalls.sort(key=lambda stall: stall.step)
        combined: dict[str, Any] = {
            f.name: max(getattr(s, f.name) for s in all_stats)
            for f in fields(cls)
            if f.name not in _NESTED
        }
        combined["reads"] = sum((s.reads for s in all_stats), ReadStats())
        for name in ("resident_bytes", "num_stalls", "hosts"):
            combined[name] = sum(getattr(s, name) for s in all_stats)
        for name in ("waiting_share", "queue_occupancy"):
            combined[name] = sum(getattr(s, name) for s in all_stats) / len(all_stats)
        combined["batches_per_s"] = min(s.batches_per_s for s in all_stats)
        combined["stalls"] = tuple(stalls)
        return cls(**combined)


_NESTED = ("reads", "sources", "stalls")


class _Phase:
    """A timed ``with`` block, at less than half the cost of a generator; a loader needs several per
    batch.
    """

    __slots__ = ("_name", "_seconds", "_started")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds = seconds
        self._name = name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds[self._name] = (
            self._seconds.get(self._name, 0.0) + time.perf_counter() - self._started
        )


class Stopwatch:
    """Seconds spent in named phases.

    Example:
        >>> watch = Stopwatch()
        >>> with watch.phase("read"):
        ...     pass
        >>> watch.seconds("read") < 1
        True
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Adds the time spent in the ``with`` block to ``name``."""
        return _Phase(self._seconds, name)

    def seconds(self, name: str) -> float:
        """Seconds spent in ``name`` so far."""
        return self._seconds.get(name, 0.0)

    def absorb(self, other: Stopwatch) -> None:
        """Adds the seconds of another stopwatch."""
        for name, seconds in list(other._seconds.items()):
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds


class IterationStats:
    """The counters of one iteration of a loader, each written by one thread; :meth:`absorb` adds up
    several iterations.

    Args:
        rule: Which waits are stalls.
        waits: The long waits of its thread, which explain stalls.
        replay: Whether its batches are replays; see ``DataLoader.headspace``.
        step: Its first step.
    """

    def __init__(
        self,
        rule: StallRule | None = None,
        waits: WaitLog | None = None,
        *,
        replay: bool = False,
        step: int = 0,
    ) -> None:
        self.reads = ReadStats()
        self.watch = Stopwatch()
        self.waits = waits or WaitLog()
        self.queue = QueueStats(rule, self.waits.explain)
        self.host_wait_s = 0.0
        self.late_hosts = 0
        self._replay = replay
        self._replayed = 0
        self._first_step = step
        self._step_of_latest: int | None = None  # of the iterations that were added

    @property
    def step(self) -> int:
        """The step after the last batch that the trainer got from the latest iteration."""
        if self._step_of_latest is not None:
            return self._step_of_latest
        return self._first_step + self.queue.gets

    def absorb(self, other: IterationStats) -> None:
        """Adds the counters of another iteration."""
        self.reads += other.reads
        self.watch.absorb(other.watch)
        self.queue.absorb(other.queue)
        self.host_wait_s += other.host_wait_s
        self.late_hosts += other.late_hosts
        self._replayed += other.queue.gets if other._replay else other._replayed
        if not other._replay:
            self._step_of_latest = other.step

    def snapshot(self, over_http: ReadStats, resident_bytes: int) -> LoaderStats:
        """The counters as they are now.

        Args:
            over_http: Counters of requests, retries and hedges.
            resident_bytes: Bytes of blocks in memory.
        """
        queue = self.queue
        seconds = self.watch.seconds
        return LoaderStats(
            batches=queue.gets,
            reads=self.reads + over_http,
            wait_s=queue.total_wait_s,
            wait_p50_s=queue.percentile(50),
            wait_p95_s=queue.percentile(95),
            wait_p99_s=queue.percentile(99),
            wait_max_s=queue.longest_wait_s,
            waiting_share=queue.waiting_share,
            queue_occupancy=queue.occupancy,
            plan_s=seconds("plan"),
            read_s=seconds("read"),
            gather_s=seconds("gather"),
            map_s=seconds("map"),
            transfer_s=seconds("transfer"),
            resident_bytes=resident_bytes,
            batches_per_s=queue.per_second,
            num_stalls=queue.num_stalls,
            waiting_now_s=queue.waiting_now_s,
            replayed_batches=self._replayed,
            host_wait_s=self.host_wait_s,
            late_hosts=self.late_hosts,
            step=self.step,
            stalls=queue.stalls,
        )
