"""Batches in MaxText's form, against a loop over documents; the iterator in the real Orbax and
Grain.
"""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import PackedBatch, pack_rows
from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed import DataLoader

grain = pytest.importorskip("grain", reason="Grain has no wheel for this Python")

from headrace.adapters import MaxTextIterator  # noqa: E402
from headrace.adapters.maxtext import to_maxtext  # noqa: E402

COLUMNS = [
    "inputs",
    "inputs_position",
    "inputs_segmentation",
    "targets",
    "targets_position",
    "targets_segmentation",
]
EOS = 3
jitted = jax.jit(to_maxtext)


def by_loop(rows, mask, valid):
    """MaxText's arrays of rows whose documents end after EOS, token by token."""
    arrays = {name: np.zeros(rows.shape, np.int32) for name in COLUMNS}
    for b, row in enumerate(rows):
        segment = 1
        position = 0
        for s, token in enumerate(row):
            ends = token == EOS or s == len(row) - 1
            arrays["inputs"][b, s] = token
            arrays["inputs_position"][b, s] = arrays["targets_position"][b, s] = position
            arrays["inputs_segmentation"][b, s] = segment if valid[b] else 0
            if not ends:
                arrays["targets"][b, s] = row[s + 1]
                arrays["targets_segmentation"][b, s] = segment if valid[b] and mask[b, s + 1] else 0
            segment, position = (segment + 1, 0) if token == EOS else (segment, position + 1)
    return arrays


@pytest.mark.parametrize("jit", [False, True], ids=["host", "devices"])
@given(st.data())
def test_against_a_loop_over_tokens(jit, data):
    shape = (
        (3, 7) if jit else data.draw(st.tuples(st.integers(1, 4), st.integers(1, 13)))
    )  # one program
    rows = data.draw(hnp.arrays(np.uint16, shape, elements=st.integers(0, 5)))
    mask = data.draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, 1)))
    source = data.draw(hnp.arrays(np.int32, shape[:1], elements=st.integers(-1, 1)))
    batch = PackedBatch(rows, source, eos_id=EOS, token_mask=mask)
    expected = by_loop(rows, mask, source >= 0)
    arrays = jitted(batch) if jit else to_maxtext(batch)
    assert sorted(arrays) == COLUMNS
    for name in COLUMNS:
        assert arrays[name].dtype == np.int32, name
        assert np.array_equal(arrays[name], expected[name]), name


def test_padding_is_segment_0():
    batch = PackedBatch(
        np.full((1, 6), 7, np.uint16), np.zeros(1, np.int32), segment_lengths=np.array([[3, 1]])
    )
    arrays = to_maxtext(batch)
    assert arrays["inputs_segmentation"].tolist() == [[1, 1, 1, 2, 0, 0]]
    assert arrays["targets_segmentation"].tolist() == [[1, 1, 0, 0, 0, 0]]


def test_weights_are_refused():
    weighed = pack_rows(np.ones((2, 4), np.uint16), eos_id=0)
    weighed = PackedBatch(
        weighed.token_ids, weighed.source_id, weights=np.full((2, 4), 0.5, np.float32)
    )
    with pytest.raises(ConfigError, match=r"'weights'.* counts a label or does not"):
        to_maxtext(weighed)
    pairs = PackedBatch(weighed.token_ids, weighed.source_id, eos_id=0, pairs=True)
    with pytest.raises(ConfigError, match="'pairs'"):
        to_maxtext(pairs)


def test_the_iterators_batches_are_the_loaders_in_its_sharding(mixture):
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "sequence"))
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "sequence"))
    loader = DataLoader(mixture(num_steps=5), sharding=sharding)
    batches = list(MaxTextIterator(loader, step=2))
    assert len(batches) == 3
    for step, batch in enumerate(batches, start=2):
        expected = to_maxtext(loader.batch_at(step))
        for name in COLUMNS:
            assert batch[name].sharding == sharding
            assert np.array_equal(batch[name], expected[name])


def test_state_goes_round_and_a_state_of_another_run_is_refused(mixture):
    loader = DataLoader(mixture())
    with_batches = MaxTextIterator(loader)
    for _ in range(3):
        next(with_batches)
    state = with_batches.get_state()
    again = MaxTextIterator(DataLoader(mixture()))
    next(again)
    again.set_state(state)
    assert np.array_equal(next(again)["inputs"], loader.batch_at(3).tokens)
    again.reset()
    assert np.array_equal(next(again)["inputs"], loader.batch_at(0).tokens)
    again.close()
    assert np.array_equal(next(again)["inputs"], loader.batch_at(1).tokens)
    with pytest.raises(PlanMismatchError, match="another run"):
        MaxTextIterator(DataLoader(mixture(weight=3))).set_state(state)
    with pytest.raises(ConfigError, match="not a PackedBatch"):
        next(MaxTextIterator(DataLoader(mixture().map(lambda batch: {"tokens": batch.tokens}))))


@pytest.mark.parametrize(
    "state", [-3, None, "x", [1], {}, {"step": -3}, {"step": 1.0}, {"step": True}]
)
def test_what_is_no_state_is_refused_and_changes_nothing(mixture, state):
    batches = MaxTextIterator(DataLoader(mixture()), step=2)
    before = batches.get_state()
    given = {**before, **state} if isinstance(state, dict) and state else state
    with pytest.raises(ConfigError, match="is not a loader's state"):
        batches.set_state(given)
    assert batches.get_state() == before
    assert np.array_equal(next(batches)["inputs"], DataLoader(mixture()).batch_at(2).tokens)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_orbax_saves_it_beside_the_model(mixture, tmp_path):
    """A training whose weights depend on every batch: stopped and resumed, it gives the weights of
    an unbroken one.
    """
    import orbax.checkpoint as ocp

    def train(weights, batches, steps):
        for _ in range(steps):
            batch = next(batches)
            weights = weights * 31 % 65537 + int((batch["inputs"] * batch["inputs_position"]).sum())
        return weights

    start = jax.numpy.zeros((), jax.numpy.int32)
    unbroken = train(start, MaxTextIterator(DataLoader(mixture())), 7)
    with ocp.CheckpointManager(tmp_path) as manager:
        batches = MaxTextIterator(DataLoader(mixture()))
        weights = train(start, batches, 4)
        items = ocp.args.Composite(
            items=ocp.args.StandardSave({"w": weights}),
            iter=grain.checkpoint.CheckpointSave(batches),
        )
        manager.save(4, args=items)
        next(batches)  # what comes after the save is no part of it
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as manager:
        batches = MaxTextIterator(DataLoader(mixture()))
        items = ocp.args.Composite(
            items=ocp.args.StandardRestore({"w": start}),
            iter=grain.checkpoint.CheckpointRestore(batches),
        )
        restored = manager.restore(manager.latest_step(), args=items)
        assert train(restored["items"]["w"], batches, 3) == unbroken
