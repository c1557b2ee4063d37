"""Examples in batches: weight i is label i's, nothing is lost, pairs stay together, and what is odd
is named.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import Example, PackedBatch, pack_examples
from headrace.errors import ConfigError

lengths_and_capacity = st.lists(st.integers(1, 9), min_size=1, max_size=12).flatmap(
    lambda lengths: st.tuples(st.just(lengths), st.integers(max(lengths), 24))
)


def numbered(lengths):
    """Examples whose every value tells which token it is of."""
    examples = []
    at = 1
    for number, n in enumerate(lengths):
        ids = np.arange(at, at + n)
        examples.append(
            Example(
                ids,
                loss_mask=(ids % 3 > 0).astype(np.uint8),
                weights=(ids * 0.5).astype(np.float32),
                log_probs=(-ids).astype(np.float32),
                reward=float(number),
                group=number // 2,
                policy_version=(ids * 7).astype(np.int32),
                extras={"slot": ids * 10, "pixels": np.stack([ids, -ids], axis=1)},
            )
        )
        at += n
    return examples


@given(lengths_and_capacity, st.integers(1, 3))
def test_what_is_said_of_a_label_is_said_of_the_token_that_follows(drawn, multiple):
    lengths, capacity = drawn
    examples = numbered(lengths)
    batch = pack_examples(examples, capacity, multiple=multiple)
    assert batch.batch_size % multiple == 0
    row, at = np.nonzero(batch.label_mask)
    label = batch.labels[row, at]
    assert (label == batch.tokens[row, at] + 1).all()  # within one example
    assert (batch.token_weights[row, at] == label * 0.5).all()
    assert (batch.log_probs[row, at] == -label).all()
    assert (batch.policy_version[row, at] == label * 7).all()
    wanted = sorted(int(t) for e in examples for t in e.tokens[1:] if t % 3)
    assert sorted(label.tolist()) == wanted  # each is trained on once, and no other
    ends = ~batch.label_mask
    assert (batch.token_weights[ends] == 0).all()
    real = batch.segment_ids >= 0
    assert (batch.extras["slot"][real] == batch.tokens[real] * 10).all()
    assert (batch.extras["pixels"][real][:, 1] == -batch.tokens[real]).all()


@given(lengths_and_capacity)
def test_packing_then_unpacking_gives_the_examples_back(drawn):
    lengths, capacity = drawn
    examples = numbered(lengths)
    batch = pack_examples(examples, capacity)
    flat = batch.flatten().compact()
    found = {int(p[0]): p for p in np.split(flat.tokens, flat.cu_seqlens[1:-1])}
    assert len(found) == len(examples)
    for example in examples:
        assert np.array_equal(found[int(example.tokens[0])], example.tokens)
    for b in range(batch.batch_size):
        for k, n in enumerate(batch.segment_lengths[b]):
            if n:
                first = batch.tokens[b, batch.cu_seqlens[b, k]]
                example = next(e for e in examples if e.tokens[0] == first)
                assert batch.rewards[b, k] == example.reward
                assert batch.group_ids[b, k] == example.group


@given(lengths_and_capacity, st.integers(0, 3))
def test_the_flat_form_says_the_same(drawn, spare):
    lengths, capacity = drawn
    batch = pack_examples(numbered(lengths), capacity + spare)
    flat = batch.flatten()
    tight = batch.flatten().compact()
    assert flat.tokens.size == batch.batch_size * batch.seq_len == flat.cu_seqlens[-1]
    assert (np.diff(flat.cu_seqlens) >= 0).all()
    assert tight.tokens.size == sum(lengths)
    assert np.diff(tight.cu_seqlens).tolist() == [
        n for row in batch.segment_lengths.tolist() for n in row if n
    ]
    assert tight.max_seqlen == max(lengths)
    for form in (flat, tight):  # positions and segments follow from the one cu_seqlens
        at = np.arange(form.tokens.size)
        start = form.cu_seqlens[np.searchsorted(form.cu_seqlens, at, side="right") - 1]
        assert np.array_equal(form.position_ids, at - start)
        ends = form.cu_seqlens[1:][np.diff(form.cu_seqlens) > 0] - 1
        assert (form.token_weights[ends] == 0).all()
    assert (flat.token_weights * flat.labels).sum() == pytest.approx(
        (tight.token_weights * tight.labels).sum()
    )


def test_a_flat_batch_under_jit_is_the_host_s():
    host = pack_examples(numbered([3, 5, 2, 6]), 8, multiple=3)
    batch = jax.tree.map(jnp.asarray, host)
    flat = jax.jit(lambda b: b.flatten())(batch)
    for found, wanted in zip(jax.tree.leaves(flat), jax.tree.leaves(host.flatten()), strict=True):
        assert np.array_equal(found, wanted)
        assert found.dtype == jnp.asarray(wanted).dtype
    with pytest.raises(ConfigError, match="on the host"):
        flat.compact()


def test_an_expanded_batch_stays_on_its_devices():
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    host = pack_examples(numbered([3, 5, 2, 6, 4]), 8, multiple=4)
    batch = jax.tree.map(lambda x: jax.device_put(x, split), host)
    expanded = jax.jit(PackedBatch.expand)(batch)
    for name in ("tokens", "labels", "token_weights", "segment_ids", "position_ids", "label_mask"):
        found = getattr(expanded, name)
        assert np.array_equal(found, getattr(host, name)), name
        assert found.sharding.is_equivalent_to(split, 2), name
    assert np.array_equal(expanded.segment_groups, host.segment_groups)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8))
def test_pairs_stay_together(pairs):
    batch = pack_examples(numbered([n for pair in pairs for n in pair]), 12, unit=2)
    for b in range(batch.batch_size):
        rewards = batch.rewards[b][batch.segment_lengths[b] > 0]
        assert rewards.size % 2 == 0
        assert (rewards[::2] % 2 == 0).all()  # the even one first: chosen
        assert np.array_equal(rewards[1::2], rewards[::2] + 1)


def test_leaves_that_nobody_has_are_not_sent():
    batch = pack_examples([Example(np.array([1, 2], np.uint16))], 4)
    assert len(jax.tree.leaves(batch)) == 3  # tokens, source, segment lengths
    assert batch.token_ids.dtype == np.uint16
    mixed = pack_examples(
        [Example(np.array([1, 2]), loss_mask=np.array([0, 0])), Example(np.array([3, 4]))], 4
    )
    assert mixed.labels[mixed.label_mask].tolist() == [4]


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("loss_mask", lambda: Example(np.arange(3), loss_mask=np.ones(4))),
        ("weights", lambda: Example(np.arange(3), weights=np.ones(2, np.float32))),
        ("slot", lambda: Example(np.arange(3), extras={"slot": np.arange(2)})),
        ("tokens", lambda: Example(np.zeros(0, int))),
        ("examples[1]", lambda: pack_examples(numbered([2, 9]), 8)),
        ("examples[2:4]", lambda: pack_examples(numbered([2, 2, 5, 5]), 8, unit=2)),
        ("examples", lambda: pack_examples(numbered([2, 2, 2]), 8, unit=2)),
        ("rows", lambda: pack_examples(numbered([8, 8]), 8, rows=1)),
        ("max_segments", lambda: pack_examples(numbered([2, 2]), 8, max_segments=1)),
        ("tokens", lambda: Example([])),
        ("tokens", lambda: Example([1.0, 2.0])),
        ("tokens", lambda: Example(["a"])),
        ("tokens", lambda: Example([[1], [2, 3]])),
        ("tokens", lambda: Example(None)),
        ("weights", lambda: Example([1, 2, 3], weights=[0.0, 1.0])),
        ("weights", lambda: Example([1, 2], weights=np.ones((2, 1)))),
        ("weights", lambda: Example([1, 2], weights=float("nan"))),
        ("loss_mask", lambda: Example([1, 2], loss_mask=1)),
        ("loss_mask[1]", lambda: Example([1, 2], loss_mask=[1, 256])),  # 0, as uint8
        ("loss_mask[0]", lambda: Example([1, 2], loss_mask=[0.5, 1])),
        ("log_probs", lambda: Example([1, 2], log_probs=[None, -1.0])),
        ("log_probs[1]", lambda: Example([1, 2], log_probs=[0.0, 0.5])),  # of a probability
        ("policy_version[1]", lambda: Example([1, 2], policy_version=[0, 2**40])),
        ("reward", lambda: Example([1, 2], reward=float("nan"))),
        ("group", lambda: Example([1, 2], group=2**40)),
        ("slot", lambda: Example([1, 2], extras={"slot": 3})),
        (
            "slot",
            lambda: pack_examples(
                [Example([1], extras={"slot": np.ones((1, k))}) for k in (2, 3)], 8
            ),
        ),
        ("seq_len", lambda: pack_examples([], 0)),
        ("unit", lambda: pack_examples(numbered([2]), 8, unit=0)),
        ("multiple", lambda: pack_examples(numbered([2]), 8, multiple=0)),
        ("max_segments", lambda: pack_examples([], 8, max_segments=0)),
    ],
)
def test_what_does_not_fit_is_named(field, make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_no_examples_are_an_empty_batch():
    batch = pack_examples([], 8, rows=2)
    assert batch.token_ids.shape == (2, 8)
    assert not batch.label_mask.any()


@given(lengths_and_capacity)
def test_examples_of_lists_are_those_of_arrays(drawn):
    lengths, capacity = drawn
    examples = numbered(lengths)
    as_lists = [
        Example(
            e.tokens.tolist(),
            loss_mask=e.loss_mask.tolist(),
            weights=e.weights.tolist(),
            log_probs=e.log_probs.tolist(),
            reward=e.reward,
            group=e.group,
            policy_version=e.policy_version.tolist(),
            extras={name: values.tolist() for name, values in e.extras.items()},
        )
        for e in examples
    ]
    found = pack_examples(as_lists, capacity)
    wanted = pack_examples(examples, capacity)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.array_equal(a, b)
        assert a.dtype == b.dtype


@given(
    st.integers(1, 9),
    st.sampled_from(["weights", "log_probs"]),
    st.sampled_from([np.nan, np.inf, -np.inf, 1e39]),  # 1e39: infinite as float32
    st.booleans(),
    st.data(),
)
def test_what_is_not_finite_is_named_and_reaches_no_batch(n, name, wrong, as_list, data):
    at = data.draw(st.integers(0, n - 1))
    values = np.ones(n)
    values[at] = wrong
    with pytest.raises(ConfigError, match="finite") as caught:
        Example(np.arange(n), **{name: values.tolist() if as_list else values})
    assert caught.value.field == f"{name}[{at}]"


def test_extras_stay_what_they_are():
    given_ = np.array([0.25, 1.5], np.float32)
    extras = pack_examples(
        [Example(np.array([1, 2]), extras={"x": given_}), Example(np.array([3]))], 4
    ).extras
    assert extras["x"].dtype == np.float32  # they were cut to whole numbers
    assert extras["x"].tolist() == [[0.25, 1.5, 0, 0]]


def test_log_probabilities_of_low_precision_may_round_above_0():
    assert Example([1, 2], log_probs=np.array([0, 5e-5], np.float32)).log_probs is not None
