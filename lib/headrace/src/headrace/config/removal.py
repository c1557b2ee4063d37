"""Which removed documents a run leaves out, and from which step: applies tombstones of caches as a
config sets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headrace.config.component import ComponentConfig
from headrace.config.source_order import in_order_of_run
from headrace.data.documents import stored_documents, token_ranges
from headrace.data.pairs import is_of_pairs
from headrace.errors import ConfigError, did_you_mean
from headrace.feed.host_ledgers import tombstone_reader
from headrace.mix.amendments import family, number_of_each
from headrace.mix.stage_config import AmendmentConfig
from headrace.order.intervals import Intervals
from headrace.order.rising import starts
from headrace.store.cache import TokenCache
from headrace.store.tombstones import Tombstones, tombstones_of

_Numbers: TypeAlias = Mapping[str, Sequence[int]]

if TYPE_CHECKING:
    from headrace.data.erased import Erasure, RunDataset
    from headrace.data.mixture import MixtureDataset
    from headrace.data.phased import PhasedDataset


def erase_removed(
    dataset: MixtureDataset | PhasedDataset,
    components: Mapping[str, ComponentConfig],
    amendments: Sequence[AmendmentConfig],
    caches: Mapping[str, TokenCache],
) -> RunDataset:
    """The dataset of a run without the documents that were removed from its caches; itself if there
    are none.

    Reads the tombstones of the caches and the boundaries of the removed documents.

    Raises:
        ConfigError: a generation that a cache lacks, or that is older than the one before; an
            unknown component.
        CacheCorruptError: a cache's tombstones are damaged.
    """
    from headrace.data.erased import ErasedDataset

    _check_names(components, amendments)
    removals = {name: _Removals(name, one, caches[name]) for name, one in components.items()}
    for number, amendment in enumerate(amendments):
        for group, generation in amendment.remove.items():
            _check_count(
                f"amendments[{number}].remove.{group}",
                generation,
                [removals[n] for n in family(group, caches)],
            )
    erasures: dict[str, list[tuple[int, Erasure]]] = {}
    for name, removal in removals.items():
        steps = [(0, f"components.{name}.tombstones", components[name].tombstones)]
        for number, amendment in enumerate(amendments):
            named = [
                (group, n)
                for group, n in amendment.remove.items()
                if name in _named(group, components)
            ]
            named = [(group, _share(name, group, n, caches)) for group, n in named]
            steps += [
                (amendment.step, f"amendments[{number}].remove.{group}", n)
                for group, n in named
                if n != []
            ]
        generations = [(step, removal.generations(named, field)) for step, field, named in steps]
        for (_, earlier), (_, later), (_, field, named) in zip(
            generations, generations[1:], steps[1:], strict=False
        ):
            if any(late < early for early, late in zip(earlier, later, strict=True)):
                cure = (
                    f"Name a later one: headrace cache inspect {caches[name].members[0].path}"
                    " shows them."
                )
                problem = f"is older than generation {max(earlier)}, which the run has by then"
                raise ConfigError(problem, field=field, value=named, cure=cure)
        if any(map(any, (numbers for _, numbers in generations))):
            erasures[name] = [
                (step, removal.erasure(numbers, field))
                for (step, numbers), (_, field, _) in zip(generations, steps, strict=True)
                if any(numbers)
            ]
    drawn_from = {newcomer: one.step for one in amendments for newcomer in one.newcomers.values()}
    return ErasedDataset(dataset, erasures, drawn_from) if erasures else dataset


def components_as_begun(
    components: Mapping[str, ComponentConfig],
    tombstones: _Numbers,
    generations: _Numbers | None = None,
) -> dict[str, ComponentConfig]:
    """Components that start with these generations of tombstones (empty: none) and this many
    generations of each of their caches (empty: one), unless they set these themselves.

    Example:
        >>> web = components_as_begun(
        ...     {"web": ComponentConfig("caches/web")}, {"web": [2]}, {"web": []}
        ... )["web"]
        >>> web.tombstones, web.generations
        ([2], [1])
    """
    resolved = dict(components)
    for name, numbers in tombstones.items():
        if name in resolved and resolved[name].tombstones is None:
            resolved[name] = replace(resolved[name], tombstones=[*numbers] or 0)
    for name, counts in (generations or {}).items():
        if name in resolved and resolved[name].generations is None:
            resolved[name] = replace(
                resolved[name], generations=[*counts] or [1] * len(resolved[name].caches)
            )
    return resolved


def dataset_as_begun(
    run: RunDataset,
    instead: Mapping[str, TokenCache] | None,
    beginning: tuple[_Numbers, _Numbers, Mapping[str, Any] | None],
) -> RunDataset | None:
    """The dataset of a config as the run started with it; None if ``run`` is the same. Caches are
    the config's, or ``instead``; see :class:`headrace.run.beginning.Beginning`.
    """
    tombstones_then, generations_then, begun = beginning
    config = in_order_of_run(run.config, begun or {})
    described = run.describe()
    removed = described.get("tombstones", {})
    first = described.get("phases", [{"dataset": described}])[0]["dataset"]
    newest = (
        {name: of.get("0", {}).get("generation", []) for name, of in removed.items()},
        first.get("generations", {}),
    )
    tombstones, generations = (
        {
            name: then[name]
            for name in config.components
            if name in then and then[name] != now.get(name, [])
        }
        for then, now in zip((tombstones_then, generations_then), newest, strict=True)
    )
    first_config = config.as_begun(tombstones, generations)
    own_caches = {name: cache for name, cache in (instead or {}).items() if name not in generations}
    is_same = first_config == config and config is run.config
    return None if is_same else first_config.dataset(own_caches)


def _named(group: str, components: Mapping[str, ComponentConfig]) -> list[str]:
    """The components that a name refers to: all of them, for a source that is extended or has
    buckets.
    """
    return [name for name in components if name.startswith(f"{group}/")] + family(group, components)


def _share(
    name: str, group: str, given: int | list[int], caches: Mapping[str, TokenCache]
) -> int | list[int]:
    """The part of numbers for the caches of a component and its extensions that concerns one of
    these; caches after the last number get none.
    """
    first = 0
    numbers = number_of_each(given)
    for one in (names := family(group, caches)):
        count = len(caches[one].members)
        if one == name and len(names) > 1:
            return numbers[first:] if one == names[-1] else numbers[first : first + count]
        first += count
    return given


def _check_names(
    components: Mapping[str, ComponentConfig], amendments: Sequence[AmendmentConfig]
) -> None:
    for number, amendment in enumerate(amendments):
        for name, generation in amendment.remove.items():
            if not _named(name, components):
                field = f"amendments[{number}].remove.{name}"
                cure = did_you_mean(name, components)
                raise ConfigError("is not a component", field=field, value=generation, cure=cure)


def _check_count(field: str, given: int | list[int], family: Sequence[_Removals]) -> None:
    """Raises ConfigError for more numbers than an extended component has caches, including its
    extensions.
    """
    if family[1:] and isinstance(given, list):
        newest = [number for removal in family for number in removal.newest]
        if len(given) > len(newest):
            raise _miscounted(field, given, len(given), newest)


def _miscounted(field: str, given: object, count: int, newest: Sequence[int]) -> ConfigError:
    problem = f"gives {count} generations, and the component has {len(newest)} caches"
    return ConfigError(problem, field=field, value=given, cure=f"Give one for each: {newest}.")


class _Removals:
    """The tombstones of the caches of a component."""

    def __init__(self, name: str, config: ComponentConfig, cache: TokenCache) -> None:
        self._cache = cache
        self._unit = 1
        if config.packing is not None:
            pairs = is_of_pairs(cache, config.pairs)
            self._unit = config.packing.resolved(pairs=pairs, conversations=False).unit or 1

    @cached_property
    def _of_member(self) -> list[Tombstones]:
        read = tombstone_reader()
        return [
            Tombstones() if one.is_virtual else tombstones_of(one, read)
            for one in self._cache.members
        ]

    @property
    def newest(self) -> list[int]:
        return [len(stones) for stones in self._of_member]

    def generations(self, given: int | list[int] | None, field: str) -> list[int]:
        """The generation of each cache, as given in a config."""
        if given == 0:  # then nothing looks for any
            return [0] * len(self._cache.members)
        newest = self.newest
        if given is None:
            return newest
        numbers = number_of_each(given)
        if len(self._cache.generations) == 1:  # generations that are not named remove nothing
            numbers += [0] * (len(newest) - len(numbers))
        if len(numbers) != len(newest):
            raise _miscounted(field, given, len(numbers), newest)
        for number, last, cache in zip(numbers, newest, self._cache.members, strict=True):
            if not 0 <= number <= last:
                has = (
                    f"{cache.path} has {last} of them"
                    if last
                    else f"nothing was removed from {cache.path}"
                )
                choices = f"0 to {last}" if last else "0"
                cure = (
                    f"Give {choices}, or leave it out; headrace cache remove {cache.path} ID makes"
                    " another."
                )
                raise ConfigError(
                    f"is not a generation of tombstones: {has}", field=field, value=given, cure=cure
                )
        return list(numbers)

    def erasure(self, generations: Sequence[int], field: str) -> Erasure:
        """The documents of these generations, each with its whole unit, and where
        they are stored.
        """
        from headrace.data.erased import Erasure

        first = starts([cache.num_documents for cache in self._cache.members]).tolist()
        of_members = [
            (cache, stones.documents(number), at)
            for cache, stones, number, at in zip(
                self._cache.members, self._of_member, generations, first[:-1], strict=True
            )
        ]
        stored = [(stored_documents(cache, documents), at) for cache, documents, at in of_members]
        documents = Intervals.union(
            [Intervals(one.start + at, one.stop + at) for one, at in stored]
        )
        units = Intervals(
            documents.start // self._unit * self._unit,
            -(-documents.stop // self._unit) * self._unit,
        )
        units = Intervals(units.start, np.minimum(units.stop, self._cache.num_documents))
        digests = [s.digest(number) for s, number in zip(self._of_member, generations, strict=True)]
        record = {
            "generation": [*generations],
            "documents": units.total,
            "digest": "-".join(digests),
        }
        return Erasure(token_ranges(self._cache, units), units.total, record, field)
