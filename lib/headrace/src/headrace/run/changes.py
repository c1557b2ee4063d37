"""Changes of a run's config: which of the user's fields differ, and the amendment that would allow
it.

A run's manifest stores the fields of the config that it was started with. Its mixture may change
from a future step on; everything else identifies the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from headrace.config.lm_data import LmDataConfig
from headrace.config.parsing import decode
from headrace.config.writing import given_fields, whole_if_it_is
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.mix.amendments import number_of_each, weights_by_place
from headrace.mix.blend import is_size_rule
from headrace.mix.stage_config import AmendmentConfig, added_later
from headrace.run.differences import config_differences, differences
from headrace.run.manifest import RunManifest
from headrace.store.snapshots import history_of

_Entries: TypeAlias = dict[str, tuple[tuple[str, ...], Any]]
"""For each entry of a blend, by name: the groups that contain it, and its weight."""


@dataclass(frozen=True)
class RunChanges:
    """What an edited config changes in a run.

    Attributes:
        same: Whether both are the same run.
        fields: Differences of the config, as ``path: old -> new``; None: the run's manifest has no
            config.
        resolved: Differences of the resolved configs, in the same form.
        first_step: First step that differs, if the edited config amends the run or the run amends
            the config; else None.
        amendment: The amendment that changes the run's mixture to the edited one; None: there is
            none.
        refused: Fields that no amendment can change, in the form of ``fields``.
    """

    same: bool
    fields: list[str] | None
    resolved: list[str]
    first_step: int | None = None
    amendment: AmendmentConfig | None = None
    refused: Sequence[str] = ()


def run_changes(manifest: RunManifest, edited: LmDataConfig, step: int) -> RunChanges:
    """What an edited config changes in a run, and the amendment for it.

    Opens the ledgers of the caches, reads no tokens.

    Args:
        manifest: The run's manifest.
        edited: The edited config.
        step: Where an amendment would begin: the first step that is not trained on yet.

    Raises:
        ConfigError: the edited config cannot be used; its field is named.
    """
    edited_manifest = _manifest_of(edited)
    resolved = differences(manifest.resolved, edited_manifest.resolved)
    fields = (
        None
        if manifest.config is None
        else config_differences(manifest.config, edited_manifest.config or {})
    )
    first = edited_manifest.amends(manifest)
    if edited_manifest.fingerprint == manifest.fingerprint or first is not None:
        return RunChanges(first is None, fields, resolved, first)
    if (first := manifest.amends(edited_manifest)) is not None or manifest.config is None:
        return RunChanges(False, fields, resolved, first)
    began = _as_declared(decode(LmDataConfig, manifest.config), edited)
    # after what is declared: amendments stand in the order of their steps
    step = max(step, 1, *(amendment.step + 1 for amendment in began.amendments))
    amendment = amendment_between(began, edited, step)
    amended = edited if amendment is None else _amended(began, edited, amendment)
    if amendment is not None and _manifest_of(amended).amends(manifest) is not None:
        return RunChanges(False, fields, resolved, None, amendment)
    refused = config_differences(
        manifest.config, given_fields(replace(amended, amendments=began.amendments))
    )
    return RunChanges(False, fields, resolved, None, amendment, refused)


def _as_declared(began: LmDataConfig, edited: LmDataConfig) -> LmDataConfig:
    """The run's config with the amendments that an edited one declares, and the components that
    these add.
    """
    if edited.amendments == began.amendments:
        return began
    added = added_later(edited.amendments)
    new = {
        name: replace(part, weight=None)
        for name, part in edited.components.items()
        if name in added and name not in began.components
    }
    try:
        components = {**began.components, **new}
        return replace(began, components=components, amendments=edited.amendments)
    except ConfigError:  # they do not fit the run
        return began


def amendment_between(
    began: LmDataConfig, edited: LmDataConfig, step: int
) -> AmendmentConfig | None:
    """The amendment that changes one config's mixture to another's; None if they are equal or no
    amendment can.

    Example:
        >>> from headrace.config.component import ComponentConfig
        >>> began = LmDataConfig(
        ...     {"web": ComponentConfig("web", 3), "code": ComponentConfig("code")}
        ... )
        >>> edited = LmDataConfig(
        ...     {"web": ComponentConfig("web", 2), "math": ComponentConfig("math")}
        ... )
        >>> amendment_between(began, edited, 60)
        AmendmentConfig(step=60, add={'math': 1}, weights={'web': 2}, drop=['code'], caches={})
    """
    sized = any(is_size_rule(config.weights or {}, config.components) for config in (began, edited))
    if edited.stages or began.stages or edited.amendments != began.amendments or sized:
        return None
    old_entries = _entries(_mixture(began))
    new_entries = _entries(_mixture(edited))
    drop = [name for name in old_entries if name not in new_entries]
    add = {
        name: new_entries[name][1]
        for name in new_entries
        if name not in old_entries and not new_entries[name][0]
    }
    shared = [name for name in new_entries if name in old_entries]
    weights = {
        name: new_entries[name][1]
        for name in shared
        if differences(*_as_stored(old_entries[name][1], new_entries[name][1]))
    }
    moved = any(new_entries[name][0] != old_entries[name][0] for name in shared)
    inside = any(
        name not in old_entries and groups and groups[-1] in old_entries
        for name, (groups, _) in new_entries.items()
    )
    if moved or inside or not (drop or add or weights):
        return None
    dropped = [name for name in drop if not any(group in drop for group in old_entries[name][0])]
    return AmendmentConfig(step, add=add, weights=weights, drop=dropped)


def _amended(began: LmDataConfig, edited: LmDataConfig, amendment: AmendmentConfig) -> LmDataConfig:
    """The edited config with the run's mixture and an amendment, as a user would write it."""
    weighted = edited.weights is None
    components = {
        name: replace(edited.components.get(name, part), weight=part.weight)
        for name, part in began.components.items()
    }
    new = {name: part for name, part in edited.components.items() if name not in began.components}
    components |= (
        {name: replace(part, weight=None) for name, part in new.items()} if weighted else new
    )
    return replace(
        edited,
        components=components,
        weights=began.weights,
        amendments=[*began.amendments, amendment],
    )


def _mixture(config: LmDataConfig) -> Mapping[str, Any]:
    """The blend to which a config's amendments apply."""
    if config.weights is not None:
        return config.weights
    weights = {
        name: 1 if part.weight is None else part.weight for name, part in config.components.items()
    }
    for amendment in config.amendments:
        weights = (
            {n: w for n, w in weights.items() if n not in amendment.drop}
            | amendment.weights
            | amendment.add
        )
    return weights


def _entries(blend: Mapping[str, Any]) -> _Entries:
    return {path[-1]: (path[:-1], whole_if_it_is(w)) for path, w in weights_by_place(blend).items()}


def _as_stored(*values: Any) -> Any:
    """Values as a manifest stores them, with steps as strings."""
    return json.loads(json.dumps(values))


def newer_snapshots(config: LmDataConfig) -> dict[str, int | list[int]]:
    """The newest snapshot of each component's cache that a config does not use yet, as its run was
    started, in the form of an amendment's ``caches``: a list for a component of several caches.
    """
    reached = {
        name: [snapshot.number for snapshot in cache.snapshots]
        for name, cache in config.open_caches().items()
    }
    for amendment in config.amendments:
        for name, numbers in amendment.caches.items():
            reached[name] = number_of_each(numbers)
    newer: dict[str, int | list[int]] = {}
    for name, component in config.components.items():
        named = name if component.buckets is None else name.rpartition("/")[0]
        newest = [history_of(path).newest for path in component.caches]
        if newest != reached.get(named, reached[name]):
            newer[named] = newest if newest[1:] else newest[0]
    return newer


def _manifest_of(config: LmDataConfig) -> RunManifest:
    return RunManifest.of(BatchOrder(config.dataset(), row_order=config.row_order))
