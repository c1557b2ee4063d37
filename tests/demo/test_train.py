"""The program that ``headrace init`` writes: killed and stopped, it trains as if
nothing had been.
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.init import PROGRAM
from headrace.demo import train as program
from headrace.testing import tiny_cache

CONFIG = """
seq_len: 16
batch_size: 8
num_steps: 60
components:
  a: {cache: caches/a, weight: {linear: {0: 1, 60: 3}}}
  b: {cache: caches/b}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """What ``headrace init`` writes, with a smaller run."""
    for seed, name in enumerate("ab"):
        tiny_cache(tmp_path / "caches" / name, documents=300, seed=seed)
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / PROGRAM).write_text(Path(program.__file__).read_text())
    return tmp_path


def train(
    folder: Path, run: str, end: signal.Signals | None = None, after: str = ""
) -> tuple[int, str]:
    """Runs the program, ends it by a signal when it has printed ``after``; its status and what it
    printed.
    """
    command = [sys.executable, str(folder / PROGRAM), "--run", run, "--save-every", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if end is not None and line.startswith(after):
                process.send_signal(end)
                end = None
        return process.wait(), "".join(lines)


def losses(printed: str) -> dict[str, str]:
    return dict(re.findall(r"step +(\d+) of 60  loss ([\d.]+)", printed))


@pytest.mark.slow
def test_a_killed_and_a_stopped_run_go_on(folder):
    status, whole = train(folder, "runs/whole")
    assert status == 0
    assert list(losses(whole)) == ["10", "20", "30", "40", "50", "60"]
    killed, first = train(folder, "runs/parts", signal.SIGKILL, "step     20")
    stopped, second = train(folder, "runs/parts", signal.SIGTERM, "step     40")
    status, third = train(folder, "runs/parts")
    assert (killed, stopped, status) == (-signal.SIGKILL, 0, 0)
    assert "resumes from" in second
    assert "stopped and saved" in second
    assert losses(first) | losses(second) | losses(third) == losses(whole)
    assert {k: v for k, v in losses(second).items() if k in losses(first)}.items() <= losses(
        first
    ).items()
    assert (folder / "runs/parts/report.html").stat().st_size > 10_000
    assert len(list((folder / "runs/parts/checkpoints").iterdir())) == 2
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
