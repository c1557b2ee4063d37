"""Flax NNX with Orbax: the model's state and headrace's in one checkpoint.

python examples/flax_nnx.py run.yaml --folder /tmp/flax --steps 200
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from headrace import LmDataConfig, PackedBatch, load_config
from headrace.batch import unified_loss
from headrace.run import LoaderState, RunLock

DIM = 32


class Model(nnx.Module):
    """Predicts the next token from the current one and its place in the document."""

    def __init__(self, vocab_size: int, positions: int, rngs: nnx.Rngs) -> None:
        self.token = nnx.Embed(vocab_size, DIM, rngs=rngs)
        self.position = nnx.Embed(positions, DIM, rngs=rngs)
        self.out = nnx.Linear(DIM, vocab_size, rngs=rngs)

    def __call__(self, batch: PackedBatch) -> jax.Array:
        return self.out(nnx.relu(self.token(batch.tokens) + self.position(batch.position_ids)))


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, batch: PackedBatch) -> jax.Array:
    """One update."""
    loss, gradients = nnx.value_and_grad(lambda m: unified_loss(m(batch), batch))(model)
    optimizer.update(model, gradients)
    return loss


def run(config: LmDataConfig, folder: Path, steps: int) -> list[float]:
    """Trains up to ``steps`` steps, going on from the latest checkpoint; the losses of the steps it
    did.
    """
    loader = config.loader()
    losses = []
    manifest = RunLock.of(loader)
    step = 0
    model = Model(config.vocab_size, loader.dataset.seq_len, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    with ocp.CheckpointManager(folder.absolute()) as checkpoints:
        if checkpoints.latest_step() is not None:
            like = {"train": nnx.state((model, optimizer)), "data": LoaderState.like()}
            found = checkpoints.restore(
                checkpoints.latest_step(), args=ocp.args.StandardRestore(like)
            )
            nnx.update((model, optimizer), found["train"])
            state = LoaderState.from_pytree(found["data"])
            manifest.check(state)  # another run's checkpoint is refused
            step = state.step
        everywhere = NamedSharding(
            loader.placement.sharding.mesh, PartitionSpec()
        )  # the model whole on every device
        nnx.update((model, optimizer), jax.device_put(nnx.state((model, optimizer)), everywhere))
        with loader.iter_from_step(step) as batches:
            for _, batch in zip(range(step, steps), batches, strict=False):
                losses.append(float(train_step(model, optimizer, batch)))
        done = step + len(losses)
        tree = {"train": nnx.state((model, optimizer)), "data": manifest.state(done).to_pytree()}
        checkpoints.save(done, args=ocp.args.StandardSave(tree))
        checkpoints.wait_until_finished()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--folder", type=Path, default=Path("flax-run"))
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    for step, loss in enumerate(run(load_config(args.config), args.folder, args.steps)):
        print(f"{step:4d}  {loss:.4f}")
