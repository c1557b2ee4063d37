"""``RolloutIndex``: the content of the logs of rollouts: which groups exist, and which step has
each.

It stores where groups are, and the groups themselves only if they are of this process and wait for
a step. While a step is made, it also tracks the groups considered, so that neither these nor used
ones are searched again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

from headrace.errors import CacheCorruptError
from headrace_posttrain.rollouts.groups import ScoredGroup
from headrace_posttrain.rollouts.log_segments import Record
from headrace_posttrain.rollouts.rollout_records import BatchRecord, Source


class RolloutIndex:
    """Groups and steps, built from the records of the logs.

    Attributes:
        duplicate_groups: Groups of prompts that already had one.
        needed: Groups that the open step still lacks, as its log says; 0 if it has not said so.
            Only in producers.
        shares: The share of positions that each producer samples: its number, and the number of
            producers.
        lock: Held while any of it changes.
    """

    def __init__(self) -> None:
        self.duplicate_groups = 0
        self.needed = 0
        self.shares: dict[str, tuple[int, int]] = {}
        self._records: dict[int, BatchRecord] = {}
        self._pinned: dict[int, Source] = {}  # groups of steps
        self._used: dict[int, int] = {}  # step of each position that was taken or left out
        self._groups: dict[int, dict[Source, Record]] = {}
        self._refused: set[Source] = set()
        self._waiting: dict[
            int, None
        ] = {}  # positions of groups that no step has, in the order of their arrival
        self._partial: dict[
            int, tuple[str, Record]
        ] = {}  # what an aborted call left, with its producer
        self._fresh: dict[
            int, tuple[Record, ScoredGroup]
        ] = {}  # groups of this process that wait, as it got them
        self._looked_at: dict[
            int, Source | None
        ] = {}  # by the step that is being made; with the group that it saw
        self._next: dict[
            int, int
        ] = {}  # of positions that are not open: none is open from there up to this one
        self.lock = threading.RLock()
        self._forgotten = 0  # groups of steps before this one are let go of

    @property
    def next_step(self) -> int:
        """The first step that has no record yet."""
        return max(self._records, default=-1) + 1

    @property
    def next_position(self) -> int:
        """The first position that no step, nor any behind it, has taken or left out."""
        return max((r.next_position for r in self._records.values()), default=0)

    @property
    def pending(self) -> list[int]:
        """Positions whose groups are stored, and wait for a step."""
        with self.lock:
            return sorted([*self._waiting, *(p for p in self._looked_at if self.has_group(p))])

    @property
    def num_waiting(self) -> int:
        """Number of these, without those that the current step has considered."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> int | None:
        """The first of these to arrive; None: there is none."""
        return next(iter(list(islice(self._waiting, 1))), None)

    def look_at(self, position: int) -> None:
        """Marks a position as considered by the current step; it is then no longer open."""
        with self.lock:
            self._looked_at[position] = self._source(position)
            self._waiting.pop(position, None)

    def look_anew(self) -> None:
        """Starts or restarts a step, which has considered nothing."""
        with self.lock:
            self.needed = 0
            self._waiting = {p: None for p in self._looked_at if self.has_group(p)} | self._waiting
            self._looked_at.clear()
            self._next.clear()

    def open_positions(self) -> Iterator[int]:
        """Positions that no step has used or left out, and that the current step has not
        considered, endlessly.
        """
        position = self._open_from(0)
        while True:
            yield position
            position = self._open_from(position + 1)

    def _open_from(self, position: int) -> int:
        """The first such position from one on."""
        passed: list[int] = []
        with self.lock:
            while position in self._used or position in self._looked_at:
                passed.append(position)
                position = self._next.get(position, position + 1)
            self._next.update(dict.fromkeys(passed, position))
        return position

    def sampler_of(self, position: int) -> str:
        """Who sampled the group of a position: the name of a producer, or ``consumer``."""
        source = self._source(position)
        return "" if source is None else source[0]

    def refusals(self, position: int) -> int:
        """Number of groups of a position that were refused."""
        return len(self._groups.get(position, {}).keys() & self._refused)

    def _set_waiting(self, position: int) -> None:
        """Updates whether a position has a group that waits for a step."""
        if position in self._used or not self.has_group(position):
            self._waiting.pop(position, None)
            self._fresh.pop(position, None)
        elif position not in self._looked_at:
            self._waiting.setdefault(position)

    @property
    def lost_groups(self) -> int:
        """Groups of steps that no longer exist, other than those that were forgotten."""
        return sum(
            source not in self._groups.get(position, {})
            for position, source in self._pinned.items()
            if source[0] and self._used[position] >= self._forgotten
        )

    def record(self, step: int) -> BatchRecord | None:
        """The record of a step; None if it has not been made yet."""
        return self._records.get(step)

    def records(self) -> list[BatchRecord]:
        """All records, by step."""
        return [self._records[s] for s in sorted(self._records)]

    def has_group(self, position: int) -> bool:
        """Whether the group of a position is stored."""
        return self._source(position) is not None

    def _source(self, position: int) -> Source | None:
        """The group of a position that is used: the step's, or the newest that was not refused."""
        candidates = self._groups.get(position, {})
        if (pinned := self._pinned.get(position)) is not None:
            return pinned if pinned in candidates else None
        return max(candidates.keys() - self._refused, default=None)

    def _add_step(self, record: BatchRecord) -> None:
        if len(record.groups) != len(record.positions):
            raise CacheCorruptError(
                "has not one group for each position", field="step", value=record.step
            )
        self._records[record.step] = record
        self._used |= dict.fromkeys((*record.positions, *record.dropped), record.step)
        self._pinned |= dict(zip(record.positions, record.groups, strict=True))
        self.needed = 0
        for position in (*record.positions, *record.dropped):
            self._looked_at.pop(position, None)
            self._set_waiting(position)
            self._partial.pop(position, None)

    def _add_source(self, source: Source, record: Record) -> None:
        """Adds a group, unless its step was forgotten."""
        position = record.key
        if self._used.get(position, self._forgotten) >= self._forgotten:
            self.duplicate_groups += self._source(position) is not None
            self._groups.setdefault(position, {})[source] = record
            self._set_waiting(position)

    def _take_back(self, to_step: int) -> None:
        """Forgets the records of this step and later ones."""
        for step in [s for s in self._records if s >= to_step]:
            taken_back = self._records.pop(step)
            for position in (*taken_back.positions, *taken_back.dropped):
                self._used.pop(position, None)
                self._pinned.pop(position, None)
                self._set_waiting(position)
        self._forgotten = min(self._forgotten, to_step)
        self._next.clear()

    def _let_go(self, before_step: int) -> None:
        """Forgets the groups of earlier steps."""
        self._forgotten = max(self._forgotten, before_step)
        for position in [p for p in self._groups if self._used.get(p, before_step) < before_step]:
            del self._groups[position]
