"""Which steps of a run are examined: all if they fit the row budget, otherwise a window in each
stretch.

A *stretch* is a run of steps with one batch size and one row length. How often blocks are read
differs between stretches but hardly within one, so a run that is too long is sampled by one window
per stretch, weighted by the steps of the stretch. Figures exclude the cold start of a window: until
each open block has been met once, almost every row is the first of its block. Price: negligible; at
most :data:`MAX_STRETCHES` windows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import mixture_of
from headrace.mix.policy import Watch
from headrace.mix.schedule import BatchSchedule

MAX_STRETCHES = 16
"""Most stretches examined; if there are more, those that evenly spaced steps fall into."""
LEAST_STEPS = 2


@dataclass(frozen=True)
class Stretch:
    """Steps with one batch size and one row length."""

    first_step: int  # its first step
    stop_step: int  # one past its last
    batch_size: int  # rows of a batch
    seq_len: int  # tokens of a row
    open_blocks: int  # blocks that the order has open at a time, over all hosts
    open_rows: int  # rows of these blocks; about as many pass while a block is in use

    @property
    def steps(self) -> int:
        return self.stop_step - self.first_step

    @property
    def rows(self) -> int:
        return self.steps * self.batch_size

    @property
    def cold_steps(self) -> int:
        """Steps until each open block has been met once."""
        return max(-(-self.open_blocks // self.batch_size), 1)

    @property
    def block_life(self) -> int:
        """Approximate number of steps for which a block is in use."""
        return -(-self.open_rows // self.batch_size)


@dataclass(frozen=True)
class Look:
    """A window of steps to examine."""

    first_step: int  # where hosts start, with empty memory
    counted_from: int  # first step that counts; the cold start comes before it
    stop_step: int  # one past the last
    stands_for: float  # steps of the run that its figures represent
    batch_size: int  # rows of its largest batch


def stretches(
    dataset: PlannedDataset, schedule: BatchSchedule, first_step: int, stop_step: int
) -> list[Stretch]:
    """The stretches of a range of steps, in order."""
    borders = {
        first_step,
        stop_step,
        *(step for step, _ in schedule.points if first_step < step < stop_step),
    }
    until = dataset.at_step(first_step)[1]
    while until is not None and until < stop_step:
        borders.add(until)
        until = dataset.at_step(until)[1]
    all_stretches: list[Stretch] = []
    for begin, end in pairwise(sorted(borders)):
        phase = dataset.at_step(begin)[0]
        size = schedule.rows_at(begin)[1]
        last = all_stretches[-1] if all_stretches else None
        if last is not None and (last.batch_size, last.seq_len) == (size, phase.seq_len):
            all_stretches[-1] = Stretch(
                last.first_step, end, size, last.seq_len, last.open_blocks, last.open_rows
            )
        else:
            all_stretches.append(Stretch(begin, end, size, phase.seq_len, *open_at(phase, begin)))
    return all_stretches


def open_at(dataset: PlannedDataset, step: int) -> tuple[int, int]:
    """Blocks that a dataset's order has open at a time, at least 1 for each component, and their
    rows; in a mixture, of components with weight at ``step``.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=200), seq_len=8)
        >>> open_at(dataset.braid_shuffle(seed=0, strands=5, batch_size=None, io_block_size=4), 0)
        (5, 20)
        >>> open_at(dataset.shuffle(0), 0) == (
        ...     1,
        ...     len(dataset),
        ... )  # a block is in use until the end of the epoch
        True
    """
    windows = [window for window, _ in dataset.open_windows(step).values()]
    return sum(max(window.blocks, 1) for window in windows), sum(window.rows for window in windows)


def walk_to(dataset: PlannedDataset, step: int, watch: Watch | None) -> None:
    """Counts to the first example of ``step``, if the policy counts examples one by one (2 to 6 us
    each; others jump to any step at once); later queries continue from there.

    Example:
        >>> import headrace.testing
        >>> from headrace import MixtureDataset, TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> mixture = MixtureDataset(
        ...     {"a": dataset, "b": dataset}, {"a": 3, "b": 1}, batch_size=100, policy="greedy"
        ... )
        >>> walk_to(mixture, 1000, lambda done, total: print(done, total))
        65536 100000
        100000 100000
    """
    mixture = mixture_of(dataset.at_step(step)[0])
    if mixture is not None:
        mixture.draws.policy.walk_to(step, watch or (lambda done, total: None))


def all_steps(run: Sequence[Stretch], *, sample: bool) -> Look:
    """One look at a range of steps, through changes of size; ``sample``: whether the run continues
    after it.
    """
    first = run[0].first_step
    stop = run[-1].stop_step
    cold = first
    missing = run[0].open_blocks
    for stretch in run:  # the first stretch may be shorter than the cold start
        steps = min(-(-missing // stretch.batch_size), stretch.steps)
        cold = cold + steps
        missing = missing - steps * stretch.batch_size
        if missing <= 0:
            break
    least = first + max((stop - first) // 4 if sample else 0, 1)
    return Look(
        first,
        max(min(max(cold, least), stop - 1), first),
        stop,
        stop - first,
        max(s.batch_size for s in run),
    )


def sampled(run: Sequence[Stretch], max_rows: int) -> list[Look]:
    """A window in each stretch, about ``max_rows`` rows in total; see the module."""
    # 1. Which stretches are looked at, and how far before each its look begins.
    chosen, stands_for = _chosen(run)
    leads = [_lead(run, k) for k in chosen]
    sizes = [run[max(k - 1, 0)].batch_size for k in chosen]
    # 2. What each may look at: its share of the rows, of which the steps before it take some.
    warming = [lead * size for lead, size in zip(leads, sizes, strict=True)]
    budgets = _budgets(
        [run[k].rows + rows for k, rows in zip(chosen, warming, strict=True)], max_rows
    )
    # 3. The look: as many steps as that allows. Its first quarter is cold start, or as much as the
    #    order needs, unless steps before the stretch were.
    looks: list[Look] = []
    for n, k in enumerate(chosen):
        stretch = run[k]
        begin = run[k].first_step - leads[n]
        size = run[k].batch_size
        steps = min(stretch.steps, max((budgets[n] - warming[n]) // size, LEAST_STEPS))
        cold = 0 if leads[n] else max(min(max(steps // 4, stretch.cold_steps), steps - 1), 0)
        largest = max(size, sizes[n]) if leads[n] else size
        looks.append(
            Look(
                begin, stretch.first_step + cold, stretch.first_step + steps, stands_for[n], largest
            )
        )
    return looks


def _lead(run: Sequence[Stretch], k: int) -> int:
    """Steps before a stretch at which a look at it starts: none, unless the whole stretch would be
    cold start.
    """
    stretch = run[k]
    if k == 0 or stretch.steps >= 2 * stretch.cold_steps:
        return 0
    return min(
        -(-stretch.open_blocks // run[k - 1].batch_size), stretch.first_step - run[0].first_step
    )


def _chosen(run: Sequence[Stretch]) -> tuple[list[int], list[float]]:
    """Numbers of the stretches to examine, and the steps that each represents."""
    if len(run) <= MAX_STRETCHES:
        return list(range(len(run))), [float(s.steps) for s in run]
    first = [s.first_step for s in run]
    at = np.linspace(first[0], run[-1].stop_step - 1, MAX_STRETCHES).astype(np.int64)
    numbers, times = np.unique(
        [bisect_right(first, int(step)) - 1 for step in at], return_counts=True
    )
    total = run[-1].stop_step - first[0]
    return numbers.tolist(), [total * int(n) / MAX_STRETCHES for n in times]


def _budgets(rows: Sequence[int], max_rows: int) -> list[int]:
    """Equal parts of the budget; what short stretches leave over goes to the others."""
    budgets = [0] * len(rows)
    rows_left = max_rows
    for count, k in enumerate(sorted(range(len(rows)), key=lambda k: rows[k])):
        budgets[k] = min(rows[k], rows_left // (len(rows) - count))
        rows_left -= budgets[k]
    return budgets
