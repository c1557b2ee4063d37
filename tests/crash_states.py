"""What a file system may leave of a program's writes when the power fails: recorded by strace, made
again as folders.

After ALICE (Pillai et al., "All file systems are not created equal", OSDI 2014). The model owes a
program only what it synced: bytes of a file by ``fsync`` of it, names by ``fsync`` of their folder.
Of the rest any part may be there: a file's writes up to any point (its last one half, or as zeros),
creations, renames and deletions each by itself.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "openat,open,creat,write,pwrite64,writev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"
CALLS += ",mkdir,mkdirat,rmdir,lseek"
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
_LINE = re.compile(r"^(\d+) +(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)(<.*>)?", re.DOTALL)
_MARK = b"MARK "


@dataclass(frozen=True)
class Op:
    """One change. ``file``: which file or folder (a number); ``folder``, ``name``: where its name
    is.
    """

    kind: str  # create, write, cut, rename, remove, sync, mark
    file: int = -1
    folder: int = -1
    name: str = ""
    source: tuple[int, str] = (-1, "")  # of a rename
    offset: int = 0
    data: bytes = b""


@dataclass
class Recorder:
    """Turns calls into operations, with a tree of its own to know which file a path means."""

    root: str
    ops: list[Op] = field(default_factory=list)
    nodes: list[dict[str, int] | None] = field(default_factory=lambda: [{}])  # None: a file
    at: dict[str, int] = field(default_factory=dict)  # offset of each open file descriptor

    def place(self, path: str) -> tuple[int, str] | None:
        """The folder of a path and its name there; None outside the root."""
        if not path.startswith(self.root + "/"):
            return None
        *above, name = path[len(self.root) + 1 :].split("/")
        folder = 0
        for part in above:
            folder = (self.nodes[folder] or {}).get(part, -1)
            if folder < 0:
                return None
        return folder, name

    def find(self, path: str) -> int:
        """The file or folder at a path; -1 if there is none below the root."""
        if path == self.root:
            return 0
        place = self.place(path)
        return -1 if place is None else (self.nodes[place[0]] or {}).get(place[1], -1)

    def create(self, path: str, node: dict[str, int] | None) -> None:
        place = self.place(path)
        if place is not None and self.find(path) < 0:
            self.nodes.append(node)
            folder, name = place
            self.nodes[folder][name] = len(self.nodes) - 1
            kind = "create" if node is None else "mkdir"
            self.ops.append(Op(kind, len(self.nodes) - 1, folder, name))

    def remove(self, path: str) -> None:
        place = self.place(path)
        if place is not None and self.find(path) >= 0:
            self.ops.append(Op("remove", self.nodes[place[0]].pop(place[1]), *place))

    def rename(self, source: str, target: str) -> None:
        old = self.place(source)
        new = self.place(target)
        if old is not None and new is not None:
            file = self.nodes[old[0]].pop(old[1])
            self.nodes[new[0]][new[1]] = file
            self.ops.append(Op("rename", file, *new, source=old))


def unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def record(program: str, root: Path, *arguments: str) -> list[Op]:
    """The operations of a Python program below a folder, which must be empty when it starts.

    The program prints lines that begin with ``MARK``; they come as operations of their own.
    """
    trace = root.parent / "trace"
    command = [
        "strace",
        "-f",
        "-y",
        "-xx",
        "-s",
        str(1 << 24),
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
    ]
    command += ["-o", str(trace), sys.executable, "-c", program, str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recorder = Recorder(str(root))
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        pid, text = _LINE.match(line).groups()
        if text.endswith("<unfinished ...>"):
            begun[pid] = text[: -len("<unfinished ...>")].rstrip()
            continue
        if text.startswith("<... "):
            text = begun.pop(pid) + text.split("resumed>", 1)[1]
        if call := _CALL.match(text):
            name, given, result, where = call.groups()
            if int(result) >= 0:
                _apply(recorder, name, given, int(result), where or "")
    trace.unlink()
    return recorder.ops


def _paths(text: str) -> list[str]:
    """Paths among arguments, made whole by the folder that comes before them."""
    found = []
    for folder, path in re.findall(
        r'(?:\w+<((?:\\x[0-9a-f]{2})*)>, )?"((?:\\x[0-9a-f]{2})*)"', text
    ):
        name = unescaped(path).decode()
        found.append(name if name.startswith("/") else f"{unescaped(folder).decode()}/{name}")
    return found


def _apply(to: Recorder, name: str, arguments: str, result: int, where: str) -> None:
    descriptor = re.match(r"(\d+)<((?:\\x[0-9a-f]{2})*)", arguments)
    path = unescaped(descriptor[2]).decode().removesuffix(" (deleted)") if descriptor else ""
    if name in ("open", "openat", "creat"):
        _open(to, unescaped(where[1:-1]).decode(), arguments, result)
    elif name in ("mkdir", "mkdirat"):
        to.create(_paths(arguments)[0], {})
    elif name in ("unlink", "unlinkat", "rmdir"):
        to.remove(_paths(arguments)[0])
    elif name.startswith("rename"):
        to.rename(*_paths(arguments))
    elif name == "lseek":
        if to.at.get(f"{descriptor[1]}{path}") != -1:  # which is always at the end
            to.at[f"{descriptor[1]}{path}"] = result
    elif name in ("fsync", "fdatasync"):
        if to.find(path) >= 0:
            to.ops.append(Op("sync", to.find(path)))
    elif name == "ftruncate":
        if to.find(path) > 0:
            to.ops.append(Op("cut", to.find(path), offset=int(arguments.rsplit(", ", 1)[1])))
    else:
        _write(to, name, arguments, result, f"{descriptor[1]}{path}", path)


def _open(to: Recorder, path: str, arguments: str, descriptor: int) -> None:
    if "O_CREAT" in arguments:
        to.create(path, None)
    if "O_TRUNC" in arguments and to.find(path) > 0:
        to.ops.append(Op("cut", to.find(path)))
    to.at[f"{descriptor}{path}"] = -1 if "O_APPEND" in arguments else 0


def _write(to: Recorder, name: str, arguments: str, result: int, key: str, path: str) -> None:
    data = b"".join(map(unescaped, re.findall(r'"((?:\\x[0-9a-f]{2})*)"', arguments)))[:result]
    file = to.find(path)
    if file > 0:
        assert len(data) == result, "strace cut what was written"
        offset = int(arguments.rsplit(", ", 1)[1]) if name == "pwrite64" else to.at.get(key, 0)
        to.ops.append(Op("write", file, offset=offset, data=data))  # -1: at the end
        if name != "pwrite64" and offset >= 0:
            to.at[key] = offset + result
    elif data.startswith(_MARK):
        to.ops.extend(
            Op("mark", name=line) for line in data.decode().split("\n") if line.startswith("MARK ")
        )


def owed(ops: list[Op]) -> set[int]:
    """Numbers of the operations that the file system owes: those that were synced."""
    synced: set[int] = set()
    waiting: dict[int, list[int]] = {}  # of a file: its writes; of a folder: its names
    for number, op in enumerate(ops):
        if op.kind == "sync":
            synced.update(waiting.pop(op.file, []))
        elif op.kind in ("write", "cut"):
            waiting.setdefault(op.file, []).append(number)
        elif op.kind != "mark":
            waiting.setdefault(op.folder, []).append(number)
    return synced


def tree(ops: list[Op], present: set[int], halves: dict[int, str]) -> dict[str, bytes | None]:
    """Files and folders (None) by path, if just these operations came to the disk. ``halves``: how
    a write of them came: ``half`` or ``zeros``.
    """
    names: dict[int, dict[str, int]] = {0: {}}
    contents: dict[int, bytearray] = {}
    folders = {0} | {op.file for op in ops if op.kind == "mkdir"}
    for number, op in enumerate(ops):
        if number not in present:
            continue
        if op.kind in ("create", "mkdir", "rename"):
            if op.kind == "rename" and names.get(op.source[0], {}).get(op.source[1]) == op.file:
                del names[op.source[0]][op.source[1]]
            names.setdefault(op.folder, {})[op.name] = op.file
        elif op.kind == "remove":
            names.get(op.folder, {}).pop(op.name, None)
        elif op.kind == "cut":
            content = contents.setdefault(op.file, bytearray())
            del content[op.offset :]
        elif op.kind == "write":
            content = contents.setdefault(op.file, bytearray())
            data = {"half": op.data[: len(op.data) // 2], "zeros": bytes(len(op.data))}.get(
                halves.get(number, ""), op.data
            )
            offset = len(content) if op.offset < 0 else op.offset
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
    found: dict[str, bytes | None] = {}

    def walk(folder: int, path: str) -> None:
        for name, file in names.get(folder, {}).items():
            found[f"{path}{name}"] = None if file in folders else bytes(contents.get(file, b""))
            if file in folders:
                walk(file, f"{path}{name}/")

    walk(0, "")
    return found


def crash_states(
    ops: list[Op], *, tries: int, seed: int = 0
) -> Iterator[tuple[int, dict[str, bytes | None]]]:
    """After each operation, what the disk may hold: (operations that were done, tree); no tree
    twice in a row of them.

    All that was done, only what is owed, all but one of the others, one of the others, and so many
    drawn at random; the last write of a file whole, half and as zeros.
    """
    pick = random.Random(seed)
    seen: set[tuple[int, int]] = set()
    marks = 0
    for done in range(len(ops) + 1):
        marks += done > 0 and ops[done - 1].kind == "mark"
        if done < len(ops) and done and ops[done - 1].kind == "sync":
            continue  # owes more than the state before it, and brings none that was not there
        past = ops[:done]
        certain = owed(past)
        loose = [
            n for n in range(done) if n not in certain and past[n].kind not in ("sync", "mark")
        ]
        choices = [(set(loose), {}), (set(), {})]
        choices += [(set(loose) - {n}, {}) for n in loose[-6:]] + [({n}, {}) for n in loose[-6:]]
        for n in [n for n in loose if past[n].kind == "write"][-2:]:
            choices += [(set(loose), {n: how}) for how in ("half", "zeros")]
        for _ in range(tries if loose else 0):
            chosen = {n for n in loose if pick.random() < 0.5}
            written = [n for n in chosen if past[n].kind == "write"]
            choices.append((chosen, {n: pick.choice(["", "half", "zeros"]) for n in written}))
        for chosen, halves in choices:
            left = tree(past, certain | _prefixes(past, loose, chosen), halves)
            key = (
                marks,
                hash(
                    tuple(sorted((path, data or b"", data is None) for path, data in left.items()))
                ),
            )
            if key not in seen:
                seen.add(key)
                yield done, left


def _prefixes(ops: list[Op], loose: list[int], chosen: set[int]) -> set[int]:
    """The chosen ones, but that of each file's writes only those before the first that is missing
    are there.
    """
    ended: set[int] = set()
    kept: set[int] = set()
    for number in loose:
        op = ops[number]
        if op.kind in ("write", "cut"):
            if number not in chosen or op.file in ended:
                ended.add(op.file)
                continue
        elif number not in chosen:
            continue
        kept.add(number)
    return kept


def write_tree(left: dict[str, bytes | None], folder: Path) -> None:
    """Makes a state a folder."""
    for path, data in left.items():
        target = folder / path
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
