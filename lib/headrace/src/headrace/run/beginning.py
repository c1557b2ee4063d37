"""Settings that a run was started with and its config may omit: the snapshots of its caches.

``headrace cache remove`` and ``headrace build --append`` make new ones. A new run uses the latest,
and its manifest records which; a resumed run keeps them. Later snapshots take effect at the step of
an amendment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Beginning(NamedTuple):
    """Settings that a run was started with.

    Attributes:
        snapshots: The snapshot of each cache, by component; empty: the first.
        config: Fields of its config, whose order of sources a run keeps; None: it had no config.
    """

    snapshots: Mapping[str, Sequence[int]]
    config: Mapping[str, Any] | None = None


def beginning_of(resolved: Mapping[str, Any]) -> Beginning:
    """Reads from a manifest what its run was started with.

    Example:
        >>> beginning_of(
        ...     {"dataset": {"names": ["web", "code"], "snapshots": {"web": [2]}}}
        ... ).snapshots
        {'web': [2], 'code': []}
    """
    snapshots: dict[str, Sequence[int]] = {}
    try:
        mixed = resolved["dataset"]
        while "map" in mixed:
            mixed = mixed["of"]
        later = first_mixture(mixed).get("snapshots", {})
        snapshots = {name: [*later.get(name, ())] for name in names_of(mixed)}
    except (KeyError, TypeError, IndexError, AttributeError):  # not a mixture
        pass
    return Beginning(snapshots)


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
