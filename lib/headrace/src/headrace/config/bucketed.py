"""Expands sources with ``buckets``: each becomes a group of components over one cache.

The component ``web`` with three buckets becomes the group ``web`` of the blend with the components
``web/0``, ``web/1`` and ``web/2``, each of which keeps one bucket (:mod:`headrace.data.buckets`).
``web`` in ``weights``, stages and amendments means that group. Past the config, only the document
filter knows about buckets; settings of a source apply to each of its components, ``max_epochs`` of
layers at their pace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config.component import ComponentConfig
from headrace.data.buckets import BucketsConfig, expected_repeats
from headrace.errors import ConfigError
from headrace.mix.blend import REPEAT, blend_of, is_size_rule
from headrace.mix.plan import weights_at_begin
from headrace.mix.stage_config import AmendmentConfig, StageConfig
from headrace.order.holdout import ValidationConfig


def written_out(
    components: Mapping[str, ComponentConfig],
    weights: Mapping[str, Any] | None,
    stages: Sequence[StageConfig],
    amendments: Sequence[AmendmentConfig],
    validation: ValidationConfig | None,
    max_epochs: float | None,
) -> Mapping[str, Any]:
    """The fields of a config that change when its sources with buckets are expanded; empty if it
    has none. Arguments are fields of the config.

    Raises:
        ConfigError: a field is incompatible with buckets; a name is already another component's.

    Example:
        >>> from headrace import LmDataConfig
        >>> web = ComponentConfig(
        ...     "caches/web", weight=3, buckets=BucketsConfig("length", edges=[512], weights=[1, 2])
        ... )
        >>> config = LmDataConfig({"web": web, "code": ComponentConfig("caches/code")})
        >>> [*config.components], config.weights
        (['web/0', 'web/1', 'code'],
         {'web': {'weight': 3, 'blend': {'web/0': 1, 'web/1': 2}}, 'code': 1.0})
    """
    groups = {
        n: _split(n, c, validation, max_epochs) for n, c in components.items() if _is_group(c)
    }
    if not groups:
        return {}
    expanded: dict[str, ComponentConfig] = {}
    for name, component in components.items():
        parts = groups.get(name, {name: (component, None)})
        for part, (part_config, _) in parts.items():
            if part in expanded or (part != name and part in components):
                cure = "Rename one of them."
                raise ConfigError(
                    "is the name of two components",
                    field=f"components.{name}.buckets",
                    value=part,
                    cure=cure,
                )
            expanded[part] = part_config
    blends = {
        name: {part: weight for part, (_, weight) in parts.items()}
        for name, parts in groups.items()
    }
    _check_places(components, weights, stages, groups)
    if weights is None and not stages:
        written = {n: c.weight for n, c in components.items()}
        weights = weights_at_begin(written, amendments)
        expanded = {n: dataclasses.replace(c, weight=None) for n, c in expanded.items()}
    replace = dataclasses.replace
    return {
        "components": expanded,
        "weights": None if weights is None else _grouped(weights, blends),
        "stages": [replace(stage, weights=_grouped(stage.weights, blends)) for stage in stages],
        "amendments": [replace(a, add=_grouped(a.add, blends)) for a in amendments],
    }


def _check_places(
    components: Mapping[str, ComponentConfig],
    weights: Mapping[str, Any] | None,
    stages: Sequence[StageConfig],
    groups: Mapping[str, object],
) -> None:
    """Raises ConfigError if weights are given twice, or follow from the sizes of sources that are
    groups.
    """
    blends = {
        "weights": weights,
        **{f"stages[{k}].weights": s.weights for k, s in enumerate(stages)},
    }
    for path, blend in blends.items():
        if blend is not None and is_size_rule(blend, components):
            name = next(iter(groups))
            cure = (
                "Give each source a weight; {repeat: 1} is one that follows from its rows:"
                f" {name}: {{repeat: 1}}."
            )
            raise ConfigError(
                "does not go with sources that have buckets", field=path, value=blend, cure=cure
            )
    paths = [path for path, blend in blends.items() if blend is not None]
    for name in groups if paths else ():
        if (weight := components[name].weight) is not None:
            problem = f"is given beside {paths[0].partition('[')[0]}"
            path = f"components.{name}.weight"
            raise ConfigError(
                problem, field=path, value=weight, cure="Say the weights in one place."
            )


def _is_group(component: ComponentConfig) -> bool:
    return component.buckets is not None and component.buckets.keep is None


def _grouped(weights: Mapping[str, Any], blends: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A (nested) blend in which sources with buckets have become groups."""
    grouped: dict[str, Any] = {}
    for name, value in weights.items():
        if inner := blend_of(value):
            grouped[name] = {**value, "blend": _grouped(inner, blends)}
        else:
            grouped[name] = (
                {"weight": value, "blend": dict(blends[name])} if name in blends else value
            )
    return grouped


def _split(
    name: str,
    source: ComponentConfig,
    validation: ValidationConfig | None,
    max_epochs: float | None,
) -> dict[str, tuple[ComponentConfig, Any]]:
    """The components of a source with buckets by name, and the weight of each within the source."""
    buckets = source.buckets
    assert buckets is not None
    for field in ("max_tokens", "max_share"):
        if (value := getattr(source, field)) is not None:
            cure = (
                f"Leave it out; max_epochs, and weights of {name}/... in an amendment, bound"
                " single buckets."
            )
            raise ConfigError(
                "does not go with buckets",
                field=f"components.{name}.{field}",
                value=value,
                cure=cure,
            )
    if buckets.levels is None and buckets.repeats is None:
        names = buckets.names or [str(k) for k in range(buckets.count)]
        weights = buckets.weights or [{REPEAT: 1}] * buckets.count
        parts = zip(names, range(buckets.count), weights, strict=True)
        return {
            f"{name}/{part}": (_keeping(source, buckets, [k]), weight) for part, k, weight in parts
        }
    split, path = source.validation_in(name, validation) or (None, "")
    if split is not None and split.by == "blocks":
        raise ConfigError(
            f"would hold out blocks of one layer of {name!r} whose documents others train on",
            field=f"{path}.by",
            value="blocks",
            cure="Hold out the same documents of all: validation.by: documents.",
        )
    repeats = expected_repeats(buckets)
    parts = {}
    reached = 0.0
    epochs = max_epochs if source.max_epochs is None else source.max_epochs
    for level in sorted({*repeats.tolist()} - {0.0}):
        pace = level - reached
        reached = level
        layer = _keeping(
            source, buckets, [k for k, times in enumerate(repeats.tolist()) if times >= level]
        )
        layer = dataclasses.replace(layer, max_epochs=None if epochs is None else epochs * pace)
        parts[f"{name}/x{level:g}"] = layer, {REPEAT: pace}
    return parts


def _keeping(
    source: ComponentConfig, buckets: BucketsConfig, keep: Sequence[int]
) -> ComponentConfig:
    chosen = dataclasses.replace(buckets, weights=None, repeats=None, names=None, keep=[*keep])
    return dataclasses.replace(source, buckets=chosen)
