"""Buckets of documents: divides a source at index time, without rebuilding its cache, by a score,
by length, or by how often each document is to be seen.

Each document has a number: from a leaf of the cache with one value per document, from a ``.npy``
file, or its length. Edges or quantiles cut the numbers into buckets. A bucket's documents are a
component of the mixture over the same cache (:mod:`headrace.config.bucketed` makes them), so
weights, schedules, stages, amendments, splits, packing, provenance and reports need no special
case.

Documents that are to be seen several times, or less than once, per pass over the source form
**layers** instead: with levels 0 < l1 < l2 < ..., layer k has all documents that are to be seen l_k
times or more, and advances l_k - l_(k-1) times as fast as the source. A document of level l_k is in
the first k layers and is seen once per pass over each, so l_k times in all. The rates of all layers
sum to the highest level, which is how often its documents must be read anyway; separate buckets
would each read every block. A number between two levels is rounded to one of them by a hash of the
document, so that its expectation is the number.

Invariant: the bucket of a document depends only on its number, the config and, between levels,
(seed, document).

Price, measured for 1e8 documents by scripts/bench/bench_buckets.py: three buckets take 20 s of CPU
and 0.57 GB, 0.87 GB while datasets are made: 1 byte per document then, plus the price of runs of
left-out documents (:mod:`headrace.data.documents`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from headrace.data.document_numbers import DocumentNumbers
from headrace.data.documents import remove, remove_others, removed_by
from headrace.data.filter_files import RANGE_BITS
from headrace.data.saved_filters import RemovedDocuments
from headrace.errors import ConfigError
from headrace.order.intervals import Intervals
from headrace.order.seeds import derive, derive_keys
from headrace.store.cache import TokenCache

MOST_BUCKETS = 255
_CHUNK = 1 << 20  # documents per pass over the numbers


@dataclass(frozen=True)
class BucketsConfig:
    """The field ``buckets`` of a component; see the module.

    Attributes:
        by: Where the number of each document comes from: ``length`` (its tokens), an attribute, a
            leaf with one value per document, or a ``.npy`` file with one number per document, in
            the order of the cache (if it was written by ``headrace cache reshuffle``: in the order
            of its original).
        edges: Rising numbers between buckets: bucket k has ``edges[k-1] <= number < edges[k]``.
        quantiles: Instead, rising shares of the cache's documents: ``[0.5, 0.9]`` makes the lower
            half, what is above it, and the top tenth. Equal numbers stay together, in the higher
            bucket.
        levels: Instead: the number is how often a document is to be seen per pass over the source,
            and is rounded to one of these or to 0, up or down by a hash of the document.
        weights: Share of each bucket within the source, with the syntax of any weight, schedules
            included; default: the share that it holds (``{repeat: 1}``).
        repeats: Instead: how often the documents of each bucket are seen per pass over the source;
            0: never.
        names: Names of the buckets; default: 0, 1, ... A bucket is the component ``SOURCE/NAME``;
            of ``repeats`` and ``levels``, ``SOURCE/x2`` are the documents that are seen twice or
            more.
        keep: Numbers of the buckets to use, as one component: a filter by the number. With
            ``levels``, bucket 0 has the documents that are rounded to 0.
        seed: Seed of the rounding to levels.

    Raises:
        ConfigError: a value is invalid, or cannot be combined with another.

    Example:
        >>> BucketsConfig("quality", edges=[0.3, 0.7], weights=[1, 2, 4]).count
        3
    """

    by: str
    edges: list[float] | None = None
    quantiles: list[float] | None = None
    levels: list[float] | None = None
    weights: list[Any] | None = None
    repeats: list[float] | None = None
    names: list[str] | None = None
    keep: list[int] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        derive(self.seed)
        settings = [
            name for name in ("edges", "quantiles", "levels") if getattr(self, name) is not None
        ]
        if len(settings) != 1:
            problem = (
                "is given beside " + settings[0]
                if settings
                else "is missing, and so are quantiles and levels"
            )
            cure = "Give one of them, e.g. edges: [0.5]."
            raise ConfigError(problem, field=settings[1] if settings else "edges", cure=cure)
        least, most = {"edges": (-np.inf, np.inf), "quantiles": (0, 1), "levels": (0, np.inf)}[
            settings[0]
        ]
        _check_rising(settings[0], self.bounds, least, most)
        if self.count > MOST_BUCKETS:
            cure = f"Give at most {MOST_BUCKETS - 1}."
            raise ConfigError(
                f"make more than {MOST_BUCKETS} buckets",
                field=settings[0],
                value=self.count,
                cure=cure,
            )
        self._check_together()
        for name in ("weights", "repeats", "names"):
            values = getattr(self, name)
            if values is not None and len(values) != self.count:
                problem = (
                    f"must be {self.count}, one for each bucket ({settings[0]} make one more than"
                    " they are)"
                )
                raise ConfigError(
                    problem,
                    field=name,
                    value=len(values),
                    cure="Say one for each, from low to high.",
                )
        for value in self.repeats or ():
            if not 0 <= value < np.inf:
                raise ConfigError(
                    "must be numbers from 0 up",
                    field="repeats",
                    value=value,
                    cure="E.g. [0.5, 1, 2].",
                )
        if self.repeats is not None and not any(self.repeats):
            raise ConfigError(
                "leave nothing", field="repeats", value=self.repeats, cure="Give one above 0."
            )
        for name in self.names or ():
            if not name or "/" in name or (self.names or []).count(name) > 1:
                cure = "Give each a name of its own without '/', e.g. [low, high]."
                raise ConfigError(
                    "cannot be the name of a bucket", field="names", value=name, cure=cure
                )
        for number in self.keep or ():
            if not 0 <= number < self.count:
                raise ConfigError(
                    "is no bucket",
                    field="keep",
                    value=number,
                    cure=f"They count from 0 to {self.count - 1}.",
                )

    def _check_together(self) -> None:
        """Raises ConfigError if two fields contradict each other."""
        roads = [n for n in ("keep", "repeats", "weights") if getattr(self, n) is not None]
        if len(roads) > 1:
            raise ConfigError(
                f"does not go with {roads[1]}", field=roads[0], cure="Say one of them."
            )
        if self.keep == []:
            raise ConfigError("leaves no bucket", field="keep", cure="Name one, e.g. keep: [1].")
        for name in ("weights", "repeats", "names"):
            if self.levels is not None and getattr(self, name) is not None:
                cure = "Leave it out: levels say how often documents are seen."
                raise ConfigError(
                    "does not go with levels", field=name, value=getattr(self, name), cure=cure
                )

    @property
    def bounds(self) -> list[float]:
        """Edges, quantiles or levels, whichever are given."""
        return next((b for b in (self.edges, self.quantiles, self.levels) if b is not None), [])

    @property
    def count(self) -> int:
        """Number of buckets; with levels, 0 is one of them."""
        return len(self.bounds) + 1


def _check_rising(name: str, values: Sequence[float], least: float, most: float) -> None:
    bad = [
        v for v, previous in zip(values, [least, *values], strict=False) if not previous < v < most
    ]
    if not values or bad:
        span = {"edges": "", "quantiles": " between 0 and 1", "levels": " above 0"}[name]
        cure = {
            "edges": "E.g. [0.3, 0.7].",
            "quantiles": "E.g. [0.5, 0.9].",
            "levels": "E.g. [0.5, 1, 2].",
        }[name]
        raise ConfigError(
            f"must be rising numbers{span}",
            field=name,
            value=bad[0] if bad else [*values],
            cure=cure,
        )


def buckets_of(
    numbers: DocumentNumbers, config: BucketsConfig, path: str = "buckets"
) -> UInt8[np.ndarray, " n"]:
    """The bucket of each document, in the order of the cache.

    Args:
        numbers: The numbers of the documents of a cache.
        config: How to divide the documents.
        path: Its path in the config, for errors.

    Raises:
        ConfigError: there is no such leaf or file; it does not have one number per document; a
            number is not finite, or with levels negative or above the highest.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=6)
        >>> (
        ...     cache.lengths().tolist(),
        ...     buckets_of(DocumentNumbers(cache), BucketsConfig("length", edges=[40])).tolist(),
        ... )
        ([44, 33, 27, 14, 16, 3], [1, 0, 0, 0, 0, 0])
    """
    cache = numbers.cache
    chunks = numbers.chunks(config.by, f"{path}.by")
    bounds = np.asarray(config.bounds)
    if config.quantiles is not None:
        every = np.concatenate([np.zeros(0), *chunks])
        there = every[~cache.moved_away.mask(0, every.size)]
        bounds = np.quantile(there, bounds, method="inverted_cdf") if every.size else bounds
        chunks = iter([every])
    buckets = np.empty(cache.num_documents, np.uint8)
    at = 0
    for chunk in chunks:
        if (
            config.levels is None
        ):  # an edge that the column cannot hold means the nearest that it can
            edges = bounds.astype(chunk.dtype) if chunk.dtype.kind == "f" else bounds
            bucket = np.searchsorted(edges, chunk, side="right")
        else:
            bucket = _levels(chunk, cache.originals(np.arange(at, at + chunk.size)), config, path)
        buckets[at : at + chunk.size] = bucket
        at += chunk.size
    return buckets


def _levels(
    numbers: np.ndarray, documents: Int64[np.ndarray, " n"], config: BucketsConfig, path: str
) -> Int64[np.ndarray, " n"]:
    """The level of each document: those around its number, each as likely as it is near."""
    levels = np.asarray([0.0, *config.bounds])
    numbers = numbers.astype(np.float64)
    bad = np.flatnonzero((numbers < 0) | (numbers > levels[-1]))
    if bad.size:
        number = numbers[bad[0]]
        problem = f"says {number:g} of document {documents[bad[0]]:,}, which is "
        problem += "below 0" if number < 0 else f"above the highest level, {levels[-1]:g}"
        cure = (
            "Give numbers from 0 up."
            if number < 0
            else f"Add a level: levels: {[*config.bounds, float(number)]}."
        )
        raise ConfigError(problem, field=f"{path}.by", value=config.by, cure=cure)
    below = np.minimum(np.searchsorted(levels, numbers, side="right") - 1, levels.size - 2)
    share = (numbers - levels[below]) / (levels[below + 1] - levels[below])
    drawn = (derive_keys(config.seed, "bucket", last=documents) >> np.uint64(11)) * 2.0**-53
    return below + (drawn < share)


def without_others(
    numbers: Mapping[str, DocumentNumbers],
    buckets: Mapping[str, BucketsConfig],
    removed: Mapping[str, RemovedDocuments | None],
    of_pairs: Collection[str] = (),
) -> dict[str, RemovedDocuments | None]:
    """What is left out of each component: ``removed``, and the documents of buckets that it does
    not keep. Components ``of_pairs`` are those with preference pairs, which no bucket may part.

    Components over one cache that are divided in the same way read its numbers once.

    Raises:
        ConfigError: as :func:`buckets_of`; a bucket without documents.
    """
    left_out = dict(removed)
    divided: list[tuple[DocumentNumbers, BucketsConfig, _Divided]] = []
    for name, config in buckets.items():
        cache = numbers[name].cache
        path = f"components.{name}.buckets"
        rule = BucketsConfig(
            config.by, config.edges, config.quantiles, config.levels, seed=config.seed
        )
        same = (d for n, r, d in divided if n.same_as(numbers[name]) and r == rule)
        documents = next(same, None)
        if documents is None:
            bucket = buckets_of(numbers[name], rule, path)
            _fill(bucket, cache.moved_away)
            documents = _Divided.of(bucket, config.count)
            divided.append((numbers[name], rule, documents))
        if name in of_pairs:
            _refuse_parted_buckets(cache, documents.bucket, path, config.by)
        is_kept = np.isin(np.arange(MOST_BUCKETS + 1), config.keep or [])
        sizes = documents.sizes
        if not sum(size for size, keep in zip(sizes, is_kept.tolist(), strict=False) if keep):
            problem = f"leaves no document: the buckets of {cache.path} by {config.by} hold {sizes}"
            cure = "Leave out the edge, quantile or level that no document reaches."
            raise ConfigError(problem, field=f"{path}.keep", value=config.keep, cure=cure)
        filtered = left_out[name]
        others = documents.others(is_kept)
        if filtered is None and others is not None:
            left_out[name] = remove(cache, _with_moved(others, cache))
            continue
        filtered = filtered or removed_by(None, cache)
        is_other = partial(_is_other, is_kept, documents.bucket)
        left_out[name] = remove_others(cache, filtered, is_other, others)
    return left_out


def _fill(bucket: UInt8[np.ndarray, " n"], positions: Intervals) -> None:
    """Gives positions without a document the bucket of the one before: no border lies there."""
    of_range = bucket[np.maximum(positions.start, 1) - 1]
    numbers = positions.numbers(np.arange(positions.total))
    bucket[numbers] = np.repeat(of_range, positions.stop - positions.start)


def _with_moved(others: Intervals, cache: TokenCache) -> Intervals:
    """What a bucket leaves out: few ranges, and between them the places whose documents moved."""
    own_ranges = others.complement(cache.num_documents)
    moved = [others]
    for first, stop in zip(own_ranges.start.tolist(), own_ranges.stop.tolist(), strict=True):
        inside = cache.moved_away.within(first, stop)
        moved.append(Intervals(inside.start + first, inside.stop + first))
    return Intervals.union(moved)


@dataclass(frozen=True, eq=False)
class _Divided:
    """The documents of a cache, divided into buckets.

    ``border`` is where a document follows one of another bucket, if that is seldom, as in a store
    in groups: two hundred buckets are then found in one pass. None: it is often.
    """

    bucket: UInt8[np.ndarray, " n"]
    sizes: list[int]
    border: Int64[np.ndarray, " runs"] | None

    @classmethod
    def of(cls, bucket: UInt8[np.ndarray, " n"], count: int) -> _Divided:
        is_border = bucket[1:] != bucket[:-1]
        is_seldom = np.count_nonzero(is_border) * RANGE_BITS < bucket.size
        border = np.append(0, np.flatnonzero(is_border) + 1) if is_seldom and bucket.size else None
        return cls(bucket, _sizes(bucket, count), border)

    def others(self, is_kept: Bool[np.ndarray, " b"]) -> Intervals | None:
        """The documents of buckets that are not kept, if they lie in few ranges."""
        if self.border is None:
            return None
        is_other = ~is_kept[self.bucket[self.border]]
        stop = np.append(self.border[1:], self.bucket.size)
        return Intervals(self.border[is_other], stop[is_other])


def _is_other(
    kept: Bool[np.ndarray, " b"], of_document: UInt8[np.ndarray, " n"], first: int, stop: int
) -> np.ndarray:
    """Whether documents are in buckets that are not kept."""
    return ~kept[of_document[first:stop]]


def _sizes(of_document: UInt8[np.ndarray, " n"], buckets: int) -> list[int]:
    """Documents of each bucket."""
    chunks = (of_document[at : at + _CHUNK] for at in range(0, of_document.size, _CHUNK))
    return sum(
        (np.bincount(some, minlength=buckets) for some in chunks), np.zeros(buckets, np.int64)
    ).tolist()


def expected_repeats(config: BucketsConfig) -> Float64[np.ndarray, " buckets"]:
    """How often documents of each bucket are seen per pass over the source, with ``repeats`` or
    ``levels``.

    Example:
        >>> expected_repeats(BucketsConfig("copies", levels=[0.5, 2])).tolist()
        [0.0, 0.5, 2.0]
    """
    return np.asarray(
        [0.0, *config.levels] if config.levels is not None else config.repeats, np.float64
    )


def _refuse_parted_buckets(
    cache: TokenCache, of_document: UInt8[np.ndarray, " n"], path: str, by: str
) -> None:
    """Raises ConfigError if the two answers of a pair lie in different buckets.

    Args:
        cache: A cache of pairs.
        of_document: The bucket of each document.
        path: Path of the buckets in the config.
        by: What divides the documents.
    """
    pairs = of_document[: of_document.size // 2 * 2].reshape(-1, 2)
    parted = int((pairs[:, 0] != pairs[:, 1]).sum())
    if parted:
        raise ConfigError(
            f"parts {parted:,} of {len(pairs):,} preference pairs of {cache.path}: their answers"
            " lie in different buckets",
            field=f"{path}.by",
            value=by,
            cure="Divide by a number that both answers of a pair have (a file: scores.npy). Or"
            " train on both answers as on text: pairs: false, beside buckets.",
        )
