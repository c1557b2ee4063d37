"""Records of steps, and the identity of the run that rollouts belong to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    ConfigError,
    PlanMismatchError,
    of_another_version,
)
from headrace.store.ledger import prepare_types

FORMAT_VERSION = 2

_CURES = {
    "prompts": "Give the prompts of that run, or another folder.",
    "prompts_digest": "Give the prompts of that run, in their order, or another folder.",
    "tokenizer": "Use that tokenizer, or another folder.",
}

Source = tuple[str, int, int, int]
"""Identifies a group: the producer's name, the numbers of its writer and of the record, the
checksum.
"""


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
        groups: The group of each of ``positions``.
        metrics: Figures of the step, by name (:mod:`headrace_posttrain.rollouts.rollout_metrics`).
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

    Raises:
        CacheCorruptError: the bytes are something else.
        CacheError: another version of headrace wrote them.
    """
    try:
        identity = dict[str, Any](json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"does not say whose rollouts these are ({error})"
        raise CacheCorruptError(problem, field="file", value=name) from error
    version = identity.pop("format_version", None)
    if version != FORMAT_VERSION:
        problem = of_another_version(version, FORMAT_VERSION)
        cure = "Sample the rollouts anew, into a folder of their own."
        raise CacheError(problem, field="file", value=name, cure=cure)
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
            cure = (
                "Give text, numbers, booleans, None, and lists and mappings of them, with text for"
                " keys."
            )
            raise ConfigError(
                "cannot be stored as JSON", field=f"identity.{name}", value=value, cure=cure
            )


def check_identity(
    stored: dict[str, Any], identity: dict[str, Any], where: str | None, producer: str
) -> None:
    """Raises PlanMismatchError if the rollouts in a folder (of a producer, if one is named) belong
    to another run.
    """
    for name, value in sorted(stored.items()):
        if value == identity.get(name):
            continue
        problem = f"differs: the rollouts in {where} are of a run with {value!r}"
        cure = _CURES.get(name, f"Set it to {value!r}, or use another folder.")
        if producer:
            cure = f"{cure} If that producer was started with the wrong one, delete {where}."
        raise PlanMismatchError(problem, field=name, value=identity.get(name), cure=cure)
