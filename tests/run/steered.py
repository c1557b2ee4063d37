"""A host of a run that is changed while it trains, for tests/run/test_steering.py."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.run import LoaderState, Run

AHEAD = 240  # more than any host has planned
LEAST_AHEAD = 223  # less than the first step that can be changed
EVERY = 20
SAVED_EVERY = 50


def config_of(root: Path, steps: int) -> LmDataConfig:
    components = {name: ComponentConfig(str(root / name)) for name in "ab"}
    weights = {"a": 2, "b": {"linear": {0: 1, 1000: 3}}}
    return LmDataConfig(
        components, seq_len=8, batch_size=8, num_steps=steps, weights=weights, seed=5
    )


def change_at(run: Run, root: Path, at: int, step: int) -> dict[str, Any]:
    """A change, the same on all hosts, whatever was decided before."""
    chosen = random.Random(at)
    assert run.config is not None
    changes = [one for one in run.config.amendments if "c" in one.add or "c" in one.drop]
    has_c = bool(changes) and "c" in changes[-1].add
    change: dict[str, Any] = {"weights": {chosen.choice("ab"): chosen.choice([1, 2.5, 7])}}
    if chosen.random() < 0.4:
        first = step + chosen.randrange(5)
        change["skip"] = [[first, first + chosen.randint(1, 30)]]
    if chosen.random() < 0.3:
        change |= {"drop": ["c"]} if has_c else {"add": {"c": chosen.choice([0.5, 2])}}
        if not has_c and "c" not in run.config.components:
            change["components"] = {"c": ComponentConfig(str(root / "c"))}
    return change


def main(root: Path, address: str, hosts: int, number: int, steps: int, changes: int) -> None:
    if hosts > 1:
        jax.distributed.initialize(address, hosts, number)
    checkpoint = root / "checkpoint.json"
    saved = (
        LoaderState.from_dict(json.loads(checkpoint.read_text())) if checkpoint.exists() else None
    )
    run = open_run(root / "run", config_of(root, steps), saved)
    begin = 0 if saved is None else saved.step
    rows: dict[str, np.ndarray] = {}
    total = jax.jit(lambda batch: batch.token_weights.sum())  # one program over all hosts
    with run.loader() as loader, loader.iter_from_step(begin) as batches:
        for step, batch in enumerate(batches, begin):
            total(batch).block_until_ready()
            if number == 0 and step % SAVED_EVERY == 0 and step > begin:
                # every host has come to this step, and so has saved the rows before it
                part = root / "checkpoint.part"
                part.write_text(json.dumps(run.state(step).to_dict()))
                part.rename(checkpoint)
            for shard in batch.token_ids.addressable_shards:
                rows[f"{step}/{shard.index[0].start or 0}"] = np.asarray(shard.data)
            assert run.config is not None
            reached = max((one.step for one in run.config.amendments), default=0)
            is_new = reached < step + LEAST_AHEAD
            if step % EVERY == 0 and step < changes * EVERY and is_new:
                is_asked_by_all = step // EVERY % 2 == 0
                begins = step + AHEAD if is_asked_by_all else run.earliest_step()
                if is_asked_by_all or number == 0:
                    run.amend(begins, **change_at(run, root, step, begins))
            if step % SAVED_EVERY == SAVED_EVERY - 1:
                save(root / f"rows-{begin}-{hosts}-{number}.npz", rows)
                print(step + 1, flush=True)
    save(root / f"rows-{begin}-{hosts}-{number}.npz", rows)


def save(path: Path, rows: dict[str, np.ndarray]) -> None:
    """Writes all of it or nothing: the process may be killed."""
    part = path.with_name(f"part-{path.name}")
    np.savez(part, **rows)
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
