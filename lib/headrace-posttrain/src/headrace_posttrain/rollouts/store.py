"""``RolloutStore``: groups and steps on disk, as logs, so that a crash loses no rollout and trains
on none twice.

``<folder>/steps/`` is the consumer's log: the run that the rollouts belong to, and the groups of
each step. A step that waits for producers also says there what it has considered and how many
groups it lacks, so that they sample as many. ``<folder>/producers/<name>/`` has the groups that a
producer sampled, and its share of the positions; the consumer's own are in ``consumer``. Each is an
:class:`~headrace_posttrain.rollouts.append_log.AppendLog`: records with checksums, one writer at a
time under a lease, a defined state after a crash. A group is on disk before it is used, and a step
before its batch is returned. The logs are the complete state of a run:

- a group that no step has is pending: a later step uses it, and its prompt is not sampled again;
- a step has a record once its batch is packed: if it did not fit, its groups are pending;
- a step with a record is always the same, however often the trainer returns to it: the record names
  each of its groups by producer and number, even if a prompt was sampled twice;
- a group that was being sampled, or is invalid, leaves nothing, and is sampled again.

:meth:`RolloutStore.put_record` ensures that a position is in at most one step. The trainer's
checkpoint determines the next step. Whatever step that is, the steps before and after it together
use each prompt exactly once.

Price: one ``fsync`` per group and step (one PUT in an object store); opening reads all logs.
:meth:`RolloutStore.forget` forgets groups to which no checkpoint will return, and deletes segments
that have no others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from headrace.errors import CacheCorruptError, CacheError, ConfigError, HostError
from headrace.store import files
from headrace.store.lease import LeaseWatch, owning
from headrace_posttrain.rollouts.append_log import AppendLog
from headrace_posttrain.rollouts.groups import ScoredGroup
from headrace_posttrain.rollouts.log_segments import STEPS, Record, list_names
from headrace_posttrain.rollouts.rollout_index import RolloutIndex
from headrace_posttrain.rollouts.rollout_records import (
    FORMAT_VERSION,
    BatchRecord,
    OpenStep,
    Source,
    check_identity,
    check_json,
    read_identity,
    to_json,
)

logger = logging.getLogger(__name__)

CONSUMER = "consumer"
_IDENTITY, _STEP, _REWIND, _FORGET, _REFUSED, _GROUP, _PARTIAL, _OPEN_STEP, _SHARE = range(16, 25)
# kinds that are few and short: their payloads are read with their headers
_LOADED_OF_STEPS = (_IDENTITY, _STEP, _REWIND, _FORGET, _REFUSED, _OPEN_STEP)
_LOADED_OF_PRODUCERS = (_IDENTITY, _SHARE)
_PRODUCERS = "producers"
_GROUPS_CURE = "Move this file out of the folder: groups that no step has are sampled again."
_STEPS_CURE = (
    "Bring this file back from a copy. Without one the run starts over, in another folder."
)


class RolloutStore(RolloutIndex):
    """Groups and records of one run.

    Opening it reads; :meth:`claim` opens it for writing. Use it in a ``with`` statement, or
    :meth:`close` it.

    Args:
        folder: Path or URL; None: in memory, for runs that need not survive their process.
        producer: Name of a process that only adds groups; None: this process makes the steps.
        follow: Whether this process only reads the steps that another one makes, as hosts of a job
            do.

    Raises:
        CacheCorruptError: a record in the middle of a log is damaged; names segment and offset.

    Example:
        >>> store = RolloutStore(None)
        >>> store.next_step, store.next_position
        (0, 0)
    """

    def __init__(
        self, folder: str | Path | None, *, producer: str | None = None, follow: bool = False
    ) -> None:
        super().__init__()
        if producer is not None and (
            producer == CONSUMER or not producer or "/" in producer or producer[0] == "."
        ):
            cure = "Give each producer a name of its own, e.g. 'sampler-0'."
            raise ConfigError(
                "is no name of a producer", field="producer", value=producer, cure=cure
            )
        if follow and (folder is None or producer is not None):
            cure = "Give the folder of the process that makes the steps, and no producer's name."
            raise ConfigError("has nothing to read", field="follow", value=follow, cure=cure)
        self.folder = None if folder is None else str(folder)
        self.producer = producer
        self.follow = follow
        self._identity: dict[str, Any] = {}
        self._claimed = None
        self._identities: dict[
            str, dict[str, Any]
        ] = {}  # what producers sampled for, by their names
        self._own: AppendLog | None = None  # open for writing
        self._leader: LeaseWatch | None = None
        self._is_closed = False
        self._steps = AppendLog(self._join(STEPS), load=_LOADED_OF_STEPS, cure=_STEPS_CURE)
        self._logs: dict[str, AppendLog] = {}
        self.refresh()
        if self.lost_groups:
            logger.warning("%s: %d groups of its steps are lost", self.folder, self.lost_groups)

    def __reduce__(self) -> NoReturn:
        cure = "Send its folder, and open it there; to sample there, under a producer's name."
        raise ConfigError(
            "cannot be pickled: one process writes it",
            field="rollouts",
            value=self.folder,
            cure=cure,
        )

    def __enter__(self) -> RolloutStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets others write. What is stored can still be read; later groups are not stored."""
        self._is_closed = True
        for log in (self._steps, *self._logs.values()):
            log.close()
        self._own = None

    def refresh(self) -> None:
        """Reads what other processes have added: groups of producers; for a producer, the
        consumer's steps.
        """
        with self.lock:
            for record in self._steps.refresh():
                self._apply(record)
            names = [] if self.folder is None else list_names(self._join(_PRODUCERS) or "")
            for name in names:
                if not name.startswith("."):  # no producer's: what file managers leave
                    self._add_groups(name, self._log(name).refresh())

    def check_leader(self) -> None:
        """For a process that follows: raises HostError if the process that makes steps has ended,
        or never started.
        """
        if self._leader is None:
            self._leader = LeaseWatch(self._join(STEPS) or "")
        seconds = self._leader.absence_s()
        watch = self._leader
        if seconds <= watch.limit_s:
            return
        who = (
            ""
            if watch.holder is None
            else f": {watch.holder.who}, which did, has ended or stands still"
        )
        problem = f"has nobody who makes steps, for {seconds:.0f} s{who}"
        cure = (
            "Start the run again: it goes on with the next step. The log of that process says what"
            " it died of."
        )
        if watch.holder is None:
            cure = (
                "Start the process that makes the steps, with a RolloutStore of this folder and"
                " without follow."
            )
        raise HostError(problem, field="rollouts", value=self.folder, cure=cure)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the run, as passed to :meth:`claim`; empty before."""
        return dict(self._identity)

    def claim(self, identity: dict[str, Any]) -> None:
        """Opens the store for writing, and checks or records the identity of the run.

        Args:
            identity: JSON values by name; None is not checked.

        Raises:
            PlanMismatchError: the rollouts belong to another run; names the first value that
                differs.
            ConfigError: a value is not JSON.
            CacheError: another process is writing (it is named), or the store cannot be written.
        """
        check_json(identity)
        self._check_identity(identity)
        self._claimed = identity
        self._is_closed = False
        if self.follow:
            return
        fields = {name: value for name, value in identity.items() if value is not None}
        with self.lock:
            if self.producer is not None:
                log = self._open_own(self.producer)
                own_identity = {"format_version": FORMAT_VERSION, **fields}
                if fields != self._identities.get(self.producer):
                    self._add_identity(
                        self.producer,
                        log.append(_IDENTITY, 0, to_json(own_identity)),
                        to_json(own_identity),
                    )
                return
            for record in self._steps.write():
                self._apply(record)
            self._check_identity(identity)
            if fields != self._identity:
                self._append(
                    _IDENTITY, 0, {"format_version": FORMAT_VERSION, **self._identity, **fields}
                )

    def _check_identity(self, identity: dict[str, Any]) -> None:
        for producer, stored in (("", self._identity), *sorted(self._identities.items())):
            where = self._join(_PRODUCERS, producer) if producer else self.folder
            check_identity(stored, identity, where, producer)

    def group(self, position: int) -> ScoredGroup:
        """The group of a position: its step's, if one has it, else the newest.

        Raises:
            CacheError: it is no longer stored.
            CacheCorruptError: it is damaged or lost.
        """
        with self.lock:
            source = self._source(position)
            if source is None:
                raise self._missing(position)
            record = self._groups[position][source]
            fresh = self._fresh.get(position)
        if fresh is not None and fresh[0] is record:
            return fresh[1]
        return ScoredGroup.from_bytes(
            self._log(source[0]).read(record), f"{source[0]}/{record.segment}"
        )

    def _missing(self, position: int) -> CacheError:
        step = self._used.get(position)
        pinned = self._pinned.get(position)
        if step is None or pinned is None or step < self._forgotten or not pinned[0]:
            cure = (
                "A step was asked for that forget() has let go of: resume from a later checkpoint."
            )
            return CacheError("is not stored any more", field="group", value=position, cure=cure)
        problem = (
            f"of step {step} is lost: the log of producer {pinned[0]!r} does not have it any more"
        )
        cure = (
            "Bring its file back from a copy, or take the step back with"
            f" RolloutStore.rewind({step})."
        )
        return CacheCorruptError(problem, field="group", value=position, cure=cure)

    def partial(self, position: int) -> ScoredGroup | None:
        """The partial group that an aborted call left at a position; None: there is none."""
        with self.lock:
            if position not in self._partial:
                return None
            producer, record = self._partial[position]
            return ScoredGroup.from_bytes(
                self._log(producer).read(record), f"{producer}/{record.segment}"
            )

    def put_group(self, position: int, group: ScoredGroup, *, partial: bool = False) -> None:
        """Stores the group of a position, replacing one that no step has. Can be called from
        several threads.

        Args:
            position: The position.
            group: Its group.
            partial: Whether it is incomplete: no step uses it, and sampling continues from it.
        """
        if self._is_closed:
            cure = "Close the RLDataset that samples, then its store."
            raise CacheError(
                "was closed while a group was sampled",
                field="rollouts",
                value=self.folder,
                cure=cure,
            )
        name = self.producer or CONSUMER
        data = group.to_bytes()
        if (log := self._own) is None:
            with self.lock:
                log = self._own = self._open_own(name)
        record = log.append(_PARTIAL if partial else _GROUP, position, data)
        with self.lock:
            self._add_group(name, record)
            if position in self._waiting and not partial:
                self._fresh[position] = record, group

    def refuse_group(self, position: int) -> None:
        """Marks the group of a position as too old: it is not used, and sampled again."""
        with self.lock:
            for source in self._groups.get(position, {}).keys() - self._refused:
                self._append(_REFUSED, position, source)

    def put_open_step(self, step: int, open_step: OpenStep) -> None:
        """Tells producers what a step that waits for groups has considered, and how
        many it lacks.
        """
        with self.lock:
            self._append(_OPEN_STEP, step, asdict(open_step))

    def put_share(self, share: tuple[int, int]) -> None:
        """Says which share of the positions this producer samples, unless it has said so."""
        if self.producer is None:
            raise ConfigError(
                "has no name of a producer",
                field="producer",
                value=None,
                cure="Open the store with RolloutStore(FOLDER, producer='sampler-0') to sample for"
                " it.",
            )
        with self.lock:
            if self.shares.get(self.producer) != share:
                payload = to_json(share)
                log = self._open_own(self.producer)
                self._add_share(self.producer, log.append(_SHARE, 0, payload), payload)

    @property
    def producers(self) -> dict[str, str]:
        """The folders of processes that have sampled for this run, or sample for it, by their
        names.
        """
        return {name: self._join(_PRODUCERS, name) or "" for name in self._logs if name != CONSUMER}

    def put_record(self, record: BatchRecord) -> BatchRecord:
        """Stores the record of a step, which is final, and returns it with its groups.

        Raises:
            CacheError: a position is already in another step; its group is not stored; the lease
                was lost.
        """
        with self.lock:
            for position in (*record.positions, *record.dropped):
                if position in self._used:
                    problem = (
                        f"is in step {self._used[position]} already: no prompt is in two steps"
                    )
                    raise CacheError(
                        problem, field="position", value=position, cure="Open the store anew."
                    )
            sources = [
                self._looked_at.get(position) or self._source(position)
                for position in record.positions
            ]
            if None in sources:
                missing = record.positions[sources.index(None)]
                cure = "Store it with put_group() first."
                raise CacheError(
                    "has no group that a step could use", field="position", value=missing, cure=cure
                )
            record = replace(record, groups=[source for source in sources if source is not None])
            self._append(_STEP, record.step, asdict(record))
            return record

    def forget(self, before_step: int) -> int:
        """Forgets the groups of steps before ``before_step``, but not their records; returns the
        number of groups.
        """
        with self.lock:
            steps = [r for r in self._records.values() if self._forgotten <= r.step < before_step]
            stored = [p for r in steps for p in (*r.positions, *r.dropped) if p in self._groups]
            if stored:
                self._append(_FORGET, before_step, None)
                # Who holds the lease of the steps decides which groups are kept, also those of
                # producers.
                with nullcontext() if self.folder is None else owning(self.folder):
                    for log in self._logs.values():
                        log.drop(
                            lambda record: self._used.get(record.key, before_step) < before_step
                        )
            return len(stored)

    def rewind(self, to_step: int) -> None:
        """Takes back the records of ``to_step`` and later steps: their groups are pending again.

        For a trainer that returns to an old checkpoint and wants its steps to be made again.
        """
        with self.lock:
            if any(step >= to_step for step in self._records):
                self._append(_REWIND, to_step, None)

    def describe(self) -> dict[str, Any]:
        """The content of the store, as JSON values."""
        logs = {"steps": self._steps, **self._logs}
        trained = sum(len(r.positions) for r in self._records.values())
        return {
            "path": self.folder,
            "identity": self.identity,
            "steps": len(self._records),
            "next_step": self.next_step,
            "next_position": self.next_position,
            "trained_groups": trained,
            "dropped_groups": len(self._used) - trained,
            "pending_groups": len(self.pending),
            "refused_groups": len(self._refused),
            "duplicate_groups": self.duplicate_groups,
            "lost_groups": self.lost_groups,
            "forgotten_steps": self._forgotten,
            "logs": {
                name: {
                    "records": log.num_records,
                    "closed": log.is_closed,
                    **{
                        key: getattr(log, key)
                        for key in ("torn_bytes", "fenced_records", "lost_records")
                    },
                }
                for name, log in logs.items()
            },
        }

    def _join(self, *parts: str) -> str | None:
        return None if self.folder is None else files.join(self.folder, *parts)

    def _log(self, name: str) -> AppendLog:
        if name not in self._logs:
            folder = self._join(_PRODUCERS, name)
            self._logs[name] = AppendLog(
                folder, load=_LOADED_OF_PRODUCERS, cure=_GROUPS_CURE, may_lose=True
            )
        return self._logs[name]

    def _open_own(self, name: str) -> AppendLog:
        """The log to which this process adds groups, open for writing."""
        self._add_groups(name, self._log(name).write())
        return self._log(name)

    def _append(self, kind: int, key: int, value: object) -> None:
        if self.follow:
            cure = "Leave it to the process that makes the steps."
            raise ConfigError("only reads", field="follow", value=True, cure=cure)
        if self.producer is not None:
            cure = "Open it without a producer's name in the process that trains."
            raise ConfigError("only adds groups", field="producer", value=self.producer, cure=cure)
        self._steps.write()
        payload = to_json(value)
        self._apply(replace(self._steps.append(kind, key, payload), payload=payload))

    def _apply(self, record: Record) -> None:
        """Applies a record of the consumer's log."""
        name = f"{STEPS}/{record.segment}"
        if record.kind == _STEP:
            self._add_step(BatchRecord.from_json(record.payload, name))
        elif record.kind == _IDENTITY:
            self._identity = read_identity(record.payload, name)
            if self._claimed is not None:
                self._check_identity(self._claimed)
        elif record.kind == _REFUSED:
            try:
                self._refused.add(msgspec.json.decode(record.payload, type=Source))
                self._set_waiting(record.key)
            except msgspec.MsgspecError as error:
                raise CacheCorruptError(
                    "is no record of a refused group", field="segment", value=name
                ) from error
        elif record.kind == _OPEN_STEP:
            self._apply_open_step(record)
        elif record.kind == _REWIND:
            self._take_back(record.key)
            if self.producer is not None:
                self.look_anew()
        elif record.kind == _FORGET:
            self._let_go(record.key)

    def _apply_open_step(self, record: Record) -> None:
        """Follows the step that another process makes. The process that makes it has its own, newer
        view.
        """
        if self.producer is None:
            return
        try:
            open_step = msgspec.json.decode(record.payload, type=OpenStep)
        except msgspec.MsgspecError as error:
            raise CacheCorruptError(
                "is no record of an open step", field="segment", value=record.segment
            ) from error
        if open_step.begins:
            self.look_anew()
        for position in open_step.considered:
            self.look_at(position)
        self.needed = open_step.needed

    def _add_share(self, name: str, record: Record, payload: bytes) -> None:
        try:
            self.shares[name] = msgspec.json.decode(payload, type=tuple[int, int])
        except msgspec.MsgspecError as error:
            raise CacheCorruptError(
                "is no record of a producer's share", field="segment", value=record.segment
            ) from error

    def _add_groups(self, name: str, records: Iterable[Record]) -> None:
        for record in records:
            if record.kind == _IDENTITY:
                self._add_identity(name, record, record.payload)
            elif record.kind == _SHARE:
                self._add_share(name, record, record.payload)
            self._add_group(name, record)

    def _add_identity(self, name: str, record: Record, payload: bytes) -> None:
        self._identities[name] = read_identity(payload, f"{_PRODUCERS}/{name}/{record.segment}")
        if self._claimed is not None:
            self._check_identity(self._claimed)

    def _add_group(self, name: str, record: Record) -> None:
        if record.kind == _GROUP:
            self._add_source((name, record.writer, record.number, record.checksum), record)
        elif record.kind == _PARTIAL and record.key not in self._used:
            self._partial[record.key] = name, record
