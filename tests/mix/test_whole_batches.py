"""Batches of one component each: exact in batches, at any step, staged, amended and limited."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.buckets import BucketsConfig
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.stages import Stage
from headrace.mix.whole_batches import WholeBatches, check_batches
from headrace.pack import PackingConfig
from headrace.testing import write_cache
from headrace.testing.caches import random_documents


def policy(*weights, rows=8, limits=None, planned=None) -> WholeBatches:
    names = [*dict.fromkeys(name for blend in weights for name in blend)]
    stages = [Stage(40 * k, Blend(blend)) for k, blend in enumerate(weights)]
    limits = limits or [None] * len(names)
    return WholeBatches(names, stages, BatchSchedule(rows), limits, planned)


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    st.integers(1, 9),
)
def test_every_batch_has_one_component_and_batches_keep_to_their_shares(first, second, rows):
    blends = [dict(zip("abcde", weights, strict=False)) for weights in (first, second)]
    draws = policy(*blends, rows=rows)
    owed = np.zeros(draws.components)
    drawn = np.zeros(draws.components, np.int64)
    for step in range(80):
        counts = draws.counts_at(step)
        assert np.count_nonzero(counts) == 1
        assert counts.sum() == rows
        assert (draws.starts_at(step) == drawn).all()
        drawn += counts
        blend = blends[step >= 40]
        owed[: len(blend)] += np.asarray([*blend.values()]) / sum(blend.values())
        assert (abs(drawn / rows - owed) < 2).all()
        assert step >= 40 or (abs(drawn / rows - owed) < 1 + 1e-9).all()


@given(st.integers(0, 70), st.integers(1, 30))
def test_tables_of_several_steps_are_those_of_each(first, steps):
    draws = policy({"a": 3, "b": {"linear": {0: 1, 30: 5}}}, rows=4)
    tables = draws.tables_between(first, first + steps)
    assert tables is not None
    component, ordinal = tables
    each = [draws.components_at(step) for step in range(first, first + steps)]
    assert component.tolist() == np.concatenate(each).tolist()
    starts = draws.starts_at(first)
    for number in range(2):
        mine = ordinal[component == number]
        assert mine.tolist() == list(range(starts[number], starts[number] + mine.size))


def test_a_step_may_be_gone_on_from():
    draws, again = (policy({"a": {"linear": {0: 1, 5000: 3}}, "b": 1}) for _ in range(2))
    again.use_anchor(draws.anchor_at(3000))
    assert again.starts_at(3001).tolist() == draws.starts_at(3001).tolist()
    assert (draws.supply() == 1 << 62).all()


def test_limits_hold_in_whole_batches():
    draws = policy({"a": 1, "b": 1}, rows=8, limits=[20, None])
    assert draws.starts_at(30).tolist() == [16, 224]
    with pytest.raises(IndexOutOfRangeError):
        policy({"a": 1}, rows=8, limits=[20]).components_at(2)


def test_what_it_cannot_keep_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not go with a batch_size that changes"):
        LmDataConfig({"a": ComponentConfig("a")}, batch_size={0: 8, 5: 16}, policy="whole_batches")
    with pytest.raises(ConfigError) as caught:
        LmDataConfig(
            {"a": ComponentConfig("a", max_share=0.5), "b": ComponentConfig("b")},
            policy="whole_batches",
        )
    assert caught.value.field == "components.a.max_share"
    check_batches(BatchSchedule(3), {})


@pytest.mark.parametrize("max_epochs", [None, 3.0])
def test_batches_of_a_run_have_documents_of_one_length(tmp_path, max_epochs):
    cache = write_cache(tmp_path / "c", [random_documents(600, seed=1)])
    lengths = BucketsConfig("length", edges=[10, 20, 40])
    run = LmDataConfig(
        {"a": ComponentConfig(cache.path, packing=PackingConfig(), buckets=lengths)},
        seq_len=64,
        batch_size=8,
        policy="whole_batches",
        max_epochs=max_epochs,
    )
    seen = set()
    with run.loader() as loader, loader.iter_from_step(0) as batches:
        for batch, _ in zip(batches, range(80), strict=False):
            (source,) = {*np.asarray(batch.source_id).tolist()}
            of_segments = np.asarray(batch.segment_lengths)
            of_segments = of_segments[of_segments > 0]
            low, high = [0, 10, 20, 40, 99][source : source + 2]
            assert ((of_segments >= low) & (of_segments < high)).all()
            seen.add(source)
    assert seen == {0, 1, 2, 3}
