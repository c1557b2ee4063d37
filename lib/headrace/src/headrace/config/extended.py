"""Components that amendments extend by what was appended to their caches, written out.

An amendment ``extend: {web: 2}`` brings in the component ``web@2``, which has the settings of ``web`` and those
generations of its cache that ``web`` has not by then. In the blend ``web`` becomes a group of both
(:func:`headrace.mix.amendments.extend`). So the epoch of the old documents goes on where it was, and nothing behind the
config knows of generations but what opens caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.config.component import ComponentConfig, open_caches
from headrace.errors import ConfigError, did_you_mean
from headrace.feed.host_ledgers import generation_reader
from headrace.mix.stage_config import AmendmentConfig, added_later
from headrace.store.cache import TokenCache
from headrace.store.generations import cache_of_generation, check_generation, generation_path, generations_of

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig


def extended(config: LmDataConfig) -> Mapping[str, Any]:
    """The fields of a config that differ once what extends its components is written out; none if nothing does.

    Raises:
        ConfigError: what is extended is no component, or one that cannot be; a generation that it has already; a name
            that another component has.

    Example:
        >>> from headrace import LmDataConfig
        >>> config = LmDataConfig(
        ...     {"web": ComponentConfig("caches/web")}, amendments=[AmendmentConfig(50, extend={"web": 2})]
        ... )
        >>> config.components["web@2"].cache
        ['caches/web/generations/2']
    """
    if not any(amendment.extend for amendment in config.amendments):
        return {}
    written = {name for amendment in config.amendments for name in amendment.newcomers.values()}
    components = {name: one for name, one in config.components.items() if name not in written}
    reached = {name: _begins_with(name, one, config.amendments) for name, one in components.items()}
    for number, amendment in enumerate(config.amendments):
        later = added_later(config.amendments[number + 1 :])
        for name, given in amendment.extend.items():
            field = f"amendments[{number}].extend.{name}"
            _check_extends(name, given, field, components)
            numbers = given if isinstance(given, list) else [given]
            paths = _new_paths(components[name], reached[name], numbers, (field, given))
            newcomer, reached[name] = amendment.newcomers[name], numbers
            _check_free(newcomer, config.components.get(newcomer), components[name], field)
            one = replace(components[name], cache=paths, weight=None, source=None, expected_tokens=None, remove=None)
            if one.replicas:
                copies = [copy + paths[0].removeprefix(components[name].caches[0]) for copy in one.replicas]
                one = replace(one, replicas=None if paths[1:] else copies)
            one = replace(one, generations=[1] * len(paths), tombstones=None)
            before = [n for n in components if n not in later]
            after = [n for n in components if n in later]  # what later amendments bring in stands behind
            order = {n: components[n] for n in before} | {newcomer: one} | {n: components[n] for n in after}
            components = order
    return {"components": components}


def open_all(config: LmDataConfig, instead: Mapping[str, TokenCache]) -> dict[str, TokenCache]:
    """The caches of all components of a config, those that extend others behind the others.

    Raises:
        ConfigError: a generation that the cache of an extended component has not; else as ``LmDataConfig.open_caches``.
        CacheCorruptError: a generation is not what was appended.
    """
    newcomers = [name for amendment in config.amendments for name in amendment.newcomers.values()]
    extended = {name for amendment in config.amendments for name in amendment.extend}
    first = {name: _begins_with(name, config.components[name], config.amendments) for name in extended}
    begun = {
        name: replace(one, generations=first.get(name, one.generations)) for name, one in config.components.items()
    }

    def opened(names: Sequence[str]) -> dict[str, TokenCache]:
        given = {name: cache for name, cache in instead.items() if name in names or name not in begun}
        chosen = {name: begun[name] for name in names}
        return open_caches(chosen, config.tokenizer, config.cache_catalog, given)

    read = generation_reader()
    caches = opened([name for name in begun if name not in newcomers])
    if newcomers:
        known: dict[str, tuple[str, ...]] = {}  # the content of the generations of each cache, by its path
        for name in first.keys() - instead.keys():
            firsts = np.cumsum([0, *caches[name].generations[:-1]]).tolist()
            known |= {root.path: generations_of(root, read) for root in map(caches[name].members.__getitem__, firsts)}
        _check_known(config, known)
        caches |= opened(newcomers)
        for member in (one for name in newcomers for one in caches[name].members):
            if contents := known.get(cache_of_generation(member.path)):
                check_generation(member, contents[int(member.path.rpartition("/")[2]) - 1])
    return {name: caches[name] for name in begun}


def _check_known(config: LmDataConfig, known: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError for a generation that no cache has."""
    for at, amendment in enumerate(config.amendments):
        for name, given in amendment.extend.items():
            numbers = given if isinstance(given, list) else [given]
            for number, path in zip(numbers, config.components[name].caches, strict=True):
                if path in known and number > len(known[path]):
                    cure = f"headrace build SOURCE --output {path} --append makes another."
                    problem = f"is not a generation of {path}, which has {len(known[path])}"
                    raise ConfigError(problem, field=f"amendments[{at}].extend.{name}", value=given, cure=cure)


def _begins_with(name: str, component: ComponentConfig, amendments: Sequence[AmendmentConfig]) -> list[int] | None:
    """How many generations of each cache a component begins with, as far as its config tells."""
    if component.generations is not None:
        return [*component.generations] if isinstance(component.generations, list) else [component.generations]
    given = next((a.extend[name] for a in amendments if name in a.extend), None)
    if given is None:
        return None
    return [max(number - 1, 1) for number in (given if isinstance(given, list) else [given])]


def _check_extends(name: str, given: object, field: str, components: Mapping[str, ComponentConfig]) -> None:
    """Raises ConfigError for what is no component, or one that cannot be extended."""
    if name not in components:
        buckets = [n for n in components if n.startswith(f"{name}/")]
        cure = f"Extend its buckets one by one: {', '.join(buckets)}." if buckets else did_you_mean(name, components)
        raise ConfigError("is not a component", field=field, value=given, cure=cure)
    component = components[name]
    apart = f"{generation_path(component.caches[0], 2)}"
    for setting in ("max_tokens", "max_share", "buckets"):
        if getattr(component, setting) is not None:
            cure = f"Make the new documents a component of their own, with {setting} or without: cache: {apart}."
            raise ConfigError(f"does not go with components.{name}.{setting}", field=field, value=given, cure=cure)


def _new_paths(
    component: ComponentConfig, before: Sequence[int] | None, after: Sequence[int], said: tuple[str, object]
) -> list[str]:
    """Where the generations lie that a component has after an amendment and not before it."""
    caches = component.caches
    if before is None or len(after) != len(caches) or len(before) != len(caches):
        cure = f"Give one number for each: {[2] * len(caches)}."
        raise ConfigError(f"does not say it of its {len(caches)} caches", field=said[0], value=said[1], cure=cure)
    if any(late < early for early, late in zip(before, after, strict=True)) or [*before] == [*after]:
        problem = f"is not later than generation {max(before)}, which the run has by then"
        cure = "Name a later one, or leave it out: headrace inspect CACHE shows those that there are."
        raise ConfigError(problem, field=said[0], value=said[1], cure=cure)
    spans = zip(caches, before, after, strict=True)
    return [generation_path(path, n) for path, early, late in spans for n in range(early + 1, late + 1)]


def _check_free(name: str, held: ComponentConfig | None, base: ComponentConfig, field: str) -> None:
    """Raises ConfigError if a name is that of a component of the user's own."""
    folders = tuple(generation_path(path, 2)[:-1] for path in base.caches)
    if held is not None and not all(path.startswith(folders) for path in held.caches):
        problem, cure = "is the name of what extends a component", f"Rename components.{name}."
        raise ConfigError(problem, field=field, value=name, cure=cure)
