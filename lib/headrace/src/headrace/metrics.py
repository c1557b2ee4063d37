"""What a loader measures of itself.

1. **Waits and stalls** (:class:`QueueStats`, :class:`WaitLog`): how long and how often the trainer
   waited for a batch, why, and which of these waits were stalls.
2. **Counters** (:class:`ReadStats`, :class:`LoaderStats`), with their units and what high and low
   mean: the table.
3. **Timers**, and all that one iteration of a loader counts (:class:`IterationStats`).

Every stall gets a cause (docs/metrics.md explains them). The loader's thread records each of its
own waits of at least :data:`LEAST_S`, with the reason. When the trainer has waited too long
(:class:`StallRule`), the recorded waits within that time are added up by reason, and the largest
sum names the stall. If long waits do not account for a stall, batches are simply requested faster
than they are made. The current wait counts too, so a stall can be explained while it lasts.

Price: 0.6 us for each block and for each other possible wait; about 0.5 ms for a stall.

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

import logging
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from headrace.errors import ConfigError, check_not_negative

__all__ = ["LoaderStats", "ReadStats", "SourceAt", "Stall", "StallRule"]

STATS_FOLDER = "stats"
"""Folder of a run in which a :class:`~headrace.feed.run_log.RunLog` writes counters."""
_KEPT_WAITS = 10_000
LEAST_S = 0.001
_KEPT_LONG_WAITS = 1000
_EXPLAINED = 0.5
"""Share of a stall that recorded waits must account for; otherwise no single cause is named."""
_LOG = logging.getLogger(__name__)

Cause: TypeAlias = Literal[
    "start",
    "store",
    "decode",
    "check",
    "budget",
    "plan",
    "gather",
    "transfer",
    "dataset",
    "hosts",
    "trainer ahead",
]
"""The causes of stalls; docs/metrics.md explains each and says what helps."""


@dataclass(frozen=True)
class Stall:
    """An unusually long wait of the trainer.

    Attributes:
        step: The step whose batch was waited for.
        wait_s: How long, in seconds.
        cause: What took most of that time.
        array: The stored array that was waited for, if one was.
        block: Chunk of that array.
        detail: The time by cause, and details of the longest wait.
        host: Process that waited.

    Example:
        >>> print(Stall(120, 0.84, "store", "gs://corpus/a", 17, "read took 840 ms"))
        step 120 waited 840 ms: store, chunk 17 of gs://corpus/a (read took 840 ms)
    """

    step: int
    wait_s: float
    cause: Cause
    array: str | None = None
    block: int | None = None
    detail: str = ""
    host: int = 0

    def __str__(self) -> str:
        on = f" on host {self.host}" if self.host else ""
        where = f", chunk {self.block} of {self.array}" if self.array is not None else ""
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"step {self.step}{on} waited {self.wait_s * 1000:.0f} ms: {self.cause}{where}{detail}"
        )


@dataclass(frozen=True)
class StallRule:
    """Defines which waits are stalls: those above both limits.

    Attributes:
        least_s: Seconds.
        times_median: Multiple of the median of the last 10,000 waits. 0: only ``least_s`` counts.
        kept: Number of stalls to keep, the latest ones.
        say_after_s: A longer wait is logged while it lasts (logger ``headrace.metrics``), then each
            time that it has doubled.

    Raises:
        ConfigError: a value is negative.
    """

    least_s: float = 0.05
    times_median: float = 5.0
    kept: int = 100
    say_after_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("least_s", "times_median", "kept"):
            check_not_negative(f"stall_rule.{name}", getattr(self, name))
        if self.say_after_s <= 0:
            raise ConfigError(
                "must be above 0", field="stall_rule.say_after_s", value=self.say_after_s
            )


class QueueStats:
    """What the consumer of a queue saw: how long it waited and how full the queue was.

    Args:
        rule: Which waits are stalls.
        explain: Makes a stall from the number of the batch, counted from 0, and the start and end
            of the wait for it. None: stalls are not kept.
    """

    def __init__(
        self,
        rule: StallRule | None = None,
        explain: Callable[[int, float, float], Stall] | None = None,
    ) -> None:
        self._rule = rule or StallRule()
        self._explain = explain
        self.say_after_s = self._rule.say_after_s
        self._waits: deque[float] = deque(maxlen=_KEPT_WAITS)
        self.total_wait_s = 0.0
        self._occupancy = 0.0
        self.gets = 0
        self._after_first = 0
        self.longest_wait_s = 0.0
        self._started: float | None = None
        self._span = 0.0
        self._stalls: deque[Stall] = deque(maxlen=self._rule.kept)
        self.num_stalls = 0
        self._waiting_since: float | None = None

    @property
    def waiting_now_s(self) -> float:
        """Seconds that the consumer has been waiting; 0 if it is not waiting."""
        since = self._waiting_since
        return time.perf_counter() - since if since is not None else 0.0

    def begin(self) -> None:
        """Call when the consumer requests a batch."""
        self._waiting_since = time.perf_counter()

    def end(self) -> None:
        """Call when the consumer has its batch, or an error."""
        self._waiting_since = None

    def explain_wait(self) -> Stall | None:
        """What the consumer is waiting for; None if it is not waiting. Can be called from any
        thread.
        """
        since = self._waiting_since
        now = time.perf_counter()
        return (
            None if since is None or self._explain is None else self._explain(self.gets, since, now)
        )

    def say(self) -> None:
        """Logs what the consumer is waiting for."""
        if (stall := self.explain_wait()) is not None:
            _LOG.warning("still waiting: %s", stall)

    def record(self, wait_s: float, occupancy: float) -> None:
        """Records one batch: the seconds waited for it, and how full the queue was (0 to 1) when it
        was requested.

        The very first batch (the cold start) counts as a wait; ``waiting_share`` starts after it.
        """
        now = time.perf_counter()
        rule = self._rule
        if (
            wait_s > rule.least_s
            and self._explain is not None
            and wait_s > rule.times_median * self.percentile(50)
        ):
            self._stalls.append(self._explain(self.gets, now - wait_s, now))
            self.num_stalls += 1
        if self._started is None:
            self._started = now
        else:
            self.total_wait_s += wait_s
            self._span = now - self._started
            self._after_first += 1
        self._waits.append(wait_s)
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        self._occupancy += occupancy
        self.gets += 1

    def absorb(self, other: QueueStats) -> None:
        """Adds the later waits of another instance. Percentiles then cover the last
        waits of both.
        """
        self._waits.extend(list(other._waits))
        self._stalls.extend(list(other._stalls))
        self.num_stalls += other.num_stalls
        self.total_wait_s += other.total_wait_s
        self._occupancy += other._occupancy
        self.gets += other.gets
        self._after_first += other._after_first
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        if (
            other._waiting_since is not None
            and (self._waiting_since or math.inf) > other._waiting_since
        ):
            self._waiting_since = other._waiting_since
        self._span += other._span

    @property
    def occupancy(self) -> float:
        return self._occupancy / max(self.gets, 1)

    @property
    def waiting_share(self) -> float:
        return min(self.total_wait_s / max(self._span, 1e-9), 1.0)

    @property
    def per_second(self) -> float:
        """Batches per second, not counting the first."""
        return self._after_first / self._span if self._span else 0.0

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The last stalls, oldest first."""
        return tuple(self._stalls)

    def percentile(self, q: float) -> float:
        """The q-th percentile of the last 10,000 waits, in seconds."""
        return float(np.percentile(np.fromiter(self._waits, float), q)) if self._waits else 0.0


class Wait(NamedTuple):
    """A wait of the loader's thread.

    Attributes:
        cause: What for.
        began: When it began, as ``time.perf_counter`` counts.
        ended: When it ended.
        array: The stored array that was waited for, if any.
        block: Chunk of that array.
        detail: Further information.
    """

    cause: Cause
    began: float
    ended: float
    array: str | None = None
    block: int | None = None
    detail: str = ""


class WaitLog:
    """What one iteration's thread spends its time on, and its last long waits; any thread may ask
    :meth:`explain`.

    Args:
        first_step: The iteration's first step.

    Attributes:
        seconds: Seconds spent in each phase.
        under_way: Returns the wait that is in progress at a time; set by the thread that waits.

    Example:
        >>> log = WaitLog(first_step=7)
        >>> log.add(Wait("gather", 10.0, 10.02))
        >>> log.add(Wait("store", 10.02, 10.5, "gs://corpus/a", 3, "read took 700 ms"))
        >>> print(log.explain(5, began=10.0, ended=10.52))
        step 12 waited 520 ms: store, chunk 3 of gs://corpus/a
        (store 480 ms, gather 20 ms; read took 700 ms)
    """

    def __init__(self, first_step: int = 0) -> None:
        self._first_step = first_step
        self._waits: deque[Wait] = deque(maxlen=_KEPT_LONG_WAITS)
        self.seconds: dict[str, float] = {}
        self.under_way: Callable[[float], Wait] | None = None

    def add(self, wait: Wait) -> None:
        """Records a wait."""
        self._waits.append(wait)

    def during(
        self, cause: Cause | None, detail: str = "", *, phase: str = ""
    ) -> AbstractContextManager[None]:
        """Adds the time spent in the ``with`` block to a phase, and records it as a wait, if it is
        long.

        Args:
            cause: What is waited for; None: it is no wait, or who waits in it records that.
            detail: Further information on the wait.
            phase: The phase, if it is not named like the cause.
        """
        return _During(self, cause, detail, phase or str(cause))

    def explain(self, number: int, began: float, ended: float) -> Stall:
        """The stall of batch ``number`` of the iteration, waited for from ``began``
        to ``ended``.
        """
        seconds: dict[Cause, float] = {}
        longest: dict[Cause, tuple[float, Wait]] = {}
        under_way = self.under_way
        waits = (
            [*list(self._waits), under_way(ended)] if under_way is not None else list(self._waits)
        )
        for wait in waits:
            overlap = min(wait.ended, ended) - max(wait.began, began)
            if overlap > 0:
                seconds[wait.cause] = seconds.get(wait.cause, 0.0) + overlap
                if overlap > longest.get(wait.cause, (0.0, wait))[0]:
                    longest[wait.cause] = overlap, wait
        causes = sorted(seconds, key=lambda cause: -seconds[cause])
        parts = ", ".join(f"{cause} {seconds[cause] * 1000:.0f} ms" for cause in causes)
        step = self._first_step + number
        wait_s = ended - began
        if not causes or sum(seconds.values()) < _EXPLAINED * wait_s:
            return Stall(step, wait_s, "trainer ahead" if number else "start", detail=parts)
        worst = longest[causes[0]][1]
        detail = f"{parts}; {worst.detail}" if worst.detail else parts
        return Stall(
            step, wait_s, causes[0] if number else "start", worst.array, worst.block, detail
        )


class _During(AbstractContextManager[None]):  # a generator would cost three times as much
    __slots__ = ("_began", "_cause", "_detail", "_log", "_phase")

    def __init__(self, log: WaitLog, cause: Cause | None, detail: str, phase: str) -> None:
        self._cause: Cause | None = cause
        self._log = log
        self._detail = detail
        self._phase = phase

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        if self._cause is not None:
            self._log.under_way = partial(self._until, self._cause)

    def __exit__(self, *exc_info: object) -> None:
        ended = time.perf_counter()
        seconds = self._log.seconds
        seconds[self._phase] = seconds.get(self._phase, 0.0) + ended - self._began
        if self._cause is not None:
            self._log.under_way = None
            if ended - self._began >= LEAST_S:
                self._log.add(self._until(self._cause, ended))

    def _until(self, cause: Cause, ended: float) -> Wait:
        return Wait(cause, self._began, ended, detail=self._detail)


class Sums:
    """Counts of a dataclass, which are added field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(operator.sub, vars(self).values(), vars(other).values()))


@dataclass
class ReadStats(Sums):
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
_PHASES = ("plan", "read", "gather", "map", "transfer")


class IterationStats:
    """The counters of one iteration of a loader, each written by one thread; :meth:`absorb` adds up
    several iterations.

    Args:
        rule: Which waits are stalls.
        waits: Times and long waits of its thread, which explain stalls.
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
        seconds = self.waits.seconds
        for phase, spent in list(other.waits.seconds.items()):
            seconds[phase] = seconds.get(phase, 0.0) + spent
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
        spent = self.waits.seconds
        seconds: dict[str, Any] = {f"{phase}_s": spent.get(phase, 0.0) for phase in _PHASES}
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
            **seconds,
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
