"""Compiles the C files of headrace to one shared library, by the system's compiler, or by ziglang
where none is.

    python lib/headrace/build_native.py        beside its sources, for this machine

The build hook (hatch_build.py) calls it for every install; scripts/build_wheels.py for other
platforms, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src" / "headrace" / "native"
LIBRARY = SOURCES / "_native.so"
OPTIONS = [
    *("-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread", "-g0"),
    "-fvisibility=hidden",  # only what is marked EXPORT
    "-fno-strict-aliasing",
    "-ffp-contract=off",  # localities are the same on every processor
]
# Wheel platforms and what ziglang calls them. No glibc is asked for that is newer than the tag
# says.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
SUPPORTED = (
    "x86_64 and aarch64 (arm64) processors, 64-bit, on Linux (glibc 2.17 or later) and macOS"
)


def system_compiler() -> list[str] | None:
    """The command of a C compiler on this machine: $CC, or cc, gcc, clang; None: there is none that
    runs.
    """
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            continue
        # macOS has a cc that only says how to install one
        if subprocess.run([*words, "--version"], capture_output=True, check=False).returncode == 0:
            return words
    return None


def zig_compiler(target: str | None = None) -> list[str]:
    """The command of ziglang's C compiler, for this machine or for a target of :data:`TARGETS`."""
    if importlib.util.find_spec("ziglang") is None:
        raise SystemExit(
            "there is no C compiler (cc, gcc, clang) on this machine, and no ziglang for Python:"
            f" {sys.executable} -m pip install ziglang"
        )
    # Of a 64-bit glibc or macOS, the oldest that is supported; not the processor at hand, but any
    # of its kind
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target or TARGETS[this_platform()]]
    return [*command, "-s"]


def this_platform() -> str:
    """The wheel platform of this machine: a key of :data:`TARGETS`."""
    system = {"linux": "manylinux_2_17", "darwin": "macosx_11_0"}.get(sys.platform, "")
    machine = platform.machine()
    if sys.platform == "darwin" and machine == "aarch64":
        machine = "arm64"
    name = f"{system}_{machine}"
    if name not in TARGETS or sys.byteorder != "little":
        here = f"{machine} ({sys.byteorder}-endian) on {sys.platform}"
        raise SystemExit(f"headrace does not run on {here}: it needs {SUPPORTED}.")
    return name


def sources_digest() -> str:
    """SHA-256 of the sources, as headrace.native computes it."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compile_library(
    compiler: Sequence[str], out: Path = LIBRARY, options: Sequence[str] = ()
) -> None:
    """Compiles the sources; ``out`` is replaced only once that has succeeded: a process may have it
    mapped.
    """
    made = out.with_name(f"{out.name}.{os.getpid()}")
    files = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    command = [*compiler, *OPTIONS, *options, f'-DHEADRACE_SOURCES="{sources_digest()}"']
    try:
        subprocess.run([*command, "-o", str(made), *files], check=True)
        made.replace(out)
    finally:
        made.unlink(missing_ok=True)


def build(out: Path = LIBRARY) -> str:
    """Compiles the library, for this machine or for $HEADRACE_WHEEL_PLATFORM, and returns its wheel
    platform.
    """
    target = os.environ.get("HEADRACE_WHEEL_PLATFORM")
    if target is not None:
        compile_library(zig_compiler(TARGETS[target]), out)
        return target
    name = this_platform()
    system = system_compiler()
    compile_library(system or zig_compiler(), out)
    # What this machine's compiler makes may need this machine's glibc: no other machine is promised
    # it
    return name.replace("manylinux_2_17", "linux") if system else name


def rebuild() -> None:
    """Compiles the sources if the library beside them is of others: a pull may bring some. Without
    a compiler, headrace says what to do when it loads the library.
    """
    if (
        LIBRARY.exists()
        and sources_digest().encode() not in LIBRARY.read_bytes()
        and system_compiler() is not None
    ):
        build()


if __name__ == "__main__":
    print(f"{LIBRARY}: {build()}")
