"""PackedBatch with segments from a plan: padding weighs nothing, and numpy, jax and jit agree."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PackedBatch, pack_rows

LEAVES = ("tokens", "labels", "token_weights", "position_ids", "segment_ids", "cu_seqlens")

rows_of_segments = st.lists(
    st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5
)


def slow_reference(row: list[int], segments: list[int], width: int):
    """A row's leaves, segment by segment; the padding comes last."""
    labels = []
    weights = []
    positions = []
    numbers = []
    at = 0
    for k, n in enumerate(segments):
        part = row[at : at + n]
        labels += [*part[1:], 0]
        weights += [1.0] * (n - 1) + [0.0]
        positions += range(n)
        numbers += [k] * n
        at += n
    padding = len(row) - at
    rest = row[at:]
    labels += [*rest[1:], 0] if padding else []
    weights += [0.0] * padding
    positions += range(padding)
    numbers += [-1] * padding
    cu = [0, *np.cumsum(segments).tolist()]
    cu += [len(row)] * (width + 2 - len(cu))
    return dict(zip(LEAVES, (row, labels, weights, positions, numbers, cu), strict=True))


@given(rows_of_segments, st.integers(0, 4), st.integers(0, 2))
def test_leaves_are_those_of_the_segments(rows, padding, spare):
    length = max(map(sum, rows)) + padding
    width = max(map(len, rows)) + spare
    tokens = np.random.default_rng(0).integers(0, 9, (len(rows), length)).astype(np.uint16)
    segments = np.array([r + [0] * (width - len(r)) for r in rows], np.int32)
    valid = np.arange(len(rows)) % 3 != 1
    packed = pack_rows(
        tokens, segment_lengths=segments, eos_id=3
    )  # segments take the place of eos_id
    batch = PackedBatch(
        tokens, np.where(valid, packed.source_id, -1), segment_lengths=segments, eos_id=3
    )
    wanted = [slow_reference(t.tolist(), r, width) for t, r in zip(tokens, rows, strict=True)]
    for name in LEAVES:
        expected = np.array([w[name] for w in wanted])
        if name == "token_weights":
            expected = np.where(valid[:, None], expected, 0.0)
        found = getattr(batch, name)
        assert isinstance(found, np.ndarray)
        assert found.dtype == (np.float32 if name == "token_weights" else np.int32), name
        assert np.array_equal(found, expected), name


def test_the_same_in_jax_and_under_jit():
    segments = np.array([[3, 2, 0], [4, 3, 1], [1, 0, 0]], np.int32)
    tokens = np.random.default_rng(0).integers(0, 9, (3, 8)).astype(np.uint16)
    host = pack_rows(tokens, segment_lengths=segments)
    batch = jax.tree.map(jnp.asarray, host)
    derived = jax.jit(lambda b: {name: getattr(b, name) for name in LEAVES})(batch)
    for name in LEAVES:
        assert isinstance(getattr(batch, name), jax.Array)
        assert np.array_equal(getattr(batch, name), getattr(host, name)), name
        assert np.array_equal(derived[name], getattr(host, name)), name
        assert derived[name].dtype == getattr(host, name).dtype, name


@given(rows_of_segments)
def test_no_label_crosses_a_segment(rows):
    length = max(map(sum, rows)) + 1
    width = max(map(len, rows))
    tokens = np.arange(len(rows) * length).reshape(len(rows), length)
    segments = np.array([r + [0] * (width - len(r)) for r in rows], np.int32)
    batch = pack_rows(tokens, segment_lengths=segments)
    row, at = np.nonzero(batch.token_weights)
    assert (batch.labels[row, at] == batch.tokens[row, at] + 1).all()
    assert (batch.segment_ids[row, at] == batch.segment_ids[row, at + 1]).all()
    assert batch.token_weights.sum() == sum(n - 1 for r in rows for n in r)
