"""``plan_packs`` and ``PackPlan``: packing as a pure function of document lengths, hence a dataset
of known length.

A plan is independent of the number of processes, the order of a run and the epoch: documents ascend
within a pack, and packs are ordered by their first document. Shuffling, mixing and resuming work on
packs as on any rows. ``aligned_plan`` makes the number of packs a multiple of the number of ranks,
for trainers that need it.

Invariant: every document is in exactly one pack (in pieces if it was cut) or counted in
``PackPlan.counts``. Price: under 1 us and 41 bytes per document (60 if some are split) for the
algorithms that sort: ``bfd``, ``wfd``, ``ffd`` and ``bfd_split``; for the others 0.2 us
(``next_fit``), 1 us (``wrap``) or 3 to 8 us (``windowed``; 0.2 to 0.3 compiled), and in chunks
(:mod:`headrace.pack.stream`) bounded memory. Measured: scripts/bench/bench_packing.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, IndexOutOfRangeError, check_at_least
from headrace.order.intervals import run_numbers
from headrace.pack.fit_decreasing import first_fit_decreasing, fit_decreasing, stable_order
from headrace.pack.items import (
    Items,
    LongPolicy,
    PackCounts,
    Packed,
    check_lengths,
    cut_documents,
    no_offsets,
)
from headrace.pack.spec import DEFAULT_BLOCK_TOKENS, Algorithm, PackSpec
from headrace.pack.stream import PackStream, drop_underfilled

_LOG = logging.getLogger(__name__)
TRUNCATE = "long: truncate"
_CHUNK = 1 << 14  # documents or items per chunk, where memory must stay bounded
_WINDOWED = 1 << 20  # documents whose windows are packed together


class PlanDigest:
    """The checksum of a plan, updated as packs arrive; independent of how they are chunked."""

    def __init__(self) -> None:
        self._digests = [hashlib.sha256() for _ in range(4)]

    def add(self, packed: Packed) -> None:
        """Adds the next packs."""
        for digest, values in zip(self._digests, (packed.item_counts, *packed.items), strict=True):
            digest.update(np.ascontiguousarray(values, "<i8").data)

    def hexdigest(self) -> str:
        """The checksum of all packs added."""
        return hashlib.sha256(b"".join(d.digest() for d in self._digests)).hexdigest()


@dataclass(frozen=True, eq=False)
class PackPlan:
    """Which documents share a pack.

    Pack k holds the items ``bounds[k] .. bounds[k + 1]``.

    Attributes:
        spec: How the plan was made.
        bounds: Where the items of each pack begin; one entry more than there are packs.
        items: Documents, or pieces of them.
        counts: What happened to all documents.
        start: First token of each item in the concatenation of all documents; None: not saved with
            the plan.

    When a large plan is read from disk, each vector is a
    :class:`~headrace.store.vectors.PiecedVector`.
    """

    spec: PackSpec
    bounds: Int64[np.ndarray, " p1"]
    items: Items
    counts: PackCounts
    start: Int64[np.ndarray, " m"] | None = None

    def __len__(self) -> int:
        return self.bounds.size - 1

    @property
    def raw_plan(self) -> list[list[int]]:
        """The documents of each pack as lists, for plans small enough to look at."""
        return [pack for packs in self._lists() for pack in packs]

    @property
    def lengths(self) -> Int64[np.ndarray, " p"]:
        """Tokens of each pack."""
        return (
            np.add.reduceat(self.items.size, self.bounds[:-1], dtype=np.int64)
            if len(self)
            else np.zeros(0, np.int64)
        )

    @property
    def fill(self) -> float:
        """Share of the rows of all packs that holds tokens."""
        return self.counts.packed_tokens / (len(self) * self.spec.row) if len(self) else 0.0

    @cached_property
    def max_items(self) -> int:
        """The most items in any pack."""
        return int(np.diff(self.bounds).max(initial=0))

    def of_packs(
        self, packs: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " n"]]:
        """Positions of the items of these packs, and the number of items of each. Pack numbers are
        not checked.
        """
        count = self.bounds[packs + 1] - self.bounds[packs]
        return run_numbers(self.bounds[packs], count), count

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of packs and items, as a hex digest: equal for equal plans."""
        digest = PlanDigest()
        for packed in self.chunks():
            digest.add(packed)
        return digest.hexdigest()

    def chunks(self) -> Iterator[Packed]:
        """Yields all packs in chunks of bounded memory."""
        for at in range(0, len(self), _CHUNK):
            bounds = self.bounds[at : at + _CHUNK + 1]
            yield Packed(self.items.at(slice(int(bounds[0]), int(bounds[-1]))), np.diff(bounds))

    def json_checksum(self) -> str:
        """SHA-256 of :attr:`raw_plan` as JSON without spaces, as CoordExp records it; 0.3 us an
        item.
        """
        return _json_digest(self._lists())

    def aligned_plan(self, world_size: int, drop_last: bool) -> AlignedPlan:
        """The packs that ``world_size`` ranks train on, equally many each, logged with their
        checksums.

        Args:
            world_size: Number of ranks.
            drop_last: Whether to drop the last packs, or to repeat the first ones, until all ranks
                have equally many.

        Raises:
            ConfigError: there are no packs, or ``drop_last`` would leave none.

        Example:
            >>> plan = plan_packs([4, 8, 1, 4, 2, 1, 9], 10)
            >>> plan.raw_plan
            [[0, 3, 5], [1, 4], [2, 6]]
            >>> (
            ...     plan.aligned_plan(2, drop_last=False).packs,
            ...     plan.aligned_plan(2, drop_last=True).packs,
            ... )
            (array([0, 1, 2, 0]), array([0, 1]))
        """
        aligned = AlignedPlan(self, world_size, drop_last)
        _LOG.info("aligned pack plan: %s", json.dumps(aligned.record()))
        return aligned

    def record(self) -> dict[str, Any]:
        """What to log and store about the plan, as JSON values."""
        return {
            "packs": len(self),
            "fill": round(self.fill, 6),
            "checksum": self.checksum,
            "spec": self.spec.describe(),
            "counts": {name: value for name, value in vars(self.counts).items() if value},
        }

    def _lists(self) -> Iterator[list[list[int]]]:
        for packed in self.chunks():
            documents = iter(packed.items.document.tolist())
            yield [list(islice(documents, count)) for count in packed.item_counts.tolist()]


@dataclass(frozen=True, eq=False)
class AlignedPlan:
    """The packs of a plan that several ranks train on; see :meth:`PackPlan.aligned_plan`."""

    raw: PackPlan  # the plan
    world_size: int  # number of ranks
    drop_last: bool  # whether packs are dropped rather than repeated

    def __post_init__(self) -> None:
        packs = len(self.raw)
        check_at_least("ranks", self.world_size, cure="Give the number of ranks.")
        if packs == 0:
            raise no_packs(self.raw.counts)
        if len(self) == 0:
            raise ConfigError(
                f"leaves nothing to train on: {packs} packs are fewer than {self.world_size} ranks",
                field="drop_last",
                value=True,
                cure="Use drop_last=False, which repeats packs, fewer ranks, or more data.",
            )

    def __len__(self) -> int:
        packs = len(self.raw)
        ranks = self.world_size
        return (packs // ranks if self.drop_last else -(-packs // ranks)) * ranks

    @property
    def packs(self) -> Int64[np.ndarray, " n"]:
        """Numbers of the packs, in order."""
        return np.arange(len(self)) % len(self.raw)

    @property
    def pad_needed(self) -> int:
        """Number of packs repeated to give all ranks equally many."""
        return max(len(self) - len(self.raw), 0)

    @property
    def repeated(self) -> list[int]:
        """Their numbers: from the first on, wrapping around if there are fewer packs than ranks."""
        return self.packs[len(self.raw) :].tolist()

    @property
    def dropped(self) -> int:
        """Packs at the end that no rank trains on."""
        return max(len(self.raw) - len(self), 0)

    @property
    def checksum(self) -> str:
        """Checksum of the packs that are trained on: the plan's own if nothing is dropped or
        repeated.
        """
        if len(self) == len(self.raw):
            return self.raw.checksum
        return hashlib.sha256(f"{self.raw.checksum}/{len(self)}".encode()).hexdigest()

    def json_checksum(self) -> str:
        """Like :meth:`PackPlan.json_checksum`, over the aligned packs."""
        plan = self.raw.raw_plan
        return _json_digest(iter([[plan[k] for k in self.packs.tolist()]]))

    def record(self) -> dict[str, Any]:
        """What to log about the aligned plan, as JSON values."""
        return {
            "N_raw_packs": len(self.raw),
            "N_aligned_packs": len(self),
            "world_size": self.world_size,
            "drop_last": self.drop_last,
            "pad_needed": self.pad_needed,
            "repeated": self.repeated,
            "dropped": self.dropped,
            "raw_checksum": self.raw.checksum,
            "aligned_checksum": self.checksum,
        }

    def of_rank(self, rank: int) -> Int64[np.ndarray, " n"]:
        """Packs of one rank: every ``world_size``-th; all ranks have equally many.

        Raises:
            IndexOutOfRangeError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise IndexOutOfRangeError(
                f"is not one of {self.world_size} ranks", field="rank", value=rank
            )
        return self.packs[rank :: self.world_size]


def plan_packs(
    lengths: object,
    capacity: int,
    algorithm: Algorithm = "bfd",
    long: LongPolicy | None = None,
    *,
    min_fill: float = 0.0,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    array_documents: object = None,
) -> PackPlan:
    """Decides which documents share a pack.

    Args:
        lengths: Tokens of each document, non-negative integers. Documents without tokens are in no
            pack.
        capacity: Tokens of a pack; see :class:`~headrace.pack.spec.PackSpec`, also for the
            arguments below. A document of exactly this length is not long.
        algorithm: ``bfd``, ``wfd``, ``ffd``, ``next_fit``, ``bfd_split``, ``wrap`` or ``windowed``.
        long: ``keep``, ``drop``, ``split``, ``truncate``, ``truncate_start`` or ``error``.
        min_fill: Share of the capacity.
        block_tokens: Of a stored block (``windowed``).
        array_documents: Documents in each of the arrays that they are stored in (``windowed``);
            None: one array.

    Returns:
        The plan.

    Raises:
        ConfigError: an argument is invalid, a document is too long under ``error``, or nothing is
            left to pack.

    Example:
        >>> plan = plan_packs([4, 8, 1, 4, 2, 1], 10)
        >>> plan.raw_plan, plan.fill
        ([[0, 2, 3, 5], [1, 4]], 1.0)
        >>> plan_packs([7, 25, 3], 10, long="split").raw_plan
        [[0, 2], [1], [1], [1]]
        >>> plan_packs([7, 25, 3], 10, long="drop").counts.dropped_tokens
        25
    """
    spec = PackSpec(capacity, algorithm, long, min_fill, block_tokens)
    return plan_of(spec, check_lengths(lengths), array_documents)


def plan_of(
    spec: PackSpec, lengths: Int64[np.ndarray, " n"], array_documents: object = None
) -> PackPlan:
    """:func:`plan_packs` for a spec and checked lengths."""
    if spec.in_order:
        stream = PackStream(spec, array_documents)
        added = _WINDOWED if spec.algorithm == "windowed" else _CHUNK
        parts = list(stream.plan(lengths[at : at + added] for at in range(0, lengths.size, added)))
        packed = Packed.join(parts)
        counts = stream.counts
    else:
        packed, counts = _sorted_packs(lengths, spec)
        packed, dropped = drop_underfilled(packed, spec)
        counts += dropped
    if packed.item_counts.size == 0:
        raise no_packs(counts, int(lengths.max(initial=0)))
    plan = PackPlan(
        spec, np.concatenate([[0], np.cumsum(packed.item_counts)]), packed.items, counts
    )
    _LOG.info(
        "pack plan: %s, %s packs, fill %.4f, %s",
        spec.algorithm,
        f"{len(plan):,}",
        plan.fill,
        counts,
    )
    return plan


def no_packs(counts: PackCounts, longest: int = 0) -> ConfigError:
    """The error of a plan without packs; ``longest``: tokens of the longest document."""
    problem = f"packing gives no packs: {counts or 'no documents'}"
    cures: list[str] = []
    if counts.dropped_documents:
        problem = f"{problem}; the longest document has {longest:,} tokens"
        cures += [f"rows of {longest} tokens (seq_len), which hold every document", TRUNCATE]
    if counts.underfilled_packs:
        cures += ["a smaller min_fill"]
    cure = f"Use {', or '.join(cures or ['documents with tokens'])}."
    return ConfigError(problem, field="lengths", cure=cure)


def _sorted_packs(lengths: np.ndarray, spec: PackSpec) -> tuple[Packed, PackCounts]:
    """Packs from an algorithm that sorts, ordered by their first items."""
    items, counts = cut_documents(lengths, spec.capacity, spec.policy, most=spec.row_tokens)
    if spec.algorithm == "ffd":
        bin_of = first_fit_decreasing(items.size, spec.capacity)
    else:
        bin_of = fit_decreasing(items.size, spec.capacity, worst=spec.algorithm == "wfd")
    opened = int(bin_of.max(initial=-1)) + 1
    first = np.zeros(opened, bin_of.dtype)
    # The last write wins.
    first[bin_of[::-1]] = np.arange(bin_of.size - 1, -1, -1, dtype=bin_of.dtype)
    rank = np.empty(opened, bin_of.dtype)
    rank[np.argsort(first)] = np.arange(opened)
    pack = rank[bin_of]
    del bin_of
    count = np.bincount(pack, minlength=opened)
    order = stable_order(pack)
    del pack
    document, offset, size = items
    del items
    document = document[order]  # one at a time, so that not all are in memory twice
    cut = counts.split_documents or spec.policy == "truncate_start"
    offset = offset[order] if cut else no_offsets(order.size)
    size = size[order]
    return Packed(Items(document, offset, size), count), counts


def _json_digest(chunks: Iterator[list[list[int]]]) -> str:
    digest = hashlib.sha256(b"[")
    between = ""
    for chunk in chunks:
        digest.update((between + json.dumps(chunk, separators=(",", ":"))[1:-1]).encode())
        between = ","
    digest.update(b"]")
    return digest.hexdigest()
