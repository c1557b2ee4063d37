"""The supported release of Levanter, and the error if another one, or none, is installed."""

from __future__ import annotations

import sys
from importlib import metadata

from headrace.errors import ConfigError

_PACKAGE = "marin-levanter"
_RELEASE = "0.2.227.dev40316220070"
_LEAST_PYTHON = (3, 12)
_LEVANTER_PACKAGES = ("levanter", "haliax", "draccus")


def how_to_install(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """The command, with pip and with uv, that installs the supported release; on a Python that is
    too old for it, also which Python it needs.

    Args:
        python: Major and minor version.

    Example:
        >>> print(how_to_install((3, 13)))
        pip install marin-levanter==0.2.227.dev40316220070
        (or: uv pip install --prerelease=allow marin-levanter==0.2.227.dev40316220070)
    """
    package = f"{_PACKAGE}=={_RELEASE}"
    command = f"pip install {package}\n(or: uv pip install --prerelease=allow {package})"
    if python >= _LEAST_PYTHON:
        return command
    least = ".".join(map(str, _LEAST_PYTHON))
    return f"In an environment of Python {least} or newer: {command}"


def of_levanter(error: ImportError) -> bool:
    """Whether an import failed because Levanter, or a package installed with it, lacks a module or
    a name.
    """
    return (error.name or "").split(".")[0] in _LEVANTER_PACKAGES


def wrong_levanter(error: ImportError, field: str) -> ConfigError:
    """The error to raise if an import from Levanter failed.

    Args:
        error: The error that Python raised.
        field: The name that was used.
    """
    works = f"{_RELEASE} works"
    try:
        problem = f"does not work with {_PACKAGE} {metadata.version(_PACKAGE)} ({error}); {works}"
    except metadata.PackageNotFoundError:
        problem = f"needs the package {_PACKAGE}; {works}"
    return ConfigError(problem, field=field, cure=how_to_install())
