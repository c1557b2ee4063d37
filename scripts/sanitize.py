"""Run the tests of the C code with the compiler's sanitizers: address, undefined behaviour,
threads.

    uv run python scripts/sanitize.py                       all; needs gcc, or clang as $CC
    uv run python scripts/sanitize.py thread --examples 50  one, with a budget for the property tests

The library is compiled into a folder of its own and loaded in place of the usual one. Python itself
is not compiled with sanitizers: their run-time library is loaded before it, and of threads only
what the C files do is reported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lib" / "headrace"))
import build_native  # noqa: E402

TESTS = [
    "tests/test_native.py",
    "tests/order/braid/test_kernel.py",
    "tests/order/test_permutation_inverse.py",
    "tests/mix/test_phases.py",
    "tests/pack/test_window_kernel.py",
    "tests/feed/test_gather_kernel.py",
    "tests/mix/test_quota.py",
]
# It counts the threads that take no signals, and this sanitizer has one of its own
SKIPPED = {"thread": "test_the_thread_is_not_of_a_fork_and_takes_no_signal"}
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# SIGBUS of lost pages is what the tests are about; Python frees little when it ends
SETTINGS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0:allow_user_segv_handler=1"},
    "undefined": {"UBSAN_OPTIONS": "print_stacktrace=1"},
    "thread": {
        "TSAN_OPTIONS": "handle_sigbus=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1"
        ":die_after_fork=0"
    },
}


def _found(compiler: list[str], library: str) -> Path:
    """Where the compiler has a library; a path that is no file where it has none."""
    command = [*compiler, f"-print-file-name={library}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).resolve()


def run(name: str, examples: int, tests: list[str]) -> int:
    """The exit status of the tests under one sanitizer."""
    compiler = build_native.system_compiler()
    if compiler is None:
        raise SystemExit("sanitizers need a compiler with their run-time libraries: gcc or clang")
    runtime = _found(compiler, RUNTIMES[name])
    if not runtime.is_file():
        raise SystemExit(f"{' '.join(compiler)} has no {RUNTIMES[name]}; install it, or give $CC")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "_native.so")
        options = ["-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={name}"]
        if name != "thread":
            options.append("-fno-sanitize-recover=all")  # the first report ends the process
        build_native.compile_library(
            [*compiler], library, [*options, "-Wall", "-Wextra", "-Werror"]
        )
        environment = {
            **os.environ,
            **SETTINGS[name],
            # The sanitizer asks for libstdc++'s functions when it begins, before Python loads what
            # uses them
            "LD_PRELOAD": f"{runtime} {_found(compiler, 'libstdc++.so.6')}",
            "HEADRACE_NATIVE_LIBRARY": str(library),
            "HEADRACE_HYPOTHESIS": "fuzz",
            "HEADRACE_FUZZ_EXAMPLES": str(examples),
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n2", "--timeout", "600", *tests]
        if name in SKIPPED:
            command += ["-k", f"not {SKIPPED[name]}"]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sanitizers", nargs="*", metavar="SANITIZER", help=", ".join(RUNTIMES))
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument("--tests", nargs="+", default=TESTS)
    args = parser.parse_args()
    if unknown := set(args.sanitizers) - set(RUNTIMES):
        parser.error(
            f"no such sanitizer: {', '.join(sorted(unknown))}; known: {', '.join(RUNTIMES)}"
        )
    failed = False
    for name in args.sanitizers or RUNTIMES:
        print(f"--- {name}", flush=True)
        failed |= run(name, args.examples, args.tests) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
