"""Expands amendments that extend components by data appended to their caches.

An amendment ``extend: {web: 2}`` adds the component ``web@2``, with the settings of ``web`` and
those generations of its cache that ``web`` does not have yet. In the blend, ``web`` becomes a group
of both (:func:`headrace.mix.amendments.extend`). So the epoch over the old documents continues
where it was and, past the config, only the code that opens caches knows about generations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.config.component import ComponentConfig
from headrace.errors import ConfigError, did_you_mean, format_count
from headrace.mix.amendments import number_of_each
from headrace.mix.stage_config import added_later
from headrace.store.generations import generation_path

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig


def extended(config: LmDataConfig) -> Mapping[str, Any]:
    """The fields of a config that change when amendments that extend components are expanded; empty
    if there are none.

    Raises:
        ConfigError: the extended name is not a component, or one that cannot be extended; it
            already has the generation; a name is already another component's.

    Example:
        >>> from headrace import LmDataConfig
        >>> from headrace.mix.stage_config import AmendmentConfig
        >>> config = LmDataConfig(
        ...     {"web": ComponentConfig("caches/web")},
        ...     amendments=[AmendmentConfig(50, extend={"web": 2})],
        ... )
        >>> config.components["web@2"].cache
        ['caches/web/generations/2']
    """
    if not any(amendment.extend for amendment in config.amendments):
        return {}
    written = {name for amendment in config.amendments for name in amendment.newcomers.values()}
    components = {name: one for name, one in config.components.items() if name not in written}
    reached = {name: one.begins_with(name, config.amendments) for name, one in components.items()}
    for number, amendment in enumerate(config.amendments):
        later = added_later(config.amendments[number + 1 :])
        for name, generations in amendment.extend.items():
            field = f"amendments[{number}].extend.{name}"
            if name not in reached and name in components:
                base = next(
                    base
                    for one in config.amendments
                    for base, new in one.newcomers.items()
                    if new == name
                )
                cure = f"Extend that: {{{base}: {generations}}}."
                raise ConfigError(
                    f"is itself what extends {base}", field=field, value=generations, cure=cure
                )
            _check_extends(name, generations, field, components)
            numbers = number_of_each(generations)
            paths = _new_paths(components[name], reached[name], numbers, (field, generations))
            newcomer = amendment.newcomers[name]
            reached[name] = numbers
            if newcomer in (weights := config.weights or {}):
                cure = f"Leave it out: {field} brings it in, with a share of {name}'s weight."
                raise ConfigError(
                    "is not there yet",
                    field=f"weights.{newcomer}",
                    value=weights[newcomer],
                    cure=cure,
                )
            written_out = config.components.get(newcomer)
            _check_free(newcomer, written_out, components[name], field)
            one = replace(
                components[name],
                cache=paths,
                weight=None,
                source=None,
                expected_tokens=None,
                remove=None,
            )
            if one.replicas:
                copies = [
                    copy + paths[0].removeprefix(components[name].caches[0])
                    for copy in one.replicas
                ]
                one = replace(one, replicas=None if paths[1:] else copies)
            one = replace(
                one,
                generations=[1] * len(paths),
                tombstones=written_out.tombstones if written_out else None,
            )
            first = [n for n in components if n not in later]
            last = [
                n for n in components if n in later
            ]  # components of later amendments come after it
            order = (
                {n: components[n] for n in first}
                | {newcomer: one}
                | {n: components[n] for n in last}
            )
            components = order
    return {"components": components}


def _check_extends(
    name: str, generations: object, field: str, components: Mapping[str, ComponentConfig]
) -> None:
    """Raises ConfigError for a name that is not a component, or a component that cannot be
    extended.
    """
    if name not in components:
        buckets = [n for n in components if n.startswith(f"{name}/")]
        cure = (
            f"Extend its buckets one by one: {', '.join(buckets)}."
            if buckets
            else did_you_mean(name, components)
        )
        raise ConfigError("is not a component", field=field, value=generations, cure=cure)
    component = components[name]
    apart = f"{generation_path(component.caches[0], 2)}"
    for setting in ("max_tokens", "max_share", "buckets"):
        if getattr(component, setting) is not None:
            cure = (
                f"Make the new documents a component of their own, with {setting} or without:"
                f" cache: {apart}."
            )
            raise ConfigError(
                f"does not go with components.{name}.{setting}",
                field=field,
                value=generations,
                cure=cure,
            )


def _new_paths(
    component: ComponentConfig,
    before: Sequence[int] | None,
    after: Sequence[int],
    said: tuple[str, object],
) -> list[str]:
    """Paths of the generations that an amendment adds to a component."""
    caches = component.caches
    if before is None or len(after) != len(caches) or len(before) != len(caches):
        cure = f"Give one number for each: {[2] * len(caches)}."
        problem = f"does not say it of its {format_count(len(caches), 'cache')}"
        raise ConfigError(problem, field=said[0], value=said[1], cure=cure)
    if any(late < early for early, late in zip(before, after, strict=True)) or [*before] == [
        *after
    ]:
        problem = f"is not later than generation {max(before)}, which the run has by then"
        cure = (
            "Name a later one, or leave it out: headrace cache inspect CACHE shows those that"
            " there are."
        )
        raise ConfigError(problem, field=said[0], value=said[1], cure=cure)
    spans = zip(caches, before, after, strict=True)
    return [
        generation_path(path, n) for path, early, late in spans for n in range(early + 1, late + 1)
    ]


def _check_free(name: str, held: ComponentConfig | None, base: ComponentConfig, field: str) -> None:
    """Raises ConfigError if the user has a component of this name."""
    folders = tuple(generation_path(path, 2)[:-1] for path in base.caches)
    if held is not None and not all(path.startswith(folders) for path in held.caches):
        problem = "is the name of what extends a component"
        cure = f"Rename components.{name}."
        raise ConfigError(problem, field=field, value=name, cure=cure)
