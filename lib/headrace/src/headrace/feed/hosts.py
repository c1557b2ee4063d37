"""Comparisons and counters across the hosts of a job: whether all load the same batches, and what
they count.

If a host started with another config, sequence length or step, it would train on other rows and
nobody would notice. So the first iteration of a loader compares a digest over all processes of its
mesh. There is nothing to compare if the mesh is within one process.

Price: one collective of 32 bytes per host at the start; others, the last of the descriptions, only
if they differ.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import __version__
from headrace.errors import ConfigError

_ROUND = 1 << 12
_MOST_LISTED = 5
_NUMPY_TO_PLAIN = operator.methodcaller("item")


def gather(devices: Collection[Any], payload: bytes) -> dict[int, bytes]:
    """Payloads of all processes of these devices, by process. All must call it, at the same place
    in their program.
    """
    if not _shared(devices):
        return {jax.process_index(): payload}
    sizes = _gather(devices, np.asarray([len(payload)], np.int64).view(np.uint8))
    lengths = {process: int(size.view(np.int64)[0]) for process, size in sizes.items()}
    padded = np.zeros(-(-max(lengths.values()) // _ROUND) * _ROUND, np.uint8)
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    rows = _gather(devices, padded)
    return {process: row[: lengths[process]].tobytes() for process, row in rows.items()}


def check_same(
    devices: Collection[Any],
    described: Callable[[], Mapping[str, Any]],
    named: Callable[[], Mapping[str, Any]] = dict[str, Any],
    look_again: Callable[[], None] = lambda: None,
) -> None:
    """Raises ConfigError on every process of the devices unless all descriptions are equal, and all
    have this version of headrace.

    Args:
        devices: Devices of the loader's mesh.
        described: Returns everything that determines the batches, as JSON values.
        named: Returns what users know it by, such as the fields of their config; differences of the
            description are only told if there is none of these.
        look_again: Called where descriptions differ, before they are compared again: a process may
            hear of a change of the run later than others.
    """
    if not _shared(devices):
        return
    compared = None
    while True:
        description = {"headrace": __version__, **described()}
        text = json.dumps(description, sort_keys=True, default=_NUMPY_TO_PLAIN)
        digest = hashlib.sha256(text.encode()).digest()
        rows = _gather(devices, np.frombuffer(digest, np.uint8))
        digests = {host: row.tobytes() for host, row in rows.items()}
        if len({*digests.values()}) == 1:
            return
        if digests == compared:  # all have heard of everything: they do differ
            break
        compared = digests
        look_again()
    description_here = [{"headrace": __version__, **named()}, description]
    gathered = gather(devices, json.dumps(description_here, default=_NUMPY_TO_PLAIN).encode())
    known, plans = zip(*(json.loads(text) for text in gathered.values()), strict=True)
    lines = host_differences(dict(zip(gathered, known, strict=True)))
    if not lines:
        lines = host_differences(dict(zip(gathered, plans, strict=True)))
    more = f"; and {len(lines) - _MOST_LISTED} more" if len(lines) > _MOST_LISTED else ""
    raise ConfigError(
        f"do not load the same batches: {'; '.join(lines[:_MOST_LISTED])}{more}",
        field="hosts",
        cure="Start all processes with the same headrace, config, caches and checkpoint.",
    )


def host_differences(described: Mapping[int, Any]) -> list[str]:
    """Differences between the descriptions of hosts, one line for each place; the value of most
    hosts comes last.

    Example:
        >>> host_differences(
        ...     {0: {"step": 5, "a": {"b": 1}}, 1: {"step": 4, "a": {"b": 1}}, 2: {"step": 5}}
        ... )
        ['step: host 1 has 4, the others 5', 'a.b: host 2 has nothing, the others 1']
    """
    flat = {host: dict(_leaves(description, "")) for host, description in described.items()}
    paths = dict.fromkeys(path for values in flat.values() for path in values)
    lines: list[str] = []
    for path in paths:
        hosts: dict[str, list[int]] = {}
        for host, values in flat.items():
            hosts.setdefault(values.get(path, "nothing"), []).append(host)
        if len(hosts) > 1:
            *few, most = sorted(hosts, key=lambda value: (len(hosts[value]), hosts[value][0]))
            last = f"the others {most}" if len(hosts[most]) > 1 else f"{_named(hosts[most])} {most}"
            lines.append(
                f"{path}: {', '.join(f'{_named(hosts[value])} {value}' for value in few)}, {last}"
            )
    return lines


def _named(hosts: list[int]) -> str:
    listed = ", ".join(map(str, hosts[:8])) + (", ..." if len(hosts) > 8 else "")
    return f"host {listed} has" if len(hosts) == 1 else f"hosts {listed} have"


def _leaves(value: Any, place: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        items: Mapping[str, Any] = value
        return [
            leaf
            for key in items
            for leaf in _leaves(items[key], f"{place}.{key}" if place else key)
        ]
    text = json.dumps(value)
    return [
        (
            place,
            text
            if len(text) <= 60
            else f"{text[:40]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})",
        )
    ]


def _shared(devices: Collection[Any]) -> bool:
    return any(device.process_index != jax.process_index() for device in devices)


def _gather(devices: Collection[Any], row: np.ndarray) -> dict[int, np.ndarray]:
    """Rows of bytes, equally long, of all processes, through one device of each: a mesh need not
    span the whole job.
    """
    first: dict[int, Any] = {}
    for device in sorted(devices, key=lambda device: device.id):
        first.setdefault(device.process_index, device)
    processes = sorted(first)
    line = Mesh(np.asarray([first[process] for process in processes]), ("process",))
    shape = (len(processes), row.size)
    rows = jax.make_array_from_callback(
        shape, NamedSharding(line, PartitionSpec("process")), lambda _: row[None]
    )
    gathered = jax.jit(lambda x: x, out_shardings=NamedSharding(line, PartitionSpec()))(rows)
    return dict(zip(processes, np.asarray(gathered.addressable_data(0)), strict=True))
