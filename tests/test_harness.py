"""The safety nets of the test suite catch what they are there for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FAULTY = """
import threading, time, warnings
import pytest

def test_leaves_a_thread():
    def run():
        while threading.main_thread().is_alive():
            time.sleep(0.05)

    threading.Thread(target=run, name="left-behind").start()

def test_leaves_a_daemon_and_a_thread_that_is_about_to_end():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    threading.Thread(target=time.sleep, args=(0.2,)).start()

def test_warns():
    warnings.warn("something is old", DeprecationWarning)

def test_leaves_a_file_open(tmp_path):
    (tmp_path / "x").open("w")

@pytest.mark.fuzz
def test_long(): pass

@pytest.mark.soak
def test_longer(): pass
"""


def run_faulty(tmp_path: Path, *arguments: str) -> str:
    (tmp_path / "test_faulty.py").write_text(FAULTY)
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(
        conftest.replace("THREAD_GRACE_S = 60.0", "THREAD_GRACE_S = 3.0")
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pytest.toml"),
        "--rootdir",
        str(tmp_path),
    ]
    command += ["-p", "no:cacheprovider", "-n0", *arguments, str(tmp_path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout


def test_leaks_and_warnings_fail(tmp_path):
    output = run_faulty(tmp_path)
    assert "threads left running: ['left-behind']" in output
    assert "DeprecationWarning: something is old" in output
    assert "unclosed file" in output
    assert "2 deselected" in output
    lines = [
        line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]
    assert sorted(lines) == [
        "ERROR test_faulty.py::test_leaves_a_thread",
        "FAILED test_faulty.py::test_leaves_a_file_open",
        "FAILED test_faulty.py::test_warns",
    ]


def test_an_unknown_marker_fails(tmp_path):
    (tmp_path / "test_marker.py").write_text(
        "import pytest\n@pytest.mark.fuz\ndef test_x(): pass\n"
    )
    assert "'fuz' not found in `markers`" in run_faulty(tmp_path)
