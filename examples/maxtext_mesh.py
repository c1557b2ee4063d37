"""MaxText-style meshes: rows over (data, fsdp), sequences over ``sequence``, weights over (fsdp,
tensor).

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/maxtext_mesh.py run.yaml

A host reads only the rows, and of sequences only the columns, that its devices hold. Labels,
weights and positions need the neighbours of a column; they are derived inside the step, so XLA
moves what is needed.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from headrace import DataLoader, LmDataConfig, PackedBatch, load_config
from headrace.batch import unified_loss

DIM = 32
AXES = {"data": 2, "fsdp": 2, "tensor": 1, "sequence": 2}


def make_mesh(axes: dict[str, int]) -> Mesh:
    """A mesh of these axes over as many devices."""
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )


def run(config: LmDataConfig, steps: int, axes: dict[str, int] | None = None) -> list[float]:
    """Trains a two-layer model; the losses, which do not depend on the mesh (but for the order of
    sums).
    """
    mesh = make_mesh(axes or AXES)
    batch_sharding = NamedSharding(mesh, P(("data", "fsdp"), "sequence"))
    loader = DataLoader(config.dataset(), sharding=batch_sharding)

    rng = np.random.default_rng(0)
    vocab_size = config.vocab_size
    shapes = {
        "embed": ((vocab_size, DIM), P("tensor", "fsdp")),
        "out": ((DIM, vocab_size), P("fsdp", "tensor")),
    }
    weights = {
        name: jax.device_put(
            rng.normal(0, 0.1, shape).astype(np.float32), NamedSharding(mesh, spec)
        )
        for name, (shape, spec) in shapes.items()
    }

    @jax.jit
    def train_step(
        weights: dict[str, jax.Array], batch: PackedBatch
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        def loss_of(weights: dict[str, jax.Array]) -> jax.Array:
            hidden = jnp.tanh(jnp.take(weights["embed"], batch.tokens, axis=0))
            return unified_loss(hidden @ weights["out"], batch)

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda w, g: w - 5.0 * g, weights, gradients), loss

    losses: list[float] = []
    with loader.iter_from_step(0) as batches:
        for _, batch in zip(range(steps), batches, strict=False):
            assert batch.token_ids.sharding == batch_sharding
            weights, loss = train_step(weights, batch)
            losses.append(float(loss))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    for step, loss in enumerate(run(load_config(args.config), args.steps)):
        print(f"{step:4d}  {loss:.4f}")
