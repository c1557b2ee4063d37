"""Trains a small language model on the data of run.yaml in the same folder. ``headrace init`` wrote
this file; edit it as you like.

    python train.py               # resumes the run, if it has begun
    python train.py --steps 50    # fewer or more steps than run.yaml says
    python train.py --run runs/2  # another run

Every 50 steps it evaluates the model on the held-out rows of each source and saves a checkpoint:
the model, the optimizer and the state of the data. A kill costs only the steps since the last one;
Ctrl-C and SIGTERM save one more. Losses are in the log of the run, and in its report.

On several hosts that share the folder, start the program on each:

    python train.py --distributed                     # where JAX finds the others: SLURM, TPU, ...
    python train.py --distributed host0:1234 2 0      # else: coordinator, processes, this process
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from headrace import DataLoader, HeadraceError, LmDataConfig, RunLog, load_config, open_run
from headrace.report.facts import gather
from headrace.report.page import write_report
from headrace.run import LoaderState

LOG_EVERY = 10

# The model: a pre-norm decoder, written for one row and mapped over the batch with jax.vmap.


class Attention(eqx.Module):
    """Causal self-attention with rotary positions; a token sees the earlier tokens of its own
    segment.
    """

    qkv: eqx.nn.Linear
    out: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, dim: int, heads: int, *, key: PRNGKeyArray) -> None:
        qkv_key, out_key = jax.random.split(key)
        self.qkv = eqx.nn.Linear(dim, 3 * dim, use_bias=False, key=qkv_key)
        self.out = eqx.nn.Linear(dim, dim, use_bias=False, key=out_key)
        self.heads = heads

    def __call__(
        self,
        x: Float[Array, "seq dim"],
        positions: Int[Array, " seq"],
        mask: Bool[Array, "seq seq"],
    ) -> Float[Array, "seq dim"]:
        seq, dim = x.shape
        q, k, v = (
            jax.vmap(self.qkv)(x).reshape(seq, 3, self.heads, dim // self.heads).swapaxes(0, 1)
        )
        scores = jnp.einsum("qhd,khd->hqk", rotate(q, positions), rotate(k, positions))
        scores = scores / math.sqrt(dim // self.heads)
        attention = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jax.vmap(self.out)(jnp.einsum("hqk,khd->qhd", attention, v).reshape(seq, dim))


class Block(eqx.Module):
    """One pre-norm layer: attention, then a feed-forward network of ``4 x dim``."""

    attention: Attention
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    attention_norm: eqx.nn.RMSNorm
    mlp_norm: eqx.nn.RMSNorm

    def __init__(self, dim: int, heads: int, *, key: PRNGKeyArray) -> None:
        attention_key, up_key, down_key = jax.random.split(key, 3)
        self.attention = Attention(dim, heads, key=attention_key)
        self.up = eqx.nn.Linear(dim, 4 * dim, use_bias=False, key=up_key)
        self.down = eqx.nn.Linear(4 * dim, dim, use_bias=False, key=down_key)
        self.attention_norm = eqx.nn.RMSNorm(dim, use_bias=False)
        self.mlp_norm = eqx.nn.RMSNorm(dim, use_bias=False)

    def __call__(
        self,
        x: Float[Array, "seq dim"],
        positions: Int[Array, " seq"],
        mask: Bool[Array, "seq seq"],
    ) -> Float[Array, "seq dim"]:
        x = x + self.attention(jax.vmap(self.attention_norm)(x), positions, mask)
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.mlp_norm)(x)))
        return x + jax.vmap(self.down)(hidden)


class Transformer(eqx.Module):
    """A decoder-only language model; the embedding is also the output layer.

    Args:
        vocab_size: Entries of the vocabulary.
        dim: Width; a multiple of ``2 x heads``.
        layers: Number of blocks.
        heads: Attention heads.
        key: Key for the initial weights.
    """

    embedding: Float[Array, "vocab dim"]
    blocks: tuple[Block, ...]
    norm: eqx.nn.RMSNorm

    def __init__(
        self, vocab_size: int, *, dim: int, layers: int, heads: int, key: PRNGKeyArray
    ) -> None:
        embedding_key, *block_keys = jax.random.split(key, layers + 1)
        self.embedding = 0.02 * jax.random.normal(embedding_key, (vocab_size, dim))
        self.blocks = tuple(Block(dim, heads, key=block_key) for block_key in block_keys)
        self.norm = eqx.nn.RMSNorm(dim, use_bias=False)

    def __call__(
        self,
        tokens: Int[Array, " seq"],
        positions: Int[Array, " seq"],
        segments: Int[Array, " seq"],
    ) -> Float[Array, "seq vocab"]:
        """Logits for the token after each position of one row."""
        order = jnp.arange(tokens.shape[0])
        mask = (order[:, None] >= order) & (segments[:, None] == segments)
        x = self.embedding[tokens] * math.sqrt(self.embedding.shape[1])
        for block in self.blocks:
            x = block(x, positions, mask)
        return jax.vmap(self.norm)(x) @ self.embedding.T


def rotate(
    x: Float[Array, "seq heads dim"], positions: Int[Array, " seq"]
) -> Float[Array, "seq heads dim"]:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864), halves rotated together."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
    first = x[..., :half]
    second = x[..., half:]
    cos = jnp.cos(angles).astype(x.dtype)
    sin = jnp.sin(angles).astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


# The step: loss, optimizer, update. The arrays of a batch are ``[batch, seq]`` and lie on all
# devices, so jax.jit splits the work over them.


def next_token_loss(model: Transformer, batch: Any) -> Float[Array, ""]:
    """``-sum(weight * log p(label)) / max(1, sum |weight|)`` over the whole batch, in nats."""
    logits = jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids)
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    return (batch.token_weights * nll).sum() / jnp.maximum(1.0, jnp.abs(batch.token_weights).sum())


def make_optimizer(steps: int, *, peak_lr: float) -> optax.GradientTransformation:
    """AdamW with a clipped gradient, a short warm-up and a cosine decay to a tenth over ``steps``
    steps.
    """
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak_lr, max(1, steps // 20), steps, peak_lr / 10
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    )


@eqx.filter_jit
def train_step(
    model: Transformer,
    opt_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    batch: Any,
) -> tuple[Transformer, optax.OptState, Float[Array, ""]]:
    """One update: (model, optimizer state, loss before the update)."""
    loss, gradients = eqx.filter_value_and_grad(next_token_loss)(model, batch)
    updates, opt_state = optimizer.update(gradients, opt_state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), opt_state, loss


eval_loss = eqx.filter_jit(next_token_loss)


def evaluate(model: Transformer, held_out: DataLoader) -> float:
    """The mean loss of a token in all held-out rows of a source."""
    total = 0.0
    weights = 0.0
    with held_out.iter_from_step(0) as batches:
        for batch in batches:
            weight = float(batch.token_weights.sum())
            total += weight * float(eval_loss(model, batch))
            weights += weight
    return total / max(1.0, weights)


# The run: everything above, from the last checkpoint to the last step.


def train(config: LmDataConfig, folder: Path, save_every: int) -> bool:
    """Trains until the run's last step or until it is told to stop; returns whether it reached the
    end.
    """
    steps = config.num_steps or 1000
    mesh = Mesh(np.array(jax.devices()), ("data",))
    optimizer = make_optimizer(steps, peak_lr=3e-3)
    model = Transformer(
        config.vocab_size, dim=128, layers=2, heads=4, key=jax.random.key(config.seed)
    )
    arrays, static = eqx.partition(model, eqx.is_array)
    state = (arrays, optimizer.init(arrays))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))  # whole on every device
    stop = stop_signals()
    with ocp.CheckpointManager(
        (folder / "checkpoints").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as checkpoints:
        reached = None
        if checkpoints.latest_step() is not None:
            like = {"train": state, "data": LoaderState.like()}
            restored = checkpoints.restore(
                checkpoints.latest_step(), args=ocp.args.StandardRestore(like)
            )
            state = restored["train"]
            reached = LoaderState.from_pytree(restored["data"])
            if reached.step > steps:
                more = f"{reached.step + 1} or more"
                raise SystemExit(f"error num_steps = {steps}: {reached.step} are done. Give {more}")
            say(f"resumes from step {reached.step:,}, {folder / 'checkpoints' / str(reached.step)}")
        model = eqx.combine(state[0], static)
        opt_state = state[1]
        # refused, with the difference, if run.yaml now means other data for a step that is done
        run = open_run(folder, config, reached or 0)
        config = run.config or config  # with the amendments of the run
        step = 0 if reached is None else reached.step
        held_out = {}
        if config.held_out:
            held_out = {
                name: DataLoader(rows, mesh=mesh, batch_size=config.batch_size, last_batch="pad")
                for name, rows in config.validation_datasets().items()
            }
        if step < steps:
            say(f"steps {step:,} to {steps - 1:,}; the first compiles and takes longer")
        with (
            run.loader(mesh) as loader,
            RunLog(loader, folder, config=config) as log,
            loader.iter_from_step(step) as batches,
        ):
            stopped = False
            while step < steps and not stopped:
                model, opt_state, loss = train_step(model, opt_state, optimizer, next(batches))
                step += 1
                stopped = bool(stop) or checkpoints.reached_preemption(step)
                figures: dict[str, dict[str, float]] = {}
                if step % LOG_EVERY == 0 or step == steps:
                    figures["train"] = {"loss": float(loss)}
                    say(f"step {step:6,} of {steps:,}  loss {float(loss):.4f}")
                if step % save_every == 0 or step == steps:
                    figures["eval"] = {
                        name: evaluate(model, rows) for name, rows in held_out.items()
                    }
                    held_out_losses = ", ".join(
                        f"{name} {x:.4f}" for name, x in figures["eval"].items()
                    )
                    say(f"  held-out loss: {held_out_losses or 'nothing is held out'}")
                log(step - 1, **figures)
                if step % save_every == 0 or step == steps or stopped:
                    tree = (eqx.filter(model, eqx.is_array), opt_state)
                    data = run.state(step).to_pytree()
                    save = ocp.args.StandardSave({"train": tree, "data": data})
                    checkpoints.save(step, args=save)  # written while training goes on
    return step == steps


def say(line: str) -> None:
    """Prints a line, on the first of several processes."""
    if jax.process_index() == 0:
        print(line, flush=True)


def stop_signals() -> list[int]:
    """A list that is no longer empty once this process got Ctrl-C or SIGTERM. Of several processes
    JAX tells all to stop at the same step, see ``reached_preemption``.
    """
    received: list[int] = []
    if jax.process_count() == 1:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: received.append(number))
    return received


def main() -> None:
    """Reads the command line, trains, and writes the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("runs/1"), help="folder of the run")
    parser.add_argument("--steps", type=int, help="in place of num_steps in run.yaml")
    parser.add_argument(
        "--save-every",
        type=int,
        default=50,
        metavar="STEPS",
        help="steps between checkpoints, and between evaluations",
    )
    parser.add_argument("--distributed", nargs="*", metavar="HOST:PORT PROCESSES PROCESS")
    args = parser.parse_args()
    os.chdir(Path(__file__).parent)  # run.yaml and its caches are here
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax's
    if args.distributed:
        coordinator, processes, process = args.distributed
        jax.distributed.initialize(coordinator, int(processes), int(process))
    elif args.distributed is not None:
        jax.distributed.initialize()
    try:
        settings = [] if args.steps is None else [f"num_steps={args.steps}"]
        finished = train(load_config("run.yaml", settings), args.run, args.save_every)
        if not finished:
            say("stopped and saved; run the same command again to resume")
        elif jax.process_index() == 0:
            page = args.run / "report.html"
            write_report(gather(str(args.run)), str(page))
            say(f"done; {page} shows what the run was fed, and its losses")
    except HeadraceError as error:
        raise SystemExit(f"error {error}") from None


if __name__ == "__main__":
    main()
