"""The steps of a run planned as its loader plans them, and what each host then fetches.

A replay goes through changes of batch size and row length as the loader does: windows count on through both, and only a
change of row length ends one early. Nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.data.batch_order import RowOrder
from headrace.data.dataset import PlannedDataset
from headrace.feed.plan import BlockSpace, global_rows, stored_blocks
from headrace.index.residency import Residency, WindowUses, window_steps, window_uses
from headrace.index.schedule import BatchSchedule


@dataclass(frozen=True)
class Window:
    """Uses of blocks of a window of steps, by all hosts; rows in the loader's order."""

    first_step: int
    steps: int
    step: Int64[np.ndarray, " u"]  # counted from the first
    place: Int64[np.ndarray, " u"]  # of the row in its batch
    size: Int64[np.ndarray, " u"]  # of the batch
    block: Int64[np.ndarray, " u"]

    def of_hosts(self, hosts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps and blocks sorted by host, and the bounds of each host."""
        host = self.place * hosts // self.size
        order = np.argsort(host, kind="stable")
        return self.step[order], self.block[order], np.searchsorted(host[order], np.arange(hosts + 1))

    def of_host(self, host: int, hosts: int) -> WindowUses:
        """The uses of one of ``hosts`` hosts, as its loader plans them."""
        mine = self.place * hosts // self.size == host
        return window_uses(self.first_step, self.steps, self.block[mine], self.step[mine])[0]


class Windows:
    """The windows in which the loader plans a run, planned when they are asked for.

    Args:
        dataset: What is loaded.
        schedule: Batch sizes.
        first_step: Where the loader begins.
        stop_step: Where it ends; None: nowhere.
        row_order: As in the loader.
    """

    def __init__(
        self,
        dataset: PlannedDataset,
        schedule: BatchSchedule,
        first_step: int,
        stop_step: int | None,
        row_order: RowOrder,
    ) -> None:
        self.dataset, self.schedule = dataset, schedule
        self.row_order: RowOrder = row_order
        self.space = BlockSpace(dataset.sources)
        self.first_step, self.stop_step = first_step, stop_step
        self._planned: list[Window] = []

    def __getitem__(self, number: int) -> Window:
        while number >= len(self._planned):
            last = self._planned[-1] if self._planned else None
            step = self.first_step if last is None else last.first_step + last.steps
            steps = window_steps(len(self._planned))
            self._planned.append(
                self._plan(step, steps if self.stop_step is None else min(steps, self.stop_step - step))
            )
        return self._planned[number]

    def until(self, step: int) -> list[Window]:
        """The windows that hold the steps before ``step``."""
        number = 0
        while self[number].first_step + self[number].steps < step:
            number += 1
        return self._planned[: number + 1]

    def table(self, first_step: int, stop_step: int, size: int) -> Int64[np.ndarray, "steps uses"]:
        """Blocks of each full batch of some steps, all of ``size`` rows; rows in several blocks count for each."""
        windows = [w for w in self.until(stop_step) if w.first_step + w.steps > first_step]
        step = np.concatenate([w.step + w.first_step for w in windows])
        row = (step - first_step) * size + np.concatenate([w.place for w in windows])
        inside = (step >= first_step) & (step < stop_step)
        owner, found = row[inside], np.concatenate([w.block for w in windows])[inside]
        full = int(owner[-1] + 1) // size if owner.size else 0
        inside = owner < full * size
        owner, found = owner[inside], found[inside]
        if not full:
            return np.zeros((0, size), np.int64)
        uses = np.bincount(owner, minlength=full * size)
        if uses.max() == 1:
            return found.reshape(full, size)
        # pad every row to the same number of blocks by naming its last one again
        width = int(uses.max())
        first = np.cumsum(uses) - uses
        table = found[first[:, None] + np.minimum(np.arange(width), uses[:, None] - 1)]
        return table.reshape(full, size * width)

    def distinct(self, stop_step: int) -> int:
        """Different blocks in the steps before ``stop_step``, over all hosts."""
        return np.unique(
            np.concatenate([w.block[w.step + w.first_step < stop_step] for w in self.until(stop_step)])
        ).size

    def cold_start(self, hosts: int) -> int:
        """Blocks of the first batch, on the host that has most."""
        first = self[0]
        return max(first.of_host(host, hosts).blocks.size for host in range(hosts))

    def _plan(self, first_step: int, steps: int) -> Window:
        dataset, steps, sizes, valid, rows = global_rows(self.dataset, self.schedule, first_step, steps, self.row_order)
        owner, block = stored_blocks(dataset.sources, self.space, rows)
        step = np.repeat(np.arange(steps), valid)[owner]
        place = owner - (np.cumsum(valid) - valid)[step]
        return Window(first_step, steps, step, place, sizes[step], block)


@dataclass(frozen=True)
class Fetches:
    """Block fetches of the hosts that were replayed.

    Attributes:
        by_step: Of all of them together, in each step.
        by_host: Of each, in all steps.
        held: Most blocks that a host has in use at a time, were each read once.
    """

    by_step: Int64[np.ndarray, " steps"]
    by_host: Int64[np.ndarray, " replayed"]
    held: int


def replay(windows: Windows, hosts: int, steps: int, slots: int | None, most: int) -> Fetches:
    """What the loaders fetch in the first ``steps`` steps.

    Args:
        windows: The run.
        hosts: Its hosts.
        steps: Steps to look at.
        slots: Blocks that a host has memory for; None: as many as it wants.
        most: Hosts that are replayed, at most, if their memory does not hold all that they use.

    Raises:
        ConfigError: memory does not hold the blocks of one batch.
    """
    stop = windows.first_step + steps
    looked = windows.until(stop)
    parts = [w.of_hosts(hosts) for w in looked]
    by_step = np.zeros((hosts, steps), np.int64)
    short: list[int] = []
    held = 0
    for host in range(hosts):
        step = np.concatenate(
            [s[b[host] : b[host + 1]] + w.first_step for w, (s, _, b) in zip(looked, parts, strict=True)]
        )
        block = np.concatenate([x[b[host] : b[host + 1]] for _, x, b in parts])
        block, step = block[step < stop], step[step < stop] - windows.first_step
        distinct, first, inverse = np.unique(block, return_index=True, return_inverse=True)
        last = np.zeros(distinct.size, np.int64)
        last[inverse] = step  # rising: of several the last is kept
        begun, done = (np.bincount(at, minlength=steps + 1) for at in (step[first], last + 1))
        held = max(held, int((begun - done).cumsum().max(initial=0)))
        if slots is None or distinct.size <= slots:  # nothing ever makes room: each block is read at its first use
            by_step[host] = begun[:steps]
        else:
            short.append(host)
    chosen = short if len(short) <= most else [short[k * len(short) // most] for k in range(most)]
    for host in chosen:
        by_step[host] = _replay_host(windows, hosts, host, steps, slots or 0)
    by_step = by_step[chosen] if len(chosen) < len(short) else by_step
    return Fetches(by_step.sum(axis=0), by_step.sum(axis=1), held if slots is None else min(held, slots))


def _replay_host(windows: Windows, hosts: int, host: int, steps: int, slots: int) -> Int64[np.ndarray, " steps"]:
    """Fetches of each step of one host, decided as its loader decides them."""
    memory = Residency(slots, windows.first_step, windows.stop_step)
    found = np.zeros(steps, np.int64)
    number = 0
    for k in range(steps):
        while memory.wants_window:
            memory.extend(windows[number].of_host(host, hosts))
            number += 1
        found[k] = len(memory.decide().blocks)
    return found
