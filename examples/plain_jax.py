"""Plain JAX: a bigram model in twenty lines, from a headrace config; stop it at any step and start
it again.

    headrace build texts/ --output caches/code --tokenizer bytes
    python examples/plain_jax.py run.yaml --folder runs/1 --steps 200

The checkpoint holds the parameters and headrace's state, which is a step and a fingerprint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from headrace import LmDataConfig, PackedBatch, load_config, open_run
from headrace.batch import unified_loss
from headrace.run import LoaderState


@jax.jit
def train_step(table: jax.Array, batch: PackedBatch) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent. Labels, weights and segments are derived in here, on the
    devices.
    """
    loss, gradient = jax.value_and_grad(lambda t: unified_loss(t[batch.tokens], batch))(table)
    return table - 10.0 * gradient, loss


def run(config: LmDataConfig, folder: Path, steps: int) -> list[float]:
    """Trains up to ``steps`` steps, going on from the folder's checkpoint; the losses of the steps
    it did.
    """
    checkpoint = folder / "checkpoint.npz"
    vocab_size = config.vocab_size  # of the caches: it has room for special tokens
    table = jnp.zeros((vocab_size, vocab_size))
    state = None
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            table = jnp.asarray(saved["table"])
            state = LoaderState.from_dict(json.loads(str(saved["state"])))
    losses = []
    first = state.step if state else 0
    run = open_run(folder, config, first)  # refuses a folder of another run, with the differences
    with run.loader() as loader, loader.iter_from_step(first) as batches:
        for _, batch in zip(range(first, steps), batches, strict=False):
            table, loss = train_step(table, batch)
            losses.append(float(loss))
    state = run.state(max(first, steps))
    np.savez(checkpoint, table=np.asarray(table), state=json.dumps(state.to_dict()))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--folder", type=Path, default=Path("runs/1"))
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for step, loss in enumerate(run(load_config(args.config), args.folder, args.steps)):
        print(f"{step:4d}  {loss:.4f}")
