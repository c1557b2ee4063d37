"""Four real JAX processes: one sleeps, is killed, or fails. What the others say, and after how
long.
"""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.servers import free_port

pytestmark = pytest.mark.slow

HOSTS = 4
LOST_AFTER_S = 8
PROGRAM = """
import logging, os, signal, sys, time
import jax
from headrace import DataLoader, TokenSeqDataset
from headrace.errors import HostError
from headrace.feed import HostBarrier

root, address, what = sys.argv[1:4]
number, late, lost_after_s = int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
jax.distributed.initialize(address, 4, number)
loader = DataLoader(
    TokenSeqDataset(f"{root}/a", 8).shuffle(0), 8, host_barrier=HostBarrier(warn_after_s=2, lost_after_s=lost_after_s)
)
total = jax.jit(lambda batch: batch.tokens.sum())

def save_checkpoint():
    time.sleep(20)

began = time.time()
try:
    with loader.iter_from_step(5) as batches:
        for step, batch in enumerate(batches, start=5):
            jax.block_until_ready(total(batch))
            began = time.time()
            if (step, number) == (8, late):
                if what == "sleeps":
                    save_checkpoint()
                if what == "is killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "is frozen":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if what == "raises":
                    raise ValueError("the loss is nan")
finally:
    stats = loader.stats()
    print(f"AFTER {time.time() - began:.1f} STEP {step} LATE {stats.late_hosts} WAITED {stats.host_wait_s:.1f}")
    print(*(f"STALL {stall}" for stall in stats.stalls if stall.cause == "hosts"), sep="\\n", flush=True)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    tokens = [np.append((np.arange(7) * 3 + 5 * r) % 255, 255) for r in range(200)]
    write_cache(root / "a", [tokens], eos_id=255, layout=CacheLayout("uint8", 32, 2))
    return root


def run(root, what, late=2):
    """Of each host, after something befell host ``late``: exit status, what it printed and what it
    said.
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    address = f"127.0.0.1:{free_port()}"
    hosts = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(root),
                address,
                what,
                str(number),
                str(late),
                str(LOST_AFTER_S),
            ],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(HOSTS)
    ]
    try:
        outputs = {
            number: host.communicate() for number, host in enumerate(hosts) if number != late
        }
        hosts[late].send_signal(signal.SIGKILL if what == "is frozen" else 0)
        outputs[late] = hosts[late].communicate()
    finally:
        for host in hosts:
            host.kill()
    return [(host.returncode, *outputs[number]) for number, host in enumerate(hosts)]


def test_a_host_that_sleeps_delays_the_others_and_is_named(root):
    for number, (status, printed, log) in enumerate(run(root, "sleeps")):
        assert status == 0, log
        assert "STEP 24" in printed  # all go on to the end
        if number == 2:
            assert "LATE 0" in printed
            continue
        warnings = re.findall(
            r"WARNING headrace.feed.host_gate: (step 9 waits for \d+ s: host 2 .*)", log
        )
        assert len(warnings) >= 3, log  # after 2, 4 and 8 s
        assert re.fullmatch(
            r"step 9 waits for \d+ s: host 2 \(.*\) has not asked for step 9 for \d+ s, at .* in save_checkpoint",
            warnings[-1],
        )
        assert "LATE 1" in printed
        assert float(re.search(r"WAITED (\S+)", printed)[1]) >= 18
        assert re.search(r"STALL step 9 .*waited \d+ ms: hosts \(.*in save_checkpoint\)", printed)


@pytest.mark.parametrize(("what", "late"), [("is killed", 2), ("is frozen", 2), ("is frozen", 0)])
def test_a_host_that_is_dead_is_named_by_all_and_they_end(root, what, late):
    """A killed one closes its connections; one that is frozen, or whose machine is gone, only keeps
    silent, and with the first one the store of all entries does.
    """
    hosts = run(root, what, late)
    assert hosts[late][0] == -9
    for number in {0, 1, 2, 3} - {late}:
        status, printed, log = hosts[number]
        assert status == 1, log  # no abort of JAX's: that would be -6, with a stack dump
        assert "Check failure stack trace" not in log
        error = re.findall(r"headrace.errors.HostError: (.*)", log)[-1]
        shows = (
            # whoever notices first: the watch, or the gate, whose neighbour's connection closed
            r"(at 127.0.0.1, is gone: its connections are closed"
            r"|has shown no sign of life for \d+ s and its connection is closed)"
            if what == "is killed"
            else r"has shown no sign of life for \d+ s"
        )
        assert re.match(rf"hosts: host {late} \(.*\), process \w+,? {shows}", error)
        assert "STEP 8" in printed
        if what == "is frozen":
            assert float(re.search(r"AFTER (\S+)", printed)[1]) >= LOST_AFTER_S
            assert "WARNING headrace.feed.host_gate: step 9 waits for" in log


def test_a_host_that_fails_tells_the_others_why(root):
    hosts = run(root, "raises")
    assert "ValueError: the loss is nan" in hosts[2][2]
    for number, (status, _, log) in enumerate(hosts):
        assert status == 1, log
        assert "exception not rethrown" not in log
        if number != 2:
            error = re.findall(r"headrace.errors.HostError: (.*)", log)[-1]
            assert re.match(
                r"hosts: host 2 \(.*\) failed: ValueError: the loss is nan. See that host's log",
                error,
            )
