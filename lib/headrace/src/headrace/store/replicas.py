"""One cache with several locations, such as two clouds: what one cannot deliver is read from the
next.

The first location that opens is used. A read that fails there for
:attr:`RetryPolicy.replica_after_s <headrace.store.RetryPolicy>` continues at the next location, and
so on in turn. A location that cannot be reached, or refuses, is skipped by all later reads; one
with a damaged answer is skipped only by that read, because the rest of it may be intact. If all
locations are away, as when this machine has lost its network, they are asked in turn until the
policy's deadline. Each switch is counted (``replica_switches``), and logged once per location and
cause.

Invariant: reads return the same bytes at every location, because all must have the same ledger; a
location with a different one is refused before anything is read from it. Price: one Python call per
read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.errors import CacheCorruptError, CacheError, HeadraceError, ReadError
from headrace.store.array import ArrayFuture, RepeatedRead, StoredArray
from headrace.store.cache import TokenCache, same_ledger
from headrace.store.failures import DamagedAnswerError, StoreFailedError, failure_of
from headrace.store.leaf import LeafPart
from headrace.store.mapped import MappedArray
from headrace.store.retry import own_counts, policy, tried, waiting_at_most

State: TypeAlias = Literal["read", "reached", "unreached", "differs"]
_LOG = logging.getLogger(__name__)
_counting = threading.Lock()


@dataclass(frozen=True)
class ReplicaState:
    """State of a location: ``read`` (the first that opened), ``reached``, ``unreached`` or
    ``differs`` (it has another cache); for the last two, with the reason.
    """

    path: str
    state: State
    problem: str = ""


class ReplicatedCache(TokenCache):
    """A cache with several locations, named by the first that opened.

    Attributes:
        replicas: The locations.
        states: State of each when the cache was opened.
    """

    def __init__(self, replicas: Replicas, states: Sequence[ReplicaState]) -> None:
        self.replicas = replicas
        self.states = tuple(states)
        super().__init__(replicas.first.path, replicas.first.ledger, replicas.part)


def open_replicas(paths: Sequence[str]) -> TokenCache:
    """The cache at the first of several locations that opens; reads that fail continue at the next
    one.

    Args:
        paths: Folders or URLs of copies of one cache, the preferred one first; a single one is
            opened directly.

    Raises:
        CacheError: none can be opened; the error is that of the first, and names the others.
        CacheCorruptError: a location that can be opened has another cache.

    Example:
        >>> import shutil, tempfile
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     copy = shutil.copytree(cache.path, f"{folder}/copy")
        ...     open_replicas([f"{folder}/lost", copy]).num_tokens == cache.num_tokens
        True
    """
    if len(paths) == 1:
        return TokenCache.open_member(paths[0])
    replicas = Replicas(paths)
    states = replicas.states()
    for replica in states:
        if replica.state == "differs":
            raise replicas.differs(replica.path)
        if replica.problem:
            _LOG.warning("replica %s cannot be read from now: it %s", replica.path, replica.problem)
    return ReplicatedCache(replicas, states)


class Replicas:
    """The locations of one cache. Safe for several threads; can be pickled.

    Args:
        paths: Folders or URLs, the preferred one first.

    Attributes:
        first: The cache at the first that opens.
        current: Number of the location where new reads start.

    Raises:
        CacheError: none can be opened.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._logged: set[tuple[int, bool]] = set()
        self._lock = threading.Lock()
        self._caches: list[TokenCache | None] = [None for _ in paths]
        self.current, self.first = self._opened_first()
        self._caches[self.current] = self.first

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def states(self) -> list[ReplicaState]:
        """The current state of each location, checked in parallel."""
        with ThreadPoolExecutor(len(self.paths)) as pool:
            return list(pool.map(self._state, range(len(self.paths))))

    def differs(self, path: str) -> CacheCorruptError:
        """The error for a location that has another cache."""
        cure = (
            f"Leave it out; or copy the right one of the two over the other: {self.first.path} was"
            " opened first."
        )
        problem = f"is no copy of {self.first.path}: their ledgers differ"
        return CacheCorruptError(problem, field="replicas", value=path, cure=cure)

    def opened(self, number: int) -> TokenCache:
        """The cache at a location. Raises CacheError if it cannot be opened or is another one."""
        cache = self._caches[number]
        if cache is None:
            cache = TokenCache.open_member(self.paths[number])
            if not same_ledger(cache, self.first):
                raise self.differs(self.paths[number])
            self._caches[number] = cache
        return cache

    def part(self, name: str, number: int) -> LeafPart:
        """The arrays of a leaf of a part, whichever location they are read from."""
        part = self.opened(self.current).leaf(name).parts[number]
        data = ReplicatedArray(self, name, number, part.data)
        offsets = part.offsets
        if offsets is not None:
            offsets = ReplicatedArray(self, name, number, offsets, is_offsets=True)
        return LeafPart(part.documents, data, offsets)

    def switch(self, place: int, following: int, error: Exception) -> None:
        """Counts and logs that a read continues at another location; unless only this answer was
        damaged, later reads start there, too.
        """
        damaged = not _is_unreachable(error)
        with _counting:
            own_counts().replica_switches += 1
        with self._lock:
            if not damaged and self.current == place:
                self.current = following
            news = (place, damaged) not in self._logged
            self._logged.add((place, damaged))
        if news:
            what = "what is damaged there is" if damaged else "reads go on"
            _LOG.warning("%s: %s at %s (%s)", self.paths[place], what, self.paths[following], error)

    def _opened_first(self) -> tuple[int, TokenCache]:
        turns = Turns(0, len(self.paths))
        errors: dict[int, CacheError] = {}
        while turns.place is not None:
            number = turns.place
            path = self.paths[number]
            try:
                with _waiting():
                    cache = TokenCache.open_member(path)
            except CacheError as error:
                errors[number] = error
                turns.next(again=bool(tried(error)))
                continue
            for lost, problem in errors.items():
                _LOG.warning("%s: reads begin at %s (%s)", self.paths[lost], path, problem)
            return number, cache
        first = errors.pop(0)
        others = "; ".join(f"{self.paths[n]} {e.problem}" for n, e in sorted(errors.items()))
        raise type(first)(
            f"{first.problem}; nor can: {others}",
            field="cache",
            value=self.paths[0],
            cure=first.cure,
        )

    def _state(self, number: int) -> ReplicaState:
        path = self.paths[number]
        try:
            with _waiting():
                self.opened(number)
        except CacheError as error:
            return ReplicaState(
                path, "differs" if error.field == "replicas" else "unreached", error.problem
            )
        return ReplicaState(path, "read" if path == self.first.path else "reached")


class ReplicatedArray(StoredArray):
    """An array of a cache with several locations."""

    def __init__(
        self,
        replicas: Replicas,
        leaf: str,
        part: int,
        first: StoredArray,
        *,
        is_offsets: bool = False,
    ) -> None:
        super().__init__(first.url, first.length, first.layout)
        self.replicas = replicas
        self._leaf = leaf
        self._part = part
        self._is_offsets = is_offsets

    def at(self, place: int) -> StoredArray:
        """The array at one of the locations. Raises CacheError if that cannot be opened or is
        another cache.
        """
        part = self.replicas.opened(place).leaf(self._leaf).parts[self._part]
        return part.borders if self._is_offsets else part.data

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        """Starts a read that goes on at the next location if it fails."""
        turns = Turns(self.replicas.current, len(self.replicas.paths))

        def begin() -> ArrayFuture:
            while True:
                assert turns.place is not None  # otherwise the last error was raised
                try:
                    with _waiting():
                        return self.at(turns.place).read_into(out, start)
                except (ReadError, CacheError) as error:
                    step(error)

        def step(error: HeadraceError) -> None:
            """Switches to the next location; raises the error of this one if it was the last."""
            failed = turns.place
            turns.next(again=bool(tried(error)))
            if failed is None or turns.place is None:
                fail = partial(type(error), field=error.field, value=error.value, cure=error.cure)
                raise fail(f"{error.problem}, and none of its replicas gives it") from error
            self.replicas.switch(failed, turns.place, error)

        def go_on(error: HeadraceError) -> ArrayFuture:
            step(error)
            return begin()

        return RepeatedRead(begin(), go_on)

    def mapped(self) -> MappedArray | None:
        try:
            return self.at(self.replicas.current).mapped()
        except CacheError:
            return None  # reading goes on elsewhere


class Turns:
    """Which location one read asks: the next one after each failure. One that was given up only
    because time was over gets another turn, until the policy's deadline, counted from the first
    failure, has passed.

    Args:
        first: Number of the location that is asked first.
        count: Number of locations.

    Attributes:
        place: The one to ask now; None: none is left.

    Example:
        >>> turns = Turns(1, 3)
        >>> for _ in range(3):
        ...     print(turns.place)
        ...     turns.next(again=False)
        1
        2
        0
        >>> turns.place is None
        True
    """

    def __init__(self, first: int, count: int) -> None:
        self.place: int | None = first
        self._others = deque((first + k) % count for k in range(1, count))
        self._fresh = count  # locations that were not asked yet, and this one
        self._first_failure: float | None = None

    def next(self, *, again: bool) -> None:
        """To be called after a failure, with whether this location may get another turn."""
        now = time.monotonic()
        if self._first_failure is None:
            self._first_failure = now
        self._fresh -= 1
        if again and self.place is not None:
            self._others.append(self.place)
        over = self._fresh <= 0 and now - self._first_failure >= policy().deadline_s
        self.place = self._others.popleft() if self._others and not over else None


def _waiting() -> AbstractContextManager[None]:
    """What starts in it does not wait for its location longer than one with replicas may."""
    return waiting_at_most(policy().replica_after_s)


def _is_unreachable(error: BaseException | None) -> bool:
    """Whether a location failed as a whole, as far as one read can tell; not if only this answer
    was damaged.
    """
    while error is not None:
        if isinstance(error, StoreFailedError):
            return not isinstance(error, DamagedAnswerError)
        if error.__cause__ is None:
            lost = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            return lost or failure_of(error) in ("transient", "refused")
        error = error.__cause__
    return False
