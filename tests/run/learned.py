"""A host of a run whose mixture learns, for tests/run/test_learning_hosts.py."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.batch import loss_by_source
from headrace.mix import AdaptiveMixture
from headrace.run import LoaderState, MixtureLearner, ShareBounds

NAMES = ("a", "b", "c")
EVERY = 10
STEPS = 100


def config_of(root: Path) -> LmDataConfig:
    components = {name: ComponentConfig(str(root / name)) for name in NAMES}
    return LmDataConfig(components, seq_len=8, batch_size=8, num_steps=STEPS, seed=5)


@jax.jit
def measured(batch, step):
    """Losses that are sums of quarters: exact, in whatever order devices add them."""
    falling = 4 / (1 + step // EVERY)
    losses = jax.numpy.array([1 + falling, 2 + falling / 2, 4.0])[batch.source_id]
    losses = jax.numpy.round(losses * 4) / 4
    return loss_by_source(batch, losses[:, None] + 0 * batch.token_weights, sources=3)


def main(root: Path, address: str, hosts: int, number: int) -> None:
    """Trains from the last checkpoint to the end; prints the rows of each step, by host."""
    if hosts > 1:
        jax.distributed.initialize(address, hosts, number)
    checkpoint = root / "checkpoint.json"
    saved = LoaderState(0, "")
    run = open_run(root / "run", config_of(root), 0)
    if checkpoint.exists():
        saved = LoaderState.from_dict(json.loads(checkpoint.read_text()))
        run = open_run(root / "run", config_of(root), saved)
    bounds = ShareBounds(least=0.05, most_change=0.2)
    learner = MixtureLearner(run, AdaptiveMixture(warmup=2), every=EVERY, bounds=bounds)
    step = saved.step
    while step < STEPS:
        with learner.run.loader().iter_from_step(step) as batches:
            for batch in batches:
                for shard in batch.token_ids.addressable_shards:
                    first = shard.index[0].start or 0
                    print(step, first, np.asarray(shard.data).tolist(), sep="\t", flush=True)
                losses = measured(batch, step)
                losses.sums.block_until_ready()
                step += 1
                amended = learner.observe(step, losses)
                if number == 0 and amended and step % (2 * EVERY) == 0:
                    part = root / "checkpoint.part"
                    part.write_text(json.dumps(learner.run.state(step).to_dict()))
                    part.rename(checkpoint)
                if amended:
                    break
    print("lock", learner.run.fingerprint, sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
