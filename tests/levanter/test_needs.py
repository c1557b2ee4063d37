"""What an error says where Levanter is missing, on any Python; Levanter itself is not needed for
it.
"""

from importlib import metadata

import pytest

import headrace_levanter.needs
from headrace_levanter.needs import how_to_install, wrong_levanter


def test_a_python_that_is_too_old_is_told_which_one_levanter_needs():
    assert how_to_install((3, 11)).startswith("In an environment of Python 3.12 or newer: pip ")
    for python in ((3, 12), (3, 13), (4, 0)):
        assert how_to_install(python) == how_to_install((3, 12))
        assert how_to_install(python).startswith("pip install marin-levanter==0.2.227.")
    assert how_to_install((3, 12)) in how_to_install((3, 11))


@pytest.mark.parametrize("installed", [None, "0.2.20.dev202606180959"])
def test_a_release_that_is_missing_or_another_one_is_named(monkeypatch, installed):
    def version(package: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(headrace_levanter.needs.metadata, "version", version)
    error = wrong_levanter(ImportError("no such name"), "headrace_levanter.fed")
    assert error.field == "headrace_levanter.fed"
    assert error.cure == how_to_install()
    assert (installed or "needs the package") in error.problem
