"""Counters and timers of reading and loading, with their units and what high and low mean.

===========================  =======  ==========================================================================
name                         unit     meaning
===========================  =======  ==========================================================================
examples_requested           count    rows that batches asked for on this host
unique_examples              count    distinct rows among them, batch by batch; lower means repeats within a batch
coalesced_ranges             count    runs of neighbouring rows, batch by batch; near examples_requested: no locality
block_fetches                count    stored blocks read because they were not in memory
block_hits                   count    uses of a block that was in memory already
tensorstore_reads_issued     count    read calls to TensorStore (one a block, or one a range without a block cache)
bytes_read                   bytes    decoded bytes of those reads
reads_per_example            ratio    tensorstore_reads_issued / examples_requested; 1 is random access
cache_hit_rate               ratio    block_hits / (block_hits + block_fetches); near 1: each block serves many rows
queue_occupancy              ratio    ready batches / room for them when the trainer asks; near 1: the loader is ahead,
                                      near 0: the trainer waits
wait_s (p50, p95, p99, max)  seconds  how long the trainer waited for a batch
waiting_share                ratio    time waited / time since the first batch; above 0.02 the data holds up training
plan_s, read_s, gather_s,    seconds  where the loader's own thread spent its time: index maps, waiting for the store,
transfer_s                            assembling rows, handing them to the devices
===========================  =======  ==========================================================================
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

_KEPT_WAITS = 10_000


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

    @property
    def reads_per_example(self) -> float:
        return self.tensorstore_reads_issued / max(self.examples_requested, 1)

    @property
    def cache_hit_rate(self) -> float:
        return self.block_hits / max(self.block_hits + self.block_fetches, 1)

    def __add__(self, other: ReadStats) -> ReadStats:
        return ReadStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(ReadStats)))

    def __sub__(self, other: ReadStats) -> ReadStats:
        return ReadStats(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(ReadStats)))

    def to_json(self) -> dict[str, float]:
        """All counters and ratios by name."""
        return {**asdict(self), "reads_per_example": self.reads_per_example, "cache_hit_rate": self.cache_hit_rate}


@dataclass(frozen=True)
class LoaderStats:
    """A snapshot of a loader's counters; see the module's table."""

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

    def to_json(self) -> dict[str, Any]:
        """Flat dict of all counters by name."""
        flat = {k: v for k, v in asdict(self).items() if k != "reads"}
        return {**flat, **self.reads.to_json()}


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


class QueueStats:
    """What the consumer of a queue saw: how long it waited and how full the queue was."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=_KEPT_WAITS)
        self._total_wait = 0.0
        self._occupancy = 0.0
        self._gets = 0
        self._longest = 0.0
        self._started: float | None = None

    def record(self, wait_s: float, occupancy: float) -> None:
        """One batch taken: seconds waited for it and how full the queue was, 0 to 1, when it was asked for.

        The very first batch (the cold start) counts as a wait; ``waiting_share`` starts after it.
        """
        if self._started is None:
            self._started = time.perf_counter()
        else:
            self._total_wait += wait_s
        self._waits.append(wait_s)
        self._longest = max(self._longest, wait_s)
        self._occupancy += occupancy
        self._gets += 1

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
        if self._started is None:
            return 0.0
        return min(self._total_wait / max(time.perf_counter() - self._started, 1e-9), 1.0)

    def percentile(self, q: float) -> float:
        """The q-th percentile of the last 10,000 waits, in seconds."""
        return float(np.percentile(np.fromiter(self._waits, float), q)) if self._waits else 0.0
