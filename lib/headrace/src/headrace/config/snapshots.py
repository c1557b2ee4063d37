"""The snapshots of its caches that a run uses, and from which step on.

A config names the snapshot with which a component starts, or leaves it out: then it is the newest.
An amendment ``caches: {web: 3}`` moves it to a later one. Both are settled here, where caches are
opened:

1. Every component gets its snapshot written out (:func:`settle`).
2. The documents that were appended between two snapshots become a component of their own,
   ``web@3``, with the settings of ``web``. In the blend, ``web`` becomes a group of both
   (:func:`headrace.mix.amendments.extend`), so the epoch over the old documents goes on.
3. The documents that were removed are erased from the rows, from the step of the amendment on
   (:func:`find_erasures`).

Past this module, snapshots are numbers in the record of a run, which readers need not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from headrace.config.component import ComponentConfig
from headrace.data.erased_rows import Erasure
from headrace.data.token_seq import is_of_pairs
from headrace.errors import CacheError, ConfigError, command_line, did_you_mean, format_count
from headrace.feed.host_ledgers import job_reader
from headrace.mix.amendments import number_of_each
from headrace.mix.plan import added_later
from headrace.mix.stage_config import AmendmentConfig
from headrace.order.holdout import ValidationConfig
from headrace.order.shuffle_config import ShuffleConfig
from headrace.store.cache import TokenCache
from headrace.store.files import ReadForAll
from headrace.store.snapshots import History, Snapshot, choose_snapshot, history_of


@dataclass(frozen=True)
class Move:
    """An amendment moves the caches of a component to later snapshots.

    Attributes:
        step: The first step with them.
        field: The field that says so.
        snapshots: The number for each cache.
    """

    step: int
    field: str
    snapshots: list[int]


@dataclass(frozen=True)
class Settled:
    """What a config's snapshots are.

    Attributes:
        components: Its components with their snapshots written out, and those that amendments
            bring in.
        snapshots: The snapshots of each component.
        moves: The later moves of each component.
        drawn_from: The first step of each component that an amendment brings in.
    """

    components: dict[str, ComponentConfig]
    snapshots: dict[str, list[Snapshot]]
    moves: dict[str, list[Move]]
    drawn_from: dict[str, int]


class _Named(NamedTuple):
    """An entry of an amendment's ``caches``."""

    number: int
    amendment: AmendmentConfig
    name: str
    components: list[str]

    @property
    def field(self) -> str:
        return f"amendments[{self.number}].caches.{self.name}"

    @property
    def value(self) -> int | list[int]:
        return self.amendment.caches[self.name]


def settle(
    components: Mapping[str, ComponentConfig],
    amendments: Sequence[AmendmentConfig],
    opened: Mapping[str, TokenCache],
    *,
    weights: Mapping[str, Any] | None,
    shuffle: ShuffleConfig,
    validation: ValidationConfig | None,
) -> Settled:
    """Finds out which snapshots the caches of a config are at, and when. The other arguments are
    fields of the config.

    Reads the list of snapshots of each cache that does not start at its first and stay there,
    unless its cache is ``opened`` already.

    Raises:
        ConfigError: there is no such snapshot, or an amendment cannot be carried out.
        CacheError: a list cannot be read, or is damaged.
    """
    entries = [
        _Named(number, amendment, name, _components_of(name, number, components, amendments))
        for number, amendment in enumerate(amendments)
        for name in amendment.caches
    ]
    # 1. Where each component starts.
    starts = _starts(components, opened, entries)
    settled = {
        name: component
        if name in opened
        else replace(component, snapshot=[one.number for one in starts[name]])
        for name, component in components.items()
    }
    # 2. Where amendments move it and what came of it before; what it gains comes beside it.
    reached = dict(starts)
    snapshots = dict(starts)
    moves: dict[str, list[Move]] = {name: [] for name in settled}
    families = {name: [name] for name in settled}
    drawn_from: dict[str, int] = {}
    for entry in entries:
        later = added_later(amendments[entry.number + 1 :])
        for base in entry.components:
            gained = _gained(reached[base], entry)
            numbers = {one.path: one.number for one in gained}
            reached[base] = [replace(one, after=0) for one in gained]
            for name in families[base]:
                moved = [numbers[one.path] for one in snapshots[name]]
                moves[name].append(Move(entry.amendment.step, entry.field, moved))
            if grown := [one for one in gained if one.members]:
                newcomer = entry.amendment.newcomers[entry.name]
                _check_can_grow(base, components[base], shuffle, entry, grown[0])
                _check_new(newcomer, components, weights or {}, entry)
                one = _newcomer(settled[base], base, grown, validation)
                settled = _with_newcomer(settled, newcomer, one, later)
                snapshots[newcomer] = grown
                moves[newcomer] = []
                drawn_from[newcomer] = entry.amendment.step
                families[base].append(newcomer)
    in_order = {name: snapshots[name] for name in settled}
    return Settled(settled, in_order, moves, drawn_from)


def _components_of(
    name: str,
    number: int,
    components: Mapping[str, ComponentConfig],
    amendments: Sequence[AmendmentConfig],
) -> list[str]:
    """The components that an amendment names: one, or the buckets of one."""
    if name in components:
        return [name]
    if buckets := [one for one in components if one.startswith(f"{name}/")]:
        return buckets
    target = amendments[number].caches[name]
    cure = did_you_mean(name, components)
    problem = "is not a component"
    for amendment in amendments[:number]:
        for base, newcomer in amendment.newcomers.items():
            if newcomer == name:
                problem = f"came with an amendment of {base}"
                cure = f"Name that: {{{base}: {target}}}."
    field = f"amendments[{number}].caches.{name}"
    raise ConfigError(problem, field=field, value=target, cure=cure)


def _starts(
    components: Mapping[str, ComponentConfig],
    opened: Mapping[str, TokenCache],
    entries: Sequence[_Named],
) -> dict[str, list[Snapshot]]:
    """The snapshots with which each component starts: those that it sets; else those before the
    first that an amendment names; else the newest.
    """
    first: dict[str, list[int]] = {}
    for entry in entries:
        for name in entry.components:
            first.setdefault(name, number_of_each(entry.value))
    chosen = {name: one.of_each("snapshot", name) for name, one in components.items()}
    # What starts at its first snapshot and stays there needs no list.
    listed = {
        path: (path, *(component.replicas or ()))
        for name, component in components.items()
        for path, number in zip(component.caches, chosen[name], strict=True)
        if name not in opened and (name in first or number != 1)
    }
    with ThreadPoolExecutor(max_workers=16) as pool:
        read = pool.map(partial(_history, job_reader()), listed.values())
        histories = dict(zip(listed, read, strict=True))
    starts: dict[str, list[Snapshot]] = {}
    for name, component in components.items():
        if name in opened:
            starts[name] = [*opened[name].snapshots]
            continue
        starts[name] = []
        earlier = component.of_each("after", name)
        for at, path in enumerate(component.caches):
            history = histories.get(path, History())
            number = chosen[name][at]
            if number is None and name in first and len(first[name]) == len(component.caches):
                number = min(max(first[name][at] - 1, 1), history.newest)
            field = f"components.{name}.snapshot"
            starts[name].append(choose_snapshot(path, number, history, earlier[at] or 0, field))
    return starts


def _history(once: ReadForAll, locations: Sequence[str]) -> History:
    """The changes of a cache, from the first of its locations that answers."""
    failures: list[CacheError] = []
    for location in locations:
        try:
            return history_of(location, once=once)
        except CacheError as error:
            failures.append(error)
    first = failures[0]
    cure = "Or set components.NAME.snapshot: 1, with which nobody asks for it."
    raise type(first)(
        first.problem,
        field=first.field,
        value=first.value,
        cure=f"{first.cure or ''} {cure}".strip(),
    ) from first


def _gained(reached: Sequence[Snapshot], entry: _Named) -> list[Snapshot]:
    """What each cache of a component gains up to the snapshots that an amendment names."""
    targets = number_of_each(entry.value)
    numbers_before = [one.number for one in reached]
    if len(targets) != len(reached):
        problem = f"does not say it of its {format_count(len(reached), 'cache')}"
        cure = f"Give one number for each: {numbers_before}."
        raise ConfigError(problem, field=entry.field, value=entry.value, cure=cure)
    for snapshot, target in zip(reached, targets, strict=True):
        choose_snapshot(snapshot.path, target, snapshot.history, field=entry.field)
    if (
        any(new < old for old, new in zip(numbers_before, targets, strict=True))
        or numbers_before == targets
    ):
        problem = f"is not later than snapshot {max(numbers_before)}, which the run has by then"
        listing = command_line("cache inspect", reached[0].path)
        cure = f"Leave it out, or name a later one; to see them: {listing}"
        raise ConfigError(problem, field=entry.field, value=entry.value, cure=cure)
    return [
        Snapshot(one.path, one.history, target, one.number)
        for one, target in zip(reached, targets, strict=True)
    ]


def _check_can_grow(
    name: str,
    component: ComponentConfig,
    shuffle: ShuffleConfig,
    entry: _Named,
    gained: Snapshot,
) -> None:
    """Raises ConfigError if no component can stand beside one for what its caches gain."""
    scored_by = component.shuffle_or(shuffle).scored_by or ""
    limits = {
        "max_tokens": component.max_tokens,
        "max_share": component.max_share,
        "buckets": component.buckets,
        # a file with a number for each of the old documents
        "shuffle": scored_by if scored_by.endswith(".npy") else None,
    }
    for setting, limit in limits.items():
        if limit is not None:
            cure = (
                f"Make the new documents a component of their own, with {setting} or without:"
                f" {{cache: {gained.path}, snapshot: {gained.number}, after: {gained.after}}}."
            )
            problem = f"brings in documents, which does not go with components.{name}.{setting}"
            raise ConfigError(problem, field=entry.field, value=entry.value, cure=cure)


def _check_new(
    newcomer: str,
    components: Mapping[str, ComponentConfig],
    weights: Mapping[str, Any],
    entry: _Named,
) -> None:
    """Raises ConfigError if the config names a component already that an amendment brings in."""
    if newcomer in components:
        raise ConfigError(
            f"is the name of what {entry.field} brings in",
            field="components",
            value=newcomer,
            cure="Give it another name.",
        )
    if newcomer in weights:
        cure = f"Leave it out: {entry.field} brings it in, with a share of {entry.name}'s weight."
        raise ConfigError(
            "is not there yet", field=f"weights.{newcomer}", value=weights[newcomer], cure=cure
        )


def _newcomer(
    base: ComponentConfig,
    name: str,
    grown: Sequence[Snapshot],
    default: ValidationConfig | None,
) -> ComponentConfig:
    """The component for what ``base`` gains: its settings, but for those of the old documents
    alone. A number of rows that are held out is one: it was met with what was there first.
    """
    split = base.validation_in(name, default)
    counts_rows = split is not None and split[0].rows is not None
    return replace(
        base,
        cache=[snapshot.path for snapshot in grown],
        snapshot=[snapshot.number for snapshot in grown],
        after=[snapshot.after for snapshot in grown],
        weight=None,
        source=None,
        expected_tokens=None,
        remove=None,
        validation="none" if counts_rows else base.validation,
    )


def _with_newcomer(
    components: Mapping[str, ComponentConfig],
    name: str,
    newcomer: ComponentConfig,
    later: set[str],
) -> dict[str, ComponentConfig]:
    """The components with one more, before those of later amendments."""
    first = {one: part for one, part in components.items() if one not in later}
    last = {one: part for one, part in components.items() if one in later}
    return {**first, name: newcomer, **last}


def find_erasures(
    settled: Settled, caches: Mapping[str, TokenCache]
) -> dict[str, list[tuple[int, Erasure]]]:
    """What is erased from the rows of components, and from which step on: the documents that are
    removed from their caches. Reads the boundaries of these.
    """
    erasures: dict[str, list[tuple[int, Erasure]]] = {}
    for name, component in settled.components.items():
        cache = caches[name]
        numbers = [one.number for one in cache.snapshots]
        removed = 0
        for move in (Move(0, f"components.{name}.snapshot", numbers), *settled.moves[name]):
            documents = cache.removed(move.snapshots)
            if documents.total > removed:  # later snapshots have all that earlier ones have
                removed = documents.total
                unit = _unit_of(component, cache)
                erasure = Erasure.of(cache, documents, unit, move.snapshots, move.field)
                erasures.setdefault(name, []).append((move.step, erasure))
    return erasures


def _unit_of(component: ComponentConfig, cache: TokenCache) -> int:
    """How many neighbouring documents are removed together."""
    if component.packing is None:
        return 1
    pairs = is_of_pairs(cache, component.pairs)
    return component.packing.resolved(pairs=pairs, conversations=False).unit or 1
