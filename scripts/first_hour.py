"""The README alone: from a clone to a run on a folder of texts that is killed, resumed, changed and
reported.

    python3 scripts/first_hour.py FOLDER     a new folder, for the clone and the texts

Runs the commands of the README's section "Use it" in a fresh clone, with a folder of texts beside
it. Training is killed with SIGKILL after its first checkpoint, and again after it was resumed. Then
a weight is changed, documents are appended, a source is added and a document removed; the run goes
on to its end, evaluates, and is reported. The edits of ``run.yaml`` are made as a user makes them,
with the line that ``init --append`` prints. Prints the seconds of each command. Exit status 1 if
something is not as it should be, or if these are more than 15 commands or ten minutes. Needs a
package index.
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
MOST_COMMANDS = 15
MOST_SECONDS = 600
FIRST_CHECKPOINT = "step     60"
SECOND_CHECKPOINT = "step    110"


def write_texts(folder: Path) -> None:
    """Two sources: stories in text files, and notes in JSONL."""
    (folder / "docs").mkdir(parents=True)
    (folder / "notes").mkdir()
    for k in range(40):
        lines = (
            f"In story {k}, at turn {n} of the wheel, the miller counted {k * n % 97} sacks."
            for n in range(300)
        )
        (folder / "docs" / f"{k}.txt").write_text("\n".join(lines))
    records = (
        f'{{"text": "Note {n}: the water stands {n * 7 % 90} hands high."}}' for n in range(3000)
    )
    (folder / "notes" / "all.jsonl").write_text("\n".join(records))


def write_more(folder: Path) -> None:
    """One more story, and a source of letters."""
    (folder / "letters").mkdir()
    for name in ("docs/more", "letters/first", "letters/second"):
        lines = (f"Dear miller, in year {n} {name} was {n % 13} pages long." for n in range(400))
        (folder / f"{name}.txt").write_text("\n".join(lines))


def edit(config: Path, printed: str) -> None:
    """Changes a weight, and adds the line of a new source that ``init --append`` printed."""
    line = printed.partition("Add to the components of first/run.yaml:\n")[2].splitlines()[0]
    text = re.sub(r"(notes: .*weight: )[\d.]+", r"\g<1>0.5", config.read_text())
    config.write_text(f"{text}{line}\n")


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
    install, init, train, *changes = readme_commands((folder / "README.md").read_text())
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    steps = [(install, None), (init, None)]
    steps += [(train, FIRST_CHECKPOINT), (train, SECOND_CHECKPOINT)]
    steps += [(command, None) for command in changes]
    seconds = 0.0
    printed: dict[str, str] = {}
    where = folder
    for command, kill_after in steps:
        activated = "" if command == install else f". {folder}/.venv/bin/activate && "
        took, status, output = run(f"cd {where} && {activated}{command}", environment, kill_after)
        seconds += took
        print(f"{took:6.1f} s  {command}{'   # kill -9' if kill_after else ''}", flush=True)
        if status != (0 if kill_after is None else -signal.SIGKILL):
            print(output, f"status {status}", sep="\n")
            return 1
        if command.startswith("cd "):  # for the commands that follow, too
            where = folder / command.split()[1]
        program = " ".join(command.rpartition(" && ")[2].split()[:3])
        printed[program] = output
        if command == init:
            write_more(folder / "texts")
        if "--append" in command:
            edit(folder / "first" / "run.yaml", output)
    # 1: the clone
    count = 1 + sum(len(command.split(" && ")) for command, _ in steps)
    report = (folder / "first/report.html").read_text()
    print(f"{count} commands, {seconds:.0f} s; report: {len(report)} characters")
    last = printed["python train.py --steps"]
    checks = {
        "resumed": "resumes from step 50" in printed["python first/train.py"],
        "resumed once more": "resumes from step 100" in last,
        "changed, appended and removed": all(
            part in printed["headrace run amend"] for part in ("notes: 0.5", "letters:", "docs: 3")
        ),
        "evaluated on the new source": "letters" in last.partition("held-out loss")[2],
        "reported": "letters" in report,
        "in few commands": count <= MOST_COMMANDS,
        "soon": seconds <= MOST_SECONDS,
    }
    for name, is_so in checks.items():
        print(f"{'ok  ' if is_so else 'FAIL'} {name}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
