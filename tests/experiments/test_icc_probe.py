"""003: the probe looks at stored blocks and at every arm's order, each of which is a permutation of
the train rows.
"""

import numpy as np
import pytest
from experiments.common.corpus import prepare_corpus
from experiments.common.orders import QUICK, arms

NAME = "003_icc_probe"

pytestmark = pytest.mark.slow


def test_quick_run_has_the_share_before_and_after(quick):
    record = quick(NAME).record
    for value in ("model", "unigram"):
        found = record[value]
        assert list(found["after"]) == list(arms())
        for share in (found["before"], *found["after"].values()):
            assert share["low"] <= share["icc"] <= share["high"]
            assert share["icc"] <= 1
        assert found["after"]["none"]["icc"] == found["before"]["icc"]
        assert all(
            a["noise_measured"] >= 0 and a["noise_predicted"] > 0 for a in found["after"].values()
        )
    assert len(record["table"]["rows"]) == 1 + len(arms())


def test_orders_are_permutations_of_the_train_rows(quick):
    ran = quick(NAME)
    corpus = prepare_corpus(QUICK.corpus, ran.work)
    orders = {arm: ran.module.order_seen(corpus, QUICK, arm, seed=0) for arm in arms()}
    for order in orders.values():
        assert (np.sort(order) == np.arange(order.size)).all()
    assert (orders["none"] == np.arange(orders["none"].size)).all()
    assert (orders["braid"] != orders["full"]).any()


def test_measured_noise_of_a_full_shuffle_is_one(quick):
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=64), 16)
    noise = [quick(NAME).module.measured_noise(rng.permutation(values), 16) for _ in range(300)]
    assert abs(np.mean(noise) - 1) < 0.05
    assert quick(NAME).module.measured_noise(values, 16) > 10


def test_the_readme_says_what_the_committed_result_says(quick, committed):
    committed(quick(NAME).module.HOME)
