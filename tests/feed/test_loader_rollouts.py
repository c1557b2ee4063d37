"""Rollouts through a loader: any mesh, several processes, another topology on the way."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import MicroBatchConfig, unified_loss
from headrace.errors import ConfigError, ReadError
from headrace.feed import DataLoader
from headrace.testing.servers import free_port
from headrace_posttrain import RLDataset, RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.dataset import RLSettings

HERE = Path(__file__).parent
PROMPTS = [np.array([i + 1, 7]) for i in range(9)]
SETTINGS = RLSettings(
    seq_len=24,
    groups_per_batch=6,
    seed=1,
    rows=8,
    max_segments=8,
    max_staleness=2,
    in_flight=12,
    stragglers="keep",
    ranks=4,
)


class Sampler:
    version = 0

    def sample_and_score(self, prompt):
        version = self.version
        time.sleep(0.001 * (prompt.position * 7 % 5))
        # Which groups a step gets depends on the clock: any six of these fit in eight rows.
        tokens = [
            np.append(prompt.tokens, np.full(1 + (prompt.position * 3 + k) % 7, 20 + k))
            for k in range(4)
        ]
        rewards = np.array([0.0, 1.0, 0.5, float(prompt.position % 3)])
        return ScoredGroup(
            tokens,
            rewards,
            2,
            [-np.arange(1.0, t.size - 1) for t in tokens],
            policy_version=version,
        )


LEAVES = (
    "token_ids",
    "source_id",
    "log_probs",
    "rewards",
    "segment_lengths",
    "weights",
    "group_ids",
    "policy_version",
)


def rollouts(folder, sampler, **options):
    return RLDataset(PROMPTS, sampler, SETTINGS, store=RolloutStore(folder, **options))


def whole(batch):
    return {name: np.asarray(getattr(batch, name)) for name in LEAVES}


def train(dataset, steps, sampler, first=0, **options):
    """Batches of a loader, the policy going on after each."""
    loader = DataLoader(dataset, **options)
    batches = []
    with loader.iter_from_step(first) as ready:
        for step in range(first, steps):
            sampler.version = step
            batches.append(whole(next(ready)))
            dataset.set_policy_version(step + 1)
    return batches


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for name in LEAVES:
            assert np.array_equal(a[name], b[name]), name


def test_a_loader_gives_the_steps_of_the_log_on_any_mesh(tmp_path):
    sampler = Sampler()
    with rollouts(tmp_path, sampler) as dataset:
        made = train(dataset, 5, sampler, mesh=Mesh(np.array(jax.devices()[:4]), ("data",)))
        assert [r.step for r in dataset.store.records()] == [
            0,
            1,
            2,
            3,
            4,
            *range(5, dataset.store.next_step),
        ]
    dataset.store.close()
    for step, batch in enumerate(made):
        sampled = batch["policy_version"][batch["policy_version"] >= 0]
        assert sampled.min() >= step - 2
    devices = np.array(jax.devices()[:4])
    split = NamedSharding(
        Mesh(devices.reshape(2, 2), ("data", "context")), PartitionSpec("data", "context")
    )
    follower = rollouts(tmp_path, None, follow=True)
    for options in ({"mesh": Mesh(devices[:1], ("data",))}, {"sharding": split}):
        loader = DataLoader(follower, **options)
        assert_same([whole(loader.batch_at(step)) for step in range(5)], made)
    plain = follower.next_batch(3)
    assert np.array_equal(plain.token_weights, np.asarray(loader.batch_at(3).token_weights))
    row = loader.dataset[3 * 8 + 2]
    assert np.array_equal(row.tokens[0], plain.tokens[2])
    tail = loader.dataset.read([25, 7, 24])
    assert np.array_equal(tail.tokens[0], plain.tokens[1])


def test_functions_get_the_rows_of_rollouts(tmp_path):
    sampler = Sampler()
    with rollouts(tmp_path, sampler) as dataset:
        loader = DataLoader(dataset.map(lambda batch: batch.token_weights))
        batch = loader.batch_at(0)
        assert batch.shape == (8, 24)
        assert np.array_equal(batch, dataset.next_batch(0).token_weights)
    dataset.store.close()


def test_a_loader_that_waits_for_a_policy_can_be_left(tmp_path):
    with rollouts(tmp_path, Sampler()) as dataset, DataLoader(dataset).iter_from_step(0) as batches:
        for _ in range(3):  # without a word of a new policy
            next(batches)
        assert dataset.store.next_step == 3
        closer = threading.Timer(0.05, batches.close)
        closer.start()
        with pytest.raises(ReadError, match="closed before its end"):
            next(batches)
        closer.join()
    dataset.store.close()


def test_what_a_loader_needs_is_said():
    def loader(**options):
        options = {
            "seq_len": 24,
            "groups_per_batch": 2,
            "seed": 0,
            "rows": 8,
            "max_staleness": 1,
        } | options
        return DataLoader(RLDataset(PROMPTS, Sampler(), RLSettings(**options)))

    with pytest.raises(
        ConfigError, match=r"rows = None: is needed by a loader. Set RLSettings\(rows=64\)"
    ):
        loader(rows=None)
    with pytest.raises(
        ConfigError, match=r"max_staleness = None: .*Set RLSettings\(max_staleness=1\)"
    ):
        loader(max_staleness=None)
    with pytest.raises(ConfigError, match="differs from the mixture's"):
        DataLoader(loader().dataset, 4)
    with pytest.raises(ConfigError, match="has the order of its log"):
        loader().dataset.reordered(None)
    with pytest.raises(ConfigError, match=r"indices = \[\]"):
        loader().dataset.read(np.zeros(0, int))


HOST = """
import sys
import jax, numpy as np
sys.path.insert(0, sys.argv[1])
from test_loader_rollouts import LEAVES, Sampler, rollouts
from headrace import DataLoader

folder, address, processes, number, steps, out = sys.argv[2:]
processes, number, steps = int(processes), int(number), int(steps)
if processes > 1:
    jax.distributed.initialize(address, processes, number)
sampler, shards = Sampler(), {}
total = jax.jit(lambda batch: batch.token_weights.sum())  # one program over all hosts
with rollouts(folder, sampler, follow=number > 0) as dataset, DataLoader(dataset).iter_from_step(0) as batches:
    for step in range(steps):
        sampler.version = step
        batch = next(batches)
        total(batch).block_until_ready()
        for name in LEAVES:
            for shard in getattr(batch, name).addressable_shards:
                shards[f"{step}/{name}/{shard.index[0].start or 0}"] = np.asarray(shard.data)
        dataset.set_policy_version(step + 1)
dataset.store.close()
np.savez(f"{out}{number}.npz", **shards)
"""


def run_hosts(folder, processes, devices, steps, out):
    address = f"127.0.0.1:{free_port()}"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    hosts = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                HOST,
                *map(str, (HERE, folder, address, processes, number, steps, out)),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        said = [host.communicate(timeout=300)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0] * processes, said
    shards = [dict(np.load(f"{out}{number}.npz")) for number in range(processes)]
    batches = {}
    for key, part in (item for of_host in shards for item in of_host.items()):
        step, name, begin = key.split("/")
        batches.setdefault((int(step), name), {})[int(begin)] = part
    return {
        key: np.concatenate([parts[begin] for begin in sorted(parts)])
        for key, parts in batches.items()
    }


@pytest.mark.slow
def test_processes_on_four_topologies_get_the_same_global_batches(tmp_path):
    """Each takes over the run at a step, replays what was trained on, and goes on; the last replays
    all.
    """
    folder = tmp_path / "rollouts"
    seen = {}
    for number, (processes, devices) in enumerate([(2, 2), (1, 4), (4, 1), (1, 1)]):
        batches = run_hosts(folder, processes, devices, 2 * (number + 1), f"{tmp_path}/{number}-")
        assert {step for step, _ in batches} == set(range(2 * (number + 1)))
        for key, values in seen.items():
            assert np.array_equal(batches[key], values), (number, key)
        seen = batches
    store = RolloutStore(folder)
    used = [p for r in store.records() for p in [*r.positions, *r.dropped]]
    assert len(used) == len(set(used))


def loss_of(batch, denominator):
    return unified_loss(4 * jax.nn.one_hot(batch.tokens * 3 % 32, 32), batch, denominator)


def tokens_of(batch):
    """Every completion with what stands beside its tokens, in some order."""
    lengths = np.asarray(batch.segment_lengths)
    completions = []
    columns = [
        np.asarray(getattr(batch, n))
        for n in ("token_ids", "log_probs", "weights", "policy_version")
    ]
    for row, of_row in enumerate(lengths):
        begin = 0
        for size, reward in zip(
            of_row.tolist(), np.asarray(batch.rewards)[row].tolist(), strict=True
        ):
            completions.append(
                (reward, *(tuple(c[row, begin : begin + size].tolist()) for c in columns))
            )
            begin += size
    return sorted(one for one in completions if one[1])


@pytest.mark.parametrize("balance", ["none", "tokens"])
def test_steps_of_rollouts_come_in_micro_batches(tmp_path, balance):
    sampler = Sampler()
    with rollouts(tmp_path, sampler) as dataset:
        micro = MicroBatchConfig(48, balance)
        loader = DataLoader(
            dataset, mesh=Mesh(np.array(jax.devices()[:2]), ("data",)), micro_batches=micro
        )
        with loader.iter_from_step(0) as steps:
            cut = [next(steps)]
            for version in (1, 2):
                sampler.version = version
                dataset.set_policy_version(version)
                cut.append(next(steps))
        plain = DataLoader(dataset, mesh=Mesh(np.array(jax.devices()[:1]), ("data",)))
        for step, micro_batches in enumerate(cut):
            rows = plain.batch_at(step)
            assert tokens_of(micro_batches.rows) == tokens_of(rows)
            assert 1 < int(micro_batches.count) <= micro_batches.number
            total = micro_batches.sum(loss_of, "sequences")
            assert np.isclose(float(total), float(loss_of(rows, "sequences")), atol=1e-5)
            assert abs(float(total)) > 1e-3
        assert np.array_equal(loader.batch_at(1).rows.token_ids, cut[1].rows.token_ids)
    dataset.store.close()
