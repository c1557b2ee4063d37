"""The progress of a build: its counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.metrics import Sums
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
