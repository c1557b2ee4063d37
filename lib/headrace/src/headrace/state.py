"""The state of a run: which run it is (a manifest) and how far it got (a step).

``RunManifest`` describes everything that determines the batches and carries its fingerprint. It is written once, into
the run's folder; a resumed run must resolve to the same one, or is refused with the difference shown. Devices, hosts,
budgets and paths are not part of it: they may change freely.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import ConfigError, PlanMismatchError
from headrace.store import files

MANIFEST_NAME = "manifest.json"
_SHOWN_DIFFERENCES = 20


class Described(Protocol):
    """Anything that describes what determines its batches: a :class:`~headrace.feed.loader.DataLoader`."""

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LoaderState:
    """Where a run is. Goes into any checkpoint; a few bytes of JSON.

    Attributes:
        step: The next step to load: as many steps as were done.
        fingerprint: Of the run's manifest.

    Example:
        >>> LoaderState.from_json(LoaderState(step=120, fingerprint="ab").to_json())
        LoaderState(step=120, fingerprint='ab')
    """

    step: int
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"step": self.step, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoaderState:
        """From JSON values.

        Raises:
            ConfigError: a key is missing or of the wrong kind.
        """
        step, fingerprint = data.get("step"), data.get("fingerprint")
        if not isinstance(step, int) or not isinstance(fingerprint, str):
            raise ConfigError(
                "is not a loader's state", field="state", value=dict(data), cure="It needs 'step' and 'fingerprint'."
            )
        return cls(step, fingerprint)


@dataclass(frozen=True)
class RunManifest:
    """What a run reads, in which order.

    Attributes:
        resolved: Description of the loader with all defaults and derived values filled in, JSON values.
    """

    resolved: dict[str, Any]

    @classmethod
    def of(cls, loader: Described) -> RunManifest:
        """The manifest of a loader."""
        return cls(json.loads(json.dumps(loader.describe())))  # as it will read back: string keys, lists

    @property
    def fingerprint(self) -> str:
        """Hex digest; equal for runs that load the same batches from the same data."""
        canonical = json.dumps(self.resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    def state(self, step: int) -> LoaderState:
        """The state to save after ``step`` steps are done."""
        return LoaderState(step, self.fingerprint)

    def check(self, state: LoaderState) -> None:
        """Raises PlanMismatchError unless a saved state belongs to this run."""
        if state.fingerprint != self.fingerprint:
            raise PlanMismatchError(
                f"belongs to another run than {self.fingerprint}: its data, order or mixture differ",
                field="state.fingerprint",
                value=state.fingerprint,
                cure="Resume with the run's own config; the manifest in its folder shows the difference.",
            )

    def check_same(self, other: RunManifest) -> None:
        """Raises PlanMismatchError, with the differences, unless ``other`` is this run."""
        if other.fingerprint == self.fingerprint:
            return
        lines = differences(self.resolved, other.resolved)
        shown = "; ".join(lines[:_SHOWN_DIFFERENCES])
        more = f"; and {len(lines) - _SHOWN_DIFFERENCES} more" if len(lines) > _SHOWN_DIFFERENCES else ""
        raise PlanMismatchError(
            f"the run was started with another plan: {shown}{more}",
            field="config",
            cure="Go back to the run's config, or start a new run in another folder.",
        )

    def save(self, folder: str) -> None:
        """Writes the manifest into a run's folder, atomically."""
        text = json.dumps({"fingerprint": self.fingerprint, "resolved": self.resolved}, indent=1, sort_keys=True)
        files.write_atomic(files.join(folder, MANIFEST_NAME), text.encode() + b"\n")

    @classmethod
    def load(cls, folder: str) -> RunManifest | None:
        """The manifest in a folder; None if there is none.

        Raises:
            ConfigError: the file is not a manifest.
        """
        url = files.join(folder, MANIFEST_NAME)
        raw = files.read_bytes(url)
        if raw is None:
            return None
        try:
            return cls(dict(json.loads(raw)["resolved"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"is not a run's manifest ({error})", field="manifest", value=url) from error


def open_run(folder: str, loader: Described) -> RunManifest:
    """Starts a run in ``folder``, or makes sure that the run there is the same one.

    Raises:
        PlanMismatchError: the folder holds another run; the differences are shown.
    """
    mine = RunManifest.of(loader)
    theirs = RunManifest.load(folder)
    if theirs is None:
        mine.save(folder)
    else:
        theirs.check_same(mine)
    return mine


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Differing leaves of two JSON values, as ``path: old -> new``.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}})
        ['a.c: 2 -> 3', 'a.d: nothing -> 4']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in [*old, *(k for k in new if k not in old)]:
            at = f"{path}.{key}" if path else str(key)
            if key not in new:
                lines.append(f"{at}: {_short(old[key])} -> nothing")
            elif key not in old:
                lines.append(f"{at}: nothing -> {_short(new[key])}")
            else:
                lines += differences(old[key], new[key], at)
        return lines
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
