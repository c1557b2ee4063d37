"""One training step for pretraining, SFT, preferences and GRPO: compiled once, no branch, and each
loss as by hand.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from headrace.batch import Example, pack_examples, pack_rows, unified_loss
from headrace.demo import Transformer
from headrace_posttrain import ScoredGroup, group_advantages, pack_pairs

ROWS = 4
LENGTH = 16
VOCABULARY = 32
OPTIMIZER = optax.sgd(0.1)
RNG = np.random.default_rng(0)


def ids(n):
    return RNG.integers(0, VOCABULARY, n)


@jax.jit
def logits_alone(model, tokens):
    return model(tokens, jnp.arange(LENGTH), jnp.zeros(LENGTH, jnp.int32))


def log_p(model, tokens):
    """float64 log probability of each token but the first of one sequence, alone in the model."""
    n = len(tokens)  # what is behind them does not matter: attention is causal
    logits = np.asarray(logits_alone(model, np.pad(tokens, (0, LENGTH - n))), np.float64)[:n]
    norm = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return logits[np.arange(n - 1), np.asarray(tokens[1:])] - norm[:-1]


def pretraining():
    segments = np.zeros((ROWS, 4), np.int32)
    segments[:, :2] = [[5, 11], [16, 0], [9, 7], [1, 15]]
    tokens = ids((ROWS, LENGTH))

    def by_hand(model):
        parts = [
            p
            for row, held in zip(tokens, segments, strict=True)
            for p in np.split(row, np.cumsum(held)[:-1])
        ]
        every = np.concatenate([log_p(model, p) for p in parts if len(p) > 1])
        return -every.mean()

    return pack_rows(tokens, segment_lengths=segments), by_hand


def supervised():
    chats = [(ids(n), RNG.integers(0, 2, n)) for n in (9, 6, 12, 4, 7)]

    def by_hand(model):
        total = sum((log_p(model, t) * m[1:]).sum() for t, m in chats)
        return -total / max(1, sum(m[1:].sum() for _, m in chats))

    examples = [Example(t, loss_mask=m) for t, m in chats]
    return pack_examples(examples, LENGTH, rows=ROWS, max_segments=4), by_hand


def preferences():
    pairs = [(ids(5), ids(7)), (ids(4), ids(4)), (ids(8), ids(8)), (ids(3), ids(6))]
    strength = np.array([0.5, 0.1, 0.2, 0.05], np.float32)

    def by_hand(model):
        weights = np.stack([strength, -strength], axis=1).reshape(-1)
        sides = [
            (w, log_p(model, t))
            for w, t in zip(weights, [t for p in pairs for t in p], strict=True)
        ]
        return -sum(w * each.sum() for w, each in sides) / max(
            1, sum(abs(w) * each.size for w, each in sides)
        )

    batch = pack_pairs([(Example(a), Example(b)) for a, b in pairs], LENGTH, strength, rows=ROWS)
    width = 4 - batch.segment_lengths.shape[1]
    assert width >= 0
    examples_in = {
        name: np.pad(getattr(batch, name), ((0, 0), (0, width)))
        for name in ("segment_lengths", "group_ids")
    }
    return eqx.tree_at(
        lambda b: (b.segment_lengths, b.group_ids), batch, tuple(examples_in.values())
    ), by_hand


def rollouts():
    prompt_len = 2
    groups = [
        ([ids(6), ids(5), ids(4)], np.array([1.0, 0.0, 0.5])),
        ([ids(8), ids(3)], np.array([0.2, 0.9])),
    ]
    advantages = [group_advantages(r, np.zeros(r.size, int), "nanomoe").values for _, r in groups]

    def by_hand(model):
        total = 0.0
        weight = 0.0
        for (completions, _), own in zip(groups, advantages, strict=True):
            for tokens, a in zip(completions, own, strict=True):
                answer = log_p(model, tokens)[prompt_len - 1 :]
                total += a * answer.sum()
                weight += abs(a) * answer.size
        return -total / max(1.0, weight)

    examples = [
        example
        for number, ((completions, rewards), own) in enumerate(zip(groups, advantages, strict=True))
        for example in ScoredGroup(completions, rewards, prompt_len).examples(own, number)
    ]
    return pack_examples(examples, LENGTH, rows=ROWS, max_segments=4), by_hand


def loss_of(model, batch):
    return unified_loss(jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids), batch)


@jax.jit
def train_step(model, opt_state, batch):
    loss, gradients = jax.value_and_grad(loss_of)(model, batch)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


@pytest.mark.slow
def test_one_step_trains_all_of_them():
    model = Transformer(VOCABULARY, dim=16, layers=1, heads=2, key=jax.random.key(0))
    model, rest = eqx.partition(model, eqx.is_array)
    assert all(not eqx.is_array(x) for x in jax.tree.leaves(rest))
    opt_state = OPTIMIZER.init(model)
    for make in (pretraining, supervised, preferences, rollouts):
        batch, by_hand = make()
        expanded = jax.tree.map(jnp.asarray, batch.expand())
        trained, _, loss = train_step(model, opt_state, expanded)
        assert float(loss) == pytest.approx(by_hand(model), rel=1e-6, abs=1e-6), make.__name__
        assert float(loss_of(trained, expanded)) < float(loss), make.__name__
    # one program for all four
    assert train_step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("make", [pretraining, supervised, preferences, rollouts])
def test_the_last_weight_of_every_segment_is_zero(make):
    batch, _ = make()
    flat = batch.flatten().compact()
    assert (flat.token_weights[flat.cu_seqlens[1:] - 1] == 0).all()
    assert (flat.labels[:-1] == flat.tokens[1:])[flat.token_weights[:-1] != 0].all()
