"""Differences of runs: of JSON values, and the first step at which two plans differ.

A run may change from a step on that it has not reached. Whether an edited config changes only later
steps is decided by :func:`first_difference`: the descriptions of both plans
(``DataLoader.describe()``) are compared stage by stage, and every difference is assigned the first
step that it can affect.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from headrace.config.writing import FREE_FIELDS
from headrace.mix.amendments import sources_of, weights_by_place, without_sources
from headrace.mix.draws import Skips
from headrace.mix.schedule import MAX_STEP, weight_from_config


class Difference(NamedTuple):
    """A value that differs between two JSON documents: its path, and both values as JSON."""

    path: str
    old: str
    new: str


def differences(old: Any, new: Any, absent: str = "nothing") -> list[str]:
    """:func:`differing_values`, as ``path: old -> new``.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}})
        ['a.c: 2 -> 3', 'a.d: nothing -> 4']
        >>> differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
        ['a[1].b: 2 -> 3']
    """
    return [f"{d.path}: {d.old} -> {d.new}" for d in differing_values(old, new, absent=absent)]


def differing_values(
    old: Any, new: Any, path: str = "", absent: str = "nothing"
) -> list[Difference]:
    """Differing values of two JSON documents; a missing value is written as ``absent``."""
    if isinstance(old, dict) and isinstance(new, dict):
        differences: list[Difference] = []
        for key in [*old, *(k for k in new if k not in old)]:
            at = f"{path}.{key}" if path else str(key)
            if key in old and key in new:
                differences += differing_values(old[key], new[key], at, absent)
            else:
                sides = [_short(side[key]) if key in side else absent for side in (old, new)]
                differences.append(Difference(at, *sides))
        return differences
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for k, pair in pairs for d in differing_values(*pair, f"{path}[{k}]", absent)]
    return [] if old == new else [Difference(path, _short(old), _short(new))]


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """:func:`differences` of the fields of two configs.

    Left out are fields that may change at any time, and snapshots of caches, which a run keeps if
    its config does not set them.

    Example:
        >>> config_differences(
        ...     {"components": {"a": 1, "b": 1}}, {"components": {"b": 1, "a": 1}, "seed": 1}
        ... )
        ['seed: not set -> 1']
    """
    of_run, edited = (
        {name: _without_snapshots(fields[name]) for name in fields if name not in FREE_FIELDS}
        for fields in (old, new)
    )
    return differences(of_run, edited, absent="not set")


def _without_snapshots(value: Any) -> Any:
    """A field without the snapshots of components."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: _without_snapshots(inner) for name, inner in fields.items() if name != "snapshot"}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def first_difference(
    new: Mapping[str, Any], old: Mapping[str, Any], *, declared: bool = False
) -> int | None:
    """The first step at which a plan differs from an older one, if they differ only by later
    stages, later weights, or changes of caches from a step on; None if by more.

    Args:
        new: The description of a loader, as JSON values.
        old: That of another.
        declared: Whether all stages of the old plan must be in the new one as they were: a config
            may declare what comes after them, and take nothing back.
    """
    new_plan = copy.deepcopy(dict(new))
    old_plan = copy.deepcopy(dict(old))
    try:
        new_data = new_plan.pop("dataset")
        old_data = old_plan.pop("dataset")
        while "map" in new_data and new_data["map"] == old_data.get("map"):
            new_data = new_data["of"]
            old_data = old_data["of"]
        removed = removals_differ(
            new_data.pop("removed", {}), old_data.pop("removed", {}), names_of(old_data)
        )
        if new_data == old_data:
            first = removed
        else:
            first = (
                _phases_amended(new_data["phases"], old_data["phases"], declared=declared)
                if "phases" in new_data
                else _mixture_amended(new_data, old_data, declared=declared)
            )
            first = first if first is None or removed is None else min(first, removed)
            # that of the run, which its mixtures have as their plan says it
            for plan in (new_plan, old_plan):
                plan.pop("batch_size", None)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):  # not a mixture
        return None
    # A change from step 0 on leaves nothing of the other run: it is another one
    return (first or None) if new_plan == old_plan else None


def first_mixture(mixed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A described mixture, of what functions are applied to; if the length of its rows changes,
    that of the first phase.
    """
    while "map" in mixed:
        mixed = mixed["of"]
    return mixed["phases"][0]["dataset"] if "phases" in mixed else mixed


def names_of(mixed: Mapping[str, Any]) -> Sequence[str]:
    """The components of a described mixture, including one whose rows change their length."""
    return first_mixture(mixed)["names"]


def removals_differ(
    new: Mapping[str, Any], old: Mapping[str, Any], names: Sequence[str]
) -> int | None:
    """The first step at which the removed documents of some components differ; None if there is
    none.

    Raises:
        ValueError: documents that the old run removed are back in the new one.

    Example:
        >>> one, two = ({"snapshot": [n], "digest": str(n)} for n in (1, 2))
        >>> removals_differ({"a": {"0": one, "60": two}}, {"a": {"0": one}}, ["a"])
        60
    """
    differ: list[int] = []
    nothing: dict[str, Any] = {"snapshot": [], "digest": ""}
    for name in names:
        recorded = [{int(step): one for step, one in of.get(name, {}).items()} for of in (new, old)]
        for step in {*recorded[0], *recorded[1]}:
            own_removals, other_removals = (
                [nothing, *(of[s] for s in sorted(of) if s <= step)][-1] for of in recorded
            )
            if own_removals["digest"] != other_removals["digest"]:
                differ.append(step)
                if own_removals["snapshot"] < other_removals["snapshot"]:
                    raise ValueError(name)
    return min(differ, default=None)


def _mixture_amended(
    new: dict[str, Any], old: dict[str, Any], *, declared: bool, future: bool = False
) -> int | None:
    """The first step at which two mixtures differ, if only their stages and loss weights do; None
    if they differ otherwise, or if stages are ``declared`` and one is not as it was. With
    ``future``, all of it comes after that step, so earlier draws may differ. Changes both
    descriptions.
    """
    # Steps of the plan, which are then counted as the run counts them.
    first = [
        _loss_weights_differ(new.pop("loss_weights", {}), old.pop("loss_weights", {}), old["names"])
    ]
    # Stage by stage, until one differs.
    drawn_from: set[str] = set()
    for new_stage, old_stage in zip_longest(new.pop("stages"), old.pop("stages")):
        if new_stage is not None and old_stage is not None:
            # Sources that are new and have no weight in it are not in it until they get one.
            first.append(_take_out_newcomers(new_stage, old["names"]))
        if old_stage is None or new_stage != old_stage:
            if declared and old_stage is not None:
                return None
            first.append(min(one["step"] for one in (new_stage, old_stage) if one is not None))
            break
        drawn_from.update(sources_of(old_stage["weights"]))
    # Sources of which nothing was drawn yet may be given up.
    old["names"] = [name for name in old["names"] if name in new["names"] or name in drawn_from]
    new["names"] = new["names"][: len(old["names"])]  # new components come last
    for mixture in (new, old):
        mixture.setdefault("snapshots", {})
        for part in ("components", "limits", "snapshots"):  # what only later stages use may be new
            mixture[part] = {k: v for k, v in mixture[part].items() if k in old["names"]}
    if future:
        for mixture in (new, old):
            del mixture["limits"]
            mixture["components"] = {
                name: part["whole"] for name, part in mixture["components"].items()
            }
    old_skips = Skips(old.pop("skipped", ()))
    new_skips = Skips(new.pop("skipped", ()))
    if new != old:
        return None
    differ = [
        min(step_of(step) for step_of in (old_skips.step_of, new_skips.step_of))
        for step in first
        if step is not None
    ]
    skipped_in_one = {*old_skips.ranges} ^ {*new_skips.ranges}
    differ += [old_skips.step_of(first) for first, _ in skipped_in_one]
    return min(differ, default=None)


def _take_out_newcomers(stage: dict[str, Any], known: Sequence[str]) -> int | None:
    """Takes sources that are not known out of a described stage that does not draw from them at its
    begin.

    Returns the first step at which it does, or after which it may; None if there are no such
    sources.
    """
    newcomers = [name for name in sources_of(stage["weights"]) if name not in known]
    first_drawn: list[int] = []
    for path, weight in weights_by_place(stage["weights"]).items():
        if path[-1] not in newcomers:
            continue
        if len(path) > 1:  # its group has a share, whatever its own weight
            return None
        curve = weight_from_config(weight)
        breaks = {stage["step"], *(step for step in curve.breaks if step > stage["step"])}
        at = np.asarray(sorted(breaks | {step + 1 for step in breaks}))
        drawn = at[curve.at(at) > 0]
        first_drawn.append(int(drawn[0]) if drawn.size else MAX_STEP)
    if not first_drawn or min(first_drawn) <= stage["step"]:
        return None
    if "components" in stage:
        stage["components"] = [name for name in stage["components"] if name in known]
    stage["weights"] = without_sources(stage["weights"], newcomers)
    for part in ("max_share", "row_tokens"):
        if part in stage:
            stage[part] = {name: stage[part][name] for name in stage[part] if name in known}
    return min(first_drawn)


def _loss_weights_differ(
    new: Mapping[str, Any], old: Mapping[str, Any], names: Sequence[str]
) -> int | None:
    """The first step at which loss weights of common components differ; None if they never do."""
    first: list[int] = []
    for name in names:
        pair = [weight_from_config(weights.get(name, 1.0)) for weights in (new, old)]
        bends = {
            0,
            *(step for weight in pair for step in weight.breaks),
        }  # linear in between: one step later suffices
        at = np.asarray(sorted(bends | {step + 1 for step in bends}))
        first += at[np.flatnonzero(pair[0].at(at) != pair[1].at(at))[:1]].tolist()
    return min(first, default=None)


def _phases_amended(
    new: list[dict[str, Any]], old: list[dict[str, Any]], *, declared: bool
) -> int | None:
    """The same for a mixture whose rows change their length. The starts of phases after that step
    may differ.
    """
    if [phase["step"] for phase in new] != [phase["step"] for phase in old]:
        return None
    first_phases = (copy.deepcopy(one[0]["dataset"]) for one in (new, old))
    first = _mixture_amended(*first_phases, declared=declared)
    if first is None:
        return None
    skips = Skips(old[0]["dataset"].get("skipped", ()))
    steps = {
        _mixture_amended(
            n["dataset"],
            o["dataset"],
            declared=declared,
            future=skips.step_of(n["step"]) > first,
        )
        for n, o in zip(new, old, strict=True)
    }
    return first if steps == {first} else None
