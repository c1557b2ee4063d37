"""What a run began with that its config may leave open: the version of the braid, and which documents were removed.

Releases change the first, and ``headrace remove`` the second. A fresh run takes the latest of both, and its manifest
says which; a run that is resumed keeps them. Documents that are removed later go from the step of an amendment on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast


class Beginning(NamedTuple):
    """What a run began with.

    Attributes:
        braid_version: 1 if it is that of all braids; None: the latest.
        tombstones: By component, the generation of the tombstones of each of its caches; empty: of none.
    """

    braid_version: int | None
    tombstones: Mapping[str, Sequence[int]]


def beginning_of(resolved: Mapping[str, Any]) -> Beginning:
    """What a run began with, from its manifest.

    Example:
        >>> web = {"0": {"generation": [2], "documents": 3, "digest": "ab"}}
        >>> beginning_of({"dataset": {"names": ["web", "code"], "tombstones": {"web": web}}})
        Beginning(braid_version=None, tombstones={'web': [2], 'code': []})
    """
    tombstones: dict[str, Sequence[int]] = {}
    try:
        mixed = resolved["dataset"]
        while "map" in mixed:
            mixed = mixed["of"]
        recorded = mixed.get("tombstones", {})
        tombstones = {n: [*recorded.get(n, {}).get("0", {}).get("generation", ())] for n in names_of(mixed)}
    except (KeyError, TypeError, IndexError, AttributeError):  # it mixes nothing
        pass
    return Beginning(1 if _braid_versions(resolved) == {1} else None, tombstones)


def names_of(mixed: Mapping[str, Any]) -> Sequence[str]:
    """The components of a described mixture, also of one whose rows change their length."""
    return (mixed["phases"][0]["dataset"] if "phases" in mixed else mixed)["names"]


def removals_differ(new: Mapping[str, Any], old: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first step at which other documents of some components are removed; None if there is none.

    Raises:
        ValueError: documents that are removed in the old run are there again in the new one.

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
            mine, theirs = ([nothing, *(of[s] for s in sorted(of) if s <= step)][-1] for of in recorded)
            if mine["digest"] != theirs["digest"]:
                differ.append(step)
                if mine["generation"] < theirs["generation"]:
                    raise ValueError(name)
    return min(differ, default=None)


def _braid_versions(value: Any) -> set[int]:
    """Versions of the braids that a manifest holds; one without a version is of version 1."""
    if isinstance(value, list):
        return set[int]().union(*map(_braid_versions, cast(list[Any], value)))
    if not isinstance(value, dict):
        return set()
    fields = cast(dict[str, Any], value)
    inner = set[int]().union(*map(_braid_versions, fields.values()))
    return inner | {fields.get("version", 1)} if fields.get("map") == "BraidShuffle" else inner
