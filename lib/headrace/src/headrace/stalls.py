"""Waits of the consumer of a queue: how long, how often, why, and which of them were stalls.

Every stall gets a cause (docs/metrics.md explains them). The loader's thread records each of its
own waits of at least :data:`LEAST_S`, with the reason. When the trainer has waited too long
(:class:`StallRule`), the recorded waits within that time are added up by reason, and the largest
sum names the stall. If long waits do not account for a stall, batches are simply requested faster
than they are made. The current wait counts too, so a stall can be explained while it lasts.

Price: 0.6 us for each block and for each other possible wait; about 0.5 ms for a stall.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from headrace.errors import ConfigError, check_not_negative

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
    """The last long waits of one iteration's thread; any thread may ask :meth:`explain`.

    Args:
        first_step: The iteration's first step.

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
        self.under_way: Callable[[float], Wait] | None = None
        """Returns the wait that is in progress at a time; set by the thread that waits."""

    def add(self, wait: Wait) -> None:
        """Records a wait."""
        self._waits.append(wait)

    def during(self, cause: Cause, detail: str = "") -> AbstractContextManager[None]:
        """Records the time spent in the ``with`` block, if it is long."""
        return _During(self, cause, detail)

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
    __slots__ = ("_began", "_cause", "_detail", "_log")

    def __init__(self, log: WaitLog, cause: Cause, detail: str) -> None:
        self._cause: Cause = cause
        self._log = log
        self._detail = detail

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self._log.under_way = self._until

    def __exit__(self, *exc_info: object) -> None:
        self._log.under_way = None
        ended = time.perf_counter()
        if ended - self._began >= LEAST_S:
            self._log.add(self._until(ended))

    def _until(self, ended: float) -> Wait:
        return Wait(self._cause, self._began, ended, detail=self._detail)
