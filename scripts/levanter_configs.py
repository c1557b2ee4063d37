"""How many configs of Levanter's and Marin's ``headrace config from-levanter`` translates, and why
it refuses others.

    python scripts/levanter_configs.py CHECKOUT [CHECKOUT ...]

Every YAML file below each checkout that is a mapping with data of Levanter's is translated, and
what comes out is read as a config of headrace. Prints a table in Markdown. Files that name no data
(models, optimizers, exports, workflows) are counted apart. Ends with status 1 if less than nine in
ten translate, or one fails with an error that is not headrace's own. Reads nothing but these files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
import time
from collections import Counter
from pathlib import Path

import yaml

AT_LEAST = 0.9
WHOLE = {"data", "supervised_data", "dpo_data", "chat_train_urls"}
OF_DATA = {
    "components",
    "configs",
    "id",
    "train_urls",
    "validation_urls",
    "train_weights",
    "tokenizer",
    "cache_dir",
}


def outcome(path: Path) -> tuple[str, str]:
    """What became of a file, and why: ``translated``, ``refused``, ``no data`` or ``failed``."""
    if not has_data(path):
        return "no data", ""
    said = io.StringIO()
    sys.argv = ["headrace", "config", "from-levanter", str(path)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            runpy.run_module("headrace", run_name="__main__")
    except SystemExit as end:
        return (
            ("translated", "") if not end.code else ("refused", " ".join(said.getvalue().split()))
        )
    except Exception as error:  # noqa: BLE001 - what is counted here is that none gets out
        return "failed", repr(error)
    return "translated", ""


def has_data(path: Path) -> bool:
    """Whether a file says what to train on: under ``data``, in a supervised trainer's way, or by
    itself.
    """
    try:
        root = yaml.compose(path.read_text())
    except yaml.YAMLError:
        return False
    if not isinstance(root, yaml.MappingNode):
        return False
    keys = {str(key.value) for key, _ in root.value}
    return bool(keys & WHOLE) or (len(keys & OF_DATA) >= 2 and not keys & {"trainer", "model"})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    counts: Counter[str] = Counter()
    rows: list[str] = []
    slowest = 0.0
    for checkout in parser.parse_args().checkouts:
        for path in sorted(p for p in checkout.rglob("*.y*ml") if p.suffix in (".yaml", ".yml")):
            started = time.perf_counter()
            kind, reason = outcome(path)
            slowest = max(slowest, time.perf_counter() - started)
            counts[kind] += 1
            if reason:
                rows.append(f"| `{path.relative_to(checkout)}` | {kind} | {reason} |")
    total = counts["translated"] + counts["refused"] + counts["failed"]
    share = counts["translated"] / max(total, 1)
    print(
        f"{counts['translated']} of {total} configs with data translate ({share:.1%}), each within"
        f" {slowest:.2f} s;"
    )
    print(f"{counts['no data']} other YAML files have no data of Levanter's.\n")
    print("| file | | why |\n|---|---|---|")
    print("\n".join(rows))
    return 1 if share < AT_LEAST or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
