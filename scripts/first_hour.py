"""The README alone: from a clone to a run on a folder of texts that is killed, resumed and
reported.

    python3 scripts/first_hour.py FOLDER     a new folder, for the clone and the texts

Runs the commands of the README's section "Use it" in a fresh clone, with a folder of texts beside
it; kills training with SIGKILL after its first checkpoint, runs the same command again, and looks
for the report. Prints the seconds of each command. Exit status 1 if these are more than ten
commands or ten minutes. Needs a package index.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MOST_COMMANDS = 10
MOST_SECONDS = 600
FIRST_CHECKPOINT = "step     60"


def write_texts(folder: Path) -> None:
    """Two sources: stories in text files, and notes in JSONL."""
    (folder / "stories").mkdir(parents=True)
    (folder / "notes").mkdir()
    for k in range(40):
        lines = (
            f"In story {k}, at turn {n} of the wheel, the miller counted {k * n % 97} sacks."
            for n in range(300)
        )
        (folder / "stories" / f"{k}.txt").write_text("\n".join(lines))
    records = (
        f'{{"text": "Note {n}: the water stands {n * 7 % 90} hands high."}}' for n in range(3000)
    )
    (folder / "notes" / "all.jsonl").write_text("\n".join(records))


def readme_commands(readme: str) -> list[str]:
    """The shell commands of the README's section "Use it", one a line; ``&&`` joins several, which
    count each.
    """
    section = readme.partition("## Use it")[2].partition("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]


def run(
    command: str, environment: dict[str, str], kill_after: str | None = None
) -> tuple[float, int, str]:
    """Seconds, status and output of a command; with ``kill_after`` its process group is killed at
    that line.
    """
    began = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if kill_after is not None and line.startswith(kill_after):
                os.killpg(process.pid, signal.SIGKILL)
    return time.monotonic() - began, process.returncode, "".join(lines)


def main(folder: Path) -> int:
    """Runs all, prints what each took, and tells whether it was as it must be."""
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(folder)], check=True)
    write_texts(folder / "texts")
    install, *others = readme_commands((folder / "README.md").read_text())
    train = others[-1]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    os.chdir(folder)
    activated = f"cd {folder} && . .venv/bin/activate && "
    steps = [
        (install, f"cd {folder} && {install}", None),
        *((c, activated + c, None) for c in others[:-1]),
    ]
    steps += [
        (f"{train}   # kill -9", activated + train, FIRST_CHECKPOINT),
        (train, activated + train, None),
    ]
    seconds = 0.0
    status = 0
    output = ""
    for shown, command, kill_after in steps:
        took, status, output = run(command, environment, kill_after)
        seconds += took
        print(f"{took:6.1f} s  {shown}", flush=True)
        if status != (0 if kill_after is None else -signal.SIGKILL):
            print(output, f"status {status}", sep="\n")
            return 1
    count = 1 + sum(
        len(command.split(" && ")) for command in (install, *others, train)
    )  # 1: the clone
    report = next(folder.glob("*/runs/1/report.html"), None)
    print(f"{count} commands, {seconds:.0f} s; report: {report and report.stat().st_size} bytes")
    resumed = "resumes from" in output
    return (
        0
        if resumed and report is not None and count <= MOST_COMMANDS and seconds <= MOST_SECONDS
        else 1
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
