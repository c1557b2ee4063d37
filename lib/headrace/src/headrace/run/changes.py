"""Changes of a run's config: what of the user's mixture is the run's, which fields differ, and the
amendment that changes the run.

A run's lock stores the fields of the config with which it goes on. Its mixture may change from a
future step on; everything else identifies the run.

An edited config says the mixture that is wanted; the lock knows the mixtures that were. An
amendment is the difference between the last of these and the wanted one: entries that are new,
gone, or have another weight. A run with stages gets other stages from its step on instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headrace.config.lm_data import LmDataConfig
from headrace.config.writing import given_fields, whole_if_it_is
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError, PlanMismatchError
from headrace.mix.amendments import number_of_each, weights_by_place, without_extensions
from headrace.mix.plan import added_later
from headrace.mix.stage_config import (
    AmendmentConfig,
    StageConfig,
    last_change,
    with_amendment,
)
from headrace.run.differences import config_differences, differences
from headrace.run.lock import RunLock, at_snapshots, fields_of_run
from headrace.store.snapshots import history_of

if TYPE_CHECKING:
    from headrace.batch.packed_batch import PackedBatch
    from headrace.data.phased import RunDataset

_Entries: TypeAlias = dict[str, tuple[tuple[str, ...], Any]]
"""For each entry of a blend, by name: the groups that contain it, and its weight."""


def config_of_run(lock: RunLock | None, edited: LmDataConfig) -> LmDataConfig:
    """The config with which a run goes on, from the user's: with the sources in the order of the
    run, at the states of their caches in the lock, and with the mixture of the lock, unless the
    user edited theirs since.

    Args:
        lock: The lock of the run; None: the run is new.
        edited: The user's config.
    """
    if lock is None or lock.config is None or lock.edited is None:
        return edited
    edited = in_order_of_run(edited, lock.config)
    locked = lock.run_config
    mixture = _mixture_of_run(lock, edited)
    if mixture is not None:
        edited = _with_mixture(edited, mixture)
    # 0 stands for a field that was left out
    if given_fields(edited).get("max_hosts", 0) == lock.edited.get("max_hosts", 0):
        edited = replace(edited, max_hosts=locked.max_hosts)
    snapshots = {
        name: number_of_each(part.snapshot)
        for name, part in locked.components.items()
        if part.snapshot is not None
    }
    return at_snapshots(edited, snapshots)


def only_declares(lock: RunLock, edited: LmDataConfig) -> bool:
    """Whether amendments that an edited config declares are all that it changes of the mixture: the
    run keeps all changes that its lock has.
    """
    return _mixture_of_run(lock, edited) is not None


def _mixture_of_run(lock: RunLock, edited: LmDataConfig) -> LmDataConfig | None:
    """The config of a run, with the weights that it has learned, with what was changed while it
    trained, and with the amendments that an edited config declares; None: they do not fit, or the
    user edited the mixture otherwise, too.
    """
    if lock.config is None or lock.edited is None:
        return None
    declared = _declared_anew(lock, edited)
    newcomers = added_later(declared) - {*lock.edited.get("components", {})}
    if _mixture_fields(given_fields(edited), declared, newcomers) != _mixture_fields(lock.edited):
        return None
    return _declaring(lock.run_config, edited, declared)


def _declared_anew(lock: RunLock, edited: LmDataConfig) -> list[AmendmentConfig]:
    """The amendments that an edited config declares and the run's config did not before."""
    before = (lock.edited or {}).get("amendments", [])
    return [one for one in edited.amendments if given_fields(one) not in before]


def _mixture_fields(
    fields: Mapping[str, Any],
    but_for: Sequence[AmendmentConfig] = (),
    newcomers: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of a config that say its mixture, without some amendments and components."""
    components: Mapping[str, Any] = fields.get("components", {})
    declared = [given_fields(one) for one in but_for]
    return {
        "weights": fields.get("weights"),
        "stages": fields.get("stages"),
        "amendments": [one for one in fields.get("amendments", []) if one not in declared],
        "components": {n: one.get("weight") for n, one in components.items() if n not in newcomers},
    }


def _with_mixture(edited: LmDataConfig, locked: LmDataConfig) -> LmDataConfig:
    """A config with the mixture of another; sources that it no longer names are those of the
    other.
    """
    components = {
        name: replace(edited.components.get(name, part), weight=part.weight)
        for name, part in locked.components.items()
    }
    return replace(
        edited,
        components=components,
        weights=locked.weights,
        stages=locked.stages,
        amendments=locked.amendments,
    )


@dataclass(frozen=True)
class RunChanges:
    """What an edited config changes in a run.

    Attributes:
        same: Whether both are the same run.
        fields: Differences of the user's config, as ``path: old -> new``; None: the run has no
            config.
        plan: Differences of the plans, in the same form.
        first_step: First step that differs; None: none does, or the change is refused.
        amendment: The amendment that makes the change; None: there is none to make, the config
            declares it, or the stages change.
        amended: The config with which the run goes on after the change; None: it is refused, or
            there is none.
        refused: Fields that a run cannot change, in the form of ``fields``.
    """

    same: bool
    fields: list[str] | None
    plan: list[str]
    first_step: int | None = None
    amendment: AmendmentConfig | None = None
    amended: LmDataConfig | None = None
    refused: Sequence[str] = ()


def run_changes(
    lock: RunLock, edited: LmDataConfig, step: int, *, newest_caches: bool = False
) -> RunChanges:
    """What an edited config changes in a run, and the amendment for it.

    Opens the ledgers of the caches, reads no tokens.

    Args:
        lock: The run's lock.
        edited: The edited config.
        step: Where an amendment would begin: the first step that is not trained on yet.
        newest_caches: Whether the run also moves to the newest states of its caches.

    Raises:
        ConfigError: the edited config cannot be used; its field is named.
        PlanMismatchError: the change can only begin after those that the lock has already.
    """
    # 1. The run as the edited config declares it: if it is the same, or only adds what comes later,
    #    that is all.
    declared = config_of_run(lock, edited)
    as_declared = _lock_of(declared, lock)
    same = as_declared.fingerprint == lock.fingerprint
    plan = differences(lock.plan, as_declared.plan)
    if lock.config is None or lock.edited is None:
        return RunChanges(same, None, plan)
    fields = config_differences(lock.edited, given_fields(edited))
    keeps_all = only_declares(lock, edited)
    first = None if same else as_declared.first_difference(lock, declared=not keeps_all)
    caches = newer_snapshots(declared, lock) if newest_caches else {}
    if (same or first is not None) and not caches:
        return RunChanges(same, fields, plan, first, None, None if same else declared)
    # 2. Otherwise the run stays as its lock says up to a step, and an amendment makes of it what
    #    is declared from there on.
    base = declared
    goal = declared
    anew = _declared_anew(lock, declared)
    follow: list[AmendmentConfig] = []
    if not same and first is None:
        base = _without_later(lock.run_config, declared, step)
        if _begin_later(anew, base, declared, step):
            # Other weights begin at once, and what is declared changes these
            follow = anew
            goal = _without_declared(declared, anew, lock.run_config)
        else:
            base = _declaring(base, declared, anew) or base
    asked_step = step
    # changes of the mixture stand in the order of their steps
    step = max(step, last_change(base.amendments) + 1)
    amendment = None if base is declared else amendment_between(base, goal, step)
    is_made = base is declared or amendment is not None or _goes_on_as(base, goal)
    if caches:
        amendment = replace(amendment or AmendmentConfig(step), caches=caches)
    # 3. What the run would be then; refused if it differs by more than later steps.
    amended = _amended(base, goal, amendment, step)
    amended = _declaring(amended, declared, follow) or amended
    new = _lock_of(amended, lock)
    first = new.first_difference(lock)
    if not is_made or (first is None and new.fingerprint != lock.fingerprint):
        locked = lock.run_config
        last = last_change(locked.amendments)
        if asked_step <= last and run_changes(lock, edited, last + 1).amended is not None:
            raise alters_earlier("--step", asked_step, last)
        if keeps_all:
            check_declared_late(lock, edited)
        undone = _with_mixture(declared, base)
        refused = config_differences(lock.config, fields_of_run(undone)) or fields
        return RunChanges(False, fields, plan, refused=refused)
    return RunChanges(first is None, fields, plan, first, amendment, amended)


def alters_earlier(field: str, step: int, last: int) -> PlanMismatchError:
    """The error of a change at a step before that of an earlier change, the ``last`` one. The order
    of what that one brings in depends on the shares from its step on.
    """
    return PlanMismatchError(
        f"is not after step {last}, where an earlier change begins, which it would alter",
        field=field,
        value=step,
        cure=f"Give {field} {last + 1} or a later one.",
    )


def check_declared_late(lock: RunLock, edited: LmDataConfig) -> None:
    """Raises PlanMismatchError if an amendment that an edited config declares is refused only for
    its step, which is not after the changes that the lock has.
    """
    last = last_change(lock.run_config.amendments)
    anew = _declared_anew(lock, edited)
    steps = [
        last + 1 + number if one in anew and one.changes_mixture and one.step <= last else one.step
        for number, one in enumerate(edited.amendments)
    ]
    later = [replace(one, step=at) for one, at in zip(edited.amendments, steps, strict=True)]
    if later == edited.amendments:
        return
    as_later = _lock_of(config_of_run(lock, replace(edited, amendments=later)), lock)
    if as_later.first_difference(lock) is not None:
        number = next(k for k, one in enumerate(edited.amendments) if one.step != steps[k])
        step = edited.amendments[number].step
        raise alters_earlier(f"amendments[{number}].step", step, last)


def _declaring(
    locked: LmDataConfig, edited: LmDataConfig, declared: Sequence[AmendmentConfig]
) -> LmDataConfig | None:
    """A config of a run with amendments that an edited one declares, but for those that it has, and
    with the components that these add; None: they do not fit the run.
    """
    added = added_later(declared)
    new = {
        name: replace(part, weight=None)
        for name, part in edited.components.items()
        if name in added and name not in locked.components
    }
    known = [given_fields(one) for one in locked.amendments]
    amendments = list(locked.amendments)
    for one in declared:
        if given_fields(one) not in known:
            amendments = with_amendment(amendments, one)
    try:
        return replace(locked, components={**locked.components, **new}, amendments=amendments)
    except ConfigError:
        return None


def _begin_later(
    declared: Sequence[AmendmentConfig], base: LmDataConfig, edited: LmDataConfig, step: int
) -> bool:
    """Whether amendments begin when a change that is made from a step on can have begun."""
    if base.stages or edited.stages:
        return False
    begin = max(step, last_change(base.amendments) + 1)
    return all(one.step >= begin for one in declared if one.changes_mixture)


def _without_declared(
    edited: LmDataConfig, declared: Sequence[AmendmentConfig], locked: LmDataConfig
) -> LmDataConfig:
    """A config without amendments that it declares, and without the components that these add."""
    newcomers = added_later(declared) - {*locked.components}
    components = {name: one for name, one in edited.components.items() if name not in newcomers}
    amendments = [one for one in edited.amendments if one not in declared]
    return replace(edited, components=components, amendments=amendments)


def _without_later(locked: LmDataConfig, edited: LmDataConfig, step: int) -> LmDataConfig:
    """The run's config without its last changes of the mixture that begin at a step or later and
    that the edited one does not declare: what it wants from that step on takes their place.
    """
    amendments = list(locked.amendments)
    for last in reversed(locked.amendments):
        if last.skip and not last.changes_mixture:
            continue
        if last.step < step or last.caches or last.skip or last in edited.amendments:
            break
        amendments.remove(last)
    newcomers = added_later(locked.amendments) - added_later(amendments)
    components = {name: one for name, one in locked.components.items() if name not in newcomers}
    return replace(locked, components=components, amendments=amendments)


def amendment_between(
    began: LmDataConfig, edited: LmDataConfig, step: int
) -> AmendmentConfig | None:
    """The amendment that changes the last mixture of one config to that of another; None if they
    are equal or no amendment can.

    Example:
        >>> from headrace.config.component import ComponentConfig
        >>> began = LmDataConfig(
        ...     {"web": ComponentConfig("web", 3), "code": ComponentConfig("code")}
        ... )
        >>> edited = LmDataConfig(
        ...     {"web": ComponentConfig("web", 2), "math": ComponentConfig("math")}
        ... )
        >>> amendment_between(began, edited, 60)
        AmendmentConfig(step=60, add={'math': 1}, weights={'web': 2}, drop=['code'], caches={},
            skip=[], measured={})
    """
    if edited.stages or began.stages:
        return None
    old_entries = _last_entries(began)
    new_entries = _last_entries(edited)
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


def _goes_on_as(began: LmDataConfig, edited: LmDataConfig) -> bool:
    """Whether a config needs no amendment to end with the mixture of another: its stages say it."""
    if edited.stages or began.stages:
        return bool(edited.stages)
    return not differences(*_as_stored(_last_entries(began), _last_entries(edited)))


def _last_entries(config: LmDataConfig) -> _Entries:
    """The last mixture of a config, with sources as it names them: what was appended to a cache is
    no source of its own.
    """
    blend = without_extensions(config.plan().stages[-1].blend.to_config())
    return {path[-1]: (path[:-1], whole_if_it_is(w)) for path, w in weights_by_place(blend).items()}


def _amended(
    base: LmDataConfig, edited: LmDataConfig, amendment: AmendmentConfig | None, step: int
) -> LmDataConfig:
    """The edited config with the mixture of the run up to a step, and its own after it."""
    new = {
        name: replace(part, weight=None)
        for name, part in edited.components.items()
        if name not in base.components
    }
    amended = _with_mixture(
        edited, replace(base, components={**base.components, **new}) if new else base
    )
    if amendment is not None:
        return replace(amended, amendments=with_amendment(base.amendments, amendment))
    if not edited.stages:
        return amended
    without_weights = {name: replace(one, weight=None) for name, one in amended.components.items()}
    return replace(
        amended,
        components=without_weights,
        weights=None,
        stages=_spliced(base, edited, step),
        amendments=[],
        num_steps=edited.run_steps,
    )


def _spliced(base: LmDataConfig, edited: LmDataConfig, step: int) -> list[StageConfig]:
    """The stages of one config before a step, and those of another from it on."""

    def written(config: LmDataConfig) -> list[StageConfig]:
        return [
            StageConfig({**stage.blend.to_config()}, stage.name, stage.first_step)
            for stage in config.plan().stages
        ]

    earlier = [stage for stage in written(base) if (stage.step or 0) < step]
    begun_by_then = [stage for stage in written(edited) if (stage.step or 0) <= step]
    later = [stage for stage in written(edited) if (stage.step or 0) > step]
    if begun_by_then[-1].weights != earlier[-1].weights:
        earlier.append(replace(begun_by_then[-1], step=step))
    return [*earlier, *later]


def _as_stored(*values: Any) -> Any:
    """Values as a lock stores them, with steps as strings."""
    return json.loads(json.dumps(values))


def newer_snapshots(config: LmDataConfig, lock: RunLock) -> dict[str, int | list[int]]:
    """The newest snapshot of each component's cache that neither a config uses yet, as its run was
    started, nor the run's lock, in the form of an amendment's ``caches``: a list for a component of
    several caches.
    """
    reached = {
        name: [snapshot.number for snapshot in cache.snapshots]
        for name, cache in config.open_caches().items()
    }
    locked = lock.run_config
    for amendment in (*locked.amendments, *config.amendments):
        for name, numbers in amendment.caches.items():
            earlier = reached.get(name, [])
            later = number_of_each(numbers)
            reached[name] = [*map(max, earlier, later)] if earlier else later
    newer: dict[str, int | list[int]] = {}
    for name, component in config.components.items():
        named = name if component.buckets is None else name.rpartition("/")[0]
        numbers = reached.get(named, reached[name])
        newest = [
            max(history_of(path).newest_documents, number)
            for path, number in zip(component.caches, numbers, strict=True)
        ]
        if newest != numbers:
            newer[named] = newest if newest[1:] else newest[0]
    return newer


def order_of(config: LmDataConfig, fn: Callable[[PackedBatch], Any] | None = None) -> BatchOrder:
    """What a run with this config loads; ``fn`` as for :func:`headrace.open_run`."""
    return order_over(config.dataset(), config, fn)


def order_over(
    dataset: RunDataset, config: LmDataConfig, fn: Callable[[PackedBatch], Any] | None
) -> BatchOrder:
    """The same over what was made of the config."""
    return BatchOrder(dataset if fn is None else dataset.map(fn), row_order=config.row_order)


def _lock_of(config: LmDataConfig, run: RunLock) -> RunLock:
    return RunLock.of(order_of(config)).through_functions_of(run)


def in_order_of_run(config: LmDataConfig, begun: Mapping[str, Any]) -> LmDataConfig:
    """A config with its sources in the order of the fields of a run's config; itself if they are.

    The numbers of sources, and ties between their weights, follow the order in which a config names
    them. A run keeps the order that it began with; sources that were not in it come last, as the
    config names them.
    """
    fields: dict[str, Any] = {
        "components": in_order_of(config.components, begun.get("components")),
        "weights": in_order_of(config.weights, begun.get("weights")),
    }
    for listed, names in (("stages", ["weights"]), ("amendments", ["add", "weights"])):
        stored: list[Mapping[str, Any]] = begun.get(listed, [])
        fields[listed] = list(getattr(config, listed))
        for number, (entry, stored_entry) in enumerate(zip(fields[listed], stored, strict=False)):
            turned = {
                name: in_order_of(getattr(entry, name), stored_entry.get(name)) for name in names
            }
            fields[listed][number] = replace(entry, **turned)
    was_in_order = all(repr(getattr(config, name)) == repr(fields[name]) for name in fields)
    return config if was_in_order else replace(config, **fields)


def in_order_of(fields: Any, begun: Any) -> Any:
    """A (nested) mapping with the keys of another first, in the order of that, then its others.

    Example:
        >>> in_order_of(
        ...     {"math": 1, "code": {"weight": 1}, "docs": 2}, {"docs": 1, "code": 1, "gone": 1}
        ... )
        {'docs': 2, 'code': {'weight': 1}, 'math': 1}
    """
    if not isinstance(fields, Mapping) or not isinstance(begun, Mapping):
        return fields
    named = cast("Mapping[str, Any]", fields)
    named_before = cast("Mapping[str, Any]", begun)
    names = [name for name in named_before if name in named]
    names += [name for name in named if name not in named_before]
    return {name: in_order_of(named[name], named_before.get(name)) for name in names}
