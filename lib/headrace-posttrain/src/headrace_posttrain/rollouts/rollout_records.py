"""Records of steps; and the rollout files of earlier releases, which can still be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.store import files, owned
from headrace.store.ledger import prepare_types
from headrace.store.log_segments import list_names

FORMAT_VERSION = 2
_GROUPS = "groups"
_STEPS = "batches"
_IDENTITY = "run.json"

_CURES = {
    "prompts": "Give the prompts of that run, or another folder.",
    "prompts_digest": "Give the prompts of that run, in their order, or another folder.",
    "tokenizer": "Use that tokenizer, or another folder.",
}

Source = tuple[str, int, int, int]
"""Identifies a group: the producer's name, the numbers of its writer and of the record, the checksum. Groups of earlier
releases have no producer, and their position as the record's number."""


@dataclass(frozen=True)
class BatchRecord:
    """The groups of a step.

    Attributes:
        step: The step.
        positions: Positions of the prompts whose groups it trains on, ascending.
        dropped: Positions that were left out, and why.
        next_position: The first position that no step has used or left out, nor any later one.
        policy_version: The trainer's version when the step was made.
        counts: Counters of the step, by name.
        oldest: The oldest policy whose tokens it trains on; None: it trains on all.
        groups: The group of each of ``positions``; empty in records of earlier releases.
        metrics: Figures of the step, by name (:mod:`headrace_posttrain.rollouts.rollout_metrics`); empty in these.
    """

    step: int
    positions: list[int]
    dropped: dict[int, str]
    next_position: int
    policy_version: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    oldest: int | None = None
    groups: list[Source] = field(default_factory=list[Source])
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> BatchRecord:
        """Parses a record; raises CacheCorruptError if the bytes are something else."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CacheCorruptError("is no record of a step", field="file", value=name) from error


@dataclass(frozen=True)
class OpenStep:
    """What producers need to know of a step that waits for groups.

    Attributes:
        begins: Whether it has told nothing before: what an earlier attempt considered is void.
        considered: Positions that it has taken or left out, and has not told before.
        needed: Groups that it still lacks.
    """

    begins: bool
    considered: list[int]
    needed: int


prepare_types(BatchRecord, OpenStep)


def read_identity(data: bytes, name: str) -> dict[str, Any]:
    """Parses the identity of the run that rollouts belong to.

    Raises: CacheCorruptError: the bytes are something else. CacheError: a newer release wrote them.
    """
    try:
        identity = dict[str, Any](json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"does not say whose rollouts these are ({error})"
        raise CacheCorruptError(problem, field="file", value=name) from error
    version = identity.pop("format_version", 1)
    if version not in range(1, FORMAT_VERSION + 1):
        problem = f"has rollouts of format {version!r}, which a newer release wrote"
        raise CacheError(problem, field="file", value=name, cure="Use that release.")
    return identity


def to_json(value: object) -> bytes:
    """As the bytes of a record."""
    return json.dumps(value, sort_keys=True).encode()


def check_json(identity: dict[str, Any]) -> None:
    """Raises ConfigError for a value that would not be read back from the log unchanged."""
    for name, value in identity.items():
        try:
            decoded = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            decoded = ...
        if decoded != value:
            cure = "Give text, numbers, booleans, None, and lists and mappings of them, with text for keys."
            raise ConfigError(
                "cannot be stored as JSON", field=f"identity.{name}", value=value, cure=cure
            )


def check_identity(
    stored: dict[str, Any], identity: dict[str, Any], where: str | None, producer: str
) -> None:
    """Raises PlanMismatchError if the rollouts in a folder (of a producer, if one is named) belong to another run."""
    for name, value in sorted(stored.items()):
        if value == identity.get(name):
            continue
        problem = f"differs: the rollouts in {where} are of a run with {value!r}"
        cure = _CURES.get(name, f"Set it to {value!r}, or use another folder.")
        if producer:
            cure = f"{cure} If that producer was started with the wrong one, delete {where}."
        raise PlanMismatchError(problem, field=name, value=identity.get(name), cure=cure)


class EarlierRollouts:
    """Rollouts in the format before the log: one file per group, one per step, one for the run's identity."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Whether there are such files."""
        return self.folder is not None and all(
            files.exists(files.join(self.folder, name)) for name in (_IDENTITY, _GROUPS)
        )

    def identity(self) -> dict[str, Any]:
        """The identity of their run; empty if there are none."""
        data = None if self.folder is None else files.read_bytes(files.join(self.folder, _IDENTITY))
        return {} if data is None else read_identity(data, f"{self.folder}/{_IDENTITY}")

    def records(self) -> Iterator[BatchRecord]:
        """Their steps."""
        for name in self._names(_STEPS, ".json"):
            url = files.join(self.folder or "", _STEPS, name)
            yield BatchRecord.from_json(files.read_bytes(url) or b"", f"{_STEPS}/{name}")

    def positions(self) -> list[int]:
        """Positions of their groups."""
        return [int(Path(name).stem) for name in self._names(_GROUPS, ".npz")]

    def group(self, position: int) -> bytes:
        """The bytes of a group."""
        return files.read_bytes(self._file(position)) or b""

    def remove(self, position: int) -> None:
        """Deletes a group."""
        owned.remove_tree(self._file(position))

    def _file(self, position: int) -> str:
        return files.join(self.folder or "", _GROUPS, f"{position:012d}.npz")

    def _names(self, folder: str, suffix: str) -> list[str]:
        names = [] if self.folder is None else list_names(files.join(self.folder, folder))
        return [
            name for name in names if name.endswith(suffix) and name[: -len(suffix)].isdecimal()
        ]
