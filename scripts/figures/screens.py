"""What commands print on a terminal, as pictures for the docs: 80 and 120 columns wide.

python scripts/figures/screens.py docs/images
"""

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
from pathlib import Path
from pydoc_data.topics import topics

from rich.console import Console
from rich.text import Text

PREPARE = ("headrace init texts --output .",)
BOTH = (80, 120)
SCREENS = {
    "init": ("headrace init texts --output first", BOTH),
    "check": ("headrace config check run.yaml", BOTH),
    "inspect": ("headrace cache inspect caches/docs --samples 1", (80,)),
    "simulate_hosts": ("headrace config simulate run.yaml --hosts 1,4,16", BOTH),
    "cat": ("headrace run cat run.yaml --step 20 batch_size=4", (120,)),
    "cat_row": ("headrace run cat run.yaml --step 20 --row 1 batch_size=4", BOTH),
}


def printed(command: str, columns: int, folder: str) -> str:
    """What a command prints on a terminal of so many columns, with its colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("NO_COLOR", "COLUMNS"):
        env.pop(name, None)
    with subprocess.Popen(
        shlex.split(command), stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env
    ) as process:
        os.close(slave)
        chunks: list[bytes] = []
        while True:
            try:
                chunk = os.read(master, 65_536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(master)
    assert process.returncode in (0, 1), b"".join(chunks).decode()
    return b"".join(chunks).decode().replace("\r\n", "\n")


def at_rest(output: str) -> str:
    """The lines as they stand at the end, after bars have come and gone; colours are kept."""
    lines = [""]
    row = 0
    for token in re.split(r"(\r|\n|\x1b\[\d*[AK]|\x1b\[\?25[hl])", output):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token.endswith("A") and token.startswith("\x1b["):
            row = max(row - int(token[2:-1] or 1), 0)
        elif token == "\r" or token.endswith("K"):
            lines[row] = "" if token.endswith("K") else lines[row]
        elif not token.startswith("\x1b[?25"):
            lines[row] += token
    return "\n".join(lines)


def drawn(command: str, columns: int, output: str) -> str:
    """A command and what it printed, as SVG."""
    console = Console(record=True, width=columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.assemble(("$ ", "bold green"), command))
    console.print(Text.from_ansi(output), end="", overflow="fold")
    svg = console.export_svg(title="headrace", unique_id=f"t{columns}")
    return re.sub(
        r"@font-face \{.*?\}", "", svg, flags=re.DOTALL
    )  # fonts of the reader, not of the web


def main(folder: str) -> None:
    """Draws every screen as an SVG file."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("code", "docs"):
            Path(place, "texts", name).mkdir(parents=True)
        for source in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py")):
            Path(place, "texts", "code", source.name).write_text(source.read_text())
        for name, text in list(topics.items())[:30]:
            Path(place, "texts", "docs", f"{name}.txt").write_text(text)
        for command in PREPARE:
            printed(command, 80, place)
        for name, (command, widths) in SCREENS.items():
            for columns in widths:
                shutil.rmtree(Path(place, "first"), ignore_errors=True)
                path = Path(folder, f"screen_{name}_{columns}.svg")
                path.write_text(drawn(command, columns, at_rest(printed(command, columns, place))))


if __name__ == "__main__":
    main(sys.argv[1])
