"""What the loader was waiting for while the trainer waited for a batch: every stall gets a cause.

The loader's thread writes down each wait of its own of at least :data:`LEAST_S` with what it was for. When the trainer
has waited too long (:class:`~headrace.metrics.StallRule`), the waits that lie in that time are added up by cause, and
the largest gives the stall its name. Shorter waits are not written down: a stall that is not made of long ones means
that batches are simply asked for faster than they are made. The wait under way counts too, so that a stall can be
explained while it lasts.

Price: 0.6 us for each block, and for each other thing that the loader may wait for; a stall about 0.5 ms.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from headrace.stalls import Cause, Stall

LEAST_S = 0.001
_KEPT = 1000
_EXPLAINED = 0.5
"""Share of a stall that long waits must account for, or no single cause is named."""


class Wait(NamedTuple):
    """A wait of the loader's thread.

    Attributes:
        cause: What for.
        began: When it began, by ``time.perf_counter``,
        ended: and ended.
        array: The stored array that was waited for, if any.
        block: Chunk of that array.
        detail: What else is known.
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
        step 12 waited 520 ms: store, chunk 3 of gs://corpus/a (store 480 ms, gather 20 ms; read took 700 ms)
    """

    def __init__(self, first_step: int = 0) -> None:
        self._first_step = first_step
        self._waits: deque[Wait] = deque(maxlen=_KEPT)
        self.under_way: Callable[[float], Wait] | None = None
        """Gives, at a time, the wait that has not ended by then; set by the thread that waits."""

    def add(self, wait: Wait) -> None:
        """Writes down a wait."""
        self._waits.append(wait)

    def during(self, cause: Cause, detail: str = "") -> AbstractContextManager[None]:
        """Writes down the time spent in the ``with`` block, if it is long."""
        return _During(self, cause, detail)

    def explain(self, number: int, began: float, ended: float) -> Stall:
        """The stall of batch ``number`` of the iteration, waited for from ``began`` to ``ended``."""
        seconds: dict[Cause, float] = {}
        longest: dict[Cause, tuple[float, Wait]] = {}
        under_way = self.under_way
        waits = [*list(self._waits), under_way(ended)] if under_way is not None else list(self._waits)
        for wait in waits:
            within = min(wait.ended, ended) - max(wait.began, began)
            if within > 0:
                seconds[wait.cause] = seconds.get(wait.cause, 0.0) + within
                if within > longest.get(wait.cause, (0.0, wait))[0]:
                    longest[wait.cause] = within, wait
        causes = sorted(seconds, key=lambda cause: -seconds[cause])
        said = ", ".join(f"{cause} {seconds[cause] * 1000:.0f} ms" for cause in causes)
        step, wait_s = self._first_step + number, ended - began
        if sum(seconds.values()) < _EXPLAINED * wait_s:
            return Stall(step, wait_s, "trainer ahead" if number else "start", detail=said)
        worst = longest[causes[0]][1]
        detail = f"{said}; {worst.detail}" if worst.detail else said
        return Stall(step, wait_s, causes[0] if number else "start", worst.array, worst.block, detail)


class _During(AbstractContextManager[None]):  # a generator would cost three times as much
    __slots__ = ("_began", "_cause", "_detail", "_log")

    def __init__(self, log: WaitLog, cause: Cause, detail: str) -> None:
        self._cause: Cause = cause
        self._log, self._detail = log, detail

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
