"""GRPO on a task of seconds: a tiny transformer learns to repeat a symbol, from rewards alone.

    python examples/grpo_tiny.py --folder /tmp/grpo --steps 30
    python examples/grpo_tiny.py --folder /tmp/gspo --steps 30 --loss gspo --updates 2

A prompt is a symbol; an answer is two symbols, sampled from the model; its reward is the share of them that equal the
prompt's. Groups of answers come from ``RLDataset``, with their advantages as token weights and the log probabilities
that they were sampled with; ``policy_loss`` takes both from the batch. With more than one update a batch, the policy
leaves the one that sampled, and the ratio between them is clipped as the loss says (docs/losses.md).

Everything that the run needs to go on lies in the folder: rollouts and steps (``rollouts/``), and the trainer's
checkpoint, written atomically after each step. Kill it at any moment and start it again: it goes on as if nothing had
been, and trains on each prompt exactly once. The checkpoint keeps which prompts each step was made of, so that this can
be checked.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from headrace.batch import PackedBatch, policy_loss, token_stats
from headrace.demo import Transformer
from headrace.rl import Prompt, RLDataset, RLSettings, RolloutStore, ScoredGroup

SYMBOLS, BEGIN = 8, 8  # ids 0 .. 7 are symbols; 8 begins a prompt
PROMPT, ANSWER, GROUP = 2, 2, 8  # tokens of a prompt and of an answer; answers of a group
OPTIMIZER = optax.scale_by_adam()
LEARNING_RATE = 1e-2  # solves the task in some 40 steps, after which no group teaches anything


def new_model(seed: int) -> Transformer:
    """The model before training."""
    return Transformer(SYMBOLS + 1, dim=32, layers=1, heads=2, key=jax.random.key(seed))


@eqx.filter_jit
def sample(model: Transformer, prompt: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Answers to one prompt: ids ``[GROUP, PROMPT + ANSWER]`` and log probabilities ``[GROUP, ANSWER]``."""
    tokens = jnp.zeros((GROUP, PROMPT + ANSWER), jnp.int32).at[:, :PROMPT].set(prompt)
    positions, segments = jnp.arange(PROMPT + ANSWER), jnp.zeros(PROMPT + ANSWER, jnp.int32)
    taken = []
    for at, step_key in enumerate(jax.random.split(key, ANSWER), PROMPT):
        logits = jax.vmap(lambda row: model(row, positions, segments))(tokens)[:, at - 1, :SYMBOLS]
        chosen = jax.random.categorical(step_key, logits)
        taken.append(jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], 1)[:, 0])
        tokens = tokens.at[:, at].set(chosen)
    return tokens, jnp.stack(taken, axis=1)


class ModelSampler:
    """Answers by the model as it is now."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.model = new_model(seed)
        self.version = 0

    def sample_and_score(self, prompt: Prompt) -> ScoredGroup:
        """A group of answers. Its random numbers follow from the prompt's position: nothing has to be saved."""
        key = jax.random.fold_in(jax.random.key(self.seed + 1), prompt.position)
        tokens, log_probs = (np.asarray(x) for x in sample(self.model, jnp.asarray(prompt.tokens), key))
        rewards = (tokens[:, PROMPT:] == prompt.tokens[-1]).mean(axis=1)
        return ScoredGroup.dense(tokens, log_probs, rewards, PROMPT, policy_version=self.version)


@eqx.filter_jit
def train_step(
    model: Transformer, opt_state: optax.OptState, batch: PackedBatch, learning_rate: jax.Array, loss: str
) -> tuple[Transformer, optax.OptState, dict[str, jax.Array]]:
    """One update, and the metrics of its loss."""

    def loss_of(model: Transformer) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits = jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids)
        # answers were sampled from symbols alone: the ratio is of the same distribution
        stats = token_stats(logits[..., :SYMBOLS], batch.labels)
        return policy_loss(stats.log_probs, batch, loss, entropy=stats.entropy)

    (_, metrics), gradients = eqx.filter_value_and_grad(loss_of, has_aux=True)(model)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    updates = jax.tree.map(lambda update: -learning_rate * update, updates)
    return eqx.apply_updates(model, updates), opt_state, metrics


def save(folder: Path, model: Transformer, opt_state: optax.OptState, history: list[dict]) -> None:
    """The trainer's state and its history, in one atomic write."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = jax.tree.leaves(eqx.filter((model, opt_state), eqx.is_array))
    with (folder / "unfinished.npz").open("wb") as file:
        np.savez(file, json.dumps(history), *map(np.asarray, arrays))
        file.flush()
        os.fsync(file.fileno())  # before it gets its name
    (folder / "unfinished.npz").replace(folder / "checkpoint.npz")
    names = os.open(folder, os.O_RDONLY)
    os.fsync(names)  # the name too: forget() lets go of what an older checkpoint would need
    os.close(names)


def restore(folder: Path, seed: int) -> tuple[Transformer, optax.OptState, list[dict]]:
    """The latest checkpoint, or a new model."""
    model = new_model(seed)
    opt_state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
    if not (folder / "checkpoint.npz").exists():
        return model, opt_state, []
    with np.load(folder / "checkpoint.npz") as checkpoint:
        history, *arrays = (checkpoint[f"arr_{i}"] for i in range(len(checkpoint.files)))
    like, rest = eqx.partition((model, opt_state), eqx.is_array)
    tree = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(a) for a in arrays])
    model, opt_state = eqx.combine(tree, rest)
    return model, opt_state, json.loads(str(history))


def run(
    folder: Path,
    *,
    steps: int,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
    loss: str = "dapo",
    updates: int = 1,
    quiet: bool = False,
) -> list[dict]:
    """Trains to ``steps`` steps, going on from where the folder says; what each step was made of, and its reward."""
    model, opt_state, history = restore(folder, seed)
    sampler = ModelSampler(seed)
    prompts = [np.array([BEGIN, symbol]) for symbol in range(SYMBOLS)]
    settings = RLSettings(
        seq_len=32, groups_per_batch=8, seed=seed, advantages="slime", max_attempts=200, rows=8, max_segments=8
    )
    with RolloutStore(folder / "rollouts") as store:  # no other process writes it meanwhile
        dataset = RLDataset(prompts, sampler, settings, store=store)
        for step in range(len(history), steps):
            sampler.model, sampler.version = model, step
            batch = jax.tree.map(jnp.asarray, dataset.next_batch(step, policy_version=step))
            metrics: dict[str, jax.Array] = {}
            for _ in range(updates):
                model, opt_state, metrics = train_step(model, opt_state, batch, jnp.float32(learning_rate), loss)
            record = store.record(step)
            assert record is not None
            seen = [*record.positions, *record.dropped]
            reward = float(np.mean([store.group(p).rewards.mean() for p in seen]))
            history.append(
                {"step": step, "trained": record.positions, "left_out": list(record.dropped), "reward": reward}
            )
            save(folder, model, opt_state, history)
            store.forget(step)  # the checkpoint is past it
            if not quiet:
                shown = ("policy_loss", "entropy", "sampler_kl", "ratio_max", "clip_high_share")
                said = "  ".join(f"{name} {float(metrics[name]):+.4f}" for name in shown)
                print(f"step {step:3d}  reward {reward:.3f}  {said}  {dataset.counts}", flush=True)
    return history


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="GRPO with a tiny model; kill it and start it again as you like.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--loss", default="dapo", help="a preset of policy_loss: grpo, dapo, gspo, cispo, ppo, ...")
    parser.add_argument("--updates", type=int, default=1, help="updates on each batch")
    run(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
