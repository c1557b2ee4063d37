"""002: all arms take the same number of rows from each source; only when they come differs."""

import numpy as np
import pytest

from headrace.mix.schedule import weight_from_config

NAME = "002_dynamic_mixture"

pytestmark = pytest.mark.slow


def test_quick_run_spends_the_same_on_each_source_in_every_arm(quick):
    record = quick(NAME).record
    assert list(record["figures"]) == ["constant", "code_late", "code_early"]
    spent = [figure["rows_by_source"] for figure in record["figures"].values()]
    steps = record["runs"]["constant"][0]["steps"]
    assert all(
        sum(rows.values()) == steps * record["settings"]["sizes"]["batch_size"] for rows in spent
    )
    for rows in spent:
        counts = list(rows.values())
        assert max(counts) - min(counts) <= 1
    assert len(record["table"]["rows"]) == 3
    for runs in record["runs"].values():
        assert all(set(run["val_loss_by_source"]) == {"code", "readmes"} for run in runs)


def test_ramps_mirror_each_other_and_add_up_to_one(quick):
    steps = np.arange(101)
    for arm in quick(NAME).module.ARMS.values():
        shares = [weight_from_config(w, "weight").at(steps) for w in arm.weights(101)]
        np.testing.assert_allclose(shares[0] + shares[1], 1.0)
        np.testing.assert_allclose(shares[0].sum(), shares[1].sum())


def test_the_readme_says_what_the_committed_result_says(quick, committed):
    committed(quick(NAME).module.HOME)
