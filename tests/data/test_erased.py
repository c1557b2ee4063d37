"""Removed documents: their tokens leave their rows, from a step on, and nothing else changes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.batch import PackedBatch
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import PlannedDataset
from headrace.data.dataset import rows_of_step
from headrace.data.provenance import removed_spans, spans_of_rows
from headrace.mix import AmendmentConfig, BatchSchedule
from headrace.order import BlockShuffleConfig, BraidShuffleConfig, ValidationConfig
from headrace.order.intervals import Intervals
from headrace.pack import PackingConfig
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents, remove

STEPS = 7
ONE = Mesh(np.array(jax.devices()[:1]), "data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Caches of several parts, one with a mask."""
    root = tmp_path_factory.mktemp("caches")
    tiny_cache(root / "a", documents=150, parts=3, seed=1)
    documents = random_documents(90, seed=2)
    write_cache(
        root / "b", [documents[:60], documents[60:]], eos_id=255, mask=lambda tokens: tokens % 3 > 0
    )
    return root


def numbers(*documents: int) -> Intervals:
    return Intervals.of_numbers(np.array(documents, np.int64))


def leaves(batch: PackedBatch) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(batch)]


def assert_equal(one: PackedBatch, other: PackedBatch) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def gone_at(dataset: PlannedDataset, step: int, gone: dict[str, list[int]]) -> np.ndarray:
    """Which tokens of a step's batch are of documents in ``gone``, from provenance and the dataset
    without removals.
    """
    rows = rows_of_step(dataset, BatchSchedule(4), step)
    spans = spans_of_rows(rows)
    mask = np.zeros((rows.batch_size, rows.seq_len), bool)
    for k in range(len(spans)):
        if int(spans.document[k]) in gone[rows.names[int(rows.component[int(spans.row[k])])]]:
            mask[spans.row[k], int(spans.column[k]) : int(spans.column[k] + spans.size[k])] = True
    return mask


def check_erased(plain: PackedBatch, erased: PackedBatch, gone: np.ndarray) -> None:
    """What is gone is neither there nor trained on nor attended to; the rest is as it was."""
    old, new = (jax.tree.map(np.asarray, one).expand() for one in (plain, erased))  # in numpy
    untouched = ~gone.any(axis=1)
    for name in ("tokens", "labels", "position_ids", "segment_ids", "token_weights", "label_mask"):
        assert np.array_equal(getattr(old, name)[untouched], getattr(new, name)[untouched]), name
    assert np.array_equal(old.tokens[~gone], new.tokens[~gone])
    assert set(np.unique(new.tokens[gone]).tolist()) <= {0, erased.eos_id or 0}
    follows = np.concatenate([gone[:, 1:], np.zeros_like(gone[:, :1])], axis=1)
    assert np.array_equal(new.token_weights, np.where(gone | follows, 0, old.token_weights))
    for row in np.flatnonzero(~untouched):
        before = old.segment_ids[row]
        after = new.segment_ids[row]
        out = gone[row]
        assert not set(after[out].tolist()) & set(after[~out].tolist())
        together = after[:, None] == after
        still = (before[:, None] == before) & ~out[:, None] & ~out
        if (
            plain.eos_id is None and plain.segment_lengths is None
        ):  # one segment is cut where something is gone
            cuts = np.cumsum(out)
            still &= cuts[:, None] == cuts
        assert np.array_equal(together[~out][:, ~out], still[~out][:, ~out])


@st.composite
def configs(draw, folder: Path) -> LmDataConfig:
    packed = draw(st.booleans())
    packing = PackingConfig(long=draw(st.sampled_from(["split", "drop"]))) if packed else None
    both = draw(st.booleans())
    listed = draw(st.booleans())
    components = {}
    for name in ("a", "b") if both else ("a",):
        one = ComponentConfig(str(folder / name), packing=packing)
        components[name] = (
            dataclasses.replace(one, remove=str(folder / "gone.txt")) if listed else one
        )
    return LmDataConfig(
        components,
        seq_len={0: 24, 4: 40}
        if not packed and draw(st.booleans())
        else draw(st.sampled_from([16, 33, 64])),
        batch_size=4,
        split_documents=not packed and draw(st.booleans()),
        shuffle=draw(st.sampled_from([BraidShuffleConfig(), BlockShuffleConfig(window_blocks=2)])),
        validation=draw(st.sampled_from([None, ValidationConfig(5)])),
    )


@given(data=st.data())
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
def test_only_what_is_removed_changes_and_only_from_its_step_on(data, folder):
    (folder / "gone.txt").write_text("\n".join(map(str, range(0, 80, 9))))
    plain = data.draw(configs(folder))
    first, later = (data.draw(st.lists(st.integers(0, 89), min_size=1, max_size=12)) for _ in "12")
    step = data.draw(st.integers(1, STEPS - 1))
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("a", "b"):
            shutil.copytree(folder / name, Path(scratch) / name)
        components = {
            n: dataclasses.replace(c, cache=str(Path(scratch) / n))
            for n, c in plain.components.items()
        }
        moved = dataclasses.replace(plain, components=components)
        with moved.loader(ONE).iter_from_step(0) as batches:
            wanted = [next(batches) for _ in range(STEPS)]
        newest = 0
        for one in components.values():
            assert remove(str(one.cache), *first) == 2
            newest = remove(str(one.cache), *later)
        began = {n: dataclasses.replace(c, snapshot=2) for n, c in components.items()}
        amendments = [AmendmentConfig(step, caches=dict.fromkeys(components, newest))]
        amendments = amendments if newest > 2 else []
        amended = dataclasses.replace(moved, components=began, amendments=amendments)
        none = {n: dataclasses.replace(c, snapshot=1) for n, c in components.items()}
        unerased = dataclasses.replace(moved, components=none)
        dataset = amended.dataset()
        loader = amended.loader(ONE)
        assert_equal(unerased.loader(ONE).batch_at(3), wanted[3])
        total = 0
        whole = unerased.dataset()
        with loader.iter_from_step(0) as batches:
            for at in range(STEPS):
                documents = first if at < step else [*first, *later]
                gone = gone_at(whole, at, dict.fromkeys(components, documents))
                batch = next(batches)
                check_erased(wanted[at], batch, gone)
                rows = rows_of_step(dataset, BatchSchedule(4), at)
                spans = spans_of_rows(rows)
                named = np.zeros_like(gone)
                for k in np.flatnonzero(removed_spans(rows, spans)):
                    named[
                        spans.row[k], int(spans.column[k]) : int(spans.column[k] + spans.size[k])
                    ] = True
                assert np.array_equal(named, gone)
                read = dataset.read(rows.example)
                for ours, theirs in zip(leaves(read), leaves(batch), strict=True):
                    assert np.array_equal(ours, theirs[: ours.shape[0]])
                total += int(gone.sum())
        assert loader.stats().reads.removed_tokens >= total


@pytest.mark.parametrize("asked", [range(12), range(11, -1, -1), [0, 5, 9, 5, 0, 5]])
def test_each_step_lacks_what_is_removed_by_then_whatever_was_asked_before(tmp_path, asked):
    tiny_cache(tmp_path / "a", documents=60, seed=1)
    for documents in (range(20), range(40)):
        newest = remove(str(tmp_path / "a"), *documents)
    amendments = [AmendmentConfig(4 * k, caches={"a": k + 1}) for k in range(1, newest)]
    component = ComponentConfig(str(tmp_path / "a"), snapshot=1)
    config = LmDataConfig({"a": component}, seq_len=16, batch_size=4, amendments=amendments)
    loader = config.loader(ONE)
    for step in asked:
        assert_equal(loader.batch_at(step), config.loader(ONE).batch_at(step))
    masks = [loader.batch_at(step).token_mask for step in (3, 7, 11)]
    assert [mask is None or bool(np.asarray(mask).all()) for mask in masks] == [True, False, False]
