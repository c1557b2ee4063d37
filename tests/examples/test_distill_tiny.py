"""The distillation example: a student that is shown a teacher's distributions beats one that is
shown labels.
"""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "distill_tiny.py"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_teacher_beats_hard_labels(seed, tmp_path):
    spec = importlib.util.spec_from_file_location("distill_tiny", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    nats = example.run(tmp_path, steps=300, seed=seed)
    assert nats["teacher"] < nats["distilled"] < nats["labels"] - 0.2
