"""A user's script over the public names passes a strict type checker, with the package as it is
installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace.mix
import headrace.order
import headrace.pack

SCRIPT = Path(__file__).with_name("user_script.py")


def checked(folder: Path) -> list[str]:
    """What pyright says of the scripts in a folder, by rule, nothing relaxed."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "-p",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [
        f"{d.get('rule')}: {d['message']}" for d in json.loads(done.stdout)["generalDiagnostics"]
    ]


def test_a_users_script_passes_strict(tmp_path):
    pytest.importorskip("pyright")
    shutil.copy(SCRIPT, tmp_path)
    assert checked(tmp_path) == []


def test_the_check_can_fail(tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "wrong.py").write_text(
        "import headrace\n\nheadrace.load_config(3).loader().batch_at('0')\n"
    )
    rules = [line.split(":")[0] for line in checked(tmp_path)]
    assert rules == ["reportArgumentType", "reportArgumentType"]


def test_the_script_uses_most_of_what_there_is():
    text = SCRIPT.read_text()
    packages = (headrace, headrace.mix, headrace.order, headrace.pack)
    configs = [name for package in packages for name in package.__all__ if name.endswith("Config")]
    assert [name for name in configs if name not in text] == []


def test_the_package_says_that_it_is_typed():
    assert (Path(headrace.__file__).parent / "py.typed").is_file()
