"""A process that follows another one's log, when that one is gone, is not there, or
stands still.
"""

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from headrace import DataLoader, HeadraceError
from headrace.errors import HostError
from headrace.store import lease as lease_module
from headrace_posttrain import RLDataset, RLSettings, RolloutStore

LEADER = """
import sys
import numpy as np
from headrace_posttrain import RLDataset, RLSettings, RolloutStore, ScoredGroup

class Sampler:
    def sample_and_score(self, prompt):
        return ScoredGroup([np.append(prompt.tokens, k) for k in range(2)], np.array([0.0, 1.0]), 1)

store = RolloutStore(sys.argv[1])
dataset = RLDataset([np.array([1])] * 9, Sampler(), RLSettings(8, 1, seed=0, rows=8, max_staleness=9), store=store)
for step in range(2):
    dataset.next_batch(step)
print("made", flush=True)
sys.stdin.read()  # until it is killed, or told to end
store.close()
"""


def follower(folder):
    settings = RLSettings(8, 1, seed=0, rows=8, max_staleness=9)
    return RLDataset([np.array([1])] * 9, None, settings, store=RolloutStore(folder, follow=True))


@pytest.mark.parametrize(("is_killed", "through_loader"), [(True, True), (False, False)])
def test_a_process_whose_leader_is_gone_ends_with_an_error_that_names_it(
    tmp_path, monkeypatch, is_killed, through_loader
):
    monkeypatch.setattr(lease_module, "LOOK_S", 0.02)
    monkeypatch.setattr(lease_module, "GONE_S", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as leader:
        try:
            assert leader.stdout is not None
            assert leader.stdout.readline()
            dataset = follower(tmp_path)
            dataset.next_batch(1)
            for _ in range(5):  # it lives: it is waited for
                dataset.store.check_leader()
                time.sleep(0.05)
            if is_killed:
                leader.kill()
            else:
                leader.communicate(timeout=60)
        finally:
            leader.kill()
    said = rf"rollouts = .*nobody who makes steps.*process {leader.pid} on .*Start the run again"
    if through_loader:
        with (
            DataLoader(dataset).iter_from_step(2) as batches,
            pytest.raises(HeadraceError, match=said),
        ):
            next(batches)
    else:
        with pytest.raises(HostError, match=said):
            dataset.next_batch(2)


def test_a_leader_that_never_comes_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_module, "NEVER_S", 0.1)
    with RolloutStore(tmp_path):
        pass
    with pytest.raises(HostError, match="Start the process that makes the steps"):
        follower(tmp_path).next_batch(0)


def test_a_lease_of_another_machine_that_is_not_renewed_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_module, "LOOK_S", 0.0)
    record = lease_module.LeaseRecord("a", "elsewhere", 7, "boot", 0.0, 0.0, 0, 0.1)
    watch = lease_module.LeaseWatch(str(tmp_path))
    for beats in range(3):
        (tmp_path / lease_module.LEASE_NAME).write_bytes(replace(record, beats=beats).to_bytes())
        assert watch.absence_s() == 0
    while watch.absence_s() <= watch.limit_s:
        time.sleep(0.01)
    assert watch.limit_s == 0.1
    assert watch.holder is not None
    assert watch.holder.who == "process 7 on elsewhere"
