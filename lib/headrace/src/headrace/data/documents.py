"""Documents of a cache: which to leave out (duplicates, benchmark leaks) without building it again, and which are the
chosen and rejected ones of preference pairs.

A filter is a list of document numbers or a bitmap, as an array or as a file that another program wrote. Numbers run
over the whole cache, part after part, as in :meth:`~headrace.store.cache.TokenCache.document`; of a cache that was
shuffled when it was written they run over the one that it was made of, so that a list serves both.

Price: once, when the dataset is opened: the offsets of the filtered documents are read, no others (one read for each
run of neighbouring chunks of 16,384 offsets); 32 bytes of memory for each run of filtered documents, and 8, with a bit
for each document, where there are many.
"""

from __future__ import annotations

import io
import logging
import re
import tokenize
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakSet

import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import ConfigError
from headrace.order.intervals import Intervals, Removal
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS
from headrace.store.leaf import starts
from headrace.store.ledger import shuffle_record
from headrace.store.pending import ArrayFuture

_READS_IN_FLIGHT = 32
_RUN_CHUNKS = 16  # 2 MiB of offsets a read
_CHUNK = 1 << 20  # documents that are looked at together
_RANGE_BITS = 128  # of memory, for a range of documents
_CACHE_LINE = re.compile(rb"^#\s*cache:\s*([\x21-\x7e]+)\s*$", re.MULTILINE)
_CURE = (
    "Give document numbers, one a line or as an integer .npy file, or a boolean .npy file with one entry a document."
)


class RemovedDocuments:
    """What is left out of a cache.

    Args:
        cache: The cache.
        documents: Numbers of documents; or sets of them, in their order, that are no more in memory than one at a time.
        listed: Numbers that a filter gave, repeats included.
        repeated: Those of them that it had given before.
        not_found: Different numbers of them that no document has.

    Attributes:
        left: What is left of the token stream of the whole cache, all parts end to end; None: all of it.
        num_tokens: Tokens of these documents.
        num_documents: How many documents are left out.

    Raises:
        ReadError: offsets cannot be read.
    """

    def __init__(
        self,
        cache: TokenCache,
        documents: Intervals | Iterable[Intervals],
        listed: int = 0,
        repeated: int = 0,
        not_found: int = 0,
    ) -> None:
        self.listed, self.repeated, self.not_found = listed, repeated, not_found
        removals = [documents] if isinstance(documents, Intervals) else documents
        self._bits: np.ndarray | None = None
        self._ranges = Intervals.empty()
        if isinstance(documents, Intervals) and documents.start.size * _RANGE_BITS <= cache.num_documents:
            self._ranges = documents
        else:
            self._bits = np.zeros(-(-cache.num_documents // 8), np.uint8)
        self._documents, self.num_documents = cache.num_documents, 0

        def tokens() -> Iterator[Intervals]:
            for some in removals:
                self.num_documents += some.total
                if self._bits is not None and some.total:
                    first, stop = int(some.start[0]) // 8, -(-int(some.stop[-1]) // 8)
                    self._bits[first:stop] |= np.packbits(some.mask(first * 8, stop * 8))
                yield token_ranges(cache, some)

        nothing = isinstance(documents, Intervals) and not documents.start.size
        removal = None if nothing else Removal(cache.num_tokens, tokens())
        self.num_tokens = 0 if removal is None else removal.length - removal.remaining
        self.left = removal if self.num_tokens else None

    @property
    def documents(self) -> Intervals:
        """Their numbers; made anew where they are many ranges."""
        if self._bits is None:
            return self._ranges
        return Intervals.of_mask(np.unpackbits(self._bits, count=self._documents).view(bool))

    @property
    def tokens(self) -> Intervals:
        """Where these documents lie in the token stream of the whole cache."""
        return Intervals.empty() if self.left is None else self.left.removed()

    def with_others(self, cache: TokenCache, others: Callable[[int, int], Bool[np.ndarray, " n"]]) -> RemovedDocuments:
        """Further documents left out, which no filter listed.

        Args:
            cache: The cache.
            others: Says of each of the documents ``first .. stop`` whether it is.
        """
        own_documents, documents = self.documents, cache.num_documents

        def every() -> Iterator[Intervals]:
            for at in range(0, documents, _CHUNK):
                stop = min(at + _CHUNK, documents)
                in_chunk = Intervals.of_mask(others(at, stop) | own_documents.mask(at, stop))
                yield Intervals(in_chunk.start + at, in_chunk.stop + at)

        return RemovedDocuments(cache, every(), self.listed, self.repeated, self.not_found)


class DocumentFilter:
    """Documents to leave out of a dataset.

    Args:
        documents: Document numbers, in any order, repeats allowed (integer array or sequence); or a bitmap with one
            entry a document, true for those to leave out (boolean array).
        name: What errors call it: the config field or the file.
        count_not_found: Whether numbers that no document has are counted (:attr:`RemovedDocuments.not_found`) instead
            of refused.
        content: Fingerprint of the cache that the numbers are of; another cache is refused. Empty: of any.

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
        self.name, self._count_not_found, self._content = name, count_not_found, content
        self._bitmap_length: int | None = None
        if isinstance(documents, Intervals):
            self._documents, self.listed = documents, documents.total
            return
        numbers = np.asarray(documents)
        if numbers.size == 0:
            numbers = numbers.astype(np.int64).ravel()
        if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
            raise ConfigError(
                f"is no list of documents: {numbers.dtype} of shape {numbers.shape}", field=name, cure=_CURE
            )
        if numbers.dtype == np.bool_:
            self._bitmap_length = numbers.size
            numbers = np.flatnonzero(numbers)
        if numbers.size and int(numbers.min()) < 0:
            raise ConfigError("names a negative document", field=name, value=int(numbers.min()), cure=_CURE)
        if numbers.size and int(numbers.max()) > np.iinfo(np.int64).max - 1:
            raise ConfigError("is no document", field=name, value=int(numbers.max()), cure=_CURE)
        self.listed = int(numbers.size)
        """Numbers given, repeats included."""
        self._documents = Intervals.of_numbers(numbers.astype(np.int64))

    @classmethod
    def load(cls, url: str, *, name: str | None = None, count_not_found: bool = False) -> DocumentFilter:
        """Reads a filter from a file: ``.npy`` (integers, or booleans for a bitmap), else text with one number a line.
        A line ``# cache: FINGERPRINT`` of the text names the cache that it is of; other lines with ``#`` are comments.

        Raises:
            ConfigError: there is no such file, it cannot be read, or it is neither; the line is named.
        """
        field = name or "file"
        try:
            raw = files.read_bytes(url) if url else None
        except (IsADirectoryError, PermissionError) as error:
            raise ConfigError(f"cannot be read ({error.strerror})", field=field, value=url, cure=_CURE) from error
        if raw is None:
            raise ConfigError("does not exist", field=field, value=url, cure=_CURE)
        if url.endswith(".npy"):
            return cls(read_npy(raw, field, url, _CURE), name=field, count_not_found=count_not_found)
        named = _CACHE_LINE.search(raw)
        content = named[1].decode() if named else ""
        return cls(_numbers(raw, field, url), name=field, count_not_found=count_not_found, content=content)

    def of(self, cache: TokenCache) -> RemovedDocuments:
        """What the filter removes from a cache, counted; errors as in :meth:`among`.

        Example:
            >>> import headrace.testing
            >>> cache = headrace.testing.tiny_cache(documents=20)
            >>> removed = DocumentFilter([3, 3, 4, 99], count_not_found=True).of(cache)
            >>> removed.num_documents, removed.listed, removed.repeated, removed.not_found
            (2, 4, 1, 1)
        """
        stored, total = stored_documents(cache, self.of_numbers_in(cache)), self._documents.total
        return RemovedDocuments(cache, stored, self.listed, self.listed - total, total - stored.total)

    def of_numbers_in(self, cache: TokenCache) -> Intervals:
        """Numbers of the documents of a cache; those of a shuffled one are those of its original.

        Raises:
            ConfigError: the filter names another cache; else as :meth:`among`.
        """
        content = _numbered_in(cache)
        if self._content not in ("", content, _numbered_in(cache.members[0])):  # numbers run on through generations
            raise ConfigError(
                f"is of another cache: it names {self._content}, and {cache.path} is {content}",
                field=self.name,
                cure="Make the list from this cache: numbers and bitmaps belong to one build.",
            )
        generations = np.cumsum([member.num_documents for member in cache.members[: cache.generations[0]]])
        if self._bitmap_length in generations.tolist():  # it was made before the others were appended
            return self._documents
        return self.among(cache.num_documents)

    def among(self, num_documents: int) -> Intervals:
        """The documents, as ranges of numbers below ``num_documents``; others are left away if they may be.

        Raises:
            ConfigError: a number is too large, or the bitmap is of another length.
        """
        if self._bitmap_length not in (None, num_documents):
            raise ConfigError(
                f"is a bitmap of {self._bitmap_length:,} documents, but the cache has {num_documents:,}",
                field=self.name,
                cure="Make it from this cache: numbers and bitmaps belong to one build.",
            )
        if self._documents.stop.size and int(self._documents.stop[-1]) > num_documents:
            if self._count_not_found:
                start, stop = np.minimum(self._documents.start, num_documents), self._documents.stop
                return Intervals(start, np.minimum(stop, num_documents))
            raise ConfigError(
                f"is not a document: the cache has {num_documents:,}",
                field=self.name,
                value=int(self._documents.stop[-1]) - 1,
                cure="Documents count from 0. Make the list from this cache: numbers belong to one build."
                + (" Or let them pass, counted: remove_not_found: count." if "." in self.name else ""),
            )
        return self._documents


def _numbered_in(cache: TokenCache) -> str:
    """Fingerprint of the cache whose numbers documents have: of a shuffled one, of its original."""
    shuffled = None if cache.shuffle is None else shuffle_record(cache.ledger, cache.path)
    return cache.fingerprint if shuffled is None else shuffled.fingerprint


def stored_documents(cache: TokenCache, originals: Intervals) -> Intervals:
    """Where documents lie in a cache that may have been shuffled when it was written.

    Price: nothing for a plain cache; 0.2 us and 32 bytes for each document of a shuffled one.

    Example:
        >>> import headrace.testing
        >>> stored_documents(headrace.testing.tiny_cache(documents=20), Intervals.of_numbers(np.array([3, 4])))
        Intervals(3..5)
    """
    if not cache.is_shuffled:
        return originals
    return Intervals.of_numbers(cache.stored_at(originals.numbers(np.arange(originals.total))))


def read_npy(raw: bytes, field: str, url: str, cure: str) -> np.ndarray:
    """The array in the bytes of a ``.npy`` file; ConfigError if they are none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of names of dtypes that go; dtypes are looked at later
            return np.load(io.BytesIO(raw), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, tokenize.TokenError) as error:  # its head is Python
        raise ConfigError(f"is not a .npy file of numbers ({error})", field=field, value=url, cure=cure) from error


def _numbers(raw: bytes, field: str, url: str) -> Int64[np.ndarray, " n"]:
    lines = [b"" if line.startswith(b"#") else line.strip() for line in raw.splitlines()]
    try:
        numbers = np.array([line for line in lines if line] or np.zeros(0), np.int64)
    except (ValueError, OverflowError):
        numbers = np.array([-1])
    if not (numbers < 0).any():
        return numbers
    bad, line = next((n, x) for n, x in enumerate(lines, start=1) if x and not (x.isdigit() and len(x) < 19))
    problem = f"line {bad} is not a document number: {line[:40].decode(errors='replace')!r}"
    raise ConfigError(problem, field=field, value=url, cure=_CURE)


def token_ranges(cache: TokenCache, documents: Intervals) -> Intervals:
    """Where documents lie in the token stream of a whole cache, all parts end to end.

    Reads the chunks of offsets in which a range of documents begins or ends, and no others; ReadError if it cannot.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=20)
        >>> ranges = token_ranges(cache, Intervals.of_numbers(np.array([3, 4, 19])))
        >>> bool((ranges.stop == [cache.lengths(0, 5).sum(), cache.num_tokens]).all())
        True
    """
    ends = np.stack([documents.start, documents.stop], axis=1).ravel()  # rises strictly
    tokens = np.full(ends.size, cache.num_tokens, np.int64)
    first_document, first_token = starts(cache.part_documents), starts(cache.part_tokens)
    bounds = np.searchsorted(ends, first_document)
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        low, high = bounds[number : number + 2].tolist()
        offsets = cache.leaf(TOKENS).parts[number].offsets
        assert offsets is not None  # tokens are ragged
        tokens[low:high] = _elements(offsets, ends[low:high] - first_document[number]) + first_token[number]
    return Intervals(tokens[0::2], tokens[1::2])


def _elements(array: StoredArray, at: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Elements of an array at rising positions, some chunks at a time."""
    out = np.empty(at.size, np.int64)
    flying: deque[tuple[slice, int, ArrayFuture]] = deque()
    for run in _chunk_runs(at, array.chunk_elements):
        first, last = int(at[run.start]), int(at[run.stop - 1])
        flying.append((run, first, array.read(first, last + 1)))
        if len(flying) > _READS_IN_FLIGHT:
            _take(flying.popleft(), at, out)
    for read in flying:
        _take(read, at, out)
    return out


def _chunk_runs(at: Int64[np.ndarray, " n"], chunk: int) -> Iterator[slice]:
    """Places in ``at`` to be read together: whose chunks follow each other, up to a few."""
    chunk_of = at // chunk  # rises
    first = np.flatnonzero(np.diff(chunk_of, prepend=-1))
    chunks = chunk_of[first]
    index = np.arange(chunks.size)
    run = np.cumsum(np.diff(chunks, prepend=chunks[0] - 2) != 1) - 1
    nth = index - np.flatnonzero(np.diff(run, prepend=-1))[run]
    begins = first[nth % _RUN_CHUNKS == 0].tolist()
    for low, high in zip(begins, [*begins[1:], at.size], strict=True):
        yield slice(low, high)


def _take(read: tuple[slice, int, ArrayFuture], at: np.ndarray, out: np.ndarray) -> None:
    run, first, future = read
    out[run] = future.result()[at[run] - first]


CHOSEN = "chosen"
"""Leaf that says of each document whether it is a chosen one."""
_checked: WeakSet[TokenCache] = WeakSet()
_said: WeakSet[TokenCache] = WeakSet()


def is_of_pairs(cache: TokenCache, unit: int, said: bool | None, mask: str | None) -> bool:
    """Whether rows of a cache in which ``unit`` documents are never parted are rows of pairs: as ``said``, or else if
    ``unit`` is 2 and the cache has the leaf ``chosen``.

    Raises:
        ConfigError: they are to be, but are packed one by one, or do not say which tokens are the answers' (``mask``);
            documents are not chosen and rejected in turn.

    Example:
        >>> import headrace.testing
        >>> is_of_pairs(headrace.testing.tiny_cache(documents=6), 2, None, None)
        False
    """
    pairs = unit == 2 and CHOSEN in cache.leaves if said is None else said
    if not pairs:
        if said is None:
            warn_of_parted(cache)
        return False
    if unit != 2:
        raise ConfigError("parts the two documents of a pair", field="unit", value=unit, cure="Pack with unit=2.")
    if mask is None:
        raise ConfigError(
            "says that all tokens are trained on, those of the prompts too",
            field="loss_mask",
            value="none",
            cure="Build the cache with --kind preference, which writes the leaf loss_mask; or set pairs=False.",
        )
    if cache not in _checked:
        _check_turns(cache)
        _checked.add(cache)
    return True


def warn_of_parted(cache: TokenCache) -> None:
    """Says, once for a cache, that rejected answers are trained on as chosen ones are, if it has any."""
    if CHOSEN in cache.leaves and cache not in _said:
        _said.add(cache)
        logging.getLogger(__name__).warning(
            f"{cache.path} holds preference pairs, and its rows part them: rejected answers are trained on as chosen"
            " ones are. Pack them with unit: 2 and long: drop, so that the rejected side weighs -1."
        )


def _check_turns(cache: TokenCache) -> None:
    """The leaf ``chosen`` of a cache, if it has one, must be 1 and 0 in turn."""
    if CHOSEN not in cache.leaves:
        return
    at = 0
    for block in cache.leaf(CHOSEN).blocks():
        wrong = np.flatnonzero(block.reshape(-1) != (np.arange(at, at + block.size) + 1) % 2)
        if wrong.size:
            number = at + int(wrong[0])
            raise ConfigError(
                "is out of turn: even documents are chosen, odd ones are rejected",
                field=f"chosen[{number}]",
                value=int(block.reshape(-1)[wrong[0]]),
            )
        at += block.size
