"""The progress of a build: counters, rates, and a bar on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.metrics import Sums
from headrace.numbers import in_bytes, short
from headrace.store.retry import Wire


@dataclass(frozen=True)
class EncoderCounts(Sums):
    """Counters of a faster encoder, and of documents that it did not encode.

    Attributes:
        fast: Documents that it encoded; a piece of a long one counts as one.
        slow: Documents that ``tokenizers`` encoded because they have a code point on which the two
            differ.
        compared: Documents that both encoded.
        restarts: How often it was recreated because its caches had grown.
        differences: Documents for which the two gave different ids; their parts were built with
            ``tokenizers``.
    """

    fast: int = 0
    slow: int = 0
    compared: int = 0
    restarts: int = 0
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress(Sums):
    """What was processed since the last report, and its costs: counters of encoders, and requests
    over HTTP.
    """

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    stored_bytes: int = 0
    encoder: EncoderCounts = EncoderCounts()
    wire: Wire = field(default_factory=Wire)

    def __neg__(self) -> Progress:
        """The amount to add when work is lost; costs stay."""
        return Progress(-self.documents, -self.tokens, -self.text_bytes, -self.stored_bytes)


NO_PROGRESS = Progress()
Report: TypeAlias = Callable[[Progress], None]


@contextmanager
def show_progress(total: int, what: str, *, show: bool = True) -> Iterator[Report]:
    """A bar over ``total`` stored bytes on stderr, if that is a terminal, and the function that
    moves it.
    """
    from headrace import progress

    if not (show and sys.stderr.isatty()):
        yield lambda _: None
        return

    rates = Rates()
    with progress.bar() as bar:
        task = bar.add_task(what, total=total or None, rate="")

        def report(done: Progress) -> None:
            bar.update(task, advance=done.stored_bytes, rate=rates.add(done))

        yield report


class Rates:
    """Mean rates since the build began, as text.

    Example:
        >>> rates = Rates(clock=iter([0.0, 2.0]).__next__)
        >>> rates.add(
        ...     Progress(documents=10, tokens=3_000_000, text_bytes=12_000_000, stored_bytes=1)
        ... )
        '1.50 M tokens/s  5.72 MiB/s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._done = NO_PROGRESS

    def add(self, done: Progress) -> str:
        """Adds ``done`` and returns the rates."""
        self._done += done
        seconds = max(self._clock() - self._started, 1e-9)
        tokens = self._done.tokens / seconds
        text_bytes = self._done.text_bytes / seconds
        return f"{short(tokens)} tokens/s  {in_bytes(text_bytes)}/s"
