"""What a process and all its children use: CPU seconds, threads, processes, peak memory; read from
``/proc``.

Elsewhere than on Linux only the CPU time of the process and its ended children is known.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """Of a tree of processes.

    Attributes:
        cpu_s: CPU seconds so far, ended children included.
        processes: Living processes.
        threads: Their threads.
        peak_bytes: The sum of each one's highest resident size. Mapped file pages are in it, and
            what workers share with their parent counts once for each.
    """

    cpu_s: float
    processes: int
    threads: int
    peak_bytes: int


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    found = [root]
    for pid in found:  # grows while it is walked
        for task in (PROC / str(pid) / "task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue  # it has just ended
    return found


def usage() -> Usage:
    """Of this process and its descendants, now."""
    if not PROC.is_dir():
        used = os.times()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Usage(sum(used[:4]), 1, threading.active_count(), peak)
    ticks = 0
    processes = 0
    threads = 0
    peak = 0
    for pid in tree(os.getpid()):
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            status = (PROC / str(pid) / "status").read_text()
        except OSError:
            continue
        ticks += sum(
            int(f) for f in fields[11:15]
        )  # utime, stime and those of children that were waited for
        processes += 1
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name == "Threads":
                threads += int(value)
            elif name == "VmHWM":
                peak += int(value.split()[0]) << 10
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), processes, threads, peak)


def forget_peak() -> None:
    """The highest resident size starts anew from now; where the system cannot do that, the floor's
    pages count too.
    """
    with contextlib.suppress(OSError):
        (PROC / "self" / "clear_refs").write_text("5")
