"""Hosts whose mixture learns decide the same, killed and resumed on others."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from headrace.run import RunLock
from headrace.testing import tiny_cache

PROGRAM = Path(__file__).with_name("learned.py")


def lines(hosts: list[subprocess.Popen[str]]) -> set[str]:
    """The rows that all of them print until they end; a line that a kill cut is left out."""
    printed = "".join(host.communicate()[0].rpartition("\n")[0] + "\n" for host in hosts)
    return {line for line in printed.split("\n") if "\t" in line}


@pytest.mark.slow
def test_hosts_decide_the_same_and_go_on_on_others(tmp_path: Path, start_hosts):
    start = partial(start_hosts, PROGRAM, stderr=subprocess.DEVNULL)
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    for root in (whole, killed):
        for seed, name in enumerate("abc"):
            tiny_cache(root / name, documents=120, seed=seed)
    reference = lines(start(whole, 1))
    given: set[str] = set()
    for hosts, rows in ((2, 70), (4, 30)):
        started = start(killed, hosts)
        victim = started[-1]
        assert victim.stdout is not None
        begun = [victim.stdout.readline() for _ in range(rows)]
        assert all(begun)
        for host in started[::-1]:
            host.send_signal(signal.SIGKILL)
        given |= {line.strip("\n") for line in begun if "\t" in line} | lines(started)
    given |= lines(last := start(killed, 2))
    assert [host.returncode for host in last] == [0, 0]
    assert given == reference
    lock = RunLock.load(str(killed / "run"))
    assert lock is not None
    assert lock.config is not None
    decided = [one["step"] for one in lock.config["amendments"]]
    assert decided == list(range(10, 100, 10))
    uninterrupted = RunLock.load(str(whole / "run"))
    assert uninterrupted is not None
    assert uninterrupted.config is not None
    assert lock.config["amendments"] == uninterrupted.config["amendments"]
