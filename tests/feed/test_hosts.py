"""Two real processes of one job: their counters together, disagreements named on both, half a row
half the reads.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from headrace import __version__
from headrace.feed.hosts import host_differences
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.servers import free_port

HOST = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from headrace import DataLoader, TokenSeqDataset
from headrace.errors import ConfigError

root, address, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = json.loads(sys.argv[4 + number])
jax.distributed.initialize(address, 2, number)
devices = np.asarray(jax.devices())
def loader(seq_len=64, spec=("data",), devices=devices, **more):
    mesh = Mesh(devices, ("data",))
    dataset = TokenSeqDataset(f"{root}/a", seq_len).shuffle(options.get("seed", 0))
    return DataLoader(dataset, 4, sharding=NamedSharding(mesh, PartitionSpec(*spec)), **more)
def report(**figures):
    print("REPORT" + json.dumps(figures), flush=True)
"""

DISAGREE = (
    HOST
    + """
try:
    loader(options.get("seq_len", 64)).iter_from_step(options.get("step", 0))
    report(error=None)
except ConfigError as error:
    report(error=str(error))
loader(options.get("seq_len", 64), check_hosts=False).iter_from_step(0).close()
# with one process's devices there is nobody to agree with, and nobody is asked
own = loader(devices=devices[[d.process_index == number for d in devices]])
with own.iter_from_step(options.get("step", 0)) as batches:
    next(batches)
"""
)

AGAIN = (
    HOST
    + """
each = loader(row_exchange="on")
errors = []
for step in (0, 5, 3 + number, 2):
    try:
        with each.iter_from_step(step) as batches:
            next(batches)
            errors.append(None)
    except ConfigError as error:
        errors.append(str(error))
report(errors=errors)
"""
)

TOGETHER = (
    HOST
    + """
by_rows, by_columns = loader(), loader(spec=(None, "data"), memory_map=False)
for each in (by_rows, by_columns):
    for step, batch in enumerate(each):
        pass
    assert step == 9
mine, both = by_columns.stats(), by_columns.stats(all_hosts=True)
one = loader(spec=(None, "data"), devices=devices[[d.process_index == number for d in devices]])
tokens = [np.asarray(b.token_ids) for b in one]
halves = []
for whole, batch in zip(tokens, by_columns):
    (shard,) = batch.token_ids.addressable_shards
    halves.append(bool(np.array_equal(shard.data, whole[shard.index])))
with loader(spec=(None, "data")).headspace(batches=2) as replayed:
    first, second, again = (next(replayed).token_ids.addressable_shards[0].data for _ in range(3))
report(mine=mine.to_dict(), both=both.to_dict(), rows=by_rows.stats(all_hosts=True).to_dict(), halves=halves,
       whole=one.stats().reads.bytes_read, replayed=bool((first == again).all() and not (first == second).all()))
"""
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """40 rows of 64 tokens, in chunks of 8."""
    root = tmp_path_factory.mktemp("hosts")
    write_cache(
        root / "a", [[np.arange(64) + r for r in range(40)]], layout=CacheLayout("uint8", 8, 16)
    )
    return root


def run(program, root, *options):
    """What each of two processes reports."""
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    said = [json.dumps(o) for o in (options or ({}, {}))]
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root), address, str(number), *said],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        found = [host.communicate() for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], found
    return [json.loads(out.split("REPORT")[1].splitlines()[0]) for out, _ in found]


def test_hosts_that_load_something_else_are_named_on_all_hosts(root):
    one, other = run(DISAGREE, root, {}, {"seq_len": 32, "seed": 1, "step": 3})
    assert one == other
    assert one["error"].startswith(
        "hosts: do not load the same batches: step: host 0 has 0, host 1 has 3; seq_len: host 0"
        " has 64, host 1 has 32; "
    )


def test_hosts_that_load_the_same_go_on(root):
    assert run(DISAGREE, root) == [{"error": None}, {"error": None}]


def test_hosts_that_exchange_rows_begin_each_iteration_at_one_step(root):
    # rows of another step would be taken for those of this one
    one, other = run(AGAIN, root)
    assert one == other
    named = "hosts: do not load the same batches: step: host 0 has 3, host 1 has 4. "
    assert [error and error[: len(named)] for error in one["errors"]] == [None, None, named, None]


def test_counters_of_both_hosts_and_halves_of_rows(root):
    """Each host holds half of each row, which is longer than a chunk, and reads
    half of the blocks.
    """
    found = run(TOGETHER, root)
    assert found[0]["both"] == found[1]["both"]
    both = found[0]["both"]
    mine = [f["mine"] for f in found]
    assert all(all(f["halves"]) and len(f["halves"]) == 10 and f["replayed"] for f in found)
    assert [f["whole"] for f in found] == [40 * 64] * 2
    assert [m["bytes_read"] for m in mine] == [40 * 32] * 2
    assert [m["block_fetches"] for m in mine] == [40 * 4] * 2
    for counter in (
        "bytes_read",
        "block_fetches",
        "examples_requested",
        "tensorstore_reads_issued",
        "num_stalls",
    ):
        assert both[counter] == mine[0][counter] + mine[1][counter], counter
    for seconds in ("wait_max_s", "wait_p50_s", "gather_s"):
        assert both[seconds] == max(m[seconds] for m in mine), seconds
    assert both["batches_per_s"] == min(m["batches_per_s"] for m in mine)
    assert (both["hosts"], both["batches"]) == (2, 10)
    assert found[0]["rows"]["examples_requested"] == 40


def test_the_odd_one_out_is_named():
    said = {h: {"step": 5, "dataset": {"seq_len": 2048 if h != 1 else 4096}} for h in range(4)}
    assert host_differences(said) == ["dataset.seq_len: host 1 has 4096, the others 2048"]
    said[3]["step"] = 6
    said[2]["step"] = 7
    said[0]["more"] = True
    assert host_differences(said) == [
        "step: host 2 has 7, host 3 has 6, the others 5",
        "dataset.seq_len: host 1 has 4096, the others 2048",
        "more: host 0 has true, the others nothing",
    ]


OF_CONFIGS = (
    HOST
    + """
from headrace.config import load_config
from headrace.feed import hosts
usual_version = hosts.__version__
errors = []
for changes in options["cases"]:
    hosts.__version__ = changes.pop("version", usual_version)
    settings = {"seed": 0, "batch_size": 4, "seq_len": 64}
    components = {"web": {"cache": root + "/" + changes.pop("cache", "a")}}
    settings |= {"components": components, **changes}
    config = load_config(overrides=[f"{k}={json.dumps(value)}" for k, value in settings.items()])
    try:
        config.loader(Mesh(devices, ("data",))).iter_from_step(0).close()
        errors.append(None)
    except ConfigError as error:
        errors.append(str(error))
report(errors=errors)
"""
)
DIFFERENCES = [
    ({"seed": 1}, "seed: host 0 has 0, host 1 has 1. Start"),
    ({"seq_len": 32}, "seq_len: host 0 has 64, host 1 has 32. Start"),
    ({"cache": "b"}, 'components.web.cache: host 0 has "{root}/a", host 1 has "{root}/b"'),
    ({"version": "0.0.1"}, 'headrace: host 0 has "{version}", host 1 has "0.0.1". Start'),
    ({"prefetch_bytes": 1 << 28}, None),
]


def test_what_differs_is_said_in_the_fields_of_the_config(root):
    write_cache(
        root / "b", [[np.arange(64) + r for r in range(41)]], layout=CacheLayout("uint8", 8, 16)
    )
    cases = [changes for changes, _ in DIFFERENCES]
    one, other = run(OF_CONFIGS, root, {"cases": [{} for _ in cases]}, {"cases": cases})
    assert one == other
    for (changes, said), error in zip(DIFFERENCES, one["errors"], strict=True):
        if said is None:
            assert error is None, changes
        else:
            assert said.format(root=root, version=__version__) in error, changes
