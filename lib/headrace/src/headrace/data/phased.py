"""``PhasedDataset``: rows of another length from a step on; each source continues with what no row
has had yet.

The idea is in :mod:`headrace.mix.phases`, the construction in :mod:`headrace.data.phased_mixture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Int64

from headrace.batch.packed_batch import PackedBatch
from headrace.data.dataset import OrderedRun, PlannedDataset, WrappingDataset
from headrace.data.provenance import Explained
from headrace.data.rows import Rows
from headrace.errors import ConfigError
from headrace.metrics import ReadStats
from headrace.mix.schedule import BatchSchedule
from headrace.order.order import OpenWindow, Order
from headrace.order.rising import starts


@dataclass(frozen=True)
class PhaseChange:
    """The effect of a change of length on one component.

    Attributes:
        step: First step of the new length.
        component: Name of the component.
        seq_len: New length.
        epoch: Epoch in which the change occurred.
        drawn: Examples that were drawn from the component before, in the whole run.
        left_blocks: Blocks of the epoch that no row had touched; the phase begins with them.
        block_tokens: Tokens of a block.
        left_rows: Rows of the new length that what is left of touched blocks fills; they follow
            these blocks.
        skipped_tokens: Tokens of this epoch that fill no row of the new length, less those that
            filled none of the old one: less than a row of what is left, and what rows do not fill
            of blocks.
    """

    step: int
    component: str
    seq_len: int
    epoch: int
    drawn: int
    left_blocks: int
    block_tokens: int
    left_rows: int
    skipped_tokens: int


class PhasedDataset(WrappingDataset):
    """Batches of one dataset, from a step on those of the next, and so on. Examples are numbered
    consecutively.

    Args:
        phases: First step and dataset of each phase, in order, the first at step 0. All over the
            same stored arrays.
        changes: Changes for reports.
    """

    def __init__(
        self,
        phases: Sequence[tuple[int, PlannedDataset]],
        batch: BatchSchedule,
        changes: Sequence[PhaseChange] = (),
    ) -> None:
        steps = [step for step, _ in phases]
        if not steps or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError("must begin at step 0 and be in order", field="phases", value=steps)
        self._phases = tuple(phases)
        self.batch_schedule = batch
        self._changes = tuple(changes)
        self.base = first = self._phases[0][1]
        for step, dataset in self._phases:
            if (_urls(dataset), dataset.splits_documents, dataset.pairs) != (
                _urls(first),
                first.splits_documents,
                first.pairs,
            ):
                raise ConfigError(
                    "lies in other arrays than the first phase", field=f"phases[{step}]"
                )
        self._steps = np.asarray(steps, np.int64)

    @property
    def phases(self) -> Sequence[tuple[int, PlannedDataset]]:
        return self._phases

    def with_loss_weights(self, weights: Mapping[str, object]) -> PhasedDataset:
        """See :meth:`~headrace.data.mixture.MixtureDataset.with_loss_weights`; every phase must be
        a mixture.
        """
        if not weights:
            return self
        phases = [
            (step, cast(Any, dataset).with_loss_weights(weights)) for step, dataset in self._phases
        ]
        return PhasedDataset(phases, self.batch_schedule, self._changes)

    @property
    def changes(self) -> Sequence[PhaseChange]:
        return self._changes

    @property
    def own_schedule(self) -> BatchSchedule:
        return self.batch_schedule

    def at_step(self, step: int) -> tuple[PlannedDataset, int | None]:
        phase = int(np.searchsorted(self._steps, step, side="right")) - 1
        until = int(self._steps[phase + 1]) if phase + 1 < self._steps.size else None
        return self.phases[phase][1], until

    @property
    def length(self) -> int | None:
        for step, dataset in self.phases:
            _, until = self.at_step(step)
            length = dataset.length
            if length is not None and (
                until is None or length <= self.batch_schedule.rows_at(until)[0]
            ):
                return length
        return None

    @property
    def seq_len(self) -> int:
        """Tokens in the longest row."""
        return max(self.seq_lens)

    @property
    def read_stats(self) -> ReadStats:
        return sum((dataset.read_stats for _, dataset in self.phases), ReadStats())

    def describe(self) -> dict[str, Any]:
        return {
            "phases": [
                {"step": step, "dataset": dataset.describe()} for step, dataset in self.phases
            ]
        }

    def explain(self, example: Int64[np.ndarray, " n"]) -> Explained:
        return self._phase_of(example).explain(example)

    def open_windows(self, step: int | None = None) -> Mapping[str, tuple[OpenWindow, int]]:
        return self.at_step(step or 0)[0].open_windows(step)

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return self._phase_of(indices).locate(indices, epoch)

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        return await self._phase_of(indices).get_batch(indices)

    def reordered(self, order: Order) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: rows change their length",
            field="phases",
            cure="Shuffle the components instead.",
        )

    def _phase_of(self, indices: Int64[np.ndarray, " n"]) -> PlannedDataset:
        steps = self.batch_schedule.step_of(np.atleast_1d(indices))
        phases = np.unique(np.searchsorted(self._steps, steps, side="right")) - 1
        if phases.size > 1:
            raise ConfigError(
                "lie in phases of different seq_len, and a batch has rows of one length",
                field="indices",
                cure="Ask for the examples of one phase at a time.",
            )
        return self.phases[int(phases[0]) if phases.size else 0][1]


def _urls(dataset: PlannedDataset) -> list[str]:
    """Of all arrays, tokens and columns."""
    columns = [
        a for source in dataset.sources for column in source.columns.values() for a in column.stored
    ]
    return [a.url for a in (*(a for source in dataset.sources for a in source.arrays), *columns)]


class Continued(WrappingDataset):
    """A component from a phase on: the rest of an epoch, then whole epochs in new orders,
    endlessly.

    Args:
        first: Ordinal of its first example: the number that earlier phases drew.
        rest: The parts of the remainder of the epoch, each shuffled, one after the other.
        whole: All of it, shuffled.
        epoch: The epoch of ``rest``, or else of the first pass over ``whole``.
    """

    def __init__(
        self, first: int, rest: Sequence[PlannedDataset], whole: PlannedDataset, epoch: int
    ) -> None:
        self.first = first
        self.rest = tuple(rest)
        self.whole = whole
        self.epoch = epoch
        self.base = whole
        self._begins = starts(np.array([len(part) for part in self.rest], np.int64))
        self.rest_rows = int(self._begins[-1])
        self.whole_epoch = epoch + (self.rest_rows > 0)

    def at(self, ordinal: int) -> tuple[PlannedDataset, int, int]:
        """The position of an ordinal: in a part of ``rest`` or in ``whole``, the examples drawn
        from it before, and the epoch.
        """
        drawn = ordinal - self.first
        if drawn < self.rest_rows:
            part = int(np.searchsorted(self._begins, drawn, side="right")) - 1
            return self.rest[part], drawn - int(self._begins[part]), self.epoch
        passes, position = divmod(drawn - self.rest_rows, len(self.whole))
        return self.whole, position, self.whole_epoch + passes

    @property
    def length(self) -> None:
        return None

    def passes(self, ordinal: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        drawn = ordinal - self.first
        full_passes = self.whole_epoch + (drawn - self.rest_rows) // len(self.whole)
        return np.where(drawn < self.rest_rows, self.epoch, full_passes)

    @property
    def rows_of_pass(self) -> int:
        return len(self.whole)

    def shuffle_order(self) -> Order | None:
        return self.whole.shuffle_order()

    def ordered_runs(self) -> Sequence[OrderedRun]:
        epochs = [self.epoch] * len(self.rest) + [self.whole_epoch]
        first = (self.first + self._begins).tolist()
        runs: list[OrderedRun] = []
        for part, begin, epoch in zip((*self.rest, self.whole), first, epochs, strict=True):
            run = part.pass_order()
            if run is None:
                return ()
            runs.append(run._replace(first=begin, epoch=epoch))
        return runs

    def open_window(self) -> OpenWindow:
        windows = [part.open_window() for part in (self.whole, *self.rest)]
        return max(windows, key=lambda window: (window.rows, window.blocks))

    def describe(self) -> dict[str, Any]:
        # Further rows follow from what was drawn before, which the earlier phases describe:
        # untouched blocks and whole epochs are described, and the epoch of the first of these
        rest = [part.describe() for part in self.rest if not part.has_further_rows]
        return {
            "first": self.first,
            "epoch": self.epoch if rest else self.whole_epoch,
            "rest": rest[0] if rest else None,
            "whole": self.whole.describe(),
        }

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        drawn = indices - self.first
        passes, position = np.divmod(drawn - self.rest_rows, len(self.whole))
        if int(drawn.min(initial=self.rest_rows)) >= self.rest_rows:
            return self.whole.locate(position, self.whole_epoch + passes)
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        part_of = np.searchsorted(self._begins, drawn, side="right") - 1
        for number in np.unique(part_of).tolist():
            chosen = part_of == number
            if number < len(self.rest):
                in_part = drawn[chosen] - self._begins[number]
                rows = self.rest[number].locate(in_part, np.full(in_part.size, self.epoch))
            else:
                rows = self.whole.locate(position[chosen], self.whole_epoch + passes[chosen])
            for field, values in zip(located, rows, strict=True):
                field[chosen] = values
        return located
