"""005: a quick run has every arm and says what it could see."""

import numpy as np
import pytest

NAME = "005_loss_parity"

pytestmark = pytest.mark.slow


def test_quick_run_has_every_arm(quick):
    record = quick(NAME).record
    arms = ["full", "braid", "braid_shuffled", "braid_split", "marin_window"]
    assert list(record["figures"]) == arms
    assert record["figures"]["full"]["difference"] == 0
    steps = {run["steps"] for runs in record["runs"].values() for run in runs}
    assert steps == {record["settings"]["steps"]}


def test_the_smallest_difference_is_seen_in_four_of_five_studies(quick):
    """Studies drawn with that difference: the share in which the pooled t-test finds it."""
    rng = np.random.default_rng(0)
    smallest_seen = quick(NAME).module.smallest_seen
    true = smallest_seen({"a": np.array([-1.0, 0, 1]), "b": np.array([-1.0, 0, 1])})["nats"]
    seen = 0
    for _ in range(4000):
        pairs = {"a": rng.normal(true, 1, 3), "b": rng.normal(0, 1, 3)}
        sd = smallest_seen(pairs)["pair_sd"]
        seen += pairs["a"].mean() > 2.776 * sd / 3**0.5
    assert 0.75 < seen / 4000 < 0.87
