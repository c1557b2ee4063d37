"""PackedBatch against a slow reference that walks over documents; the same in numpy, in jax and
under jit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PackedBatch, pack_rows
from headrace.errors import ConfigError

EOS = 3
LEAVES = ("tokens", "labels", "token_weights", "position_ids", "segment_ids", "cu_seqlens")


def slow_reference(row, eos):
    """A row's leaves, document by document."""
    documents = []
    current = []
    for token in row:
        current.append(token)
        if token == eos:
            documents.append(current)
            current = []
    documents += [current] if current else []
    labels = []
    weights = []
    positions = []
    segments = []
    cu = [0]
    for k, document in enumerate(documents):
        labels += [*document[1:], 0]
        weights += [1.0] * (len(document) - 1) + [0.0]
        positions += range(len(document))
        segments += [k] * len(document)
        cu.append(cu[-1] + len(document))
    longest = 1 if eos is None else len(row)
    cu += [len(row)] * (longest + 1 - len(cu))
    return dict(zip(LEAVES, (row, labels, weights, positions, segments, cu), strict=True))


rows_of_tokens = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=1, max_size=5)
)


def check(batch, rows, eos, valid):
    wanted = [slow_reference(row, eos) for row in rows]
    for name in LEAVES:
        found = np.asarray(getattr(batch, name))
        expected = np.array([w[name] for w in wanted])
        if name == "token_weights":
            expected = np.where(np.array(valid)[:, None], expected, 0.0)
        assert found.dtype == (np.float32 if name == "token_weights" else np.int32), name
        assert np.array_equal(found, expected), (name, rows)


@given(rows=rows_of_tokens, eos=st.sampled_from([None, EOS, 99]), data=st.data())
def test_leaves_are_those_of_the_documents(rows, eos, data):
    valid = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    dtype = data.draw(st.sampled_from([np.uint8, np.uint16, np.uint32, np.int32]))
    packed = pack_rows(np.array(rows, dtype), eos_id=eos)
    batch = PackedBatch(packed.token_ids, np.where(valid, packed.source_id, -1), eos_id=eos)
    check(batch, rows, eos, valid)
    assert all(isinstance(getattr(batch, name), np.ndarray) for name in LEAVES)
    assert (batch.batch_size, batch.seq_len) == (len(rows), len(rows[0]))


@pytest.mark.parametrize("eos", [None, EOS])
def test_the_same_in_jax_and_under_jit(eos):
    rows = np.random.default_rng(0).integers(0, 6, (8, 20))
    # every token ends a document; none does
    rows[0] = EOS
    rows[1] = 0
    valid = np.arange(8) < 6
    batch = PackedBatch(jnp.asarray(rows, jnp.uint16), jnp.where(valid, 0, -1), eos_id=eos)
    check(batch, rows.tolist(), eos, valid)
    assert isinstance(batch.labels, jax.Array)
    derived = jax.jit(lambda b: {name: getattr(b, name) for name in LEAVES})(batch)
    for name in LEAVES:
        assert np.array_equal(derived[name], getattr(batch, name)), name


@given(rows=rows_of_tokens)
def test_no_label_crosses_a_document_and_nothing_is_counted_twice(rows):
    batch = pack_rows(np.array(rows, np.uint16), eos_id=EOS)
    weighted = batch.token_weights > 0
    assert (batch.tokens[weighted] != EOS).all()  # nothing is predicted from the end of a document
    assert not weighted[:, -1].any()
    flat = [t for row in rows for t in row]
    assert weighted.sum() == len(flat) - batch.segment_ids.max(axis=1).sum() - len(rows)


def test_source_ids_default_to_zero():
    assert pack_rows(np.zeros((3, 2), np.uint8)).source_id.tolist() == [0, 0, 0]
    assert pack_rows(np.zeros((3, 2), np.uint8)).valid.all()
    assert pack_rows(np.zeros((1, 2), np.uint8), np.array([7], np.int32)).source_id.tolist() == [7]


def test_truth_values_are_no_sources():
    with pytest.raises(
        ConfigError, match=r"source_id: are truth values, not numbers\. Rows that only fill up"
    ):
        PackedBatch(np.zeros((2, 4), np.uint8), np.ones(2, bool))


def test_a_batch_is_a_pytree_with_a_static_end_of_text():
    batch = pack_rows(np.zeros((2, 4), np.uint8), eos_id=5)
    assert len(jax.tree.leaves(batch)) == 2  # tokens and sources
    assert jax.tree.map(np.asarray, batch).eos_id == 5
