"""Batches without devices are the loader's, each process with its share of the rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.adapters.host_batches import FIELDS, HostBatches, arrays_of
from headrace.data import TokenSeqDataset
from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed import DataLoader
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache


@settings(max_examples=10)
@given(step=st.integers(0, 40), world=st.sampled_from([1, 2, 4, 8]))
def test_the_shares_of_all_processes_are_the_loaders_batches(mixture_of, step, world):
    shares = [
        HostBatches(mixture_of(), rank=rank, world=world).from_step(step) for rank in range(world)
    ]
    loader = DataLoader(mixture_of())
    for number in range(step, step + 3):
        found = [next(share) for share in shares]
        assert {s for s, _ in found} == {number}
        whole = loader.batch_at(number)
        parts = [arrays_of(batch) for _, batch in found]
        for field in FIELDS:
            assert np.array_equal(
                np.concatenate([p[field] for p in parts]), np.asarray(getattr(whole, field))
            ), field
    for share in shares:
        share.close()


@pytest.fixture(scope="module")
def mixture_of(sources):
    from headrace.data import MixtureDataset

    shuffled = {name: s.braid_shuffle(seed=0, batch_size=8) for name, s in sources.items()}
    return lambda: MixtureDataset(shuffled, {"a": 2, "b": 1}, batch_size=8)


def test_the_end_is_padded_and_marked(sources):
    batches = HostBatches(sources["a"].take(13), 8)
    found = dict(batches.from_step())
    assert batches.num_steps == len(found) == 2
    assert found[1].valid.tolist() == [True] * 5 + [False] * 3
    assert not found[1].token_weights[5:].any()


def test_batches_pass_through_functions(sources):
    mapped = sources["a"].map(lambda batch: batch)
    for (_, one), (_, other) in zip(
        HostBatches(mapped, 8).from_step(2), HostBatches(sources["a"], 8).from_step(2), strict=True
    ):
        assert np.array_equal(one.valid, other.valid)
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.token_weights, other.token_weights)


def test_named_arrays_of_functions_pass_through(sources):
    mapped = sources["a"].map(lambda batch: {"twice": batch.tokens.astype(np.int64) * 2})
    (_, one), (_, plain) = (
        next(HostBatches(d, 8).from_step()) for d in (mapped.take(16), sources["a"].take(16))
    )
    assert np.array_equal(arrays_of(one)["twice"], plain.tokens * 2)
    with pytest.raises(ConfigError, match="is no batch with names"):
        arrays_of(plain.tokens)


def test_states_are_of_one_run(mixture):
    batches = HostBatches(mixture())
    state = batches.lock.state(5).to_dict()
    assert batches.resume(state) == 5
    assert HostBatches(mixture(), rank=1, world=4).resume(state) == 5
    assert batches.describe() == DataLoader(mixture()).describe()
    with pytest.raises(PlanMismatchError):
        HostBatches(mixture(weight=3)).resume(state)


def test_wrong_use_is_refused(sources, mixture):
    with pytest.raises(ConfigError, match=r"batch_size.*missing"):
        HostBatches(sources["a"])
    with pytest.raises(ConfigError, match="differs"):
        HostBatches(mixture(), 16)
    with pytest.raises(ConfigError, match="divisible by 3"):
        HostBatches(mixture(), world=3)
    with pytest.raises(ConfigError, match="rank"):
        HostBatches(mixture(), rank=2, world=2)


def test_columns_come_by_name(tmp_path):
    leaves = {LeafSpec("topk", "int32", width=2): lambda ids: np.stack([ids, ids + 1], axis=-1)}
    cache = write_cache(tmp_path / "cache", [[np.arange(1, 65)]], leaves=leaves)
    batches = HostBatches(
        TokenSeqDataset(cache, 8, columns={"teacher": "topk"}), 4, rank=1, world=2
    )
    _, batch = next(batches.from_step(1))
    arrays = arrays_of(batch)
    assert (
        arrays["teacher"].tolist()
        == np.stack([arrays["tokens"], arrays["tokens"] + 1], axis=-1).tolist()
    )
