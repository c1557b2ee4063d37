"""Real jobs of several JAX processes on all kinds of meshes: together they hold what one process
holds alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import MicroBatchConfig
from headrace.data import MixtureDataset, PackedTokenDataset, TokenSeqDataset
from headrace.data.columns import ColumnConfig
from headrace.feed import DataLoader
from headrace.store import CacheLayout
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache
from headrace.testing.servers import free_port

LEAVES = ("token_ids", "token_mask", "source_id", "valid", "topk", "score", "document")
COLUMNS = {
    "weight": ColumnConfig("weights", 0.5),
    "topk": ColumnConfig("topk", 7),
    "score": ColumnConfig("score", 0),
    "document": "document_number",
}

HOST = """
import json, os, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sys.path.insert(0, sys.argv[1])
from test_loader_meshes import LEAVES, leaf_of, mixture, mesh_of
from headrace import DataLoader

root, address, job = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
number = int(sys.argv[5])
jax.distributed.initialize(address, job["processes"], number, heartbeat_timeout_seconds=job["patience"])
assert jax.process_count() == job["processes"]
total = jax.jit(lambda batch: (batch.token_weights.sum(), (batch.labels * batch.token_weights).sum()))
for name, mesh, spec in job["meshes"]:
    loader = DataLoader(mixture(root), sharding=mesh_of(mesh, spec), row_exchange=job["exchange"])
    for step, batch in enumerate(loader.iter_from_step(job["step"]), job["step"]):
        shards = {"sums": np.asarray([float(x) for x in total(batch)])}
        for leaf in LEAVES:
            for shard in leaf_of(batch, leaf).addressable_shards:
                begin = "/".join(str(s.start or 0) for s in shard.index)
                shards[f"{leaf}@{begin}"] = np.asarray(shard.data)
        at = f"{root}/{name}-{step}-{number}.npz"
        np.savez(at + ".tmp.npz", **shards)
        os.replace(at + ".tmp.npz", at)
        if step + 1 == job["die_at"] and number == 1:
            os.kill(os.getpid(), 9)
        if step + 1 == job["hang_at"]:  # a job that only a kill ends
            import time
            time.sleep(600)
    print("exchanged", name, loader.stats().reads.exchanged_examples)
"""


def mixture(root):
    """Two sources of different dtype, one with a mask, one with columns; the batch grows; the last
    one is padded.
    """
    a, b = (TokenSeqDataset(f"{root}/{n}", 8, split_documents=True, columns=COLUMNS) for n in "ab")
    sources = {"a": a.braid_shuffle(strands=4, seed=1), "b": b.shuffle(2)}
    return MixtureDataset(sources, {"a": 3, "b": 1}, {0: 8, 3: 16}, stop_strategy="first_exhausted")


def leaf_of(batch, name):
    return batch.extras[name] if name in batch.extras else getattr(batch, name)


def mesh_of(shape, spec):
    """A sharding over all devices of the job: ``shape`` is {axis: size}, ``spec`` an axis (or None)
    a dimension.
    """
    mesh = Mesh(np.asarray(jax.devices()).reshape(*shape.values()), tuple(shape))
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("caches")
    for name, dtype, rows in (("a", "uint8", 93), ("b", "uint16", 70)):
        tokens = [np.append((np.arange(7) * 3 + 5 * r) % 255, 255) for r in range(rows)]
        mask = (lambda ids: ids % 2 == 1) if name == "b" else None
        leaves = {
            LeafSpec("weights", "float32", width=1): lambda ids: ids % 5 / 4,
            LeafSpec("topk", "int32", width=2): lambda ids: np.stack([ids, ids + 1], axis=-1),
            LeafSpec("score", "float32", "fixed"): lambda ids: ids[:1] / 8,
        }
        leaves = leaves if name == "a" else {}
        write_cache(
            root / name,
            [tokens],
            eos_id=255,
            layout=CacheLayout(dtype, 32, 2),
            mask=mask,
            leaves=leaves,
        )
    return root


@pytest.fixture(scope="module")
def expected(root):
    """Every batch as one process on one device loads it."""
    loader = DataLoader(mixture(root), mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)))
    batches = [{n: np.asarray(leaf_of(b, n)) for n in LEAVES} for b in loader]
    assert len(batches) > 6
    assert not batches[-1]["valid"].all()
    return batches


@contextmanager
def job(root, processes, devices, meshes, script=HOST, **settings):
    """Starts a job that loads all steps on one mesh after the other; whatever happens, none of its
    processes stays.

    A mesh is (name, {axis: size}, an axis or None for each dimension of a batch). ``settings``: the
    ``step`` to begin with; the one before which all hang, or one dies; how long the others wait for
    it; and ``row_exchange``.
    """
    address = f"127.0.0.1:{free_port()}"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    defaults = {"step": 0, "hang_at": None, "die_at": None, "patience": 100, "exchange": "off"}
    settings = {"processes": processes, "meshes": meshes, **defaults, **settings}
    hosts = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                script,
                str(Path(__file__).parent),
                str(root),
                address,
                json.dumps(settings),
                str(n),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(processes)
    ]
    try:
        yield hosts
    finally:
        for host in hosts:
            host.kill()
        for host in hosts:
            host.communicate()


def finish(hosts):
    said = [host.communicate() for host in hosts]
    assert [host.returncode for host in hosts] == [0] * len(hosts), said
    return {
        tuple(line.split()[1:])
        for out, _ in said
        for line in out.splitlines()
        if line.startswith("exchanged")
    }


def loaded(root, name, processes, step, shapes):
    """The global arrays of a step, put together from what the processes held; and each process's
    sums.
    """
    whole: dict[str, Any] = dict.fromkeys(LEAVES)
    sums = []
    for number in range(processes):
        with np.load(root / f"{name}-{step}-{number}.npz") as held:
            sums.append(held["sums"].tolist())
            for key in held.files:
                if "@" not in key:
                    continue
                leaf, begin = key.split("@")
                shard = held[key]
                if whole[leaf] is None:
                    whole[leaf] = np.full(shapes[leaf], 77, shard.dtype)
                at = tuple(
                    slice(int(b), int(b) + n)
                    for b, n in zip(begin.split("/"), shard.shape, strict=True)
                )
                whole[leaf][at] = shard
    return whole, sums


def check_equal(root, name, processes, steps, expected):
    for step in steps:
        shapes = {n: a.shape for n, a in expected[step].items()}
        whole, sums = loaded(root, name, processes, step, shapes)
        for leaf in LEAVES:
            assert whole[leaf].dtype == expected[step][leaf].dtype
            assert np.array_equal(whole[leaf], expected[step][leaf]), (step, leaf)
        assert all(s == sums[0] for s in sums)


@pytest.mark.parametrize(
    ("processes", "devices", "meshes"),
    [
        pytest.param(
            *(4, 1, [("data4", {"data": 4}, ["data"]), ("seq4", {"seq": 4}, [None, "seq"])]),
            marks=pytest.mark.slow,
            id="4x1",
        ),
        pytest.param(
            2,
            2,
            [
                ("data2-model2", {"data": 2, "model": 2}, ["data"]),
                (
                    "model2-data2",
                    {"model": 2, "data": 2},
                    ["data"],
                ),  # every process holds every row
                (
                    "seq2-data2",
                    {"seq": 2, "data": 2},
                    ["data", "seq"],
                ),  # a process holds half of each row
            ],
            marks=pytest.mark.slow,
            id="2x2",
        ),
        pytest.param(
            2,
            4,
            [("data2-seq2-model2", {"data": 2, "seq": 2, "model": 2}, ["data", "seq"])],
            id="2x4",
        ),
    ],
)
def test_a_job_loads_what_one_process_loads(root, expected, processes, devices, meshes):
    """Also when its processes read rows for each other."""
    with job(root, processes, devices, meshes, exchange="on") as hosts:
        exchanged = finish(hosts)
    for name, *_ in meshes:
        check_equal(root, name, processes, range(len(expected)), expected)
        split = name not in (
            "seq4",
            "model2-data2",
            "seq2-data2",
        )  # there every process holds every row
        assert any(int(rows) > 0 for mesh, rows in exchanged if mesh == name) == split, (
            name,
            exchanged,
        )


@pytest.mark.slow
def test_killed_and_restarted_on_another_number_of_processes_the_order_goes_on(root, expected):
    with job(root, 4, 1, [("before", {"data": 4}, ["data"])], hang_at=4, exchange="on") as hosts:
        while not all((root / f"before-3-{n}.npz").exists() for n in range(4)):
            assert all(h.poll() is None for h in hosts), [
                h.communicate() for h in hosts if h.poll() is not None
            ]
            time.sleep(0.05)
        for host in hosts:
            host.send_signal(signal.SIGKILL)
    check_equal(root, "before", 4, range(4), expected)
    with job(root, 2, 2, [("after", {"data": 2, "seq": 2}, ["data", "seq"])], step=4) as hosts:
        finish(hosts)
    check_equal(root, "after", 2, range(4, len(expected)), expected)


def shape_of(name):
    """``data2-model2`` as axes and sizes, and what rows and columns are split over."""
    sizes = {axis.rstrip("0123456789"): int(axis[-1]) for axis in name.split("-")}
    rows = [axis for axis in sizes if axis in ("data", "fsdp")]
    return name, sizes, [rows, "seq"] if "seq" in sizes else [rows]


TOPOLOGIES = {
    (4, 1): ["data2-seq2", "seq2-data2", "data2-model2", "model2-data2", "fsdp2-data2"],
    (2, 2): ["data4", "data2-seq2", "data2-fsdp2", "fsdp2-model2"],
    (2, 4): [
        "data8",
        "data4-model2",
        "model2-data4",
        "data4-seq2",
        "data2-seq4",
        "data2-fsdp2-model2",
    ],
    (4, 2): ["data8", "data4-seq2", "seq2-data4", "data2-seq2-model2", "data2-fsdp2-seq2"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), TOPOLOGIES, ids=lambda n: str(n))
def test_twenty_topologies_exchange_rows(root, expected, processes, devices):
    names = TOPOLOGIES[processes, devices]
    with job(root, processes, devices, [shape_of(name) for name in names], exchange="on") as hosts:
        exchanged = finish(hosts)
    for name in names:
        check_equal(root, name, processes, range(len(expected)), expected)
    assert sum(int(rows) > 0 for _, rows in exchanged) > len(names)


@pytest.mark.slow
def test_a_host_that_dies_leaves_none_that_hangs(root):
    """It is JAX that ends the others: in a collective whose peer is gone, or when no heartbeat
    comes.
    """
    with job(
        root, 4, 1, [("dead", {"data": 4}, ["data"])], exchange="on", die_at=3, patience=10
    ) as hosts:
        for host in hosts:
            host.communicate()
        assert all(host.returncode != 0 for host in hosts)


MICRO_HOST = """
import json, sys
import jax
sys.path.insert(0, sys.argv[1])
from test_loader_meshes import micro_digests
job = json.loads(sys.argv[4])
jax.distributed.initialize(sys.argv[3], job["processes"], int(sys.argv[5]))
assert jax.process_count() == job["processes"]
for exchange in ("off", "on"):
    print("exchanged", micro_digests(sys.argv[2], row_exchange=exchange))
"""


def micro_digests(root, **options):
    """Sums that tell the micro-batches of some steps apart, with all that lies beside tokens; the
    same everywhere.
    """
    one = {"algorithm": "next_fit", "columns": COLUMNS}
    packed = {n: PackedTokenDataset(f"{root}/{n}", 24, name=n, **one).shuffle(1) for n in "ab"}
    mixture = MixtureDataset(packed, {"a": 3, "b": 1}, 16)
    loader = DataLoader(mixture, micro_batches=MicroBatchConfig(48, "tokens", rows=4), **options)

    @jax.jit
    def sums(step):
        leaves = [
            step.rows.labels * step.rows.token_weights,
            step.segment_sources,
            *step.rows.extras.values(),
        ]
        return [
            (leaf * (np.arange(leaf.size).reshape(leaf.shape) % 1009)).sum() for leaf in leaves
        ], step.count

    with loader.iter_from_step(1) as batches:
        return json.dumps([jax.tree.map(float, sums(next(batches))) for _ in range(3)])


@pytest.mark.slow
def test_processes_hold_the_micro_batches_of_one(root):
    expected = micro_digests(root, mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)))
    with job(root, 2, 2, [], script=MICRO_HOST) as hosts:
        digests = finish(hosts)
    assert [json.loads(" ".join(words)) for words in digests] == [json.loads(expected)]
