"""The command lines that marin's plan of block shuffles prints (2026-02-20): they run with their
options, and give its metrics and read counts.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
QUALITY = """
uv run python scripts/bench/bench_permutation_quality.py \
  --n 8192 --repeats 8 --seq-len 2048 \
  --strategies full,era,block --era-length 1024 --window-blocks 8 --batch-size 2048
"""
LOADING = """
uv run python scripts/bench/bench_data_loading_block_shuffle.py \
  --steps 20 --batch-size 128 --prefetch-batches 16 \
  --num-examples 16384 --seq-len 2048 \
  --strategies full,era,block --era-length 1024
"""


def run(command: str, record: Path) -> dict:
    """Runs a command line of ``uv run python``, and reads what it measured."""
    words = shlex.split(command)[3:]
    program = [sys.executable, *words, "--json", str(record)]
    done = subprocess.run(
        program,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(record.read_text())["tables"][0]


@pytest.mark.slow
def test_the_quality_of_the_orders(tmp_path):
    table = run(QUALITY, tmp_path / "record.json")
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert [*rows] == ["full", "era", "block", "expected of random"]
    plan = {
        "full": (0.3325, 0.4997, 0.0010),
        "era": (0.0417, 0.0625, 0.9844),
        "block": (0.3319, 0.4980, 0.0088),
    }
    for name, values in plan.items():
        tolerance = 0.1 if name == "block" else 0.02  # 64 blocks are few to permute
        assert rows[name][:3] == pytest.approx(values, abs=tolerance)


@pytest.mark.slow
def test_the_reads_of_the_orders(tmp_path):
    table = run(LOADING, tmp_path / "record.json")
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert all(row["examples"] == 40_960 for row in rows.values())
    plan = {"full": 35_650, "era": 20, "block": 287}
    for name, reads in plan.items():
        assert rows[name]["reads"] <= 1.15 * reads


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            "bench_permutation_quality",
            "--window-blocks 4",
            "--window-blocks goes with --strategies full,era,block,braid",
        ),
        (
            "bench_permutation_quality",
            "--strategies era --n 1",
            "argument --n: '1' is no whole number from 2 up",
        ),
        (
            "bench_permutation_quality",
            "--strategies eras",
            "--strategies: eras: choose from full, era, block, braid",
        ),
        (
            "bench_data_loading_block_shuffle",
            "--steps 0",
            "argument --steps: '0' is no whole number from 1 up",
        ),
    ],
)
def test_options_without_effect_are_refused(script, options, message):
    words = [sys.executable, f"scripts/bench/{script}.py", *options.split()]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert message in done.stderr
