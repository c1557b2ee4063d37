"""Sightings: the steps that saw a document are those whose rows hold it, found without walking over
all steps.
"""

from __future__ import annotations

import numpy as np
import pytest

from headrace.config import load_config
from headrace.data.dataset import rows_of_step
from headrace.data.provenance import spans_of_rows
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.order.intervals import Intervals
from headrace.run.sightings import Sighting, sightings
from headrace.testing import tiny_cache

PLANS = {
    "plain": ["components.a.weight={linear: {0: 3, 20: 1}}"],
    "phases": ["seq_len={0: 8, 6: 16}"],
    "packed": ["components.a.packing={}", "components.b.packing={}", "seq_len=64"],
    "held out": ["validation={one_in: 8}", "num_steps=30", "row_order=stream"],
}


@pytest.mark.parametrize("plan", PLANS)
def test_they_are_what_every_step_says(plan):
    caches = {name: tiny_cache(documents=60, seed=s, parts=2) for s, name in enumerate("ab")}
    base = ["seq_len=8", "batch_size=4", "components.a={cache: x}", "components.b={cache: x}"]
    config = load_config(overrides=[*base, *PLANS[plan]])
    dataset = config.with_caches(caches).dataset()
    wanted = [2, 3, 40, 59]
    order = "stream" if config.row_order == "stream" else "locality"
    expected: list[Sighting] = []
    for step in range(30):
        rows = rows_of_step(dataset, dataset.batch_schedule, step, order)
        spans = spans_of_rows(rows)
        for document, row, size in zip(
            spans.document.tolist(), spans.row.tolist(), spans.size.tolist(), strict=True
        ):
            if document in wanted and rows.component[row] == 0:
                expected.append(Sighting(document, step, row, size, False))
    found = sightings(dataset, "a", Intervals.of_numbers(np.array(wanted)), 30, order)
    assert found == expected
    assert expected


def test_what_is_not_there():
    dataset = load_config(overrides=["seq_len=8", "batch_size=4", "components.a=x", "num_steps=9"])
    dataset = dataset.with_caches({"a": tiny_cache(documents=60)}).dataset()
    one = Intervals.of_numbers(np.array([60]))
    with pytest.raises(ConfigError, match="is not a component"):
        sightings(dataset, "c", one, 5)
    with pytest.raises(ConfigError, match="is not a document"):
        sightings(dataset, "a", one, 5)
    with pytest.raises(IndexOutOfRangeError):
        sightings(dataset, "a", Intervals.of_numbers(np.array([1])), 11)
