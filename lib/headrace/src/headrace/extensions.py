"""What other packages bring to headrace: mixing policies, orders of other systems, commands,
engines.

A package announces what it brings in its ``pyproject.toml``, as entry points of one of the groups
below, and the core finds it by name when a config, a call or a command line names it. The core
imports none of these packages.

========================  ==========================================================================
group                     what an entry point names
========================  ==========================================================================
``headrace.policies``     a class :class:`~headrace.mix.plan.PolicyKind`: ``policy: NAME``
``headrace.systems``      a class :class:`~headrace.config.compat.CompatSystem`: ``compat: NAME``
``headrace.commands``     a function with typer's annotations: ``headrace NAME``; a name with
                          a space is a command of a group: ``cache convert``
``headrace.engines``      a function that builds parts: ``build --engine NAME``
``headrace.layouts``      a class :class:`~headrace.store.layouts.Layout`: ``format: NAME``
``headrace.readers``      a class :class:`~headrace.ingest.records.Reader`: ``build --format NAME``
``headrace.inspectors``   a function ``(path, as_json)``; it shows the path and returns True if it
                          knows it
========================  ==========================================================================
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headrace.errors import ConfigError, install_command

POLICIES = "headrace.policies"
SYSTEMS = "headrace.systems"
COMMANDS = "headrace.commands"
ENGINES = "headrace.engines"
LAYOUTS = "headrace.layouts"
READERS = "headrace.readers"
INSPECTORS = "headrace.inspectors"

_BUILT_IN: dict[str, dict[str, str]] = {
    POLICIES: dict.fromkeys(("swrr", "greedy", "exhaustive", "least_consumed"), "compat"),
    SYSTEMS: dict.fromkeys(("megatron", "nmoe"), "compat"),
    COMMANDS: dict.fromkeys(("cache convert", "config from-levanter"), "levanter"),
    ENGINES: {"zephyr": "levanter"},
    LAYOUTS: {
        "levanter": "levanter",
        **dict.fromkeys(("arrow", "datatrove", "llmc", "megatron", "npy"), "compat"),
    },
    READERS: dict.fromkeys(("megatron", "nmoe"), "compat"),
    INSPECTORS: {},
}
"""What headrace's own packages bring, by the extra that installs each: for the cure where one is
missing.
"""


@cache
def _installed(group: str) -> dict[str, list[EntryPoint]]:
    by_name: dict[str, list[EntryPoint]] = {}
    for point in _all_installed().select(group=group):
        by_name.setdefault(point.name, []).append(point)
    return by_name


@cache
def _all_installed() -> Any:
    """The entry points of all packages, whose files are read once for all groups."""
    return entry_points()


def names_of(group: str) -> list[str]:
    """Names that may be used: of installed packages, and of headrace's own packages that are not
    installed.
    """
    return sorted({*_installed(group), *_BUILT_IN[group]})


def installed_names(group: str) -> list[str]:
    """Names that installed packages bring: those of headrace's own packages first."""
    points = _installed(group)
    own = [name for name in _BUILT_IN[group] if name in points]
    return [*own, *sorted(points.keys() - own)]


def load_extension(group: str, name: str, field: str) -> Any:
    """What an installed package brings under a name.

    Args:
        group: One of the groups above.
        name: A name of :func:`names_of`.
        field: What the user wrote the name in, for the error.

    Raises:
        ConfigError: the package that brings it is not installed, or cannot be imported; two
            packages bring the same name.
    """
    points = _installed(group).get(name)
    if points is None:
        package = f"headrace[{_BUILT_IN[group][name]}]"
        raise ConfigError(
            f"needs the package {package}", field=field, value=name, cure=install_command(package)
        )
    packages = sorted({point.dist.name for point in points if point.dist is not None})
    if len({point.value for point in points}) > 1:
        problem = f"is brought by several packages: {', '.join(packages)}"
        cure = f"Keep one of them: pip uninstall {packages[-1]}"
        raise ConfigError(problem, field=field, value=name, cure=cure)
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        problem = f"cannot be imported from the package {packages[0]}: {error}"
        cure = f"Install it anew, with what it needs: pip install --force-reinstall {packages[0]}"
        raise ConfigError(problem, field=field, value=name, cure=cure) from error
