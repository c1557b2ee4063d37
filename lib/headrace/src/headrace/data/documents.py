"""Filters: documents of a cache to leave out (duplicates, benchmark leaks), without rebuilding it.

A filter is a list of document numbers or a bitmap, as an array or as a file that another program
wrote. Numbers run over the whole cache, part after part, as in
:meth:`~headrace.store.cache.TokenCache.document`. For a cache that was shuffled when it was
written, they are numbers of the original, so one list works for both.

Price: only the offsets of the filtered documents are read (one read for each run of neighbouring
chunks of 16,384 offsets); 32 bytes of memory for each run of filtered documents, or if there are
many, 8 bytes plus a bit for each document. Unless it is small, the result is saved next to the
cache (:mod:`headrace.data.saved_filters`); the next start then reads only that and the filter's
file: 1.5 GB/s.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from headrace.data.filter_files import (
    RANGE_BITS,
    Listing,
    content_digest,
    is_large,
    listing_of,
    read_listing,
)
from headrace.data.saved_filters import ReadOnce, RemovedDocuments, removed_once
from headrace.errors import ConfigError, check_path
from headrace.order.bits import Bits, NumberSet
from headrace.order.intervals import Intervals, Removal, starts
from headrace.store.array import ArrayFuture
from headrace.store.cache import TokenCache
from headrace.store.layout import OFFSETS_CHUNK, TOKENS

_READS_IN_FLIGHT = 32
_RUN_CHUNKS = 16  # 2 MiB of offsets per read
_TELL_S = 2.0
_TELL_AGAIN_S = 10.0
_LOG = logging.getLogger(__name__)


def remove(
    cache: TokenCache, documents: NumberSet, listed: int = 0, repeated: int = 0, not_found: int = 0
) -> RemovedDocuments:
    """Computes what remains of a cache without some documents; see :class:`RemovedDocuments` for
    numbers of a list.

    Raises:
        ReadError: offsets cannot be read.
    """
    which = documents
    if isinstance(which, Intervals) and which.start.size * RANGE_BITS > cache.num_documents:
        which = Bits.of_masks(which.mask, cache.num_documents)
    tell_at = time.monotonic() + _TELL_S
    reads = 0

    def tokens() -> Iterator[Intervals]:
        nonlocal tell_at, reads
        for some in which.ranges():
            reads += np.unique(some.start // OFFSETS_CHUNK).size
            if some.start.size and time.monotonic() > tell_at:
                tell_at = time.monotonic() + _TELL_AGAIN_S
                share = int(some.start[0]) / cache.num_documents
                _LOG.warning(
                    "%s: looking up where %d documents lie: %.0f%%",
                    cache.path,
                    which.total,
                    100 * share,
                )
            yield token_ranges(cache, some)

    most = (
        which.start.size
        if isinstance(which, Intervals)
        else min(which.total, which.length // 2 + 1)
    )
    removal = Removal(cache.num_tokens, tokens(), most)
    return RemovedDocuments(
        which, removal if removal.ranges else None, listed, repeated, not_found, requests=reads
    )


def remove_others(
    cache: TokenCache,
    removed: RemovedDocuments,
    others: Callable[[int, int], Bool[np.ndarray, " n"]],
    ranges: Intervals | None = None,
) -> RemovedDocuments:
    """Leaves out further documents, in addition to those of a filter.

    Args:
        cache: The cache.
        removed: What is already left out.
        others: Returns which of the documents ``first .. stop`` to leave out.
        ranges: The same documents, if they lie in few ranges: nothing is asked of ``others`` then.
    """
    if ranges is not None and isinstance(removed.which, Intervals):
        which = Intervals.union([removed.which, ranges])
        return remove(cache, which, removed.listed, removed.repeated, removed.not_found)
    every = Bits.of_masks(
        lambda at, stop: others(at, stop) | removed.which.mask(at, stop), cache.num_documents
    )
    return remove(cache, every, removed.listed, removed.repeated, removed.not_found)


class DocumentFilter:
    """Documents to leave out of a dataset.

    Args:
        documents: Document numbers, in any order, repeats allowed (integer array or sequence); or a
            bitmap with one entry a document, true for those to leave out (boolean array).
        name: Its name in errors: the config field or the file.
        count_not_found: Whether numbers that no document has are counted
            (:attr:`RemovedDocuments.not_found`) instead of refused.
        content: Fingerprint of the cache of the numbers; another cache is refused. Empty: any
            cache.

    Raises:
        ConfigError: neither numbers nor a bitmap; a negative number.

    Example:
        >>> DocumentFilter([3, 1, 2, 2]).among(10)
        Intervals(1..4)
        >>> DocumentFilter(np.array([True, False, True])).among(3)
        Intervals(0..1, 2..3)
    """

    def __init__(
        self,
        documents: np.ndarray | Sequence[int] | Intervals,
        *,
        name: str = "removed",
        count_not_found: bool = False,
        content: str = "",
    ) -> None:
        self.name = name
        self._count_not_found = count_not_found
        self._large_file = ""
        self._listing = listing_of(documents, name, content)

    @classmethod
    def load(
        cls, url: str, *, name: str | None = None, count_not_found: bool = False
    ) -> DocumentFilter:
        """Reads a filter from a file: ``.npy`` (integers, or booleans for a bitmap), else text with
        one number a line. A line ``# cache: FINGERPRINT`` of the text names its cache; other lines
        with ``#`` are comments. Files of more than 16 MiB are read when their documents are needed.

        Raises:
            ConfigError: there is no such file, it cannot be read, or it is neither; names the line.
        """
        check_path(name or "file", url, "Give the path or URL of a file.")
        loaded = cls.__new__(cls)
        loaded.name = name or "file"
        loaded._count_not_found = count_not_found
        loaded._large_file = url if is_large(url) else ""
        if not loaded._large_file:
            loaded._listing = read_listing(url, loaded.name)
        return loaded

    @cached_property
    def _content(self) -> str:  # of a large file
        return content_digest(self._large_file, self.name)

    @cached_property
    def _listing(self) -> Listing:
        content = self._content
        listing = read_listing(self._large_file, self.name)
        if (
            content_digest(self._large_file, self.name) != content
        ):  # else this would be saved as what the other lists
            raise ConfigError(
                "changed after it was opened",
                field=self.name,
                value=self._large_file,
                cure="Start again.",
            )
        return listing

    @property
    def listed(self) -> int:
        """Number of listed documents, repeats included."""
        return self._listing.listed

    def of(self, cache: TokenCache, read_once: ReadOnce | None = None) -> RemovedDocuments:
        """What the filter removes from a cache, with counts; errors as in :meth:`among`. Loads the
        result saved with the cache, or saves it there unless it is small; ``read_once`` reads it
        for all processes of a job.

        Example:
            >>> import headrace.testing
            >>> cache = headrace.testing.tiny_cache(documents=20)
            >>> removed = DocumentFilter([3, 3, 4, 99], count_not_found=True).of(cache)
            >>> removed.num_documents, removed.listed, removed.repeated, removed.not_found
            (2, 4, 1, 1)
        """
        if cache.is_virtual or not (self._large_file or self._listing.is_long):
            return self._removed_from(cache)

        def made_from() -> dict[str, Any]:
            if self._large_file:
                return {"cache": cache.fingerprint, "file": self._content}
            documents = self._listing.documents.digest()
            content = {
                "documents": documents,
                "listed": self.listed,
                "bitmap": self._listing.bitmap_length,
            }
            return {"cache": cache.fingerprint, **content}

        removed = removed_once(cache, made_from, lambda: self._removed_from(cache), read_once)
        if removed.not_found and not self._count_not_found:
            self.of_numbers_in(cache)  # which names one
        return removed

    def _removed_from(self, cache: TokenCache) -> RemovedDocuments:
        listed = self._listing.listed
        documents = self._listing.documents
        stored = self._among(self._numbered_to(cache))
        not_found = documents.total - stored.total
        if cache.is_shuffled:
            stored = stored_documents(
                cache, stored if isinstance(stored, Intervals) else stored.intervals()
            )
            stored = Intervals.union([stored, cache.moved_away])
        return remove(cache, stored, listed, listed - documents.total, not_found)

    def of_numbers_in(self, cache: TokenCache) -> Intervals:
        """Numbers of documents of a cache; for a shuffled cache, numbers of its original.

        Raises:
            ConfigError: the filter names another cache; else as :meth:`among`.
        """
        return self.among(self._numbered_to(cache))

    def _numbered_to(self, cache: TokenCache) -> int:
        """How many documents of a cache the list was made for."""
        content = cache.original_fingerprint
        named = self._listing.cache
        if named not in (
            "",
            content,
            cache.members[0].original_fingerprint,
        ):  # numbers continue through what was appended
            raise ConfigError(
                f"is of another cache: it names {named}, and {cache.path} is {content}",
                field=self.name,
                cure="Make the list from this cache: numbers and bitmaps belong to one build.",
            )
        members = len(cache.snapshots[0].members)
        ends = np.cumsum([member.num_originals for member in cache.members[:members]])
        length = self._listing.bitmap_length
        if length is not None and length in ends.tolist():  # made before the others were appended
            return length
        return cache.num_originals

    def among(self, num_documents: int) -> Intervals:
        """The documents, as ranges of numbers below ``num_documents``; larger numbers are ignored
        if that is allowed.

        Raises:
            ConfigError: a number is too large, or the bitmap is of another length.
        """
        numbers = self._among(num_documents)
        return numbers if isinstance(numbers, Intervals) else numbers.intervals()

    def _among(self, num_documents: int) -> NumberSet:
        bitmap_length = self._listing.bitmap_length
        documents = self._listing.documents
        if bitmap_length not in (None, num_documents):
            raise ConfigError(
                f"is a bitmap of {bitmap_length:,} documents, but the cache has {num_documents:,}",
                field=self.name,
                cure="Make it from this cache: numbers and bitmaps belong to one build.",
            )
        end = (
            documents.length if isinstance(documents, Bits) else int(documents.stop.max(initial=0))
        )
        if end <= num_documents:
            return documents
        if self._count_not_found:
            return documents.below(num_documents)
        raise ConfigError(
            f"is not a document: the cache has {num_documents:,}",
            field=self.name,
            value=end - 1,
            cure="Documents count from 0. Make the list from this cache: numbers belong to one"
            " build."
            + (" Or let them pass, counted: remove_not_found: count." if "." in self.name else ""),
        )


def removed_by(listed: DocumentFilter | None, cache: TokenCache) -> RemovedDocuments:
    """What a filter removes from a cache; without one, only what moved to later members of it."""
    return remove(cache, cache.moved_away) if listed is None else listed.of(cache)


def stored_documents(cache: TokenCache, originals: Intervals) -> Intervals:
    """Positions of documents in a cache that may have been shuffled when it was written.

    Price: nothing for a plain cache; 0.2 us and 32 bytes for each document of a shuffled one.

    Example:
        >>> import headrace.testing
        >>> stored_documents(
        ...     headrace.testing.tiny_cache(documents=20), Intervals.of_numbers(np.array([3, 4]))
        ... )
        Intervals(3..5)
    """
    if not cache.is_shuffled:
        return originals
    return Intervals.of_numbers(cache.stored_at(originals.numbers(np.arange(originals.total))))


def places_in_use(cache: TokenCache) -> Intervals:
    """Positions of the documents of a cache: without those that were removed from it, and the
    places that documents left.

    Example:
        >>> import headrace.testing
        >>> places_in_use(headrace.testing.tiny_cache(documents=20))
        Intervals(0..20)
    """
    removed = stored_documents(cache, cache.removed())
    unused = Intervals.union([removed, cache.moved_away])
    return unused.complement(cache.num_documents)


def count_documents(cache: TokenCache, stored: NumberSet) -> int:
    """How many documents lie at stored positions: one that was cut counts once, and padding and
    places that documents left count as none.

    Price: nothing, but 20 ns for each piece of a cache whose documents were cut.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> count_documents(cache, Intervals.of_numbers(np.array([3, 4])))
        2
    """
    if cache.are_cut:
        return int(np.count_nonzero(cache.by_number(stored.mask(0, cache.num_documents))))
    if not cache.moved_away.total:
        return stored.total
    return sum(some.without(cache.moved_away).total for some in stored.ranges())


def token_ranges(cache: TokenCache, documents: Intervals) -> Intervals:
    """Positions of documents in the token stream of a whole cache; see :func:`value_ranges`."""
    return value_ranges(cache, documents, TOKENS)


def value_ranges(cache: TokenCache, documents: Intervals, name: str) -> Intervals:
    """Positions of documents in the values of a leaf of a whole cache, all parts end to end.

    Reads only the chunks of offsets in which a range of documents begins or ends; ReadError if it
    cannot.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> documents = Intervals.of_numbers(np.array([3, 4, 19]))
        >>> ranges = value_ranges(cache, documents, "input_ids")
        >>> bool((ranges.stop == [cache.lengths(0, 5).sum(), cache.num_tokens]).all())
        True
    """
    ends = np.stack([documents.start, documents.stop], axis=1).ravel()  # rises strictly
    leaf = cache.leaf(name)
    if leaf.kind == "fixed":
        return documents
    tokens = np.full(ends.size, leaf.num_elements, np.int64)
    first_document = starts(cache.part_documents)
    first_token = starts(leaf.arrays.lengths)
    bounds = np.searchsorted(ends, first_document)
    flying: deque[tuple[slice, np.ndarray, int, ArrayFuture]] = deque()

    def take() -> None:
        positions, at, tokens_before, read = flying.popleft()
        tokens[positions] = read.result()[at] + tokens_before

    for number in np.flatnonzero(np.diff(bounds)).tolist():
        low, high = bounds[number : number + 2].tolist()
        offsets = leaf.parts.once(number).borders  # an open one takes 70 KB
        at = ends[low:high] - first_document[number]
        for run in _chunk_runs(at, offsets.chunk_elements):
            first = int(at[run.start])
            last = int(at[run.stop - 1])
            positions = slice(low + run.start, low + run.stop)
            flying.append(
                (
                    positions,
                    at[run] - first,
                    int(first_token[number]),
                    offsets.read(first, last + 1),
                )
            )
            if len(flying) > _READS_IN_FLIGHT:
                take()
    while flying:
        take()
    return Intervals(tokens[0::2], tokens[1::2])


def digest_of_documents(cache: TokenCache, removed: RemovedDocuments) -> str:
    """Digest of what is left of a cache: 32 hex digits. It depends on the parts in which documents
    are left, and on which of theirs are; not on other parts, so a bucket of a store in groups keeps
    its digest when documents move between others.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> removed = [DocumentFilter(numbers).of(cache) for numbers in ([3], [3, 3], [4])]
        >>> one, same, other = (digest_of_documents(cache, some) for some in removed)
        >>> one == same, one == other
        (True, False)
    """
    is_left = parts_left(cache, removed)
    digest = removed.documents_digest
    if not is_left.all():
        border = starts(cache.part_documents)
        empty_parts = Intervals(border[:-1][~is_left], border[1:][~is_left])
        others = Intervals.union(removed.which.ranges()).without(empty_parts)
        moved_back = starts(empty_parts.stop - empty_parts.start)
        start, end = (
            ends - moved_back[np.searchsorted(empty_parts.start, ends, side="left")]
            for ends in (others.start, others.stop)
        )
        digest = Intervals(start, end).digest()
    content = f"{cache.fingerprint_of(is_left)} {digest}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def parts_left(cache: TokenCache, removed: RemovedDocuments) -> Bool[np.ndarray, " parts"]:
    """The parts of a cache of which not all documents are left out.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20, parts=2)
        >>> first = range(cache.part_documents[0])
        >>> parts_left(cache, DocumentFilter(first).of(cache)).tolist()
        [False, True]
    """
    border = starts(cache.part_documents)
    first = border[:-1]
    stop = border[1:]
    is_left = np.ones(first.size, bool)
    for some in removed.which.ranges():
        at = np.searchsorted(some.start, first, side="right") - 1
        ends = np.append(some.stop, 0)  # the last for parts before the first range
        is_left &= (first == stop) | (ends[at] < stop)
    return is_left


def _chunk_runs(at: Int64[np.ndarray, " n"], chunk: int) -> Iterator[slice]:
    """Slices of ``at`` to be read together: those with consecutive chunks, up to a few."""
    chunk_of = at // chunk  # rises
    first = np.flatnonzero(np.diff(chunk_of, prepend=-1))
    chunks = chunk_of[first]
    index = np.arange(chunks.size)
    run = np.cumsum(np.diff(chunks, prepend=chunks[0] - 2) != 1) - 1
    nth = index - np.flatnonzero(np.diff(run, prepend=-1))[run]
    begins = first[nth % _RUN_CHUNKS == 0].tolist()
    for low, high in zip(begins, [*begins[1:], at.size], strict=True):
        yield slice(low, high)
