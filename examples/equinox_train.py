"""Equinox: a small transformer on packed documents, model and data in one checkpoint file of equinox.

python examples/equinox_train.py run.yaml --checkpoint run.eqx --steps 200
"""

from __future__ import annotations

import argparse
from pathlib import Path

import equinox as eqx
import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from headrace import LmDataConfig, PackedBatch, load_config
from headrace.batch import unified_loss
from headrace.demo import Transformer
from headrace.run import LoaderState, RunManifest

OPTIMIZER = optax.adam(1e-2)


@eqx.filter_jit
def train_step(
    model: Transformer, opt_state: optax.OptState, batch: PackedBatch
) -> tuple[Transformer, optax.OptState, jax.Array]:
    """One update. Attention and positions stay within documents: the batch says where they are."""

    def loss_of(model: Transformer) -> jax.Array:
        logits = jax.vmap(model)(batch.tokens, batch.position_ids, batch.segment_ids)
        return unified_loss(logits, batch)

    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss


def run(config: LmDataConfig, checkpoint: Path, steps: int) -> list[float]:
    """Trains up to ``steps`` steps, going on from the checkpoint if it is there; the losses of the steps it did."""
    model = Transformer(config.vocab_size, dim=32, layers=1, heads=2, key=jax.random.key(0))
    opt_state = OPTIMIZER.init(eqx.filter(model, eqx.is_array))
    checkpoint = checkpoint.with_suffix(".eqx")  # as equinox names it
    loader, losses = config.loader(), []
    manifest = RunManifest.of(loader)
    state = manifest.state(0)
    if checkpoint.exists():
        like = (model, opt_state, LoaderState.like())
        model, opt_state, data = eqx.tree_deserialise_leaves(checkpoint, like)
        state = LoaderState.from_pytree(data)
        manifest.check(state)  # another run's checkpoint is refused
    everywhere = NamedSharding(loader.placement.sharding.mesh, PartitionSpec())  # the model whole on every device
    model, opt_state = eqx.filter_shard((model, opt_state), everywhere)
    with loader.iter_from_step(state.step) as batches:
        for _, batch in zip(range(state.step, steps), batches, strict=False):
            model, opt_state, loss = train_step(model, opt_state, batch)
            losses.append(float(loss))
    done = manifest.state(state.step + len(losses))
    eqx.tree_serialise_leaves(checkpoint, (model, opt_state, done.to_pytree()))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.eqx"))
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    for step, loss in enumerate(run(load_config(args.config), args.checkpoint, args.steps)):
        print(f"{step:4d}  {loss:.4f}")
