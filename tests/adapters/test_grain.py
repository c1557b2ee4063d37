"""headrace's rows and batches in the real Grain."""

import numpy as np
import pytest

from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed import DataLoader

grain = pytest.importorskip("grain", reason="Grain has no wheel for this Python")


def test_rows_go_through_grains_pipeline(sources):
    from headrace.adapters import GrainRows

    rows = GrainRows(sources["a"])
    assert len(rows) == len(sources["a"])
    wanted = sources["a"].read(np.arange(len(rows)))
    assert np.array_equal(rows[3]["tokens"], wanted.tokens[3])
    assert np.array_equal(rows[len(rows) + 3]["labels"], wanted.labels[3])  # the next epoch
    assert [r["segment_ids"].tolist() for r in rows[2:5]] == wanted.segment_ids[2:5].tolist()
    batches = list(rows.shuffle(seed=1).batch(4, drop_remainder=True))
    assert batches[0]["token_weights"].shape == (4, 8)
    seen = np.concatenate([b["tokens"] for b in rows.shuffle(seed=1).batch(4)])
    assert sorted(seen.tolist()) == sorted(wanted.tokens.tolist())
    read = list(
        rows.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)).batch(4)
    )
    assert np.array_equal(np.concatenate([b["tokens"] for b in read]), wanted.tokens)


def test_batches_are_the_loaders_and_resume_at_a_step(mixture):
    from headrace.adapters import GrainBatches

    loader = DataLoader(mixture())
    doubled = GrainBatches(mixture()).map(lambda batch: {**batch, "twice": batch["tokens"] * 2})
    found = iter(doubled)
    for step in range(4):
        batch = next(found)
        wanted = np.asarray(loader.batch_at(step).tokens)
        assert np.array_equal(batch["tokens"], wanted)
        assert np.array_equal(batch["twice"], wanted * 2)
    state = found.get_state()
    again = iter(doubled)
    again.set_state(state)
    assert np.array_equal(next(again)["tokens"], loader.batch_at(4).tokens)
    other = iter(GrainBatches(mixture(weight=3)))
    with pytest.raises(PlanMismatchError, match="another run"):
        other.set_state(state)


def test_shares_and_ends(mixture, sources):
    from headrace.adapters import GrainBatches, GrainRows

    with pytest.raises(ConfigError, match="has no end"):
        GrainRows(mixture())
    ended = mixture(num_steps=3)
    whole = list(GrainBatches(ended))
    shares = [list(GrainBatches(ended, rank=r, world=2)) for r in range(2)]
    assert len(whole) == 3
    for one, left, right in zip(whole, *shares, strict=True):
        assert np.array_equal(np.concatenate([left["labels"], right["labels"]]), one["labels"])
