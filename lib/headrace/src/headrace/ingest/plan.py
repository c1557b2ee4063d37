"""Which files make which part: the plan of a build, fixed before anything is tokenized.

A part is the unit of work and of resuming: a run of consecutive files of about ``part_bytes`` stored bytes, or a slice
of a larger one, turned into one part of the cache by one worker, always with the same result. The plan is a pure
function of the list of files, their sizes and where they can be cut, and is written into the ledger, so that every
worker and every later run of the command works on the same one. The last slice of a file ends where the file ends.

Price: what a killed build loses is at most one part (default 64 MiB of text, some seconds); the largest corpus has some
thousands of parts, so the ledger stays small and opening a cache stays fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from headrace.errors import ConfigError
from headrace.ingest.records import Slice
from headrace.ingest.source import SourceFile

DEFAULT_PART_BYTES = 64 << 20
MAX_PARTS = 4096


@dataclass(frozen=True)
class PartTask:
    """One idempotent unit of work: these files, in this order, become this part.

    Attributes:
        name: Folder of the part below ``parts/``; names sort like parts.
        files: Its files; never empty.
    """

    name: str
    files: tuple[SourceFile, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of its files as stored; files of unknown size count 0."""
        return sum(f.num_bytes or 0 for f in self.files)


def plan_parts(
    files: Sequence[SourceFile],
    part_bytes: int = DEFAULT_PART_BYTES,
    split: Callable[[SourceFile, int], list[SourceFile]] | None = None,
) -> list[PartTask]:
    """Cuts the list of files into parts.

    Args:
        files: In the order that their documents shall have.
        part_bytes: Stored bytes in a part, about: a part ends with the file or slice that reaches it. Larger for
            corpora that would have more than 4096 parts.
        split: Cuts a file that is larger than so many bytes into slices; files stay whole if None.

    Raises:
        ConfigError: ``part_bytes`` is below 1.

    Example:
        >>> files = [SourceFile(f"{i}.txt", "text", size=40) for i in range(5)]
        >>> [(t.name, len(t.files)) for t in plan_parts(files, part_bytes=80)]
        [('00000', 2), ('00001', 2), ('00002', 1)]
    """
    if part_bytes < 1:
        raise ConfigError("must be at least 1", field="part_bytes", value=part_bytes, cure="Count in bytes.")
    # A file of unknown size counts as something, yet is no part of its own.
    weights = [part_bytes // 16 if f.size is None else f.size for f in files]
    target = max(part_bytes, -(-sum(weights) // (MAX_PARTS - 1)))
    tasks: list[PartTask] = []
    members: list[SourceFile] = []
    filled = 0
    slices = [s for f in files for s in ([f] if split is None else split(f, target))]
    for file in slices:
        members.append(file)
        filled += part_bytes // 16 if file.num_bytes is None else file.num_bytes
        if filled >= target:
            tasks.append(PartTask(f"{len(tasks):05d}", tuple(members)))
            members, filled = [], 0
    if members:
        tasks.append(PartTask(f"{len(tasks):05d}", tuple(members)))
    return tasks


def source_records(tasks: Sequence[PartTask]) -> list[dict[str, Any]]:
    """The plan as JSON: one record a file or slice, with the part that it goes into. The ledger keeps this, so paths
    are without credentials.
    """
    records: list[dict[str, Any]] = []
    for task in tasks:
        for file in task.files:
            record: dict[str, Any] = {
                "path": file.shown_path,
                "size": file.size,
                "version": file.version,
                "part": task.name,
            }
            if file.part is not None:
                record["slice"] = [file.part.start, file.part.stop, file.part.num_bytes]
            records.append(record)
    return records


def tasks_from_records(records: Sequence[dict[str, Any]], listed: Mapping[str, SourceFile]) -> list[PartTask]:
    """The plan that :func:`source_records` wrote down.

    Args:
        records: The ledger's.
        listed: The files of now, by the path that is written down.
    """
    tasks: list[PartTask] = []
    for name, group in groupby(records, key=lambda r: str(r["part"])):
        files = tuple(
            replace(
                listed[r["path"]],
                size=r["size"],
                version=r["version"],
                part=Slice(*r["slice"]) if "slice" in r else None,
            )
            for r in group
        )
        tasks.append(PartTask(name, files))
    return tasks
