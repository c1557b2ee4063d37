"""The GRPO example learns; and killed at random moments, it trains on each prompt exactly once."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import DataLoader
from headrace.report.run_records import read_records
from headrace_posttrain import RLDataset, RolloutStore

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "grpo_tiny.py"
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_tiny", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_once(history, steps):
    """Every position up to the last is in one step: trained on, or left out."""
    assert [h["step"] for h in history] == list(range(steps))
    used = [p for h in history for p in [*h["trained"], *h["left_out"]]]
    assert sorted(used) == list(range(len(used)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_rises(example, seed):
    # measured over seeds 0 to 2: from 0.10 .. 0.18 to 0.85 .. 0.95; chance is 0.125
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        history = example.run(Path(folder), steps=24, seed=seed, quiet=True)
    check_once(history, 24)
    first, last = (np.mean([h["reward"] for h in part]) for part in (history[:3], history[-3:]))
    assert first < 0.3
    assert last > 0.55
    assert last > first + 0.35


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gspo", "cispo"])
def test_the_reward_rises_with_several_updates_a_batch(example, loss):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        history = example.run(Path(folder), steps=16, loss=loss, updates=2, quiet=True)
    first, last = (np.mean([h["reward"] for h in part]) for part in (history[:3], history[-3:]))
    assert last > first + 0.25


@pytest.mark.slow
def test_a_run_that_stops_goes_on_as_if_nothing_had_been(example):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        whole = example.run(Path(folder) / "whole", steps=4, quiet=True)
        example.run(Path(folder) / "parts", steps=2, quiet=True)
        assert example.run(Path(folder) / "parts", steps=4, quiet=True) == whole


def run_killed(example, kills, seed):
    """Starts the example again and again, kills it at random moments after its first step, and lets
    it end.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        steps = 3 * kills + 3
        slow = ["--learning-rate", "0.001"]  # the task is not solved before the last step
        command = [
            sys.executable,
            str(EXAMPLE),
            "--folder",
            f"{folder}/killed",
            "--seed",
            "5",
            *slow,
            "--steps",
        ]
        cache = {
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        environment = {**os.environ, **cache}
        subprocess.run([*command, "1"], check=True, stdout=subprocess.DEVNULL, env=environment)
        for _ in range(kills):
            with subprocess.Popen(
                [*command, str(steps)], stdout=subprocess.PIPE, env=environment
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()  # it is at work: wait no longer than a few steps take
                time.sleep(rng.uniform(0, 0.12))
                assert process.poll() is None  # it is killed at work
                process.kill()
        subprocess.run(
            [*command, str(steps)], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        _, _, history = example.restore(Path(folder) / "killed", 5)
        check_once(history, steps)
        assert history == example.run(
            Path(folder) / "calm", steps=steps, seed=5, learning_rate=0.001, quiet=True
        )


@pytest.mark.slow
def test_killed_at_random_moments_each_prompt_is_used_once(example):
    run_killed(example, kills=3, seed=0)


@pytest.mark.slow
def test_two_processes_learn_and_after_a_kill_the_batches_are_those_of_the_log(example):
    """Measured: the reward goes from .10 to .9 in 24 steps, as in one process; 60 s of CPU."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        folder = Path(name) / "run"
        options = ["--folder", str(folder), "--steps", "24", "--processes", "2", "--keep-rollouts"]
        cache = {
            "JAX_COMPILATION_CACHE_DIR": f"{name}/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        cache |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}  # one device each
        started: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "env": {**os.environ, **cache},
            "start_new_session": True,
        }
        for is_killed in (True, False):
            with subprocess.Popen([sys.executable, str(EXAMPLE), *options], **started) as run:
                assert run.stdout is not None
                try:
                    while is_killed and not run.stdout.readline().startswith(b"step   9"):
                        assert run.poll() is None
                    if not is_killed:
                        run.communicate(timeout=240)
                finally:
                    if run.poll() is None:
                        os.killpg(
                            run.pid, signal.SIGKILL
                        )  # all of it at once, as a machine that fails
            assert run.returncode == (-signal.SIGKILL if is_killed else 0)
        _, _, history = example.restore(folder, 0)
        check_once(history, 24)
        rewards = [entry["reward"] for entry in history]
        assert np.mean(rewards[:3]) < 0.25  # chance is .125
        assert np.mean(rewards[-3:]) > 0.8
        with RolloutStore(folder / "rollouts", follow=True) as log:
            replay = DataLoader(RLDataset(example.PROMPTS, None, example.settings(0, 0), store=log))
            batches = [int(example.checksum(replay.batch_at(step))) for step in range(24)]
            assert batches == [entry["batch"] for entry in history]


@pytest.mark.slow
def test_a_policy_that_is_one_update_behind_learns_too(example):
    """How fast depends on which groups are ready in time, so on the machine: there are steps enough."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        history = example.run(Path(folder), steps=30, max_staleness=1, quiet=True)
        figures = read_records(folder).figures
    # Groups are taken as they are ready: at the end, some before the last one are still under way.
    assert [h["step"] for h in history] == list(range(30))
    used = [p for h in history for p in [*h["trained"], *h["left_out"]]]
    under_way = set(range(max(used))) - set(used)
    assert len(set(used)) == len(used)
    assert len(under_way) < len(history[-1]["trained"])
    assert all(p > max(history[-3]["trained"]) for p in under_way)
    assert figures["rollout/staleness_max"][1].max() == 1
    assert figures["train/policy_loss"][0].tolist() == list(range(30))
    first, last = (np.mean([h["reward"] for h in part]) for part in (history[:3], history[-3:]))
    assert last > first + 0.2


@pytest.mark.soak
def test_killed_twenty_times(example):
    run_killed(example, kills=20, seed=1)
