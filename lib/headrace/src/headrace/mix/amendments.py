"""Applies an amendment to a mixture: sources and groups are reweighted, dropped and added within
the blend.

A name refers to the one entry of the (nested) blend with that name, at any depth. A source's weight
changes in place, so its group keeps its share of the whole. A group's new weight does not change
its blend, and a new blend does not change its weight. A group whose last source is dropped is
dropped too. Additions join at the top: a source, or a group of them. A source whose cache has
gained documents becomes a group of the same name, position and weight, which consists of the source
and the source of the new documents, in proportion to their rows; its name then refers to that
group.

Invariants: entries that an amendment does not name keep their weight and position; every name in it
has an effect, or is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from headrace.errors import ConfigError, did_you_mean
from headrace.mix.blend import REPEAT, blend_of, check_weights, without_repeats

BlendPath: TypeAlias = tuple[str, ...]
"""Names from the top of a blend down to one of its entries."""


def amend(
    mixture: Mapping[str, Any],
    *,
    add: Mapping[str, Any],
    weights: Mapping[str, Any],
    drop: Sequence[str],
    components: Collection[str],
    path: str,
) -> dict[str, Any]:
    """The mixture, a (nested) blend of some ``components``, after the amendment at ``path`` of the
    config.

    For ``add``, ``weights`` and ``drop``, see :class:`~headrace.mix.stage_config.AmendmentConfig`.

    Raises:
        ConfigError: a name is not in the mixture, or not a component; it occurs twice, or is both
            changed and dropped; nothing is left.

    Example:
        >>> before = {"web": {"weight": 2, "blend": {"cc": 1, "wiki": 1}}, "code": 1}
        >>> names = ["cc", "wiki", "code", "math"]
        >>> def amended(add={}, weights={}, drop=()):
        ...     return amend(
        ...         before,
        ...         add=add,
        ...         weights=weights,
        ...         drop=drop,
        ...         components=names,
        ...         path="amendments[0]",
        ...     )
        >>> amended(weights={"cc": 3, "web": 5})
        {'web': {'weight': 5, 'blend': {'cc': 3, 'wiki': 1}}, 'code': 1}
        >>> amended(drop=["wiki", "code"], add={"new": {"blend": {"math": 1}}})
        {'web': {'weight': 2, 'blend': {'cc': 1}}, 'new': {'blend': {'math': 1}}}
    """
    check_disjoint(add, weights, drop, path)
    for field, entries in (("weights", weights), ("add", add)):
        if entries:
            _check_named(entries, components, mixture, f"{path}.{field}", field)
            check_weights(without_repeats(entries), f"{path}.{field}")
    tree = dict(mixture)
    touched: list[BlendPath] = []
    entries_by_name = _entries_by_name(tree)
    for name in sorted(
        weights, key=lambda name: blend_of(weights[name]) is None
    ):  # blends written out anew first
        value = weights[name]
        field = f"{path}.weights.{name}"
        is_blend = blend_of(value) is not None
        path_of_entry = _find(tree, entries_by_name, name, field, components, group=is_blend)
        tree = _put(tree, path_of_entry, _weighed(tree, path_of_entry, value, field))
        touched.append(path_of_entry)
        if is_blend:
            entries_by_name = _entries_by_name(tree)
    dropped = [
        _find(tree, entries_by_name, name, f"{path}.drop", components, value=name) for name in drop
    ]
    for path_of_entry, named in itertools.product(dropped, touched):
        if named[: len(path_of_entry)] == path_of_entry:
            problem = f"is dropped by the same amendment, with {path_of_entry[-1]!r}"
            cure = "Say one of the two."
            raise ConfigError(
                problem, field=f"{path}.weights.{named[-1]}", value=weights[named[-1]], cure=cure
            )
    for path_of_entry in dropped:
        if not any(path_of_entry[:depth] in dropped for depth in range(1, len(path_of_entry))):
            tree = _put(tree, path_of_entry, None)
    for name, value in add.items():
        _check_new(tree, name, value, f"{path}.add")
        tree[name] = value
    if not tree:
        problem = "leaves nothing, and a mixture needs at least one source"
        raise ConfigError(
            problem, field=f"{path}.drop", value=[*drop], cure="Keep one of them, or add another."
        )
    return tree


def extend(
    mixture: Mapping[str, Any], newcomers: Mapping[str, str], components: Collection[str], path: str
) -> dict[str, Any]:
    """The mixture with sources extended, each by the source of its new documents; ``path`` as for
    :func:`amend`.

    Raises:
        ConfigError: a source that is not in the mixture.

    Example:
        >>> extend(
        ...     {"web": 3, "code": 1}, {"web": "web@2"}, ["web", "code", "web@2"], "amendments[0]"
        ... )
        {'web': {'weight': 3, 'blend': {'web': {'repeat': 1}, 'web@2': {'repeat': 1}}}, 'code': 1}
    """
    tree = dict(mixture)
    for name, newcomer in newcomers.items():
        entry_path = _find(tree, _entries_by_name(tree), name, f"{path}.caches.{name}", components)
        weight = _at(tree, entry_path)
        old = (
            weight
            if _is_extended(name, weight)
            else {"weight": weight, "blend": {name: {REPEAT: 1}}}
        )
        tree = _put(tree, entry_path, {**old, "blend": {**old["blend"], newcomer: {REPEAT: 1}}})
    return tree


def newcomer_name(name: str, snapshots: int | Sequence[int]) -> str:
    """The source of the documents that one gains with these snapshots.

    Example:
        >>> newcomer_name("web", 2), newcomer_name("web", [2, 1])
        ('web@2', 'web@2-1')
    """
    return f"{name}@{'-'.join(map(str, number_of_each(snapshots)))}"


def number_of_each(given: int | Sequence[int]) -> list[int]:
    """A number for each cache of a component, as configs give them: a plain one, or a list.

    Example:
        >>> number_of_each(2), number_of_each([2, 1])
        ([2], [2, 1])
    """
    return [given] if isinstance(given, int) else [*given]


def family(name: str, names: Iterable[str]) -> list[str]:
    """The names of a source and of the sources that extend it.

    Example:
        >>> family("web", ["code", "web", "web@2", "web2"])
        ['web', 'web@2']
    """
    return [one for one in names if one == name or one.startswith(f"{name}@")]


def without_extensions(mixture: Mapping[str, Any]) -> dict[str, Any]:
    """The mixture with each extended source as it was given: a source with the group's weight.

    Example:
        >>> without_extensions({"web": {"weight": 3, "blend": {"web": 9, "web@2": 1}}, "code": 1})
        {'web': 3, 'code': 1}
    """
    tree = dict(mixture)
    for name, value in mixture.items():
        blend = blend_of(value)
        if _is_extended(name, value):
            tree[name] = value.get("weight", 1)
        elif blend is not None:
            tree[name] = {**value, "blend": without_extensions(blend)}
    return tree


def _is_extended(name: str, value: object) -> bool:
    """Whether an entry of a blend is the group that a source became when it was extended."""
    blend = blend_of(value)
    return blend is not None and name in blend and family(name, blend) == [*blend]


def check_disjoint(
    add: Mapping[str, Any], weights: Mapping[str, Any], drop: Sequence[str], path: str
) -> None:
    """Raises ConfigError if an amendment is empty, contradicts itself, or repeats a name."""
    if not (add or weights or drop):
        raise ConfigError(
            "changes nothing",
            field=path,
            cure="Give it add, weights, drop or skip, or leave it out.",
        )
    doubled = next((name for number, name in enumerate(drop) if name in drop[:number]), None)
    if doubled is not None:
        cure = f"Name it once: drop: [{', '.join(dict.fromkeys(drop))}]"
        raise ConfigError(
            f"names {doubled!r} twice", field=f"{path}.drop", value=[*drop], cure=cure
        )
    for field, entries in (("add", add), ("weights", weights)):
        for name in entries:
            if name in drop:
                problem = "is dropped by the same amendment"
                cure = "Say one of the two: weights changes what is in the mixture."
                raise ConfigError(
                    problem, field=f"{path}.{field}.{name}", value=entries[name], cure=cure
                )


def sources_of(weights: Mapping[str, Any]) -> list[str]:
    """Names of the sources of a (nested) blend.

    Example:
        >>> sources_of(
        ...     {"web": {"weight": 2, "blend": {"cc": 1, "wiki": 1}}, "code": {"step": {0: 1}}}
        ... )
        ['cc', 'wiki', 'code']
    """
    return [entry_path[-1] for entry_path, group in _entries(weights) if not group]


def added_sources(
    amendment_add: Mapping[str, Any], amendment_weights: Mapping[str, Any]
) -> set[str]:
    """Sources that an amendment may add: those of its additions and of new blends."""
    anew = {name: value for name, value in amendment_weights.items() if blend_of(value) is not None}
    return {*sources_of(amendment_add), *sources_of(anew)}


def _entries(tree: Mapping[str, Any], above: BlendPath = ()) -> Iterator[tuple[BlendPath, bool]]:
    """Place of each entry, at all depths, and whether it is a group."""
    for name, value in tree.items():
        blend = blend_of(value)
        entry_path = (*above, str(name))
        yield entry_path, blend is not None
        if blend is not None:
            yield from _entries(blend, entry_path)


def weights_by_place(tree: Mapping[str, Any]) -> dict[BlendPath, Any]:
    """Weight of each entry of a (nested) blend; of a group, without its blend.

    Example:
        >>> weights_by_place({"web": {"weight": 2, "blend": {"cc": 1}}, "code": {"step": {0: 1}}})
        {('web',): 2, ('web', 'cc'): 1, ('code',): {'step': {0: 1}}}
    """
    weights = ((entry_path, _at(tree, entry_path), group) for entry_path, group in _entries(tree))
    return {
        entry_path: value.get("weight", 1) if group else value
        for entry_path, value, group in weights
    }


def without_sources(tree: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A (nested) blend without some sources, and without groups that are empty then.

    Example:
        >>> without_sources({"web": {"weight": 2, "blend": {"cc": 1}}, "code": 1}, ["cc"])
        {'code': 1}
    """
    result = dict(tree)
    for entry_path, is_group in _entries(tree):
        if not is_group and entry_path[-1] in names:
            result = _put(result, entry_path, None)
    return result


_EntriesByName: TypeAlias = dict[str, list[tuple[BlendPath, bool]]]
"""The entries of a blend that bear a name: their paths, and whether they are groups."""


def _entries_by_name(tree: Mapping[str, Any]) -> _EntriesByName:
    entries_by_name: _EntriesByName = {}
    for entry_path, is_group in _entries(tree):
        entries_by_name.setdefault(entry_path[-1], []).append((entry_path, is_group))
    return entries_by_name


def _find(
    tree: Mapping[str, Any],
    entries_by_name: _EntriesByName,
    name: str,
    field: str,
    components: Collection[str],
    *,
    group: bool = False,
    **given: object,
) -> BlendPath:
    """The place of a name; ``group``: of a group where a source bears the same name."""
    entries = entries_by_name.get(name, [])
    if group and sum(is_group for _, is_group in entries) == 1:
        entries = [entry for entry in entries if entry[1]]
    if not entries:
        hint = did_you_mean(name, entries_by_name)
        cure = f"Use add for it. {hint}" if name in components and not given else hint
        raise ConfigError("is not in the mixture", field=field, cure=cure, **given)
    if len(entries) == 2 and _is_extended(name, _at(tree, entries[0][0])):
        entries = entries[:1]  # of an extended source, all of it
    if len(entries) > 1:
        problem = f"means {' and '.join('.'.join(entry_path) for entry_path, _ in entries)}"
        cure = (
            "Write the group out: its name with {weight: ..., blend: {...}}, or name the sources"
            " in it."
        )
        raise ConfigError(problem, field=field, cure=cure, **given)
    return entries[0][0]


def _at(tree: Mapping[str, Any], place: BlendPath) -> Any:
    for name in place[:-1]:
        tree = tree[name]["blend"]
    return tree[place[-1]]


def _weighed(tree: Mapping[str, Any], place: BlendPath, value: Any, field: str) -> Any:
    """What stands at a place after a new weight, or blend, for it."""
    old = _at(tree, place)
    anew = blend_of(value)
    blend = blend_of(old)
    if blend is None:
        if anew is not None:
            cure = (
                f"Give it a number; or drop it, and add a group: {{group: {{blend: {{{place[-1]}:"
                " 1}}}."
            )
            raise ConfigError("is a source and no group", field=field, value=value, cure=cure)
        return value
    if anew is not None:
        inside = set(sources_of(anew))
        outside = set(sources_of(tree)) - set(sources_of(blend))
        for name in sorted(inside & outside):
            problem = f"has {name!r}, which is in the mixture outside of this group"
            raise ConfigError(problem, field=f"{field}.blend", cure="Leave it where it is.")
        return {**old, **value}
    bare = isinstance(value, Mapping) and "weight" in value
    return {"weight": cast("Mapping[str, Any]", value)["weight"] if bare else value, "blend": blend}


def _put(tree: Mapping[str, Any], place: BlendPath, value: Any) -> dict[str, Any]:
    """The tree with another entry at a place; None takes it out, and groups that are empty then."""
    name, *deeper = place
    result = dict(tree)
    if deeper:
        inner = _put(tree[name]["blend"], tuple(deeper), value)
        value = {**tree[name], "blend": inner} if inner else None
    if value is None:
        del result[name]
    else:
        result[name] = value
    return result


def _check_named(
    given: Mapping[str, Any],
    components: Collection[str],
    mixture: Mapping[str, Any],
    path: str,
    field: str,
) -> None:
    """Refuses unknown components and repeated names."""
    names: set[str] = set()
    groups = {entry_path[-1] for entry_path, group in _entries(mixture) if group}
    for entry_path, group in _entries(given):
        name = entry_path[-1]
        at = f"{path}.{'.blend.'.join(entry_path)}"
        in_mixture = (
            field == "weights" and len(entry_path) == 1
        )  # said of what is not there when it is looked for
        if not group and name not in components and not in_mixture:
            cure = did_you_mean(name, components)
            if field == "add" and not cure.startswith("Did you mean"):
                cure = f"List it: components: {{{name}: {{cache: PATH}}}}."
            raise ConfigError("is not a component", field=at, cure=cure)
        if name in names and not (group or name in groups):
            raise ConfigError(
                "is given twice",
                field=at,
                value=_at(given, entry_path),
                cure="Say its weight once.",
            )
        names |= set() if group else {name}


def _check_new(tree: Mapping[str, Any], name: str, value: Any, path: str) -> None:
    """Refuses an addition that already exists."""
    sources = set(sources_of(tree))
    for entry_path, group in _entries({name: value}):
        if not group and entry_path[-1] in sources:
            field = f"{path}.{'.blend.'.join(entry_path)}"
            raise ConfigError("is in the mixture already", field=field, cure="Use weights for it.")
    if name in tree:
        kind = "source" if name in sources else "group"
        raise ConfigError(
            f"has the name of a {kind} of the mixture",
            field=f"{path}.{name}",
            cure=f"Use weights to change that {kind}, or give the group of this one another name: "
            f"{{other: {{blend: {{...}}}}}}.",
        )
