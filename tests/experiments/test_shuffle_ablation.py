"""001: a quick run has all arms, an interrupted one does what is left, and the README says what
results.json says.
"""

import json
import math

import pytest

NAME = "001_shuffle_ablation"
ARMS = ["full", "era", "block_k8", "block_k32", "braid", "braid_k32", "none", "braid_shuffled"]

pytestmark = pytest.mark.slow


def test_quick_run_has_every_figure_of_every_arm(quick):
    ran = quick(NAME)
    record = json.loads(ran.json.read_text())
    assert record == json.loads(json.dumps(ran.record))
    assert list(record["figures"]) == ARMS
    for arm, figure in record["figures"].items():
        assert figure["reads_per_example"] > 0
        assert math.isclose(
            figure["fewer_reads"],
            record["figures"]["full"]["reads_per_example"] / figure["reads_per_example"],
        )
        assert math.isfinite(figure["val_loss"]["mean"])
        assert set(figure["gate"]) == {
            "fewer_reads",
            "excess_within_two_errors",
            "known_to_a_hundredth",
            "passed",
        }
        assert figure["excess_loss"] == figure["val_loss"]["difference"]
        assert figure["predicted"] > 0
        for run in record["runs"][arm]:
            assert len(run["val_curve"]) == 4
            assert run["val_curve"][-1] == [run["steps"], run["val_loss"]]
            assert run["examples"] >= run["steps"] * record["settings"]["sizes"]["batch_size"]
    assert record["figures"]["full"]["val_loss"]["difference"] == 0
    assert len(record["table"]["rows"]) == len(ARMS)
    assert ran.json.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_study_does_what_is_left(quick, monkeypatch):
    ran = quick(NAME)
    folder = next(p for p in (ran.work / NAME).iterdir())
    lost = folder / "braid-1.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    trained: list[int] = []
    whole = ran.module.train
    monkeypatch.setattr(
        ran.module, "train", lambda *args, **kw: trained.append(kw["seed"]) or whole(*args, **kw)
    )
    again = ran.module.main(
        ["--quick", "--work", str(ran.work), "--json", str(ran.work / "again.json")]
    )
    assert trained == [1]
    after = again["runs"]["braid"][1]
    assert after["val_curve"] == before["val_curve"]  # reproducible from config and seed
    assert after["reads"] > 0


def test_the_quick_run_leaves_the_committed_result_alone(quick):
    ran = quick(NAME)
    home = ran.module.HOME
    assert not {p.name for p in home.iterdir()} - {
        "run.py",
        "README.md",
        "results.json",
        "results.png",
        "__pycache__",
    }


def test_the_readme_says_what_the_committed_result_says(quick, committed):
    committed(quick(NAME).module.HOME)
