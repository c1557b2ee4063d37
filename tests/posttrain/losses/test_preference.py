"""Pairs: together in a row, even chosen and odd rejected; and DPO's gradient as weights."""

import dataclasses
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.batch import Example, token_nll, unified_loss
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PackedTokenDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.pack import PackingConfig
from headrace.store import CacheLayout, open_cache
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import write_cache
from headrace_posttrain import dpo_weights, pack_pairs, pair_log_probs, pair_weights
from headrace_posttrain.losses.preference import pair_examples


def some_pairs(count=5, seed=0):
    rng = np.random.default_rng(seed)

    def one(prompt):
        answer = rng.integers(0, 20, rng.integers(1, 5))
        mask = np.r_[np.zeros(prompt.size), np.ones(answer.size)].astype(np.uint8)
        return Example(np.concatenate([prompt, answer]), loss_mask=mask)

    prompts = [rng.integers(0, 20, rng.integers(1, 4)) for _ in range(count)]
    return [(one(p), one(p)) for p in prompts]


def test_even_is_chosen_and_odd_is_rejected_in_one_row():
    batch = pack_pairs(some_pairs(), 16, np.arange(1, 6, dtype=np.float32))
    for b in range(batch.batch_size):
        for k in range(0, int((batch.segment_lengths[b] > 0).sum()), 2):
            pair = batch.group_ids[b, k]
            assert batch.group_ids[b, k + 1] == pair
            for segment, sign in ((k, 1), (k + 1, -1)):
                weights = batch.token_weights[b][
                    batch.label_mask[b] & (batch.segment_ids[b] == segment)
                ]
                assert (weights == sign * (pair + 1)).all()


def test_the_gradient_is_that_of_dpo():
    pairs = some_pairs()
    pairs_batch = pack_pairs(pairs, 16)
    rng = np.random.default_rng(1)
    shape = (*pairs_batch.token_ids.shape, 20)
    logits, reference = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2))
    beta = 0.3
    count = len(pairs)

    def of_pairs(logits):
        log_p = jnp.where(pairs_batch.label_mask, -token_nll(logits, pairs_batch.labels), 0.0)
        sums = jnp.zeros((2, count))
        side = (pairs_batch.segment_ids % 2).clip(0)
        pair = np.take_along_axis(pairs_batch.group_ids, pairs_batch.segment_ids.clip(0), 1)
        return sums.at[side, pair].add(log_p)

    def dpo(logits):
        (chosen, rejected), (chosen_r, rejected_r) = of_pairs(logits), of_pairs(reference)
        return -jax.nn.log_sigmoid(beta * ((chosen - chosen_r) - (rejected - rejected_r))).mean()

    weights = dpo_weights(*map(np.asarray, (*of_pairs(logits), *of_pairs(reference))), beta=beta)
    weighted = pack_pairs(pairs, 16, weights)
    assert np.array_equal(weighted.token_ids, pairs_batch.token_ids)
    found = jax.jit(jax.grad(lambda z: unified_loss(z, weighted, count)))(logits)
    np.testing.assert_allclose(found, jax.jit(jax.grad(dpo))(logits), atol=1e-6)


def test_the_gradient_is_that_of_dpo_on_devices_with_rows_of_a_cache(tmp_path):
    cache = cache_of_pairs(tmp_path, [[3, 4, 5, 2, 6, 6, 2, 3, 7, 4]])
    rows = PackedTokenDataset(cache, 14, long="drop", unit=2)
    with DataLoader(rows, len(rows), mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",))) as loader:
        batch = loader.batch_at(0)
    rng = np.random.default_rng(0)
    beta = 0.3
    logits, reference = (
        jnp.asarray(rng.normal(size=(*batch.tokens.shape, 20)), jnp.float32) for _ in range(2)
    )

    @jax.jit
    def weighted(batch, logits, reference):
        of = [pair_log_probs(batch, -token_nll(z, batch.labels)) for z in (logits, reference)]
        weights = pair_weights(batch, dpo_weights(*of[0], *of[1], beta=beta))
        return jax.grad(lambda z: unified_loss(z, dataclasses.replace(batch, weights=weights), 5))(
            logits
        )

    def dpo(logits):
        of = [pair_log_probs(batch, -token_nll(z, batch.labels)) for z in (logits, reference)]
        (chosen, rejected), (chosen_r, rejected_r) = of
        loss = -jax.nn.log_sigmoid(beta * ((chosen - chosen_r) - (rejected - rejected_r)))
        return jnp.where(batch.segment_lengths[:, 1::2] > 0, loss, 0).sum() / 5

    assert (np.asarray(batch.segment_lengths) > 0).sum() == 10
    np.testing.assert_allclose(
        weighted(batch, logits, reference), jax.jit(jax.grad(dpo))(logits), atol=1e-6
    )
    on_host = rows.read(np.arange(len(rows)))
    sums = [pair_log_probs(b, np.asarray(logits[..., 0])) for b in (on_host, jax.device_get(batch))]
    for found, wanted in zip(*sums, strict=True):
        np.testing.assert_allclose(np.sort(found, axis=None), np.sort(wanted, axis=None), atol=1e-5)


def test_bad_input():
    pairs = some_pairs(2)
    with pytest.raises(ConfigError, match="weights"):
        pair_examples(pairs, np.ones(3, np.float32))
    with pytest.raises(ConfigError, match="weights"):
        pair_examples(pairs, -1.0)
    long = dataclasses.replace(pairs[0][0], tokens=np.arange(9), loss_mask=None)
    with pytest.raises(ConfigError, match=r"examples\[2:4\]"):
        pack_pairs([pairs[0], (long, long)], 16)
    assert pair_examples([]) == []
    for weights in ("x", np.ones((2, 1)), None):
        with pytest.raises(ConfigError, match="weights"):
            pair_examples(pairs, weights)
    with pytest.raises(ConfigError, match="multiple = 0"):
        pack_pairs(pairs, 16, multiple=0)


@given(st.integers(1, 4), st.sampled_from([np.nan, np.inf, -1]), st.booleans(), st.data())
def test_a_weight_that_is_none_reaches_no_batch(count, wrong, as_list, data):
    weights = np.ones(count)
    weights[data.draw(st.integers(0, count - 1))] = wrong
    for given_ in (weights.tolist() if as_list else weights, wrong):
        with pytest.raises(ConfigError, match="finite and not negative") as caught:
            pack_pairs(some_pairs(count), 16, given_)
        assert caught.value.field == "weights"


def test_no_pairs_are_an_empty_batch():
    for weights in (1.0, [], np.zeros(0)):
        batch = pack_pairs([], 8, weights, rows=2)
        assert batch.pairs
        assert batch.token_ids.shape == (2, 8)
        assert not batch.token_weights.any()


def cache_of_pairs(root, parts, chosen=(1, 0)):
    """Documents in pairs: ids name the document (its number and 1), odd places of it are trained
    on.
    """
    layout = CacheLayout("uint16", chunk_elements=16, shard_chunks=2)
    specs = [LeafSpec("loss_mask", "uint8", "ragged"), LeafSpec("chosen", "uint8", "fixed")]
    records = []
    number = 0
    for at, lengths in enumerate(parts):
        writer = PartWriter(str(root), f"{at:05d}", layout, specs)
        for n in lengths:
            mask = (np.arange(n) % 2).astype(np.uint8), np.array([n])
            side = np.array([chosen[number % 2]], np.uint8), None
            writer.append(
                np.full(n, number + 1), np.array([n]), {"loss_mask": mask, "chosen": side}
            )
            number += 1
        records.append(writer.close())
    tokenizer = {"path": "t", "file": None, "fingerprint": "t", "vocab_size": 60000}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": None}
    leaves = [{"name": s.name, "dtype": s.dtype, "kind": s.kind} for s in specs]
    write_ledger(
        str(root), Ledger(False, tokenizer, layout.to_dict(), leaves=leaves).complete(records)
    )
    return open_cache(root)


def pairs_of_lengths(most):
    return st.lists(
        st.lists(st.tuples(st.integers(1, most), st.integers(1, most)), min_size=1, max_size=6),
        max_size=2,
    )


@settings(max_examples=12)
@given(
    first=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    more=pairs_of_lengths(9),
    algorithm=st.data(),
)
def test_pairs_of_a_cache_stay_together_whatever_the_order(first, more, algorithm):
    parts = [[n for pair in part for n in pair] for part in [[first], *more]]
    lengths = np.array([n for part in parts for n in part])
    fits = np.repeat(lengths.reshape(-1, 2).sum(axis=1) <= 14, 2)
    with tempfile.TemporaryDirectory() as root:
        cache = cache_of_pairs(root, parts)
        how = algorithm.draw(st.sampled_from(["windowed", "bfd", "ffd", "next_fit"]))
        rows = PackedTokenDataset(cache, 14, algorithm=how, long="drop", unit=2)
        counts = rows.plan.counts
        assert counts.documents == lengths.size
        assert counts.dropped_documents == (~fits).sum()
        assert counts.packed_tokens == lengths[fits].sum() == cache.num_tokens - rows.dropped_tokens
        for order in (rows, rows.shuffle(seed=3)):
            batch = order.read(np.arange(len(rows)))
            seen = []
            for b in range(len(rows)):
                held = [int(n) for n in batch.segment_lengths[b] if n]
                ids = [int(batch.tokens[b, at]) - 1 for at in np.cumsum([0, *held[:-1]])]
                assert ids[1::2] == [
                    i + 1 for i in ids[::2]
                ]  # a pair is two neighbours, in one row
                assert all(i % 2 == 0 for i in ids[::2])
                groups = batch.segment_groups[b, : len(held)].tolist()
                assert groups[::2] == groups[1::2]
                seen += ids
                seen_groups = groups[::2]
                assert len(set(seen_groups)) == len(seen_groups)
            assert sorted(seen) == np.flatnonzero(fits).tolist()
            trained = batch.label_mask
            sign = np.where(batch.tokens % 2 == 1, 1.0, -1.0)  # the number of the document and 1
            assert np.array_equal(batch.token_weights, np.where(trained, sign, 0))
            assert trained.sum() == sum(n // 2 for n in lengths[fits])


def test_pairs_are_held_out_and_removed_as_pairs(tmp_path):
    cache = cache_of_pairs(tmp_path, [[3, 4] * 20])
    rows = PackedTokenDataset(cache, 16, long="drop", unit=2, removed=DocumentFilter([6]))
    packed = set(rows.plan.items.document.tolist())
    assert packed == set(range(40)) - {6, 7}  # of a pair that lacks one, none is packed
    assert (rows.removed_tokens, rows.dropped_tokens) == (3, 4)
    sides = [set(d.plan.items.document.tolist()) for d in rows.holdout_documents(one_in=5)]
    assert sides[0] | sides[1] == packed
    assert not {d // 2 for d in sides[0]} & {d // 2 for d in sides[1]}
    assert rows.describe()["unit"] == 2
    with DataLoader(rows.shuffle(seed=0), 8) as loader:
        batch = loader.batch_at(0)
    assert float(np.asarray(batch.token_weights).min()) == -1


def test_what_is_no_cache_of_pairs_is_refused(tmp_path):
    odd = cache_of_pairs(tmp_path / "odd", [[3, 4], [5]])
    with pytest.raises(ConfigError, match=r"a part of 1 documents.*chosen, rejected"):
        PackedTokenDataset(odd, 16, long="drop", unit=2)
    cache = cache_of_pairs(tmp_path / "turned", [[3, 4, 5, 6]], chosen=(0, 1))
    for options in ({"long": "split"}, {"long": "truncate"}, {"algorithm": "wrap"}):
        with pytest.raises(ConfigError, match="would cut documents that belong together"):
            PackedTokenDataset(cache, 16, unit=2, **options)
    with pytest.raises(ConfigError, match=r"lengths\[1\] = 11: is longer than a pack of 10"):
        PackedTokenDataset(cache, 10, long="error", unit=2, pairs=False)
    with pytest.raises(ConfigError, match="unit = 0"):
        PackedTokenDataset(cache, 16, unit=0)
    with pytest.raises(ConfigError, match=r"chosen\[0\] = 0: is out of turn"):
        PackedTokenDataset(cache, 16, long="drop", unit=2)
    assert not PackedTokenDataset(cache, 16, long="drop", unit=2, pairs=False).pairs
    with pytest.raises(ConfigError, match="packed in units of 2"):
        PackedTokenDataset(cache, 16, long="drop", unit=1, pairs=True)
    with pytest.raises(ConfigError, match="--kind preference"):
        PackedTokenDataset(cache, 16, long="drop", unit=2, loss_mask="none")


def test_pairs_in_a_config(tmp_path, caplog):
    path = cache_of_pairs(tmp_path / "pairs", [[3, 4] * 20]).path

    def config(packing):
        return LmDataConfig(
            {"a": ComponentConfig(path, packing=packing)},
            seq_len=16,
            batch_size=8,
            num_steps=2,
            shuffle=False,
        )

    whole = config(PackingConfig(unit=2, long="drop"))
    with DataLoader(whole.dataset()) as loader:
        for batch in loader:
            weights = np.asarray(batch.token_weights)
            tokens = np.asarray(batch.tokens)
            assert set(np.sign(weights[(weights != 0) & (tokens % 2 == 1)])) == {1}
            assert set(np.sign(weights[(weights != 0) & (tokens % 2 == 0)])) == {-1}
    assert not caplog.records
    assert config(PackingConfig()).dataset().describe() == whole.dataset().describe()
    texts = write_cache(tmp_path / "texts", [[np.arange(200)]])
    rows = PackedTokenDataset(path, 16, unit=2, long="drop")
    with pytest.raises(ConfigError, match=r"components\.pairs: has rows of preference pairs"):
        MixtureDataset(
            {"texts": PackedTokenDataset(texts, 16), "pairs": rows}, {"texts": 1, "pairs": 1}, 8
        )
    mixture = MixtureDataset({"one": rows, "two": rows.shuffle(1)}, {"one": 1, "two": 2}, 8)
    assert mixture.read([0, 1]).token_weights.min() == -1
