"""Replays a run's planning as its loader does it: what each host fetches, and how well rows are
mixed.

A replay passes changes of batch size and row length as the loader does: windows are numbered
through both, and only a change of row length ends one early. Of the hosts that are replayed nothing
is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from headrace.analysis.icc import ratio_of_windows
from headrace.analysis.long_documents import alike_in_blocks
from headrace.data.dataset import PlannedDataset
from headrace.data.rows import BlockSpace
from headrace.feed.exchange import RowExchange
from headrace.feed.plan import GlobalRows, RunRows
from headrace.mix.schedule import BatchSchedule, ExchangeSetting, RowOrder
from headrace.order.residency import Residency, WindowUses, window_steps, window_uses
from headrace.progress import report, track


@dataclass(frozen=True)
class Window:
    """The block uses of a window of steps, by all hosts; rows in the loader's order."""

    planned: GlobalRows
    first_step: int
    step: Int64[np.ndarray, " u"]  # counted from the first
    row: Int64[np.ndarray, " u"]  # of the window, which uses the block
    place: Int64[np.ndarray, " u"]  # of the row in its batch
    size: Int64[np.ndarray, " u"]  # of the batch
    block: Int64[np.ndarray, " u"]

    @property
    def steps(self) -> int:
        return self.planned.steps

    def of_hosts(
        self, host: Int64[np.ndarray, " u"], hosts: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps and blocks sorted by the host of each use, and the bounds of each host."""
        order = np.argsort(host, kind="stable")
        return (
            self.step[order],
            self.block[order],
            np.searchsorted(host[order], np.arange(hosts + 1)),
        )

    def uses_of(self, mine: Bool[np.ndarray, " u"]) -> WindowUses:
        """Some of the uses, as planned by the loader of their host."""
        return window_uses(self.first_step, self.steps, self.block[mine], self.step[mine])[0]


class Windows:
    """The windows in which the loader plans a run, planned on demand.

    Args:
        dataset: The dataset to load.
        schedule: Batch sizes.
        first_step: Where the loader starts.
        stop_step: Where it ends; None: never.
        row_order: As in the loader.
    """

    def __init__(
        self,
        dataset: PlannedDataset,
        schedule: BatchSchedule,
        first_step: int,
        stop_step: int | None,
        row_order: RowOrder,
        row_exchange: ExchangeSetting = "auto",
    ) -> None:
        self.dataset = dataset
        self._rows = RunRows(dataset, schedule, row_order)
        self.row_exchange: ExchangeSetting = row_exchange
        self.space = dataset.block_space
        self.alike = alike_in_blocks(dataset, self.space)
        self.first_step = first_step
        self.stop_step = stop_step
        self._planned: list[Window] = []
        self._exchanges: dict[int, _Exchanged] = {}  # by number of hosts

    def __getitem__(self, number: int) -> Window:
        while number >= len(self._planned):
            last = self._planned[-1] if self._planned else None
            step = self.first_step if last is None else last.first_step + last.steps
            steps = window_steps(len(self._planned))
            self._planned.append(
                self._plan(
                    step, steps if self.stop_step is None else min(steps, self.stop_step - step)
                )
            )
        return self._planned[number]

    def until(self, step: int) -> list[Window]:
        """The windows with the steps before ``step``."""
        number = 0
        while (planned := self[number].first_step + self[number].steps) < step:
            report("planning steps", planned - self.first_step, step - self.first_step)
            number += 1
        return self._planned[: number + 1]

    def table(self, first_step: int, stop_step: int, size: int) -> Int64[np.ndarray, "steps uses"]:
        """Blocks of each full batch in a range of steps, all of ``size`` rows; a row in several
        blocks counts for each.
        """
        windows = [w for w in self.until(stop_step) if w.first_step + w.steps > first_step]
        step = np.concatenate([w.step + w.first_step for w in windows])
        row = (step - first_step) * size + np.concatenate([w.place for w in windows])
        inside = (step >= first_step) & (step < stop_step)
        owner = row[inside]
        block = np.concatenate([w.block for w in windows])[inside]
        full = int(owner[-1] + 1) // size if owner.size else 0
        inside = owner < full * size
        owner = owner[inside]
        block = block[inside]
        if not full:
            return np.zeros((0, size), np.int64)
        uses = np.bincount(owner, minlength=full * size)
        width = int(uses.max())
        if uses.min() == width == 1:
            return block.reshape(full, size)
        # pad every row to the same number of blocks by repeating its last one; a removed row has
        # none
        first = np.cumsum(uses) - uses
        table = block[
            np.maximum(first[:, None] + np.minimum(np.arange(width), uses[:, None] - 1), 0)
        ]
        return table.reshape(full, size * width)

    def distinct(self, stop_step: int) -> int:
        """Distinct blocks in the steps before ``stop_step``, over all hosts."""
        return np.unique(
            np.concatenate(
                [w.block[w.step + w.first_step < stop_step] for w in self.until(stop_step)]
            )
        ).size

    def hosts_of(self, number: int, hosts: int, *, exchange: bool) -> Int64[np.ndarray, " u"]:
        """The host that reads the row of each use of a window, with or without row exchange."""
        window = self[number]
        if not exchange:
            return window.place * hosts // window.size
        if hosts not in self._exchanges:
            setting = "on" if self.row_exchange == "on" else "auto"
            always = RowExchange(np.arange(hosts), setting)
            always.on = True
            self._exchanges[hosts] = _Exchanged(always, [], [])
        exchanged = self._exchanges[hosts]
        while len(exchanged.hosts) <= number:
            window = self[len(exchanged.hosts)]
            arranged = self._rows.arranged(window.planned, window.first_step, exchanged.exchange)
            host = window.place * hosts // window.size
            exchanged.hosts.append(host if arranged is None else arranged.owner[window.row])
            exchanged.moved.append(
                0.0 if arranged is None else float(arranged.sent.sum()) / window.steps
            )
        return exchanged.hosts[number]

    def moved_rows(self, hosts: int, windows: int) -> float:
        """Rows per step that move between hosts in the first windows, with row exchange."""
        return float(np.mean(self._exchanges[hosts].moved[:windows]))

    def cold_start(self, hosts: int) -> int:
        """Blocks of the first batch, on the host with the most."""
        host = self.hosts_of(0, hosts, exchange=False)
        return max(self[0].uses_of(host == number).blocks.size for number in range(hosts))

    def _plan(self, first_step: int, steps: int) -> Window:
        planned = self._rows.of_steps(first_step, steps)
        row, block = planned.blocks()
        step = np.repeat(np.arange(planned.steps), planned.valid)[row]
        row_of_batch = row - (np.cumsum(planned.valid) - planned.valid)[step]
        return Window(planned, first_step, step, row, row_of_batch, planned.sizes[step], block)


class _Exchanged(NamedTuple):
    """A row exchange between a number of hosts, with the host of each use and the mean of rows
    moved, by window.
    """

    exchange: RowExchange
    hosts: list[Int64[np.ndarray, " u"]]
    moved: list[float]


@dataclass(frozen=True)
class Fetches:
    """Block fetches of the hosts that were replayed."""

    by_step: Int64[np.ndarray, " steps"]  # of all hosts together, in each step
    by_host: Int64[np.ndarray, " replayed"]  # of each host, in all steps
    blocks_held: int  # most blocks in use at a time on a host, if each is read once
    moved: float  # rows per step that hosts read for others
    index_requests: int  # of all hosts, for zarr.json, indices of files and ends of documents


def replay(
    windows: Windows,
    hosts: int,
    steps: int,
    slots: int | None,
    most: int,
    *,
    exchange: bool = False,
) -> Fetches:
    """The loaders' fetches in the first ``steps`` steps.

    Args:
        windows: The run.
        hosts: Number of hosts.
        steps: Steps to replay.
        slots: Blocks that a host has memory for; None: unlimited.
        most: Most hosts to replay if their memory does not hold all that they use.
        exchange: Whether hosts exchange rows from the first step on.

    Raises:
        ConfigError: memory does not hold the blocks of one batch.
    """
    # 1. The uses of each host in all windows.
    stop = windows.first_step + steps
    looked = windows.until(stop)
    of_uses = [windows.hosts_of(number, hosts, exchange=exchange) for number in range(len(looked))]
    parts = [w.of_hosts(host, hosts) for w, host in zip(looked, of_uses, strict=True)]
    by_step = np.zeros((hosts, steps), np.int64)
    short: list[int] = []
    open_blocks = index_requests = 0
    # 2. A host whose memory holds all that it uses reads each block once, at its first use.
    for host in track(range(hosts), "counting reads of hosts", hosts):
        step = np.concatenate(
            [
                s[b[host] : b[host + 1]] + w.first_step
                for w, (s, _, b) in zip(looked, parts, strict=True)
            ]
        )
        block = np.concatenate([x[b[host] : b[host + 1]] for _, x, b in parts])
        block = block[step < stop]
        step = step[step < stop] - windows.first_step
        distinct, first, inverse = np.unique(block, return_index=True, return_inverse=True)
        index_requests += windows.space.index_requests(distinct)
        last = np.zeros(distinct.size, np.int64)
        last[inverse] = step  # ascending: of several, the last wins
        first_uses, last_uses = (
            np.bincount(at, minlength=steps + 1) for at in (step[first], last + 1)
        )
        open_blocks = max(open_blocks, int((first_uses - last_uses).cumsum().max(initial=0)))
        if slots is None or distinct.size <= slots:
            by_step[host] = first_uses[:steps]
        else:
            short.append(host)
    # 3. The others are replayed, or evenly spaced ones of them if there are many.
    chosen = short if len(short) <= most else [short[k * len(short) // most] for k in range(most)]
    for host in track(chosen, "replaying hosts", len(chosen)):
        by_step[host] = _replay_host(windows, hosts, host, steps, slots or 0, exchange=exchange)
    moved = windows.moved_rows(hosts, len(looked)) if exchange else 0.0
    by_step = by_step[chosen] if len(chosen) < len(short) else by_step
    most_held = open_blocks if slots is None else min(open_blocks, slots)
    return Fetches(by_step.sum(axis=0), by_step.sum(axis=1), most_held, moved, index_requests)


def _replay_host(
    windows: Windows, hosts: int, host: int, steps: int, slots: int, *, exchange: bool
) -> Int64[np.ndarray, " steps"]:
    """Fetches of one host in each step, decided as its loader does."""
    memory = Residency(slots, windows.first_step, windows.stop_step)
    fetches = np.zeros(steps, np.int64)
    number = 0
    for k in range(steps):
        while memory.wants_window:
            memory.extend(
                windows[number].uses_of(windows.hosts_of(number, hosts, exchange=exchange) == host)
            )
            number += 1
        fetches[k] = len(memory.decide().blocks)
    return fetches


VARIANCE_WINDOWS = (1, 8, 64)


@dataclass(frozen=True)
class Quality:
    """Figures of steps with one batch size and one row length."""

    steps: int  # full batches examined
    blocks_per_step: float  # data in a step, in blocks: the reads if each block is read once
    read_bytes: float  # bytes of a block, mean over used blocks
    requests: float  # requests per block, mean over used blocks
    distinct_blocks: float  # blocks in a batch, mean
    variance: dict[int, float]  # ``VR_w`` by w, as far as there are steps

    @classmethod
    def of(
        cls,
        blocks: Int64[np.ndarray, "steps uses"],
        size: int,
        seq_len: int,
        space: BlockSpace,
        alike: Float64[np.ndarray, " s"] | None = None,
    ) -> Quality:
        """The figures of batches of ``size`` rows; a row in several blocks has several adjacent
        uses. ``alike`` as for :func:`variance_ratio`.
        """
        array = space.array_of(blocks.ravel())
        first_of_row = blocks[:, :: max(blocks.shape[1] // size, 1)]
        distinct, numbers = np.unique(first_of_row, return_inverse=True)
        numbers = numbers.reshape(first_of_row.shape)
        sources = np.searchsorted(
            np.unique(space.first_array), space.array_of(distinct), side="right"
        )[numbers]
        block_bytes = space.block_bytes()
        # For caches with different chunks: the mean over used blocks.
        worth = seq_len / space.chunk[array]
        return cls(
            steps=blocks.shape[0],
            blocks_per_step=size * float(worth.mean()),
            read_bytes=float((block_bytes[array] * worth).sum() / worth.sum()),
            requests=float((space.block_requests()[array] * worth).sum() / worth.sum()),
            distinct_blocks=float(
                np.mean((np.diff(np.sort(blocks, axis=1), axis=1, prepend=-1) != 0).sum(axis=1))
            ),
            variance={
                w: ratio
                for w in VARIANCE_WINDOWS
                if blocks.shape[0] >= 2 * w
                and not np.isnan(ratio := variance_ratio(numbers, sources, w, alike))
            },
        )


def variance_ratio(
    blocks: Int64[np.ndarray, "steps batch"],
    sources: Int64[np.ndarray, "steps batch"],
    window: int,
    alike_pairs: Float64[np.ndarray, " s"] | None = None,
) -> float:
    """``VR_w`` of windows of ``window`` steps: the variance of a window's mean of a value that is
    the same within a block and independent between blocks, relative to that of rows drawn at random
    from the same sources.

    See :func:`~headrace.analysis.icc.ratio_of_windows`, also for ``alike_pairs``.

    Example:
        >>> sources = np.zeros((4, 4), np.int64)
        >>> variance_ratio(np.arange(16).reshape(4, 4), sources, 1)  # no two rows of a block
        1.0
        >>> round(
        ...     variance_ratio(np.arange(16).reshape(4, 4) // 4, sources, 1), 6
        ... )  # one block a window
        5.0
        >>> variance_ratio(
        ...     np.arange(16).reshape(4, 4) % 4, sources, 1
        ... )  # a row of each block in every window
        0.0
    """
    count = blocks.shape[0] // window
    block, source = (table[: count * window].ravel() for table in (blocks, sources))
    number = np.repeat(np.arange(count), block.size // max(count, 1))
    return ratio_of_windows(block, source, number, alike_pairs)
