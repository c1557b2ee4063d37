"""006: every arm draws the same number of rows, and the README says what was found."""

import json

import pytest

NAME = "006_learned_mixture"

pytestmark = pytest.mark.slow


def test_quick_run_has_all_arms_and_their_decisions(quick):
    record = quick(NAME).record
    assert list(record["figures"]) == ["uniform", "ado", "exp3"]
    sizes = record["settings"]["sizes"]
    for arm, runs in record["runs"].items():
        assert len(runs) == 2
        for run in runs:
            rows = sum(run["rows_by_source"].values())
            assert rows == record["settings"]["steps"] * sizes["batch_size"]
            assert len(run["shares"]) == (1 if arm == "uniform" else 6)


def test_the_readme_says_what_the_committed_result_says(quick, committed):
    home = quick(NAME).module.HOME
    committed(home)
    figures = json.loads((home / "results.json").read_text())["figures"]
    ado = figures["ado"]
    assert ado["seeds"] == 5
    assert ado["val_loss"]["difference"] + ado["val_loss"]["half_width"] < 0
    assert ado["noise_share_at_end"] < 0.1
