"""An experiment of Marin's steps, run by the published marin-core: two caches of two builders, a
training on both.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.config import LmDataConfig
from headrace.config.parsing import decode
from headrace.run import RunLock

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "marin" / "run.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("marin") is None, reason="needs marin-core: uv sync --group marin, on Python 3.12"
    ),
]


def run(prefix: Path, *arguments: str) -> str:
    settings = {
        "MARIN_PREFIX": str(prefix),
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--version", "2026.11.01", *arguments],
        env={**os.environ, **settings},
        cwd=prefix,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def record(step: Path):
    return json.loads((step / ".artifact.json").read_text())


@pytest.fixture
def prefix():
    """A folder for the steps: Marin refuses to train on what has "test" in its path, as pytest's
    folders do.
    """
    with tempfile.TemporaryDirectory(prefix="marin-") as folder:
        yield Path(folder)


def test_marins_training_runs_on_headraces_rows(prefix):
    assert "tiny@2026.11.01" in run(prefix)
    assert not (prefix / "texts").exists()  # it was only the plan
    run(prefix, "--run")
    web, code, training = (prefix / name / "2026.11.01" for name in ("web", "code", "tiny"))
    assert (web / "train" / "shard_ledger.json").exists()
    assert (code / "train" / "ledger.json").exists()
    assert record(training)["deps"] == ["web@2026.11.01", "code@2026.11.01", "held_out@2026.11.01"]
    metrics = json.loads((training / "tracker_metrics.jsonl").read_text().splitlines()[-1])[
        "summary"
    ]
    assert metrics["train/loss"] < 6.0  # of 5.99 at the start; what is evaluated on is learned too
    assert metrics["eval/held-out/loss"] == metrics["eval/loss"] < 5.9
    expected = {
        "seq_len": 64,
        "batch_size": 8,
        "seed": 0,
        "split_documents": True,
        "shuffle": {"kind": "block", "io_block_size": 256, "window_blocks": 512},  # Marin's
        "tokenizer": {"path": str(prefix / "tokenizer" / "tokenizer.json")},
        "components": {
            "code": {"cache": str(code / "train"), "weight": 1},
            "web": {"cache": str(web / "train"), "weight": 3},
        },
    }
    lock = RunLock.load(str(training / "checkpoints" / "headrace"))
    ours = RunLock.of(decode(LmDataConfig, expected).loader())
    assert lock is not None
    assert lock.fingerprint == ours.fingerprint
