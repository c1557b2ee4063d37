"""Settings that a run was started with and its config may omit: removed and appended documents.

``headrace cache remove`` and ``headrace build --append`` change them. A new run uses the latest of
each, and its manifest records which; a resumed run keeps them. Later removals and additions take
effect at the step of an amendment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Beginning(NamedTuple):
    """Settings that a run was started with.

    Attributes:
        tombstones: Generation of the tombstones of each cache, by component; empty: no tombstones.
        generations: Number of generations of each cache, by component; empty: one.
        config: Fields of its config, whose order of sources a run keeps; None: it had no config.
    """

    tombstones: Mapping[str, Sequence[int]]
    generations: Mapping[str, Sequence[int]]
    config: Mapping[str, Any] | None = None


def beginning_of(resolved: Mapping[str, Any]) -> Beginning:
    """Reads from a manifest what its run was started with.

    Example:
        >>> web = {"0": {"generation": [2], "documents": 3, "digest": "ab"}}
        >>> beginning = beginning_of(
        ...     {"dataset": {"names": ["web", "code"], "tombstones": {"web": web}}}
        ... )
        >>> beginning.tombstones, beginning.generations
        ({'web': [2], 'code': []}, {'web': [], 'code': []})
    """
    tombstones: dict[str, Sequence[int]] = {}
    generations: dict[str, Sequence[int]] = {}
    try:
        mixed = resolved["dataset"]
        while "map" in mixed:
            mixed = mixed["of"]
        removed = mixed.get("tombstones", {})
        appended = first_mixture(mixed).get("generations", {})
        names = names_of(mixed)
        tombstones = {n: [*removed.get(n, {}).get("0", {}).get("generation", ())] for n in names}
        generations = {n: [*appended.get(n, ())] for n in names}
    except (KeyError, TypeError, IndexError, AttributeError):  # not a mixture
        pass
    return Beginning(tombstones, generations)


def first_mixture(mixed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A described mixture; if the length of its rows changes, that of the first phase."""
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
        >>> one, two = ({"generation": [n], "digest": str(n)} for n in (1, 2))
        >>> removals_differ({"a": {"0": one, "60": two}}, {"a": {"0": one}}, ["a"])
        60
    """
    differ: list[int] = []
    nothing: dict[str, Any] = {"generation": [], "digest": ""}
    for name in names:
        recorded = [{int(step): one for step, one in of.get(name, {}).items()} for of in (new, old)]
        for step in {*recorded[0], *recorded[1]}:
            own_removals, other_removals = (
                [nothing, *(of[s] for s in sorted(of) if s <= step)][-1] for of in recorded
            )
            if own_removals["digest"] != other_removals["digest"]:
                differ.append(step)
                if own_removals["generation"] < other_removals["generation"]:
                    raise ValueError(name)
    return min(differ, default=None)
