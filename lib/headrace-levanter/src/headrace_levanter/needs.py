"""Supported releases of Levanter, and the error if another one, or none, is installed."""

from __future__ import annotations

import sys
from importlib import metadata

from headrace.errors import ConfigError

_PACKAGE = "marin-levanter"
_LAST_OF_311 = "0.2.20.dev202606180959"
_NEWEST = "0.2.227.dev40316220070"
_LEVANTER_PACKAGES = ("levanter", "haliax", "draccus")


def install_command(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """The command, with pip and with uv, that installs a release of Levanter that works with a Python version.

    Args:
        python: Major and minor version.

    Example:
        >>> print(install_command((3, 13)))
        pip install marin-levanter==0.2.227.dev40316220070
        (or: uv pip install --prerelease=allow marin-levanter==0.2.227.dev40316220070)
    """
    packages = (
        f"{_PACKAGE}=={_NEWEST}" if python >= (3, 12) else f"{_PACKAGE}=={_LAST_OF_311} gitpython"
    )
    return f"pip install {packages}\n(or: uv pip install --prerelease=allow {packages})"


def of_levanter(error: ImportError) -> bool:
    """Whether an import failed because Levanter, or a package installed with it, lacks a module or a name."""
    return (error.name or "").split(".")[0] in _LEVANTER_PACKAGES


def wrong_levanter(error: ImportError, field: str) -> ConfigError:
    """The error to raise if an import from Levanter failed.

    Args:
        error: The error that Python raised.
        field: The name that was used.
    """
    works = f"{_LAST_OF_311} (Python 3.11) and {_NEWEST} (Python 3.12 and 3.13) work"
    try:
        problem = f"does not work with {_PACKAGE} {metadata.version(_PACKAGE)} ({error}); {works}"
    except metadata.PackageNotFoundError:
        problem = f"needs the package {_PACKAGE}; {works}"
    return ConfigError(problem, field=field, cure=install_command())
