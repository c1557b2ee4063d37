"""Counters and timers of reading and loading, with their units and what high and low mean.

===========================  =======  ==========================================================================
name                         unit     meaning
===========================  =======  ==========================================================================
examples_requested           count    rows that batches asked for on this host
unique_examples              count    distinct rows among them, batch by batch; lower means repeats within a batch
coalesced_ranges             count    runs of neighbouring rows, batch by batch; near examples_requested: no locality
block_fetches                count    stored blocks read or mapped because they were not in memory
block_hits                   count    uses of a block that was in memory already
tensorstore_reads_issued     count    read calls to TensorStore (one a block, or one a range without a block cache)
bytes_read                   bytes    decoded bytes of those blocks and ranges, read or mapped
mapped_blocks                count    block_fetches copied from memory-mapped files (local, uncompressed) and not
                                      read through TensorStore; 0 there: see headrace.store.mapped
bytes_delivered              bytes    bytes of the rows that batches got
requests                     count    requests to stores over HTTP, of this process since the loader was made, with the
                                      two below; near block_fetches: one a block; 0: all is local
retries                      count    requests sent again after a failure; near 0, or the store throttles or breaks
hedges                       count    second requests for late answers; high: the store has a long tail
reads_per_example            ratio    (tensorstore_reads_issued + mapped_blocks) / examples_requested; 1: random access
read_amplification           ratio    bytes_read / bytes_delivered; 1, or below if all stays in memory; high: blocks
                                      leave memory before they are used up, or hosts share them
cache_hit_rate               ratio    block_hits / (block_hits + block_fetches); near 1: each block serves many rows
queue_occupancy              ratio    ready batches / room for them when the trainer asks; near 1: the loader is ahead,
                                      near 0: the trainer waits
wait_s (p50, p95, p99, max)  seconds  how long the trainer waited for a batch
waiting_share                ratio    time waited / time from the first batch to the last; above 0.02 the data holds up
                                      training
batches_per_s                1/s      batches / that time: the speed of training
num_stalls                   count    waits far above the usual (StallRule); ``stalls`` has the last, with their causes
waiting_now_s                seconds  how long the trainer has waited for the batch that is not there yet; 0: it has one
replayed_batches             count    batches of headspace runs; if not 0, the other figures are of these runs too
resident_bytes               bytes    stored blocks in memory or in flight; at most prefetch_bytes an iteration
hosts                        count    processes that the figures are of; see LoaderStats.over_hosts
plan_s, read_s, gather_s,    seconds  index maps (in a thread of their own); where the loader's own thread spent its
transfer_s                            time: waiting for the store, for rows to be gathered, handing them to the devices
===========================  =======  ==========================================================================
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.errors import ConfigError

_KEPT_WAITS = 10_000
_LOG = logging.getLogger(__name__)


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

    @property
    def reads_per_example(self) -> float:
        return (self.tensorstore_reads_issued + self.mapped_blocks) / max(self.examples_requested, 1)

    @property
    def cache_hit_rate(self) -> float:
        return self.block_hits / max(self.block_hits + self.block_fetches, 1)

    @property
    def read_amplification(self) -> float:
        return self.bytes_read / max(self.bytes_delivered, 1)

    def __add__(self, other: ReadStats) -> ReadStats:
        return ReadStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(ReadStats)))

    def __sub__(self, other: ReadStats) -> ReadStats:
        return ReadStats(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(ReadStats)))

    def to_json(self) -> dict[str, float]:
        """All counters and ratios by name."""
        ratios = ("reads_per_example", "cache_hit_rate", "read_amplification")
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}


Cause: TypeAlias = Literal[
    "start", "store", "decode", "check", "budget", "plan", "gather", "transfer", "dataset", "trainer ahead"
]
"""What a stall is put down to; docs/metrics.md says what each means and what helps."""


@dataclass(frozen=True)
class Stall:
    """A wait of the trainer far above the usual.

    Attributes:
        step: The step whose batch was waited for.
        wait_s: How long, in seconds.
        cause: What took most of that time.
        array: The stored array that was waited for, if one was.
        block: Chunk of that array.
        detail: The time by causes, and what is known of the longest.
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
        return f"step {self.step}{on} waited {self.wait_s * 1000:.0f} ms: {self.cause}{where}{detail}"


@dataclass(frozen=True)
class StallRule:
    """Which waits are stalls: those above both bounds.

    Attributes:
        least_s: Seconds.
        times_median: Multiple of the median of the last 10,000 waits. 0: only ``least_s`` counts.
        kept: How many are kept, the last ones.
        say_after_s: A wait that lasts longer is said in the log (logger ``headrace.metrics``) while it lasts, then each
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
            if getattr(self, name) < 0:
                raise ConfigError("must not be negative", field=f"stall_rule.{name}", value=getattr(self, name))
        if self.say_after_s <= 0:
            raise ConfigError("must be above 0", field="stall_rule.say_after_s", value=self.say_after_s)


@dataclass(frozen=True)
class LoaderStats:
    """A snapshot of a loader's counters; see the module's table.

    Attributes:
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
    transfer_s: float
    resident_bytes: int
    batches_per_s: float = 0.0
    num_stalls: int = 0
    waiting_now_s: float = 0.0
    replayed_batches: int = 0
    hosts: int = 1
    stalls: tuple[Stall, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Flat dict of all counters by name, numbers only: without ``stalls``."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("reads", "stalls")}
        return {**flat, **self.reads.to_json()}

    def to_record(self) -> dict[str, Any]:
        """All of it as JSON values, for :meth:`from_record`."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LoaderStats:
        """What :meth:`to_record` gave."""
        rebuilt: dict[str, Any] = dict(record)
        rebuilt["reads"] = ReadStats(**record["reads"])
        rebuilt["stalls"] = tuple(Stall(**stall) for stall in record["stalls"])
        return cls(**rebuilt)

    @classmethod
    def over_hosts(cls, by_host: Mapping[int, LoaderStats]) -> LoaderStats:
        """One snapshot for all hosts of a job.

        Counts of reads, bytes and stalls are summed; waits, percentiles and seconds are those of the host that has the
        most, since all wait for the slowest; shares are means; the speed is that of the slowest. Steps are the same on
        all: the number of batches is the largest. ``stalls`` has those of all hosts, by step.

        Args:
            by_host: Of each, by the index of its process.
        """
        all_stats = list(by_host.values())
        stalls = [replace(stall, host=host) for host, s in by_host.items() for stall in s.stalls]
        stalls.sort(key=lambda stall: stall.step)
        combined: dict[str, Any] = {
            f.name: max(getattr(s, f.name) for s in all_stats) for f in fields(cls) if f.name not in ("reads", "stalls")
        }
        combined["reads"] = sum((s.reads for s in all_stats), ReadStats())
        for name in ("resident_bytes", "num_stalls", "hosts"):
            combined[name] = sum(getattr(s, name) for s in all_stats)
        for name in ("waiting_share", "queue_occupancy"):
            combined[name] = sum(getattr(s, name) for s in all_stats) / len(all_stats)
        combined["batches_per_s"] = min(s.batches_per_s for s in all_stats)
        combined["stalls"] = tuple(stalls)
        return cls(**combined)


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

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time spent in the ``with`` block to ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def seconds(self, name: str) -> float:
        """Seconds spent in ``name`` so far."""
        return self._seconds.get(name, 0.0)

    def absorb(self, other: Stopwatch) -> None:
        """Adds the seconds of another one."""
        for name, seconds in list(other._seconds.items()):
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds


class QueueStats:
    """What the consumer of a queue saw: how long it waited and how full the queue was.

    Args:
        rule: Which waits are stalls.
        explain: Makes a stall of the number of the batch, counted from 0, and the times at which the wait for it began
            and ended. None: stalls are not kept.
    """

    def __init__(
        self, rule: StallRule | None = None, explain: Callable[[int, float, float], Stall] | None = None
    ) -> None:
        self._rule, self._explain = rule or StallRule(), explain
        self._waits: deque[float] = deque(maxlen=_KEPT_WAITS)
        self._total_wait = 0.0
        self._occupancy = 0.0
        self._gets = 0
        self._after_first = 0
        self._longest = 0.0
        self._started: float | None = None
        self._span = 0.0
        self._stalls: deque[Stall] = deque(maxlen=self._rule.kept)
        self._num_stalls = 0
        self._waiting_since: float | None = None

    @property
    def say_after_s(self) -> float:
        """See :class:`StallRule`."""
        return self._rule.say_after_s

    @property
    def waiting_now_s(self) -> float:
        """Seconds since the consumer began to wait for what it does not have yet; 0 if it does not wait."""
        since = self._waiting_since
        return time.perf_counter() - since if since is not None else 0.0

    def begin(self) -> None:
        """The consumer asks for a batch."""
        self._waiting_since = time.perf_counter()

    def end(self) -> None:
        """The consumer has its batch, or an error."""
        self._waiting_since = None

    def say(self) -> None:
        """Says in the log what the consumer is waiting for."""
        since, now = self._waiting_since, time.perf_counter()
        if since is not None and self._explain is not None:
            _LOG.warning("still waiting: %s", self._explain(self._gets, since, now))

    def record(self, wait_s: float, occupancy: float) -> None:
        """One batch taken: seconds waited for it and how full the queue was, 0 to 1, when it was asked for.

        The very first batch (the cold start) counts as a wait; ``waiting_share`` starts after it.
        """
        now = time.perf_counter()
        rule = self._rule
        if wait_s > rule.least_s and self._explain is not None and wait_s > rule.times_median * self.percentile(50):
            self._stalls.append(self._explain(self._gets, now - wait_s, now))
            self._num_stalls += 1
        if self._started is None:
            self._started = now
        else:
            self._total_wait += wait_s
            self._span = now - self._started
            self._after_first += 1
        self._waits.append(wait_s)
        self._longest = max(self._longest, wait_s)
        self._occupancy += occupancy
        self._gets += 1

    def absorb(self, other: QueueStats) -> None:
        """Adds what another one saw. Percentiles are then over the last waits of both, its own counted as the later."""
        self._waits.extend(list(other._waits))
        self._stalls.extend(list(other._stalls))
        self._num_stalls += other._num_stalls
        self._total_wait += other._total_wait
        self._occupancy += other._occupancy
        self._gets += other._gets
        self._after_first += other._after_first
        self._longest = max(self._longest, other._longest)
        if other._waiting_since is not None and (self._waiting_since or math.inf) > other._waiting_since:
            self._waiting_since = other._waiting_since
        self._span += other._span

    @property
    def gets(self) -> int:
        return self._gets

    @property
    def occupancy(self) -> float:
        return self._occupancy / max(self._gets, 1)

    @property
    def total_wait_s(self) -> float:
        return self._total_wait

    @property
    def longest_wait_s(self) -> float:
        return self._longest

    @property
    def waiting_share(self) -> float:
        return min(self._total_wait / max(self._span, 1e-9), 1.0)

    @property
    def per_second(self) -> float:
        """Batches a second after the first."""
        return self._after_first / self._span if self._span else 0.0

    @property
    def num_stalls(self) -> int:
        return self._num_stalls

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The last stalls, oldest first."""
        return tuple(self._stalls)

    def percentile(self, q: float) -> float:
        """The q-th percentile of the last 10,000 waits, in seconds."""
        return float(np.percentile(np.fromiter(self._waits, float), q)) if self._waits else 0.0


class IterationStats:
    """What one iteration of a loader counts, each counter written by one thread; :meth:`absorb` sums several.

    Args:
        rule: Which waits are stalls.
        explain: See :class:`QueueStats`.
        replay: Whether its batches are replays; see ``DataLoader.headspace``.
    """

    def __init__(
        self,
        rule: StallRule | None = None,
        explain: Callable[[int, float, float], Stall] | None = None,
        *,
        replay: bool = False,
    ) -> None:
        self.reads = ReadStats()
        self.watch = Stopwatch()
        self.queue = QueueStats(rule, explain)
        self._replay = replay
        self._replayed = 0

    def absorb(self, other: IterationStats) -> None:
        """Adds the counters of another iteration."""
        self.reads += other.reads
        self.watch.absorb(other.watch)
        self.queue.absorb(other.queue)
        self._replayed += other.queue.gets if other._replay else other._replayed

    def snapshot(self, over_http: ReadStats, resident_bytes: int) -> LoaderStats:
        """The counters as they are now.

        Args:
            over_http: Requests, retries and hedges, which are counted elsewhere.
            resident_bytes: Bytes of blocks in memory.
        """
        queue, seconds = self.queue, self.watch.seconds
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
            transfer_s=seconds("transfer"),
            resident_bytes=resident_bytes,
            batches_per_s=queue.per_second,
            num_stalls=queue.num_stalls,
            waiting_now_s=queue.waiting_now_s,
            replayed_batches=self._replayed,
            stalls=queue.stalls,
        )
