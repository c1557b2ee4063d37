"""GRPO on a task of seconds: a tiny transformer learns to repeat a symbol, from rewards alone.

    python examples/grpo_tiny.py --folder /tmp/grpo --steps 30
    python examples/grpo_tiny.py --folder /tmp/grpo2 --steps 30 --processes 2
    python examples/grpo_tiny.py --folder /tmp/gspo --steps 30 --loss gspo --updates 2

A prompt is a symbol; an answer is two symbols, sampled from the model; its reward is the share of
them that equal the prompt's. Groups of answers come from ``RLDataset``, with their advantages as
token weights and the log probabilities that they were sampled with, through a ``DataLoader``, as
global batches over all devices; ``policy_loss`` takes both from the batch. With more than one
update a batch, the policy leaves the one that sampled, and the ratio between them is clipped as the
loss says (docs/losses.md).

With ``--processes 2`` the model is trained data-parallel by two processes that ``jax.distributed``
brings together. The first samples and makes the steps; the other follows its log. ``--max-staleness
1`` samples beside training, with a policy that may be one update behind.

Everything that the run needs to go on lies in the folder: rollouts and steps (``rollouts/``), and
the trainer's checkpoint, written atomically after each step. Kill it at any moment and start it
again, on as many processes as you like: it goes on as if nothing had been, and trains on each
prompt exactly once. The checkpoint keeps which prompts each step was made of, and a checksum of its
batch, so that this can be checked. ``headrace run report FOLDER`` has its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, RunLog
from headrace.batch import PackedBatch, token_stats
from headrace.demo import Transformer
from headrace_posttrain import Prompt, RLDataset, RLSettings, RolloutStore, ScoredGroup, policy_loss

# ids 0 .. 7 are symbols; 8 begins a prompt
SYMBOLS = 8
BEGIN = 8
# tokens of a prompt and of an answer; answers of a group
PROMPT = 2
ANSWER = 2
GROUP = 8
OPTIMIZER = optax.scale_by_adam()
LEARNING_RATE = 1e-2  # solves the task in some 40 steps, after which no group teaches anything


def new_model(seed: int) -> Transformer:
    """The model before training."""
    return Transformer(SYMBOLS + 1, dim=32, layers=1, heads=2, key=jax.random.key(seed))


PROMPTS = [np.array([BEGIN, symbol]) for symbol in range(SYMBOLS)]


def settings(seed: int, max_staleness: int) -> RLSettings:
    """Steps of 64 answers; sampled within the step, or, if they may be of an older policy, in the
    background.
    """
    beside = {"in_flight": 4, "stragglers": "keep"} if max_staleness else {}
    return RLSettings(
        seq_len=32,
        groups_per_batch=8,
        seed=seed,
        advantages="slime",
        max_attempts=200,
        rows=8,
        max_segments=8,
        max_staleness=max_staleness,
        **beside,
    )


@eqx.filter_jit
def sample(model: Transformer, prompt: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Answers to one prompt: ids ``[GROUP, PROMPT + ANSWER]`` and log probabilities ``[GROUP,
    ANSWER]``.
    """
    tokens = jnp.zeros((GROUP, PROMPT + ANSWER), jnp.int32).at[:, :PROMPT].set(prompt)
    positions = jnp.arange(PROMPT + ANSWER)
    segments = jnp.zeros(PROMPT + ANSWER, jnp.int32)
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
        self.current = (
            new_model(seed),
            0,
        )  # and its version, in one assignment: threads sample meanwhile

    def sample_and_score(self, prompt: Prompt) -> ScoredGroup:
        """A group of answers. Its random numbers follow from the prompt's position: nothing has to
        be saved.
        """
        key = jax.random.fold_in(jax.random.key(self.seed + 1), prompt.position)
        model, version = self.current
        tokens, log_probs = (np.asarray(x) for x in sample(model, jnp.asarray(prompt.tokens), key))
        rewards = (tokens[:, PROMPT:] == prompt.tokens[-1]).mean(axis=1)
        return ScoredGroup.dense(tokens, log_probs, rewards, PROMPT, policy_version=version)

    def take(self, model: Transformer, version: int) -> None:
        """Goes on with new weights: this process's copy of them."""
        local = jax.tree.map(
            lambda leaf: leaf.addressable_data(0) if eqx.is_array(leaf) else leaf, model
        )
        self.current = local, version


@eqx.filter_jit
def train_step(
    model: Transformer,
    opt_state: optax.OptState,
    batch: PackedBatch,
    learning_rate: jax.Array,
    loss: str,
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


@jax.jit
def checksum(batch: PackedBatch) -> jax.Array:
    """Of ids, weights and versions of a batch, whichever process has which rows."""
    leaves = (
        batch.token_ids,
        jax.lax.bitcast_convert_type(batch.token_weights, jnp.int32),
        batch.policy_version,
    )
    total = jnp.uint32(0)
    for k, leaf in enumerate(leaves):
        places = jnp.arange(leaf.size, dtype=jnp.uint32).reshape(leaf.shape) * jnp.uint32(
            2654435761
        ) + jnp.uint32(k)
        total += ((leaf.astype(jnp.uint32) ^ places) * jnp.uint32(2246822519)).sum()
    return total


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
    max_staleness: int = 0,
    keep_rollouts: bool = False,
    quiet: bool = False,
) -> list[dict]:
    """Trains to ``steps`` steps, going on from where the folder says; what each step was made of,
    and its reward.
    """
    leads = jax.process_index() == 0
    mesh = Mesh(np.array(jax.devices()), ("data",))
    model, opt_state, history = restore(folder, seed)
    model, opt_state = eqx.filter_shard(
        (model, opt_state), NamedSharding(mesh, PartitionSpec())
    )  # on every device
    sampler = ModelSampler(seed)
    with (
        RolloutStore(
            folder / "rollouts", follow=not leads
        ) as store,  # no other process writes it meanwhile
        RLDataset(PROMPTS, sampler, settings(seed, max_staleness), store=store) as dataset,
        DataLoader(dataset, mesh=mesh) as loader,
        RunLog(loader, folder) as log,
    ):
        sampler.take(model, len(history))
        with loader.iter_from_step(len(history)) as batches:
            for step in range(len(history), steps):
                batch = next(batches)
                metrics: dict[str, jax.Array] = {}
                for _ in range(updates):
                    model, opt_state, metrics = train_step(
                        model, opt_state, batch, jnp.float32(learning_rate), loss
                    )
                record = store.record(step)
                figures = dataset.metrics(step)
                assert record is not None
                made_of = {
                    "trained": record.positions,
                    "left_out": list(record.dropped),
                    "batch": int(checksum(batch)),
                }
                history.append({"step": step, "reward": figures["reward_mean"], **made_of})
                log(step, rollout=figures, train=metrics)
                if leads:
                    save(folder, model, opt_state, history)
                    if not keep_rollouts:
                        store.forget(step)  # the checkpoint is past it
                sampler.take(model, step + 1)
                dataset.set_policy_version(step + 1)
                if leads and not quiet:
                    shown = ("policy_loss", "entropy", "sampler_kl", "ratio_max", "clip_high_share")
                    said = "  ".join(f"{name} {float(metrics[name]):+.4f}" for name in shown)
                    print(
                        f"step {step:3d}  reward {figures['reward_mean']:.3f}  {said}", flush=True
                    )
    return history


def start_processes(count: int) -> int:
    """Starts this program so many times, to train together; if one dies, all end.
    An exit status.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, *sys.argv, "--coordinator", address, "--process"]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(count)]
    try:
        while any(process.poll() is None for process in processes) and not any(
            process.poll() for process in processes
        ):
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    return max(abs(process.wait()) for process in processes)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description="GRPO with a tiny model; kill it and start it again as you like."
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument(
        "--loss", default="dapo", help="a preset of policy_loss: grpo, dapo, gspo, cispo, ppo, ..."
    )
    parser.add_argument("--updates", type=int, default=1, help="updates on each batch")
    parser.add_argument(
        "--max-staleness",
        type=int,
        default=0,
        help="updates that the policy that samples may be behind",
    )
    parser.add_argument(
        "--keep-rollouts", action="store_true", help="of steps that the checkpoint is past, too"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--process", type=int, help="which of them this is; started by the first command"
    )
    parser.add_argument("--coordinator", help="where they meet, HOST:PORT")
    options = vars(parser.parse_args())
    processes, process, coordinator = (
        options.pop(name) for name in ("processes", "process", "coordinator")
    )
    if processes > 1 and process is None:
        sys.exit(start_processes(processes))
    if processes > 1:
        jax.distributed.initialize(coordinator, processes, process)
    run(**options)


if __name__ == "__main__":
    main()
