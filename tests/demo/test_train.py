"""The program that ``headrace init`` writes: killed and stopped, it trains as if
nothing had been.
"""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.cli.init import PROGRAM
from headrace.demo import train as program
from headrace.testing import tiny_cache
from headrace.testing.servers import free_port

CONFIG = """
seq_len: 16
batch_size: 8
num_steps: 60
components:
  a: {cache: caches/a, weight: {linear: {0: 1, 60: 3}}, validation: 12}
  b: {cache: caches/b, validation: 4}
"""


ONE_CPU = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


@pytest.fixture
def folder(tmp_path) -> Path:
    """What ``headrace init`` writes, with a smaller run."""
    for seed, name in enumerate("ab"):
        tiny_cache(tmp_path / "caches" / name, documents=300, seed=seed)
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / PROGRAM).write_text(Path(program.__file__).read_text())
    return tmp_path


def train(
    folder: Path, run: str, end: signal.Signals | None = None, after: str = "", processes: int = 1
) -> tuple[int, str]:
    """Runs the program, ends its processes by a signal when the first has printed ``after``; the
    status and what it printed.
    """
    command = [sys.executable, str(folder / PROGRAM), "--run", run, "--save-every", "5"]
    if processes > 1:
        command += ["--distributed", f"localhost:{free_port()}", str(processes)]
    numbers = [[str(k)] for k in range(processes)] if processes > 1 else [[]]
    started = [
        subprocess.Popen([*command, *number], env=ONE_CPU, stdout=subprocess.PIPE, text=True)
        for number in numbers
    ]
    assert started[0].stdout is not None
    lines: list[str] = []
    for line in started[0].stdout:
        lines.append(line)
        if end is not None and line.startswith(after):
            for process in started:
                process.send_signal(end)
            end = None
    for process in started:
        process.communicate()
    (status,) = {process.returncode for process in started}
    return status, "".join(lines)


def figures(run: Path) -> dict[tuple[int, str], float]:
    """What the program logged, by step and name."""
    lines = (run / "stats/host-00000.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if line["kind"] == "figures"]
    return {(one["step"], name): x for one in logged for name, x in one["figures"].items()}


def losses(printed: str) -> dict[str, str]:
    return dict(re.findall(r"step +(\d+) of 60  loss ([\d.]+)", printed))


@pytest.mark.slow
def test_fewer_steps_than_are_done_are_refused_and_change_nothing(folder: Path):
    def run(steps: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(folder / PROGRAM), "--run", "runs/fewer"]
        typed = [*command, "--steps", str(steps)]
        return subprocess.run(typed, env=ONE_CPU, capture_output=True, text=True)

    assert run(3).returncode == 0
    lock = (folder / "runs/fewer/lock.json").read_bytes()
    refused = run(2)
    assert (refused.returncode, "num_steps = 2: 3 are done" in refused.stderr) == (1, True)
    assert (folder / "runs/fewer/lock.json").read_bytes() == lock
    more = re.search(r"Give (\d+) or more", refused.stderr)
    assert more is not None
    assert run(int(more[1])).returncode == 0


def test_it_imports_nothing_of_the_demo():
    assert "headrace.demo" not in Path(program.__file__).read_text()


@pytest.mark.slow
def test_two_processes_train_as_one_and_fewer_steps_can_be_asked_for(folder):
    address = f"localhost:{free_port()}"
    command = [sys.executable, str(folder / PROGRAM), "--run", "runs/two", "--steps", "20"]
    others = [
        subprocess.Popen([*command, "--distributed", address, "2", f"{k}"], env=ONE_CPU)
        for k in (0, 1)
    ]
    assert [one.wait() for one in others] == [0, 0]
    alone = [*command[:3], "runs/one", *command[4:]]
    subprocess.run(alone, env=ONE_CPU, check=True)
    two = figures(folder / "runs/two")
    one = figures(folder / "runs/one")
    assert (
        [*two]
        == [*one]
        == [(9, "train/loss"), *((19, n) for n in ("train/loss", "eval/a", "eval/b"))]
    )
    assert [*two.values()] == pytest.approx([*one.values()], rel=1e-3)
    resumed = subprocess.run(
        [*command[:-1], "30"], env=ONE_CPU, stdout=subprocess.PIPE, text=True, check=True
    )
    assert resumed.stdout.startswith("resumes from step 20, runs/two/checkpoints/20")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_and_a_stopped_run_go_on(folder, processes):
    train_on = partial(train, folder, processes=processes)
    status, whole = train_on("runs/whole")
    assert status == 0
    assert list(losses(whole)) == ["10", "20", "30", "40", "50", "60"]
    killed, first = train_on("runs/parts", signal.SIGKILL, "step     20")
    stopped, second = train_on("runs/parts", signal.SIGTERM, "step     40")
    status, third = train_on("runs/parts")
    assert (killed, stopped, status) == (-signal.SIGKILL, 0, 0)
    assert "resumes from" in second
    assert "stopped and saved" in second
    assert losses(first) | losses(second) | losses(third) == losses(whole)
    assert {k: v for k, v in losses(second).items() if k in losses(first)}.items() <= losses(
        first
    ).items()
    assert (folder / "runs/parts/report.html").stat().st_size > 10_000
    # on a slow machine, the run may be stopped behind step 55
    stopped_at = max(55, int(re.search(r"resumes from step (\d+)", third).group(1)))
    kept = {p.name for p in (folder / "runs/parts/checkpoints").iterdir()}
    assert kept == {f"{stopped_at}", "60"}
    logged = figures(folder / "runs/parts")
    assert {name for _, name in logged} == {"train/loss", "eval/a", "eval/b"}
    assert logged == figures(folder / "runs/whole")
    (folder / "run.yaml").write_text(CONFIG.replace("seq_len: 16", "seq_len: 8"))
    refused = subprocess.run(
        [sys.executable, str(folder / PROGRAM), "--run", "runs/parts"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert refused.stderr.startswith("error config: the run has another config: seq_len: 16 -> 8.")
    assert "Traceback" not in refused.stderr
