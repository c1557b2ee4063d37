"""Compile the C sources of the library to LLVM's assembly language, which is what the library loads.

    uv run scripts/compile_kernels.py            write a .ll file beside each .c file; needs clang 16 or newer
    uv run scripts/compile_kernels.py --check    exit status 1 where a .ll file is not of its .c file; needs no compiler

The result is for any 64-bit machine, or, if its source says "Features:", for processors that have them: target and
processor are left out, and chosen where it is loaded. Its first line has the SHA-256 of the source with the compiler's
options, and that of the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "lib" / "headrace" / "src" / "headrace"
OPTIONS = (
    *(
        "--target=x86_64-linux-gnu",
        "-S",
        "-emit-llvm",
        "-O2",
        "-ffreestanding",
        "-Wall",
        "-Wextra",
        "-Werror",
    ),
    *(
        "-fno-strict-aliasing",
        "-fno-vectorize",
        "-fno-slp-vectorize",
        "-fno-unroll-loops",
    ),  # shorter text
    *("-ffp-contract=off", "-fno-stack-protector", "-fno-ident", "-fno-pic"),
)
OF_TARGET = re.compile("target |source_filename|; ModuleID|!llvm.module.flags")


def first_line(source: Path, text: str) -> str:
    made_of = f"{OPTIONS}\n{source.read_text()}"
    digests = [hashlib.sha256(part.encode()).hexdigest() for part in (made_of, text)]
    return f"; Compiled from {source.name} by scripts/compile_kernels.py: {' '.join(digests)}"


def compiled(source: Path, clang: str) -> str:
    features = re.search("^// Features: (.*)$", source.read_text(), flags=re.MULTILINE)
    options = [*OPTIONS, *(f"-m{feature}" for feature in (features[1].split() if features else ()))]
    text = subprocess.run(
        [clang, *options, "-o", "-", source], check=True, capture_output=True, text=True
    ).stdout
    text = "\n".join(line for line in text.splitlines() if not OF_TARGET.match(line))
    text = re.sub(r"^(attributes #\d+ = ){.*}$", r"\1{ nounwind }", text, flags=re.MULTILINE)
    return f"{first_line(source, text := text.strip())}\n{text}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare sources and results, and write nothing"
    )
    parser.add_argument(
        "--clang",
        default=os.environ.get("CLANG", "clang"),
        help="the compiler (default: %(default)s)",
    )
    args = parser.parse_args()
    old = []
    for source in sorted(PACKAGE.rglob("*.c")):
        result = source.with_suffix(".ll")
        if not args.check:
            result.write_text(compiled(source, args.clang))
            continue
        head, _, text = result.read_text().partition("\n") if result.exists() else ("", "", "")
        if head != first_line(source, text.strip()):
            old.append(result.relative_to(PACKAGE))
    for result in old:
        print(
            f"{result} is not of its source: run scripts/compile_kernels.py, which needs clang",
            file=sys.stderr,
        )
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
