"""The lock of a run: which run it is. It is read before anything is built.

A run is a folder with ``lock.json``: the config with which the run goes on, at the state of its
caches that it trains on and with its amendments, and the plan that follows from it, which has a
fingerprint. It is written when the run begins and when it is amended. A resumed run takes its
mixture and the states of its caches from the lock, so that neither a cache that has grown nor a
release with other defaults changes a batch; then the plan of the dataset that was built must be
that of the lock, or the run is refused, and the error shows the differences. Devices, hosts,
budgets and paths are not part of it: they may change freely.

Beside the lock, the folder has anchors (:mod:`headrace.run.anchors`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from headrace.config.writing import given_fields, without_gone
from headrace.errors import ConfigError, PlanMismatchError, command_line, did_you_mean
from headrace.run.differences import (
    config_differences,
    differences,
    first_difference,
    first_mixture,
    names_of,
)
from headrace.run.state import FINGERPRINT_DIGITS, LoaderState, steps_done
from headrace.store import files
from headrace.store.records import RecordKind, read_record, write_record

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig
    from headrace.data.mixture import MixtureDataset
    from headrace.mix.stage_config import AmendmentConfig
    from headrace.mix.stages import Stage

LOCK_NAME = "lock.json"
_SHOWN_DIFFERENCES = 20
# Fields that ``run amend`` changes; the rest identifies a run
_AMENDABLE = ("components", "weights", "stages", "amendments")


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file; see :class:`RunLock`. What people look for comes first."""

    history: list[dict[str, Any]]
    config: dict[str, Any] | None
    edited: dict[str, Any] | None
    plan: dict[str, Any]
    documents: dict[str, str] = {}


_LOCK = RecordKind("run lock", 1, _Content, indented=True)


class Described(Protocol):
    """An object that describes what determines its batches, such as a
    :class:`~headrace.feed.loader.DataLoader`.
    """

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RunLock:
    """What a run reads, in which order.

    Attributes:
        plan: Description of the loader with all defaults and derived values filled in, JSON values.
        history: Plans that this one amends, oldest first: ``fingerprint``, and ``until_step``, the
            first step that they no longer determine.
        config: Fields of the config with which the run goes on: pinned to states of its caches, and
            with all amendments; None: it has no config. Not part of the run's identity.
        edited: Fields of the user's own config at the last change: as long as its mixture is the
            same, the mixture of ``config`` is meant.
        documents: Digest of the documents of each component, buckets included, by name: where it is
            that of another run, whatever the names, what was learned of them there holds here. Not
            part of the run's identity; empty in locks of earlier releases.
    """

    plan: dict[str, Any]
    history: tuple[dict[str, Any], ...] = ()
    config: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    edited: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    documents: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, loader: Described, edited: LmDataConfig | None = None) -> RunLock:
        """The lock of a loader.

        Args:
            loader: The loader, or anything that describes itself as one does.
            edited: The user's config, from which that of the run was made; None: they are the same.
        """
        # as it will be read: string keys, lists
        plan = json.loads(json.dumps(loader.describe(), default=_plain))
        config: LmDataConfig | None = getattr(planned_by(loader), "config", None)
        mixture = mixture_at(loader, 0)
        documents = {} if mixture is None else mixture.documents_digests()
        if config is None:
            return cls(plan, documents=documents)
        return cls(
            plan,
            config=fields_of_run(_pinned(config, plan)),
            edited=given_fields(config if edited is None else edited),
            documents=documents,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest; equal for runs that load the same batches from the same data."""
        canonical = json.dumps(self.plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_DIGITS]

    @cached_property
    def run_config(self) -> LmDataConfig:
        """The config with which the run goes on."""
        from headrace.config.lm_data import LmDataConfig
        from headrace.config.parsing import decode

        return decode(LmDataConfig, self.config or {})

    def state(self, step: int) -> LoaderState:
        """The state after ``step`` steps, for a checkpoint."""
        return LoaderState(steps_done(step), self.fingerprint)

    def check(self, state: LoaderState) -> None:
        """Raises PlanMismatchError unless a saved state belongs to this run, or to its part before
        an amendment.
        """
        if not isinstance(state, LoaderState):
            raise ConfigError(
                "is no LoaderState", field="state", value=state, cure="See LoaderState.from_dict."
            )
        earlier = [
            h
            for h in self.history
            if h["fingerprint"] == state.fingerprint and state.step <= h["until_step"]
        ]
        if state.fingerprint != self.fingerprint and not earlier:
            cure = "Resume with the run's own config; the lock in its folder shows the difference."
            problem = (
                f"belongs to another run than {self.fingerprint}: its data, order or mixture differ"
            )
            raise PlanMismatchError(
                problem, field="state.fingerprint", value=state.fingerprint, cure=cure
            )

    def first_difference(self, earlier: RunLock, *, declared: bool = False) -> int | None:
        """The step from which on this run differs from an earlier one, by what may change while a
        run goes on; None if it differs by more.

        Args:
            earlier: The earlier run.
            declared: Whether all stages of the earlier run must be in this one as they were.
        """
        return first_difference(self.plan, earlier.plan, declared=declared)

    def check_same(self, other: RunLock, folder: str = "RUN") -> None:
        """Raises PlanMismatchError, with the differences, unless ``other`` is this run, whose
        folder is named.
        """
        if other.fingerprint == self.fingerprint:
            return
        fields: list[str] = []
        if self.edited is not None and other.edited is not None:
            fields = config_differences(self.edited, other.edited)
        lines = fields or differences(self.plan, other.plan)
        listed = "; ".join(lines[:_SHOWN_DIFFERENCES])
        if more := len(lines[_SHOWN_DIFFERENCES:]):
            listed += f"; and {more} more"
        cure = "Go back to the run's config, or take another folder."
        if fields and all(line.startswith(_AMENDABLE) for line in fields):
            cure += f" To change it: {command_line('run amend', folder, 'CONFIG')}"
        raise PlanMismatchError(
            f"the run has another {'config' if fields else 'plan'}: {listed}",
            field="config",
            cure=cure,
        )

    def through_functions_of(self, run: RunLock) -> RunLock:
        """The same, with batches that pass through the functions of a run: a config has none, so
        whoever compares it with a run that was opened with some takes it to have the same.
        """
        own_dataset = self.plan["dataset"]
        dataset = _within_functions(run.plan["dataset"], lambda _: own_dataset)
        return replace(self, plan={**self.plan, "dataset": dataset})

    def amended_by(self, new: RunLock, first_step: int) -> RunLock:
        """The lock after an amendment, with this one in its history."""
        amended = {"fingerprint": self.fingerprint, "until_step": first_step}
        return replace(new, history=(*self.history, amended))

    def reweighed(self, amendment: AmendmentConfig, stage: Stage) -> RunLock:
        """The lock after an amendment that adds a last stage, and changes nothing else."""

        def with_last_stage(mixture: Mapping[str, Any]) -> dict[str, Any]:
            return {**mixture, "stages": [*mixture["stages"], stage.describe()]}

        plan = {
            **self.plan,
            "dataset": _within_functions(self.plan["dataset"], with_last_stage),
        }
        config = self.config or {}
        amendments = [*config.get("amendments", []), given_fields(amendment)]
        new = replace(self, plan=plan, config={**config, "amendments": amendments})
        return self.amended_by(new, amendment.step)

    def save(self, folder: str) -> None:
        """Writes the lock into a run's folder, atomically. All processes of a run may do so at the
        same time.
        """
        content = _Content([*self.history], self.config, self.edited, self.plan, self.documents)
        url = files.join(folder, LOCK_NAME)
        write_record(url, _LOCK, content, self.fingerprint, shared=True)

    @classmethod
    def load(cls, folder: str) -> RunLock | None:
        """The lock in a folder; None if there is none.

        Raises:
            CacheCorruptError: the file is not a run's lock, is damaged or of another version.
        """
        cure = "Restore it, or take another folder for this run."
        content = read_record(files.join(folder, LOCK_NAME), _LOCK, cure=cure)
        if content is None:
            return None
        # Locks older than this field are of runs whose strands follow from the batch
        config = content.config and {"max_hosts": None, **without_gone(content.config)}
        edited = content.edited and without_gone(content.edited)
        return cls(content.plan, tuple(content.history), config, edited, content.documents)


def no_run_in(folder: str, field: str, or_else: str = "") -> ConfigError:
    """The error of a folder that is not that of a run; names the runs near it, on this machine."""
    cure = f"Name the folder passed to open_run{or_else}."
    if files.is_local(folder):
        path = Path(folder)
        # in it, or in the folder in which it was expected, at most two above: runs/1 or 7b/runs/1
        there = next((one for one in (path, *list(path.parents)[:2]) if one.is_dir()), path)
        locks = [lock for depth in ("", "*/", "*/*/") for lock in there.glob(depth + LOCK_NAME)]
        if locks:
            cure += f" {did_you_mean(folder, [str(lock.parent) for lock in locks])}"
    problem = f"is not the folder of a run: it has no {LOCK_NAME}"
    return ConfigError(problem, field=field, value=folder, cure=cure)


def planned_by(loader: object) -> Any:
    """The loader's dataset without ``map`` wrappers; None if it has none."""
    return getattr(getattr(loader, "dataset", None), "planned", None)


def mixture_at(loader: object, step: int) -> MixtureDataset | None:
    """The loader's mixture at ``step``, for the row length of that step; None if it has none."""
    planned = planned_by(loader)
    return None if planned is None else planned.at_step(step)[0].mixture


def _within_functions(
    dataset: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The description of a dataset with a change of what its functions, if it has some, are applied
    to.
    """
    if "map" in dataset:
        return {**dataset, "of": _within_functions(dataset["of"], change)}
    return change(dataset)


def fields_of_run(config: LmDataConfig) -> dict[str, Any]:
    """The fields of a config that a lock has: those that were given, and on how many hosts the
    order depends, whatever later releases take for granted.
    """
    return given_fields(config) | {"max_hosts": config.max_hosts}


def _pinned(config: LmDataConfig, plan: Mapping[str, Any]) -> LmDataConfig:
    """A config that names the snapshots of its caches which a plan describes."""
    try:
        later = first_mixture(plan["dataset"]).get("snapshots", {})
        snapshots = {name: later.get(name, ()) for name in names_of(plan["dataset"])}
    except (KeyError, TypeError, IndexError, AttributeError):  # not a mixture
        return config
    return at_snapshots(config, snapshots)


def at_snapshots(config: LmDataConfig, snapshots: Mapping[str, Sequence[int]]) -> LmDataConfig:
    """A config whose components start at these snapshots of their caches (empty: the first), by
    name, where they name none themselves.
    """
    components = {
        name: replace(part, snapshot=[*snapshots[name]] or [1] * len(part.caches))
        if name in snapshots and part.snapshot is None
        else part
        for name, part in config.components.items()
    }
    return config if components == config.components else replace(config, components=components)


def _plain(value: object) -> int | float:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
