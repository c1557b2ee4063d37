"""A host of a run whose hosts are not quite alike while it is changed, for
tests/run/test_steering.py.
"""

import runpy
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from headrace import ComponentConfig, open_run
from headrace.errors import PlanMismatchError
from headrace.run import Run
from headrace.testing import grow

STEP = 300
_STEERED = runpy.run_path(str(Path(__file__).with_name("steered.py")))


def main(root: Path, address: str, hosts: int, number: int, case: int) -> None:
    jax.distributed.initialize(address, hosts, number)
    run = open_run(root / "run", _STEERED["config_of"](root, 500), 0)
    rows: dict[str, np.ndarray] = {}
    total = jax.jit(lambda batch: batch.token_weights.sum())  # one program over all hosts
    if case == 0:  # a loader of this host's own devices comes first
        run.loader(Mesh(np.array(jax.local_devices()), ("data",)))
    with run.loader() as loader, loader.iter_from_step() as batches:
        for step, batch in enumerate(batches):
            total(batch).block_until_ready()
            for shard in batch.token_ids.addressable_shards:
                rows[f"{step}/{shard.index[0].start or 0}"] = np.asarray(shard.data)
            if step == 20:
                change(run, root, number, case)
    _STEERED["save"](root / f"rows-{number}.npz", rows)


def change(run: Run, root: Path, number: int, case: int) -> None:
    """Asks for a change; the hosts differ in what they find."""
    if case == 0 and number == 0:
        run.amend(STEP, weights={"a": 9})
    elif case == 1:  # another job appends to the cache before the second host looks at it
        new = ComponentConfig(str(root / "c"))
        steering = run._steering
        assert steering is not None
        amended = steering._amended
        if number == 1:
            steering._amended = lambda request: (grow(root / "c", 50), amended(request))[1]
        try:
            run.amend(STEP, add={"c": 3}, components={"c": new})
        except PlanMismatchError as refused:
            print("REFUSED", refused, flush=True)
    elif case == 2:  # a loader is made while the hosts vote, of which one is late
        steering = run._steering
        assert steering is not None
        amended = steering._amended
        if number == 1:
            steering._amended = lambda request: (time.sleep(2), amended(request))[1]
        asking = threading.Thread(target=run.amend, args=(STEP,), kwargs={"weights": {"a": 9}})
        if number == 0:
            asking.start()
        time.sleep(1)
        with run.loader() as second:
            late = np.asarray(second.batch_at(STEP).token_ids.addressable_shards[0].data)
        np.save(root / f"late-{number}.npy", late)
        if number == 0:
            asking.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
