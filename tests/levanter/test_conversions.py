"""A batch as Levanter's real classes take it, and back."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.batch import Example, pack_examples, pack_rows, unified_loss
from headrace.errors import ConfigError
from headrace_levanter import from_levanter_example, to_grug_example, to_lm_example
from headrace_levanter.needs import how_to_install

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


LEAVES = ("tokens", "labels", "token_weights", "position_ids", "segment_ids", "label_mask")


def some_batch():
    rng = np.random.default_rng(0)
    return pack_examples(
        [
            Example(
                rng.integers(0, 30, n),
                loss_mask=rng.integers(0, 2, n),
                weights=float(rng.integers(1, 4)) / 2,
            )
            for n in (3, 5, 4, 2, 7, 1)
        ],
        10,
    )


def test_a_batch_through_levanter_and_back():
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    batch = some_batch()
    for example in (to_grug_example(batch), to_lm_example(batch)):
        found = from_levanter_example(example)
        for name in LEAVES:
            assert np.array_equal(getattr(found, name), getattr(batch, name)), name


def test_rows_without_segments():
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    from levanter.data.text.examples import GrugLmExample

    example = GrugLmExample.causal(jnp.arange(6), eos_id=2)
    batch = from_levanter_example(example)
    wanted = pack_rows(np.arange(6)[None], eos_id=2)
    assert np.array_equal(batch.segment_ids, wanted.segment_ids)
    assert np.array_equal(batch.labels, wanted.labels)
    # Levanter weighs the label behind an end of text, which is another document's first token; it
    # crosses here no more
    assert np.asarray(example.loss_weight).tolist() == [1, 1, 1, 1, 1, 0]
    assert batch.token_weights.tolist() == wanted.token_weights.tolist() == [[1, 1, 0, 1, 1, 0]]
    plain = from_levanter_example(GrugLmExample.causal(jnp.arange(6), loss_weight=jnp.ones(6)))
    assert plain.segment_lengths is None
    assert plain.token_weights.tolist() == [[1, 1, 1, 1, 1, 0]]


@pytest.mark.filterwarnings("ignore:jax.core:DeprecationWarning")  # of haliax
def test_levanters_own_loss_and_attention_are_ours():
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    import haliax as hax
    from levanter.models.loss import next_token_loss

    batch = some_batch()
    example = to_lm_example(batch)
    position = example.tokens.resolve_axis("position")
    rows = example.tokens.resolve_axis("batch")
    vocabulary = hax.Axis("vocab", 32)
    logits = np.random.default_rng(1).normal(size=(batch.batch_size, 10, 4)).astype(np.float32)
    head = np.random.default_rng(2).normal(size=(4, 32)).astype(np.float32)
    theirs = next_token_loss(
        position,
        vocabulary,
        hax.named(logits @ head, (rows, position, vocabulary)),
        example.tokens,
        loss_weight=example.loss_weight,
        reduction=None,
    )
    ours = float(unified_loss(jnp.asarray(logits @ head), batch, 1.0))
    assert float(theirs.sum().array) == pytest.approx(ours, rel=1e-5)
    keys = position.alias("key_position")
    mask = example.attn_mask.materialize(position, keys).rearrange((rows, position, keys)).array
    segments = batch.segment_ids
    at = np.arange(10)
    wanted = (segments[:, :, None] == segments[:, None, :]) & (at[:, None] >= at)
    assert np.array_equal(mask, wanted)


def test_a_conversion_works_under_jit():
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    batch = jax.tree.map(jnp.asarray, some_batch())
    weights = jax.jit(lambda b: to_grug_example(b).loss_weight)(batch)
    assert np.array_equal(weights, some_batch().token_weights)


def test_padding_before_tokens_is_refused():
    class Mask:
        segment_ids = (np.array([[-1, 0, 0]]), None)

    class Wrong:
        tokens = np.ones((1, 3), int)
        loss_weight = np.ones((1, 3))
        attn_mask = Mask()

    with pytest.raises(ConfigError, match=r"segment_ids\[0\]"):
        from_levanter_example(Wrong())


def test_without_levanter_the_release_that_works_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "levanter.data.text.examples", None)
    with pytest.raises(ConfigError, match=r"marin-levanter.* works") as caught:
        to_grug_example(pack_rows(np.zeros((1, 4), np.int32)))
    assert caught.value.cure == how_to_install()
