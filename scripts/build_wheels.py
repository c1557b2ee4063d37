"""Build a wheel of headrace for each supported platform, and open each: is what is inside what its
name says?

    uv run --with ziglang python scripts/build_wheels.py dist           build and check all
    uv run python scripts/build_wheels.py dist --check                  only check those in a folder

ziglang compiles the C files for all platforms on any of them. Checked are the wheel's tag, the
format and the processor of the library, that it has every function that Python calls, and that it
needs no newer glibc than the tag promises.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lib" / "headrace"))
from build_native import SOURCES, TARGETS  # noqa: E402

LIBRARY = "headrace/native/_native.so"
# What files say of their processor: ELF at byte 18, Mach-O at byte 4
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
MACH_MACHINES = {"x86_64": 0x01000007, "arm64": 0x0100000C}


def exported() -> set[bytes]:
    """What the C files mark as seen from outside."""
    text = "\n".join(path.read_text() for path in [*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    return {name.encode() for name in re.findall(r"^EXPORT .*?(headrace_\w+)", text, re.MULTILINE)}


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    found = []
    tag = wheel.stem.split("-", 2)[2]
    platform = tag.removeprefix("py3-none-")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/WHEEL"))
        if f"Tag: {tag}" not in archive.read(metadata).decode().splitlines():
            found.append(f"its metadata do not say Tag: {tag}")
        if LIBRARY not in names:
            return [*found, f"it has no {LIBRARY}"]
        library = archive.read(LIBRARY)
    machine = platform.split("_", 3)[3]
    if platform.startswith("manylinux"):
        actual = int.from_bytes(library[18:20], "little")
        if library[:6] != b"\x7fELF\x02\x01" or actual != ELF_MACHINES[machine]:
            found.append("the library is not of its platform")
        versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_([\d.]+)", library)}
        if versions and max(versions) > (2, 17):
            found.append(f"it needs glibc {max(versions)}")
    else:
        actual = int.from_bytes(library[4:8], "little")
        if library[:4] != b"\xcf\xfa\xed\xfe" or actual != MACH_MACHINES[machine]:
            found.append("the library is not of its platform")
    strings = set(re.findall(rb"(?<=[\0_])headrace_\w+(?=\0)", library))
    if missing := exported() - strings:
        found.append(f"it does not export {sorted(missing)}")
    return found


def build(folder: Path) -> None:
    """Builds all wheels into a folder."""
    uv = ["uv"] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    for platform in TARGETS:
        environment = {**os.environ, "HEADRACE_WHEEL_PLATFORM": platform}
        command = [
            *uv,
            "build",
            "-q",
            "--wheel",
            "lib/headrace",
            "--out-dir",
            str(folder.resolve()),
        ]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="build nothing")
    args = parser.parse_args()
    if not args.check:
        build(args.folder)
    failed = False
    for platform in TARGETS:
        wheels = list(args.folder.glob(f"headrace-*-py3-none-{platform}.whl"))
        if len(wheels) != 1:
            print(f"{platform}: {len(wheels)} wheels in {args.folder}", file=sys.stderr)
            failed = True
            continue
        found = problems(wheels[0])
        failed |= bool(found)
        print(f"{wheels[0].name}: {'; '.join(found) or 'as its name says'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
