"""What the consumer of a queue waited for: how long, how often, and which of the waits were stalls.

Who explains a stall is up to the queue's maker (feed/diagnosis.py); docs/metrics.md says what each cause means.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from headrace.errors import ConfigError

_KEPT_WAITS = 10_000
_LOG = logging.getLogger(__name__)

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
