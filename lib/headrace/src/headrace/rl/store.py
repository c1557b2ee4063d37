"""``RolloutStore``: groups and batches on disk, so that a crash loses no rollout and trains on none twice.

``<folder>/groups/<position>.npz`` holds the group of a prompt, ``<folder>/batches/<step>.json`` which groups a step is
made of, which were left out and why, and where the next step begins; ``<folder>/run.json`` whose run it is. Every write
is atomic, and in this order: a group before it is used, a step's record before its batch is given out. The state of a
run is then what the files say, and nothing else:

- a group with no record is pending: the next step begins with it, and it is not sampled again;
- a step has a record once its batch is packed: if it did not fit, its groups are pending;
- a step with a record is given out as it was, however often the trainer comes back to it;
- a group that was being sampled, or cannot be used as it is, leaves nothing, and is sampled again.

The trainer's checkpoint says which step comes next. Whatever step that is, the steps before it and the steps after it
are made of each prompt exactly once.

Price: one file a group, written once (one PUT on an object store); :meth:`RolloutStore.forget` deletes those of steps
that no checkpoint will go back to. Opening lists the folder. One process writes; its batches go to all others.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import CacheCorruptError, CacheError, PlanMismatchError
from headrace.rl.groups import ScoredGroup
from headrace.store import files
from headrace.store.ledger import prepare_types

FORMAT_VERSION = 1
_GROUPS, _BATCHES, _RUN = "groups", "batches", "run.json"


@dataclass(frozen=True)
class BatchRecord:
    """What a step is made of.

    Attributes:
        step: The step.
        positions: Of the prompts whose groups it trains on, ascending.
        dropped: Positions that were left out, and why.
        next_position: Where the next step begins.
        policy_version: The trainer's when the step was made.
        counts: Counters of the step, by name.
    """

    step: int
    positions: list[int]
    dropped: dict[int, str]
    next_position: int
    policy_version: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> bytes:
        """As the file's bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> BatchRecord:
        """The record in a file; raises CacheCorruptError if the bytes are something else."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CacheCorruptError("is no record of a step", field="file", value=name) from error


prepare_types(BatchRecord)


class RolloutStore:
    """Groups and records of one run.

    Args:
        folder: Path or URL; None: in memory, for runs that need not outlive their process.

    Raises:
        CacheCorruptError: a record is damaged.

    Example:
        >>> store = RolloutStore(None)
        >>> store.next_step, store.next_position
        (0, 0)
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else str(folder)
        self._memory: dict[str, bytes] = {}
        self._stored = {int(Path(n).stem) for n in self._names(_GROUPS) if n.endswith(".npz")}
        self._records: dict[int, BatchRecord] = {}
        for name in sorted(self._names(_BATCHES)):
            if name.endswith(".json"):
                record = BatchRecord.from_json(self._read(f"{_BATCHES}/{name}") or b"", name)
                self._records[record.step] = record

    @property
    def next_step(self) -> int:
        """The first step that has no record yet."""
        return max(self._records, default=-1) + 1

    @property
    def next_position(self) -> int:
        """The first position that no step has taken or left out."""
        return max((r.next_position for r in self._records.values()), default=0)

    @property
    def pending(self) -> list[int]:
        """Positions whose groups are stored, and wait for a step."""
        return sorted(p for p in self._stored if p >= self.next_position)

    def claim(self, run: dict[str, Any]) -> None:
        """Says whose rollouts these are; raises PlanMismatchError if they are another run's."""
        run = {"format_version": FORMAT_VERSION, **run}
        data = self._read(_RUN)
        if data is None:
            self._write(_RUN, json.dumps(run, sort_keys=True).encode())
            return
        try:
            stored = dict[str, Any](json.loads(data))
        except (ValueError, TypeError, RecursionError) as error:
            problem = f"does not say whose rollouts these are ({error})"
            raise CacheCorruptError(problem, field="file", value=f"{self.folder}/{_RUN}") from error
        for name in sorted({*run, *stored}):
            if stored.get(name) != run.get(name):
                problem = f"differs: the rollouts in {self.folder} are of a run with {stored.get(name)!r}"
                cure = "Use another folder, or the settings of that run."
                raise PlanMismatchError(problem, field=name, value=run.get(name), cure=cure)

    def record(self, step: int) -> BatchRecord | None:
        """What a step is made of; None if it has not been made yet."""
        return self._records.get(step)

    def records(self) -> list[BatchRecord]:
        """All records, by step."""
        return [self._records[s] for s in sorted(self._records)]

    def has_group(self, position: int) -> bool:
        """Whether the group of a position is stored."""
        return position in self._stored

    def group(self, position: int) -> ScoredGroup:
        """The group of a position; raises CacheError if it is not stored any more, CacheCorruptError if damaged."""
        name = _group_name(position)
        data = self._read(name)
        if data is None:
            cure = "A step was asked for that forget() has let go of: resume from a later checkpoint."
            raise CacheError("is not stored any more", field="group", value=position, cure=cure)
        return ScoredGroup.from_bytes(data, name)

    def put_group(self, position: int, group: ScoredGroup) -> None:
        """Stores the group of a position, in place of one that is there."""
        self._write(_group_name(position), group.to_bytes())
        self._stored.add(position)

    def put_record(self, record: BatchRecord) -> None:
        """Stores what a step is made of. From then on that step is made of it."""
        self._write(_record_name(record.step), record.to_json())
        self._records[record.step] = record

    def forget(self, before_step: int) -> int:
        """Deletes groups of steps before ``before_step``, records excepted, and returns how many there were."""
        end = max((r.next_position for r in self._records.values() if r.step < before_step), default=0)
        gone = [p for p in self._stored if p < end]
        for position in gone:
            self._remove(_group_name(position))
            self._stored.discard(position)
        return len(gone)

    def rewind(self, to_step: int) -> None:
        """Takes back the records of ``to_step`` and later steps: their groups are pending again.

        For a trainer that goes back to an old checkpoint, and wants its steps made anew.
        """
        for step in sorted((s for s in self._records if s >= to_step), reverse=True):
            self._remove(_record_name(step))
            del self._records[step]

    def _names(self, folder: str) -> list[str]:
        if self.folder is None:
            return []
        url = files.join(self.folder, folder)
        if not files.exists(url):
            return []
        if files.is_local(url):
            return os.listdir(files.local_path(url))
        fs, path = files.filesystem(url)
        with files.client_errors(url):
            listed: list[str] = fs.ls(path, detail=False)
        return [name.rsplit("/", 1)[-1] for name in listed]

    def _read(self, name: str) -> bytes | None:
        return self._memory.get(name) if self.folder is None else files.read_bytes(files.join(self.folder, name))

    def _write(self, name: str, data: bytes) -> None:
        if self.folder is None:
            self._memory[name] = data
        else:
            files.write_atomic(files.join(self.folder, name), data)

    def _remove(self, name: str) -> None:
        if self.folder is None:
            self._memory.pop(name, None)
        else:
            files.remove_tree(files.join(self.folder, name))


def _group_name(position: int) -> str:
    return f"{_GROUPS}/{position:012d}.npz"


def _record_name(step: int) -> str:
    return f"{_BATCHES}/{step:012d}.json"
