"""Real JAX processes of which one is killed: the others name it and end, wherever they are."""

import os
import random
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.feed import HostBarrier
from headrace.store import CacheLayout
from headrace.testing import write_cache
from headrace.testing.servers import free_port

HOSTS = 4
PROGRAM = """
import atexit, logging, os, signal, sys, threading, time

log = logging.getLogger("program")
atexit.register(log.info, "ended")  # the last thing that the program does

import jax
import jax.numpy as jnp
from headrace import DataLoader, TokenSeqDataset
from headrace.feed import HostBarrier

root, address, number, hosts, steps, waits, end_after_s, dies = sys.argv[1:9]
logging.basicConfig(
    format="%(created)f %(levelname)s %(name)s: %(message)s", level=logging.INFO, stream=sys.stdout
)
jax.distributed.initialize(address, int(hosts), int(number))
barrier = HostBarrier(end_after_s=float(end_after_s))
loader = DataLoader(TokenSeqDataset(f"{root}/a", 8).shuffle(0), 8, host_barrier=barrier)

@jax.jit
def train(batch):  # hundreds of collectives, one after the other
    total = lambda _, x: x + 1e-9 * x.sum()
    return jax.lax.fori_loop(0, 300, total, batch.tokens.astype(jnp.float32)).sum()

with loader.iter_from_step(0) as batches:
    for step, batch in zip(range(int(steps)), batches):
        if dies == f"{number} at {step}":
            os.kill(os.getpid(), signal.SIGKILL)  # all others have this batch, too
        try:
            jax.block_until_ready(train(batch))
        except Exception:
            if waits == "raises":
                raise
            threading.Event().wait()  # as a collective of GPUs does
        log.info("step %d is done", step)
        if step % 4 == 3:
            time.sleep(0.5)  # a checkpoint
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    tokens = [np.append((np.arange(7) * 3 + 5 * r) % 255, 255) for r in range(20_000)]
    write_cache(root / "a", [tokens], eos_id=255, layout=CacheLayout("uint8", 32, 2))
    return root


def start(root, hosts=HOSTS, steps=2000, waits="raises", end_after_s=5.0, dies=""):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    address = f"127.0.0.1:{free_port()}"
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, str(root), address, str(number)),
                *(str(hosts), str(steps), waits, str(end_after_s), dies),
            ],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(hosts)
    ]


def finish(processes):
    """What the processes say until they end."""
    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(lambda process: process.communicate()[0], processes))
    finally:
        for process in processes:
            process.kill()


def kill(root, culprit, after_s, **settings):
    """Kills a process some time after its fourth step. When that was, and what the others say."""
    processes = start(root, **settings)
    try:
        while "step 3 is done" not in (line := processes[culprit].stdout.readline()):
            assert line
        time.sleep(after_s)
        killed_at = time.time()
        processes[culprit].kill()
    except BaseException:
        for process in processes:
            process.kill()
        raise
    logs = finish(processes)
    return processes, killed_at, logs


def check_named(log, process, culprit):
    """A log names the culprit, in a line of the watch or in HostError, and nobody else.

    A watch says nothing of a process that is killed before it connected to it, in its first second.
    """
    watched = re.findall(r" host (\d+) \((.+?)\), process (\d+) at 127.0.0.1, is gone", log)
    raised = re.findall(r"HostError: hosts: host (\d+) \((.+?)\), process (\d+)", log)
    assert {*watched, *raised} == {(str(culprit), socket.gethostname(), str(process.pid))}, log
    assert set(re.findall(r"HostError: hosts: host (\d+) ", log)) <= {str(culprit)}, log


def test_a_killed_process_is_named_and_the_others_end_while_they_wait_for_it(root):
    processes = start(root, waits="waits", end_after_s=0.5, dies="2 at 6")
    logs = finish(processes)
    for number in {0, 1, 3}:
        check_named(logs[number], processes[2], 2)
        assert processes[number].returncode == 1
        assert "this process ends, because host 2 is gone. Its program was at" in logs[number]
        assert "Check failure stack trace" not in logs[number]


def test_the_end_of_a_job_is_no_death(root):
    processes = start(root, hosts=2, steps=5)
    for process, log in zip(processes, finish(processes), strict=True):
        assert process.returncode == 0, log
        assert "is gone" not in log
        assert "program: ended" in log


@pytest.mark.parametrize(
    "attempt",
    [pytest.param(k, marks=pytest.mark.slow if k < 8 else pytest.mark.soak) for k in range(20)],
)
def test_a_process_that_is_killed_at_any_moment_is_named_within_15_seconds(root, attempt):
    chance = random.Random(attempt)
    culprit = attempt % HOSTS
    waits = chance.choice(["raises", "waits"])
    after_s = chance.uniform(0, 3)
    processes, killed_at, logs = kill(root, culprit, after_s, waits=waits)
    for number in set(range(HOSTS)) - {culprit}:
        check_named(logs[number], processes[culprit], culprit)
        assert processes[number].returncode in ((1, -6) if culprit == 0 else (1,)), logs[number]
        ended_at = max(float(moment) for moment in re.findall(r"^(\d+\.\d+) ", logs[number], re.M))
        print(f"host {number} of {culprit} ({waits}): {ended_at - killed_at:.1f} s")
        assert ended_at - killed_at < 15


def test_the_time_that_a_program_gets_is_checked():
    assert HostBarrier(end_after_s=None).end_after_s is None
    with pytest.raises(ConfigError) as refusal:
        HostBarrier(end_after_s=-1)
    assert refusal.value.field == "host_barrier.end_after_s"
