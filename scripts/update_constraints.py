"""Write the pins: one list of exact versions, for uv (``pyproject.toml``) and for pip
(``constraints.txt``).

``uv.lock`` is not committed: it names download addresses, which belong to the machine that made it.
What is committed is the list of exact versions, twice, because uv reads ``[tool.uv]
constraint-dependencies`` and pip reads ``-c constraints.txt``. The two are always the same list;
tests/test_repository.py holds them equal.

    uv run scripts/update_constraints.py           resolve afresh, newest versions, write both lists (10 seconds)
    uv run scripts/update_constraints.py --keep    after `uv sync`: versions stay, dependencies come and go
    uv run scripts/update_constraints.py --check   no network: the lists are equal, and cover uv.lock where there is one

A version that is only right for some platforms or Python versions keeps its marker.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "# Exact versions: pip install -c constraints.txt ... Written by"
    " scripts/update_constraints.py.\n"
)
PLATFORMS = ["linux", "darwin"]  # as in [tool.uv] environments
MINORS = ["3.11", "3.12", "3.13", "3.14"]  # the last stands for itself and everything after it
_BLOCK = re.compile(r"^constraint-dependencies = \[.*?\]$", re.MULTILINE | re.DOTALL)


def pins_of_lock(lock: dict[str, object]) -> list[str]:
    """Exact requirements of every package in a parsed ``uv.lock``, sorted by name and version.

    Args:
        lock: The parsed lock file.

    Returns:
        Requirements such as ``"numpy==2.4.6 ; python_full_version < '3.12'"``; no marker where one
        version serves all.
    """
    packages = lock.get("package")
    if not isinstance(packages, list):
        raise SystemExit("uv.lock has no packages")
    pins: set[str] = set()
    for package in packages:
        if "registry" not in package["source"]:
            continue  # the workspace itself
        markers = package.get("resolution-markers", [])
        marker = join_markers(markers) if markers else ""
        pins.add(f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else ""))
    return sorted(pins)


def join_markers(markers: Iterable[str]) -> str:
    """One short marker that is true where any of ``markers`` is, within ``MINORS`` and
    ``PLATFORMS``.

    The lock repeats itself for each platform and each Python version; where only the Python version
    matters and the versions are neighbours, one range says the same.
    """
    parsed = [Marker(marker) for marker in markers]
    where = {
        platform: [m for m in MINORS if _any_holds(parsed, m, platform)] for platform in PLATFORMS
    }
    minors = where[PLATFORMS[0]]
    first = MINORS.index(minors[0])
    last = MINORS.index(minors[-1])
    if all(m == minors for m in where.values()) and minors == MINORS[first : last + 1]:
        bounds = [f"python_full_version >= '{minors[0]}'"] if first > 0 else []
        bounds += [f"python_full_version < '{MINORS[last + 1]}'"] if last + 1 < len(MINORS) else []
        return " and ".join(bounds)
    return " or ".join(f"({marker})" for marker in parsed)


def _any_holds(markers: list[Marker], minor: str, platform: str) -> bool:
    environment = {
        "sys_platform": platform,
        "python_version": minor,
        "python_full_version": f"{minor}.0",
    }
    return any(marker.evaluate(environment) for marker in markers)


def pins_of_pyproject(text: str) -> list[str]:
    """The list in ``[tool.uv] constraint-dependencies``."""
    return list(tomllib.loads(text)["tool"]["uv"]["constraint-dependencies"])


def pins_of_constraints(text: str) -> list[str]:
    """The list in ``constraints.txt``, without comments."""
    return [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


def with_pins(pyproject: str, pins: list[str]) -> str:
    """``pyproject.toml`` with the list of pins replaced."""
    block = "constraint-dependencies = [\n" + "".join(f'    "{pin}",\n' for pin in pins) + "]"
    text, count = _BLOCK.subn(lambda _: block, pyproject)
    if count != 1:
        raise SystemExit("pyproject.toml must have exactly one 'constraint-dependencies = [...]'")
    return text


def fresh_lock() -> dict[str, object]:
    """Resolve the workspace without any pin, in a temporary copy; the checkout is not touched."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        (copy / "pyproject.toml").write_text(with_pins((ROOT / "pyproject.toml").read_text(), []))
        shutil.copytree(ROOT / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__"))
        uv = ["uv"] if shutil.which("uv") else [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "lock"], cwd=copy, check=True)
        return tomllib.loads((copy / "uv.lock").read_text())


def problems(root: Path = ROOT) -> list[str]:
    """What is wrong with the committed lists, one sentence each; empty when all is well."""
    found: list[str] = []
    pins = pins_of_pyproject((root / "pyproject.toml").read_text())
    if pins != pins_of_constraints((root / "constraints.txt").read_text()):
        found.append("constraints.txt and [tool.uv] constraint-dependencies differ")
    if pins != sorted(set(pins)):
        found.append("the pins are not sorted, or one stands twice")
    found += [f"not an exact version: {pin}" for pin in pins if "==" not in pin.split(";")[0]]
    lock = root / "uv.lock"
    if lock.exists():
        missing = sorted(set(pins_of_lock(tomllib.loads(lock.read_text()))) - set(pins))
        if missing:
            found.append("uv.lock has versions that are not pinned: " + ", ".join(missing))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit 1 when something is wrong"
    )
    parser.add_argument(
        "--keep", action="store_true", help="the versions of uv.lock, not the newest ones"
    )
    args = parser.parse_args()
    if not args.check:
        kept = tomllib.loads((ROOT / "uv.lock").read_text()) if args.keep else None
        pins = pins_of_lock(kept or fresh_lock())
        pyproject = ROOT / "pyproject.toml"
        pyproject.write_text(with_pins(pyproject.read_text(), pins))
        (ROOT / "constraints.txt").write_text(HEADER + "\n".join(pins) + "\n")
        print(
            f"{len(pins)} pins written to pyproject.toml and constraints.txt; run `uv sync` to use"
            " them"
        )
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
