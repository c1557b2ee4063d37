"""A host of a run whose hosts are not quite alike while it is changed, for
tests/run/test_steering.py.
"""

import gc
import runpy
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headrace import ComponentConfig, DataLoader, open_run
from headrace.batch.loss import SourceLosses
from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed.horizon import Horizons
from headrace.mix import BanditMixture
from headrace.run import MixtureLearner, Run, steering
from headrace.testing.caches import grow

STEPS = 500
STEP = 300
EVERY = 20
_STEERED = runpy.run_path(str(Path(__file__).with_name("steered.py")))


class Host:
    """A host that trains, and keeps its rows."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.number = number
        self.run = open_run(root / "run", _STEERED["config_of"](root, STEPS), 0)
        self.rows: dict[str, np.ndarray] = {}
        self.step = 0
        # one program over all hosts
        self._total = jax.jit(lambda batch: batch.token_weights.sum())

    def train(self, loader: DataLoader, until: int = STEPS) -> None:
        """Trains until a step, in an iteration of its own."""
        with loader.iter_from_step(self.step) as batches:
            while self.step < until:
                self.take(next(batches))

    def take(self, batch: Any) -> None:
        self._total(batch).block_until_ready()
        for shard in batch.token_ids.addressable_shards:
            self.rows[f"{self.step}/{shard.index[0].start or 0}"] = np.asarray(shard.data)
        self.step += 1

    def amend(self, step: int, **change: Any) -> None:
        """Asks for a change, and says what became of it."""
        try:
            self.run.amend(step, **change)
            print("AGREED", flush=True)
        except PlanMismatchError as refused:
            print("REFUSED", refused, flush=True)

    def on_this(self, number: int, of: type, name: str, first: Callable[[], object]) -> None:
        """Has one of the hosts do something before each call of a method."""
        method = getattr(of, name)

        @wraps(method)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            first()
            return method(*arguments, **options)

        if self.number == number:
            setattr(of, name, wrapped)


def own_loader_first(host: Host) -> None:
    """A loader of the host's own devices comes first, such as for an evaluation."""
    host.run.loader(Mesh(np.array(jax.local_devices()), ("data",)))
    loader = host.run.loader()
    host.train(loader, 20)
    host.train(loader, 21)
    with loader.iter_from_step(host.step) as batches:
        if host.number == 0:
            host.amend(STEP, weights={"a": 9})
        for batch in batches:
            host.take(batch)


def a_cache_grows(host: Host) -> None:
    """Another job appends to the cache before the second host looks at it."""
    host.on_this(1, Run, "after", lambda: grow(host.root / "c", 50))
    with host.run.loader().iter_from_step() as batches:
        for batch in batches:
            host.take(batch)
            if host.step == 20:
                new = ComponentConfig(str(host.root / "c"))
                host.amend(STEP, add={"c": 3}, components={"c": new})


def loader_during_the_vote(host: Host) -> None:
    """A loader is made while the hosts vote, of which one is late."""
    host.on_this(1, Run, "after", lambda: time.sleep(2))
    with host.run.loader().iter_from_step() as batches:
        for batch in batches:
            host.take(batch)
            if host.step != 20:
                continue
            asking = threading.Thread(target=host.amend, args=(STEP,), kwargs={"weights": {"a": 9}})
            if host.number == 0:
                asking.start()
            time.sleep(1)
            with host.run.loader() as second:
                late = np.asarray(second.batch_at(STEP).token_ids.addressable_shards[0].data)
            np.save(host.root / f"late-{host.number}.npy", late)
            if host.number == 0:
                asking.join()


def iteration_while_it_settles(host: Host) -> None:
    """An iteration is closed and another begun when one host has not heard of the decision."""
    hears = threading.Event()
    host.on_this(1, Run, "become", lambda: (hears.set(), time.sleep(2)))
    loader = host.run.loader(row_exchange="on")
    with loader.iter_from_step() as batches:
        while host.step < 20:
            host.take(next(batches))
        if host.number == 0:
            host.amend(STEP, weights={"a": 9})
        else:
            hears.wait()
    host.train(loader)


def decision_while_it_settles(host: Host) -> None:
    """A mixture that learns decides when one host has not heard that a source is to join."""
    host.on_this(1, Run, "become", lambda: time.sleep(2 if host.step < 100 else 0))
    learner = MixtureLearner(host.run, BanditMixture(), every=EVERY)
    while host.step < STEPS:
        with learner.run.loader().iter_from_step(host.step) as batches:
            for batch in batches:
                host.take(batch)
                if host.step == EVERY - 5 and host.number == 0:
                    new = ComponentConfig(str(host.root / "c"))
                    host.amend(STEP, add={"c": 3}, components={"c": new})
                sources = 2 if host.step < STEP + EVERY else 3
                losses = SourceLosses(np.arange(3.0)[:sources] + 1, np.ones(sources))
                if learner.observe(host.step, losses):
                    break


def answer_of_an_earlier_request(host: Host) -> None:
    """One host asks alone, later all ask for the same."""
    with host.run.loader().iter_from_step() as batches:
        for batch in batches:
            host.take(batch)
            if host.step == 30 or (host.step == 20 and host.number == 0):
                host.amend(STEP, weights={"a": 9})


def old_loader_is_kept(host: Host) -> None:
    """One host keeps a loader that the other drops."""
    kept = host.run.loader()
    host.train(kept, 10)
    if host.number == 1:
        del kept
        gc.collect()
    with host.run.loader().iter_from_step(host.step) as batches:
        for batch in batches:
            host.take(batch)
            if host.step == 20 and host.number == 0:
                host.amend(STEP, weights={"a": 9})


def asked_by_one_at_the_end(host: Host) -> None:
    """One host asks when the other has ended its iteration and begins the next."""
    loader = host.run.loader()
    with loader.iter_from_step() as batches:
        while host.step < 20:
            host.take(next(batches))
        if host.number == 0:
            host.amend(STEP, weights={"a": 9})
    host.train(loader)


def host_that_left(host: Host) -> None:
    """One host has left its loop when the other asks, which then leaves its own."""
    has_left = host.root / "has-left"
    loader = host.run.loader()
    asking = threading.Thread(target=host.amend, args=(STEP,), kwargs={"weights": {"a": 5}})
    with loader.iter_from_step() as batches:
        while host.step < 20:
            host.take(next(batches))
        if host.number == 0:
            while not has_left.exists():
                time.sleep(0.1)
            asking.start()
            time.sleep(1)
    if host.number == 1:
        time.sleep(2)  # a thread that ends with the iteration has ended
        has_left.touch()
    else:
        host.run.loader()  # waits for nobody
        asking.join()
    with loader.iter_from_step(host.step) as batches:
        for batch in batches:
            host.take(batch)
            if host.step == 40:
                host.amend(STEP, weights={"a": 9})


def host_that_fails(host: Host) -> None:
    """One host cannot make what its loader would deliver, or the run."""

    def fail(error: Exception) -> None:
        raise error

    odd = ConfigError("is odd", field="row_exchange", value="on")
    with host.run.loader(row_exchange="on").iter_from_step() as batches:
        for batch in batches:
            host.take(batch)
            if host.step == 20:
                host.on_this(1, DataLoader, "delivery_of", lambda: fail(odd))
                host.amend(STEP, weights={"a": 9})
            if host.step == 40:
                host.on_this(1, Run, "after", lambda: fail(OSError("no such disk")))
                host.amend(STEP, weights={"a": 9})


def change_while_hosts_come_to_another(host: Host) -> None:
    """One host goes on from a change when the other has not come to it; then a third follows."""
    host.on_this(1, Horizons, "follow", lambda: time.sleep(3))
    with host.run.loader(row_exchange="on").iter_from_step() as batches:
        for batch in batches:
            host.take(batch)
            if host.number == 0 and host.step in (1, 235):
                host.amend(host.step + 249, weights={"a": host.step})


CASES = [
    own_loader_first,
    a_cache_grows,
    loader_during_the_vote,
    iteration_while_it_settles,
    decision_while_it_settles,
    answer_of_an_earlier_request,
    old_loader_is_kept,
    asked_by_one_at_the_end,
    host_that_left,
    host_that_fails,
    change_while_hosts_come_to_another,
]


def main(root: Path, address: str, hosts: int, number: int, case: int) -> None:
    steering._VOTES_S = 1e6  # who waits for a host that does not answer is seen to hang
    jax.distributed.initialize(address, hosts, number)
    host = Host(root, number)
    CASES[case](host)
    _STEERED["save"](root / f"rows-{number}.npz", host.rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
